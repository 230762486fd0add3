"""Goal: what is asked of a node on another host while the connection to it ends is asked once on that connection.

Method: a channel whose keeper doesn't run, so that a connection that is over isn't noticed before the test says so.
"""

from __future__ import annotations

import socket
import threading

import pytest

from spindle.client.nodes import NodeAddresses
from spindle.client.remote_channel import RemoteChannel
from spindle.client.remote_link import Link
from spindle.errors import NodeStopped
from spindle.proto import attach_pb2 as pb
from spindle.transport.wire_blocking import BlockingConnection
from tests.support import wait_until


def test_who_finds_a_connection_to_be_over_waits_until_that_is_noticed() -> None:
    ours, theirs = socket.socketpair()
    channel = RemoteChannel(NodeAddresses(("127.0.0.1:1",), plain=True), 0, "test", None)
    link = Link(BlockingConnection(ours), "127.0.0.1:1", pb.Welcome())
    channel._link = channel._last = link
    link.conn.close()
    told: list[str] = []

    def ask() -> None:
        with pytest.raises(NodeStopped, match="no other node") as raised:
            channel.request(list_topics=pb.ListTopics())
        told.append(str(raised.value))

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(lambda: channel._changed._waiters, what="the one who asks waits")  # type: ignore[attr-defined]
    assert len(link.calls) == 1
    channel._lose(link)
    channel._end(NodeStopped("no other node serves"))
    thread.join()
    assert told and not link.calls
    theirs.close()
