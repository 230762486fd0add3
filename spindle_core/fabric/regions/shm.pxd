"""Regions of nodes on one host: mapped, and reached by the own processor."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.regions.regions cimport PEERS_MAX, Part, regions_t
from spindle_core.layout cimport bell_page, post_page
from spindle_core.memory cimport Mapping


cdef struct shm_way_t:
    const uint32_t *versions     # of the peer's keys; NULL: not connected
    post_page *mine              # messages to this peer, and how far its own were taken
    const post_page *theirs
    const bell_page *bell
    int bell_fd
    uint64_t rung                # for which of its sleeps it was rung last


cdef struct shm_part_t:
    regions_t *regions
    bell_page *bell              # of this node
    int bell_fd
    uint32_t *versions           # of its keys: 0 where none is open
    shm_way_t ways[PEERS_MAX]


cdef class ShmPart(Part):
    cdef shm_part_t *state
    cdef readonly Mapping bell
    cdef readonly int bell_fd
    cdef readonly Mapping keys   # the page of versions, for peers to map
    cdef list kept               # by peer: what is mapped for it
