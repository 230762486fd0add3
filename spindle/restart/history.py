"""What a volatile topic delivered before a member came, kept for it at the member that gives it.

Why it is pinned with the view: the view says who gives and who gets, and both sides know the cut without a word: the
giver's log as it stands when the old epoch is delivered to its trim and nothing of the new one has come. Why the
receiver asks for it all the same: only the receiver knows how much it can take (`spindle.restart.giving`).

Rules: the log is pinned with a keep-all cursor before the new view is installed, and let go when the last chunk is
queued, or nobody will ask for it any more. The receiver holds the topic's delivery meanwhile: history first, then live
messages. A history has no hole: a node that can't get the rest of one, or not from where it stands, drops what has
come, and withdraws the donations that it has promised to others from it.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from spindle.restart.chain import NOTHING, Order
from spindle.restart.pieces import Message

if TYPE_CHECKING:
    from spindle_core.delivery import Cursor, DeliveryLog
    from spindle_core.engine import Engine
    from spindle_core.reader import LogReader

__all__ = ["Donation", "Message", "local_reader"]


def local_reader(engine: Engine, log: DeliveryLog, cursor: Cursor) -> LogReader:
    """A reader of a log in this process, with descriptors of its own. Raises OSError."""
    from spindle_core.ends import Loose
    from spindle_core.memory import Mapping
    from spindle_core.reader import LogReader

    of_log, of_cursor = Mapping.attach(os.dup(log.mapping.fd)), Mapping.attach(os.dup(cursor.mapping.fd), writable=True)
    bell = Mapping.attach(os.dup(engine.bell.fd))
    with Loose.copies(cursor.their_fd, engine.bell_fd) as fds:
        data_fd, bell_fd = fds.take_all()
        return LogReader(of_log, of_cursor, data_fd, bell, bell_fd)


class Donation:
    """The history of one fresh member, from the oldest message that is retained. Made at the cut, read afterwards.

    Everything that is in the log at the cut belongs to it; if the log lags behind the trim (it is full, or the giver
    itself still gets a history), `cut` is not known yet and is set when the log has caught up.

    after: instead, from the message after this one, which the member has from somebody else; `goes_on` says whether the
    log still tells what follows it.

    Raises OSError or ValueError if there are no descriptors, no memory, or too many readers; nothing is left then.
    """

    def __init__(self, engine: Engine, topic_id: int, log: DeliveryLog, cut: int | None = None,
                 after: Order = NOTHING) -> None:
        from spindle_core.delivery import KEPT_BEFORE, Cursor

        self.topic_id = topic_id
        self.cut = cut  # messages of the log with a smaller index belong to the history
        self.asked = False  # its member has asked for it
        self.withdrawn = False  # the giver hasn't got all of it, and never will
        self._engine, self._log = engine, log
        self._reader: LogReader | None = None  # made when it is asked for: it has more descriptors than a cursor
        cursor = Cursor(keep_all=True, from_history=after == NOTHING,
                        after=None if after == NOTHING else (after[0], after[1] + 1))
        self._cursor: Cursor | None = cursor
        try:
            engine.add_reader(topic_id, cursor)
        except BaseException:
            cursor.close()
            raise
        self.goes_on = after == NOTHING or cursor.kept == KEPT_BEFORE

    def following(self) -> Message | None:
        """The next message; None if there is none, or none yet. Raises OSError."""
        if self._cursor is None or self.over:
            return None
        if self._reader is None:
            self._reader = local_reader(self._engine, self._log, self._cursor)
            self._reader.entries = True
            if self.over:  # there is nothing before the cut
                return None
        for payload, info in self._reader.take_pairs(1):
            return Message(payload, info.sender, info.sequence, info.view_id, info.source_timestamp, info.writer,
                           info.reception_timestamp, info.relay, info.tag, info.key, info.large)
        return None

    @property
    def closed(self) -> bool:
        return self._cursor is None

    @property
    def over(self) -> bool:
        """True if all of it has been taken."""
        return self.cut is not None and self._reader is not None and self._reader.position_index >= self.cut

    def withdraw(self) -> None:
        """It would have a hole behind what was taken of it. Idempotent."""
        self.withdrawn = True
        self.close()

    def close(self) -> None:
        """Lets go of the log. Idempotent."""
        cursor, self._cursor = self._cursor, None
        if cursor is None:
            return
        self._engine.remove_reader(self.topic_id, cursor)
        if self._reader is not None:
            self._reader.close()
        cursor.close()
