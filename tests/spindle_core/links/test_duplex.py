"""Goal: messages between two programs come whole, once and in order; nobody sleeps through one; each hears of the
other's end; and one that writes nonsense spoils nothing but its own messages.

Method: both sides in this process, over real memory and sockets; the other one in a process of its own where it dies.
"""

from __future__ import annotations

import os
import random
import signal
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from spindle_core.ends import make_pair
from spindle_core.links.duplex import DUPLEXES, PAGE_SIZE, Duplex, Listening, make_page
from spindle_core.links.user import PAGE_SIZES, LinkUser
from spindle_core.memory import Mapping
from tests.support import wait_until

RING = 64 << 10
LINE = 64
SIDE = 3 * LINE + RING  # bytes; the sides begin behind a line
PUT, CLOSED, TAKEN = 0, 8, LINE  # of a side
LARGEST = (16 << 10) - 8


class Pair:
    """Both sides, and the memory under them."""

    def __init__(self) -> None:
        page = make_page()
        self.bytes = page.view()
        ends = make_pair()
        self.asks, self.listens = (
            Duplex(Mapping.attach(os.dup(page.fd), writable=True), end, side) for side, end in enumerate(ends))

    def scribble(self, side: int, at: int, data: bytes) -> None:
        """Writes into the memory of a side, past its program."""
        begin = LINE + side * SIDE + at
        self.bytes[begin : begin + len(data)] = data


@pytest.fixture
def pair() -> Iterator[Pair]:
    made = Pair()
    yield made
    made.asks.close()
    made.listens.close()


def take_all(side: Duplex) -> list[tuple[int, bytes]]:
    found = []
    while (came := side.take()) is not None:
        found.append(came)
    return found


def test_messages_come_whole_and_in_order_both_ways(pair: Pair) -> None:
    """Of any length, many times around the ring."""
    rng = random.Random(1)
    for turn in range(200):
        sent: tuple[list[tuple[int, bytes]], ...] = ([], [])
        for number in range(rng.randrange(1, 5)):
            for there, side in enumerate((pair.asks, pair.listens)):
                data = rng.randbytes(rng.choice((0, 1, 7, 8, 9, 100, 10_000, LARGEST)))
                if side.put(turn << 8 | number, data):
                    sent[there].append((turn << 8 | number, data))
        assert take_all(pair.listens) == sent[0] and take_all(pair.asks) == sent[1]
    assert not pair.asks.over and not pair.listens.over


def test_a_ring_without_room_takes_nothing_until_something_is_taken(pair: Pair) -> None:
    sent = 0
    while pair.asks.put(sent, bytes(10_000)):
        sent += 1
    assert sent == RING // 10_016 and not pair.asks.over
    assert not pair.asks.wait(0.01, 0.0, 10_000) and pair.asks.put(99, b"a small one")
    assert [number for number, _ in take_all(pair.listens)] == [*range(sent), 99]
    assert pair.asks.wait(0.0, 0.0, 10_000) and pair.asks.put(100, bytes(10_000))
    with pytest.raises(ValueError, match="16384 are the limit"):
        pair.asks.put(0, bytes(LARGEST + 9))


def test_who_waits_for_room_is_woken_when_something_is_taken(pair: Pair) -> None:
    while pair.asks.put(0, bytes(10_000)):
        pass
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(pair.asks.wait(20.0, 0.0, 10_000)))
    thread.start()
    wait_until(lambda: pair.bytes[LINE + 16] != 0)  # it says that it wants room
    assert pair.listens.take() is not None
    thread.join(10.0)
    assert waited == [True] and pair.asks.put(1, bytes(10_000))


@pytest.mark.parametrize("spin_s", [0.0, 5e-6])
def test_nobody_sleeps_through_a_message(pair: Pair, spin_s: float) -> None:
    """Whatever falls between the last look and the sleep: each of many calls ends long before its bound."""
    rounds = 20_000

    def answer() -> None:
        for _ in range(rounds):
            while (came := pair.listens.take()) is None:
                assert pair.listens.wait(20.0, spin_s), "a call was slept through"
            assert pair.listens.put(*came)

    thread = threading.Thread(target=answer)
    thread.start()
    for number in range(rounds):
        assert pair.asks.put(number, b"x")
        while (came := pair.asks.take()) is None:
            assert pair.asks.wait(20.0, spin_s), "an answer was slept through"
        assert came == (number, b"x")
    thread.join()


def test_the_last_look_before_a_sleep_finds_what_came_before_it(pair: Pair) -> None:
    """It is a part of falling asleep, so that nobody can leave it out: messages, room, and the end."""
    user, waits = link_user(), listening()
    waits.add(pair.listens)
    for side, put in ((pair.listens, pair.asks), (waits, pair.asks)):
        assert side.fall_asleep()
        side.wake_up()
        assert put.put(1, b"x") and not side.fall_asleep()
        side.wake_up()
        assert pair.listens.take() == (1, b"x")
    while pair.asks.put(0, bytes(10_000)):
        pass
    assert pair.asks.fall_asleep(10_000)
    pair.asks.wake_up()
    take_all(pair.listens)
    assert not pair.asks.fall_asleep(10_000)
    pair.asks.wake_up()
    assert pair.listens.put(2, b"y") and pair.asks.fall_asleep(0, False)  # it waits for room alone
    pair.asks.wake_up()
    assert user.fall_asleep()
    user.wake_up()
    user.mark_gone()
    assert not user.fall_asleep()


