"""What a reader does below its interface: opening, taking and searching, waiting, watching for what was lost.

Why apart from `dds.sub`: what programs call is there, how it works is here.

Two ways in. The fast one takes from the log in order (`dds.readers.fast_way`). Everything else goes through the Intake,
under the reader's lock.

A log ends with its node. If the participant goes on at another one, the reader turns to that one's log when it has read
this one to the end (`_go_on`); whoever finds the log empty and its node gone asks `_log_ended`.

Rules: whoever waits for a reader arms it, looks again, and only then waits for its descriptor (`dds.waiting.wake`).
`_consumed` counts samples that were given out for the first time, so that the listener thread sees whether a callback
took any.
"""

from __future__ import annotations

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from dds.entity import Entity
from dds.exceptions import DDSException, DDSNodeLost, undecodable
from dds.filters.content import Content
from dds.internal import dds_infinity
from dds.listener import Listener
from dds.matching.matching import Matches
from dds.messages.announced import type_of
from dds.messages.operations import KEYLESS_HANDLE
from dds.messages.packets import Sets
from dds.nodes.local_writers import LocalWriters
from dds.policy import policies
from dds.qos import Qos
from dds.readers.access import GroupAccess
from dds.readers.fast_way import ANY, UNREAD, FastWay
from dds.readers.intake import Intake
from dds.readers.kept import Unreadable
from dds.readers.limits import ReaderLimits
from dds.readers.link import ReaderLink
from dds.readers.standing import Standing
from dds.readers.statuses import EVERYTHING
from dds.status import (
    InstanceState,
    SampleState,
    ViewState,
)
from dds.topic import Topic
from dds.waiting.deadlines import Deadlines
from dds.waiting.wake import Hub, Waker, park
from spindle.errors import ForkedChild

if TYPE_CHECKING:
    from dds.matching.matching import Runtime
    from dds.messages.order_groups import Channel
    from dds.readers.instances import Entry

R = TypeVar("R")


