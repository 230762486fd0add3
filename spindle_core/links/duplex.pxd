"""A duplex: messages both ways between two programs of one host."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.layout cimport duplex_side
from spindle_core.links.spins cimport spins_t
from spindle_core.links.user cimport LinkUser

cdef enum:
    DUPLEXES_MAX = 64            # of one port


cdef struct duplex_t:
    duplex_side *own
    const duplex_side *other
    uint64_t put, taken          # bytes: what stands in the pages is for the other side
    uint64_t rung
    spins_t spins
    int end                      # a socket (ends.make_pair); -1: closed
    int over                     # nothing comes any more, and nothing is taken
    int gone                     # the session has ended


cdef class Duplex:
    cdef duplex_t state
    cdef object kept
    cdef uint32_t forks          # when it was made

    cdef bint has_news(self, uint32_t room, bint messages) noexcept nogil
    cdef bint lie_down(self, uint32_t room, bint messages) noexcept nogil
    cdef void rise(self) noexcept nogil


cdef class Listening:
    cdef LinkUser user
    cdef list known
    cdef duplex_t *duplexes[DUPLEXES_MAX]
    cdef uint32_t n_duplexes
    cdef object epoll
    cdef int poller
    cdef bint gone               # the session has ended
    cdef spins_t spins

    cdef bint has_news(self) noexcept nogil
    cdef bint lie_down(self) noexcept nogil
    cdef void rise(self) noexcept nogil
    cdef int hear(self, int ms) noexcept nogil
