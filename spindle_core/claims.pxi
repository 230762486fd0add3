"""Direct claims of an embedded sender: slots of the node's own ring, filled in place (paper, section 3.1).

For C and Cython code in the node's process; for Python there are Engine.claim and Engine.write (`direct`). Applications
outside use inboxes.

Rules: every claim is committed soon, since the group's order waits for it; an epoch that ends with a claim open makes
it a null, and commit_slots then says so. A thread that finds no slot evaluates the predicates itself while nobody else
does: deliveries free slots, and the predicate thread may be waiting for the very core that this thread has.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from spindle_core.atomics cimport (
    fence_store_load,
    monotonic_ns,
    realtime_ns,
    u32_load_acquire,
    u32_store_relaxed,
)
from spindle_core.bell cimport call_own
from spindle_core.events cimport c_close, event_make, event_wait, sched_yield
from spindle_core.layout cimport SLOT_NULL, slot_header
from spindle_core.state cimport subgroup_t

cdef int YIELDS_BEFORE_SLEEP = 16


cdef void make_space_fd(subgroup_t *s) noexcept nogil:
    """Makes the eventfd at which claims wait, with the first claim that has to: few topics ever need it. Where there
    is no descriptor left, claims look again every few milliseconds."""
    cdef int fd
    if s.space_fd >= 0:
        return
    fd = event_make()
    lock_subgroup(s)
    if s.space_fd < 0:
        s.space_fd, fd = fd, -1
    unlock_subgroup(s)
    if fd >= 0:
        c_close(fd)


cdef bint drive_meanwhile(driver_t *driver) noexcept nogil:
    """A pass by a thread that waits for a slot; False if nothing was done, or if somebody else drives.

    SYNC POINT: drive. Only where the predicate thread runs: an engine that is stepped by hand, or was stopped, is
    nobody else's to drive. If that thread is blocked, whoever has made something to do has rung it, so it goes on with
    whatever this pass leaves. If it shall stand still or end, it must get hold of the predicates first, which many
    senders could keep from it.
    """
    cdef int done = 0
    if u32_load_acquire(&driver.park) or u32_load_acquire(&driver.stop) or not try_to_drive(driver):
        return False
    if driver.running and driver.node != NULL:
        done = whole_pass(driver.node, monotonic_ns() + driver.clock_ns)
        tell_control(driver.node)
    stop_driving(driver)
    return done != 0


cdef uint64_t claim_slots(driver_t *driver, subgroup_t *s, uint64_t most, int timeout_ms,
                          uint64_t *first) noexcept nogil:
    """Claims up to `most` indices, at least one; 0 on timeout (-1 ms: for ever) or at the end of the epoch."""
    cdef uint64_t n
    cdef int yields = 0
    cdef uint64_t now, until = 0, left_ms
    while True:
        if yields == YIELDS_BEFORE_SLEEP:
            yields += 1
            make_space_fd(s)
        lock_subgroup(s)
        if s.closed:
            unlock_subgroup(s)
            return 0
        # If an eighth or less is known to be free, look at everybody's columns; whatever is free then is taken.
        n = claimable(s, 1 if s.claim_one or most == 1 else (s.window >> 3) + 1)
        if n:
            if s.claim_one:
                n = 1
            elif n > most:
                n = most
            first[0] = claim(s, n)
            unlock_subgroup(s)
            return n
        if yields >= YIELDS_BEFORE_SLEEP:
            # SYNC POINT: space. The send predicate looks at this flag under the lock and rings.
            u32_store_relaxed(&s.claim_waiting, 1)
        unlock_subgroup(s)
        if yields < YIELDS_BEFORE_SLEEP:
            yields += 1
            if not drive_meanwhile(driver):
                sched_yield()
            continue
        note(s.node, s)
        left_ms = 10
        if timeout_ms >= 0:
            now = monotonic_ns()
            if until == 0:
                until = now + <uint64_t>timeout_ms * 1_000_000
            if now >= until:
                return 0
            left_ms = (until - now) // 1_000_000 + 1     # a ring may end a sleep early: only the clock counts
        fence_store_load()
        call_own(driver.bell, driver.bell_fd)
        event_wait(s.space_fd, <int>left_ms if left_ms < 10 else 10)


cdef char *slot_payload(subgroup_t *s, uint64_t index) noexcept nogil:
    return payload_of(s, slot_of(s.senders[s.my_sender].slots, s, index))


cdef bint commit_slots(driver_t *driver, subgroup_t *s, uint64_t first, uint64_t n, const uint32_t *sizes,
                       uint64_t source_ns) noexcept nogil:
    """Commits filled slots; `sizes` in bytes, one each. False if the epoch ended meanwhile and made them nulls."""
    cdef uint64_t i
    cdef bint in_time
    if source_ns == 0:
        source_ns = realtime_ns()
    lock_subgroup(s)
    in_time = s.ready[first & (s.ring - 1)] != first + 1
    if in_time:
        for i in range(n):
            fill_header(s, first + i, sizes[i], 0, source_ns, 0)
        mark_ready(s, first, n)
    unlock_subgroup(s)
    note(s.node, s)              # before the look whether the thread sleeps
    publish_asleep(driver, s)
    return in_time


cdef bint has_to_publish(driver_t *driver) noexcept nogil:
    """After a commit: True if the predicate thread is blocked, and who has committed publishes in its stead.

    The first commit that finds it blocked does so, the second, the fourth, and so on. A message that comes alone is at
    once on its way. Of many, each batch is as large as all before it: until the thread has a core, which on a busy
    machine takes a while, they don't leave one by one, at posts and system calls for each.
    """
    cdef int64_t before = commits_asleep(driver)
    if before < 0 or before & (before + 1):
        return False
    return True


cdef void publish_asleep(driver_t *driver, subgroup_t *s) noexcept nogil:
    """After a commit: if the predicate thread is blocked, publishes and acknowledges right here, and wakes it for what
    comes after."""
    if not has_to_publish(driver):
        return
    if try_to_drive(driver):
        if driver.node == s.node and not s.node.wedged:
            evaluate_whole(s.node, s, STAGE_SEND)
            evaluate_whole(s.node, s, STAGE_RECEIVE)
        stop_driving(driver)
    call_own(driver.bell, driver.bell_fd)


cdef void publish_for_thread(void *driver) noexcept nogil:
    """After a commit to an inbox by a thread of the node's own process: as publish_asleep(), but whole passes, since
    inboxes are found in them."""
    cdef driver_t *d = <driver_t *>driver
    if not has_to_publish(d):
        return
    drive_meanwhile(d)
    call_own(d.bell, d.bell_fd)


cdef void abort_slot(driver_t *driver, subgroup_t *s, uint64_t index) noexcept nogil:
    """An open slot becomes a null: what comes behind it waits no longer. Nothing to do where its epoch has ended."""
    cdef slot_header *h
    lock_subgroup(s)
    if s.ready[index & (s.ring - 1)] != index + 1:
        h = slot_of(s.senders[s.my_sender].slots, s, index)
        h.index = index
        h.size = 0
        h.kind = SLOT_NULL
        h.run = 1
        mark_ready(s, index, 1)
    unlock_subgroup(s)
    note(s.node, s)
    if commits_asleep(driver) == 0:
        call_own(driver.bell, driver.bell_fd)
