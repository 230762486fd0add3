"""What a reader counts: the statuses of a DataReader, and when they are brought up to date.

Rules: whatever is counted of samples is counted when they are let in, so who asks for a status lets in what has come.
Where that needs no look at samples one by one, none is taken (`ReaderCore`, the fast way).
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

from dds.entity import Endpoint
from dds.internal import dds_infinity
from dds.status import (
    REJECTED_BY_SAMPLES_LIMIT,
    DDSStatus,
    DeadlineMissedStatus,
    IncompatibleQosStatus,
    LivelinessChangedStatus,
    ReattachedStatus,
    SampleFilteredStatus,
    SampleLostStatus,
    SampleRejectedStatus,
    SubscriptionMatchedStatus,
    while_disabled,
)
from dds.waiting import reaper

if TYPE_CHECKING:
    from dds.matching.matching import Matches
    from dds.readers.access import GroupAccess
    from dds.readers.intake import Intake
    from dds.readers.source import LogSource, Losses
    from dds.waiting.wake import Hub

EVERYTHING = 1 << 62
BLOCKED_S = 0.002  # until a reader looks again that waits for another one of its subscriber
LOG = logging.getLogger("dds")


class ReaderStatuses(Endpoint):
    """The base of `dds.readers.reader.ReaderCore`."""

    _intake: Intake
    _source: LogSource
    _losses: Losses
    _matches: Matches
    _hub: Hub
    _lock: threading.RLock
    _fast: bool
    _keep_all: bool
    _limit: int
    _looks_at: int
    _codec: Any
    _access: GroupAccess | None
    _topic: Any

    def _about(self) -> str:
        return f" of topic {self._topic.name!r}"

    def _begin_counting(self) -> None:
        self._lost = SampleLostStatus()
        self._kept_out = SampleFilteredStatus()
        self._rejected = SampleRejectedStatus()
        self._missed = DeadlineMissedStatus()
        self._refused = 0  # samples that were not of its type
        self._head_looked_at = self._head_taken = (0, -1, 0)  # see _head()

    # What the reader itself has.

    @property
    def _waits_for_others(self) -> bool:
        """Other readers of its subscriber must get something first, which rings only them."""
        raise NotImplementedError

    def _fill(self, wanted: int) -> None:
        """Let samples in until `wanted` are kept, or all that has come is. Under the lock."""
        raise NotImplementedError

    def _unread(self) -> int:
        """Samples that were not given out yet; an upper bound for readers that keep the last."""
        raise NotImplementedError

    def _head(self) -> tuple[int, int, int]:
        """Which of the reader's logs grows, the samples that have come in it so far, and those that came by
        themselves."""
        raise NotImplementedError

    # --- bringing up to date

    def _update_status(self) -> None:
        reaper.flush()  # a writer that was just forgotten doesn't match any more
        self._look_at_statuses()
        self._head_looked_at = self._head()  # first: what comes from here on is new to whoever takes the status
        if self._unread() and self._head_looked_at != self._head_taken:
            self._changed |= DDSStatus.DataAvailable
        else:
            self._changed &= ~DDSStatus.DataAvailable

    def _status_taken(self, bits: int) -> None:
        if bits & DDSStatus.DataAvailable:
            self._head_taken = self._head_looked_at

    def _look_at_statuses(self) -> None:
        """Bring up to date what is counted of samples that came, or did not."""
        if not self._fast or self._source.log.tagged_ahead:
            self._look_for_missed()
        self._look_for_lost()

    def _look_for_rejected(self) -> None:
        """Bring the status of rejected samples up to date: those that ResourceLimits leave no room for when they come.
        They wait in the log, and hold the writers back, until the program takes some."""
        limited = self._intake.limits is not None
        if not self._limit and not limited:
            return
        with self._lock:
            if self._intake.is_selective or limited:
                self._fill(EVERYTHING)
            self._intake.look_for_rejected()
            limits = self._intake.limits
            before = self._rejected.total_count
            found = self._intake.rejected + (0 if limits is None else limits.rejected) - before
            if found:
                self._rejected.count(found)
                self._rejected.last_reason = REJECTED_BY_SAMPLES_LIMIT if limits is None else limits.reason
                self._rejected.last_instance_handle = 1 if self._codec.key_of is None else (
                    0 if limits is None else limits.instance)  # 0: not decoded yet
        if found:
            self._note("on_sample_rejected")

    def _look_for_lost(self) -> None:
        """Bring the lost-sample status up to date, and that of rejected ones. Replaced by KeepLast is not lost."""
        self._look_for_rejected()
        self._look_for_refused()
        too_late, self._intake.too_late = self._intake.too_late, 0
        if too_late:
            self._lost.count(too_late)
            self._note("on_sample_lost")
        if self._keep_all and not self._source.log.lost:  # only a log whose node is gone may be overwritten under it
            return
        self._losses.look()
        if self._losses.found:
            self._lost.count(self._losses.found)
            self._losses.found = 0
            self._note("on_sample_lost")

    def _look_for_refused(self) -> None:
        """Count the samples that are not of the reader's type, as lost ones, and log why the first were refused, and
        after twice as many each time."""
        with self._lock:
            refused, self._intake.refused = self._intake.refused, 0
            if not refused:
                return
            before, self._refused = self._refused, self._refused + refused
            self._lost.count(refused)
        if before.bit_length() != self._refused.bit_length():
            LOG.warning("a reader of topic %r has refused %d samples that are not of its type %s; of the last one: %s",
                        self._topic.name, self._refused, self._codec.type_name, self._intake.why_refused)
        self._note("on_sample_lost")

    def _interruptions(self) -> int:
        """How often what came did not follow what had come: samples that were lost, and orders that go on without what
        the reader has had. What a stranger has written that is no sample of the type doesn't matter, though it counts
        as lost."""
        return self.get_sample_lost_status().total_count - self._refused + self._source.breaks

    def _on_time(self) -> float | None:
        """On the thread of the alarms: what time alone brings about is done, and told."""
        with self._lock:
            if not self._open:
                return None
            before, access = self._intake.let_pass, self._access
            step = 0 if access is None else access.step
            self._look_for_missed()
            following = self._intake.next_ns
            self._looks_at = dds_infinity if following is None else following
            woken = self._intake.let_pass != before
        if access is not None and access.step != step:
            access.wake()
        elif woken:
            self._hub.woken()
            self._wake_watchers()
        if self._waits_for_others:
            return BLOCKED_S
        deadlines = self._intake.deadlines
        pause_s = 0.001 if deadlines is None else deadlines.pause_s
        return None if following is None else max(pause_s, (following - time.monotonic_ns()) / 1e9)

    def _look_for_missed(self) -> None:
        """Let in what has come, and bring the status of missed deadlines up to date."""
        with self._lock:
            self._fill(EVERYTHING)
            deadlines = self._intake.deadlines
            if deadlines is None or self._source.log.pending:
                return  # what waits for room came in time, for all that is known
            missed = deadlines.late() + deadlines.missed(time.monotonic_ns())
            for instance, periods in missed:
                self._missed.count(periods)
                self._missed.last_instance_handle = instance
        if missed:
            self._note("on_requested_deadline_missed")

    # --- for programs

    @while_disabled(SampleLostStatus)
    def get_sample_lost_status(self) -> SampleLostStatus:
        """Samples that came and were overtaken before this reader got to them; those that are not of its type, and
        with order by source timestamp those that were older than what had come before."""
        self._check_open()
        self._look_at_statuses()
        self._changed &= ~DDSStatus.SampleLost
        return self._lost.read()  # type: ignore[return-value]

    @while_disabled(SampleFilteredStatus)
    def get_sample_filtered_status(self) -> SampleFilteredStatus:
        """Samples that came and that were kept out: by the reader's ContentFilteredTopic or its Topic's filter, because
        another writer owns their instance, or by TimeBasedFilter."""
        self._check_open()
        with self._lock:
            if self._intake.chooses:
                self._fill(EVERYTHING)
            self._kept_out.count(self._intake.filtered - self._kept_out.total_count)
            return self._kept_out.read()  # type: ignore[return-value]

    @while_disabled(ReattachedStatus)
    def get_reattached_status(self) -> ReattachedStatus:
        """How often the reader went on at another node, and whether samples may be missing in between."""
        self._check_open()
        return self._source.status.read()  # type: ignore[return-value]

    @while_disabled(SubscriptionMatchedStatus)
    def get_subscription_matched_status(self) -> SubscriptionMatchedStatus:
        """Writers that match, and how that changed since the last call."""
        self._check_open()
        self._changed &= ~DDSStatus.SubscriptionMatched
        return self._matches.status.read()

    @while_disabled(IncompatibleQosStatus)
    def get_requested_incompatible_qos_status(self) -> IncompatibleQosStatus:
        """Writers that offer less than this reader asks for."""
        self._check_open()
        self._changed &= ~DDSStatus.RequestedIncompatibleQos
        return self._matches.incompatible_status.read()  # type: ignore[return-value]

    @while_disabled(LivelinessChangedStatus)
    def get_liveliness_changed_status(self) -> LivelinessChangedStatus:
        """Matched writers that are alive, and those that have given no sign of life in time."""
        self._check_open()
        self._look_at_statuses()
        self._changed &= ~DDSStatus.LivelinessChanged
        return self._matches.liveliness_status.read()

    @while_disabled(SampleRejectedStatus)
    def get_sample_rejected_status(self) -> SampleRejectedStatus:
        """Samples that came when ResourceLimits left no room for them; they wait at the node."""
        self._check_open()
        self._look_for_rejected()
        self._changed &= ~DDSStatus.SampleRejected
        return self._rejected.read()  # type: ignore[return-value]

    @while_disabled(DeadlineMissedStatus)
    def get_requested_deadline_missed_status(self) -> DeadlineMissedStatus:
        """How often the time of the Deadline passed without a sample of an instance."""
        self._check_open()
        if self._intake.deadlines is not None:
            self._look_for_missed()
        self._changed &= ~DDSStatus.RequestedDeadlineMissed
        return self._missed.read()  # type: ignore[return-value]


__all__ = ["EVERYTHING", "ReaderStatuses"]
