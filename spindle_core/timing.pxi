"""The time that a topic's order agrees on, and when it is to be said next.

Messages may count for a time only; the layer above has said which tags say so. Whether that time is over is decided by
a message in the order, "it is now", which a node says: so it is over for all members at the same place. Every member
notes here when something will be over next, from the same messages: whichever of them is to say it, knows when.

A node's clock may have been far ahead. What it has said then would have everything over when it comes, until the other
clocks have got there. So a word that is far earlier than what was said takes that back, for all at the same place; and
what came with a time that is far earlier, and was over, is noted as a doubt for whose turn it is to say the time.

Rules: nothing here knows a clock. Times that are close to each other, compared with how long a message counts, are
rounded up to one, so what is noted is bounded, and so is how often the time is said. Nothing is over early.
"""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy, memmove

from spindle_core.timing cimport (
    DUE_BITS_MIN,
    DUE_SHARE_BITS,
    DUES_MAX,
    TIMING_FOR,
    TIMING_SAYS,
    TIMING_UNTIL,
    TIMING_WORD,
    is_far_ahead,
    timing_t,
)


cdef inline uint64_t rounded_up(uint64_t until_ns, uint64_t span_ns) noexcept nogil:
    """To a multiple of a power of two that is at most a small share of the span."""
    cdef uint64_t grain = <uint64_t>1 << DUE_BITS_MIN
    while grain <= span_ns >> (DUE_SHARE_BITS + 1):
        grain <<= 1
    return (until_ns + grain - 1) & ~(grain - 1)


cdef void merge_dues(timing_t *t) noexcept nogil:
    """Makes room: of the two that are closest to each other, the later one stands for both."""
    cdef uint64_t i, at = 0, least = <uint64_t>-1
    for i in range(t.n_dues - 1):
        if t.dues[i + 1] - t.dues[i] < least:
            least = t.dues[i + 1] - t.dues[i]
            at = i
    memmove(&t.dues[at], &t.dues[at + 1], (t.n_dues - at - 1) * sizeof(uint64_t))
    t.n_dues -= 1


cdef bint add_due(timing_t *t, uint64_t due_ns) noexcept nogil:
    """True if it comes before all others."""
    cdef uint64_t at = t.n_dues
    while at and t.dues[at - 1] >= due_ns:
        if t.dues[at - 1] == due_ns:
            return False
        at -= 1
    if t.n_dues == DUES_MAX:
        merge_dues(t)
        at = t.n_dues
        while at and t.dues[at - 1] >= due_ns:
            at -= 1
    memmove(&t.dues[at + 1], &t.dues[at], (t.n_dues - at) * sizeof(uint64_t))
    t.dues[at] = due_ns
    t.n_dues += 1
    return at == 0


cdef void timing_say(timing_t *t, uint64_t now_ns) noexcept nogil:
    """It was said that it is now."""
    cdef uint64_t over = 0
    if now_ns <= t.said_ns:
        if not is_far_ahead(t.said_ns, now_ns):
            return
    t.said_ns = now_ns
    t.doubted = False
    while over < t.n_dues and t.dues[over] <= now_ns:
        over += 1
    t.n_dues -= over
    memmove(&t.dues[0], &t.dues[over], t.n_dues * sizeof(uint64_t))


cdef bint timing_note(timing_t *t, uint8_t tag, uint16_t writer_id, uint64_t source_ns, const char *payload,
                      uint64_t size) noexcept nogil:
    """The message that follows in the order. True if something is over earlier than whatever was noted so far, or what
    was said is doubted, and was not before."""
    cdef uint64_t says = 0, span
    cdef uint8_t kind = t.kinds[tag] & TIMING_SAYS
    if kind == TIMING_WORD:
        if writer_id == 0:
            timing_say(t, source_ns)
        return False
    if size < sizeof(uint64_t):
        return False
    if kind == TIMING_UNTIL:
        memcpy(&says, payload, sizeof(uint64_t))
        span = says - source_ns if says > source_ns else 0
    elif kind == TIMING_FOR:
        memcpy(&span, payload + size - sizeof(uint64_t), sizeof(uint64_t))
        says = source_ns + span if span else 0
        if says < span:
            return False             # beyond all time
    else:
        return False
    if says == 0 or <int64_t>says < 0:
        return False
    if says <= t.said_ns:
        if t.doubted or not is_far_ahead(t.said_ns, source_ns):
            return False
        t.doubted = True
        return True
    return add_due(t, rounded_up(says, span))
