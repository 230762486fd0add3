"""For Python threads: see slices.pxd."""
import os


def be_prompt(realtime=1, nice=-10):
    """The calling thread, which mostly waits, runs as soon after it is woken as this process may have it, even if
    others keep all cores busy. What it got:

    "realtime"  a real-time priority (SCHED_RR): it runs at once, before all threads that have none, so it must not work
                for long without waiting
    "nice"      a short time slice and a lower nice value: it runs soon, and others get a tenth of the core beside it
    "slice"     a short time slice: it runs soon unless it has just worked
    ""          nothing: an old kernel, or a sandbox

    realtime: 1 to 99, where the process may have that (root, CAP_SYS_NICE, RLIMIT_RTPRIO); 0: not wanted. nice: -20 to
    0, added to its nice value where it may have no real-time priority, but that (root, CAP_SYS_NICE, RLIMIT_NICE).
    ValueError if they are others.
    """
    cdef spindle_turns turns
    cdef int took
    if not 0 <= realtime <= REALTIME_MAX:
        raise ValueError(f"realtime {realtime}: must be 0 to {REALTIME_MAX}")
    if not -20 <= nice <= 0:
        raise ValueError(f"nice {nice}: must be -20 to 0")
    spindle_note_turns(&turns)
    took = spindle_be_prompt(&turns, SLICE_NS, turns.nice + <int>nice, realtime)
    if took & SPINDLE_TOOK_REALTIME:
        return "realtime"
    if took & SPINDLE_TOOK_SLICE:
        return "nice" if took & SPINDLE_TOOK_NICE else "slice"
    return "realtime" if os.sched_getscheduler(0) in (os.SCHED_RR, os.SCHED_FIFO) else ""   # it had one already
