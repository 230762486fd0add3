"""What has completed, and what has come."""
from libc.stdint cimport uint32_t

from spindle_core.fabric.regions.verbs_way cimport verbs_part_t, verbs_way_t


cdef int take_completions(verbs_part_t *s) noexcept nogil
cdef bint post_receives(verbs_way_t *w) noexcept nogil
