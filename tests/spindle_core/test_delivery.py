"""The delivery log against a model: who holds what back, what is lost, where a reader starts.

Everything here is one process and step by step; readers that race with the writer are in test_reader_concurrent.py.
"""

from __future__ import annotations

import itertools
import os
import select
from dataclasses import dataclass, field

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from spindle_core.delivery import LATENCY_LIMITS_NS, Cursor, DeliveryLog
from spindle_core.ends import EVENT_END, Loose, make_ends
from spindle_core.message import message_type
from spindle_core.reader import Block, LogReader
from tests.spindle_core.logs import (
    CAPACITIES,
    RECORD,
    RING,
    add_reader,
    append,
    fill,
    payload,
    stride,
)

Sample = message_type("Sample", __name__, "info", "What take() makes of a payload when it is given a type.")


@dataclass
class ReaderModel:
    """What we know of one reader: `next` messages are behind it, of which some were lost."""

    reader: LogReader
    cursor: Cursor
    keep_all: bool
    next: int
    lost: int = 0
    block: Block | None = None

    @property
    def holds(self) -> int:
        """The first message that it isn't done with."""
        return self.next - (self.block.count if self.block is not None else 0)


@dataclass
class Message:
    payload: bytes
    hot: bool
    source_ns: int = field(default=0)


def tag_of(index: int) -> int:
    return 9 if index % 13 == 12 else 0


