"""The pool of a host, and its links."""
from libc.stdint cimport uint64_t

from spindle_core.fabric.regions.regions cimport Asker, Regions
from spindle_core.links.links cimport errand_t, link_t, pool_t
from spindle_core.memory cimport Mapping


cdef class Pool


cdef class Link:
    cdef link_t state
    cdef Pool pool
    cdef readonly object node
    cdef readonly Mapping user_page, pool_page
    cdef dict opened             # handle: the grant of its region
    cdef dict memories           # handle: a view of the user's memory
    cdef dict registered         # the same, of those whose long messages others read: key
    cdef object __weakref__

    cdef int check(self, handle, const char *what) except -1


cdef int run_pool(pool_t *s, uint64_t now_ns) noexcept nogil


cdef class Pool:
    cdef pool_t *state
    cdef readonly Regions regions
    cdef dict nodes              # id of a node: its connections, the shared one first
    cdef dict links              # id: its Link, until nothing of it is on the way
    cdef set closing             # Links whose users have gone
    cdef list leaving            # memory of links that have gone, until nothing that has begun reads it
    cdef list free_places
    cdef list uses               # of each place: how often
    cdef Asker fetching
    cdef dict fetches            # cookie: what is done with what was read
    cdef uint64_t fetched
    cdef list replies            # answers to long messages: (connection, link, number of the note, count, status)
    cdef object mapping_of

    cdef int forget(self, Link link) except -1
    cdef bint regions_has(self, Link link, handle)
    cdef int change(self, Link link) except -1
    cdef int send_long(self, Link link) except -1
    cdef int fetch(self, errand_t *e, Link link) except -1
    cdef uint64_t reach_sender(self, errand_t *e) except? 0xFFFFFFFFFFFFFFFF
    cdef int fetch_over(self, cookie, bint well) except -1
    cdef int finish_fetches(self) except -1
