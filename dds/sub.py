"""Subscribers and readers.

How samples come: the node appends every message once to the topic's delivery log in shared memory, and each reader goes
through it at its own pace. take() in order is one call into the core. What needs samples to stay (read(), conditions,
instances, filters) goes through `dds.readers.intake`, with the same results and less speed.

A reader that keeps all (the default) loses nothing: when it doesn't take, writers wait. One with History.KeepLast(n)
gets the newest n; one that asks for best effort may be overtaken, and counts it (get_sample_lost_status).

Rules: samples come in the order that the group agreed on. take() and read() don't wait, except a moment for what this
process has just written itself (`dds.nodes.local_writers`). A reader may be used by several threads; each sample is
taken once.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dds.entity import Entity, Participant, check_listener
from dds.exceptions import DDSException, DDSTimeout
from dds.filters.filtered_topic import ContentFilteredTopic
from dds.listener import Listener
from dds.matching.matching import change_members
from dds.policy import policies
from dds.qos import DataReaderQos, Qos, SubscriberQos
from dds.readers.access import GroupAccess
from dds.readers.batch import BatchWay
from dds.readers.fast_way import ANY, UNREAD, sample_count
from dds.readers.statuses import EVERYTHING
from dds.status import DDSStatus, SampleState, ViewState
from dds.topic import Topic
from dds.waiting import reaper
from dds.waiting.reader_wait import ReaderWait
from dds.waiting.wake import Deadline, Waker, park, time_text, wait_readable

if TYPE_CHECKING:
    from dds.builtin_types import DcpsEndpoint
    from dds.contracts import ACondition
    from dds.readers.instances import Entry
    from dds.readers.kept import Given

T = TypeVar("T")


class Subscriber(Entity):
    """Groups readers. Its listener hears what they don't handle, its Qos may order access."""

    _kind = "Subscriber"
    _has_factory = True
    _limited_qos = SubscriberQos

    def __init__(self, domain_participant: Participant, qos: Qos | None = None, listener: Listener | None = None
    ) -> None:
        if not isinstance(domain_participant, Participant):
            raise TypeError(f"a Subscriber is made in a DomainParticipant, not in {domain_participant!r}")
        own = policies.check("Subscriber", qos, SubscriberQos)
        self._access = GroupAccess()
        self._heads: list[tuple[int, tuple[int, int, int]]] = []  # what its readers had when the status was looked at
        self._heads_taken: frozenset[tuple[int, tuple[int, int, int]]] = frozenset()  # and when it was taken
        self._enter(domain_participant, own, check_listener(listener))

    def get_subscriber(self) -> Subscriber:
        return self

    @property
    def subscriber(self) -> Subscriber:
        return self.get_subscriber()

    def _change_qos(self, following: Qos, said: Qos) -> None:
        change_members(self, following)

    def notify_readers(self) -> None:
        """Call on_data_available for every reader with unread samples. DDS 1.4, 2.2.2.5.2.10."""
        self._check_open()
        for one in self._readers():
            if one._unread():
                self._runtime.dispatcher.post(one, "on_data_available")

    def _update_status(self) -> None:
        """DATA_ON_READERS, DDS 1.4, 2.2.4.2.2: as DataAvailable of the readers, but who takes one leaves the other."""
        heads, has_news = [], False
        for one in self._readers():
            try:
                one._look_at_statuses()
                heads.append((one._ref, one._head()))  # first: what comes from here on is new to whoever takes this
                has_news = has_news or (one._unread() > 0 and heads[-1] not in self._heads_taken)
            except DDSException:
                if one._open:
                    raise  # else it was closed just now
        self._heads = heads
        if has_news:
            self._changed |= DDSStatus.DataOnReaders
        else:
            self._changed &= ~DDSStatus.DataOnReaders

    def _status_taken(self, bits: int) -> None:
        if bits & DDSStatus.DataOnReaders:
            self._heads_taken = frozenset(self._heads)

    def _readers(self) -> list[DataReader[Any]]:
        return [one for one in self._living_children() if isinstance(one, DataReader) and one._is_made]

    # --- over all topics of an order group, with PresentationAccessScope.Group

    def begin_access(self) -> None:
        """From here on the readers give what has come by now, of all topics up to one place of their order, and nothing
        that comes later, until end_access(). Needed, and possible to nest, with PresentationAccessScope.Group; without
        effect with other scopes. DDS 1.4, 2.2.2.5.2.8."""
        self._check_open()
        if not self._access.is_open:
            for one in self._grouped()[:1]:
                one._await_own(EVERYTHING, 0)  # all of them wait for the same
        self._access.begin()

    def end_access(self) -> None:
        """See begin_access(). DDSException (PRECONDITION_NOT_MET) without it. DDS 1.4, 2.2.2.5.2.9."""
        self._check_open()
        self._access.end()

    @contextlib.contextmanager
    def access(self) -> Iterator[None]:
        """begin_access(), and end_access() at the end of the block."""
        self.begin_access()
        try:
            yield
        finally:
            self._access.end()

    def begin_coherent(self) -> None:
        """As begin_access()."""
        self.begin_access()

    def end_coherent(self) -> None:
        """As end_access()."""
        self.end_access()

    def _grouped(self) -> list[DataReader[Any]]:
        return [one for one in self._readers() if one._access is not None]

    def get_datareaders(self, mask: int = ANY) -> list[DataReader[Any]]:
        """The readers that have samples in the states of `mask`. DDS 1.4, 2.2.2.5.2.4.

        With PresentationAccessScope.Group and ordered access, each reader as often as it has such samples, in the order
        of the samples over all topics: read or take one sample of each. DDSException (PRECONDITION_NOT_MET) with that
        scope outside of an access.
        """
        self._check_open()
        grouped = self._grouped()
        if not grouped:
            return [one for one in self._readers() if one._has(mask, None)]
        with self._access.lock:
            self._access.check_open()
            found = [reader for reader, _ in self._in_order(grouped, mask)]
        return found if any(policies.presentation(one._qos)[2] for one in grouped) else list(dict.fromkeys(found))

    @staticmethod
    def _in_order(readers: list[DataReader[Any]], mask: int) -> Iterator[tuple[DataReader[Any], Entry]]:
        """What these have by now, in the order of their group. Under their lock."""
        for one in readers:
            one._fill(EVERYTHING)
        return heapq.merge(*([(one, entry) for entry in one._intake.matching(mask, None, None)] for one in readers),
                           key=lambda found: (found[1].step, getattr(found[1].live, "place", 0)))

    def take(self, N: int = 1) -> list[tuple[DataReader[Any], Any]]:
        """Up to `N` samples of all readers, in the order of their group: pairs of a reader and what its take() gives.

        Only with PresentationAccessScope.Group, else DDSException (PRECONDITION_NOT_MET). Outside of an access it has
        one of its own: of a coherent set that is larger than `N` the next call gives the rest. Raises as the readers'
        take().
        """
        n = sample_count(N)
        self._check_open()
        grouped = self._grouped()
        if not grouped:
            raise DDSException(
                DDSException.DDS_RETCODE_PRECONDITION_NOT_MET,
                f"{self!r} has no readers of an order group: samples of other topics have no common order. Make it "
                "with Qos(Policy.PresentationAccessScope.Group(coherent_access=..., ordered_access=True)), and readers "
                "of Topic(..., order=...) in it")
        given: dict[DataReader[Any], Given] = {one: [] for one in grouped}
        taken: list[tuple[DataReader[Any], Any]] = []
        try:
            with self.access(), self._access.lock:
                for reader, entry in list(itertools.islice(self._in_order(grouped, ANY), n)):
                    try:
                        taken += [(reader, sample) for sample in reader._give_one(entry, given[reader])]
                    except DDSException:
                        if not taken:
                            raise
                        break  # the next call raises for that
                if not taken and all(one._source.is_over for one in grouped):
                    for one in grouped:
                        one._source.turn_or_end()
            return taken
        except BaseException:
            for one, what in given.items():
                one._take_back(what)
            raise

    def take_iter(self, timeout: int | None = None) -> Generator[tuple[DataReader[Any], Any], None, None]:
        """Take samples of all readers as they come, in the order of their group; ends `timeout` ns after the last one
        (None = never). Raises as take()."""
        while True:
            taken = self.take(1)
            if taken:
                yield taken[0]
            elif not self._wait(timeout):
                return

    def _wait(self, timeout: int | None) -> bool:
        """Wait until a reader has something; False after `timeout` ns."""
        deadline, waker = Deadline(timeout), Waker()
        readers = self._grouped()
        for one in readers:
            one._hub.join(waker)
        try:
            while not any([one._ready(None) for one in readers]):  # all are armed
                left_s = deadline.left_s()
                if left_s == 0:
                    return False
                bells = [(one._source.bell, one) for one in readers]
                fds = {bell.fileno(): one for bell, one in bells if bell is not None}
                for fd in wait_readable((waker.fd, *fds), left_s):
                    if fd in fds:
                        fds[fd]._source.clear(waker)
                    else:
                        waker.clear()
            return True
        finally:
            for one in readers:
                one._hub.leave(waker)


