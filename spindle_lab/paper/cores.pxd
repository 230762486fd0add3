"""Threads of all nodes together on fewer cores than that: who has one, and who waits for one."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_lab.paper.clock cimport clock_t

cdef enum:
    CORES_MAX = 64


# What it costs, in picoseconds. `parameters.Node` says where the numbers come from.
cdef struct core_costs_t:
    uint64_t give                # of the call that gives a core away, whether somebody takes it or not
    uint64_t spin                # how long a thread looks at a taken lock before it gives its core away
    uint64_t change              # from one thread to the next on a core
    uint64_t slice               # after which a thread that goes on makes room for those who wait
    uint64_t ring, ring_busy     # to wake a thread while a core is idle, and while none is
    uint64_t woken               # from that call until it runs, on a core that was idle
    uint64_t poll                # how long a predicate thread looks for work before it sleeps


# A thread: it has a core, waits for one, or is blocked.
cdef struct task_t:
    task_t *next                 # of those who wait
    uint32_t kind                # the event that lets it go on
    void *what
    bint running, waiting
    uint32_t core                # that it has, waits for, or had last
    uint64_t since_ps            # when it got its core


cdef struct core_t:
    task_t *running
    task_t *first                # those who wait for this one
    task_t *last
    uint32_t waiting


cdef struct cores_t:
    clock_t *clock
    core_costs_t costs
    uint32_t n                   # 0: each thread has its own
    core_t each[CORES_MAX]
    uint64_t changes             # of threads on cores
    uint64_t used_ps             # of all cores


cdef void core_wanted(cores_t *c, task_t *t, uint64_t at_ps) noexcept nogil
cdef void core_left(cores_t *c, task_t *t, uint64_t at_ps) noexcept nogil
cdef bint core_given(cores_t *c, task_t *t, uint64_t at_ps) noexcept nogil
cdef bint core_shared(cores_t *c, task_t *t, uint64_t at_ps) noexcept nogil
cdef uint64_t core_woken(cores_t *c, task_t *t, uint64_t at_ps) noexcept nogil
