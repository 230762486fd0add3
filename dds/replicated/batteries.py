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


class Locks(Object):
    """Locks by name, each with a lease. See Lock, which makes one of them usable.

    A lock is free when it is released, when its holder's replica has gone (closed, killed, or its node died), and when
    its lease is over by the agreed time: somebody must ask for it to notice that.

    holders  name -> replica, holder at it, end of the lease (agreed time, ns), token
    """

    holders: dict[str, tuple[bytes, str, int, int]]

    def __init__(self) -> None:
        self.holders = {}

    @command
    def acquire(self, name: str, holder: str, lease: int) -> int:
        """Take the lock for `lease` ns, or prolong it if `holder` has it; its token, 0 if somebody else has it.

        A later holder has a larger token: what the lock protects can tell an earlier one that believes to have it.
        """
        order = self.order
        found = self.holders.get(name)
        token = order.index
        if found is not None and found[2] > order.timestamp:
            if found[:2] != (order.sender, holder):
                return 0
            token = found[3]
        self.holders[name] = order.sender, holder, order.timestamp + lease, token
        return token

    @command
    def release(self, name: str, holder: str) -> bool:
        """False if `holder` doesn't have it any more."""
        found = self.holders.get(name)
        if found is None or found[:2] != (self.order.sender, holder):
            return False
        del self.holders[name]
        return True

    @query
    def held_until(self, name: str) -> int:
        """End of its lease, agreed time in ns; 0 if nobody has it."""
        found = self.holders.get(name)
        return 0 if found is None else found[2]

    def replica_gone(self, replica: bytes) -> None:
        self.holders = {name: one for name, one in self.holders.items() if one[0] != replica}


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
        self.token = 0  # of the last acquire()

    def acquire(self, timeout: int | None = None) -> int:
        """Take it, or prolong it; its token. Waits up to `timeout` ns (None = for ever), then raises DDSTimeout."""
        deadline = Deadline(timeout)
        while True:
            token: int = self._locks.acquire(self._name, self._holder, self._lease)
            if token:
                self.token = token
                return token
            left_s = deadline.left_s()
            if left_s == 0:
                raise DDSTimeout(f"somebody else has had the lock {self._name!r} all the time")
            # Its lease may end without a command that says so: then ask again.
            lease_s = max(0.001, (self._locks.held_until(self._name) - time.time_ns()) / 1e9)
            wait_s = lease_s if left_s is None else min(lease_s, left_s)
            self._locks.wait_for(lambda one: self._name not in one.holders, math.ceil(wait_s * 1e6) * 1000)

    def release(self) -> bool:
        """Give it back. False if the lease was over and somebody else has taken it."""
        released: bool = self._locks.release(self._name, self._holder)
        return released

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *_: object) -> None:
        self.release()


__all__ = ["Counter", "Lock", "Locks", "dict_of", "queue_of", "set_of"]
