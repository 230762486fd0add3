"""What the predicates call of the TCP fabric: the functions of fabric.pxd over one tcp_t."""
from libc.stdint cimport int64_t, uint32_t

from spindle_core.atomics cimport u32_store_relaxed
from spindle_core.events cimport event_wait_two
from spindle_core.fabric.fabric cimport fabric_t, post_t
from spindle_core.fabric.sockets cimport EPOLLIN, SHUT_RDWR, epoll_event, epoll_wait, shutdown
from spindle_core.fabric.tcp_link cimport FRAME_RING, link_end, link_receive, tcp_peer_t, tcp_t
from spindle_core.fabric.tcp_queue cimport link_flush, link_put, link_waits, link_write

cdef enum:
    RANGE_COST = 512             # bytes: what a frame's header and its way through both ends cost
    PUSH_BYTES = 256 << 10       # of a batch, after which a count follows: as much as a joined write can hold
    READY_MAX = 64               # sockets looked at in one pass


cdef void end_gone(tcp_t *s) noexcept nogil:
    """Whoever was cut, or has failed, is not looked at any more."""
    cdef uint32_t i
    for i in range(s.n_peers):
        if s.peers[i].fd >= 0 and not s.peers[i].ended and gone(&s.peers[i]):
            link_end(s, i)


cdef int tcp_enter(void *self) noexcept nogil:
    """Takes what has come; returns how much that was. Until tcp_leave() posts are only queued."""
    cdef tcp_t *s = <tcp_t *>self
    cdef epoll_event ready[READY_MAX]
    cdef int n = epoll_wait(s.epoll_fd, ready, READY_MAX, 0), i, done = 0
    cdef uint32_t peer
    for i in range(n):
        peer = <uint32_t>ready[i].data.u64
        if gone(&s.peers[peer]):
            continue
        done += link_receive(s, peer)    # first: on a broken connection sending would find out only that it is broken
        if ready[i].events & ~EPOLLIN and not gone(&s.peers[peer]):
            done += link_flush(s, peer)
    end_gone(s)
    s.in_pass = True
    return done


cdef void tcp_leave(void *self) noexcept nogil:
    cdef tcp_t *s = <tcp_t *>self
    cdef uint32_t i
    s.in_pass = False
    for i in range(s.n_peers):
        # A socket that was full is flushed when epoll says that it has room.
        if link_waits(&s.peers[i]) and not s.peers[i].waits:
            link_flush(s, i)


cdef int tcp_post_list(void *self, const post_t *posts, uint32_t n) noexcept nogil:
    cdef tcp_t *s = <tcp_t *>self
    cdef uint32_t i
    for i in range(n):
        if (not gone(&s.peers[posts[i].peer]) and posts[i].offset <= s.row_size
                and posts[i].length <= s.row_size - posts[i].offset):
            link_write(s, posts[i].peer, posts[i].flags, posts[i].offset, posts[i].length)
    if not s.in_pass:
        tcp_leave(s)
    return 0


cdef int tcp_ring(void *self, uint32_t peer) noexcept nogil:
    cdef tcp_t *s = <tcp_t *>self
    cdef tcp_peer_t *p = &s.peers[peer]
    if gone(p):
        return 0
    if p.first == p.last:        # else what waits will ring
        link_put(s, peer, FRAME_RING, 0, NULL, 0)
    if not s.in_pass:
        link_flush(s, peer)
    return 1


cdef void tcp_cut(void *self, uint32_t peer) noexcept nogil:
    cdef tcp_peer_t *p = &(<tcp_t *>self).peers[peer]
    u32_store_relaxed(&p.cut, 1)
    if p.fd >= 0:
        shutdown(p.fd, SHUT_RDWR)     # from any thread; the descriptor is closed with the epoch


cdef void tcp_prepare_wait(void *self) noexcept nogil:
    """What arrives makes a socket readable, so there is nothing to announce: only the last look."""
    tcp_enter(self)
    tcp_leave(self)


cdef int tcp_wait(void *self, int64_t timeout_ns) noexcept nogil:
    cdef tcp_t *s = <tcp_t *>self
    cdef int found = event_wait_two(s.bell_fd, s.epoll_fd, -1 if timeout_ns < 0 else <int>(timeout_ns // 1000000))
    if found & 2:
        tcp_prepare_wait(self)
    return 1 if found else 0


cdef void tcp_finish_wait(void *self) noexcept nogil:
    pass


cdef void set_table(fabric_t *table, tcp_t *s) noexcept:
    table.self = s
    table.range_cost = RANGE_COST
    table.push_bytes = PUSH_BYTES
    table.enter = tcp_enter
    table.leave = tcp_leave
    table.post_list = tcp_post_list
    table.ring = tcp_ring
    table.cut = tcp_cut
    table.prepare_wait = tcp_prepare_wait
    table.wait = tcp_wait
    table.finish_wait = tcp_finish_wait
