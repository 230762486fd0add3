"""What waits to be sent to a peer over TCP, and how it leaves."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.regions.tcp_way cimport out_t, tcp_part_t, tcp_way_t


cdef out_t *put(tcp_way_t *w, uint32_t kind, uint64_t number, const void *what, uint32_t length) noexcept nogil
cdef void attach(out_t *o, const char *data, uint64_t length) noexcept nogil
cdef int flush(tcp_part_t *s, uint32_t peer) noexcept nogil
