"""How a reader waits for data: it asks for one ring, looks once more, and sleeps; of a node in its own process it does
the node's work meanwhile (attending.pxi).

For one thread at a time. Waiting needs no GIL, and lets signals through. Who closes the reader wakes up who waits.
"""
import time

from libc.stdint cimport int64_t, uint64_t

from spindle_core.arming cimport arm_cursor
from spindle_core.atomics cimport u64_load_relaxed
from spindle_core.events cimport c_close, end_clear, end_fd, end_take, end_wait, end_wake, wait_two
from spindle_core.hot_path cimport (
    ATTEND_ASLEEP,
    ATTEND_DATA,
    ATTEND_OTHERS,
    attend,
    attention,
    begin_attending,
    driver_t,
    end_attending,
    sleep_attending,
)
from spindle_core.memory cimport forks

from spindle_core.errors import ForkedChild, NodeGone

from cpython.exc cimport PyErr_CheckSignals


cdef class LogWaiting:
    """The base of LogReader: how it waits; see the module."""

    def __cinit__(self):
        self.data_end = -1

    def __dealloc__(self):
        # Not in close(): another thread may still wait on it.
        if self.data_end >= 0:
            c_close(end_fd(self.data_end))

    cdef int refuse_child(self) except -1:
        raise ForkedChild("this reader was opened before fork(), in the parent, and doesn't work in the child: attach"
                          " again there (with multiprocessing, prefer the start method 'spawn')")

    @property
    def pending(self):
        """Messages delivered and not yet taken."""
        cdef uint64_t count
        if self.log.base == NULL or self.closed:
            return 0
        count = self.delivered()
        return count - self.index if count > self.index else 0

    def arm(self):
        """Asks for one ring of the descriptor with the next message; True if data is there already."""
        if self.forks != forks:
            self.refuse_child()
        if self.closed:
            raise ValueError("this reader is closed")
        arm_cursor(self.page)
        return self.last_tail() > self.position or self.ended()

    cdef bint ended(self):
        return self.gone or u64_load_relaxed(&self.proper().stopped) != 0

    def wait(self, double timeout_s=-1.0):
        """True when there is data; False on timeout. Blocks without the GIL. Raises NodeGone when no more can come."""
        cdef double deadline = time.monotonic() + timeout_s if timeout_s >= 0 else 0.0
        cdef double left
        while True:
            if self.forks != forks:
                self.refuse_child()
            if self.closed:
                raise ValueError("this reader is closed")
            if self.last_tail() > self.position:
                return True
            if timeout_s == 0:
                if self.ended():
                    self.raise_gone()
                return False
            if self.ended():
                self.raise_gone()
            left = -1.0
            if timeout_s >= 0:
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
            self.wait_once(-1, left, -1)

    def wait_or(self, int other_fd, double timeout_s=-1.0, int64_t known=-1):
        """Waits once for data or for `other_fd` to be readable: 1 data may be there, 2 the other is readable (and stays
        so), 3 both, 0 neither in time. May wake up without data; says nothing of a node that is gone.

        known: how many messages had `arrived` when the caller looked, after arming; it waits for more. By default for
        one that was not taken yet.
        """
        if known < 0 and self.arm():
            return 1
        return self.wait_once(other_fd, timeout_s, known)

    @property
    def arrived(self):
        """Messages that have come by now, those that were taken included."""
        return self.delivered() if self.log.base != NULL and not self.closed else 0

    cdef int wait_once(self, int other_fd, double timeout_s, int64_t known) except -1:
        """Waits once, as wait_or(), but in the place of a predicate thread that is blocked, where there is one in this
        process (`attending`)."""
        cdef object _kept = self.engine      # another thread may close this reader meanwhile
        cdef driver_t *d = self.driver
        cdef bint attends = d != NULL and timeout_s != 0 and not self.frozen and begin_attending(d)
        cdef attention found = ATTEND_OTHERS
        cdef int result = 1, timeout_ms, data_end = self.data_end
        cdef uint64_t most_ns = <uint64_t>-1, beyond
        cdef const uint64_t *count
        try:
            if attends and self.following is None:
                if known < 0:
                    count, beyond = &self.header.tail, self.position
                else:
                    count, beyond = &self.header.count, <uint64_t>known - self.copied
                if 0 <= timeout_s < 1:
                    most_ns = <uint64_t>(timeout_s * 1e9)
                with nogil:
                    found = attend(d, self.page, count, beyond, most_ns, False)
                if found == ATTEND_DATA:
                    return 1
                PyErr_CheckSignals()
            if self.arm() and (known < 0 or self.ended() or self.delivered() > <uint64_t>known):
                return 1
            timeout_ms = -1 if timeout_s < 0 else <int>min(timeout_s * 1000.0, 2e9) + 1
            with nogil:
                if found == ATTEND_ASLEEP:
                    result = sleep_attending(d, self.page, count, beyond, data_end, other_fd, timeout_ms)
                elif other_fd < 0:
                    result = 1 if end_wait(data_end, timeout_ms) > 0 else 0
                else:
                    result = wait_two(end_fd(data_end), other_fd, timeout_ms)
                    if result & 1:
                        end_take(data_end)
        finally:
            if attends:
                end_attending(d)
        PyErr_CheckSignals()
        return result

    cdef void drives(self, object engine, driver_t *driver) noexcept:
        """Engine.attended_by()."""
        self.engine, self.driver = engine, driver

    cdef raise_gone(self):
        raise NodeGone("the node behind this reader has stopped: attach again once a daemon runs")

    def fileno(self):
        """What becomes readable after arm(): for poll, select and asyncio. It stays so once the node is gone."""
        return end_fd(self.data_end)

    def clear(self):
        """Takes what was rung."""
        if self.forks == forks:
            end_clear(self.data_end)

    def mark_gone(self):
        """The node died: a waiting thread wakes up; what was delivered can still be taken."""
        self.gone = True
        if self.forks == forks:
            end_wake(self.data_end)

    def read_on(self):
        """No other node's log gives the rest: what is behind a large sample that can't be opened comes from here, and
        the sample is lost. True if there is something."""
        cdef uint64_t view_id = 0, sequence = 0
        self.goes_on = False
        if self.closed or self.forks != forks or not self.frozen or self.frozen_tail == self.ended_tail:
            return False
        self.frozen_tail = self.ended_tail
        self.find_end(&self.frozen_count, &view_id, &sequence)
        return True

    @property
    def is_gone(self):
        return self.ended()
