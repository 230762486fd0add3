"""The simulated fabric with a cost model: what a post costs its thread, and when its bytes are seen.

A member has one card with one port. Posts cost the posting thread time. What it has posted leaves packet by packet, the
peers in turn, at the port's pace. The switch in between is never the bottleneck; it queues what several members send to
one port, which takes it in at the same pace. When the latency has passed as well, the write is there as a whole. FIFO
per pair, as the fabric promises.

Left out: the switch's limited buffers and what fills up behind them, congestion control, retransmission, the card's
cache of connections, and its own time per request, which is far below that of posting it.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from spindle_lab.paper.clock cimport clock_add, clock_take, event_t
from spindle_core.fabric.fabric cimport POST_AHEAD, POST_INLINE_MAX, POST_RING, Fabric, post_t
from spindle_core.layout cimport slot_header
from spindle_core.memory cimport Mapping


# ---- the network ---------------------------------------------------------------------------------------------------

cdef uint64_t ps_of(value_ns) except? 0xFFFFFFFFFFFFFFFF:
    """Raises ValueError for what can't be a cost."""
    if not 0 <= value_ns < 1e12:
        raise ValueError(f"{value_ns} ns is no cost")
    return round(value_ns * 1000)


cdef int set_network(network_state_t *net, costs) except -1:
    """Takes the costs over from a parameters.Network. Raises ValueError."""
    net.costs.post_first = ps_of(costs.post_first_ns)
    net.costs.post_next = ps_of(costs.post_next_ns)
    net.costs.latency = ps_of(costs.latency_ns)
    net.costs.small = costs.small_bytes
    net.costs.small_per_byte = ps_of(costs.small_ns_per_byte)
    net.costs.per_byte = ps_of(1e9 / costs.bytes_s)
    net.costs.packet = costs.packet_bytes
    net.costs.packet_overhead = costs.packet_overhead_bytes
    net.costs.post_per_byte = ps_of(costs.post_ns_per_byte)
    net.costs.take_per_byte = ps_of(costs.take_ns_per_byte)
    net.costs.leave = ps_of(costs.leave_ns)
    net.costs.leave_post = ps_of(costs.leave_post_ns)
    net.costs.take = ps_of(costs.take_ns)
    net.costs.take_post = ps_of(costs.take_post_ns)
    return 0


cdef void free_network(network_state_t *net) noexcept:
    """Frees it, and all writes on their way."""
    cdef transfer_t *t
    cdef event_t event
    cdef uint32_t i, lane
    if net == NULL:
        return
    net.clock.failed = False
    while clock_take(&net.clock, &event):
        if event.kind == EVENT_POSTED or event.kind == EVENT_ARRIVED:
            free(event.what)
    for lane in range(2):
        for i in range(<uint32_t>(MEMBERS_MAX * MEMBERS_MAX)):
            while net.wires[lane][i].first != NULL:
                t = net.wires[lane][i].first
                net.wires[lane][i].first = t.next
                free(t)
    while net.free != NULL:
        t = net.free
        net.free = t.next
        free(t)
    free(net.clock.heap)
    free(net)


cdef void posted(network_state_t *net, transfer_t *t) noexcept nogil:
    """The card of the source has it."""
    cdef wire_t *w = t.wire
    cdef card_t *card = &net.cards[w.source]
    t.next = NULL
    if w.first == NULL:
        w.first = t
    else:
        w.last.next = t
    w.last = t
    if not w.active:
        activate(card, w)
    if not card.busy:
        card_next(net, card)


cdef inline void activate(card_t *card, wire_t *w) noexcept nogil:
    w.active = True
    w.next = NULL
    if card.first == NULL:
        card.first = w
    else:
        card.last.next = w
    card.last = w


