"""What waits to be sent over one reliable connection, and how it becomes lists of work requests.

Posts wait in a queue as long as the epochs need it, an entry for each work request, joined with what waits as their
lanes allow, and leave in lists, one doorbell of the device for each. The device's own send queue never overflows: `sent
- done` work requests are in it, and never more than it was made for. Every `signal_every`-th one is signalled, four in
a full queue, so that some completion is always on its way then; they complete in order, so one completion stands for
all work requests before it. A short post is copied into its entry as it is at the post, and goes inline where the
device can, else from registered bytes of its place in the device's queue; a longer one is read from the row when it is
sent.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from spindle_core.fabric.fabric cimport POST_INLINE_MAX
from spindle_core.fabric.lanes cimport carrier, carry, fits, lane_of, lane_t, note_last
from spindle_core.fabric.verbs_api cimport (
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WR_RDMA_WRITE,
    IBV_WR_RDMA_WRITE_WITH_IMM,
    htonl,
    ibv_post_send,
    ibv_send_wr,
    ibv_sge,
)
from spindle_core.fabric.verbs_link cimport (
    ENTRY_END,
    ENTRY_GOODBYE,
    ENTRY_GRANT,
    ENTRY_MARK,
    ENTRY_RING,
    ENTRY_WRITE,
    VERBS_FAILED_BEHIND,
    VERBS_FAILED_ERROR,
    VERBS_LIST_MAX,
    WORD_GOODBYE,
    WORD_GRANT,
    WORD_LIMIT,
    WORD_RING,
    WORD_SHIFT,
    fail,
    id_of,
    link_gone,
    link_to,
    take_sent,
    verbs_entry,
    verbs_epoch_t,
    verbs_link_t,
    verbs_t,
    verbs_target_t,
)


cdef inline verbs_entry *entry(verbs_link_t *p, uint64_t number) noexcept nogil:
    return &p.queue[(number - p.base) & (p.capacity - 1)]


cdef verbs_entry *link_put(verbs_t *s, verbs_link_t *p, uint32_t kind, const void *data, uint32_t length
                           ) noexcept nogil:
    """The next entry, with a payload of at most POST_INLINE_MAX bytes, if any; NULL where the queue is full, after
    which the peer is given up."""
    cdef verbs_entry *e
    if p.last == p.sent:
        p.base = p.last          # a queue that runs empty stays where the cache has it
    if p.last - p.sent >= p.capacity:
        take_sent(s)
        link_flush(s, p)
        if p.failed or p.last - p.sent >= p.capacity:
            fail(s, p, VERBS_FAILED_BEHIND)
            return NULL
    e = entry(p, p.last)
    e.kind = kind
    e.length = length
    e.local = NULL
    e.remote = p.remote_page     # of what writes nothing: some place of the peer
    e.remote_key = p.remote_page_key
    e.local_key = 0
    if data != NULL:
        memcpy(e.data, data, length)
    p.last += 1
    if p.last - p.sent > s.n_waiting_max:
        s.n_waiting_max = p.last - p.sent
    return e


cdef inline bint join(verbs_epoch_t *o, uint32_t peer, verbs_entry *e, const lane_t *lane, uint32_t flags,
                      uint64_t offset, uint64_t length) noexcept nogil:
    """A work request that waits carries this write as well, if its lane allows, and it is of the same epoch."""
    cdef verbs_target_t *to = &o.targets[peer]
    if e.kind != ENTRY_WRITE or e.local_key != o.row_key or e.remote_key != to.remote_row_key or not carry(
            fits(lane != NULL, flags, e.remote, e.length, to.remote_row + offset, length, o.node.message_max),
            &e.local, e.data, &e.length, o.row, offset, length):
        return False
    o.node.n_merged += 1
    return True


cdef inline verbs_entry *put_write(verbs_epoch_t *o, uint32_t peer, verbs_link_t *p, const void *data, uint64_t offset,
                                   uint32_t length) noexcept nogil:
    cdef verbs_entry *e = link_put(o.node, p, ENTRY_WRITE, data, length)
    if e != NULL:
        e.local_key = o.row_key
        e.remote = o.targets[peer].remote_row + offset
        e.remote_key = o.targets[peer].remote_row_key
    return e


cdef int link_write(verbs_epoch_t *o, uint32_t peer, bint ahead, uint32_t flags, uint64_t offset, uint64_t length
                    ) noexcept nogil:
    """Queues a write of a range of my row, or lets one that waits carry it, as its lane allows (fabric.pxd)."""
    cdef verbs_link_t *p = link_to(o, peer, ahead)
    cdef verbs_entry *e = NULL
    cdef lane_t *lane = lane_of(&o.lanes[(peer + (o.n_peers if ahead else 0)) * o.n_lanes], o.n_lanes, flags)
    cdef uint64_t part, one = carrier(lane, flags, p.sent, p.last)
    o.node.n_posts += 1
    if length == 0:
        p.owes_ring = 1
        return 0
    if one and join(o, peer, entry(p, one - 1), lane, flags, offset, length):
        return 0
    if length <= POST_INLINE_MAX:
        if put_write(o, peer, p, o.row + offset, offset, <uint32_t>length) == NULL:
            return -1
        length = 0
    while length:
        part = length if length < o.node.message_max else o.node.message_max
        e = put_write(o, peer, p, NULL, offset, <uint32_t>part)
        if e == NULL:
            return -1
        e.local = o.row + offset
        offset += part
        length -= part
    note_last(lane, flags, p.last)
    return 0


cdef void link_finish(verbs_t *s, verbs_link_t *p, bint ahead, uint64_t epoch) noexcept nogil:
    """The peer is told, behind all that was written, that this was the last of that epoch. It costs no receive: the
    word lies in the peer's page, and nobody waits for it."""
    cdef verbs_entry *e = link_put(s, p, ENTRY_END, &epoch, sizeof(epoch))
    if e != NULL and ahead:
        e.remote += sizeof(uint64_t)


