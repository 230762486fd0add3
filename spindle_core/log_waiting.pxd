"""How a reader of a delivery log waits. See log_waiting.pyx."""
from libc.stdint cimport int64_t, uint32_t

from spindle_core.hot_path cimport driver_t
from spindle_core.layout cimport cursor_page
from spindle_core.log_position cimport LogPosition


cdef class LogWaiting(LogPosition):
    cdef cursor_page *page
    cdef int data_end
    cdef uint32_t forks                      # of this process when it was opened
    cdef bint closed
    cdef object engine                       # of a node in this process: what this thread drives while it waits
    cdef driver_t *driver

    cdef int refuse_child(self) except -1
    cdef bint ended(self)
    cdef int wait_once(self, int other_fd, double timeout_s, int64_t known) except -1
    cdef void drives(self, object engine, driver_t *driver) noexcept
    cdef raise_gone(self)