cdef void card_next(network_state_t *net, card_t *card) noexcept nogil:
    """The port is free: the next packet leaves."""
    cdef wire_t *w = card.first
    cdef transfer_t *t
    cdef card_t *target
    cdef uint64_t now = net.clock.now_ps, size, pace, in_ps
    card.busy = w != NULL
    if w == NULL:
        return
    card.first = w.next
    w.active = False
    t = w.first
    size = t.left if t.left < net.costs.packet else net.costs.packet
    pace = (size + net.costs.packet_overhead) * net.costs.per_byte
    t.left -= size
    target = &net.cards[w.target]
    in_ps = now + net.costs.latency
    if in_ps < target.in_free_ps:
        in_ps = target.in_free_ps
    target.in_free_ps = in_ps + pace
    card.out_bytes += size
    card.out_busy_ps += pace
    if t.carries:
        card.counts_busy_ps += pace
    if t.left == 0:
        w.first = t.next
        # What a longer write takes besides its place on the wire holds up nobody else at the port.
        in_ps += pace + (t.length if t.length < net.costs.small else net.costs.small) * net.costs.small_per_byte
        if w.arrival_ps < in_ps:
            w.arrival_ps = in_ps
        clock_add(&net.clock, w.arrival_ps, EVENT_ARRIVED, t)
    if w.first != NULL:
        activate(card, w)
    clock_add(&net.clock, now + pace, EVENT_CARD, card)


cdef void land_slots(const slots_area_t *area, wire_t *w, uint64_t offset, uint64_t end) noexcept nogil:
    """The headers of the slots that begin in there."""
    cdef uint64_t at = area.begin + (offset - area.begin + area.stride - 1) // area.stride * area.stride
    while at < end:
        memcpy(w.copy + at, w.row + at, sizeof(slot_header))
        at += area.stride


cdef uint32_t arrived(network_state_t *net, transfer_t *t) noexcept nogil:
    """The write is seen; returns whose memory it is in."""
    cdef wire_t *w = t.wire
    cdef uint32_t i
    cdef slots_area_t *area
    if t.carries:
        memcpy(w.copy + t.offset, t.bytes, t.length)
    else:
        for i in range(net.n_areas):
            area = &net.areas[i]
            if area.begin <= t.offset < area.end:
                land_slots(area, w, t.offset, t.offset + t.length)
                break
        else:
            memcpy(w.copy + t.offset, w.row + t.offset, t.length)
    if t.acknowledges:
        net.acknowledgements += 1
        net.acknowledgements_ps += net.clock.now_ps - t.posted_ps
    t.next = net.free
    net.free = t
    return w.target


# ---- a member's end ------------------------------------------------------------------------------------------------

cdef transfer_t *make_transfer(end_t *e, const post_t *post) noexcept nogil:
    """NULL, and the clock has failed, where there is no memory."""
    cdef network_state_t *net = e.net
    cdef transfer_t *t = net.free
    if t != NULL:
        net.free = t.next
    else:
        t = <transfer_t *>malloc(sizeof(transfer_t))
        if t == NULL:
            net.clock.failed = True
            return NULL
    t.next = NULL
    t.wire = &net.wires[1 if net.ahead and post.flags & POST_AHEAD else 0][e.rank * MEMBERS_MAX + post.peer]
    t.offset = post.offset
    t.length = t.left = post.length
    t.rings = (post.flags & POST_RING) != 0
    t.acknowledges = (post.flags & POST_AHEAD) != 0
    t.carries = t.length <= POST_INLINE_MAX
    if t.carries:
        memcpy(t.bytes, t.wire.row + t.offset, t.length)
    return t


cdef bint joins(end_t *e, const post_t *post) noexcept nogil:
    """As in tcp_queue: a post to this peer that has not left carries this one along. A count is carried by the last one
    of the same range, unless slots wait behind that, which it may guard; slots by those posted last, if they touch."""
    cdef transfer_t *t = e.first[post.peer]
    cdef transfer_t *same = NULL
    while t != NULL:
        if t.offset == post.offset and t.length == post.length:
            same = t
        elif same != NULL and not t.carries and not same.acknowledges:
            same = NULL
        t = t.next
    if same != NULL:
        if same.carries:
            memcpy(same.bytes, same.wire.row + same.offset, same.length)
        return True
    t = e.last[post.peer]
    if t == NULL or t.carries or t.offset + t.length != post.offset:
        return False
    t.length += post.length
    t.left = t.length
    return True


cdef inline void leaves(network_state_t *net, transfer_t *t, uint64_t at_ps) noexcept nogil:
    net.writes += 1
    net.bytes += t.length
    t.posted_ps = at_ps
    clock_add(&net.clock, at_ps, EVENT_POSTED, t)


