"""Direct claims from Python."""
from libc.stdint cimport uint64_t

from spindle_core.epoch cimport Epoch
from spindle_core.state cimport subgroup_t
from spindle_core.hot_path cimport driver_t

cdef DirectClaim open_claim(driver_t *driver, object kept, Epoch epoch, topic_id, timeout_s)

cdef uint64_t silence(Epoch epoch, topic_id, rounds) except? 0xFFFFFFFFFFFFFFFF

cdef class DirectClaim:
    cdef Epoch epoch             # keeps the slot's memory
    cdef object kept             # keeps the driver's
    cdef driver_t *driver
    cdef subgroup_t *s
    cdef uint64_t index
    cdef bint is_open

    cdef int fill(self, const unsigned char[::1] source, uint64_t timestamp_ns) except -1