class LogMachine(RuleBasedStateMachine):
    """Any readers, any sizes, any order of calls, on rings so small that they wrap and jump all the time."""

    @initialize(
        capacity=st.sampled_from(CAPACITIES),
        hot_share=st.sampled_from([0.0, 0.1, 0.25, 0.6, 1.0]),
        keep_history=st.booleans(),
        depth=st.sampled_from([0, 1, 5, 40]),
    )
    def make(self, capacity: int, hot_share: float, keep_history: bool, depth: int) -> None:
        self.capacity, self.keep_history, self.depth = capacity, keep_history, depth
        self.hot = int(capacity * hot_share)
        self.log = DeliveryLog(capacity, self.hot, keep_history, depth)
        self.size_max = capacity // 2 - RECORD
        self.messages: list[Message] = []
        self.readers: list[ReaderModel] = []
        self.stride_max = RECORD

    def pick(self, which: int) -> ReaderModel:
        return self.readers[which % len(self.readers)]

    def retained(self, index: int) -> int:
        """Bytes of the messages from `index` on."""
        return sum(stride(len(m.payload)) for m in self.messages[index:])

    # ---- the node's side

    @rule(
        sizes=st.lists(
            st.one_of(st.integers(0, 200), st.just(0), st.just(-1), st.integers(0, 4000)), min_size=1, max_size=24
        )
    )
    def append(self, sizes: list[int]) -> None:
        for wanted in sizes:
            size = self.size_max if wanted < 0 else min(wanted, self.size_max)
            count = len(self.messages)
            everybody_is_here = all(r.next == count and r.block is None for r in self.readers)
            before = self.log.oldest_index
            message = Message(payload(count, size), everybody_is_here and not self.keep_history, 1_000 + count)
            done = self.log.append(message.payload, count % 7, 3 * count, count // 10, message.source_ns, count % 5,
                                   tag=tag_of(count))
            holding = [r.holds for r in self.readers if r.keep_all and r.holds < count]
            if not done:
                assert holding, "held back by nobody"
                # Both ends of the ring are too small: what is unread, what a wrap wasted, and less than two of these.
                assert self.retained(min(holding)) + self.stride_max + 2 * stride(size) > self.capacity
                assert self.log.delivered == count
                continue
            self.messages.append(message)
            self.stride_max = max(self.stride_max, stride(size))
            oldest = self.log.oldest_index
            for r in self.readers:
                if not r.keep_all and before <= r.next < oldest and r.next < count:
                    # Overtaken only by a full ring: the newest 15/16 of it are still there, but for what wraps waste.
                    assert self.retained(oldest) >= self.capacity - self.capacity // 16 - 4 * self.stride_max

    @rule(keep_all=st.booleans(), from_history=st.booleans(), start=st.integers(-1, 200))
    @precondition(lambda self: len(self.readers) < 5)
    def add(self, keep_all: bool, from_history: bool, start: int) -> None:
        oldest, count = self.log.oldest_index, len(self.messages)
        reader, cursor = add_reader(self.log, keep_all, from_history, start)
        if not from_history:
            first = count
        elif start >= 0:
            first = max(oldest, min(start, count))
        elif self.depth:
            first = max(oldest, count - self.depth)
        else:
            first = oldest
        assert reader.position_index == first and reader.keep_all == keep_all
        self.readers.append(ReaderModel(reader, cursor, keep_all, first))

    @rule(which=st.integers(0, 9))
    @precondition(lambda self: self.readers)
    def remove(self, which: int) -> None:
        gone = self.pick(which)
        self.readers.remove(gone)
        gone.reader.close()
        self.log.remove_reader(gone.cursor)
        self.log.remove_reader(gone.cursor)
        gone.cursor.close()
        assert self.log.readers == len(self.readers)

    # ---- the readers' side

    def account(self, r: ReaderModel, taken: list[bytes], indices: list[int] | None = None) -> None:
        """Checks that `taken` is what comes next, and that exactly what was overtaken counts as lost."""
        count = len(self.messages)
        first = r.next if r.keep_all else max(r.next, self.log.oldest_index)
        r.lost += first - r.next if taken else r.reader.lost - r.lost
        assert taken == [m.payload for m in self.messages[first : first + len(taken)]]
        assert indices is None or indices == list(range(first, first + len(taken)))
        r.next = first + len(taken) if taken else r.next
        assert r.next <= count

    @rule(which=st.integers(0, 9), n=st.integers(0, 40), how=st.sampled_from(["bytes", "typed", "pairs", "with"]))
    @precondition(lambda self: self.readers)
    def take(self, which: int, n: int, how: str) -> None:
        r = self.pick(which)
        if r.block is not None:
            with pytest.raises(ValueError, match="release it first"):
                r.reader.take(n)
            return
        pending = r.reader.pending
        if how == "bytes":
            got, indices = r.reader.take(n), None
            assert all(type(p) is bytes for p in got)
        elif how == "typed":
            got = r.reader.take(n, Sample)
            assert all(type(p) is Sample and hash(p) == hash(bytes(p)) for p in got)
            indices = [p.info.index for p in got]
        elif how == "pairs":
            pairs = r.reader.take_pairs(n)
            got, indices = [p for p, _ in pairs], [info.index for _, info in pairs]
            for _, info in pairs:
                k = info.index
                assert (info.sender, info.sequence, info.view_id, info.writer) == (k % 7, 3 * k, k // 10, k % 5)
                assert info.source_timestamp == self.messages[k].source_ns and info.reception_timestamp > 0
        else:
            got, indices = r.reader.take_with(n, bytes, info_attribute=None), None
        lost_now = r.reader.lost - r.lost
        assert len(got) == min(n, pending - lost_now)
        self.account(r, got, indices)

    @rule(which=st.integers(0, 9), n=st.integers(1, 40))
    @precondition(lambda self: self.readers)
    def open_block(self, which: int, n: int) -> None:
        r = self.pick(which)
        if r.block is not None:
            return
        block = r.reader.take_block(n)
        if block is None:
            assert r.next == len(self.messages)
            return
        assert 1 <= block.count <= n and block.intact
        memory = block.buffer
        assert memory.readonly and len(block) == block.count
        places = [block.offset + i * block.stride for i in range(block.count)]
        got = [bytes(memory[at : at + block.payload_size]) for at in places]
        assert all(len(p) == len(got[0]) for p in got)
        indices = [block.info(i).index for i in range(block.count)]
        self.account(r, got, indices)
        for at, index in zip(places, indices, strict=True):
            if self.messages[index].hot:
                assert at - RECORD - RING < max(self.hot, 1), "left the hot part although everybody kept up"
        r.block = block

    @rule(which=st.integers(0, 9))
    @precondition(lambda self: self.readers)
    def release_block(self, which: int) -> None:
        r = self.pick(which)
        if r.block is None:
            return
        if r.keep_all:
            assert r.block.intact
        r.block.release()
        r.block.release()
        with pytest.raises(ValueError, match="released"):
            r.block.info(0)
        r.block = None
        # What was overtaken behind the block is lost; the block itself has been read.
        if not r.keep_all and r.reader.lost > r.lost:
            assert r.reader.position_index == self.log.oldest_index
            assert r.reader.lost - r.lost == r.reader.position_index - r.next
            r.lost, r.next = r.reader.lost, r.reader.position_index

    @rule(which=st.integers(0, 9))
    @precondition(lambda self: self.readers)
    def look_for_tags(self, which: int) -> None:
        r = self.pick(which)
        if r.block is not None:
            return
        left = range(max(r.next, self.log.oldest_index), len(self.messages))
        found = r.reader.tagged_ahead
        assert found or not any(map(tag_of, left))
        assert not (r.keep_all and found) or any(map(tag_of, left))
        if r.keep_all:
            assert r.reader.meets_tagged == any(map(tag_of, left[:1]))

    @rule(which=st.integers(0, 9), depth=st.integers(0, 30))
    @precondition(lambda self: self.readers)
    def skip(self, which: int, depth: int) -> None:
        r = self.pick(which)
        if r.block is not None:
            return
        skipped = r.reader.skip_to_last(depth)
        lost = r.reader.lost - r.lost
        assert r.keep_all <= (lost == 0)
        expected = max(r.next, len(self.messages) - depth, 0)
        if lost:
            expected = max(expected, self.log.oldest_index)
        assert r.next + lost + skipped == expected == r.reader.position_index
        r.next, r.lost = expected, r.lost + lost

    # ---- always

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "log"):
            return
        assert self.log.delivered == len(self.messages)
        for r in self.readers:
            assert r.reader.lost == r.lost
            if r.block is None:
                assert r.reader.position_index == r.next
                assert r.reader.pending == len(self.messages) - r.next
            if r.keep_all:
                assert r.lost == 0
                assert self.log.oldest_index <= r.reader.position_index

    def teardown(self) -> None:
        """In the end everybody can have everything that is left, and keep-all readers miss nothing."""
        if not hasattr(self, "log"):
            return
        for r in self.readers:
            if r.block is not None:
                r.block.release()
                r.next, r.lost, r.block = r.reader.position_index, r.reader.lost, None
            got = r.reader.take(1 << 30)
            self.account(r, got)
            assert r.next == len(self.messages) and r.reader.pending == 0
        assert append(self.log, b"one more") or not self.readers
        for r in self.readers:
            assert r.reader.take(2) == [b"one more"]
            r.reader.close()
            self.log.remove_reader(r.cursor)
            r.cursor.close()
        self.log.close()


