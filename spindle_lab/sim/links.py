"""What two lives say to each other: two queues, in order, for as long as the connection between the two lasts.

How a real node finds, opens and authenticates connections is no part of this: where two lives may meet, they do.

Rules: what was sent before an end arrives before it. A life that has ended its side reads nothing more, except that the
other's process has certainly ended, which the kernel tells it. Two that have lost each other meet again only when both
know of it.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Generic, TypeVar

Item = tuple[Any, ...]
Life = TypeVar("Life")

ENDED_ORDERLY, ENDED_FAILED, CRASHED = "left", "failed", "crashed"  # how lives end
CAST_OUT = "you are cast out"  # kind of an end from somebody who goes on
# What is said: MET; MESSAGE, message; END, whether it left in order, kind and text of its error, whether its process
# has certainly ended; ENDED, which the kernel says.
MET, MESSAGE, END, ENDED = range(4)


class Link(Generic[Life]):
    """Between two lives; nothing is said before meet()."""

    def __init__(self, a: Life, b: Life) -> None:
        self.a, self.b = a, b
        self.to_a: deque[Item] = deque()
        self.to_b: deque[Item] = deque()
        self.a_talks = self.b_talks = False

    def other(self, life: Life) -> Life:
        """Who is at the other end."""
        return self.b if life is self.a else self.a

    def queue_of(self, life: Life) -> deque[Item]:
        """What is on its way to this end."""
        return self.to_a if life is self.a else self.to_b

    def talks(self, life: Life) -> bool:
        """This end takes part."""
        return self.a_talks if life is self.a else self.b_talks

    def meet(self) -> bool:
        """Both take part, once both know that they had lost each other. False if nothing is new."""
        if self.a_talks or self.b_talks or any(item[0] == END for item in (*self.to_a, *self.to_b)):
            return False
        self.a_talks = self.b_talks = True
        self.to_a.append((MET,))
        self.to_b.append((MET,))
        return True

    def send(self, sender: Life, item: Item) -> None:
        """Nothing if the sender has ended its side."""
        if self.talks(sender):
            self.queue_of(self.other(sender)).append(item)

    def end(self, life: Life, left: bool = False, kind: str = "", why: str = "", ended: bool = False) -> None:
        """This side ends: the other gets what was sent before, then the end."""
        self.send(life, (END, left, kind, why, ended))
        if life is self.a:
            self.a_talks = False
        else:
            self.b_talks = False
