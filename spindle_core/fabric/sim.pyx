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
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from spindle_core.fabric.fabric cimport Fabric
from spindle_core.fabric.links cimport (
    SIM_NODES_MAX,
    break_link,
    land_lines,
    leave_link,
    lines_waiting,
    link_t,
    lock,
    remove_link,
    sim_t,
    unlock,
)
from spindle_core.fabric.sim_table cimport set_table
from spindle_core.layout cimport NODES_MAX, bell_page
from spindle_core.memory cimport Mapping

OP_NAMES = ("write", "ring")


# ---- the world's side ----------------------------------------------------------------------------------------------

cdef class SimNetwork:
    """All links of one run.

    `copies`: peers have copies of rows, else they read the owner's. `late`: posts of more than POST_INLINE_MAX bytes
    carry what the row holds when they land. `joins`: what waits takes later posts of its lane along. `range_cost`: of a
    further post, in bytes, and `push_bytes`, after which a count follows: as in fabric.pxd. `fences`: once a node has
    cut a peer, nothing of that peer reaches it either. `immediate`: nothing waits. `ahead`: POST_AHEAD has its own way.
    Nodes are named by their ids; where `epoch` is left out, a pair's links of all epochs are meant, the oldest first.
    """

    def __init__(self, *, copies=True, late=True, fences=True, immediate=False, joins=True, ahead=True, range_cost=64,
                 push_bytes=4096):
        self.net.copies = copies
        self.net.late = late
        self.net.fences = fences
        self.net.immediate = immediate
        self.net.joins = joins
        self.net.ahead = ahead
        self.net.range_cost = range_cost
        self.net.push_bytes = push_bytes
        self.places = {}
        self.node_ids = []

    @property
    def copies(self):
        return bool(self.net.copies)

    def call_before_posts(self, size_t function):
        """Has a C function, void (*)(uint32_t node, uint64_t offset, uint64_t length), called before each post is
        queued: it can do what other threads might do just then (0: none)."""
        self.net.on_post = <void (*)(uint32_t, uint64_t, uint64_t) noexcept nogil>function

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
            if link.epoch == epoch if epoch is not None else lines_waiting(link) and not link.held:
                return link
            link = link.next
        return NULL

    def pending(self, source, target, epoch=None):
        """Lines that wait between two nodes, held ones included."""
        cdef link_t *link = self.net.links[self.place(source) * SIM_NODES_MAX + self.place(target)]
        cdef uint64_t lines = 0
        while link != NULL:
            if epoch is None or link.epoch == epoch:
                lines += lines_waiting(link)
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
                    if lines_waiting(link) and not link.held:
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
                    if lines_waiting(link) and not link.held:
                        found.append((self.node_ids[i], self.node_ids[k]))
                        break
                    link = link.next
        return found

    def head(self, source, target, epoch=None):
        """What lands next: (epoch, kind, offset, bytes, bytes already landed), or None; what goes ahead comes last."""
        cdef link_t *link = self.find(source, target, epoch)
        if link != NULL and link.first == NULL:
            link = link.ahead
        if link == NULL or link.first == NULL:
            return None
        op = link.first
        return link.epoch, OP_NAMES[op.kind], op.offset, op.length, op.landed

    def land(self, source, target, n_lines=1, epoch=None, *, bint ahead=False):
        """Lands up to so many lines; returns how many. Nothing lands on a held link. `ahead`: first of what needs not
        wait for the rest."""
        cdef uint64_t left = n_lines, done = 0
        cdef link_t *link
        while left:
            link = self.find(source, target, epoch)
            if link == NULL or link.held or not lines_waiting(link):
                break
            lock(&self.net)
            landed = land_lines(&self.net, link, left, ahead)
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
                        landed += land_lines(&self.net, link, <uint64_t>-1, False)
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

    def counts(self):
        """{posts, bytes, lines, rings, dropped, unconnected}; unconnected: posts to a node that had no such row yet."""
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
        self.rank = rank
        self.n_peers = s.n_peers = n
        self.kept = [bell]
        s.net = &network.net
        s.node = network.place(node_ids[rank])
        s.epoch = epoch
        s.bell_fd = bell_fd
        if bell is not None:
            s.bell = <bell_page *>bell.base
        s.out = <link_t **>calloc(n, sizeof(link_t *))
        s.into = <link_t **>calloc(n, sizeof(link_t *))
        if s.out == NULL or s.into == NULL:
            raise MemoryError()
        set_table(&self.table, s)

    @property
    def copies(self):
        """As in Fabric."""
        return bool(self.network.net.copies)

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
        if self.network.net.ahead:
            link.ahead = <link_t *>calloc(1, sizeof(link_t))
            if link.ahead == NULL:
                free(link)
                raise MemoryError()
        link.source = &other.state
        link.target = &self.state
        link.epoch = self.epoch
        link.source_node = other.state.node
        link.target_node = self.state.node
        link.row = row.base
        link.copy = copy.base if copy is not row else NULL
        if link.ahead != NULL:
            memcpy(link.ahead, link, sizeof(link_t))
            link.ahead.ahead = NULL
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

    def __dealloc__(self):
        cdef sim_t *s = &self.state
        cdef uint32_t i
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
                if s.into[i].ahead != NULL:
                    s.into[i].ahead.target = NULL
                if s.into[i].source == NULL:
                    remove_link(s.net, s.into[i])
        free(s.out)
        free(s.into)
