"""Messages as a table of the last messages of each key sees them."""

from __future__ import annotations

import dataclasses
from typing import Any

from spindle.group.topics import EFFECT_CARRIED, RANK_BYTES, RANK_PLACE_MAX


@dataclasses.dataclass(frozen=True)
class Said:
    """A message as the table sees it. `order` is its place; `body` is whatever tells it from others."""

    order: tuple[int, int]
    key: int
    tag: int
    sender: int
    writer: int
    relay: int
    size: int
    body: Any = None
    source_ns: int = 0
    last: int = dataclasses.field(default=0, compare=False)  # number in its payload's last 8 bytes; 0: it is shorter
    rank: int = dataclasses.field(default=0, compare=False)  # of its writer, where only one counts

    def author(self, effects: bytes) -> tuple[int, int, int]:
        """Who says it: its writer, or the one for whom that speaks."""
        relay, writer = self.last >> 16 & 0xFFFF_FFFF, self.last & 0xFFFF
        if not effects[self.tag] & EFFECT_CARRIED or not (relay or writer) or bool(relay) != bool(self.relay):
            return self.who
        return (0 if relay else self.sender), relay, writer

    @property
    def who(self) -> tuple[int, int, int]:
        """Its writer, which on a host without a node is the same at every node."""
        return (0 if self.relay else self.sender), self.relay, self.writer


def size_of(message: Any) -> int:
    """Bytes of its sample, also where only the entry of a large one is here."""
    return int.from_bytes(message.payload[8:16], "little") if message.large else len(message.payload)


def rank_in(payload: bytes, place: int) -> int:
    """The rank that stands in a message, so many bytes before its end."""
    ranked = 0 < place <= RANK_PLACE_MAX and len(payload) >= place
    return int.from_bytes(payload[len(payload) - place :][:RANK_BYTES], "little", signed=True) if ranked else 0


def said_of(message: Any, body: Any = None, ranks: bytes = b"") -> Said:
    """Of a message as histories have it (`spindle.restart.pieces.Message`). `ranks`: of its topic."""
    payload = message.payload
    rank = rank_in(payload, ranks[message.tag] if ranks else 0)
    return Said(message.order, message.key, message.tag, message.sender, message.writer_id, message.relay,
                size_of(message), body, message.source_ns,
                int.from_bytes(payload[-8:], "little") if len(payload) >= 8 else 0, rank)
