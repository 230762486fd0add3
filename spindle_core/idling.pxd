"""What a predicate thread does after a pass that has found nothing: one rule, for the thread and for models of it in
virtual time. Callers give the times.

It looks again a few times. Then it gives its core away between passes: on a machine with more runnable threads than
cores, the thread that it spins for may be the one that it keeps from running. After `busy_poll_ns` it sleeps. It
waits a little longer, up to PATIENCE_NS, while messages are here that some member has not acknowledged: those
acknowledgements are on their way, and being rung for each costs more than the round trip (two system calls and two
wake-ups of an idle core). With everything delivered there is nothing to expect.

Giving a core away is no good where somebody takes it who has much to do: he keeps it to the end of his slice, some
milliseconds, and nobody rings for a thread that is awake. One that sleeps gets the core as soon as it is rung, because
it has used little of its share. So a thread that does little, and whose core came back late, falls asleep in place of
giving it away (`crowd_t`), for a time that doubles while its core is no better when it tries again. A thread that has
much to do goes on giving its core away: it would sleep and be rung all the time, and who had the core was the one that
it waits for. How much it does can't be seen from one sleep to the next, as it sleeps so often, so it is looked at for
some 25 ms.

The predicate thread falls asleep at once where a thread is at hand that looks in its place (attending.pxi).
"""
from libc.stdint cimport uint64_t

from spindle_core.state cimport TOPIC_WORDS, node_t

cdef enum:
    LOOKS_BEFORE_YIELD = 4
    PATIENCE_NS = 150_000
    LATE_NS = 200_000            # a core that was given away comes back: somebody has used it who gives nothing away
    CROWDED_NS_MIN = 250_000_000
    CROWDED_NS_MAX = 8_000_000_000
    LOOKED_AT_NS = 25_000_000    # how much a thread does
    MUCH_PART = 8                # of a core: more than an eighth of it
    BUSY_NS = 100_000            # of processor time from one sleep to the next: a busy thread, if it does much
    BUSY_ANYWAY_NS = 1_000_000   # ... and if it doesn't


cdef enum idling:
    LOOK_AGAIN
    GIVE_CORE_AWAY               # and look again
    FALL_ASLEEP                  # after one last look: announce_sleep()


cdef struct crowd_t:
    uint64_t until_ns            # on the monotonic clock
    uint64_t for_ns              # how long it was taken for crowded the last time
    uint64_t looked_ns           # how much the thread does has been looked at since then
    uint64_t looked_used_ns      # ... and its processor time by then
    bint much                    # it had much to do when that was looked at last


cdef inline bint does_much(crowd_t *crowd, uint64_t now, uint64_t used_ns) noexcept nogil:
    """`used_ns`: processor time of the thread."""
    if now - crowd.looked_ns >= LOOKED_AT_NS:
        crowd.much = (used_ns - crowd.looked_used_ns) * MUCH_PART > now - crowd.looked_ns
        crowd.looked_ns, crowd.looked_used_ns = now, used_ns
    return crowd.much


cdef inline bint is_busy(crowd_t *crowd, uint64_t now, uint64_t used_ns, uint64_t awake_used_ns) noexcept nogil:
    """A prompt thread (slices.pxd) becomes usual. `awake_used_ns`: processor time since it woke up. One that does
    little may take longer for once, as beside programs that empty the caches: as a usual one it would wait for these in
    the middle of its work."""
    return awake_used_ns > BUSY_NS and (awake_used_ns > BUSY_ANYWAY_NS or does_much(crowd, now, used_ns))


cdef inline bint mostly_sleeps(crowd_t *crowd, uint64_t now, uint64_t used_ns, uint64_t awake_used_ns) noexcept nogil:
    """A usual thread that is about to sleep becomes prompt."""
    return awake_used_ns <= BUSY_NS or not does_much(crowd, now, used_ns)


cdef inline bint note_core_back(crowd_t *crowd, uint64_t now, uint64_t away_ns, uint64_t used_ns) noexcept nogil:
    """The core that was given away is back after `away_ns`. Returns 1 if it is crowded."""
    if does_much(crowd, now, used_ns):
        return 0
    if away_ns <= LATE_NS:
        crowd.for_ns = 0
        return 0
    crowd.for_ns = min(max(2 * crowd.for_ns, <uint64_t>CROWDED_NS_MIN), <uint64_t>CROWDED_NS_MAX)
    crowd.until_ns = now + crowd.for_ns
    return 1


cdef inline bint expecting(const node_t *node) noexcept nogil:
    """Something was received and not delivered: the other members' received numbers will follow soon."""
    cdef uint64_t topics = 0
    cdef int i
    for i in range(TOPIC_WORDS):
        topics |= node.expecting[i]
    return topics != 0 and not node.wedged


cdef inline idling after_nothing(const node_t *node, uint64_t looks, uint64_t idle_ns,
                                 uint64_t busy_poll_ns, bint relieved, bint crowded) noexcept nogil:
    """`looks`: passes in a row that found nothing, this one among them; `idle_ns`: since one found something;
    `relieved`: another thread waits to go on in the caller's place; `crowded`: the core would come back late."""
    if relieved:
        return FALL_ASLEEP
    if looks <= LOOKS_BEFORE_YIELD:
        return LOOK_AGAIN
    if not crowded and (idle_ns < busy_poll_ns or (idle_ns < PATIENCE_NS and expecting(node))):
        return GIVE_CORE_AWAY
    return FALL_ASLEEP
