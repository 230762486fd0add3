"""The control connection under awkward circumstances: ports given up while another sends, a node that reads nothing.

Method: a stand-in for the node, or a bare socket pair in its place.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
from pathlib import Path

import pytest

from spindle.client import attach
from spindle.client.channel import closings_within, whole_or_closed
from spindle.errors import NoResources
from spindle.group.topics import TopicSpec
from spindle.proto import attach_pb2 as pb
from spindle.transport.wire import BlockingConnection
from tests.interrupts import interrupted_everywhere
from tests.spindle.daemons import daemons
from tests.spindle.node.test_shortage import descriptors, lowest_free
from tests.spindle.stand_in import StandInNode
from tests.support import wait_until


def test_a_port_can_be_given_up_in_the_middle_of_a_send(runtime_dir: Path) -> None:
    """Goal: giving up a port while another thread sends neither waits nor is forgotten.
    Method: hold the lock as a send() does, give up, release, and make another request."""
    with StandInNode(runtime_dir / "node.sock") as node, node.session() as session:
        session.declare_topic(TopicSpec("altitude"))
        writer = session.open_writer("altitude")
        reader = session.open_reader("altitude", keep_all=True, from_history=False)
        with session._channel._conn._send_lock:
            session._channel.post_close(writer.port)
            session._channel.post_close(reader.port)
        assert len(node.open_ports) == 2
        session.view()
        wait_until(lambda: not node.open_ports)


def test_giving_up_closes_without_a_request_to_follow(runtime_dir: Path) -> None:
    """Goal: usually the node is told at once. Method: give up, and look at the node."""
    with StandInNode(runtime_dir / "node.sock") as node, node.session() as session:
        session.declare_topic(TopicSpec("altitude"))
        session._channel.post_close(session.open_writer("altitude").port)
        wait_until(lambda: not node.open_ports)


def test_an_answer_that_nobody_takes_leaves_nothing_open(runtime_dir: Path) -> None:
    """Goal: who ends before it looks at an answer keeps no descriptors that came with it; who has taken them does."""

    def are_open(fds: list[int]) -> bool:
        return all(os.path.exists(f"/proc/self/fd/{fd}") for fd in fds)

    with StandInNode(runtime_dir / "node.sock") as node, node.session() as session:
        session.declare_topic(TopicSpec("altitude"))
        for takes in (False, True):
            call = session._channel.begin(open_writer=pb.OpenWriter(topic="altitude"))
            assert call.answered.wait(10) and call.frame is not None
            fds = list(call.frame.fds)
            assert fds and are_open(fds)
            answer = session._channel.answer_to(call) if takes else None
            del call
            wait_until(lambda takes=takes, fds=fds: are_open(fds) == takes)  # type: ignore[misc]
        assert answer is not None and answer[1].fds == fds


def test_an_answer_for_whose_descriptors_there_is_no_room_is_that_request_s_failure(runtime_dir: Path) -> None:
    """Goal: a program at its limit is told so by what it asked for; its session goes on, and the node keeps nothing
    open for it. Method: the limit of this process is set to what it has open; the node is another one."""
    with daemons(runtime_dir, 1), attach(runtime_dir=runtime_dir) as session, attach(runtime_dir=runtime_dir) as other:
        session.declare_topic(TopicSpec("altitude"))
        asks = (lambda: session.open_writer("altitude"),
                lambda: session._channel.request(open_writer=pb.OpenWriter(topic="altitude")))
        for ask, room in ((asks[0], 0), (asks[0], 1), (asks[0], 2), (asks[1], 0)):
            most = lowest_free(os.getpid(), room)
            with descriptors(os.getpid(), most), pytest.raises(NoResources, match="ulimit -n"):
                ask()
            wait_until(lambda: not other.topics()[0].senders)
        with session.open_writer("altitude"):
            wait_until(lambda: other.topics()[0].senders)


def test_a_node_that_does_not_read_ends_the_connection_in_time() -> None:
    """Goal: send() and try_send() give up after their time and close, without waiting for themselves.
    Method: the other end of a socket pair never reads."""
    for send in (BlockingConnection.send, BlockingConnection.try_send):
        ours, theirs = socket.socketpair()
        conn = BlockingConnection(ours)
        ended = threading.Event()

        def fill(conn: BlockingConnection = conn, send: object = send, ended: threading.Event = ended) -> None:
            with pytest.raises(TimeoutError, match="took no data"):
                for _ in range(100):
                    send(conn, bytes(1 << 20), timeout_s=0.05)  # type: ignore[operator]
            ended.set()

        thread = threading.Thread(target=fill, daemon=True)
        thread.start()
        assert ended.wait(10)
        assert conn.closed
        thread.join()
        theirs.close()


def test_who_is_interrupted_in_sending_keeps_nobody_from_it() -> None:
    """Goal: an exception of a signal's handler leaves nothing locked that others need for sending.
    Method: interruptions at every place; after each, this thread and another one send."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        conn = BlockingConnection(ours)

        def sends(_: object) -> None:
            thread = threading.Thread(target=lambda: sent.append(conn.try_send(b"another")), daemon=True)
            thread.start()
            thread.join(10)
            own = threading.Thread(target=conn.send, args=(b"and one",), daemon=True)  # so that it can be given up
            own.start()
            own.join(10)
            assert not own.is_alive() and sent.pop() and not sent
            theirs.recv(1 << 16)

        sent: list[bool] = []
        for send in (conn.try_send, conn.send):
            assert interrupted_everywhere(lambda send=send: send(b"x"), sends) > 3  # type: ignore[misc]


