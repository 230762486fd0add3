"""What waits to be sent over one TCP connection, and how it leaves.

Posts wait in a queue of fixed size and leave as many at once as the socket takes. A short post is copied into the
queue as it is at the post; a longer one is read from the row when it leaves, so it may carry what was stored since
(fabric.pxd allows just that). Nothing here waits: what the socket does not take stays queued, and what is posted
meanwhile joins it where its lane allows. So what can wait is bounded by windows, not by time; the queue is sized for
that, and a peer that lets it run full has asked for more than any node of this version does.

On a slow line what waits may take longer than a member may be silent; and acknowledgements would wait behind data,
while the senders of other data wait for them. So a count that guards nothing (POST_AHEAD) waits in a queue of its own,
which goes before whatever has not begun to leave; and a long write leaves in pieces, so that it can go in between.

The last frame is a goodbye, where there is time for one: how the connection ends after that is no failure, at either
side.
"""
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.atomics cimport u32_load_relaxed
from spindle_core.events cimport event_ring
from spindle_core.fabric.fabric cimport POST_AHEAD, POST_GUARD, POST_INLINE_MAX
from spindle_core.fabric.lanes cimport carrier, carry, fits, lane_of, lane_t, note_last
from spindle_core.fabric.sockets cimport iovec, send_parts, watch_socket
from spindle_core.fabric.tcp_link cimport (
    ENDED_GOODBYE,
    FAILED_BEHIND,
    FRAME_GOODBYE,
    FRAME_MAGIC,
    FRAME_WRITE,
    PLACE_BITS,
    placed,
    tcp_entry,
    tcp_frame,
    tcp_peer_t,
    tcp_t,
)

cdef enum:
    FRAME_LENGTH_MAX = 512 << 20
    JOINED_MAX = 256 << 10       # bytes of a write that later ones join
    PIECE = 256 << 10            # bytes of a long write that leave in one frame
    IOVECS = 256                 # of one call
    AHEAD_AT_ONCE = 64           # of them at most for what goes ahead


cdef inline tcp_entry *entry(tcp_t *s, tcp_peer_t *p, uint64_t index) noexcept nogil:
    return &p.queue[(index - p.base) & (s.capacity - 1)]


cdef void link_fail(tcp_t *s, tcp_peer_t *p, uint32_t why) noexcept nogil:
    """Notes that the connection is over, and why: no failure where one of the two had said goodbye."""
    if p.failed:
        return
    p.failed = ENDED_GOODBYE if p.leaves or p.left else why
    if p.failed != ENDED_GOODBYE:
        event_ring(s.failed_fd)


cdef void link_drop(tcp_peer_t *p) noexcept nogil:
    """What waits to be sent won't be."""
    p.last = p.first
    p.sent = 0
    p.begun = 0
    p.ahead_last = p.ahead_first
    p.ahead_sent = 0


cdef tcp_entry *link_entry(tcp_t *s, tcp_peer_t *p, uint64_t place, uint32_t length) noexcept nogil:
    """The next one of the queue; NULL where the peer has let it run full, or nothing is sent any more."""
    cdef tcp_entry *e
    if p.mute or p.left:
        return NULL
    if p.first == p.last:
        p.base = p.first               # a queue that runs empty stays where the cache has it
    if p.last - p.first >= s.capacity:
        link_fail(s, p, FAILED_BEHIND)
        return NULL
    e = entry(s, p, p.last)
    e.at = NULL
    e.rest = 0
    e.frame.place = place
    e.frame.length = length
    e.frame.magic = FRAME_MAGIC
    p.last += 1
    if p.last - p.first > p.waiting_max:
        p.waiting_max = p.last - p.first
    return e


cdef int link_put(tcp_t *s, uint32_t peer, uint32_t kind, uint64_t place, const void *data, uint32_t length
                  ) noexcept nogil:
    """Queues a frame with a payload of at most POST_INLINE_MAX bytes."""
    cdef tcp_peer_t *p = &s.peers[peer]
    cdef tcp_entry *e = link_entry(s, p, placed(kind, place), length)
    if e == NULL:
        return -1
    if length:
        memcpy(e.data, data, length)
    if kind == FRAME_GOODBYE:
        p.left = 1
    return 0


