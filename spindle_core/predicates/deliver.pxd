from libc.stdint cimport uint64_t

from spindle_core.state cimport node_t, subgroup_t


cdef int deliver(node_t *node, subgroup_t *s) noexcept nogil
cdef bint deliver_trimmed(node_t *node, subgroup_t *s, const unsigned long long *trim) noexcept nogil
cdef uint64_t null_rounds(subgroup_t *s) noexcept nogil
