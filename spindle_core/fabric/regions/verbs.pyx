"""Regions reached through an RDMA device (libibverbs): the owner's processor takes no part in a request.

One reliable connection for each peer, which lives as long as the two stay connected, whatever views come and go
(verbs_send, verbs_take). A region is registered with the device for just what its peers may do; its device's key ends
with it. So a peer that uses a key that has ended, against all leases, breaks its own connection and nobody else's.

Sleeping: an armed completion queue sends one event when something completes, through the channel that is `wait_fd`.

Rules: what a peer reads from or writes to is known to its device by a key that its grant names; the own memory of a
request must be known to the own device (`know`). Atomics are atomic against those of the device, and against the
processor's only where the device says so.
"""
import os
import secrets

cimport cython

from libc.errno cimport EAGAIN
from libc.stdint cimport uint8_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memmove, memset

from spindle_core.fabric.regions.boxes cimport HEAD_SIZE, boxed, next_length, put_message, take_at
from spindle_core.fabric.regions.regions cimport (
    ATOMIC_WITH_OWNER,
    CARRIES_LATER,
    MESSAGE_SIZE_MAX,
    MESSAGES_WAITING_MAX,
    PEERS_MAX,
    REQUEST_INLINE_MAX,
    RIGHT_ATOMIC,
    RIGHT_WRITE,
    Part,
    Regions,
    place_of,
)
from spindle_core.fabric.regions.verbs_send cimport hand_over
from spindle_core.fabric.regions.verbs_take cimport post_receives, take_completions
from spindle_core.fabric.regions.verbs_way cimport (
    DEPTH_MIN,
    LOCALS_MAX,
    PIECE_MAX,
    PIECES_OUT,
    RECEIVES,
    id_of,
    key_of,
    local_t,
    locals_to,
    receive_t,
    verbs_part_t,
    verbs_way_t,
)
from spindle_core.fabric.verbs_api cimport (
    IBV_ACCESS_LOCAL_WRITE,
    IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ,
    IBV_ACCESS_REMOTE_WRITE,
    IBV_ATOMIC_GLOB,
    ibv_ack_cq_events,
    ibv_cq,
    ibv_create_comp_channel,
    ibv_create_cq,
    ibv_destroy_comp_channel,
    ibv_destroy_cq,
    ibv_destroy_qp,
    ibv_get_cq_event,
    ibv_mr,
    ibv_req_notify_cq,
)
from spindle_core.fabric.verbs_device cimport VerbsDevice
from spindle_core.fabric.verbs_link cimport (
    VERBS_FAILED_CLOSED,
    VERBS_FAILED_ERROR,
    VERBS_FAILED_NONSENSE,
    VERBS_FAILED_REFUSED,
    VERBS_FAILED_SILENT,
    VERBS_FAILED_UNREADY,
    link_error,
)
from spindle_core.memory cimport Mapping

from spindle_core.errors import RdmaUnavailable
from spindle_core.fabric.verbs_address import Address, Memory

FAILURES = {
    VERBS_FAILED_CLOSED: "the connection was closed",
    VERBS_FAILED_SILENT: "it does not answer any more",
    VERBS_FAILED_REFUSED: "its device refused an access: a key had ended, or was not granted",
    VERBS_FAILED_NONSENSE: "it sent what no node of this version sends",
    VERBS_FAILED_UNREADY: "it had no room for a message",
    VERBS_FAILED_ERROR: "the network or the device broke the connection",
}
DEPTH = 128
ACK_TIMEOUT = 14                 # 67 ms
RETRIES = 6
PEERS = 64


cdef void verbs_carry(void *self, uint32_t peer) noexcept nogil:
    hand_over(<verbs_part_t *>self, peer)


cdef bint verbs_knows(void *self, const char *local, uint64_t length) noexcept nogil:
    return key_of(<verbs_part_t *>self, local, length) != 0


cdef int verbs_send(void *self, uint32_t peer, const char *data, uint32_t length) noexcept nogil:
    cdef verbs_part_t *s = <verbs_part_t *>self
    cdef verbs_way_t *w = &s.ways[peer]
    if boxed(length) > MESSAGES_WAITING_MAX - (w.out_head - w.out_tail):
        return -EAGAIN
    put_message(w.outbox, MESSAGES_WAITING_MAX, w.out_head, data, length)
    w.out_head += boxed(length)
    hand_over(s, peer)
    return 0


cdef int verbs_waiting(void *self, uint32_t peer) noexcept nogil:
    cdef verbs_way_t *w = &(<verbs_part_t *>self).ways[peer]
    return next_length(w.inbox, MESSAGES_WAITING_MAX, w.in_tail, w.in_head, MESSAGE_SIZE_MAX)


