"""Shared state table: pushes of parts of the own row.

Columns are stored into the own row with release order first; a push then tells the fabric which ranges the other
members need. Posts are collected. At its end each predicate leaves them, as one list, to whoever drives the predicates:
after it has released its lock, or (switch `post_after_unlock` off) while the lock is still held.

Why the lock can go before the post (paper, section 3.4): columns only grow, so a later post can only carry more.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.atomics cimport (
    cpu_relax,
    fence_store_load,
    u32_exchange_acquire,
    u32_load_relaxed,
    u32_store_release,
    u64_load_acquire,
)
from spindle_core.counters cimport C_POSTED_BYTES, C_PUSHES
from spindle_core.events cimport give_way
from spindle_core.fabric.fabric cimport POST_AHEAD, POST_GUARD, POST_RING, counts_lane, post_t, slots_lane
from spindle_core.layout cimport COLUMNS_ACKNOWLEDGED_SIZE, COLUMNS_PUBLISHED_SIZE
from spindle_core.state cimport POSTS_MAX, node_t, subgroup_t

cdef int SPINS_BEFORE_YIELD = 32


cdef void push(node_t *node, subgroup_t *s, uint64_t offset, uint64_t length, uint32_t flags) noexcept nogil:
    """Collects posts of a range of my row to every other member of the subgroup; counts one push."""
    node.counters[C_PUSHES] += 1
    push_more(node, s, offset, length, flags)


cdef bint room_to_push(node_t *node, subgroup_t *s, uint32_t pushes) noexcept nogil:
    """True if so many more ranges can be collected in this step. Only for pushes of slots is that a question: see
    POSTS_MAX."""
    return node.n_posts + pushes * s.n_members <= POSTS_MAX


cdef void push_more(node_t *node, subgroup_t *s, uint64_t offset, uint64_t length, uint32_t flags) noexcept nogil:
    """A further range of the same push."""
    cdef uint32_t i
    cdef post_t *p
    for i in range(s.n_members):
        if s.members[i] == node.my_rank:
            continue
        p = &node.posts[node.n_posts]
        p.peer = s.members[i]
        p.flags = flags
        p.offset = offset
        p.length = length
        node.n_posts += 1
    node.counters[C_POSTED_BYTES] += length * (s.n_members - 1)


cdef void push_published(node_t *node, subgroup_t *s) noexcept nogil:
    """Pushes the part of my line that guards my slots: how many there are, and which of them are a silence."""
    mark(node, s)                # before the post: who is rung looks for it
    push(node, s, s.columns_offset, COLUMNS_PUBLISHED_SIZE, POST_RING | POST_GUARD | slots_lane(s.place))


cdef inline uint32_t acknowledged_flags(subgroup_t *s) noexcept nogil:
    return POST_AHEAD | POST_GUARD | counts_lane(s.place)


cdef void push_acknowledged(node_t *node, subgroup_t *s, uint32_t flags) noexcept nogil:
    """Pushes the part that guards nothing, and waits for nothing: what I have received, delivered, on disk; my wish."""
    mark(node, s)
    push(node, s, s.columns_offset + COLUMNS_PUBLISHED_SIZE, COLUMNS_ACKNOWLEDGED_SIZE, flags | acknowledged_flags(s))


cdef void post_to_all(node_t *node, uint64_t offset, uint64_t length, uint32_t flags) noexcept nogil:
    """Collects posts of a range of my row to every other member of the view."""
    cdef uint32_t i
    cdef post_t *p
    for i in range(node.n_rows):
        if i == node.my_rank:
            continue
        p = &node.posts[node.n_posts]
        p.peer = i
        p.flags = flags
        p.offset = offset
        p.length = length
        node.n_posts += 1
    node.counters[C_POSTED_BYTES] += length * (node.n_rows - 1)


cdef void push_received(node_t *node, subgroup_t *s) noexcept nogil:
    """push_acknowledged() after my received number grew; rings only members that have as much themselves.

    A member that still lacks one of these messages is rung by its sender, and finds my number when it wakes up: a ring
    from me would only cost a system call and hit a thread that is waking up anyway.

    SYNC POINT: acknowledge. Dekker with the same place at the other member: each stores its number, then looks at the
    other's; so at least one of the two sees both, and delivers or rings.
    """
    cdef uint32_t i, flags = acknowledged_flags(s)
    cdef post_t *p
    node.counters[C_PUSHES] += 1
    mark(node, s)                # before the fence: who is not rung looks for it
    fence_store_load()
    for i in range(s.n_members):
        if s.members[i] == node.my_rank:
            continue
        p = &node.posts[node.n_posts]
        p.peer = s.members[i]
        p.flags = flags | (POST_RING if u64_load_acquire(&s.member_columns[i].received) >= s.received else 0)
        p.offset = s.columns_offset + COLUMNS_PUBLISHED_SIZE
        p.length = COLUMNS_ACKNOWLEDGED_SIZE
        node.n_posts += 1
    node.counters[C_POSTED_BYTES] += COLUMNS_ACKNOWLEDGED_SIZE * (s.n_members - 1)


cdef void lock_subgroup(subgroup_t *s) noexcept nogil:
    """The lock that application threads with direct claims share with the predicate thread."""
    cdef int spins = 0, times = 0
    # SYNC POINT: claim. Pairs with unlock_subgroup().
    while u32_exchange_acquire(&s.lock, 1):
        while u32_load_relaxed(&s.lock):
            spins += 1
            if spins % SPINS_BEFORE_YIELD == 0:
                give_way(&times)   # its holder may need this core
            else:
                cpu_relax()


cdef void unlock_subgroup(subgroup_t *s) noexcept nogil:
    u32_store_release(&s.lock, 0)


cdef void lock_to_post(node_t *node, subgroup_t *s) noexcept nogil:
    """For a predicate that needs the lock for nothing else. The paper's baseline posts while it holds the lock, though
    senders need it as well (paper, section 3.4)."""
    if not node.post_after_unlock:
        lock_subgroup(s)


cdef void hold_until_posted(node_t *node, subgroup_t *s) noexcept nogil:
    """Without `post_after_unlock`: leaves the held lock to whoever posts what was collected, to be released then."""
    if not node.post_after_unlock:
        node.release = &s.lock
