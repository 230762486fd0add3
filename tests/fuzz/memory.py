"""Fuzz targets: memory that somebody else writes while the core reads it: a peer's row, an application's inbox.

An input is a list of acts: bytes put somewhere into that memory, a message of an honest writer, or a
pass of the node that looks. Nothing the liar does may cost the honest ones a message, nor bring a message that is too
large.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from spindle_core.engine import SubgroupSpec
from spindle_core.fabric.sim import SimNetwork
from spindle_core.inbox_writer import InboxWriter
from tests.fuzz.target import Cutter, target
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.inboxes import COMMITTED, SLOT_SIZE, SLOTS
from tests.spindle_core.test_hostile_row import SLOTS_OFFSET, SUBGROUPS_OFFSET

SIZE_MAX, WINDOW = 64, 4
ACTS_MAX = 64
HONEST, LIAR = range(2)
SECRET = os.urandom(8)  # begins what the honest ones write, so that no liar's message looks like theirs
# Where an act's offset counts from in a row: the header with its columns, the proposal area, topic columns, slots.
PARTS = (0, 4096, SUBGROUPS_OFFSET, SLOTS_OFFSET)
PUT, WRITE, PASS = range(3)


def _acts(cutter: Cutter) -> Iterator[tuple[int, int, int, bytes]]:
    """(what, part, offset, bytes) of each act."""
    for _ in range(ACTS_MAX):
        if not cutter.rest:
            return
        what = cutter.number()
        if what % 3 == PUT:
            yield PUT, what // 3 % 4, cutter.number(2), cutter.take(1 + cutter.number() % 32)
        else:
            yield what % 3, 0, 0, b""


def _put(part: int, offset: int, data: bytes) -> bytes:
    return bytes([PUT + 3 * part]) + offset.to_bytes(2, "little") + bytes([len(data) - 1]) + data


def _number(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _write(writer: InboxWriter, written: list[bytes]) -> None:
    if len(written) - writer.consumed < WINDOW:
        written.append(SECRET + _number(len(written)))
        writer.write(written[-1], timeout_s=0)


def _rows() -> Iterator[bytes]:
    goes_on = bytes([WRITE, PASS, PASS])
    slot = _number(0) + (5).to_bytes(4, "little") + b"\1\0\0\0" + _number(0) + _number(9)
    yield bytes([1]) + goes_on * 3
    yield bytes([0]) + _put(3, 0, slot) + _put(2, 0, _number(1)) + goes_on
    for value in (1, WINDOW + 1, 1 << 42, 1 << 63, (1 << 64) - 1):
        for column in range(4):
            yield bytes([1]) + goes_on + _put(2, 8 * column, _number(value)) + goes_on
    yield bytes([1]) + _put(0, 64, _number(1 << 63) * 4) + _put(1, 0, b"\xff" * 32) + goes_on


@target(_rows, size_max=1024, compiled=True)
def row(data: bytes) -> None:
    """A peer's row that may hold anything, up to the view without it: the honest member loses nothing."""
    cutter = Cutter(data)
    level = cutter.number() % 2
    cluster = Cluster(2, window=WINDOW, size_max=SIZE_MAX, level=level, network=SimNetwork(copies=False))
    reader, writer = cluster.reader(HONEST), cluster.writer(HONEST, slots=WINDOW)
    theirs = cluster.epochs[LIAR].row.view()
    written: list[bytes] = []
    got: list[bytes] = []
    for what, part, offset, some in _acts(cutter):
        if what == PUT:
            at = PARTS[part] + offset % 1024
            some = some[: max(0, len(theirs) - at)]
            theirs[at : at + len(some)] = some
        elif what == WRITE:
            _write(writer, written)
        else:
            cluster.engines[HONEST].step_once()
            got += reader.take(1000)
    honest = cluster.engines[HONEST]
    honest.wedge(1, open_claim_timeout_s=0)
    honest.cut(LIAR)
    trim = cluster.epochs[HONEST].frozen_counts(HONEST, 1)
    if not honest.deliver_to_trim(1, trim):
        honest.take_undelivered(1, trim)
    cluster.engines.pop()
    cluster.install(2, [SubgroupSpec(1, (HONEST,), (HONEST,), WINDOW, SIZE_MAX, level)])
    cluster.settle()
    got += reader.take(1000)
    assert all(len(message) <= SIZE_MAX for message in got)
    assert [message for message in got if message.startswith(SECRET)] == written
    cluster.stop()


def _inboxes() -> Iterator[bytes]:
    take = bytes([PASS, WRITE, PASS])
    yield _put(0, COMMITTED, _number(1)) + take
    for value in (WINDOW, WINDOW + 1, 1 << 63, (1 << 64) - 1):
        yield _put(0, COMMITTED, _number(value)) + take * 2 + _put(0, COMMITTED, _number(2)) + take
    for size in (SIZE_MAX, SIZE_MAX + 1, 1 << 31, (1 << 32) - 1):
        yield _put(1, SLOT_SIZE, size.to_bytes(4, "little")) + _put(0, COMMITTED, _number(1)) + take


@target(_inboxes, size_max=1024, compiled=True)
def inbox(data: bytes) -> None:
    """An application's inbox that may hold anything: other writers lose nothing, and what comes from it fits."""
    cluster = Cluster(2, window=WINDOW, size_max=SIZE_MAX)
    readers = [cluster.reader(node) for node in range(2)]
    cluster.writer(0, slots=WINDOW)
    liar = cluster.kept[-1]
    theirs = liar.ring.view()
    honest = cluster.writer(0, slots=WINDOW)
    written: list[bytes] = []
    for what, part, offset, some in _acts(Cutter(data)):
        if what == PUT:
            at = (SLOTS if part % 2 else 0) + offset % (128 * WINDOW)
            some = some[: max(0, len(theirs) - at)]
            theirs[at : at + len(some)] = some
        elif what == WRITE:
            _write(honest, written)
        else:
            for engine in cluster.engines:
                engine.step_once()
    cluster.settle()
    logs = [one.take(10_000) for one in readers]
    assert logs[0] == logs[1]
    assert all(len(message) <= SIZE_MAX for message in logs[0])
    assert len(logs[0]) == len(written) + liar.consumed - liar.refused
    assert [message for message in logs[0] if message.startswith(SECRET)] == written
    assert honest.acknowledged == len(written)
    cluster.stop()


__all__ = ["inbox", "row"]
