"""What waits to be sent over one TCP connection."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.tcp_link cimport tcp_entry, tcp_peer_t, tcp_t


cdef inline bint link_waits(const tcp_peer_t *p) noexcept nogil:
    """True if something is to be sent."""
    return p.first < p.last or p.ahead_first < p.ahead_last


cdef void link_fail(tcp_t *s, tcp_peer_t *p, uint32_t why) noexcept nogil
cdef void link_drop(tcp_peer_t *p) noexcept nogil
cdef tcp_entry *link_entry(tcp_t *s, tcp_peer_t *p, uint64_t place, uint32_t length) noexcept nogil
cdef int link_write(tcp_t *s, uint32_t peer, uint32_t flags, uint64_t offset, uint64_t length) noexcept nogil
cdef int link_put(tcp_t *s, uint32_t peer, uint32_t kind, uint64_t place, const void *data, uint32_t length
                  ) noexcept nogil
cdef int link_flush(tcp_t *s, uint32_t peer) noexcept nogil
