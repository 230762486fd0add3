"""The node's core: epochs, bindings, predicate thread. And direct claims for embedded senders."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t

from spindle_core.counters cimport Counters
from spindle_core.epoch cimport Epoch
from spindle_core.memory cimport Mapping
from spindle_core.state cimport node_t, subgroup_t, upcall_fn
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
    cdef dict bindings                   # topic id -> Binding
    cdef object thread
    cdef object lock
    cdef int depth                       # of nested parking
    cdef int resume_fd
    cdef bint stopped

    cdef int park(self) except -1
    cdef int resume(self) except -1
    cdef int apply_binding(self, Epoch epoch, topic_id, binding) except -1
    cdef int resend(self, subgroup_t *old, subgroup_t *new, binding) except -1
    cdef void ring(self) noexcept
    cdef Epoch installed(self)


# Direct claims, nogil: for embedded senders in C or Cython. All wait without the GIL.
cdef uint64_t claim_slots(Engine engine, subgroup_t *s, uint64_t most, int timeout_ms, uint64_t *first) noexcept nogil
cdef char *slot_payload(subgroup_t *s, uint64_t index) noexcept nogil
cdef bint commit_slots(Engine engine, subgroup_t *s, uint64_t first, uint64_t n, const uint32_t *sizes,
                       uint64_t source_ns) noexcept nogil
