"""What belongs to a topic whatever the view."""
from spindle_core.driving cimport Driving
from spindle_core.epoch cimport Epoch


cdef class Bindings(Driving):
    cdef dict bindings                   # topic id -> Binding

    cdef int apply_binding(self, Epoch epoch, topic_id, binding) except -1
    cdef int open_doors(self, Epoch epoch) except -1
