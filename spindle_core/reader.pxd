"""The readers' side of a delivery log. See reader.pyx."""
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from spindle_core.layout cimport bell_page, cursor_page, log_header, log_record
from spindle_core.memory cimport Mapping


cdef class LogReader:
    cdef readonly Mapping log
    cdef readonly Mapping cursor
    cdef readonly Mapping bell
    cdef object log_view                     # of the whole log, read-only
    cdef log_header *header
    cdef cursor_page *page
    cdef bell_page *node_bell
    cdef char *ring
    cdef uint64_t capacity
    cdef uint64_t position, offset, index    # of the next record to read
    cdef uint64_t tail                       # the last one seen: everything before it is whole
    cdef readonly uint64_t lost              # messages overtaken or skipped, ever
    cdef readonly bint keep_all
    cdef int data_fd, bell_fd
    cdef uint64_t rung                       # for which sleep of the node's we rang last
    cdef uint32_t forks                      # of this process when it was opened
    cdef readonly uint64_t next_view, next_sequence  # place in the order behind the last message taken
    cdef bint skips                          # messages before that place may still come: we have had them
    cdef bint frozen                         # nothing beyond these two is read any more
    cdef uint64_t frozen_tail, frozen_count
    cdef bint gone, closed
    cdef Block block                         # the open zero-copy batch, if any

    cdef bint look(self) noexcept
    cdef log_record *peek(self, uint64_t *size) except? NULL
    cdef bint still_there(self, uint64_t position) noexcept
    cdef int overtaken(self) except -1
    cdef uint64_t last_tail(self) noexcept
    cdef void advance(self, uint64_t size) noexcept
    cdef void taken(self, uint64_t size, uint64_t view_id, uint64_t sequence) noexcept
    cdef void publish_position(self) noexcept
    cdef int usable(self) except -1
    cdef int refuse_child(self) except -1
    cdef bint ended(self)
    cdef raise_gone(self)


cdef class Block:
    cdef LogReader reader
    cdef readonly uint64_t offset            # bytes from the start of the log's mapping to the first payload
    cdef readonly uint64_t stride            # bytes from one payload to the next
    cdef readonly uint64_t payload_size      # bytes
    cdef readonly uint64_t count             # messages
    cdef uint64_t first_position, end_position, end_offset, first_index
    cdef uint64_t last_view, last_sequence   # of its last message
    cdef bint open
