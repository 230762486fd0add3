"""How long messages of a topic count, and the time that its order has said: the state of that. See timing.pxi."""
from libc.stdint cimport uint8_t, uint64_t


cdef enum:
    DUES_MAX = 256               # times at which something is over that are told apart
    DUE_BITS_MIN = 20            # bits of ns (1 ms) that are not told apart, however short a message counts
    DUE_SHARE_BITS = 6           # of how long it counts, so many bits are


# What a message says of time, by its tag; the layer above says which tag does what.
cdef enum timing_kind:
    TIMING_NONE = 0
    TIMING_UNTIL = 1             # its first 8 bytes say until when it counts, UTC ns; 0: for ever
    TIMING_FOR = 2               # its last 8 bytes say how long it counts from its source timestamp, ns; 0: for ever
    TIMING_WORD = 3              # of no writer: "it is now", its source timestamp
    TIMING_SAYS = 3              # the bits that say one of these
    TIMING_STAMPED = 4           # added to it: source timestamps decide something, and are not believed if far ahead


cdef enum:
    # That a source timestamp may be ahead of its node's clock, where it decides something; and what the order has said,
    # of what it says next: if it is more, that is taken back.
    AHEAD_MAX_S = 30


cdef inline bint is_far_ahead(uint64_t ns, uint64_t now_ns) noexcept nogil:
    return ns > now_ns and ns - now_ns > <uint64_t>AHEAD_MAX_S * 1000000000


cdef struct timing_t:
    uint8_t kinds[256]           # by tag
    uint64_t said_ns             # the time that the order has said, UTC
    bint doubted                 # since it was said, a message that was far earlier was over when it came
    uint64_t dues[DUES_MAX]      # later times at which something is over, UTC ns, ascending
    uint64_t n_dues


cdef class Timing:
    cdef timing_t state

    cdef timing_t *pointer(self) noexcept
