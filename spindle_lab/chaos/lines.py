"""Lines between hosts: what one direction does to the frames on it. They come late, at a rate, or not at all.

Why not the kernel's netem: many kernels are built without it, and it belongs to a device, not to a direction.

Rules:
- Sans-IO: the time is given, ns of any clock that doesn't jump; frames are bytes, handed back when they are due.
- A line never reorders: a frame is due no sooner than the one before it.
- First a frame waits until those before it have left at the line's rate, then it travels. What waits is bounded, as in
  a router: who sends faster loses frames, and TCP learns the rate from that.
- A line that is changed keeps its order, and lets what is under way arrive no later than if it entered now.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import dataclass

NS = 1_000_000_000
WAITING_S_MAX = 0.2  # what may wait for a slow line, as time that it takes ...
WAITING_BYTES_MIN = 64 << 10  # ... and at least so much


@dataclass(frozen=True)
class Line:
    """Qualities of one direction. The default is a line that does nothing.

    delay_s     travelling time, s
    jitter_s    at most so much more, drawn for each frame, s
    loss        share of frames that are lost, from 0 to 1
    rate        bytes a second that it takes; 0: no limit
    """

    delay_s: float = 0.0
    jitter_s: float = 0.0
    loss: float = 0.0
    rate: float = 0.0

    def __post_init__(self) -> None:
        if min(self.delay_s, self.jitter_s, self.loss, self.rate) < 0 or self.loss > 1:
            raise ValueError(f"{self}: nothing may be negative, a loss be at most 1")

    @property
    def counts_packets(self) -> bool:
        """True if it matters how large frames are: then what a host hands over as one must be sent in packets."""
        return bool(self.loss or self.rate)

    def __str__(self) -> str:
        parts = [f"{self.delay_s * 1000:g} ms late"] if self.delay_s else []
        parts += [f"up to {self.jitter_s * 1000:g} ms more"] if self.jitter_s else []
        parts += [f"{self.loss:.1%} lost"] if self.loss else []
        parts += [f"{self.rate / 1000:g} kB/s"] if self.rate else []
        return ", ".join(parts) or "as it should be"


class Transit:
    """The frames that are on one line. `seed`: of its random numbers."""

    def __init__(self, line: Line, seed: str = "") -> None:
        self.line = line
        self.passed = self.lost = self.overrun = 0  # frames; the last were too many for its rate
        self.held_bytes = self.passed_bytes = 0
        self._draw = random.Random(seed)
        self._frames: deque[tuple[int, bytes]] = deque()  # with the time when each is due, rising
        self._free_ns = 0  # when all that came has left at the line's rate
        self._due_ns = 0  # of the last frame

    def enter(self, frame: bytes, now_ns: int) -> None:
        """A frame comes to the line's near end."""
        line = self.line
        if line.loss and self._draw.random() < line.loss:
            self.lost += 1
            return
        leaves_ns = now_ns
        if line.rate:
            waiting_ns = max(0, self._free_ns - now_ns)
            if waiting_ns * line.rate > NS * max(WAITING_S_MAX * line.rate, WAITING_BYTES_MIN):
                self.overrun += 1
                return
            leaves_ns = self._free_ns = now_ns + waiting_ns + int(len(frame) / line.rate * NS)
        late_s = line.delay_s + (self._draw.uniform(0, line.jitter_s) if line.jitter_s else 0.0)
        self._due_ns = max(self._due_ns, leaves_ns + int(late_s * NS))
        self._frames.append((self._due_ns, frame))
        self.held_bytes += len(frame)

    def leave(self, now_ns: int) -> bytes | None:
        """The next frame that is due at the far end; None if there is none yet."""
        if not self._frames or self._frames[0][0] > now_ns:
            return None
        frame = self._frames.popleft()[1]
        self.passed += 1
        self.passed_bytes += len(frame)
        self.held_bytes -= len(frame)
        return frame

    @property
    def next_ns(self) -> int | None:
        """When the next frame is due; None if the line is empty."""
        return self._frames[0][0] if self._frames else None

    def change(self, line: Line, now_ns: int) -> None:
        """Other qualities from now on."""
        self.line = line
        latest_ns = now_ns + int((line.delay_s + line.jitter_s) * NS)
        self._frames = deque((min(due_ns, latest_ns), frame) for due_ns, frame in self._frames)
        self._due_ns = min(self._due_ns, latest_ns)
        self._free_ns = min(self._free_ns, now_ns)


__all__ = ["Line", "Transit"]
