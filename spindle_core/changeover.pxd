"""From one epoch to the next: what happens to messages in flight."""
from libc.stdint cimport uint64_t

from spindle_core.epoch cimport Epoch
from spindle_core.state cimport subgroup_t


cdef void close_claims(Epoch epoch) noexcept
cdef bint claims_open(Epoch epoch) noexcept
cdef int freeze(Epoch epoch) except -1
cdef bint is_idle(subgroup_t *s) noexcept nogil
cdef bint deliver_trim(Epoch epoch, subgroup_t *s, trim, uint64_t now_ns) except? -1
cdef list take_trim(Epoch epoch, subgroup_t *s, trim)
cdef uint64_t count_leftover(subgroup_t *s) noexcept
cdef int check_resend(subgroup_t *old, subgroup_t *new) except -1
cdef uint64_t resend(subgroup_t *old, subgroup_t *new, list inboxes) noexcept
