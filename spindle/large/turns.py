"""Who may bring a large sample now: so much memory of unfinished ones there is at most, and who asked first is first.

Rules:
- Whatever its size, one sample may always be brought.
- One that is first in its topic's order is *urgent*: nothing behind it is delivered before it. It passes by all
  others, and the limit; but only one urgent sample does so at a time. So the memory is bounded by the limit and the
  largest one.
"""

from __future__ import annotations

import asyncio
import dataclasses


@dataclasses.dataclass(eq=False)
class Turn:
    """One that waits, or has its turn (`begins` is done then)."""

    size: int
    urgent: bool
    begins: asyncio.Future[None]


class Turns:
    """See the module's text. On an event loop."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_taken = 0
        self._having: set[Turn] = set()
        self._waiting: list[Turn] = []

    def ask(self, size: int, urgent: bool = False) -> Turn:
        """A turn, behind those asked for before. Whoever has got one ends it, whatever comes of it."""
        turn = Turn(size, urgent, asyncio.get_running_loop().create_future())
        self._waiting.append(turn)
        self._go_on()
        return turn

    def hurry(self, turn: Turn) -> None:
        """It has become urgent."""
        turn.urgent = True
        self._go_on()

    def end(self, turn: Turn) -> None:
        """Gives the turn back, or waits for it no more. Idempotent."""
        if turn in self._having:
            self._having.remove(turn)
            self.bytes_taken -= turn.size
        elif turn in self._waiting:
            self._waiting.remove(turn)
            turn.begins.cancel()
        self._go_on()

    def _go_on(self) -> None:
        while (turn := next((one for one in self._waiting if one.urgent), None) or next(iter(self._waiting), None)):
            fits = not self._having or self.bytes_taken + turn.size <= self.bytes_max
            if not fits and (not turn.urgent or any(one.urgent for one in self._having)):
                return
            self._waiting.remove(turn)
            self._having.add(turn)
            self.bytes_taken += turn.size
            turn.begins.set_result(None)
