"""Programs of a host without a node, through its edge: everything as with connections of their own.

Method: daemons on hosts of their own, an edge on one without a node; sessions in this process, or hostile programs that
write their bytes themselves.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle.client import ReaderHandle, Session, attach
from spindle.client.remote import RemoteSession, attach_remote
from spindle.errors import AccessDenied, NoDaemon, NodeStopped, SpindleError
from spindle.group.codec import PROTOCOL_VERSION
from spindle.proto import attach_pb2 as pb
from spindle.proto import opening_pb2
from spindle.proto import relay_pb2 as rb
from spindle.transport.opening import MAGIC
from tests.spindle.client.remote_site import LONG_S, declare, keys_of, more, one_host, options, with_certificates
from tests.spindle.daemons import Daemon
from tests.spindle.edge.edges import EdgeHost, edge_of
from tests.spindle.frames import receive_frame
from tests.spindle.hosts import Host, hosts
from tests.spindle.large.group import pattern
from tests.spindle.site import Site
from tests.spindle.users import STRANGER_UID, needs_root, run_as
from tests.support import halt, wait_until

MB = 1 << 20


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Host, EdgeHost]]:
    """A node, and an edge at it, for tests that leave them as they were."""
    directory = Path("/tmp") / f"edge-{os.getpid()}"
    directory.mkdir()
    try:
        with one_host(directory) as host, edge_of(directory, [host]) as edge:
            yield host, edge
    finally:
        subprocess.run(["rm", "-rf", str(directory)], check=True)


def taken(reader: ReaderHandle, count: int) -> list[bytes]:
    got: list[bytes] = []
    while len(got) < count:
        assert reader.log.wait(LONG_S), f"{len(got)} of {count} messages came"
        got += reader.log.take(count - len(got))
    return got


def topic_of(test: str) -> str:
    return f"{test}-{time.monotonic_ns()}"


# ---- as without it


@pytest.mark.slow
def test_small_and_large_messages_both_ways(both: tuple[Host, EdgeHost]) -> None:
    """In one order, whole, beside a node and through the edge."""
    host, edge = both
    name = topic_of("t")
    sent = [pattern(size, seed) for seed, size in enumerate((10, 3 * MB + 1, 1000, 1001, 20, 9 * MB, 1, 70_000))]
    with attach(runtime_dir=host.directory) as near, attach(runtime_dir=edge.directory) as far:
        assert isinstance(far, RemoteSession) and far.address == str(edge.path) and far.node_id == 1
        declare(near, name)
        ends = [(one.open_reader(name, keep_all=True, from_history=False), one.open_writer(name))
                for one in (near, far)]
        for payload in sent:
            for _, writer in ends:
                writer.inbox.write(payload, timeout_s=LONG_S)
        got = [taken(reader, 2 * len(sent)) for reader, _ in ends]
        assert got[0] == got[1] and sorted(got[0], key=len) == sorted([*sent, *sent], key=len)
        assert all(writer.inbox.wait_acknowledged(LONG_S) for _, writer in ends)


@pytest.mark.slow
def test_certificates_are_the_edges(runtime_dir: Path, tmp_path: Path) -> None:
    """Goal: programs need no keys, and may do what the rules about the edge's certificate allow. The node is told what
    it counts: one connection, the programs each."""
    site = Site(tmp_path / "site")
    rule = 'access.rules=[{application = "cabin", publish = ["out"], subscribe = ["in"]}]'
    keys = [part for name, path in keys_of(site, "cabin").items() for part in (f"--{name}", str(path))]
    with one_host(runtime_dir, *with_certificates(site), rule) as host, attach(runtime_dir=host.directory) as local, \
            edge_of(runtime_dir, [host], *keys) as edge:
        for name in ("out", "in", "private"):
            declare(local, name)
        with attach(runtime_dir=edge.directory) as one, attach(runtime_dir=edge.directory) as other:
            assert {topic.spec.name for topic in one.topics()} == {"out", "in"}
            reader = local.open_reader("out", keep_all=True, from_history=False)
            one.open_writer("out").inbox.write(b"hello")
            assert taken(reader, 1) == [b"hello"]
            with pytest.raises(AccessDenied, match="application 'cabin'"):
                other.open_writer("in")
            status = local.status()
            assert status["relayed"]["applications"] == 2 and status["relayed"]["edges"] == 1
            told = edge.running
            assert "keys" not in told.log
        with pytest.raises(SpindleError, match="certificate"):
            attach_remote([host.address])
    code = Daemon(0, "--edge", "--nodes", "127.0.0.1:1", "--certificate", str(tmp_path / "none"), "--key", "k",
                  "--authority", "a", runtime_dir=tmp_path).wait()
    assert code == 2


@pytest.mark.slow
def test_where_there_is_a_node_it_is_preferred(runtime_dir: Path) -> None:
    """And without it the edge is taken, and can be named."""
    with hosts(runtime_dir, 2) as (one, two), edge_of(runtime_dir, [two]) as edge:
        with attach(runtime_dir=edge.directory) as session:
            assert session.node_id == 2
        with attach_remote([str(edge.path)]) as session:
            assert session.node_id == 2
        beside = EdgeHost(one.directory, [two.address])
        try:
            beside.start()
            with attach(runtime_dir=one.directory) as session:
                assert session.node_id == 1 and not isinstance(session, RemoteSession)
        finally:
            beside.running.stop()


@pytest.mark.slow
def test_commands_use_it(runtime_dir: Path) -> None:
    with one_host(runtime_dir) as host, edge_of(runtime_dir, [host]) as edge:
        def run(*arguments: str, stdin: str = "") -> str:
            return subprocess.run([sys.executable, "-m", "spindle.cli", *arguments], input=stdin, text=True, check=True,
                                  capture_output=True, timeout=LONG_S).stdout

        there = ("--runtime-dir", str(edge.directory))
        sub = subprocess.Popen([sys.executable, "-m", "spindle.cli", "sub", "t", "--create", "--count", "2", "--format",
                                "lines", "--nodes", str(edge.path)], stdout=subprocess.PIPE, text=True)
        run("pub", "t", "one", "--readers", "1", *there)
        run("pub", "t", "two", "--readers", "1", *there)
        assert sub.communicate(timeout=LONG_S)[0] == "one\ntwo\n"
        assert "node 1" in run("status", *there) and "t" in run("topics", *there)


@pytest.mark.slow
def test_nothing_is_left_of_programs_that_have_gone(both: tuple[Host, EdgeHost]) -> None:
    """Neither at the edge nor at the node: no descriptor, in whatever way they went."""
    host, edge = both

    def held() -> list[int]:
        return [len(os.listdir(f"/proc/{one.running.pid}/fd")) for one in (host, edge)]

    name = topic_of("t")
    with attach(runtime_dir=edge.directory) as session:
        declare(session, name)
    before = held()  # what the programs of other tests had may be going just now
    for _ in range(10):
        with attach(runtime_dir=edge.directory) as session:
            reader, writer = session.open_reader(name, keep_all=True, from_history=False), session.open_writer(name)
            writer.inbox.write(b"x")
            assert taken(reader, 1) == [b"x"]
        Hostile(edge).begin().sock.close()
        Hostile(edge, introduce=False).sock.close()
        half = Hostile(edge)
        half.sock.sendall(b"\xff\0\0\0\0\0\0\0half")
        half.sock.close()
    wait_until(lambda: all(now <= then for now, then in zip(held(), before, strict=True)))


# ---- nodes and edges that die


@pytest.mark.slow
def test_the_next_node_when_one_dies(runtime_dir: Path) -> None:
    """Goal: a program goes on at the next node and nothing is lost or comes twice. Method: two writers through the edge
    and one beside a node that stays; the node beneath the edge is killed while they write, then the next one."""
    with hosts(runtime_dir, 3) as site, edge_of(runtime_dir, site) as edge, \
            attach(runtime_dir=site[2].directory) as beside, attach(runtime_dir=edge.directory) as far, \
            attach(runtime_dir=edge.directory) as other:
        declare(beside)
        readers = [one.open_reader("t", keep_all=True, from_history=False) for one in (beside, far)]
        writers = [one.open_writer("t") for one in (far, other)]
        count = 0

        def write(many: int) -> None:
            nonlocal count
            for _ in range(many):
                for name, writer in enumerate(writers):
                    writer.inbox.write(b"%d %d" % (name, count), 0, LONG_S)
                count += 1

        write(300)
        assert far.node_id == other.node_id == 1
        site[0].running.kill()
        write(300)
        wait_until(lambda: far.node_id == other.node_id == 2)
        assert all(one.inbox.wait_acknowledged(LONG_S) for one in writers)
        site[1].running.terminate()
        write(300)
        assert all(one.inbox.wait_acknowledged(LONG_S) for one in writers)
        assert far.node_id == other.node_id == 3
        got = taken(readers[0], 2 * count)
        for name in (b"0 ", b"1 "):
            assert [int(one[2:]) for one in got if one.startswith(name)] == list(range(count))
        seen: list[bytes] = []
        wait_until(lambda: b"%d %d" % (1, count - 1) in more(seen, readers[1]))
        assert [one for one in got if one in set(seen)] == seen
        assert len(seen) == len(got) or readers[1].gap_count


@pytest.mark.slow
def test_an_edge_that_dies_and_comes_back(runtime_dir: Path) -> None:
    """A program that waits for it goes on; one that doesn't is told."""
    with one_host(runtime_dir) as host, edge_of(runtime_dir, [host]) as edge, \
            attach(runtime_dir=host.directory) as beside, \
            attach_remote([str(edge.path)], patience_s=None) as patient, \
            attach(runtime_dir=edge.directory) as impatient:
        declare(beside)
        reader = beside.open_reader("t", keep_all=True, from_history=False)
        writer = patient.open_writer("t")
        for number in range(100):
            writer.inbox.write(b"%d" % number, 0, LONG_S)
        edge.running.kill()
        wait_until(lambda: beside.status()["relayed"]["applications"] == 0)
        wait_until(lambda: impatient.gone)
        with pytest.raises(SpindleError, match="edge at"):
            impatient.topics()
        with pytest.raises(NoDaemon, match=r"edge at .* cannot be reached"):
            attach(runtime_dir=edge.directory)
        edge.start()
        for number in range(100, 200):
            writer.inbox.write(b"%d" % number, 0, LONG_S)
        assert taken(reader, 200) == [b"%d" % number for number in range(200)]


