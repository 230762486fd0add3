"""TCP fabric: peers on other hosts, or on this one without shared memory."""
from spindle_core.fabric.fabric cimport Fabric
from spindle_core.fabric.tcp_link cimport tcp_t
from spindle_core.memory cimport Mapping


cdef class TcpFabric(Fabric):
    cdef tcp_t state
    cdef dict rows
    cdef readonly Mapping row
    cdef object kept             # a view of it
