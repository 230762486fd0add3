"""What a node of the simulated fabric calls: the functions of its table (fabric.pxd).

A post becomes an operation in the queue of its link (links.pyx); where nothing waits for the world, it lands at once.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from spindle_core.atomics cimport monotonic_ns
from spindle_core.bell cimport fall_asleep, is_asleep, wake_up
from spindle_core.events cimport event_clear, sched_yield
from spindle_core.fabric.fabric cimport POST_AHEAD, POST_INLINE_MAX, POST_RING, fabric_t, post_t
from spindle_core.fabric.links cimport (
    OP_RING,
    OP_WRITE,
    append,
    break_link,
    bytes_of,
    join,
    land_lines,
    link_t,
    lock,
    net_t,
    new_op,
    op_t,
    put_bytes,
    ring_node,
    sim_t,
    unlock,
)


cdef inline void settle(net_t *net, link_t *link) noexcept nogil:
    """Lands what was posted at once, where nothing waits for the world."""
    if net.immediate and not link.held:
        land_lines(net, link, <uint64_t>-1, False)


cdef int sim_post_list(void *self, const post_t *posts, uint32_t n) noexcept nogil:
    cdef sim_t *s = <sim_t *>self
    cdef net_t *net = s.net
    cdef const post_t *p
    cdef link_t *link
    cdef link_t *way
    cdef op_t *op
    cdef uint32_t i
    cdef uint64_t woken = net.woken
    lock(net)
    for i in range(n):
        p = &posts[i]
        link = s.out[p.peer]
        net.posts += 1
        if link == NULL:
            net.unconnected += 1
            continue
        if link.broken or link.target == NULL:
            net.dropped += 1
            continue
        if link.copy == NULL:
            if p.flags & POST_RING:
                ring_node(net, link)
            continue
        if p.offset > s.row_size or p.length > s.row_size - p.offset:
            continue
        net.bytes += p.length
        if net.on_post != NULL:
            unlock(net)
            net.on_post(s.node, p.offset, p.length)
            lock(net)
        way = link.ahead if p.flags & POST_AHEAD and link.ahead != NULL else link
        if net.joins and join(way, p, s.row):
            continue
        op = new_op(OP_WRITE, p.length if p.length <= POST_INLINE_MAX or not net.late else 0)
        if op == NULL:
            break_link(net, link)
            continue
        op.ring = True
        op.flags = p.flags
        op.offset = p.offset
        op.length = p.length
        op.carries = p.length <= POST_INLINE_MAX or not net.late
        if op.carries:
            put_bytes(bytes_of(op), s.row + p.offset, p.length)
        append(way, op)
        settle(net, link)
    woken = net.woken - woken
    unlock(net)
    return <int>woken


cdef int sim_ring(void *self, uint32_t peer) noexcept nogil:
    cdef sim_t *s = <sim_t *>self
    cdef link_t *link = s.out[peer]
    cdef op_t *op
    cdef uint64_t woken = s.net.woken
    if link == NULL or link.broken or link.target == NULL:
        return 0
    lock(s.net)
    if link.copy == NULL or s.net.immediate:
        ring_node(s.net, link)
    else:
        op = new_op(OP_RING, 0)   # behind what was posted: who is rung finds it
        if op != NULL:
            op.ring = True
            append(link, op)
            if link.target.bell != NULL:
                woken -= is_asleep(link.target.bell)   # it will be woken
    woken = s.net.woken - woken
    unlock(s.net)
    return <int>woken


cdef void sim_cut(void *self, uint32_t peer) noexcept nogil:
    cdef sim_t *s = <sim_t *>self
    lock(s.net)
    break_link(s.net, s.out[peer])
    if s.net.fences:
        break_link(s.net, s.into[peer])
    unlock(s.net)


cdef void sim_prepare_wait(void *self) noexcept nogil:
    cdef sim_t *s = <sim_t *>self
    if s.bell != NULL:
        fall_asleep(s.bell)


cdef int sim_wait(void *self, int64_t timeout_ns) noexcept nogil:
    """For tests with threads: while a node waits, what was posted to it arrives. The world never calls it."""
    cdef sim_t *s = <sim_t *>self
    cdef uint64_t until = monotonic_ns() + <uint64_t>timeout_ns
    cdef uint64_t rung
    cdef uint32_t i
    while True:
        lock(s.net)
        for i in range(s.n_peers):
            if s.into[i] != NULL and not s.into[i].held:
                land_lines(s.net, s.into[i], <uint64_t>-1, False)
        rung = s.net.rung[s.node]
        s.net.rung[s.node] = 0
        unlock(s.net)
        if rung:
            event_clear(s.bell_fd)
            return 1
        if timeout_ns >= 0 and monotonic_ns() >= until:
            return 0
        sched_yield()


cdef void sim_finish_wait(void *self) noexcept nogil:
    cdef sim_t *s = <sim_t *>self
    if s.bell != NULL:
        wake_up(s.bell)


cdef void set_table(fabric_t *table, sim_t *s) noexcept:
    """Makes the table that of this end."""
    table.self = s
    if s.net.copies:
        table.range_cost = s.net.range_cost
        table.push_bytes = s.net.push_bytes
    table.post_list = sim_post_list
    table.ring = sim_ring
    table.cut = sim_cut
    table.prepare_wait = sim_prepare_wait
    table.wait = sim_wait
    table.finish_wait = sim_finish_wait
