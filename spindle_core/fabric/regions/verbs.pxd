"""Regions reached through an RDMA device (libibverbs)."""
from libc.stdint cimport uint32_t, uintptr_t

from spindle_core.fabric.regions.regions cimport Part
from spindle_core.fabric.regions.verbs_way cimport verbs_part_t
from spindle_core.fabric.verbs_device cimport VerbsDevice
from spindle_core.memory cimport Mapping


cdef class VerbsPart(Part):
    cdef verbs_part_t *state
    cdef readonly VerbsDevice device
    cdef object ack_timeout, retries
    cdef readonly uint32_t peers_max
    cdef dict ends               # peer: (packet number, its arena, the arena's registration)
    cdef dict keys               # key of a region: the address of its registration
    cdef dict locals             # memory of this node that requests may use: a view of it
    cdef object __weakref__

    cdef uintptr_t make_end(self, uint32_t peer, Mapping arena) except 0
