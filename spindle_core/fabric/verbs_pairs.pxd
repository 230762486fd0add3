"""A node's connections over an RDMA device, which outlive views."""
from libc.stdint cimport uint32_t, uint64_t, uintptr_t

from spindle_core.fabric.verbs_device cimport VerbsDevice
from spindle_core.fabric.verbs_link cimport verbs_t
from spindle_core.memory cimport Mapping


cdef class Pair:
    """Both connections to one peer. A place is used again; a Pair is not."""

    cdef readonly uint32_t place
    cdef readonly object name    # of the peer
    cdef readonly uint32_t packet            # number of the first packet
    cdef readonly uint32_t number, ahead     # of its queue pairs
    cdef readonly uint32_t there             # the peer's queue pair that it is connected to; 0: to none so far
    cdef readonly bint retired   # nobody uses it any more
    cdef readonly bint gone      # its queue pairs are destroyed
    cdef object timing           # ack_timeout, retries
    cdef readonly uint32_t users             # fabrics that have it
    cdef uint64_t posts          # that may wait for it, of all epochs that have not left
    cdef uint64_t capacity       # of its queues, in entries
    cdef Mapping page
    cdef uint32_t page_key
    cdef list regions            # addresses of what is registered for it
    cdef list kept               # memory that the device uses


cdef class VerbsPairs:
    cdef verbs_t state
    cdef readonly VerbsDevice device
    cdef dict pairs              # place: Pair
    cdef object fabrics          # a weak set: those that are not closed
    cdef list remains            # those that are, whose memory some device may still use
    cdef readonly uint64_t made  # queue pairs, so far
    cdef uint64_t queue
    cdef object __weakref__

    cdef int make_queues(self, uint32_t depth, uint32_t rings) except -1
    cdef uint64_t entries_for(self, uint64_t posts)
    cdef Pair take(self, object name, object timing, uint64_t posts)
    cdef Pair make(self, object name, object timing, uint64_t posts)
    cdef int make_link(self, Pair pair, bint ahead) except -1
    cdef int connect(self, Pair pair, object theirs) except -1
    cdef int drop(self, Pair pair) except -1
    cdef int retire(self, Pair pair) except -1
    cdef int destroy(self, Pair pair) except -1
    cpdef bint sweep(self) except *