@pytest.mark.slow
def test_programs_are_told_when_no_node_serves(runtime_dir: Path) -> None:
    """At once, and those that wait go on when one does."""
    with one_host(runtime_dir) as host, edge_of(runtime_dir, [host]) as edge, \
            attach(runtime_dir=edge.directory, patience_s=None) as patient, \
            attach(runtime_dir=edge.directory) as impatient:
        declare(patient)
        host.running.kill()
        wait_until(lambda: impatient.gone)
        assert "is gone" in str(impatient.end_error) and "edge of this host finds no node" in str(impatient.end_error)
        begun = time.monotonic()
        with pytest.raises(NoDaemon, match=r"finds no node of domain 0 that serves: .* refused"):
            attach(runtime_dir=edge.directory, timeout_s=60)
        assert time.monotonic() - begun < 30
        host.start().wait_ready()
        wait_until(lambda: patient.topics() is not None)
        assert patient.node_id == 1


@pytest.mark.slow
def test_a_node_that_hangs_is_given_up(runtime_dir: Path) -> None:
    """By the edge, with no program there that could notice; and by a program that has waited meanwhile."""
    with hosts(runtime_dir, 3, *options(membership__suspect_timeout_s=1.0)) as site, edge_of(runtime_dir, site) as edge:
        with attach(runtime_dir=edge.directory) as session:
            declare(session)
            assert session.node_id == 1
        halt(site[0].running.pid)
        try:
            wait_until(lambda: f"served by the node at {site[1].address}" in edge.running.log, LONG_S)
            with attach(runtime_dir=edge.directory) as session:
                assert session.node_id == 2
                writer = session.open_writer("t")
                writer.inbox.write(b"x")
                assert writer.inbox.wait_acknowledged(LONG_S)
        finally:
            site[0].running.kill()


