"""Regions of simulated nodes: what was posted lands when the world says so."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spindle_core.fabric.regions.regions cimport PEERS_MAX, Part, regions_t

cdef enum:
    OP_MESSAGE = 5               # beside the kinds of requests


# Something posted. Its bytes follow it in memory.
cdef struct op_t:
    op_t *next
    uint32_t kind
    uint32_t status              # of its answer
    uint32_t left, flags
    uint64_t number              # of the request
    uint64_t key, offset, length
    uint64_t first, second
    uint64_t value               # what an atomic found
    uint64_t landed              # bytes
    const char *local            # of a long write, while its source is there: read when it lands
    uint8_t begun                # it was looked at by its target


cdef struct sim_part_t


# One direction between two connected nodes. The world frees it.
cdef struct direction_t:
    sim_part_t *source           # NULL: it has cut, or is gone; what it had posted still lands
    sim_part_t *target           # NULL: it has cut, or is gone: nothing lands any more
    uint32_t source_peer         # the target's number at the source
    uint32_t target_peer         # the source's number at the target
    op_t *first
    op_t *last
    op_t *answers                # that the source has not got yet
    op_t *answers_last
    op_t *messages               # landed and not taken
    op_t *messages_last
    uint64_t message_bytes       # sent and not taken
    uint64_t lines               # that wait
    uint64_t n_answers
    uint32_t skip                # requests to come that belong to a list that failed


cdef struct sim_part_t:
    regions_t *regions
    direction_t *out[PEERS_MAX]
    direction_t *into[PEERS_MAX]


cdef class SimWorld:
    cdef dict directions         # (source, target): the addresses of their directions, the newest last
    cdef direction_t *of(self, source, target, int connection) except NULL


cdef class SimPart(Part):
    cdef sim_part_t *state
    cdef readonly object node
    cdef readonly SimWorld world

    cdef int add_direction(self, uint32_t here, SimPart other, uint32_t there) except -1
