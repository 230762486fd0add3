"""Shared-memory fabric: the rows of one host, mapped by all of its nodes.

A peer maps the owner's own row, so a post copies nothing: the release stores that precede it have published
everything, and all that is left to do is to wake the peer if it sleeps.

Rules: peers map rows and bells read-only.
"""
import os

from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from spindle_core.atomics cimport (
    fence_store_load,
    u32_load_relaxed,
    u32_store_relaxed,
    u64_load_relaxed,
    u64_store_relaxed,
)
from spindle_core.bell cimport bell_of, fall_asleep, ring_once, wake_up
from spindle_core.events cimport c_close, event_ring, event_wait
from spindle_core.fabric.fabric cimport POST_RING, Fabric, post_t
from spindle_core.layout cimport NODES_MAX, bell_page
from spindle_core.memory cimport Mapping


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
        self.table.ring = shm_ring
        self.table.cut = shm_cut
        self.table.prepare_wait = shm_prepare_wait
        self.table.wait = shm_wait
        self.table.finish_wait = shm_finish_wait

    def make_row(self, str name, size):
        """A row that its owner alone can write."""
        cdef Mapping row = Mapping.create(name, size)
        row.seal_writes()
        return row

    def connect(self, peer, Mapping row not None, Mapping bell not None, int bell_fd):
        """Makes a peer reachable. Takes ownership of `bell_fd`. ValueError if it isn't a doorbell of ours."""
        cdef shm_peer_t *p
        cdef bell_page *page
        try:
            self.check_peer(peer)
            page = bell_of(bell)
        except BaseException:
            os.close(bell_fd)
            raise
        p = &self.state.peers[peer]
        p.bell = page
        if p.bell_fd >= 0:
            os.close(p.bell_fd)
        p.bell_fd = bell_fd
        self.peers_kept[peer] = (row, bell)

    def ring_together(self, int others_fd, int all_fd):
        """An eventfd at which all peers listen that will be connected, beside their own, which passes over; and one at
        which this node's predicate thread listens as well, which stays its engine's. -1: none."""
        if self.state.others_fd >= 0:
            c_close(self.state.others_fd)
        self.state.others_fd, self.state.all_fd = others_fd, all_fd

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
