"""Conditions and wait sets.

A ReadCondition is triggered while its reader has samples in the wanted states, a QueryCondition while one of them also
passes an expression or a Python function, a GuardCondition while the program says so, an entity while one of the
statuses in its mask has changed. A WaitSet sleeps until one of what is attached is triggered; it uses no CPU meanwhile.

Rules: a mask is an or of SampleState, ViewState and InstanceState bits; where none of a group is given, any will do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from dds.entity import Entity, Participant, StatusCondition
from dds.exceptions import DDSException, forked
from dds.filters.content import Content, Forgiving
from dds.filters.expression import Expression
from dds.filters.filtered_topic import bind, bound_expression, parameters_of
from dds.qos import Qos
from dds.sub import DataReader, Subscriber
from dds.waiting.wake import Deadline, Hub, Waker, park, wait_readable
from spindle.locks import Taking


class _Condition(Entity):
    """Base of the conditions on a reader's samples."""

    content: Content | None = None
    order: Callable[[Any], Any] | None = None

    def __init__(self, reader: DataReader[Any], mask: int) -> None:
        if not isinstance(reader, DataReader):
            raise TypeError(f"a condition is made for a DataReader, not for {reader!r}")
        if not isinstance(mask, int):
            raise TypeError(f"a mask is an int of bits of SampleState, ViewState and InstanceState, not {mask!r}")
        self.reader = reader
        self.mask = mask
        self._enter(reader, Qos(), None)

    def _about(self) -> str:
        return self.reader._about()

    def get_mask(self) -> int:
        self._check_open()
        return self.mask

    def get_datareader(self) -> DataReader[Any]:
        self._check_open()
        return self.reader

    @property
    def datareader(self) -> DataReader[Any]:
        return self.get_datareader()

    def is_triggered(self) -> bool:
        """True while the reader has a sample that the condition asks for; as take(), it waits briefly for what this
        process has just written itself."""
        self._check_open()
        return self.reader._enabled and self.reader._has_by_now(self.mask, self.content)

    triggered = property(is_triggered)

    def _triggers(self) -> bool:
        return self._open and self.reader._open and self.reader._enabled and self.reader._has(self.mask, self.content)


class ReadCondition(_Condition):
    """Samples of `reader` in the states of `mask`."""


class QueryCondition(_Condition):
    """Samples of `reader` in the states of `mask` that pass `filter`.

    filter      an expression (see `dds.filters.syntax`), or a function that is given a sample. A sample that the
                function raises an exception for doesn't pass, and the log says so once (cyclonedds-python is silent).
                With ORDER BY, read() and take() give the samples in that order.
    parameters  values of %0, %1, ... in the expression
    Raises TypeError for wrong arguments, DDSException (BAD_PARAMETER) for an expression or parameters that don't fit.
    """

    def __init__(self, reader: DataReader[Any], mask: int, filter: Callable[[Any], bool] | str,
                 parameters: Sequence[Any] = ()) -> None:
        if not callable(filter) and not isinstance(filter, str):
            raise TypeError(f"filter must be callable or an expression, not {filter!r}")
        self._parameters = parameters_of(parameters)
        if callable(filter) and self._parameters:
            raise TypeError("parameters belong to an expression; filter is a function")
        if not isinstance(reader, DataReader):
            raise TypeError(f"a condition is made for a DataReader, not for {reader!r}")
        self.filter = filter
        self._expression: Expression | None = None
        if isinstance(filter, str):
            self._expression, bound = bound_expression(filter, reader._codec, self._parameters, "query expression")
            self.content, self.order = bound, bound.order
        else:
            self.content = Forgiving(filter)
        super().__init__(reader, mask)

    def get_query_expression(self) -> str:
        """The expression. DDSException (ILLEGAL_OPERATION) if the filter is a function."""
        return self._sql().text

    def get_query_parameters(self) -> list[Any]:
        return list(self._parameters)

    def set_query_parameters(self, parameters: Sequence[Any]) -> None:
        """Change the parameters. Raises DDSException (BAD_PARAMETER) if they don't fit; nothing changes then."""
        given = parameters_of(parameters)
        self.content = bind(self._sql(), given, "query expression")
        self._parameters = given
        self.reader._hub.woken()
        self.reader._wake_watchers()
        self._wake_watchers()

    def _sql(self) -> Expression:
        self._check_open()
        if self._expression is None:
            raise DDSException(DDSException.DDS_RETCODE_ILLEGAL_OPERATION,
                               f"{self!r} filters with a function, which has neither expression nor parameters")
        return self._expression


