"""Goal: a source gives what is asked for, whatever else is asked for, and dropping a sample hurts nobody who reads it.

Method: a giver on one end of a socket, and on the other the test, which asks.
"""

from __future__ import annotations

import gc
import os
import socket
import threading
from collections import Counter
from collections.abc import Iterator
from unittest.mock import patch

import pytest

from spindle.large import giver as giving
from spindle.large import memory
from spindle.large.filling import Filling
from spindle.large.giver import Giver
from spindle.large.pieces import DATA, FIRST, LACKING, PIECE, PIECE_MAX, QUESTION, UNWANT, WANT, WANT_FIRST, WANTED_MAX
from spindle.large.store import Held, Store
from tests.spindle.large.group import pattern, sealed
from tests.spindle.links.group import descriptors_of, mappings_of
from tests.support import wait_until

SIZE = 3 * PIECE_MAX + 5


class Asker:
    """A node's end of a connection with a giver, and what that has."""

    def __init__(self) -> None:
        self.store = Store()
        self.fillings: dict[int, Filling] = {}
        self.sock, theirs = socket.socketpair()
        self.sock.settimeout(10)
        self.giver = Giver(theirs.detach(), 3, self.find)
        self.store.watchers.append(self.giver.changed)

    def find(self, large_id: int) -> Held | Filling | None:
        return self.store.find(large_id) or self.fillings.get(large_id)

    def fill(self, large_id: int, size: int) -> Filling:
        filling = self.fillings[large_id] = Filling(large_id, size, "images", self.giver.changed)
        filling.give_to(self)
        return filling

    def ask(self, what: int, number: int, large_id: int = 7, size: int = SIZE, at: int = 0) -> None:
        self.sock.sendall(QUESTION.pack(what, 0, number, large_id, size, at))

    def answer(self) -> tuple[int, int, int, bytes]:
        """What, number, at which byte, and the bytes."""
        what, length, number, at = PIECE.unpack(self.sock.recv(PIECE.size, socket.MSG_WAITALL))
        content = b""
        while len(content) < length:
            content += self.sock.recv(length - len(content))
        return what, number, at, content

    def all_of(self, number: int, size: int = SIZE, at: int = 0) -> bytes:
        content = b""
        while at + len(content) < size:
            what, found, place, piece = self.answer()
            assert (what, found, place) == (DATA, number, at + len(content))
            content += piece
        return content

    def has_ended(self) -> bool:
        try:
            while self.sock.recv(1 << 20):
                pass
        except ConnectionResetError:
            pass
        return True

    def close(self) -> None:
        self.sock.close()
        self.giver.close()
        self.store.close()
        for filling in self.fillings.values():
            filling.end("over")


@pytest.fixture
def asker() -> Iterator[Asker]:
    gc.collect()  # what other tests have left goes before, and not meanwhile
    before, mapped = descriptors_of(os.getpid()), mappings_of(os.getpid())
    made = Asker()
    yield made
    made.close()
    assert not Counter(descriptors_of(os.getpid())) - Counter(before)
    assert not Counter(mappings_of(os.getpid())) - Counter(mapped)


def test_it_gives_what_is_wanted_from_there_on(asker: Asker) -> None:
    asker.store.put(7, sealed(pattern(SIZE)), SIZE, "images")
    asker.ask(WANT, 1)
    assert asker.all_of(1) == pattern(SIZE)
    asker.ask(WANT, 2, at=SIZE - 7)
    assert asker.all_of(2, at=SIZE - 7) == pattern(SIZE)[-7:]
    asker.ask(WANT, 1)  # numbers may be used again
    assert asker.all_of(1) == pattern(SIZE)


@pytest.mark.slow
def test_it_gives_what_comes_as_it_comes(asker: Asker) -> None:
    filling = asker.fill(7, 1000)
    asker.ask(WANT, 1, size=1000)
    for at in range(0, 1000, 250):
        filling.fill(asker, memoryview(pattern(1000)[at : at + 250]))
        assert asker.answer() == (DATA, 1, at, pattern(1000)[at : at + 250])


@pytest.mark.slow
def test_what_it_hears_of_later_it_gives_then(asker: Asker) -> None:
    asker.ask(WANT, 1)
    wait_until(lambda: asker.giver._wanted)
    asker.store.put(7, sealed(pattern(SIZE)), SIZE, "images")
    assert asker.all_of(1) == pattern(SIZE)


@pytest.mark.slow
def test_a_filling_that_becomes_the_stores_is_given_on(asker: Asker) -> None:
    """Its descriptor is closed a moment before the store has it, and it may come from elsewhere in the end."""
    filling = asker.fill(7, SIZE)
    filling.fill(asker, memoryview(pattern(SIZE)[:100]))
    asker.ask(WANT, 1)
    assert asker.answer() == (DATA, 1, 0, pattern(SIZE)[:100])
    del asker.fillings[7]
    filling.end("")
    asker.ask(WANT, 2)
    wait_until(lambda: len(asker.giver._wanted) == 2)
    asker.store.put(7, sealed(pattern(SIZE)), SIZE, "images")
    assert asker.all_of(1, at=100) == pattern(SIZE)[100:]
    assert asker.all_of(2) == pattern(SIZE)


