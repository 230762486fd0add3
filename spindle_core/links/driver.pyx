"""Drives a pool on one thread: looks all the time while there is something to do, sleeps when nobody wants anything.

Who submits something looks at the bell's page and rings if the thread sleeps (bell.pxd): programs each by an eventfd of
their own, nodes of this host likewise, and sockets by themselves.

Rules: drive() runs on one thread; call(), hear() and unhear() on any.
"""
import os
import select

from libc.stdint cimport uint32_t, uint64_t

from spindle_core.atomics cimport (
    cpu_relax,
    fence_store_load,
    monotonic_ns,
    u32_load_acquire,
    u32_store_release,
    u64_load_acquire,
)
from spindle_core.bell cimport call_own, fall_asleep, wake_up
from spindle_core.events cimport c_close, event_clear, event_sleep
from spindle_core.fabric.regions.regions cimport Part
from spindle_core.fabric.regions.requests cimport Asker
from spindle_core.layout cimport BELL_MAGIC, bell_page
from spindle_core.links.links cimport LINK_OPEN, RETRY_SOON, link_t, pool_t
from spindle_core.links.pool cimport Pool, run_pool
from spindle_core.links.spins cimport has_spun, next_spin
from spindle_core.memory cimport Mapping

cdef enum:
    SLEEP_MAX_NS = 1000000000


cdef bint wanted(const driver_t *d, const pool_t *s) noexcept nogil:
    """Somebody else than the pool has something to do."""
    return s.errands_tail < s.errands_head or u32_load_acquire(&d.called) or (
        d.asker != NULL and d.asker.tail < d.asker.head) or d.fetching.tail < d.fetching.head


cdef uint64_t next_retry(const pool_t *s, uint64_t otherwise) noexcept nogil:
    """When the first link that a receiver had no room for tries again."""
    cdef uint64_t first = otherwise
    cdef uint32_t i
    cdef const link_t *link
    for i in range(s.n_used):
        link = s.used[i]
        if link.state != LINK_OPEN or link.noted or link.retry_ns <= RETRY_SOON:
            continue
        if link.retry_ns < first and u64_load_acquire(&link.user.submitted) != link.taken:
            first = link.retry_ns
    return first


cdef void arm(const driver_t *d, bint asleep) noexcept nogil:
    """Has the ways to peers tell of what comes while the thread sleeps, or not any more."""
    cdef uint32_t i
    for i in range(d.n_armed):
        if asleep:
            d.armed[i].sleep(d.armed[i].self)
        else:
            d.armed[i].wake(d.armed[i].self)


cdef uint64_t lie_down(driver_t *d, pool_t *s, uint64_t now, uint64_t until_ns) noexcept nogil:
    """Says that the thread sleeps, and looks once more: until when it may sleep at `poller`. rise() ends it."""
    fall_asleep(d.bell)
    arm(d, True)
    # What was submitted before the sleep was visible is found in this look.
    if run_pool(s, now) or wanted(d, s):
        return now
    return max(now, next_retry(s, min(until_ns, now + <uint64_t>SLEEP_MAX_NS)))


cdef void rise(driver_t *d) noexcept nogil:
    arm(d, False)
    wake_up(d.bell)


