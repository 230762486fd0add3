"""Lists of requests, and where they complete."""
from libc.stdint cimport uint32_t

from spindle_core.fabric.regions.regions cimport LIST_MAX, asker_t, request_t
from spindle_core.memory cimport Mapping


cdef class Asker:
    cdef asker_t state
    cdef object __weakref__


cdef class RequestList:
    cdef request_t requests[LIST_MAX]
    cdef readonly uint32_t n
    cdef list memories           # views of them, which keep them mapped

    cdef request_t *add(self, uint32_t kind, region, offset, length, cookie, signalled) except NULL
    cdef char *place(self, Mapping memory, offset, length, bint written) except NULL
