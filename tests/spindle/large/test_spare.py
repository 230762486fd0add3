"""Goal: a writer gets its own memory back, when nobody else has it, and never another writer's.

Method: spare memory of several writers and topics, of which some is still read; time is given.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from spindle.errors import NoResources
from spindle.large import memory
from spindle.large.spare import COUNT_MAX, SpareMemory
from tests.spindle.links.group import descriptors_of

SIZE = memory.REUSED_MIN
CAPACITY = memory.capacity_of(SIZE)
MINE, THEIRS = "a writer", "another"
BYTES_MAX = 4 * CAPACITY


@pytest.fixture
def spare() -> Iterator[SpareMemory]:
    before = descriptors_of(os.getpid())
    made = SpareMemory(BYTES_MAX)
    yield made
    made.clear()
    assert made.bytes_kept == 0 and descriptors_of(os.getpid()) == before


def memory_that_was(number: int, size: int = SIZE) -> int:
    """Of a sample that is over."""
    fd = memory.make_closable(size)
    memory.write_whole(fd, bytes([number]), 0)
    closed, again = memory.close(fd)
    assert again
    return closed


def first_byte(spare: SpareMemory, topic: str, writer: object, size: int = SIZE) -> int:
    """Of what it takes; -1: there is none."""
    fd = spare.take(topic, writer, memory.capacity_of(size))
    if fd < 0:
        return -1
    found = os.pread(fd, 1, 0)[0]
    os.pwrite(fd, b"x", 0)  # it can write
    os.close(fd)
    return found


def test_each_writer_has_its_own(spare: SpareMemory) -> None:
    spare.keep("a", MINE, memory_that_was(1), CAPACITY, 0.0)
    spare.keep("b", MINE, memory_that_was(2), CAPACITY, 0.0)
    assert first_byte(spare, "a", THEIRS) == first_byte(spare, "c", MINE) == -1
    assert spare.bytes_kept == 2 * CAPACITY
    assert [first_byte(spare, "a", MINE) for _ in range(2)] == [1, -1]
    assert [first_byte(spare, "b", MINE) for _ in range(2)] == [2, -1]
    assert spare.bytes_kept == 0


def test_only_what_nobody_has(spare: SpareMemory) -> None:
    one = memory_that_was(1)
    readers = [memory.open_anew(one) for _ in range(2)]
    spare.keep("a", MINE, one, CAPACITY, 0.0)
    spare.keep("a", MINE, memory_that_was(2), CAPACITY, 0.0)
    assert first_byte(spare, "a", MINE) == 2
    os.close(readers[0])
    assert first_byte(spare, "a", MINE) == -1
    os.close(readers[1])
    assert first_byte(spare, "a", MINE) == 1


def test_only_of_its_size(spare: SpareMemory) -> None:
    spare.keep("a", MINE, memory_that_was(1), CAPACITY, 0.0)
    assert first_byte(spare, "a", MINE, 3 << 20) == -1
    assert first_byte(spare, "a", MINE, SIZE + 1) == 1


def test_whether_something_is_free_or_worth_waiting_for() -> None:
    """Also behind many that somebody has."""
    spare = SpareMemory(16 * CAPACITY)
    assert spare.waiting("a", MINE, CAPACITY) is None
    kept = [memory_that_was(k) for k in range(9)]
    readers = [memory.open_anew(one) for one in kept]
    for one in kept:
        spare.keep("a", MINE, one, CAPACITY, 0.0)
    assert spare.waiting("a", MINE, CAPACITY) is True
    assert spare.waiting("a", THEIRS, CAPACITY) is None
    os.close(readers.pop())
    assert spare.waiting("a", MINE, CAPACITY) is False
    for fd in readers:
        os.close(fd)
    spare.clear()


def test_what_waits_for_long_goes(spare: SpareMemory) -> None:
    for number in range(3):
        spare.keep("a", MINE, memory_that_was(number), CAPACITY, float(number))
    spare.let_go(1.0)
    assert spare.bytes_kept == 2 * CAPACITY
    assert [first_byte(spare, "a", MINE) for _ in range(3)] == [1, 2, -1]


def test_a_topic_has_a_bound(spare: SpareMemory) -> None:
    """In bytes, where those of several writers count; a node has one in pieces. The oldest goes."""
    for number in range(5):
        spare.keep("a", (MINE, THEIRS)[number % 2], memory_that_was(number), CAPACITY, 0.0)
    assert spare.bytes_kept == BYTES_MAX
    assert [first_byte(spare, "a", MINE) for _ in range(3)] == [2, 4, -1]
    assert [first_byte(spare, "a", THEIRS) for _ in range(3)] == [1, 3, -1]
    spare.keep("a", MINE, memory_that_was(9, 200 << 20), memory.capacity_of(200 << 20), 0.0)
    assert spare.bytes_kept == 0, "larger than all that may be kept"
    for number in range(COUNT_MAX + 1):
        spare.keep(f"t{number}", MINE, memory_that_was(number), CAPACITY, 0.0)
    assert [first_byte(spare, f"t{number}", MINE) for number in (0, 1, COUNT_MAX)] == [-1, 1, COUNT_MAX]


def test_many_that_are_read_cost_little(spare: SpareMemory) -> None:
    """Goal: the node's loop isn't held up by asking about them all. Method: they are counted that are asked about."""
    readers = []
    wide = SpareMemory(COUNT_MAX * CAPACITY)
    for number in range(COUNT_MAX):
        one = memory_that_was(number)
        readers.append(memory.open_anew(one))
        wide.keep("a", MINE, one, CAPACITY, 0.0)
    asked: list[int] = []
    with patch.object(memory, "is_free", lambda fd: asked.append(fd)):
        assert wide.take("a", MINE, CAPACITY) == -1
    assert 0 < len(asked) < COUNT_MAX // 2
    for fd in readers:
        os.close(fd)
    wide.clear()


def test_what_waits_goes_before_memory_runs_out(spare: SpareMemory) -> None:
    spare.keep("a", MINE, memory_that_was(1), CAPACITY, 0.0)
    make, calls = memory.make_closable, []

    def short(size: int) -> int:
        calls.append(size)
        if len(calls) == 1:
            raise NoResources("on purpose")
        return make(size)

    with patch.object(memory, "make_closable", short):
        os.close(spare.make(SIZE))
    assert spare.bytes_kept == 0 and len(calls) == 2


def test_a_writer_that_ends(spare: SpareMemory) -> None:
    for topic in "ab":
        spare.keep(topic, MINE, memory_that_was(1), CAPACITY, 0.0)
        spare.keep(topic, THEIRS, memory_that_was(2), CAPACITY, 0.0)
    spare.writer_ended(MINE)
    assert spare.bytes_kept == 2 * CAPACITY
    assert [first_byte(spare, topic, MINE) for topic in "ab"] == [-1, -1]
    assert [first_byte(spare, topic, THEIRS) for topic in "ab"] == [2, 2]


def test_a_topic_that_ends(spare: SpareMemory) -> None:
    for topic in "ab":
        spare.keep(topic, MINE, memory_that_was(1), CAPACITY, 0.0)
    spare.topic_ended("a")
    assert [first_byte(spare, topic, MINE) for topic in "ab"] == [-1, 1]


def test_one_that_is_given_up_leaves_nothing() -> None:
    before = descriptors_of(os.getpid())
    spare = SpareMemory(CAPACITY)
    spare.keep("a", MINE, memory_that_was(1), CAPACITY, 0.0)
    del spare
    assert descriptors_of(os.getpid()) == before
