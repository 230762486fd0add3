"""Ready-made replicated objects.

    visitors = Replica(participant, "visitors", Counter)
    settings = Replica(participant, "settings", dict_of(str, float), logged=True)
    work = Replica(participant, "work", queue_of(str))
    crew = Replica(participant, "crew", set_of(str))
    locks = Replica(participant, "locks", Locks)
    with Lock(locks, "printer", lease=duration(seconds=10)):
        ...

Keys, values and elements have any type of `dds.rpc.values`.
"""

from __future__ import annotations

import functools
import math
import time
import uuid
from typing import TYPE_CHECKING, Any

from dds.exceptions import DDSTimeout
from dds.replicated.object import Object, command, query
from dds.replicated.replica import Replica
from dds.waiting.wake import Deadline, check_positive

if TYPE_CHECKING:
    from typing_extensions import Self


class Counter(Object):
    """A whole number."""

    count: int = 0

    @command
    def add(self, n: int = 1) -> int:
        """Add `n`, which may be negative; what it is then."""
        self.count += n
        return self.count

    @command
    def set(self, count: int) -> int:
        """What it was before."""
        before, self.count = self.count, count
        return before

    @query
    def value(self) -> int:
        return self.count


@functools.cache
def dict_of(key: Any, value: Any) -> type[Object]:
    """A class of dictionaries with keys and values of these types. They keep the order in which keys came."""

    class Dict(Object):
        """A dictionary."""

        entries: dict[key, value]

        def __init__(self) -> None:
            self.entries = {}

        @command
        def put(self, key: key, value: value) -> None:
            self.entries[key] = value

        @command
        def update(self, entries: dict[key, value]) -> None:
            self.entries.update(entries)

        @command
        def put_if_absent(self, key: key, value: value) -> bool:
            """True if it did."""
            absent = key not in self.entries
            self.entries.setdefault(key, value)
            return absent

        @command
        def replace(self, key: key, expected: value, value: value) -> bool:
            """Put `value` in the place of `expected`; False if something else is there."""
            if key not in self.entries or self.entries[key] != expected:
                return False
            self.entries[key] = value
            return True

        @command
        def pop(self, key: key) -> value:
            """Raises KeyError at its caller if there is no such key."""
            return self.entries.pop(key)

        @command
        def discard(self, key: key) -> bool:
            """True if it was there."""
            present = key in self.entries
            self.entries.pop(key, None)
            return present

        @command
        def clear(self) -> None:
            self.entries.clear()

        @query
        def get(self, key: key, default: Any = None) -> Any:
            return self.entries.get(key, default)

        @query
        def contains(self, key: key) -> bool:
            return key in self.entries

        @query
        def items(self) -> list[tuple[key, value]]:
            return list(self.entries.items())

        @query
        def size(self) -> int:
            return len(self.entries)

    return Dict


@functools.cache
def queue_of(element: Any) -> type[Object]:
    """A class of queues with elements of this type. Each element goes to one taker."""

    class Queue(Object):
        """A queue, first in, first out; `limit` elements at most, 0 = any number."""

        elements: list[element]
        limit: int = 0

        def __init__(self) -> None:
            self.elements = []

        @command
        def put(self, element: element) -> bool:
            """False if it is full."""
            if self.limit and len(self.elements) >= self.limit:
                return False
            self.elements.append(element)
            return True

        @command
        def take(self) -> element | None:
            """The first element; None if there is none."""
            return self.elements.pop(0) if self.elements else None

        @command
        def bound(self, limit: int) -> None:
            """Take no more than so many elements from now on."""
            self.limit = limit

        @query
        def peek(self) -> element | None:
            return self.elements[0] if self.elements else None

        @query
        def size(self) -> int:
            return len(self.elements)

    return Queue


@functools.cache
def set_of(element: Any) -> type[Object]:
    """A class of sets with elements of this type."""

    class Set(Object):
        """A set."""

        elements: set[element]

        def __init__(self) -> None:
            self.elements = set()

        @command
        def add(self, element: element) -> bool:
            """True if it was not there."""
            before = len(self.elements)
            self.elements.add(element)
            return len(self.elements) > before

        @command
        def discard(self, element: element) -> bool:
            """True if it was there."""
            before = len(self.elements)
            self.elements.discard(element)
            return len(self.elements) < before

        @command
        def clear(self) -> None:
            self.elements.clear()

        @query
        def contains(self, element: element) -> bool:
            return element in self.elements

        @query
        def elements_now(self) -> set[element]:
            return set(self.elements)

        @query
        def size(self) -> int:
            return len(self.elements)

    return Set