@pytest.mark.slow
def test_it_ends_in_order(runtime_dir: Path) -> None:
    """Its programs are told, the node at once, the socket is gone, and another one can begin."""
    with one_host(runtime_dir) as host, edge_of(runtime_dir, [host]) as edge, \
            attach(runtime_dir=host.directory) as beside, attach(runtime_dir=edge.directory) as session:
        second = Daemon(0, "--edge", "--nodes", host.address, runtime_dir=edge.directory)
        assert second.wait() == 7 and "an edge of domain 0 runs already" in second.log
        assert edge.running.terminate() == 0 and not edge.path.exists()
        wait_until(lambda: session.gone)
        assert "the edge of this host was stopped" in str(session.end_error)
        wait_until(lambda: beside.status()["relayed"]["edges"] == 0)
        edge.start()
        with attach(runtime_dir=edge.directory) as again:
            assert again.node_id == 1


# ---- programs that are slow, or hostile


class Hostile:
    """A program of the edge's host that says what it likes."""

    def __init__(self, edge: EdgeHost, introduce: bool = True,
                 role: opening_pb2.Role = opening_pb2.APPLICATION) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(LONG_S)
        self.sock.connect(str(edge.path))
        if introduce:
            self.send(opening_pb2.Opening(magic=MAGIC, role=role, protocol=PROTOCOL_VERSION,
                                          name="hostile").SerializeToString())

    def begin(self) -> Hostile:
        assert opening_pb2.OpeningReply.FromString(self.receive()).kind == ""
        self.say(begin=rb.Begin(client=os.urandom(16), turn=1))
        return self

    def send(self, body: bytes) -> None:
        self.sock.sendall(struct.pack("<IHH", len(body), 0, 0) + body)

    def say(self, **side: Any) -> None:
        self.send(rb.ClientSide(**side).SerializeToString())

    def receive(self) -> bytes:
        return receive_frame(self.sock)

    def refused(self) -> str:
        with contextlib.closing(self.sock):
            return opening_pb2.OpeningReply.FromString(self.receive()).message

    def cut_off(self) -> str:
        """What it was told last."""
        last = ""
        try:
            while True:
                frame = pb.NodeFrame.FromString(rb.NodeSide.FromString(self.receive()).node)
                last = frame.refusal.text or last
        except (EOFError, ConnectionError):
            return last
        finally:
            self.sock.close()


