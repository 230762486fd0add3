"""Send: publish every committed message in one push (paper, section 3.2).

Takes over what applications left in their inboxes, as far as slots are free, and publishes everything committed
without a gap: the slots, then the count that guards them. The slots are at most two ranges per member; more where the
fabric copies and further ranges cost less than the bytes between them. A batch of many bytes goes in pieces, each with
a count behind it: members begin with its first messages while the last ones are on their way. With
`batch_send` off, one message per pass and push, as in the paper's baseline. Never waits for a batch to fill.
"""
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.atomics cimport (
    fence_store_load,
    u32_load_relaxed,
    u32_store_relaxed,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_release,
)
from spindle_core.counters cimport C_NULLS, C_REFUSED, C_SEND_BATCHES, C_SEND_MESSAGES, C_SENT_BYTES, C_STALLS
from spindle_core.fabric.fabric cimport slots_lane
from spindle_core.inbox cimport FAREWELL_DELIVERED, FAREWELL_DUE, FAREWELL_SENT, inbox_t
from spindle_core.large cimport LARGES_OF_INBOX
from spindle_core.layout cimport (
    COLUMNS_LARGES_OFFSET,
    SLOT_LARGE,
    SLOT_NULL,
    SLOT_RELAYED,
    align_up,
    large_entry,
    slot_header,
)
from spindle_core.state cimport DONE_MAX, LEVEL_LOGGED, WRITERS_MAX, node_t, subgroup_t
from spindle_core.timing cimport TIMING_STAMPED, is_far_ahead


cdef inline uint64_t inbox_waiting(inbox_t *box) noexcept nogil:
    """Messages committed and not yet taken over; 0 where an application claims more than its ring can hold."""
    # SYNC POINT: commit. Pairs with InboxWriter.publish(): slots before the count.
    cdef uint64_t n = (u64_load_acquire(&box.header.committed) if not box.ended else box.until) - box.consumed
    if n > box.n_slots:
        return 0
    return n + (box.farewell == FAREWELL_DUE) + (box.aside_tag != 0 and box.aside_at - box.consumed <= n)


cdef inline void wake_writer(node_t *node, int fd) noexcept nogil:
    """Leaves a writer to be woken, once in a step: of one inbox, acknowledgements and taking over come one after the
    other."""
    if node.n_writers and node.writers[node.n_writers - 1] == fd:
        return
    if node.n_writers < WRITERS_MAX:
        node.writers[node.n_writers] = fd
        node.n_writers += 1


cdef inline void inbox_progressed(node_t *node, inbox_t *box) noexcept nogil:
    """Rings a writer that waits for slots or acknowledgements, once for each time it began to wait."""
    cdef uint64_t waiting
    # Pairs with the writer's fence between space_waiting and its last look.
    fence_store_load()
    waiting = u64_load_acquire(&box.header.space_waiting)
    if waiting != box.space_rung:
        box.space_rung = waiting
        wake_writer(node, box.ring_end)


cdef inline void say(subgroup_t *s, inbox_t *box, uint8_t tag, uint64_t source_ns) noexcept nogil:
    """A message without payload in a writer's name, or in the node's own."""
    cdef uint64_t index = claim(s, 1)
    cdef slot_header *mine
    fill_header(s, index, 0, box.writer_id, source_ns, 0)
    mine = slot_of(s.senders[s.my_sender].slots, s, index)
    mine.tag = tag
    if box.relay:
        mine.kind = SLOT_RELAYED
        mine.run = box.relay
    mark_ready(s, index, 1)
    box.ack_next_index = index + 1


cdef bint take_large(inbox_t *box, uint64_t token, large_entry *entry) noexcept nogil:
    """What a writer has handed over by this number; False if it has not. A writer does that first, and then commits the
    slot."""
    cdef int i
    if token:
        for i in range(LARGES_OF_INBOX):
            if box.larges[i].token == token:
                entry[0] = box.larges[i].entry
                box.larges[i].token = 0
                return True
    return False


