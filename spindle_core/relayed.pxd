"""What this node has delivered of writers on hosts without a node. See relayed.pyx."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t

cdef enum:
    BUCKETS = 1024
    WAYS = 8                     # writers of one bucket


cdef struct relayed_t:
    uint64_t writer              # identity; 0: nobody
    uint64_t source_ns           # greatest delivered


cdef inline uint64_t relayed_identity(uint32_t relay, uint16_t writer_id) noexcept nogil:
    return <uint64_t>relay << 15 | (writer_id & 0x7FFF)


cdef inline relayed_t *bucket_of(relayed_t *table, uint64_t writer) noexcept nogil:
    cdef uint64_t mixed = writer * <uint64_t>0x9E3779B97F4A7C15
    return &table[(mixed >> 54) % BUCKETS * WAYS]


cdef inline void relayed_note(relayed_t *table, uint64_t writer, uint64_t source_ns) noexcept nogil:
    cdef relayed_t *bucket = bucket_of(table, writer)
    cdef relayed_t *least = bucket
    cdef int i
    for i in range(WAYS):
        if bucket[i].writer == writer:
            if bucket[i].source_ns < source_ns:
                bucket[i].source_ns = source_ns
            return
        if bucket[i].source_ns < least.source_ns:
            least = &bucket[i]
    least.writer = writer
    least.source_ns = source_ns


cdef class RelayedTable:
    cdef relayed_t *entries
