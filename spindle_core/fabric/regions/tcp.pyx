"""Regions of nodes on other hosts, over one TCP connection for each peer (tcp_send, tcp_receive).

The owner's processor carries out what peers ask for, when whoever drives its end looks: so atomics are atomic against
its own, and nothing needs a device. progress() takes what has come, in one look at all sockets, and sends what waits.

Rules: as in tcp_receive. A connection that breaks, or brings nonsense, ends as if it had been cut, and failures() says
why. Many requests leave in one call; what a full socket does not take waits, bounded, and is sent when it has room.
"""
import os

from libc.errno cimport EAGAIN
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from spindle_core.events cimport c_close
from spindle_core.fabric.regions.boxes cimport HEAD_SIZE, boxed, next_length, put_message, take_at
from spindle_core.fabric.regions.regions cimport (
    ATOMIC_WITH_OWNER,
    MESSAGE_SIZE_MAX,
    MESSAGES_WAITING_MAX,
    PEERS_MAX,
    REQUEST_ENDED,
    REQUEST_INLINE_MAX,
    REQUEST_WRITE,
    Part,
    Regions,
    flight_of,
    flight_t,
    peer_t,
)
from spindle_core.fabric.regions.tcp_receive cimport take
from spindle_core.fabric.regions.tcp_send cimport attach, flush, put
from spindle_core.fabric.regions.tcp_way cimport (
    BUFFER_SIZE,
    FRAME_MESSAGE,
    FRAME_TAKEN,
    LANDS_IN_REGION,
    LANDS_NOWHERE,
    MESSAGES_OUT_MAX,
    OUT_MAX,
    ask_t,
    frame_t,
    out_t,
    tcp_part_t,
    tcp_way_t,
    waiting_frame,
)
from spindle_core.fabric.sockets cimport (
    end_socket,
    epoll_event,
    epoll_wait,
    new_epoll,
    take_socket,
)
from spindle_core.memory cimport Mapping

from spindle_core.fabric.tcp import FAILURES

cdef enum:
    READY_MAX = 64               # sockets looked at in one pass
    TELL_AFTER = MESSAGES_WAITING_MAX // 4     # bytes of messages taken, before the peer is told


cdef void tcp_carry(void *self, uint32_t peer) noexcept nogil:
    cdef tcp_part_t *s = <tcp_part_t *>self
    cdef peer_t *p = &s.regions.peers[peer]
    cdef ask_t ask
    cdef flight_t *f
    cdef out_t *o
    while p.sent < p.posted:
        f = flight_of(p, p.sent)
        ask.key = f.reached.key
        ask.offset = f.request.offset
        ask.length = f.request.length
        ask.first = f.request.first
        ask.second = f.request.second
        ask.left = f.left
        ask.flags = f.request.flags
        o = put(&s.ways[peer], f.request.kind, p.sent, &ask, sizeof(ask_t))
        if o == NULL:
            break
        o.is_request = 1
        if f.request.kind == REQUEST_WRITE:
            attach(o, f.request.local, f.request.length)
        p.sent += 1
    if not s.in_pass:
        flush(s, peer)


cdef int tcp_send(void *self, uint32_t peer, const char *data, uint32_t length) noexcept nogil:
    cdef tcp_part_t *s = <tcp_part_t *>self
    cdef tcp_way_t *w = &s.ways[peer]
    cdef uint64_t at = (w.out_head + HEAD_SIZE) & (MESSAGES_WAITING_MAX - 1)
    cdef uint64_t first = MESSAGES_WAITING_MAX - at
    cdef out_t *o
    if boxed(length) > MESSAGES_WAITING_MAX - (w.out_head - w.out_tail) or w.messages_out >= MESSAGES_OUT_MAX:
        return -EAGAIN
    o = put(w, FRAME_MESSAGE, 0, NULL, 0)
    if o == NULL:
        return -EAGAIN
    o.is_message = 1
    w.messages_out += 1
    if length <= REQUEST_INLINE_MAX:
        attach(o, data, length)
    else:
        put_message(w.outbox, MESSAGES_WAITING_MAX, w.out_head, data, length)
        (<frame_t *>o.head).length = length
        o.data = w.outbox + at
        o.length = length if length < first else first
        o.more = w.outbox
        o.more_length = length - o.length
    w.out_head += boxed(length)
    if not s.in_pass:
        flush(s, peer)
    return 0


cdef int tcp_waiting(void *self, uint32_t peer) noexcept nogil:
    cdef tcp_way_t *w = &(<tcp_part_t *>self).ways[peer]
    return next_length(w.inbox, MESSAGES_WAITING_MAX, w.in_tail, w.in_head, MESSAGE_SIZE_MAX)


cdef void tcp_receive(void *self, uint32_t peer, char *into, uint32_t length) noexcept nogil:
    cdef tcp_part_t *s = <tcp_part_t *>self
    cdef tcp_way_t *w = &s.ways[peer]
    take_at(w.inbox, MESSAGES_WAITING_MAX, w.in_tail + HEAD_SIZE, into, length)
    w.in_tail += boxed(length)
    # Half of the room is told of before the peer has to wait for it; and what is told waits in the queue once.
    if w.in_tail - w.in_told >= TELL_AFTER and put(w, FRAME_TAKEN, w.in_tail, NULL, 0) != NULL:
        w.in_told = w.in_tail
        if not s.in_pass:
            flush(s, peer)


