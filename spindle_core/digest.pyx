"""The state of an epoch as bytes: equal bytes mean that it will behave in the same way from here on.

For exhaustive simulation, which follows each state only once. So the bytes have everything that the predicates or the
membership machine look at, and nothing that differs between two runs which come to the same state: no addresses,
counters or times.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.hot_path cimport look_changed
from spindle_core.log cimport cursor_t, log_t
from spindle_core.epoch cimport Epoch
from spindle_core.inbox cimport inbox_t
from spindle_core.large cimport LARGES_OF_INBOX
from spindle_core.layout cimport (
    CACHE_LINE,
    LOG_JUMP,
    PROPOSAL_AREA_SIZE,
    ROW_AREAS_OFFSET,
    ROW_SUBGROUPS_OFFSET,
    TRIM_AREA_SIZE,
    align_up,
    area_header,
    log_record,
    record_stride,
    row_header,
    slot_header,
)
from spindle_core.state cimport TOPIC_WORDS, node_t, subgroup_t

cdef enum:
    FIELDS = 64

# The fields that are left out of the structs that a step reads, and why. A test holds that every other field is in.
LEFT_OUT = {
    "subgroup_t": {
        "node topic_id level n_members n_senders window ring size_max stride header_size keyed place members "
        "member_columns mine my_sender columns_offset counts_offset slots_offset claim_one": "the view says it",
        "received_by_sender members_received_by_sender": "in the rows",
        "lock space_fd timing upcall upcall_context upcall_batches": "not part of what the group does",
        "data_bytes_unpublished": "for counting",
        "pushed piece_end piece_pushed receive_next": "between two passes as `published`, or nothing",
    },
    "sender_t": {"columns slots rank node_id": "the view says it, or the rows have it"},
    "log_t": {
        "ring capacity hot keeps_history": "the same for a topic's life; of the records what space they take is in it",
        "last_offset lasts": "for readers that come later",
        "figures": "for counting",
        "larges large_max large": "the node's, the same for a topic's life, or what its records say",
    },
    "cursor_t": {"ring_end": "not part of what the group does"},
    "inbox_t": {
        "size_max n_slots ring stride writer_id relay": "the same for a writer's life",
        "ring_end": "not part of what the group does",
    },
    "node_t": {
        "epoch my_rank node_id apart": "the view says it",
        "fabric past": "what is on its way is the network's state",
        "counters relayed": "nothing is decided by it",
        "batch_send batch_receive batch_delivery null_sends post_after_unlock exchange_first skip_idle "
        "beat_posted": "of the run",
        "noted again activity marks_seen row_shared lines_seen doors n_doors": "what they tell is: look_changed()",
        "expecting": "when to sleep, which any node may at any time",
        "now_ns beat_ns beat_at_ns beats_max beats vouched vouched_seen": "time",
        "control_lock control_fd": "not part of what the group does",
        "stage place topics delivers to_deliver exchanged done_there unfinished done posts n_posts release readers "
        "n_readers peers n_peers writers n_writers": "between two passes nothing",
    },
}


cdef void add_area(bytearray state, char *row, uint64_t offset, uint64_t room):
    cdef area_header *h = <area_header *>(row + offset)
    cdef uint64_t used = sizeof(area_header) + h.size
    state += (<char *>h)[:used if used < room else room]


cdef void add_row(bytearray state, node_t *node, uint32_t rank):
    """Everything of one row that anybody has written: with `rank`'s slots where it is a sender."""
    cdef char *row = node.rows[rank]
    cdef uint64_t counts_end = ROW_SUBGROUPS_OFFSET
    cdef uint32_t i, k
    cdef subgroup_t *s
    if row == NULL:
        state += b"\0"
        return
    state += row[:sizeof(row_header)]
    add_area(state, row, ROW_AREAS_OFFSET, PROPOSAL_AREA_SIZE)
    add_area(state, row, ROW_AREAS_OFFSET + PROPOSAL_AREA_SIZE, TRIM_AREA_SIZE)
    for i in range(node.n_subgroups):
        s = &node.subgroups[i]
        counts_end = s.counts_offset + align_up(max(1, s.n_senders) * sizeof(uint64_t), CACHE_LINE)
        for k in range(s.n_senders):
            if s.senders[k].rank == rank:
                state += (row + s.slots_offset)[:s.ring * s.stride]
    state += (row + ROW_SUBGROUPS_OFFSET)[:counts_end - ROW_SUBGROUPS_OFFSET]


