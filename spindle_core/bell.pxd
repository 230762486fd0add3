"""Doorbells of predicate threads: a thread that sleeps says so in its page, and each ringer rings it once a sleep.

`bell_page.sleeps` is odd while the thread is, or is about to be, blocked, and grows at both ends of each sleep. So a
ringer that remembers for which value it rang last does not ring again for the same sleep, however much it publishes
until the thread has a core. If a thread of the sleeper's own node has rung it, which the page says (`called`), nobody
else does for that sleep. Nothing is lost by that. The thread has been rung, so it will look; and what it does not see
in that look, since it was stored while the count was still the old one, it sees in the last look before its next
sleep, which comes after the count has grown and a fence.

Rules: what is published is stored, then there is a fence, then the page is looked at.
"""
from libc.stdint cimport uint64_t

from spindle_core.atomics cimport fence_store_load, u64_load_relaxed, u64_store_relaxed
from spindle_core.events cimport event_ring
from spindle_core.layout cimport BELL_MAGIC, bell_page
from spindle_core.memory cimport Mapping


cdef inline bell_page *bell_of(Mapping mapping) except NULL:
    """The page of somebody's doorbell, mapped. ValueError if it is none."""
    if mapping.base == NULL or mapping.size < sizeof(bell_page) or (<bell_page *>mapping.base).magic != BELL_MAGIC:
        raise ValueError("this mapping is not a doorbell of this version")
    return <bell_page *>mapping.base


cdef inline bint is_asleep(const bell_page *b) noexcept nogil:
    return u64_load_relaxed(&b.sleeps) & 1


cdef inline void fall_asleep(bell_page *b) noexcept nogil:
    """Before the last look for work, after which the thread blocks: each call begins a new sleep. For the page's owner.

    SYNC POINT: wake. Pairs with every ringer: that it sleeps is visible before that look.
    """
    u64_store_relaxed(&b.sleeps, (u64_load_relaxed(&b.sleeps) + 1) | 1)
    fence_store_load()


cdef inline void wake_up(bell_page *b) noexcept nogil:
    """The thread looks by itself again. Idempotent; for the page's owner."""
    u64_store_relaxed(&b.sleeps, (u64_load_relaxed(&b.sleeps) + 1) & ~<uint64_t>1)


cdef inline bint ring_once(const bell_page *b, int fd, uint64_t *rung) noexcept nogil:
    """Rings if that thread sleeps and was not rung for this sleep; True if so. `rung` is the ringer's own memory.

    `rung` is stored after the ring, not before: otherwise another thread with the same memory could rely on a ring
    that has yet to happen. As it is, that thread rings as well.
    """
    cdef uint64_t sleep = u64_load_relaxed(&b.sleeps)
    if not sleep & 1 or sleep == u64_load_relaxed(rung) or sleep == u64_load_relaxed(&b.called):
        return False
    event_ring(fd)
    u64_store_relaxed(rung, sleep)
    return True


cdef inline bint call_own(bell_page *b, int fd) noexcept nogil:
    """The same for threads of the node whose page it is, which tell everybody that they have rung: afterwards, too."""
    cdef uint64_t sleep = u64_load_relaxed(&b.sleeps)
    if not sleep & 1 or sleep == u64_load_relaxed(&b.called):
        return False
    event_ring(fd)
    u64_store_relaxed(&b.called, sleep)
    return True
