"""Simulated fabric: all links between the nodes of one process, for whoever plays the world.

What a node posts waits in a queue, one per ordered pair of nodes and epoch. The world lands it: a number of 64-byte
lines, so that a write can be seen half done, or be cut off in the middle when somebody crashes. There is no clock and
no randomness in here; a run is what the world does, in its order.

Two kinds of rows:

- copied (`copies=True`): each node has private copies of its peers' rows, as with any fabric that leaves the host. A
  longer post may carry what the row holds when it lands (`late`), a short one what it held at the post (fabric.pxd).
- shared: peers read the owner's row itself, as with shared memory; a post is a doorbell.

Rules: FIFO per ordered pair and epoch, never across epochs. What still lands of an old epoch lands in that epoch's
memory, and nowhere once that is gone. `rung` says who has something to do: a node that isn't rung is not to be run.
"""
cimport cython
from libc.errno cimport EAGAIN, EINVAL, EPIPE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from spindle_core.atomics cimport fence_store_load, monotonic_ns, u32_load_relaxed, u32_store_relaxed
from spindle_core.events cimport event_clear, sched_yield
from spindle_core.fabric.fabric cimport (
    COMPLETION_CUT,
    MAIL_SIZE_MAX,
    MAIL_SLOTS,
    POST_INLINE_MAX,
    POST_RING,
    Fabric,
    completion_t,
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
    SIM_MEMORIES_MAX,
    SIM_NODES_MAX,
    append,
    break_link,
    bytes_of,
    complete,
    land_lines,
    leave_link,
    link_t,
    lock,
    net_t,
    new_op,
    op_t,
    put_bytes,
    remove_link,
    ring_node,
    sim_t,
    unlock,
)
from spindle_core.layout cimport NODES_MAX, bell_page
from spindle_core.memory cimport Mapping

OP_NAMES = ("write", "ring", "read", "swap", "add", "mail")


# ---- the fabric's table --------------------------------------------------------------------------------------------

cdef inline void settle(net_t *net, link_t *link) noexcept nogil:
    """Where nothing waits for the world."""
    if net.immediate and not link.held:
        land_lines(net, link, <uint64_t>-1)


cdef int sim_post_list(void *self, const post_t *posts, uint32_t n) noexcept nogil:
    cdef sim_t *s = <sim_t *>self
    cdef net_t *net = s.net
    cdef const post_t *p
    cdef link_t *link
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
        op = new_op(OP_WRITE, p.length if p.length <= POST_INLINE_MAX or not net.late else 0)
        if op == NULL:
            break_link(net, link)
            continue
        op.ring = True
        op.offset = p.offset
        op.length = p.length
        op.carries = p.length <= POST_INLINE_MAX or not net.late
        if op.carries:
            put_bytes(bytes_of(op), s.row + p.offset, p.length)
        append(link, op)
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
                woken -= u32_load_relaxed(&link.target.bell.asleep)   # it will be woken
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
        u32_store_relaxed(&s.bell.asleep, 1)
        fence_store_load()


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
                land_lines(s.net, s.into[i], <uint64_t>-1)
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
        u32_store_relaxed(&s.bell.asleep, 0)


# ---- the world's side ----------------------------------------------------------------------------------------------

