"""Verbs fabric: one-sided writes through an RDMA device (libibverbs).

A post is an RDMA write from the own row into the peer's copy of it, on a reliable connection (`verbs_link`). Nothing at
the peer takes part in it; its device puts the bytes into place. The connections are the node's (`verbs_pairs`): an
epoch borrows those of its members, and the next one goes on with them. Whoever drives the predicates drives all of it:
`enter` looks at what has completed, `leave` hands over what was posted in between, as one list of work requests per
peer.

Sleeping: an armed completion queue sends one event when something completes, through the completion channel, whose
descriptor is `wait_fd`. It is armed by prepare_wait(), and by the second enter() in a row that finds nothing. So
whoever blocks on wait_fd without prepare_wait() must have entered in vain twice. A busy member takes no event.

Memory: the row and the copies of the peers' rows are registered once. What is posted last of an epoch waits before the
first of the next. So the row stays registered until that has left, and a peer's copy until the peer has said that it
writes nothing more into it, or its connection is destroyed (give_back): then the keys end. A node that was left behind
in a dead epoch has no connection any more.

Rules: as in verbs_link and verbs_pairs. Whoever makes two members peers gives the local_address() of each to the
other's connect(), and again if it has changed afterwards. A connection that breaks ends like a cut, rings `failed_fd`,
and failures() says why.
"""
import os

cimport cython

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from spindle_core.atomics cimport u32_load_relaxed, u64_load_acquire
from spindle_core.events cimport c_close, event_ring
from spindle_core.fabric.fabric cimport LANES_FIXED, Fabric
from spindle_core.fabric.lanes cimport lane_t
from spindle_core.fabric.verbs_api cimport IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_WRITE, ibv_mr
from spindle_core.fabric.verbs_link cimport (
    ENTRY_GOODBYE,
    ENTRY_MARK,
    VERBS_FAILED_BEHIND,
    VERBS_FAILED_CLOSED,
    VERBS_FAILED_ERROR,
    VERBS_FAILED_NONSENSE,
    VERBS_FAILED_REFUSED,
    VERBS_FAILED_SILENT,
    VERBS_FAILED_UNREADY,
    VERBS_GOODBYE,
    VERBS_LANES_MAX,
    VERBS_NO_PLACE,
    VERBS_QUEUE_MAX,
    VERBS_QUEUE_OWN,
    link_gone,
    link_to,
    verbs_entry,
    verbs_link_t,
    verbs_t,
    verbs_target_t,
)
from spindle_core.fabric.verbs_pairs cimport Pair, VerbsPairs
from spindle_core.fabric.verbs_queue cimport link_finish, link_longer, link_put
from spindle_core.fabric.verbs_table cimport send, set_table, verbs_enter, verbs_leave
from spindle_core.layout cimport NODES_MAX
from spindle_core.memory cimport Mapping

from spindle_core.fabric.verbs_address import Address, Memory

FAILURES = {
    VERBS_FAILED_CLOSED: "the connection was closed",
    VERBS_FAILED_SILENT: "it does not answer any more",
    VERBS_FAILED_REFUSED: "its device refused an access",
    VERBS_FAILED_NONSENSE: "it sent what no node of this version sends",
    VERBS_FAILED_BEHIND: "it does not take what it is sent",
    VERBS_FAILED_UNREADY: "it had no room for a ring",
    VERBS_FAILED_ERROR: "the network or the device broke the connection",
}
ACK_TIMEOUT = 14                 # 67 ms
RETRIES = 6                      # half a second in all; 7 means for ever to some devices


cdef class Reach:
    def __dealloc__(self):
        free(self.queues[0])
        free(self.queues[1])


