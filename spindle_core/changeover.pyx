"""From one epoch to the next: what happens to messages in flight (design: wedge, ragged trim, install).

close_claims, then freeze: what was committed is published, received counts are frozen in the own row for all to see.
deliver_trim: everything below the agreed trim is delivered, nothing else. resend: own messages beyond it are the first
of the next epoch. The engine calls these in that order, with the predicate thread parked for all but the first.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.atomics cimport u32_load_relaxed, u64_load_relaxed, u64_store_release
from spindle_core.counters cimport C_CORRUPT
from spindle_core.hot_path cimport (
    STAGE_DELIVER,
    STAGE_RECEIVE,
    STAGE_SEND,
    advance_committed,
    carry_out,
    claim,
    deliver_trimmed,
    evaluate_whole,
    fill_header,
    key_of,
    larges_use,
    lock_subgroup,
    mark_ready,
    payload_of,
    post_to_all,
    skip_null_rounds,
    slot_of,
    to_next_place,
    unlock_subgroup,
)
from spindle_core.epoch cimport Epoch
from spindle_core.events cimport event_ring
from spindle_core.inbox cimport Inbox, inbox_t
from spindle_core.layout cimport SLOT_DATA, SLOT_LARGE, SLOT_NULL, SLOT_RELAYED, large_entry, slot_header
from spindle_core.relayed cimport relayed_identity, relayed_note
from spindle_core.state cimport LEVEL_UNORDERED, sender_t, subgroup_t

from spindle_core.errors import CoreError

from cpython.bytes cimport PyBytes_AS_STRING

SENDERS_MAX = 256


cdef void close_claims(Epoch epoch) noexcept:
    """Allows no more direct claims, and wakes whoever waits for a slot."""
    cdef uint32_t i
    cdef subgroup_t *s
    for i in range(epoch.node.n_subgroups):
        s = &epoch.node.subgroups[i]
        if s.my_sender >= 0:
            lock_subgroup(s)
            s.closed = True
            unlock_subgroup(s)
            event_ring(s.space_fd)


cdef bint claims_open(Epoch epoch) noexcept:
    """A claimed slot has not been committed yet."""
    cdef uint32_t i
    cdef subgroup_t *s
    cdef bint is_open = False
    for i in range(epoch.node.n_subgroups):
        s = &epoch.node.subgroups[i]
        if s.my_sender >= 0:
            lock_subgroup(s)
            advance_committed(s)
            is_open = is_open or s.claimed > s.committed
            unlock_subgroup(s)
    return is_open


cdef void abort_open_claims(subgroup_t *s) noexcept nogil:
    """Slots still claimed become nulls: the order must not wait for an application that may have died."""
    cdef uint64_t index = s.committed
    cdef slot_header *h
    while index < s.claimed:
        h = slot_of(s.senders[s.my_sender].slots, s, index)
        if s.ready[index & (s.ring - 1)] != index + 1:
            h.index = index
            h.size = 0
            h.kind = SLOT_NULL
            h.run = 1
            mark_ready(s, index, 1)
        # A run of nulls is only in the slot of its first index: the slots of its others may hold other messages.
        index += h.run if h.kind == SLOT_NULL else 1


cdef bint is_idle(subgroup_t *s) noexcept nogil:
    """Nothing of this topic has come in this epoch, nulls included, and nothing waits for a reader."""
    cdef uint32_t k
    for k in range(s.n_senders):
        if s.senders[k].received:
            return False
    return not s.blocked


cdef int freeze(Epoch epoch) except -1:
    """Publishes what was committed, takes what has arrived, and freezes the received counts in the own row."""
    cdef uint32_t i, k
    cdef subgroup_t *s
    for i in range(epoch.node.n_subgroups):
        s = &epoch.node.subgroups[i]
        if s.mine == NULL:
            continue
        if s.my_sender >= 0:
            lock_subgroup(s)
            advance_committed(s)
            abort_open_claims(s)
            s.n_inboxes = 0          # what is still in an inbox belongs to the next view
            unlock_subgroup(s)
            while evaluate_whole(&epoch.node, s, STAGE_SEND):
                pass
        while evaluate_whole(&epoch.node, s, STAGE_RECEIVE):
            pass
        if is_idle(s):
            continue                 # all counts are zero, as they are in everybody's copy of this row
        if s.level != LEVEL_UNORDERED:
            for k in range(s.n_senders):
                u64_store_release(&s.received_by_sender[k], s.senders[k].received)
        # To all: whoever leads computes the trim, a member of this topic or not.
        post_to_all(&epoch.node, s.counts_offset, s.n_senders * sizeof(uint64_t), 0)
        carry_out(&epoch.node)
    epoch.node.wedged = True
    return 0


cdef bint deliver_trim(Epoch epoch, subgroup_t *s, trim, uint64_t now_ns) except? -1:
    """Delivers below the trim, a list of one count per sender; False while a keep-all reader has no room."""
    cdef unsigned long long counts[256]
    cdef uint32_t k
    cdef bint done = True
    if len(trim) != s.n_senders or s.n_senders > SENDERS_MAX:
        raise ValueError(f"a trim of {len(trim)} counts for {s.n_senders} senders")
    for k in range(s.n_senders):
        counts[k] = trim[k]
    epoch.node.now_ns = now_ns
    if s.level == LEVEL_UNORDERED:
        while evaluate_whole(&epoch.node, s, STAGE_RECEIVE):
            pass
        while evaluate_whole(&epoch.node, s, STAGE_DELIVER):
            pass
        for k in range(s.n_senders):
            if s.senders[k].taken < s.senders[k].received:
                done = False
    else:
        for k in range(s.n_senders):
            if counts[k] > s.senders[k].received:
                raise ValueError(f"topic {s.topic_id}: the trim {list(trim)} is beyond what was received here")
        done = not s.held and deliver_trimmed(&epoch.node, s, counts)
        carry_out(&epoch.node)
        if done and s.my_sender >= 0:
            s.senders[s.my_sender].taken = counts[s.my_sender]
    if s.log != NULL and done:
        u64_store_release(&s.log.header.blocked, 0)
    return done


cdef bint use_large(Epoch epoch, bytes payload):
    """The backlog names this large sample from now on; False if this node doesn't have it."""
    cdef large_entry *entry = <large_entry *>PyBytes_AS_STRING(payload)
    return (len(payload) == sizeof(large_entry) and epoch.node.larges != NULL
            and larges_use(epoch.node.larges, entry.id))


