"""Direct claims from Python, one at a time: places in the order of a node's messages, filled later; or declared empty.

Rules: those of `claims`. A claim keeps the memory of its epoch; one that outlives its view is refused.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.hot_path cimport (
    abort_slot,
    claim_slots,
    claimable,
    commit_slots,
    driver_t,
    fill_nulls,
    lock_subgroup,
    note,
    slot_payload,
    unlock_subgroup,
)
from spindle_core.atomics cimport u64_load_relaxed, u64_store_release
from spindle_core.epoch cimport Epoch
from spindle_core.state cimport LEVEL_UNORDERED, subgroup_t

from spindle_core.errors import Wedged, WriteTimeout


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


cdef enum:
    SILENCE_TOLD
    SILENCE_TOO_LATE
    SILENCE_NO_SLOT


cdef int tell_silence(subgroup_t *s, uint64_t rounds, uint64_t *following) noexcept nogil:
    """No Python runs under the lock: an object that it freed there might be a claim, whose end takes the same lock."""
    cdef int result = SILENCE_TOLD
    cdef uint64_t from_index
    lock_subgroup(s)
    if s.closed:
        result = SILENCE_TOO_LATE
    elif not claimable(s, 1):
        result = SILENCE_NO_SLOT
    else:
        from_index = s.claimed
        if u64_load_relaxed(&s.mine.silent_until) != from_index:
            u64_store_release(&s.mine.silent_from, from_index)
        u64_store_release(&s.mine.silent_until, from_index + rounds)
        fill_nulls(s, rounds)
        following[0] = s.claimed
    unlock_subgroup(s)
    return result


cdef uint64_t silence(Epoch epoch, topic_id, rounds) except? 0xFFFFFFFFFFFFFFFF:
    """Engine.declare_silence; returns the index of the next message."""
    cdef subgroup_t *s = epoch.subgroup(topic_id)
    cdef uint64_t n, following = 0
    cdef int result
    if s.my_sender < 0 or s.level == LEVEL_UNORDERED:
        raise ValueError(f"node {epoch.node_ids[epoch.my_rank]} is no sender of an ordered topic {topic_id}")
    if not 1 <= rounds <= 1 << 40:
        raise ValueError(f"{rounds} rounds: must be between 1 and {1 << 40}")
    n = rounds
    with nogil:
        result = tell_silence(s, n, &following)
    if result == SILENCE_TOLD:
        note(s.node, s)
        return following
    if result == SILENCE_TOO_LATE:
        raise Wedged("the view is changing: try again when the next one is installed")
    raise WriteTimeout("no free slot to declare silence in: the group is not delivering")


cdef class DirectClaim:
    """A place in the order of this node's messages that is taken and not filled yet (paper, section 3.1)."""

    def commit(self, data, timestamp_ns=0):
        """Fills the slot with `data` and hands it over. Claims may be committed in any order.

        Raises ValueError (over before; too large, and stays open), Wedged (the view has ended: claim again).
        """
        self.fill(data, timestamp_ns)

    def abort(self):
        """Gives the slot up: what was claimed later waits for it no longer. Idempotent. Freeing an open claim does the
        same."""
        if self.is_open:
            self.is_open = False
            with nogil:
                abort_slot(self.driver, self.s, self.index)

    def __del__(self):
        self.abort()

    cdef int fill(self, const unsigned char[::1] source, uint64_t timestamp_ns) except -1:
        cdef uint32_t size = <uint32_t>source.shape[0]
        cdef bint in_time
        if not self.is_open:
            raise ValueError("this claim is over: claim another slot (Engine.claim)")
        if <uint64_t>source.shape[0] > self.s.size_max:
            raise ValueError(f"a message of {source.shape[0]} bytes: this topic's size_max is {self.s.size_max} bytes")
        self.is_open = False
        if size:
            memcpy(slot_payload(self.s, self.index), &source[0], size)
        # If the epoch has ended meanwhile, the slot is a null, and what was just copied there is never read.
        with nogil:
            in_time = commit_slots(self.driver, self.s, self.index, 1, &size, timestamp_ns)
        if not in_time:
            raise Wedged("the view changed while the slot was open: try again")
        return 0
