"""The log of a builtin reader: what has come, changed or gone in the group, and was not taken yet.

Why a log: a builtin reader is a DataReader like any other, with states, conditions, wait sets and listeners; only where
its samples come from is different. This has what `dds.readers.reader` asks of a delivery log, without memory that is
shared.

Rules: of each instance only the last news wait, as History.KeepLast(1) has it; what came and went before anybody took
it was never there. So what waits is bounded by what there is in the group, and what this reader has had of it.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dds.messages.operations import DISPOSES, UNREGISTERS
from dds.waiting.wake import Waker, wait_readable

if TYPE_CHECKING:
    from dds.matching.announcing import Remote

_END = DISPOSES | UNREGISTERS


@dataclasses.dataclass(frozen=True)
class Notice:
    """What a reader asks of the info of a message (`spindle.client.samples.MessageInfo`)."""

    tag: int
    sender: int
    sequence: int
    source_timestamp: int
    writer: int = 0
    relay: int = 0
    view_id: int = 0

    @property
    def reception_timestamp(self) -> int:
        return self.source_timestamp

    @property
    def index(self) -> int:
        return self.sequence


class NoticeLog:
    """Of one builtin reader. put() and gone() from any thread.

    is_over  asks whether nothing can come any more
    """

    only_plain = goes_on = False
    meets_tagged = False
    lost = 0
    said_ns = next_view = next_sequence = 0  # there is no order here, and none says the time

    def __init__(self, is_over: Callable[[], bool]) -> None:
        self._is_over = is_over
        self._lock = threading.RLock()  # reentrant: a finalizer may run while we hold it
        self._waiting: dict[bytes, tuple[Remote, Notice]] = {}  # by instance, the oldest news first
        self._given: dict[bytes, Remote] = {}  # as the reader has had them last, alive
        self._added = 0  # news, ever
        self._bell = Waker()
        self._closed = False

    # --- news

    def put(self, key: bytes, remote: Remote) -> None:
        """An instance is there, or has changed."""
        with self._lock:
            self._waiting.pop(key, None)
            self._add(key, remote, 0)

    def gone(self, key: bytes) -> None:
        """It is there no more."""
        with self._lock:
            self._waiting.pop(key, None)
            before = self._given.get(key)
            if before is not None:
                self._add(key, before, _END)

    def _add(self, key: bytes, remote: Remote, tag: int) -> None:
        self._waiting[key] = remote, Notice(tag, remote.endpoint.node_id, self._added, time.time_ns())
        self._added += 1
        self.ring()

    def ring(self) -> None:
        """Whoever waits looks again."""
        if not self._closed:
            self._bell.ring()

    # --- as a delivery log

    @property
    def pending(self) -> int:
        return len(self._waiting)

    @property
    def arrived(self) -> int:
        return self._added

    @property
    def tagged_ahead(self) -> bool:
        return bool(self._waiting)

    def read_on(self) -> bool:
        return False

    @property
    def position_index(self) -> int:
        """Of the first that waits, so that this and `pending` together grow with each piece of news."""
        return self._added - len(self._waiting)

    @property
    def is_gone(self) -> bool:
        return self._is_over()

    def take_pairs(self, n: int, *, in_place: bool = False, into: Any = None) -> list[tuple[Remote, Notice]]:
        """Up to `n` news, which the log then forgets; what a sample is made of, and its info. `into`: where they are
        appended as well. ValueError if closed."""
        with self._lock:
            self._check_open()
            taken = []
            for key in list(self._waiting)[:n]:
                remote, notice = self._waiting.pop(key)
                if notice.tag:
                    self._given.pop(key, None)
                else:
                    self._given[key] = remote
                taken.append((remote, notice))
                if into is not None:
                    into.append((remote, notice))
            return taken

    def arm(self) -> bool:
        """News ring, always."""
        self._check_open()
        return True

    def clear(self) -> None:
        self._bell.clear()

    def fileno(self) -> int:
        self._check_open()
        return self._bell.fd

    def wait_or(self, other_fd: int, timeout_s: float, known: int = -1) -> int:
        """Wait for news, however many are `known`, or the descriptor `other_fd`; bits 1 and 2 say which, 0 after
        `timeout_s` (negative = never)."""
        self._check_open()
        readable = wait_readable((self._bell.fd, other_fd), None if timeout_s < 0 else timeout_s)
        if self._bell.fd in readable:
            self._bell.clear()
        return (self._bell.fd in readable) | (other_fd in readable) << 1

    def close(self) -> None:
        self._closed = True

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the log is closed")


__all__ = ["Notice", "NoticeLog"]