cdef bint link_longer(verbs_link_t *p, verbs_entry *queue, uint64_t capacity) noexcept:
    """Takes a longer queue over, with what waits; False: it is no longer than the one that there is. While nobody
    drives."""
    cdef uint64_t number
    if capacity <= p.capacity:
        return False
    for number in range(p.sent, p.last):
        memcpy(&queue[number - p.sent], entry(p, number), sizeof(verbs_entry))
    free(p.queue)
    p.queue = queue
    p.capacity = capacity
    p.base = p.sent
    return True


cdef inline uint32_t word(verbs_t *s, verbs_link_t *p, uint32_t kind) noexcept nogil:
    """What goes with a ring, a grant or a goodbye: all the credit that the peer has now."""
    if kind == WORD_GRANT:
        p.grant_after = p.told + 1
        p.granting = 0
    p.told = s.rings + p.rings_taken
    return htonl(kind << WORD_SHIFT | <uint32_t>(p.told & WORD_LIMIT))


cdef inline bint grant_due(verbs_t *s, verbs_link_t *p) noexcept nogil:
    return not p.granting and p.told - p.rings_taken <= s.rings // 2 and p.rings_taken >= p.grant_after


cdef bint fill(verbs_t *s, verbs_link_t *p, uint64_t number, uint32_t k) noexcept nogil:
    """Makes entry `number` the work request list[k]; returns whether it is signalled."""
    cdef verbs_entry *e = entry(p, number)
    cdef uint64_t place = number & (s.depth - 1)
    cdef ibv_send_wr *w = &s.list[k]
    cdef ibv_sge *part = &s.parts[k]
    # Whoever waits for the end of an epoch or of all waits for these to complete.
    cdef bint signalled = (e.kind == ENTRY_MARK or e.kind == ENTRY_END or e.kind == ENTRY_GOODBYE
                           or (number + 1) % s.signal_every == 0)
    w.wr_id = id_of(s, p, number)
    w.next = &s.list[k + 1]
    w.sg_list = part
    w.num_sge = 1 if e.length else 0
    w.send_flags = IBV_SEND_SIGNALED if signalled else 0
    part.addr = <uint64_t>e.local
    part.length = e.length
    part.lkey = e.local_key
    if e.local == NULL and 0 < e.length <= s.inline_max:
        part.addr = <uint64_t>e.data
        w.send_flags |= IBV_SEND_INLINE
        s.n_inlined += 1
    elif e.local == NULL and e.length:
        memcpy(p.bytes + place * POST_INLINE_MAX, e.data, e.length)
        part.addr = <uint64_t>(p.bytes + place * POST_INLINE_MAX)
        part.lkey = p.bytes_key
    w.opcode = IBV_WR_RDMA_WRITE
    w.wr.rdma.remote_addr = e.remote
    w.wr.rdma.rkey = e.remote_key
    if e.kind == ENTRY_GRANT:
        w.opcode = IBV_WR_RDMA_WRITE_WITH_IMM
        w.imm_data = word(s, p, WORD_GRANT)
        s.n_grants += 1
    elif e.kind == ENTRY_GOODBYE:
        w.opcode = IBV_WR_RDMA_WRITE_WITH_IMM
        w.imm_data = word(s, p, WORD_GOODBYE)
    s.n_bytes += e.length
    return signalled


