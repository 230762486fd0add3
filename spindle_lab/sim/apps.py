"""Writers and readers of one node in a run.

Why every message is known beforehand: a checker that has the bytes of message k of a writer needs no identity in the
message, so payloads of no bytes at all are checked like others: what is delivered of a writer must be its next one.

Rules: an application that dies leaves its open claim; what it committed is sent nevertheless. A reader that is slow
takes nothing until it is told to.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from spindle_core.delivery import Cursor, DeliveryLog
from spindle_core.direct import DirectClaim
from spindle_core.errors import CoreError
from spindle_core.inbox import Inbox
from spindle_core.inbox_writer import InboxWriter
from spindle_core.memory import Mapping
from spindle_core.reader import LogReader

if TYPE_CHECKING:
    from spindle_lab.sim.contracts import Life

LOG_BYTES = 64 << 10
LOG_BYTES_SMALL = 4096
HELD = 1 << 32  # added to the number of a message for a slot left open: so no other message has its bytes


def pattern(writer: int, k: int, size: int) -> bytes:
    """The payload of message k: the same bytes nowhere else, as far as `size` allows."""
    head = (writer * 2_654_435_761 + k * 40_503 + 1 & (1 << 64) - 1).to_bytes(8, "little")
    return (head * (size // 8 + 1))[:size]


class Writer:
    """One writer of a topic: its own inbox, or (number 0) slots claimed in the node's ring."""

    def __init__(self, uid: int, life: Life, topic_id: int, number: int, size_max: int, slots: int) -> None:
        self.uid, self.life, self.topic_id, self.number, self.size_max = uid, life, topic_id, number, size_max
        self.sent: list[bytes] = []  # committed, in their order
        self.next = 0  # of `sent`, in the order of delivery: kept by the checker
        self.where: list[tuple[Any, int]] = []  # ... and where each was delivered
        self.told = 0  # acknowledged, as far as the checker has seen
        self.closing = False
        self.claim_size = -1
        self.held: tuple[DirectClaim, int, bytes] | None = None  # an open slot, its place in `sent`, what goes there
        self.inbox: Inbox | None = None
        self.writer: InboxWriter | None = None
        if number:
            self.inbox = Inbox(size_max, slots, number)
            life.engine.add_inbox(topic_id, self.inbox)
            self.writer = InboxWriter(
                Mapping.attach(os.dup(self.inbox.ring.fd), True), Mapping.attach(os.dup(self.inbox.progress.fd)),
                os.dup(self.inbox.their_fd), Mapping.attach(os.dup(life.engine.bell.fd)), os.dup(life.engine.bell_fd))

    def payload(self, size: int) -> bytes:
        return pattern(self.uid, len(self.sent), self.size_max if size < 0 else min(size, self.size_max))

    def write(self, size: int) -> bool:
        """One message, if there is room."""
        if self.writer is None or self.claim_size >= 0 or self.closing:
            return False
        payload = self.payload(size)
        try:
            self.writer.write(payload, 1, 0.0)
        except CoreError:
            return False
        self.sent.append(payload)
        return True

    def claim(self, how: int, size: int) -> bool:
        """A slot in place: 0 claim, 1 commit, 2 abort, 3 the application dies with the claim open."""
        if self.writer is None or (how == 0) == (self.claim_size >= 0) or self.closing:
            return False
        if how == 0:
            payload = self.payload(size)
            try:
                view = self.writer.claim(len(payload), 0.0)
            except CoreError:
                return False
            view[:] = payload
            self.claim_size = len(payload)
            return True
        if how == 1:
            self.sent.append(self.payload(self.claim_size))
            self.writer.commit(None, 1)
        elif how == 2:
            self.writer.abort()
        else:
            self.closing = True  # the node drains what was committed, and forgets the writer
        self.claim_size = -1
        return True

    def write_direct(self, size: int) -> bool:
        """One message in a slot of the node's ring, if there is one."""
        payload = self.payload(size)
        try:
            self.life.engine.write(self.topic_id, payload, 1, 0.0)
        except CoreError:
            return False
        self.sent.append(payload)
        return True

    def hold(self, size: int) -> bool:
        """Claims a slot of the node's ring and leaves it open, if there is one."""
        try:
            claim = self.life.engine.claim(self.topic_id, 0.0)
        except CoreError:
            return False
        payload = pattern(self.uid, HELD + len(self.sent), self.size_max if size < 0 else min(size, self.size_max))
        self.held = claim, len(self.sent), payload
        return True

    def fill(self) -> bool:
        """Fills the open slot, which comes before what was written since. False if there is none in this view."""
        if self.held is None:
            return False
        (claim, place, payload), self.held = self.held, None
        try:
            claim.commit(payload, 1)
        except CoreError:
            return False
        self.sent.insert(place, payload)
        return True

    @property
    def drained(self) -> bool:
        """Everybody has what was committed: the writer can be forgotten."""
        return self.inbox is None or self.inbox.acknowledged >= self.inbox.committed

    def close(self) -> None:
        if self.inbox is not None:
            self.life.engine.remove_inbox(self.topic_id, self.inbox)
            assert self.writer is not None
            self.writer.close()
            self.inbox.close()


