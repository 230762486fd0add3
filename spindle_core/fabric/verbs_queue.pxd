"""What waits to be sent over one reliable connection."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.verbs_link cimport verbs_entry, verbs_epoch_t, verbs_link_t, verbs_t


cdef verbs_entry *link_put(verbs_t *s, verbs_link_t *p, uint32_t kind, const void *data, uint32_t length
                           ) noexcept nogil
cdef int link_write(verbs_epoch_t *o, uint32_t peer, bint ahead, uint32_t flags, uint64_t offset, uint64_t length
                    ) noexcept nogil
cdef void link_finish(verbs_t *s, verbs_link_t *p, bint ahead, uint64_t epoch) noexcept nogil
cdef bint link_longer(verbs_link_t *p, verbs_entry *queue, uint64_t capacity) noexcept
cdef void link_flush(verbs_t *s, verbs_link_t *p) noexcept nogil
cdef void link_drive(verbs_t *s, verbs_link_t *p) noexcept nogil
