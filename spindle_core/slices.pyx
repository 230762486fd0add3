"""For Python threads: see slices.pxd."""


def ask_for_short_slices():
    """The calling thread runs soon after it is woken, even if others keep all cores busy. True if the kernel does that
    (Linux 6.12 and later, a thread of the normal policies, no sandbox that forbids sched_setattr)."""
    return spindle_set_slice(SLICE_NS)