cdef void add_log(bytearray state, log_t *log):
    """Where the log and its readers stand, and how much room each of its records gives back."""
    cdef uint64_t fields[FIELDS]
    cdef uint64_t position = log.oldest_position, offset = log.oldest_offset
    cdef uint32_t i, n = 0
    cdef cursor_t *c
    cdef log_record *r
    for value in (log.tail, log.tail_offset, log.count, log.oldest_position, log.oldest_offset, log.oldest_index,
                  log.header.tail, log.header.blocked, log.n_cursors, log.large_oldest, log.large_newest,
                  log.large_bytes):
        fields[n] = value
        n += 1
    state += (<char *>fields)[:n * sizeof(uint64_t)]
    while position < log.tail:
        offset = offset if offset < log.capacity else 0
        r = <log_record *>(log.ring + offset)
        fields[0] = offset
        state += (<char *>fields)[:sizeof(uint64_t)]
        if r.kind == LOG_JUMP:
            offset = 0
            continue
        position += record_stride(r.size)
        offset += record_stride(r.size)
    for i in range(log.n_cursors):
        c = &log.cursors[i]
        fields[0] = c.page.position
        fields[1] = c.position
        fields[2] = c.page.armed != c.rung
        fields[3] = c.keep_all
        state += (<char *>fields)[:4 * sizeof(uint64_t)]


cdef void add_subgroup(bytearray state, subgroup_t *s):
    """What only this node knows of a topic, with where its log and inboxes stand."""
    cdef uint64_t fields[FIELDS]
    cdef uint32_t i, n = 0
    cdef int k
    cdef uint64_t value
    cdef inbox_t *box
    cdef slot_header *slot
    for value in (s.closed, s.claimed, s.committed, s.published, s.limit, s.claim_waiting, s.n_inboxes, s.inbox_next,
                  s.received, s.deliver_index, s.deliver_rank, s.delivered, s.held, s.receipt_held, s.blocked,
                  s.durable, s.durable_before, s.damaged, s.nulls_unpublished, s.data_unpublished, s.larges):
        fields[n] = value
        n += 1
    state += (<char *>fields)[:n * sizeof(uint64_t)]
    if s.log != NULL:
        add_log(state, s.log)
    for i in range(s.n_senders):
        fields[0] = s.senders[i].received
        fields[1] = s.senders[i].null_until
        fields[2] = s.senders[i].taken
        fields[3] = s.senders[i].larges_found
        state += (<char *>fields)[:4 * sizeof(uint64_t)]
    state += (<char *>s.wanted_rung)[:s.n_members * sizeof(uint64_t)]
    if s.my_sender >= 0:
        state += (<char *>s.ready)[:s.ring * sizeof(uint64_t)]
    for i in range(s.n_inboxes):
        box = s.inboxes[i]
        n = 0
        for value in (box.header.committed, box.consumed, box.ack_index, box.ack_count, box.ack_next_index,
                      box.persist_index, box.persist_count, box.progress.acknowledged, box.progress.persisted,
                      box.header.space_waiting, box.space_rung, box.until, box.ended, <uint64_t>box.farewell,
                      box.farewell_tag, box.aside_tag, box.aside_at, box.aside_ns):
            fields[n] = value
            n += 1
        state += (<char *>fields)[:n * sizeof(uint64_t)]
        for value in range(box.consumed, min(box.header.committed, box.consumed + box.n_slots)):
            slot = <slot_header *>(box.slots + (value & (box.ring - 1)) * box.stride)
            state += (<char *>slot)[:sizeof(slot_header) + min(<uint64_t>slot.size, box.size_max)]
        for k in range(LARGES_OF_INBOX):
            if box.larges[k].token:
                state += (<char *>&box.larges[k])[:sizeof(box.larges[k])]
    for i in range(s.marks_head - s.marks_tail):
        fields[0] = s.mark_index[(s.marks_tail + i) % 1024]
        fields[1] = s.mark_delivered[(s.marks_tail + i) % 1024]
        state += (<char *>fields)[:2 * sizeof(uint64_t)]


def epoch_state(Epoch epoch not None):
    """All rows as this node sees them, and what it knows beyond them."""
    cdef bytearray state = bytearray()
    cdef node_t *node = &epoch.node
    cdef uint64_t fields[4]
    cdef uint64_t topics[TOPIC_WORDS]
    cdef uint32_t i
    for i in range(node.n_rows):
        add_row(state, node, i)
    for i in range(node.n_subgroups):
        if node.subgroups[i].mine != NULL:
            add_subgroup(state, &node.subgroups[i])
    fields[0] = node.wedged
    fields[1] = node.control_changed
    fields[2] = node.areas_pushed[0]
    fields[3] = node.areas_pushed[1]
    state += (<char *>fields)[:sizeof(fields)]
    # Marks count up for ever, so not they are in the state, but what they tell the next pass.
    look_changed(node, topics)
    state += (<char *>topics)[:sizeof(topics)]
    state += (<char *>node.control_seen)[:node.n_rows * sizeof(uint64_t)]
    if node.larges != NULL and node.larges.count:
        state += (<char *>node.larges.places)[:sizeof(node.larges.places)]
    return bytes(state)


def topics_to_visit(Epoch epoch not None):
    """Numbers of the topics that the next pass visits, in its order."""
    cdef uint64_t topics[TOPIC_WORDS]
    cdef uint32_t i
    look_changed(&epoch.node, topics)
    return [epoch.node.subgroups[i].topic_id for i in range(epoch.node.n_subgroups) if topics[i >> 6] >> (i & 63) & 1]
