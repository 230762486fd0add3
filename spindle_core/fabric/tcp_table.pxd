"""The TCP fabric's table of functions, and the two of them that Python calls as well."""
from spindle_core.atomics cimport u32_load_relaxed
from spindle_core.fabric.fabric cimport fabric_t
from spindle_core.fabric.tcp_link cimport tcp_peer_t, tcp_t


cdef inline bint gone(tcp_peer_t *p) noexcept nogil:
    """Nothing is sent to it or taken of it any more."""
    return p.ended or p.fd < 0 or p.failed != 0 or u32_load_relaxed(&p.cut) != 0


cdef int tcp_enter(void *self) noexcept nogil
cdef void tcp_leave(void *self) noexcept nogil
cdef void set_table(fabric_t *table, tcp_t *s) noexcept