@cython.no_gc_clear              # its connections go before the device
cdef class VerbsFabric(Fabric):
    """Peers behind an RDMA device. `bell_fd`: what wait() wakes up for as well (stays the caller's; -1: nothing).

    `pairs`: the node's connections; None: some of its own, made as `more` says (VerbsPairs), which end with this
    fabric. `names`: by rank, what tells the lives of nodes apart, in all epochs; `epoch`: its number, above those
    before; `ack_timeout`: 4.096 us * 2 ** ack_timeout until the device sends something again, `retries` times.

    ValueError where a number makes no sense, RdmaUnavailable where the device can't do what is needed.
    """

    def __cinit__(self, *_, **__):
        memset(&self.state, 0, sizeof(self.state))
        self.state.bell_fd = self.state.wait_fd = -1

    def __init__(self, rank, n_peers, int bell_fd=-1, *, VerbsPairs pairs=None, names=None, epoch=0,
                 ack_timeout=ACK_TIMEOUT, retries=RETRIES, **more):
        cdef uint32_t i
        cdef verbs_epoch_t *e = &self.state
        if not 0 <= rank < n_peers <= NODES_MAX:
            raise ValueError(f"rank {rank} of {n_peers}: must be 0 <= rank < peers <= {NODES_MAX}")
        if not 1 <= ack_timeout <= 31 or not 0 <= retries <= 6:
            raise ValueError(f"ack_timeout {ack_timeout}, retries {retries}: must be 1 to 31 and 0 to 6")
        self.own_pairs = pairs is None
        # One more than there are peers, to take the place of one.
        self.pairs = VerbsPairs(pairs=n_peers, **more) if pairs is None else pairs
        self.rank = rank
        self.n_peers = n_peers
        self.names = tuple(range(n_peers) if names is None else names)
        if len(self.names) != n_peers or (more and not self.own_pairs) or self.pairs.device is None:
            raise ValueError(f"{n_peers} peers need as many names, and open pairs, whose settings are made with them")
        self.epoch = epoch
        self.timing = ack_timeout, retries
        self.begun = self.own_pairs
        self.rows = {}
        e.node = &self.pairs.state
        e.n_peers = n_peers
        e.n_lanes = LANES_FIXED
        e.bell_fd = bell_fd
        e.targets = <verbs_target_t *>calloc(n_peers, sizeof(verbs_target_t))
        if e.targets == NULL:
            raise MemoryError()
        for i in range(e.n_peers):
            e.targets[i].place = VERBS_NO_PLACE
        # One of its own, since pollers take each only once, and epochs overlap.
        e.wait_fd = os.dup(e.node.channel.fd)
        set_table(&self.table, e)
        self.before = {}
        self.before = self.statistics()
        self.pairs.fabrics.add(self)

    @property
    def device(self):
        """The VerbsDevice; None once closed."""
        return self.pairs.device

    def make_row(self, str name, size):
        """The row that this member's posts are read from."""
        return self.adopt_row(Mapping.create(name, size))

    def adopt_row(self, Mapping row not None):
        """Reads this member's posts from a row that was made elsewhere: peers of this host map the same one."""
        cdef ibv_mr *region
        if self.row is not None or self.closed:
            raise ValueError("this fabric has its row: one epoch, one fabric")
        region = self.pairs.device.add_region(row.base, row.size, IBV_ACCESS_LOCAL_WRITE)
        self.row_region = <uintptr_t>region
        self.state.row_key = region.lkey
        self.row_view = row.view()
        self.row = row
        self.state.row = row.base
        self.state.row_size = row.size
        return row

    def reserve(self, posts, lanes):
        """As in Fabric. ValueError beyond VERBS_QUEUE_MAX entries, or where some peer has its address already."""
        if self.rows:
            raise ValueError("reserve before the first local_address()")
        if posts > VERBS_QUEUE_MAX - VERBS_QUEUE_OWN or lanes > VERBS_LANES_MAX:
            raise ValueError(f"{posts} posts in {lanes} lanes may wait for a peer: at most"
                             f" {VERBS_QUEUE_MAX - VERBS_QUEUE_OWN} in {VERBS_LANES_MAX} (smaller windows, or fewer"
                             " topics)")
        self.posts = posts
        self.state.n_lanes = lanes

    def local_address(self, peer, Mapping row=None):
        """What `peer` needs for its connect(): bytes. Makes the copy of the peer's row, which is `row` or made here,
        and this end of the connection, if there is none. The same at every call, until connect() finds that the peer
        means another connection."""
        cdef Reach r
        cdef ibv_mr *region
        self.check_peer(peer)
        if self.row is None or self.closed:
            raise ValueError("make_row first, and close() last")
        if peer in self.rows:
            r = self.rows[peer]
            if row is not None and r.copy is not row:
                raise ValueError(f"peer {peer} has a copy of its row already")
            return r.address
        if row is None:
            row = Mapping.private(self.row.size)
        if row.size < self.row.size or not row.writable:
            raise ValueError(f"a copy of a row of {self.row.size} bytes can't be one of {row.size}, or read-only")
        if self.state.lanes == NULL:
            self.state.lanes = <lane_t *>calloc(2 * self.n_peers * self.state.n_lanes, sizeof(lane_t))
            if self.state.lanes == NULL:
                raise MemoryError()
        r = Reach.__new__(Reach)
        region = self.pairs.device.add_region(row.base, row.size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
        r.copy, r.region, r.key = row, <uintptr_t>region, region.rkey
        try:
            self.take_pair(peer, r)
        except BaseException:
            self.pairs.device.end_region(region)
            raise
        self.rows[peer] = r
        return r.address

    cdef int take_pair(self, uint32_t peer, Reach r) except -1:
        """The pair for a peer; with longer queues than it has, if what may wait of this epoch, behind what does of
        those before, would not fit."""
        r.pair = self.pairs.take(self.names[peer], self.timing, self.posts)
        r.reads = True
        r.capacity = self.pairs.entries_for(r.pair.posts)
        if r.capacity > r.pair.capacity:
            for way in (0, 1):
                r.queues[<int>way] = <verbs_entry *>malloc(r.capacity * sizeof(verbs_entry))
            if r.queues[0] == NULL or r.queues[1] == NULL:
                r.pair.posts -= self.posts
                self.pairs.drop(r.pair)
                raise MemoryError(f"no memory for what may wait for a peer: {r.capacity} posts")
        return self.say_address(r)

    cdef int say_address(self, Reach r) except -1:
        cdef verbs_t *s = self.state.node
        device = self.pairs.device
        r.address = Address(
            self.rank, r.pair.number, r.pair.packet, device.link.lid, device.link.link_layer, device.link.active_mtu,
            device.gid_bytes, s.rings, device.reads, Memory(<uintptr_t>r.copy.base, r.copy.size, r.key), r.pair.ahead,
            r.pair.there, Memory(<uintptr_t>r.pair.page.base, r.pair.page.size, r.pair.page_key)).pack()
        return 0

    def connect(self, peer, bytes address not None, Mapping row=None):
        """Makes a peer reachable; `address`: what its local_address() has said for this member. Returns the copy of its
        row (`row`, if this end was not made yet); or False: the peer still means a connection that is over here, and
        will say another when it has this member's address.

        The own local_address() is another afterwards if the peer has a new end, and this one none that goes with it.

        ValueError where the bytes are no such address, or the peer has a connection; OSError where no way leads to it.
        """
        cdef Reach r
        self.check_peer(peer)
        self.local_address(peer, row)      # if nobody has asked for it yet
        r = self.rows[peer]
        if r.attached:
            raise ValueError(f"peer {peer} is connected already")
        theirs = Address.parse(address)
        if theirs.rank != peer:
            raise ValueError(f"this is the address of member {theirs.rank}, not {peer}")
        if theirs.link_layer != self.pairs.device.link.link_layer:
            raise ValueError(f"member {peer} is on another kind of network (InfiniBand or RoCE)")
        if theirs.row.size < self.row.size or theirs.rings < 2 or not theirs.page.size:
            raise ValueError(f"member {peer} has room for a row of {theirs.row.size} bytes, not {self.row.size}")
        return self.reach(peer, r, theirs) and r.copy

    cdef bint reach(self, uint32_t peer, Reach r, object theirs) except -1:
        """Finds the connection that both mean; whether there is one.

        Each end is connected to one of the other's, or to none yet. Two that say each other are kept. One that is
        connected to none is connected to an end that is, too, or to this one. An end whose peer has a new one can't be
        used any more: it is made anew here, and the peer is told. Where both are connected to what the other doesn't
        know any more, the lower rank begins.
        """
        cdef Pair pair = r.pair, fresh
        cdef verbs_target_t *to = &self.state.targets[peer]
        cdef bint means_this = theirs.there in (0, pair.number)
        if (pair.there == theirs.queue_pair and not means_this) or (
                theirs.there == pair.number and pair.there not in (0, theirs.queue_pair)):
            raise ValueError(f"member {peer} says of its connection what can't be")
        if pair.there != theirs.queue_pair and pair.there and (theirs.there == 0 or self.rank < peer):
            fresh = self.pairs.make(self.names[peer], self.timing, self.posts)
            fresh.users, fresh.posts = 1, self.posts
            pair.posts -= self.posts
            self.pairs.drop(pair)
            r.pair = pair = fresh
            r.capacity = pair.capacity
            self.say_address(r)
            means_this = theirs.there == 0
        if not means_this or (pair.there and pair.there != theirs.queue_pair):
            return False
        if not pair.there:
            self.pairs.connect(pair, theirs)
        to.remote_row = theirs.row.address
        to.remote_row_key = theirs.row.key
        to.place = pair.place
        r.attached = True
        return True

    def begin(self):
        """As in Fabric: the queues become as long as this epoch needs them."""
        cdef Reach r
        cdef uint32_t peer
        cdef bint ahead
        self.begun = True
        for peer, r in self.rows.items():
            if not r.attached or r.queues[0] == NULL:
                continue
            for ahead in (False, True):
                if link_longer(link_to(&self.state, peer, ahead), r.queues[ahead], r.capacity):
                    r.queues[ahead] = NULL             # it is the connection's
            r.pair.capacity = max(r.pair.capacity, r.capacity)

    @property
    def wait_fd(self):
        """Readable when there is something to take; armed as said at the top of this file."""
        return self.state.wait_fd

    @property
    def drained(self):
        """All that was posted has arrived: closing loses nothing. Asking makes the next passes find out."""
        cdef uint32_t peer
        cdef bint ahead
        cdef verbs_link_t *p
        cdef Reach r
        if self.closed:
            return True
        for peer, r in self.rows.items():
            for ahead in (False, True):
                p = link_to(&self.state, peer, ahead)
                if p == NULL or link_gone(p):
                    continue
                if self.said and u64_load_acquire(&p.done) < r.marks[ahead]:
                    return False
                if not self.said and (p.done < p.last or p.owes_ring):
                    if not self.state.node.draining:
                        self.state.node.draining = True
                        event_ring(self.state.bell_fd)
                    return False
        return True

    def copy_of(self, peer):
        """The Mapping that the peer writes its row into, from local_address() on."""
        cdef Reach r
        self.check_peer(peer)
        r = self.rows[peer]
        return r.copy

    def row_of(self, peer):
        """The copy of the peer's row, for reading."""
        return memoryview(self.copy_of(peer))

    def progress(self):
        """Takes what has completed and come, and sends what waits; returns how much was taken."""
        cdef int done = verbs_enter(&self.state)
        verbs_leave(&self.state)
        return done

    def goodbye(self, successor=None):
        """Nothing of this epoch is posted any more: the peers are told, behind all that waits. Those that the
        `successor` reaches by the same connection learn that this epoch's memory is not written any more; the others,
        that the connection's end is no failure. To be called while nobody drives; drained says when all has arrived.
        """
        cdef uint32_t peer
        cdef bint ahead
        cdef Reach r, following
        cdef verbs_link_t *p
        if self.said or self.closed or not self.begun:
            return
        self.said = True
        others = (<VerbsFabric>successor).rows.values() if isinstance(successor, VerbsFabric) else ()
        goes_on = {following.pair for following in others if following.attached}
        for peer, r in self.rows.items():
            r.kept = r.pair in goes_on
            for ahead in (False, True):
                p = link_to(&self.state, peer, ahead)
                if p == NULL or link_gone(p):
                    r.marks[ahead] = <uint64_t>-1      # whatever the device has of it goes with the queue pair
                    continue
                if r.kept:
                    link_finish(self.state.node, p, ahead, self.epoch + 1)
                elif ahead:
                    link_put(self.state.node, p, ENTRY_MARK, NULL, 0)
                elif not p.left and link_put(self.state.node, p, ENTRY_GOODBYE, NULL, 0) != NULL:
                    p.left = 1
                r.marks[ahead] = p.last
        send(self.state.node)

    def failures(self):
        """{rank: why its connection broke}, without those that were cut or that ended in order, after a goodbye. One
        that an earlier epoch has cut is over for this one."""
        cdef uint32_t i
        cdef verbs_link_t *p
        cdef dict found = {}
        for i in range(self.n_peers if not self.closed else 0):
            p = link_to(&self.state, i, False)
            if p == NULL or self.state.targets[i].cut or p.failed == VERBS_GOODBYE:
                continue
            if p.failed or u32_load_relaxed(&p.cut):
                found[i] = FAILURES[p.failed or VERBS_FAILED_CLOSED]
        return found

    @property
    def departed(self):
        """Ranks whose connection has ended in order: one of the two sides had said goodbye."""
        cdef uint32_t i
        cdef verbs_link_t *p
        cdef set found = set()
        for i in range(self.n_peers if not self.closed else 0):
            p = link_to(&self.state, i, False)
            if p != NULL and p.failed == VERBS_GOODBYE:
                found.add(i)
        return found

    def statistics(self):
        """Counts of all connections since this epoch was made. `posts`: writes that were posted; `merged`: those that
        became part of another; `work_requests`: of any kind; `starved`: lists that had to owe their ring;
        `queue_pairs`: made. `waiting_max` is since the beginning of the connections."""
        cdef verbs_t *s = &self.pairs.state
        now = {"posts": s.n_posts, "merged": s.n_merged, "work_requests": s.n_work_requests,
               "doorbells": s.n_doorbells, "signalled": s.n_signalled, "inlined": s.n_inlined, "rings": s.n_rings,
               "grants": s.n_grants, "starved": s.n_starved, "bytes_sent": s.n_bytes,
               "completions": s.n_completions, "received": s.n_received, "queue_pairs": self.pairs.made}
        return {name: n - self.before.get(name, 0) for name, n in now.items()} | {"waiting_max": s.n_waiting_max}

    @property
    def limits(self):
        """What was asked for, as far as the device goes."""
        cdef verbs_t *s = &self.pairs.state
        return {"depth": s.depth, "rings": s.rings, "inline_max": s.inline_max, "message_max": s.message_max,
                "signal_every": s.signal_every}

    # ---- the end ----

    @property
    def kept(self):
        """As in Fabric."""
        return self.pairs.kept

    def tidy(self):
        """As in Fabric: of this epoch and those before."""
        return self.pairs.sweep()

    def close(self):
        """Ends the connections that no other epoch has, and gives back what is pinned as soon as nobody uses it. Not
        while driven, but that others with the same connections are. Idempotent."""
        cdef Reach r
        cdef int fd = self.state.wait_fd
        if self.closed:
            return
        self.closed = True
        for r in self.rows.values():
            if self.begun and not r.kept:
                self.pairs.retire(r.pair)  # also where the next epoch has it and there won't be one
            self.pairs.drop(r.pair)
        self.state.node = NULL
        self.state.wait_fd = -1
        if fd >= 0:
            os.close(fd)
        if not self.give_back():
            self.pairs.remains.append(self)
        self.pairs.fabrics.discard(self)
        if self.own_pairs:
            self.pairs.close()
        elif not self.pairs.fabrics:       # so nobody drives them
            self.pairs.sweep()

    cdef bint is_over(self, Reach r):
        """The peer writes nothing more into its copy. SYNC POINT: end. Pairs with the peer's device, which places this
        word behind all that was posted before it, on each of the two ways."""
        cdef uint64_t *page
        if r.pair.gone or not (self.begun and r.attached):
            return True
        page = <uint64_t *>r.pair.page.base
        return u64_load_acquire(&page[0]) > self.epoch and u64_load_acquire(&page[1]) > self.epoch

    cdef bint has_left(self, Reach r):
        """Nothing of this epoch waits for the peer any more. SYNC POINT: done. Pairs with sent_one()."""
        cdef verbs_t *s = &self.pairs.state
        if r.pair.gone or not (self.begun and r.attached):
            return True
        return (r.kept and u64_load_acquire(&s.links[r.pair.place].done) >= r.marks[0]
                and u64_load_acquire(&s.links[r.pair.place + s.n_places].done) >= r.marks[1])

    def give_back(self):
        """Once closed: ends the keys that nobody uses any more; True if none is left. VerbsPairs.sweep() calls it."""
        cdef Reach r
        cdef bint reads = False, all_over = True
        for r in self.rows.values():
            if r.region and self.is_over(r):
                self.pairs.device.end_region(<ibv_mr *>r.region)
                r.region = 0
            if r.reads and self.has_left(r):
                r.reads = False
                r.pair.posts -= self.posts
            reads |= r.reads
            all_over &= r.region == 0
        if self.row_region and not reads:
            self.pairs.device.end_region(<ibv_mr *>self.row_region)
            self.row_region = 0
        return all_over and not reads

    def __dealloc__(self):
        free(self.state.targets)
        free(self.state.lanes)
        if self.state.wait_fd >= 0:
            c_close(self.state.wait_fd)
