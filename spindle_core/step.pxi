"""One pass over all predicates, in one fixed order. Sans-IO: memory in, posts and wake-ups out.

No clock, allocation, system call or Python object is in here, and no wait but for a topic's lock, which application
threads hold for a few stores. step() goes on until something has to leave, leaves that in the node as data, and
returns; whoever drives it carries it out (effects) and calls it again, until the pass is over. The caller gives the
time. Only an embedded receiver's upcalls happen in the middle.

A pass has two halves: what is sent, received and acknowledged, topic by topic; then what is delivered and persisted. So
the acknowledgements of one topic, for which other nodes wait, don't wait for the deliveries of another topic, which
copy payloads. (`exchange_first` off: topic by topic, as in the paper.)

Why posts don't all leave at the end of a pass: columns are read when they are posted. A predicate that goes on before
its posts are out would change what they carry; and a count that grows meanwhile would overtake the slots it guards.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from spindle_core.atomics cimport (
    u32_exchange_acquire,
    u32_load_relaxed,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_release,
)
from spindle_core.counters cimport C_PUSHES
from spindle_core.fabric.fabric cimport LANE_BEAT, POST_AHEAD, POST_GUARD, POST_LANE_SHIFT, POST_RING
from spindle_core.layout cimport (
    CACHE_LINE,
    PROPOSAL_AREA_SIZE,
    ROW_AREAS_OFFSET,
    TRIM_AREA_SIZE,
    area_header,
    first_bit,
    row_header,
)
from spindle_core.state cimport TOPIC_WORDS, node_t, subgroup_t


cdef int CONTROL_HEARTBEAT = 0   # the first of CONTROL_COLUMNS (control.pyx), at the beginning of its line


cdef void push_area(node_t *node, uint32_t which, uint64_t offset, uint64_t room) noexcept nogil:
    """Posts the used bytes of one of my areas, if they are others than those posted last.

    They may be written again before they have left: a copy that is torn is told by its CRC, and a whole one follows.
    """
    cdef area_header *h = <area_header *>(node.rows[node.my_rank] + offset)
    cdef uint64_t version = u64_load_acquire(&h.version)
    cdef uint64_t used = sizeof(area_header) + <uint64_t>u32_load_relaxed(&h.size)
    if version == node.areas_pushed[which]:
        return
    node.areas_pushed[which] = version
    post_to_all(node, offset, used if used < room else room, 0)


cdef bint push_control(node_t *node) noexcept nogil:
    """Pushes my control columns and areas to everybody; False if the control thread is changing them just now.

    Areas first, then the columns that speak of them, then the line with the version that says that there is news: each
    in a post of its own, because only whole posts are in order.

    Holds the control lock meanwhile, but never waits for it. Without it an area might be written after it was looked at
    and before the post of the column that speaks of it. And a version that grew after the columns were copied would
    announce columns that the others don't have yet; when these came, they would bring no new version.
    """
    # SYNC POINT: control lock. Pairs with Epoch.hold_control().
    if u32_exchange_acquire(&node.control_lock, 1):
        return False
    node.control_seen[node.my_rank] = u64_load_relaxed(&(<row_header *>node.rows[node.my_rank]).control_version)
    push_area(node, 0, ROW_AREAS_OFFSET, PROPOSAL_AREA_SIZE)
    push_area(node, 1, ROW_AREAS_OFFSET + PROPOSAL_AREA_SIZE, TRIM_AREA_SIZE)
    post_to_all(node, CACHE_LINE, sizeof(row_header) - CACHE_LINE, 0)
    post_to_all(node, 0, CACHE_LINE, POST_RING)
    node.counters[C_PUSHES] += 1
    node.release = &node.control_lock    # while it is posted, too
    return True


cdef inline void beat(node_t *node) noexcept nogil:
    """Raises my heartbeat when it is time, as long as the control thread gives signs of life, too.

    Rings nobody. The clock may jump: the difference of two times is unsigned, so after the clock was set back a beat
    counts as due.
    """
    cdef uint64_t between_ns = u64_load_relaxed(&node.beat_ns)
    cdef uint32_t vouched
    cdef row_header *h
    if between_ns == 0 or node.now_ns - node.beat_at_ns < between_ns:
        return
    node.beat_at_ns = node.now_ns
    vouched = u32_load_relaxed(&node.vouched)
    if vouched != node.vouched_seen:
        node.vouched_seen = vouched
        node.beats = 0
    if node.beats >= u32_load_relaxed(&node.beats_max):
        return
    node.beats += 1
    h = <row_header *>node.rows[node.my_rank]
    u64_store_release(&h.control[CONTROL_HEARTBEAT], h.control[CONTROL_HEARTBEAT] + 1)
    if node.beat_posted:
        # Alone: what else is in its line may speak of areas that have not been posted yet.
        post_to_all(node, CACHE_LINE, sizeof(uint64_t), POST_AHEAD | POST_GUARD | LANE_BEAT << POST_LANE_SHIFT)


cdef inline int control(node_t *node) noexcept nogil:
    """Pushes my control columns when they changed, and notes when somebody else's did: those are the control
    thread's business."""
    cdef uint32_t i
    cdef uint64_t version
    cdef int changed = 0
    for i in range(node.n_rows):
        # SYNC POINT: control. Pairs with Epoch.push(): columns and areas are stored before the version grows.
        version = u64_load_acquire(&(<row_header *>node.rows[i]).control_version)
        if version != node.control_seen[i]:
            changed = 1          # also where the lock is taken: there is work left
            if i == node.my_rank:
                push_control(node)
            else:
                node.control_seen[i] = version
                node.control_changed = True
    return changed


