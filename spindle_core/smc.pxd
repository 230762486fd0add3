"""Small-message multicast: the ring of slots in the own row. Verbs: claim, fill, publish, deliver, reuse."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from spindle_core.layout cimport slot_header
from spindle_core.state cimport node_t, subgroup_t


cdef inline slot_header *slot_of(char *slots, subgroup_t *s, uint64_t index) noexcept nogil:
    return <slot_header *>(slots + (index % s.window) * s.stride)


cdef uint64_t delivered_min(subgroup_t *s) noexcept nogil
cdef uint64_t claimable(subgroup_t *s, uint64_t wanted) noexcept nogil
cdef uint64_t claim(subgroup_t *s, uint64_t n) noexcept nogil
cdef void fill_header(subgroup_t *s, uint64_t index, uint32_t size, uint16_t writer_id,
                      uint64_t source_ns) noexcept nogil
cdef void mark_ready(subgroup_t *s, uint64_t index, uint64_t n) noexcept nogil
cdef void advance_committed(subgroup_t *s) noexcept nogil
cdef void fill_nulls(subgroup_t *s, uint64_t n) noexcept nogil
cdef void want_delivered(node_t *node, subgroup_t *s) noexcept nogil
cdef void end_silence(node_t *node, subgroup_t *s) noexcept nogil
