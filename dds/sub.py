"""Subscribers and readers.

How samples come: the node appends every message once to the topic's delivery log in shared memory, and each reader goes
through it at its own pace. take() in order is one call into the core. What needs samples to stay (read(), conditions,
instances, filters) goes through `dds.intake`, with the same results and less speed.

A reader that keeps all (the default) loses nothing: when it doesn't take, writers wait. One with History.KeepLast(n)
gets the newest n; one that asks for best effort may be overtaken, and counts it (get_sample_lost_status).

Rules: samples come in the order that the group agreed on. take() and read() don't wait, except a moment for what this
process has just written itself (`dds.local`). A reader may be used by several threads; each sample is taken once.
"""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dds import policies, reaper
from dds.batch import Batch
from dds.entity import Entity, check_listener
from dds.exceptions import DDSException, DDSNodeLost, DDSTimeout, closed
from dds.intake import Intake
from dds.internal import SampleInfo
from dds.listener import Listener
from dds.local import LocalWriters
from dds.matching import Matches, encode_qos
from dds.qos import DataReaderQos, Policy, Qos, SubscriberQos
from dds.status import (
    DDSStatus,
    DeadlineMissedStatus,
    IncompatibleQosStatus,
    InstanceState,
    LivelinessChangedStatus,
    SampleLostStatus,
    SampleRejectedStatus,
    SampleState,
    ViewState,
)
from dds.topic import Topic
from dds.types import BytesSample
from dds.wake import Deadline, Hub, Waker, wait_readable

if TYPE_CHECKING:
    from dds.builtin import DcpsEndpoint
    from dds.conditions import QueryCondition, ReadCondition
    from dds.domain import DomainParticipant
    from dds.matching import Runtime
    from dds.status import SubscriptionMatchedStatus
    from spindle.client import ReaderHandle

T = TypeVar("T")

ANY = SampleState.Any | ViewState.Any | InstanceState.Any
UNREAD = SampleState.NotRead | ViewState.Any | InstanceState.Any
EVERYTHING = 1 << 62


class Subscriber(Entity):
    """Groups readers. Its listener hears what they don't handle, its Qos may order access."""

    def __init__(self, domain_participant: DomainParticipant, qos: Qos | None = None, listener: Listener | None = None
    ) -> None:
        from dds.domain import DomainParticipant

        if not isinstance(domain_participant, DomainParticipant):
            raise TypeError(f"a Subscriber is made in a DomainParticipant, not in {domain_participant!r}")
        own = policies.check("Subscriber", qos, SubscriberQos)
        self._enter(domain_participant, own, check_listener(listener))

    def get_subscriber(self) -> Subscriber:
        return self

    def notify_readers(self) -> None:
        """Call on_data_available for every reader with unread samples. DDS 1.4, 2.2.2.5.2.10."""
        self._check_open()
        for one in self._living_children():
            if isinstance(one, DataReader) and one._unread():
                self._runtime.dispatcher.post(one, "on_data_available")


