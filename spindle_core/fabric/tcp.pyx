"""TCP fabric: one-sided writes, reads, atomics and small messages over sockets, for peers on other hosts.

One connection per pair of members and epoch (`tcp_link`). All of it is driven by who drives the predicates: `enter`
takes what has come, in one look at all sockets; `leave` sends what was posted in between, as much per peer and call as
the socket takes. Nothing has a thread of its own, so a pass that finds nothing to do ends in one wait, for the doorbell
and all sockets.

A peer learns of whatever it is sent from its socket, so a post rings by itself, and ring() sends a frame for nothing
else.

Rules: as in tcp_link. A connection that breaks, or brings nonsense, ends like a cut, rings `failed_fd`, and failures()
says why.
"""
import os

from libc.errno cimport EAGAIN, EINVAL, EPIPE, errno
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from spindle_core.atomics cimport u32_load_relaxed, u32_store_relaxed
from spindle_core.events cimport c_close, event_wait_two
from spindle_core.fabric.fabric cimport (
    COMPLETION_CUT,
    LANES_FIXED,
    MAIL_SIZE_MAX,
    MAIL_SLOTS,
    Fabric,
    completion_t,
    post_t,
)
from spindle_core.fabric.lanes cimport lane_t
from spindle_core.fabric.sockets cimport (
    EPOLL_CLOEXEC,
    EPOLL_CTL_ADD,
    EPOLLIN,
    IPPROTO_TCP,
    SHUT_RDWR,
    SIOCOUTQ,
    TCP_NODELAY,
    epoll_create1,
    epoll_ctl,
    epoll_event,
    epoll_wait,
    ioctl,
    setsockopt,
    shutdown,
)
from spindle_core.fabric.tcp_link cimport (
    ENDED_GOODBYE,
    FAILED_BEHIND,
    FAILED_CLOSED,
    FAILED_ERROR,
    FAILED_NONSENSE,
    FRAME_ADD,
    FRAME_CREDIT,
    FRAME_GOODBYE,
    FRAME_LETTER,
    FRAME_READ,
    FRAME_RING,
    FRAME_SWAP,
    TCP_BUFFER_SIZE,
    TCP_LANES_MAX,
    TCP_MEMORIES_MAX,
    TCP_QUEUE_MAX,
    TCP_QUEUE_OWN,
    TCP_REQUESTS_MAX,
    complete,
    link_end,
    link_receive,
    tcp_ask,
    tcp_entry,
    tcp_letter,
    tcp_peer_t,
    tcp_request,
    tcp_t,
)
from spindle_core.fabric.tcp_queue cimport link_flush, link_put, link_waits, link_write
from spindle_core.layout cimport NODES_MAX
from spindle_core.memory cimport Mapping

cdef enum:
    READY_MAX = 64               # sockets looked at in one pass

FAILURES = {
    FAILED_CLOSED: "the connection was closed",
    FAILED_ERROR: "the network broke the connection",
    FAILED_NONSENSE: "it sent what no node of this version sends",
    FAILED_BEHIND: "it does not take what it is sent",
}
QUEUE_FRAMES = 4096
TARGETS_MIN = 16                 # of reads: as many are kept at least before it is looked whether they are still needed
RANGE_COST = 512                 # bytes: what a frame's header and its way through both ends cost
PUSH_BYTES = 256 << 10           # of a batch, after which a count follows: as much as a joined write can hold


cdef inline bint gone(tcp_peer_t *p) noexcept nogil:
    return p.ended or p.fd < 0 or p.failed != 0 or u32_load_relaxed(&p.cut) != 0


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
        done += link_receive(s, peer)    # first: where a connection has broken, sending finds out only that
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


cdef int ask(tcp_t *s, uint32_t peer, uint32_t kind, const tcp_ask *what, void *into, uint64_t cookie) noexcept nogil:
    cdef tcp_request *r
    if s.n_requests + (s.completions_head - s.completions_tail) >= TCP_REQUESTS_MAX:
        return -EAGAIN
    if gone(&s.peers[peer]):
        complete(s, peer, cookie, COMPLETION_CUT, 0)
        return 0
    while s.requests[s.next_request].busy:
        s.next_request = (s.next_request + 1) % TCP_REQUESTS_MAX
    r = &s.requests[s.next_request]
    r.busy = 1
    r.peer = peer
    r.cookie = cookie
    r.into = <char *>into
    r.length = what.length
    s.n_requests += 1
    link_put(s, peer, kind, s.next_request, what, sizeof(tcp_ask))
    if not s.in_pass:
        link_flush(s, peer)
    return 0


