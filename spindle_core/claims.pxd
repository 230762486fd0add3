"""Direct claims of an embedded sender, nogil."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.state cimport subgroup_t
from spindle_core.thread cimport driver_t


cdef uint64_t claim_slots(driver_t *driver, subgroup_t *s, uint64_t most, int timeout_ms,
                          uint64_t *first) noexcept nogil
cdef char *slot_payload(subgroup_t *s, uint64_t index) noexcept nogil
cdef void abort_slot(driver_t *driver, subgroup_t *s, uint64_t index) noexcept nogil
cdef bint commit_slots(driver_t *driver, subgroup_t *s, uint64_t first, uint64_t n, const uint32_t *sizes,
                       uint64_t source_ns) noexcept nogil
