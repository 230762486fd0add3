"""The application's ends of a node's ports, in the test's own process: no attachment in between."""

from __future__ import annotations

import os

from spindle.node.node import Node
from spindle.restart.history import local_reader
from spindle.topics.ports import ReaderPort, WriterPort
from spindle_core.inbox_writer import InboxWriter
from spindle_core.memory import Mapping
from spindle_core.reader import LogReader


def writer_of(node: Node, port: WriterPort) -> InboxWriter:
    """What the application would make of the descriptors of a writer."""
    return InboxWriter(
        Mapping.attach(os.dup(port.inbox.ring.fd), writable=True), Mapping.attach(os.dup(port.inbox.progress.fd)),
        os.dup(port.inbox.their_fd), Mapping.attach(os.dup(node.engine.bell.fd)), os.dup(node.engine.bell_fd))


def reader_of(node: Node, port: ReaderPort) -> LogReader:
    """What the application would make of the descriptors of a reader."""
    log = node._changes.topics.local[port.topic].log
    assert log is not None
    return local_reader(node.engine, log, port.cursor)
