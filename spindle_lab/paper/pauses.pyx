"""How often a thread that has a core for itself is interrupted, and for how long (parameters.py: PAUSES)."""
from libc.stdint cimport uint64_t

from spindle_core.atomics cimport monotonic_ns

cdef enum:
    BUCKETS = 40                 # by powers of two, from 1 ns


def pauses(uint64_t for_ns, uint64_t least_ns):
    """Looks at the clock for so long, and counts gaps of `least_ns` and more between two looks.

    Returns {ns: per second}: gaps from a power of two up to the next, by their mean. On a core that others want as well
    it counts their turns.
    """
    cdef uint64_t start = monotonic_ns(), before = start, now = start, gap, place
    cdef uint64_t[BUCKETS] counts
    cdef uint64_t[BUCKETS] sums
    for place in range(<uint64_t>BUCKETS):
        counts[place] = sums[place] = 0
    with nogil:
        while now - start < for_ns:
            now = monotonic_ns()
            gap = now - before
            before = now
            if gap < least_ns:
                continue
            place = 0
            while gap >> (place + 1) and place + 1 < BUCKETS:
                place += 1
            counts[place] += 1
            sums[place] += gap
    seconds = (now - start) / 1e9
    return {round(sums[place] / <double>counts[place]): counts[place] / seconds
            for place in range(<uint64_t>BUCKETS) if counts[place]}
