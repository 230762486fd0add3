"""Sessions with nodes on other hosts: keys, rights, limits, hostile and slow applications.

Method: daemons on hosts of their own; sessions in this process, or in one that is killed.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle.client import ReaderHandle, Session, attach
from spindle.client.nodes import nodes_wanted
from spindle.client.remote import attach_remote
from spindle.errors import AccessDenied, ConfigError, NoDaemon, NodeGone, NodeStopped, NoResources, SpindleError
from spindle.group.codec import PROTOCOL_VERSION
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.proto import attach_pb2 as pb
from spindle.proto import opening_pb2
from spindle.proto import relay_pb2 as rb
from spindle.transport.opening import MAGIC
from tests.spindle.hosts import Host, hosts
from tests.spindle.site import Site
from tests.support import wait_until

LONG_S = 20.0


def options(**settings: Any) -> list[str]:
    return [f"{name.replace('__', '.')}={json.dumps(value)}" for name, value in settings.items()]


@contextlib.contextmanager
def one_host(directory: Path, *settings: str) -> Iterator[Host]:
    with hosts(directory, 1, *settings) as (host,):
        yield host


def declare(session: Session, name: str = "t", level: Level = Level.ATOMIC, **more: Any) -> None:
    session.declare_topic(TopicSpec(name, level=level, **{"size_max": 1000, **more}))


def more(got: list[bytes], reader: ReaderHandle, count: int = 10_000) -> list[bytes]:
    """`got` with what the reader has."""
    got.extend(reader.log.take(count))
    return got


# ---- keys and rights


def with_certificates(site: Site) -> list[str]:
    found = site.settings()
    return options(network__certificate=str(found["certificate"]), network__key=str(found["certificate_key"]),
                   network__authority=str(found["authority"]))


def keys_of(site: Site, name: str = "plotter") -> dict[str, Any]:
    certificate, key = site.files(name, site.application(name))
    return {"certificate": certificate, "key": key, "authority": site.authority_file}


def test_certificates_and_rules_about_applications(runtime_dir: Path, tmp_path: Path) -> None:
    """Who shows a certificate of the site is let in, and may do what the rules about its name allow; no other."""
    site, other = Site(tmp_path / "site"), Site(tmp_path / "other", "other")
    rule = 'access.rules=[{application = "plotter", publish = ["out/*"], subscribe = ["in"]}]'
    with one_host(runtime_dir, *with_certificates(site), rule) as host, attach(runtime_dir=host.directory) as local:
        for name in ("out/1", "in", "private"):
            declare(local, name)
        with attach_remote([host.address], **keys_of(site)) as session:
            assert {one.spec.name for one in session.topics()} == {"out/1", "in"}
            writer = session.open_writer("out/1")
            reader = local.open_reader("out/1", keep_all=True, from_history=False)
            writer.inbox.write(b"hello")
            assert reader.log.wait(LONG_S) and reader.log.take(10) == [b"hello"]
            session.open_reader("in", keep_all=True, from_history=False)
            for denied in (lambda: session.open_writer("in"),
                           lambda: session.open_reader("out/1", keep_all=False, from_history=False)):
                with pytest.raises(AccessDenied, match="application 'plotter'"):
                    denied()
        with attach_remote([host.address], **keys_of(site, "stranger")) as session:
            assert session.topics() == []
        with pytest.raises(SpindleError, match="signed"):
            attach_remote([host.address], **keys_of(other))
        with pytest.raises(SpindleError, match="certificate"):
            attach_remote([host.address])
    with pytest.raises(ConfigError, match="it is for a node, and this is an application"):
        found = site.settings()
        attach_remote(["127.0.0.1:1"], certificate=found["certificate"], key=found["certificate_key"],
                      authority=found["authority"])


def test_a_secret_will_do(runtime_dir: Path, tmp_path: Path) -> None:
    files = []
    for name in ("ours", "theirs"):
        path = tmp_path / name
        path.write_text(os.urandom(32).hex())
        path.chmod(0o600)
        files.append(path)
    with one_host(runtime_dir, *options(network__secret=str(files[0]))) as host:
        with attach_remote([host.address], secret=files[0]) as session:
            declare(session)
            with session.open_writer("t") as writer:
                writer.inbox.write(b"x")
                assert writer.inbox.wait_acknowledged(LONG_S)
        with pytest.raises(SpindleError, match="secret"):
            attach_remote([host.address], secret=files[1])


def test_where_nodes_are_comes_from_arguments_environment_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                                                   ) -> None:
    for name in ("NODES", "CERTIFICATE", "KEY", "AUTHORITY", "SECRET", "PLAIN", "CLIENT_CONFIG"):
        monkeypatch.delenv(f"SPINDLE_{name}", raising=False)
    assert nodes_wanted() is None
    file = tmp_path / "client.toml"
    file.write_text('nodes = ["a", "b:7"]\nsecret = "s"\n')
    monkeypatch.setenv("SPINDLE_CLIENT_CONFIG", str(file))
    found = nodes_wanted()
    assert found is not None and found.addresses == ("a:7402", "b:7") and found.secret == Path("s")
    monkeypatch.setenv("SPINDLE_NODES", "c, [::1], ::2,[::3]:9")
    monkeypatch.setenv("SPINDLE_PLAIN", "1")
    found = nodes_wanted()
    assert found is not None and found.addresses == ("c:7402", "[::1]:7402", "[::2]:7402", "[::3]:9") and found.plain
    found = nodes_wanted(["d:1"], certificate="x", key="y", authority="z")
    assert found is not None and found.addresses == ("d:1",) and found.secret is None
    for wrong in (["host:x"], ["host:70000"]):
        with pytest.raises(ConfigError, match="must be host:port"):
            nodes_wanted(wrong)
    file.write_text('node = "a"\n')
    with pytest.raises(ConfigError, match="unknown: node"):
        nodes_wanted()


def test_nobody_there(runtime_dir: Path) -> None:
    with pytest.raises(NoDaemon, match="cannot be reached"):
        attach_remote(["127.0.0.1:1"])
    with one_host(runtime_dir) as host, pytest.raises(SpindleError, match="domain 0"):
        attach_remote([host.address], 5)


# ---- limits


@pytest.mark.slow
def test_a_hundred_clients(runtime_dir: Path) -> None:
    """One message of each reaches each, in one order."""
    with one_host(runtime_dir, *options(limits__max_apps=101)) as host, contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(attach_remote([host.address], name=f"client {k}")) for k in range(100)]
        declare(sessions[0])
        readers = [one.open_reader("t", keep_all=True, from_history=False) for one in sessions]
        for k, session in enumerate(sessions):
            session.open_writer("t").inbox.write(b"%d" % k)
        got: list[list[bytes]] = [[] for _ in readers]

        def all_there() -> bool:
            for samples, reader in zip(got, readers, strict=True):
                samples.extend(reader.log.take(200))
            return all(len(samples) == 100 for samples in got)

        wait_until(all_there, LONG_S)
        assert all(samples == got[0] for samples in got) and sorted(map(int, got[0])) == list(range(100))
        stack.enter_context(attach_remote([host.address]))
        with pytest.raises(SpindleError, match="max_apps"):
            attach_remote([host.address])


def test_a_slow_reader_that_keeps_the_newest_loses_and_counts(runtime_dir: Path) -> None:
    """Goal: it costs nobody anything. Method: a reader that doesn't take while much more is written than its log, the
    network and the node's log hold."""
    with (one_host(runtime_dir, *options(topics__log_capacity="256KiB")) as host,
          attach(runtime_dir=host.directory) as local, attach_remote([host.address]) as far):
        declare(local)
        slow = far.open_reader("t", keep_all=False, from_history=False)
        writer = local.open_writer("t")
        total = 20_000
        for n in range(total):
            writer.inbox.write(b"%06d" % n + bytes(900), 0, LONG_S)
        assert writer.inbox.wait_acknowledged(LONG_S)
        got: list[bytes] = []
        wait_until(lambda: more(got, slow) and int(got[-1][:6]) == total - 1, LONG_S)
        assert got == sorted(set(got)) and len(got) + slow.log.lost == total


