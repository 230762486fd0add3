"""What a node should keep of a topic whose messages have keys: the model of `spindle_core/lasts.pxi`.

Written a second time from what docs/protocol.md promises, with lists and no thought for speed, so that the two are
wrong together only if the promise is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from spindle.group.topics import (
    EFFECT_ENDS,
    EFFECT_LEAVES,
    EFFECT_OF_NODE,
    EFFECT_OF_WRITER,
    EFFECT_SAMPLE,
    TopicSpec,
)


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

    @property
    def who(self) -> tuple[int, int, int]:
        """Its writer, which on a host without a node is the same at every node."""
        return (0 if self.relay else self.sender), self.relay, self.writer


@dataclasses.dataclass(eq=False)
class _Sample:
    said: Said
    left: Said | None = None  # the end with which its writer left the key


@dataclasses.dataclass(eq=False)
class _Key:
    samples: list[_Sample] = dataclasses.field(default_factory=list)
    ended: Said | None = None  # the end of the key, if nothing was said of it since

    @property
    def over(self) -> bool:
        return self.ended is not None and all(one.left is not None for one in self.samples)

    def left_by(self, who: tuple[int, int, int]) -> list[_Sample]:
        """Samples of a writer that leaves the key now."""
        return [one for one in self.samples if one.said.who == who and one.left is None]


class Lasts:
    """The table after all that `note` was given, in the order."""

    def __init__(self, spec: TopicSpec) -> None:
        self._effects, self._depth, self._bytes_max = spec.effects, spec.history_depth, spec.table_bytes
        self._keys: dict[int, _Key] = {}  # the one whose last sample lies furthest back first
        self._words: dict[tuple[int, int, int], Said] = {}  # of writers: the last since their last sample and end
        self.given_up = 0
        self._restoring = False

    def restore(self, kept: Iterable[Said]) -> None:
        """Becomes the table that has these messages. Nothing is over then that is not over at the end."""
        self._restoring = True
        self.note_all(kept)
        self._restoring = False

    def note_all(self, messages: Iterable[Said]) -> Lasts:
        for one in messages:
            self.note(one)
        return self

    @property
    def kept(self) -> list[Said]:
        """In the order."""
        found: dict[tuple[int, int], Said] = {}
        writers = {one.said.who for one in self._samples()}
        found.update((said.order, said) for who, said in self._words.items() if who in writers)
        for key in self._keys.values():
            for said in (key.ended, *(said for one in key.samples for said in (one.said, one.left))):
                if said is not None:
                    found[said.order] = said
        return [found[order] for order in sorted(found)]

    def note(self, said: Said) -> None:
        does = self._effects[said.tag]
        if does & EFFECT_OF_NODE:
            if not said.writer:
                self._end(said, does, {one.said.who for one in self._samples() if one.said.who[0] == said.sender})
        elif does & EFFECT_OF_WRITER:
            self._end(said, does, {one.said.who for one in self._samples() if one.said.who == said.who})
        elif does & EFFECT_SAMPLE:
            self._add(said, does)
        elif does:
            self._end_of_key(said, does)
        for number, key in list(self._keys.items()):
            if key.over and not self._restoring:
                del self._keys[number]
        writers = {one.said.who for one in self._samples()}
        self._words = {who: word for who, word in self._words.items() if who in writers}

    def _samples(self) -> list[_Sample]:
        return [one for key in self._keys.values() for one in key.samples]

    def _add(self, said: Said, does: int) -> None:
        key = self._keys[said.key] = self._keys.pop(said.key, _Key())
        key.ended = None
        if len(key.samples) == self._depth:
            del key.samples[0]
        while not self._make_room(said.size, said.key):
            self.given_up += 1
            if not key.samples:
                del self._keys[said.key]
                return
            del key.samples[0]
        key.samples.append(_Sample(said))
        self._words.pop(said.who, None)
        self._meet(key, said, does, said.who)

    def _end_of_key(self, said: Said, does: int) -> None:
        key = self._keys.get(said.key)
        if key is None or not (does & EFFECT_ENDS or key.left_by(said.who)):
            return
        if not self._make_room(said.size, said.key):
            self.given_up += len(key.samples)
            del self._keys[said.key]
            return
        self._meet(key, said, does, said.who)

    def _meet(self, key: _Key, said: Said, does: int, who: tuple[int, int, int]) -> None:
        if does & EFFECT_LEAVES:
            for one in key.left_by(who):
                one.left = said
        if does & EFFECT_ENDS:
            key.ended = said

    def _end(self, said: Said, does: int, writers: set[tuple[int, int, int]]) -> None:
        """Of all keys of some writers."""
        if not writers and not does & EFFECT_OF_NODE:
            return
        if not self._make_room(said.size, None):
            return
        if does & EFFECT_OF_WRITER:
            self._words.pop(said.who, None)
            if not does & (EFFECT_LEAVES | EFFECT_ENDS):
                self._words[said.who] = said
        for key in self._keys.values():
            for who in writers:
                if key.left_by(who):
                    self._meet(key, said, does, who)

    @property
    def _bytes(self) -> int:
        return sum(_cost(one.size) for one in self.kept)

    def _make_room(self, size: int, spared: int | None) -> bool:
        while self._bytes + _cost(size) > self._bytes_max:
            oldest = next((number for number in self._keys if number != spared), None)
            if oldest is None or _cost(size) > self._bytes_max:
                return False
            self.given_up += len(self._keys.pop(oldest).samples)
        return True


def _cost(size: int) -> int:
    return 128 + (size + 63) // 64 * 64


def said_of(message: Any, body: Any = None) -> Said:
    """Of a message as histories have it (`spindle.restart.pieces.Message`)."""
    return Said(message.order, message.key, message.tag, message.sender, message.writer_id, message.relay,
                len(message.payload), body)
