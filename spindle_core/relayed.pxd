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


cdef void relayed_note(relayed_t *table, uint64_t writer, uint64_t source_ns) noexcept nogil


cdef class RelayedTable:
    cdef relayed_t *entries
