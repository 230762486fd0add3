"""Goal: the ready-made objects do what their methods say, and their states go through snapshots.

Method: each with a replica on two nodes; a late one gets what the first one has.
"""

from __future__ import annotations

import threading
import time

import pytest

from dds import DDSTimeout, duration
from dds.replicated import Replica
from dds.replicated.batteries import Counter, Lock, Locks, dict_of, queue_of, set_of
from dds.replicated.machine import Context
from dds.replicated.object import Order, interface_of
from tests.support import wait_until


def test_counter(two_nodes) -> None:
    one, two = two_nodes
    with Replica(one, "n", Counter) as first, Replica(two, "n", Counter) as second:
        assert first.add() == 1 and second.add(5) == 6 and first.set(2) == 6
        second.synchronize()
        assert second.value() == 2


def test_dictionary(two_nodes) -> None:
    one, two = two_nodes
    settings = dict_of(str, float)
    assert settings is dict_of(str, float)
    with Replica(one, "settings", settings) as first:
        first.put("b", 2.0)
        first.put("a", 1.0)
        assert not first.put_if_absent("a", 1.0) and first.put_if_absent("c", 3.0)
        assert first.replace("a", 1.0, 7.0) and not first.replace("a", 1.0, 8.0) and not first.replace("z", 0.0, 1.0)
        assert first.pop("c") == 3.0 and first.discard("c") is False
        with pytest.raises(KeyError):
            first.pop("c")
        with Replica(two, "settings", settings) as late:
            assert late.items() == [("b", 2.0), ("a", 7.0)] and late.get("a") == 7.0 and late.get("z") is None
            assert late.contains("b") and late.size() == 2
            late.update({"d": 4.0})
            first.synchronize()
            assert first.size() == 3
            first.clear()


def test_queue_gives_each_element_to_one_taker(two_nodes) -> None:
    one, two = two_nodes
    with Replica(one, "work", queue_of(int)) as first, Replica(two, "work", queue_of(int)) as second:
        assert all(first.put(k) for k in range(100)) and first.peek() == 0
        taken = [[], []]

        def work(replica, into):
            while (element := replica.take()) is not None:
                into.append(element)

        threads = [threading.Thread(target=work, args=pair) for pair in zip((first, second), taken, strict=True)]
        for one_thread in threads:
            one_thread.start()
        for one_thread in threads:
            one_thread.join(30)
        assert sorted(taken[0] + taken[1]) == list(range(100)) and second.size() == 0
        second.bound(1)
        assert first.put(1) and not first.put(2)


@pytest.mark.parametrize(("made", "method", "text"), [
    (queue_of(str), "put", "put(element: str) -> bool"), (queue_of(int), "take", "take() -> int | None"),
    (dict_of(str, float), "put", "put(key: str, value: float) -> None"), (set_of(int), "elements_now", "-> set[int]"),
])
def test_errors_name_the_types_that_a_program_chose(made: type, method: str, text: str) -> None:
    assert text in interface_of(made).operations[method].describe()


def test_set(participant) -> None:
    with Replica(participant, "crew", set_of(str)) as crew:
        assert crew.add("a") and not crew.add("a") and crew.contains("a") and crew.size() == 1
        assert crew.discard("a") and not crew.discard("a")
        crew.add("b")
        with Replica(participant, "crew", set_of(str)) as late:
            assert late.elements_now() == {"b"}
            crew.clear()


def test_a_lock_has_one_holder_and_its_tokens_grow(two_nodes) -> None:
    one, two = two_nodes
    with Replica(one, "locks", Locks) as first, Replica(two, "locks", Locks) as second:
        mine, theirs = (Lock(replica, "door", duration(seconds=60)) for replica in (first, second))
        token = mine.acquire()
        assert mine.acquire() == token and first.holding("door")[:2] == (token, 1)
        assert 0 < mine.left() <= duration(seconds=60) and not theirs.left()
        with pytest.raises(DDSTimeout, match="somebody else"):
            theirs.acquire(timeout=duration(milliseconds=20))
        assert not theirs.release()
        waiting = threading.Thread(target=theirs.acquire)
        waiting.start()
        assert mine.release()
        waiting.join(20)
        assert theirs.token > token and theirs.release() and not mine.release()
        with mine:
            assert mine.token > theirs.token
        with pytest.raises(ValueError, match="lease"):
            Lock(first, "door", 0)


def test_a_lock_is_free_when_its_lease_or_its_holder_ends(two_nodes) -> None:
    one, two = two_nodes
    with Replica(one, "locks", Locks) as first:
        second = Replica(two, "locks", Locks)
        Lock(second, "short", duration(milliseconds=50)).acquire()
        assert Lock(first, "short", duration(seconds=1)).acquire(timeout=duration(seconds=20)) > 0
        Lock(second, "long", duration(seconds=3600)).acquire()
        first.synchronize()
        assert first.holding("long")[2] > 0
        second.close()
        assert Lock(first, "long", duration(seconds=1)).acquire(timeout=duration(seconds=20)) > 0
        wait_until(lambda: first.replicas() == [first.id])


def test_no_clock_ends_a_lease(two_nodes, monkeypatch) -> None:
    """Goal: a program whose clock is hours ahead isn't given what another one holds; and its own leases end for those
    whose clocks are behind. Method: commands are stamped with the time of day, which is set between them."""
    one, two = two_nodes
    now_ns = time.time_ns
    with Replica(one, "locks", Locks) as first, Replica(two, "locks", Locks) as second:
        mine, theirs = Lock(first, "door", duration(seconds=60)), Lock(second, "door", duration(milliseconds=50))
        mine.acquire()
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() + duration(seconds=3600))
        with pytest.raises(DDSTimeout, match="somebody else"):
            theirs.acquire(timeout=0)
        assert mine.release() and theirs.acquire() > mine.token
        monkeypatch.setattr(time, "time_ns", lambda: now_ns() - duration(seconds=3600))
        assert mine.acquire(timeout=duration(seconds=20)) > theirs.token and not theirs.release()


def test_a_lease_ends_when_it_was_seen_for_long_enough() -> None:
    """Method: the object alone. What was said of a lease counts no more once that was prolonged."""
    object = Locks()

    def carry_out(what, sender, index, timestamp=0):
        object._order = Order(Context(index, timestamp, sender, b"seed"))
        try:
            return what()
        finally:
            object._order = None

    a, b = b"a" * 16, b"b" * 16
    assert carry_out(lambda: object.acquire("door", "x", 10**12), a, 1) == 1
    assert carry_out(lambda: object.acquire("door", "y", 10**12), b, 2, timestamp=10**18) == 0
    token, prolonged, left_ns = object.holding("door")
    assert (token, prolonged) == (1, 0) and 0 < left_ns <= 10**12
    assert carry_out(lambda: object.acquire("door", "x", 1), a, 3) == 1
    assert not carry_out(lambda: object.expire("door", token, prolonged), b, 4) and object.holding("door") == (1, 1, 0)
    late = Locks()
    late.restore(object.snapshot())
    assert late.holding("door")[:2] == (1, 1)
    assert carry_out(lambda: object.expire("door", 1, 1), b, 5) and object.holding("door") == (0, 0, 0)
    assert carry_out(lambda: object.acquire("door", "y", 10**12), b, 6) == 6
    object.replica_gone(b)
    assert not object.holders and not object._came_ns
