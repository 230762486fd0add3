"""Delivery logs without an engine: readers of one in this process, recognisable payloads, places of the shared fields.

The offsets are those of include/layout.h, written down a second time on purpose: a test that lies to the other side
of a shared page must not ask that side where to lie.
"""

from __future__ import annotations

import os

from spindle_core.delivery import Cursor, DeliveryLog
from spindle_core.memory import Mapping
from spindle_core.reader import LogReader

RECORD = 64  # bytes of a record's header; records are multiples of it
RING = 4096  # offset of the ring in a log's mapping

# struct log_header
LOG_CAPACITY, LOG_TAIL, LOG_COUNT, LOG_STOPPED = 8, 64, 72, 80
LOG_VERSION, LOG_OLDEST_POSITION, LOG_OLDEST_OFFSET, LOG_OLDEST_INDEX = 128, 136, 144, 152
# struct log_record
RECORD_POSITION, RECORD_SIZE, RECORD_KIND = 0, 8, 12
KIND_JUMP = 2
# struct cursor_page, struct cursor_start
CURSOR_POSITION, CURSOR_INDEX, CURSOR_ARMED = 8, 16, 24
START_POSITION, START_OFFSET = 64, 72

U64_MAX = (1 << 64) - 1
CAPACITIES = (4096, 8192, 16384, 65536)  # small: everything wraps all the time


def stride(size: int) -> int:
    """Bytes that a message of `size` bytes takes in the ring."""
    return (RECORD + size + 63) // 64 * 64


def payload(index: int, size: int) -> bytes:
    """`size` bytes that no other message has, as far as they reach."""
    word = (index + 1).to_bytes(8, "little")
    return (word * (size // 8 + 1))[:size]


def attach(log: DeliveryLog, cursor: Cursor) -> LogReader:
    """The application's side of a placed cursor."""
    return LogReader(
        Mapping.attach(os.dup(log.mapping.fd)), Mapping.attach(os.dup(cursor.mapping.fd), True), os.dup(cursor.their_fd)
    )


def add_reader(
    log: DeliveryLog, keep_all: bool = True, from_history: bool = False, start_index: int = -1, within: bool = False
) -> tuple[LogReader, Cursor]:
    cursor = Cursor(keep_all, from_history, start_index, within=within)
    log.add_reader(cursor)
    return attach(log, cursor), cursor


def append(log: DeliveryLog, message: bytes) -> bool:
    return log.append(message, 1, log.delivered, 1, 1)


def fill(log: DeliveryLog, n: int, size: int) -> None:
    """Appends `n` messages of `size` bytes, which nobody may hold back."""
    for _ in range(n):
        assert append(log, payload(log.delivered, size))


def poke(mapping: Mapping, offset: int, value: int, length: int = 8) -> None:
    """Overwrites a field behind the owner's back."""
    mapping.view()[offset : offset + length] = value.to_bytes(length, "little")


def peek(mapping: Mapping, offset: int, length: int = 8) -> int:
    return int.from_bytes(mapping.view()[offset : offset + length], "little")
