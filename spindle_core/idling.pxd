"""What a predicate thread does after a pass that has found nothing: one rule, for the thread and for models of it in
virtual time. Callers give the times.

It looks again a few times. Then it gives its core away between passes: on a machine with more runnable threads than
cores, the thread that it spins for may be the one that it keeps from running. After `busy_poll_ns` it sleeps. It
waits a little longer, up to PATIENCE_NS, while messages are here that some member has not acknowledged: those
acknowledgements are on their way, and being rung for each costs more than the round trip (two system calls and two
wake-ups of an idle core). With everything delivered there is nothing to expect.

The predicate thread falls asleep at once where a thread is at hand that looks in its place (attending.pxi).
"""
from libc.stdint cimport uint64_t

from spindle_core.state cimport TOPIC_WORDS, node_t

cdef enum:
    LOOKS_BEFORE_YIELD = 4
    PATIENCE_NS = 150_000
    BUSY_NS = 100_000            # of processor time from one sleep to the next: a busy thread, see slices.pxd


cdef enum idling:
    LOOK_AGAIN
    GIVE_CORE_AWAY               # and look again
    FALL_ASLEEP                  # after one last look: announce_sleep()


cdef inline bint expecting(const node_t *node) noexcept nogil:
    """Something was received and not delivered: the other members' received numbers will follow soon."""
    cdef uint64_t topics = 0
    cdef int i
    for i in range(TOPIC_WORDS):
        topics |= node.expecting[i]
    return topics != 0 and not node.wedged


cdef inline idling after_nothing(const node_t *node, uint64_t looks, uint64_t idle_ns,
                                 uint64_t busy_poll_ns, bint relieved) noexcept nogil:
    """`looks`: passes in a row that found nothing, this one among them; `idle_ns`: since one found something;
    `relieved`: another thread waits to go on in the caller's place."""
    if relieved:
        return FALL_ASLEEP
    if looks <= LOOKS_BEFORE_YIELD:
        return LOOK_AGAIN
    if idle_ns < busy_poll_ns or (idle_ns < PATIENCE_NS and expecting(node)):
        return GIVE_CORE_AWAY
    return FALL_ASLEEP
