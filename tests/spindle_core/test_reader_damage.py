"""Readers before memory that is no log, or a damaged one: errors, never a crash, a hang or a read outside of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from spindle_core.delivery import Cursor, DeliveryLog
from spindle_core.errors import CoreError
from spindle_core.memory import Mapping
from spindle_core.message import message_type
from spindle_core.reader import LogReader
from tests.spindle_core.logs import (
    KIND_JUMP,
    LOG_CAPACITY,
    LOG_OLDEST_INDEX,
    LOG_OLDEST_OFFSET,
    LOG_OLDEST_POSITION,
    LOG_VERSION,
    RECORD,
    RECORD_KIND,
    RECORD_POSITION,
    RECORD_SIZE,
    RING,
    START_OFFSET,
    U64_MAX,
    add_reader,
    append,
    fill,
    payload,
    peek,
    poke,
    stride,
)

Typed = message_type("Typed", __name__, "info", "bytes with an info")


def test_what_is_no_log_is_refused() -> None:
    """Goal: mappings that are closed, read-only, of something else or smaller than they say are errors, not crashes."""
    log = DeliveryLog(4096)
    cursor = Cursor(True)
    log.add_reader(cursor)

    def make(**change: object) -> LogReader:
        parts = {
            "log": Mapping.attach(os.dup(log.mapping.fd)),
            "cursor": Mapping.attach(os.dup(cursor.mapping.fd), True),
        }
        parts |= change  # type: ignore[arg-type]
        return LogReader(parts["log"], parts["cursor"], os.dup(cursor.their_fd))

    closed = Mapping.create("closed", 4096)
    closed.close()
    for change in ({"log": closed}, {"cursor": closed}, {"cursor": Mapping.attach(os.dup(cursor.mapping.fd))}):
        with pytest.raises(ValueError, match=r"writable|open"):
            make(**change)
    with pytest.raises(ValueError, match="doorbell"):
        LogReader(
            Mapping.attach(os.dup(log.mapping.fd)),
            Mapping.attach(os.dup(cursor.mapping.fd), True),
            -1,
            Mapping.create("no bell", 4096),
        )
    for capacity in (0, U64_MAX, U64_MAX - 4095, 4096 + 64, 1 << 62):
        poke(log.mapping, LOG_CAPACITY, capacity)
        with pytest.raises(ValueError, match="smaller than it says"):
            make()
    poke(log.mapping, LOG_CAPACITY, 4096)
    for offset in (1, 4096 + 64, U64_MAX):
        poke(cursor.mapping, START_OFFSET, offset)
        with pytest.raises(ValueError, match="place it first"):
            make()
    poke(cursor.mapping, START_OFFSET, 0)
    assert make().take(1) == []


def test_a_jump_to_itself_is_damage() -> None:
    """Goal: a ring that only says "go on at the start" is an error, not an endless loop."""
    for keep_all in (True, False):
        log = DeliveryLog(4096)
        reader, _ = add_reader(log, keep_all)
        fill(log, 1, 8)
        poke(log.mapping, RING + RECORD_KIND, KIND_JUMP, 2)
        with pytest.raises(CoreError, match="damaged"):
            reader.take(1)
        with pytest.raises(CoreError, match="damaged"):
            reader.skip_to_last(0)
        with pytest.raises(CoreError, match="damaged"):
            reader.take_block(1)


@pytest.mark.parametrize("way", ["take", "take_pairs", "take_with"])
def test_what_the_log_has_given_up_is_not_returned_though_it_still_looks_whole(way: str) -> None:
    """The log says that it has given up its oldest message before it writes over that. What was copied in between, or
    later, may be half of it.

    Method: say so in its place, and write over nothing."""
    log = DeliveryLog(4096)
    reader, _ = add_reader(log, False)
    fill(log, 3, 100)
    poke(log.mapping, LOG_OLDEST_POSITION, stride(100))
    poke(log.mapping, LOG_OLDEST_OFFSET, stride(100))
    poke(log.mapping, LOG_OLDEST_INDEX, 1)
    got: list[bytes] = []
    while reader.pending:
        if way == "take_with":
            got += reader.take_with(9, bytes, info_attribute=None)
        else:
            got += reader.take(9) if way == "take" else [one for one, _ in reader.take_pairs(9)]
    assert (got, reader.lost) == ([payload(1, 100), payload(2, 100)], 1)


@pytest.mark.slow
def test_a_node_that_died_in_the_middle_of_a_change_is_noticed() -> None:
    """Goal: a node killed while it moves the oldest position can't make its readers spin for ever.

    Method: leave the guard odd, as such a node would, in front of a reader that was overtaken.
    """
    log = DeliveryLog(4096)
    reader, _ = add_reader(log, False)
    fill(log, 200, 64)
    version = peek(log.mapping, LOG_VERSION)
    poke(log.mapping, LOG_VERSION, version + 1)
    start = time.monotonic()
    with pytest.raises(CoreError, match="has died"):
        reader.take(1)
    assert time.monotonic() - start < 30
    poke(log.mapping, LOG_VERSION, version + 2)
    assert reader.take(500)[-1] == payload(199, 64)


SPOTS = st.one_of(
    st.tuples(st.sampled_from([64, 72, 80, 88, 96, 136, 144, 152]), st.just(8)),  # log header, not its guard
    st.tuples(
        st.builds(
            lambda line, spot: RING + line * 64 + spot,
            st.integers(0, 63),
            st.sampled_from([RECORD_POSITION, RECORD_SIZE, RECORD_KIND, 16]),
        ),
        st.sampled_from([2, 4, 8]),
    ),
)
NONSENSE = st.one_of(st.integers(0, U64_MAX), st.integers(0, 5000), st.sampled_from([U64_MAX, 1, 2, 64, (1 << 32) - 1]))


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(
    keep_all=st.booleans(),
    n=st.integers(0, 40),
    size=st.integers(0, 200),
    damage=st.lists(st.tuples(SPOTS, NONSENSE), min_size=1, max_size=12),
    calls=st.lists(
        st.sampled_from(["take", "typed", "pairs", "with", "block", "skip", "pending", "wait"]), max_size=12
    ),
)
@example(True, 5, 8, [((RING + RECORD_SIZE, 4), (1 << 32) - 1)], ["take"])
@example(False, 5, 8, [((LOG_OLDEST_POSITION, 8), 1 << 40), ((LOG_OLDEST_OFFSET, 8), U64_MAX)], ["take"])
@example(False, 40, 100, [((LOG_OLDEST_POSITION, 8), 1 << 40), ((LOG_OLDEST_OFFSET, 8), 4095)], ["pairs"])
@example(True, 2, 8, [((64, 8), U64_MAX), ((72, 8), U64_MAX)], ["skip", "block"])
def test_damaged_memory_never_crashes_a_reader(
    keep_all: bool, n: int, size: int, damage: list[tuple[tuple[int, int], int]], calls: list[str]
) -> None:
    """Goal: whatever bytes stand in the log, a reader gives data or raises CoreError (NodeGone is one); it neither
    crashes nor reads outside its mapping nor hangs.

    Method: overwrite fields of the log's header and of records with nonsense, then call everything. Run under
    AddressSanitizer by `make sanitize`.
    """
    log = DeliveryLog(4096, 1024)
    reader, _ = add_reader(log, keep_all)
    for k in range(n):
        append(log, payload(k, size))
    for (offset, length), value in damage:
        poke(log.mapping, offset, value & ((1 << 8 * length) - 1), length)
    does: dict[str, Callable[[], object]] = {
        "take": lambda: reader.take(5),
        "typed": lambda: reader.take(5, Typed),
        "pairs": lambda: reader.take_pairs(5),
        "with": lambda: reader.take_with(5, bytes, info_attribute=None),
        "block": lambda: use_block(reader),
        "skip": lambda: reader.skip_to_last(2),
        "pending": lambda: reader.pending,
        "wait": lambda: reader.wait(0),
    }
    for call in calls:
        try:
            does[call]()
        except CoreError:
            pass


def use_block(reader: LogReader) -> None:
    block = reader.take_block(50)
    if block is not None:
        with block:
            for i in range(block.count):
                at = block.offset + i * block.stride
                assert at + block.payload_size <= RING + 4096 and block.offset >= RING + RECORD
                bytes(block.buffer[at : at + block.payload_size])
                block.info(i)