def test_a_reader_that_keeps_all_holds_writers_back_and_gets_all(runtime_dir: Path) -> None:
    with (one_host(runtime_dir, *options(topics__log_capacity="256KiB")) as host,
          attach(runtime_dir=host.directory) as local, attach_remote([host.address]) as far):
        declare(local)
        slow = far.open_reader("t", keep_all=True, from_history=False)
        writer = local.open_writer("t", slots=16)
        total = 0
        with contextlib.suppress(TimeoutError):
            while total < 100_000:
                writer.inbox.write(b"%d" % total + bytes(900), 0, 0.5)
                total += 1
        assert 1000 < total < 10_000  # bounded: its log, and those of the node
        got: list[bytes] = []
        wait_until(lambda: len(more(got, slow, 100)) == total, LONG_S)
        assert [int(one[:-900]) for one in got] == list(range(total)) and slow.log.lost == 0
        writer.inbox.write(b"free", 0, LONG_S)
        assert slow.log.wait(LONG_S) and slow.log.take(1) == [b"free"]


@pytest.mark.slow
def test_large_messages(runtime_dir: Path) -> None:
    with one_host(runtime_dir) as host, attach_remote([host.address]) as far:
        declare(far, size_max=8 << 20)
        reader = far.open_reader("t", keep_all=True, from_history=False)
        writer = far.open_writer("t")
        sent = [bytes([k]) * ((8 << 20) - k) for k in range(5)]
        for one in sent:
            writer.inbox.write(one, 0, LONG_S)
        got: list[bytes] = []
        wait_until(lambda: len(more(got, reader, 1)) == 5, LONG_S)
        assert got == sent


