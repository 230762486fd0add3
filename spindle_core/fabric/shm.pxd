"""Shared-memory fabric: the rows of one host, mapped by all of its nodes."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spindle_core.fabric.fabric cimport MAIL_SIZE_MAX, Fabric, completion_t
from spindle_core.layout cimport bell_page
from spindle_core.memory cimport Mapping

cdef enum:
    PEER_MEMORIES_MAX = 16
    COMPLETIONS_MAX = 1024


cdef struct shm_peer_t:
    char *row
    uint64_t row_size
    bell_page *bell
    int bell_fd
    uint64_t rung                # for which of its sleeps I rang last
    uint64_t sleep               # scratch of ring_all()
    uint32_t cut                 # set by the control thread while the predicate thread posts
    char *mail_out               # ring that I write and this peer reads (in my mail mapping)
    char *mail_in                # ring that this peer writes and I read (in its mail mapping)
    char *memories[PEER_MEMORIES_MAX]
    uint64_t memory_sizes[PEER_MEMORIES_MAX]
    uint8_t ring                 # scratch of post_list


cdef struct shm_t:
    uint32_t rank, n_peers
    shm_peer_t *peers
    bell_page *bell              # mine
    int bell_fd
    int others_fd                # an eventfd at which all peers listen, or -1
    int all_fd                   # one at which this node's own predicate thread listens as well, or -1
    uint32_t mail_next           # peer whose mail is looked at next
    completion_t completions[COMPLETIONS_MAX]
    uint64_t completions_head, completions_tail


cdef class ShmFabric(Fabric):
    cdef shm_t state
    cdef Mapping mail_made       # outgoing rings and taken counts, one pair per peer; None until somebody asks
    cdef readonly Mapping bell
    cdef readonly int bell_fd
    cdef list memories
    cdef dict peers_kept
