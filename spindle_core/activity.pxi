"""Activity: which topics a pass has to visit, so that idle ones cost it nothing.

A visit to a topic does something only if, since the last one, a peer has changed its line of the topic, an application
has committed a message, another thread of this process has claimed, committed, synced or changed a binding, or that
last visit has done something itself. Each of these is announced, or looked for:

- A peer whose row is mapped here marks the topic in its row, after the change and before it rings: a pass looks at one
  word of each such row.
- A row that is a copy changes as writes land, which nobody announces. A pass adds up each line; as columns only grow,
  the sum grows whenever one of them has.
- Of each inbox the pass looks at the count of commits.
- Other threads of this process call `note`. Whoever parks the predicate thread may have changed anything: that notes
  all topics.
- A visit that has done something is followed by another. So is one that has left delivery waiting for a reader, whose
  ring doesn't say for which topic; and one that has left delivery before a damaged slot, which may still become whole.

Rules: a change is stored, then announced here, and only then does its author look whether the node sleeps. A node that
goes to sleep says so first and looks here afterwards. So the pass that follows a ring finds what the ring was for. Only
the thread that drives the predicates marks and takes.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc
from libc.string cimport memset

from spindle_core.atomics cimport (
    fence_store_load,
    u64_exchange_acquire,
    u64_fetch_or_acq_rel,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_release,
)
from spindle_core.inbox cimport FAREWELL_DUE, inbox_t
from spindle_core.layout cimport (
    ACTIVITY_MARKS,
    ACTIVITY_PLACE_BITS,
    ROW_ACTIVITY_OFFSET,
    ROW_SUBGROUPS_OFFSET,
    subgroup_columns,
)
from spindle_core.state cimport LEVEL_UNORDERED, TOPIC_WORDS, door_t, node_t, subgroup_t


cdef inline void add(uint64_t *topics, uint32_t place) noexcept nogil:
    topics[place >> 6] |= <uint64_t>1 << (place & 63)


cdef inline void add_all(node_t *node, uint64_t *topics) noexcept nogil:
    cdef uint32_t i, whole = node.n_subgroups >> 6
    for i in range(whole):
        topics[i] = <uint64_t>-1
    if node.n_subgroups & 63:
        topics[whole] |= (<uint64_t>1 << (node.n_subgroups & 63)) - 1


cdef int make_activity(node_t *node) noexcept nogil:
    """Allocates what is kept here for the node's rows and topics; -1 if there is no memory."""
    cdef uint64_t topics = node.n_subgroups if node.n_subgroups else 1
    cdef uint32_t i
    node.marks_seen = <uint64_t *>calloc(node.n_rows, sizeof(uint64_t))
    node.row_shared = <uint8_t *>calloc(node.n_rows, 1)
    node.lines_seen = <uint64_t *>calloc(node.n_rows * topics, sizeof(uint64_t))
    if node.marks_seen == NULL or node.row_shared == NULL or node.lines_seen == NULL:
        return -1
    for i in range(node.n_subgroups):
        if node.subgroups[i].level == LEVEL_UNORDERED and node.subgroups[i].my_sender >= 0:
            add(node.apart, i)
    return make_doors(node)


cdef void free_activity(node_t *node) noexcept nogil:
    free(node.marks_seen)
    free(node.row_shared)
    free(node.lines_seen)
    free(node.doors)


cdef int make_doors(node_t *node) noexcept nogil:
    """Collects the inboxes that the topics have now: a pass looks at those. -1 if there is no memory."""
    cdef uint32_t i, k, n = 0
    cdef door_t *doors
    for i in range(node.n_subgroups):
        n += node.subgroups[i].n_inboxes
    doors = <door_t *>realloc(node.doors, (n if n else 1) * sizeof(door_t))
    if doors == NULL:
        return -1
    node.doors = doors
    node.n_doors = n
    n = 0
    for i in range(node.n_subgroups):
        for k in range(node.subgroups[i].n_inboxes):
            doors[n].box = node.subgroups[i].inboxes[k]
            doors[n].place = i
            n += 1
    return 0


cdef inline uint64_t *marks_of(node_t *node, uint32_t rank) noexcept nogil:
    return <uint64_t *>(node.rows[rank] + ROW_ACTIVITY_OFFSET)


cdef void mark(node_t *node, subgroup_t *s) noexcept nogil:
    """My line of this topic has changed; before the post that says so."""
    cdef uint64_t n = node.activity
    node.activity = n + 1
    # SYNC POINT: activity. Pairs with changed_of(): columns, and what they guard, are stored before the mark.
    u64_store_release(&marks_of(node, node.my_rank)[n % ACTIVITY_MARKS], (n + 1) << ACTIVITY_PLACE_BITS | s.place)


cdef void note(node_t *node, subgroup_t *s) noexcept nogil:
    """For other threads than the one that drives the predicates, after they have changed something of this topic."""
    cdef uint64_t bit = <uint64_t>1 << (s.place & 63)
    # SYNC POINT: note. Dekker with take_changed(): the change is visible before this look. A note that is still there
    # has yet to be taken, and the visit after that sees the change.
    fence_store_load()
    if not u64_load_relaxed(&node.noted[s.place >> 6]) & bit:
        u64_fetch_or_acq_rel(&node.noted[s.place >> 6], bit)


