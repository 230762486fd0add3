"""What is handed to the device for a peer."""
from libc.stdint cimport uint32_t

from spindle_core.fabric.regions.verbs_way cimport verbs_part_t


cdef void hand_over(verbs_part_t *s, uint32_t peer) noexcept nogil
