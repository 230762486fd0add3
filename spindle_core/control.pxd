"""The control columns and areas of all rows of an epoch."""
from spindle_core.fabric.fabric cimport Fabric
from spindle_core.layout cimport row_header
from spindle_core.memory cimport Mapping
from spindle_core.state cimport node_t


cdef class ControlRows:
    cdef node_t node
    cdef readonly object epoch
    cdef readonly object my_rank
    cdef readonly tuple node_ids
    cdef readonly Mapping bell
    cdef readonly int bell_fd
    cdef readonly Fabric fabric
    cdef bint closed

    cdef row_header *header(self, rank) except NULL
    cdef void hold_control(self) noexcept
