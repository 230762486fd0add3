"""What pools tell each other."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.links.links cimport link_t, note_t, pool_t


cdef int take_notes(pool_t *s) noexcept nogil
cdef void owe(pool_t *s, uint32_t peer, const note_t *note, uint64_t count, uint32_t status) noexcept nogil
cdef bint pay(pool_t *s, uint32_t peer) noexcept nogil
cdef void lose(link_t *link) noexcept nogil
