"""The delivery log: one writer (the predicate thread), many readers. See delivery.pyx."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from spindle_core.layout cimport cursor_page, cursor_start, log_header, log_record
from spindle_core.memory cimport Mapping


cdef enum:
    CURSORS_MAX = 256            # readers of one topic on one node


cdef struct cursor_t:
    cursor_page *page            # the application's: nothing in it is trusted
    uint64_t position            # the last one that we believed: only grows, never beyond the tail
    uint64_t rung                # value of page.armed that we last rang for
    int ring_fd                  # our end of the reader's doorbell
    bint keep_all


# The writer's side. Invariant: oldest_position <= position of every keep-all cursor <= tail.
cdef struct log_t:
    log_header *header
    char *ring
    uint64_t capacity            # bytes, a multiple of CACHE_LINE
    uint64_t hot                 # bytes
    bint keeps_history
    uint64_t tail                # position behind the last record, not yet published ones included
    uint64_t tail_offset
    uint64_t last_offset         # of the newest record, if count > 0: whole until the next one is appended
    uint64_t count               # messages appended
    uint64_t oldest_position
    uint64_t oldest_offset
    uint64_t oldest_index
    cursor_t cursors[CURSORS_MAX]
    uint32_t n_cursors


cdef void log_refresh_cursors(log_t *log) noexcept nogil
cdef char *log_reserve(log_t *log, uint64_t size) noexcept nogil
cdef void log_commit(log_t *log, uint64_t size) noexcept nogil
cdef void log_publish(log_t *log) noexcept nogil
cdef uint32_t log_take_armed(log_t *log, int *readers, uint32_t most) noexcept nogil
cdef void log_set_blocked(log_t *log, bint blocked) noexcept nogil


cdef class Cursor:
    cdef readonly Mapping mapping
    cdef readonly int ring_fd
    cdef readonly int data_fd       # the reader's end, until it is handed over
    cdef readonly bint keep_all
    cdef readonly bint from_history
    cdef readonly object start_index
    cdef public object after        # (view id, sequence) or None
    cdef readonly object next       # (view id, sequence) where it was placed, None in a log that never had a message
    cdef readonly object kept       # with `after`: KEPT_BEFORE, KEPT_WHOLE or KEPT_LATER
    cdef cursor_page *page


cdef class DeliveryLog:
    cdef log_t state
    cdef readonly Mapping mapping
    cdef readonly uint64_t history_depth
    cdef list cursors
    cdef object engine_lock

    cdef log_t *pointer(self) noexcept
    cdef int check_open(self) except -1
    cdef int locate(self, uint64_t index, uint64_t *position, uint64_t *offset, uint64_t *found) except -1
    cdef object locate_after(self, uint64_t view_id, uint64_t sequence, uint64_t *position, uint64_t *offset,
                             uint64_t *found)
