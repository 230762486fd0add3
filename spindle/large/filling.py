"""A large sample that is on its way to this node.

One source at a time fills it, from the first byte to the last; others may read what is there already, and so pass it on
while it comes. When that source fails, the next one goes on where it stopped.

Why it is written with pwrite, through a small buffer that stays in the processor's cache: memory that is mapped to be
written is cleared page by page before it is filled, which costs more than the second copy; and it couldn't be closed.

Rules: what lies below `reached` never changes, and nobody reads beyond it, where there may be what another sample has
left. Only the source that it was last given to may fill it, so a late one does no harm. All calls are for any thread.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from spindle.errors import SampleMissing, SampleUnfit, shortage
from spindle.large import memory


class Filling:
    """See the module's text. `ended` says why nothing more comes; "": it comes, or is all there.

    Invariant: 0 <= reached <= size.
    """

    __slots__ = ("_fd", "_lock", "_make", "_on_more", "_source", "again", "ended", "large_id", "reached",
                 "size", "topic", "waits", "whole")

    def __init__(self, large_id: int, size: int, topic: str, on_more: Callable[[int], None],
                 make: Callable[[int], int] = memory.make_closable) -> None:
        self.large_id, self.size, self.topic = large_id, size, topic
        self.reached = 0
        self.ended = ""
        self.whole = False
        self.waits = False  # for its turn: nobody has been asked yet
        self._fd = -1  # until the first source has something
        self._source: object = None
        self._lock = threading.Lock()
        self._on_more = on_more  # with its id, whenever there is more of it, or it has ended
        self._make = make
        self.again = False  # its memory may be used again; known when it is whole

    def give_to(self, source: object) -> int:
        """From now on that one fills it, from the offset that is returned on. Raises NoResources."""
        with self._lock:
            if self._fd < 0 and not self.ended:
                self._fd = self._make(self.size)
            self._source = source
            return self.reached

    def fill(self, source: object, data: memoryview) -> bool:
        """What comes next. False if it is not that one's to fill any more. Raises SampleUnfit, NoResources."""
        with self._lock:
            if self._source is not source or self.ended:
                return False
            if self.reached + len(data) > self.size:
                raise SampleUnfit(f"more than the {self.size} bytes of the large sample {self.large_id:#x} came")
            try:
                while data:
                    written = os.pwrite(self._fd, data, self.reached)
                    self.reached += written
                    data = data[written:]
            except OSError as error:
                raise shortage(error, f"a large sample of {self.size} bytes") or SampleUnfit(
                    f"a large sample can't be written: {error.strerror}") from error
        self._on_more(self.large_id)
        return True

    def complete(self) -> None:
        """It is all there: nobody writes into it any more. Raises SampleUnfit; then nothing is there."""
        with self._lock:
            if not self.ended and not self.whole:
                filled, self._fd = self._fd, -1
                try:
                    self._fd, self.again = memory.close(filled)
                except BaseException:
                    self.reached = 0
                    raise
                self.whole = True

    def open(self) -> int:
        """A descriptor of its own, to read what is there. Raises SampleMissing, NoResources."""
        with self._lock:
            if self._fd < 0:
                raise SampleMissing(self.ended or f"nothing of the large sample {self.large_id:#x} is there yet")
            return memory.open_anew(self._fd)

    def open_sealed(self) -> int:
        """The same, for nodes of other users; of one that is whole. Raises SampleUnfit, too."""
        with self._lock:
            if self._fd >= 0:
                memory.seal_closed(self._fd)
                self.again = False
        return self.open()

    def __del__(self) -> None:
        if self._fd >= 0:  # its node was given up, not stopped
            os.close(self._fd)

    def end(self, why: str) -> None:
        """Gives up its descriptor: nothing more comes, or it is the store's now (`why` is "" then). Idempotent."""
        with self._lock:
            self.ended = self.ended or why
            self._source = None
            if self._fd >= 0:
                os.close(self._fd)
                self._fd = -1
        self._on_more(self.large_id)
