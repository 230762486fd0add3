"""The application's ends of rings with a network between.

Goal: an Outbox hands out every message once and in order, again after a rewind, with timestamps that increase and stay;
slots come free with acknowledgements only. Method: hypothesis against a list; the rest by example.
"""

from __future__ import annotations

import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.delivery import Cursor
from spindle_core.errors import NodeGone, WriteTimeout
from spindle_core.inbox_writer import InboxWriter
from spindle_core.memory import Mapping
from spindle_core.remote import ArrivalLog, ArrivalReader, Bell, Outbox, log_cost


def ends(slots: int = 8, size_max: int = 64, keep: bool = False) -> tuple[InboxWriter, Outbox, Bell]:
    bell, outbox = Bell(), Outbox(size_max, slots, 0, keep=keep)
    writer = InboxWriter(
        Mapping.attach(os.dup(outbox.ring.fd), True), Mapping.attach(os.dup(outbox.progress.fd)),
        os.dup(outbox.their_fd), Mapping.attach(os.dup(bell.page.fd)), os.dup(bell.fd))
    return writer, outbox, bell


STEPS = st.lists(st.one_of(
    st.tuples(st.just("write"), st.integers(1, 40)),
    st.tuples(st.just("take"), st.integers(0, 12)),
    st.tuples(st.just("settle"), st.integers(0, 12)),
    st.tuples(st.just("turn"), st.integers(0, 12)),
), max_size=60)


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(STEPS)
def test_messages_are_handed_out_in_order_with_stamps_that_stay(steps: list[tuple[str, int]]) -> None:
    """`turn`: another node says up to which stamp all is sent; what it says lies between what is settled and taken."""
    writer, outbox, _ = ends()
    written: list[bytes] = []
    stamps: list[int] = []
    taken = settled = 0
    for what, n in steps:
        if what == "write":
            try:
                writer.write(b"%d" % len(written), n, 0.0)
                written.append(b"%d" % len(written))
            except WriteTimeout:
                assert len(written) - settled == 8
        elif what == "take":
            for payload, source_ns, *_ in outbox.take(taken + n, 1 << 20):
                assert payload == written[taken]
                if taken < len(stamps):
                    assert source_ns == stamps[taken]
                else:
                    assert source_ns > max(stamps, default=0)
                    stamps.append(source_ns)
                taken += 1
        elif what == "settle":
            settled = min(settled + n, taken)
            outbox.settle(settled, 0)
        else:
            until = min(settled + n, taken)
            index = outbox.index_after(stamps[until - 1] if until else 0)
            assert index == max(until, settled)
            settled = taken = index
            outbox.settle(index, index)
            outbox.rewind(index)
        assert (outbox.taken, outbox.acknowledged) == (taken, settled)


def test_a_batch_is_bounded_but_never_empty() -> None:
    writer, outbox, _ = ends()
    for _ in range(6):
        writer.write(bytes(50))
    assert [len(outbox.take(99, size)) for size in (10, 100, 149)] == [1, 2, 2]
    assert outbox.take(5, 1000) == [] and len(outbox.take(6, 1000)) == 1


def test_nobody_acknowledges_what_was_not_sent() -> None:
    writer, outbox, _ = ends()
    writer.write(b"x")
    for figures in ((1, 0), (0, 1)):
        with pytest.raises(ValueError, match="only 0 were sent"):
            outbox.settle(*figures)
    outbox.take(1, 100)
    outbox.settle(1, 1)
    assert writer.wait_acknowledged(0) and writer.wait_acknowledged(0, True)
    with pytest.raises(ValueError, match="isn't here"):
        outbox.rewind(0)


def test_what_is_kept_until_it_is_persisted_can_be_sent_again() -> None:
    """Goal: of a logged topic a delivered message needs its slot, as all nodes may forget it. Method: delivery and disk
    come one after the other; the next node has less than was acknowledged."""
    writer, outbox, _ = ends(slots=4, keep=True)
    for n in range(4):
        writer.write(b"%d" % n, 1000 + n)
    outbox.take(4, 100)
    outbox.settle(4, 1)
    assert (writer.acknowledged, writer.persisted, outbox.consumed) == (4, 1, 1)
    assert writer.wait_acknowledged(0) and not writer.wait_acknowledged(0, True) and writer.unacknowledged() == []
    writer.write(b"4", 2000, 0)
    with pytest.raises(WriteTimeout):
        writer.write(b"5", 3000, 0)
    index = outbox.index_after(1001)
    assert index == 2
    outbox.settle(index, index)
    outbox.rewind(index)
    assert outbox.take(9, 100) == [(b"2", 1002, 0, 0, 0), (b"3", 1003, 0, 0, 0), (b"4", 2000, 0, 0, 0)]
    outbox.settle(5, 5)
    assert writer.wait_acknowledged(0, True) and outbox.consumed == 5


def test_a_writer_rings_and_is_woken() -> None:
    writer, outbox, bell = ends(slots=1)
    bell.doze()
    writer.write(b"1")
    began = time.monotonic()
    bell.wait(10)
    bell.awake()
    assert time.monotonic() - began < 5
    threading.Timer(0.1, lambda: (outbox.take(1, 10), outbox.settle(1, 0))).start()
    writer.write(b"2", 0, 10)
    bell.end()
    with pytest.raises(NodeGone):
        writer.write(b"3", 0, 10)


def test_a_reader_says_how_far_it_is_and_rings_when_asked() -> None:
    bell, log = Bell(), ArrivalLog(8192, 8192)
    cursor = Cursor(True)
    log.add_reader(cursor)
    reader = ArrivalReader(
        Mapping.attach(os.dup(log.mapping.fd)), Mapping.attach(os.dup(cursor.mapping.fd), True),
        os.dup(cursor.their_fd),
        Mapping.attach(os.dup(bell.page.fd)), os.dup(bell.fd))
    for k in range(10):
        assert log.append(bytes(100), 1, k, 0, 1)
    assert log.passed() == 0
    reader.take(3)
    assert log.passed() == 3 * log_cost(100) == 3 * 192
    log.ask_to_ring(True)
    bell.doze()
    reader.take(1)
    began = time.monotonic()
    bell.wait(10)
    assert time.monotonic() - began < 5 and log.passed() == 4 * 192
    reader.count_lost(5)
    assert reader.lost == 5
