"""The time that a topic's order says, and what is noted of when it is to be said next.

Goal: whatever messages come in whatever order, something is due for each that isn't over, never before it is over, and
not much later; what is noted stays bounded; only a node's own word says the time; nonsense is no time.
Method: the production notes against a list of all that was ever said; logs, and readers of them.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_core.delivery import Cursor, DeliveryLog
from spindle_core.timing import Timing
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.logs import attach

MS = 1_000_000
S = 1000 * MS
NOW = 1_700_000_000_000_000_000
UNTIL, FOR, WORD = 1, 2, 3
KINDS = bytes((0, FOR, UNTIL, WORD)) + bytes(252)
DUES_MAX = 256


def counts_for(timing, source_ns, span_ns):
    timing.note(b"data" + span_ns.to_bytes(8, "little"), FOR - 1, 5, source_ns)


def test_what_is_over_next_is_known():
    timing = Timing(KINDS)
    assert timing.next_ns == timing.said_ns == 0
    counts_for(timing, NOW, 500 * MS)
    counts_for(timing, NOW, 50 * MS)
    assert NOW + 50 * MS <= timing.next_ns <= NOW + 52 * MS
    timing.note(b"", 3, 0, NOW + 100 * MS)
    assert timing.said_ns == NOW + 100 * MS
    assert NOW + 500 * MS <= timing.next_ns <= NOW + 510 * MS
    timing.note((NOW + 200 * MS).to_bytes(8, "little") + b"data", 2, 5, NOW)
    assert NOW + 200 * MS <= timing.next_ns <= NOW + 205 * MS
    timing.note(b"", 3, 0, NOW + 1000 * MS)
    assert timing.next_ns == 0 and timing.dues == []


def test_time_goes_forwards_and_only_nodes_say_it():
    timing = Timing(KINDS)
    timing.note(b"", 3, 7, NOW)
    assert timing.said_ns == 0
    timing.note(b"", 3, 0, NOW)
    timing.note(b"", 3, 0, NOW - 1)
    assert timing.said_ns == NOW
    counts_for(timing, NOW - 10, 5)
    assert timing.next_ns == 0  # over already


def test_a_word_that_is_far_earlier_takes_back_what_was_said():
    timing = Timing(KINDS)
    counts_for(timing, NOW, 7200 * S)
    timing.note(b"", 3, 0, NOW + 3600 * S)
    counts_for(timing, NOW, S)  # over when it comes
    assert timing.dues == [timing.next_ns] and timing.next_ns >= NOW + 7200 * S
    timing.note(b"", 3, 0, NOW + 3570 * S)
    assert timing.said_ns == NOW + 3600 * S
    timing.note(b"", 3, 7, NOW + S)
    assert timing.said_ns == NOW + 3600 * S  # only nodes say it
    timing.note(b"", 3, 0, NOW + S)
    assert timing.said_ns == NOW + S
    counts_for(timing, NOW + S, S)
    assert len(timing.dues) == 2 and NOW + 2 * S <= timing.next_ns <= NOW + 3 * S


def test_what_was_said_is_doubted_where_it_ends_what_is_far_earlier():
    timing = Timing(KINDS)
    timing.say(NOW + 40 * S)
    counts_for(timing, NOW + 10 * S, S)
    counts_for(timing, NOW, 50 * S)
    assert not timing.doubted  # the one is late, and what the other one says may be so
    counts_for(timing, NOW, S)
    assert timing.doubted
    timing.note(b"", 3, 0, NOW + 39 * S)
    assert timing.doubted
    timing.note(b"", 3, 0, NOW + 2 * S)
    assert not timing.doubted and timing.said_ns == NOW + 2 * S
    timing.say(0)
    assert timing.said_ns == NOW + 2 * S


@pytest.mark.parametrize(("payload", "tag", "source_ns"), [
    (b"", 1, NOW), (b"1234567", 1, NOW), (b"1234567", 2, NOW), (bytes(8), 1, NOW), (bytes(8), 2, NOW),
    (b"\xff" * 8, 1, NOW), (b"\xff" * 8, 2, NOW), (b"\xff" * 7 + b"\x7f", 1, NOW), (b"x" * 99, 0, NOW),
    (b"x" * 99, 200, NOW), (b"\x01" + bytes(7), 1, (1 << 64) - 1), (b"\x01" + bytes(7), 2, NOW)])
def test_nonsense_and_what_counts_for_ever_is_never_due(payload, tag, source_ns):
    timing = Timing(KINDS)
    timing.note(b"", 3, 0, 1)
    timing.note(payload, tag, 5, source_ns)
    assert timing.next_ns == 0


AT_MS = st.one_of(st.integers(0, 4000), st.integers(0, 4000), st.integers(30_000, 40_000))


@given(st.lists(st.tuples(st.sampled_from(["says", "counts"]), AT_MS, st.integers(1, 20_000)), max_size=400))
def test_against_all_that_was_ever_said(steps):
    timing, alive, said = Timing(KINDS), [], 0
    for what, at_ms, span_ms in steps:
        if what == "says":
            if not 0 <= said - (NOW + at_ms * MS) <= 30 * S:
                said = NOW + at_ms * MS
            timing.note(b"", 3, 0, NOW + at_ms * MS)
            alive = [one for one in alive if one > said]
        else:
            counts_for(timing, NOW + at_ms * MS, span_ms * MS)
            if NOW + (at_ms + span_ms) * MS > said:
                alive.append(NOW + (at_ms + span_ms) * MS)
        dues = timing.dues
        assert dues == sorted(set(dues)) and len(dues) <= DUES_MAX and timing.said_ns == said
        assert not alive or max(alive) <= dues[-1]
        assert all(any(one <= due for due in dues) for one in alive)
        if len(steps) < DUES_MAX:  # none was merged
            assert all(any(one <= due <= one + 20_000 * MS // 64 + 2 * MS for due in dues) for one in alive)


def test_thousands_of_times_are_few_to_say():
    timing = Timing(KINDS)
    for n in range(20_000):
        counts_for(timing, NOW + n * MS // 10, 1000 * MS)
    assert len(timing.dues) < 2 * 128 + 2
    for n in range(5_000):
        counts_for(timing, NOW + n * 7919 % 100_003 * MS, (1 + n % 97) * MS)
    assert len(timing.dues) == DUES_MAX


def test_of_two_times_that_become_one_the_later_stays():
    """Goal: what counts longest is over one day, too. Method: no room is left, and the two that are closest to each
    other are the last ones."""
    timing = Timing(KINDS)
    for n in range(DUES_MAX - 1):
        counts_for(timing, NOW + n * 1000 * MS, MS)
    last = NOW + (DUES_MAX - 2) * 1000 * MS + 10 * MS
    counts_for(timing, last, MS)
    assert len(timing.dues) == DUES_MAX
    counts_for(timing, NOW + 500 * MS, MS)
    assert len(timing.dues) == DUES_MAX and timing.dues[-1] >= last + MS
    assert NOW + MS <= timing.dues[0] < timing.dues[1] < NOW + 600 * MS


def test_a_member_without_readers_notes_what_is_over_next():
    """Goal: the node of a writer has the time to say, though nobody reads there. Method: a node without a log."""
    cluster = Cluster(2)
    timings = [Timing(KINDS), Timing(KINDS)]
    for engine, timing in zip(cluster.engines, timings, strict=True):
        engine.bind_timing(1, timing)
    cluster.reader(1)
    cluster.writer(0).write(b"data" + (50 * MS).to_bytes(8, "little"), NOW, tag=1)
    cluster.settle()
    assert timings[0].next_ns == timings[1].next_ns >= NOW + 50 * MS


def test_a_log_notes_what_is_appended_and_shows_readers_the_time():
    timing = Timing(KINDS)
    log = DeliveryLog(capacity=1 << 16, timing=timing)
    cursor = Cursor(keep_all=True)
    log.add_reader(cursor)
    reader = attach(log, cursor)
    log.append(b"data" + (50 * MS).to_bytes(8, "little"), 1, 0, 1, NOW, 5, tag=1)
    assert timing.next_ns >= NOW + 50 * MS and reader.said_ns == log.said_ns == 0
    log.append(b"", 1, 1, 1, NOW + 60 * MS, 0, tag=3)
    assert timing.next_ns == 0 and reader.said_ns == log.said_ns == NOW + 60 * MS
    reader.close()
    assert reader.said_ns == 0
    later = DeliveryLog(capacity=1 << 16, timing=timing)
    assert later.said_ns == NOW + 60 * MS
    later.say_time(NOW + 70 * MS)
    assert later.said_ns == timing.said_ns == NOW + 70 * MS
    plain = DeliveryLog(capacity=1 << 16)
    plain.say_time(NOW)
    assert plain.said_ns == 0
    for one in (log, later, plain):
        one.close()


@pytest.mark.parametrize("kinds", [b"", bytes(255), bytes(255) + b"\x08"])
def test_kinds_that_are_none(kinds):
    with pytest.raises(ValueError, match="256 numbers from 0 to 7"):
        Timing(kinds)
