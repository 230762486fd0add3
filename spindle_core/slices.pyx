"""For Python threads: see slices.pxd."""


def ask_for_short_slices(nice=None):
    """The calling thread runs soon after it is woken, even if others keep all cores busy. True if the kernel does that
    (Linux 6.12 and later, a thread of the normal policies, no sandbox that forbids sched_setattr).

    nice: its nice value from now on, where the process may have that (root, CAP_SYS_NICE, RLIMIT_NICE). With -10, which
    nodes take, one that has worked a moment ago needn't wait either. For threads that mostly wait: the others get a
    tenth of the core beside one that doesn't. None: as it is. ValueError unless it is -20 to 19.
    """
    if nice is not None and not -20 <= nice <= 19:
        raise ValueError(f"nice {nice}: must be -20 to 19")
    return bool(spindle_ask_scheduler(SLICE_NS, spindle_nice() if nice is None else <int>nice) & SPINDLE_TOOK_SLICE)
