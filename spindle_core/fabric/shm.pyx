"""Shared-memory fabric: the rows of one host, mapped by all of its nodes.

A peer maps the owner's own row, so a post copies nothing: the release stores that precede it have published
everything, and all that is left to do is to wake the peer if it sleeps. Reads and atomics act on the mapped memory
and complete at once; small messages go through a ring per ordered pair that only the sender writes.

Rules: peers map rows, bells and mail read-only; only memory registered for one-sided access is mapped for writing.
"""
import os

from libc.errno cimport EAGAIN, EINVAL, EPIPE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy

from spindle_core.atomics cimport (
    fence_store_load,
    u32_load_relaxed,
    u32_store_relaxed,
    u64_compare_swap_acq_rel,
    u64_fetch_add_acq_rel,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_relaxed,
    u64_store_release,
)
from spindle_core.bell cimport fall_asleep, ring_once, wake_up
from spindle_core.events cimport c_close, event_ring, event_wait
from spindle_core.fabric.fabric cimport (
    COMPLETION_CUT,
    COMPLETION_OK,
    COMPLETION_RANGE,
    MAIL_SIZE_MAX,
    MAIL_SLOTS,
    POST_RING,
    Fabric,
    completion_t,
    post_t,
)
from spindle_core.layout cimport BELL_MAGIC, NODES_MAX, bell_page
from spindle_core.memory cimport Mapping


# One direction of mail between two nodes, in the memory of the node that writes it: what it sent to the peer, and how
# much it has taken of what the peer sent.
cdef struct mail_slot:
    uint32_t size
    uint32_t reserved
    char data[MAIL_SIZE_MAX]


cdef struct mail_box:
    uint64_t sent
    uint64_t reserved0[7]
    uint64_t taken
    uint64_t reserved1[7]
    mail_slot slots[MAIL_SLOTS]


cdef inline int ring_peer(shm_peer_t *p) noexcept nogil:
    return p.bell != NULL and not u32_load_relaxed(&p.cut) and ring_once(p.bell, p.bell_fd, &p.rung)


cdef bint ring_all(shm_t *s) noexcept nogil:
    """Rings all peers by one call, if all of them are to be rung, sleep, and were not rung for it; else nobody. A peer
    that is awake would come back from its next sleep for nothing.

    If this node's own predicate thread sleeps, a sender of its own publishes in its stead, and it is rung by the same
    call: it has to deliver what comes back. `called` is stored before the call, because whoever is woken by it looks
    at once. A sender that loses its core in between keeps the call back until it has one again.
    """
    cdef uint32_t i, n = 0
    cdef shm_peer_t *p
    cdef uint64_t own = u64_load_relaxed(&s.bell.sleeps)
    cdef bint with_own = s.all_fd >= 0 and own & 1 and own != u64_load_relaxed(&s.bell.called)
    if not with_own and s.others_fd < 0:
        return False
    for i in range(s.n_peers):
        p = &s.peers[i]
        if p.bell == NULL or u32_load_relaxed(&p.cut):
            continue
        p.sleep = u64_load_relaxed(&p.bell.sleeps)
        if not p.ring or not p.sleep & 1 or p.sleep == p.rung:
            return False
        n += 1
    if n + with_own < 2:
        return False
    if with_own:
        u64_store_relaxed(&s.bell.called, own)
    event_ring(s.all_fd if with_own else s.others_fd)
    for i in range(s.n_peers):
        if s.peers[i].ring:
            s.peers[i].ring = 0
            s.peers[i].rung = s.peers[i].sleep
    return True


cdef int shm_post_list(void *self, const post_t *posts, uint32_t n) noexcept nogil:
    cdef shm_t *s = <shm_t *>self
    cdef uint32_t i
    cdef int rung = 0
    cdef bint any = False
    for i in range(n):
        if posts[i].flags & POST_RING:
            s.peers[posts[i].peer].ring = 1
            any = True
    if any:
        # SYNC POINT: wake. Pairs with shm_prepare_wait(): my counts are visible before I look whether it sleeps.
        fence_store_load()
        if ring_all(s):
            return 1
        for i in range(s.n_peers):
            if s.peers[i].ring:
                s.peers[i].ring = 0
                rung += ring_peer(&s.peers[i])
    return rung