cdef inline bint join(tcp_t *s, tcp_entry *e, const lane_t *lane, uint32_t flags, uint64_t offset, uint64_t length
                      ) noexcept nogil:
    """A frame that waits carries this write as well, if its lane allows."""
    if e.frame.place >> PLACE_BITS != FRAME_WRITE:
        return False
    return carry(
        fits(lane != NULL, flags, e.frame.place, e.frame.length, placed(FRAME_WRITE, offset), length, JOINED_MAX),
        &e.at, e.data, &e.frame.length, s.row, offset, length)


cdef bint goes_ahead(tcp_t *s, tcp_peer_t *p, lane_t *lane, uint32_t flags, uint64_t offset, uint64_t length
                     ) noexcept nogil:
    """Queues what need not wait, or lets a waiting write of its lane carry it. False if it has to go the way of all
    others: it is long, or a lane has more than the one range that the promise allows."""
    cdef tcp_entry *e
    cdef uint64_t whole = p.ahead_first + (p.ahead_sent > 0)
    cdef uint64_t one = carrier(lane, flags, whole, p.ahead_last)
    if one and join(s, &p.ahead[(one - 1) % s.n_ahead], lane, flags, offset, length):
        return True
    if length > POST_INLINE_MAX or p.ahead_last - p.ahead_first >= s.n_ahead:
        return False
    e = &p.ahead[p.ahead_last % s.n_ahead]
    e.at = NULL
    e.frame.place = placed(FRAME_WRITE, offset)
    e.frame.length = <uint32_t>length
    e.frame.magic = FRAME_MAGIC
    memcpy(e.data, s.row + offset, length)
    p.ahead_last += 1
    note_last(lane, flags, p.ahead_last)
    return True


cdef int link_write(tcp_t *s, uint32_t peer, uint32_t flags, uint64_t offset, uint64_t length) noexcept nogil:
    """Queues a write of a range of my row, or lets one that waits carry it, as its lane allows."""
    cdef tcp_peer_t *p = &s.peers[peer]
    cdef tcp_entry *e
    cdef lane_t *lane = lane_of(p.lanes, s.n_lanes, flags)
    cdef uint64_t one
    cdef uint64_t whole = p.first + (p.sent > 0 or p.begun != 0)     # the first frame of which nothing has left
    if length > FRAME_LENGTH_MAX:
        if link_write(s, peer, flags, offset, FRAME_LENGTH_MAX) < 0:
            return -1
        return link_write(s, peer, flags, offset + FRAME_LENGTH_MAX, length - FRAME_LENGTH_MAX)
    if lane != NULL and flags & POST_AHEAD and flags & POST_GUARD:
        if p.mute or p.left:
            return -1
        if goes_ahead(s, p, lane, flags, offset, length):
            return 0
        lane = NULL
    one = carrier(lane, flags, whole, p.last)
    if one and join(s, entry(s, p, one - 1), lane, flags, offset, length):
        return 0
    e = link_entry(s, p, placed(FRAME_WRITE, offset), <uint32_t>length)
    if e == NULL:
        return -1
    if length > POST_INLINE_MAX:
        e.at = s.row + offset
    else:
        memcpy(e.data, s.row + offset, length)
    note_last(lane, flags, p.last)
    return 0


cdef inline int ahead_at_once(tcp_peer_t *p) noexcept nogil:
    """How many that go ahead one call takes along."""
    return <int>(p.ahead_last - p.ahead_first) if p.ahead_last - p.ahead_first < AHEAD_AT_ONCE else AHEAD_AT_ONCE


cdef inline int gather_ahead(tcp_t *s, tcp_peer_t *p, iovec *parts) noexcept nogil:
    cdef int i, n = ahead_at_once(p)
    cdef uint64_t skip = p.ahead_sent
    cdef tcp_entry *e
    for i in range(n):
        e = &p.ahead[(p.ahead_first + <uint64_t>i) % s.n_ahead]
        parts[i].iov_base = <char *>&e.frame + skip
        parts[i].iov_len = sizeof(tcp_frame) + e.frame.length - skip
        skip = 0
    return n


