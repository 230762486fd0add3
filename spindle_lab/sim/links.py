"""Connections between lives of nodes: two queues each, in order, which end.

Rules: what was sent before an end arrives before it. Who has closed its side reads nothing more from it, but for the
certain end of the other's process, which it learns of the kernel.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spindle_lab.sim.node import Life

Item = tuple[Any, ...]

ENDED_ORDERLY, ENDED_FAILED, CRASHED = "left", "failed", "crashed"  # how lives end
CAST_OUT = "you are cast out"  # kind of a farewell from somebody who goes on
HELLO, WELCOME, MESSAGE, OFFER, FAREWELL, END, ENDED = range(7)


class Conn:
    """One connection; `a` has opened it."""

    def __init__(self, a: Life, b: Life) -> None:
        self.a, self.b = a, b
        self.to_a: deque[Item] = deque()
        self.to_b: deque[Item] = deque()
        self.a_reads = self.b_reads = True
        self.open_at_a = self.open_at_b = False  # the handshake is done there
        self.farewell_to_a: Item | None = None
        self.farewell_to_b: Item | None = None

    def other(self, life: Life) -> Life:
        return self.b if life is self.a else self.a

    def queue_of(self, life: Life) -> deque[Item]:
        """What is on its way to this end."""
        return self.to_a if life is self.a else self.to_b

    def reads(self, life: Life) -> bool:
        return self.a_reads if life is self.a else self.b_reads

    def is_open(self, life: Life) -> bool:
        return self.open_at_a if life is self.a else self.open_at_b

    def set_open(self, life: Life, is_open: bool) -> None:
        if life is self.a:
            self.open_at_a = is_open
        else:
            self.open_at_b = is_open

    def send(self, sender: Life, item: Item) -> None:
        if self.reads(sender):  # else it has closed its end
            (self.to_b if sender is self.a else self.to_a).append(item)

    def close(self, life: Life, ended: bool) -> None:
        """This end closes: the other gets what was sent before, then the end. `ended`: certainly for good."""
        if not self.reads(life):
            return
        self.send(life, (END, ended))
        self.set_open(life, False)
        if life is self.a:
            self.a_reads = False
        else:
            self.b_reads = False
