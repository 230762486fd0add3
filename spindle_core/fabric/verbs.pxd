"""Verbs fabric: peers that share an InfiniBand or RoCE network."""
from libc.stdint cimport uint32_t

from spindle_core.fabric.fabric cimport Fabric
from spindle_core.fabric.verbs_device cimport VerbsDevice
from spindle_core.fabric.verbs_link cimport verbs_t
from spindle_core.memory cimport Mapping


cdef class VerbsFabric(Fabric):
    cdef verbs_t state
    cdef readonly VerbsDevice device
    cdef object ack_timeout, retries
    cdef dict rows               # peer: (copy of its row, own address for it, first packet number, bytes of the queues)
    cdef readonly Mapping row
    cdef object kept             # a view of the row

    cdef int make_queues(self, uint32_t depth, uint32_t rings) except -1
    cdef int prepare(self, uint32_t peer, Mapping row) except -1
    cdef object prepare_link(self, uint32_t link)
