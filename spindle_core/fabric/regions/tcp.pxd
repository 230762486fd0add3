"""Regions of nodes on other hosts, over one TCP connection for each peer."""
from spindle_core.fabric.regions.regions cimport Part
from spindle_core.fabric.regions.tcp_way cimport tcp_part_t


cdef class TcpPart(Part):
    cdef tcp_part_t *state
