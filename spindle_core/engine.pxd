"""The node's core: epochs, bindings, predicate thread."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.counters cimport Counters
from spindle_core.epoch cimport Epoch
from spindle_core.memory cimport Mapping
from spindle_core.relayed cimport RelayedTable
from spindle_core.thread cimport driver_t


cdef class Engine:
    cdef driver_t driver
    cdef readonly object node_id
    cdef readonly object incarnation
    cdef readonly object switches
    cdef readonly Counters counters
    cdef readonly Mapping bell
    cdef readonly int bell_fd
    cdef readonly int control_fd
    cdef readonly Epoch epoch            # installed, or None
    cdef readonly Epoch past             # the one before, while its last posts are on their way
    cdef object poller                   # of the bell and of fabrics that need help; None until there is one
    cdef object counters_kept            # a view that keeps the page mapped
    cdef dict bindings                   # topic id -> Binding
    cdef object thread
    cdef object lock
    cdef int depth                       # of nested parking
    cdef uint32_t ticket                 # of the last parking
    cdef bint took_over                  # parked by holding `driving` while the predicate thread is blocked
    cdef int resume_fd
    cdef readonly RelayedTable relayed   # what was delivered of writers on hosts without a node
    cdef uint64_t virtual_ns             # of the last step_once(); 0: the system's clock
    cdef bint stopped

    cdef int park(self) except -1
    cdef int resume(self) except -1
    cdef int apply_binding(self, Epoch epoch, topic_id, binding) except -1
    cdef void ring(self) noexcept
    cdef uint64_t now_ns(self) noexcept
    cdef Epoch installed(self)
    cdef int say_last(self, drain_s) except -1
    cdef int wait_also_for(self, Epoch epoch) except -1
    cdef int take_over_fabric(self, Epoch old, Epoch epoch) except -1
    cdef int drop_past(self) except -1
