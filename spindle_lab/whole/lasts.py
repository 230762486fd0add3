"""What a node should keep of a topic whose messages have keys: the model of `spindle_core/lasts.pxi`.

Written a second time from what docs/protocol.md promises, with lists and no thought for speed, so that the two are
wrong together only if the promise is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from spindle.group.topics import (
    CLEANUP_NEVER,
    EFFECT_ALONE,
    EFFECT_BOUND,
    EFFECT_CARRIED,
    EFFECT_ENDS,
    EFFECT_LEAVES,
    EFFECT_OF_NODE,
    EFFECT_OF_WRITER,
    EFFECT_SAMPLE,
    TopicSpec,
)

AHEAD_NS = 30_000_000_000  # a timestamp that is later than the agreed time by more than that is not believed


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


@dataclasses.dataclass(eq=False)
class _Sample:
    said: Said
    who: tuple[int, int, int]
    alone: bool
    left: Said | None = None  # the end with which its writer left the key


@dataclasses.dataclass(eq=False)
class _Key:
    samples: list[_Sample] = dataclasses.field(default_factory=list)
    ended: Said | None = None  # the end of the key, if nothing was said of it since
    alone: bool = False
    said_ns: int | None = None  # of a key that is over: the timestamp of what did it
    since_ns: int | None = None  # ... and when the delay began, by the agreed time

    @property
    def over(self) -> bool:
        return self.ended is not None and all(one.left is not None for one in self.samples)

    def left_by(self, who: tuple[int, int, int]) -> list[_Sample]:
        """Samples of a writer that leaves the key now."""
        return [one for one in self.samples if one.who == who and one.left is None]


class Lasts:
    """The table after all that `note` was given, in the order."""

    def __init__(self, spec: TopicSpec) -> None:
        self._effects, self._depth, self._bytes_max = spec.effects, spec.history_depth, spec.table_bytes
        self._samples_max, self._keys_max, self._cleanup_ns = spec.samples_max, spec.keys_max, spec.cleanup_ns
        self._time_tag, self._by_source = spec.time_tag, spec.stamped
        self._keys: dict[int, _Key] = {}  # the one whose last sample lies furthest back first
        self._over: list[int] = []  # keys that are over, the one that is so longest first
        self._words: dict[tuple[int, int, int], Said] = {}  # of writers: the last since their last sample and end
        self._ends: list[Said] = []  # that came behind samples of which no key says what is in them
        self.given_up = self.limited = self.said_ns = 0
        self.cleaned = 0  # keys that have gone because their delay was over
        self._ended: set[tuple[int, int, int]] = set()  # writers, by the message that is being noted
        self._restoring = False

    def restore(self, kept: Iterable[Said], over: Iterable[tuple[int, int, bool]] = (), said_ns: int = 0,
                given_up: int = 0, limited: int = 0) -> None:
        """Becomes the table that has these messages, of which these keys are over (DeliveryLog.table_over()), when the
        order had said this time, and so much was missing. Nothing is over then that is not over at the end."""
        self._restoring = True
        self.note_all(kept)
        self._restoring = False
        self.said_ns, self.given_up, self.limited = said_ns, given_up, limited
        for number, ns, waits in over:
            key = self._keys[number]
            key.said_ns, key.since_ns = ns, None if waits else ns
            self._over.append(number)

    def note_all(self, messages: Iterable[Said]) -> Lasts:
        for one in messages:
            self.note(one)
        return self

    @property
    def kept(self) -> list[Said]:
        """In the order."""
        found: dict[tuple[int, int], Said] = {}
        writers = {one.who for one in self._samples()}
        found.update((said.order, said) for who, said in self._words.items() if who in writers)
        alone = min((one.said.order for one in self._samples() if one.alone), default=None)
        found.update((said.order, said) for said in self._ends if alone is not None and alone < said.order)
        for key in self._keys.values():
            for said in (key.ended, *(said for one in key.samples for said in (one.said, one.left))):
                if said is not None:
                    found[said.order] = said
        return [found[order] for order in sorted(found)]

    @property
    def over(self) -> list[tuple[int, int, bool]]:
        """Keys that are over, and kept for a while, as DeliveryLog.table_over() has them."""
        found = []
        for number in sorted(self._over, key=lambda one: self._keys[one].alone):
            key = self._keys[number]
            assert key.said_ns is not None
            found.append((number, key.said_ns if key.since_ns is None else key.since_ns, key.since_ns is None))
        return found

    def note(self, said: Said) -> None:
        if self._time_tag and said.tag == self._time_tag:
            if not said.writer:
                self._tell_time(said.source_ns)
            return
        does = self._effects[said.tag]
        self._ended = set()
        if does & EFFECT_OF_NODE and not does & EFFECT_CARRIED:
            if not said.writer:
                self._end(said, does, {one.who: does for one in self._samples() if one.who[0] == said.sender})
        elif does & EFFECT_OF_WRITER:
            self._end(said, does, self._ending(said, does))
        elif does & EFFECT_SAMPLE:
            self._add(said, does)
        elif does & (EFFECT_LEAVES | EFFECT_ENDS):
            self._end_of_key(said, does)
        self._look_over(said, does)
        writers = {one.who for one in self._samples()}
        self._words = {who: word for who, word in self._words.items() if who in writers}
        kept = {one.order for one in self.kept}
        self._ends = [one for one in self._ends if one.order in kept]

    def _ending(self, said: Said, does: int) -> dict[tuple[int, int, int], int]:
        """The writers about which a message of a writer is, and what it does to the keys of each."""
        who = said.author(self._effects)
        return {who: does} if any(one.who == who for one in self._samples()) else {}

    def _is_carried(self, one: _Sample, said: Said, does: int) -> bool:
        """The writer that ends with this message has brought the sample, for another one."""
        return bool(does & (EFFECT_LEAVES | EFFECT_ENDS) and not does & EFFECT_CARRIED and one.who != said.who
                    and self._effects[one.said.tag] & EFFECT_CARRIED and one.said.who == said.who)

    # --- keys that are over

    def _look_over(self, said: Said, does: int) -> None:
        if self._restoring:
            return
        numbers = [number for number, key in self._keys.items() if key.over and number not in self._over]
        if self._ended == {said.author(self._effects)}:
            # Of a writer that ends, in the opposite order of its last samples of them.
            def last_of_writer(number: int) -> tuple[int, int]:
                return max(one.said.order for one in self._keys[number].samples if one.who in self._ended)

            numbers.sort(key=last_of_writer, reverse=True)
        for number in numbers:
            self._becomes_over(number, said.source_ns)

    def _becomes_over(self, number: int, said_ns: int) -> None:
        if self._cleanup_ns:
            self._keys[number].said_ns, self._keys[number].since_ns = said_ns, None
            self._over.append(number)
        else:
            del self._keys[number]

    def _tell_time(self, now_ns: int) -> None:
        if now_ns >= 1 << 63 or self._cleanup_ns >= CLEANUP_NEVER:
            return
        self.said_ns = now_ns = max(now_ns, self.said_ns)
        least = {False: 0, True: 0}  # no key goes before one that was over earlier
        for number in list(self._over):
            key = self._keys[number]
            assert key.said_ns is not None
            if key.since_ns is None:
                believed = now_ns <= key.said_ns <= now_ns + AHEAD_NS
                key.since_ns = max(key.said_ns if believed else now_ns, least[key.alone])
            least[key.alone] = key.since_ns
            if key.since_ns + self._cleanup_ns <= now_ns:
                self._forget(number)
                self.cleaned += 1

    def _forget(self, number: int) -> list[_Sample]:
        if number in self._over:
            self._over.remove(number)
        return self._keys.pop(number).samples

    def _over_but(self, spared: int | None, *, counted: bool = False) -> int | None:
        """The key that is over and goes first: one of those that are counted, if there is one."""
        over = [number for number in self._over if number != spared]
        over.sort(key=lambda number: self._keys[number].alone)
        return next((one for one in over if not (counted and self._keys[one].alone)), None)

    # --- messages

    def _samples(self) -> list[_Sample]:
        return [one for key in self._keys.values() for one in key.samples]

    def _is_older(self, said: Said) -> bool:
        """Its readers have had something of the key that was written later, as the sources say."""
        key = self._keys.get(said.key)
        if not self._by_source or key is None or key.alone:
            return False
        told = [key.samples[-1].said]
        if key.ended is not None and not self._effects[key.ended.tag] & (EFFECT_OF_WRITER | EFFECT_OF_NODE):
            told.append(key.ended)
        return said.source_ns < max(one.source_ns for one in told)

    def _add(self, said: Said, does: int) -> None:
        if not does & EFFECT_ALONE and said.key not in self._over and not self._restoring and self._is_older(said):
            return
        key = self._keys[said.key] = self._keys.pop(said.key, _Key())
        if said.key in self._over:
            self._over.remove(said.key)
        key.ended = None
        key.alone = bool(does & EFFECT_ALONE)
        depth = (does & EFFECT_CARRIED and said.last >> 48) or self._depth
        while depth and len(key.samples) >= depth:
            del key.samples[0]
        if not self._restoring:
            self._limit(said)
        while not self._make_room(said, said.key):
            self.given_up += 1
            if not key.samples:
                del self._keys[said.key]
                return
            del key.samples[0]
        who = said.author(self._effects)
        key.samples.append(_Sample(said, who, key.alone))
        self._words.pop(who, None)
        self._meet(key, said, does, who)

    def _limit(self, said: Said) -> None:
        while self._keys_max and sum(not one.alone for one in self._keys.values()) > self._keys_max:
            over = self._over_but(said.key, counted=True)
            silent = next(number for number, one in self._keys.items() if number != said.key and not one.alone)
            self.limited += len(self._forget(silent if over is None else over))
        while self._samples_max and len(self._samples()) >= self._samples_max:
            over = self._over_but(said.key)
            if over is not None:
                self.limited += len(self._forget(over))
                continue
            number, key = self._oldest()
            assert key is not None
            self.limited += 1
            self._drop_oldest(number, key, said, said.key)

    def _end_of_key(self, said: Said, does: int) -> None:
        key, who = self._keys.get(said.key), said.author(self._effects)
        if self._is_older(said):
            does &= ~EFFECT_ENDS
        if key is None or not (does & EFFECT_ENDS or key.left_by(who)):
            self._keep_end(said)
            return
        if not self._make_room_for_end(said, said.key):
            if said.key in self._keys:
                self.given_up += len(self._forget(said.key))
            return
        if does & EFFECT_ENDS or key.left_by(who):  # else what it was about made room for it
            self._meet(key, said, does, who)
            self._ends.append(said)
        else:
            self._look_over(said, does)
            self._keep_end(said)

    def _keep_end(self, said: Said) -> None:
        """Of nothing that is known to be kept: for what is ALONE."""
        if any(one.alone for one in self._samples()) and self._make_room_for_end(said, None):
            self._ends.append(said)

    def _make_room_for_end(self, said: Said, spared: int | None) -> bool:
        if self._make_room(said, spared):
            return True
        for number in [number for number, key in self._keys.items() if key.alone]:
            self.given_up += len(self._forget(number))
        return False

    def _meet(self, key: _Key, said: Said, does: int, who: tuple[int, int, int]) -> None:
        if does & EFFECT_LEAVES:
            for one in key.left_by(who):
                one.left = said
        if does & EFFECT_ENDS:
            key.ended = said

    def _end(self, said: Said, does: int, writers: dict[tuple[int, int, int], int]) -> None:
        """Of all keys of some writers, with what it does to them."""
        of_writer = not does & EFFECT_OF_NODE or does & EFFECT_CARRIED
        if not writers and of_writer and not any(self._is_carried(one, said, does) for one in self._samples()):
            self._keep_end(said)
            return
        if not self._make_room_for_end(said, None):
            return
        if of_writer:
            writers = self._ending(said, does)  # without those that made room for it
            carries = any(self._is_carried(one, said, does) for one in self._samples())
            if not writers and not carries:
                self._keep_end(said)
                return
            self._ended = set() if carries else set(writers)
            for who in writers:
                self._words.pop(who, None)
            if not does & (EFFECT_LEAVES | EFFECT_ENDS):
                self._words[said.author(self._effects)] = said
        self._ends.append(said)
        for key in self._keys.values():
            for who in writers:
                if key.left_by(who):
                    self._meet(key, said, writers[who], who)
            for one in reversed(key.samples) if of_writer else ():
                if one.left is None and self._is_carried(one, said, does):
                    bound = self._effects[one.said.tag] & EFFECT_BOUND
                    self._meet(key, said, does | EFFECT_ENDS if bound else does, one.who)

    @property
    def _bytes(self) -> int:
        return sum(_cost(one.size) for one in self.kept)

    def _make_room(self, said: Said, spared: int | None) -> bool:
        while self._bytes + _cost(said.size) > self._bytes_max:
            goes = self._over_but(spared)
            if _cost(said.size) > self._bytes_max:
                return False
            if goes is None and not self._depth:
                if not self._give_up_oldest(said, spared):
                    return False
                continue
            if goes is None:
                goes = next((number for number in self._keys if number != spared), None)
            if goes is None:
                return False
            over = goes in self._over
            samples = self._forget(goes)
            self.given_up += len(samples)
            if not over:
                self._give_up_before(samples[-1].said.order, said, spared)
        return True

    def _give_up_before(self, order: tuple[int, int], said: Said, spared: int | None) -> None:
        """A key has lost its last sample, which stood here: so do those that are of no key what came before that, and
        with it go the ends before that."""
        while (found := min(((one.said.order, number) for number, key in self._keys.items() for one in key.samples
                             if one.alone), default=None)) and found[0] <= order:
            number, key = found[1], self._keys[found[1]]
            if len(key.samples) == 1 and number == spared:
                return
            self.given_up += 1
            del key.samples[0]
            if not key.samples:
                self._forget(number)
            elif number != spared and key.over and number not in self._over and not self._restoring:
                self._becomes_over(number, said.source_ns)
        kept = {one.order for one in self.kept}
        self._ends = [one for one in self._ends if one.order in kept]

    def _give_up_oldest(self, said: Said, spared: int | None) -> bool:
        number, key = self._oldest()
        if key is None or (number == spared and len(key.samples) == 1):
            return False
        self.given_up += 1
        self._drop_oldest(number, key, said, spared)
        return True

    def _oldest(self) -> tuple[int, _Key | None]:
        """The key with the oldest sample of all."""
        return min(((number, one) for number, one in self._keys.items() if one.samples),
                   key=lambda one: one[1].samples[0].said.order, default=(0, None))

    def _drop_oldest(self, number: int, key: _Key, said: Said, spared: int | None) -> None:
        del key.samples[0]
        if number != spared and not key.samples:
            self._forget(number)
        elif number != spared and key.over:
            self._becomes_over(number, said.source_ns)


def _cost(size: int) -> int:
    return 128 + (size + 63) // 64 * 64


def size_of(message: Any) -> int:
    """Bytes of its sample, also where only the entry of a large one is here."""
    return int.from_bytes(message.payload[8:16], "little") if message.large else len(message.payload)


def said_of(message: Any, body: Any = None) -> Said:
    """Of a message as histories have it (`spindle.restart.pieces.Message`)."""
    return Said(message.order, message.key, message.tag, message.sender, message.writer_id, message.relay,
                size_of(message), body, message.source_ns,
                int.from_bytes(message.payload[-8:], "little") if len(message.payload) >= 8 else 0)
