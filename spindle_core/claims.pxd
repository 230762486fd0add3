"""Direct claims of an embedded sender: nogil, and one at a time for Python."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.epoch cimport Epoch
from spindle_core.state cimport subgroup_t
from spindle_core.thread cimport driver_t


cdef uint64_t claim_slots(driver_t *driver, subgroup_t *s, uint64_t most, int timeout_ms,
                          uint64_t *first) noexcept nogil
cdef char *slot_payload(subgroup_t *s, uint64_t index) noexcept nogil
cdef bint commit_slots(driver_t *driver, subgroup_t *s, uint64_t first, uint64_t n, const uint32_t *sizes,
                       uint64_t source_ns) noexcept nogil

cdef DirectClaim open_claim(driver_t *driver, object kept, Epoch epoch, topic_id, timeout_s)

cdef class DirectClaim:
    cdef Epoch epoch             # keeps the slot's memory
    cdef object kept             # keeps the driver's
    cdef driver_t *driver
    cdef subgroup_t *s
    cdef uint64_t index
    cdef bint is_open

    cdef int fits(self, uint64_t size) except -1
