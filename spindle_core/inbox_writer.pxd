"""The application's side of an inbox. See inbox_writer.pyx."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spindle_core.large cimport LARGES_OF_INBOX
from spindle_core.layout cimport bell_page, inbox_header, inbox_progress
from spindle_core.memory cimport Mapping


# Publishes what an inbox has for a predicate thread that is blocked, see claims.pxi.
ctypedef void (*publish_fn)(void *driver) noexcept nogil


cdef class InboxWriter:
    cdef object __weakref__             # who takes large samples knows its writer, and must not keep it
    cdef readonly Mapping ring
    cdef readonly Mapping progress
    cdef readonly Mapping bell
    cdef inbox_header *header
    cdef inbox_progress *seen
    cdef bell_page *node_bell
    cdef char *slots
    cdef int space_end, bell_fd
    cdef uint64_t rung                  # for which sleep of the node's we rang last
    cdef uint32_t forks                 # of this process when it was opened
    cdef readonly uint64_t size_max     # bytes
    cdef readonly uint64_t slots_count
    cdef uint64_t mask                  # slots of the ring, less one
    cdef uint64_t stride, next          # next: messages committed by this writer
    cdef uint64_t limit                 # messages that may be committed before `freed` must be read again
    cdef uint64_t larges[LARGES_OF_INBOX]   # of the last ones: messages up to each, itself included
    cdef uint64_t n_larges              # ever
    cdef uint64_t *freed                # counts messages whose slots are free again: `consumed` or `acknowledged`
    cdef bint claimed, gone, closed
    cdef bint stamped                   # source timestamps decide something in this topic
    cdef bint polling                   # a thread waits for space_end
    cdef uint64_t wakes                 # how often a thread came back from that
    cdef Py_ssize_t followers           # threads that wait, under `turn`, for that thread to tell them
    cdef object claim_view, ring_view, turn
    cdef public object beside           # who takes samples that are larger than a slot; None: nobody
    cdef Mapping claimed_large          # the open claim, if it is of such a one
    cdef uint64_t large_size            # bytes of it
    cdef double large_timeout_s         # how long it was to wait, and its commit is, where that copies
    # In the node's own process: what publishes for its predicate thread while that is blocked, and the engine, which
    # has to stay. NULL and None elsewhere.
    cdef publish_fn publish_for
    cdef void *driver
    cdef object engine

    cdef char *free_slot(self, double timeout_s) except NULL
    cdef int await_progress(self, uint64_t until, double timeout_s) except -1
    cdef int rest(self, uint64_t wakes, double left_s) except -1
    cdef int alive(self) except -1
    cdef int usable(self) except -1
    cdef void publish(self) noexcept
    cdef int free_large(self, double timeout_s) except -1
    cdef int check_large(self, uint64_t size) except -1
    cdef int put_large(self, const char *data, uint64_t size, uint64_t timestamp_ns, double timeout_s, uint8_t tag,
                       uint64_t key) except -1
    cdef int put_entry(self, Mapping memory, uint64_t timestamp_ns, double timeout_s, uint8_t tag,
                       uint64_t key) except -1
    cdef int put_number(self, uint64_t number, uint64_t timestamp_ns, double timeout_s, uint8_t tag,
                        uint64_t key) except -1
    cdef int commit_large(self, object size, uint64_t timestamp_ns, uint64_t key) except -1
    cdef int check_stamp(self, uint64_t timestamp_ns) except -1
    cdef int put(self, const char *data, uint64_t size, uint64_t timestamp_ns, double timeout_s,
                 uint8_t tag=?, uint64_t key=?) except -1
