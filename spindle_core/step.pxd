"""One pass over all predicates, step by step. Sans-IO."""
from libc.stdint cimport uint64_t

from spindle_core.state cimport node_t, subgroup_t


# Of a pass, in their order. Those from SEND to NULL_SEND once for each topic, then the others once for each topic.
cdef enum stage:
    STAGE_BEAT                   # my heartbeat is due
    STAGE_CONTROL                # control columns, mine and the others'
    STAGE_TOPICS                 # which topics are to be visited
    STAGE_NEXT                   # the next one of them
    STAGE_SEND
    STAGE_RECEIVE
    STAGE_NULL_SEND
    STAGE_DELIVER
    STAGE_PERSIST


cdef void begin_pass(node_t *node, uint64_t now_ns) noexcept nogil
cdef bint step(node_t *node) noexcept nogil
cdef int evaluate(node_t *node, subgroup_t *s, stage which) noexcept nogil
