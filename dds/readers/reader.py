"""What a reader does below its interface: opening, taking and searching, waiting, watching for what was lost.

Why apart from `dds.sub`: what programs call is there, how it works is here.

Two ways in. The fast one takes from the log in order (`dds.readers.fast_way`). Everything else goes through the Intake,
under the reader's lock.

Both take from one source (`dds.readers.source`), which goes on at another node where one ends. What that means for the
reader is told to it: `_turned`, `_switched`.

Rules: whoever waits for a reader arms its source, looks again, and only then waits for it (`dds.waiting.wake`).
`_consumed` counts samples that were given out for the first time, so that the listener thread sees whether a callback
took any.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from dds.entity import Entity
from dds.exceptions import DDSException, undecodable
from dds.filters.content import Content
from dds.internal import dds_infinity
from dds.listener import Listener
from dds.matching.matching import Matches
from dds.messages.announced import type_of
from dds.messages.operations import KEYLESS_HANDLE
from dds.messages.packets import Sets
from dds.nodes.local_writers import Budget, LocalWriters
from dds.policy import policies
from dds.qos import Qos
from dds.readers.access import GroupAccess
from dds.readers.fast_way import ANY, UNREAD, FastWay
from dds.readers.intake import Intake
from dds.readers.kept import Given, Unreadable
from dds.readers.limits import ReaderLimits
from dds.readers.link import ReaderLink
from dds.readers.source import LogSource, Losses
from dds.readers.standing import Standing
from dds.readers.statuses import EVERYTHING
from dds.status import (
    InstanceState,
    SampleState,
    ViewState,
)
from dds.topic import Topic
from dds.waiting.deadlines import Deadlines
from dds.waiting.wake import Hub, park

if TYPE_CHECKING:
    from dds.matching.matching import Runtime
    from dds.messages.order_groups import Channel
    from dds.readers.instances import Entry
    from spindle.group.position import Position


class ReaderCore(FastWay):
    """The works of a DataReader."""

    _is_made = False  # it has all that makes it one; other threads find it in its subscriber before

    def _begin(self, subscriber: Entity, topic: Topic[Any], filtered: Content | None, own: Qos,
               listener: Listener | None, grouped: bool) -> None:
        """Become a reader of `topic`, of what passes `filtered`, with the checked Qos `own`. Raises DDSException."""
        self._own, self._filtered = own, filtered
        self._lay_out(topic, grouped)
        self._enter(subscriber, own, listener)
        topic._check_exists()
        if grouped:
            policies.check_group("Subscriber", own, subscriber._qos)
        self._qos = policies.effective(own, topic._own_qos, policies.of_group(subscriber._qos))
        if self._enabled:
            self._start()

    def _start_reading(self, of_subscriber: Qos, access: GroupAccess, orders: set[str]) -> None:
        """`orders`: the order groups of the subscriber's other readers, which go through their order by `access`."""
        topic = self._topic
        info, qos = topic._settle(self._own, of_subscriber, is_writer=False)
        policies.check_scope(qos, topic.name, topic.order, orders)
        self._go_by(qos)
        if policies.presentation(qos)[0] == policies.GROUP_SCOPE:
            self._access = access
            self._lock = access.lock
        from_history = info.spec.level >= 2 and policies.durability_rank(qos) > 0
        with self._runtime.session.whole_or_closed():  # until the closer can do it
            link = self._runtime.ask(f"opening a reader of topic {topic.name!r}", lambda: ReaderLink(
                self, self._runtime, info.spec, self._ref, self._keep_all, from_history, self._announcement(qos)))
            self._local = LocalWriters.of(self._runtime.session.domain_id, info.spec.name)
            self._read_from(link, info.spec.name, self._content(self._filtered), topic._channel)
            self._hears_of_ends(link.handle.ends)
            self._intake.ignored = self._ignoring()
            self.read_own_writes = self._intake.ignored is None
            self._choose_way()
            self._closer = functools.partial(
                _close_reader, self._ref, self._hub, link, self._runtime, self._matches, self._access)
        self._enabled = self._is_made = True  # it is complete, and peers may be told of it, and listeners of peers
        with self._runtime.asking(f"opening a reader of topic {topic.name!r}"):
            self._runtime.attachment.add(link, link.session)
        self._runtime.add(self._matches)
        self._learn_kept(link.newest.types)  # after those that are announced: whoever has gone, they have not
        self._runtime.add_reader(self)
        if self._access is not None:
            self._access.add(self)
        if from_history and self._depth:
            self._await_own(EVERYTHING, 0)  # our own earlier writes are history, too, and only the newest are wanted

    def _lay_out(self, topic: Topic[Any], grouped: bool) -> None:
        """What a reader has before it goes by a Qos."""
        from dds.readers.live import LiveBytesSample, info_types_of

        self._access: GroupAccess | None = None
        self._topic = topic
        self._given = grouped
        self._hub = Hub()
        self._lock = threading.RLock()
        self._codec: Any = topic._codec.for_reader(functools.partial(_seek_types, weakref.ref(self)))
        self._blocked: set[int] = set()
        self._consumed = 0  # samples that were given out for the first time
        self._begin_counting()
        self._looks_at = dds_infinity  # when the alarms have been told to look at it, monotonic ns
        self._failure: Exception | None = None
        self._keyed = self._codec.key_of is not None
        first, later, keyed = info_types_of(topic.name)
        self._live_info: Any = keyed if self._keyed else later
        self._bytes_sample = LiveBytesSample
        self._info_type: Any = keyed if self._keyed else first
        self.read_own_writes, self._fast, self._newest, self._limit = True, False, False, 0

    def _go_by(self, qos: Qos) -> None:
        """Its Qos, for good but for what may change."""
        self._qos = qos
        self._depth = policies.history_depth(qos)
        self._keep_all = not self._depth and not policies.best_effort(qos)
        self._samples_max = policies.samples_max(qos, self._codec.key_of is not None)
        self._limit = 0 if self._depth else self._samples_max  # samples; 0 = none

    def _read_from(self, source: LogSource, topic: str, content: Content | None, channel: Channel | None) -> None:
        """Where its samples come from, and what becomes of them. `topic`: the name by which the node has it."""
        self._source = source
        standing, period = Standing(self._qos), policies.deadline_ns(self._qos)
        deadlines = Deadlines(period) if period else None
        selective = content is not None or standing.chooses or bool(period) or channel is not None or (
            policies.ignores_local(self._qos, True, True))
        self._losses = Losses(source, self._counted_depth(selective))
        self._intake = Intake(
            source, self._codec, self._depth, self._samples_max, self._blocked, content, self._losses, standing,
            deadlines, not self._runtime.is_remote, None if channel is None else Sets(channel.number, channel.mark))
        self._intake.topic = self._topic.name
        self._fast = self._newest = False
        self._choose_way()
        self._matches = Matches(self, topic, False, self._qos, type_of(self._codec), channel)
        self._intake.on_lapse = functools.partial(_writer_lapsed, weakref.ref(self))
        self._intake.on_group = functools.partial(_group_begun, weakref.ref(self))
        self._intake.is_there = self._matches.knows
        if self._keyed:
            self._intake.limits = ReaderLimits.of(self._qos, self._depth)
            self._choose_way()

    # --- going on at another node

    def _switched(self, continued: bool) -> None:
        """Another node goes on serving the reader; its messages come behind those of the one before, or behind a gap.
        On the thread that reattaches."""
        if not continued:
            self._lost.count()  # how many, nobody knows
            self._note("on_sample_lost")
        self._hub.woken()
        self._wake_watchers()

    def _hears_of_ends(self, ends: Iterable[Position], view_id: int = 0) -> None:
        """See Intake.expect_ends()."""
        self._intake.expect_ends(ends, view_id)
        self._choose_way()

    def _is_through(self) -> bool:
        """See `dds.readers.source.Taker`."""
        if self._intake.head is not None or not self._open:
            return False
        self._look_for_lost()
        return True

    def _turned(self, view_id: int) -> None:
        """See `dds.readers.source.Taker`."""
        intake = self._intake
        intake.leave_to_local_clock()
        # The new node tells anew which writers are incompatible. Those of the old one have nothing left in its log.
        self._blocked.clear()
        self._blocked.update(one.handle for one in list(self._matches.incompatible.values()))
        self._hears_of_ends(self._source.handle.ends, view_id)
        self._losses.depth = self._counted_depth(intake.chooses)

    def _choose_way(self) -> None:
        """The fast way is open while samples need not be looked at one by one."""
        intake = self._intake
        one_by_one = intake.instances is not None and bool(self._depth)  # KeepLast counts the samples of each instance
        free = not self._blocked and not intake.chooses and intake.limits is None
        self._fast, self._newest = free and not one_by_one, free and one_by_one

    def _block(self, handle: int) -> None:
        """Samples of this writer are not for us, and it keeps no other from being heard. The Runtime calls it."""
        with self._lock:
            self._blocked.add(handle)
            self._intake.standing.gone(handle)
            self._choose_way()

    def _unblock(self, handle: int) -> None:
        with self._lock:
            self._blocked.discard(handle)
            self._choose_way()

    def _forget_lapse(self, handle: int) -> None:
        if self._intake.has_lapsed(handle):
            with self._lock:
                self._intake.forget_lapse(handle)

    def _await_own(self, wanted: int, found: int) -> bool:
        """Wait until what this process wrote so far is here, or `wanted` samples are, after `found` were found.

        True if there is something in the log.
        """
        if not self.read_own_writes or not self._local.handles or (self._access is not None and self._access.is_open):
            return False
        if self._topic.order:
            wanted = EVERYTHING  # messages of other topics of the group count as little as those of others' writers
        coming = self._local.on_their_way()
        if not coming:
            return self._source.log.pending > 0
        source, local, waker = self._source, self._local, self._hub.enter()
        waited: dict[Budget, float] = {}
        try:
            while (pending := source.log.pending) < wanted and any(
                    inbox.acknowledged < count for inbox, count in coming):
                budget = local.budget_short if found or pending else local.budget_empty
                left_s = budget.left_s()
                if left_s <= 0 or source.log.is_gone:
                    break
                start = time.monotonic()
                known = source.arm()
                if source.log.pending == pending:
                    # Only arrival here rings, not delivery at the other nodes: hence the short steps.
                    source.wait(waker, min(left_s, 0.0005), known)
                waited[budget] = waited.get(budget, 0.0) + budget.spend(time.monotonic() - start)
            else:  # it has all come
                for budget, spent_s in waited.items():
                    budget.spend_a_moment(spent_s)
        finally:
            self._hub.exit(waker)
        return source.log.pending > 0

    def _search(self, n: int, mask: int, content: Content | None, handle: int | None, take: bool,
                order: Callable[[Any], Any] | None = None) -> list[Any]:
        given: Given = []
        try:
            with self._lock:
                self._check_open()
                if self._access is not None:
                    self._access.check_open()
                intake = self._intake
                if content is None and order is None and handle is None and mask in (ANY, UNREAD):
                    wanted = n if mask == ANY else len(intake) - intake.unread + n
                else:
                    wanted = EVERYTHING
                self._fill(wanted)
                self._look_for_lost()
                if handle is not None:
                    self._check_instance(handle)
                unread, found = intake.unread, intake.matching(mask, content, handle)
                if order is not None:
                    found = iter(intake.in_order(found, order, n))
                samples = self._give(found, n, take, unread, given)
            return samples
        except BaseException:
            self._take_back(given)
            raise

    def _give(self, found: Iterable[Entry], n: int, take: bool, before: int, given: Given) -> list[Any]:
        """Of these kept ones, under the lock; `before`: how many were unread when somebody began to look for them.
        Whoever is interrupted behind that calls _take_back(given). Raises DDSException if one can't be read."""
        intake, consumed = self._intake, self._consumed
        try:
            samples = intake.give(found, n, take, given)
            self._look_for_refused()
            if samples:
                self._info_type = self._live_info
            self._consumed = consumed + before - intake.unread
            return samples
        except Unreadable as error:
            self._consumed = consumed + before - intake.unread
            self._look_for_refused()
            raise undecodable(self._topic.name, error) from error.__cause__
        except BaseException:
            intake.take_back(given)
            given.clear()
            self._consumed = consumed + before - intake.unread
            raise

    def _take_back(self, given: Given) -> None:
        """Whoever was given these was interrupted, and has not got them."""
        if given:
            with self._lock:
                self._consumed -= self._intake.take_back(given)

    def _give_one(self, entry: Entry, given: Given) -> list[Any]:
        """Take this kept one, as _give(); [] if it is not of the reader's type. Raises DDSException if it can't be
        read."""
        with self._lock:
            return self._give([entry], 1, True, self._intake.unread, given)

    def _fill(self, wanted: int) -> None:
        """Let samples in until `wanted` are kept, or all that has come is. Under the lock."""
        try:
            if self._access is not None:
                self._access.advance()
                self._intake.pass_time()
            else:
                self._intake.pull(wanted)
        except BaseException:
            self._intake.count_anew()
            raise
        following = self._intake.next_ns
        if following is not None and following < self._looks_at:
            self._looks_at = following
            self._runtime.alarms.look(self)
        elif self._waits_for_others:
            self._runtime.alarms.look(self)

    @property
    def _waits_for_others(self) -> bool:
        """Other readers of its subscriber must get something first, which comes to them on connections of their own."""
        access = self._access
        return access is not None and access.is_blocked and not access.is_open and self._runtime.is_remote

    def _check_instance(self, handle: int) -> None:
        """Raise DDSException (BAD_PARAMETER) if the reader knows no instance with this handle."""
        instances = self._intake.instances
        if not (handle == KEYLESS_HANDLE if instances is None else handle in instances.by_handle):
            raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER,
                               f"{self!r} has no instance {handle!r}: handles are those of sample_info.instance_handle "
                               "and lookup_instance()")

    def _ready(self, condition: Any) -> bool:
        """True if there is something for `condition` (None = anything unread); if not, the descriptor will be rung when
        something comes. Raises DDSNodeLost if nothing can come any more."""
        return self._known(condition) < 0

    def _known(self, condition: Any) -> int:
        """As _ready(): -1 if there is something, else how many messages had come when it looked, for
        LogSource.wait()."""
        if not self._open:
            park()
        self._check_open()
        if self._something(condition):
            return -1
        known = self._source.arm()
        if self._something(condition):
            return -1
        if self._source.log.is_gone:
            park()
            if self._source.turn_or_end():
                return self._known(condition)
        return known

    def _something(self, condition: Any) -> bool:
        if condition is None:
            return self._unread() > 0
        return self._has(condition.mask, condition.content)

    def _unread(self) -> int:
        """Samples that were not given out yet; an upper bound for readers that keep the last."""
        source = self._source
        source.turn()  # which way its samples go may depend on it
        if not (self._fast or self._newest) or source.log.meets_tagged:
            with self._lock:
                self._fill(EVERYTHING)
            return self._intake.unread
        return self._intake.unread + source.log.pending + (self._failure is not None)

    def _has_by_now(self, mask: int, content: Content | None) -> bool:
        """As _has(), once what this process has written so far is here."""
        return self._has(mask, content) or (self._await_own(EVERYTHING, 0) and self._has(mask, content))

    def _has(self, mask: int, content: Content | None) -> bool:
        """True if a sample satisfies this."""
        self._source.turn()  # which way its samples go may depend on it
        if content is None and mask & SampleState.NotRead and mask & ViewState.Any == ViewState.Any and (
                mask & InstanceState.Alive) and self._has_plain:
            return True
        with self._lock:
            if not self._open:
                return False
            if not (self._fast and mask & SampleState.Any == SampleState.Read):
                self._fill(EVERYTHING)
            return next(self._intake.matching(mask, content, None), None) is not None

    def fileno(self) -> int:
        """The descriptor that is rung when a sample comes after somebody has asked for it. For iterators, wait sets,
        listeners and `async for`, which know how to ask; it is not readable all the time that there is data."""
        return self._source.newest.log.fileno()

    def _head(self) -> tuple[int, int, int]:
        """See ReaderStatuses."""
        return *self._source.head, self._intake.let_pass


def _writer_lapsed(reader_ref: weakref.ref[ReaderCore], handle: int, lapsed: bool | None) -> None:
    """The lease of this writer has run out, or it lives again; None: it has ended. Under the reader's lock."""
    reader = reader_ref()
    if reader is not None:
        reader._choose_way()
        reader._matches.lapsed(handle, lapsed)


def _group_begun(reader_ref: weakref.ref[ReaderCore]) -> None:
    """The reader has passed the last place where the order of a group ends. Under its lock."""
    reader = reader_ref()
    if reader is not None:
        reader._choose_way()


def _seek_types(reader_ref: weakref.ref[ReaderCore]) -> None:
    """Its codec has met a mark that it doesn't know."""
    reader = reader_ref()
    if reader is not None and reader._enabled:
        reader._seek_types()


def _close_reader(ref: int, hub: Hub, link: ReaderLink, runtime: Runtime, matches: Matches,
                  access: GroupAccess | None) -> None:
    runtime.dispatcher.unwatch(ref, hub)
    link.close()
    runtime.remove(matches, link.guid)
    hub.woken()
    if access is not None:
        access.go_on()  # others may have waited for it
