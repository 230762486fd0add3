"""What a pool does for one link: takes its submissions, gives it its completions and messages."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.regions.regions cimport NO_PEER
from spindle_core.links.links cimport link_t, pool_t


cdef inline bint is_over(const pool_t *s, uint32_t peer) noexcept nogil:
    """That connection has ended; NO_PEER has not."""
    return peer != NO_PEER and (s.regions.peers[peer].cut or s.regions.peers[peer].part == NULL)


cdef bint serve(pool_t *s, link_t *link, uint64_t now_ns) noexcept nogil
cdef bint give(link_t *link) noexcept nogil
cdef bint complete(link_t *link, uint64_t cookie, uint32_t status, uint64_t value) noexcept nogil
cdef bint put_in_box(link_t *link, uint64_t sender, uint64_t node, const char *data, uint32_t length) noexcept nogil
cdef bint errand(pool_t *s, link_t *link, uint32_t kind, uint64_t what) noexcept nogil
cdef void answered(link_t *link, uint64_t count, uint32_t status) noexcept nogil
cdef void answer_ask(link_t *link, uint64_t cookie, uint32_t status, uint64_t value) noexcept nogil
cdef void ring_user(link_t *link) noexcept nogil
cdef void break_link(link_t *link, uint32_t why) noexcept nogil