class DataReader(Entity, Generic[T]):
    """Reads samples of one topic. Every sample has `sample_info`, see `dds.internal.SampleInfo`.

    subscriber_or_participant  where it belongs; in a participant it gets a subscriber of its own
    Raises TypeError for wrong arguments, DDSException for a Qos that can't be honoured.

    read_own_writes  attribute, True: take() and read() may wait a moment for this process's own writes
    """

    def __init__(self, subscriber_or_participant: Subscriber | DomainParticipant, topic: Topic[T],
                 qos: Qos | None = None, listener: Listener | None = None) -> None:
        from dds.domain import DomainParticipant
        from dds.live import FirstSampleInfo, LiveSampleInfo

        if not isinstance(subscriber_or_participant, (Subscriber, DomainParticipant)):
            raise TypeError("a DataReader is made in a Subscriber or DomainParticipant, "
                            f"not in {subscriber_or_participant!r}")
        if not isinstance(topic, Topic):
            raise TypeError(f"topic must be a Topic, not {topic!r}")
        own = policies.check("DataReader", qos, DataReaderQos)
        check_listener(listener)
        subscriber = (subscriber_or_participant if isinstance(subscriber_or_participant, Subscriber)
                      else Subscriber(subscriber_or_participant))
        self._topic = topic
        self._hub = Hub()
        self._lock = threading.RLock()
        self._codec = topic._codec
        self._blocked: set[int] = set()
        self._consumed = 0  # samples that were given out for the first time
        self._lost = SampleLostStatus()
        self._lost_seen = 0
        self._failure: Exception | None = None
        self._first_info, self._live_info = FirstSampleInfo, LiveSampleInfo
        self._info_type: Any = FirstSampleInfo
        self.read_own_writes = True
        self._enter(subscriber, own, listener)
        try:
            topic._check_open()
            extra = Qos(*(one for one in subscriber._qos if one.__scope__ == "PresentationAccessScope"))
            info, self._qos = topic._settle(own, extra, is_writer=False)
            self._depth = policies.history_depth(self._qos)
            self._keep_all = not self._depth and not policies.best_effort(self._qos)
            from_history = info.spec.level >= 2 and policies.durability_rank(self._qos) > 0
            limits = self._limits()
            with self._runtime.asking(f"opening a reader of topic {topic.name!r}"):
                self._handle = self._runtime.session.open_reader(
                    topic.name, keep_all=self._keep_all, from_history=from_history, endpoint=encode_qos(self._qos),
                    guid=self._guid())
        except BaseException:
            self._open = False
            raise
        self._log = self._handle.log
        self._local = LocalWriters.of(self._runtime.session.domain_id, topic.name)
        topic_filter = topic._filter
        accepts = None if topic_filter is None else lambda sample: topic_filter(topic, sample)
        self._intake = Intake(
            self._log, self._codec, self._depth, limits, self._blocked,
            None if self._codec.key_of is None else self._instance_of, accepts)
        self._fast = False
        self._choose_way()
        self._matches = Matches(self, topic.name, False, self._qos)
        self._closer = functools.partial(
            _close_reader, self._ref, self._hub, self._handle, self._runtime, self._matches, self._guid())
        self._runtime.add(self._matches)
        self._runtime.add_reader(self)

    def _limits(self) -> int:
        """Samples that may be kept, as ResourceLimits says; 0 = no limit of its own."""
        limits = self._qos[Policy.ResourceLimits]
        if limits is None:
            return 0
        if self._codec.key_of is not None and (limits.max_instances, limits.max_samples_per_instance) != (-1, -1):
            raise DDSException(DDSException.DDS_RETCODE_UNSUPPORTED,
                               f"{limits!r}: limits per instance are not kept for types with a key; use max_samples")
        counts = [one for one in (limits.max_samples, limits.max_samples_per_instance) if one != -1]
        return min(counts) if counts else 0

    def _instance_of(self, sample: Any) -> int:
        assert self._codec.key_of is not None
        return self._topic._instance_of(self._codec.key_of(sample))

    def _choose_way(self) -> None:
        """The fast way is open while samples need not be looked at one by one."""
        self._fast = not self._blocked and self._intake.handle_of is None and self._intake.accepts is None

    def _block(self, handle: int) -> None:
        """Samples of this writer are not for us. The Runtime calls it."""
        with self._lock:
            self._blocked.add(handle)
            self._choose_way()

    def _unblock(self, handle: int) -> None:
        with self._lock:
            self._blocked.discard(handle)
            self._choose_way()

    # --- taking and reading

    def take(self, N: int = 1, condition: ReadCondition | QueryCondition | None = None,
             instance_handle: int | None = None) -> list[T]:
        """Up to `N` samples, which the reader then forgets; [] if there is none. Doesn't wait.

        condition        only samples that satisfy this condition of the reader
        instance_handle  only samples of this instance
        Raises TypeError unless N is a positive int, DDSNodeLost if the node has gone and all it left was taken.
        """
        if condition is None and instance_handle is None and self._fast and not self._intake.entries:
            if N.__class__ is not int or N < 1:
                N = _count(N)
            samples = self._take_fast(N)
            if len(samples) == N:
                return samples
            return self._complete(N, samples)
        return self._select(_count(N), condition, instance_handle, True)

    def read(self, N: int = 1, condition: ReadCondition | QueryCondition | None = None,
             instance_handle: int | None = None) -> list[T]:
        """As take(), but the samples stay and count as read: the next read or take gives them again."""
        return self._select(_count(N), condition, instance_handle, False)

    def _take_fast(self, n: int) -> list[Any]:
        try:
            if self._depth:
                self._look_for_lost()
                self._log.skip_to_last(self._depth)
            if self._codec.kind == "bytes":
                samples: list[Any] = self._log.take(n, BytesSample, self._info_type)
            else:
                samples = self._take_decoded(n)
        except ValueError:
            if not self._open:
                raise closed(repr(self)) from None
            raise
        if samples:
            self._consumed += len(samples)
            self._info_type = self._live_info
        return samples

    def _take_decoded(self, n: int) -> list[Any]:
        with self._lock:  # decoding lets other threads run
            if self._failure is not None:
                failure, self._failure = self._failure, None
                raise _undecodable(self._topic.name, failure) from failure
            try:
                return self._log.take_with(n, self._codec.decode, self._info_type)
            except ValueError as error:
                taken: list[Any] | None = getattr(error, "taken", None)
                if taken is None:
                    raise  # not from decoding
                self._failure = error
                if taken:
                    return taken  # what came before the bad one; the next call tells of it
                return self._take_decoded(n)

    def _complete(self, n: int, samples: list[Any]) -> list[Any]:
        """Fewer came than wanted: wait for our own writes that are on their way, or say that nothing can come."""
        if self.read_own_writes and self._local.handles and self._await_own(n - len(samples)):
            more = self._take_fast(n - len(samples))
            samples = samples + more
        if not samples and self._log.is_gone:
            self._raise_gone()
        return samples

    def _raise_gone(self) -> None:
        self._check_open()
        raise DDSNodeLost(f"the node behind {self!r} has stopped or died; make a new participant once a node runs")

    def _await_own(self, wanted: int) -> bool:
        """Wait until what this process wrote so far is here, or `wanted` samples are; False if there is nothing to
        wait for, or no time to spend on it."""
        coming = self._local.on_their_way()
        if not coming:
            return self._log.pending > 0
        start = time.monotonic()
        allowance_s = self._local.allowance_s()
        waker = self._hub.enter()
        try:
            while self._log.pending < wanted and any(inbox.acknowledged < count for inbox, count in coming):
                left_s = allowance_s - (time.monotonic() - start)
                if left_s <= 0 or self._log.is_gone:
                    break
                self._arm()
                if self._log.pending < wanted:
                    # Arrival rings; that the others have it too does not, hence the short steps.
                    if self._log.fileno() in wait_readable([self._log.fileno(), waker.fd], min(left_s, 0.0005)):
                        self._clear_ring(waker)
        finally:
            self._hub.exit(waker)
            self._local.spend(time.monotonic() - start)
        return self._log.pending > 0

    def _select(self, n: int, condition: Any, instance_handle: int | None, take: bool) -> list[Any]:
        """take() and read() in general."""
        mask, accepts = ANY, None
        if condition is not None:
            if getattr(condition, "reader", None) is not self:
                raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER, f"{condition!r} is no condition of {self!r}")
            mask, accepts = condition.mask, condition.filter
        samples = self._search(n, mask, accepts, instance_handle, take)
        if len(samples) < n and self.read_own_writes and self._local.handles and self._await_own(n - len(samples)):
            # A read starts again: it would give the first ones twice.
            samples = (samples if take else []) + self._search(
                n - len(samples) if take else n, mask, accepts, instance_handle, take)
        if not samples and self._log.is_gone and not self._intake.entries:
            self._raise_gone()
        return samples

    def _search(self, n: int, mask: int, accepts: Callable[[Any], bool] | None, handle: int | None, take: bool
                ) -> list[Any]:
        with self._lock:
            self._check_open()
            intake = self._intake
            if mask == ANY and accepts is None and handle is None:
                intake.pull(n)
            elif mask == UNREAD and accepts is None and handle is None:
                intake.pull(len(intake) - intake.unread + n)
            else:
                intake.pull(EVERYTHING)
            self._look_for_lost()
            found = []
            for entry in intake.matching(mask, accepts, handle):
                found.append(entry)
                if len(found) == n:
                    break
            before = intake.unread
            try:
                samples = intake.give(found, take)
            except ValueError as error:
                raise _undecodable(self._topic.name, error) from error
            self._consumed += before - intake.unread
            if samples:
                self._info_type = self._live_info
            return samples

    def read_next(self) -> T | None:
        """The next sample that was not read yet, or None. It stays."""
        return self._next(None, False)

    def take_next(self) -> T | None:
        """The next sample that was not read yet, or None. The reader forgets it."""
        return self._next(None, True)

    def _next(self, condition: Any, take: bool) -> Any:
        if condition is not None:
            samples = self._select(1, condition, None, take)
        elif take and self._fast and not self._intake.entries:
            samples = self.take(1)
        else:
            samples = self._search(1, UNREAD, None, None, take)
            if not samples and self.read_own_writes and self._local.handles and self._await_own(1):
                samples = self._search(1, UNREAD, None, None, take)
            if not samples and self._log.is_gone:
                self._raise_gone()
        return samples[0] if samples else None

    # --- many at once

    def take_batch(self, N: int = 1024) -> Batch:
        """Up to `N` samples of equal size as one Batch, in place where possible; for bytes and NumPy types.

            with reader.take_batch(1000) as batch:
                total += batch.array["altitude"].sum()

        An empty Batch if there is none. Take nothing else from the reader before the batch is released.
        """
        n, codec = _count(N), self._codec
        if codec.kind == "object":
            raise DDSException(DDSException.DDS_RETCODE_UNSUPPORTED,
                               f"samples of {codec.type_name} have no fixed layout: use take()")
        self._check_open()
        with self._lock:
            if not self._fast or self._intake.entries or not self._keep_all:
                return self._copied_batch(n)
            block = self._log.take_block(n)
            if block is None:
                if self._log.is_gone:
                    self._raise_gone()
                return Batch.of_payloads(codec, [], [])
            self._consumed += block.count
            self._info_type = self._live_info
            return Batch.of_block(codec, block)

    def _copied_batch(self, n: int) -> Batch:
        self._intake.pull(n)
        self._look_for_lost()
        entries: list[Any] = []
        for entry in self._intake.matching(ANY, None, None):
            if len(entries) == n or (entries and len(entry.payload) != len(entries[0].payload)):
                break
            entries.append(entry)
        infos: list[Any] = [SampleInfo(
            one.live, SampleState.Read if one.read else SampleState.NotRead,
            ViewState.New if one.instance.new else ViewState.Old, one.instance.handle) for one in entries]
        for entry in entries:
            entry.instance.new = False
            self._consumed += not entry.read
            self._intake.drop(entry)
        self._intake.sweep_all()
        return Batch.of_payloads(self._codec, [one.payload for one in entries], infos)

    def take_array(self, N: int = 1024) -> Any:
        """As take_batch(), but a NumPy array of one's own."""
        with self.take_batch(N) as batch:
            return batch.array.copy()

    # --- waiting

    def take_iter(self, condition: ReadCondition | QueryCondition | None = None, timeout: int | None = None
                  ) -> Generator[T, None, None]:
        """Take unread samples as they come; ends `timeout` ns after the last one (None = never)."""
        return self._iterate(condition, timeout, True)

    def read_iter(self, condition: ReadCondition | QueryCondition | None = None, timeout: int | None = None
                  ) -> Generator[T, None, None]:
        """Read unread samples as they come; ends `timeout` ns after the last one (None = never)."""
        return self._iterate(condition, timeout, False)

    def _iterate(self, condition: Any, timeout: int | None, take: bool) -> Generator[T, None, None]:
        if condition is not None and not take:
            condition = _only_unread(condition)
        while True:
            sample = self._next(condition, take)
            if sample is not None:
                yield sample
            elif not self._wait(condition, timeout):
                return

    def take_one(self, condition: ReadCondition | QueryCondition | None = None, timeout: int | None = None) -> T:
        """Wait for one sample and take it. Raises DDSTimeout (a TimeoutError) after `timeout` ns."""
        return self._one(condition, timeout, True)

    def read_one(self, condition: ReadCondition | QueryCondition | None = None, timeout: int | None = None) -> T:
        """Wait for one unread sample and read it. Raises DDSTimeout (a TimeoutError) after `timeout` ns."""
        return self._one(condition, timeout, False)

    def _one(self, condition: Any, timeout: int | None, take: bool) -> Any:
        for sample in self._iterate(condition, timeout, take):
            return sample
        raise DDSTimeout(f"no sample of topic {self._topic.name!r} came within {(timeout or 0) / 1e9:g} s")

    def take_aiter(self, condition: ReadCondition | QueryCondition | None = None, timeout: int | None = None
                   ) -> AsyncGenerator[T, None]:
        """As take_iter(), for `async for`: the event loop waits on the reader's descriptor itself."""
        from dds.aio import iterate

        return iterate(self, condition, timeout, True)

    def read_aiter(self, condition: ReadCondition | QueryCondition | None = None, timeout: int | None = None
                   ) -> AsyncGenerator[T, None]:
        """As read_iter(), for `async for`."""
        from dds.aio import iterate

        return iterate(self, None if condition is None else _only_unread(condition), timeout, False)

    def _wait(self, condition: Any, timeout: int | None) -> bool:
        """Wait until there is something for `condition` (None = anything unread); False after `timeout` ns."""
        deadline = Deadline(timeout)
        if self._ready(condition):
            return True
        waker = self._hub.enter()
        try:
            while not self._ready(condition):
                left_s = deadline.left_s()
                if left_s == 0:
                    return False
                readable = wait_readable([self._log.fileno(), waker.fd], left_s)
                if self._log.fileno() in readable:
                    self._clear_ring(waker)
                if waker.fd in readable:
                    waker.clear()
            return True
        finally:
            self._hub.exit(waker)

    def _ready(self, condition: Any) -> bool:
        """True if there is something for `condition`; if not, the descriptor will be rung when something comes.

        Raises DDSNodeLost if nothing can come any more.
        """
        self._check_open()
        if self._something(condition):
            return True
        self._arm()
        if self._something(condition):
            return True
        if self._log.is_gone:
            self._raise_gone()
        return False

    def _something(self, condition: Any) -> bool:
        if condition is None:
            return self._unread() > 0
        return self._has(condition.mask, condition.filter)

    def _unread(self) -> int:
        """Samples that were not given out yet; an upper bound for readers that keep the last."""
        if not self._fast:
            with self._lock:
                self._intake.pull(EVERYTHING)
            return self._intake.unread
        return self._intake.unread + self._log.pending + (self._failure is not None)

    def _has(self, mask: int, accepts: Callable[[Any], bool] | None) -> bool:
        """True if a sample satisfies this."""
        if accepts is None and self._fast and mask & SampleState.NotRead and mask & ViewState.Any == ViewState.Any and (
                mask & InstanceState.Alive) and self._log.pending:
            return True
        with self._lock:
            if not self._open:
                return False
            if not (self._fast and mask & SampleState.Any == SampleState.Read):
                self._intake.pull(EVERYTHING)
            return next(self._intake.matching(mask, accepts, None), None) is not None

    # What waits for a reader uses these four.

    def fileno(self) -> int:
        """The descriptor that is rung when a sample comes after somebody has asked for it. For iterators, wait sets,
        listeners and `async for`, which know how to ask; it is not readable all the time that there is data."""
        return self._log.fileno()

    def _arm(self) -> None:
        self._log.arm()

    def _clear_ring(self, waker: Waker | None) -> None:
        """The descriptor was rung: empty it, and let everybody else who waits know."""
        self._log.clear()
        self._hub.woken(waker)

    def _head(self) -> int:
        """Samples that have come so far."""
        return self._log.position_index + self._log.pending

    def wait_for_historical_data(self, timeout: int) -> bool:
        """True: what a late joiner gets of the topic's history is there when the reader is made."""
        self._check_open()
        return True

    # --- relations

    @property
    def topic(self) -> Topic[T]:
        return self._topic

    def get_subscriber(self) -> Subscriber:
        self._check_open()
        assert isinstance(self._parent, Subscriber)
        return self._parent

    def get_matched_publications(self) -> list[int]:
        """Handles of the writers that this reader reads from, in the whole group."""
        self._check_open()
        reaper.flush()
        self._runtime.refresh(self._topic.name)
        return [one.handle for one in list(self._matches.matched.values())]

    matched_pub = property(get_matched_publications)

    def get_matched_publication_data(self, handle: int) -> DcpsEndpoint | None:
        """What is known of a matched writer; None if there is none with this handle."""
        from dds.builtin import endpoint_of

        self._check_open()
        return endpoint_of(self._matches.matched.values(), handle, self._topic)

    def lookup_instance(self, sample: T) -> int | None:
        """Handle of the sample's instance, for types with a key; None if this Topic object hasn't met it."""
        self._check_open()
        if self._codec.key_of is None:
            raise DDSException(DDSException.DDS_RETCODE_ILLEGAL_OPERATION, f"{self._codec.type_name} has no key")
        return self._topic._instances.get(self._codec.key_of(sample))

    # --- statuses

    def _update_status(self) -> None:
        reaper.flush()  # a writer that was just forgotten doesn't match any more
        self._look_for_lost()
        if self._unread():
            self._changed |= DDSStatus.DataAvailable
        else:
            self._changed &= ~DDSStatus.DataAvailable

    def _look_for_lost(self) -> None:
        """Bring the lost-sample status up to date. Replaced by KeepLast is not lost."""
        if self._keep_all:
            return
        lost = self._log.lost
        overtaken, self._lost_seen = lost - self._lost_seen, lost
        if overtaken and self._depth and self._codec.key_of is None:
            overtaken = min(overtaken, max(0, self._depth - self._log.pending))
        if overtaken:
            self._lost.count(overtaken)
            self._note("on_sample_lost")

    def get_sample_lost_status(self) -> SampleLostStatus:
        """Samples that came and were overtaken before this reader got to them."""
        self._check_open()
        self._look_for_lost()
        self._changed &= ~DDSStatus.SampleLost
        return self._lost.read()  # type: ignore[return-value]

    def get_subscription_matched_status(self) -> SubscriptionMatchedStatus:
        """Writers that match, and how that changed since the last call."""
        self._check_open()
        self._changed &= ~DDSStatus.SubscriptionMatched
        return self._matches.status.read()

    def get_requested_incompatible_qos_status(self) -> IncompatibleQosStatus:
        """Writers that offer less than this reader asks for."""
        self._check_open()
        self._changed &= ~DDSStatus.RequestedIncompatibleQos
        return self._matches.incompatible_status.read()  # type: ignore[return-value]

    def get_liveliness_changed_status(self) -> LivelinessChangedStatus:
        """Matched writers that are alive."""
        self._check_open()
        self._changed &= ~DDSStatus.LivelinessChanged
        return self._matches.liveliness_status.read()

    def get_sample_rejected_status(self) -> SampleRejectedStatus:
        self._check_open()
        return SampleRejectedStatus()

    def get_requested_deadline_missed_status(self) -> DeadlineMissedStatus:
        self._check_open()
        return DeadlineMissedStatus()