class DataReader(BatchWay, Generic[T]):
    """Reads samples of one topic. Every sample has `sample_info`, see `dds.internal.SampleInfo`.

    subscriber_or_participant  where it belongs; in a participant it gets a subscriber of its own
    topic                      a Topic, or a ContentFilteredTopic for some of its samples
    Raises TypeError for wrong arguments, DDSException for a Qos that can't be honoured.

    read_own_writes  attribute, True: take() and read() may wait a moment for this process's own writes
    """

    _kind = "DataReader"
    _has_factory = True
    _limited_qos = DataReaderQos

    def __init__(self, subscriber_or_participant: Subscriber | Participant, topic: Topic[T] | ContentFilteredTopic[T],
                 qos: Qos | None = None, listener: Listener | None = None) -> None:
        if not isinstance(subscriber_or_participant, (Subscriber, Participant)):
            raise TypeError("a DataReader is made in a Subscriber or DomainParticipant, "
                            f"not in {subscriber_or_participant!r}")
        filtered = topic if isinstance(topic, ContentFilteredTopic) else None
        related = topic if filtered is None else filtered.related_topic
        if not isinstance(related, Topic):
            raise TypeError(f"topic must be a Topic or ContentFilteredTopic, not {topic!r}")
        if related.is_builtin:
            raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER,
                               f"{related!r} is read with a dds.builtin.BuiltinDataReader")
        own = policies.check("DataReader", qos, DataReaderQos)
        self._description = topic
        check_listener(listener)
        given = isinstance(subscriber_or_participant, Subscriber)
        subscriber = subscriber_or_participant if isinstance(subscriber_or_participant, Subscriber) else Subscriber(
            subscriber_or_participant)
        try:
            self._begin(subscriber, related, filtered, own, listener, given)
        except BaseException:
            self._abandon()
            if not given:
                subscriber.close()
            raise

    def _start(self) -> None:
        subscriber = self.get_subscriber()
        orders = {one._topic.order for one in subscriber._grouped() if one is not self}
        self._start_reading(policies.of_group(subscriber._qos), subscriber._access, orders)
        subscriber._wake_watchers()

    def _wake_watchers(self) -> None:
        super()._wake_watchers()
        if self._parent is not None:  # who waits for the statuses of the subscriber waits for this one's, too
            self._parent._wake_watchers()

    # --- taking and reading

    def take(self, N: int = 1, condition: ACondition | None = None,
             instance_handle: int | None = None) -> list[T]:
        """Up to `N` samples, which the reader then forgets; [] if there is none. Doesn't wait.

        condition        only samples that satisfy this condition of the reader
        instance_handle  only samples of this instance
        Raises TypeError unless N is a positive int, DDSNodeLost if the node has gone and all it left was taken.
        """
        if condition is None and instance_handle is None and self._fast and not self._intake.entries:
            if N.__class__ is not int or N < 1:
                N = sample_count(N)
            if self._limit:  # a reader never has more than this
                N = min(N, self._limit)
            if self._keyed and self._source.log.tagged_within(N):
                return self._select(N, None, None, True)  # what ends says of the samples before it, too, what is so now
            samples = self._take_fast(N)
            try:
                if len(samples) == N:
                    return samples
                return self._complete(N, samples)
            except BaseException:
                self._consumed -= len(samples)
                self._put_back(samples)
                raise
        n = sample_count(N)
        if condition is None and instance_handle is None and self._newest and not self._intake.entries:
            samples = self._take_newest(n)
            if samples:
                return samples
        return self._select(n, condition, instance_handle, True)

    def read(self, N: int = 1, condition: ACondition | None = None,
             instance_handle: int | None = None) -> list[T]:
        """As take(), but the samples stay and count as read: the next read or take gives them again."""
        return self._select(sample_count(N), condition, instance_handle, False)

    def _select(self, n: int, condition: ACondition | None, instance_handle: int | None, take: bool) -> list[Any]:
        """take() and read() in general."""
        if self._limit:
            n = min(n, self._limit)
        mask, content, order = ANY, None, None
        if condition is not None:
            if getattr(condition, "reader", None) is not self:
                raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER, f"{condition!r} is no condition of {self!r}")
            mask, content, order = condition.mask, condition.content, condition.order
        samples = self._search(n, mask, content, instance_handle, take, order)
        try:
            if len(samples) < n and self._await_own(n - len(samples), len(samples)):
                # A second search finds the same ones again, unless they were taken, or the mask asks for unread or new.
                more = take or mask & SampleState.Any == SampleState.NotRead or mask & ViewState.Any == ViewState.New
                samples = (samples if more else []) + self._search(
                    n - len(samples) if more else n, mask, content, instance_handle, take, order)
                if order is not None:
                    samples.sort(key=order)
        except BaseException:
            if take:
                self._consumed -= len(samples)
                self._put_back(samples)
            raise
        if not samples and not self._intake.entries:
            return self._source.first(lambda: self._search(n, mask, content, instance_handle, take, order), [])
        return samples

    def read_next(self) -> T | None:
        """The next sample that was not read yet, or None. It stays."""
        return self._next(None, False)

    def take_next(self) -> T | None:
        """The next sample that was not read yet, or None. The reader forgets it."""
        return self._next(None, True)

    def _next(self, condition: ACondition | None, take: bool) -> Any:
        if condition is not None:
            samples = self._select(1, condition, None, take)
        elif take and self._is_free and not self._intake.entries:
            samples = self.take(1)
        else:
            samples = self._search(1, UNREAD, None, None, take)
            if not samples and self._await_own(1, 0):
                samples = self._search(1, UNREAD, None, None, take)
            if not samples:
                samples = self._source.first(lambda: self._search(1, UNREAD, None, None, take), samples)
        return samples[0] if samples else None

    # --- waiting

    def take_iter(self, condition: ACondition | None = None, timeout: int | None = None
                  ) -> Generator[T, None, None]:
        """Take unread samples as they come; ends `timeout` ns after the last one (None = never)."""
        return self._iterate(condition, timeout, True)

    def read_iter(self, condition: ACondition | None = None, timeout: int | None = None
                  ) -> Generator[T, None, None]:
        """Read unread samples as they come; ends `timeout` ns after the last one (None = never)."""
        return self._iterate(condition, timeout, False)

    def _iterate(self, condition: ACondition | None, timeout: int | None, take: bool) -> Generator[T, None, None]:
        if condition is not None and not take:
            condition = _only_unread(condition)
        with ReaderWait(self, timeout) as wait:
            while True:
                try:
                    sample = self._next(condition, take)
                    if sample is None and not wait.wait(condition):
                        return
                except DDSException:
                    park()
                    raise
                if sample is not None:
                    yield sample
                    wait.begin_anew()

    def take_one(self, condition: ACondition | None = None, timeout: int | None = None) -> T:
        """Wait for one sample and take it. Raises DDSTimeout (a TimeoutError) after `timeout` ns."""
        return self._one(condition, timeout, True)

    def read_one(self, condition: ACondition | None = None, timeout: int | None = None) -> T:
        """Wait for one unread sample and read it. Raises DDSTimeout (a TimeoutError) after `timeout` ns."""
        return self._one(condition, timeout, False)

    def _one(self, condition: ACondition | None, timeout: int | None, take: bool) -> Any:
        for sample in self._iterate(condition, timeout, take):
            return sample
        raise DDSTimeout(f"no sample of topic {self._topic.name!r} came within {time_text(timeout or 0)}")

    def take_aiter(self, condition: ACondition | None = None, timeout: int | None = None
                   ) -> AsyncGenerator[T, None]:
        """As take_iter(), for `async for`: the event loop waits on the reader's descriptor itself."""
        from dds.waiting.aio import iterate

        return iterate(self, condition, timeout, True)

    def read_aiter(self, condition: ACondition | None = None, timeout: int | None = None
                   ) -> AsyncGenerator[T, None]:
        """As read_iter(), for `async for`."""
        from dds.waiting.aio import iterate

        return iterate(self, None if condition is None else _only_unread(condition), timeout, False)

    def wait_for_historical_data(self, timeout: int) -> bool:
        """True: what a late joiner gets of the topic's history is there when the reader is made."""
        self._check_open()
        return True

    # --- relations

    @property
    def topic(self) -> Topic[T] | ContentFilteredTopic[T]:
        """What the reader was made with."""
        return self._description

    def get_subscriber(self) -> Subscriber:
        self._check_exists()
        assert isinstance(self._parent, Subscriber)
        return self._parent

    @property
    def subscriber(self) -> Subscriber:
        return self.get_subscriber()

    def get_matched_publications(self) -> list[int]:
        """Handles of the writers that this reader reads from, in the whole group."""
        self._check_open()
        reaper.flush()
        self._runtime.refresh(self._matches.topic)
        return [one.handle for one in list(self._matches.matched.values())]

    matched_pub = property(get_matched_publications)

    def get_matched_publication_data(self, handle: int) -> DcpsEndpoint | None:
        """What is known of a matched writer; None if there is none with this handle."""
        from dds.builtin_types import with_handle

        self._check_open()
        return with_handle(self._matches.matched.values(), handle)

    def lookup_instance(self, sample: T) -> int | None:
        """Handle of the sample's instance, for types with a key; None if this reader knows no such instance."""
        self._check_open()
        instances = self._intake.instances
        if instances is None:
            raise DDSException(DDSException.DDS_RETCODE_ILLEGAL_OPERATION, f"{self._codec.type_name} has no key")
        with self._lock:
            self._fill(EVERYTHING)
            found = instances.find(instances.key_of(sample))
        return None if found is None else found.handle

    def begin_coherent(self) -> None:
        """As Subscriber.begin_access() of its subscriber."""
        self.get_subscriber().begin_access()

    def end_coherent(self) -> None:
        """As Subscriber.end_access() of its subscriber."""
        self.get_subscriber().end_access()


class _Unread:
    """A condition that is met by unread samples only."""

    def __init__(self, condition: ACondition) -> None:
        self._condition = condition  # asked anew each time: its parameters may change while somebody waits
        self.reader = condition.reader
        self.mask = condition.mask & ~SampleState.Any | SampleState.NotRead
        self.order = condition.order

    @property
    def content(self) -> Any:
        return self._condition.content


def _only_unread(condition: ACondition) -> ACondition:
    """`condition` for unread samples: an iterator that reads would else give the same sample for ever."""
    return condition if condition.mask & SampleState.Any == SampleState.NotRead else _Unread(condition)


__all__ = ["DataReader", "Subscriber"]
