"""TCP fabric: one-sided writes over sockets, for peers on other hosts.

One connection per pair of members and epoch (`tcp_link`). Whoever drives the predicates drives all of it: `enter`
takes what has come, in one look at all sockets; `leave` sends what was posted in between, as much per peer and call as
the socket takes. Nothing has a thread of its own, so a pass that finds nothing to do ends in one wait, for the doorbell
and all sockets.

A peer's socket tells it of whatever it is sent, so every post rings by itself. ring() sends a frame that does nothing
but ring.

Rules: as in tcp_link. A connection that breaks, or brings nonsense, ends like a cut, rings `failed_fd`, and failures()
says why.
"""
import os

from libc.stdint cimport uint32_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from spindle_core.atomics cimport u32_load_relaxed
from spindle_core.events cimport c_close
from spindle_core.fabric.fabric cimport LANES_FIXED, Fabric
from spindle_core.fabric.lanes cimport lane_t
from spindle_core.fabric.sockets cimport SIOCOUTQ, ioctl, new_epoll, take_socket
from spindle_core.fabric.tcp_link cimport (
    ENDED_GOODBYE,
    FAILED_BEHIND,
    FAILED_CLOSED,
    FAILED_ERROR,
    FAILED_NONSENSE,
    FRAME_GOODBYE,
    TCP_BUFFER_SIZE,
    TCP_LANES_MAX,
    TCP_QUEUE_MAX,
    TCP_QUEUE_OWN,
    link_end,
    tcp_entry,
    tcp_peer_t,
    tcp_t,
)
from spindle_core.fabric.tcp_queue cimport link_put, link_waits
from spindle_core.fabric.tcp_table cimport gone, set_table, tcp_enter, tcp_leave
from spindle_core.layout cimport NODES_MAX
from spindle_core.memory cimport Mapping

FAILURES = {
    FAILED_CLOSED: "the connection was closed",
    FAILED_ERROR: "the network broke the connection",
    FAILED_NONSENSE: "it sent what no node of this version sends",
    FAILED_BEHIND: "it does not take what it is sent",
}
QUEUE_FRAMES = 4096


cdef void release(tcp_peer_t *p) noexcept:
    free(p.queue)
    free(p.lanes)
    free(p.ahead)
    free(p.buffer)
    p.queue = NULL
    p.lanes = NULL
    p.ahead = NULL
    p.buffer = NULL


cdef class TcpFabric(Fabric):
    """Peers behind connected sockets. `bell_fd`: what wait() wakes up for as well (stays the caller's; -1: nothing);
    `failed_fd`: an eventfd that is rung when a connection breaks; `queue`: how many frames may wait for a peer, which
    reserve() can raise.

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
        s.epoll_fd = new_epoll()
        set_table(&self.table, s)

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
            if p.queue == NULL or p.lanes == NULL or p.ahead == NULL or p.buffer == NULL:
                release(p)
                raise MemoryError(f"no memory for what may wait for peer {peer}: {self.state.capacity} frames")
            self.rows[peer] = row
            p.row = row.base
            p.row_size = row.size
            take_socket(self.state.epoll_fd, fd, peer)
        except BaseException:
            os.close(fd)
            raise
        p.fd = fd
        return row

    def row_of(self, peer):
        """The copy of the peer's row, for reading."""
        self.check_peer(peer)
        return memoryview(self.rows[peer])

    def progress(self):
        """Takes what has come and sends what waits; returns how many frames that were."""
        cdef int done = tcp_enter(&self.state)
        tcp_leave(&self.state)
        return done

    def goodbye(self, successor=None):
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
        """{rank: why its connection broke}, without those that were cut or that ended in order, after a goodbye."""
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
