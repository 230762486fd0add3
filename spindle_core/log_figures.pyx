"""How large and how late messages are that a delivery log gets: for whoever watches, and only when somebody asks.

Why by reading the log: both are in every record already, so that the predicate thread counts nothing for it, and a
topic that nobody looks at costs nothing. For a thread of the node; the log may be appended to meanwhile.

Rules: `count`, `size_sum` and the counts of latencies only grow. What was overwritten before a scan came to it is in
none of them: `count` may be less than was delivered. A scan looks at so many records at most, so that it takes
microseconds, and goes on there with the next one.
"""
from libc.stdint cimport uint64_t
from libc.string cimport memset

from spindle_core.layout cimport cursor_start, log_record
from spindle_core.log_position cimport LogPosition
from spindle_core.memory cimport Mapping

cdef enum:
    BUCKETS_COUNT = 56
    FIRST_BITS = 10                      # below 2**10 ns is the first bucket, then two for each doubling

BUCKETS = BUCKETS_COUNT


def latency_floor_ns(bucket: int) -> int:
    """The least latency that counts in a bucket; in the last one is all that is greater."""
    if not 0 <= bucket < BUCKETS_COUNT:
        raise ValueError(f"there is no bucket {bucket}")
    if bucket == 0:
        return 0
    octave, half = divmod(bucket - 1, 2)
    return (2 + half) << (FIRST_BITS - 1 + octave)


cdef inline int bucket_of(uint64_t ns) noexcept nogil:
    cdef int bits = FIRST_BITS
    if ns >> FIRST_BITS == 0:
        return 0
    while ns >> (bits + 1):
        bits += 1
    return min(1 + 2 * (bits - FIRST_BITS) + <int>(ns >> (bits - 1) & 1), BUCKETS_COUNT - 1)


cdef class LogFigures(LogPosition):
    """Of the log in this mapping, from its oldest record on. Raises ValueError if it is none."""

    cdef readonly uint64_t count         # messages looked at
    cdef readonly uint64_t size_sum      # bytes of their payloads
    cdef uint64_t buckets[BUCKETS_COUNT]

    def __init__(self, Mapping log not None):
        cdef cursor_start start
        memset(&start, 0, sizeof(start))
        memset(self.buckets, 0, sizeof(self.buckets))
        self.count = self.size_sum = 0
        if log.base == NULL:
            raise ValueError("this log is closed")
        self.begin(log, &start, (0, 0), False)

    def scan(self, Py_ssize_t records_max=4096):
        """Looks at what has come since, at most so many records. Nothing of a log that is closed. Raises CoreError if
        the log is damaged."""
        cdef log_record *r
        cdef uint64_t size = 0, source_ns, reception_ns, position
        if self.log.base == NULL:
            return
        while records_max > 0:
            records_max -= 1
            r = self.peek(&size)
            if r == NULL:
                return
            source_ns, reception_ns, position = r.source_ns, r.reception_ns, self.position
            if not self.still_there(position):
                continue                 # peek() goes on with the oldest there is
            self.advance(size)
            self.count += 1
            self.size_sum += size
            if source_ns:
                self.buckets[bucket_of(reception_ns - source_ns if reception_ns > source_ns else 0)] += 1

    def latencies(self):
        """How many messages came how late, by bucket (latency_floor_ns); a writer's clock that is ahead makes them
        0 ns late."""
        return [self.buckets[k] for k in range(BUCKETS_COUNT)]
