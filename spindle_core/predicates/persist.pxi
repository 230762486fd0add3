"""Persist: for logged topics, tell the others how far the journal is on disk, with one push.

The journal's own thread writes and syncs; it leaves the count of delivered messages that are safe in `durable`. This
predicate turns that into a sequence number (nulls have no place in the journal, but have one in the order).

Its first word in an epoch says that everything from before the epoch is on disk. While delivery is held, part of that
is not in the log yet: a joiner's history, or what the log had no room for when the epoch before ended. So it says
nothing then.
"""
from libc.stdint cimport uint64_t

from spindle_core.atomics cimport u64_load_acquire, u64_load_relaxed, u64_store_release
from spindle_core.counters cimport C_PERSISTED
from spindle_core.fabric.fabric cimport POST_RING
from spindle_core.state cimport LEVEL_LOGGED, PERSIST_MARKS, node_t, subgroup_t


cdef int persist(node_t *node, subgroup_t *s) noexcept nogil:
    """Returns 1 if more became persistent."""
    cdef uint64_t durable, persisted, before = u64_load_relaxed(&s.mine.persisted)
    if s.level != LEVEL_LOGGED or s.log == NULL or s.held or (before and s.marks_head == s.marks_tail):
        return 0
    # SYNC POINT: durable. Pairs with Engine.set_durable(): the journal has synced everything below.
    durable = u64_load_acquire(&s.durable)
    if durable < s.durable_before:
        return 0
    persisted = before if before else 1
    while s.marks_tail < s.marks_head and s.mark_index[s.marks_tail % PERSIST_MARKS] <= durable:
        persisted = 1 + s.mark_delivered[s.marks_tail % PERSIST_MARKS]
        s.marks_tail += 1
    if persisted <= before:
        return 0
    node.counters[C_PERSISTED] += persisted - before
    u64_store_release(&s.mine.persisted, persisted)
    push_acknowledged(node, s, POST_RING)
    return 1
