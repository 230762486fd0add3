"""Packets and sets, without nodes.

Goal: whoever sees the packets of a writer from the beginning of a set gets it when its last packet comes, all of it
that is for him and in its order, and else nothing; whatever comes in between, is missing, comes twice or is nonsense.
Method: sets are cut into packets, given to readers in orders that a node may deliver; hypothesis draws them.
"""

import itertools
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dds.messages import packets
from dds.messages.operations import (
    ANNOUNCES_QOS,
    DEPARTURE,
    DISPOSES,
    FAREWELL,
    LAPSES,
    MISSES_DEADLINE,
    PACKET,
    REVIVES,
    TIME,
    UNREGISTERS,
    WRITES,
    is_packet,
)
from dds.messages.packets import HEADER, MEMBER, RELAYED, Sets, cut, member
from dds.messages.packets import ROOM_PLAIN as ROOM

NODE, WRITER, OTHER = 3, 3 << 16 | 7, 3 << 16 | 8
CHANNEL, MARK = 11, 22


def info(sequence, writer=WRITER):
    return SimpleNamespace(sender=writer >> 16, writer=writer & 0xFFFF, relay=0, reception_timestamp=1, view_id=2,
                           sequence=sequence, index=sequence)


def said(text, tag=0, flags=0, mark=MARK, source_ns=5, channel=CHANNEL, writer=0):
    return member(text, tag, flags, mark, source_ns, channel, writer)


def set_of(number, texts, size_max=ROOM + 30, **more):
    return cut(number, [said(one, **more) for one in texts], size_max)


def take(sets, parts, first=0, carrier=WRITER):
    """What a reader gets with each of them."""
    return [[one.payload for one in sets.take(carrier, part, info(first + n))] for n, part in enumerate(parts)]


def test_a_packet_says_all_of_each_sample():
    [packet] = cut(1, [said(b"a", DISPOSES, 1, source_ns=-7, writer=OTHER), said(b"bc")], 1000)
    one, two = Sets(CHANNEL, MARK).take(WRITER, packet, info(9))
    assert (one.payload, one.tag, one.flags, one.source_timestamp, one.handle, one.writer, one.sender, one.relay) == (
        b"a", DISPOSES, 1, -7, OTHER, 8, NODE, 0)
    assert (two.payload, two.handle, two.sequence, two.view_id, two.index, two.reception_timestamp) == (
        b"bc", WRITER, 9, 2, 9, 1)
    assert [one.place, two.place] == [0, 1]


def test_a_writer_without_a_node_keeps_its_handle():
    carrier, writer = 1 << 62 | 0xABCDE << 16 | 0x8001, 1 << 62 | 0x12345 << 16 | 0x8002
    [packet] = cut(1, [said(b"a", writer=writer)], 1000)
    [one] = Sets(CHANNEL, MARK).take(carrier, packet, info(1))
    assert (one.handle, one.relay, one.writer) == (writer, 0x12345, 0x8002)


@given(st.lists(st.binary(max_size=30), min_size=1, max_size=40), st.integers(ROOM + 30, ROOM + 200))
def test_a_set_comes_whole_with_its_last_packet(texts, size_max):
    parts = set_of(1, texts, size_max)
    assert all(len(one) <= size_max for one in parts)
    *before, last = take(Sets(CHANNEL, MARK), parts)
    assert not any(before) and last == texts


@given(st.data())
def test_who_misses_a_packet_gets_nothing_of_the_set_and_all_of_the_next(data):
    texts = [b"%030d" % n for n in range(6)]
    parts, following = set_of(1, texts), set_of(2, texts[:3])
    missing = data.draw(st.integers(0, len(parts) - 1))
    sets = Sets(CHANNEL, MARK)
    assert not any(take(sets, parts[:missing] + parts[missing + 1:]))
    assert take(sets, following)[-1] == texts[:3] and sets.kept_aside == 0


@given(st.data())
def test_packets_that_come_again_change_nothing(data):
    """A writer without a node sends again what it doesn't know to be delivered; rarely its messages come twice."""
    texts = [b"%030d" % n for n in range(6)]
    parts = set_of(1, texts)
    cut = data.draw(st.integers(1, len(parts)))
    back = data.draw(st.integers(0, cut))
    got = take(Sets(CHANNEL, MARK), [*parts[:cut], *parts[back:]])
    assert next(one for one in got if one) == texts
    assert len([one for one in got if one]) == (2 if back == 0 and cut == len(parts) else 1)