@pytest.mark.parametrize("many", [False, True])
def test_who_looks_in_vain_does_so_seldom(pair: Pair, many: bool) -> None:
    """The one that it waits for may need its processor. As soon as a look finds something, it is worth it again."""
    waits, at = listening(), LINE + SIDE + 2 * LINE + 32
    bell = pair.bytes[at : at + 8]
    waits.add(pair.listens)

    def has_looked() -> bool:
        sleeps = bytes(bell)
        assert not (waits if many else pair.listens).wait(0.001, 10.0)
        return bytes(bell) == sleeps  # all the time

    assert [has_looked() for _ in range(12)] == [True, False, True] + 3 * [False] + [True] + 5 * [False]
    for _ in range(2):
        assert not has_looked()
    timer = threading.Timer(0.05, lambda: pair.asks.put(1, b"x"))
    timer.start()
    assert (waits if many else pair.listens).wait(10.0, 10.0) and pair.listens.take() == (1, b"x")
    timer.join()
    assert has_looked()


def test_who_closes_is_heard_of_and_what_was_put_before_is_taken(pair: Pair) -> None:
    assert pair.asks.put(1, b"before")
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(pair.asks.wait(20.0)))
    thread.start()
    wait_until(lambda: pair.bytes[LINE + 2 * LINE + 32] & 1)  # it sleeps
    pair.listens.close()
    thread.join(10.0)
    assert waited == [True] and pair.asks.take() is None and pair.asks.over
    assert not pair.asks.put(2, b"nobody takes it")


def test_what_nobody_takes_any_more_is_refused(pair: Pair) -> None:
    """Also where the other side's word comes only now."""
    pair.scribble(1, CLOSED, struct.pack("<Q", 1))
    assert not pair.asks.put(1, b"not taken") and pair.asks.over


def test_where_no_room_will_ever_be_is_heard_of(pair: Pair) -> None:
    """Who waits for room in the ring of a side that has closed does not go on for ever."""
    while pair.listens.put(1, bytes(16_000)):
        pass
    pair.asks.close()
    assert not pair.listens.put(2, bytes(16_000)) and pair.listens.over


def test_answers_are_taken_after_the_end(pair: Pair) -> None:
    assert pair.asks.put(1, b"call") and pair.listens.take() == (1, b"call") and pair.listens.put(1, b"answer")
    pair.listens.close()
    assert take_all(pair.asks) == [(1, b"answer")] and pair.asks.over


def test_who_dies_is_heard_of() -> None:
    """Asleep and awake, without a word."""
    for asleep in (False, True):
        page, (mine, theirs) = make_page(), make_pair()
        pid = os.fork()
        if pid == 0:
            os.close(mine)
            side = Duplex(Mapping.attach(os.dup(page.fd), writable=True), theirs, 1)
            while True:
                side.wait(60.0) if asleep else time.sleep(60)
        os.close(theirs)
        side = Duplex(Mapping.attach(os.dup(page.fd), writable=True), mine, 0)
        try:
            assert side.look() and side.put(1, b"x") and not side.wait(0.05)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        assert side.wait(10.0) and side.over and not side.look() and not side.put(2, b"y")


def test_a_session_that_ends_wakes_who_waits(pair: Pair) -> None:
    waited: list[bool] = []
    thread = threading.Thread(target=lambda: waited.append(pair.asks.wait(20.0)))
    thread.start()
    wait_until(lambda: pair.bytes[LINE + 2 * LINE + 32] & 1)  # it sleeps
    pair.asks.mark_gone()
    thread.join(10.0)
    assert waited == [True] and pair.asks.wait(20.0)


def test_a_session_that_ends_is_heard_of_at_the_other_side(pair: Pair) -> None:
    """Also by who sleeps. What was put before is taken there; nothing more is taken here."""
    assert pair.listens.put(1, b"before") and pair.asks.put(2, b"too late")
    pair.listens.mark_gone()
    assert pair.asks.take() == (1, b"before") and not pair.asks.look() and pair.listens.take() is None
    other = Pair()
    waits = listening()
    waits.add(other.listens)
    waits.mark_gone()
    late = Pair()
    waits.add(late.listens)
    for asks in (other.asks, late.asks):
        assert asks.wait(10.0) and asks.over


