"""For Python threads: see slices.pxd."""
import os
import threading

cdef object own = threading.local()       # nice: of a thread when it asked first


def be_prompt(realtime=1, nice=-10):
    """The calling thread, which mostly waits, runs as soon after it is woken as this process may have it, even if
    others keep all cores busy. Threads and programs that it starts are as usual. Returns what it got:

    - "realtime": a real-time priority (SCHED_RR): it runs at once, before all threads that have none, so it must not
      work for long without waiting
    - "nice": a lower nice value: it runs soon, and others get a tenth of the core beside it
    - "slice": a short time slice: it runs soon unless it has just worked
    - "": nothing: an old kernel, or a sandbox

    realtime  1 to 99, where the process may have that (root, CAP_SYS_NICE, RLIMIT_RTPRIO); 0: not wanted
    nice      -20 to 0, added to its nice value where it may have no real-time priority, but that (root, CAP_SYS_NICE,
              RLIMIT_NICE)

    ValueError if they are others.
    """
    cdef spindle_turns turns
    cdef int took, before
    if not 0 <= realtime <= REALTIME_MAX:
        raise ValueError(f"realtime {realtime}: must be 0 to {REALTIME_MAX}")
    if not -20 <= nice <= 0:
        raise ValueError(f"nice {nice}: must be -20 to 0")
    spindle_note_turns(&turns)
    turns.flags = SPINDLE_RESET_ON_FORK
    if not hasattr(own, "nice"):
        own.nice = turns.nice
    before, turns.nice = turns.nice, own.nice
    took = spindle_be_prompt(&turns, SLICE_NS, own.nice + <int>nice, realtime)
    if took & SPINDLE_TOOK_REALTIME:
        return "realtime"
    if os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK in (os.SCHED_RR, os.SCHED_FIFO):
        return "realtime"                 # it had one already
    if took & SPINDLE_TOOK_NICE or (took and before < own.nice):
        return "nice"
    return "slice" if took else ""


cdef class Taking:
    """Takes a lock within a time, and gives it back at the end of the block:

        with Taking(lock, timeout_s, lambda: TimeoutError("why")):

    lock       of `threading`, or an RLock or `spindle.locks.Condition`
    timeout_s  None: for ever; 0: only if it is free
    refusal    makes what is raised if it can't be taken in that time

    A signal can't leave it taken: `with` calls both methods without a step in Python, where a handler could run.
    """

    cdef object lock, timeout_s, refusal

    def __init__(self, lock, timeout_s, refusal):
        self.lock, self.refusal = lock, refusal
        self.timeout_s = -1 if timeout_s is None else min(timeout_s, threading.TIMEOUT_MAX)

    def __enter__(self):
        if not self.lock.acquire(True, self.timeout_s):
            raise self.refusal()

    def __exit__(self, *_):
        self.lock.release()
