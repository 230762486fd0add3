"""Who drives an engine's predicates: its thread, or the caller by hand; and how they are made to stand still.

Whatever the predicates read is changed between two of their steps only: park(), change, resume(). So no structure is
ever shared between them and Python. Parking takes microseconds, and nothing under it waits.
"""
import contextlib
import select
import threading

from libc.stdint cimport uint32_t
from libc.string cimport memset

from spindle_core.hot_path cimport (
    announce_sleep,
    drive,
    driver_t,
    note_all,
    publish_for_thread,
    stop_driving,
    tell_control,
    try_to_drive,
    until_next_beat_ms,
    whole_pass,
)
from spindle_core.atomics cimport (
    fence_store_load,
    realtime_ns,
    u32_load_acquire,
    u32_store_release,
)
from spindle_core.bell cimport call_own, wake_up
from spindle_core.counters cimport Counters
from spindle_core.epoch cimport Epoch
from spindle_core.events cimport c_close, event_ring, give_way
from spindle_core.inbox_writer cimport InboxWriter
from spindle_core.layout cimport BELL_MAGIC, bell_page
from spindle_core.memory cimport Mapping
from spindle_core.reader cimport LogReader
from spindle_core.slices cimport REALTIME_MAX

from spindle_core.ends import Loose
from spindle_core.switches import Switches


