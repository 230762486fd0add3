"""Simulated fabric: the links between nodes of one process, landed line by line by whoever plays the world."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.fabric cimport Fabric
from spindle_core.fabric.links cimport link_t, net_t, sim_t
from spindle_core.memory cimport Mapping


cdef class SimNetwork:
    cdef net_t net
    cdef dict places             # node id -> place
    cdef list node_ids

    cdef uint32_t place(self, node_id) except? 0xFFFFFFFF
    cdef link_t *find(self, source, target, epoch) except? NULL


cdef class SimFabric(Fabric):
    cdef sim_t state
    cdef readonly SimNetwork network
    cdef readonly object epoch
    cdef readonly Mapping row
    cdef list kept
