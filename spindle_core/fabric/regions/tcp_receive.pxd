"""What comes from a peer over TCP."""
from libc.stdint cimport uint32_t

from spindle_core.fabric.regions.tcp_way cimport tcp_part_t


cdef int take(tcp_part_t *s, uint32_t peer) noexcept nogil