cdef void drive_pool(driver_t *d, pool_t *s, uint64_t until_ns, uint64_t spin_ns) noexcept nogil:
    cdef uint64_t now = monotonic_ns(), busy_until = now + next_spin(&d.spins, spin_ns), wake_ns
    cdef bint spins = False      # it has looked since it last did something, and not slept
    while True:
        if run_pool(s, now):
            if spins:
                has_spun(&d.spins, True)
                spins = False
            busy_until = now + next_spin(&d.spins, spin_ns)
        if wanted(d, s) or now >= until_ns:
            return
        if now >= busy_until:
            if spins:
                has_spun(&d.spins, False)
                spins = False
            wake_ns = lie_down(d, s, now, until_ns)
            if wake_ns > now:
                event_sleep(d.poller, <int>((wake_ns - now + 999999) // 1000000))
            rise(d)
            busy_until = monotonic_ns() + spin_ns
        else:
            spins = True
            cpu_relax()
        now = monotonic_ns()


cdef class Driver:
    """`bell`: a bell_page that those who submit map (ShmPart.bell is one). `asker`: whose completions end drive().
    OSError where no descriptor is left."""

    def __cinit__(self):
        self.state.poller = self.state.own_fd = -1

    def __init__(self, Pool pool not None, Mapping bell not None, Asker asker=None):
        cdef Part part
        if not bell.writable or bell.size < sizeof(bell_page) or (<bell_page *>bell.base).magic != BELL_MAGIC:
            raise ValueError("this is no doorbell of the own process")
        self.pool, self.bell, self.kept = pool, bell, (bell.view(), asker)
        self.state.bell = <bell_page *>bell.base
        self.state.asker = NULL if asker is None else &asker.state
        self.state.fetching = &pool.long_messages.fetching.state
        self.epoll = select.epoll()
        self.state.poller = self.epoll.fileno()
        self.state.own_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self.epoll.register(self.state.own_fd, select.EPOLLIN | select.EPOLLET)
        for way in pool.regions.parts:
            part = way
            own = getattr(part, "bell", None) is bell      # that one is seen to here
            if part.wait_fd >= 0:                          # and nobody clears what the thread has rung itself
                self.epoll.register(part.wait_fd, select.EPOLLIN | (select.EPOLLET if own else 0))
            if part.table.sleep != NULL and not own:
                self.state.armed[self.state.n_armed] = &part.table
                self.state.n_armed += 1

    def hear(self, fd):
        """A ring at `fd` wakes the thread: an epoll of an eventfd (ends.heard_by). OSError."""
        self.epoll.register(fd, select.EPOLLIN | select.EPOLLET)

    def unhear(self, fd):
        """Takes that back; before the descriptor is closed."""
        self.epoll.unregister(fd)

    def call(self):
        """Ends drive() soon; the next one does not end by this."""
        u32_store_release(&self.state.called, 1)
        fence_store_load()
        call_own(self.state.bell, self.state.own_fd)

    def drive(self, double timeout_s, double spin_s=0.0):
        """Runs the pool until it has errands, completions for `asker` are there, somebody calls, or `timeout_s` seconds
        have passed. After what it did last, it looks for `spin_s` seconds before it sleeps, unless that was in vain
        lately."""
        cdef uint64_t until = monotonic_ns() + <uint64_t>(timeout_s * 1e9), spin = <uint64_t>(spin_s * 1e9)
        with nogil:
            drive_pool(&self.state, self.pool.state, until, spin)
        self.heard_call()

    # ---- the parts of drive(), for who waits in another way and has another clock (the simulator) ----

    def heard_call(self):
        """What call() said was heard."""
        u32_store_release(&self.state.called, 0)
        event_clear(self.state.own_fd)

    def fileno(self):
        """Readable when something wakes the thread."""
        return self.state.poller

    @property
    def wanted(self):
        """drive() would end: somebody else than the pool has something to do."""
        return wanted(&self.state, self.pool.state)

    def step(self, uint64_t now_ns):
        """One run of the pool; how much that was."""
        return run_pool(self.pool.state, now_ns)

    def lie_down(self, uint64_t now_ns, uint64_t until_ns):
        """The last look before a sleep: until when (ns) it may be, `now_ns`: there is something to do. Then rise()."""
        return lie_down(&self.state, self.pool.state, now_ns, until_ns)

    def rise(self):
        """After a sleep: takes what has woken the thread, and looks by itself again."""
        event_sleep(self.state.poller, 0)
        rise(&self.state)

    def close(self):
        """Idempotent."""
        if self.state.own_fd >= 0:
            self.epoll.close()
            c_close(self.state.own_fd)
            self.state.own_fd = self.state.poller = -1
