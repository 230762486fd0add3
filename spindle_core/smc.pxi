"""Small-message multicast: a ring of slots in the sender's row, for a window of messages (paper, section 2.3).

Claim an index, fill its slot, publish it by raising the count that guards it; every member delivers it; when all
have, the slot is reused. Indices are given out in order to applications, inboxes and nulls alike, so a null can never
take a claimed slot; nulls are claimed as one run that occupies the slot of its first index only.

Rules: message k may be claimed once every member has delivered message k - window. All of this runs under the
subgroup's lock.
"""
from libc.stdint cimport uint16_t, uint32_t, uint64_t

from spindle_core.atomics cimport (
    fence_store_load,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_relaxed,
    u64_store_release,
)
from spindle_core.layout cimport SLOT_DATA, SLOT_NULL, keyed_slot_header, slot_header
from spindle_core.state cimport LEVEL_UNORDERED, node_t, subgroup_t


cdef slot_header *slot_of(char *slots, subgroup_t *s, uint64_t index) noexcept nogil:
    return <slot_header *>(slots + (index & (s.ring - 1)) * s.stride)


cdef char *payload_of(subgroup_t *s, slot_header *h) noexcept nogil:
    return <char *>h + s.header_size


cdef uint64_t *key_of(slot_header *h) noexcept nogil:
    """Of a slot of a topic with keys."""
    return &(<keyed_slot_header *>h).key


cdef uint64_t delivered_min(subgroup_t *s) noexcept nogil:
    """How many of my own messages every member has delivered."""
    cdef uint64_t least = <uint64_t>-1, n
    cdef uint64_t r = <uint64_t>s.my_sender
    cdef uint32_t i
    if s.level == LEVEL_UNORDERED:
        for i in range(s.n_members):
            n = u64_load_acquire(&s.members_received_by_sender[i][r])
            if n < least:
                least = n
        return least
    for i in range(s.n_members):
        # SYNC POINT: reuse. Pairs with the deliver predicate: the member is done with these slots.
        n = u64_load_acquire(&s.member_columns[i].delivered)
        if n < least:
            least = n
    # Of the first `least` sequence numbers, those of my rank.
    return (least + s.n_senders - 1 - r) // s.n_senders


cdef uint64_t claimable(subgroup_t *s, uint64_t wanted) noexcept nogil:
    """How many indices can be claimed now. Looks at the members only if fewer than `wanted` are known to be free."""
    if s.limit < s.claimed + wanted:
        s.limit = delivered_min(s) + s.window
        if s.claimed >= s.limit:
            return 0
    return s.limit - s.claimed


cdef uint64_t claim(subgroup_t *s, uint64_t n) noexcept nogil:
    """Takes `n` indices, which must be claimable; returns the first."""
    cdef uint64_t first = s.claimed
    u64_store_relaxed(&s.claimed, first + n)     # the predicates look at it without the lock first
    return first


cdef void fill_header(subgroup_t *s, uint64_t index, uint32_t size, uint16_t writer_id,
                      uint64_t source_ns, uint64_t key) noexcept nogil:
    cdef slot_header *h = slot_of(s.senders[s.my_sender].slots, s, index)
    h.index = index
    h.size = size
    h.kind = SLOT_DATA
    h.tag = 0
    h.writer_id = writer_id
    h.run = 1
    h.source_ns = source_ns
    if s.keyed:
        key_of(h)[0] = key


cdef void mark_ready(subgroup_t *s, uint64_t index, uint64_t n) noexcept nogil:
    """Messages index..index+n-1 are filled, in whatever order claims are committed."""
    cdef uint64_t i
    for i in range(index, index + n):
        s.ready[i & (s.ring - 1)] = i + 1


cdef void advance_committed(subgroup_t *s) noexcept nogil:
    """Everything filled without a gap is committed."""
    cdef uint64_t i = s.committed
    cdef slot_header *h
    while i < s.claimed and s.ready[i & (s.ring - 1)] == i + 1:
        h = slot_of(s.senders[s.my_sender].slots, s, i)
        if h.kind == SLOT_NULL:
            s.nulls_unpublished += h.run
            i += h.run
        else:
            s.data_unpublished += 1
            s.data_bytes_unpublished += h.size
            i += 1
    s.committed = i


cdef void fill_nulls(subgroup_t *s, uint64_t n) noexcept nogil:
    """Claims and fills a run of `n` nulls, as one number in the slot of the first."""
    cdef uint64_t first = claim(s, n)
    cdef slot_header *h = slot_of(s.senders[s.my_sender].slots, s, first)
    h.index = first
    h.size = 0
    h.kind = SLOT_NULL
    h.tag = 0
    h.writer_id = 0
    h.run = n
    h.source_ns = 0
    mark_ready(s, first, 1)


cdef void want_delivered(node_t *node, subgroup_t *s) noexcept nogil:
    """Says in my row at which delivered number members shall ring me: I wait for slots or acknowledgements.

    A quarter of the window at once, so that a full ring doesn't wake its sender for every slot, but never beyond what
    I have published, which all members will deliver in any case. One wish at a time: the next when it is fulfilled.
    """
    cdef uint64_t done, wanted, index
    cdef uint64_t r = <uint64_t>s.my_sender
    if s.level == LEVEL_UNORDERED:
        return                    # acknowledgements always ring there
    done = delivered_min(s)
    if done >= s.published:
        return
    wanted = u64_load_relaxed(&s.mine.delivered_wanted)
    if wanted and (done == 0 or wanted > (done - 1) * s.n_senders + r + 1):
        return
    index = done + (s.window >> 2 if s.window >= 4 else 1)
    if index > s.published:
        index = s.published
    u64_store_release(&s.mine.delivered_wanted, (index - 1) * s.n_senders + r + 1)
    push_acknowledged(node, s, 0)
    # Dekker with ring_wanting() of the deliver predicate: I look at its number after I said what I want.
    fence_store_load()


cdef void end_silence(node_t *node, subgroup_t *s) noexcept nogil:
    """I have messages, but the rest of a declared silence fills my window: takes the declaration back.

    The nulls of the silence stay, but count as activity from now on, so that the others catch up with them and my
    next slot comes free even if they have nothing to say.
    """
    cdef uint64_t end = u64_load_relaxed(&s.mine.silent_until)
    if u64_load_relaxed(&s.mine.silent_from) < end and s.published >= end:
        u64_store_release(&s.mine.silent_from, end)
        push_published(node, s)
