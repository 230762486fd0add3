"""Copies in which short ranges keep their words whole, as regions.pxd promises."""
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from spindle_core.atomics cimport u64_load_acquire, u64_store_release
from spindle_core.fabric.regions.regions cimport REQUEST_INLINE_MAX


cdef inline void copy_words(char *into, const char *source, uint64_t length) noexcept nogil:
    """Of at most REQUEST_INLINE_MAX bytes, all on 8: word by word, so that none is torn, whoever writes or reads
    along."""
    cdef uint64_t i
    if length > REQUEST_INLINE_MAX or (<uint64_t>into | <uint64_t>source | length) & 7:
        memcpy(into, source, length)
        return
    for i in range(0, length, 8):
        u64_store_release(<uint64_t *>(into + i), u64_load_acquire(<uint64_t *>(source + i)))