cdef int complete(shm_t *s, uint32_t peer, uint64_t cookie, uint32_t status, uint64_t value) noexcept nogil:
    cdef completion_t *c = &s.completions[s.completions_head % COMPLETIONS_MAX]
    c.cookie = cookie
    c.peer = peer
    c.status = status
    c.value = value
    s.completions_head += 1
    return 0


cdef char *reachable(shm_t *s, uint32_t peer, uint32_t key, uint64_t offset, uint64_t length) noexcept nogil:
    cdef shm_peer_t *p = &s.peers[peer]
    if key >= PEER_MEMORIES_MAX or p.memories[key] == NULL:
        return NULL
    if offset > p.memory_sizes[key] or length > p.memory_sizes[key] - offset:
        return NULL
    return p.memories[key] + offset


cdef inline bint completions_full(shm_t *s) noexcept nogil:
    return s.completions_head - s.completions_tail >= COMPLETIONS_MAX


cdef int shm_post_read(void *self, uint32_t peer, uint32_t key, uint64_t offset, void *into, uint64_t length,
                       uint64_t cookie) noexcept nogil:
    cdef shm_t *s = <shm_t *>self
    cdef char *place = reachable(s, peer, key, offset, length)
    if completions_full(s):
        return -EAGAIN
    if s.peers[peer].cut:
        return complete(s, peer, cookie, COMPLETION_CUT, 0)
    if place == NULL:
        return complete(s, peer, cookie, COMPLETION_RANGE, 0)
    if length == 8 and (offset & 7) == 0:
        (<uint64_t *>into)[0] = u64_load_acquire(<uint64_t *>place)
    else:
        memcpy(into, place, length)
    return complete(s, peer, cookie, COMPLETION_OK, 0)


cdef int shm_post_compare_swap(void *self, uint32_t peer, uint32_t key, uint64_t offset, uint64_t expected,
                               uint64_t desired, uint64_t cookie) noexcept nogil:
    cdef shm_t *s = <shm_t *>self
    cdef char *place = reachable(s, peer, key, offset, 8)
    if completions_full(s):
        return -EAGAIN
    if s.peers[peer].cut:
        return complete(s, peer, cookie, COMPLETION_CUT, 0)
    if place == NULL or offset & 7:
        return complete(s, peer, cookie, COMPLETION_RANGE, 0)
    return complete(s, peer, cookie, COMPLETION_OK,
                    u64_compare_swap_acq_rel(<uint64_t *>place, expected, desired))


cdef int shm_post_fetch_add(void *self, uint32_t peer, uint32_t key, uint64_t offset, uint64_t value,
                            uint64_t cookie) noexcept nogil:
    cdef shm_t *s = <shm_t *>self
    cdef char *place = reachable(s, peer, key, offset, 8)
    if completions_full(s):
        return -EAGAIN
    if s.peers[peer].cut:
        return complete(s, peer, cookie, COMPLETION_CUT, 0)
    if place == NULL or offset & 7:
        return complete(s, peer, cookie, COMPLETION_RANGE, 0)
    return complete(s, peer, cookie, COMPLETION_OK, u64_fetch_add_acq_rel(<uint64_t *>place, value))


cdef int shm_send(void *self, uint32_t peer, const void *data, uint32_t length) noexcept nogil:
    cdef shm_t *s = <shm_t *>self
    cdef shm_peer_t *p = &s.peers[peer]
    cdef mail_box *out = <mail_box *>p.mail_out
    cdef mail_box *back = <mail_box *>p.mail_in
    cdef mail_slot *slot
    cdef uint64_t sent
    if p.cut:
        return -EPIPE
    if length > MAIL_SIZE_MAX or back == NULL:
        return -EINVAL
    sent = u64_load_relaxed(&out.sent)
    # SYNC POINT: mail reuse. Pairs with shm_receive(): the peer is done with the slot before it counts it as taken.
    if sent - u64_load_acquire(&back.taken) >= MAIL_SLOTS:
        return -EAGAIN
    slot = &out.slots[sent % MAIL_SLOTS]
    slot.size = length
    memcpy(slot.data, data, length)
    # SYNC POINT: mail. Pairs with shm_receive(): the slot before the count.
    u64_store_release(&out.sent, sent + 1)
    fence_store_load()
    ring_peer(p)
    return 0


