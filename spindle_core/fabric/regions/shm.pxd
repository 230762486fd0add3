"""Regions of nodes on one host: mapped, and reached by the own processor."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.regions.regions cimport PEERS_MAX, Part, regions_t
from spindle_core.layout cimport bell_page, key_entry, post_page
from spindle_core.memory cimport Mapping


cdef struct shm_way_t:
    const key_entry *keys        # of the peer; NULL: not connected
    post_page *mine              # messages to this peer, and how far its own were taken
    const post_page *theirs
    const bell_page *bell
    int bell_fd
    uint64_t rung                # for which of its sleeps it was rung last


cdef struct shm_part_t:
    regions_t *regions
    bell_page *bell              # of this node
    int bell_fd
    key_entry *keys              # of this node
    shm_way_t ways[PEERS_MAX]


cdef class ShmPart(Part):
    cdef shm_part_t *state
    cdef readonly Mapping bell
    cdef readonly int bell_fd
    cdef readonly Mapping keys   # the page of its keys, for peers to map
    cdef list kept               # by peer: what is mapped for it
