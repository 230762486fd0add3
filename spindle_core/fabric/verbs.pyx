"""Verbs fabric: one-sided writes through an RDMA device (libibverbs).

A post is an RDMA write from the own row into the peer's copy of it, on a reliable connection of its own per pair of
members and epoch (`verbs_link`). Nothing at the peer takes part in it; its device puts the bytes into place. Whoever
drives the predicates drives all of it: `enter` looks at what has completed, `leave` hands over what was posted in
between, as one list of work requests per peer.

Sleeping: an armed completion queue sends one event when something completes, through the completion channel, whose
descriptor is `wait_fd`. It is armed by prepare_wait(), and by the second enter() in a row that finds nothing. So
whoever blocks on wait_fd without prepare_wait() must have entered in vain twice. A busy member takes no event.

Memory: the row and the copies of the peers' rows are registered once and pinned until the fabric goes. Their keys go
with it, so a node that was left behind in a dead epoch can't write into anybody's memory.

Rules: as in verbs_link. Whoever makes two members peers gives the local_address() of each to the other's connect(). A
connection that breaks ends like a cut, rings `failed_fd`, and failures() says why.
"""
import os
import secrets

cimport cython

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from spindle_core.atomics cimport u32_load_relaxed
from spindle_core.events cimport c_close, event_ring
from spindle_core.fabric.fabric cimport LANES_FIXED, POST_INLINE_MAX, Fabric
from spindle_core.fabric.lanes cimport lane_t
from spindle_core.fabric.verbs_api cimport (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_WRITE,
    ibv_ack_cq_events,
    ibv_create_comp_channel,
    ibv_create_cq,
    ibv_destroy_comp_channel,
    ibv_destroy_cq,
    ibv_destroy_qp,
    ibv_mr,
    ibv_recv_wr,
)
from spindle_core.fabric.verbs_device cimport VerbsDevice
from spindle_core.fabric.verbs_link cimport (
    ENTRY_GOODBYE,
    OTHER_RECEIVES,
    VERBS_FAILED_BEHIND,
    VERBS_FAILED_CLOSED,
    VERBS_FAILED_ERROR,
    VERBS_FAILED_NONSENSE,
    VERBS_FAILED_REFUSED,
    VERBS_FAILED_SILENT,
    VERBS_FAILED_UNREADY,
    VERBS_GOODBYE,
    VERBS_LANES_MAX,
    VERBS_QUEUE_MAX,
    VERBS_QUEUE_OWN,
    VERBS_RINGS_MAX,
    link_end,
    link_gone,
    other_way,
    post_receives,
    verbs_entry,
    verbs_peer_t,
    verbs_t,
)
from spindle_core.fabric.verbs_queue cimport link_put
from spindle_core.fabric.verbs_table cimport set_table, verbs_enter, verbs_leave
from spindle_core.layout cimport NODES_MAX
from spindle_core.memory cimport Mapping

from spindle_core.errors import RdmaUnavailable
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
QUEUE_ENTRIES = 4096
DEPTH = 128
DEPTH_MIN = 8
RINGS = 64
ACK_TIMEOUT = 14                 # 67 ms
RETRIES = 6                      # half a second in all; 7 means for ever to some devices


cdef void release(verbs_t *s) noexcept:
    """Gives the queues back, with all that a peer has but the copy of its row. Idempotent."""
    cdef uint32_t i
    cdef verbs_peer_t *p
    for i in range(s.n_links if s.peers != NULL else 0):
        p = &s.peers[i]
        p.connected = 0
        if p.qp != NULL:
            ibv_destroy_qp(p.qp)
        free(p.queue)
        free(p.lanes)
        free(p.receives)
        p.qp = NULL
        p.queue = NULL
        p.lanes = NULL
        p.receives = NULL
    # A queue is not destroyed before all of its events are acknowledged.
    if s.send_cq != NULL:
        ibv_ack_cq_events(s.send_cq, s.send_events)
        ibv_destroy_cq(s.send_cq)
    if s.receive_cq != NULL:
        ibv_ack_cq_events(s.receive_cq, s.receive_events)
        ibv_destroy_cq(s.receive_cq)
    if s.channel != NULL:
        ibv_destroy_comp_channel(s.channel)
    s.send_cq = s.receive_cq = NULL
    s.channel = NULL