cdef int tcp_post_read(void *self, uint32_t peer, uint32_t key, uint64_t offset, void *into, uint64_t length,
                       uint64_t cookie) noexcept nogil:
    cdef tcp_ask what
    if length >= 1 << 30:
        return -EINVAL
    memset(&what, 0, sizeof(what))
    what.key = key
    what.offset = offset
    what.length = <uint32_t>length
    return ask(<tcp_t *>self, peer, FRAME_READ, &what, into, cookie)


cdef int tcp_post_compare_swap(void *self, uint32_t peer, uint32_t key, uint64_t offset, uint64_t expected,
                               uint64_t desired, uint64_t cookie) noexcept nogil:
    cdef tcp_ask what
    what.key = key
    what.offset = offset
    what.first = expected
    what.second = desired
    what.length = 8
    return ask(<tcp_t *>self, peer, FRAME_SWAP, &what, NULL, cookie)


cdef int tcp_post_fetch_add(void *self, uint32_t peer, uint32_t key, uint64_t offset, uint64_t value,
                            uint64_t cookie) noexcept nogil:
    cdef tcp_ask what
    what.key = key
    what.offset = offset
    what.first = value
    what.second = 0
    what.length = 8
    return ask(<tcp_t *>self, peer, FRAME_ADD, &what, NULL, cookie)


cdef int tcp_send(void *self, uint32_t peer, const void *data, uint32_t length) noexcept nogil:
    cdef tcp_t *s = <tcp_t *>self
    cdef tcp_peer_t *p = &s.peers[peer]
    if gone(p):
        return -EPIPE
    if length > MAIL_SIZE_MAX:
        return -EINVAL
    if p.letters_sent - p.letters_credited >= MAIL_SLOTS:
        return -EAGAIN
    if link_put(s, peer, FRAME_LETTER, 0, data, length) < 0:
        return -EPIPE
    p.letters_sent += 1
    if not s.in_pass:
        link_flush(s, peer)
    return 0


cdef int tcp_receive(void *self, uint32_t *peer, void *into, uint32_t capacity) noexcept nogil:
    cdef tcp_t *s = <tcp_t *>self
    cdef uint32_t i, rank
    cdef tcp_peer_t *p
    cdef tcp_letter *letter
    for i in range(s.n_peers):
        rank = (s.mail_next + i) % s.n_peers
        p = &s.peers[rank]
        if p.letters_in == p.letters_taken or gone(p):
            continue
        letter = &p.letters[p.letters_taken % MAIL_SLOTS]
        if letter.size > capacity:
            return -EINVAL
        memcpy(into, letter.data, letter.size)
        p.letters_taken += 1
        s.mail_next = rank + 1
        peer[0] = rank
        link_put(s, rank, FRAME_CREDIT, p.letters_taken, NULL, 0)
        if not s.in_pass:
            link_flush(s, rank)
        return <int>letter.size
    return -EAGAIN


cdef int tcp_poll(void *self, completion_t *completions, int n) noexcept nogil:
    cdef tcp_t *s = <tcp_t *>self
    cdef int i = 0
    end_gone(s)
    while i < n and s.completions_tail < s.completions_head:
        completions[i] = s.completions[s.completions_tail % TCP_REQUESTS_MAX]
        s.completions_tail += 1
        i += 1
    return i


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


cdef void release(tcp_peer_t *p) noexcept:
    free(p.queue)
    free(p.lanes)
    free(p.ahead)
    free(p.buffer)
    free(p.letters)
    p.queue = NULL
    p.lanes = NULL
    p.ahead = NULL
    p.buffer = NULL
    p.letters = NULL


