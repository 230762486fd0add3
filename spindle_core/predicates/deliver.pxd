from libc.stdint cimport uint64_t

from spindle_core.state cimport node_t, subgroup_t


cdef int deliver(node_t *node, subgroup_t *s) noexcept nogil
cdef bint deliver_trimmed(node_t *node, subgroup_t *s, const unsigned long long *trim) noexcept nogil
cdef bint skip_null_rounds(subgroup_t *s, uint64_t most) noexcept nogil
cdef void to_next_place(subgroup_t *s) noexcept nogil
