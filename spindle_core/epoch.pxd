"""One epoch of a node: its row, its peers' rows, its subgroups."""
from libc.stdint cimport uint64_t

from spindle_core.fabric.fabric cimport Fabric
from spindle_core.layout cimport row_header
from spindle_core.memory cimport Mapping
from spindle_core.state cimport node_t, subgroup_t


cdef class Epoch:
    cdef node_t node
    cdef readonly object epoch
    cdef readonly object my_rank
    cdef readonly tuple node_ids
    cdef readonly tuple subgroups        # SubgroupSpec
    cdef readonly Mapping row
    cdef readonly Mapping bell
    cdef readonly int bell_fd
    cdef readonly Fabric fabric
    cdef list peer_rows
    cdef dict by_topic
    cdef bint closed
    cdef bint columns_ready
    cdef uint64_t row_size               # bytes
    cdef object hash                     # layout_hash()

    cdef row_header *header(self, rank) except NULL
    cdef subgroup_t *subgroup(self, topic_id) except NULL
    cdef void hold_control(self) noexcept
    cdef int build_subgroups(self) except -1
    cdef int point_columns(self) except -1
    cdef int say_row(self, rank, Mapping row, incarnation, layout_hash, row_size) except -1
    cdef int check_row(self, rank, Mapping row) except -1
    cdef int take_row(self, rank, Mapping row) except -1
