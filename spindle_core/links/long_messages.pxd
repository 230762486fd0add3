"""Messages that stay where they are until the receiver's pool reads them."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.regions.regions cimport Regions
from spindle_core.fabric.regions.requests cimport Asker
from spindle_core.layout cimport link_request
from spindle_core.links.link cimport Link
from spindle_core.links.links cimport errand_t, pool_t


cdef class LongMessages:
    cdef pool_t *state
    cdef Regions regions
    cdef object mapping_of
    cdef list sending            # links that have a key for one
    cdef list leaving            # memories of which keys have ended, and something may be read still
    cdef Asker fetching
    cdef dict fetches            # cookie: what is done with what was read
    cdef uint64_t fetched
    cdef list replies            # answers: (connection, link, number of the note, count, status)

    cdef int send(self, Link link) except -1
    cdef uint64_t key_for(self, Link link, const link_request *r) except? 0
    cdef int end_key(self, Link link) except -1
    cdef int fetch(self, errand_t *e, Link link) except -1
    cdef uint64_t reach_sender(self, errand_t *e) except? 0xFFFFFFFFFFFFFFFF
    cdef int fetch_over(self, cookie, bint well) except -1
    cdef int answer(self) except -1
    cdef bint waits(self)
    cdef int tidy(self) except -1
    cdef int forget(self, Link link) except -1
    cdef int drop(self, uint32_t peer) except -1