cdef void note_all(node_t *node) noexcept nogil:
    cdef uint64_t topics[TOPIC_WORDS]
    cdef int i
    memset(topics, 0, sizeof(topics))
    add_all(node, topics)
    for i in range(TOPIC_WORDS):
        if topics[i]:
            u64_fetch_or_acq_rel(&node.noted[i], topics[i])


cdef uint64_t changed_of(node_t *node, uint32_t rank, uint64_t *topics) noexcept nogil:
    """Adds the topics that a mapped row's owner has marked since the last take; returns how many marks it has made.

    Looks at no more words than there are. That finds every mark made before this look, and an owner that goes on
    marking can't keep us here.
    """
    cdef uint64_t *marks = marks_of(node, rank)
    cdef uint64_t seen = node.marks_seen[rank], word
    cdef uint32_t _
    for _ in range(ACTIVITY_MARKS):
        # SYNC POINT: activity. Pairs with mark().
        word = u64_load_acquire(&marks[seen % ACTIVITY_MARKS])
        if word >> ACTIVITY_PLACE_BITS <= seen:
            break
        if word >> ACTIVITY_PLACE_BITS == seen + 1:
            add(topics, <uint32_t>word & ((1 << ACTIVITY_PLACE_BITS) - 1))
        else:
            add_all(node, topics)      # overtaken: what was in this word before is not known any more
        seen = word >> ACTIVITY_PLACE_BITS
    return seen


cdef inline uint64_t line_sum(const subgroup_columns *c) noexcept nogil:
    """Relaxed: only whether it has grown counts, and the visit reads each column anew, as it must."""
    return (u64_load_relaxed(&c.published) + u64_load_relaxed(&c.silent_from) + u64_load_relaxed(&c.silent_until)
            + u64_load_relaxed(&c.received) + u64_load_relaxed(&c.delivered) + u64_load_relaxed(&c.persisted)
            + u64_load_relaxed(&c.delivered_wanted))


cdef void changed_in_copy(node_t *node, uint32_t rank, uint64_t *topics, bint take) noexcept nogil:
    """Adds the topics whose lines have changed in this copy of a row."""
    cdef subgroup_columns *lines = <subgroup_columns *>(node.rows[rank] + ROW_SUBGROUPS_OFFSET)
    cdef uint64_t *seen = &node.lines_seen[<uint64_t>rank * node.n_subgroups]
    cdef subgroup_t *s
    cdef uint64_t found
    cdef uint32_t i
    for i in range(node.n_subgroups):
        found = line_sum(&lines[i])
        if node.apart[i >> 6] >> (i & 63) & 1:
            s = &node.subgroups[i]
            found += u64_load_relaxed(<uint64_t *>(node.rows[rank] + s.counts_offset) + s.my_sender)
        if found != seen[i]:
            add(topics, i)
            if take:
                seen[i] = found


cdef inline bint has_commits(inbox_t *box) noexcept nogil:
    """As in take_inbox(), which reads the count again, and checks it."""
    if box.farewell == FAREWELL_DUE or (box.aside_tag and box.aside_at == box.consumed):
        return True
    return (u64_load_relaxed(&box.header.committed) if not box.ended else box.until) != box.consumed


cdef void collect(node_t *node, uint64_t *topics, bint take) noexcept nogil:
    cdef uint32_t i
    cdef uint64_t seen
    for i in range(node.n_rows):
        if i == node.my_rank or node.rows[i] == NULL:
            continue
        if node.row_shared[i]:
            seen = changed_of(node, i, topics)
            if take:
                node.marks_seen[i] = seen
        else:
            changed_in_copy(node, i, topics, take)
    for i in range(node.n_doors):
        if has_commits(node.doors[i].box):
            add(topics, node.doors[i].place)


cdef void take_changed(node_t *node, uint64_t *topics) noexcept nogil:
    """Collects the topics that this pass has to visit, and takes their announcements."""
    cdef int i
    for i in range(TOPIC_WORDS):
        topics[i] = node.again[i]
        if u64_load_relaxed(&node.noted[i]):
            # SYNC POINT: note. Dekker with note(): taken before the visit looks at what was noted.
            topics[i] |= u64_exchange_acquire(&node.noted[i], 0)
            fence_store_load()
    if node.skip_idle:
        collect(node, topics, True)
    else:
        add_all(node, topics)


cdef void look_changed(node_t *node, uint64_t *topics) noexcept nogil:
    """The same without taking: all that the next pass depends on besides the rows and the topics' own fields."""
    cdef int i
    for i in range(TOPIC_WORDS):
        topics[i] = node.again[i] | u64_load_relaxed(&node.noted[i])
    collect(node, topics, False)


cdef void visited(node_t *node, subgroup_t *s, bint again) noexcept nogil:
    """After a visit that has done something (`again`), or found nothing to do."""
    cdef uint64_t bit = <uint64_t>1 << (s.place & 63)
    cdef uint32_t word = s.place >> 6, r
    cdef bint expects = False
    if again or s.blocked or s.damaged:
        node.again[word] |= bit
    else:
        node.again[word] &= ~bit
    if not (s.held or s.blocked or s.level == LEVEL_UNORDERED):
        for r in range(s.n_senders):
            if s.senders[r].received > s.deliver_index + (r < s.deliver_rank):
                expects = True
                break
    if expects:
        node.expecting[word] |= bit
    else:
        node.expecting[word] &= ~bit
