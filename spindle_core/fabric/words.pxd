"""Copies that keep words whole, as fabrics and regions promise of short ranges (fabric.pxd, regions.pxd)."""
from libc.stdint cimport uint64_t
from libc.string cimport memcpy

from spindle_core.atomics cimport u64_load_acquire, u64_store_release

cdef enum:
    WHOLE_WORDS_MAX = 256        # bytes; POST_INLINE_MAX and REQUEST_INLINE_MAX are no more


cdef inline void copy_words(char *into, const char *source, uint64_t length) noexcept nogil:
    """Copies a range. Of at most WHOLE_WORDS_MAX bytes, word by word on the side where its ends lie on 8: there none is
    torn, whoever writes or reads along."""
    cdef uint64_t i, word
    cdef bint into_whole = not <uint64_t>into & 7, source_whole = not <uint64_t>source & 7
    if length > WHOLE_WORDS_MAX or length & 7 or not (into_whole or source_whole):
        memcpy(into, source, length)
        return
    for i in range(0, length, 8):
        if source_whole:
            word = u64_load_acquire(<uint64_t *>(source + i))
        else:
            memcpy(&word, source + i, 8)
        if into_whole:
            u64_store_release(<uint64_t *>(into + i), word)
        else:
            memcpy(into + i, &word, 8)
