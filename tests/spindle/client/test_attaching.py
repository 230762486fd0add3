"""attach(): which node is found, and what is said when none is.

Method: stand-ins for nodes, sockets that nobody listens at, and things that are no nodes, in a directory of our own.
"""

from __future__ import annotations

import functools
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from spindle.client import attach
from spindle.errors import (
    AccessDenied,
    CastOut,
    JournalError,
    NoDaemon,
    NodeSilent,
    NodeStopped,
    ProtocolMismatch,
    SpindleError,
)
from spindle.group.codec import PROTOCOL_VERSION
from spindle.proto import opening_pb2
from spindle.transport.wire import encode
from tests.spindle.stand_in import StandInNode
from tests.support import readable


@pytest.fixture
def domain_dir(runtime_dir: Path) -> Path:
    directory = runtime_dir / "domain-0"
    directory.mkdir()
    return directory


def left_over(path: Path) -> None:
    """A socket as a killed node leaves it behind."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))


def test_no_directory_means_no_daemon(runtime_dir: Path) -> None:
    """Goal: the error says where was looked and what to do. Method: an empty directory; it must not take long."""
    started = time.monotonic()
    with pytest.raises(NoDaemon, match=rf"no node of domain 3 .*{runtime_dir}.*spindle daemon"):
        attach(3)
    assert time.monotonic() - started < 1.0


def test_the_daemon_with_the_lowest_id_is_taken(domain_dir: Path) -> None:
    """Goal: dead nodes' sockets are skipped, and 9 comes before 10. Method: one left over, two alive."""
    left_over(domain_dir / "node-2.sock")
    (domain_dir / "node-x.sock").touch()
    with StandInNode(domain_dir / "node-10.sock"), StandInNode(domain_dir / "node-9.sock") as nine:
        with attach(name="finds"):
            assert [app.name for app in nine.attachments.apps.values()] == ["finds"]


def test_only_dead_nodes(domain_dir: Path) -> None:
    """Goal: what was tried is in the error. Method: a socket left over."""
    left_over(domain_dir / "node-2.sock")
    with pytest.raises(NoDaemon, match=r"node-2\.sock is left over from a dead node"):
        attach()


