"""What a node of the simulated fabric calls: the functions of its table (fabric.pxd).

A post becomes an operation in the queue of its link (links.pyx); where nothing waits for the world, it lands at once.
Reads and atomics complete when the world has landed them. Each is sure of a place among the completions before it is
queued.
"""
from libc.errno cimport EAGAIN, EINVAL, EPIPE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from spindle_core.atomics cimport monotonic_ns
from spindle_core.bell cimport fall_asleep, is_asleep, wake_up
from spindle_core.events cimport event_clear, sched_yield
from spindle_core.fabric.fabric cimport (
    COMPLETION_CUT,
    MAIL_SIZE_MAX,
    MAIL_SLOTS,
    POST_AHEAD,
    POST_INLINE_MAX,
    POST_RING,
    completion_t,
    fabric_t,
    post_t,
)
from spindle_core.fabric.links cimport (
    OP_ADD,
    OP_MAIL,
    OP_READ,
    OP_RING,
    OP_SWAP,
    OP_WRITE,
    SIM_COMPLETIONS_MAX,
    append,
    break_link,
    bytes_of,
    complete,
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


cdef int post_one_sided(sim_t *s, uint32_t peer, op_t *op) noexcept nogil:
    cdef link_t *link = s.out[peer]
    if op == NULL or s.open_ops >= SIM_COMPLETIONS_MAX:
        free(op)
        return -EAGAIN
    lock(s.net)
    s.open_ops += 1
    if s.cut[peer] or link == NULL or link.broken:
        complete(s, peer, op.cookie, COMPLETION_CUT, 0)
        free(op)
    else:
        append(link, op)
        settle(s.net, link)
    unlock(s.net)
    return 0


cdef op_t *one_sided(uint32_t kind, uint32_t key, uint64_t offset, uint64_t length, uint64_t cookie) noexcept nogil:
    cdef op_t *op = new_op(kind, 0)
    if op != NULL:
        op.key = key
        op.offset = offset
        op.length = length
        op.cookie = cookie
    return op


cdef int sim_post_read(void *self, uint32_t peer, uint32_t key, uint64_t offset, void *into, uint64_t length,
                       uint64_t cookie) noexcept nogil:
    cdef op_t *op = one_sided(OP_READ, key, offset, length, cookie)
    if op != NULL:
        op.into = into
    return post_one_sided(<sim_t *>self, peer, op)


cdef int sim_post_compare_swap(void *self, uint32_t peer, uint32_t key, uint64_t offset, uint64_t expected,
                               uint64_t desired, uint64_t cookie) noexcept nogil:
    cdef op_t *op = one_sided(OP_SWAP, key, offset, 8, cookie)
    if op != NULL:
        op.expected = expected
        op.desired = desired
    return post_one_sided(<sim_t *>self, peer, op)


cdef int sim_post_fetch_add(void *self, uint32_t peer, uint32_t key, uint64_t offset, uint64_t value,
                            uint64_t cookie) noexcept nogil:
    cdef op_t *op = one_sided(OP_ADD, key, offset, 8, cookie)
    if op != NULL:
        op.desired = value
    return post_one_sided(<sim_t *>self, peer, op)


cdef int sim_send(void *self, uint32_t peer, const void *data, uint32_t length) noexcept nogil:
    cdef sim_t *s = <sim_t *>self
    cdef link_t *link = s.out[peer]
    cdef op_t *op
    if s.cut[peer] or link == NULL or link.broken:
        return -EPIPE
    if length > MAIL_SIZE_MAX:
        return -EINVAL
    if link.mail_open >= MAIL_SLOTS:
        return -EAGAIN
    op = new_op(OP_MAIL, length)
    if op == NULL:
        return -EAGAIN
    op.length = length
    op.ring = True
    memcpy(bytes_of(op), data, length)
    lock(s.net)
    link.mail_open += 1
    append(link, op)
    settle(s.net, link)
    unlock(s.net)
    return 0


cdef int sim_receive(void *self, uint32_t *peer, void *into, uint32_t capacity) noexcept nogil:
    cdef sim_t *s = <sim_t *>self
    cdef op_t *op
    cdef int size = -EAGAIN
    lock(s.net)
    while s.mail_first != NULL and size == -EAGAIN:
        op = s.mail_first
        if op.length > capacity:
            size = -EINVAL
            break
        s.mail_first = op.next
        if not s.cut[op.key]:
            size = <int>op.length
            peer[0] = op.key
            memcpy(into, bytes_of(op), op.length)
            if s.into[op.key] != NULL:
                s.into[op.key].mail_open -= 1
        free(op)
    unlock(s.net)
    return size


cdef int sim_poll(void *self, completion_t *completions, int n) noexcept nogil:
    cdef sim_t *s = <sim_t *>self
    cdef int i = 0
    lock(s.net)
    while i < n and s.completions_tail < s.completions_head:
        completions[i] = s.completions[s.completions_tail % SIM_COMPLETIONS_MAX]
        s.completions_tail += 1
        s.open_ops -= 1
        i += 1
    unlock(s.net)
    return i


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
    s.cut[peer] = 1
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
    table.post_read = sim_post_read
    table.post_compare_swap = sim_post_compare_swap
    table.post_fetch_add = sim_post_fetch_add
    table.send = sim_send
    table.receive = sim_receive
    table.poll = sim_poll
    table.ring = sim_ring
    table.cut = sim_cut
    table.prepare_wait = sim_prepare_wait
    table.wait = sim_wait
    table.finish_wait = sim_finish_wait