def test_a_child_keeps_nobody_waiting_and_takes_nothing_from_its_parent() -> None:
    """It closes its copies, and those of who waits at many."""
    page, (mine, theirs) = make_page(), make_pair()
    side = Duplex(Mapping.attach(os.dup(page.fd), writable=True), mine, 0)
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        waits, other = listening(), Duplex(Mapping.attach(os.dup(page.fd), writable=True), theirs, 1)
        waits.add(other)
        grandchild = os.fork()
        if grandchild == 0:
            waits.mark_gone()
            waits.close()
            os.write(write, b"%d\n" % os.getpid())
            time.sleep(60)
        for _ in range(2):
            while other.take() is None:
                waits.wait(60.0)
            other.put(1, b"answer")
        time.sleep(60)
    os.close(theirs)
    grandchild = int(os.read(read, 20))
    try:
        for _ in range(2):
            time.sleep(0.05)  # it sleeps
            assert side.put(1, b"call") and side.wait(10.0) and side.take() == (1, b"answer")
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        assert side.wait(10.0) and side.over
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.close(read)
        os.close(write)
        side.close()


@pytest.mark.parametrize("put", [8, 16, RING + 8, 1 << 63, (1 << 64) - 1])
@pytest.mark.parametrize("length", [0, 7, 8, 16, RING, 1 << 32, (1 << 64) - 1])
def test_nonsense_ends_it_and_nothing_else(pair: Pair, put: int, length: int) -> None:
    pair.scribble(0, 3 * LINE, struct.pack("<Q", length))
    pair.scribble(0, PUT, struct.pack("<Q", put))
    came = pair.listens.take()
    if came is None:
        assert pair.listens.over
    else:
        assert len(came[1]) + 8 == length <= put - 8
    assert pair.listens.wait(0.0) or came is not None


@pytest.mark.parametrize("taken", [8, RING, RING + 1, 1 << 63, (1 << 64) - 8])
def test_who_says_that_it_has_taken_what_was_never_put_gets_no_more_than_fits(pair: Pair, taken: int) -> None:
    pair.scribble(1, TAKEN, struct.pack("<Q", taken))
    sent = 0
    while sent < 100 and pair.asks.put(sent, bytes(10_000)):
        sent += 1
    assert sent <= RING // 10_016


def test_random_bytes_in_all_of_it_crash_nobody(pair: Pair) -> None:
    rng = random.Random(2)
    for _ in range(2_000):
        at = rng.choice((PUT, CLOSED, 16, TAKEN, 2 * LINE + 32, 3 * LINE + rng.randrange(RING - 8)))
        data = rng.choice((rng.randbytes(8), struct.pack("<Q", rng.randrange(RING * 2))))
        pair.scribble(rng.randrange(2), at, data)
        for side in (pair.asks, pair.listens):
            side.put(rng.getrandbits(64), rng.randbytes(rng.randrange(100)))
            side.take()
            side.look()
            side.wait(0.0, 0.0, rng.randrange(LARGEST), messages=rng.random() < 0.5)


def test_what_is_no_duplex_is_refused() -> None:
    with pytest.raises(ValueError, match="no duplex of this version"):
        Duplex(Mapping.create("other", PAGE_SIZE), make_pair()[0], 0)
    small, whole = Mapping.create("small", 4096), make_page()
    small.view()[:8] = whole.view()[:8]
    for page in (small, Mapping.attach(os.dup(whole.fd))):  # not all of it, or not to be written
        with pytest.raises(ValueError, match="no duplex of this version"):
            Duplex(page, make_pair()[0], 0)


def listening() -> Listening:
    return Listening(link_user())


def link_user() -> LinkUser:
    """Of a link that nobody drives."""
    pages = [Mapping.create("page", size) for size in PAGE_SIZES]
    magic = (0x314B4E4C444E5053).to_bytes(8, "little")
    for page in pages:
        page.view()[:8] = magic
    return LinkUser(*pages, None, -1, os.eventfd(0, os.EFD_NONBLOCK) | 1 << 30)


def test_who_listens_waits_at_all_of_them_at_once() -> None:
    waits, pairs = listening(), [Pair() for _ in range(DUPLEXES)]
    for one in pairs:
        waits.add(one.listens)
    with pytest.raises(ValueError, match="64 duplexes of a port are the limit"):
        waits.add(Pair().listens)
    assert not waits.wait(0.01)
    for number in (0, 17, DUPLEXES - 1):
        woken: list[bool] = []
        thread = threading.Thread(target=lambda woken=woken: woken.append(waits.wait(20.0)))
        thread.start()
        wait_until(lambda: pairs[0].bytes[LINE + SIDE + 2 * LINE + 32] & 1)
        pairs[number].asks.put(number, b"here")
        thread.join(10.0)
        assert woken == [True] and pairs[number].listens.take() == (number, b"here")
    pairs[3].asks.close()
    assert waits.wait(10.0) and pairs[3].listens.take() is None and pairs[3].listens.over
    waits.remove(pairs[3].listens)
    assert len(waits.all) == DUPLEXES - 1 and not waits.wait(0.01)
    waits.close()
    assert pairs[0].asks.wait(10.0) and pairs[0].asks.take() is None and pairs[0].asks.over