class Reader:
    """The topic's log on one node, and two who read it and keep all: the checker, which looks after every pass, and an
    application that comes and goes, and is slow."""

    def __init__(self, life: Life, topic_id: int, slow: bool, small: bool) -> None:
        self._life, self._topic_id = life, topic_id
        self.log = DeliveryLog(LOG_BYTES_SMALL if small else LOG_BYTES, 4096, False)
        life.engine.bind_log(topic_id, self.log)
        self.seen = self._open()[1]
        self._slow: tuple[Cursor, LogReader] | None = None
        self._before = 0  # messages of earlier views
        # The last messages of an epoch for which the log had no room: payload, sender, sequence, source, writer, view.
        self.backlog: list[tuple[bytes, int, int, int, int, int]] = []
        self.set_slow(slow)

    def _open(self) -> tuple[Cursor, LogReader]:
        cursor, engine = Cursor(True, False), self._life.engine
        engine.add_reader(self._topic_id, cursor)
        return cursor, LogReader(
            Mapping.attach(os.dup(self.log.mapping.fd)), Mapping.attach(os.dup(cursor.mapping.fd), True),
            os.dup(cursor.their_fd), Mapping.attach(os.dup(engine.bell.fd)), os.dup(engine.bell_fd))

    @property
    def slow(self) -> bool:
        return self._slow is not None

    def set_slow(self, slow: bool) -> bool:
        """The slow application comes or goes; False if nothing changes."""
        if slow == self.slow:
            return False
        if self._slow is None:
            self._slow = self._open()
        else:
            cursor, reader = self._slow
            self._slow = None
            self._life.engine.remove_reader(self._topic_id, cursor)
            reader.close()
        return True

    def read(self, n: int) -> int:
        """The slow application reads."""
        return len(self._slow[1].take(n)) if self._slow is not None else 0

    def begin_view(self) -> None:
        """What is delivered from now on belongs to the view that was just installed."""
        self._before = self.log.delivered + len(self.backlog)

    @property
    def delivered(self) -> int:
        """Messages of the installed view, with those that wait for room in the log."""
        return int(self.log.delivered) + len(self.backlog) - self._before

    def pump(self) -> bool:
        """Appends from the backlog as far as there is room; True when that empties it."""
        if not self.backlog:
            return False
        taken = 0
        for payload, sender, sequence, source_ns, writer_id, view_id in self.backlog:
            if not self.log.append(payload, sender, sequence, view_id, source_ns, writer_id, self._life.now_ns):
                break
            taken += 1
        del self.backlog[:taken]
        return not self.backlog
