"""What is handed to the device for a peer: requests, as lists of work requests with one doorbell each, and messages, in
pieces.

The device's queue never overflows: a work request is free again when one that was signalled, it or a later one, has
completed. Signalled are the requests that say so, each piece, and the last of every quarter of the queue.

A message is cut into pieces of PIECE_MAX bytes, each of which takes a receive of the peer. PIECES may be on the way;
each piece says how many of the other direction can be taken again, and how far messages were taken. Who has nothing to
send says so in a message of credit, for which CREDITS receives are kept: at most that many are on the way, and each
piece tells how many have come, so no more than these are ever needed. A peer that waits for credit has got all of it,
or will get it: it is sent when half of what it may use is used up, and what was sent is answered by its next piece.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.regions.boxes cimport HEAD_SIZE, boxed, take_at
from spindle_core.fabric.regions.flights cimport end_peer
from spindle_core.fabric.regions.regions cimport (
    MESSAGES_WAITING_MAX,
    REQUEST_ADD,
    REQUEST_INLINE_MAX,
    REQUEST_READ,
    REQUEST_SIGNALLED,
    REQUEST_WRITE,
    flight_of,
    flight_t,
    peer_t,
)
from spindle_core.fabric.regions.verbs_way cimport (
    CREDITS,
    LIST_OF_WORK_MAX,
    NO_REQUEST,
    PIECE_MAX,
    PIECES,
    PIECES_OUT,
    id_of,
    key_of,
    piece_t,
    verbs_part_t,
    verbs_way_t,
)
from spindle_core.fabric.verbs_api cimport (
    IBV_SEND_INLINE,
    IBV_SEND_SIGNALED,
    IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD,
    IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE,
    IBV_WR_SEND,
    ibv_post_send,
    ibv_send_wr,
    ibv_sge,
)
from spindle_core.fabric.verbs_link cimport VERBS_FAILED_ERROR
from spindle_core.fabric.words cimport copy_words

cdef enum:
    TELL_AFTER = MESSAGES_WAITING_MAX // 4
    CREDIT_ALONE = 0xFFFFFFFF


cdef ibv_send_wr *next_work(verbs_part_t *s, uint32_t peer, uint32_t n, bint signalled) noexcept nogil:
    """The n-th work request of the list that is being made, with what all have in common."""
    cdef verbs_way_t *w = &s.ways[peer]
    cdef ibv_send_wr *work = &s.list[n]
    signalled = signalled or w.handed % (s.depth // 4) == s.depth // 4 - 1
    work.wr_id = id_of(s, peer, w.handed, False)
    work.next = &s.list[n + 1]
    work.sg_list = &s.parts[n]
    work.num_sge = 1
    work.send_flags = IBV_SEND_SIGNALED if signalled else 0
    w.requests[w.handed & (s.depth - 1)] = NO_REQUEST
    w.pieces[w.handed & (s.depth - 1)] = 0
    s.n_signalled += signalled
    return work


cdef bint fill_request(verbs_part_t *s, uint32_t peer, uint32_t n, uint64_t number) noexcept nogil:
    """The next part of a request; True if it is the last one, as nearly always."""
    cdef verbs_way_t *w = &s.ways[peer]
    cdef flight_t *f = flight_of(&s.regions.peers[peer], number)
    cdef uint64_t at = w.part_at, length = f.request.length - w.part_at
    cdef bint last = length <= s.message_max
    cdef ibv_send_wr *work = next_work(s, peer, n, last and f.request.flags & REQUEST_SIGNALLED != 0)
    cdef ibv_sge *part = work.sg_list
    cdef uint64_t place = w.handed & (s.depth - 1)
    cdef char *kept
    if last:
        w.requests[place] = number
        w.part_at = 0
    else:
        length = s.message_max
        w.part_at += length
    part.addr = <uint64_t>(f.request.local + at)
    part.length = <uint32_t>length
    if f.request.kind > REQUEST_WRITE:
        part.addr = <uint64_t>&w.results[place]
        part.lkey = w.arena_key
        work.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD if f.request.kind == REQUEST_ADD else IBV_WR_ATOMIC_CMP_AND_SWP
        work.wr.atomic.remote_addr = f.reached.remote + f.request.offset
        work.wr.atomic.rkey = f.reached.remote_key
        work.wr.atomic.compare_add = f.request.first
        work.wr.atomic.swap = f.request.second
        return last
    work.opcode = IBV_WR_RDMA_READ if f.request.kind == REQUEST_READ else IBV_WR_RDMA_WRITE
    work.wr.rdma.remote_addr = f.reached.remote + f.request.offset + at
    work.wr.rdma.rkey = f.reached.remote_key
    if f.request.kind == REQUEST_READ or f.request.length > REQUEST_INLINE_MAX:
        part.lkey = key_of(s, f.request.local, f.request.length)
    elif f.request.length <= s.inline_max:
        work.send_flags |= IBV_SEND_INLINE
    else:
        kept = w.inlined + place * REQUEST_INLINE_MAX
        copy_words(kept, f.request.local, f.request.length)
        part.addr = <uint64_t>kept
        part.lkey = w.arena_key
    return last


cdef bint next_message(verbs_way_t *w) noexcept nogil:
    """Begins to cut the next message that waits; False if there is none."""
    cdef uint64_t head
    if w.out_cut == w.out_head:
        return False
    take_at(w.outbox, MESSAGES_WAITING_MAX, w.out_cut, <char *>&head, HEAD_SIZE)
    w.out_total = <uint32_t>head
    w.out_message_end = w.out_cut + boxed(w.out_total)
    w.out_cut += HEAD_SIZE
    return True


cdef void fill_piece(verbs_part_t *s, uint32_t peer, uint32_t n, bint credit) noexcept nogil:
    """The next piece of a message that is being cut, or credit alone."""
    cdef verbs_way_t *w = &s.ways[peer]
    cdef ibv_send_wr *work = next_work(s, peer, n, True)
    cdef char *bytes = w.piece_bytes + (w.pieces_handed % PIECES_OUT) * PIECE_MAX
    cdef piece_t *piece = <piece_t *>bytes
    cdef uint64_t length = 0
    piece.taken = w.in_told = w.in_tail
    piece.received = w.pieces_told = w.pieces_received
    piece.credits = w.credits_received
    piece.total = CREDIT_ALONE
    piece.reserved = 0
    if credit:
        w.credits_sent += 1
    else:
        piece.total = w.out_total
        length = w.out_message_end - w.out_cut
        if length > PIECE_MAX - sizeof(piece_t):
            length = (PIECE_MAX - sizeof(piece_t)) & ~<uint64_t>7
        take_at(w.outbox, MESSAGES_WAITING_MAX, w.out_cut, bytes + sizeof(piece_t), length)
        w.out_cut += length
        w.pieces_sent += 1
        if w.out_cut == w.out_message_end:
            w.out_message_end = 0
    w.pieces[w.handed & (s.depth - 1)] = 1
    w.pieces_handed += 1
    work.opcode = IBV_WR_SEND
    work.sg_list.addr = <uint64_t>bytes
    work.sg_list.length = <uint32_t>(sizeof(piece_t) + length)
    work.sg_list.lkey = w.arena_key


cdef inline bint piece_ready(verbs_way_t *w) noexcept nogil:
    """A piece can go, as far as the peer's receives and this side's memory allow."""
    if w.pieces_handed - w.pieces_finished >= PIECES_OUT - 1 or w.pieces_sent - w.pieces_credited >= PIECES:
        return False
    return w.out_message_end != 0 or next_message(w)


cdef inline bint credit_due(verbs_way_t *w) noexcept nogil:
    if w.credits_sent - w.credits_seen >= CREDITS or w.pieces_handed - w.pieces_finished >= PIECES_OUT:
        return False
    return w.pieces_received - w.pieces_told >= PIECES // 2 or w.in_tail - w.in_told >= TELL_AFTER


cdef void hand_over(verbs_part_t *s, uint32_t peer) noexcept nogil:
    """Hands over what waits, as much as the device's queue takes: messages and requests in turns of one list."""
    cdef verbs_way_t *w = &s.ways[peer]
    cdef peer_t *p = &s.regions.peers[peer]
    cdef ibv_send_wr *bad = NULL
    cdef uint32_t n
    while not p.cut:
        n = 0
        while n < LIST_OF_WORK_MAX and w.handed - w.finished < s.depth:
            if n < LIST_OF_WORK_MAX // 2 and piece_ready(w):
                fill_piece(s, peer, n, False)
            elif credit_due(w):
                fill_piece(s, peer, n, True)
            elif p.sent < p.posted:
                p.sent += fill_request(s, peer, n, p.sent)
            else:
                break
            w.handed += 1
            n += 1
        if n == 0:
            return
        s.list[n - 1].next = NULL
        s.n_work += n
        s.n_doorbells += 1
        if ibv_post_send(w.qp, &s.list[0], &bad) != 0:
            end_peer(s.regions, peer, VERBS_FAILED_ERROR)
