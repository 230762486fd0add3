"""Counters of a node in a mapped page: one u64 each, written by the node, read by anybody who has the descriptor."""
from libc.stdint cimport uint64_t

from spindle_core.memory cimport Mapping


cdef enum:
    C_PUSHES
    C_POSTS
    C_POSTED_BYTES
    C_RINGS
    C_SLEEPS
    C_LAPS
    C_ATTENDED_LAPS
    C_BUSY_LAPS
    C_BUSY_NS
    C_LAP_NS_MAX
    C_NULLS
    C_STALLS
    C_SEND_BATCHES
    C_SEND_MESSAGES
    C_SENT_BYTES
    C_RECEIVE_BATCHES
    C_RECEIVE_MESSAGES
    C_DELIVERY_BATCHES
    C_DELIVERY_MESSAGES
    C_DELIVERED_BYTES
    C_DELIVERY_BLOCKED
    C_PERSISTED
    C_REFUSED
    C_RESENT
    C_CORRUPT
    C_VIEW_ID
    C_VIEW_CHANGES
    C_CROWDED
    COUNTERS_COUNT


cdef class Counters:
    cdef readonly Mapping mapping
    cdef uint64_t *values

    cdef int _check_writable(self) except -1


cdef inline void count(uint64_t *counters, int which, uint64_t n) noexcept nogil:
    counters[which] += n
