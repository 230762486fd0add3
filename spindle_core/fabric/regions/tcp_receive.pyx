"""What comes from a peer over TCP: requests are carried out and answered, answers complete requests, messages go into
their box.

A long payload goes from the socket straight to its place, in the call that fetches what follows it. A short one is
taken when all of it is here, so that its words are stored whole.

Rules: all that a frame says is checked before it is used. A peer can change what it is granted, and the memory that
this node reads into for as long as the read is on the way; nothing else. An answer counts only when the request's own
bytes have left, since what they lie in is used again then.
"""
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memmove

from spindle_core.atomics cimport fence_store_store, u64_compare_swap_acq_rel, u64_fetch_add_acq_rel
from spindle_core.fabric.regions.boxes cimport HEAD_SIZE, boxed, put_at
from spindle_core.fabric.regions.flights cimport allowed, done, end_peer
from spindle_core.fabric.regions.regions cimport (
    FLIGHTS_MAX,
    MESSAGE_SIZE_MAX,
    MESSAGES_WAITING_MAX,
    REQUEST_AFTER,
    REQUEST_CUT,
    REQUEST_DONE,
    REQUEST_INLINE_MAX,
    REQUEST_READ,
    REQUEST_SIGNALLED,
    REQUEST_WRITE,
    flight_of,
    flight_t,
    peer_t,
)
from spindle_core.fabric.regions.tcp_send cimport attach, put
from spindle_core.fabric.regions.tcp_way cimport (
    BUFFER_SIZE,
    FRAME_ADD,
    FRAME_ANSWER,
    FRAME_MAGIC,
    FRAME_MESSAGE,
    FRAME_READ,
    FRAME_TAKEN,
    FRAME_WRITE,
    LANDS_IN_BOX,
    LANDS_IN_REGION,
    LANDS_LOCALLY,
    LANDS_NOWHERE,
    NUMBER_BITS,
    answer_t,
    ask_t,
    frame_t,
    out_t,
    tcp_part_t,
    tcp_way_t,
)
from spindle_core.fabric.sockets cimport iovec, readv
from spindle_core.fabric.tcp_link cimport FAILED_CLOSED, FAILED_ERROR, FAILED_NONSENSE
from spindle_core.fabric.words cimport copy_words

cdef enum:
    RECEIVE_AT_ONCE = 512 << 10  # bytes of one peer, before others get their turn


# ---- the owner's side ----------------------------------------------------------------------------------------------

cdef bint answer(tcp_way_t *w, uint64_t number, uint32_t status, uint64_t value, const char *data, uint64_t length
                 ) noexcept nogil:
    cdef answer_t what
    cdef out_t *o
    if w.answers_waiting >= FLIGHTS_MAX:
        return False                   # more than anybody may have on the way
    what.value = value
    what.status = status
    what.reserved = 0
    o = put(w, FRAME_ANSWER, number, &what, sizeof(answer_t))
    if o == NULL:
        return False
    w.answers_waiting += 1
    if length:
        attach(o, data, length)
    return True


cdef bint served(tcp_way_t *w, uint64_t number, uint32_t status, uint32_t flags, uint32_t left) noexcept nogil:
    """A write is done, or any request has failed, which its peer is told if it wants to know."""
    if status != REQUEST_DONE and status != REQUEST_AFTER:
        w.skip = left
    elif not flags & REQUEST_SIGNALLED:
        return True
    return answer(w, number, status, 0, NULL, 0)


cdef bint serve(tcp_part_t *s, uint32_t peer, uint32_t kind, uint64_t number, const ask_t *ask, const char *data,
                uint64_t length, bint whole) noexcept nogil:
    """Carries out what a peer asks for. `length` bytes of payload follow, and are at `data` if `whole`. False if it
    makes no sense."""
    cdef tcp_way_t *w = &s.ways[peer]
    cdef char *place = NULL
    cdef uint32_t status = REQUEST_AFTER
    if number != w.asked & ((<uint64_t>1 << NUMBER_BITS) - 1) or length != (ask.length if kind == FRAME_WRITE else 0):
        return False
    w.asked += 1
    if w.skip:
        w.skip -= 1
    else:
        status = allowed(s.regions, peer, kind, ask.key, ask.offset, ask.length, &place)
    if not whole:
        w.lands = LANDS_IN_REGION if status == REQUEST_DONE else LANDS_NOWHERE
        w.into = place
        w.remaining = length
        w.number = number
        w.key = ask.key
        w.status = status
        w.flags = ask.flags
        w.left = ask.left
        return True
    if status != REQUEST_DONE:
        return served(w, number, status, ask.flags, ask.left)
    if kind == FRAME_WRITE:
        copy_words(place, data, length)
        fence_store_store()
        return served(w, number, REQUEST_DONE, ask.flags, ask.left)
    if kind == FRAME_READ:
        return answer(w, number, REQUEST_DONE, 0, place, ask.length)
    return answer(w, number, REQUEST_DONE,
                  u64_fetch_add_acq_rel(<uint64_t *>place, ask.first) if kind == FRAME_ADD else
                  u64_compare_swap_acq_rel(<uint64_t *>place, ask.first, ask.second), NULL, 0)


