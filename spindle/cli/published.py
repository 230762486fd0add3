"""How far publishing has got: counted, and shown on a terminal."""

from __future__ import annotations

import time

from spindle.cli.common import bytes_text, count_text, progress

PROGRESS_S = 0.5


class Published:
    """What was published so far, and its line on the terminal."""

    def __init__(self, begin: float, progress: bool) -> None:
        self.count = 0
        self.size = 0
        self.resent = 0  # of these, so many once more, as their node went away with them
        self._begin = begin
        self._shown = begin
        self._progress = progress
        self._open = False

    def add(self, batch: list[bytes]) -> None:
        self.count += len(batch)
        self.size += sum(map(len, batch))
        now = time.monotonic()
        if self._progress and now - self._shown >= PROGRESS_S:
            self._shown = now
            self._open = True
            progress(self.text())

    def clear(self) -> None:
        """Take the progress line away."""
        if self._open:
            progress()

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def text(self) -> str:
        rate = self.count / max(self.seconds, 1e-9)
        return f"{self.count} published, {bytes_text(self.size)}, {count_text(rate)}/s"
