"""Where a reader stands in a delivery log. See log_position.pyx."""
from libc.stdint cimport uint64_t

from spindle_core.layout cimport cursor_start, large_entry, log_header, log_record
from spindle_core.memory cimport Mapping


cdef class LogPosition:
    cdef readonly Mapping log
    cdef log_header *header
    cdef char *ring
    cdef uint64_t capacity
    cdef uint64_t position, offset, index    # of the next record to read
    cdef uint64_t tail                       # the last one seen: everything before it is whole
    cdef readonly uint64_t lost              # messages overtaken or skipped, ever
    cdef readonly bint keep_all
    cdef readonly uint64_t next_view, next_sequence  # place in the order behind the last message taken
    cdef bint skips                          # messages before that place may still come: we have had them
    cdef bint frozen                         # nothing beyond the next two is read any more
    cdef uint64_t frozen_tail, frozen_count
    cdef uint64_t ended_tail                 # how far the log had got when it was frozen; frozen_tail may be before it
    cdef bint gone                           # the node is gone
    cdef public bint goes_on                 # behind what can't be read here, in another node's log
    # A late reader of a topic whose messages have keys first reads a copy of what was kept of each, then the log.
    cdef Mapping following                   # the log, while it reads that copy; None otherwise
    cdef uint64_t following_position, following_offset, following_index
    cdef uint64_t copied                     # messages of that copy: counted before those of the log
    cdef readonly object behind              # place in the order behind all that the copy stands for; None without one

    cdef public object opener                # what gives the bytes of large samples; None: nothing does
    cdef public bint entries                 # take_pairs() gives out a large sample as its entry, and alone
    cdef Mapping large                       # those of the last one that was opened
    cdef uint64_t large_id

    cdef int begin(self, Mapping log, const cursor_start *start, object place, bint skips, Mapping table=?) except -1
    cdef int enter(self, Mapping log) except -1
    cdef void turn_to_following(self) noexcept
    cdef log_header *proper(self) noexcept
    cdef uint64_t delivered(self) noexcept
    cdef uint64_t last_tail(self) noexcept
    cdef bint look(self) noexcept
    cdef log_record *peek(self, uint64_t *size) except? NULL
    cdef bint still_there(self, uint64_t position) noexcept
    cdef int overtaken(self) except -1
    cdef void advance(self, uint64_t size) noexcept
    cdef void taken(self, uint64_t size, uint64_t view_id, uint64_t sequence) noexcept
    cdef Mapping open_large(self, const log_record *r, large_entry *entry)
    cdef int stop(self, uint64_t *view_id, uint64_t *sequence) except -1
    cdef uint64_t first_large(self) except? 0
    cdef uint64_t skip_until(self, uint64_t target) except? 0
    cdef int find_end(self, uint64_t *count, uint64_t *view_id, uint64_t *sequence) except -1