cdef int tcp_progress(void *self) noexcept nogil:
    cdef tcp_part_t *s = <tcp_part_t *>self
    cdef epoll_event ready[READY_MAX]
    cdef int n = epoll_wait(s.epoll_fd, ready, READY_MAX, 0), i, total = 0
    cdef uint32_t peer
    s.in_pass = True
    for i in range(n):
        peer = <uint32_t>ready[i].data.u64
        if not s.regions.peers[peer].cut:
            total += take(s, peer)
            total += s.regions.peers[peer].cut       # a connection that broke is something to drive, too
    s.in_pass = False
    for i in range(n):
        peer = <uint32_t>ready[i].data.u64
        if not s.regions.peers[peer].cut:
            total += flush(s, peer)
            total += s.regions.peers[peer].cut
    return total


cdef void tcp_end(void *self, uint32_t peer) noexcept nogil:
    cdef tcp_part_t *s = <tcp_part_t *>self
    cdef tcp_way_t *w = &s.ways[peer]
    w.out_first = w.out_last
    w.out_sent = 0
    w.remaining = 0
    w.begin = w.end = 0
    w.lands = LANDS_NOWHERE
    end_socket(s.epoll_fd, w.fd)


cdef void release(tcp_way_t *w) noexcept:
    free(w.out)
    free(w.buffer)
    free(w.inbox)
    free(w.outbox)
    if w.fd >= 0:
        c_close(w.fd)
    memset(w, 0, sizeof(tcp_way_t))
    w.fd = -1


cdef class TcpPart(Part):
    """The way to peers on other hosts. OSError where no descriptor is left."""

    def __cinit__(self, Regions regions not None):
        cdef uint32_t i
        self.state = <tcp_part_t *>calloc(1, sizeof(tcp_part_t))
        if self.state == NULL:
            raise MemoryError()
        for i in range(<uint32_t>PEERS_MAX):
            self.state.ways[i].fd = -1
        self.state.epoll_fd = -1
        self.state.epoll_fd = new_epoll()

    def __init__(self, Regions regions not None):
        self.state.regions = regions.state
        self.table.self = self.state
        self.table.capabilities = ATOMIC_WITH_OWNER
        self.table.carry = tcp_carry
        self.table.send = tcp_send
        self.table.waiting = tcp_waiting
        self.table.receive = tcp_receive
        self.table.progress = tcp_progress
        self.table.end = tcp_end
        Part.__init__(self, regions, "tcp")

    @property
    def wait_fd(self):
        """Readable when something has come, or there is room for what could not be sent."""
        return self.state.epoll_fd

    def connect(self, int fd):
        """Connects a peer through a connected stream socket, whose ownership passes over; returns its number.

        OSError where the descriptor is no socket, ConnectionError where there are PEERS_MAX peers, MemoryError.
        """
        cdef tcp_way_t *w
        cdef uint32_t peer
        try:
            peer = self.take_peer()
        except BaseException:
            os.close(fd)
            raise
        w = &self.state.ways[peer]
        w.fd = fd
        w.out = <out_t *>malloc(OUT_MAX * sizeof(out_t))
        w.buffer = <char *>malloc(BUFFER_SIZE)
        w.inbox = <char *>malloc(MESSAGES_WAITING_MAX)
        w.outbox = <char *>malloc(MESSAGES_WAITING_MAX)
        try:
            if w.out == NULL or w.buffer == NULL or w.inbox == NULL or w.outbox == NULL:
                raise MemoryError("no memory for what may wait for a peer")
            take_socket(self.state.epoll_fd, fd, peer)
        except BaseException:
            release(w)
            self.regions.state.peers[peer].part = NULL
            raise
        return peer

    def give_up(self, uint32_t peer):
        """As in Part."""
        release(&self.state.ways[peer])

    def why(self, uint32_t reason):
        """As in Part."""
        return FAILURES[reason]

    def remove_memory(self, uint64_t key):
        """As in Part. A write that has begun fails: the rest of its bytes goes nowhere."""
        cdef uint32_t i
        cdef tcp_way_t *w
        for i in range(<uint32_t>PEERS_MAX):
            w = &self.state.ways[i]
            if w.fd >= 0 and w.lands == LANDS_IN_REGION and w.key == key:
                w.lands = LANDS_NOWHERE
                w.status = REQUEST_ENDED

    def busy(self, Mapping memory):
        """As in Part: an answer that is read from it waits."""
        cdef uint32_t i
        cdef uint64_t k
        cdef tcp_way_t *w
        cdef const char *data
        for i in range(<uint32_t>PEERS_MAX):
            w = &self.state.ways[i]
            for k in range(w.out_first, w.out_last):
                data = waiting_frame(w, k).data
                if memory.base <= data < memory.base + memory.size:
                    return True
        return False

    def statistics(self):
        """System calls and bytes of all connections so far."""
        cdef tcp_part_t *s = self.state
        return {"send_calls": s.sends, "receive_calls": s.receives, "bytes_sent": s.bytes_sent,
                "bytes_received": s.bytes_received}

    def __dealloc__(self):
        cdef uint32_t i
        if self.state != NULL:
            for i in range(<uint32_t>PEERS_MAX):
                release(&self.state.ways[i])
            if self.state.epoll_fd >= 0:
                c_close(self.state.epoll_fd)
            free(self.state)
