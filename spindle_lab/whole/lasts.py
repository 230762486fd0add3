"""What a node should keep of a topic whose messages have keys: the model of `spindle_core/lasts.pxi`.

Written a second time from what docs/protocol.md promises, with lists and no thought for speed, so that the two are
wrong together only if the promise is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

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
    RANK_COUNTS,
    RANK_PRESENT,
    RANK_PRESENT_RANKED,
    RANK_YIELDS,
    TopicSpec,
    all_count,
)
from spindle_lab.whole.said import Said

AHEAD_NS = 30_000_000_000  # a timestamp that is later than the agreed time by more than that is not believed


@dataclasses.dataclass(eq=False)
class _Kept:
    """A message, whose it is, and the end with which its writer left the key. Of a writer that doesn't count all that
    matters is that it is there, or has ended the key as it left."""

    said: Said
    who: tuple[int, int, int]
    left: Said | None = None


@dataclasses.dataclass(eq=False)
class _Sample(_Kept):
    alone: bool = False
    yields: Said | None = None  # with this its writer has given up the key, or another one has ended it


@dataclasses.dataclass(eq=False)
class _Key:
    samples: list[_Sample] = dataclasses.field(default_factory=list)
    ended: Said | None = None  # the end of the key, if nothing was said of it since
    others: list[_Kept] = dataclasses.field(default_factory=list)  # writers that don't count: the last first
    alone: bool = False
    said_ns: int | None = None  # of a key that is over: the timestamp of what did it
    since_ns: int | None = None  # ... and when the delay began, by the agreed time

    @property
    def over(self) -> bool:
        return self.ended is not None and all(one.left is not None for one in (*self.samples, *self.others))

    def other(self, who: tuple[int, int, int]) -> _Kept | None:
        return next((one for one in self.others if one.who == who), None)

    def take_out(self, who: tuple[int, int, int]) -> bool:
        """That writer is not there any more, or counts. True if it was one of the others."""
        before = len(self.others)
        self.others = [one for one in self.others if one.who != who]
        return len(self.others) < before

    def left_by(self, who: tuple[int, int, int]) -> list[_Sample]:
        """Samples of a writer that leaves the key now."""
        return [one for one in self.samples if one.who == who and one.left is None]


class Lasts:
    """The table after all that `note` was given, in the order."""

    def __init__(self, spec: TopicSpec) -> None:
        self._effects, self._depth, self._bytes_max = spec.effects, spec.history_depth, spec.table_bytes
        self._samples_max, self._keys_max, self._cleanup_ns = spec.samples_max, spec.keys_max, spec.cleanup_ns
        self._time_tag, self._by_source, self._ranks = spec.time_tag, spec.stamped, spec.ranks
        self._all_count = all_count(spec.ranks)
        self._keys: dict[int, _Key] = {}  # the one whose last sample lies furthest back first
        self._over: list[int] = []  # keys that are over, the one that is so longest first
        self._words: dict[tuple[int, int, int], Said] = {}  # of writers: the last since their last sample and end
        self._ends: list[Said] = []  # that came behind samples of which no key says what is in them
        self.given_up = self.limited = self.said_ns = 0
        self.cleaned = 0  # keys that have gone because their delay was over
        self._ended: set[tuple[int, int, int]] = set()  # writers, by the message that is being noted
        self._went: dict[int, tuple[int, int]] = {}  # keys in which such a writer was one of the others; since where
        self._restoring = False

    def restore(self, kept: Iterable[Said], over: Iterable[tuple[int, int, bool]] = (), said_ns: int = 0,
                given_up: int = 0, limited: int = 0) -> None:
        """Becomes the table that has these messages, of which these keys are over (DeliveryLog.table_over()), when the
        order had said this time, and so much was missing. Nothing is over then that is not over at the end."""
        self._restoring = True
        self.note_all(kept)
        self._restoring = False
        self.said_ns, self.given_up, self.limited = said_ns, given_up, limited
        self._keys = {number: key for number, key in self._keys.items() if key.samples}
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
        writers = self._writers()
        found.update((said.order, said) for who, said in self._words.items() if who in writers)
        alone = min((one.said.order for one in self._samples() if one.alone), default=None)
        found.update((said.order, said) for said in self._ends if alone is not None and alone < said.order)
        for key in self._keys.values():
            for said in (key.ended, *(said for one in key.others for said in (one.said, one.left)),
                         *(said for one in key.samples for said in (one.said, one.left, one.yields))):
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
        self._ended, self._went = set(), {}
        if does & EFFECT_OF_NODE and not does & EFFECT_CARRIED:
            if not said.writer:
                self._end(said, does, {who: does for who in self._writers() if who[0] == said.sender})
        elif does & EFFECT_OF_WRITER:
            self._end(said, does, self._ending(said, does))
        elif does & EFFECT_SAMPLE:
            self._add(said, does)
        elif does & (EFFECT_LEAVES | EFFECT_ENDS):
            self._end_of_key(said, does)
        elif self._ranks and self._ranks[said.tag] == RANK_YIELDS:
            self._yield(said)
        elif self._ranks and self._ranks[said.tag] > RANK_YIELDS:
            self._note_present(said)
        self._look_over(said, does)
        writers = self._writers()
        self._words = {who: word for who, word in self._words.items() if who in writers}
        kept = {one.order for one in self.kept}
        self._ends = [one for one in self._ends if one.order in kept]

    def _ending(self, said: Said, does: int) -> dict[tuple[int, int, int], int]:
        """The writers about which a message of a writer is, and what it does to the keys of each."""
        who = said.author(self._effects)
        return {who: does} if who in self._writers() else {}

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
                of_writer = [one.said.order for one in self._keys[number].samples if one.who in self._ended]
                return max([*of_writer, *([self._went[number]] if number in self._went else [])])

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
        if self.said_ns - now_ns > AHEAD_NS:  # what was said is taken back
            for key in self._keys.values():
                if key.since_ns is not None:
                    key.since_ns = min(key.since_ns, now_ns)
        else:
            now_ns = max(now_ns, self.said_ns)
        self.said_ns = now_ns
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

    def _writers(self) -> set[tuple[int, int, int]]:
        """Of whom anything is kept."""
        return ({one.who for one in self._samples()}
                | {one.who for key in self._keys.values() for one in key.others})

    # --- where of each key only one counts

    def _holding(self, number: int) -> Said | None:
        """What was said last by whose the key is; None: it is nobody's."""
        key = self._keys.get(number)
        if self._all_count or key is None or key.alone or number in self._over or not key.samples:
            return None
        newest = key.samples[-1]
        if newest.left is not None or newest.yields is not None:
            return None
        return newest.said if key.ended is None else key.ended

    def _may_say(self, said: Said) -> bool:
        holder = self._holding(said.key)
        return (holder is None or holder.who == said.who
                or (said.rank, _smaller_first(holder)) > (holder.rank, _smaller_first(said)))

    def _keep_present(self, said: Said) -> None:
        key, who = self._keys[said.key], said.who
        key.take_out(who)
        self._look_ended(said.key)
        if self._bytes + _cost(said.size) > self._bytes_max:
            return
        self._clear_word(who)
        key.others.insert(0, _Kept(self._as_present(said), who))

    def _as_present(self, said: Said) -> Said:
        place = self._ranks[said.tag]
        if place >= RANK_PRESENT:
            return said
        return dataclasses.replace(
            said, tag=self._ranks.index(RANK_PRESENT if place in (0, RANK_COUNTS) else RANK_PRESENT_RANKED))

    def _note_present(self, said: Said) -> None:
        if self._restoring:
            self._keys.setdefault(said.key, _Key())
        key = self._keys.get(said.key)
        if key is not None and not key.alone and said.key not in self._over:
            self._keep_present(said)

    def _yield(self, said: Said) -> None:
        holder = self._holding(said.key)
        if holder is None or holder.who != said.who:
            self._keep_end(said)
        elif self._make_room_for_end(said, said.key):
            self._keys[said.key].samples[-1].yields = said
            self._ends.append(said)
        elif said.key in self._keys:
            self.given_up += len(self._forget(said.key))

    def _look_ended(self, number: int) -> None:
        """Whose end has ended the key, of that something must be kept there; else the next one has."""
        key = self._keys[number]
        ended = key.ended
        if ended is None or not self._ends_all(ended) or any(
                one.left is ended for one in [*key.samples, *key.others]):
            return
        following = [one.left for one in key.samples
                     if one.left is not None and self._ends_all(one.left) and one.left.order > ended.order]
        if following:
            key.ended = min(following, key=lambda one: one.order)
        else:
            self._not_ended(number)

    def _ends_all(self, said: Said) -> bool:
        """All keys of its writer."""
        does = self._effects[said.tag]
        return bool(does & EFFECT_ENDS and _is_about_all(does))

    def _not_ended(self, number: int) -> None:
        key = self._keys[number]
        key.ended = None
        key.others = [one for one in key.others if one.left is None]
        if number in self._over:
            self._over.remove(number)

    def _drop_other(self, number: int, at: int, said: Said, spared: int | None) -> None:
        key = self._keys[number]
        del key.others[at]
        self._look_ended(number)
        if number != spared and key.over and number not in self._over and not self._restoring:
            self._becomes_over(number, said.source_ns)

    def _is_older(self, said: Said) -> bool:
        """Its readers have had something of the key that was written later, as the sources say."""
        key = self._keys.get(said.key)
        if not self._by_source or key is None or key.alone:
            return False
        told = [key.samples[-1].said]
        if key.ended is not None and not _is_about_all(self._effects[key.ended.tag]):
            told.append(key.ended)
        return said.source_ns < max(one.source_ns for one in told)

    def _add(self, said: Said, does: int) -> None:
        if not does & EFFECT_ALONE and said.key not in self._over and not self._restoring:
            if self._ranks and not self._may_say(said):
                self._keep_present(said)
                return
            if self._is_older(said):
                if self._ranks and not does & EFFECT_CARRIED:
                    self._keep_present(said)
                return
        key = self._keys[said.key] = self._keys.pop(said.key, _Key())
        self._not_ended(said.key)
        key.alone = bool(does & EFFECT_ALONE)
        if key.alone:
            key.others = []  # nobody knows any more who leaves it
        depth = (does & EFFECT_CARRIED and said.last >> 48) or self._depth
        while depth and len(key.samples) >= depth:
            first = key.samples.pop(0)
            others = {said.author(self._effects), *(one.who for one in [*key.samples, *key.others])}
            if self._ranks and not (key.alone or first.alone or self._effects[first.said.tag] & EFFECT_CARRIED) and (
                    first.left is None and first.who not in others and not any(one.alone for one in key.samples)):
                key.others.append(_Kept(self._as_present(first.said), first.who))
                key.others.sort(key=lambda one: one.said.order, reverse=True)
        key.take_out(said.author(self._effects))
        if not self._restoring:
            self._limit(said)
        while not self._make_room(said, said.key):
            if key.others:
                self._drop_other(said.key, 0, said, said.key)
                continue
            self.given_up += 1
            if not key.samples:
                del self._keys[said.key]
                return
            del key.samples[0]
        who = said.author(self._effects)
        self._clear_word(who)
        key.samples.append(_Sample(said, who, alone=key.alone))
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
            if self._drop_first_other(said, said.key):
                continue
            self.limited += 1
            self._drop_oldest(number, key, said, said.key)

    def _end_of_key(self, said: Said, does: int) -> None:
        key, who = self._keys.get(said.key), said.author(self._effects)
        if self._ranks and key is not None and not key.alone:
            if does & EFFECT_ENDS and not self._may_say(said):
                does &= ~EFFECT_ENDS
                if not does & EFFECT_LEAVES:
                    self._keep_present(said)
                    return
        if self._is_older(said):
            does &= ~EFFECT_ENDS
        if self._ranks and key is not None and not key.alone:
            took_out = bool(does & EFFECT_LEAVES) and key.take_out(who)
            self._look_ended(said.key)
            if took_out and not (does & EFFECT_ENDS or key.left_by(who)):
                if key.over and said.key not in self._over and not self._restoring:
                    self._becomes_over(said.key, said.source_ns)
                key = self._keys.get(said.key)
        if key is None or not (does & EFFECT_ENDS or key.left_by(who)):
            self._keep_end(said)
            return
        if not self._make_room_for_end(said, said.key):
            if said.key in self._keys:
                self.given_up += len(self._forget(said.key))
            return
        if does & EFFECT_ENDS or key.left_by(who):  # else what it was about made room for it
            holder = self._holding(said.key) if self._ranks and does & EFFECT_ENDS else None
            if holder is not None and holder.who != said.who:
                key.samples[-1].yields = said
            self._meet(key, said, does, who)
            self._ends.append(said)
        else:
            self._look_over(said, does)
            self._keep_end(said)

    def _clear_word(self, who: tuple[int, int, int]) -> None:
        """What was said of a writer isn't the last any more. (Of whom nothing was kept, it was already no more but an
        end of anything.)"""
        word = self._words.pop(who, None)
        if who in self._writers():
            self._ends = [one for one in self._ends if one is not word]

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
            if key.ended is not said:
                key.others = [one for one in key.others if one.left is None]
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
                self._clear_word(who)
            if not does & (EFFECT_LEAVES | EFFECT_ENDS):
                self._words[said.author(self._effects)] = said
        self._ends.append(said)
        for number, key in self._keys.items():
            for who in writers:
                other = key.other(who) if does & (EFFECT_LEAVES | EFFECT_ENDS) else None
                if other is not None and other.left is not None:
                    other = None
                if key.left_by(who) or other is not None:
                    holder = self._holding(number) if self._ranks else None
                    stays = (holder is not None and holder.who != who) or bool(self._ranks and key.ended)
                    self._meet(key, said, writers[who] & ~EFFECT_ENDS if stays else writers[who], who)
                if other is not None:
                    self._went[number] = max(other.said.order, self._went.get(number, other.said.order))
                    if key.ended is said:
                        other.left = said
                    else:
                        key.take_out(who)
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
            if self._keys[goes].others and goes not in self._over:
                self._drop_other(goes, 0, said, spared)
                continue
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
            self._look_ended(number)
            if not key.samples:
                self._forget(number)
            elif number != spared and key.over and number not in self._over and not self._restoring:
                self._becomes_over(number, said.source_ns)
        kept = {one.order for one in self.kept}
        self._ends = [one for one in self._ends if one.order in kept]

    def _give_up_oldest(self, said: Said, spared: int | None) -> bool:
        if self._drop_first_other(said, spared):
            return True
        number, key = self._oldest()
        if key is None or (number == spared and len(key.samples) == 1):
            return False
        self.given_up += 1
        self._drop_oldest(number, key, said, spared)
        return True

    def _drop_first_other(self, said: Said, spared: int | None) -> bool:
        """The first message of all, if its writer doesn't count. True if it was so."""
        first = min((one.said.order for one in self._samples()), default=None)
        for number, key in self._keys.items():
            for at, other in enumerate(key.others):
                order = other.said.order
                if all(order <= one.said.order for each in self._keys.values() for one in each.others) and (
                        first is None or order < first):
                    self._drop_other(number, at, said, spared)
                    return True
        return False

    def _oldest(self) -> tuple[int, _Key | None]:
        """The key with the oldest sample of all."""
        return min(((number, one) for number, one in self._keys.items() if one.samples),
                   key=lambda one: one[1].samples[0].said.order, default=(0, None))

    def _drop_oldest(self, number: int, key: _Key, said: Said, spared: int | None) -> None:
        del key.samples[0]
        self._look_ended(number)
        if number != spared and not key.samples:
            self._forget(number)
        elif number != spared and key.over:
            self._becomes_over(number, said.source_ns)


def _is_about_all(does: int) -> bool:
    """All keys of its writer, or of the writers of its node."""
    return bool(does & EFFECT_OF_WRITER or (does & EFFECT_OF_NODE and not does & EFFECT_CARRIED))


def _smaller_first(said: Said) -> tuple[int, int, int]:
    """Of equal ranks that of the smaller number counts: those of nodes before those without."""
    return said.relay, 0 if said.relay else said.sender, said.writer


def _cost(size: int) -> int:
    return 128 + (size + 63) // 64 * 64