cdef int shm_receive(void *self, uint32_t *peer, void *into, uint32_t capacity) noexcept nogil:
    cdef shm_t *s = <shm_t *>self
    cdef uint32_t i, rank, size
    cdef shm_peer_t *p
    cdef mail_box *mine
    cdef mail_box *theirs
    cdef uint64_t taken
    for i in range(s.n_peers):
        rank = (s.mail_next + i) % s.n_peers
        p = &s.peers[rank]
        if p.mail_in == NULL or p.cut:
            continue
        mine = <mail_box *>p.mail_out
        theirs = <mail_box *>p.mail_in
        taken = u64_load_relaxed(&mine.taken)
        if u64_load_acquire(&theirs.sent) == taken:
            continue
        size = u32_load_relaxed(&theirs.slots[taken % MAIL_SLOTS].size)
        if size > capacity or size > MAIL_SIZE_MAX:
            return -EINVAL
        memcpy(into, theirs.slots[taken % MAIL_SLOTS].data, size)
        u64_store_release(&mine.taken, taken + 1)
        s.mail_next = rank + 1
        peer[0] = rank
        return <int>size
    return -EAGAIN


cdef int shm_poll(void *self, completion_t *completions, int n) noexcept nogil:
    cdef shm_t *s = <shm_t *>self
    cdef int i = 0
    while i < n and s.completions_tail < s.completions_head:
        completions[i] = s.completions[s.completions_tail % COMPLETIONS_MAX]
        s.completions_tail += 1
        i += 1
    return i


cdef int shm_ring(void *self, uint32_t peer) noexcept nogil:
    fence_store_load()
    return ring_peer(&(<shm_t *>self).peers[peer])


cdef void shm_cut(void *self, uint32_t peer) noexcept nogil:
    u32_store_relaxed(&(<shm_t *>self).peers[peer].cut, 1)


cdef void shm_prepare_wait(void *self) noexcept nogil:
    fall_asleep((<shm_t *>self).bell)


