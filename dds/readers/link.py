"""The logs of a reader at the nodes of its participant: each is opened behind the one before.

A reader reads its dead node's log to the end, then the next node's, from the place behind: the two are one order. It
remembers its place in other groups, too, as it may come back to the order of one of them. In an unordered topic nobody
knows what it has had: it begins with the next sample of the new node, so that none comes twice.

Rules: those of `dds.writers.link`.
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from dds.exceptions import DDSException, DDSNodeLost
from dds.readers.source import LogSource

if TYPE_CHECKING:
    from dds.contracts import AReader
    from dds.matching.matching import Runtime
    from spindle.client import ReaderHandle, Session
    from spindle.group.position import Position
    from spindle.group.topics import TopicSpec

UNORDERED = 0  # spindle.group.levels.Level
PLACES_MAX = 32  # groups in which a reader remembers its place


class ReaderLink(LogSource):
    """Where a reader's messages come from, at one node after the other. The attachment moves it to the next."""

    is_writer = False
    is_carrier = False
    newest: ReaderHandle

    def __init__(self, reader: AReader, runtime: Runtime, spec: TopicSpec, ref: int, keep_all: bool,
                 from_history: bool, endpoint: bytes) -> None:
        """Opens the reader. Raises what the session raises."""
        self.spec = spec
        self.guid = runtime.guid_of(ref)
        self._reader = weakref.ref(reader)
        self._runtime = runtime
        self._places: dict[int, Position] = {}  # where it stood, by group, the last ones
        self._ref = ref
        self._keep_all = keep_all
        self._endpoint = endpoint
        self._gaps = 0  # gap_count that was counted; of sessions that turn by themselves
        self._rewinds = 0  # the same of rewind_count
        handle = runtime.session.open_reader(
            spec.name, keep_all=keep_all, from_history=from_history, endpoint=endpoint, guid=self.guid)
        super().__init__(handle, self._reader, reader._hub, runtime.attachment, spec.name)

    def switch(self, session: Session) -> None:
        from spindle.errors import SpindleError

        newest = self.newest
        if newest.session is session or self._closed:
            return
        try:
            after, readable = newest.freeze(), True
        except SpindleError:  # killed while it changed the log, which can't be read now: its rest is given up
            after, readable = newest.position, False
        self.guid = self._runtime.guid_of(self._ref)
        said = self._endpoint
        handle, earlier = self._open_behind(session, after)
        if not handle.continued and readable and newest.log.read_on():  # that node can't fill in what is missing here
            handle.close()
            after = newest.freeze()
            handle, earlier = self._open_behind(session, after)
        self._places = {one.group_id: one for one in [*earlier, after][-PLACES_MAX:]}
        self._learn(handle)
        continued = handle.continued and readable
        if not self.follow(handle, continued and not handle.rewound):
            return
        if said != self._endpoint:  # changed meanwhile
            handle.change(self._endpoint)
        self._count(continued)

    def _open_behind(self, session: Session, after: Position) -> tuple[ReaderHandle, list[Position]]:
        """A reader at this node that goes on from there; and where we stood in other groups."""
        from spindle.group.position import elsewhere

        earlier = elsewhere([*self._places.values(), *self.newest.passed(after)], after)
        handle = session.open_reader(
            self.spec.name, keep_all=self._keep_all, from_history=int(self.spec.level) != UNORDERED, after=after,
            earlier=earlier, endpoint=self._endpoint, guid=self.guid)
        return handle, earlier

    def change(self, endpoint: bytes) -> None:
        """See LogSource: all nodes, and the group, hear of it."""
        before, self._endpoint = self._endpoint, endpoint
        if self.newest.session.gone and self._runtime.attachment.hopeful:
            return  # the next node hears it when the reader is opened there
        try:
            with self._runtime.asking(f"changing a reader of topic {self.spec.name!r}"):
                self.newest.change(endpoint)
        except DDSException as error:
            if isinstance(error, DDSNodeLost) and self._runtime.attachment.hopeful:
                return
            self._endpoint = before
            raise

    def _learn(self, handle: ReaderHandle) -> None:
        """What this node keeps may be of other types."""
        reader = self._reader()
        if reader is not None:
            reader._learn_kept(handle.types)

    def _count(self, continued: bool) -> None:
        self.status.count()
        self.status.continued = continued
        if not continued:
            self.status.gap_count += 1
            self.status.gap_count_change += 1
        reader = self._reader()
        if reader is not None:
            reader._switched(continued)

    def turned(self) -> None:
        """The session has turned to another node: the same log goes on, perhaps behind a gap."""
        gaps, rewinds = self.newest.gap_count, self.newest.rewind_count
        continued = gaps == self._gaps
        self.breaks += (gaps, rewinds) != (self._gaps, self._rewinds)
        self._gaps, self._rewinds = gaps, rewinds
        self._learn(self.newest)
        if not self._later:  # else that log says so itself
            if not continued:
                self.expect_gap()
            reader = self._reader()
            if reader is not None:
                reader._hears_of_ends(self.handle.ends, self.log.next_view)
        self._count(continued)

    def fail(self, error: DDSException, passes: bool) -> None:
        """It isn't open at the next node; if that `passes`, it may be later."""
        self.error, self.error_passes = error, passes
        self.wake()

    def wake(self) -> None:
        reader = self._reader()
        if reader is not None:
            self.read_on()
            reader._hub.woken()
            reader._wake_watchers()

    def close(self) -> None:
        self._runtime.attachment.discard(self)
        super().close()


__all__ = ["ReaderLink"]
