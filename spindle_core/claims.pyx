"""Direct claims of an embedded sender: slots of the node's own ring, filled in place (paper, section 3.1).

For code in the node's process: any number at once in C and Cython, one at a time through Engine.claim and Engine.write
in Python. Applications outside use inboxes.

Rules: every claim is committed soon, since the group's order waits for it; an epoch that ends with a claim open makes
it a null, and commit_slots then says so.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.atomics cimport fence_store_load, realtime_ns, u32_load_relaxed, u32_store_relaxed
from spindle_core.epoch cimport Epoch
from spindle_core.events cimport event_ring, event_wait, sched_yield
from spindle_core.layout cimport slot_header
from spindle_core.predicates.receive cimport receive
from spindle_core.predicates.send cimport send
from spindle_core.smc cimport claim, claimable, fill_header, mark_ready, slot_of
from spindle_core.sst cimport lock_subgroup, unlock_subgroup
from spindle_core.state cimport subgroup_t
from spindle_core.thread cimport driver_t, stop_driving, try_to_drive

from spindle_core.errors import Wedged, WriteTimeout

cdef int YIELDS_BEFORE_SLEEP = 16


cdef uint64_t claim_slots(driver_t *driver, subgroup_t *s, uint64_t most, int timeout_ms,
                          uint64_t *first) noexcept nogil:
    """Claims up to `most` indices, at least one; 0 on timeout (-1 ms: for ever) or at the end of the epoch."""
    cdef uint64_t n
    cdef int yields = 0, waited = 0
    while True:
        lock_subgroup(s)
        if s.closed:
            unlock_subgroup(s)
            return 0
        # An eighth of the window is worth a look at everybody's columns; a rest of it is better than waiting.
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
            # SYNC POINT: space. The send predicate looks at it under the lock and rings.
            u32_store_relaxed(&s.claim_waiting, 1)
        unlock_subgroup(s)
        if yields < YIELDS_BEFORE_SLEEP:
            yields += 1
            sched_yield()
            continue
        if timeout_ms >= 0 and waited >= timeout_ms:
            return 0
        fence_store_load()
        if u32_load_relaxed(&driver.bell.asleep):
            event_ring(driver.bell_fd)
        event_wait(s.space_fd, 10 if timeout_ms < 0 or timeout_ms - waited > 10 else timeout_ms - waited)
        waited += 10


cdef char *slot_payload(subgroup_t *s, uint64_t index) noexcept nogil:
    return <char *>slot_of(s.senders[s.my_sender].slots, s, index) + sizeof(slot_header)


cdef bint commit_slots(driver_t *driver, subgroup_t *s, uint64_t first, uint64_t n, const uint32_t *sizes,
                       uint64_t source_ns) noexcept nogil:
    """Commits filled slots; `sizes` in bytes, one each. False if the epoch ended meanwhile and made them nulls."""
    cdef uint64_t i
    cdef bint in_time
    if source_ns == 0:
        source_ns = realtime_ns()
    lock_subgroup(s)
    in_time = s.ready[first % s.window] != first + 1
    if in_time:
        for i in range(n):
            fill_header(s, first + i, sizes[i], 0, source_ns)
        mark_ready(s, first, n)
    unlock_subgroup(s)
    # Pairs with the predicate thread's fence between `asleep` and its last look for work.
    fence_store_load()
    if u32_load_relaxed(&driver.bell.asleep):
        if try_to_drive(driver):
            # It is blocked: publish and acknowledge right here, and wake it for what comes after.
            if driver.node == s.node and not s.node.wedged:
                send(s.node, s)
                receive(s.node, s)
            stop_driving(driver)
        event_ring(driver.bell_fd)
    return in_time


cdef DirectClaim open_claim(driver_t *driver, object kept, Epoch epoch, topic_id, timeout_s):
    """Engine.claim; `kept` keeps the driver alive."""
    cdef DirectClaim made = DirectClaim.__new__(DirectClaim)
    cdef subgroup_t *s = epoch.subgroup(topic_id)
    cdef int timeout_ms = -1 if timeout_s < 0 else <int>(timeout_s * 1000)
    cdef uint64_t n
    if s.my_sender < 0:
        raise ValueError(f"node {epoch.node_ids[epoch.my_rank]} is no sender of topic {topic_id}")
    with nogil:
        n = claim_slots(driver, s, 1, timeout_ms, &made.index)
    if n == 0:
        if s.closed:
            raise Wedged("the view is changing: try again when the next one is installed")
        raise WriteTimeout(f"no free slot within {timeout_s:g} s: the group is not delivering")
    made.driver, made.s = driver, s
    made.kept, made.epoch, made.is_open = kept, epoch, True
    return made


cdef class DirectClaim:
    """A place in the order of this node's messages that is taken and not filled yet (paper, section 3.1)."""

    def commit(self, data, timestamp_ns=0):
        """Fills the slot with `data` and hands it over. Claims may be committed in any order.

        Raises ValueError (committed before; too large, and stays open), Wedged (the view has ended: claim again).
        """
        cdef const unsigned char[::1] source = data
        cdef uint32_t size
        self.fits(source.shape[0])
        if not self.is_open:
            raise ValueError("this claim was committed before: claim another slot")
        self.is_open = False
        size = <uint32_t>source.shape[0]
        if size:
            memcpy(slot_payload(self.s, self.index), &source[0], size)
        # The end of an epoch makes a null of the slot; whatever was copied there since is nobody's.
        if not commit_slots(self.driver, self.s, self.index, 1, &size, timestamp_ns):
            raise Wedged("the view changed while the slot was open: try again")

    cdef int fits(self, uint64_t size) except -1:
        if size > self.s.size_max:
            raise ValueError(f"a message of {size} bytes: this topic's size_max is {self.s.size_max} bytes")
        return 0
