"""What a reader has taken out of the delivery log and still keeps: samples that were read and not taken, and samples
that had to be looked at one by one.

Why a second place: the log is only ever consumed forwards, and shared by all readers of the host. Taking everything in
order needs no more than the log (`DataReader.take`, the fast way). Reading without taking, conditions, instances and
filters need the samples to stay, with their states: then they go through here.

Rules: entries are in the order of delivery, and everything in here is older than everything in the log. What is kept
is bounded: History.KeepLast by its depth (of each instance), KeepAll with ResourceLimits.max_samples by that, where the
rest waits in the log and holds the writers back. Otherwise at most KEPT_MAX: beyond it samples that were read already
are given up, oldest first, and unread ones wait in the log.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterator
from typing import Any

from dds.exceptions import DDSNodeLost
from dds.filters.content import Content
from dds.internal import SampleInfo, publication_handle
from dds.status import InstanceState, SampleState, ViewState
from spindle.errors import ForkedChild

KEPT_MAX = 10_000  # samples
PULL = 256  # samples taken from the log at a time


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


class Instance:
    """An instance in one reader. Types without a key have one, with handle 1."""

    __slots__ = ("entries", "gone", "handle", "new")

    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.new = True  # none of its samples was returned yet
        self.entries: collections.deque[Entry] = collections.deque()  # for KeepLast only
        self.gone = 0  # entries in there that were taken


class Entry:
    """A sample that is kept: its payload, what the core says of it, and its states."""

    __slots__ = ("gone", "instance", "live", "payload", "read")

    def __init__(self, payload: bytes, live: Any, instance: Instance) -> None:
        self.payload = payload
        self.live = live
        self.instance = instance
        self.read = False
        self.gone = False


class Intake:
    """The kept samples of one reader. For one thread at a time: the reader holds its lock.

    log         LogReader
    codec       of the reader's topic
    depth       of KeepLast, 0 = keep all
    limit       most samples to keep; 0 = KEPT_MAX, giving up read ones
    blocked     publication handles of writers whose samples this reader must not see
    ignored     publication handle -> whether samples of that writer are not for this reader; None = all are
    handle_of   key -> instance handle; None for types without a key
    content     which samples this reader is about, by their content; None = all
    losses      told when what KeepLast replaces has been skipped in the log

    `filtered` counts the samples that `content` kept out.
    """

    def __init__(self, log: Any, codec: Any, depth: int, limit: int, blocked: set[int],
                 handle_of: Callable[[Any], int] | None, content: Content | None, losses: Losses) -> None:
        self.log = log
        self.codec = codec
        self.depth = depth
        self.limit = limit
        self.blocked = blocked
        self.handle_of = handle_of
        self.content = content
        self.losses = losses
        self.filtered = 0
        self.ignored: Callable[[int], bool] | None = None
        self.entries: collections.deque[Entry] = collections.deque()
        self.single = Instance(1)
        self.instances: dict[int, Instance] = {}
        self.unread = 0
        self._gone = 0  # entries that only wait to be swept

    def __len__(self) -> int:
        return len(self.entries) - self._gone

    # --- coming in

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
            if self.handle_of is None and self.content is None and self.ignored is None:
                self.log.skip_to_last(self.depth)
                self.losses.look()
        left = self.log.pending  # what comes meanwhile is for the next call, or this one might never end
        while left > 0 and len(self) < wanted:
            room = self._room()
            if room <= 0:
                return
            pairs = self.log.take_pairs(min(PULL, room, left, wanted - len(self)))
            if not pairs:
                return
            left -= len(pairs)
            for payload, live in pairs:
                self._admit(payload, live)

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
        if self.blocked or self.ignored is not None:
            handle = publication_handle(live.sender, live.writer, live.relay)
            if handle in self.blocked or (self.ignored is not None and self.ignored(handle)):
                return
        instance, sample = self.single, None
        if self.content is not None:
            passes = self.content.of_payload(payload)
            if passes is None:
                sample = self._decoded(payload)
                passes = sample is None or self.content.of_sample(sample)
            if not passes:
                self.filtered += 1
                return
        if self.handle_of is not None:
            sample = self._decoded(payload) if sample is None else sample
            if sample is not None:
                handle = self.handle_of(sample)
                instance = self.instances.setdefault(handle, Instance(handle))
        entry = Entry(payload, live, instance)
        self.entries.append(entry)
        self.unread += 1
        if self.depth:
            self._make_room(instance, entry)

    def _decoded(self, payload: bytes) -> Any:
        """The sample; None if it is none. Such a one is kept all the same, so that reading it raises. Which instance it
        belongs to can't be known."""
        try:
            return self.codec.decode(payload)
        except ValueError:
            return None

    def _make_room(self, instance: Instance, entry: Entry) -> None:
        """KeepLast: the newest `depth` of the instance, or of the topic for types without a key."""
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
        if not entry.gone:
            entry.gone = True
            self._gone += 1
            entry.instance.gone += 1
            if not entry.read:
                self.unread -= 1

    def matching(self, mask: int, content: Content | None, handle: int | None) -> Iterator[Entry]:
        """Kept entries whose states are in `mask` (a group of bits without any bit means any), in order."""
        sample_mask, view_mask, instance_mask = mask & SampleState.Any, mask & ViewState.Any, mask & InstanceState.Any
        if instance_mask and not instance_mask & InstanceState.Alive:
            return
        for entry in self.entries:
            if entry.gone:
                continue
            if sample_mask and not sample_mask & (SampleState.Read if entry.read else SampleState.NotRead):
                continue
            if view_mask and not view_mask & (ViewState.New if entry.instance.new else ViewState.Old):
                continue
            if handle is not None and entry.instance.handle != handle:
                continue
            if content is not None:
                passes = content.of_payload(entry.payload)
                if not (content.of_sample(self.codec.decode(entry.payload)) if passes is None else passes):
                    continue
            yield entry

    def give(self, entries: list[Entry], take: bool) -> list[Any]:
        """Samples for `entries` with their infos as of now; they count as read, and go if `take`.

        Raises ValueError for an entry that can't be decoded; it is given up then.
        """
        samples = []
        for entry in entries:
            try:
                sample = self.codec.decode(entry.payload)
            except ValueError:
                self.drop(entry)
                self.sweep_all()
                raise
            sample.sample_info = SampleInfo(
                entry.live, SampleState.Read if entry.read else SampleState.NotRead,
                ViewState.New if entry.instance.new else ViewState.Old, entry.instance.handle)
            samples.append(sample)
        for entry in entries:
            if not entry.read:
                entry.read = True
                self.unread -= 1
            entry.instance.new = False
            if take:
                self.drop(entry)
        self.sweep_all()
        return samples

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