# ---- those who die


CHILD = """
import sys, time
from spindle.client.remote import attach_remote
session = attach_remote([sys.argv[1]])
reader = session.open_reader("t", keep_all=True, from_history=False)
writer = session.open_writer("t")
n = 0
while True:
    writer.inbox.write(b"%d" % n, 0, 60)
    n += 1
    if n == 100:
        print("running", flush=True)
"""


def test_a_client_that_dies_costs_nothing(runtime_dir: Path) -> None:
    """What had come is delivered, a prefix of what it wrote; its reader holds nobody back."""
    with one_host(runtime_dir) as host, attach(runtime_dir=host.directory) as local:
        declare(local)
        reader = local.open_reader("t", keep_all=True, from_history=False)
        child = subprocess.Popen([sys.executable, "-c", CHILD, host.address], stdout=subprocess.PIPE)
        assert child.stdout is not None and child.stdout.readline()
        got: list[bytes] = []
        wait_until(lambda: len(more(got, reader)) > 100, LONG_S)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        wait_until(lambda: more(got, reader) and len(local.status()["applications"]) == 1, LONG_S)
        writer = local.open_writer("t")
        for _ in range(20_000):
            writer.inbox.write(b"last", 0, LONG_S)
            if reader.log.pending > 1000:
                more(got, reader)
        wait_until(lambda: more(got, reader)[-1] == b"last", LONG_S)
        numbers = got[: got.index(b"last")]
        assert numbers == [b"%d" % n for n in range(len(numbers))]


def test_the_last_node_says_why(runtime_dir: Path) -> None:
    with one_host(runtime_dir) as host:
        session = attach_remote([host.address])
        declare(session)
        reader = session.open_reader("t", keep_all=True, from_history=False)
        writer = session.open_writer("t")
        assert host.running.terminate() == 0
        with pytest.raises(NodeGone):
            reader.log.wait(LONG_S)
        with pytest.raises(NodeGone):
            writer.inbox.write(b"x")
        with pytest.raises(NodeStopped, match="no other node serves"):
            session.view()
        assert session.gone and isinstance(session.end_error, NodeStopped)
        session.close()


# ---- hostile applications


