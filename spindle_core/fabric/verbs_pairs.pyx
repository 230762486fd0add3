"""A node's connections over an RDMA device, which outlive views.

Who owns what. The node has one VerbsPairs: the device, its completion queues, and a Pair for each peer, which is two
queue pairs (verbs_link). An epoch's fabric (verbs) has its rows and their keys, and borrows the pairs of its members.
The next epoch takes the same pairs for those that stay, and makes pairs for newcomers alone. A pair that no epoch has
any more is retired: its queue pairs are put into the error state at once, so neither side's posts happen any more, and
destroyed when nobody drives.

A pair is made anew for a peer only where the last one can't be used: it has broken or was cut, or its device waits for
another time than the group has agreed on since. The epoch that has the old one goes on with it. Both ends find out from
each other's addresses which pair they mean (VerbsFabric.connect).

What a late write can hit. A device refuses a write by a key that has ended, and that breaks the connection: for those
that stay it would be a false accusation. So the keys of an epoch live until its peers have said that they post nothing
more of it, behind their last post (verbs_queue, link_finish); or until the pair is destroyed, as with suspects, which
may say nothing. A node that wakes up late has no pair any more, and writes nowhere.

Rules: one thread prepares, sweeps and closes; sweep() and close() while nobody drives. Nothing here waits.
"""
import os
import secrets
import weakref

cimport cython

from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from spindle_core.atomics cimport u32_load_relaxed, u32_store_release
from spindle_core.events cimport c_close
from spindle_core.fabric.fabric cimport POST_INLINE_MAX
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
    OTHER_RECEIVES,
    VERBS_QUEUE_MAX,
    VERBS_QUEUE_OWN,
    VERBS_RINGS_MAX,
    id_of,
    link_cut,
    link_end,
    link_gone,
    post_receives,
    take_completions,
    verbs_entry,
    verbs_link_t,
    verbs_t,
)
from spindle_core.layout cimport NODES_MAX
from spindle_core.memory cimport Mapping

from spindle_core.errors import RdmaUnavailable

QUEUE_ENTRIES = 4096
DEPTH = 128
DEPTH_MIN = 8
RINGS = 64
PAIRS = 64
PAIRS_LIMIT = 2 * NODES_MAX      # each peer's, and what takes its place
PAGE_SIZE = 4096                 # bytes of a pair's page (verbs_link_t), the least that can be registered


cdef void release_link(verbs_link_t *p) noexcept:
    """Gives a place back."""
    cdef uint32_t life = p.life
    u32_store_release(&p.connected, 0)
    if p.qp != NULL:
        ibv_destroy_qp(p.qp)
    free(p.queue)
    free(p.receives)
    memset(p, 0, sizeof(verbs_link_t))
    p.life = life + 1


cdef void release(verbs_t *s) noexcept:
    """Gives everything back that is registered nowhere. Idempotent."""
    cdef uint32_t i
    for i in range(2 * s.n_places if s.links != NULL else 0):
        if s.links[i].qp != NULL:
            release_link(&s.links[i])
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


