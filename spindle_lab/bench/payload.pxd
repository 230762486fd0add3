"""What a benchmark message looks like: filled whole by its sender, read whole by every receiver.

Why a pattern and not random bytes: the receiver can recompute the sum of all words from the first one, so a torn,
stale or exchanged payload is found without keeping a copy, at the price of one pass over the bytes: the pass that
the measurement asks for anyway.

    word 0     sender << 48 | index    which message this is
    word 1     ns of CLOCK_MONOTONIC at which it was filled, 0 if it isn't a latency sample
    word i     seed + (i - 2) * step, seed mixed from word 0
    rest       low byte of the seed, for sizes that aren't a multiple of 8
"""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint64_t

cdef enum:
    PAYLOAD_SIZE_MIN = 16          # bytes: words 0 and 1
    PAYLOAD_SENDER_SHIFT = 48
    PAYLOAD_SENDERS_MAX = 256
    PAGE = 4096

cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)


cdef inline uint8_t *payload_memory(size_t size) noexcept nogil:
    """Memory to copy payloads to, to be given to free(); NULL: there is none.

    Why it begins with a page: where malloc puts it hangs on the length of arguments and environment, and a copy of
    10 KB is up to a tenth faster or slower by how its two ends lie to each other.
    """
    return <uint8_t *>aligned_alloc(PAGE, (size + PAGE - 1) // PAGE * PAGE)


cdef inline uint64_t payload_step() noexcept nogil:
    """Odd, so that no two words of a message are alike."""
    return 0x9e3779b97f4a7c15ULL


cdef inline uint64_t payload_mix(uint64_t x) noexcept nogil:
    """Finaliser of splitmix64 (Steele, Lea, Flood 2014): every input bit changes half of the output bits."""
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL
    return x ^ (x >> 31)


cdef inline void payload_fill(
    uint8_t *out, size_t size, uint64_t sender, uint64_t index, uint64_t sent_ns
) noexcept nogil:
    """Stores all `size` bytes (at least PAYLOAD_SIZE_MIN)."""
    cdef uint64_t *words = <uint64_t *>out
    cdef uint64_t identity = (sender << PAYLOAD_SENDER_SHIFT) | index
    cdef uint64_t seed = payload_mix(identity)
    cdef uint64_t value = seed
    cdef size_t n = size >> 3
    cdef size_t i
    words[0] = identity
    words[1] = sent_ns
    for i in range(2, n):
        words[i] = value
        value += payload_step()
    for i in range(n << 3, size):
        out[i] = <uint8_t>seed


cdef inline uint64_t payload_sum(const uint8_t *data, size_t size) noexcept nogil:
    """Sum of everything behind words 0 and 1: reads every byte of it."""
    cdef const uint64_t *words = <const uint64_t *>data
    cdef uint64_t total = 0
    cdef size_t n = size >> 3
    cdef size_t i
    for i in range(2, n):
        total += words[i]
    for i in range(n << 3, size):
        total += data[i]
    return total


cdef inline uint64_t payload_sum_expected(uint64_t identity, size_t size) noexcept nogil:
    """What payload_sum() must give for the message that word 0 names."""
    cdef uint64_t seed = payload_mix(identity)
    cdef uint64_t n = (size >> 3) - 2
    # n * (n - 1) is even and far below 2**64: the halving is exact.
    return n * seed + payload_step() * (n * (n - 1) // 2) + (size & 7) * (seed & 0xff)