class Hostile:
    """An application that says what it likes, without keys on loopback."""

    def __init__(self, address: str, begin: bool = True, received_max: int = 0) -> None:
        host, port = address.rsplit(":", 1)
        self.sock = socket.socket()
        if received_max:
            self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, received_max)
        self.sock.settimeout(LONG_S)
        self.sock.connect((host, int(port)))
        self.sock.sendall(b"SPNC")
        self.send(opening_pb2.Opening(magic=MAGIC, role=opening_pb2.APPLICATION, protocol=PROTOCOL_VERSION,
                                      name="hostile").SerializeToString())
        assert opening_pb2.OpeningReply.FromString(self.receive()).kind == ""
        assert pb.NodeFrame.FromString(rb.NodeSide.FromString(self.receive()).node).WhichOneof("body") == "welcome"
        if begin:
            self.say(begin=rb.Begin(client=os.urandom(16), turn=1))

    def send(self, body: bytes) -> None:
        self.sock.sendall(struct.pack("<IHH", len(body), 0, 0) + body)

    def say(self, **side: Any) -> None:
        self.send(rb.ClientSide(**side).SerializeToString())

    def request(self, **body: Any) -> pb.NodeFrame:
        self.say(request=pb.Request(number=1, **body).SerializeToString())
        while True:
            side = rb.NodeSide.FromString(self.receive())
            if side.WhichOneof("body") == "node":
                return pb.NodeFrame.FromString(side.node)

    def receive(self) -> bytes:
        length, _, _ = struct.unpack("<IHH", self._exactly(8))
        return self._exactly(length)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self.sock.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def cut_off(self) -> str:
        """What the node said last, when it has closed."""
        last = ""
        try:
            while True:
                side = rb.NodeSide.FromString(self.receive())
                frame = pb.NodeFrame.FromString(side.node)
                last = frame.refusal.text or last
        except (EOFError, ConnectionError):
            return last
        finally:
            self.sock.close()


def open_writer(hostile: Hostile, slots: int = 4) -> int:
    answer = hostile.request(open_writer=pb.OpenWriter(topic="t", slots=slots, relayed=1 << 20))
    assert answer.reply.writer.slots == slots
    return answer.reply.writer.port


def messages(port: int, *stamps: int, size: int = 1) -> dict[str, Any]:
    return {"messages": rb.Messages(port=port, messages=[rb.Message(payload=bytes(size), source_ns=one)
                                                         for one in stamps])}


HOSTILE: dict[str, tuple[Callable[[Hostile], None], str]] = {
    "nonsense": (lambda one: one.send(b"\xff" * 50), "can't be read"),
    "a nonsense request": (lambda one: one.say(request=b"\xff" * 50), "can't be read"),
    "too long": (lambda one: one.sock.sendall(struct.pack("<IHH", 1 << 30, 0, 0)), "over the limit"),
    "descriptors": (lambda one: one.sock.sendall(struct.pack("<IHH", 1, 1, 0) + b"x"), "over the network"),
    "twice begun": (lambda one: one.say(begin=rb.Begin(client=bytes(16), turn=2)), "comes once"),
    "messages for nobody": (lambda one: one.say(**messages(7, 1)), "no writer"),
    "too many": (lambda one: one.say(**messages(open_writer(one), *range(1, 2000))), "refused: no free slot"),
    "too large": (lambda one: one.say(**messages(open_writer(one), 1, size=1001)), "refused: a message of 1001"),
    "falling stamps": (lambda one: one.say(**messages(open_writer(one), 5, 5)), "refused: source timestamp"),
}


@pytest.mark.parametrize("how", HOSTILE)
def test_who_says_nonsense_is_cut_off_and_told(remote_host: Host, how: str) -> None:
    """And whoever else is there doesn't notice."""
    do, why = HOSTILE[how]
    with attach_remote([remote_host.address]) as honest:
        declare(honest)
        reader, writer = honest.open_reader("t", keep_all=True, from_history=False), honest.open_writer("t")
        hostile = Hostile(remote_host.address)
        do(hostile)
        assert why in hostile.cut_off()
        time.sleep(0.05)
        reader.log.take(10_000)
        writer.inbox.write(b"here")
        wait_until(lambda: b"here" in reader.log.take(10_000), LONG_S)


@pytest.fixture(scope="module")
def remote_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    with one_host(tmp_path_factory.mktemp("remote")) as host:
        yield host


