"""A link, as its pool has it."""
from libc.stdint cimport uint64_t

from spindle_core.fabric.regions.regions cimport Regions
from spindle_core.links.links cimport handle_t, link_t
from spindle_core.memory cimport Mapping


cdef class Link:
    cdef link_t state
    cdef Regions regions
    cdef readonly object node
    cdef readonly Mapping user_page, pool_page
    cdef dict opened             # handle: the grant of its region
    cdef dict memories           # handle: a view of the user's memory
    # Long messages (long_messages)
    cdef dict registered         # handle of a memory of which peers of this host read: its key
    cdef set lent                # memories of which others have read
    cdef uint64_t key            # for the one that is on the way to a peer of another host; 0: none
    cdef uint64_t key_number     # its number among the submissions
    cdef tuple key_range         # memory, offset and length
    cdef object __weakref__

    cdef int forget_region(self, const handle_t *h) except -1
    cdef int check(self, handle, const char *what) except -1
