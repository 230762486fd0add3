"""Receive: take every new message of every sender and acknowledge all of them with one push (paper, section 3.2).

A sender's published count says how many of its messages are whole here, so receiving a batch is reading one line per
sender; slots are not touched before delivery. My received number is then the first sequence number that I miss.
Only where a sender has published a large sample (large.pxi) its new slots are looked at: up to the first one of which
the bytes are not here, and no further; the control thread is told which one that is.
With `batch_receive` off every message gets an acknowledgement and a push of its own, which leaves before the next one
is looked at.

While `receipt_held` nothing is received: what an earlier epoch delivered still waits for room in the log, and what was
received now would have to be kept as well if this epoch ended. As it is, nobody can deliver what this member has not
received, and at the end of the epoch the senders send it again.

A count that is beyond all reason is not believed: the topic stands still on this node and `corrupt_slots` grows.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.atomics cimport u64_load_acquire, u64_load_relaxed, u64_store_release
from spindle_core.counters cimport C_CORRUPT, C_RECEIVE_BATCHES, C_RECEIVE_MESSAGES
from spindle_core.large cimport large_want_t
from spindle_core.layout cimport SLOT_LARGE, SLOT_NULL, large_entry, slot_header
from spindle_core.state cimport DONE_MAX, INDEX_JUMP_BITS, LEVEL_UNORDERED, node_t, sender_t, subgroup_t


cdef inline void acknowledge(node_t *node, subgroup_t *s) noexcept nogil:
    """Raises my received number to the first sequence number that is missing, and pushes it if that is news.

    With n_r messages of rank r and m = min n_r: m * n_senders + (first r with n_r = m).
    """
    cdef uint64_t least = <uint64_t>-1, received
    cdef uint32_t r, first = 0
    if s.level == LEVEL_UNORDERED:
        return
    lock_to_post(node, s)
    for r in range(s.n_senders):
        if s.senders[r].received < least:
            least = s.senders[r].received
            first = r
    received = least * s.n_senders + first
    if received > s.received:
        s.received = received
        # SYNC POINT: receive. Pairs with the deliver predicate's minimum.
        u64_store_release(&s.mine.received, received)
        push_received(node, s)
    hold_until_posted(node, s)


cdef bint is_here(node_t *node, subgroup_t *s, sender_t *sender, uint32_t rank, uint64_t index) noexcept nogil:
    """False if this message is a large sample whose bytes this node does not have; they are asked for."""
    cdef slot_header *h = slot_of(sender.slots, s, index)
    cdef large_entry *entry = <large_entry *>payload_of(s, h)
    cdef large_want_t want
    if u64_load_relaxed(&h.index) != index or not h.kind & SLOT_LARGE or node.larges == NULL:
        return True              # what is no message of ours is found when it is delivered
    want.id = u64_load_relaxed(&entry.id)
    if larges_have(node.larges, want.id):
        sender.larges_found += 1
        return True
    want.size = u64_load_relaxed(&entry.size)
    want.sequence = index * s.n_senders + rank
    want.topic_id = s.topic_id
    want.sender = sender.node_id
    if larges_want(node.larges, &want):
        node.control_changed = True
    return False


cdef uint64_t receivable(node_t *node, subgroup_t *s, uint32_t rank, uint64_t published) noexcept nogil:
    """Of a sender with large samples among its new messages: how many messages are here, their bytes included."""
    cdef sender_t *sender = &s.senders[rank]
    cdef uint64_t index = sender.received, run
    cdef slot_header *h
    while index < published and u64_load_relaxed(&sender.columns.larges) != sender.larges_found:
        h = slot_of(sender.slots, s, index)
        if not is_here(node, s, sender, rank, index):
            return index
        run = u64_load_relaxed(&h.run) if h.kind == SLOT_NULL else 1
        if u64_load_relaxed(&h.index) != index or run == 0 or run > published - index:
            break                # damaged: delivery stands still there
        index += run
    return published


cdef int receive(node_t *node, subgroup_t *s) noexcept nogil:
    """Returns how many messages (nulls included) are new."""
    cdef uint32_t r
    cdef uint64_t published
    cdef sender_t *sender
    cdef uint64_t found = 0
    if s.receipt_held and s.level != LEVEL_UNORDERED:
        return 0
    for r in range(s.receive_next, s.n_senders):
        sender = &s.senders[r]
        # SYNC POINT: publish. Pairs with the send predicate: the slots below this count are whole.
        published = u64_load_acquire(&sender.columns.published)
        if published <= sender.received:
            continue
        if (published - sender.received) >> INDEX_JUMP_BITS:
            node.counters[C_CORRUPT] += 1
            continue
        if u64_load_relaxed(&sender.columns.larges) != sender.larges_found:
            if node.batch_receive:
                published = receivable(node, s, r, published)
            elif not is_here(node, s, sender, r, sender.received):
                continue
        if node.batch_receive:
            found += published - sender.received      # 0: it waits for bytes
            sender.received = published
        else:
            sender.received += 1
            node.counters[C_RECEIVE_BATCHES] += 1
            node.counters[C_RECEIVE_MESSAGES] += 1
            acknowledge(node, s)
            s.receive_next = r + 1
            node.unfinished = True
            return 1
    s.receive_next = 0
    if found == 0:
        return 0
    node.counters[C_RECEIVE_MESSAGES] += found
    node.counters[C_RECEIVE_BATCHES] += 1
    acknowledge(node, s)
    return <int>found if found < DONE_MAX else DONE_MAX