cdef class Driving:
    """`busy_poll_us`: how long the predicate thread looks for work before it blocks. While it mostly sleeps `nice` is
    added to its nice value, and beside others who use its core up `realtime` is its real-time priority, 0: none. Both
    where the process may have them (slices.pxd)."""

    def __cinit__(self):
        self.bell_fd = self.control_fd = self.resume_fd = self.all_fd = -1
        memset(&self.driver, 0, sizeof(self.driver))

    def __init__(self, node_id, *, incarnation=1, Counters counters=None, switches=None, busy_poll_us=10,
                 nice=0, realtime=0):
        if not 0 <= node_id < 1 << 32:
            raise ValueError(f"node id {node_id}: must be between 0 and {(1 << 32) - 1}")
        if not 0 <= busy_poll_us <= 1_000_000:
            raise ValueError(f"busy_poll_us {busy_poll_us}: must be between 0 and 1000000 microseconds")
        if not -20 <= nice <= 0:
            raise ValueError(f"nice {nice}: must be between -20 and 0")
        if not 0 <= realtime <= REALTIME_MAX:
            raise ValueError(f"realtime {realtime}: must be between 0 and {REALTIME_MAX}")
        self.node_id = node_id
        self.incarnation = incarnation
        self.switches = switches if switches is not None else Switches()
        self.counters = counters if counters is not None else Counters.create()
        self.counters_kept = self.counters.mapping.view()   # Counters.close() must not take them from the thread
        self.lock = threading.RLock()
        self.bell = Mapping.create(f"spindle-bell-{node_id}", 4096)
        self.bell.seal_writes()
        # All of the engine's, none of a view's: a ring that the thread has not heard yet is lost with its descriptor.
        made = Loose.events(4)
        self.bell_fd, self.control_fd, self.resume_fd, self.all_fd = (made.take() for _ in range(4))
        cdef bell_page *b = <bell_page *>self.bell.base
        b.node_id = node_id
        b.incarnation = incarnation
        b.magic = BELL_MAGIC
        self.driver.bell = b
        self.driver.bell_fd = self.bell_fd
        self.driver.wait_fd = -1
        self.driver.resume_fd = self.resume_fd
        self.driver.busy_poll_ns = busy_poll_us * 1000
        self.driver.nice = nice
        self.driver.realtime = realtime
        self.driver.counters = self.counters.values

    def start(self):
        """Starts the predicate thread. RuntimeError if it was started or stopped before, or the system has no thread
        for it."""
        if self.thread is not None or self.stopped:
            raise RuntimeError("an engine starts once")
        self.make_poller()
        thread = threading.Thread(target=self._run, name=f"spindle-predicates-{self.node_id}", daemon=True)
        thread.start()   # may be one more than there may be: then there is none to be ended
        self.thread = thread

    cdef int make_poller(self) except -1:
        """Makes the epoll at which the predicate thread sleeps. Bells are watched edge-triggered: nobody reads them."""
        if self.poller is None:
            poller = select.epoll()
            for fd in (self.bell_fd, self.all_fd):
                poller.register(fd, select.EPOLLIN | select.EPOLLET)
            self.driver.wait_fd = poller.fileno()
            self.poller = poller
        return 0

    def hear(self, fd):
        """From now on a ring at `fd` wakes the predicate thread. `fd` is an epoll of an eventfd, see ends.py.
        Raises OSError."""
        self.make_poller()
        self.poller.register(fd, select.EPOLLIN | select.EPOLLET)

    def unhear(self, fd):
        """Takes that back; before the descriptor is closed."""
        self.poller.unregister(fd)

    def publishes_by_itself(self, InboxWriter writer not None):
        """For a writer of this node in its own process: what that commits while the predicate thread is blocked, it
        publishes itself, so a message that comes alone doesn't wait for the thread's wake-up."""
        writer.engine, writer.driver, writer.publish_for = self, &self.driver, publish_for_thread

    def attended_by(self, LogReader reader not None):
        """For a reader of this node in its own process: while it waits for data, and the predicate thread is blocked,
        its thread drives the predicates, so a message doesn't wait for one thread to wake up another."""
        reader.drives(self, &self.driver)

    def _run(self):
        cdef driver_t *d = &self.driver
        with nogil:
            drive(d)

    cdef int end_thread(self) except -1:
        """The predicate thread ends, for good. Under the lock."""
        u32_store_release(&self.driver.stop, 1)
        event_ring(self.bell_fd)
        event_ring(self.resume_fd)
        if self.took_over:           # in the middle of a parking of ours
            self.took_over = False
            stop_driving(&self.driver)
        if self.thread is not None:
            self.thread.join()   # under the lock: who parks finds the thread ended, not in its last step
        return 0

    def step_once(self, now_ns=0, *, falls_asleep=False):
        """One pass, in the caller's thread; only while the predicate thread isn't running. Returns what was done.

        `now_ns`: the time of a virtual clock, which view changes then use as well; by default the system's is read.
        falls_asleep: this is the last look before the caller waits for the bell; the sleep is announced before it.
        """
        cdef int done
        self.virtual_ns = now_ns
        if self.thread is not None and not self.stopped:
            raise RuntimeError("the predicate thread is running")
        if falls_asleep:
            announce_sleep(&self.driver)
        else:
            wake_up(self.driver.bell)
        if self.epoch is None:
            return 0
        done = whole_pass(&self.epoch.node, self.now_ns())
        tell_control(&self.epoch.node)
        return done

    @property
    def sleep_ms_max(self):
        """How long the caller may sleep without being rung, ms: then a heartbeat is due; -1: for ever."""
        return until_next_beat_ms(&self.epoch.node) if self.epoch is not None else -1

    cdef uint64_t now_ns(self) noexcept:
        return self.virtual_ns if self.virtual_ns else realtime_ns()

    cdef void ring(self) noexcept:
        fence_store_load()
        call_own(self.driver.bell, self.bell_fd)

    cdef int park(self) except -1:
        """The predicate thread stands between two steps until resume(). Nests.

        One that is blocked is left asleep: whoever holds `driving` keeps it from stepping. Waking it only to see it
        stand would cost a wake-up here and one in resume(), on a busy host a time slice each.
        """
        cdef driver_t *d = &self.driver
        cdef uint32_t ticket
        cdef int times = 0
        self.lock.acquire()
        self.depth += 1
        if self.depth == 1 and self.thread is not None and not self.stopped:
            self.took_over = try_to_drive(d)
            if self.took_over:
                return 0
            self.ticket = self.ticket % 0xFFFFFFFF + 1   # a new one: no need to see the end of the last parking first
            ticket = self.ticket
            u32_store_release(&d.park, ticket)
            event_ring(self.bell_fd)
            with nogil:
                while u32_load_acquire(&d.parked) != ticket and not u32_load_acquire(&d.stop):
                    give_way(&times)
        return 0

    cdef int resume(self) except -1:
        cdef driver_t *d = &self.driver
        self.depth -= 1
        if self.depth == 0 and self.epoch is not None:
            note_all(&(<Epoch>self.epoch).node)      # whatever was changed
        if self.depth == 0 and self.took_over:
            self.took_over = False
            stop_driving(d)
            self.ring()          # it looks anew at everything that was changed meanwhile
        elif self.depth == 0 and self.thread is not None and not self.stopped:
            u32_store_release(&d.park, 0)
            event_ring(self.resume_fd)
        self.lock.release()
        return 0

    @contextlib.contextmanager
    def parked(self):
        """While in it the predicate thread stands still: for changes to what it reads."""
        self.park()
        try:
            yield
        finally:
            self.resume()
            self.ring()

    def __dealloc__(self):
        u32_store_release(&self.driver.stop, 1)
        for fd in (self.bell_fd, self.control_fd, self.resume_fd, self.all_fd):
            if fd >= 0:
                c_close(<int>fd)
