"""Mixed fabric: one group over several fabrics, chosen for each pair of members.

Nodes of one host map each other's rows, while to other hosts the same row is copied. So a row is made by the first part
(shared memory, where it is one) and the others send from it.

Why a table over tables and not branches in each fabric: the predicates see one fabric, whatever it is made of, and a
group on one host keeps the plain one and pays nothing.

Rules: a peer belongs to one part for the life of the epoch. The posts to one peer stay in their order; those to peers
of different parts have none, as they have none in a single fabric either.
"""
import select

from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from spindle_core.events cimport event_wait, event_wait_two
from spindle_core.fabric.fabric cimport Fabric, post_t


cdef inline fabric_t *part(mixed_t *s, uint32_t peer) noexcept nogil:
    """NULL: the peer is not connected."""
    return s.parts[s.part_of[peer]] if s.part_of[peer] != NO_PART else NULL


cdef int mixed_enter(void *self) noexcept nogil:
    cdef mixed_t *s = <mixed_t *>self
    cdef uint32_t i
    cdef int done = 0
    for i in range(s.n_parts):
        if s.parts[i].enter != NULL:
            done += s.parts[i].enter(s.parts[i].self)
    return done


cdef void mixed_leave(void *self) noexcept nogil:
    cdef mixed_t *s = <mixed_t *>self
    cdef uint32_t i
    for i in range(s.n_parts):
        if s.parts[i].leave != NULL:
            s.parts[i].leave(s.parts[i].self)


cdef inline int hand_over(mixed_t *s, uint32_t i) noexcept nogil:
    cdef uint32_t n = s.n_collected[i]
    s.n_collected[i] = 0
    return s.parts[i].post_list(s.parts[i].self, s.collected[i], n) if n else 0


cdef int mixed_post_list(void *self, const post_t *posts, uint32_t n) noexcept nogil:
    cdef mixed_t *s = <mixed_t *>self
    cdef uint32_t i, which
    cdef int rung = 0
    for i in range(n):
        which = s.part_of[posts[i].peer]
        if which == NO_PART:
            continue
        if s.n_collected[which] == COLLECTED_MAX:
            rung += hand_over(s, which)
        s.collected[which][s.n_collected[which]] = posts[i]
        s.n_collected[which] += 1
    for i in range(s.n_parts):
        rung += hand_over(s, i)
    return rung


cdef int mixed_ring(void *self, uint32_t peer) noexcept nogil:
    cdef fabric_t *f = part(<mixed_t *>self, peer)
    return f.ring(f.self, peer) if f != NULL else 0


cdef void mixed_cut(void *self, uint32_t peer) noexcept nogil:
    cdef fabric_t *f = part(<mixed_t *>self, peer)
    if f != NULL:
        f.cut(f.self, peer)


cdef void mixed_prepare_wait(void *self) noexcept nogil:
    cdef mixed_t *s = <mixed_t *>self
    cdef uint32_t i
    for i in range(s.n_parts):
        s.parts[i].prepare_wait(s.parts[i].self)


