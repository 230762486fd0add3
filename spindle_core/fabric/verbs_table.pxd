"""The verbs fabric's table of functions, and the two of them that Python calls as well."""
from spindle_core.fabric.fabric cimport fabric_t
from spindle_core.fabric.verbs_link cimport verbs_epoch_t, verbs_t


cdef int verbs_enter(void *self) noexcept nogil
cdef void verbs_leave(void *self) noexcept nogil
cdef void send(verbs_t *s) noexcept nogil
cdef void set_table(fabric_t *table, verbs_epoch_t *e) noexcept
