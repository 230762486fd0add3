"""The pool of a host."""
from libc.stdint cimport uint64_t

from spindle_core.fabric.regions.regions cimport Regions
from spindle_core.links.link cimport Link
from spindle_core.links.links cimport pool_t
from spindle_core.links.long_messages cimport LongMessages


cdef int run_pool(pool_t *s, uint64_t now_ns) noexcept nogil


cdef class Pool:
    cdef pool_t *state
    cdef readonly Regions regions
    cdef LongMessages long_messages
    cdef dict nodes              # id of a node: its connections, the shared one first
    cdef dict for_atomics        # id of a node: its connection for lists with atomics, if that is another one
    cdef dict links              # id: its Link, until nothing of it is on the way
    cdef list closing            # those whose user has gone
    cdef list asking             # those whose user wants something of whoever drives
    cdef list free_places
    cdef list uses               # of each place: how often

    cdef bint forgotten(self, Link link) except? True
    cdef int forget(self, Link link) except -1
    cdef int change(self, Link link) except -1
