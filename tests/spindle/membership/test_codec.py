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
    decode_newcomers,
    decode_proposal,
    decode_trim,
    encode_proposal,
    encode_trim,
    encode_view,
    message_from_wire,
    message_to_wire,
    view_from_wire,
)
from spindle.proto import node_pb2 as pb

SPEC = TopicSpec("flight/air", "Air", b"\x01\x02", Level.VOLATILE, 100, 16, 5, 1 << 20)
VIEW = View(2**63 + 5, 2**40, (Member(1, 2**60, "/a", 10, 0, "one"), Member(65535, 7, "/b")),
            (Topic(SPEC, 255, (1, 65535), (65535,), (1,), (2**39, 4)),))


NOBODY = View(VIEW.group_id, 2**40 - 1)


def decode_view(data: bytes) -> View:
    return view_from_wire(pb.View.FromString(data))


@pytest.mark.parametrize("message", [
    m.CurrentView(VIEW), m.JoinRequest(VIEW.members[0], 1 << 63, 3), m.TopicRequest(4, 5, SPEC),
    m.TopicRequest(4, 5, m.Role("t", True, False)),
    m.TopicRequest(4, 5, m.Deletion("t", (2**40, 7))),
    m.TopicRequest(4, 5, m.Deletion("t", (2**40, 7), renews=True)),
    m.TopicRequest(4, 5, m.Deletion("t", (0, 0), renews=True, undeclared=True)),
    m.Rejection(0, "TopicLimit", "text"), m.Admission(VIEW, 300, 2, 1),
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
    with pytest.raises(MembershipError):
        decode_proposal(encode_proposal(view, NOBODY, 9), NOBODY, 9)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_view_or_an_error(data: bytes) -> None:
    for decode in (lambda data: decode_proposal(data, VIEW, 9), decode_newcomers, decode_trim):
        try:
            decode(data)
        except MembershipError:
            pass


def test_a_proposal_is_what_differs_from_the_view_before() -> None:
    """Topics that stay are those of the view before, as they are; others are told, and what is no more. It fits that
    view only."""
    stays = Topic(dataclasses.replace(SPEC, name="stays"), 1, (1,), (1,))
    goes = Topic(dataclasses.replace(SPEC, name="goes"), 2)
    base = dataclasses.replace(VIEW, topics=(stays, goes, *VIEW.topics), revision=3)
    comes = Topic(dataclasses.replace(SPEC, name="comes"), 3)
    changed = dataclasses.replace(VIEW.topics[0], fresh=())
    view = dataclasses.replace(base, topics=(stays, changed, comes), revision=4)
    data = encode_proposal(view, base, 9)
    found = decode_proposal(data, base, 9)
    assert found == view and found.topics[0] is stays and found.revises(base)
    assert b"stays" not in data and b"goes" not in data and b"comes" in data
    assert decode_newcomers(data) == (view.members, view.settings)
    assert decode_proposal(encode_proposal(VIEW, NOBODY, 9), NOBODY, 9) == VIEW
    for other in (dataclasses.replace(base, revision=2), dataclasses.replace(base, view_id=base.view_id + 1)):
        with pytest.raises(MembershipError, match="was proposed after view"):
            decode_proposal(data, other, 9)
    fewer = dataclasses.replace(base, members=base.members[:1])
    with pytest.raises(MembershipError, match="wrong subgroup"):
        decode_proposal(encode_proposal(dataclasses.replace(fewer, revision=4), base, 9), base, 9)


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
