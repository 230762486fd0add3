"""What a reader has taken out of the delivery log and still keeps: samples that were read and not taken, and samples
that had to be looked at one by one.

Why a second place: the log is only ever consumed forwards, and shared by all readers of the host. Taking everything in
order needs no more than the log (`DataReader.take`, the fast way). Reading without taking, conditions, instances and
filters need the samples to stay, with their states: then they go through here.

Rules: entries are in the order of delivery, and everything in here is older than everything in the log. What is kept
is bounded: History.KeepLast by its depth (of each instance), KeepAll with ResourceLimits.max_samples by that, where the
rest waits in the log and holds the writers back. Otherwise at most KEPT_MAX: beyond it samples that were read already
are given up, oldest first, and unread ones wait in the log. A sample that can't be decoded, or that a filter fails for,
is kept like any other, and reading it raises Unreadable, once: it costs the program an exception, and no other sample.
"""

from __future__ import annotations

import collections
import heapq
from collections.abc import Callable, Iterator
from typing import Any

from dds.exceptions import DDSNodeLost
from dds.filters.content import Content, Undecided
from dds.instances import DEPARTS, DISPOSES, FAREWELL, KEYLESS_HANDLE, WRITES, Entry, Instance, Instances
from dds.internal import InvalidSample, SampleInfo, publication_handle
from dds.status import InstanceState, SampleState, ViewState
from spindle.errors import ForkedChild

KEPT_MAX = 10_000  # samples
PULL = 256  # samples taken from the log at a time


class Unreadable(Exception):
    """A sample can't be given to the program, because of what the exception's cause says. It is given up."""


class Losses:
    """Counts what a reader lost by being overtaken: not what KeepLast(depth) would have replaced anyway."""

    __slots__ = ("_depth", "_log", "_seen", "found")

    def __init__(self, log: Any, depth: int) -> None:
        """`depth` 0 = every sample that was overtaken is lost."""
        self._log = log
        self._depth = depth
        self._seen = 0
        self.found = 0  # lost samples that no status tells of yet

    def look(self) -> None:
        """Call it when the reader stands where it goes on, before it takes."""
        overtaken = self._log.lost - self._seen
        if overtaken:
            self._seen += overtaken
            self.found += min(overtaken, max(0, self._depth - self._log.pending)) if self._depth else overtaken