def _now_ns() -> int:
    """On a clock that nobody sets, and that goes on while the host sleeps."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


class Locks(Object):
    """Locks by name, each with a lease. See Lock, which makes one of them usable.

    A lock is free when it is released, when its holder's replica has gone (closed, killed, or its node died), and when
    somebody who wants it says that its lease is over (expire).

    Why no time of day decides: programs' clocks may be apart, and one that is ahead would end every lease. A lease
    begins for its holder when he asks for it, and for each replica when that comes in the order, which is later. So who
    has seen a lease unchanged for as long as it is may say that it is over, by any clock that goes evenly (Gray and
    Cheriton, "Leases", 1989).

    holders  name -> replica, holder at it, lease (ns), token, how often it was prolonged
    """

    holders: dict[str, tuple[bytes, str, int, int, int]]

    def __init__(self) -> None:
        self.holders = {}
        self._came_ns: dict[str, tuple[int, int, int]] = {}  # token, prolongings, when that came here; not of the state

    @command
    def acquire(self, name: str, holder: str, lease: int) -> int:
        """Take the lock for `lease` ns, or prolong it if `holder` has it; its token, 0 if somebody else has it.

        A later holder has a larger token: what the lock protects can tell an earlier one that believes to have it.
        """
        order = self.order
        found = self.holders.get(name)
        token, prolonged = order.index, 0
        if found is not None:
            if found[:2] != (order.sender, holder):
                return 0
            token, prolonged = found[3], found[4] + 1
        self.holders[name] = order.sender, holder, lease, token, prolonged
        self._came_ns[name] = token, prolonged, _now_ns()
        return token

    @command
    def release(self, name: str, holder: str) -> bool:
        """False if `holder` doesn't have it any more."""
        found = self.holders.get(name)
        if found is None or found[:2] != (self.order.sender, holder):
            return False
        self._free(name)
        return True

    @command
    def expire(self, name: str, token: int, prolonged: int) -> bool:
        """The lease that holding() has told of is over. False if that has changed since."""
        found = self.holders.get(name)
        if found is None or found[3:] != (token, prolonged):
            return False
        self._free(name)
        return True

    def _free(self, name: str) -> None:
        del self.holders[name]
        self._came_ns.pop(name, None)

    @query
    def holding(self, name: str) -> tuple[int, int, int]:
        """Token of its holder, how often that has prolonged it, and ns until this replica may say that the lease is
        over; zeros if nobody has it."""
        found = self.holders.get(name)
        if found is None:
            return 0, 0, 0
        token, prolonged, came_ns = self._came_ns.get(name, (0, 0, 0))
        if (token, prolonged) != found[3:]:  # it was in the snapshot that this replica got
            token, prolonged, came_ns = self._came_ns[name] = *found[3:], _now_ns()
        return token, prolonged, max(0, came_ns + found[2] - _now_ns())

    def replica_gone(self, replica: bytes) -> None:
        for name in [name for name, one in self.holders.items() if one[0] == replica]:
            self._free(name)


def _has_changed(name: str, token: int, prolonged: int, locks: Locks) -> bool:
    """It is no more as holding() told of it."""
    found = locks.holders.get(name)
    return (found[3:] if found is not None else (0, 0)) != (token, prolonged)


class Lock:
    """One of the locks of a replica of Locks, for one holder at a time.

    lease  ns; who needs it for longer calls acquire() again before it is over
    """

    def __init__(self, locks: Replica[Locks], name: str, lease: int) -> None:
        check_positive(lease, "lease")
        self._locks = locks
        self._name = name
        self._lease = lease
        self._holder = uuid.uuid4().hex
        self._until_ns = 0
        self.token = 0  # of the last acquire()

    def acquire(self, timeout: int | None = None) -> int:
        """Take it, or prolong it; its token. Waits up to `timeout` ns (None = for ever), then raises DDSTimeout."""
        deadline, locks, name = Deadline(timeout), self._locks, self._name
        while True:
            began_ns = _now_ns()
            token: int = locks.acquire(name, self._holder, self._lease)
            if token:
                self.token, self._until_ns = token, began_ns + self._lease
                return token
            theirs, prolonged, left_ns = locks.holding(name)
            if theirs and not left_ns:
                locks.expire(name, theirs, prolonged)
                continue
            left_s = deadline.left_s()
            if left_s == 0:
                raise DDSTimeout(f"somebody else has had the lock {name!r} all the time")
            wait_ns = left_ns if left_s is None else min(left_ns, math.ceil(left_s * 1e6) * 1000)
            locks.wait_for(functools.partial(_has_changed, name, theirs, prolonged), max(wait_ns, 1_000_000))

    def left(self) -> int:
        """ns until its lease is over, by the clock of this host; 0 when it is. Somebody else may have it then."""
        return max(0, self._until_ns - _now_ns())

    def release(self) -> bool:
        """Give it back. False if the lease was over and somebody else has taken it."""
        self._until_ns = 0
        released: bool = self._locks.release(self._name, self._holder)
        return released

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


__all__ = ["Counter", "Lock", "Locks", "dict_of", "queue_of", "set_of"]
