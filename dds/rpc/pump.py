"""One thread that waits for a reader and some statuses, and hands on what comes.

Rules: the owner is called on this thread only, one call at a time. What can't be decoded is skipped: anybody who may
write to the topic may have written it. The thread ends when the reader is closed or no node will serve it any more.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

from dds.conditions import GuardCondition, ReadCondition, WaitSet
from dds.entity import Entity, Participant
from dds.exceptions import DDSException, DDSNodeLost
from dds.internal import dds_infinity
from dds.readers.fast_way import ANY
from dds.status import DDSStatus
from dds.sub import DataReader
from dds.waiting.wake import Deadline, start

T = TypeVar("T")

TAKEN = 256  # samples at a time
AGAIN_NS = 200_000_000  # between two tries to take what can't be had yet
PASSING = (DDSException.DDS_RETCODE_OUT_OF_RESOURCES, DDSException.DDS_RETCODE_TIMEOUT)  # of take(): tried again
STATUSES = (DDSStatus.PublicationMatched | DDSStatus.SubscriptionMatched | DDSStatus.SampleLost
            | DDSStatus.LivelinessLost)

log = logging.getLogger("dds")


class Owner(Protocol[T]):
    """Whom a Pump works for."""

    def samples_came(self, samples: list[T]) -> bool:
        """Here they are. False: no more before wake()."""

    def statuses_changed(self) -> None:
        """Somebody came or went, or something was lost."""

    def time_passed(self, now_ns: int) -> int | None:
        """Do what is due; when is the next thing? On the monotonic clock; None = nothing is."""

    def pump_ended(self, error: DDSException) -> None:
        """Nothing comes any more; close what the pump has watched."""


class Pump(Generic[T]):
    """Start it with start(), end it with stop()."""

    def __init__(self, participant: Participant, name: str, reader: DataReader[T], others: Sequence[Entity],
                 owner: Owner[T]) -> None:
        self._reader = reader
        self._watched: list[Entity] = [reader, *others]
        self._owner = owner
        self._guard = GuardCondition(participant)
        self._unread = ReadCondition(reader, ANY)
        self._waitset = WaitSet(participant)
        self._topic = reader.topic.name
        for one in self._watched:
            one.set_status_mask(STATUSES)
            self._waitset.attach(one)
        self._waitset.attach(self._guard)
        self._waitset.attach(self._unread)
        self._paused = False
        self._missed = 0
        self._stopping = False
        self._again_ns: int | None = None  # paused until then: what is next could not be had
        self._is_short = False  # so it was the last time, and that has been said
        self._due_ns: int | None = None  # when it will look at the time by itself; None = wake it to have it look
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """DDSException where no more threads may run; it is over then."""
        try:
            start(self._thread, self._thread.name)
        except BaseException:
            self._close()
            raise

    def read(self, reader: DataReader[T]) -> None:
        """Another reader of the topic takes the place of the present one. On the pump's thread."""
        paused = self._paused
        self._waitset.detach(self._watched[0])
        if not paused:
            self._waitset.detach(self._unread)
        self._unread.close()
        self._reader = self._watched[0] = reader
        self._missed = 0
        reader.set_status_mask(STATUSES)
        self._unread = ReadCondition(reader, ANY)
        self._waitset.attach(reader)
        if not paused:
            self._waitset.attach(self._unread)

    def is_this_thread(self) -> bool:
        return threading.current_thread() is self._thread

    def wake(self) -> None:
        """Look at everything again. From any thread."""
        try:
            self._guard.set(True)
        except DDSException:  # it has ended
            pass

    def due(self, at_ns: int) -> None:
        """The owner has something to do then. From any thread; costs nothing if it looks before."""
        due_ns = self._due_ns
        if due_ns is None or at_ns < due_ns:
            self.wake()

    def stop_soon(self) -> None:
        """End. For finalizers: takes no lock, waits for nobody."""
        self._stopping = True
        self.wake()

    def stop(self, timeout_s: float = 10.0) -> None:
        """End, and return when the thread has ended."""
        self.stop_soon()
        if self._thread.ident is not None and not self.is_this_thread():
            self._thread.join(timeout_s)

    def has_missed(self) -> bool:
        """True if samples were lost since the last time, or had come that the order doesn't have any more."""
        before, self._missed = self._missed, self._reader._interruptions()
        return self._missed > before

    def _run(self) -> None:
        try:
            self._owner.statuses_changed()
            while not self._stopping:
                self._turn()
            error = DDSException(DDSException.DDS_RETCODE_ALREADY_DELETED, f"topic {self._topic!r}: closed")
        except DDSException as failed:
            error = failed
        except BaseException as failed:  # a defect; whoever waits for something must hear that nothing comes
            log.exception("%s has ended by a defect", self._thread.name)
            error = DDSException(DDSException.DDS_RETCODE_ERROR,
                                 f"topic {self._topic!r}: {self._thread.name} has ended by a defect: {failed!r}")
        self._close()
        owner = self._owner
        del self._owner  # it knows us: in a ring, what it has closed would keep its descriptors
        owner.pump_ended(error)

    def _close(self) -> None:
        for one in (self._waitset, self._guard, self._unread):
            one.close()

    def _turn(self) -> None:
        self._due_ns = None  # before the owner looks: what it is given from now on may be too late for that
        due_ns = self._due_ns = self._owner.time_passed(time.monotonic_ns())
        wake_ns = min((at for at in (due_ns, self._again_ns) if at is not None), default=None)
        self._waitset._wait(Deadline.in_ns(dds_infinity if wake_ns is None else wake_ns - time.monotonic_ns()))
        is_again = self._again_ns is not None and time.monotonic_ns() >= self._again_ns
        if (self._guard.take() or is_again) and self._paused:
            self._pause(False)
        changed = 0
        for one in self._watched:
            changed |= one.take_status()
        # What somebody said comes before the news that it has gone.
        more = True
        while more and not self._paused:
            samples = self._take()
            if samples and not self._owner.samples_came(samples):
                self._pause(True)
            more = bool(changed) and bool(samples)
        if changed:
            self._owner.statuses_changed()

    def _pause(self, paused: bool) -> None:
        if paused:
            self._waitset.detach(self._unread)
        else:
            self._waitset.attach(self._unread)
        self._paused = paused
        self._again_ns = None

    def _take(self) -> list[T]:
        try:
            samples = self._reader.take(TAKEN)
        except DDSNodeLost:
            raise
        except DDSException as error:
            if error.code in PASSING:
                self._try_later(error)
            elif error.code != DDSException.DDS_RETCODE_ERROR:
                raise
            else:
                log.debug("%s", error)
            return []
        self._is_short = False
        return samples

    def _try_later(self, error: DDSException) -> None:
        """What is next stays where it is. The program may have more descriptors or memory in a moment."""
        if not self._is_short:
            self._is_short = True
            log.warning("%s goes on later: %s", self._thread.name, error)
        self._pause(True)
        self._again_ns = time.monotonic_ns() + AGAIN_NS


__all__ = ["Owner", "Pump"]