class Intake:
    """The kept samples of one reader. For one thread at a time: the reader holds its lock.

    log         LogReader
    codec       of the reader's topic
    depth       of KeepLast, 0 = keep all
    limit       most samples to keep; 0 = KEPT_MAX, giving up read ones
    blocked     publication handles of writers whose samples this reader must not see
    ignored     publication handle -> whether samples of that writer are not for this reader; None = all are
    content     which samples this reader is about, by their content; None = all
    by_source   a sample that is older at its source than one of its instance that came before is kept out
    losses      told when what KeepLast replaces has been skipped in the log

    filtered    counts the samples that `content` or `by_source` kept out
    rejected    counts the samples that found no room when they came, see look_for_rejected()
    """

    def __init__(self, log: Any, codec: Any, depth: int, limit: int, blocked: set[int],
                 content: Content | None, losses: Losses, by_source: bool = False) -> None:
        self.log = log
        self.codec = codec
        self.depth = depth
        self.limit = limit
        self.blocked = blocked
        self.content = content
        self.losses = losses
        self.by_source = by_source
        self.filtered = 0
        self.rejected = 0
        self.ignored: Callable[[int], bool] | None = None
        self.entries: collections.deque[Entry] = collections.deque()
        self.single = Instance(None, KEYLESS_HANDLE)
        self.instances = None if codec.key_of is None else Instances(codec.key_of)
        self.unread = 0
        self._gone = 0  # entries that only wait to be swept
        self._arrived: collections.deque[tuple[bytes, Any]] = collections.deque()  # taken from the log, not let in yet
        self._index = 0  # in the log, of the first of these
        self._waiting_until = 0  # samples of the log before this index found no room, unless they were in before
        self._counted_until = 0  # those from here on are counted when they are let in

    def __len__(self) -> int:
        return len(self.entries) - self._gone

    # --- coming in

    def turn_to(self, log: Any, losses: Losses) -> None:
        """Go on in another log, after the one so far was taken to its end."""
        self.log = log
        self.losses = losses
        self._counted_until = self._waiting_until = 0

    @property
    def is_selective(self) -> bool:
        """True if samples may come that aren't for this reader."""
        return self.chooses or bool(self.blocked)

    @property
    def chooses(self) -> bool:
        """The same, whoever writes."""
        return self.content is not None or self.ignored is not None or self.by_source

    def look_for_rejected(self) -> None:
        """Bring `rejected` up to date: samples in the log that `limit` leaves no room for.

        Those of a selective reader are counted when they are let in, because only then it is known whether they are for
        this reader; call pull() first.
        """
        pending = self.log.pending
        end = self.log.position_index + pending
        without_room = min(pending, len(self) + len(self._arrived) + pending - self.limit)
        if without_room <= 0:
            return
        if not self.is_selective:
            self.rejected += max(0, end - max(end - without_room, self._waiting_until))
            self._counted_until = end
        self._waiting_until = max(self._waiting_until, end)

    def pull(self, wanted: int) -> None:
        """Take samples from the log until `wanted` are kept, or all that is there now is, or there is no room.

        Raises DDSNodeLost in a child after fork().
        """
        try:
            self._pull(wanted)
        except ForkedChild as error:
            raise DDSNodeLost(str(error)) from None

    def _pull(self, wanted: int) -> None:
        if self.depth:
            wanted = 1 << 62  # which samples are the last is known only when all were seen
            if self.instances is None and not self.chooses:
                self.log.skip_to_last(self.depth)
                self.losses.look()
        self._let_in()
        left = self.log.pending  # what comes meanwhile is for the next call, or this one might never end
        while left > 0 and len(self) < wanted:
            room = self._room()
            if room <= 0:
                return
            pairs = self.log.take_pairs(min(PULL, room, left, wanted - len(self)))
            if not pairs:
                return
            left -= len(pairs)
            self._arrived.extend(pairs)
            self._index = self.log.position_index - len(pairs)
            self._let_in()

    def _let_in(self) -> None:
        """Let in what was taken from the log. Interrupted by a signal, say, it goes on where it was the next time."""
        while self._arrived:
            self._admit(*self._arrived[0])
            self._arrived.popleft()
            self._index += 1

    def _room(self) -> int:
        if self.depth:
            return PULL  # KeepLast makes its own room
        if self.limit:
            return self.limit - len(self)
        if len(self) >= KEPT_MAX:
            self._give_up_read(len(self) - KEPT_MAX + PULL)
        return KEPT_MAX - len(self)

    def _give_up_read(self, count: int) -> None:
        for entry in self.entries:
            if entry.read and not entry.gone and count > 0:
                count -= 1
                self.drop(entry)
        self.sweep_all()

    def _admit(self, payload: bytes, live: Any) -> None:
        instances, tag, writer = self.instances, live.tag, 0
        if tag & DEPARTS:
            if instances is not None and not live.writer:
                for gone in instances.writers_at(live.sender):
                    self._end_all(instances, instances.of_writer(gone), live, gone)
            return
        if instances is not None or self.blocked or self.ignored is not None:
            writer = publication_handle(live.sender, live.writer, live.relay)
            if writer in self.blocked or (self.ignored is not None and self.ignored(writer)):
                return
        if tag and not tag & WRITES:
            if instances is not None:
                self._end(instances, payload, live, writer)
            return
        entry = Entry(payload, live, self.single)
        try:
            instance = self._instance_of(payload)
        except Exception as error:  # from decoding, or from what the program gave as a filter
            entry.failure = error
        else:
            if instance is None:
                self.filtered += 1
                return
            if self.by_source and not instance.has_news(live.source_timestamp):
                self.filtered += 1
                if instances is not None:
                    instances.register(instance, writer)
                return
            if instances is not None:
                instances.write(instance, writer)
                if tag:
                    instances.end(instance, writer, tag)
                entry.instance = instance
                entry.generation = instance.generation
        self._keep(entry)
        if self.depth:
            self._make_room(entry.instance, entry)

    def _keep(self, entry: Entry) -> None:
        if self._counted_until <= self._index < self._waiting_until:
            self.rejected += 1
        self.entries.append(entry)
        self.unread += 1
        entry.instance.kept += 1

    def _end(self, instances: Instances, payload: bytes, live: Any, writer: int) -> None:
        """One instance has ended, or as much of it as a writer has to say; with FAREWELL all that the writer has."""
        if live.tag & FAREWELL:
            ended = instances.of_writer(writer)
        else:
            try:
                key = instances.key_of(self.codec.decode(payload))
                # A reader with a filter hears of the end of what it has heard of, others of any.
                known = instances.of(key) if live.tag & DISPOSES and self.content is None else instances.find(key)
            except Exception as error:
                entry = Entry(payload, live, self.single)
                entry.failure = error
                self._keep(entry)
                return
            if known is not None and known.is_over:
                if self.content is not None or not live.tag & DISPOSES:
                    return
                known.begin_anew()
            ended = [] if known is None else [known]
        self._end_all(instances, ended, live, writer)

    def _end_all(self, instances: Instances, ended: list[Instance], live: Any, writer: int) -> None:
        for instance in ended:
            tag = live.tag
            if self.by_source and tag & DISPOSES and not instance.has_news(live.source_timestamp):
                tag &= ~DISPOSES  # what came later at its source goes on
            if instances.end(instance, writer, tag):
                before, ending = instance.ending, Entry(b"", live, instance, ends=True)
                self._keep(ending)
                if before is not None:
                    self.drop(before)  # the later one says it; dropped first, it might take the instance along
                instance.ending = ending
            else:
                instances.forget_if_over(instance)

    def _instance_of(self, payload: bytes) -> Instance | None:
        """The instance of a sample; None if `content` keeps the sample out."""
        sample = None
        if self.content is not None:
            passes = self.content.of_payload(payload)
            if passes is None:
                sample = self.codec.decode(payload)
                passes = self.content.of_sample(sample)
            if not passes:
                return None
        if self.instances is None:
            return self.single
        return self.instances.of(self.instances.key_of(self.codec.decode(payload) if sample is None else sample))

    def _make_room(self, instance: Instance, entry: Entry) -> None:
        """KeepLast: the newest `depth` of the instance, or of the topic for types without a key."""
        if instance.entries is None:
            instance.entries = collections.deque()
        instance.entries.append(entry)
        if len(instance.entries) > self.depth and instance.gone:
            instance.entries = collections.deque(one for one in instance.entries if not one.gone)
            instance.gone = 0
        while len(instance.entries) > self.depth:
            self.drop(instance.entries.popleft())
            instance.gone = 0
        if self._gone > 64 and self._gone > len(self):  # an old sample in front must not keep them all
            self.sweep_all()

    # --- going out

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
            if self.instances is not None and instance is not self.single:
                self.instances.forget_if_over(instance)

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
        """Whether a condition is about an entry. One that can't be decoded is for any, so that somebody hears of it."""
        if entry.failure is not None:
            return True
        if entry.ends:
            return False
        passes = content.of_payload(entry.payload)
        if passes is not None:
            return passes
        try:
            sample = self.codec.decode(entry.payload)
        except Exception as error:
            entry.failure = error
            return True
        try:
            return content.of_sample(sample)
        except Undecided:  # what can't be compared compares with nothing
            return False

    def in_order(self, entries: Iterator[Entry], order: Callable[[Any], Any], n: int) -> list[Entry]:
        """The first `n` by `order`; those that can't be decoded come first."""
        def sort_key(entry: Entry) -> Any:
            if entry.sort_key is None or entry.sort_key[0] is not order:
                try:
                    sample = self.key_sample(entry) if entry.ends else self.codec.decode(entry.payload)
                    entry.sort_key = order, order(sample)
                except Exception as error:
                    entry.failure = error
                    entry.sort_key = order, []
            return entry.sort_key[1]

        return heapq.nsmallest(n, entries, sort_key)

    def give(self, entries: list[Entry], take: bool) -> list[Any]:
        """Samples for `entries` with their infos as of now; they count as read, and go if `take`.

        Raises Unreadable if one of them is.
        """
        samples = []
        for entry in entries:
            info = SampleInfo(entry)
            if entry.ends:
                sample = InvalidSample(self.key_sample(entry), info)
            else:
                sample = self._sample_of(entry)
                sample.sample_info = info
            samples.append(sample)
        if self.instances is not None:
            rank(entries, [one.sample_info for one in samples])
        for entry in entries:
            if not entry.read:
                entry.read = True
                self.unread -= 1
            entry.instance.new = False
            if take:
                self.drop(entry)
        self.sweep_all()
        return samples

    def key_sample(self, entry: Entry) -> Any:
        """A sample of the entry's instance in which only the key is set."""
        return self.codec.key_sample(entry.instance.key)

    def _sample_of(self, entry: Entry) -> Any:
        try:
            if entry.failure is None:
                return self.codec.decode(entry.payload)
        except Exception as error:
            entry.failure = error
        raise self.given_up(entry)

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
