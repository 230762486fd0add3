"""What a reader holds of its node, and how that is carried over to the next one.

A reader reads its dead node's log to the end, then the next node's, from the place behind: the two are one order. It
remembers its place in other groups, too, as it may come back to the order of one of them. In an unordered topic nobody
knows what it has had: it begins with the next sample of the new node, so that none comes twice.

Rules: those of `dds.writers.link`.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from typing import TYPE_CHECKING

from dds.exceptions import DDSException, DDSNodeLost
from dds.status import ReattachedStatus

if TYPE_CHECKING:
    from dds.contracts import AReader
    from dds.matching.matching import Runtime
    from spindle.client import ReaderHandle, Session
    from spindle.group.position import Position
    from spindle.group.topics import TopicSpec

UNORDERED = 0  # spindle.group.levels.Level
PLACES_MAX = 32  # groups in which a reader remembers its place


class ReaderLink:
    """A reader's handle, and those of later nodes, which come after it.

    handle  whose log is read now
    later   opened behind it, in the order in which they must be read
    """

    is_writer = False
    is_carrier = False

    def __init__(self, reader: AReader, runtime: Runtime, spec: TopicSpec, ref: int, keep_all: bool,
                 from_history: bool, endpoint: bytes) -> None:
        """Opens the reader. Raises what the session raises."""
        self.reader = weakref.ref(reader)
        self.runtime = runtime
        self.spec = spec
        self.error: DDSException | None = None
        self.status = ReattachedStatus()
        self.later: deque[ReaderHandle] = deque()
        self._places: dict[int, Position] = {}  # where it stood, by group, the last ones
        self._ref = ref
        self._keep_all = keep_all
        self._endpoint = endpoint
        self._lock = threading.Lock()
        self._closed = False
        self.breaks = 0  # how often what comes does not follow, for certain, what had come, and nothing else
        self._gaps = 0  # gap_count that was counted; of sessions that turn by themselves
        self._rewinds = 0  # the same of rewind_count
        self.guid = runtime.guid_of(ref)
        self.handle = runtime.session.open_reader(
            spec.name, keep_all=keep_all, from_history=from_history, endpoint=endpoint, guid=self.guid)

    @property
    def newest(self) -> ReaderHandle:
        """Whose log grows."""
        later = self.later
        return later[-1] if later else self.handle

    @property
    def hopeful(self) -> bool:
        """More may come after the log that has ended."""
        return self.error is None and not self._closed and self.runtime.attachment.hopeful

    def switch(self, session: Session) -> None:
        from spindle.errors import SpindleError
        from spindle.group.position import elsewhere

        newest = self.newest
        if newest.session is session or self._closed:
            return
        try:
            after, readable = newest.freeze(), True
        except SpindleError:  # killed while it changed the log, which can't be read now: its rest is given up
            after, readable = newest.position, False
        self.guid = self.runtime.guid_of(self._ref)
        earlier = elsewhere([*self._places.values(), *newest.passed(after)], after)
        handle = session.open_reader(
            self.spec.name, keep_all=self._keep_all, from_history=int(self.spec.level) != UNORDERED, after=after,
            earlier=earlier, endpoint=(said := self._endpoint), guid=self.guid)
        self._places = {one.group_id: one for one in [*earlier, after][-PLACES_MAX:]}
        with self._lock:
            if self._closed:
                handle.close()
                return
            self.breaks += handle.rewound or not (handle.continued and readable)  # before anything comes from there
            self.later.append(handle)
            self.error = None
        if said != self._endpoint:  # changed meanwhile
            handle.change(self._endpoint)
        self._count(handle.continued and readable)

    def change(self, endpoint: bytes) -> None:
        """What is said of the reader is this from now on. DDSException; then nothing has changed."""
        before, self._endpoint = self._endpoint, endpoint
        if self.newest.session.gone and self.runtime.attachment.hopeful:
            return  # the next node hears it when the reader is opened there
        try:
            with self.runtime.asking(f"changing a reader of topic {self.spec.name!r}"):
                self.newest.change(endpoint)
        except DDSException as error:
            if isinstance(error, DDSNodeLost) and self.runtime.attachment.hopeful:
                return
            self._endpoint = before
            raise

    def _count(self, continued: bool) -> None:
        self.status.count()
        self.status.continued = continued
        if not continued:
            self.status.gap_count += 1
            self.status.gap_count_change += 1
        reader = self.reader()
        if reader is not None:
            reader._switched(continued)

    def turned(self) -> None:
        """The session has turned to another node: the same log goes on, perhaps behind a gap."""
        gaps, rewinds = self.newest.gap_count, self.newest.rewind_count
        self.breaks += (gaps, rewinds) != (self._gaps, self._rewinds)
        self._rewinds = rewinds
        self._count(gaps == self._gaps)
        self._gaps = gaps

    def advance(self) -> None:
        """The log has been read to its end: turn to the next one."""
        with self._lock:
            done, self.handle = self.handle, self.later.popleft()
        done.close()

    def fail(self, error: DDSException) -> None:
        self.error = error
        self.wake()

    def wake(self) -> None:
        reader = self.reader()
        if reader is not None:
            reader._hub.woken()
            reader._wake_watchers()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            handles = [self.handle, *self.later]
        self.runtime.attachment.discard(self)
        for handle in handles:
            handle.close()


__all__ = ["ReaderLink"]