cdef int copy_slot(Epoch epoch, subgroup_t *s, uint32_t k, uint64_t index, list kept) except -1:
    """Appends message `index` of sender rank k to `kept`, unless it is a null. Behind a damaged slot all its are. Of a
    large sample the bytes are kept as well."""
    cdef sender_t *sender = &s.senders[k]
    cdef slot_header *h = slot_of(sender.slots, s, index)
    cdef bint large
    cdef uint32_t size, stamp
    cdef uint8_t kind, tag
    cdef uint16_t writer_id
    cdef uint64_t run, source_ns
    if index < sender.null_until:
        return 0
    # Each field is read once: it lies in another node's memory, which may change between a check and the use.
    size = u32_load_relaxed(&h.size)
    stamp = u32_load_relaxed(<uint32_t *>&h.kind)
    kind, tag, writer_id = <uint8_t>stamp, <uint8_t>(stamp >> 8), <uint16_t>(stamp >> 16)   # in little endian
    run = u64_load_relaxed(&h.run)
    source_ns = u64_load_relaxed(&h.source_ns)
    large = kind & SLOT_LARGE != 0
    kind -= SLOT_LARGE if large else 0
    payload = payload_of(s, h)[:size] if size <= s.size_max else b""
    if h.index == index and kind == SLOT_NULL and 0 < run <= <uint64_t>1 << 62:
        sender.null_until = index + run
    elif (h.index != index or size > s.size_max
          or not (kind == SLOT_DATA or (kind == SLOT_RELAYED and 0 < run < <uint64_t>1 << 32))
          or (large and not use_large(epoch, payload))):
        epoch.node.counters[C_CORRUPT] += 1
        sender.null_until = <uint64_t>-1
    else:
        kept.append((payload, sender.node_id, index * s.n_senders + k, source_ns,
                     writer_id, run if kind == SLOT_RELAYED else 0, tag, u64_load_relaxed(key_of(h)) if s.keyed else 0,
                     large))
        if kind == SLOT_RELAYED and epoch.node.relayed != NULL:
            relayed_note(epoch.node.relayed, relayed_identity(<uint32_t>run, writer_id), source_ns)
    return 0