cdef int post_some(verbs_t *s, verbs_link_t *p) noexcept nogil:
    """Hands over one list, as far as the device's queue has room; returns its length, -1 where that failed."""
    cdef uint64_t room = s.depth - (p.sent - p.done), n = p.last - p.sent, k
    cdef int last_write = -1
    cdef uint32_t kind
    cdef ibv_send_wr *bad = NULL
    if n > room:
        n = room
    if n > VERBS_LIST_MAX:
        n = VERBS_LIST_MAX
    if n == 0:
        return 0
    for k in range(n):
        if fill(s, p, p.sent + k, <uint32_t>k):
            p.signalled = p.sent + k + 1
            s.n_signalled += 1
        kind = entry(p, p.sent + k).kind
        if kind == ENTRY_WRITE or kind == ENTRY_RING:
            last_write = <int>k
            p.owes_ring = 1
        elif kind == ENTRY_GRANT or kind == ENTRY_GOODBYE:
            last_write = -1      # wakes the peer for all before it
            p.owes_ring = 0
    s.list[n - 1].next = NULL
    if last_write >= 0 and p.rung < p.rung_limit:
        s.list[last_write].opcode = IBV_WR_RDMA_WRITE_WITH_IMM
        s.list[last_write].imm_data = word(s, p, WORD_RING)
        p.rung += 1
        p.owes_ring = 0
        s.n_rings += 1
    elif last_write >= 0:
        s.n_starved += 1
    p.sent += n
    s.n_work_requests += n
    s.n_doorbells += 1
    if ibv_post_send(p.qp, &s.list[0], &bad) != 0:
        fail(s, p, VERBS_FAILED_ERROR)
        return -1
    return <int>n


cdef void link_flush(verbs_t *s, verbs_link_t *p) noexcept nogil:
    """Hands over what waits, as much as the device's queue takes, and the ring that is owed, if there is credit."""
    while not link_gone(p):
        if p.sent == p.last and p.owes_ring and p.rung < p.rung_limit:
            link_put(s, p, ENTRY_RING, NULL, 0)
        if post_some(s, p) <= 0:
            return


cdef void link_drive(verbs_t *s, verbs_link_t *p) noexcept nogil:
    """As link_flush; then the credit and the mark that are due."""
    link_flush(s, p)
    if grant_due(s, p) and p.last - p.sent < p.capacity:
        link_put(s, p, ENTRY_GRANT, NULL, 0)
        p.granting = 1
        link_flush(s, p)
    if s.draining and p.sent == p.last and p.signalled < p.sent:
        link_put(s, p, ENTRY_MARK, NULL, 0)
        link_flush(s, p)
