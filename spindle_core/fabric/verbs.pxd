"""Verbs fabric: peers that share an InfiniBand or RoCE network."""
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from spindle_core.fabric.fabric cimport Fabric
from spindle_core.fabric.verbs_link cimport verbs_entry, verbs_epoch_t
from spindle_core.fabric.verbs_pairs cimport Pair, VerbsPairs
from spindle_core.memory cimport Mapping


cdef class Reach:
    """One peer, as an epoch reaches it."""

    cdef Pair pair
    cdef Mapping copy            # of its row
    cdef uintptr_t region        # what the copy is registered as; 0: not any more
    cdef uint32_t key
    cdef bytes address           # what the peer is told
    cdef bint attached
    cdef bint kept               # the next epoch has the pair as well
    cdef bint reads              # the device may still read my row for it
    cdef uint64_t marks[2]       # numbers of the first posts that are not this epoch's, of both ways
    cdef verbs_entry *queues[2]  # longer ones, for both ways; NULL: those that there are do
    cdef uint64_t capacity       # of these


cdef class VerbsFabric(Fabric):
    cdef verbs_epoch_t state
    cdef readonly VerbsPairs pairs
    cdef bint own_pairs          # nobody else has them
    cdef object names, timing
    cdef uint64_t epoch, posts
    cdef dict rows               # peer: Reach
    cdef readonly Mapping row
    cdef object row_view         # keeps it mapped
    cdef uintptr_t row_region
    cdef bint begun, said, closed
    cdef object __weakref__
    cdef dict before             # the counts of statistics() when this epoch was made

    cdef int take_pair(self, uint32_t peer, Reach r) except -1
    cdef int say_address(self, Reach r) except -1
    cdef bint reach(self, uint32_t peer, Reach r, object theirs) except -1
    cdef bint is_over(self, Reach r)
    cdef bint has_left(self, Reach r)
