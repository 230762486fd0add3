"""One TCP connection between two members of an epoch: what is posted goes out in frames (`tcp_queue`), and what comes
in lands in the row, the registered memory or the letter box that it is for.

Receiving: a long payload goes from the socket straight to its place, in the same call that fetches what follows it. A
short one is stored when all of it is here, and before anything of the next frame. It is stored in words of 8 bytes, so
that no count is ever seen torn.

Rules: everything in a frame that comes from a peer is checked before it is used; a peer can write into this node's copy
of its own row and into memory that was registered for it, nowhere else. A connection serves one epoch and dies with
it.
"""
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from spindle_core.atomics cimport (
    fence_store_store,
    u32_load_relaxed,
    u64_compare_swap_acq_rel,
    u64_fetch_add_acq_rel,
    u64_store_relaxed,
)
from spindle_core.fabric.fabric cimport (
    COMPLETION_CUT,
    COMPLETION_OK,
    COMPLETION_RANGE,
    MAIL_SIZE_MAX,
    MAIL_SLOTS,
    POST_INLINE_MAX,
    completion_t,
)
from spindle_core.fabric.sockets cimport EPOLL_CTL_DEL, SHUT_RDWR, epoll_ctl, epoll_event, iovec, readv, shutdown
from spindle_core.fabric.tcp_queue cimport link_drop, link_entry, link_fail, link_put

cdef enum:
    RECEIVE_AT_ONCE = 512 << 10  # bytes of one peer, before others get their turn


cdef void complete(tcp_t *s, uint32_t peer, uint64_t cookie, uint32_t status, uint64_t value) noexcept nogil:
    cdef completion_t *c = &s.completions[s.completions_head % TCP_REQUESTS_MAX]
    c.cookie = cookie
    c.peer = peer
    c.status = status
    c.value = value
    s.completions_head += 1


cdef void link_end(tcp_t *s, uint32_t peer) noexcept nogil:
    """Nothing is exchanged with this peer any more: what was asked of it completes as cut."""
    cdef tcp_peer_t *p = &s.peers[peer]
    cdef epoll_event none
    cdef uint32_t i
    if p.ended:
        return
    p.ended = 1
    link_drop(p)
    p.begin = p.end = 0
    p.remaining = 0
    if p.fd >= 0:
        epoll_ctl(s.epoll_fd, EPOLL_CTL_DEL, p.fd, &none)
        shutdown(p.fd, SHUT_RDWR)        # the other side learns it, too
    for i in range(<uint32_t>TCP_REQUESTS_MAX):
        if s.requests[i].busy and s.requests[i].peer == peer:
            s.requests[i].busy = 0
            s.n_requests -= 1
            complete(s, peer, s.requests[i].cookie, COMPLETION_CUT, 0)


cdef void store(char *into, const char *data, uint64_t length) noexcept nogil:
    """A short write: whole words, as counts must be."""
    cdef uint64_t i, word
    if (<uint64_t>into | length) & 7:
        memcpy(into, data, length)
    else:
        for i in range(0, length, 8):
            memcpy(&word, data + i, 8)
            u64_store_relaxed(<uint64_t *>(into + i), word)


cdef char *reachable(tcp_t *s, uint32_t key, uint64_t offset, uint64_t length) noexcept nogil:
    if key >= s.n_memories or offset > s.memory_sizes[key] or length > s.memory_sizes[key] - offset:
        return NULL
    return s.memories[key] + offset


cdef int answer(tcp_t *s, uint32_t peer, uint32_t kind, uint64_t number, const tcp_ask *ask) noexcept nogil:
    """Does to my registered memory what a peer asks for, and says what was found."""
    cdef tcp_peer_t *p = &s.peers[peer]
    cdef tcp_answer found
    cdef tcp_entry *e
    cdef uint64_t length = ask.length if kind == FRAME_READ else 8
    cdef char *place = reachable(s, ask.key, ask.offset, length)
    found.value = 0
    found.reserved = 0
    found.status = COMPLETION_OK
    if place == NULL or (kind != FRAME_READ and ask.offset & 7):
        found.status = COMPLETION_RANGE
    elif kind == FRAME_SWAP:
        found.value = u64_compare_swap_acq_rel(<uint64_t *>place, ask.first, ask.second)
    elif kind == FRAME_ADD:
        found.value = u64_fetch_add_acq_rel(<uint64_t *>place, ask.first)
    elif length <= POST_INLINE_MAX:
        return link_put(s, peer, FRAME_DATA, number, place, <uint32_t>length)
    else:
        e = link_entry(s, p, placed(FRAME_DATA, number), <uint32_t>length)
        if e == NULL:
            return -1
        e.at = place
        return 0
    return link_put(s, peer, FRAME_FOUND, number, &found, sizeof(found))


cdef int finish(tcp_t *s, uint32_t peer, uint64_t number, uint32_t status, uint64_t value) noexcept nogil:
    cdef tcp_request *r = &s.requests[number]
    r.busy = 0
    s.n_requests -= 1
    complete(s, peer, r.cookie, status, value)
    return 0