def test_what_a_request_has_opened_for_nobody_is_closed(runtime_dir: Path) -> None:
    """Goal: who is interrupted while he waits for the node's answer leaves no reader or writer open.
    Method: interruptions at every place of a request, which is repeated."""
    with daemons(runtime_dir, 1), attach(runtime_dir=runtime_dir) as session, attach(runtime_dir=runtime_dir) as other:
        session.declare_topic(TopicSpec("altitude"))
        opened: list[int] = []

        def act() -> None:
            reply, frame = session._channel.request(open_writer=pb.OpenWriter(topic="altitude"))
            opened.append(reply.writer.port)
            frame.close_fds()
            session._channel.post_close(opened[-1])

        act()
        assert interrupted_everywhere(act, lambda _: None) > 10
        for port in opened:
            session._channel.post_close(port)
        wait_until(lambda: not other.topics()[0].senders)


# --- what is opened in vain

class Opening:
    """A program's function that opens things; what closes them again notes their names."""

    def __init__(self) -> None:
        self.closed: list[str] = []

    def open(self, name: str) -> None:
        noted = closings_within()
        if noted is not None:
            noted.append(lambda: self.closed.append(name))

    def two(self, fail: bool) -> None:
        with whole_or_closed():
            self.open("one")
            with whole_or_closed():
                self.open("two")
            if fail:
                raise ValueError


def test_what_was_opened_before_an_error_is_closed() -> None:
    opening = Opening()
    opening.two(False)
    opening.open("outside")
    assert opening.closed == [] and closings_within() is None
    with pytest.raises(ValueError):
        opening.two(True)
    assert sorted(opening.closed) == ["one", "two"] and closings_within() is None


def test_an_interruption_anywhere_closes_what_was_opened_and_nothing_else() -> None:
    """Goal: also where a signal's handler raises as it is entered or left, and whoever has the error keeps it, what is
    opened later is not closed with it, nor kept for it. Method: interruptions at every place; errors that are kept."""
    kept: list[BaseException] = []
    opening = Opening()

    def check(error: BaseException) -> None:
        kept.append(error)
        opening.closed.clear()
        assert closings_within() is None
        opening.two(False)
        with whole_or_closed():
            opening.open("later")
        assert opening.closed == []

    assert interrupted_everywhere(lambda: opening.two(False), check) > 10
    opening.closed.clear()
    kept.clear()
    gc.collect()
    assert "later" not in opening.closed