def _close_reader(ref: int, hub: Hub, handle: ReaderHandle, runtime: Runtime, matches: Matches, guid: bytes) -> None:
    runtime.dispatcher.unwatch(ref, hub)
    handle.close()
    runtime.remove(matches, guid)
    hub.woken()


class _Unread:
    """A condition, and unread too."""

    def __init__(self, condition: Any) -> None:
        self.reader = condition.reader
        self.mask = condition.mask & ~SampleState.Any | SampleState.NotRead
        self.filter = condition.filter


def _only_unread(condition: Any) -> Any:
    """An iterator that reads would give the same sample for ever if it didn't ask for unread ones."""
    return condition if condition.mask & SampleState.Any == SampleState.NotRead else _Unread(condition)


def _undecodable(topic: str, error: Exception) -> DDSException:
    return DDSException(DDSException.DDS_RETCODE_ERROR,
                        f"a sample of topic {topic!r} can't be read and is skipped: {error}")


def _count(n: Any) -> int:
    """N of take() and read() as an int. TypeError unless it is positive."""
    if isinstance(n, bool) or not hasattr(n, "__index__") or n.__index__() < 1:
        raise TypeError(f"N must be a positive int, not {n!r}")
    return int(n.__index__())


__all__ = ["DataReader", "Subscriber"]
