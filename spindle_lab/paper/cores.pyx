"""Threads of all nodes together on fewer cores than that: who has one, and who waits for one.

As a kernel does it where threads give their core away as often as nodes' threads do: each core has a line. A thread
that gives its core away goes to the end of that core's line, and so does one that has had it for a slice of time while
others wait. A thread that was blocked goes on at a core that is idle, or waits for the one that it had last. A core
with nobody in its line takes the first from the longest other one. So chance says at the beginning which threads share
a core, which remains so for long and decides who runs beside whom.

Without a limit (n = 0) every thread goes on whenever it wants to, and nothing here costs anything.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_lab.paper.clock cimport clock_add


cdef void begin(cores_t *c, core_t *core, task_t *t, uint64_t at_ps) noexcept nogil:
    """It has this core from then on."""
    core.running = t
    t.core = <uint32_t>(core - c.each)
    t.running = True
    t.since_ps = at_ps
    c.changes += 1
    clock_add(c.clock, at_ps, t.kind, t.what)


cdef void end(cores_t *c, task_t *t, uint64_t at_ps) noexcept nogil:
    t.running = False
    c.each[t.core].running = NULL
    c.used_ps += at_ps - t.since_ps


cdef void stand_in_line(core_t *core, task_t *t) noexcept nogil:
    t.waiting = True
    t.next = NULL
    if core.first == NULL:
        core.first = t
    else:
        core.last.next = t
    core.last = t
    core.waiting += 1


cdef void next_begins(cores_t *c, core_t *core, uint64_t at_ps) noexcept nogil:
    """Whoever is first in line has the core that has come free; nobody: it is idle."""
    cdef core_t *longest = core
    cdef task_t *t
    cdef uint32_t i
    if core.first == NULL:
        for i in range(c.n):
            if c.each[i].waiting > longest.waiting:
                longest = &c.each[i]
    t = longest.first
    if t == NULL:
        return
    longest.first = t.next
    longest.waiting -= 1
    t.waiting = False
    c.used_ps += c.costs.change
    begin(c, core, t, at_ps + c.costs.change)


cdef void core_wanted(cores_t *c, task_t *t, uint64_t at_ps) noexcept nogil:
    """A thread that was blocked goes on as soon as it has a core, at that time at the earliest."""
    cdef core_t *core = &c.each[t.core]
    cdef uint32_t i
    if c.n == 0:
        clock_add(c.clock, at_ps, t.kind, t.what)
        return
    if t.running or t.waiting:
        return
    for i in range(c.n):
        if core.running == NULL:
            break
        core = &c.each[i]
    if core.running == NULL:
        begin(c, core, t, at_ps)
    else:
        stand_in_line(&c.each[t.core], t)


cdef void core_left(cores_t *c, task_t *t, uint64_t at_ps) noexcept nogil:
    """It is blocked."""
    if c.n == 0 or not t.running:
        return
    end(c, t, at_ps)
    next_begins(c, &c.each[t.core], at_ps)


cdef bint core_given(cores_t *c, task_t *t, uint64_t at_ps) noexcept nogil:
    """It gives its core away; False where nobody wants it. The call's own cost is the caller's to pay."""
    cdef core_t *core = &c.each[t.core]
    if c.n == 0 or core.first == NULL:
        return False
    end(c, t, at_ps)
    next_begins(c, core, at_ps)
    stand_in_line(core, t)
    return True


cdef bint core_shared(cores_t *c, task_t *t, uint64_t at_ps) noexcept nogil:
    """Its slice is over and others wait: they are next. False where it goes on."""
    if c.n == 0 or at_ps - t.since_ps < c.costs.slice:
        return False
    return core_given(c, t, at_ps)


cdef uint64_t core_woken(cores_t *c, task_t *t, uint64_t at_ps) noexcept nogil:
    """Wakes a thread that sleeps; returns what that costs the thread that wakes it."""
    cdef uint32_t i
    for i in range(c.n):
        if c.each[i].running == NULL:
            core_wanted(c, t, at_ps + c.costs.woken)
            return c.costs.ring
    core_wanted(c, t, at_ps + c.costs.ring_busy)
    return c.costs.ring_busy