cdef class TcpFabric(Fabric):
    """Peers behind connected sockets. `bell_fd`: what wait() wakes up for besides (stays the caller's; -1: nothing);
    `failed_fd`: an eventfd that is rung when a connection breaks; `queue`: frames that wait for a peer at most, at
    least what reserve() asks for.

    ValueError outside 0 <= rank < n_peers <= NODES_MAX, or a queue that is no power of two up to TCP_QUEUE_MAX.
    """

    def __cinit__(self):
        memset(&self.state, 0, sizeof(self.state))
        self.state.epoll_fd = self.state.bell_fd = self.state.failed_fd = -1

    def __init__(self, rank, n_peers, int bell_fd=-1, *, int failed_fd=-1, queue=QUEUE_FRAMES):
        if not 0 <= rank < n_peers <= NODES_MAX:
            raise ValueError(f"rank {rank} of {n_peers}: must be 0 <= rank < peers <= {NODES_MAX}")
        if not 2 <= queue <= TCP_QUEUE_MAX or queue & (queue - 1):
            raise ValueError(f"a queue of {queue} frames: must be a power of two between 2 and {TCP_QUEUE_MAX}")
        cdef tcp_t *s = &self.state
        self.rank = s.rank = rank
        self.n_peers = s.n_peers = n_peers
        self.memories = []
        self.targets = {}
        self.targets_max = TARGETS_MIN
        self.rows = {}
        s.capacity = queue
        s.n_lanes = LANES_FIXED
        s.n_ahead = LANES_FIXED + 1
        s.bell_fd = bell_fd
        s.failed_fd = os.dup(failed_fd) if failed_fd >= 0 else -1
        s.peers = <tcp_peer_t *>calloc(n_peers, sizeof(tcp_peer_t))
        if s.peers == NULL:
            raise MemoryError()
        cdef uint32_t i
        for i in range(s.n_peers):
            s.peers[i].fd = -1
        s.epoll_fd = epoll_create1(EPOLL_CLOEXEC)
        if s.epoll_fd < 0:
            raise OSError(errno, "no descriptor left for epoll: raise the limit of open files (ulimit -n)")
        self.table.self = s
        self.table.range_cost = RANGE_COST
        self.table.push_bytes = PUSH_BYTES
        self.table.enter = tcp_enter
        self.table.leave = tcp_leave
        self.table.post_list = tcp_post_list
        self.table.post_read = tcp_post_read
        self.table.post_compare_swap = tcp_post_compare_swap
        self.table.post_fetch_add = tcp_post_fetch_add
        self.table.send = tcp_send
        self.table.receive = tcp_receive
        self.table.poll = tcp_poll
        self.table.ring = tcp_ring
        self.table.cut = tcp_cut
        self.table.prepare_wait = tcp_prepare_wait
        self.table.wait = tcp_wait
        self.table.finish_wait = tcp_finish_wait

    def post_read(self, peer, uint32_t key, uint64_t offset, Mapping into not None, uint64_t into_offset,
                  uint64_t length, uint64_t cookie=0):
        """As in Fabric. The answer comes later, so `into` stays mapped until then."""
        if len(self.targets) >= self.targets_max:
            self.forget_targets()
        if into not in self.targets:
            self.targets[into] = into.view()
        Fabric.post_read(self, peer, key, offset, into, into_offset, length, cookie)

    def forget_targets(self):
        """Lets go of memory that no answer is for any more. Whoever drives this fabric calls it; post_read does."""
        cdef uint32_t i
        cdef tcp_request *r
        cdef Mapping into
        cdef dict kept = {}
        for i in range(<uint32_t>TCP_REQUESTS_MAX):
            r = &self.state.requests[i]
            if r.busy and r.into != NULL:
                for into in self.targets:
                    if into.base <= r.into < into.base + into.size:
                        kept[into] = self.targets[into]
        self.targets = kept
        self.targets_max = max(TARGETS_MIN, 2 * len(kept))

    @property
    def wait_fd(self):
        """Readable when there is something to take, or room for what could not be sent."""
        return self.state.epoll_fd

    @property
    def drained(self):
        """All that was posted has reached the hosts of its peers: closing loses nothing."""
        cdef uint32_t i
        cdef int waiting = 0
        cdef tcp_peer_t *p
        for i in range(self.state.n_peers):
            p = &self.state.peers[i]
            if gone(p):
                continue
            if link_waits(p) or ioctl(p.fd, SIOCOUTQ, &waiting) < 0 or waiting:
                return False
        return True

    def make_row(self, str name, size):
        """The row that this member's posts are read from."""
        return self.adopt_row(Mapping.create(name, size))

    def adopt_row(self, Mapping row not None):
        """Reads this member's posts from a row that was made elsewhere: peers of this host map the same one."""
        if self.row is not None:
            raise ValueError("this fabric has its row: one epoch, one fabric")
        self.kept = row.view()             # keeps it mapped
        self.row = row
        self.state.row = row.base
        self.state.row_size = row.size
        return row

    def reserve(self, posts, lanes):
        """As in Fabric. ValueError beyond TCP_QUEUE_MAX frames, or where a peer is connected already."""
        frames = 1 << (posts + TCP_QUEUE_OWN - 1).bit_length()
        if self.rows:
            raise ValueError("reserve before the first peer is connected")
        if frames > TCP_QUEUE_MAX or lanes > TCP_LANES_MAX:
            raise ValueError(f"{posts} posts in {lanes} lanes may wait for a peer: at most"
                             f" {TCP_QUEUE_MAX - TCP_QUEUE_OWN} in {TCP_LANES_MAX} (smaller windows, or fewer topics)")
        self.state.capacity = max(self.state.capacity, frames)
        self.state.n_lanes = lanes
        self.state.n_ahead = lanes + 1

    def connect(self, peer, int fd, Mapping row=None):
        """Makes a peer reachable through a connected stream socket, whose ownership passes over; returns the copy of
        its row, which is `row` or made here. ValueError if the peer has a connection."""
        cdef tcp_peer_t *p
        cdef epoll_event event
        cdef int one = 1
        try:
            self.check_peer(peer)
            if self.row is None:
                raise ValueError("make_row first")
            p = &self.state.peers[peer]
            if p.fd >= 0:
                raise ValueError(f"peer {peer} is connected already")
            if row is None:
                row = Mapping.private(self.row.size)
            if p.queue == NULL:
                p.queue = <tcp_entry *>malloc(self.state.capacity * sizeof(tcp_entry))
                p.lanes = <lane_t *>calloc(self.state.n_lanes, sizeof(lane_t))
                p.ahead = <tcp_entry *>malloc(self.state.n_ahead * sizeof(tcp_entry))
                p.buffer = <char *>malloc(TCP_BUFFER_SIZE)
                p.letters = <tcp_letter *>malloc(MAIL_SLOTS * sizeof(tcp_letter))
            if p.queue == NULL or p.lanes == NULL or p.ahead == NULL or p.buffer == NULL or p.letters == NULL:
                release(p)
                raise MemoryError(f"no memory for what may wait for peer {peer}: {self.state.capacity} frames")
            os.set_blocking(fd, False)
            # All that waits leaves in one call, so holding back a rest of it could only cost time. Other sockets do.
            setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
            self.rows[peer] = row
            p.row = row.base
            p.row_size = row.size
            event.events = EPOLLIN
            event.data.u64 = peer
            if epoll_ctl(self.state.epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
                raise OSError(f"descriptor {fd} can't be waited for: a connected stream socket is needed")
        except BaseException:
            os.close(fd)
            raise
        p.fd = fd
        return row

    def register(self, Mapping memory not None):
        """Registers memory for one-sided access by all peers: returns its key, to be told them."""
        if len(self.memories) >= TCP_MEMORIES_MAX:
            raise ValueError(f"{TCP_MEMORIES_MAX} registered memories are the limit")
        if not memory.writable:
            raise ValueError("memory for one-sided access must be mapped for writing")
        self.memories.append(memory.view())    # keeps it mapped
        self.state.memories[len(self.memories) - 1] = memory.base
        self.state.memory_sizes[len(self.memories) - 1] = memory.size
        self.state.n_memories = len(self.memories)
        return len(self.memories) - 1

    def row_of(self, peer):
        """The copy of the peer's row, for reading."""
        self.check_peer(peer)
        return memoryview(self.rows[peer])

    def progress(self):
        """Takes what has come and sends what waits; returns how many frames that were."""
        cdef int done = tcp_enter(&self.state)
        tcp_leave(&self.state)
        return done

    def goodbye(self):
        """Nothing is posted any more: the peers are told, behind all that waits, so that no end is a failure to them.
        To be called while nobody drives this fabric; drained says when all of it has arrived."""
        cdef uint32_t i
        for i in range(self.state.n_peers):
            if self.state.peers[i].fd >= 0 and not gone(&self.state.peers[i]):
                link_put(&self.state, i, FRAME_GOODBYE, 0, NULL, 0)
        tcp_leave(&self.state)

    def close(self):
        """Ends all connections. Not while driven. Idempotent."""
        cdef uint32_t i
        for i in range(self.state.n_peers):
            if self.state.peers[i].fd >= 0:
                link_end(&self.state, i)
                c_close(self.state.peers[i].fd)
                self.state.peers[i].fd = -1

    def failures(self):
        """{rank: why its connection broke}, without those that were cut, and without orderly ends: after a goodbye."""
        cdef uint32_t i
        return {i: FAILURES[self.state.peers[i].failed] for i in range(self.state.n_peers)
                if self.state.peers[i].failed not in (0, ENDED_GOODBYE)
                and not u32_load_relaxed(&self.state.peers[i].cut)}

    @property
    def departed(self):
        """Ranks whose connection has ended in order: one of the two sides had said goodbye."""
        return {i for i in range(self.n_peers) if self.state.peers[<uint32_t>i].failed == ENDED_GOODBYE}

    def statistics(self):
        """Frames, bytes and system calls of all connections so far."""
        cdef tcp_t *s = &self.state
        return {"frames_sent": s.frames_sent, "frames_received": s.frames_received, "bytes_sent": s.bytes_sent,
                "bytes_received": s.bytes_received, "send_calls": s.sends, "receive_calls": s.receives,
                "waiting_max": max([s.peers[<uint32_t>i].waiting_max for i in range(s.n_peers)])}

    def __dealloc__(self):
        cdef uint32_t i
        if self.state.peers != NULL:
            for i in range(self.state.n_peers):
                if self.state.peers[i].fd >= 0:
                    c_close(self.state.peers[i].fd)
                release(&self.state.peers[i])
            free(self.state.peers)
        if self.state.epoll_fd >= 0:
            c_close(self.state.epoll_fd)
        if self.state.failed_fd >= 0:
            c_close(self.state.failed_fd)