@given(st.lists(st.sampled_from(["a", "b"]), max_size=60))
def test_writers_dont_disturb_each_other(turns):
    texts = {"a": [b"%030d" % n for n in range(5)], "b": [b"%029db" % n for n in range(4)]}
    writers, sets = {"a": WRITER, "b": OTHER}, Sets(CHANNEL, MARK)
    left = {name: itertools.cycle([part for number in range(3) for part in set_of(number, one)])
            for name, one in texts.items()}
    got = {"a": [], "b": []}
    for sequence, name in enumerate(turns):
        got[name] += [one.payload for one in sets.take(writers[name], next(left[name]), info(sequence, writers[name]))]
    for name, count in (("a", turns.count("a") // 5), ("b", turns.count("b") // 4)):
        assert got[name] == texts[name] * count


@pytest.mark.parametrize("event", ["another set", "a small set", "another message", "its end", "its node's end"])
def test_what_ends_a_set_that_is_open(event):
    sets, parts = Sets(CHANNEL, MARK), set_of(1, [b"%030d" % n for n in range(4)])
    assert not any(take(sets, parts[:-1]))
    assert sets.kept_aside == 90
    if event == "another set":
        assert take(sets, set_of(2, [bytes(30)] * 2)[:1]) == [[]]
    elif event == "a small set":
        assert take(sets, set_of(2, [b"x"])) == [[b"x"]]
    elif event == "another message":
        sets.interrupted(WRITER)
    elif event == "its end":
        assert sets.ended(WRITER) == {}
    else:
        sets.departed(NODE + 1)
        assert sets.dropped == 0
        sets.departed(NODE)
    assert sets.dropped == 1
    assert take(sets, parts[-1:]) == [[]]
    assert sets.kept_aside == (30 if event == "another set" else 0)


def test_others_ends_dont_end_it():
    sets, parts = Sets(CHANNEL, MARK), set_of(1, [b"%030d" % n for n in range(4)])
    take(sets, parts[:-1])
    sets.interrupted(OTHER)
    sets.ended(OTHER)
    sets.departed(NODE + 1)
    assert len(take(sets, parts[-1:])[0]) == 4


def test_samples_of_other_topics_and_types_are_not_for_us():
    one = [said(b"1"), said(b"2", channel=CHANNEL + 1), said(b"3", mark=MARK + 1), said(b"4")]
    sets = Sets(CHANNEL, MARK)
    [packet] = cut(1, one, 1000)
    taken = sets.take(WRITER, packet, info(0))
    assert [(member.payload, member.place) for member in taken] == [(b"1", 0), (b"4", 3)]
    parts = cut(2, one, ROOM + 1)
    assert len(parts) == 4
    found = [member for n, part in enumerate(parts) for member in sets.take(WRITER, part, info(n))]
    assert [(member.payload, member.place, member.sequence) for member in found] == [(b"1", 0, 3), (b"4", 3, 3)]


def test_a_carriers_end_is_that_of_all_whom_it_has_spoken_for():
    sets = Sets(CHANNEL, MARK)
    one, two, three = (NODE << 16 | n for n in (21, 22, 23))
    [packet] = cut(1, [said(b"", writer=one, flags=1), said(b"", writer=two), said(b""), said(b"", writer=three),
                           said(b"", FAREWELL, writer=three)], 1000)
    sets.take(WRITER, packet, info(0))
    assert sets.ended(OTHER) == {}
    assert sets.ended(WRITER) == {one: FAREWELL | UNREGISTERS | DISPOSES, two: FAREWELL | UNREGISTERS}
    assert sets.ended(WRITER) == {}
    sets.take(WRITER, packet, info(1))
    sets.departed(NODE)
    assert sets.ended(WRITER) == {}


def test_a_liars_set_is_kept_aside_to_its_limit_only(monkeypatch):
    monkeypatch.setattr(packets, "SET_BYTES_MAX", 200)
    sets = Sets(CHANNEL, MARK)
    parts = set_of(1, [bytes(30)] * 50)
    for n, part in enumerate(parts):
        assert sets.take(WRITER, part, info(n)) == []
        assert sets.kept_aside <= 200
    assert sets.dropped == 1


def begin(sets, carriers, first=0):
    """Each of these writers begins a set, and sends two of its four packets."""
    for at, carrier in enumerate(carriers):
        parts = set_of(carrier, [b"%030d" % n for n in range(4)])
        assert take(sets, parts[:2], first + 2 * at, carrier) == [[], []]


def finish(sets, carriers):
    """The same writers send the rest: whose sets come."""
    found = [take(sets, set_of(one, [b"%030d" % n for n in range(4)])[2:], carrier=one)[-1] for one in carriers]
    assert all(len(one) in (0, 4) for one in found)
    return [carrier for carrier, one in zip(carriers, found, strict=True) if one]


def test_what_all_begin_and_nobody_ends_is_kept_aside_to_a_limit(monkeypatch):
    """The oldest go. Who has come after the first ones decides as those who were there."""
    monkeypatch.setattr(packets, "ASIDE_MAX", 10 * (2 * 30 + 3 * packets.SAMPLE_COSTS) + 600)
    carriers = [1 << 62 | n << 16 | 0x8001 for n in range(1, 101)]  # of programs that went without a word
    there, late = Sets(CHANNEL, MARK), Sets(CHANNEL, MARK)
    begin(there, carriers)
    begin(late, carriers[85:])
    assert there.kept_aside == late.kept_aside == 600
    assert (there.crowded_out, late.crowded_out) == (90, 5) and there.dropped == 90
    assert finish(there, carriers[85:]) == finish(late, carriers[85:]) == carriers[90:]
    assert there.kept_aside == late.kept_aside == there._aside == late._aside == 0


@pytest.mark.parametrize("of_them", ["samples", "bytes"])
def test_sets_of_nothing_cost_something_too(monkeypatch, of_them):
    monkeypatch.setattr(packets, "ASIDE_MAX", 100 * packets.SAMPLE_COSTS)
    sets = Sets(CHANNEL, MARK)
    for n in range(1000):
        [part] = cut(1, [said(b"")] * 3 if of_them == "samples" else [], 1000) or [HEADER.pack(0, 1, 0, 1)]
        sets.take(1 << 62 | n << 16 | 0x8001, HEADER.pack(0, 1, 0, 2) + part[HEADER.size:], info(n))
    assert len(sets._open) == (25 if of_them == "samples" else 100)


def test_a_carrier_that_names_whomever_it_likes_is_remembered_to_a_limit(monkeypatch):
    """Whom it has not spoken for for longest counts as ended; what others have said stays."""
    monkeypatch.setattr(packets, "CARRIED_MAX", 3)
    sets, names = Sets(CHANNEL, MARK), [NODE << 16 | n for n in range(100, 140)]
    sets.take(OTHER, cut(1, [said(b"", writer=names[0] + 1000)], 1000)[0], info(0))
    forgotten = []
    for at, name in enumerate([*names, names[-3], names[0]]):
        sets.take(WRITER, cut(1, [said(b"", writer=name, flags=1)], 1000)[0], info(at))
        while (one := sets.surplus()) is not None:
            forgotten.append(one)
        assert sets.writers_carried <= 4
    tag = FAREWELL | UNREGISTERS | DISPOSES
    assert forgotten == [(one, tag) for one in [*names[:-3], names[-2]]]
    assert list(sets.ended(WRITER)) == [names[-1], names[-3], names[0]] and sets.writers_carried == 1
    sets.departed(NODE)
    assert sets.writers_carried == 0


def test_so_are_all_carriers_together(monkeypatch):
    monkeypatch.setattr(packets, "ALL_CARRIED_MAX", 20)
    sets, forgotten = Sets(CHANNEL, MARK), []
    for n in range(50):
        members = [said(b"", writer=1 << 62 | 7 << 16 | 2 * n + k) for k in range(2)]
        sets.take(1 << 62 | n << 16 | 0x8001, cut(1, members, 1000)[0], info(n))
        while (one := sets.surplus()) is not None:
            forgotten.append(one[0] & 0xFFFF)
    assert sets.writers_carried == 20 and forgotten == list(range(80)) and len(sets._carried) == 10


def test_outside_of_groups_a_writer_speaks_for_itself():
    """Else whoever may write could pass for any writer of his node."""
    sets = Sets()
    for parts in (cut(1, [said(b"a", mark=0, channel=0), said(b"b", mark=0, channel=0, writer=OTHER)], 1000),
                  cut(1, [said(bytes(9), mark=0, channel=0, writer=OTHER)] * 9, ROOM + 30)):
        with pytest.raises(ValueError, match="in no order group"):
            take(sets, parts)
    [[one]] = take(sets, cut(2, [said(b"a", mark=0, channel=0, writer=WRITER)], 1000))
    assert one == b"a" and sets.kept_aside == 0


NONSENSE = [
    b"", bytes(HEADER.size - 1), HEADER.pack(0, 1, 0, 0), HEADER.pack(0, 1, 2, 2), HEADER.pack(0, 1, 0, 1) + b"x",
    HEADER.pack(0, 1, 0, 1) + said(b"abc")[:-1], HEADER.pack(0, 1, 0, 1) + said(b"", PACKET),
    *(HEADER.pack(0, 1, 0, 1) + said(b"", tag) for tag in (LAPSES, REVIVES, TIME, DEPARTURE)),
    HEADER.pack(0, 1, 0, 1) + said(b"", writer=4 << 16 | 7), HEADER.pack(0, 1, 0, 1) + said(b"", writer=1 << 62 | 5)]


@pytest.mark.parametrize("payload", NONSENSE, ids=range(len(NONSENSE)))
def test_nonsense_is_refused(payload):
    sets = Sets(CHANNEL, MARK)
    with pytest.raises(ValueError, match=r"packet|sample"):
        sets.take(WRITER, payload, info(0))
    parts = set_of(1, [bytes(30)] * 2)
    take(sets, parts[:1])
    torn = HEADER.pack(0, 1, 1, 2) + payload[HEADER.size:]
    if len(payload) > HEADER.size:
        with pytest.raises(ValueError, match=r"packet|sample"):
            sets.take(WRITER, torn, info(1))
        assert sets.kept_aside == 0


@given(st.binary(max_size=200))
def test_any_bytes_are_taken_or_refused(payload):
    for body in (payload, HEADER.pack(0, 1, 0, 1) + payload, HEADER.pack(0, 1, 0, 2) + payload):
        try:
            Sets(CHANNEL, MARK).take(WRITER, body, info(0))
        except ValueError:
            pass


def test_what_is_of_a_set_and_what_stands_for_itself():
    assert packets.is_of_set(set_of(1, [b"a", b"b"], 1000)[0]) and not packets.is_of_set(set_of(1, [b"a"], 1000)[0])
    assert all(packets.is_of_set(one) for one in set_of(1, [bytes(30)] * 2))
    assert not any(packets.is_of_set(one) for one in NONSENSE[:6])


def test_a_sample_that_fits_no_message_is_refused():
    assert len(set_of(1, [bytes(30)], ROOM + 30)) == 1
    with pytest.raises(ValueError, match=f"31 bytes doesn't fit into a message of {ROOM + 30}"):
        set_of(1, [bytes(31)], ROOM + 30)
    assert MEMBER.size + HEADER.size == ROOM


@pytest.mark.parametrize("tag", [0, DISPOSES, UNREGISTERS, UNREGISTERS | DISPOSES, FAREWELL | UNREGISTERS,
                                 FAREWELL | UNREGISTERS | DISPOSES, MISSES_DEADLINE])
@pytest.mark.parametrize(("writer", "author"), [(0, 0), (OTHER, OTHER & 0xFFFF), (RELAYED | 5 << 16 | 3, 5 << 16 | 3)])
@pytest.mark.parametrize("flags", [0, packets.AUTODISPOSES])
def test_what_a_single_says_to_nodes_is_what_is_in_it(tag, writer, author, flags):
    """Its author and depth stand at its end, where they also stand in the entry of a large sample."""
    data, own = packets.single(1, member(b"abc", tag, flags, MARK, 5, CHANNEL, writer), 7, 1000)
    assert is_packet(own) and data[-8:] == (author | 7 << 48).to_bytes(8, "little")
    body = packets.opened(own, data)
    [(channel, mark, one)] = packets.members(body, writer or WRITER)
    assert (channel, mark, one.payload, one.tag, one.flags) == (CHANNEL, MARK, b"abc", tag, flags)
    for other in range(256):
        if other not in (own, PACKET) and is_packet(other):
            with pytest.raises(ValueError, match="isn't in it"):
                packets.opened(other, data)
    for size in range(len(data)):
        with pytest.raises(ValueError):
            list(packets.members(packets.opened(own, data[:size]), writer or WRITER))


def test_a_single_has_as_much_room_as_is_said():
    for size in (packets.ROOM + 3, packets.ROOM + 30):
        one = member(bytes(size - packets.ROOM), 0, 0, MARK, 5, CHANNEL, 0)
        assert len(packets.single(1, one, 1, size)[0]) == size
        with pytest.raises(ValueError, match="fit"):
            packets.single(1, one, 1, size - 1)
        assert len(packets.single(1, one, 1, size - 1, 1000)[0]) == size
    assert packets.single(1, one, packets.DEPTH_MAX + 5, 1000)[0][-2:] == b"\xff\xff"


def test_a_sample_that_ends_its_instance_is_no_single():
    assert all(map(packets.can_be_single, (0, WRITES | ANNOUNCES_QOS, DISPOSES)))
    data, tag = packets.single(1, member(b"abc", WRITES | DISPOSES, 0, MARK, 5, CHANNEL, 0), 1, 1000)
    with pytest.raises(ValueError, match="isn't in it"):
        packets.opened(tag, data)
