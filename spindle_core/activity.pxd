"""Which topics a pass has to visit."""
from libc.stdint cimport uint64_t

from spindle_core.state cimport node_t, subgroup_t


cdef int make_activity(node_t *node) noexcept nogil
cdef void free_activity(node_t *node) noexcept nogil
cdef int make_doors(node_t *node) noexcept nogil
cdef void mark(node_t *node, subgroup_t *s) noexcept nogil
cdef void note(node_t *node, subgroup_t *s) noexcept nogil
cdef void note_all(node_t *node) noexcept nogil
cdef void take_changed(node_t *node, uint64_t *topics) noexcept nogil
cdef void look_changed(node_t *node, uint64_t *topics) noexcept nogil
cdef void visited(node_t *node, subgroup_t *s, bint again) noexcept nogil