@cython.no_gc_clear              # its queue pairs go before the device
cdef class VerbsFabric(Fabric):
    """Peers behind an RDMA device. `bell_fd`: what wait() wakes up for as well (stays the caller's; -1: nothing).

    `device`: its name, "" for the first one whose `port` is active; `gid_index`: -1 for the one that fits (RoCE v2 over
    IPv4 first, on InfiniBand the first); `failed_fd`: an eventfd that is rung when a connection breaks; `queue`:
    entries that may wait for a peer, which reserve() can raise; `depth`: work requests in a send queue of the device;
    `rings`: how many a peer may make before they are taken; `ack_timeout`: 4.096 us * 2 ** ack_timeout until the device
    sends something again, `retries` times; `inline_max`: bytes that a work request may carry itself, fewer where the
    device can't.

    ValueError where a number makes no sense, RdmaUnavailable where the device can't do what is needed.
    """

    def __cinit__(self):
        memset(&self.state, 0, sizeof(self.state))
        self.state.bell_fd = self.state.failed_fd = -1

    def __init__(self, rank, n_peers, int bell_fd=-1, *, str device="", port=1, int gid_index=-1, int failed_fd=-1,
                 queue=QUEUE_ENTRIES, depth=DEPTH, rings=RINGS, ack_timeout=ACK_TIMEOUT, retries=RETRIES,
                 inline_max=POST_INLINE_MAX):
        if not 0 <= rank < n_peers <= NODES_MAX:
            raise ValueError(f"rank {rank} of {n_peers}: must be 0 <= rank < peers <= {NODES_MAX}")
        if not 8 <= queue <= VERBS_QUEUE_MAX or queue & (queue - 1):
            raise ValueError(f"a queue of {queue} entries: must be a power of two between 8 and {VERBS_QUEUE_MAX}")
        if not DEPTH_MIN <= depth <= queue:
            raise ValueError(f"a depth of {depth} work requests: must be between {DEPTH_MIN} and the queue's {queue}")
        if not 2 <= rings <= VERBS_RINGS_MAX:
            raise ValueError(f"{rings} rings: must be between 2 and {VERBS_RINGS_MAX}")
        if not 1 <= ack_timeout <= 31 or not 0 <= retries <= 6:
            raise ValueError(f"ack_timeout {ack_timeout}, retries {retries}: must be 1 to 31 and 0 to 6")
        if not 1 <= port <= 255:
            raise ValueError(f"port {port}: devices have ports 1 to 255")
        cdef verbs_t *s = &self.state
        self.rank = s.rank = rank
        self.n_peers = s.n_peers = n_peers
        s.n_links = 2 * n_peers
        self.rows = {}
        self.ack_timeout = ack_timeout
        self.retries = retries
        self.device = VerbsDevice(device, port, gid_index)
        s.capacity = queue
        s.n_lanes = LANES_FIXED
        s.inline_max = min(inline_max, POST_INLINE_MAX)
        s.bell_fd = bell_fd
        s.peers = <verbs_peer_t *>calloc(s.n_links, sizeof(verbs_peer_t))
        if s.peers == NULL:
            raise MemoryError()
        self.make_queues(depth, rings)
        s.failed_fd = os.dup(failed_fd) if failed_fd >= 0 else -1
        set_table(&self.table, s)

    cdef int make_queues(self, uint32_t depth, uint32_t rings) except -1:
        """The completion queues, for as much as can complete at once."""
        cdef verbs_t *s = &self.state
        cdef uint32_t others = 2 * max(1, s.n_peers - 1)       # connections
        cdef uint32_t limit = <uint32_t>self.device.limits.max_cqe // others
        if limit < DEPTH_MIN:
            raise RdmaUnavailable(f"{self.device.name} has completion queues of {self.device.limits.max_cqe}: too small"
                                  f" for {s.n_peers} members")
        # Each work request completes once at most, so that no completion queue overflows either.
        s.depth = 1 << <int>(min(depth, limit, <uint32_t>self.device.limits.max_qp_wr).bit_length() - 1)
        s.signal_every = max(1, s.depth // 4)
        s.rings = min(rings, limit - OTHER_RECEIVES)
        s.receives = s.rings + OTHER_RECEIVES
        s.message_max = min(self.device.link.max_msg_sz, <uint32_t>1 << 30) & ~<uint64_t>63
        s.channel = ibv_create_comp_channel(self.device.context)
        if s.channel == NULL:
            raise RdmaUnavailable(f"{self.device.name} gives no completion channel: raise the limit of open files")
        os.set_blocking(s.channel.fd, False)
        s.send_cq = ibv_create_cq(self.device.context, others * s.depth, NULL, s.channel, 0)
        s.receive_cq = ibv_create_cq(self.device.context, others * s.receives, NULL, s.channel, 0)
        if s.send_cq == NULL or s.receive_cq == NULL:
            raise RdmaUnavailable(f"{self.device.name} gives no completion queues for {others * s.receives} receives")
        return 0

    def make_row(self, str name, size):
        """The row that this member's posts are read from."""
        return self.adopt_row(Mapping.create(name, size))

    def adopt_row(self, Mapping row not None):
        """Reads this member's posts from a row that was made elsewhere: peers of this host map the same one."""
        if self.row is not None:
            raise ValueError("this fabric has its row: one epoch, one fabric")
        self.state.row_key = self.device.add_region(row.base, row.size, IBV_ACCESS_LOCAL_WRITE).lkey
        self.kept = row.view()             # keeps it mapped
        self.row = row
        self.state.row = row.base
        self.state.row_size = row.size
        return row

    def reserve(self, posts, lanes):
        """As in Fabric. ValueError beyond VERBS_QUEUE_MAX entries, or where some peer has its address already."""
        entries = 1 << (posts + VERBS_QUEUE_OWN - 1).bit_length()
        if self.rows:
            raise ValueError("reserve before the first local_address()")
        if entries > VERBS_QUEUE_MAX or lanes > VERBS_LANES_MAX:
            raise ValueError(f"{posts} posts in {lanes} lanes may wait for a peer: at most"
                             f" {VERBS_QUEUE_MAX - VERBS_QUEUE_OWN} in {VERBS_LANES_MAX} (smaller windows, or fewer"
                             " topics)")
        self.state.capacity = max(self.state.capacity, entries)
        self.state.n_lanes = lanes

    def local_address(self, peer, Mapping row=None):
        """What `peer` needs for its connect(): bytes. Makes this end of the connection and the copy of the peer's row,
        which is `row` or made here. The same at every call."""
        self.check_peer(peer)
        if self.row is None:
            raise ValueError("make_row first")
        if peer not in self.rows:
            self.prepare(peer, Mapping.private(self.row.size) if row is None else row)
        elif row is not None and self.rows[peer][0] is not row:
            raise ValueError(f"peer {peer} has a copy of its row already")
        return self.rows[peer][1]

    cdef int prepare(self, uint32_t peer, Mapping row) except -1:
        """Makes both connections, the copy of the row, and the address that tells of them."""
        cdef verbs_t *s = &self.state
        cdef verbs_peer_t *p = &s.peers[peer]
        cdef ibv_mr *region
        if row.size < self.row.size or not row.writable:
            raise ValueError(f"a copy of a row of {self.row.size} bytes can't be one of {row.size}, or read-only")
        region = self.device.add_region(row.base, row.size, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
        p.row = row.base
        kept = [self.prepare_link(peer), self.prepare_link(peer + s.n_peers)]
        packet = secrets.randbits(24)
        address = Address(
            self.rank, p.qp.qp_num, packet, self.device.link.lid, self.device.link.link_layer,
            self.device.link.active_mtu, self.device.gid_bytes, s.rings, self.device.reads,
            Memory(<uintptr_t>row.base, row.size, region.rkey), s.peers[peer + s.n_peers].qp.qp_num)
        self.rows[peer] = (row, address.pack(), packet, kept)
        return 0

    cdef object prepare_link(self, uint32_t link):
        """The end of one connection; returns what has to live as long."""
        cdef verbs_t *s = &self.state
        cdef verbs_peer_t *p = &s.peers[link]
        cdef uint32_t i, inline_max = s.inline_max
        cdef ibv_recv_wr *r
        p.queue = <verbs_entry *>malloc(s.capacity * sizeof(verbs_entry))
        p.lanes = <lane_t *>calloc(s.n_lanes, sizeof(lane_t))
        p.receives = <ibv_recv_wr *>calloc(s.receives, sizeof(ibv_recv_wr))
        if p.queue == NULL or p.lanes == NULL or p.receives == NULL:
            raise MemoryError(f"no memory for what may wait for a peer: {s.capacity} posts")
        p.told = s.rings
        p.qp = self.device.make_queue_pair(s.send_cq, s.receive_cq, s.depth, s.receives, &inline_max)
        s.inline_max = inline_max          # the same for all queue pairs of one kind
        not_inline = None
        if s.inline_max < POST_INLINE_MAX:
            not_inline = Mapping.private(s.depth * POST_INLINE_MAX)
            p.bytes = (<Mapping>not_inline).base
            p.bytes_key = self.device.add_region(p.bytes, s.depth * POST_INLINE_MAX, 0).lkey
        for i in range(s.receives):
            r = &p.receives[i]
            r.wr_id = <uint64_t>link << 32 | i
            r.next = p.again
            p.again = r
        post_receives(s, p)
        if p.failed:
            raise RdmaUnavailable(f"{self.device.name} takes no receives")
        return not_inline

    def connect(self, peer, bytes address not None, Mapping row=None):
        """Makes a peer reachable; `address`: what its local_address() has said for this member. Returns the copy of its
        row (`row`, if this end was not made yet).

        ValueError where the bytes are no such address, or the peer has a connection; OSError where no way leads to it.
        """
        cdef verbs_peer_t *p
        cdef verbs_peer_t *ahead
        self.check_peer(peer)
        self.local_address(peer, row)      # if nobody has asked for it yet
        row, _, packet, _ = self.rows[peer]
        p = &self.state.peers[<uint32_t>peer]
        if p.connected:
            raise ValueError(f"peer {peer} is connected already")
        theirs = Address.parse(address)
        if theirs.rank != peer:
            raise ValueError(f"this is the address of member {theirs.rank}, not {peer}")
        if theirs.link_layer != self.device.link.link_layer:
            raise ValueError(f"member {peer} is on another kind of network (InfiniBand or RoCE)")
        if theirs.row.size < self.row.size or theirs.rings < 2:
            raise ValueError(f"member {peer} has room for a row of {theirs.row.size} bytes, not {self.row.size}")
        self.device.connect(p.qp, theirs.queue_pair, packet, theirs, self.ack_timeout, self.retries)
        if theirs.ahead:
            ahead = other_way(&self.state, p)
            self.device.connect(ahead.qp, theirs.ahead, packet, theirs, self.ack_timeout, self.retries)
            ahead.remote_row = theirs.row.address
            ahead.remote_row_key = theirs.row.key
            ahead.rung_limit = ahead.peer_rings = theirs.rings
            ahead.connected = 1
        p.remote_row = theirs.row.address
        p.remote_row_key = theirs.row.key
        p.rung_limit = p.peer_rings = theirs.rings
        p.connected = 1
        return row

    @property
    def wait_fd(self):
        """Readable when there is something to take; armed as said at the top of this file."""
        return self.state.channel.fd if self.state.channel != NULL else -1

    @property
    def drained(self):
        """All that was posted has arrived: closing loses nothing. Asking makes the next passes find out."""
        cdef uint32_t i
        cdef verbs_peer_t *p
        for i in range(self.state.n_links):
            p = &self.state.peers[i]
            if not link_gone(p) and (p.done < p.last or p.owes_ring):
                if not self.state.draining:
                    self.state.draining = True
                    event_ring(self.state.bell_fd)
                return False
        return True

    def copy_of(self, peer):
        """The Mapping that the peer writes its row into, from local_address() on."""
        self.check_peer(peer)
        return self.rows[peer][0]

    def row_of(self, peer):
        """The copy of the peer's row, for reading."""
        return memoryview(self.copy_of(peer))

    def progress(self):
        """Takes what has completed and come, and sends what waits; returns how much was taken."""
        cdef int done = verbs_enter(&self.state)
        verbs_leave(&self.state)
        return done

    def goodbye(self):
        """Nothing is posted any more: the peers are told, behind all that waits, so that no end is a failure to them.
        To be called while nobody drives this fabric; drained says when all of it has arrived."""
        cdef uint32_t i
        cdef verbs_peer_t *p
        for i in range(self.state.n_peers):
            p = &self.state.peers[i]
            if not link_gone(p) and not p.left and link_put(&self.state, p, ENTRY_GOODBYE, NULL, 0) != NULL:
                p.left = 1
        verbs_leave(&self.state)

    def failures(self):
        """{rank: why its connection broke}, without those that were cut or that ended in order, after a goodbye."""
        cdef uint32_t i
        return {i: FAILURES[self.state.peers[i].failed] for i in range(self.state.n_peers)
                if self.state.peers[i].failed not in (0, VERBS_GOODBYE)
                and not u32_load_relaxed(&self.state.peers[i].cut)}

    @property
    def departed(self):
        """Ranks whose connection has ended in order: one of the two sides had said goodbye."""
        return {i for i in range(self.n_peers) if self.state.peers[<uint32_t>i].failed == VERBS_GOODBYE}

    def statistics(self):
        """Counts of all connections so far. `posts`: writes that were posted; `merged`: those that became part of
        another; `work_requests`: of any kind; `starved`: lists that had to owe their ring."""
        cdef verbs_t *s = &self.state
        return {"posts": s.n_posts, "merged": s.n_merged, "work_requests": s.n_work_requests,
                "doorbells": s.n_doorbells, "signalled": s.n_signalled, "inlined": s.n_inlined, "rings": s.n_rings,
                "grants": s.n_grants, "starved": s.n_starved, "bytes_sent": s.n_bytes,
                "completions": s.n_completions, "received": s.n_received, "waiting_max": s.n_waiting_max}

    @property
    def limits(self):
        """What was asked for, as far as the device goes."""
        cdef verbs_t *s = &self.state
        return {"depth": s.depth, "rings": s.rings, "inline_max": s.inline_max, "message_max": s.message_max,
                "signal_every": s.signal_every}

    def close(self):
        """Ends all connections, and gives back what is pinned. Not while driven. Idempotent."""
        cdef uint32_t i
        for i in range(self.state.n_links):
            if self.state.peers[i].connected:
                link_end(&self.state, i)
        release(&self.state)
        self.device = None

    def __dealloc__(self):
        release(&self.state)
        free(self.state.peers)
        if self.state.failed_fd >= 0:
            c_close(self.state.failed_fd)
