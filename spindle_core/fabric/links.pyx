"""The queues of the simulated fabric: what was posted, and how it lands.

A link is one direction between two members of one epoch; what waits on it lands in order, one 64-byte line after the
other. Functions with a `net` are called under its lock, if threads are about at all.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from spindle_core.atomics cimport (
    fence_store_load,
    u32_exchange_acquire,
    u32_store_release,
    u64_store_release,
)
from spindle_core.bell cimport is_asleep
from spindle_core.events cimport event_ring, sched_yield
from spindle_core.fabric.fabric cimport POST_LANE_SHIFT, post_t
from spindle_core.fabric.lanes cimport CARRIES_NOT, CARRIES_SAME, carriage, carrier, fits, lane_t, note_last
from spindle_core.layout cimport CACHE_LINE


# ---- queues --------------------------------------------------------------------------------------------------------

cdef void lock(net_t *net) noexcept nogil:
    """Only the conformance suite has threads here; the world has one, and never waits."""
    while u32_exchange_acquire(&net.lock, 1):
        sched_yield()


cdef void unlock(net_t *net) noexcept nogil:
    u32_store_release(&net.lock, 0)


cdef inline uint64_t lines_of(uint64_t offset, uint64_t length) noexcept nogil:
    return (offset + length + CACHE_LINE - 1) // CACHE_LINE - offset // CACHE_LINE if length else 1


cdef inline uint64_t lines_left(const op_t *op) noexcept nogil:
    return lines_of(op.offset + op.landed, op.length - op.landed) if op.kind == OP_WRITE else 1


cdef void ring_node(net_t *net, link_t *link) noexcept nogil:
    cdef sim_t *target = link.target
    net.rung[link.target_node] += 1
    net.rings += 1
    if target != NULL and target.bell != NULL:
        fence_store_load()
        if is_asleep(target.bell):
            event_ring(target.bell_fd)
            net.woken += 1


cdef void append(link_t *link, op_t *op) noexcept nogil:
    op.next = NULL
    if link.first == NULL:
        link.first = op
    else:
        link.last.next = op
    link.last = op
    link.lines += lines_left(op)


cdef uint64_t lines_waiting(link_t *link) noexcept nogil:
    """On both ways."""
    return link.lines + (link.ahead.lines if link.ahead != NULL else 0)


cdef op_t *carrier_of(link_t *link, uint32_t flags, op_t **before) noexcept nogil:
    """The waiting write that may carry a post with these flags, or NULL; `before`: what stands before it."""
    cdef lane_t lane
    cdef op_t *op = link.first
    cdef uint64_t end = 0, one, whole = 1 if op != NULL and op.landed else 0
    lane.data = lane.guard = 0
    while op != NULL:
        end += 1
        if op.kind == OP_WRITE and op.length and op.flags >> POST_LANE_SHIFT == flags >> POST_LANE_SHIFT:
            note_last(&lane, op.flags, end)
        op = op.next
    one = carrier(&lane, flags, whole, end)
    before[0] = NULL
    if not one:
        return NULL
    op = link.first
    while one > 1:
        before[0] = op
        op = op.next
        one -= 1
    return op


cdef bint join(link_t *link, const post_t *p, const char *row) noexcept nogil:
    """Lets a waiting write carry this post, if its lane allows that; else False."""
    cdef op_t *before
    cdef op_t *found = carrier_of(link, p.flags, &before) if p.flags >> POST_LANE_SHIFT else NULL
    cdef op_t *longer
    cdef carriage how
    if found == NULL:
        return False
    how = fits(True, p.flags, found.offset, found.length, p.offset, p.length, ~<uint64_t>0)
    if how == CARRIES_NOT:
        return False
    if how == CARRIES_SAME:
        if found.carries:
            put_bytes(bytes_of(found), row + p.offset, p.length)
        return True
    longer = new_op(OP_WRITE, found.length + p.length if found.carries else 0)
    if longer == NULL:
        return False
    link.lines -= lines_left(found)
    memcpy(longer, found, sizeof(op_t) + (found.length if found.carries else 0))
    if longer.carries:
        put_bytes(bytes_of(longer) + longer.length, row + p.offset, p.length)
    longer.length += p.length
    link.lines += lines_left(longer)
    if before == NULL:
        link.first = longer
    else:
        before.next = longer
    if link.last == found:
        link.last = longer
    free(found)
    return True


cdef op_t *new_op(uint32_t kind, uint64_t room) noexcept nogil:
    cdef op_t *op = <op_t *>malloc(sizeof(op_t) + room)
    if op != NULL:
        memset(op, 0, sizeof(op_t))
        op.kind = kind
    return op


cdef char *bytes_of(op_t *op) noexcept nogil:
    return <char *>op + sizeof(op_t)


cdef void drop_all(net_t *net, link_t *link) noexcept nogil:
    """What waits is never seen."""
    cdef op_t *op
    while link.first != NULL:
        op = link.first
        link.first = op.next
        net.dropped += lines_left(op)
        free(op)
    link.last = NULL
    link.lines = 0
    if link.ahead != NULL:
        drop_all(net, link.ahead)


cdef void break_link(net_t *net, link_t *link) noexcept nogil:
    if link != NULL:
        drop_all(net, link)
        link.broken = True


cdef void leave_link(link_t *link) noexcept nogil:
    """The source goes, and its row with it: what is still to be read from it is read now."""
    cdef op_t *op
    cdef op_t *carrying
    cdef op_t **at = &link.first
    while at[0] != NULL:
        op = at[0]
        if op.kind == OP_WRITE and not op.carries:
            carrying = new_op(OP_WRITE, op.length)
            if carrying != NULL:
                memcpy(carrying, op, sizeof(op_t))
                carrying.carries = True
                put_bytes(bytes_of(carrying), link.row + op.offset, op.length)
                at[0] = carrying
                if link.last == op:
                    link.last = carrying
                free(op)
                op = carrying
        at = &op.next
    link.source = NULL
    link.row = NULL
    if link.ahead != NULL:
        leave_link(link.ahead)


cdef void remove_link(net_t *net, link_t *link) noexcept nogil:
    cdef link_t **at = &net.links[link.source_node * SIM_NODES_MAX + link.target_node]
    while at[0] != link:
        at = &at[0].next
    at[0] = link.next
    drop_all(net, link)
    free(link.ahead)
    free(link)


# ---- landing -------------------------------------------------------------------------------------------------------

cdef void put_bytes(char *to, const char *source, uint64_t n) noexcept nogil:
    """Aligned 8-byte words are never torn, whoever reads along."""
    cdef uint64_t word
    while n and <size_t>to & 7:
        to[0] = source[0]
        to += 1
        source += 1
        n -= 1
    while n >= 8:
        memcpy(&word, source, 8)
        u64_store_release(<uint64_t *>to, word)
        to += 8
        source += 8
        n -= 8
    while n:
        to[0] = source[0]
        to += 1
        source += 1
        n -= 1


cdef uint64_t land_lines(net_t *net, link_t *link, uint64_t n, bint ahead) noexcept nogil:
    """Lands up to `n` lines of a link; returns how many. `ahead`: first those that go ahead, else first the others."""
    cdef uint64_t landed
    if link.ahead == NULL:
        return land_way(net, link, n)
    landed = land_way(net, link.ahead if ahead else link, n)
    return landed + land_way(net, link if ahead else link.ahead, n - landed)


cdef uint64_t land_way(net_t *net, link_t *link, uint64_t n) noexcept nogil:
    cdef op_t *op
    cdef uint64_t landed = 0, size
    cdef char *source
    while landed < n and link.first != NULL:
        op = link.first
        landed += 1
        link.lines -= 1
        if op.kind == OP_WRITE and op.length:
            size = CACHE_LINE - (op.offset + op.landed) % CACHE_LINE
            if size > op.length - op.landed:
                size = op.length - op.landed
            source = bytes_of(op) if op.carries else <char *>link.row + op.offset
            if link.target != NULL:
                put_bytes(link.copy + op.offset + op.landed, source + op.landed, size)
            op.landed += size
            if op.landed < op.length:
                continue
        link.first = op.next
        if link.first == NULL:
            link.last = NULL
        if op.ring:
            ring_node(net, link)
        free(op)
    net.lines += landed
    return landed
