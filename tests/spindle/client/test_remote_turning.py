"""Sessions with nodes on other hosts: what is open and declared goes along when a session turns to the next node.

Method: daemons on hosts of their own, connections that break, and one stand-in for a node that is about to end.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle.client import attach
from spindle.client.remote import attach_remote
from spindle.errors import NoResources
from spindle.group.codec import PROTOCOL_VERSION
from spindle.group.levels import Level
from spindle.proto import attach_pb2 as pb
from spindle.proto import opening_pb2
from spindle.proto import relay_pb2 as rb
from spindle.transport.opening import MAGIC
from tests.spindle.client.remote_site import LONG_S, declare, more, one_host, options
from tests.spindle.hosts import Host, hosts
from tests.support import wait_until


@pytest.mark.slow
def test_a_reader_is_sent_what_its_own_writer_waits_for(runtime_dir: Path) -> None:
    """Goal: whoever turns to a node with a reader that keeps all and a writer doesn't wait for itself. Method: more of
    the writer's messages are at the node than its log has room for when the connection breaks."""
    with (one_host(runtime_dir, *options(topics__log_capacity="256KiB")) as host,
          attach(runtime_dir=host.directory) as local, attach_remote([host.address], patience_s=None) as far):
        declare(far, size_max=50_000)
        holding = local.open_reader("t", keep_all=True, from_history=False)
        reader, writer = far.open_reader("t", keep_all=True, from_history=False), far.open_writer("t")
        total = 0
        with contextlib.suppress(TimeoutError):
            while True:
                writer.inbox.write(b"%d " % total + bytes(49_000), 0, 0.5)
                total += 1
        got: list[bytes] = []
        wait_until(lambda: not more(got, reader) or not reader.log.pending, LONG_S)
        assert len(got) < total - 10
        far._channel._link.conn._sock.shutdown(socket.SHUT_RDWR)  # type: ignore[attr-defined]

        def back() -> bool:
            status = local.status()
            return status["relayed"]["turned"] == 1 and ["t"] in [
                one["readers"] for one in status["applications"] if "address" in one]

        wait_until(back, LONG_S)
        held: list[bytes] = []
        wait_until(lambda: [len(more(held, holding)), len(more(got, reader))] == [total, total], LONG_S)
        assert got == held and reader.gap_count == 0


@contextlib.contextmanager
def node_that_stops() -> Iterator[str]:
    """Address of somebody who lets an application in and refuses its first request, as it is about to end."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            sock, _ = listening.accept()
            with sock, sock.makefile("rb") as came:

                def frame() -> bytes:
                    return came.read(struct.unpack("<IHH", came.read(8))[0])

                def say(body: bytes) -> None:
                    sock.sendall(struct.pack("<IHH", len(body), 0, 0) + body)

                assert came.read(4) == b"SPNC" and frame()
                say(opening_pb2.OpeningReply(magic=MAGIC, protocol=PROTOCOL_VERSION).SerializeToString())
                say(rb.NodeSide(node=pb.NodeFrame(welcome=pb.Welcome(node_id=9)).SerializeToString()).SerializeToString())
                assert rb.ClientSide.FromString(frame()).WhichOneof("body") == "begin"
                number = pb.Request.FromString(rb.ClientSide.FromString(frame()).request).number
                refusal = pb.Refusal(number=number, kind="NodeStopped", text="it stops")
                say(rb.NodeSide(node=pb.NodeFrame(refusal=refusal).SerializeToString()).SerializeToString())

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}"
        thread.join(LONG_S)


@pytest.mark.slow
def test_what_a_node_that_stops_refuses_is_asked_at_the_next(remote_host: Host) -> None:
    with node_that_stops() as address, attach_remote([address, remote_host.address], patience_s=None) as session:
        assert session.node_id == 9
        assert session.view().node_ids == (1,) and session.node_id == 1


@pytest.mark.slow
def test_a_topic_that_was_declared_is_there_in_the_group_of_a_restart(runtime_dir: Path) -> None:
    with one_host(runtime_dir) as host, attach_remote([host.address], patience_s=None) as far:
        declare(far, "mine", Level.VOLATILE)
        host.running.kill()
        host.start().wait_ready()
        with far.open_reader("mine", keep_all=True, from_history=True) as reader, far.open_writer("mine") as writer:
            writer.inbox.write(b"x")
            assert reader.log.wait(LONG_S) and reader.log.take(1) == [b"x"]
        assert far.topics()[0].spec.level is Level.VOLATILE


@pytest.mark.slow
def test_what_is_closed_while_a_session_turns_to_a_node_is_closed_there(remote_host: Host) -> None:
    """It was open at the new node already, and nobody else would ever tell that one."""
    with attach_remote([remote_host.address]) as session:
        declare(session, "closing")
        first, second = (session.open_reader("closing", keep_all=True, from_history=False, guid=guid)
                         for guid in (b"first", b"second"))
        channel = session._channel
        again, opened = channel._open_there, threading.Event()

        def closing(link: Any, deadline: float, port: Any, **body: Any) -> Any:
            if port is second._reader:
                first.close()
                opened.set()
            return again(link, deadline, port, **body)

        channel._open_there = closing
        channel._link.conn._sock.shutdown(socket.SHUT_RDWR)
        assert opened.wait(LONG_S)
        wait_until(lambda: len(session.endpoints("closing")) == 1)


@pytest.mark.parametrize("kind", ["reader", "writer"])
def test_what_a_program_can_not_take_is_closed_at_the_node(
        remote_host: Host, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Or it would stay open there with nobody who has it, and a reader that keeps all would hold up all writers."""
    from spindle.client.remote_ports import RemoteReader, RemoteWriter

    def no_room(*_: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with attach_remote([remote_host.address]) as session:
        declare(session, f"short-{kind}")
        with monkeypatch.context() as patched:
            patched.setattr(RemoteReader if kind == "reader" else RemoteWriter, "opened", no_room)
            with pytest.raises(NoResources):
                if kind == "reader":
                    session.open_reader(f"short-{kind}", keep_all=True, from_history=False, guid=b"lost")
                else:
                    session.open_writer(f"short-{kind}", guid=b"lost")
        wait_until(lambda: not session.endpoints(f"short-{kind}"))


def test_what_was_given_back_can_be_closed_by_who_has_it_after_all(remote_host: Host) -> None:
    """Who is interrupted may have made something of what it was opened for, and closes that."""
    with attach_remote([remote_host.address]) as session:
        declare(session, "given back")
        made: list[Any] = []
        with pytest.raises(KeyError), session.whole_or_closed():
            made.append(session.open_reader("given back", keep_all=True, from_history=False, guid=b"reader"))
            made.append(session.open_writer("given back", guid=b"writer"))
            raise KeyError
        wait_until(lambda: not session.endpoints("given back"))
        for one in made:
            one.close()


@pytest.mark.slow
def test_what_was_declared_at_another_node_just_now_is_found(runtime_dir: Path) -> None:
    with hosts(runtime_dir, 2) as (one, two), attach(runtime_dir=one.directory) as near, attach_remote(
            [two.address]) as far:
        for n in range(100):
            declare(near, f"t{n}")
            far.open_reader(f"t{n}", keep_all=True, from_history=False).close()
