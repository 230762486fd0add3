"""Virtual time: a queue of events, and fibers.

Predicates post in the middle of a pass, and a post takes time in which others act: whoever drives them needs a stack
to leave and to come back to. A fiber is that, within one thread: nothing here is concurrent, and a run depends on
nothing but its inputs.

Times are whole picoseconds, so that a byte of a fast link has a length of its own.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

cdef extern from "<ucontext.h>" nogil:
    int getcontext(ucontext_t *context)
    void makecontext(ucontext_t *context, void (*f)() noexcept nogil, int n, ...)
    int swapcontext(ucontext_t *leave, const ucontext_t *enter)


# ---- events --------------------------------------------------------------------------------------------------------

cdef inline bint earlier(const event_t *a, const event_t *b) noexcept nogil:
    return a.at_ps < b.at_ps or (a.at_ps == b.at_ps and a.order < b.order)


cdef void clock_add(clock_t *c, uint64_t at_ps, uint32_t kind, void *what) noexcept nogil:
    """`what` happens then. Never in the past."""
    cdef uint64_t i, parent
    cdef event_t event
    cdef event_t *longer
    if c.n == c.room:
        longer = <event_t *>realloc(c.heap, (2 * c.room + 64) * sizeof(event_t))
        if longer == NULL:
            c.failed = True
            return
        c.heap = longer
        c.room = 2 * c.room + 64
    event.at_ps = at_ps if at_ps > c.now_ps else c.now_ps
    event.order = c.made
    event.kind = kind
    event.what = what
    c.made += 1
    i = c.n
    c.n += 1
    while i:
        parent = (i - 1) >> 1
        if not earlier(&event, &c.heap[parent]):
            break
        c.heap[i] = c.heap[parent]
        i = parent
    c.heap[i] = event


cdef bint clock_take(clock_t *c, event_t *event) noexcept nogil:
    """The next event, and its time is now; False where there is none."""
    cdef uint64_t i = 0, child
    cdef event_t last
    if c.n == 0 or c.failed:
        return False
    event[0] = c.heap[0]
    c.now_ps = event.at_ps
    c.n -= 1
    last = c.heap[c.n]
    while True:
        child = 2 * i + 1
        if child >= c.n:
            break
        if child + 1 < c.n and earlier(&c.heap[child + 1], &c.heap[child]):
            child += 1
        if not earlier(&c.heap[child], &last):
            break
        c.heap[i] = c.heap[child]
        i = child
    c.heap[i] = last
    return True


# ---- fibers --------------------------------------------------------------------------------------------------------

cdef void begin(uint32_t high, uint32_t low) noexcept nogil:
    """The first function of a fiber, whose address comes in two halves: makecontext() hands over ints only."""
    cdef fiber_t *f = <fiber_t *><size_t>(<uint64_t>high << 32 | low)
    f.body(f.self)
    f.over = True
    fiber_leave(f)


cdef bint fiber_make(fiber_t *f, void (*body)(void *self) noexcept nogil, void *self) noexcept nogil:
    """False where there is no memory. It begins when it is entered first."""
    cdef uint64_t address = <uint64_t><size_t>f
    memset(f, 0, sizeof(fiber_t))
    f.stack = malloc(STACK_SIZE)
    if f.stack == NULL or getcontext(&f.here):
        return False
    f.body = body
    f.self = self
    f.here.uc_stack.ss_sp = f.stack
    f.here.uc_stack.ss_size = STACK_SIZE
    f.here.uc_link = NULL
    makecontext(&f.here, <void (*)() noexcept nogil>begin, 2, <uint32_t>(address >> 32), <uint32_t>address)
    return True


cdef void fiber_enter(fiber_t *f) noexcept nogil:
    """Runs it until it leaves, or is over."""
    if not f.over:
        swapcontext(&f.back, &f.here)


cdef void fiber_leave(fiber_t *f) noexcept nogil:
    """Within it: back to who entered."""
    swapcontext(&f.here, &f.back)


cdef void fiber_free(fiber_t *f) noexcept nogil:
    free(f.stack)
    f.stack = NULL