cdef class SimNetwork:
    """All links of one run.

    `copies`: peers have copies of rows, else they read the owner's. `late`: posts of more than POST_INLINE_MAX bytes
    carry what the row holds when they land. `fences`: who cuts a peer is reached by nothing of it any more either.
    `immediate`: nothing waits. Nodes are named by their ids; where `epoch` is left out, a pair's links of all epochs
    are meant, the oldest first.
    """

    def __init__(self, *, copies=True, late=True, fences=True, immediate=False):
        self.net.copies = copies
        self.net.late = late
        self.net.fences = fences
        self.net.immediate = immediate
        self.places = {}
        self.node_ids = []

    @property
    def copies(self):
        return bool(self.net.copies)

    cdef uint32_t place(self, node_id) except? 0xFFFFFFFF:
        place = self.places.get(node_id)
        if place is None:
            if self.net.n_nodes == SIM_NODES_MAX:
                raise ValueError(f"a simulated network has {SIM_NODES_MAX} nodes at most")
            place = self.places[node_id] = self.net.n_nodes
            self.node_ids.append(node_id)
            self.net.n_nodes += 1
        return place

    cdef link_t *find(self, source, target, epoch) except? NULL:
        """The pair's link of that epoch; without one its oldest with something that may land, or NULL."""
        cdef link_t *link = self.net.links[self.place(source) * SIM_NODES_MAX + self.place(target)]
        while link != NULL:
            if link.epoch == epoch if epoch is not None else link.lines and not link.held:
                return link
            link = link.next
        return NULL

    def pending(self, source, target, epoch=None):
        """Lines that wait between two nodes, held ones included."""
        cdef link_t *link = self.net.links[self.place(source) * SIM_NODES_MAX + self.place(target)]
        cdef uint64_t lines = 0
        while link != NULL:
            if epoch is None or link.epoch == epoch:
                lines += link.lines
            link = link.next
        return lines

    def links_with_pending(self):
        """[(source, target, epoch), ...] of all links with something that may land, in a fixed order."""
        cdef list found = []
        cdef uint32_t i, k
        cdef link_t *link
        for i in range(self.net.n_nodes):
            for k in range(self.net.n_nodes):
                link = self.net.links[i * SIM_NODES_MAX + k]
                while link != NULL:
                    if link.lines and not link.held:
                        found.append((self.node_ids[i], self.node_ids[k], link.epoch))
                    link = link.next
        return found

    def pairs_with_pending(self):
        """[(source, target), ...] of all pairs with something that may land, in a fixed order."""
        cdef list found = []
        cdef uint32_t i, k
        cdef link_t *link
        for i in range(self.net.n_nodes):
            for k in range(self.net.n_nodes):
                link = self.net.links[i * SIM_NODES_MAX + k]
                while link != NULL:
                    if link.lines and not link.held:
                        found.append((self.node_ids[i], self.node_ids[k]))
                        break
                    link = link.next
        return found

    def head(self, source, target, epoch=None):
        """What lands next: (epoch, kind, offset, bytes, bytes already landed), or None."""
        cdef link_t *link = self.find(source, target, epoch)
        if link == NULL or link.first == NULL:
            return None
        op = link.first
        return link.epoch, OP_NAMES[op.kind], op.offset, op.length, op.landed

    def land(self, source, target, n_lines=1, epoch=None):
        """Lands up to so many lines; returns how many. Nothing lands on a held link."""
        cdef uint64_t left = n_lines, done = 0
        cdef link_t *link
        while left:
            link = self.find(source, target, epoch)
            if link == NULL or link.held or not link.lines:
                break
            lock(&self.net)
            landed = land_lines(&self.net, link, left)
            unlock(&self.net)
            left -= landed
            done += landed
        return done

    def land_all(self):
        """Lands everything that isn't held; returns the number of lines."""
        cdef uint32_t i, k
        cdef uint64_t landed = 0
        cdef link_t *link
        lock(&self.net)
        for i in range(self.net.n_nodes):
            for k in range(self.net.n_nodes):
                link = self.net.links[i * SIM_NODES_MAX + k]
                while link != NULL:
                    if not link.held:
                        landed += land_lines(&self.net, link, <uint64_t>-1)
                    link = link.next
        unlock(&self.net)
        return landed

    def drop(self, source, target, epoch=None):
        """The rest of what waits vanishes, maybe in the middle of a write, and so does all that is posted later in
        these epochs: a connection that lost something is over. Later epochs have new ones."""
        cdef link_t *link = self.net.links[self.place(source) * SIM_NODES_MAX + self.place(target)]
        while link != NULL:
            if epoch is None or link.epoch == epoch:
                break_link(&self.net, link)
            link = link.next

    def crash(self, node_id):
        """drop() of everything from and to a node, which is no longer rung; it may come back in later epochs."""
        for other in self.node_ids:
            self.drop(node_id, other)
            self.drop(other, node_id)
        self.clear_rung(node_id)

    def hold(self, source, target, epoch=None):
        """Nothing lands between these two until release(); new epochs' links are not held."""
        self._hold(source, target, epoch, True)

    def release(self, source, target, epoch=None):
        self._hold(source, target, epoch, False)

    def _hold(self, source, target, epoch, held):
        cdef link_t *link = self.net.links[self.place(source) * SIM_NODES_MAX + self.place(target)]
        while link != NULL:
            if epoch is None or link.epoch == epoch:
                link.held = held
            link = link.next

    def rung(self, node_id):
        """How often the node was rung since clear_rung(): it has something to do."""
        return self.net.rung[self.place(node_id)]

    def clear_rung(self, node_id):
        self.net.rung[self.place(node_id)] = 0

    def ring(self, node_id):
        """A doorbell out of nowhere, or one twice."""
        self.net.rung[self.place(node_id)] += 1

    def nodes_rung(self):
        """Ids of the nodes that have something to do, in a fixed order."""
        cdef uint32_t i
        return [self.node_ids[i] for i in range(self.net.n_nodes) if self.net.rung[i]]

    def lose_completions(self, source, target, n=1):
        """The next reads or atomics between these two happen, and nobody hears of it."""
        self.net.lose[self.place(source) * SIM_NODES_MAX + self.place(target)] += n

    def fail_completions(self, source, target, n=1):
        """The next reads or atomics between these two happen, and are reported as cut."""
        self.net.fail[self.place(source) * SIM_NODES_MAX + self.place(target)] += n

    def counts(self):
        """{posts, bytes, lines, rings, dropped, unconnected}; unconnected: posts to who had not attached the row."""
        net = &self.net
        return {"posts": net.posts, "bytes": net.bytes, "lines": net.lines, "rings": net.rings,
                "dropped": net.dropped, "unconnected": net.unconnected}

    def __dealloc__(self):
        cdef int i
        for i in range(SIM_NODES_MAX * SIM_NODES_MAX):
            while self.net.links[i] != NULL:
                remove_link(&self.net, self.net.links[i])