cdef inline bint leaves(node_t *node) noexcept nogil:
    """Something has to be carried out."""
    return (node.n_posts or node.n_readers or node.n_peers or node.n_writers or node.release != NULL)


cdef int evaluate(node_t *node, subgroup_t *s, stage which) noexcept nogil:
    """One predicate of one topic; returns what it says it did. node.unfinished: it goes on when what it has left is
    carried out."""
    node.unfinished = False
    if which == STAGE_SEND:
        return send(node, s)
    if which == STAGE_RECEIVE:
        return receive(node, s)
    if which == STAGE_NULL_SEND:
        return null_send(node, s)
    if which == STAGE_DELIVER:
        return deliver(node, s)
    return persist(node, s)


cdef void begin_pass(node_t *node, uint64_t now_ns) noexcept nogil:
    node.now_ns = now_ns
    node.stage = STAGE_BEAT
    node.done = 0


cdef bint next_topic(node_t *node) noexcept nogil:
    """The next one of this pass; False if there is none."""
    cdef int i
    for i in range(TOPIC_WORDS):
        if node.topics[i]:
            node.place = <uint32_t>i << 6 | first_bit(node.topics[i])
            node.topics[i] &= node.topics[i] - 1
            node.done_there = 0
            return True
    return False


cdef bint visit(node_t *node, subgroup_t *s) noexcept nogil:
    """Goes on with one topic's predicates of this half, in their order; True when something has to be carried out
    first."""
    cdef uint64_t bit = <uint64_t>1 << (s.place & 63)
    cdef bint whole = node.delivers or not node.exchange_first
    cdef uint32_t last = STAGE_PERSIST if whole else STAGE_NULL_SEND
    cdef int done
    if node.wedged and node.stage < STAGE_PERSIST:
        node.stage = STAGE_PERSIST
    while node.stage <= last:
        done = evaluate(node, s, <stage>node.stage)
        node.done_there += done
        node.done += done
        node.stage += not node.unfinished
        if leaves(node):
            return True
    if whole:
        visited(node, s, node.done_there != 0 or node.exchanged[s.place >> 6] & bit)
    elif node.done_there:
        node.exchanged[s.place >> 6] |= bit
    return False


cdef bint step(node_t *node) noexcept nogil:
    """Goes on with the pass: True when something has to be carried out first, False when the pass is over.

    Then node.done is how much was done: 0 means that nothing will happen until somebody rings.
    """
    if node.stage == STAGE_BEAT:
        node.stage = STAGE_CONTROL
        beat(node)
        if leaves(node):
            return True
    if node.stage == STAGE_CONTROL:
        node.stage = STAGE_TOPICS
        node.done += control(node)
        if leaves(node):
            return True
    if node.stage == STAGE_TOPICS:
        take_changed(node, node.topics)
        memcpy(node.to_deliver, node.topics, sizeof(node.topics))
        memset(node.exchanged, 0, sizeof(node.exchanged))
        node.delivers = False
        node.stage = STAGE_NEXT
    while True:
        if node.stage == STAGE_NEXT:
            if not next_topic(node):
                if node.delivers or not node.exchange_first:
                    return False
                memcpy(node.topics, node.to_deliver, sizeof(node.topics))
                node.delivers = True
                continue
            if node.subgroups[node.place].mine == NULL:
                continue         # not a member
            node.stage = STAGE_DELIVER if node.delivers else STAGE_SEND
        if visit(node, &node.subgroups[node.place]):
            return True
        node.stage = STAGE_NEXT