def test_who_says_nonsense_is_cut_off_and_told(both: tuple[Host, EdgeHost]) -> None:
    """And whoever else is there doesn't notice."""
    _, edge = both
    with attach(runtime_dir=edge.directory) as honest:
        name = topic_of("t")
        declare(honest, name)
        reader, writer = honest.open_reader(name, keep_all=True, from_history=False), honest.open_writer(name)
        one = Hostile(edge).begin()
        one.send(b"\xff" * 50)
        assert "can't be read" in one.cut_off()
        one = Hostile(edge).begin()
        one.sock.sendall(struct.pack("<IHH", 1 << 30, 0, 0))
        assert "over the limit" in one.cut_off()
        one = Hostile(edge).begin()
        one.sock.sendall(struct.pack("<IHH", 1, 1, 0) + b"x")
        assert "descriptors" in one.cut_off()
        one = Hostile(edge, introduce=False)
        one.sock.sendall(os.urandom(8000))
        with pytest.raises((EOFError, ConnectionError)):
            while one.receive():
                pass
        one.sock.close()
        for role in (opening_pb2.PEER, opening_pb2.CONTACT, opening_pb2.EDGE):
            assert "it is no node" in Hostile(edge, role=role).refused()
        writer.inbox.write(b"here")
        assert taken(reader, 1) == [b"here"]
        assert honest.gone is False and honest.node_id == 1


@pytest.mark.slow
def test_who_takes_nothing_and_who_floods_stop_nobody(both: tuple[Host, EdgeHost]) -> None:
    """Goal: windows hold: a program that doesn't read, and ones whose node doesn't read them, keep no other waiting.
    Method: one asks for all that it is sent and reads nothing, while MBs are written; others send requests that no node
    answers fast enough, as much as their sockets take."""
    _, edge = both
    name = topic_of("t")
    with attach(runtime_dir=edge.directory) as honest, contextlib.ExitStack() as stack:
        declare(honest, name)
        reader, writer = honest.open_reader(name, keep_all=True, from_history=False), honest.open_writer(name)
        deaf = Hostile(edge).begin()
        stack.callback(deaf.sock.close)
        deaf.say(request=pb.Request(number=1, open_reader=pb.OpenReader(topic=name)).SerializeToString())
        while not (answer := pb.NodeFrame.FromString(rb.NodeSide.FromString(deaf.receive()).node).reply).number:
            pass
        deaf.say(credit=rb.Credit(port=answer.reader.port, bytes=1 << 40))
        flooding = [Hostile(edge).begin() for _ in range(3)]
        request = rb.ClientSide(request=pb.Request(number=1, get_status=pb.GetStatus()).SerializeToString())
        frame = struct.pack("<IHH", request.ByteSize(), 0, 0) + request.SerializeToString()
        for one in flooding:
            stack.callback(one.sock.close)
            one.sock.setblocking(False)
        for seed in range(20):
            for one in flooding:
                with contextlib.suppress(BlockingIOError):
                    while True:
                        one.sock.send(frame * 1000)
            writer.inbox.write(pattern(MB, seed), timeout_s=LONG_S)
            assert taken(reader, 1) == [pattern(MB, seed)]


