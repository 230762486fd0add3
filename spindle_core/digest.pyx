"""The state of an epoch as bytes: equal bytes mean that it will behave in the same way from here on.

For exhaustive simulation, which follows each state only once. So nothing may be left out that the predicates or the
membership machine look at, and nothing be in that is different in two runs which come to the same: addresses, counters,
times.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.activity cimport look_changed
from spindle_core.epoch cimport Epoch
from spindle_core.layout cimport (
    CACHE_LINE,
    PROPOSAL_AREA_SIZE,
    ROW_AREAS_OFFSET,
    ROW_SUBGROUPS_OFFSET,
    TRIM_AREA_SIZE,
    align_up,
    area_header,
    row_header,
)
from spindle_core.state cimport TOPIC_WORDS, node_t, subgroup_t

cdef enum:
    FIELDS = 64


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
                state += (row + s.slots_offset)[:s.window * s.stride]
    state += (row + ROW_SUBGROUPS_OFFSET)[:counts_end - ROW_SUBGROUPS_OFFSET]


cdef void add_subgroup(bytearray state, subgroup_t *s):
    """What only this node knows of a topic, with where its log and inboxes stand."""
    cdef uint64_t fields[FIELDS]
    cdef uint32_t i, n = 0
    cdef uint64_t value
    for value in (s.closed, s.claimed, s.committed, s.published, s.limit, s.claim_waiting, s.n_inboxes, s.inbox_next,
                  s.received, s.deliver_index, s.deliver_rank, s.delivered, s.held, s.blocked, s.durable,
                  s.durable_before, s.nulls_unpublished, s.data_unpublished):
        fields[n] = value
        n += 1
    if s.log != NULL:
        for value in (s.log.tail, s.log.count, s.log.oldest_position, s.log.header.tail, s.log.header.blocked,
                      s.log.n_cursors):
            fields[n] = value
            n += 1
    state += (<char *>fields)[:n * sizeof(uint64_t)]
    for i in range(s.n_senders):
        fields[0] = s.senders[i].received
        fields[1] = s.senders[i].null_until
        fields[2] = s.senders[i].taken
        state += (<char *>fields)[:3 * sizeof(uint64_t)]
    state += (<char *>s.wanted_rung)[:s.n_members * sizeof(uint64_t)]
    if s.my_sender >= 0:
        state += (<char *>s.ready)[:s.window * sizeof(uint64_t)]
    for i in range(s.n_inboxes):
        box = s.inboxes[i]
        n = 0
        for value in (box.header.committed, box.consumed, box.ack_index, box.ack_count, box.ack_next_index,
                      box.persist_index, box.persist_count, box.progress.acknowledged, box.progress.persisted,
                      box.header.space_waiting, box.space_rung):
            fields[n] = value
            n += 1
        state += (<char *>fields)[:n * sizeof(uint64_t)]
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
    # Not the marks, which count: what they tell the next pass.
    look_changed(node, topics)
    state += (<char *>topics)[:sizeof(topics)]
    state += (<char *>node.control_seen)[:node.n_rows * sizeof(uint64_t)]
    return bytes(state)


def topics_to_visit(Epoch epoch not None):
    """Numbers of the topics that the next pass visits, in its order."""
    cdef uint64_t topics[TOPIC_WORDS]
    cdef uint32_t i
    look_changed(&epoch.node, topics)
    return [epoch.node.subgroups[i].topic_id for i in range(epoch.node.n_subgroups) if topics[i >> 6] >> (i & 63) & 1]