LogMachine.TestCase.settings = settings(
    max_examples=120, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
)


class TestLogAgainstModel(LogMachine.TestCase):
    """Goal: D5, D7 of one log, whatever its readers do: keep-all readers lose nothing and alone hold appends back;
    others are overtaken only by a full ring, count it, and never see wrong bytes; new readers start where promised.

    Method: a stateful comparison with a list of messages; tiny rings, hot parts of any size, sizes up to half a ring.
    """


# ---- single promises ------------------------------------------------------------------------------------------------


def test_a_burst_after_a_hot_jump_may_use_the_whole_ring() -> None:
    """Goal: going back to the hot part costs nobody anything: the ring's room is the same as before.

    Method: readers keep up until the log is about to go back to its start, then take nothing during a burst of many
    times the hot part. The keep-all reader must hold nothing back, the other one must lose nothing.
    """
    for warm_up in range(20):
        log = DeliveryLog(65536, 4096)
        keep_all, _ = add_reader(log, True)
        keep_last, _ = add_reader(log, False)
        for k in range(warm_up):
            assert append(log, payload(k, 500))
            assert keep_all.take(9) == keep_last.take(9) == [payload(k, 500)]
        burst = [payload(k, 500) for k in range(100)]
        assert all(append(log, p) for p in burst)
        assert keep_all.take(200) == burst
        assert keep_last.take(200) == burst and keep_last.lost == 0


def test_a_log_without_history_stays_in_its_hot_part() -> None:
    """Goal: memory in use stays in the cache while readers keep up, without history and only then.

    Method: the furthest record of 1,000 that were each taken at once, with and without keep_history.
    """
    furthest = {}
    for keep_history in (False, True):
        log = DeliveryLog(65536, 2048, keep_history)
        reader, _ = add_reader(log)
        ends = []
        for k in range(1000):
            assert append(log, payload(k, k % 300))
            with reader.take_block(1) as block:
                ends.append(block.offset + block.payload_size - RING)
        furthest[keep_history] = max(ends)
    assert furthest[False] <= 2048 + stride(300) and furthest[True] > 60_000


def test_the_largest_message_passes_whatever_lies_in_the_ring() -> None:
    """Goal: a message of half the ring is never refused while nobody holds anything; a larger one is an error.

    Method: half-ring messages after every possible fill of a 4096-byte ring, with a reader that keeps up.
    """
    for lines in range(1, 64):
        log = DeliveryLog(4096, 0, keep_history=True)
        reader, _ = add_reader(log)
        fill(log, lines, 0)
        assert len(reader.take(100)) == lines
        for k in range(3):
            assert append(log, payload(k, 2048 - RECORD)), lines
            assert reader.take(5) == [payload(k, 2048 - RECORD)]
        with pytest.raises(ValueError, match="up to 1984"):
            append(log, bytes(2048 - RECORD + 1))


