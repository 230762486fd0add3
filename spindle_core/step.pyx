"""One pass over all predicates, in one fixed order. Sans-IO: memory in, posts out.

No clock, allocation, lock on a cold object, Python object, file or blocking call is in here: the predicate thread
drives it, and so does the simulator. The caller gives the time.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.atomics cimport u64_load_acquire
from spindle_core.counters cimport C_PUSHES
from spindle_core.fabric.fabric cimport POST_RING, post_t
from spindle_core.layout cimport ROW_AREAS_OFFSET, ROW_SUBGROUPS_OFFSET, row_header
from spindle_core.predicates.deliver cimport deliver
from spindle_core.predicates.null_send cimport null_send
from spindle_core.predicates.persist cimport persist
from spindle_core.predicates.receive cimport receive
from spindle_core.predicates.send cimport send
from spindle_core.sst cimport flush_posts
from spindle_core.state cimport POSTS_MAX, node_t, subgroup_t


cdef void push_control(node_t *node) noexcept nogil:
    """Pushes my control columns and areas to everybody: the areas first, then the header whose version guards them."""
    cdef uint32_t i, k
    cdef post_t *p
    if node.n_posts + 2 * node.n_rows > POSTS_MAX:
        flush_posts(node)
    for k in range(2):
        for i in range(node.n_rows):
            if i == node.my_rank:
                continue
            p = &node.posts[node.n_posts]
            p.peer = i
            p.flags = POST_RING if k else 0
            p.offset = 0 if k else ROW_AREAS_OFFSET
            p.length = sizeof(row_header) if k else ROW_SUBGROUPS_OFFSET - ROW_AREAS_OFFSET
            node.n_posts += 1
    node.counters[C_PUSHES] += 1
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
            node.control_seen[i] = version
            changed = 1
            if i == node.my_rank:
                push_control(node)
            else:
                node.control_changed = True
    return changed


cdef int step(node_t *node, uint64_t now_ns) noexcept nogil:
    """Returns how much was done: 0 means that nothing will happen until somebody rings."""
    cdef uint32_t i
    cdef int done = control(node)
    cdef subgroup_t *s
    node.now_ns = now_ns
    for i in range(node.n_subgroups):
        s = &node.subgroups[i]
        if s.mine == NULL:
            continue             # not a member
        if not node.wedged:
            done += send(node, s)
            done += receive(node, s)
            done += null_send(node, s)
            done += deliver(node, s)
        done += persist(node, s)
    return done
