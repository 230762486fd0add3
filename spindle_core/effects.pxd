"""What a step of a pass has left, and who carries it out."""
from libc.stdint cimport uint64_t

from spindle_core.state cimport node_t, subgroup_t
from spindle_core.step cimport stage


cdef void carry_out(node_t *node) noexcept nogil
cdef int whole_pass(node_t *node, uint64_t now_ns) noexcept nogil
cdef int evaluate_whole(node_t *node, subgroup_t *s, stage which) noexcept nogil
cdef void tell_control(node_t *node) noexcept nogil
