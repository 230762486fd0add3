"""Fuzz targets that run the real thing: a node with everything, and the client library.

Why beside the decoders: what a value does after it was decoded, to whom it is passed on, and what is left open when
its connection ends, no decoder shows. Slower by two orders, so the inputs are the same messages in sequence.

Rules: one node serves all inputs of a run, so an input also meets what earlier ones left. Anything it logs as an error
is a finding, as is a task that fails, a connection that isn't closed, or a well-behaved session that isn't served.
"""

from __future__ import annotations

import atexit
import contextlib
import itertools
import logging
import os
import shutil
import socket
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spindle.client.attaching import open_session
from spindle.client.embedding import EmbeddedNode
from spindle.client.session import Session
from spindle.config.keys import split_address
from spindle.config.settings import NodeConfig
from spindle.errors import ConfigError, SpindleError
from spindle.group.codec import PROTOCOL_VERSION, spec_to_wire, topic_to_wire
from spindle.group.topics import TopicInfo, TopicSpec
from spindle.membership.codec import message_to_wire
from spindle.proto import attach_pb2 as attach
from spindle.proto import node_pb2 as pb
from spindle.proto import opening_pb2
from spindle.transport.frames import FrameDecoder, Limits, encode
from spindle.transport.opening import MAGIC, PROTOCOL
from spindle_core.counters import Counters
from spindle_core.memory import Mapping
from tests.fuzz.control import MESSAGES, SPEC
from tests.fuzz.target import Cutter, in_blocks, target

RAW, APPLICATION, PEER = range(3)  # what the first byte of an input says it plays
ANSWER_S = 10.0
LATE_S = 1.0  # a node closes a connection that says nothing for so long
PLAIN = TopicSpec("plain", size_max=64, window=8)
STRANGER = 9  # node id