cdef int take_inbox(node_t *node, subgroup_t *s, inbox_t *box, uint64_t most) noexcept nogil:
    """Takes over up to `most` messages of one inbox; returns how many, -1 if it has some and no slot is free."""
    cdef uint64_t waiting = inbox_waiting(box), n, index, source_ns
    cdef uint32_t size, stamp
    cdef slot_header *theirs
    cdef slot_header *mine
    cdef const char *payload
    cdef large_entry entry
    cdef bint large
    cdef int taken = 0
    if waiting == 0:
        return 0
    n = claimable(s, waiting if waiting < most else most)
    if n == 0:
        node.counters[C_STALLS] += 1
        end_silence(node, s)
        return -1
    if n > waiting:
        n = waiting
    if n > most:
        n = most
    while n:
        n -= 1
        if box.aside_tag and box.aside_at == box.consumed:
            say(s, box, box.aside_tag, box.aside_ns)
            box.aside_tag = 0
            taken += 1
            continue
        if box.ended and box.consumed == box.until:
            say(s, box, box.farewell_tag, 0)
            box.farewell = FAREWELL_SENT
            taken += 1
            break
        theirs = <slot_header *>(box.slots + (box.consumed & (box.ring - 1)) * box.stride)
        box.consumed += 1
        taken += 1
        size = u32_load_relaxed(&theirs.size)   # once: the application can change it at any time
        stamp = u32_load_relaxed(<uint32_t *>&theirs.kind)   # with its neighbours
        source_ns = u64_load_relaxed(&theirs.source_ns)
        payload = <const char *>theirs + sizeof(slot_header)
        large = stamp & SLOT_LARGE != 0
        if large:
            # What it refers to is what this node has taken charge of, whatever the application writes here.
            entry.id = 0
            size = sizeof(large_entry) if take_large(
                box, u64_load_relaxed(&(<large_entry *>payload).id), &entry) else <uint32_t>-1
            payload = <const char *>&entry
        if size > box.size_max or size > s.size_max or (
                s.timing != NULL and s.timing.kinds[<uint8_t>(stamp >> 8)] & TIMING_STAMPED
                and is_far_ahead(source_ns, node.now_ns)):
            node.counters[C_REFUSED] += 1
            u64_store_release(&box.progress.refused, box.progress.refused + 1)
            if large and entry.id:
                # Nobody will name it: to the control thread it has come, and is over.
                larges_pass(node.larges, entry.id)
                node.control_changed = True
            continue
        index = claim(s, 1)
        fill_header(s, index, size, box.writer_id, source_ns, theirs.run)
        mine = slot_of(s.senders[s.my_sender].slots, s, index)
        mine.tag = <uint8_t>(stamp >> 8)
        if box.relay:
            mine.kind = SLOT_RELAYED
            mine.run = box.relay
        if large:
            mine.kind |= SLOT_LARGE
            s.larges += 1
        memcpy(payload_of(s, mine), payload, size)
        mark_ready(s, index, 1)
        box.ack_next_index = index + 1
    if taken:
        # SYNC POINT: reuse. Pairs with InboxWriter.free_slot(): we are done with these slots.
        u64_store_release(&box.progress.consumed, box.consumed)
        inbox_progressed(node, box)
    return taken


cdef void acknowledge_writer(node_t *node, subgroup_t *s, inbox_t *box, uint64_t delivered,
                             int64_t persisted) noexcept nogil:
    """Tells a writer what all members have delivered (and have on disk).

    One pair (messages consumed, index behind the last one) is remembered at a time. When that index is reached, the
    next pair is what has been consumed by now, and it may be reached already.
    """
    cdef bint changed = False
    cdef int _
    for _ in range(2):
        if box.ack_count <= box.progress.acknowledged:
            box.ack_count = box.consumed
            box.ack_index = box.ack_next_index
        if box.ack_count > box.progress.acknowledged and delivered >= box.ack_index:
            u64_store_release(&box.progress.acknowledged, box.ack_count)
            changed = True
        if s.level != LEVEL_LOGGED:
            continue
        if box.persist_count <= box.progress.persisted:
            box.persist_count = box.consumed
            box.persist_index = box.ack_next_index
        if box.persist_count > box.progress.persisted and persisted >= <int64_t>box.persist_index:
            u64_store_release(&box.progress.persisted, box.persist_count)
            changed = True
    if box.farewell == FAREWELL_SENT and delivered >= box.ack_next_index:
        box.farewell = FAREWELL_DELIVERED
    if changed:
        inbox_progressed(node, box)