cdef void verbs_receive(void *self, uint32_t peer, char *into, uint32_t length) noexcept nogil:
    cdef verbs_part_t *s = <verbs_part_t *>self
    cdef verbs_way_t *w = &s.ways[peer]
    take_at(w.inbox, MESSAGES_WAITING_MAX, w.in_tail + HEAD_SIZE, into, length)
    w.in_tail += boxed(length)
    hand_over(s, peer)           # the peer may wait to be told


cdef int verbs_progress(void *self) noexcept nogil:
    cdef verbs_part_t *s = <verbs_part_t *>self
    cdef uint32_t i
    cdef int total = take_completions(s)
    if total:
        for i in range(<uint32_t>PEERS_MAX):
            if s.ways[i].connected and not s.regions.peers[i].cut:
                hand_over(s, i)
    return total


cdef void verbs_end(void *self, uint32_t peer) noexcept nogil:
    cdef verbs_way_t *w = &(<verbs_part_t *>self).ways[peer]
    if w.qp != NULL:
        link_error(w.qp)
    w.connected = 0


cdef void take_events(verbs_part_t *s) noexcept nogil:
    cdef ibv_cq *queue = NULL
    cdef void *context = NULL
    while s.armed and ibv_get_cq_event(s.channel, &queue, &context) == 0:
        s.armed = False
        s.events += 1
    if s.events >= 64:
        ibv_ack_cq_events(s.queue, s.events)
        s.events = 0


cdef void verbs_sleep(void *self) noexcept nogil:
    """SYNC POINT: wake. Pairs with the device: it adds a completion, then looks whether the queue is armed."""
    cdef verbs_part_t *s = <verbs_part_t *>self
    take_events(s)
    if not s.armed:
        s.armed = ibv_req_notify_cq(s.queue, 0) == 0


cdef void verbs_wake(void *self) noexcept nogil:
    take_events(<verbs_part_t *>self)


cdef void release(verbs_way_t *w) noexcept:
    if w.qp != NULL:
        ibv_destroy_qp(w.qp)
    free(w.requests)
    free(w.pieces)
    free(w.outbox)
    free(w.inbox)
    free(w.receives)
    memset(w, 0, sizeof(verbs_way_t))


