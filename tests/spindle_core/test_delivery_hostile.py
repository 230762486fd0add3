"""Cursors that lie: an application may free or hold what is its own, and nothing else."""

from __future__ import annotations

import os
import select

from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.delivery import Cursor, DeliveryLog
from tests.spindle_core.logs import (
    CAPACITIES,
    CURSOR_ARMED,
    CURSOR_INDEX,
    CURSOR_POSITION,
    RECORD,
    U64_MAX,
    add_reader,
    append,
    attach,
    payload,
    poke,
)

WORDS = st.one_of(
    st.integers(0, U64_MAX), st.integers(0, 20_000), st.sampled_from([U64_MAX, U64_MAX - 63, 1 << 63, (1 << 32) - 1])
)
LIES = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([CURSOR_POSITION, CURSOR_INDEX, CURSOR_ARMED, 64, 72, 80, 88]), WORDS),
    max_size=4,
)


@settings(max_examples=200, deadline=None)
@given(
    capacity=st.sampled_from(CAPACITIES),
    hot=st.integers(0, 8192),
    steps=st.lists(st.tuples(LIES, st.lists(st.integers(0, 1500), max_size=12), st.integers(0, 20)), max_size=20),
)
def test_a_lying_cursor_hurts_nobody_else(
    capacity: int, hot: int, steps: list[tuple[list[tuple[int, int, int]], list[int], int]]
) -> None:
    """Goal: whatever an application writes into its cursor page, the node goes on and an honest keep-all reader gets
    every message.

    Method: two liars (one keep-all, one not) write random words into their pages between appends and honest takes.
    A lie may free or hold what is the liar's; removed, it holds nothing.
    """
    log = DeliveryLog(capacity, hot)
    liars = [Cursor(True), Cursor(False)]
    for liar in liars:
        log.add_reader(liar)
    honest, _ = add_reader(log)
    sent: list[bytes] = []
    got: list[bytes] = []
    for lies, sizes, n in steps:
        for which, field_offset, word in lies:
            poke(liars[which].mapping, field_offset, word)
        for size in sizes:
            message = payload(len(sent), min(size, capacity // 2 - RECORD))
            if append(log, message):
                sent.append(message)
        got += honest.take(n)
    for liar in liars:
        log.remove_reader(liar)
    got += honest.take(1 << 30)
    assert got == sent
    assert append(log, b"after")
    assert honest.take(2) == [b"after"]


def test_a_cursor_may_claim_only_what_was_delivered() -> None:
    """Goal: a position beyond the tail doesn't count for messages that come later.

    Method: the only keep-all reader claims the end of time, then takes nothing: it still holds back what was
    appended after its claim was looked at, and with honest positions again it misses nothing of that.
    """
    log = DeliveryLog(4096, keep_history=True)
    cursor = Cursor(True)
    log.add_reader(cursor)
    poke(cursor.mapping, CURSOR_POSITION, U64_MAX)
    refused = False
    for _ in range(200):
        refused = refused or not append(log, bytes(100))
    # Believed at each look, never ahead of it: everything was freed by the lie, the node itself is unharmed.
    assert log.delivered == 200 and not refused
    poke(cursor.mapping, CURSOR_POSITION, 0)
    while append(log, bytes(100)):
        assert log.delivered < 400
    assert log.oldest_index >= 190


def test_hostile_arming_costs_at_most_a_ring_each() -> None:
    """Goal: `armed` is only compared, so nonsense in it rings the liar's own descriptor and nothing else.

    Method: random values; its descriptor has been rung once per append, and an unchanged value doesn't ring.
    """
    log = DeliveryLog(4096)
    cursor = Cursor(False)
    log.add_reader(cursor)
    for value in (U64_MAX, 0, 5, 1 << 63):
        poke(cursor.mapping, CURSOR_ARMED, value)
        assert append(log, b"x") and append(log, b"x")
        assert os.read(cursor.their_fd, 2) == b"\1"
        assert not select.select([cursor.their_fd], [], [], 0)[0]
    assert attach(log, cursor).position_index == 0
