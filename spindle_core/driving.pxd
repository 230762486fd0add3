"""Who drives an engine's predicates, and how they are made to stand still."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.counters cimport Counters
from spindle_core.epoch cimport Epoch
from spindle_core.memory cimport Mapping
from spindle_core.hot_path cimport driver_t


cdef class Driving:
    cdef driver_t driver
    cdef readonly object node_id
    cdef readonly object incarnation
    cdef readonly object switches
    cdef readonly Counters counters
    cdef readonly Mapping bell
    cdef readonly int bell_fd
    cdef readonly int control_fd
    cdef readonly int all_fd             # rung for this node's thread and its peers at once (Epoch.make_ringers)
    cdef readonly Epoch epoch            # installed, or None
    cdef object counters_kept            # a view that keeps the page mapped
    cdef object poller                   # what the predicate thread sleeps at; None until there is need of it
    cdef object thread
    cdef object lock
    cdef int depth                       # of nested parking
    cdef uint32_t ticket                 # of the last parking
    cdef bint took_over                  # parked by holding `driving` while the predicate thread is blocked
    cdef int resume_fd
    cdef uint64_t virtual_ns             # of the last step_once(); 0: the system's clock
    cdef bint stopped

    cdef int make_poller(self) except -1
    cdef int end_thread(self) except -1
    cdef int park(self) except -1
    cdef int resume(self) except -1
    cdef void ring(self) noexcept
    cdef uint64_t now_ns(self) noexcept
