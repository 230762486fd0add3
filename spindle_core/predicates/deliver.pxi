"""Deliver: everything up to the stability frontier, in order, nulls skipped, one push (paper, section 3.2).

The frontier is the least received number of all members. A message is copied once into the topic's delivery log
(readers take it from there), or handed in place to an embedded receiver's upcall. Then my delivered number is raised,
which lets senders reuse the slots. With `batch_delivery` off: one message per pass and push.

Nothing is taken on trust: a slot whose stamp is not the expected index, or whose kind, size or run is impossible, is
never delivered; it is counted, and delivery of this subgroup stands still rather than lose its order. The check covers
what could hurt this node or the order, and a slot that has not arrived or was reused. It does not cover the payload: a
member that lies about its own messages is believed.

Unordered topics have no frontier: what was received is delivered, first-in first-out per sender, and acknowledged
per sender.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.atomics cimport (
    fence_store_load,
    prefetch_line,
    u32_load_relaxed,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_release,
)
from spindle_core.counters cimport (
    C_CORRUPT,
    C_DELIVERED_BYTES,
    C_DELIVERY_BATCHES,
    C_DELIVERY_BLOCKED,
    C_DELIVERY_MESSAGES,
)
from spindle_core.fabric.fabric cimport POST_GUARD, POST_RING, counts_lane
from spindle_core.layout cimport (
    LOG_LARGE,
    SLOT_DATA,
    SLOT_LARGE,
    SLOT_NULL,
    SLOT_RELAYED,
    large_entry,
    log_record,
    slot_header,
)
from spindle_core.log cimport CURSORS_MAX
from spindle_core.relayed cimport relayed_identity, relayed_note
from spindle_core.state cimport (
    DONE_MAX,
    LEVEL_LOGGED,
    LEVEL_UNORDERED,
    PERSIST_MARKS,
    UPCALL_BATCH,
    delivery_t,
    node_t,
    sender_t,
    subgroup_t,
)

cdef uint64_t SHOW_EVERY_MIN = 64    # sequence numbers of one pass after which others may see how far it is
cdef uint64_t NULL_ROUNDS_MIN = 16   # shorter runs of nulls aren't worth a look at all senders


cdef enum:
    ROUNDS_AHEAD = 4             # of a message that is delivered: the one whose header is fetched meanwhile


cdef enum outcome:
    TAKEN
    SKIPPED        # a null
    HELD           # a keep-all reader has no room
    DAMAGED


# Messages gathered for one batched upcall, and what one pass has done.
cdef struct pass_t:
    delivery_t batch[UPCALL_BATCH]
    uint32_t n_batch
    uint64_t messages, bytes


cdef inline void flush_upcall(subgroup_t *s, pass_t *p) noexcept nogil:
    if p.n_batch:
        s.upcall(s.upcall_context, p.batch, p.n_batch)
        p.n_batch = 0


cdef void note_time(node_t *node, subgroup_t *s, slot_header *h, const char *payload, uint32_t size) noexcept nogil:
    """A message that says something of time. If that is earlier than whatever was expected, the control thread, which
    has the clock, is told."""
    if timing_note(s.timing, h.tag, h.writer_id, h.source_ns, payload, size):
        node.control_changed = True
    if s.log != NULL:
        log_show_time(s.log, s.timing)


cdef outcome deliver_slot(node_t *node, subgroup_t *s, pass_t *p, uint32_t rank, uint64_t index) noexcept nogil:
    """Delivers message `index` of a sender, or skips the run of nulls that begins there."""
    cdef sender_t *sender = &s.senders[rank]
    cdef slot_header *h = slot_of(sender.slots, s, index)
    cdef uint32_t size
    cdef uint8_t kind = h.kind
    cdef uint64_t run = 0
    cdef delivery_t *d
    cdef log_record *r
    cdef const char *payload = payload_of(s, h)
    cdef large_entry entry
    cdef bint large = kind & SLOT_LARGE != 0
    if u64_load_relaxed(&h.index) != index:
        return DAMAGED
    if kind == SLOT_NULL:
        run = u64_load_relaxed(&h.run)
        if run == 0 or run > (<uint64_t>1 << 62):
            return DAMAGED
        sender.null_until = index + run
        return SKIPPED
    size = u32_load_relaxed(&h.size)    # once: it lies in another node's memory
    if size > s.size_max:
        return DAMAGED
    if large:
        kind -= SLOT_LARGE
        entry = (<large_entry *>payload)[0]
        payload = <const char *>&entry
        if size != sizeof(large_entry) or node.larges == NULL or not larges_have(node.larges, entry.id):
            return DAMAGED
    if kind != SLOT_DATA:
        run = u64_load_relaxed(&h.run)
        if kind != SLOT_RELAYED or run == 0 or run >> 32:
            return DAMAGED
    if s.log != NULL:
        if large and not log_large_room(s.log, entry.size):
            return HELD
        r = <log_record *>log_reserve(s.log, size)
        if r == NULL:
            return HELD
        if large:
            r.kind = LOG_LARGE
            log_push_large(s.log, &entry)
        r.sequence = index * s.n_senders + rank
        r.source_ns = h.source_ns
        r.reception_ns = node.now_ns
        r.sender = sender.node_id
        r.relay = <uint32_t>run
        r.tag = h.tag
        if s.keyed:
            r.key = u64_load_relaxed(key_of(h))
        r.writer_id = h.writer_id
        r.view_id = node.epoch
        memcpy(<char *>r + sizeof(log_record), payload, size)
        log_count(s.log, r, entry.size if large else size)
        log_commit(s.log, size)
    elif large:
        larges_pass(node.larges, entry.id)
    if large:
        node.control_changed = True      # its writer's node counts what is on its way
    if s.upcall != NULL:
        d = &p.batch[p.n_batch]
        d.payload = payload_of(s, h)
        d.large = large
        d.size = size
        d.sequence = index * s.n_senders + rank
        d.source_ns = h.source_ns
        d.sender_rank = rank
        d.sender = sender.node_id
        d.tag = h.tag
        d.writer_id = h.writer_id
        p.n_batch += 1
        if not s.upcall_batches or p.n_batch == UPCALL_BATCH:
            flush_upcall(s, p)
    if s.timing != NULL and s.timing.kinds[h.tag] & TIMING_SAYS:
        if large:
            note_time(node, s, h, entry.first, sizeof(entry.first) + sizeof(entry.last))
        else:
            note_time(node, s, h, payload, size)
    if run and node.relayed != NULL:
        relayed_note(node.relayed, relayed_identity(<uint32_t>run, h.writer_id), h.source_ns)
    p.messages += 1
    p.bytes += size
    return TAKEN


cdef void finish(node_t *node, subgroup_t *s, pass_t *p) noexcept nogil:
    """Shows readers what was appended, and counts the pass."""
    if s.upcall != NULL:
        flush_upcall(s, p)
    if p.messages == 0:
        return
    if node.larges != NULL and u32_load_relaxed(&node.larges.n_released):
        node.control_changed = True      # their memory is to be given back
    if s.log != NULL:
        log_publish(s.log)
        node.n_readers += log_take_armed(s.log, &node.readers[node.n_readers], CURSORS_MAX - node.n_readers)
        if s.log.lasts != NULL and s.log.lasts.sooner:
            s.log.lasts.sooner = False
            node.control_changed = True      # the control thread has the clock, and says the time
    node.counters[C_DELIVERY_BATCHES] += 1
    node.counters[C_DELIVERY_MESSAGES] += p.messages
    node.counters[C_DELIVERED_BYTES] += p.bytes


cdef void set_blocked(node_t *node, subgroup_t *s, bint blocked) noexcept nogil:
    if s.log == NULL:
        return
    if blocked:
        node.counters[C_DELIVERY_BLOCKED] += 1
    s.blocked = blocked
    log_set_blocked(s.log, blocked)


cdef void push_delivered(node_t *node, subgroup_t *s) noexcept nogil:
    """Raises my delivered number and pushes it; rings only the senders that said they wait for it.

    SYNC POINT: reuse. Pairs with delivered_min(): I am done with these slots. And Dekker with want_delivered(): it
    stores what it wants, then looks at my number; I store my number, then look at what it wants.
    """
    u64_store_release(&s.mine.delivered, s.delivered)
    push_acknowledged(node, s, 0)
    ring_wanting(node, s)


cdef void ring_wanting(node_t *node, subgroup_t *s) noexcept nogil:
    cdef uint32_t i
    cdef uint64_t wanted
    fence_store_load()
    for i in range(s.n_members):
        if s.members[i] == node.my_rank:
            continue
        wanted = u64_load_acquire(&s.member_columns[i].delivered_wanted)
        if wanted > s.wanted_rung[i] and s.delivered >= wanted:
            s.wanted_rung[i] = wanted
            node.peers[node.n_peers] = s.members[i]
            node.n_peers += 1


cdef inline void mark_persist(subgroup_t *s) noexcept nogil:
    """Remembers which delivered number belongs to which count of the log, for the persist predicate."""
    if s.level != LEVEL_LOGGED or s.log == NULL:
        return
    if s.marks_head - s.marks_tail == PERSIST_MARKS:
        s.marks_head -= 1        # the newest mark covers its predecessor
    s.mark_index[s.marks_head % PERSIST_MARKS] = s.log.count
    s.mark_delivered[s.marks_head % PERSIST_MARKS] = s.delivered
    s.marks_head += 1


cdef uint64_t null_rounds(subgroup_t *s) noexcept nogil:
    """At the beginning of a round: how many whole rounds from here are nulls of everybody.

    A run can be too long to be walked through number by number.
    """
    cdef uint64_t least = <uint64_t>-1
    cdef uint32_t r
    if s.senders[0].null_until <= s.deliver_index + NULL_ROUNDS_MIN:
        return 0
    for r in range(s.n_senders):
        if s.senders[r].null_until <= s.deliver_index:
            return 0
        if s.senders[r].null_until - s.deliver_index < least:
            least = s.senders[r].null_until - s.deliver_index
    return least


cdef bint skip_null_rounds(subgroup_t *s, uint64_t most) noexcept nogil:
    """At the beginning of a round: passes over the whole rounds from here that are nulls of everybody, `most` at most.
    False if there is none."""
    cdef uint64_t n = null_rounds(s)
    if n > most:
        n = most
    s.deliver_index += n
    s.delivered += n * s.n_senders
    return n != 0


cdef void to_next_place(subgroup_t *s) noexcept nogil:
    """The delivery order goes on: round by round, in rank order."""
    s.delivered += 1
    s.deliver_rank += 1
    if s.deliver_rank == s.n_senders:
        s.deliver_rank = 0
        s.deliver_index += 1


cdef int deliver(node_t *node, subgroup_t *s) noexcept nogil:
    """Returns how many sequence numbers (nulls included) were delivered."""
    cdef pass_t p
    cdef uint64_t stable, n, first = s.delivered, shown = first
    cdef uint64_t every = (s.window >> 3) * s.n_senders, ahead = ROUNDS_AHEAD * s.n_senders
    cdef uint32_t i
    cdef outcome o
    if s.held:
        return 0
    if s.level == LEVEL_UNORDERED:
        return deliver_unordered(node, s)
    stable = <uint64_t>-1
    for i in range(s.n_members):
        # SYNC POINT: receive. Pairs with the receive predicate: that member has everything before this number.
        n = u64_load_acquire(&s.member_columns[i].received)
        if n < stable:
            stable = n
    if stable <= first:
        return 0
    if not node.batch_delivery:
        stable = first + 1
    if every < SHOW_EVERY_MIN:
        every = SHOW_EVERY_MIN
    p.n_batch = 0
    p.messages = p.bytes = 0
    o = TAKEN
    while s.delivered < stable:
        if s.deliver_rank == 0 and skip_null_rounds(s, (stable - s.delivered) // s.n_senders):
            continue
        if s.deliver_index >= s.senders[s.deliver_rank].null_until:
            # What another core has stored takes a while to come: it is on its way while these rounds are delivered.
            if s.delivered + ahead < stable:
                prefetch_line(slot_of(s.senders[s.deliver_rank].slots, s, s.deliver_index + ROUNDS_AHEAD))
            o = deliver_slot(node, s, &p, s.deliver_rank, s.deliver_index)
            if o == HELD or o == DAMAGED:
                break
        to_next_place(s)
        if s.delivered >= shown + every:
            # Within a long pass readers see messages and slots come free bit by bit, by stores alone; doorbells and the
            # push follow at its end, once.
            if s.upcall != NULL:
                flush_upcall(s, &p)
            if s.log != NULL:
                log_publish(s.log)
            shown = s.delivered
            u64_store_release(&s.mine.delivered, shown)
            mark(node, s)
    finish(node, s, &p)
    s.damaged = o == DAMAGED
    if s.damaged:
        node.counters[C_CORRUPT] += 1
    if o == HELD:
        set_blocked(node, s, True)
    elif s.blocked:
        set_blocked(node, s, False)
    if s.delivered == first:
        return 0
    mark_persist(s)
    lock_to_post(node, s)
    push_delivered(node, s)
    hold_until_posted(node, s)
    return <int>(s.delivered - first) if s.delivered - first < DONE_MAX else DONE_MAX


cdef int deliver_unordered(node_t *node, subgroup_t *s) noexcept nogil:
    cdef pass_t p
    cdef uint32_t r
    cdef sender_t *sender
    cdef outcome o = TAKEN
    cdef uint64_t done = 0, until, n
    p.n_batch = 0
    p.messages = p.bytes = 0
    for r in range(s.n_senders):
        sender = &s.senders[r]
        if sender.taken >= sender.received:
            continue
        until = sender.received if node.batch_delivery else sender.taken + 1
        while sender.taken < until:
            n = 1
            if sender.taken >= sender.null_until:
                o = deliver_slot(node, s, &p, r, sender.taken)
                if o == HELD or o == DAMAGED:
                    break
            else:
                n = (sender.null_until if sender.null_until < until else until) - sender.taken
            sender.taken += n
            done += n
        if o == HELD or o == DAMAGED:
            break
    finish(node, s, &p)
    s.damaged = o == DAMAGED
    if s.damaged:
        node.counters[C_CORRUPT] += 1
    if o == HELD:
        set_blocked(node, s, True)
    elif s.blocked:
        set_blocked(node, s, False)
    if done == 0:
        return 0
    s.delivered += done
    for r in range(s.n_senders):
        u64_store_release(&s.received_by_sender[r], s.senders[r].taken)
    u64_store_release(&s.mine.delivered, s.delivered)
    mark(node, s)                # as in sst
    push(node, s, s.counts_offset, s.n_senders * sizeof(uint64_t), POST_RING | POST_GUARD | counts_lane(s.place))
    return <int>done if done < DONE_MAX else DONE_MAX


cdef bint deliver_trimmed(node_t *node, subgroup_t *s, const unsigned long long *trim) noexcept nogil:
    """After the wedge: delivers, in order, every message below its sender's trim, and nothing else.

    False if a keep-all reader has no room: to be called again. Of a sender with a damaged slot, all is lost from there
    on, and of the others nothing: the view can change in spite of it. Design, Membership 7.
    """
    cdef pass_t p
    cdef uint64_t rounds = 0
    cdef uint32_t r
    cdef sender_t *sender
    cdef outcome o = TAKEN
    p.n_batch = 0
    p.messages = p.bytes = 0
    for r in range(s.n_senders):
        if trim[r] > rounds:
            rounds = trim[r]
    while s.deliver_index < rounds:
        if s.deliver_rank == 0 and skip_null_rounds(s, rounds - s.deliver_index):
            continue
        sender = &s.senders[s.deliver_rank]
        if s.deliver_index >= trim[s.deliver_rank]:
            sender.null_until = <uint64_t>-1
        elif s.deliver_index >= sender.null_until:
            o = deliver_slot(node, s, &p, s.deliver_rank, s.deliver_index)
            if o == HELD:
                break
            if o == DAMAGED:
                node.counters[C_CORRUPT] += 1
                sender.null_until = <uint64_t>-1
        to_next_place(s)
    finish(node, s, &p)
    set_blocked(node, s, o == HELD)
    mark_persist(s)
    return o != HELD
