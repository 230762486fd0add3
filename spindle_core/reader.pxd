"""The readers' side of a delivery log. See reader.pyx."""
from libc.stdint cimport uint64_t

from spindle_core.keyed cimport Keyed, KeyTable
from spindle_core.layout cimport bell_page, large_entry, log_record
from spindle_core.log_waiting cimport LogWaiting
from spindle_core.memory cimport Mapping


cdef class LogReader(LogWaiting):
    cdef readonly Mapping cursor
    cdef readonly Mapping bell
    cdef object log_view, viewed             # a read-only view, and the mapping that it is of
    cdef bell_page *node_bell
    cdef int bell_fd
    cdef uint64_t rung                       # for which sleep of the node's we rang last
    cdef public bint only_plain              # what is given out without its info ends before a message with a tag
    cdef uint64_t scanned_position, scanned_offset, scanned_index   # how far tagged_ahead has looked
    cdef bint scan_found                     # there is one with a tag
    cdef Block block                         # the open zero-copy batch, if any

    cdef void publish_position(self) noexcept
    cdef int usable(self) except -1
    cdef bint is_not_plain(self, const log_record *r) noexcept
    cdef Keyed under_key(self, KeyTable keys, object learn, const char *payload, uint64_t size, const log_record *r,
                         uint64_t index, type info_type)
    cdef Block block_of_large(self, Block b, Mapping large, const large_entry *entry, const log_record *r,
                              KeyTable keys, object learn)
    cdef int fill_in(self, Block b, KeyTable keys, object learn) except -1


cdef class Block:
    cdef LogReader reader
    cdef Mapping memory                      # in which the payloads lie: the log, or a large sample
    cdef log_record record                   # of a large sample
    cdef readonly uint64_t offset            # bytes from the start of that mapping to the first payload
    cdef readonly uint64_t stride            # bytes from one payload to the next
    cdef readonly uint64_t payload_size      # bytes
    cdef readonly uint64_t count             # messages
    cdef uint64_t first_position, end_position, end_offset, first_index
    cdef uint64_t last_view, last_sequence   # of its last message
    cdef type info_type
    cdef list given                          # Given of each message, for a topic with keys; else None
    cdef bint open
