"""One pass over all predicates, in one fixed order. Sans-IO: memory in, posts out.

No clock, allocation, lock on a cold object, Python object, file or blocking call is in here: the predicate thread
drives it, and so does the simulator. The caller gives the time.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.activity cimport take_changed, visited
from spindle_core.atomics cimport (
    u32_exchange_acquire,
    u32_load_relaxed,
    u32_store_release,
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
from spindle_core.predicates.deliver cimport deliver
from spindle_core.predicates.null_send cimport null_send
from spindle_core.predicates.persist cimport persist
from spindle_core.predicates.receive cimport receive
from spindle_core.predicates.send cimport send
from spindle_core.sst cimport flush_posts, post_to_all
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

    Under the lock, which is never waited for here: an area that is written after it was looked at must not have its
    column in the post that follows, and a version that grows after the columns were copied would be news of columns
    that the others don't have, who would then take the next push for the same news.
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
    flush_posts(node)
    u32_store_release(&node.control_lock, 0)
    return True


cdef inline void beat(node_t *node, uint64_t now_ns) noexcept nogil:
    """Raises my heartbeat when it is time, as long as the control thread gives signs of life, too.

    Rings nobody. `now_ns` may jump: the difference of two times is taken without a sign, so a clock that was set back
    counts as one that is due.
    """
    cdef uint64_t between_ns = u64_load_relaxed(&node.beat_ns)
    cdef uint32_t vouched
    cdef row_header *h
    if between_ns == 0 or now_ns - node.beat_at_ns < between_ns:
        return
    node.beat_at_ns = now_ns
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
        flush_posts(node)


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


cdef inline int visit(node_t *node, subgroup_t *s) noexcept nogil:
    """All predicates of one topic, in their order; returns how much was done."""
    cdef int done = 0
    if s.mine == NULL:
        return 0                 # not a member
    if not node.wedged:
        done += send(node, s)
        done += receive(node, s)
        done += null_send(node, s)
        done += deliver(node, s)
    done += persist(node, s)
    visited(node, s, done != 0)
    return done


cdef int step(node_t *node, uint64_t now_ns) noexcept nogil:
    """Returns how much was done: 0 means that nothing will happen until somebody rings."""
    cdef int i, done = 0
    cdef uint64_t topics[TOPIC_WORDS]
    cdef uint64_t left
    if node.fabric.enter != NULL:
        done = node.fabric.enter(node.fabric.self)
    if node.past != NULL:
        node.past.enter(node.past.self)
        node.past.leave(node.past.self)
    beat(node, now_ns)
    done += control(node)
    node.now_ns = now_ns
    take_changed(node, topics)
    for i in range(TOPIC_WORDS):
        left = topics[i]
        while left:
            done += visit(node, &node.subgroups[<uint32_t>i << 6 | first_bit(left)])
            left &= left - 1
    if node.fabric.leave != NULL:
        node.fabric.leave(node.fabric.self)
    return done