def test_a_node_can_be_named(domain_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: node_id and $SPINDLE_NODE_ID choose. Method: two nodes; a number without a node; nonsense."""
    with StandInNode(domain_dir / "node-1.sock"), StandInNode(domain_dir / "node-4.sock") as four:
        with attach(node_id=4):
            assert four.attachments.apps
        monkeypatch.setenv("SPINDLE_NODE_ID", "4")
        with attach(name="by environment"):
            assert "by environment" in [app.name for app in four.attachments.apps.values()]
        with pytest.raises(NoDaemon, match="no node 5"):
            attach(node_id=5)
        monkeypatch.setenv("SPINDLE_NODE_ID", "four")
        with pytest.raises(SpindleError, match="SPINDLE_NODE_ID is 'four'"):
            attach()


def test_embedded_nodes_are_a_second_choice(domain_dir: Path) -> None:
    """Goal: a daemon goes before embedded nodes, which are taken only if asked for. Method: both, then one."""
    with StandInNode(domain_dir / "node-1.sock") as embedded:
        embedded.attachments.embedded = True
        with StandInNode(domain_dir / "node-2.sock") as daemon, attach(embedded=True):
            assert daemon.attachments.apps
        with attach(embedded=True) as session:
            assert session.embedded
        with attach(node_id=1) as session:
            assert session.embedded
        with pytest.raises(NoDaemon, match="node 1 is embedded in another application"):
            attach()


@contextmanager
def hanging(path: Path) -> Iterator[None]:
    """A node that was stopped: the kernel takes connections for it, and nothing is said."""
    with socket.socket(socket.AF_UNIX) as sock:
        sock.bind(str(path))
        sock.listen()
        yield


@contextmanager
def dying(path: Path) -> Iterator[None]:
    """A node that is killed with an application's opening unread: the connection is reset."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def serve() -> None:
            with suppress(OSError):  # nobody came
                sock, _ = listening.accept()
                with sock:
                    readable(sock, 10)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join(10)


def test_a_node_that_hangs_is_waited_for_only_so_long(domain_dir: Path) -> None:
    """Goal: timeout_s holds for all nodes together, and the error says what to do. Method: sockets that accept and say
    nothing, one and several, beside one that is left over."""
    left_over(domain_dir / "node-5.sock")
    with hanging(domain_dir / "node-1.sock"):
        started = time.monotonic()
        with pytest.raises(TimeoutError, match=r"node 1 did not answer.*node-5\.sock is left.*-n, node_id") as found:
            attach(timeout_s=0.2)
        assert 0.2 <= time.monotonic() - started < 2.0, "the time that a dead one doesn't need is another's"
        with hanging(domain_dir / "node-2.sock"), pytest.raises(NodeSilent, match=r"node 1 did not.*node 2 did not"):
            attach(timeout_s=0.2)
        with pytest.raises(NodeSilent, match=r"node 1 did not answer within 0\.2 s\. .*kill it"):
            attach(node_id=1, timeout_s=0.2)
    assert found.value.exit_code == NodeStopped.exit_code == 6


@pytest.mark.parametrize("broken", [hanging, dying])
def test_a_node_that_does_not_answer_is_passed_by(domain_dir: Path, broken: Callable[[Path], Any]) -> None:
    """Goal: one that hangs, or dies meanwhile, keeps nobody from the node beside it. Method: sockets that do, at lower
    numbers, and a stand-in."""
    with StandInNode(domain_dir / "node-3.sock") as node, broken(domain_dir / "node-1.sock"), \
            broken(domain_dir / "node-2.sock"), attach(name="passes by", timeout_s=10 if broken is dying else 2):
        assert [app.name for app in node.attachments.apps.values()] == ["passes by"]


def test_a_node_that_is_ending_is_passed_by(domain_dir: Path) -> None:
    """Method: stand-ins that refuse with why they end; alone that is what is raised."""
    with StandInNode(domain_dir / "node-1.sock") as ending, StandInNode(domain_dir / "node-2.sock") as node:
        for error in (NodeStopped("it stops"), CastOut("it was cast out"), JournalError("its disk is full")):
            ending.call(functools.partial(ending.attachments.close, error))
            with attach(name=str(error)):
                assert str(error) in [app.name for app in node.attachments.apps.values()]
            with pytest.raises(type(error), match=str(error)):
                attach(node_id=1)


def test_a_node_that_dies_meanwhile_has_gone(domain_dir: Path) -> None:
    """Goal: it is no nonsense that it speaks (5), it has gone (6). Method: one alone, named and not."""
    for wanted in (None, 1):
        with dying(domain_dir / "node-1.sock"), \
                pytest.raises(NodeStopped, match=r"node 1 went while .*; attach again once it runs") as found:
            attach(node_id=wanted)
        assert found.value.exit_code == 6
        (domain_dir / "node-1.sock").unlink()


@pytest.mark.parametrize(
    ("answer", "error", "match"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", ConnectionError, "malformed frame|over the limit"),
        (encode(b"\xff\xff"), ConnectionError, "can't be read"),
        (encode(opening_pb2.OpeningReply().SerializeToString()), ProtocolMismatch, "does not speak Spindle's protocol"),
        (
            encode(opening_pb2.OpeningReply(magic=0x4E495053, protocol=PROTOCOL_VERSION + 1).SerializeToString()),
            ProtocolMismatch,
            f"version {PROTOCOL_VERSION + 1} of the attachment protocol, this library version {PROTOCOL_VERSION}",
        ),
        (
            encode(opening_pb2.OpeningReply(magic=0x4E495053, kind="AccessDenied", message="no").SerializeToString()),
            AccessDenied,
            "no",
        ),
    ],
)
def test_whatever_answers_is_checked(domain_dir: Path, answer: bytes, error: type[Exception], match: str) -> None:
    """Goal: foreign services, other versions and refusals each give their own error. Method: a server does."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(domain_dir / "node-1.sock"))
        listening.listen()

        def serve() -> None:
            sock, _ = listening.accept()
            with sock:
                sock.recv(4096)
                sock.sendall(answer)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 1))

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(error, match=match):
            attach()
        thread.join(5)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a directory away")
def test_a_directory_made_by_a_stranger_is_not_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: in /tmp somebody else could wait for us under our name. Method: the default directory, owned by another."""
    base = Path("/tmp/spindle-0")
    if base.exists():
        pytest.skip("in use")
    base.mkdir()
    try:
        os.chown(base, 54321, 54321)
        with pytest.raises(AccessDenied, match="belongs to user 54321"):
            attach(runtime_dir=base)
    finally:
        base.rmdir()


def test_attaching_is_quick(domain_dir: Path) -> None:
    """Goal: attaching takes less than 5 ms once everything is imported. Method: the best of twenty, in time of the
    processor, of this process and the stand-in node in it, so that others on the machine don't count."""
    with StandInNode(domain_dir / "node-1.sock"):
        best = 1.0
        for _ in range(20):
            started = time.process_time()
            session = attach()
            best = min(best, time.process_time() - started)
            session.close()
    assert best < 0.005, f"{best * 1000:.1f} ms"
