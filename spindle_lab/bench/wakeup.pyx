"""The bare loop of `bench wakeup`: what one doorbell costs on this machine.

A paced message wakes one thread at every node, in turn, on cores that had nothing to do. However little a multicast
does, it can't be faster than these wake-ups; on a virtual machine they are most of its latency.

Rules: two threads, one eventfd, nothing else; the sleeper blocks in poll, as the predicate thread does.
"""
from libc.stdint cimport uint64_t

from spindle_core.atomics cimport monotonic_ns, u64_load_acquire, u64_store_release
from spindle_core.events cimport event_ring, event_wait

cdef enum:
    WAIT_TIMEOUT_MS = 2000


cdef uint64_t sleeper(int fd, uint64_t *rung_ns, uint64_t *woken_ns, uint64_t rounds) noexcept nogil:
    """Notes for each ring when it woke up; returns how many came before a wait timed out."""
    cdef uint64_t i
    for i in range(rounds):
        if event_wait(fd, WAIT_TIMEOUT_MS) <= 0:
            return i
        u64_store_release(&woken_ns[i], monotonic_ns() - u64_load_acquire(rung_ns))
    return rounds


def wait_rounds(int fd, uint64_t[::1] rung_ns, uint64_t[::1] woken_ns) -> int:
    """The sleeper's side, without the GIL; returns how many rings came."""
    cdef uint64_t got, rounds = woken_ns.shape[0]
    with nogil:
        got = sleeper(fd, &rung_ns[0], &woken_ns[0], rounds)
    return got


def ring(int fd, uint64_t[::1] rung_ns) -> int:
    """Rings once; returns how long the call took in ns."""
    cdef uint64_t now = monotonic_ns()
    u64_store_release(&rung_ns[0], now)
    event_ring(fd)
    return monotonic_ns() - now