# ---- the asker's side ----------------------------------------------------------------------------------------------

cdef bint answered(tcp_part_t *s, uint32_t peer, uint64_t number, const answer_t *what, const char *data,
                   uint64_t length, bint whole) noexcept nogil:
    """An answer has come, with `length` bytes that were read. False if it makes no sense."""
    cdef tcp_way_t *w = &s.ways[peer]
    cdef peer_t *p = &s.regions.peers[peer]
    cdef flight_t *f
    cdef uint64_t k
    if not p.done <= number < w.gone or what.status > REQUEST_AFTER or what.status == REQUEST_CUT:
        return False
    for k in range(p.done, number):
        if flight_of(p, k).request.kind != REQUEST_WRITE and k >= w.skipped_to:
            return False
    f = flight_of(p, number)
    if length != (f.request.length if f.request.kind == REQUEST_READ and what.status == REQUEST_DONE else 0):
        return False
    if what.status == REQUEST_AFTER and number >= w.skipped_to:
        return False
    if not whole:
        w.lands = LANDS_LOCALLY
        w.into = f.request.local
        w.remaining = length
        w.number = number
        return True
    if length:
        copy_words(f.request.local, data, length)
    if what.status != REQUEST_DONE and what.status != REQUEST_AFTER:
        w.skipped_to = number + f.left + 1
    return done(s.regions, peer, number, what.status, what.value)


# ---- frames --------------------------------------------------------------------------------------------------------

cdef inline uint32_t fixed_length(uint32_t kind) noexcept nogil:
    """Bytes that each frame of this kind has before its payload."""
    if kind <= FRAME_ADD:
        return sizeof(ask_t)
    return sizeof(answer_t) if kind == FRAME_ANSWER else 0


cdef bint begin_message(tcp_way_t *w, uint32_t length) noexcept nogil:
    cdef uint64_t head = length
    if length > MESSAGE_SIZE_MAX or boxed(length) > MESSAGES_WAITING_MAX - (w.in_head - w.in_tail):
        return False
    put_at(w.inbox, MESSAGES_WAITING_MAX, w.in_head, <char *>&head, HEAD_SIZE)
    w.lands = LANDS_IN_BOX
    w.box_at = w.in_head + HEAD_SIZE
    w.remaining = length
    w.number = w.in_head + boxed(length)
    return True


cdef bint landed(tcp_part_t *s, uint32_t peer) noexcept nogil:
    """The payload is here, all of it."""
    cdef tcp_way_t *w = &s.ways[peer]
    cdef uint32_t lands = w.lands
    fence_store_store()
    w.lands = LANDS_NOWHERE
    if lands == LANDS_IN_BOX:
        w.in_head = w.number
        return True
    if lands == LANDS_LOCALLY:
        return done(s.regions, peer, w.number, REQUEST_DONE, 0)
    return served(w, w.number, w.status, w.flags, w.left)


cdef bint take_frame(tcp_part_t *s, uint32_t peer, const frame_t *frame, const char *what, const char *data,
                     uint64_t length, bint whole) noexcept nogil:
    """A frame has come: what each of its kind has at `what`, and if `whole` its payload at `data`. False if it makes no
    sense."""
    cdef tcp_way_t *w = &s.ways[peer]
    cdef uint32_t kind = <uint32_t>(frame.place >> NUMBER_BITS)
    cdef uint64_t number = frame.place & ((<uint64_t>1 << NUMBER_BITS) - 1)
    cdef ask_t ask
    cdef answer_t answer_here
    if kind <= FRAME_ADD:
        memcpy(&ask, what, sizeof(ask_t))
        return serve(s, peer, kind, number, &ask, data, length, whole)
    if kind == FRAME_ANSWER:
        memcpy(&answer_here, what, sizeof(answer_t))
        return answered(s, peer, number, &answer_here, data, length, whole)
    if kind == FRAME_MESSAGE:
        if not begin_message(w, <uint32_t>length):
            return False
        if not whole:
            return True
        put_at(w.inbox, MESSAGES_WAITING_MAX, w.box_at, data, length)
        w.remaining = 0
        return landed(s, peer)
    if kind != FRAME_TAKEN or length or number > w.out_head or number < w.out_tail:
        return False
    w.out_tail = number
    return True