cdef int gather(tcp_t *s, tcp_peer_t *p, iovec *parts) noexcept nogil:
    """What one call can send: of the queue, and what goes ahead at its first gap. Returns the number of parts."""
    cdef uint64_t i = p.first, skip = p.sent
    cdef int n = 0
    cdef tcp_entry *e
    if not skip:
        n = gather_ahead(s, p, parts)
    while i < p.last and n + 3 <= IOVECS - AHEAD_AT_ONCE:
        e = entry(s, p, i)
        if e.frame.length > PIECE and not skip:
            if i > p.first:
                break                  # something may want to go before it
            e.rest = e.frame.length - PIECE
            e.frame.length = PIECE
            p.begun = 1
        i += 1
        if e.at == NULL:
            parts[n].iov_base = <char *>&e.frame + skip
            parts[n].iov_len = sizeof(tcp_frame) + e.frame.length - skip
            n += 1
        else:
            if skip < sizeof(tcp_frame):
                parts[n].iov_base = <char *>&e.frame + skip
                parts[n].iov_len = sizeof(tcp_frame) - skip
                n += 1
                skip = 0
            else:
                skip -= sizeof(tcp_frame)
            parts[n].iov_base = <char *>e.at + skip
            parts[n].iov_len = e.frame.length - skip
            n += 1
        skip = 0
        if p.sent and i == p.first + 1:
            n += gather_ahead(s, p, parts + n)
        if e.rest:
            break
    return n


cdef inline int frame_gone(tcp_t *s, tcp_peer_t *p) noexcept nogil:
    """The first of the queue, or a piece of it, has left if so much was sent; 0 if not."""
    cdef tcp_entry *e = entry(s, p, p.first)
    cdef uint64_t size = sizeof(tcp_frame) + e.frame.length
    if p.sent < size:
        return 0
    p.sent -= size
    s.frames_sent += 1
    if e.rest:
        e.at += e.frame.length
        e.frame.place += e.frame.length
        e.frame.length = <uint32_t>e.rest
        e.rest = 0
    else:
        p.first += 1
        p.begun = 0
    return 1


cdef uint64_t ahead_gone(tcp_t *s, tcp_peer_t *p, uint64_t n) noexcept nogil:
    """Takes account of n bytes sent from a gap on: what goes ahead was first. Returns how many bytes were others'."""
    cdef int _i
    cdef uint64_t left
    for _i in range(ahead_at_once(p)):
        left = sizeof(tcp_frame) + p.ahead[p.ahead_first % s.n_ahead].frame.length - p.ahead_sent
        if n < left:
            p.ahead_sent += n
            return 0
        n -= left
        p.ahead_sent = 0
        p.ahead_first += 1
        s.frames_sent += 1
    return n


cdef int sent(tcp_t *s, tcp_peer_t *p, uint64_t n) noexcept nogil:
    """So many bytes of what was gathered are gone; returns how many frames that completed."""
    cdef int gone = 0
    cdef uint64_t left, ahead = p.ahead_first
    s.bytes_sent += n
    if p.sent:
        left = sizeof(tcp_frame) + entry(s, p, p.first).frame.length - p.sent
        if n < left:
            p.sent += n
            return 0
        p.sent += left
        n -= left
        gone += frame_gone(s, p)
    n = ahead_gone(s, p, n)
    gone += <int>(p.ahead_first - ahead)
    p.sent += n
    while p.first < p.last and frame_gone(s, p):
        gone += 1
    return gone


cdef void look_for_room(tcp_t *s, uint32_t peer, bint wanted) noexcept nogil:
    """Has epoll tell when the socket has room again, if `wanted`; else no longer."""
    cdef tcp_peer_t *p = &s.peers[peer]
    if p.waits == wanted:
        return
    p.waits = wanted
    watch_socket(s.epoll_fd, p.fd, peer, wanted)


cdef int link_flush(tcp_t *s, uint32_t peer) noexcept nogil:
    """Sends what the socket takes; returns how many frames are gone."""
    cdef tcp_peer_t *p = &s.peers[peer]
    cdef iovec parts[IOVECS]
    cdef ssize_t n
    cdef int gone = 0
    while link_waits(p) and not p.failed and not u32_load_relaxed(&p.cut):
        n = send_parts(p.fd, parts, gather(s, p, parts))
        s.sends += 1
        if n < 0:
            if errno == EAGAIN:
                look_for_room(s, peer, True)
                return gone
            # What the peer sent before it went may still be here: reading comes to the end of it.
            p.mute = 1
            link_drop(p)
            return gone
        gone += sent(s, p, <uint64_t>n)
    if p.waits and not link_waits(p) and not p.ended:
        look_for_room(s, peer, False)
    return gone