@pytest.mark.slow
def test_limits_are_told(runtime_dir: Path) -> None:
    """Those of the edge, and those of the node."""
    with one_host(runtime_dir, *options(limits__max_apps=3)) as host, \
            edge_of(runtime_dir, [host], "--set", "limits.max_apps=2") as edge, contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(attach(runtime_dir=edge.directory)) for _ in range(2)]
        with pytest.raises(SpindleError, match=r"edge of this host has 2 programs, its limit: .* max_apps"):
            attach(runtime_dir=edge.directory)
        sessions[0].close()
        wait_until(lambda: _attaches(edge, stack))
        # At the node the edge itself counts, and its programs do.
        with pytest.raises(SpindleError, match=r"node 1 has 3 applications, its limit: .* max_apps"):
            attach(runtime_dir=host.directory)


@needs_root
@pytest.mark.slow
@pytest.mark.parametrize(("node_options", "edge_options", "places", "why"), [
    ([], ["--set", "limits.max_apps_per_user=2"], 2, "the limit: .* max_apps_per_user"),
    (options(limits__max_apps=5), [], 3, "takes 5 of all its users"),
], ids=["of the edge", "of the node"])
def test_other_users_come_as_the_access_list_says(
        runtime_dir: Path, node_options: list[str], edge_options: list[str], places: int, why: str) -> None:
    """Goal: the kernel says who a program is, and the edge lets it in or not, with few places for each user, and some
    left for others. Method: a program that really is another user's opens connections and says what it is told."""
    for directory in (runtime_dir, runtime_dir.parent):
        directory.chmod(0o755)
    program = """
        held = []
        for _ in range(4):
            held.append(socket.socket(socket.AF_UNIX))
            held[-1].settimeout(20)
            held[-1].connect(sys.argv[1])
            held[-1].sendall(bytes.fromhex(sys.argv[2]))
            size = int.from_bytes(held[-1].recv(8, socket.MSG_WAITALL)[:4], "little")
            print(held[-1].recv(size, socket.MSG_WAITALL).hex(), flush=True)
    """
    said = opening_pb2.Opening(magic=MAGIC, role=opening_pb2.APPLICATION, protocol=PROTOCOL_VERSION, name="stranger")
    frame = struct.pack("<IHH", said.ByteSize(), 0, 0) + said.SerializeToString()
    with one_host(runtime_dir, *node_options) as host, \
            edge_of(runtime_dir, [host], "--set", f"access.allow_uids=[{STRANGER_UID}]", *edge_options) as edge:
        def answers(uid: int) -> list[str]:
            run = subprocess.run(run_as(uid, program, str(edge.path), frame.hex()), capture_output=True, text=True,
                                 check=True, timeout=LONG_S)
            return [opening_pb2.OpeningReply.FromString(bytes.fromhex(line)).message
                    for line in run.stdout.splitlines()]

        assert all("neither user" in one for one in answers(STRANGER_UID + 1))
        with attach(runtime_dir=edge.directory):
            replies = answers(STRANGER_UID)
        assert replies[:places] == [""] * places
        assert re.search(rf"user {STRANGER_UID} has {places} programs at the edge .*{why}", replies[places])


def _attaches(edge: EdgeHost, stack: contextlib.ExitStack) -> Session | None:
    try:
        return stack.enter_context(attach(runtime_dir=edge.directory))
    except NodeStopped:
        raise
    except SpindleError:
        return None


@pytest.mark.parametrize(("arguments", "why"), [
    (["--edge"], "which nodes"),
    (["--edge", "--nodes", "a", "--node", "3"], r"\[node\] id: makes no sense for an edge"),
    (["--edge", "--nodes", "a", "--journal-dir", "/nowhere"], r"\[journal\] dir: makes no sense for an edge"),
    (["--edge", "--nodes", "a", "--metrics", "9464"], r"\[metrics\] listen: makes no sense for an edge"),
    (["--edge", "--nodes", "a", "--set", "network.listen=7402"], r"\[network\] listen: makes no sense for an edge"),
    (["--edge", "--nodes", "a:b"], "must be"),
    (["--nodes", "a"], "--nodes is for an edge"),
    (["--key", "a"], "--key is for an edge"),
], ids=lambda value: "-".join(value).replace("/", "") if isinstance(value, list) else "")
def test_options_that_make_no_sense(runtime_dir: Path, arguments: list[str], why: str) -> None:
    daemon = Daemon(0, *arguments, runtime_dir=runtime_dir)
    assert daemon.wait() == 2
    assert re.search(why, daemon.log), daemon.log
