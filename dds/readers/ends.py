"""How instances and writers end at one reader, and what follows: the end is kept as an entry, an owner is one no more,
and what is kept may go after a while.

Ends are messages (`dds.readers.instances`), but for two places where the reader has to know by itself that something
has ended: behind a gap in the messages, and where the journals of a topic go on with another group of nodes.
"""

from __future__ import annotations

import collections
import heapq
import itertools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from dds.codecs.types import Codec
from dds.filters.content import Content
from dds.internal import dds_infinity, is_relayed
from dds.messages.inline_qos import InlineQos
from dds.messages.operations import DISPOSES, FAREWELL, MISSES_DEADLINE, UNREGISTERS
from dds.messages.packets import Message, Sets
from dds.readers.instances import Entry, Instance
from dds.readers.kept import Kept
from dds.readers.standing import Standing
from dds.status import InstanceState
from dds.waiting.deadlines import Arrivals, Deadlines, Delays
from spindle.errors import give_way

if TYPE_CHECKING:
    from spindle.group.position import Position

UNKNOWN_NS = 10_000_000_000  # so long it is remembered that a writer is not alive whom nobody has announced
_ENDED = InstanceState.NotAliveDisposed, InstanceState.NotAliveNoWriters


class Ends(Kept):
    """The base of `dds.readers.intake.Intake`, which has the messages, and says what its arguments are."""

    def __init__(self, codec: Codec, content: Content | None, standing: Standing, deadlines: Deadlines | None,
                 sets: Sets, same_clock: bool) -> None:
        super().__init__(codec)
        self.content = content
        self.standing = standing
        self.deadlines = deadlines
        self.arrivals = Arrivals(same_clock)
        self.sets = sets
        # Of a writer: its lease has run out, or it lives again; None: it has ended.
        self.on_lapse: Callable[[int, bool | None], None] = lambda writer, lapsed: None
        self.is_there: Callable[[int], bool] = lambda writer: True  # asked after a gap
        self.on_group: Callable[[], None] = lambda: None  # told when the last of `_ends` was passed
        self._ends: collections.deque[tuple[int, int]] = collections.deque()  # see expect_ends(); those ahead
        self._last_end = 0, 0  # that was ever among them
        self._lapsed: set[int] = set()  # writers that gave no sign of life in time, and none since
        self._later: list[tuple[int, int, Callable[[], None]]] = []  # a heap: when (monotonic ns), a number, what
        delays = [(state, standing.purge_delay(state)) for state in _ENDED]
        self._purges: dict[int, Delays[Instance]] = {  # by state: of which instances all that is kept goes
            state: Delays(delay) for state, delay in delays if delay < dds_infinity}
        self._numbers = itertools.count()

    def expect_ends(self, ends: Iterable[Position], view_id: int = 0) -> None:
        """Where the orders of groups end, in their order, as the reader's node knows them; the reader stands in view
        `view_id`, in whatever group. Any thread may say so."""
        for end in ends:
            if end.place > self._last_end:
                self._last_end = end.place
                if end.view_id >= view_id:
                    self._ends.append(end.place)

    def _keep_unreadable(self, payload: bytes, live: Message, error: Exception) -> None:
        entry = Entry(payload, live, self.single)
        entry.failure = error
        self._keep(entry)

    def _go_on_behind_gap(self, live: Message, overtaken: bool) -> None:
        """Messages are missing in front of this one; `overtaken`: this reader alone has missed them. Others may have
        learned from them that a writer has ended, or owns something no more: without this, the reader would hear nobody
        else for ever. So owners are found anew, as by a reader that comes late. If this reader alone was overtaken,
        writers that aren't there any more have ended here; not those without a node of their own, which may be on their
        way to the next one."""
        self.standing.begin_anew()
        if self.deadlines is not None:
            self.deadlines.begin_anew(self.arrivals.came_at(live.reception_timestamp) or time.monotonic_ns())
        if self.instances is not None and overtaken:
            for writer in self.instances.writers():
                if not is_relayed(writer) and not self.is_there(writer):
                    self._end_all(self.instances.of_writer(writer), live, writer, UNREGISTERS)

    def _begin_group(self, live: Message) -> None:
        """This is the first message of another group: all nodes of the one before had died, and only their journals
        were left. No message says that they have gone: the place does."""
        while self._ends and (live.view_id, live.sequence) >= self._ends[0]:
            self._ends.popleft()
        registered = [] if self.instances is None else self.instances.writers()
        writers = {*registered, *self._lapsed, *self.standing.owners()}
        for node_id in sorted({one >> 16 for one in writers if not is_relayed(one)}):
            self._departed(node_id, live, UNREGISTERS)
        if not self._ends:
            self.on_group()

    def _departed(self, node_id: int, live: Message, tag: int) -> None:
        """A node has gone, with all its writers."""
        self.sets.departed(node_id)
        self.standing.departed(node_id)
        for gone in [one for one in self._lapsed if one >> 16 == node_id]:
            self.forget_lapse(gone)
        if self.instances is not None:
            for gone in self.instances.writers_at(node_id):
                self._end_all(self.instances.of_writer(gone), live, gone, tag)

    def has_lapsed(self, writer: int) -> bool:
        """True if it has given no sign of life in time, and none since. Any thread may ask."""
        return writer in self._lapsed

    def forget_lapse(self, writer: int) -> None:
        """This writer has gone, or is another one with the number of an earlier one."""
        if writer in self._lapsed:
            self._lapsed.discard(writer)
            self.on_lapse(writer, None)

    def _lapse(self, live: Message, writer: int) -> None:
        """A writer has given no sign of life for the time that it had promised to; its node says so."""
        if writer in self._lapsed:
            return
        self._lapsed.add(writer)
        if not self.is_there(writer):  # its announcement is late, or it is for others, or this is the last of it
            self._at(time.monotonic_ns() + UNKNOWN_NS, lambda: None if self.is_there(writer) else (
                self.forget_lapse(writer)))
        self.standing.gone(writer)
        if self.instances is not None:
            self._end_all(self.instances.of_writer(writer), live, writer, UNREGISTERS)
        self.on_lapse(writer, True)

    def _end(self, payload: bytes, live: Message, writer: int, inline: InlineQos) -> None:
        """One instance has ended, or as much of it as a writer has to say; with FAREWELL all that the writer has."""
        instances, tag = self.instances, live.tag
        if tag & FAREWELL:
            self._farewell(live, writer, tag)
            return
        if tag & MISSES_DEADLINE and instances is None:
            self.standing.late(self.single, writer)
        if instances is None:
            return
        try:
            key = instances.key_of(self._of_type(payload))
        except Exception as error:
            give_way(error)
            self.refuse(error)
            return
        if tag & MISSES_DEADLINE:
            found = instances.find(key)
            if found is not None:
                self.standing.late(found, writer)
            self.standing.late_unseen(key, writer)
            return
        # A reader with a filter hears of the end of what it has heard of, others of any.
        known = instances.of(key) if tag & DISPOSES and self.content is None else instances.find(key)
        if known is None or (known.is_over and self.content is not None):
            if self.standing.exclusive and tag & DISPOSES:
                self.standing.owns_unseen(key, writer, inline)
            if tag & UNREGISTERS:
                self.standing.late_unseen(key, writer)
            return
        if known.is_over:
            if not tag & DISPOSES:
                return
            known.begin_anew()
        if tag & DISPOSES and not tag & UNREGISTERS:
            instances.register(known, writer)  # also of what it has never written (DDS 1.4, 2.2.2.4.2.13)
        if self.standing.exclusive and tag & DISPOSES:
            self.standing.owns(known, writer, inline)  # whoever is stronger owns it from here on, and ends it
        self._end_all([known], live, writer, tag)
        if tag & UNREGISTERS:
            self.standing.late(known, writer)

    def _farewell(self, live: Message, writer: int, tag: int) -> None:
        """A writer has ended."""
        self.standing.gone(writer)
        if self.instances is not None:
            self._end_all(self.instances.of_writer(writer), live, writer, tag)

    def _end_all(self, ended: list[Instance], live: Message, writer: int, tag: int) -> None:
        instances = self.instances
        assert instances is not None
        for instance in ended:
            does = tag
            if does & DISPOSES and not self._may_dispose(instance, live, writer):
                does &= ~DISPOSES
            changed = instances.end(instance, writer, does)
            if instance.is_over:
                self.standing.over(instance)
            if changed:
                self._ended(instance, live)
            else:
                self._forget_if_over(instance)

    def _may_dispose(self, instance: Instance, live: Message, writer: int) -> bool:
        """False if somebody else has the last word about the instance."""
        owner = instance.owner
        if self.standing.exclusive and owner is not None and owner[1] != writer:
            return False
        if not self.standing.by_source:
            return True
        if live.tag & FAREWELL:  # its node says it, and it comes behind all of this writer; when, no source says
            return instance.writers < 2
        return instance.has_news(live.source_timestamp)  # what came later at its source goes on

    def _ended(self, instance: Instance, live: Message) -> None:
        """It isn't alive any more."""
        before, ending = instance.ending, Entry(b"", live, instance, ends=True)
        self._keep(ending)
        if before is not None:
            self.drop(before)  # the later one says it; dropped first, it might take the instance along
        instance.ending = ending
        instance.withheld = None
        if self.deadlines is not None:
            self.deadlines.ended(instance.handle, self.arrivals.came_at(live.reception_timestamp))
        self._purge_later(instance)

    def _purge_later(self, instance: Instance) -> None:
        """The instance isn't alive any more."""
        self._forget_plans(instance)
        plan = self._purges.get(instance.state)
        if plan is not None:
            plan.put(instance, time.monotonic_ns())

    def _forget_plans(self, instance: Instance) -> None:
        for plan in self._purges.values():
            plan.discard(instance)

    def _forget_if_over(self, instance: Instance) -> bool:
        forgotten = super()._forget_if_over(instance)
        if forgotten:
            self._forget_plans(instance)
        return forgotten

    def displace(self) -> bool:
        """Forget the instance of which nothing was kept for longest, and who owns it, in favour of another one; False
        if something is kept of each."""
        assert self.instances is not None
        forgotten = self.instances.displace()
        if forgotten is None:
            return False
        self.standing.over(forgotten)
        self._forget_plans(forgotten)
        if self.deadlines is not None:
            self.deadlines.ended(forgotten.handle)
        return True

    def _at(self, at_ns: int, what: Callable[[], None]) -> None:
        heapq.heappush(self._later, (at_ns, next(self._numbers), what))


__all__ = ["Ends"]