cdef int timed_post_list(void *self, const post_t *posts, uint32_t n) noexcept nogil:
    cdef end_t *e = <end_t *>self
    cdef network_state_t *net = e.net
    cdef uint64_t at_ps = e.start(e.poster, posts[0].offset)
    cdef uint32_t i, peer
    cdef bint waits, first = True
    cdef transfer_t *t
    for i in range(n):
        waits = net.costs.leave > 0 or (net.once and posts[i].flags & POST_AHEAD)
        if not waits or net.costs.leave:
            at_ps += net.costs.post_first if first else net.costs.post_next
            first = False
        peer = posts[i].peer
        if waits and joins(e, &posts[i]):
            continue
        t = make_transfer(e, &posts[i])
        if t == NULL:
            return 0
        if not waits:
            at_ps += t.length * net.costs.post_per_byte
            leaves(net, t, at_ps)
        elif e.first[peer] == NULL:
            e.n_waiting += 1
            e.first[peer] = e.last[peer] = t
        else:
            e.last[peer].next = t
            e.last[peer] = t
    e.spend(e.poster, at_ps, n, posts[0].offset)
    return 0


cdef void acknowledgements_leave(end_t *e) noexcept nogil:
    """Those of a pass, in one list."""
    cdef network_state_t *net = e.net
    cdef uint64_t at_ps = e.start(e.poster, 0), offset = 0
    cdef uint32_t peer, n = 0
    cdef transfer_t *t
    cdef transfer_t *following
    for peer in range(net.n):
        t = e.first[peer]
        e.first[peer] = e.last[peer] = NULL
        while t != NULL:
            following = t.next
            at_ps += (net.costs.post_next if n else net.costs.post_first) + t.length * net.costs.post_per_byte
            offset = t.offset
            n += 1
            leaves(net, t, at_ps)
            t = following
    e.spend(e.poster, at_ps, n, offset)


cdef void timed_leave(void *self) noexcept nogil:
    """The end of a pass: what was posted in it leaves, peer by peer."""
    cdef end_t *e = <end_t *>self
    cdef network_state_t *net = e.net
    cdef uint64_t at_ps, offset
    cdef uint32_t peer
    cdef transfer_t *t
    cdef transfer_t *following
    if e.n_waiting == 0:
        return
    e.n_waiting = 0
    if net.costs.leave == 0:
        acknowledgements_leave(e)
        return
    for peer in range(net.n):
        if e.first[peer] == NULL:
            continue
        t = e.first[peer]
        offset = t.offset
        at_ps = e.start(e.poster, offset) + net.costs.leave
        while t != NULL:
            at_ps += net.costs.leave_post + t.length * net.costs.post_per_byte
            t = t.next
        t = e.first[peer]
        e.first[peer] = e.last[peer] = NULL
        while t != NULL:
            following = t.next
            leaves(net, t, at_ps)
            t = following
        e.spend(e.poster, at_ps, 0, offset)


cdef int timed_ring(void *self, uint32_t peer) noexcept nogil:
    """Wakes the peer's predicate thread if it sleeps (actors)."""
    cdef end_t *e = <end_t *>self
    e.ring(e.poster, peer)
    return 0


cdef void timed_cut(void *self, uint32_t peer) noexcept nogil:
    pass


cdef class TimedFabric(Fabric):
    """One member's end; made by Cluster."""

    def __init__(self, rank, n_peers):
        self.rank = self.end.rank = rank
        self.n_peers = n_peers
        self.copies = []
        self.table.self = &self.end
        self.table.post_list = timed_post_list
        self.table.leave = timed_leave
        self.table.ring = timed_ring
        self.table.cut = timed_cut

    def __dealloc__(self):
        cdef transfer_t *t
        for peer in range(MEMBERS_MAX):
            while self.end.first[<uint32_t>peer] != NULL:
                t = self.end.first[<uint32_t>peer]
                self.end.first[<uint32_t>peer] = t.next
                free(t)

    def make_row(self, str name, size):
        self.row = Mapping.private(size)
        return self.row

    def connect(self, peer, TimedFabric other not None, Mapping row not None):
        """From now on what `peer` posts reaches this member; returns its row as it is seen here."""
        cdef wire_t *w = &self.end.net.wires[0][<uint32_t>peer * MEMBERS_MAX + self.end.rank]
        cdef Mapping copy = Mapping.private(row.size)
        memcpy(copy.base, row.base, 8 * 6)       # what peers tell each other when they connect: the row's identity
        w.source = peer
        w.target = self.end.rank
        w.row = row.base
        w.copy = copy.base
        self.end.net.wires[1][<uint32_t>peer * MEMBERS_MAX + self.end.rank] = w[0]
        self.copies.append(copy)
        return copy
