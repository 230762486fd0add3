"""Verbs fabric: peers that share an InfiniBand or RoCE network."""
from libc.stdint cimport uint32_t

from spindle_core.fabric.fabric cimport Fabric
from spindle_core.fabric.verbs_api cimport ibv_mr
from spindle_core.fabric.verbs_device cimport VerbsDevice
from spindle_core.fabric.verbs_link cimport verbs_t
from spindle_core.memory cimport Mapping


cdef class VerbsFabric(Fabric):
    cdef verbs_t state
    cdef readonly VerbsDevice device
    cdef object ack_timeout, retries
    cdef bint prepared           # some peer has an address: nothing can be registered any more
    cdef list memories           # (view, what peers are told of it)
    cdef dict targets            # of reads
    cdef dict rows               # peer: (copy of its row, own address for it, first packet number, bytes of the queues)
    cdef readonly Mapping row
    cdef Mapping arena           # receive buffers of all peers, results of atomics
    cdef object kept             # a view of the row

    cdef int make_queues(self, uint32_t depth, uint32_t rings) except -1
    cdef int add_target(self, Mapping memory, ibv_mr *region) except -1
    cdef int prepare(self, uint32_t peer, Mapping row) except -1
    cdef object prepare_link(self, uint32_t link)