cdef list take_trim(Epoch epoch, subgroup_t *s, trim):
    """What deliver_trim could not deliver, copied out in delivery order; see Engine.take_undelivered."""
    cdef uint64_t rounds = 0
    cdef uint32_t k
    cdef sender_t *sender
    cdef list kept = []
    if len(trim) != s.n_senders:
        raise ValueError(f"a trim of {len(trim)} counts for {s.n_senders} senders")
    if s.level == LEVEL_UNORDERED:
        for k in range(s.n_senders):
            sender = &s.senders[k]
            while sender.taken < sender.received:
                copy_slot(epoch, s, k, sender.taken, kept)
                sender.taken = max(sender.taken + 1, min(sender.null_until, sender.received))
    else:
        rounds = max(trim, default=0)
        while s.deliver_index < rounds:
            if s.deliver_rank == 0 and skip_null_rounds(s, rounds - s.deliver_index):
                continue
            k = s.deliver_rank
            if s.deliver_index < <uint64_t>trim[k]:
                copy_slot(epoch, s, k, s.deliver_index, kept)
            else:
                s.senders[k].null_until = <uint64_t>-1
            to_next_place(s)
        if s.my_sender >= 0:
            s.senders[s.my_sender].taken = trim[<uint32_t>s.my_sender]
    if s.log != NULL:
        s.blocked = False
        u64_store_release(&s.log.header.blocked, 0)
    return kept


cdef uint64_t count_leftover(subgroup_t *s) noexcept:
    """Own messages, nulls not counted, that are committed and beyond what was delivered."""
    cdef uint64_t i, n = 0
    cdef slot_header *h
    if s.my_sender < 0:
        return 0
    i = s.senders[s.my_sender].taken
    while i < s.committed:
        h = slot_of(s.senders[s.my_sender].slots, s, i)
        if h.kind == SLOT_NULL:
            i += h.run
        else:
            n += 1
            i += 1
    return n


cdef int check_resend(subgroup_t *old, subgroup_t *new) except -1:
    """CoreError where resend() would not find room for all."""
    cdef uint64_t i, n = 0
    cdef slot_header *h
    if old.my_sender < 0 or new.my_sender < 0:
        return 0
    i = old.senders[old.my_sender].taken
    while i < old.committed:
        h = slot_of(old.senders[old.my_sender].slots, old, i)
        if h.kind == SLOT_NULL:
            i += h.run
            continue
        i += 1
        n += 1
        if n > new.window or h.size > new.size_max:
            raise CoreError(f"topic {new.topic_id}: the new view's window is smaller than the old one's")
    return 0


cdef uint64_t resend(subgroup_t *old, subgroup_t *new, list inboxes) noexcept:
    """Own messages beyond the trim become the first of the new epoch, in their old order; returns how many.

    check_resend() has said that they fit.
    """
    cdef uint64_t i = old.senders[old.my_sender].taken
    cdef uint64_t index, n = 0
    cdef slot_header *h
    cdef slot_header *to
    cdef inbox_t *box
    if new.my_sender >= 0:
        while i < old.committed:
            h = slot_of(old.senders[old.my_sender].slots, old, i)
            if h.kind == SLOT_NULL:
                i += h.run
                continue
            i += 1
            index = claim(new, 1)
            fill_header(new, index, h.size, h.writer_id, h.source_ns, key_of(h)[0] if old.keyed else 0)
            to = slot_of(new.senders[new.my_sender].slots, new, index)
            to.kind = h.kind
            to.tag = h.tag
            to.run = h.run
            new.larges += h.kind & SLOT_LARGE != 0
            memcpy(payload_of(new, to), payload_of(old, h), h.size)
            mark_ready(new, index, 1)
            n += 1
    for inbox in inboxes:
        box = (<Inbox>inbox).pointer()
        # All that was taken over is delivered by the trim, or was sent again just now.
        box.ack_count = box.persist_count = box.consumed
        box.ack_index = box.persist_index = box.ack_next_index = new.claimed
    return n
