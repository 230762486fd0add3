"""Short time slices, and a higher priority, for threads that mostly wait: they run soon after they are woken, beside
threads that never do.

Linux lets the thread whose slice would end first run next, and one that is woken with a shorter slice than the running
one's needn't wait for the end of that ("EEVDF", since 6.6; slices that a thread asks for, since 6.12). The share of a
core that a thread gets is the same for all slices. No rights are needed. Elsewhere the request changes nothing.

But only a thread that has not had more than its share by then is run at once. One that has just worked and is woken
again waits for the next tick, some milliseconds. What it has had counts less the lower its nice value is, a tenth at
-10. That takes a right: root's, CAP_SYS_NICE, or a limit (RLIMIT_NICE, LimitNICE= of systemd).

A predicate thread has both while it mostly sleeps. One that is busy takes the system's slice and the nice value that
the daemon was started with: it would take the core from applications for less than they have just begun, and find
little to do.
"""
from libc.stdint cimport uint64_t

cdef extern from "slices.h" nogil:
    int SPINDLE_TOOK_SLICE, SPINDLE_TOOK_NICE
    int spindle_nice()
    int spindle_ask_scheduler(uint64_t slice_ns, int nice)

cdef enum:
    SLICE_NS = 100000            # the shortest that there is
    SLICE_DEFAULT = 0
