"""Large samples of a node, as its control thread sees them."""
from spindle_core.large cimport larges_t


cdef class Larges:
    cdef larges_t state

    cdef larges_t *pointer(self) noexcept
    cdef void forget_wants(self) noexcept