@cython.no_gc_clear     # its end needs the network and the row
cdef class SimFabric(Fabric):
    """One node's end of its links in one epoch; `node_ids` by rank. A bell is only needed to wait()."""

    def __init__(self, SimNetwork network not None, epoch, rank, node_ids, Mapping bell=None, int bell_fd=-1):
        cdef sim_t *s = &self.state
        n = len(node_ids)
        if not 0 <= rank < n <= NODES_MAX:
            raise ValueError(f"rank {rank} of {n}: must be 0 <= rank < peers <= {NODES_MAX}")
        self.network = network
        self.epoch = epoch
        self.rank = s.rank = rank
        self.n_peers = s.n_peers = n
        self.memories = []
        self.kept = [bell]
        s.net = &network.net
        s.node = network.place(node_ids[rank])
        s.epoch = epoch
        s.bell_fd = bell_fd
        if bell is not None:
            s.bell = <bell_page *>bell.base
        s.out = <link_t **>calloc(n, sizeof(link_t *))
        s.into = <link_t **>calloc(n, sizeof(link_t *))
        s.cut = <uint32_t *>calloc(n, sizeof(uint32_t))
        if s.out == NULL or s.into == NULL or s.cut == NULL:
            raise MemoryError()
        self.table.self = s
        self.table.post_list = sim_post_list
        self.table.post_read = sim_post_read
        self.table.post_compare_swap = sim_post_compare_swap
        self.table.post_fetch_add = sim_post_fetch_add
        self.table.send = sim_send
        self.table.receive = sim_receive
        self.table.poll = sim_poll
        self.table.ring = sim_ring
        self.table.cut = sim_cut
        self.table.prepare_wait = sim_prepare_wait
        self.table.wait = sim_wait
        self.table.finish_wait = sim_finish_wait

    def make_row(self, str name, size):
        """Private memory: all that see it are in this process."""
        self.row = Mapping.private(size)
        self.state.row = self.row.base
        self.state.row_size = self.row.size
        return self.row

    def connect(self, peer, SimFabric other not None, Mapping row not None):
        """From now on what `peer` posts reaches this node; returns its row as it is seen here.

        A copy starts with what the peers tell each other when they connect, the row's identity, and is zero else.
        """
        cdef link_t *link
        cdef link_t **at
        cdef Mapping copy = row
        self.check_peer(peer)
        if other.epoch != self.epoch or other.rank != peer or other.network is not self.network:
            raise ValueError(f"rank {other.rank} of epoch {other.epoch} is not rank {peer} of epoch {self.epoch} here")
        if self.state.into[<uint32_t>peer] != NULL:
            raise ValueError(f"rank {peer} is connected already")
        if self.network.net.copies:
            copy = Mapping.private(row.size)
            memcpy(copy.base, row.base, 8 * 6)   # up to layout_hash
        link = <link_t *>calloc(1, sizeof(link_t))
        if link == NULL:
            raise MemoryError()
        link.source = &other.state
        link.target = &self.state
        link.epoch = self.epoch
        link.source_node = other.state.node
        link.target_node = self.state.node
        link.source_rank = other.rank
        link.target_rank = self.rank
        link.row = row.base
        link.copy = copy.base if copy is not row else NULL
        at = &self.network.net.links[link.source_node * SIM_NODES_MAX + link.target_node]
        while at[0] != NULL:
            at = &at[0].next
        at[0] = link
        other.state.out[self.rank] = link
        self.state.into[<uint32_t>peer] = link
        self.kept.append((peer, copy))
        return copy

    def row_of(self, peer):
        """The peer's row as it is seen here, for reading."""
        self.check_peer(peer)
        return next(memoryview(copy) for rank, copy in self.kept[1:] if rank == peer)

    def register(self, Mapping memory not None):
        """Registers memory for one-sided access by peers: returns its key."""
        key = len(self.memories)
        if key >= SIM_MEMORIES_MAX:
            raise ValueError(f"{SIM_MEMORIES_MAX} registered memories are the limit")
        self.memories.append(memory)
        self.state.memories[<uint32_t>key] = memory.base
        self.state.memory_sizes[<uint32_t>key] = memory.size
        return key

    def __dealloc__(self):
        cdef sim_t *s = &self.state
        cdef uint32_t i
        cdef op_t *op
        if s.out == NULL or s.into == NULL:
            return
        for i in range(s.n_peers):
            if s.out[i] != NULL:
                leave_link(s.out[i])           # the last words of an epoch land after it is over here
                if s.out[i].target == NULL:
                    remove_link(s.net, s.out[i])
            if s.into[i] != NULL:
                break_link(s.net, s.into[i])
                s.into[i].target = NULL
                if s.into[i].source == NULL:
                    remove_link(s.net, s.into[i])
        while s.mail_first != NULL:
            op = s.mail_first
            s.mail_first = op.next
            free(op)
        free(s.out)
        free(s.into)
        free(s.cut)