cdef int shm_wait(void *self, int64_t timeout_ns) noexcept nogil:
    return 1 if event_wait((<shm_t *>self).bell_fd, -1 if timeout_ns < 0 else <int>(timeout_ns // 1000000)) > 0 else 0


cdef void shm_finish_wait(void *self) noexcept nogil:
    wake_up((<shm_t *>self).bell)


cdef class ShmFabric(Fabric):
    """Peers on this host. `bell` is this node's doorbell page, `bell_fd` its eventfd (both stay the caller's).

    ValueError outside 0 <= rank < n_peers <= NODES_MAX.
    """

    def __cinit__(self):
        self.state.peers = NULL

    def __init__(self, rank, n_peers, Mapping bell not None, int bell_fd):
        if not 0 <= rank < n_peers <= NODES_MAX:
            raise ValueError(f"rank {rank} of {n_peers}: must be 0 <= rank < peers <= {NODES_MAX}")
        cdef shm_t *s = &self.state
        self.rank = s.rank = rank
        self.n_peers = s.n_peers = n_peers
        self.bell = bell
        self.bell_fd = bell_fd
        self.memories = []
        self.peers_kept = {}
        s.bell = <bell_page *>bell.base
        s.bell_fd = bell_fd
        s.others_fd = s.all_fd = -1
        s.peers = <shm_peer_t *>calloc(n_peers, sizeof(shm_peer_t))
        if s.peers == NULL:
            raise MemoryError()
        cdef uint32_t i
        for i in range(s.n_peers):
            s.peers[i].bell_fd = -1
        self.table.self = s
        self.table.post_list = shm_post_list
        self.table.post_read = shm_post_read
        self.table.post_compare_swap = shm_post_compare_swap
        self.table.post_fetch_add = shm_post_fetch_add
        self.table.send = shm_send
        self.table.receive = shm_receive
        self.table.poll = shm_poll
        self.table.ring = shm_ring
        self.table.cut = shm_cut
        self.table.prepare_wait = shm_prepare_wait
        self.table.wait = shm_wait
        self.table.finish_wait = shm_finish_wait

    @property
    def mail(self):
        """The mail of this node, made when it is first asked for: a group that sends none pays nothing."""
        cdef uint32_t i
        if self.mail_made is None:
            self.mail_made = Mapping.create("spindle-mail", self.n_peers * sizeof(mail_box))
            self.mail_made.seal_writes()
            for i in range(self.n_peers):
                self.state.peers[i].mail_out = self.mail_made.base + i * sizeof(mail_box)
        return self.mail_made

    def make_row(self, str name, size):
        """A row that its owner alone can write."""
        cdef Mapping row = Mapping.create(name, size)
        row.seal_writes()
        return row

    def connect(self, peer, Mapping row not None, Mapping bell not None, int bell_fd, Mapping mail=None):
        """Makes a peer reachable. Takes ownership of `bell_fd`. ValueError if it isn't a doorbell or mail of ours."""
        cdef shm_peer_t *p
        try:
            self.check_peer(peer)
            if (<bell_page *>bell.base).magic != BELL_MAGIC:
                raise ValueError("this mapping is not a doorbell of this version")
            if mail is not None and mail.size < self.n_peers * sizeof(mail_box):
                raise ValueError(f"mail of {mail.size} bytes: too small for {self.n_peers} peers")
        except BaseException:
            os.close(bell_fd)
            raise
        p = &self.state.peers[peer]
        p.row = row.base
        p.row_size = row.size
        p.bell = <bell_page *>bell.base
        if p.bell_fd >= 0:
            os.close(p.bell_fd)
        p.bell_fd = bell_fd
        p.mail_in = NULL
        if mail is not None:
            _ = self.mail        # answers need ours
            p.mail_in = mail.base + self.rank * sizeof(mail_box)
        self.peers_kept[peer] = (row, bell, mail)

    def ring_together(self, int others_fd, int all_fd):
        """An eventfd at which all peers listen that will be connected, beside their own, which passes over; and one at
        which this node's predicate thread listens as well, which stays its engine's. -1: none."""
        if self.state.others_fd >= 0:
            c_close(self.state.others_fd)
        self.state.others_fd, self.state.all_fd = others_fd, all_fd

    def register(self, Mapping memory not None):
        """Registers memory for one-sided access by peers: returns its key, to be told them with the descriptor."""
        if len(self.memories) >= PEER_MEMORIES_MAX:
            raise ValueError(f"{PEER_MEMORIES_MAX} registered memories are the limit")
        self.memories.append(memory)
        return len(self.memories) - 1

    def connect_memory(self, peer, uint32_t key, Mapping memory not None):
        """Makes a peer's registered memory reachable under its key; it must be mapped for writing."""
        self.check_peer(peer)
        if key >= PEER_MEMORIES_MAX:
            raise ValueError(f"key {key}: must be below {PEER_MEMORIES_MAX}")
        if not memory.writable:
            raise ValueError("memory for one-sided access must be mapped for writing")
        self.state.peers[peer].memories[key] = memory.base
        self.state.peers[peer].memory_sizes[key] = memory.size
        self.peers_kept[peer, key] = memory

    def row_of(self, peer):
        """The peer's row, for reading."""
        self.check_peer(peer)
        return memoryview(self.peers_kept[peer][0])

    def __dealloc__(self):
        cdef uint32_t i
        if self.state.peers != NULL:
            for i in range(self.state.n_peers):
                if self.state.peers[i].bell_fd >= 0:
                    c_close(self.state.peers[i].bell_fd)
            if self.state.others_fd >= 0:
                c_close(self.state.others_fd)
            free(self.state.peers)
