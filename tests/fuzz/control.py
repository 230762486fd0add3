"""Fuzz targets: control connections, views, trims, membership messages, configuration. Nothing here runs a node."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import Iterator

from google.protobuf.message import DecodeError

from spindle.client.introducing import check_opening
from spindle.config.loading import keys, parse_config
from spindle.config.reference import toml_text
from spindle.errors import (
    ConfigError,
    MembershipError,
    ProtocolMismatch,
    SpindleError,
    WireError,
    error_from_wire,
    error_to_wire,
)
from spindle.group.codec import event_from_wire, event_to_wire, spec_from_wire, spec_to_wire
from spindle.group.endpoints import Endpoint
from spindle.group.events import ENDPOINT_ADDED, Event, ViewInfo
from spindle.group.layout import sender_bytes, subgroups_of
from spindle.group.levels import Level
from spindle.group.topics import TopicInfo, TopicSpec
from spindle.group.types import TYPES_BYTES_MAX, TYPES_MAX, KeptTypes, key_of
from spindle.group.view import Member, Topic, View
from spindle.membership import messages as m
from spindle.membership.codec import (
    decode_proposal,
    decode_trim,
    encode_proposal,
    encode_trim,
    message_from_wire,
    message_to_wire,
)
from spindle.proto import attach_pb2, opening_pb2
from spindle.proto import node_pb2 as pb
from spindle.restart.chain import Holders, Life, Missing, Standing, Successor, Summary, agreed_end, decide
from spindle.restart.codec import (
    lives_from_wire,
    order_from_wire,
    successor_from_wire,
    summary_from_wire,
    summary_to_wire,
)
from spindle.restart.pieces import Gatherer, Message
from spindle.restart.tables import add, become, begun_by
from spindle.topics.announcements import Announcements
from spindle.topics.types import KINDS as TYPE_KINDS
from spindle.topics.types import Types
from spindle.transport.frames import FrameDecoder, Limits, encode
from spindle.transport.opening import MAGIC, PROTOCOL
from spindle.transport.reception import _opening
from spindle_core.delivery import DeliveryLog
from spindle_core.engine import Engine
from spindle_core.timing import Timing
from tests.fuzz.target import Cutter, in_blocks, target

SMALL = Limits(frame_bytes_max=200, fds_max=0)
EPOCH_BYTES_MAX = 16 << 20  # larger rows are valid, but take their time to make
SPEC = TopicSpec("flight/air data", "AirData", b"\x12\x34", Level.VOLATILE, 256, 8, 10, 1 << 20)
KEYED = TopicSpec("t", level=Level.VOLATILE, size_max=256, history_bytes=8192, samples_max=20, keys_max=10,
                  effects=bytes([1, 6, 8 | 2, 16 | 2, 33, *[0] * 251]), timing=bytes([*[0] * 9, 3, *[0] * 246]),
                  cleanup_ns=1 << 40)
MEMBERS = (Member(1, 1000, "/run/node-1.sock", 10, 1, "one"), Member(5, 1001, "/run/node-5.sock", 11, 1, "five"))
VIEW = View(77, 3, MEMBERS, (Topic(SPEC, 1, (1, 5), (5,), (1,)), Topic(TopicSpec("t", window=4, size_max=8), 9)))
BASE = View(77, 2, MEMBERS, (Topic(SPEC, 255, (1,), (1,), ()),))  # that proposals follow
ENDPOINT = Endpoint(b"guid", 5, True, "t", b"{}", "app", 12, 3)
MESSAGES: tuple[m.Message, ...] = (
    m.CurrentView(VIEW), m.JoinRequest(MEMBERS[1], VIEW.group_id, 3), m.TopicRequest(1, 3, SPEC),
    m.TopicRequest(3, 3, KEYED),
    m.TopicRequest(2, 3, m.Role("t", True, True)), m.Rejection(1, "TopicLimit", "too many"),
    m.Admission(VIEW, 300, 2, 1), m.Prepared(3, 300), m.Installed(1, 3, 300),
)


def _streams() -> Iterator[bytes]:
    stream = b"".join(map(encode, (b"one", b"", b"x" * 100)))
    yield b"\0" + stream
    yield b"\x03" + bytes((2, 0, 9, 0, 30, 0)) + stream
    yield b"\0" + stream + b"\xff\xff\xff\xff\0\0\0\0"
    yield b"\0" + stream + b"\x01\0\0\0\x01\0\0\0x"


@target(_streams)
def frames(data: bytes) -> None:
    """Frames of a stream: the same however it is cut, or the same refusal."""
    cutter = Cutter(data)
    cuts = [cutter.number(2) for _ in range(cutter.number() % 8)]
    stream = cutter.rest
    whole, whole_refused = _decoded([stream])
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    pieces, pieces_refused = _decoded([stream[a:b] for a, b in itertools.pairwise(places)])
    assert whole_refused == pieces_refused
    assert whole_refused or whole == pieces


def _decoded(pieces: list[bytes]) -> tuple[list[bytes], str]:
    decoder = FrameDecoder(SMALL)
    found: list[bytes] = []
    try:
        for piece in pieces:
            found += [frame.body for frame in decoder.feed(piece)]
    except WireError as error:
        return found, str(error)
    assert all(len(one) <= SMALL.frame_bytes_max for one in found)
    assert len(decoder._buffer) <= SMALL.frame_bytes_max + 8
    return found, ""


ROLES = (opening_pb2.PEER, opening_pb2.APPLICATION, opening_pb2.CONTACT, opening_pb2.EDGE)


def _openings() -> Iterator[bytes]:
    for role in ROLES:
        settings = {"membership.suspect_timeout_s": "3", "core.window": "auto"} if role == opening_pb2.PEER else {}
        yield opening_pb2.Opening(
            magic=MAGIC, role=role, protocol=PROTOCOL, domain_id=3, node_id=7, incarnation=5, name="app",
            release="1", settings=settings).SerializeToString(deterministic=True)
    for error in (None, WireError("no"), ConfigError("bad")):
        kind, text = ("", "") if error is None else error_to_wire(error)
        yield opening_pb2.OpeningReply(
            magic=MAGIC, protocol=PROTOCOL, node_id=7, incarnation=5, kind=kind, message=text).SerializeToString()


@target(_openings, size_max=512, message=lambda _: opening_pb2.Opening)
def opening(data: bytes) -> None:
    """The first frame of either end, and the error that it may carry."""
    with contextlib.suppress(ProtocolMismatch):
        found = _opening(data)
        assert found.magic == MAGIC and found.role in ROLES
    with contextlib.suppress(DecodeError):
        reply = opening_pb2.OpeningReply.FromString(data)
        with contextlib.suppress(SpindleError):
            check_opening(reply, PROTOCOL, "a node")
        again = error_from_wire(*error_to_wire(error_from_wire(reply.kind, reply.message)))
        assert str(again) == reply.message


def _node_frames() -> Iterator[bytes]:
    topic = TopicInfo(SPEC, 1, (1, 5), (5,))
    for event in (Event(ENDPOINT_ADDED, endpoint=ENDPOINT), Event("view", view=ViewInfo(3, (1, 5), 1)),
                  Event("topic", topic=topic, text="x")):
        yield event_to_wire(event).SerializeToString()


@target(_node_frames, message=lambda _: attach_pb2.Event)
def event(data: bytes) -> None:
    """Events, topics and endpoints of attach.proto, at both ends of an attachment."""
    with contextlib.suppress(DecodeError, ConfigError):
        found = event_from_wire(attach_pb2.Event.FromString(data))
        assert event_from_wire(event_to_wire(found)) == found
    with contextlib.suppress(DecodeError, ConfigError):
        spec = spec_from_wire(attach_pb2.TopicSpec.FromString(data))
        assert spec_from_wire(spec_to_wire(spec)) == spec
        spec.with_window().check_same(spec)


def _peer_messages() -> Iterator[bytes]:
    for message in MESSAGES:
        yield message_to_wire(message).SerializeToString()
    history = [pb.HistoryMessage(payload=b"x", sender=1, sequence=2, view_id=3, writer_id=4, reception_ns=5)]
    yield pb.PeerMessage(history=pb.HistoryChunk(number=1, messages=history)).SerializeToString()
    over = [pb.KeyOver(key=0, ns=3), pb.KeyOver(key=7, ns=1 << 63, waits=True)]
    start = pb.HistoryStart(table=pb.KeyTable(behind=pb.Order(view_id=3, sequence=9), said_ns=2, limited=1, given_up=5))
    ends = [history[0], pb.HistoryMessage(sender=1, sequence=3, view_id=3, writer_id=4, tag=1)]
    yield pb.PeerMessage(history=pb.HistoryChunk(number=1, start=start, over=over, messages=ends)).SerializeToString()
    yield pb.PeerMessage(endpoint_added=attach_pb2.Endpoint(guid=b"g", node_id=5, topic="t")).SerializeToString()
    yield pb.PeerMessage(endpoint_removed=pb.EndpointRemoved(guid=b"g")).SerializeToString()
    yield pb.PeerMessage(farewell=pb.Farewell(kind="NodeStopped", text="bye")).SerializeToString()
    yield pb.PeerMessage(type_held=pb.TypeHeld(topic="t", type=b"type", number=1)).SerializeToString()
    yield pb.PeerMessage(type_known=pb.TypeKnown(topic="t", key=key_of(b"type"), view_id=3)).SerializeToString()
    yield pb.PeerMessage(type_over=pb.TypeOver(topic="t", key=key_of(b"type"))).SerializeToString()
    yield pb.PeerMessage(history=pb.HistoryChunk(number=1, types=[b"type", b"x" * 40])).SerializeToString()


@target(_peer_messages, message=lambda _: pb.PeerMessage)
def peer_message(data: bytes) -> None:
    """One message of node.proto: values that mean the same when sent on, or a refusal."""
    try:
        message = pb.PeerMessage.FromString(data)
        found = message_from_wire(message)
    except (DecodeError, MembershipError, ConfigError):
        return
    if found is not None:
        assert message_from_wire(pb.PeerMessage.FromString(message_to_wire(found).SerializeToString())) == found
        return
    kind = message.WhichOneof("body")
    if kind == "farewell":
        error_from_wire(message.farewell.kind, message.farewell.text)
    elif kind in ("endpoint_added", "endpoint_removed"):
        _announce(message)
    elif kind in TYPE_KINDS:
        _take_type(message)
    elif kind == "history":
        _take_history(message.history)
        kept = KeptTypes("t")
        with contextlib.suppress(ConfigError):
            for said in message.history.types:
                kept.keep(said, set())
        assert len(kept.said) <= TYPES_MAX and sum(map(len, kept.said.values())) <= TYPES_BYTES_MAX
        lives_from_wire(message.history.start.lives)
    elif kind == "history_request":
        order_from_wire(message.history_request.end)
        lives_from_wire(message.history_request.lives)
    elif kind == "restart_record":
        successor_from_wire(message.restart_record.successor)


def _announce(message: pb.PeerMessage) -> None:
    told: list[Event] = []
    heard = Announcements(lambda _: None, lambda *_: None, told.append)
    with contextlib.suppress(ConfigError, WireError):
        heard.heard(5, message.endpoint_added)
        event_to_wire(told[-1]).SerializeToString()
    heard.heard_gone(5, message.endpoint_removed.guid)
    heard.drop_node(5)


def _take_type(message: pb.PeerMessage) -> None:
    """Whatever a peer says of types: it is answered, or refused, and bounded."""
    answers: list[pb.PeerMessage] = []

    def send(node_id: int, answer: pb.PeerMessage) -> bool:
        answers.append(pb.PeerMessage.FromString(answer.SerializeToString()))
        return True

    async def take() -> None:
        types = Types(1, send, dict, lambda _: True, lambda _: None, lambda: None, 1.0)
        for _ in range(2):
            with contextlib.suppress(WireError):
                types.take((5, 1), message)
        assert len(types.written(message.type_held.topic)) <= 1
        types.stop(SpindleError("over"))

    asyncio.run(take())
    assert all(one.type_known.number == message.type_held.number for one in answers)


def _take_history(chunk: pb.HistoryChunk) -> None:
    try:
        messages = Gatherer("t", 1 << 14).take(chunk)
    except WireError:
        return
    log = DeliveryLog(1 << 16)
    try:
        for message in messages:
            if len(message[0]) <= SPEC.size_max:
                assert log.append(*message)
    finally:
        log.close()
    _take_table(chunk, messages)


def _take_table(chunk: pb.HistoryChunk, messages: list[Message]) -> None:
    """As if these were all messages of a table; then the time goes by."""
    log = DeliveryLog(1 << 16, effects=KEYED.effects, table_bytes=KEYED.table_bytes, timing=Timing(KEYED.timing),
                      samples_max=KEYED.samples_max, keys_max=KEYED.keys_max, cleanup_ns=KEYED.cleanup_ns)
    try:
        log.restore_table()
        for message in messages:
            if len(message.payload) <= KEYED.size_max:
                log.note(*message)
        try:
            state = begun_by(chunk.start.table)
        except WireError:
            return
        with contextlib.suppress(WireError):
            add(state, chunk, KEYED.table_bytes)
        become(log, state)
        for now_ns in (1, 1 << 62, (1 << 63) - 1):
            log.append(b"", 1, now_ns, (1 << 64) - 1, now_ns, tag=KEYED.time_tag)
        figures = log.table_figures()
        assert figures["over"] == len(log.table_over()) <= figures["keys"] <= figures["messages"]
        log.copy_table(shared=False)
    finally:
        log.close()


def _summaries() -> Iterator[bytes]:
    lives, holders = (Life("00ff.3", 3), Life("00ff.9", 9, (8, 5))), Holders(9, (1, 5))
    standings = (
        Standing(), Standing(lives, holders, True, None, 9), Standing(lives[:1], Holders(3, (1, 5)), True, None, 8),
        Standing(lives, holders, False, Successor(Holders(11, (5,)), (1, 5)), 9),
    )
    yield b""
    for standing in standings:
        here, there = (Summary(standing, (3, 0), end, 7, problem) for end, problem in (((9, 2), ""), ((8, 5), "bad")))
        yield in_blocks(summary_to_wire(one, "t", 12).SerializeToString() for one in (here, there, here))


@target(_summaries, message=lambda _: pb.RestartSummary, prefix=0)
def restart(data: bytes) -> None:
    """What nodes say of their journals: the same when sent on, and a decision that some of them allow, or a reason."""
    answers: dict[int, Summary] = {}
    for number, block in enumerate(Cutter(data).blocks(), 1):
        try:
            said = summary_from_wire(pb.RestartSummary.FromString(block))
        except DecodeError:
            return
        again = pb.RestartSummary.FromString(summary_to_wire(said, "t", 3).SerializeToString())
        assert summary_from_wire(again) == said
        answers[number] = said
    for mode in ("majority", "all", "any"):
        found = decide(answers, "life", 12, mode)
        if isinstance(found, Missing):
            assert found.reason
            continue
        assert found.end < (12, 0) and found.lives[-1].name == "life"
        if found.source is not None:
            assert not answers[found.source].problem and answers[found.source].end == found.end
        for said in answers.values():
            agreed_end(found.lives, found.end, said.standing.lives, said.end)


def _views() -> Iterator[bytes]:
    yield encode_proposal(VIEW, BASE, 9)
    yield encode_proposal(dataclasses.replace(BASE, view_id=3, members=MEMBERS[:1], topics=()), BASE, 9)
    revised = (Topic(dataclasses.replace(SPEC, name="another"), 254), Topic(SPEC, 255, (1,), (1,), ()))
    yield encode_proposal(dataclasses.replace(BASE, topics=revised, revision=1), BASE, 9)


@target(_views, message=lambda _: pb.Proposal)
def view(data: bytes) -> None:
    """A proposed view: refused, or good enough to make the memory of its epoch."""
    try:
        found = decode_proposal(data, BASE, 9)
    except MembershipError:
        return
    if found is None:  # of another ballot
        return
    assert decode_proposal(encode_proposal(found, BASE, 9), BASE, 9) == found
    for topic in found.topics:
        assert topic.donor is None or topic.donor in found.node_ids
    if not found.members or sum(sender_bytes(topic.spec) for topic in found.topics) > EPOCH_BYTES_MAX:
        return
    engine = Engine(found.node_ids[0], incarnation=found.members[0].incarnation)
    try:
        # What NextEpoch.prepare() reports as "the memory cannot be made"
        with contextlib.suppress(ValueError, OSError, MemoryError):
            engine.new_epoch(found.view_id, 0, found.node_ids, subgroups_of(found)).close()
    finally:
        engine.stop()


def _trims() -> Iterator[bytes]:
    yield encode_trim(3, {1: (5, 0, 7), 9: ()})
    yield encode_trim(2**63, {255: (2**64 - 1,)})


@target(_trims, message=lambda _: pb.Trim)
def trim(data: bytes) -> None:
    """A trim: refused, or the same after another round."""
    with contextlib.suppress(MembershipError):
        view_id, counts = decode_trim(data)
        assert decode_trim(encode_trim(view_id, counts)) == (view_id, counts)


def _configurations() -> Iterator[bytes]:
    yield toml_text().encode()
    for _, key, _ in keys():
        if key.example:
            yield f"[{key.section}]\n{key.name} = {key.example}\n".encode()
        yield f'[{key.section}]\n{key.name} = "8 MiB"\n'.encode()
        yield f"[{key.section}]\n{key.name} = 5\n".encode()
        yield f"[{key.section}]\n{key.name} = true\n".encode()
    yield b'[[access.rules]]\nuser = "x"\npublish = ["*"]\nsubscribe = []\n'


@target(_configurations)
def configuration(data: bytes) -> None:
    """TOML text: a valid configuration, or ConfigError in words."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return
    try:
        found = parse_config(text)
    except ConfigError as error:
        assert str(error)
        return
    found.may_publish(4242, [1], "flight/x")
    found.admits(4242, [1])


__all__ = ["configuration", "event", "frames", "opening", "peer_message", "restart", "trim", "view"]
