"""One epoch of a node: its row, its peers' rows, its subgroups."""
from spindle_core.control cimport ControlRows
from spindle_core.memory cimport Mapping
from spindle_core.state cimport subgroup_t


cdef class Epoch(ControlRows):
    cdef readonly tuple subgroups        # SubgroupSpec
    cdef readonly Mapping row
    cdef list peer_rows
    cdef dict by_topic
    cdef bint columns_ready
    cdef object hash                     # layout_hash()

    cdef subgroup_t *subgroup(self, topic_id) except NULL
    cdef void point(self) noexcept
    cdef int say_row(self, rank, Mapping row, incarnation, layout_hash, row_size) except -1
    cdef int check_row(self, rank, Mapping row) except -1
    cdef int take_row(self, rank, Mapping row, bint shared) except -1
