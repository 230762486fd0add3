"""One TCP connection between two members of an epoch: what is posted goes out in frames (`tcp_queue`), and what comes
in lands in the copy of the peer's row.

Receiving: a long payload goes from the socket straight to its place, in the same call that fetches what follows it. A
short one is stored when all of it is here, and before anything of the next frame. It is stored in words of 8 bytes, so
that no count is ever seen torn.

Rules: everything in a frame that comes from a peer is checked before it is used; a peer can write into this node's copy
of its own row, nowhere else. A connection serves one epoch and dies with it.
"""
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from spindle_core.atomics cimport fence_store_store, u32_load_relaxed
from spindle_core.fabric.fabric cimport POST_INLINE_MAX
from spindle_core.fabric.sockets cimport end_socket, iovec, readv
from spindle_core.fabric.tcp_queue cimport link_drop, link_fail
from spindle_core.fabric.words cimport copy_words

cdef enum:
    RECEIVE_AT_ONCE = 512 << 10  # bytes of one peer, before others get their turn


cdef void link_end(tcp_t *s, uint32_t peer) noexcept nogil:
    """Nothing is exchanged with this peer any more."""
    cdef tcp_peer_t *p = &s.peers[peer]
    if p.ended:
        return
    p.ended = 1
    link_drop(p)
    p.begin = p.end = 0
    p.remaining = 0
    if p.fd >= 0:
        end_socket(s.epoll_fd, p.fd)


cdef int take_short(tcp_peer_t *p, uint32_t kind, uint64_t place, const char *data, uint32_t length) noexcept nogil:
    """A frame that is here as a whole; -1 if it makes no sense."""
    if kind == FRAME_WRITE:
        if place > p.row_size or length > p.row_size - place:
            return -1
        copy_words(p.row + place, data, length)      # counts must be whole
        fence_store_store()
    elif kind == FRAME_GOODBYE:
        if p.leaves or length:
            return -1
        p.leaves = 1
    elif kind != FRAME_RING:
        return -1
    return 0


cdef int begin_long(tcp_peer_t *p, uint32_t kind, uint64_t place, uint32_t length) noexcept nogil:
    """Where the payload of a long frame goes; -1 if it makes no sense."""
    if kind != FRAME_WRITE or place > p.row_size or length > p.row_size - place:
        return -1
    p.into = p.row + place
    p.remaining = length
    return 0


cdef int take_buffered(tcp_peer_t *p) noexcept nogil:
    """What is in the buffer goes where it belongs. Returns how many frames ended; -1 where something makes no sense."""
    cdef uint64_t n, place
    cdef uint32_t kind
    cdef tcp_frame frame
    cdef int taken = 0
    while p.begin < p.end:
        if p.remaining:
            n = p.end - p.begin
            if n > p.remaining:
                n = p.remaining
            memcpy(p.into, p.buffer + p.begin, n)
            p.into += n
            p.remaining -= n
            p.begin += <uint32_t>n
            if p.remaining:
                break
            fence_store_store()
            taken += 1
            continue
        if p.end - p.begin < sizeof(tcp_frame):
            break
        memcpy(&frame, p.buffer + p.begin, sizeof(tcp_frame))
        kind = <uint32_t>(frame.place >> PLACE_BITS)
        place = frame.place & ((<uint64_t>1 << PLACE_BITS) - 1)
        if frame.magic != FRAME_MAGIC:
            return -1
        if frame.length <= POST_INLINE_MAX:
            if p.end - p.begin < sizeof(tcp_frame) + frame.length:
                break
            if take_short(p, kind, place, p.buffer + p.begin + sizeof(tcp_frame), frame.length) < 0:
                return -1
            p.begin += sizeof(tcp_frame) + frame.length
            taken += 1
        else:
            if begin_long(p, kind, place, frame.length) < 0:
                return -1
            p.begin += sizeof(tcp_frame)
    if p.begin == p.end:
        p.begin = p.end = 0
    elif p.begin > 0:
        memmove(p.buffer, p.buffer + p.begin, p.end - p.begin)
        p.end -= p.begin
        p.begin = 0
    return taken


cdef int link_receive(tcp_t *s, uint32_t peer) noexcept nogil:
    """Takes what has come from a peer; returns how many frames that completed."""
    cdef tcp_peer_t *p = &s.peers[peer]
    cdef iovec parts[2]
    cdef int n_parts, taken, done = 0
    cdef ssize_t n
    cdef uint64_t direct, wanted, total = 0
    while not p.failed and not u32_load_relaxed(&p.cut) and total < RECEIVE_AT_ONCE:
        n_parts = 0
        direct = p.remaining     # the buffer is empty then
        if direct:
            parts[0].iov_base = p.into
            parts[0].iov_len = direct
            n_parts = 1
        parts[n_parts].iov_base = p.buffer + p.end
        parts[n_parts].iov_len = TCP_BUFFER_SIZE - p.end
        wanted = direct + parts[n_parts].iov_len
        n = readv(p.fd, parts, n_parts + 1)
        s.receives += 1
        if n < 0:
            if errno == EINTR:
                continue
            if errno != EAGAIN:
                link_fail(s, p, FAILED_ERROR)
            break
        if n == 0:
            link_fail(s, p, FAILED_CLOSED)
            break
        total += <uint64_t>n
        s.bytes_received += <uint64_t>n
        if direct:
            if <uint64_t>n < direct:
                p.into += n
                p.remaining -= <uint64_t>n
                break            # there was no more
            p.remaining = 0
            fence_store_store()
            done += 1
            p.end += <uint32_t>(<uint64_t>n - direct)
        else:
            p.end += <uint32_t>n
        taken = take_buffered(p)
        if taken < 0:
            link_fail(s, p, FAILED_NONSENSE)
            break
        done += taken
        if <uint64_t>n < wanted:
            break                # there was no more
    s.frames_received += <uint64_t>done
    return done