def test_without_readers_nothing_is_ever_refused() -> None:
    """Goal: a log that nobody reads takes everything, whatever the sizes.

    Method: alternate the smallest and the largest messages many times round the ring.
    """
    for keep_history in (False, True):
        log = DeliveryLog(4096, 1024, keep_history)
        for k in range(500):
            assert append(log, bytes((0, 1, 1984, 700)[k % 4]))
        assert log.delivered == 500


@pytest.mark.parametrize("depth", [0, 3, 1000])
def test_history_begins_where_promised(depth: int) -> None:
    """Goal: a late joiner gets the retained history: all of it, the newest `depth`, or from an index on.

    Method: compare every kind of start with the message expected there, before and after the ring has wrapped.
    """
    for n in (0, 1, 20, 500):
        log = DeliveryLog(8192, 512, keep_history=True, history_depth=depth)
        fill(log, n, 100)
        oldest = log.oldest_index
        assert oldest == 0 or n == 500
        expected = max(oldest, n - depth) if depth else oldest
        for start, first in ((-1, expected), (0, oldest), (n, n), (n + 5, n), (max(0, n - 2), max(oldest, n - 2))):
            reader, _ = add_reader(log, True, True, start)
            assert reader.position_index == first
            assert reader.take(1000) == [payload(k, 100) for k in range(first, n)]
        live, _ = add_reader(log, True, False)
        assert live.take(9) == [] and live.position_index == n


def test_limits_are_in_the_messages() -> None:
    """Goal: what can't be is refused with the limit. Method: one call beyond each."""
    with pytest.raises(ValueError, match="between 4096"):
        DeliveryLog(4095)
    with pytest.raises(ValueError, match="must not be negative"):
        DeliveryLog(4096, -1)
    log = DeliveryLog(4096)
    with pytest.raises(TypeError):
        append(log, "text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        log.add_reader(None)
    assert DeliveryLog(4097).capacity == 8192


def test_a_closed_log_or_cursor_says_so() -> None:
    """Goal: the node's own mistakes are errors, not crashes. Method: use after close, twice where that is allowed."""
    log, cursor = DeliveryLog(4096), Cursor(True)
    cursor.close()
    cursor.close()
    with pytest.raises(ValueError, match="closed"):
        log.add_reader(cursor)
    log.close()
    log.close()
    assert (log.delivered, log.oldest_index) == (0, 0)
    with pytest.raises(ValueError, match="closed"):
        append(log, b"x")
    with pytest.raises(ValueError, match="closed"):
        log.add_reader(Cursor(True))


@pytest.mark.parametrize("within", [False, True])
def test_a_log_that_ends_rings_nobody_who_was_closed_before(within: bool) -> None:
    """Goal: what has got the descriptor's number of a reader that is closed since is left alone.
    Method: give that number to something else of the same kind, and look whether anything has come there."""
    log, cursor = DeliveryLog(4096), Cursor(True, within=within)
    log.add_reader(cursor)
    number = cursor.ring_end & ~EVENT_END
    rings, is_rung = make_ends(within)
    with Loose([rings, is_rung, number]):
        cursor.close()
        os.dup2(rings, number)
        log.stop()
        log.close()
        assert not select.select([is_rung], [], [], 0)[0]


def test_removing_a_reader_frees_what_it_held() -> None:
    """Goal: a keep-all reader that goes away no longer holds anybody back. Method: fill, remove, append again."""
    log = DeliveryLog(4096)
    lazy, cursor = add_reader(log)
    while append(log, b""):
        pass
    other, _ = add_reader(log, True, True)
    log.remove_reader(cursor)
    assert not append(log, b"")
    assert len(other.take(1000)) == log.delivered
    assert append(log, b"")
    assert log.readers == 1 and lazy.pending == log.delivered


def test_latencies_fall_into_their_buckets() -> None:
    """Bounds grow, four to an octave, and each message is counted below its bound."""
    assert len(LATENCY_LIMITS_NS) == 121 and LATENCY_LIMITS_NS[0] == 1024 and LATENCY_LIMITS_NS[-1] == 1 << 40
    assert all(1 < later / earlier <= 1.25 for earlier, later in itertools.pairwise(LATENCY_LIMITS_NS))
    assert DeliveryLog(capacity=4096).figures() == (0, 0, {})