class GuardCondition(Entity):
    """Triggered while the program says so; set() may be called from any thread of the process that made it."""

    def __init__(self, domain_participant: Participant) -> None:
        if not isinstance(domain_participant, Participant):
            raise TypeError(f"a GuardCondition is made in a DomainParticipant, not in {domain_participant!r}")
        self._value = False
        self._enter(domain_participant, Qos(), None)

    def set(self, triggered: bool) -> None:
        """Raises DDSNodeLost in a child after fork(), whose parent would hear nothing of it."""
        self._check_open()
        if self._is_inherited:
            raise forked(self)
        self._value = bool(triggered)
        if triggered:
            self._wake_watchers()

    def read(self) -> bool:
        self._check_open()
        return self._value

    def take(self) -> bool:
        """Return the value, and set it to False."""
        self._check_open()
        value, self._value = self._value, False
        return value

    def _triggers(self) -> bool:
        return self._open and self._value


class WaitSet(Entity):
    """Waits for what is attached to it. One thread, or coroutine, waits at a time; attach, detach and set_trigger from
    any thread. What is closed is no longer attached."""

    def __init__(self, domain_participant: Participant) -> None:
        if not isinstance(domain_participant, Participant):
            raise TypeError(f"a WaitSet is made in a DomainParticipant, not in {domain_participant!r}")
        self._attached: tuple[Entity, ...] = ()
        self._waker = Waker()
        self._value = False
        self._lock = threading.RLock()  # of what is attached; reentrant: what a finalizer closes may be
        self._waits = threading.Lock()  # held by who waits
        self._hubs: list[Hub] = []  # of the readers that it waits for
        self._known: list[int] = []  # of each reader, how many messages had come when it was looked at
        self._enter(domain_participant, Qos(), None)

    def close(self) -> None:
        """Detach everything; who waits wakes up with an error. Idempotent."""
        for entity in self._attached:
            entity._unwatch_by(self._waker)
        self._attached = ()
        if not self._is_inherited:
            self._join()
        super().close()
        self._waker.ring()

    def attach(self, entity: Entity) -> None:
        """Wait for `entity` too: a condition, or an entity with statuses. Twice is once.

        Raises DDSException (BAD_PARAMETER) for what is no entity, and for a wait set; DDSNodeLost in a child after
        fork().
        """
        self._check_open()
        self._check_not_inherited()
        if not isinstance(entity, Entity):
            raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER, f"{entity!r} can't be attached to a WaitSet")
        entity = entity._real()
        if isinstance(entity, WaitSet):
            raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER,
                               "a WaitSet can't wait for a WaitSet: attach what that one waits for")
        with self._lock:
            if self.is_attached(entity):
                return
            self._attached = (*(one for one in self._attached if one._open), entity)
        entity._watch_by(self._waker)
        self._join()
        self._waker.ring()

    def detach(self, entity: Entity) -> None:
        """Don't wait for `entity` any more. Nothing happens if it isn't attached. DDSNodeLost in a child after fork().
        """
        self._check_open()
        self._check_not_inherited()
        with self._lock:
            before = self._attached
            self._attached = tuple(one for one in before if one is not entity)
        if len(self._attached) < len(before):
            entity._unwatch_by(self._waker)
            self._join()
            self._waker.ring()

    def _let_go_of_closed(self) -> None:
        """Whoever closed it has rung the waker, or nobody waits."""
        if all(one._open for one in self._attached):
            return
        with self._lock:
            self._attached = tuple(one for one in self._attached if one._open)
        self._join()

    def _join(self) -> None:
        """The readers that are waited for: those of an attached subscriber come and go."""
        with self._lock:
            hubs = [reader._hub for reader in self._readers()]
            for hub in hubs:
                if hub not in self._hubs:
                    hub.join(self._waker)
            for hub in self._hubs:
                if hub not in hubs:
                    hub.leave(self._waker)
            self._hubs = hubs

    def is_attached(self, entity: Entity) -> bool:
        return any(one is entity for one in self._attached)

    def get_entities(self) -> list[Entity]:
        """What is attached, in the order of attaching."""
        self._let_go_of_closed()
        return list(self._attached)

    @property
    def attached(self) -> list[tuple[Entity, int]]:
        """What is attached, each with 0, the number that nobody gave it."""
        return [(one, 0) for one in self.get_entities()]

    def set_trigger(self, value: bool) -> None:
        """Trigger the wait set itself, until this is taken back. DDSNodeLost in a child after fork()."""
        self._check_open()
        self._check_not_inherited()
        self._value = bool(value)
        if value:
            self._waker.ring()

    def _count(self) -> int:
        count = int(self._value)
        for one in self._attached:
            try:
                count += one._triggers()
            except DDSException:
                if one._open:
                    raise  # else it was closed just now
        return count

    def _look(self) -> int:
        """How many are triggered; makes sure that the waker rings when that may have changed."""
        self._waker.clear()  # first: what is rung from here on is looked at below, or ends the next wait
        if not self._open or self._runtime.session.gone:
            park()
        self._check_open()
        self._let_go_of_closed()
        count = self._count()
        if not count:
            self._join()
            self._known = self._armed()
            count = self._count()
            if not count and self._attached and self._runtime.session.gone and self._runtime.attachment.over:
                raise self._runtime.attachment.lost_error("nothing that this WaitSet waits for can come any more")
        return count

    def _armed(self) -> list[int]:
        known = []
        for reader in self._readers():
            try:
                known.append(reader._source.arm())
            except DDSException:
                if reader._open:
                    raise  # else it was closed just now
        return known

    def _readers(self) -> list[DataReader[Any]]:
        found = (reader for one in self._attached for reader in _readers_of(one))
        return list({one._ref: one for one in found if one._open and one._enabled}.values())

    def wait(self, timeout: int) -> int:
        """How many of the attached are triggered, as soon as one is; 0 after `timeout` ns.

        Raises DDSNodeLost if the node goes meanwhile, and in a child after fork(); DDSException (PRECONDITION_NOT_MET)
        if somebody else waits here already. DDS 1.4, 2.2.2.1.6.3.
        """
        return self._wait(Deadline(timeout))

    def _wait(self, deadline: Deadline) -> int:
        self._check_not_inherited()
        with self._one_waits():
            while True:
                count = self._look()
                left_s = deadline.left_s()
                if count or left_s == 0:
                    return count
                attached = self._readers()
                if len(attached) == len(self._known) == 1:
                    attached[0]._source.wait(self._waker, left_s, self._known[0])
                    continue
                bells = [(reader._source.bell, reader) for reader in attached]
                readers = {bell.fileno(): reader for bell, reader in bells if bell is not None}
                for fd in wait_readable([self._waker.fd, *readers], left_s):
                    if fd in readers:
                        readers[fd]._source.clear(self._waker)

    def _check_not_inherited(self) -> None:
        """In a child after fork() the waker is its parent's, too: whoever cleared it there would take its rings. Nobody
        there rings it, and the parent's threads may have held the locks. Raises DDSNodeLost."""
        if self._is_inherited:
            raise forked(self)

    def _one_waits(self) -> Taking:
        """One rings for one: a second one might sleep for ever, and is refused (PRECONDITION_NOT_MET)."""
        return Taking(self._waits, 0, lambda: DDSException(
            DDSException.DDS_RETCODE_PRECONDITION_NOT_MET,
            f"another thread waits for {self!r} already: make a WaitSet for each"))

    def wait_until(self, abstime: int) -> int:
        """As wait(), until the time `abstime` (UTC, ns)."""
        from time import time_ns

        return self._wait(Deadline.in_ns(abstime - time_ns()))

    async def wait_async(self, timeout: int | None = None) -> int:
        """As wait(), for coroutines: no thread is used. None = for ever."""
        from dds.waiting.aio import wait_waitset

        return await wait_waitset(self, timeout)


def _readers_of(entity: Entity) -> list[DataReader[Any]]:
    """The readers whose samples decide whether `entity` is triggered."""
    if isinstance(entity, _Condition):
        return [entity.reader]
    if isinstance(entity, StatusCondition):
        entity = entity.get_entity() if entity._open else entity
    if isinstance(entity, Subscriber):
        return entity._readers() if entity._open else []
    return [entity] if isinstance(entity, DataReader) else []


__all__ = ["GuardCondition", "QueryCondition", "ReadCondition", "StatusCondition", "WaitSet"]
