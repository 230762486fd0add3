"""The delivery log: one writer (the predicate thread), many readers. See delivery.pyx."""
from libc.stdint cimport uint64_t

from spindle_core.doorbell cimport Doorbell
from spindle_core.larges cimport Larges
from spindle_core.lasts cimport lasts_t
from spindle_core.layout cimport cursor_page, log_record
from spindle_core.log cimport log_t
from spindle_core.memory cimport Mapping
from spindle_core.timing cimport Timing


cdef class Cursor(Doorbell):
    cdef readonly Mapping mapping
    cdef readonly bint keep_all
    cdef readonly bint from_history
    cdef readonly object start_index
    cdef public object after        # (view id, sequence) or None
    cdef readonly object next       # (view id, sequence) where it was placed, None in a log that never had a message
    cdef readonly object kept       # with `after`: KEPT_BEFORE, KEPT_WHOLE or KEPT_LATER
    cdef readonly bint with_table
    cdef public uint64_t since      # view id; in this view and later ones the log has had everything
    cdef readonly Mapping table     # what the reader reads before the log; None: nothing
    cdef cursor_page *page
    cdef Larges larges
    cdef list table_larges          # ids of large samples that `table` names, until it has been read

    cdef int keep_larges(self, Larges larges) except -1
    cdef int let_larges_go(self) except -1


cdef class DeliveryLog:
    cdef log_t state
    cdef readonly Mapping mapping
    cdef readonly uint64_t history_depth
    cdef list cursors
    cdef object last_copy           # of the table: a weak reference to it, and the version that it has
    cdef object engine_lock
    cdef Timing timing
    cdef Larges larges

    cdef log_t *pointer(self) noexcept
    cdef int check_open(self) except -1
    cdef void note_time(self, const log_record *r) noexcept
    cdef lasts_t *table(self) except NULL
    cdef int locate(self, uint64_t index, uint64_t *position, uint64_t *offset, uint64_t *found) except -1
    cdef object locate_after(self, uint64_t view_id, uint64_t sequence, uint64_t *position, uint64_t *offset,
                             uint64_t *found)
