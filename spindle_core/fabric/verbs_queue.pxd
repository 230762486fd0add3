"""What waits to be sent over one reliable connection."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.verbs_link cimport verbs_entry, verbs_peer_t, verbs_t


cdef verbs_entry *link_put(verbs_t *s, verbs_peer_t *p, uint32_t kind, const void *data, uint32_t length
                           ) noexcept nogil
cdef int link_write(verbs_t *s, uint32_t link, uint32_t flags, uint64_t offset, uint64_t length) noexcept nogil
cdef void link_flush(verbs_t *s, uint32_t link) noexcept nogil
cdef void link_drive(verbs_t *s, uint32_t link) noexcept nogil