class ReaderCore(FastWay):
    """The works of a DataReader."""

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
        with self._runtime.asking(f"opening a reader of topic {topic.name!r}"):
            link = ReaderLink(self, self._runtime, info.spec, self._ref, self._keep_all, from_history,
                              self._announcement(qos))
        self._local = LocalWriters.of(self._runtime.session.domain_id, info.spec.name)
        self._read_from(link, info.spec.name, self._content(self._filtered), topic._channel)
        self._intake.expect_ends(link.handle.ends)
        self._intake.ignored = self._ignoring()
        self.read_own_writes = self._intake.ignored is None
        self._choose_way()
        self._closer = functools.partial(
            _close_reader, self._ref, self._hub, link, self._runtime, self._matches)
        self._enabled = True  # it is complete, and peers may be told of it, and listeners of peers
        with self._runtime.asking(f"opening a reader of topic {topic.name!r}"):
            self._runtime.attachment.add(link, link.handle.session)
        self._runtime.add(self._matches)
        self._runtime.add_reader(self)
        if self._access is not None:
            self._access.add(self)
        if from_history and self._depth:
            self._await_own(EVERYTHING, 0)  # our own earlier writes are history, too, and only the newest are wanted

    def _lay_out(self, topic: Topic[Any], grouped: bool) -> None:
        """What a reader has before it goes by a Qos."""
        from dds.readers.live import FirstSampleInfo, LiveBytesSample, LiveKeyedInfo, LiveSampleInfo

        self._access: GroupAccess | None = None
        self._topic = topic
        self._given = grouped
        self._hub = Hub()
        self._lock = threading.RLock()
        self._codec: Any = topic._codec.for_reader()
        self._blocked: set[int] = set()
        self._consumed = 0  # samples that were given out for the first time
        self._begin_counting()
        self._looks_at = dds_infinity  # when the alarms have been told to look at it, monotonic ns
        self._failure: Exception | None = None
        self._keyed = self._codec.key_of is not None
        self._live_info: Any = LiveKeyedInfo if self._keyed else LiveSampleInfo
        self._bytes_sample = LiveBytesSample
        self._info_type: Any = LiveKeyedInfo if self._keyed else FirstSampleInfo
        self.read_own_writes, self._fast, self._newest, self._limit = True, False, False, 0

    def _go_by(self, qos: Qos) -> None:
        """Its Qos, for good but for what may change."""
        self._qos = qos
        self._depth = policies.history_depth(qos)
        self._keep_all = not self._depth and not policies.best_effort(qos)
        self._samples_max = policies.samples_max(qos, self._codec.key_of is not None)
        self._limit = 0 if self._depth else self._samples_max  # samples; 0 = none

    def _read_from(self, link: Any, topic: str, content: Content | None, channel: Channel | None) -> None:
        """Where its samples come from, and what becomes of them. `topic`: the name by which the node has it."""
        self._link = link
        self._log = link.handle.log
        standing, period = Standing(self._qos), policies.deadline_ns(self._qos)
        deadlines = Deadlines(period) if period else None
        selective = content is not None or standing.chooses or bool(period) or channel is not None or (
            policies.ignores_local(self._qos, True, True))
        self._losses = self._new_losses(selective)
        self._intake = Intake(
            self._log, self._codec, self._depth, self._samples_max, self._blocked, content, self._losses, standing,
            deadlines, not self._runtime.is_remote, None if channel is None else Sets(channel.number, channel.mark))
        self._fast = self._newest = False
        self._log.only_plain = True
        self._choose_way()
        self._matches = Matches(self, topic, False, self._qos, type_of(self._codec), channel)
        self._intake.on_lapse = functools.partial(_writer_lapsed, weakref.ref(self))
        self._intake.on_group = functools.partial(_group_begun, weakref.ref(self))
        self._intake.is_there = self._matches.has
        if self._keyed:
            self._intake.limits = ReaderLimits.of(self._qos, self._depth)
            if self._intake.limits is not None and channel is not None:
                raise DDSException(DDSException.DDS_RETCODE_UNSUPPORTED,
                                   "limits on instances are not kept for topics of an order group; use max_samples")
            self._choose_way()

    # --- going on at another node

    def _switched(self, continued: bool) -> None:
        """The next log is there. On the thread that reattaches."""
        if not continued:
            self._lost.count()  # how many, nobody knows
            self._note("on_sample_lost")
            if not self._link.later:  # else the next log says so itself
                self._intake.expect_gap()
        if not self._link.later:
            self._intake.expect_ends(self._link.handle.ends, self._log.next_view)
            self._choose_way()
        self._hub.woken()
        self._wake_watchers()

    def _go_on(self) -> bool:
        """Turn to the next log if there is one and this one has been read to its end; True if so."""
        link = self._link
        if not link.later:
            return False
        with self._lock:
            if not link.later or self._log.pending or self._intake.head is not None or not self._open:
                return False
            self._look_for_lost()
            view_id = self._log.next_view
            link.advance()
            self._intake.expect_ends(link.handle.ends, view_id)
            self._log = link.handle.log
            self._log.only_plain = True
            self._losses = self._new_losses(self._intake.chooses)
            self._intake.turn_to(self._log, self._losses, link.handle.continued)
            # The new node tells anew which writers are incompatible. Those of the old one have nothing left in its log.
            self._blocked.clear()
            self._blocked.update(one.handle for one in list(self._matches.incompatible.values()))
            self._choose_way()
            return True

    def _log_ended(self) -> bool:
        """The log is empty and its node gone: True if another one has taken its place, False if one still may.

        Raises DDSNodeLost if not.
        """
        if self._go_on():
            return True
        if self._link.later or self._link.hopeful:
            return False
        self._check_open()
        if self._link.error is not None:
            raise self._link.error
        attachment = self._runtime.attachment
        attachment.lost(self._link.handle.session)  # who hears of it by this error finds it in the statuses, too
        raise attachment.lost_error(f"reading topic {self._topic.name!r}")

    def _from_later(self, look: Callable[[], R], nothing: R) -> R:
        """What look() finds in a later node's log, once this one is empty and its node gone; else `nothing`.

        Raises DDSNodeLost if nothing can come any more.
        """
        found = nothing
        while not found and self._log.is_gone and not self._log.pending and self._log_ended():
            found = look()
        return found

    def _choose_way(self) -> None:
        """The fast way is open while samples need not be looked at one by one."""
        intake = self._intake
        one_by_one = intake.instances is not None and bool(self._depth)  # KeepLast counts the samples of each instance
        free = not self._blocked and not intake.chooses and intake.limits is None
        self._fast, self._newest = free and not one_by_one, free and one_by_one

    def _block(self, handle: int) -> None:
        """Samples of this writer are not for us. The Runtime calls it."""
        with self._lock:
            self._blocked.add(handle)
            self._choose_way()

    def _unblock(self, handle: int) -> None:
        with self._lock:
            self._blocked.discard(handle)
            self._choose_way()
        self._forget_lapse(handle)

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
            return self._log.pending > 0
        log, local, waker = self._log, self._local, self._hub.enter()
        try:
            while (pending := log.pending) < wanted and any(inbox.acknowledged < count for inbox, count in coming):
                budget = local.budget_short if found or pending else local.budget_empty
                left_s = budget.left_s()
                if left_s <= 0 or log.is_gone:
                    break
                start = time.monotonic()
                known = self._arm()
                if log.pending == pending:
                    # Only arrival here rings, not delivery at the other nodes: hence the short steps.
                    self._await_ring(waker, min(left_s, 0.0005), known)
                budget.spend(time.monotonic() - start)
        finally:
            self._hub.exit(waker)
        return self._log.pending > 0

    def _search(self, n: int, mask: int, content: Content | None, handle: int | None, take: bool,
                order: Callable[[Any], Any] | None = None) -> list[Any]:
        with self._lock:
            self._check_open()
            if self._access is not None:
                self._access.check_open()
            intake = self._intake
            self._go_on()
            if content is None and order is None and handle is None and mask in (ANY, UNREAD):
                wanted = n if mask == ANY else len(intake) - intake.unread + n
            else:
                wanted = EVERYTHING
            self._fill(wanted)
            self._look_for_lost()
            if handle is not None:
                self._check_instance(handle)
            before = intake.unread
            matching = intake.matching(mask, content, handle)
            found = matching if order is None else intake.in_order(matching, order, n)
            try:
                samples = intake.give(found, n, take)
            except Unreadable as error:
                raise undecodable(self._topic.name, error) from error.__cause__
            finally:
                self._consumed += before - intake.unread
                self._look_for_refused()
            if samples:
                self._info_type = self._live_info
            return samples

    def _give_one(self, entry: Entry) -> list[Any]:
        """Take this kept one; [] if it is not of the reader's type. Raises DDSException if it can't be read."""
        with self._lock:
            self._consumed += not entry.read
            try:
                samples = self._intake.give([entry], 1, True)
            except Unreadable as error:
                raise undecodable(self._topic.name, error) from error.__cause__
            self._look_for_refused()
            self._info_type = self._live_info
            return samples

    def _fill(self, wanted: int) -> None:
        """Let samples in until `wanted` are kept, or all that has come is. Under the lock."""
        if self._access is not None:
            self._access.advance()
            self._intake.pass_time()
        else:
            self._pull(self._intake.pull, wanted)
        following = self._intake.next_ns
        if following is not None and following < self._looks_at:
            self._looks_at = following
            self._runtime.alarms.look(self)
        elif self._waits_for_others:
            self._runtime.alarms.look(self)

    def _pull(self, pull: Callable[[int], None], wanted: int) -> None:
        try:
            pull(wanted)
            while self._go_on():
                pull(wanted)
        except ForkedChild as error:
            raise DDSNodeLost(str(error)) from None
        except ValueError as error:
            raise self._not_now(error) from None

    @property
    def _waits_for_others(self) -> bool:
        """Other readers of its subscriber must get something first, which comes to them on connections of their own."""
        access = self._access
        return access is not None and access.is_blocked and not access.is_open and self._runtime.is_remote

    # What goes through an order group together with others uses these four.

    def _collect(self) -> None:
        self._pull(lambda _: self._intake.collect(), EVERYTHING)

    @property
    def _ahead(self) -> int:
        return int(self._log.pending) + len(self._intake._arrived)

    @property
    def _stands_at(self) -> tuple[int, int]:
        return self._log.next_view, self._log.next_sequence

    @property
    def _is_over(self) -> bool:
        return self._link.error is not None or (self._log.is_gone and not self._link.later and not self._link.hopeful)

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
        """As _ready(): -1 if there is something, else how many messages had come when it looked, for _await_ring()."""
        if not self._open:
            park()
        self._check_open()
        if self._something(condition):
            return -1
        known = self._arm()
        if self._something(condition):
            return -1
        if self._log.is_gone:
            park()
            if self._log_ended():
                return self._known(condition)
        return known

    def _something(self, condition: Any) -> bool:
        if condition is None:
            return self._unread() > 0
        return self._has(condition.mask, condition.content)

    def _unread(self) -> int:
        """Samples that were not given out yet; an upper bound for readers that keep the last."""
        if self._link.later:
            self._go_on()
        if not self._is_free or self._log.meets_tagged:
            with self._lock:
                self._fill(EVERYTHING)
            return self._intake.unread
        return self._intake.unread + self._log.pending + (self._failure is not None)

    def _has_by_now(self, mask: int, content: Content | None) -> bool:
        """As _has(), once what this process has written so far is here."""
        return self._has(mask, content) or (self._await_own(EVERYTHING, 0) and self._has(mask, content))

    def _has(self, mask: int, content: Content | None) -> bool:
        """True if a sample satisfies this."""
        if self._link.later:
            self._go_on()
        if content is None and mask & SampleState.NotRead and mask & ViewState.Any == ViewState.Any and (
                mask & InstanceState.Alive) and self._has_plain:
            return True
        with self._lock:
            if not self._open:
                return False
            if not (self._fast and mask & SampleState.Any == SampleState.Read):
                self._fill(EVERYTHING)
            return next(self._intake.matching(mask, content, None), None) is not None

    # What waits for a reader uses these five.

    def fileno(self) -> int:
        """The descriptor that is rung when a sample comes after somebody has asked for it. For iterators, wait sets,
        listeners and `async for`, which know how to ask; it is not readable all the time that there is data."""
        return self._link.newest.log.fileno()  # the log that grows

    @property
    def _rings(self) -> bool:
        """False while the node of the log that grows is gone: its descriptor stays readable, and says nothing any more.
        The thread that brings the next log rings the wakers."""
        return not self._link.newest.log.is_gone

    def _arm(self) -> int:
        """Returns how many messages had come by then."""
        while True:
            log = self._link.newest.log
            try:
                log.arm()
                return int(log.arrived)
            except ForkedChild as error:
                raise DDSNodeLost(str(error)) from None
            except ValueError as error:  # closed by another thread: the reader, or this log, after the next one came
                if not self._open or log is self._link.newest.log:
                    raise self._not_now(error) from None

    def _await_ring(self, waker: Waker, left_s: float | None, known: int) -> None:
        """Wait for more messages than were `known`, for `waker`, or so long; others who wait learn of messages. Returns
        if another thread closes the reader, or goes on in the next log: who waits looks again, and finds it so."""
        try:
            rung = self._link.newest.log.wait_or(waker.fd, -1.0 if left_s is None else left_s, known)
        except ForkedChild as error:
            raise DDSNodeLost(str(error)) from None
        except ValueError:  # this log is closed
            if not self._open:
                park()
            return
        if rung & 1:
            self._hub.woken(waker)
        if rung & 2:
            waker.clear()

    def _clear_ring(self, waker: Waker | None) -> None:
        """The descriptor was rung: empty it, and let everybody else who waits know."""
        self._link.newest.log.clear()
        self._hub.woken(waker)

    def _head(self) -> tuple[int, int, int]:
        """See ReaderStatuses."""
        log = self._link.newest.log
        return self._link.status.total_count, log.position_index + log.pending, self._intake.let_pass

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


def _close_reader(ref: int, hub: Hub, link: ReaderLink, runtime: Runtime, matches: Matches) -> None:
    runtime.dispatcher.unwatch(ref, hub)
    link.close()
    runtime.remove(matches, link.guid)
    hub.woken()