cdef tcp_request *asked(tcp_t *s, uint32_t peer, uint64_t number) noexcept nogil:
    """My open request of that number to that peer, or NULL."""
    if number >= TCP_REQUESTS_MAX or not s.requests[number].busy or s.requests[number].peer != peer:
        return NULL
    return &s.requests[number]


cdef int take_short(tcp_t *s, uint32_t peer, uint32_t kind, uint64_t place, const char *data, uint32_t length
                    ) noexcept nogil:
    """A frame that is here as a whole; -1 if it makes no sense."""
    cdef tcp_peer_t *p = &s.peers[peer]
    cdef tcp_request *r
    cdef tcp_ask ask
    cdef tcp_answer found
    cdef tcp_letter *letter
    if kind == FRAME_WRITE:
        if place > p.row_size or length > p.row_size - place:
            return -1
        store(p.row + place, data, length)
        fence_store_store()
    elif kind == FRAME_RING:
        pass
    elif kind == FRAME_READ or kind == FRAME_SWAP or kind == FRAME_ADD:
        if length != sizeof(tcp_ask):
            return -1
        memcpy(&ask, data, sizeof(ask))
        return answer(s, peer, kind, place, &ask)
    elif kind == FRAME_DATA:
        r = asked(s, peer, place)
        if r == NULL or r.length != length or r.into == NULL:
            return -1
        memcpy(r.into, data, length)
        return finish(s, peer, place, COMPLETION_OK, 0)
    elif kind == FRAME_FOUND:
        r = asked(s, peer, place)
        if r == NULL or length != sizeof(tcp_answer):
            return -1
        memcpy(&found, data, sizeof(found))
        # A read that succeeds is answered with data, and COMPLETION_CUT is only ever said by the side that asked.
        if found.status != COMPLETION_RANGE and (found.status != COMPLETION_OK or r.into != NULL):
            return -1
        return finish(s, peer, place, found.status, found.value)
    elif kind == FRAME_LETTER:
        if length > MAIL_SIZE_MAX or p.letters_in - p.letters_taken >= MAIL_SLOTS:
            return -1
        letter = &p.letters[p.letters_in % MAIL_SLOTS]
        letter.size = length
        memcpy(letter.data, data, length)
        p.letters_in += 1
    elif kind == FRAME_GOODBYE:
        if p.leaves or length:
            return -1
        p.leaves = 1
    elif kind == FRAME_CREDIT:
        if place > p.letters_sent or place < p.letters_credited:
            return -1
        p.letters_credited = place
    else:
        return -1
    return 0


cdef int begin_long(tcp_t *s, uint32_t peer, uint32_t kind, uint64_t place, uint32_t length) noexcept nogil:
    """Where the payload of a long frame goes; -1 if it makes no sense."""
    cdef tcp_peer_t *p = &s.peers[peer]
    cdef tcp_request *r
    if kind == FRAME_WRITE:
        if place > p.row_size or length > p.row_size - place:
            return -1
        p.into = p.row + place
    elif kind == FRAME_DATA:
        r = asked(s, peer, place)
        if r == NULL or r.length != length or r.into == NULL:
            return -1
        p.into = r.into
    else:
        return -1
    p.remaining = length
    return 0


cdef void end_long(tcp_t *s, uint32_t peer) noexcept nogil:
    cdef tcp_peer_t *p = &s.peers[peer]
    fence_store_store()
    if p.frame.place >> PLACE_BITS == FRAME_DATA:
        finish(s, peer, p.frame.place & ((<uint64_t>1 << PLACE_BITS) - 1), COMPLETION_OK, 0)


cdef int take_buffered(tcp_t *s, uint32_t peer) noexcept nogil:
    """What is in the buffer goes where it belongs. Returns how many frames ended; -1 where something makes no sense."""
    cdef tcp_peer_t *p = &s.peers[peer]
    cdef uint64_t n, place
    cdef uint32_t kind
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
            end_long(s, peer)
            taken += 1
            continue
        if p.end - p.begin < sizeof(tcp_frame):
            break
        memcpy(&p.frame, p.buffer + p.begin, sizeof(tcp_frame))
        kind = <uint32_t>(p.frame.place >> PLACE_BITS)
        place = p.frame.place & ((<uint64_t>1 << PLACE_BITS) - 1)
        if p.frame.magic != FRAME_MAGIC:
            return -1
        if p.frame.length <= POST_INLINE_MAX:
            if p.end - p.begin < sizeof(tcp_frame) + p.frame.length:
                break
            if take_short(s, peer, kind, place, p.buffer + p.begin + sizeof(tcp_frame), p.frame.length) < 0:
                return -1
            p.begin += sizeof(tcp_frame) + p.frame.length
            taken += 1
        else:
            if begin_long(s, peer, kind, place, p.frame.length) < 0:
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
            end_long(s, peer)
            done += 1
            p.end += <uint32_t>(<uint64_t>n - direct)
        else:
            p.end += <uint32_t>n
        taken = take_buffered(s, peer)
        if taken < 0:
            link_fail(s, p, FAILED_NONSENSE)
            break
        done += taken
        if <uint64_t>n < wanted:
            break                # there was no more
    s.frames_received += <uint64_t>done
    return done
