"""Shared-memory fabric: the rows of one host, mapped by all of its nodes."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spindle_core.fabric.fabric cimport Fabric
from spindle_core.layout cimport bell_page
from spindle_core.memory cimport Mapping


cdef struct shm_peer_t:
    bell_page *bell
    int bell_fd
    uint64_t rung                # for which of its sleeps I rang last
    uint64_t sleep               # scratch of ring_all()
    uint32_t cut                 # set by the control thread while the predicate thread posts
    uint8_t ring                 # scratch of post_list


cdef struct shm_t:
    uint32_t rank, n_peers
    shm_peer_t *peers
    bell_page *bell              # mine
    int bell_fd
    int others_fd                # an eventfd at which all peers listen, or -1
    int all_fd                   # one at which this node's own predicate thread listens as well, or -1


cdef class ShmFabric(Fabric):
    cdef shm_t state
    cdef readonly Mapping bell
    cdef readonly int bell_fd
    cdef dict peers_kept
