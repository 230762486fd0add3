"""What was handed to a node and not delivered everywhere yet: what has to be said again when that node goes away.

Why beside what writers know of it (`DataWriter.take_unacknowledged`): several writers of a replay share one order, in
which it goes on. And a set of which a node took only a part is said again as the whole that it was.

Rules: what a node has acknowledged is never said again. The rest was delivered everywhere or nowhere, and nobody can
tell which: it is said again, in its order, and may come twice. What is kept is bounded by the inboxes: a writer has no
more on its way than its inbox has slots. Unordered topics promise nothing when a node dies; nothing of them is kept.
"""

from __future__ import annotations

import collections
import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spindle.cli.recordings.lanes import Unit
    from spindle.client import Session, WriterHandle


@dataclasses.dataclass(frozen=True)
class Handed:
    """A unit that was handed over. until: messages that its inbox had got with it; number: its place among all."""

    number: int
    until: int
    unit: Unit


@dataclasses.dataclass
class Way:
    """An inbox, through which units go, and how many messages it had got before the next one."""

    handle: WriterHandle
    committed: int


class Underway:
    """See the module."""

    def __init__(self) -> None:
        self._numbers = itertools.count()
        self._handed: dict[Any, collections.deque[Handed]] = {}  # by handle

    @staticmethod
    def before(handle: WriterHandle) -> Way:
        """To be asked for before a unit is written."""
        return Way(handle, handle.inbox.committed)

    def written(self, way: Way, present: WriterHandle, unit: Unit) -> None:
        """It was, and `present` is where its writer stands now. (If it said nothing, as the end of an instance that
        never began, there is nothing to keep.)"""
        handle = way.handle
        if handle is not present and handle.inbox.committed == way.committed:
            handle, way = present, Way(present, 0)  # the node had gone; it went to the next one
        until = handle.inbox.committed
        if until == way.committed:
            return
        queue = self._handed.get(handle)
        if queue is None:
            queue = self._handed[handle] = collections.deque()
        acknowledged = handle.inbox.acknowledged
        while queue and queue[0].until <= acknowledged:
            queue.popleft()
        if until > acknowledged:
            queue.append(Handed(next(self._numbers), until, unit))

    def take_doubts(self, session: Session) -> list[Unit]:
        """What other nodes than that of `session` had not acknowledged, in the order in which it was written; and what
        that one had not, if it has gone. Each is given once."""
        gone = {one.session for one in self._handed if one.inbox.is_gone or one.session.gone}
        found: list[Handed] = []
        for handle in list(self._handed):
            if handle.session is not session or session in gone:
                acknowledged = handle.inbox.acknowledged
                found += [one for one in self._handed.pop(handle) if one.until > acknowledged]
        return [one.unit for one in sorted(found, key=lambda one: one.number)]

    @property
    def count(self) -> int:
        """Samples that are on their way as far as the nodes have said."""
        return sum(samples_in(one.unit) for handle, queue in self._handed.items() for one in queue
                   if one.until > handle.inbox.acknowledged)


def samples_in(unit: Unit) -> int:
    """How many of these are samples."""
    from dds.messages.contents import SAMPLE

    return sum(one.kind == SAMPLE for one in unit)


__all__ = ["Underway", "samples_in"]
