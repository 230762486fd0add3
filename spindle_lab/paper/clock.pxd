"""Virtual time: what happens when, and stacks for those who are in the middle of something meanwhile."""
from libc.stdint cimport uint32_t, uint64_t

cdef extern from "<ucontext.h>" nogil:
    ctypedef struct stack_t:
        void *ss_sp
        size_t ss_size
    ctypedef struct ucontext_t:
        ucontext_t *uc_link
        stack_t uc_stack

cdef enum:
    STACK_SIZE = 256 << 10       # bytes; a delivery pass keeps its batch of upcalls on the stack


cdef struct event_t:
    uint64_t at_ps
    uint64_t order               # of its making: what happens at the same moment happens in that order
    void *what
    uint32_t kind                # its reader's


cdef struct clock_t:
    uint64_t now_ps
    event_t *heap                # least first
    uint64_t n, room, made
    bint failed                  # out of memory


# Something that runs for a while of virtual time, on a stack of its own.
cdef struct fiber_t:
    ucontext_t here, back
    void *stack
    void (*body)(void *self) noexcept nogil
    void *self
    bint over


cdef void clock_add(clock_t *c, uint64_t at_ps, uint32_t kind, void *what) noexcept nogil
cdef bint clock_take(clock_t *c, event_t *event) noexcept nogil
cdef bint fiber_make(fiber_t *f, void (*body)(void *self) noexcept nogil, void *self) noexcept nogil
cdef void fiber_enter(fiber_t *f) noexcept nogil
cdef void fiber_leave(fiber_t *f) noexcept nogil
cdef void fiber_free(fiber_t *f) noexcept nogil