@cython.no_gc_clear              # its queue pairs go before the device
cdef class VerbsPart(Part):
    """The way to peers with an RDMA device. `device`, `port`, `gid_index`, `ack_timeout` and `retries` as in
    VerbsFabric; `depth`: work requests in a connection's queue; `peers`: connections at a time; `inline_max`: bytes
    that a work request carries itself, fewer where the device can't.

    ValueError where a number makes no sense, RdmaUnavailable where the device can't do what is needed.
    """

    def __cinit__(self, *_, **__):
        self.state = <verbs_part_t *>calloc(1, sizeof(verbs_part_t))
        if self.state == NULL:
            raise MemoryError()

    def __init__(self, Regions regions not None, *, str device="", port=1, int gid_index=-1, depth=DEPTH,
                 ack_timeout=ACK_TIMEOUT, retries=RETRIES, peers=PEERS, inline_max=REQUEST_INLINE_MAX):
        cdef verbs_part_t *s = self.state
        if not 1 <= ack_timeout <= 31 or not 0 <= retries <= 6:
            raise ValueError(f"ack_timeout {ack_timeout}, retries {retries}: must be 1 to 31 and 0 to 6")
        if not 1 <= peers <= PEERS_MAX or not 1 <= port <= 255:
            raise ValueError(f"{peers} peers on port {port}: must be 1 to {PEERS_MAX} on a port from 1 to 255")
        if depth < DEPTH_MIN or depth > 1 << 14:
            raise ValueError(f"a depth of {depth} work requests: must be between {DEPTH_MIN} and {1 << 14}")
        self.ack_timeout = ack_timeout
        self.retries = retries
        self.ends, self.keys, self.locals = {}, {}, {}
        self.device = VerbsDevice(device, port, gid_index)
        s.regions = regions.state
        s.inline_max = min(inline_max, REQUEST_INLINE_MAX)
        s.message_max = min(self.device.link.max_msg_sz, <uint32_t>1 << 30) & ~<uint64_t>63
        s.depth = 1 << <int>(min(depth, self.device.limits.max_qp_wr).bit_length() - 1)
        # Each work request completes once at most, so that the completion queue never overflows.
        self.peers_max = min(peers, self.device.limits.max_cqe // (s.depth + RECEIVES))
        if self.peers_max == 0 or s.depth < DEPTH_MIN:
            raise RdmaUnavailable(f"{self.device.name} has queues of {self.device.limits.max_qp_wr} work requests and"
                                  f" {self.device.limits.max_cqe} completions: too small")
        s.channel = ibv_create_comp_channel(self.device.context)
        if s.channel == NULL:
            raise RdmaUnavailable(f"{self.device.name} gives no completion channel: raise the limit of open files")
        os.set_blocking(s.channel.fd, False)
        s.queue = ibv_create_cq(self.device.context, self.peers_max * (s.depth + RECEIVES), NULL, s.channel, 0)
        if s.queue == NULL:
            raise RdmaUnavailable(f"{self.device.name} gives no completion queue for {self.peers_max} peers")
        self.table.self = s
        self.table.capabilities = CARRIES_LATER
        if self.device.limits.atomic_cap == IBV_ATOMIC_GLOB:
            self.table.capabilities |= ATOMIC_WITH_OWNER
        self.table.carry = verbs_carry
        self.table.knows = verbs_knows
        self.table.send = verbs_send
        self.table.waiting = verbs_waiting
        self.table.receive = verbs_receive
        self.table.progress = verbs_progress
        self.table.end = verbs_end
        self.table.sleep = verbs_sleep
        self.table.wake = verbs_wake
        Part.__init__(self, regions, "verbs")

    @property
    def wait_fd(self):
        """Readable when something has completed, while somebody sleeps."""
        return self.state.channel.fd if self.state.channel != NULL else -1

    # ---- connections ----

    def prepare(self):
        """Makes this end of a connection; returns (the peer's number here, address: bytes that its connect() needs).
        The peer can be used after connect() on both sides.

        ConnectionError where there are as many peers as there may be, RdmaUnavailable where the device gives no more.
        """
        cdef uint32_t peer
        if len(self.ends) >= self.peers_max:
            raise ConnectionError(f"{self.peers_max} peers are connected over {self.device.name}: the limit")
        take_completions(self.state)     # those of connections that are over make room
        peer = self.take_peer()
        self.state.lives[peer] += 1
        arena = Mapping.private(self.arena_size)
        try:
            region = self.make_end(peer, arena)
        except BaseException:
            release(&self.state.ways[peer])
            self.regions.state.peers[peer].part = NULL
            raise
        packet = secrets.randbits(24)
        address = Address(0, self.state.ways[peer].qp.qp_num, packet, self.device.link.lid, self.device.link.link_layer,
                          self.device.link.active_mtu, self.device.gid_bytes, 0, self.device.reads, Memory(0, 0, 0))
        self.ends[peer] = (packet, arena, region)
        return peer, address.pack()

    @property
    def arena_size(self):
        """Bytes that the device reads and writes for each connection, besides what requests name."""
        return self.state.depth * (8 + REQUEST_INLINE_MAX) + (RECEIVES + PIECES_OUT) * PIECE_MAX

    cdef uintptr_t make_end(self, uint32_t peer, Mapping arena) except 0:
        """Makes it of this memory, whose registration it returns."""
        cdef verbs_part_t *s = self.state
        cdef verbs_way_t *w = &s.ways[peer]
        cdef uint32_t i, inline_max = s.inline_max
        cdef char *at = arena.base
        cdef receive_t *r
        cdef ibv_mr *region
        w.requests = <uint64_t *>calloc(s.depth, sizeof(uint64_t))
        w.pieces = <uint8_t *>calloc(s.depth, 1)
        w.outbox = <char *>malloc(MESSAGES_WAITING_MAX)
        w.inbox = <char *>malloc(MESSAGES_WAITING_MAX)
        w.receives = <receive_t *>calloc(RECEIVES, sizeof(receive_t))
        if (w.requests == NULL or w.pieces == NULL or w.outbox == NULL or w.inbox == NULL or w.receives == NULL):
            raise MemoryError("no memory for what may wait for a peer")
        region = self.device.add_region(arena.base, arena.size, IBV_ACCESS_LOCAL_WRITE)
        w.arena_key = region.lkey
        w.qp = self.device.make_queue_pair(s.queue, s.queue, s.depth, RECEIVES, &inline_max)
        s.inline_max = inline_max          # the same for all queue pairs of one kind
        w.results = <uint64_t *>at
        at += s.depth * sizeof(uint64_t)
        w.inlined = at
        at += s.depth * REQUEST_INLINE_MAX
        w.piece_bytes = at
        at += PIECES_OUT * PIECE_MAX
        for i in range(<uint32_t>RECEIVES):
            r = &w.receives[i]
            r.part.addr = <uint64_t>(at + i * PIECE_MAX)
            r.part.length = PIECE_MAX
            r.part.lkey = w.arena_key
            r.request.wr_id = id_of(s, peer, i, True)
            r.request.sg_list = &r.part
            r.request.num_sge = 1
            r.request.next = w.again
            w.again = &r.request
        if not post_receives(w):
            raise RdmaUnavailable(f"{self.device.name} takes no receives")
        return <uintptr_t>region

    def connect(self, uint32_t peer, bytes address not None):
        """Connects an end that prepare() has made with the other side's. ValueError where the bytes are no address or
        this end is connected, OSError where no way leads there."""
        cdef verbs_way_t *w = &self.state.ways[peer]
        if peer not in self.ends or w.connected:
            raise ValueError(f"peer {peer} has no end that waits for its address")
        theirs = Address.parse(address)
        if theirs.link_layer != self.device.link.link_layer:
            raise ValueError("that address is on another kind of network (InfiniBand or RoCE)")
        packet = self.ends[peer][0]
        self.device.connect(w.qp, theirs.queue_pair, packet, theirs, self.ack_timeout, self.retries)
        w.connected = 1

    def give_up(self, uint32_t peer):
        """As in Part."""
        cdef uintptr_t region
        release(&self.state.ways[peer])
        _, _, region = self.ends.pop(peer)
        self.device.end_region(<ibv_mr *>region)

    def why(self, uint32_t reason):
        """As in Part."""
        return FAILURES[reason]

    # ---- memory ----

    def add_memory(self, uint64_t key, Mapping memory, begin, size, uint32_t rights):
        """As in Part: registered with the device, for what peers may do."""
        cdef int access = IBV_ACCESS_REMOTE_READ
        cdef ibv_mr *region
        if rights & RIGHT_WRITE:
            access |= IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_LOCAL_WRITE
        if rights & RIGHT_ATOMIC:
            access |= IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_LOCAL_WRITE
        region = self.device.add_region(memory.base + <uint64_t>begin, size, access)
        self.keys[key] = <uintptr_t>region

    def remove_memory(self, uint64_t key):
        """As in Part."""
        cdef uintptr_t region = self.keys.pop(key)
        self.device.end_region(<ibv_mr *>region)

    def know(self, Mapping memory):
        """As in Part. ValueError where LOCALS_MAX memories are known."""
        cdef local_t *one
        cdef ibv_mr *region
        cdef uint32_t at
        if memory in self.locals:
            return
        if self.state.n_locals == LOCALS_MAX:
            raise ValueError(f"requests of one node use at most {LOCALS_MAX} memories over {self.device.name}")
        access = IBV_ACCESS_LOCAL_WRITE if memory.writable else 0
        region = self.device.add_region(memory.base, memory.size, access)
        at = locals_to(self.state, memory.base)
        one = &self.state.locals[at]
        memmove(one + 1, one, (self.state.n_locals - at) * sizeof(local_t))
        one.key = region.lkey
        one.base = memory.base
        one.size = memory.size
        self.locals[memory] = memory.view(), <uintptr_t>region     # stays mapped as long as it is known
        self.state.n_locals += 1

    def let_go(self, Mapping memory):
        """As in Part."""
        cdef uint32_t behind
        if memory not in self.locals:
            return
        behind = locals_to(self.state, memory.base)
        memmove(&self.state.locals[behind - 1], &self.state.locals[behind],
                (self.state.n_locals - behind) * sizeof(local_t))
        self.state.n_locals -= 1
        _, region = self.locals.pop(memory)
        self.device.end_region(<ibv_mr *><uintptr_t>region)

    def remote(self, uint64_t key):
        """As in Part."""
        cdef uintptr_t region = self.keys[key]
        return (<ibv_mr *>region).rkey, <uintptr_t>self.regions.state.memories[place_of(key)].base

    def statistics(self):
        """Counts so far: `work_requests`, `doorbells` of the device, and how many were `signalled`."""
        cdef verbs_part_t *s = self.state
        return {"work_requests": s.n_work, "doorbells": s.n_doorbells, "signalled": s.n_signalled}

    def __dealloc__(self):
        cdef uint32_t i
        if self.state == NULL:
            return
        for i in range(<uint32_t>PEERS_MAX):
            release(&self.state.ways[i])
        # A queue is not destroyed before all of its events are acknowledged.
        if self.state.queue != NULL:
            ibv_ack_cq_events(self.state.queue, self.state.events)
            ibv_destroy_cq(self.state.queue)
        if self.state.channel != NULL:
            ibv_destroy_comp_channel(self.state.channel)
        free(self.state)
