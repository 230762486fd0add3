"""One pass over all predicates. Sans-IO."""
from libc.stdint cimport uint64_t

from spindle_core.state cimport node_t


cdef int step(node_t *node, uint64_t now_ns) noexcept nogil
