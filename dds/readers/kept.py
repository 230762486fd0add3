"""What a reader has taken out of the delivery log and still keeps, and how it is given to the program.

Rules: entries are in the order of delivery. A sample that can't be decoded is not of the reader's type: it is given up
and counted as soon as somebody looks. One that a filter fails for is kept like any other, and reading it raises
Unreadable, once: it costs the program an exception, and no other sample. A sample whose lifespan is over, as the
topic's order says, goes, read or not. What was kept when its node went away may never be heard of at the next: that
goes by the clock of this host.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from dds.codecs.types import Codec
from dds.filters.content import Content, Undecided
from dds.internal import InvalidSample, SampleInfo
from dds.messages.operations import KEYLESS_HANDLE
from dds.readers.instances import NEVER, Entry, Instance, Instances
from dds.status import InstanceState, SampleState, ViewState
from spindle.errors import give_way

Given = list[tuple[Entry, bool, bool, Any]]  # entries, if they had been read, if their instances were new, samples


class Unreadable(Exception):
    """A sample can't be given to the program, because of what the exception's cause says. It is given up."""


class NotOfType(Exception):
    """A payload is no sample of the reader's type."""


class Kept:
    """The kept entries of one reader; the base of `dds.readers.intake.Intake`, by which they come in.

    codec      of the reader's topic
    topic      its name, as samples' infos have it
    instances  those of a type with a key; None for other types, whose samples all belong to `single`
    depth      of KeepLast, 0 = keep all
    unread     entries that were not given out yet
    refused    counts the samples that are not of the codec's type; why_refused: the last one's reason
    """

    def __init__(self, codec: Codec) -> None:
        self.codec = codec
        self.topic = ""
        self.entries: collections.deque[Entry] = collections.deque()
        self.single = Instance(None, KEYLESS_HANDLE)
        self.instances = None if codec.key_of is None else Instances(codec)
        self.unread = 0
        self.refused = 0
        self.why_refused: Exception | None = None
        self._gone = 0  # entries that only wait to be swept
        self._next_expiry = NEVER  # UTC ns; no entry expires before
        self._alone: set[Entry] = set()  # entries that expire by the local clock
        self.depth = 0

    def __len__(self) -> int:
        return len(self.entries) - self._gone

    def _keep(self, entry: Entry) -> None:
        self.entries.append(entry)
        self.unread += 1
        entry.instance.kept += 1
        self._next_expiry = min(self._next_expiry, entry.expires)

    def _keep_last(self, entry: Entry, depth: int) -> None:
        """KeepLast: the newest `depth` of its instance, or of the topic for types without a key."""
        instance = entry.instance
        if instance.entries is None:
            instance.entries = collections.deque()
        instance.entries.append(entry)
        if len(instance.entries) > depth and instance.gone:
            instance.entries = collections.deque(one for one in instance.entries if not one.gone)
            instance.gone = 0
        while len(instance.entries) > depth:
            self.drop(instance.entries.popleft())
            instance.gone = 0
        if self._gone > 64 and self._gone > len(self):  # an old sample in front must not keep them all
            self.sweep_all()

    def leave_to_local_clock(self) -> None:
        """All that is kept by now: the nodes from which it came are gone."""
        self._alone = {one for one in self.entries if one.expires != NEVER}

    def expire(self, said_ns: int, now_ns: int) -> None:
        """Give up the samples whose lifespan is over: it is `said_ns` by the order, `now_ns` by the local clock."""
        if (max(said_ns, now_ns) if self._alone else said_ns) < self._next_expiry:
            return
        for entry in self.entries:
            if entry.expires <= said_ns or (entry in self._alone and entry.expires <= now_ns):
                self.drop(entry)
        self.sweep_all()
        self._alone.intersection_update(self.entries)
        self._next_expiry = min((entry.expires for entry in self.entries), default=NEVER)

    def purge(self, instances: set[Instance]) -> None:
        """Give up all that is kept of these."""
        for entry in self.entries:
            if entry.instance in instances:
                self.drop(entry)
        self.sweep_all()

    def drop(self, entry: Entry) -> None:
        """The entry counts no more; sweep_all() forgets it."""
        if entry.gone:
            return
        entry.gone = True
        self._gone += 1
        if not entry.read:
            self.unread -= 1
        instance = entry.instance
        instance.kept -= 1
        if entry.ends:
            instance.ending = None
        else:
            instance.gone += 1
        if not instance.kept:
            instance.entries, instance.gone = None, 0
            self._forget_if_over(instance)

    def _forget_if_over(self, instance: Instance) -> bool:
        """True if nobody has to know the instance any more."""
        return self.instances is not None and instance is not self.single and self.instances.forget_if_over(instance)

    def _of_type(self, payload: bytes) -> Any:
        """The sample. Raises NotOfType."""
        try:
            return self.codec.decode_lasting(payload)
        except Exception as error:
            give_way(error)
            raise NotOfType(str(error)) from error

    def refuse(self, why: Exception, entry: Entry | None = None) -> None:
        """A sample, kept or not, is not of the type."""
        self.refused += 1
        self.why_refused = why
        if entry is not None:
            self.drop(entry)

    def matching(self, mask: int, content: Content | None, handle: int | None) -> Iterator[Entry]:
        """Kept entries whose states are in `mask` (a group of bits without any bit means any), in order."""
        sample_mask, view_mask, instance_mask = mask & SampleState.Any, mask & ViewState.Any, mask & InstanceState.Any
        for entry in self.entries:
            if entry.gone:
                continue
            if sample_mask and not sample_mask & (SampleState.Read if entry.read else SampleState.NotRead):
                continue
            if view_mask and not view_mask & (ViewState.New if entry.instance.new else ViewState.Old):
                continue
            if instance_mask and not instance_mask & entry.instance.state:
                continue
            if handle is not None and entry.instance.handle != handle:
                continue
            if content is not None and not self._passes(entry, content):
                continue
            yield entry

    def _passes(self, entry: Entry, content: Content) -> bool:
        """Whether a condition is about an entry. One with a failure is for any, so that somebody hears of it."""
        if entry.failure is not None:
            return True
        if entry.ends:
            return False
        passes = content.of_payload(entry.payload)
        if passes is not None:
            return passes
        try:
            sample = self.codec.decode_lasting(entry.payload)
        except Exception as error:
            give_way(error)
            self.refuse(error, entry)
            return False
        try:
            return content.of_sample(sample)
        except Undecided:  # what can't be compared compares with nothing
            return False

    def in_order(self, entries: Iterator[Entry], order: Callable[[Any], Any], n: int) -> list[Entry]:
        """The first `n` by `order`; those that it fails for come first."""
        def has_place(entry: Entry) -> bool:
            if entry.sort_key is None or entry.sort_key[0] is not order:
                sample = self.key_sample(entry) if entry.ends else self._decoded(entry)
                if sample is None:
                    return False
                try:
                    entry.sort_key = order, order(sample)
                except Exception as error:
                    give_way(error)
                    entry.failure = error
                    entry.sort_key = order, []
            return True

        return heapq.nsmallest(n, filter(has_place, entries), lambda entry: entry.sort_key[1])  # type: ignore[index]

    def _decoded(self, entry: Entry) -> Any:
        """The sample of an entry; None if it is not of the type, and given up."""
        try:
            return self.codec.decode_lasting(entry.payload)
        except Exception as error:
            give_way(error)
            self.refuse(error, entry)
            return None

    def give(self, found: Iterable[Entry], n: int, take: bool, given: Given) -> list[Any]:
        """Samples for the first `n` of the entries that are of the type, with their infos as of now; they count as
        read, and go if `take`. Who is interrupted before the program has them calls take_back() with `given`, which is
        empty so far.

        Raises Unreadable if one of them is.
        """
        samples: list[Any] = []
        entries: list[Entry] = []
        for entry in found:
            info = SampleInfo(entry, self.topic)
            if entry.ends:
                sample = InvalidSample(self.key_sample(entry), info)
            elif entry.failure is not None:
                raise self.given_up(entry)
            else:
                sample, entry.sample = entry.sample, None  # a program may change what it has got
                if sample is None:
                    sample = self._decoded(entry)
                if sample is None:
                    continue
                try:
                    sample.sample_info = info
                except AttributeError:  # a frozen dataclass
                    object.__setattr__(sample, "sample_info", info)
            samples.append(sample)
            entries.append(entry)
            if len(samples) == n:
                break
        if self.instances is not None:
            rank(entries, [one.sample_info for one in samples])
        were_read, were_new = [one.read for one in entries], [one.instance.new for one in entries]
        given += zip(entries, were_read, were_new, samples, strict=True)
        for entry in entries:
            if not entry.read:
                entry.read = True
                self.unread -= 1
            entry.instance.new = False
            if take:
                self.drop(entry)
        self.sweep_all()
        return samples

    def take_back(self, given: Given) -> int:
        """What was given did not reach the program: it is as if nobody had asked. Of samples that were not the first,
        those that are kept still may come after them. Returns how many count as unread again."""
        there = set(self.entries) if given else set()
        for entry, read, new, sample in reversed(given):
            entry.gone, entry.read, entry.instance.new = False, read, new
            entry.sample = None if entry.ends else sample
            if entry not in there:
                self.entries.appendleft(entry)
        self.count_anew()
        return sum(not entry.read for entry, *_ in given)

    def count_anew(self) -> None:
        """After something was interrupted anywhere in here."""
        instances = self.instances
        for one in [self.single, *(instances.by_handle.values() if instances is not None else ())]:
            one.kept, one.gone, one.entries, one.ending = 0, 0, None, None
        self.entries, self._gone = collections.deque(entry for entry in self.entries if not entry.gone), 0
        self.unread = sum(not entry.read for entry in self.entries)
        for entry in list(self.entries):
            instance = entry.instance
            if instances is not None and instance is not self.single:
                instances.keep(instance)
            instance.kept += 1
            if entry.ends:
                instance.ending = entry
            elif self.depth:
                self._keep_last(entry, self.depth)
        self._next_expiry = min((entry.expires for entry in self.entries), default=NEVER)

    def key_sample(self, entry: Entry) -> Any:
        """A sample of the entry's instance in which only the key is set."""
        return self.codec.key_sample(entry.instance.key)

    def given_up(self, entry: Entry) -> Unreadable:
        """Forget an entry with a failure; returns what to raise."""
        self.drop(entry)
        self.sweep_all()
        failure = entry.failure
        unreadable = Unreadable(str(failure) if isinstance(failure, (ValueError, Undecided)) else repr(failure))
        unreadable.__cause__ = failure
        return unreadable

    def sweep_all(self) -> None:
        """Forget what is gone, wherever it stands."""
        if not self._gone:
            return
        while self.entries and self.entries[0].gone:
            self.entries.popleft()
            self._gone -= 1
        if self._gone:
            self.entries = collections.deque(entry for entry in self.entries if not entry.gone)
            self._gone = 0


def rank(entries: list[Entry], infos: list[SampleInfo]) -> None:
    """Say of each sample how many of its instance follow it in the collection that is given out, and how often the
    instance came alive again until the last of these, and until now. DDS 1.4, 2.2.2.5.1.3."""
    last: dict[Instance, tuple[int, int]] = {}  # samples that follow, and the generation of the last of them
    for entry, info in zip(reversed(entries), reversed(infos), strict=True):
        generation = sum(entry.generation)
        following, newest = last.get(entry.instance, (0, generation))
        info.sample_rank = following
        info.generation_rank = newest - generation
        info.absolute_generation_rank = sum(entry.instance.generation) - generation
        last[entry.instance] = following + 1, newest


__all__ = ["Kept", "NotOfType", "Unreadable", "rank"]