cdef int mixed_wait(void *self, int64_t timeout_ns) noexcept nogil:
    cdef mixed_t *s = <mixed_t *>self
    cdef int timeout_ms = -1 if timeout_ns < 0 else <int>(timeout_ns // 1000000)
    cdef int found
    if s.wait_fd < 0:
        return 1 if event_wait(s.bell_fd, timeout_ms) > 0 else 0
    found = event_wait_two(s.bell_fd, s.wait_fd, timeout_ms)
    if found & 2:
        mixed_enter(s)
        mixed_leave(s)
    return 1 if found else 0


cdef void mixed_finish_wait(void *self) noexcept nogil:
    cdef mixed_t *s = <mixed_t *>self
    cdef uint32_t i
    for i in range(s.n_parts):
        s.parts[i].finish_wait(s.parts[i].self)


cdef class MixedFabric(Fabric):
    """`parts`: {name: fabric}, all for the same rank and number of peers. The first one makes the row: shared memory,
    if that is among them. `bell_fd`: this node's doorbell, which wait() waits for as well.

    ValueError for no part, more than four, or parts of different groups.
    """

    def __cinit__(self):
        memset(&self.state, 0, sizeof(self.state))

    def __init__(self, dict parts not None, int bell_fd=-1):
        cdef mixed_t *s = &self.state
        cdef Fabric one
        if not 1 <= len(parts) <= PARTS_MAX:
            raise ValueError(f"{len(parts)} fabrics in one: between 1 and {PARTS_MAX}")
        if len({(fabric.rank, fabric.n_peers) for fabric in parts.values()}) != 1:
            raise ValueError("the fabrics of one group must agree on its size and on the own rank")
        self.parts = dict(parts)
        self.order = list(parts)
        for name in self.order:
            one = self.parts[name]
            self.rank, self.n_peers = one.rank, one.n_peers
            s.parts[s.n_parts] = &one.table
            s.n_parts += 1
        s.n_peers = self.n_peers
        s.bell_fd = bell_fd
        s.part_of = <uint8_t *>malloc(s.n_peers)
        if s.part_of == NULL:
            raise MemoryError()
        memset(s.part_of, NO_PART, s.n_peers)
        waiting = [fabric.wait_fd for fabric in self.parts.values() if fabric.wait_fd >= 0]
        s.wait_fd = waiting[0] if waiting else -1
        if len(waiting) > 1:
            self.poller = select.epoll()
            for fd in waiting:
                self.poller.register(fd, select.EPOLLIN)
            s.wait_fd = self.poller.fileno()
        self.table.self = s
        for name in self.order:
            one = self.parts[name]
            if one.table.enter != NULL:
                self.table.enter = mixed_enter
                self.table.leave = mixed_leave
            # Posts are made once for all peers: a part in which bytes cost more than posts decides.
            self.table.range_cost = min(self.table.range_cost, one.table.range_cost)
            self.table.push_bytes = min(self.table.push_bytes, one.table.push_bytes)
        self.table.post_list = mixed_post_list
        self.table.ring = mixed_ring
        self.table.cut = mixed_cut
        self.table.prepare_wait = mixed_prepare_wait
        self.table.wait = mixed_wait
        self.table.finish_wait = mixed_finish_wait

    @property
    def wait_fd(self):
        """Of all parts together."""
        return self.state.wait_fd

    def reserve(self, posts, lanes):
        """As in Fabric, in every part."""
        for fabric in self.parts.values():
            fabric.reserve(posts, lanes)

    def begin(self):
        """As in Fabric, in every part."""
        for fabric in self.parts.values():
            fabric.begin()

    def goodbye(self, successor=None):
        """As in Fabric, in every part."""
        following = successor.parts if isinstance(successor, MixedFabric) else {}
        for name, fabric in self.parts.items():
            fabric.goodbye(following.get(name))

    @property
    def kept(self):
        """As in Fabric, in any part."""
        return any([fabric.kept for fabric in self.parts.values()])

    def tidy(self):
        """As in Fabric, in every part."""
        return all([fabric.tidy() for fabric in self.parts.values()])

    def close(self):
        """Ends the connections of every part. Idempotent."""
        for fabric in self.parts.values():
            fabric.close()

    @property
    def drained(self):
        """All that was posted has arrived by every part."""
        return all(fabric.drained for fabric in self.parts.values())

    def make_row(self, str name, size):
        """The row, made by the first part and sent from by the others."""
        first = self.parts[self.order[0]]
        row = first.make_row(name, size)
        for other in self.order[1:]:
            self.parts[other].adopt_row(row)
        return row

    def connect(self, peer, str name, *how):
        """Makes a peer reachable by the part `name`, as that one's connect(peer, *how) does; returns what it returns
        (False: it is not reachable yet).

        ValueError if the peer has its part already.
        """
        self.check_peer(peer)
        if self.state.part_of[<uint32_t>peer] != NO_PART:
            raise ValueError(f"peer {peer} is connected by {self.part_of(peer)} already")
        answer = self.parts[name].connect(peer, *how)
        if answer is False:
            return False
        self.state.part_of[<uint32_t>peer] = self.order.index(name)
        return answer

    def part_of(self, peer):
        """Name of the fabric by which a peer is reached; "" if it isn't connected."""
        self.check_peer(peer)
        which = self.state.part_of[<uint32_t>peer]
        return "" if which == NO_PART else self.order[which]

    def row_of(self, peer):
        """The peer's row or its copy, for reading."""
        return self.parts[self.part_of(peer)].row_of(peer)

    def progress(self):
        """Takes what has come and sends what waits, in all parts; returns how much that was."""
        cdef int done = mixed_enter(&self.state)
        mixed_leave(&self.state)
        return done

    def failures(self):
        """{rank: why its connection is over}, of those that were not cut."""
        found = {}
        for fabric in self.parts.values():
            found.update(fabric.failures())
        return found

    def __dealloc__(self):
        free(self.state.part_of)
