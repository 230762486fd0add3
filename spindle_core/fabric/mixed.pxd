"""Mixed fabric: each peer is reached by a fabric of its own choice."""
from libc.stdint cimport uint8_t, uint32_t

from spindle_core.fabric.fabric cimport Fabric, fabric_t, post_t

cdef enum:
    PARTS_MAX = 4
    COLLECTED_MAX = 64           # posts that are sorted by part at a time
    NO_PART = 255


cdef struct mixed_t:
    uint32_t n_peers
    uint32_t n_parts
    fabric_t *parts[PARTS_MAX]
    uint8_t *part_of             # by peer; NO_PART: not connected
    post_t collected[PARTS_MAX][COLLECTED_MAX]
    uint32_t n_collected[PARTS_MAX]
    int bell_fd
    int wait_fd                  # of all parts together; -1: the doorbell tells everything


cdef class MixedFabric(Fabric):
    cdef mixed_t state
    cdef readonly dict parts     # name to Fabric, the first of them makes the row
    cdef list order              # their names
    cdef object poller           # several parts have something to wait for
