"""For threads that mostly wait: they run soon after they are woken, beside threads that never do.

Three ways, each better than the one before where the process may take it:

- A short time slice. Linux lets the thread whose slice would end first run next, and one that is woken with a shorter
  slice than the running one's needn't wait for the end of that ("EEVDF", since 6.6; slices that a thread asks for,
  since 6.12). The share of a core that a thread gets is the same for all slices. No rights are needed.
- A lower nice value. Only a thread that has not had more than its share by then is run at once. One that has just
  worked and is woken again waits for the next tick, some milliseconds. What it has had counts less the lower its nice
  value is, a tenth at -10. That takes a right: root's, CAP_SYS_NICE, or a limit (RLIMIT_NICE, LimitNICE= of systemd).
- A real-time priority (SCHED_RR). It runs at once, whatever it has had, and in turns with others of that priority. The
  same rights, or RLIMIT_RTPRIO (LimitRTPRIO=), are needed.

A predicate thread that mostly sleeps has a lower nice value, or else a short slice. A real-time priority it takes only
where somebody uses its core up (`crowd_t` in idling.pxd): with it the thread runs where it ran before, in place of a
program that is at work there, though another core may be idle. On a machine with idle cores messages took a quarter
longer. A busy thread is like any other one of the daemon: it would take the core from applications for less than they
have just begun, and find little to do.

A thread with a real-time priority gives way to nobody without one by yielding: see give_way() in events.pxd. So only
daemons' threads take one. In a program that has its node in its own process its threads drive the predicates too
(attending.pxi), and a predicate thread in real time would take the core from them in the middle of it.
"""
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "slices.h" nogil:
    cdef enum:
        SPINDLE_TOOK_SLICE
        SPINDLE_TOOK_NICE
        SPINDLE_TOOK_REALTIME
        SPINDLE_RESET_ON_FORK

    cdef struct spindle_turns:
        uint32_t realtime
        int nice
        uint64_t flags

    void spindle_note_turns(spindle_turns *turns)
    int spindle_take_turns(spindle_turns *turns, uint64_t slice_ns, int nice)
    int spindle_be_prompt(spindle_turns *turns, uint64_t slice_ns, int nice, uint32_t realtime)
    int spindle_can_be_realtime(const spindle_turns *turns, uint32_t realtime)
    int spindle_be_usual(spindle_turns *turns)

cdef enum:
    SLICE_NS = 100000            # the shortest that there is
    REALTIME_MAX = 99
