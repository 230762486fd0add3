"""Null-send: a sender with nothing to say must not hold up the others (paper, section 3.3).

Having message k of rank j, my own count must reach k + 1 if my rank is lower than j, else k: so that everything
before that message in the delivery order exists. What is missing is sent as nulls, as one number, once per pass.

Why it ends: a null never raises the highest index in the subgroup, so once applications stop, a bounded number of
nulls follows and then nothing. Nulls that a sender declared in advance (a silence of so many rounds) do not count
as activity, or everybody else would have to keep up with a silence.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.atomics cimport u64_load_relaxed
from spindle_core.state cimport DONE_MAX, LEVEL_UNORDERED, node_t, sender_t, subgroup_t


cdef inline uint64_t active_count(sender_t *sender) noexcept nogil:
    """How many of its messages I have, without a declared silence at the end.

    silent_* may be newer than the count that I received (columns only grow, and are stored before it): then the
    silence lies behind that count and the comparison says so.
    """
    cdef uint64_t begin = u64_load_relaxed(&sender.columns.silent_from)
    cdef uint64_t end = u64_load_relaxed(&sender.columns.silent_until)
    if begin < sender.received <= end:
        return begin
    return sender.received


cdef int null_send(node_t *node, subgroup_t *s) noexcept nogil:
    """Returns how many nulls were queued; the send predicate publishes them."""
    cdef uint64_t target = 0, needed, active
    cdef uint32_t r
    cdef uint32_t me = <uint32_t>s.my_sender
    cdef int sent = 0
    if s.my_sender < 0 or s.level == LEVEL_UNORDERED or not node.null_sends:
        return 0
    for r in range(s.n_senders):
        if r == me:
            continue
        active = active_count(&s.senders[r])
        if active == 0:
            continue
        needed = active if me < r else active - 1
        if needed > target:
            target = needed
    # Unlocked look first: claimed only grows, and when it is too low now we look again under the lock.
    if target <= u64_load_relaxed(&s.claimed):
        return 0
    lock_subgroup(s)
    if target > s.claimed:
        if claimable(s, 1):
            sent = <int>(target - s.claimed) if target - s.claimed < DONE_MAX else DONE_MAX
            fill_nulls(s, target - s.claimed)
        else:
            # The message that makes nulls necessary shows that the slot is free, but not all columns have come yet.
            want_delivered(node, s)
    unlock_subgroup(s)
    return sent
