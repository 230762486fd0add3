"""Goal: what members exchange survives encoding, and foreign bytes never become a half-made value.

Method: round trips; arbitrary and mutated bytes by hypothesis.
"""

from __future__ import annotations

import dataclasses

import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from spindle.errors import ConfigError, MembershipError
from spindle.group.codec import spec_to_wire
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.group.view import Member, Topic, View
from spindle.membership import messages as m
from spindle.membership.codec import (
    decode_trim,
    decode_view,
    encode_trim,
    encode_view,
    message_from_wire,
    message_to_wire,
)
from spindle.proto import node_pb2 as pb

SPEC = TopicSpec("flight/air", "Air", b"\x01\x02", Level.VOLATILE, 100, 16, 5, 1 << 20)
VIEW = View(2**63 + 5, 2**40, (Member(1, 2**60, "/a", 10, 0, "one"), Member(65535, 7, "/b")),
            (Topic(SPEC, 255, (1, 65535), (65535,), (1,)),))


@pytest.mark.parametrize("message", [
    m.CurrentView(VIEW), m.JoinRequest(VIEW.members[0], 1 << 63, 3), m.TopicRequest(4, 5, SPEC),
    m.TopicRequest(4, 5, m.Role("t", True, False)), m.Rejection(0, "TopicLimit", "text"), m.Admission(VIEW, 300, 2, 1),
    m.Prepared(6, 300), m.Installed(7, 6, 300), m.Lacking(6, 300, ((2, "no answer"), (9, ""))),
    m.LeftOut(6, 300, "nobody reaches you"),
])
def test_messages_survive_the_wire(message: m.Message) -> None:
    wire = pb.PeerMessage.FromString(message_to_wire(message).SerializeToString())
    assert message_from_wire(wire) == message


def test_view_and_trim_survive() -> None:
    assert decode_view(encode_view(VIEW)) == VIEW
    trims = {1: (2**63, 0), 255: (7,)}
    assert decode_trim(encode_trim(9, trims)) == (9, trims)


@pytest.mark.parametrize("view", [
    View(1, 1, (VIEW.members[0], VIEW.members[0])),
    View(1, 1, VIEW.members, (Topic(SPEC, 0),)),
    View(1, 1, VIEW.members, (Topic(SPEC, 256),)),
    View(1, 1, VIEW.members, (Topic(SPEC, 1), Topic(SPEC, 2))),
    View(1, 1, VIEW.members, (Topic(SPEC, 1, (3,)),)),
    View(1, 1, VIEW.members, (Topic(SPEC, 1, (1,), (65535,)),)),
])
def test_view_that_contradicts_itself_is_refused(view: View) -> None:
    with pytest.raises(MembershipError):
        decode_view(encode_view(view))


@given(st.binary(max_size=400))
def test_any_bytes_are_a_view_or_an_error(data: bytes) -> None:
    for decode in (decode_view, decode_trim):
        try:
            decode(data)  # type: ignore[operator]
        except MembershipError:
            pass


@given(st.integers(0, 10_000), st.integers(1, 255))
def test_a_flipped_byte_is_a_value_or_an_error(place: int, flip: int) -> None:
    data = bytearray(message_to_wire(m.Admission(VIEW, 300, 2, 1)).SerializeToString())
    data[place % len(data)] ^= flip
    try:
        message_from_wire(pb.PeerMessage.FromString(bytes(data)))
    except (MembershipError, ConfigError, DecodeError):
        pass


def test_bytes_are_those_of_the_whole_message_whatever_was_read_or_written_before() -> None:
    """Topics that were seen before are looked up: the same bytes and equal values come of it, and of one that changed
    others."""
    specs = [TopicSpec(f"t{number}", window=4, size_max=100) for number in range(3)]
    topics = tuple(Topic(spec, number + 1, (1, 2), (2,), (1,)) for number, spec in enumerate(specs))
    view = View(77, 5, (Member(1, 10, "a"), Member(2, 20, "b")), topics)
    for _ in range(2):
        data = encode_view(view)
        assert pb.View.FromString(data).SerializeToString(deterministic=True) == data
        assert decode_view(data) == view
    assert decode_view(data).topics[0] is decode_view(data).topics[0]
    later = dataclasses.replace(view, topics=(dataclasses.replace(topics[0], fresh=()), *topics[1:]))
    assert decode_view(encode_view(later)) == later != view
    assert later.topic("t0") is later.topics[0] and later.topic("t3") is None


def test_an_impossible_topic_is_refused_every_time() -> None:
    data = pb.View(group_id=1, topics=[pb.Topic(spec=spec_to_wire(TopicSpec("t")), topic_id=1)])
    data.topics[0].spec.level = 99
    for _ in range(2):
        with pytest.raises(MembershipError, match="impossible topic"):
            decode_view(data.SerializeToString())