cdef int64_t persisted_min(subgroup_t *s) noexcept nogil:
    """How many of my messages of this epoch every member has on disk; -1 while even earlier views' aren't."""
    cdef uint64_t least = <uint64_t>-1, n
    cdef uint32_t i
    for i in range(s.n_members):
        n = u64_load_acquire(&s.member_columns[i].persisted)
        if n < least:
            least = n
    if least == 0:
        return -1
    return <int64_t>((least - 1 + s.n_senders - 1 - <uint64_t>s.my_sender) // s.n_senders)


cdef bint serve_inboxes(node_t *node, subgroup_t *s) noexcept nogil:
    """Acknowledgements, and all that the inboxes hold (with batch_send off: one message); under the lock.

    True when there is more to acknowledge already.
    """
    cdef uint64_t delivered = 0, most = <uint64_t>-1 if node.batch_send else 1
    cdef int64_t persisted = 0
    cdef uint32_t i, n = s.n_inboxes
    cdef inbox_t *box
    cdef int taken
    cdef bint known = False, open_ends = False, stalled = False
    for i in range(n):
        box = s.inboxes[(s.inbox_next + i) % n]
        if (box.progress.acknowledged < box.consumed or box.farewell == FAREWELL_SENT
                or (s.level == LEVEL_LOGGED and box.progress.persisted < box.consumed)):
            if not known:
                known = True
                delivered = delivered_min(s)
                if s.level == LEVEL_LOGGED:
                    persisted = persisted_min(s)
            acknowledge_writer(node, s, box, delivered, persisted)
            open_ends = True
        if most:
            taken = take_inbox(node, s, box, most)
            stalled = stalled or taken < 0
            if taken > 0 and not node.batch_send:
                most = 0
    s.inbox_next = (s.inbox_next + 1) % n   # nobody is always first when slots are scarce
    if stalled or (open_ends and delivered < s.published):
        want_delivered(node, s)
        # A member may have delivered before it could see that I want to know.
        return (stalled and claimable(s, 1) > 0) or (known and delivered_min(s) > delivered)
    return False


cdef inline bint worth_waking(subgroup_t *s) noexcept nogil:
    """A quarter of the window is free, or all that will come free by itself: a wake-up for each slot would cost more
    than the slot."""
    cdef uint64_t quarter = s.window >> 2 if s.window >= 4 else 1
    cdef uint64_t n = claimable(s, quarter)
    return n >= quarter or (n > 0 and delivered_min(s) >= s.committed)


cdef bint push_slots(node_t *node, subgroup_t *s, uint64_t end) noexcept nogil:
    """The slots of messages piece_pushed..end-1, whole: at most two ranges."""
    cdef uint64_t start = s.piece_pushed & (s.ring - 1), n = end - s.piece_pushed, run
    cdef uint32_t lane = slots_lane(s.place)
    if n > s.ring:
        n = s.ring                # a run of nulls longer than the ring: it has one slot only
    run = s.ring - start
    if run > n:
        run = n
    push_more(node, s, s.slots_offset + start * s.stride, run * s.stride, lane)
    if n > run:
        push_more(node, s, s.slots_offset, (n - run) * s.stride, lane)
    return True


cdef bint push_used(node_t *node, subgroup_t *s, uint64_t end) noexcept nogil:
    """The same where bytes cost: of each slot what is used of it. A run of nulls has one slot, and of that the header.

    Unused bytes between two slots go along as long as they cost less than another range. False where there is no room
    for all: to be called again when what was collected is posted.
    """
    cdef uint64_t index = s.piece_pushed, begin = 0, length = 0, at, used
    cdef uint32_t lane = slots_lane(s.place)
    cdef slot_header *h
    while index < end:
        h = slot_of(s.senders[s.my_sender].slots, s, index)
        at = <uint64_t>(<char *>h - s.senders[s.my_sender].slots)
        used = s.header_size
        if h.kind != SLOT_NULL:
            used += align_up(h.size, sizeof(uint64_t))
        if length and begin + length <= at <= begin + length + node.fabric.range_cost:
            length = at + used - begin
        else:
            if length:
                push_more(node, s, s.slots_offset + begin, length, lane)
                s.piece_pushed = index
                if not room_to_push(node, s, 2):
                    return False
            begin = at
            length = used
        index += h.run if h.kind == SLOT_NULL else 1
    push_more(node, s, s.slots_offset + begin, length, lane)
    return True


cdef uint64_t piece_end(node_t *node, subgroup_t *s, uint64_t first, uint64_t end) noexcept nogil:
    """Up to where messages first..end-1 go with the next count: push_bytes of slots, at least one message."""
    cdef uint64_t index = first, length = 0
    cdef slot_header *h
    if (end - first) * s.stride <= node.fabric.push_bytes:
        return end
    while index < end:
        h = slot_of(s.senders[s.my_sender].slots, s, index)
        length += s.header_size + h.size
        if length > node.fabric.push_bytes and index > first:
            return index
        index += h.run if h.kind == SLOT_NULL else 1
    return end


cdef void publish(node_t *node, subgroup_t *s) noexcept nogil:
    """Goes on with what is to be published: the next piece's slots, then its count. Unfinished until all pieces are
    left as posts; without `post_after_unlock` the lock is held as long.

    A post that was collected earlier reads my line when it is posted: with the new count in it, it would overtake the
    slots. So such posts have to be out first.
    """
    cdef bint whole
    node.unfinished = True
    if node.n_posts:
        return
    if s.piece_end == s.pushed:
        s.piece_end = piece_end(node, s, s.pushed, s.published)
        s.piece_pushed = s.pushed
        if s.larges != s.mine.larges:
            # SYNC POINT: large. Pairs with the receive predicate: who sees the count of the slots sees that some are.
            u64_store_release(&s.mine.larges, s.larges)
            push_more(node, s, s.columns_offset + COLUMNS_LARGES_OFFSET, sizeof(uint64_t), slots_lane(s.place))
        # SYNC POINT: publish. Pairs with the receive predicate: slot bytes are visible before the count.
        u64_store_release(&s.mine.published, s.piece_end)
    if node.fabric.range_cost >= s.ring * s.stride:
        whole = push_slots(node, s, s.piece_end)
    else:
        whole = push_used(node, s, s.piece_end)
    if not whole:
        return
    push_published(node, s)
    s.pushed = s.piece_end
    node.unfinished = s.pushed < s.published
    if not node.unfinished:
        hold_until_posted(node, s)


cdef int send(node_t *node, subgroup_t *s) noexcept nogil:
    """Returns how many messages (nulls included) were published; 1 also when another pass has something to do."""
    cdef uint64_t first, n
    cdef slot_header *h
    cdef bint again = False
    if s.my_sender < 0:
        return 0
    if s.pushed < s.published:
        publish(node, s)
        return 0
    if s.n_inboxes == 0 and u64_load_relaxed(&s.claimed) == s.published and not u32_load_relaxed(&s.claim_waiting):
        return 0
    lock_subgroup(s)
    if s.n_inboxes:
        again = serve_inboxes(node, s)
    if s.claim_waiting:
        if not worth_waking(s):
            if claimable(s, 1) == 0:
                node.counters[C_STALLS] += 1
                end_silence(node, s)
            want_delivered(node, s)
        if worth_waking(s):         # again: a member may have delivered before it could see that I wait
            u32_store_relaxed(&s.claim_waiting, 0)
            if s.space_fd >= 0:
                wake_writer(node, -1 - s.space_fd)
    if s.claimed != s.published:
        advance_committed(s)
    first = s.published
    n = s.committed - first
    if n == 0:
        unlock_subgroup(s)
        return again
    # A batch is a push with messages in it; one that carries nulls only is counted as a push.
    if node.batch_send:
        node.counters[C_SEND_BATCHES] += s.data_unpublished > 0
        node.counters[C_SEND_MESSAGES] += s.data_unpublished
        node.counters[C_SENT_BYTES] += s.data_bytes_unpublished
        node.counters[C_NULLS] += s.nulls_unpublished
        s.data_unpublished = s.data_bytes_unpublished = s.nulls_unpublished = 0
    else:
        h = slot_of(s.senders[s.my_sender].slots, s, first)
        if h.kind == SLOT_NULL:
            n = h.run
            node.counters[C_NULLS] += n
            s.nulls_unpublished -= n
        else:
            n = 1
            node.counters[C_SEND_BATCHES] += 1
            node.counters[C_SEND_MESSAGES] += 1
            node.counters[C_SENT_BYTES] += h.size
            s.data_unpublished -= 1
            s.data_bytes_unpublished -= h.size
    s.published = first + n
    if node.post_after_unlock:
        unlock_subgroup(s)
    publish(node, s)
    return <int>n if n < DONE_MAX else DONE_MAX