def test_requests_that_make_no_sense_are_refused(remote_host: Host) -> None:
    with attach_remote([remote_host.address]) as honest:
        declare(honest)
    hostile = Hostile(remote_host.address)
    for identity in (0, 5, 1 << 50):
        wanted = pb.OpenWriter(topic="t", relayed=identity)
        assert "identity" in hostile.request(open_writer=wanted).refusal.text
    port = open_writer(hostile)
    again = pb.OpenWriter(topic="t", relayed=1 << 20)
    assert "open already" in hostile.request(open_writer=again).refusal.text
    assert hostile.request(close_port=pb.ClosePort(port=port)).reply.WhichOneof("body") == "done"
    hostile.say(**messages(port, 9))  # it had not heard yet
    assert hostile.request(get_view=pb.GetView()).reply.view.my_rank == 0
    hostile.sock.close()
    early = Hostile(remote_host.address, begin=False)
    early.say(request=pb.Request(number=1, get_view=pb.GetView()).SerializeToString())
    assert "before Begin" in early.cut_off()


def test_readers_that_close_while_another_waits_for_the_line(remote_host: Host) -> None:
    """Goal: the others go on. Method: an application that doesn't read for a while, so that its node waits in the
    middle of its readers, and that then closes those whose turn was next."""
    count = 4000
    with attach_remote([remote_host.address]) as honest:
        declare(honest, "much")
        slow = Hostile(remote_host.address, received_max=1 << 16)
        wanted = pb.OpenReader(topic="much", keep_all=True, start_index=-1)
        first, *others = (slow.request(open_reader=wanted).reply.reader.port for _ in range(5))
        writer = honest.open_writer("much")
        for _ in range(count):
            writer.inbox.write(bytes(900), 0, LONG_S)
        assert writer.inbox.wait_acknowledged(LONG_S)
        for port in (first, *others):
            slow.say(credit=rb.Credit(port=port, bytes=1 << 30))
        for port in others:
            slow.say(request=pb.Request(number=port, close_port=pb.ClosePort(port=port)).SerializeToString())
        wait_until(lambda: honest.status()["topics"][-1]["readers"] == 1, LONG_S)
        came = pulses = 0
        while came < count:
            side = rb.NodeSide.FromString(slow.receive())
            pulses += side.WhichOneof("body") is None
            assert pulses < LONG_S, "nothing comes any more"
            if side.WhichOneof("body") == "deliveries" and side.deliveries.port == first:
                came += len(side.deliveries.messages)
        slow.sock.close()


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


def test_what_a_node_that_stops_refuses_is_asked_at_the_next(remote_host: Host) -> None:
    with node_that_stops() as address, attach_remote([address, remote_host.address], patience_s=None) as session:
        assert session.node_id == 9
        assert session.view().node_ids == (1,) and session.node_id == 1


def test_a_topic_that_was_declared_is_there_in_the_group_of_a_restart(runtime_dir: Path) -> None:
    with one_host(runtime_dir) as host, attach_remote([host.address], patience_s=None) as far:
        declare(far, "mine", Level.VOLATILE)
        host.running.kill()
        host.start().wait_ready()
        with far.open_reader("mine", keep_all=True, from_history=True) as reader, far.open_writer("mine") as writer:
            writer.inbox.write(b"x")
            assert reader.log.wait(LONG_S) and reader.log.take(1) == [b"x"]
        assert far.topics()[0].spec.level is Level.VOLATILE


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
        assert not session.endpoints(f"short-{kind}")


def test_a_later_turn_ends_the_earlier_one(remote_host: Host) -> None:
    client = os.urandom(16)
    ends = [Hostile(remote_host.address, begin=False) for _ in range(3)]
    ends[0].say(begin=rb.Begin(client=client, turn=2))
    assert ends[0].request(get_view=pb.GetView()).reply.view.node_ids
    ends[1].say(begin=rb.Begin(client=client, turn=3))
    assert "another node" in ends[0].cut_off()
    ends[2].say(begin=rb.Begin(client=client, turn=2))
    assert "another node" in ends[2].cut_off()
    assert ends[1].request(get_view=pb.GetView()).reply.view.node_ids
    ends[1].sock.close()


def test_what_was_declared_at_another_node_just_now_is_found(runtime_dir: Path) -> None:
    with hosts(runtime_dir, 2) as (one, two), attach(runtime_dir=one.directory) as near, attach_remote(
            [two.address]) as far:
        for n in range(100):
            declare(near, f"t{n}")
            far.open_reader(f"t{n}", keep_all=True, from_history=False).close()
