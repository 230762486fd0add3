"""Short time slices for threads that mostly wait: they run soon after they are woken, beside threads that never do.

Linux lets the thread whose slice would end first run next, and one that is woken with a shorter slice than the running
one's needn't wait for the end of that ("EEVDF", since 6.6; slices that a thread asks for, since 6.12). The share of a
core that a thread gets is the same for all slices. No rights are needed. Elsewhere the request changes nothing.

A predicate thread has short slices while it mostly sleeps. One that is busy takes the system's: it would take the core
from applications for less than they have just begun, and find little to do.
"""
from libc.stdint cimport uint64_t

cdef extern from "slices.h" nogil:
    bint spindle_set_slice(uint64_t slice_ns)

cdef enum:
    SLICE_NS = 100000            # the shortest that there is
    SLICE_DEFAULT = 0
