"""Whether a thread looks for a while before it sleeps.

To be woken costs more than a short look. But a look is in vain where nothing comes so soon; and it keeps the other one
from what is waited for, where both have one processor, or all are busy. So who has looked in vain does so seldom, and
who has found something does so each time.
"""
from libc.stdint cimport uint32_t, uint64_t

cdef enum:
    SKIPPED_MAX = 63             # sleeps between two looks, where these find nothing


cdef struct spins_t:
    uint32_t next, skipped       # sleeps without a look before it: after the next one in vain, and from now on


cdef inline uint64_t next_spin(spins_t *s, uint64_t spin_ns) noexcept nogil:
    """How long to look before this sleep, ns."""
    if s.skipped:
        s.skipped -= 1
        return 0
    return spin_ns


cdef inline void has_spun(spins_t *s, bint found) noexcept nogil:
    """It has looked, and found something or not."""
    s.next = 0 if found else min(2 * s.next + 1, <uint32_t>SKIPPED_MAX)
    s.skipped = s.next
