"""Where the topics of a view lie in every row, and their subgroups' memory."""
from libc.stdint cimport uint64_t

from spindle_core.state cimport node_t


cdef uint64_t build_subgroups(node_t *node, tuple specs, tuple node_ids) except 0
cdef void point_columns(node_t *node) noexcept
cdef uint64_t posts_waiting_max(node_t *node) noexcept
cdef void free_subgroups(node_t *node) noexcept
