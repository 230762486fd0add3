"""Reading over all topics of an order group: what a subscriber of group scope gives out, and when. DDS 1.4, 2.2.3.6.

Each of its readers has the group's order from a log of its own, and lets in what is of its topic. Here they go through
that order together: a message is let in by all of them, or waits for all of them, also where the limits on instances of
one leave no room for it. So between begin_access() and end_access() a program sees the state of all topics at one place
of the order, a coherent set whole in all of them, and samples of different topics can be given out in the order in
which they came.

Rules: one lock for all readers of such a subscriber. A message is let in when each of them has it, or stands behind its
place in the order; one that can't go on any more (its node is gone, it has an error) is not waited for. If one of them
has lost a message of a set (it was overtaken, or began behind a gap at the next node), the others give the set up, too.
"""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from dds.exceptions import DDSException

if TYPE_CHECKING:
    from dds.contracts import AReader

Place = tuple[int, int, int]  # which session's order, view, sequence


class GroupAccess:
    """Of one subscriber.

    is_open     an access has begun and not ended
    is_blocked  a reader has something that others must get first, or have no room for
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._readers: list[weakref.ref[AReader]] = []
        self._starts: weakref.WeakKeyDictionary[AReader, Place] = weakref.WeakKeyDictionary()
        self._depth = 0
        self._step = 0  # messages that were let in
        self.is_blocked = False
        self._sessions: list[Any] = []  # whose orders the readers have had, in their order

    @property
    def is_open(self) -> bool:
        return self._depth > 0

    def add(self, reader: AReader) -> None:
        with self.lock:
            self._readers = [*(one for one in self._readers if one() is not None), weakref.ref(reader)]
            self._starts[reader] = self._place(reader, reader._source.starts_at)

    def check_open(self) -> None:
        """Raise DDSException (PRECONDITION_NOT_MET) outside of an access."""
        if not self._depth:
            raise DDSException(
                DDSException.DDS_RETCODE_PRECONDITION_NOT_MET,
                "this reader's subscriber has PresentationAccessScope.Group: read and take between its begin_access() "
                "and end_access(), or in `with subscriber.access():`; subscriber.take() does it by itself")

    def begin(self) -> None:
        """What has come by now can be read, and nothing that comes later."""
        with self.lock:
            self.advance()
            self._depth += 1

    def end(self) -> None:
        with self.lock:
            if not self._depth:
                raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET, "begin_access() was not called")
            self._depth -= 1
        self.go_on()

    def go_on(self) -> None:
        """Nothing may stand in the way any more of what has come: let it in, and wake who waits for it. It rang when it
        came, and wasn't there to be read."""
        with self.lock:
            if self._depth or not any(one._intake.ahead for one in self._living()):
                return
            before = self._step
            try:
                self.advance()
            except DDSException:
                pass  # who reads next is told
            moved = self._step != before
        if moved:
            self.wake()

    def advance(self) -> None:
        """Let in what has come, unless an access is open."""
        with self.lock:
            if self._depth:
                return
            readers = self._living()
            # What comes meanwhile is for the next call, or this one might never end.
            last = self._step + max((one._intake.ahead for one in readers), default=0)
            before = -1
            while before < self._step < last or before < 0:
                before = self._step
                for one in readers:
                    one._intake.collect()
                while (due := self._due(readers)) is not None and not any(one._intake.is_full for one in due):
                    self._step += 1
                    is_torn = self._is_torn(readers, due)
                    for one in due:
                        if not (is_torn and one._intake.give_up_set()):
                            one._intake.let_in_next(self._step)
            self.is_blocked = any(one._intake.head is not None for one in readers)

    def _living(self) -> list[AReader]:
        return [one for one in (ref() for ref in self._readers) if one is not None and one._open]

    @property
    def step(self) -> int:
        """Messages that were let in so far."""
        return self._step

    def wake(self) -> None:
        """Something has come in that rang nobody who waits for it."""
        with self.lock:
            readers = [ref() for ref in self._readers]
        for one in readers:
            if one is not None:
                one._hub.woken()
                one._wake_watchers()

    def _due(self, readers: list[AReader]) -> list[AReader] | None:
        """The readers that have the next message of the order; None if somebody may have to get it yet."""
        nearest: Place | None = None
        due: list[AReader] = []
        behind: list[Place] = []  # where those stand that have nothing
        for one in readers:
            head = one._intake.head
            if head is None:
                if not one._source.is_over:
                    behind.append(self._place(one, one._source.stands_at))
                continue
            place = self._place(one, (head.view_id, head.sequence))
            if nearest is None or place < nearest:
                nearest, due = place, [one]
            elif place == nearest:
                due.append(one)
        if nearest is None or any(place <= nearest for place in behind):
            return None
        return due

    def _is_torn(self, readers: list[AReader], due: list[AReader]) -> bool:
        """True if a reader that was there has lost the next message."""
        if len(due) == len(readers):
            return False
        head = due[0]._intake.head
        place = self._place(due[0], (head.view_id, head.sequence))
        return any(one not in due and not one._source.is_over and self._starts[one] <= place for one in readers)

    def _place(self, reader: AReader, at: tuple[int, int]) -> Place:
        session = reader._source.session
        if not any(one is session for one in self._sessions):
            self._sessions.append(session)
            del self._sessions[:-8]
        return next(i for i, one in enumerate(self._sessions) if one is session), *at


__all__ = ["GroupAccess"]