@pytest.mark.slow
def test_a_filling_that_is_whole_and_closed_is_waited_for(asker: Asker) -> None:
    filling = asker.fill(7, 100)
    filling.fill(asker, memoryview(pattern(100)))
    filling.complete()
    asker.store.put(8, filling.open(), 100, "images")
    filling.end("")
    asker.ask(WANT, 1, size=100)
    wait_until(lambda: asker.giver._wanted)
    del asker.fillings[7]
    asker.store.put(7, sealed(pattern(100)), 100, "images")
    assert asker.answer() == (DATA, 1, 0, pattern(100))


@pytest.mark.slow
def test_a_filling_that_fails_is_refused_with_the_reason(asker: Asker) -> None:
    filling = asker.fill(7, SIZE)
    filling.fill(asker, memoryview(pattern(100)))
    asker.ask(WANT, 1)
    assert asker.answer()[0] == DATA
    filling.end("node 9 has gone")
    assert asker.answer() == (LACKING, 1, 0, b"node 9 has gone")


@pytest.mark.slow
def test_what_is_dropped_in_the_middle_is_refused(asker: Asker) -> None:
    """The asker reads slowly: pieces that are on their way are those of the sample still."""
    size, before = 64 * PIECE_MAX, mappings_of(os.getpid())
    asker.store.put(7, sealed(pattern(size)), size, "images")
    asker.ask(WANT, 1, size=size)
    got = asker.answer()[3]
    asker.store.drop(7)
    while True:
        what, number, at, content = asker.answer()
        if what == LACKING:
            break
        assert (number, at) == (1, len(got))
        got += content
    assert content == b"it has dropped the large sample 0x7" and got == pattern(size)[: len(got)] != pattern(size)
    left = "memfd:spindle large"
    wait_until(lambda: sum(left in one for one in mappings_of(os.getpid())) <= sum(left in one for one in before))


def test_of_another_size_or_unknown_it_has_nothing(asker: Asker) -> None:
    asker.store.put(7, sealed(bytes(100)), 100, "images")
    asker.ask(WANT, 1, size=101)
    assert asker.answer() == (LACKING, 1, 0, b"the large sample 0x7 has 100 bytes there, not 101")
    with patch.object(giving, "UNKNOWN_S", 0.01):
        asker.ask(WANT, 2, large_id=8)
        assert asker.answer() == (LACKING, 2, 0, b"it hasn't heard of it")


@pytest.mark.slow
def test_in_the_order_asked_but_urgent_ones_first(asker: Asker) -> None:
    for number in (1, 2, 3, 4):
        asker.ask(WANT_FIRST if number == 3 else WANT, number, large_id=number, size=100)
    asker.ask(FIRST, 2)
    asker.ask(UNWANT, 4)
    asker.ask(UNWANT, 99)
    asker.ask(FIRST, 99)
    wait_until(lambda: [wanted.number for wanted in asker.giver._wanted] == [2, 3, 1])
    fillings = [asker.fill(number, 100) for number in (1, 2, 3)]
    with asker.giver._lock:  # it sleeps until all are there
        for filling in fillings:
            filling._on_more = lambda _: None
            filling.fill(asker, memoryview(pattern(100)))
    asker.giver.changed(1)
    assert [asker.answer()[1] for _ in range(3)] == [2, 3, 1]


@pytest.mark.slow
@pytest.mark.parametrize("question", [(0, 0, 1, 7, 100, 0), (9, 0, 1, 7, 100, 0), (FIRST, 5, 9, 7, 100, 0)])
def test_what_means_nothing_is_passed_over(asker: Asker, question: tuple[int, ...]) -> None:
    asker.store.put(7, sealed(pattern(100)), 100, "images")
    asker.sock.sendall(QUESTION.pack(*question))
    asker.ask(WANT, 1, size=100)
    assert asker.answer() == (DATA, 1, 0, pattern(100))


def test_questions_that_make_no_sense_end_the_connection(asker: Asker) -> None:
    asker.ask(WANT, 1, at=SIZE + 1)
    assert asker.has_ended()


def test_a_number_that_is_in_use_ends_the_connection(asker: Asker) -> None:
    asker.ask(WANT, 1)
    asker.ask(WANT, 1)
    assert asker.has_ended()


def test_a_flood_of_questions_ends_the_connection(asker: Asker) -> None:
    for number in range(WANTED_MAX + 1):
        asker.ask(WANT, number)
    assert asker.has_ended()


@pytest.mark.slow
def test_an_asker_that_does_not_read_is_left_when_the_node_stops(asker: Asker) -> None:
    size = 64 * PIECE_MAX
    asker.store.put(7, sealed(bytes(size)), size, "images")
    asker.ask(WANT, 1, size=size)
    asker.answer()
    asker.giver.close()
    assert asker.giver._thread not in threading.enumerate()


@pytest.mark.slow
def test_places_beyond_32_bits(asker: Asker) -> None:
    fd = memory.make(memory.SIZE_MAX)
    os.pwrite(fd, b"the end", memory.SIZE_MAX - 7)
    memory.seal(fd)
    asker.store.put(7, fd, memory.SIZE_MAX, "images")
    asker.ask(WANT, 1, size=memory.SIZE_MAX, at=memory.SIZE_MAX - 7)
    assert asker.answer() == (DATA, 1, memory.SIZE_MAX - 7, b"the end")