class Findings(logging.Handler):
    """Keeps what must not be logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(self.format(record))

    def check(self) -> None:
        found, self.found = self.found, []
        assert not found, "\n".join(found)


class Host:
    """A node of this process and a session that behaves. `close()` at the end."""

    def __init__(self) -> None:
        self._base = Path(tempfile.mkdtemp(prefix="spindle-fuzz-"))
        self.findings = Findings()
        self._loggers = [logging.getLogger(name) for name in ("spindle", "asyncio")]
        for logger in self._loggers:
            logger.addHandler(self.findings)
            logger.propagate = False  # warnings of refused connections, thousands of them
        self.node = EmbeddedNode(NodeConfig(
            runtime_dir=self._base, handshake_timeout_s=LATE_S, open_timeout_s=2, default_size_max=1024,
            log_capacity=1 << 20, log_hot=1 << 16, frame_max=1 << 16, name="fuzzed", listen="127.0.0.1:0"))
        self.node.start()
        self.session: Session = open_session(self.node.connect(), 0, "good", ANSWER_S, label="node")
        self.session.declare_topic(PLAIN)
        self.inputs = itertools.count()

    @property
    def address(self) -> tuple[str, int]:
        """Where it takes connections from other hosts."""
        attachments = self.node._attachments
        assert attachments is not None and attachments.node._network is not None
        return split_address(attachments.node._network.endpoint)

    def check(self) -> None:
        """The node serves others as if nothing had been."""
        self.findings.check()
        assert self.session.view().node_ids[self.session.view().my_rank] == self.node.node_id
        if next(self.inputs) % 64:
            return
        self.session.declare_topic(PLAIN)  # a stranger may have deleted it, as nobody had it open
        with self.session.open_reader("plain", keep_all=True, from_history=False) as reader:
            with self.session.open_writer("plain") as writer:
                writer.inbox.write(b"still here")
                found: list[bytes] = []
                while b"still here" not in found:  # a stranger's writer may say that it ends
                    assert reader.log.wait(ANSWER_S)
                    found += [bytes(payload) for payload, info in reader.log.take_pairs(10) if not info.tag]
                assert found == [b"still here"]


    def close(self) -> None:
        self.session.close()
        self.node.stop()
        for logger in self._loggers:
            logger.removeHandler(self.findings)
            logger.propagate = True
        shutil.rmtree(self._base, ignore_errors=True)


_host: list[Host] = []


def host() -> Host:
    """The one that serves all inputs, made for the first of them."""
    if not _host:
        _host.append(Host())
    return _host[0]


def close_host() -> None:
    """Ends it if there is one: at the end of the tests, or of the process."""
    while _host:
        _host.pop().close()


atexit.register(close_host)


def _requests() -> list[bytes]:
    bodies: list[dict[str, object]] = [
        {"declare_topic": attach.DeclareTopic(spec=spec_to_wire(TopicSpec("mine", size_max=32, window=4)))},
        {"declare_topic": attach.DeclareTopic(spec=spec_to_wire(SPEC))},
        {"open_writer": attach.OpenWriter(topic="plain", slots=4, guid=b"g1", endpoint=b"{}", type=b"type")},
        {"open_writer": attach.OpenWriter(topic="plain", slots=4, guid=b"g3", lease=attach.Lease(
            duration_ns=10_000_000, lapse=33, revival=34))},
        {"open_writer": attach.OpenWriter(topic="plain", slots=4, lease=attach.Lease(duration_ns=1, lapse=300))},
        {"open_reader": attach.OpenReader(topic="plain", keep_all=True, start_index=-1, guid=b"g2")},
        {"close_port": attach.ClosePort(port=1)}, {"watch": attach.Watch()},
        {"list_endpoints": attach.ListEndpoints(topic="plain")}, {"list_topics": attach.ListTopics()},
        {"list_types": attach.ListTypes(topic="plain")},
        {"get_view": attach.GetView()}, {"get_status": attach.GetStatus()},
        {"get_status": attach.GetStatus(group=True, figures=True)}, {"list_happenings": attach.ListHappenings(after=3)},
        {"cast_out": attach.CastOut(node_id=STRANGER)}, {"leave_group": attach.LeaveGroup(node_id=STRANGER)},
    ]
    return [attach.Request(number=number, **body).SerializeToString()  # type: ignore[arg-type]
            for number, body in enumerate(bodies, 1)]


def _words_of_peers() -> list[bytes]:
    said = [message_to_wire(message) for message in MESSAGES]
    said += [
        pb.PeerMessage(row_offer=pb.RowOffer(view_id=1, ballot=1)),
        pb.PeerMessage(join=pb.JoinRequest(member=pb.Member(node_id=STRANGER, incarnation=5, address="/nowhere"))),
        pb.PeerMessage(endpoint_added=attach.Endpoint(guid=b"g", node_id=STRANGER, topic="plain")),
        pb.PeerMessage(endpoint_removed=pb.EndpointRemoved(guid=b"g")),
        pb.PeerMessage(history=pb.HistoryChunk(number=1, last=True)),
        pb.PeerMessage(type_held=pb.TypeHeld(topic="plain", type=b"type", number=1)),
        pb.PeerMessage(type_known=pb.TypeKnown(topic="plain", key=b"key", view_id=1 << 60, number=1)),
        pb.PeerMessage(type_over=pb.TypeOver(topic="plain", key=b"key")),
        pb.PeerMessage(history_request=pb.HistoryRequest(number=1, topic="plain", view_id=1)),
        pb.PeerMessage(history_more=pb.HistoryMore(number=1, taken=1 << 60)),
        pb.PeerMessage(relay_query=pb.RelayQuery(number=1, client=bytes(16), turn=2, writer=1 << 20, view_id=1)),
        pb.PeerMessage(relay_answer=pb.RelayAnswer(number=1, sent_ns=5)),
        pb.PeerMessage(farewell=pb.Farewell(kind="NodeStopped", text="bye")),
        pb.PeerMessage(),
    ]
    return [one.SerializeToString() for one in said]


def _opening(role: int) -> bytes:
    protocol, node_id = (PROTOCOL, STRANGER) if role == opening_pb2.PEER else (PROTOCOL_VERSION, 0)
    return opening_pb2.Opening(
        magic=MAGIC, role=role, protocol=protocol, node_id=node_id, incarnation=5,  # type: ignore[arg-type]
        name="raw").SerializeToString()


def _visits() -> Iterator[bytes]:
    yield bytes([RAW])
    yield bytes([RAW]) + b"GET / HTTP/1.1\r\n\r\n"
    for role in (opening_pb2.PEER, opening_pb2.APPLICATION):
        yield bytes([RAW]) + encode(_opening(role))
    for kind, said in ((APPLICATION, _requests()), (PEER, _words_of_peers())):
        yield bytes([kind]) + in_blocks(said)
        for one in said:
            yield bytes([kind]) + in_blocks([one])


def _kind_of_visit(head: bytes) -> Any:
    return {APPLICATION: attach.Request, PEER: pb.PeerMessage}.get(Cutter(head).number() % 3)


@target(_visits, size_max=2048, message=_kind_of_visit, prefix=1)
def visitor(data: bytes) -> None:
    """Everything that a connection to a running node may say, as nobody, as an application, as a node."""
    cutter = Cutter(data)
    kind = cutter.number() % 3
    if kind == RAW:
        stream = cutter.rest
    else:
        opening = _opening(opening_pb2.APPLICATION if kind == APPLICATION else opening_pb2.PEER)
        stream = b"".join(map(encode, [opening, *cutter.blocks()]))
    here = host()
    with here.node.connect() as sock:
        sock.settimeout(ANSWER_S)
        try:
            sock.sendall(stream)
            sock.shutdown(socket.SHUT_WR)
            while sock.recv(1 << 16):
                pass
        except (BrokenPipeError, ConnectionResetError):
            pass  # it had heard enough
    here.check()


def _answers() -> Iterator[bytes]:
    """What a node answers to each call, descriptors counted by the second byte."""
    topic = topic_to_wire(TopicInfo(SPEC, 1, (1, 5), (5,)))
    answers: list[tuple[int, dict[str, object]]] = [
        (0, {"topic": topic}), (4, {"writer": attach.WriterOpened(port=1, topic=topic, writer_id=2)}),
        (4, {"reader": attach.ReaderOpened(port=1, topic=topic)}),
        (0, {"endpoints": attach.EndpointList(endpoints=[attach.Endpoint(guid=b"g", node_id=5, topic="t")])}),
        (0, {"topics": attach.TopicList(topics=[topic])}), (0, {"status": attach.Status(json='{"node": 1}')}),
        (0, {"view": attach.View(view_id=1, node_ids=[1, 5], my_rank=1)}), (0, {"done": attach.Done()}),
    ]
    for call, (fds, body) in enumerate(answers):
        frame = attach.NodeFrame(reply=attach.Reply(number=1, **body))  # type: ignore[arg-type]
        yield bytes([call, fds]) + in_blocks([frame.SerializeToString()])
    refusals = [attach.Refusal(number=number, kind="TopicUnknown", text="no") for number in (1, 0)]
    events = [attach.Event(kind="view", view=attach.View(view_id=2)), attach.Event(kind="topic_added", topic=topic)]
    for refusal in refusals:
        yield bytes([0, 0]) + in_blocks([attach.NodeFrame(refusal=refusal).SerializeToString()])
    for event in events:
        yield bytes([7, 0]) + in_blocks([attach.NodeFrame(event=event).SerializeToString()] * 2)


CALLS = (
    lambda session: session.declare_topic(SPEC),
    lambda session: session.open_writer("t"),
    lambda session: session.open_reader("t", keep_all=True, from_history=False),
    lambda session: session.endpoints("t"),
    lambda session: session.topics(),
    lambda session: session.status(),
    lambda session: session.view(),
    lambda session: session.add_listener(lambda _: None),
)


@target(_answers, size_max=2048, message=lambda _: attach.NodeFrame, prefix=2)
def answer(data: bytes) -> None:
    """Everything that a node may answer to its application, descriptors of nonsense included."""
    cutter = Cutter(data)
    call, n_fds = CALLS[cutter.number() % len(CALLS)], cutter.number() % 6
    theirs, ours = socket.socketpair()
    theirs.settimeout(ANSWER_S)
    failed: list[object] = []
    threading.excepthook, hook = failed.append, threading.excepthook  # type: ignore[assignment]
    blocks = list(cutter.blocks())
    memory = [os.memfd_create("fuzz") for _ in range(n_fds)]
    for fd in memory:
        os.write(fd, (data * (8192 // max(1, len(data)) + 1))[:8192])
    node = threading.Thread(target=_play_node, args=(theirs, blocks, memory))
    try:
        welcome = attach.NodeFrame(welcome=attach.Welcome(node_id=1, pid=1))
        reply = opening_pb2.OpeningReply(magic=MAGIC, protocol=PROTOCOL_VERSION, node_id=1)
        theirs.sendall(encode(reply.SerializeToString()))
        socket.send_fds(theirs, [encode(welcome.SerializeToString(), 3)], [_counters.mapping.fd, _bell.fd, _rings])
        node.start()
        session = open_session(ours, 0, "fuzz", ANSWER_S, label="node 1")
        try:
            call(session)
        except (SpindleError, ConfigError, ValueError, OSError):
            pass
        session.close()
    finally:
        node.join()
        theirs.close()
        for fd in memory:
            os.close(fd)
        threading.excepthook = hook
    assert not failed, failed


def _play_node(sock: socket.socket, blocks: list[bytes], fds: list[int]) -> None:
    """Answers the first request with all of it, and hangs up."""
    decoder, heard = FrameDecoder(Limits()), 0
    with contextlib.suppress(OSError):
        while heard < 2:  # the opening, a request
            heard += len(decoder.feed(sock.recv(1 << 16)))
        for number, block in enumerate(blocks):
            if number == 0 and fds:
                socket.send_fds(sock, [encode(block, len(fds))], fds)
            else:
                sock.sendall(encode(block))
    with contextlib.suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


_counters = Counters.create()
_bell = Mapping.create("fuzz-bell", 4096)
_rings = os.eventfd(0)

__all__ = ["answer", "visitor"]  # the targets
