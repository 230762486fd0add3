"""Goal: a logged topic in a running group: what writers were told is persisted is on every node's disk in the same
order, through a node that leaves and comes back, and after kill -9 of a daemon.
Method: embedded nodes with a journal directory; a real daemon that is killed."""

from __future__ import annotations

import dataclasses
import time
from pathlib import Path

from mcap.reader import make_reader

from spindle.client import Session, attach, embed
from spindle.config.settings import NodeConfig
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.journal.tools import read, verify
from tests.spindle.daemons import Daemon

TOPIC = "flight/alerts"
SPEC = TopicSpec(TOPIC, level=Level.LOGGED, size_max=1024)
WAIT_S = 20.0


def start(directory: Path, node_id: int) -> Session:
    session = embed(0, node_id=node_id, config=dataclasses.replace(
        NodeConfig(), node_id=node_id, runtime_dir=directory / "run", journal_dir=directory / "journal"))
    session.declare_topic(SPEC)
    return session


def test_a_topic_that_is_reopened_often_has_one_file(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    session = start(tmp_path, 1)
    try:
        for number in range(12):
            writer = session.open_writer(TOPIC)
            writer.inbox.write(b"%d" % number)
            writer.close()
    finally:
        session.close()
    assert [payload for _, _, payload in order(directory, 1)] == [b"%d" % number for number in range(12)]
    report = verify(directory)
    assert report.ok and len(report.files) == 1


def order(directory: Path, node_id: int) -> list[tuple[int, int, bytes]]:
    return [(one.view_id, one.sequence, one.payload) for one in read(directory, topic=TOPIC, node_id=node_id)]


def test_all_nodes_keep_the_same_order_also_one_that_comes_back(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    one, two = start(tmp_path, 1), start(tmp_path, 2)
    try:
        two.open_reader(TOPIC, keep_all=True, from_history=True)
        # keep-last readers would lose nothing either; the journal has a cursor of its own
        one.open_reader(TOPIC, keep_all=False, from_history=False)
        writers = [one.open_writer(TOPIC).inbox, two.open_writer(TOPIC).inbox]
        for number in range(300):
            for writer in writers:
                writer.write(b"%d" % number)
        assert all(writer.wait_acknowledged(WAIT_S, persisted=True) for writer in writers)
        assert len(order(directory, 1)) == 600 and order(directory, 1) == order(directory, 2)

        two.close()
        assert verify(directory, node_id=2).files[-1].closed
        for number in range(300, 400):
            writers[0].write(b"%d" % number)
        assert writers[0].wait_acknowledged(WAIT_S, persisted=True)
        two = start(tmp_path, 2)
        two.open_reader(TOPIC, keep_all=True, from_history=True)
        for number in range(400, 500):
            writers[0].write(b"%d" % number)
        assert writers[0].wait_acknowledged(WAIT_S, persisted=True)
        assert len(order(directory, 1)) == 800
        # What it missed came as history, and what it had is not there twice.
        assert order(directory, 2) == order(directory, 1)
    finally:
        one.close()
        two.close()
    report = verify(directory)
    assert report.ok and all(file.closed for file in report.files)


def test_kill_9_of_a_daemon(tmp_path: Path) -> None:
    directory = tmp_path / "journal"
    arguments = ("--journal-dir", str(directory))
    daemon = Daemon(1, *arguments, runtime_dir=tmp_path / "run").wait_ready()
    try:
        session = attach(0, runtime_dir=tmp_path / "run")
        session.declare_topic(SPEC)
        session.open_reader(TOPIC, keep_all=True, from_history=True)
        writer = session.open_writer(TOPIC).inbox
        for number in range(1000):
            writer.write(b"%d" % number)
        assert writer.wait_acknowledged(WAIT_S, persisted=True)
        for number in range(1000, 1400):
            writer.write(b"%d" % number)
        daemon.kill()
        session.close()
        # As it was left, before any node looked at it.
        with next(directory.glob("*.mcap")).open("rb") as stream:
            found = [message.data for _, _, message in make_reader(stream, validate_crcs=True).iter_messages()]
        assert found == [b"%d" % number for number in range(len(found))] and len(found) >= 1000
        report = verify(directory)
        assert report.ok and report.messages == len(found) and not report.files[0].closed
    finally:
        daemon.stop()
    again = Daemon(1, *arguments, runtime_dir=tmp_path / "run").wait_ready()
    try:
        session = attach(0, runtime_dir=tmp_path / "run")
        session.declare_topic(SPEC)
        session.open_reader(TOPIC, keep_all=True, from_history=True)
        writer = session.open_writer(TOPIC).inbox
        writer.write(b"again")
        assert writer.wait_acknowledged(WAIT_S, persisted=True)
        session.close()
    finally:
        again.stop()
    assert [one.payload for one in read(directory)] == [*found, b"again"]
    assert verify(directory).ok


def test_a_corrupt_journal_is_reported_to_whoever_opens_the_topic(tmp_path: Path) -> None:
    session = start(tmp_path, 1)
    session.open_reader(TOPIC, keep_all=True, from_history=True)
    writer = session.open_writer(TOPIC).inbox
    for number in range(20):
        writer.write(b"%d" % number)
        assert writer.wait_acknowledged(WAIT_S, persisted=True)
    session.close()
    (path,) = (tmp_path / "journal").glob("*.mcap")
    data = bytearray(path.read_bytes())
    data[len(data) // 4] ^= 1
    path.write_bytes(data)
    session = start(tmp_path, 1)
    started = time.monotonic()
    try:
        session.open_reader(TOPIC, keep_all=True, from_history=True)
        raise AssertionError("the topic was opened over a corrupt journal")
    except OSError as error:
        assert "is damaged before its end" in str(error) and str(path) in str(error)
    finally:
        session.close()
    assert time.monotonic() - started < WAIT_S
    assert path.read_bytes() == bytes(data)
