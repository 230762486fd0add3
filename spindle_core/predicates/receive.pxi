"""Receive: take every new message of every sender and acknowledge all of them with one push (paper, section 3.2).

A sender's published count says how many of its messages are whole here, so receiving a batch is reading one line per
sender; slots are not touched before delivery. My received number is then the first sequence number that I miss.
With `batch_receive` off every message gets an acknowledgement and a push of its own, which leaves before the next one
is looked at.

While `receipt_held` nothing is received: what an earlier epoch delivered still waits for room in the log, and what was
received now would have to be kept as well if this epoch ended. As it is, nobody can deliver what this member has not
received, and at the end of the epoch the senders send it again.

A count that is beyond all reason is not believed: the topic stands still on this node and `corrupt_slots` grows.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.atomics cimport u64_load_acquire, u64_store_release
from spindle_core.counters cimport C_CORRUPT, C_RECEIVE_BATCHES, C_RECEIVE_MESSAGES
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
        if node.batch_receive:
            found += published - sender.received
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