@cython.no_gc_clear              # the queue pairs go before the device
cdef class VerbsPairs:
    """`device`: its name, "" for the first one whose `port` is active; `gid_index`: -1 for the one that fits (RoCE v2
    over IPv4 first, on InfiniBand the first); `failed_fd`: an eventfd that is rung when a connection breaks; `pairs`:
    how many there may be at once; `queue`: entries that may wait for a peer, at least; `depth`: work requests in a send
    queue of the device; `rings`: how many a peer may make before they are taken; `inline_max`: bytes that a work
    request may carry itself, fewer where the device can't.

    ValueError where a number makes no sense, RdmaUnavailable where the device can't do what is needed.
    """

    def __cinit__(self, *_, **__):
        memset(&self.state, 0, sizeof(self.state))
        self.state.failed_fd = -1

    def __init__(self, *, str device="", port=1, int gid_index=-1, int failed_fd=-1, pairs=PAIRS, queue=QUEUE_ENTRIES,
                 depth=DEPTH, rings=RINGS, inline_max=POST_INLINE_MAX):
        if not 8 <= queue <= VERBS_QUEUE_MAX or queue & (queue - 1):
            raise ValueError(f"a queue of {queue} entries: must be a power of two between 8 and {VERBS_QUEUE_MAX}")
        if not DEPTH_MIN <= depth <= queue:
            raise ValueError(f"a depth of {depth} work requests: must be between {DEPTH_MIN} and the queue's {queue}")
        if not 2 <= rings <= VERBS_RINGS_MAX:
            raise ValueError(f"{rings} rings: must be between 2 and {VERBS_RINGS_MAX}")
        if not 1 <= port <= 255:
            raise ValueError(f"port {port}: devices have ports 1 to 255")
        if not 1 <= pairs <= PAIRS_LIMIT:
            raise ValueError(f"{pairs} pairs: must be between 1 and {PAIRS_LIMIT}")
        cdef verbs_t *s = &self.state
        self.pairs = {}
        self.fabrics = weakref.WeakSet()
        self.remains = []
        self.queue = queue
        self.device = VerbsDevice(device, port, gid_index)
        s.n_places = pairs
        s.inline_max = min(inline_max, POST_INLINE_MAX)
        s.links = <verbs_link_t *>calloc(2 * s.n_places, sizeof(verbs_link_t))
        if s.links == NULL:
            raise MemoryError()
        self.make_queues(depth, rings)
        s.failed_fd = os.dup(failed_fd) if failed_fd >= 0 else -1

    cdef int make_queues(self, uint32_t depth, uint32_t rings) except -1:
        """The completion queues, for as much as can complete at once."""
        cdef verbs_t *s = &self.state
        cdef uint32_t links = 2 * s.n_places
        cdef uint32_t limit = <uint32_t>self.device.limits.max_cqe // links
        if limit < DEPTH_MIN:
            raise RdmaUnavailable(f"{self.device.name} has completion queues of {self.device.limits.max_cqe}: too small"
                                  f" for {s.n_places} members")
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
        s.send_cq = ibv_create_cq(self.device.context, links * s.depth, NULL, s.channel, 0)
        s.receive_cq = ibv_create_cq(self.device.context, links * s.receives, NULL, s.channel, 0)
        if s.send_cq == NULL or s.receive_cq == NULL:
            raise RdmaUnavailable(f"{self.device.name} gives no completion queues for {links * s.receives} receives")
        return 0

    @property
    def room(self):
        """Pairs that there may be at once."""
        return self.state.n_places

    @property
    def kept(self):
        """Something waits for sweep()."""
        cdef Pair pair
        return bool(self.remains) or any([pair.retired for pair in self.pairs.values()])

    def queue_pairs(self, name):
        """Numbers of the queue pairs that reach this peer, for who compares them with the kernel's."""
        cdef Pair pair
        return [number for pair in self.pairs.values() if pair.name == name and not pair.retired
                for number in (pair.number, pair.ahead)]

    cdef uint64_t entries_for(self, uint64_t posts):
        """Of a queue in which so many posts may wait."""
        return max(self.queue, 1 << (posts + VERBS_QUEUE_OWN - 1).bit_length()) if posts else self.queue

    # ---- pairs ----

    cdef Pair take(self, object name, object timing, uint64_t posts):
        """The pair that reaches a peer, for one more epoch, of which so many posts may wait; it is made if there is
        none that can be used."""
        cdef Pair pair, found = None
        cdef verbs_link_t *p
        for pair in self.pairs.values():
            p = &self.state.links[pair.place]
            if (pair.name == name and pair.timing == timing and not pair.retired and pair.there and not link_gone(p)
                    and not p.left and not p.leaves):
                found = pair
        if found is None:
            found = self.make(name, timing, posts)
        found.users += 1
        found.posts += posts
        return found

    cdef Pair make(self, object name, object timing, uint64_t posts):
        """This end of a new one. RdmaUnavailable where the device or this object has no room for it."""
        cdef Pair pair = Pair.__new__(Pair)
        cdef ibv_mr *region
        pair.place = min(set(range(self.state.n_places)) - self.pairs.keys(), default=self.state.n_places)
        if pair.place == self.state.n_places:
            raise RdmaUnavailable(f"{self.state.n_places} pairs of queue pairs are in use on {self.device.name}: the"
                                  " limit, until the last views have gone")
        pair.name = name
        pair.timing = timing
        pair.packet = secrets.randbits(24)
        pair.regions, pair.kept = [], []
        pair.capacity = self.entries_for(posts)
        pair.page = Mapping.private(PAGE_SIZE)
        region = self.device.add_region(pair.page.base, PAGE_SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)
        pair.page_key = region.rkey
        pair.regions.append(<uintptr_t>region)
        self.pairs[pair.place] = pair
        try:
            self.make_link(pair, False)
            self.make_link(pair, True)
        except BaseException:
            self.destroy(pair)
            raise
        # SYNC POINT: place. Pairs with whoever drives: it looks at all below, and finds them not connected.
        u32_store_release(&self.state.n_used, max(self.state.n_used, pair.place + 1))
        return pair

    cdef int make_link(self, Pair pair, bint ahead) except -1:
        """The end of one connection."""
        cdef verbs_t *s = &self.state
        cdef verbs_link_t *p = &s.links[pair.place + (s.n_places if ahead else 0)]
        cdef uint32_t i, inline_max = s.inline_max
        cdef ibv_recv_wr *r
        cdef ibv_mr *region
        cdef Mapping not_inline
        p.queue = <verbs_entry *>malloc(pair.capacity * sizeof(verbs_entry))
        p.receives = <ibv_recv_wr *>calloc(s.receives, sizeof(ibv_recv_wr))
        if p.queue == NULL or p.receives == NULL:
            raise MemoryError(f"no memory for what may wait for a peer: {pair.capacity} posts")
        p.capacity = pair.capacity
        p.page = <uint64_t *>pair.page.base
        p.told = s.rings
        p.qp = self.device.make_queue_pair(s.send_cq, s.receive_cq, s.depth, s.receives, &inline_max)
        self.made += 1
        if ahead:
            pair.ahead = p.qp.qp_num
        else:
            pair.number = p.qp.qp_num
        if inline_max != s.inline_max:
            s.inline_max = inline_max      # the same for all queue pairs of one kind: nobody drives yet
        if inline_max < POST_INLINE_MAX:
            not_inline = Mapping.private(s.depth * POST_INLINE_MAX)
            p.bytes = not_inline.base
            region = self.device.add_region(p.bytes, s.depth * POST_INLINE_MAX, 0)
            p.bytes_key = region.lkey
            pair.regions.append(<uintptr_t>region)
            pair.kept.append(not_inline)
        for i in range(s.receives):
            r = &p.receives[i]
            r.wr_id = id_of(s, p, i)
            r.next = p.again
            p.again = r
        post_receives(s, p)
        if p.failed:
            raise RdmaUnavailable(f"{self.device.name} takes no receives")
        return 0

    cdef int connect(self, Pair pair, object theirs) except -1:
        """Connects it with the peer's end, of that Address. OSError where no way leads there."""
        cdef verbs_t *s = &self.state
        cdef verbs_link_t *p
        ack_timeout, retries = pair.timing
        cdef list ways = [(pair.place, theirs.queue_pair)]
        if theirs.ahead:
            ways.append((pair.place + s.n_places, theirs.ahead))
        try:
            for link, there in ways:
                p = &s.links[<uint32_t>link]
                p.remote_page = theirs.page.address
                p.remote_page_key = theirs.page.key
                p.rung_limit = p.peer_rings = theirs.rings
                # SYNC POINT: connect. Pairs with link_gone(), of who drives. The peer's words may come as soon as the
                # device knows the way; what is posted by then is nothing, as its epoch has not begun.
                u32_store_release(&p.connected, 1)
                self.device.connect(p.qp, there, pair.packet, theirs, ack_timeout, retries)
        except BaseException:
            for link, _ in ways:
                u32_store_release(&s.links[<uint32_t>link].connected, 0)
            raise
        pair.there = theirs.queue_pair
        return 0

    cdef int drop(self, Pair pair) except -1:
        """One epoch less has it; the last one retires it."""
        pair.users -= 1
        if pair.users == 0:
            self.retire(pair)
        return 0

    cdef int retire(self, Pair pair) except -1:
        """Nothing is exchanged over it any more; sweep() destroys it."""
        if not pair.retired:
            pair.retired = True
            link_cut(&self.state.links[pair.place])
            link_cut(&self.state.links[pair.place + self.state.n_places])
        return 0

    cdef int destroy(self, Pair pair) except -1:
        cdef uintptr_t region
        release_link(&self.state.links[pair.place])
        release_link(&self.state.links[pair.place + self.state.n_places])
        pair.gone = pair.retired = True
        for region in pair.regions:
            self.device.end_region(<ibv_mr *>region)
        del self.pairs[pair.place]
        return 0

    cpdef bint sweep(self) except *:
        """Destroys what is retired, and ends the keys of epochs that are over; True if nothing is kept. While nobody
        drives; afterwards somebody looks at what has come, as this may have taken its completions."""
        cdef Pair pair
        cdef list retired = [pair for pair in self.pairs.values() if pair.retired]
        for pair in retired:
            self.destroy(pair)
        for _ in retired:                  # what completed of them makes room in the completion queues
            take_completions(&self.state)
        self.remains = [fabric for fabric in self.remains if not fabric.give_back()]
        return not self.remains

    def close(self):
        """Ends all connections, closes the fabrics that have them, and gives back what is pinned. Not while driven.
        Idempotent."""
        cdef Pair pair
        if self.device is None:
            return
        for fabric in list(self.fabrics):
            fabric.close()
        for pair in list(self.pairs.values()):
            for link in (pair.place, pair.place + self.state.n_places):
                if u32_load_relaxed(&self.state.links[<uint32_t>link].connected):
                    link_end(&self.state.links[<uint32_t>link])
            self.destroy(pair)
        self.sweep()
        release(&self.state)
        self.device = None

    def __dealloc__(self):
        release(&self.state)
        free(self.state.links)
        if self.state.failed_fd >= 0:
            c_close(self.state.failed_fd)