cdef void land(tcp_way_t *w, const char *data, uint64_t n) noexcept nogil:
    """The next bytes of the payload go to their place."""
    if w.lands == LANDS_IN_BOX:
        put_at(w.inbox, MESSAGES_WAITING_MAX, w.box_at, data, n)
        w.box_at += n
    elif w.lands != LANDS_NOWHERE:
        memcpy(w.into, data, n)
        w.into += n
    w.remaining -= n


cdef int take_buffered(tcp_part_t *s, uint32_t peer) noexcept nogil:
    """What is in the buffer goes where it belongs. Returns how many frames ended; -1 where one makes no sense."""
    cdef tcp_way_t *w = &s.ways[peer]
    cdef frame_t frame
    cdef uint32_t kind, fixed
    cdef uint64_t n
    cdef bint whole
    cdef const char *what
    cdef int taken = 0
    while w.begin < w.end:
        if w.remaining:
            n = w.end - w.begin
            if n > w.remaining:
                n = w.remaining
            land(w, w.buffer + w.begin, n)
            w.begin += <uint32_t>n
            if w.remaining:
                break
            if not landed(s, peer):
                return -1
            taken += 1
            continue
        if w.end - w.begin < sizeof(frame_t):
            break
        memcpy(&frame, w.buffer + w.begin, sizeof(frame_t))
        kind = <uint32_t>(frame.place >> NUMBER_BITS)
        fixed = fixed_length(kind)
        if frame.magic != FRAME_MAGIC or kind < FRAME_READ or kind > FRAME_TAKEN or frame.length < fixed:
            return -1
        whole = frame.length - fixed <= REQUEST_INLINE_MAX
        n = sizeof(frame_t) + (frame.length if whole else fixed)
        if w.end - w.begin < n:
            break
        what = w.buffer + w.begin + sizeof(frame_t)
        w.begin += <uint32_t>n
        if not take_frame(s, peer, &frame, what, what + fixed, frame.length - fixed, whole):
            return -1
        taken += whole
    if w.begin == w.end:
        w.begin = w.end = 0
    elif w.begin and BUFFER_SIZE - w.end < BUFFER_SIZE // 2:
        memmove(w.buffer, w.buffer + w.begin, w.end - w.begin)
        w.end -= w.begin
        w.begin = 0
    return taken


cdef inline uint64_t straight(tcp_way_t *w, iovec *part) noexcept nogil:
    """Where the next bytes of a payload can go straight from the socket; how many, 0: none."""
    cdef uint64_t length = w.remaining
    if not length or w.begin < w.end or w.lands == LANDS_NOWHERE:
        return 0
    if w.lands == LANDS_IN_BOX:
        part.iov_base = w.inbox + (w.box_at & (MESSAGES_WAITING_MAX - 1))
        if length > MESSAGES_WAITING_MAX - (w.box_at & (MESSAGES_WAITING_MAX - 1)):
            length = MESSAGES_WAITING_MAX - (w.box_at & (MESSAGES_WAITING_MAX - 1))
    else:
        part.iov_base = w.into
    part.iov_len = length
    return length


cdef int take(tcp_part_t *s, uint32_t peer) noexcept nogil:
    """Takes what has come; returns how many frames that completed."""
    cdef tcp_way_t *w = &s.ways[peer]
    cdef peer_t *p = &s.regions.peers[peer]
    cdef iovec parts[2]
    cdef uint64_t total = 0, direct, wanted, n
    cdef ssize_t got
    cdef int taken, all_taken = 0
    while not p.cut and total < RECEIVE_AT_ONCE:
        direct = straight(w, &parts[0])
        parts[1].iov_base = w.buffer + w.end
        parts[1].iov_len = BUFFER_SIZE - w.end
        wanted = direct + parts[1].iov_len
        got = readv(w.fd, &parts[0], 2) if direct else readv(w.fd, &parts[1], 1)
        s.receives += 1
        if got <= 0:
            if got < 0 and errno == EINTR:
                continue
            if got == 0 or errno != EAGAIN:
                end_peer(s.regions, peer, FAILED_CLOSED if got == 0 else FAILED_ERROR)
            break
        n = <uint64_t>got
        total += n
        s.bytes_received += n
        if direct:
            direct = n if n < direct else direct
            n -= direct
            w.remaining -= direct
            if w.lands == LANDS_IN_BOX:
                w.box_at += direct
            else:
                w.into += direct
            if not w.remaining:
                all_taken += 1
                if not landed(s, peer):
                    end_peer(s.regions, peer, FAILED_NONSENSE)
                    break
        w.end += <uint32_t>n
        taken = take_buffered(s, peer)
        if taken < 0:
            end_peer(s.regions, peer, FAILED_NONSENSE)
            break
        all_taken += taken
        if <uint64_t>got < wanted:
            break                # there was no more
    return all_taken
