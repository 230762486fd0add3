"""A ring of bytes in which messages lie one behind the other, each with its length before it, padded to 8 bytes.

`size` of the ring is a power of two. Positions count bytes and never wrap. Of who puts and who takes each keeps its own
position. What is read of a ring that somebody else writes is read once, and checked.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    HEAD_SIZE = 8                # bytes before each message: its length


cdef inline uint64_t boxed(uint32_t length) noexcept nogil:
    """Bytes that a message takes."""
    return (HEAD_SIZE + <uint64_t>length + 7) & ~<uint64_t>7


cdef inline void put_at(char *ring, uint64_t size, uint64_t at, const char *data, uint64_t length) noexcept nogil:
    cdef uint64_t begin = at & (size - 1), first = size - begin
    if first > length:
        first = length
    memcpy(ring + begin, data, first)
    memcpy(ring, data + first, length - first)


cdef inline void take_at(const char *ring, uint64_t size, uint64_t at, char *into, uint64_t length) noexcept nogil:
    cdef uint64_t begin = at & (size - 1), first = size - begin
    if first > length:
        first = length
    memcpy(into, ring + begin, first)
    memcpy(into + first, ring, length - first)


cdef inline void put_message(char *ring, uint64_t size, uint64_t at, const char *data, uint32_t length) noexcept nogil:
    """With room for it at `at`, a multiple of 8."""
    cdef uint64_t head = length
    put_at(ring, size, at, <char *>&head, HEAD_SIZE)
    put_at(ring, size, at + HEAD_SIZE, data, length)


cdef inline int next_length(const char *ring, uint64_t size, uint64_t at, uint64_t end, uint64_t length_max
                            ) noexcept nogil:
    """Length of the message at `at`, before `end`; -1: there is none, or what is there is no message."""
    cdef uint64_t head
    if end - at < HEAD_SIZE or end - at > size:
        return -1
    take_at(ring, size, at, <char *>&head, HEAD_SIZE)
    if head > length_max or boxed(<uint32_t>head) > end - at:
        return -1
    return <int>head
