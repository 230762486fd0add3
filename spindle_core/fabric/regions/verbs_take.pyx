"""What has completed at the device, and what peers have sent.

Work requests of one connection complete in order, so one completion stands for all before it. Rules: what a piece says
is checked before it is believed; a connection with a work request that failed is over.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.regions.boxes cimport HEAD_SIZE, boxed, put_at
from spindle_core.fabric.regions.flights cimport done, end_peer
from spindle_core.fabric.regions.regions cimport (
    MESSAGE_SIZE_MAX,
    MESSAGES_WAITING_MAX,
    REQUEST_DONE,
    REQUEST_WRITE,
    flight_of,
    flight_t,
)
from spindle_core.fabric.regions.verbs_way cimport (
    NO_REQUEST,
    piece_t,
    receive_t,
    verbs_part_t,
    verbs_way_t,
)
from spindle_core.fabric.verbs_api cimport IBV_WC_SUCCESS, ibv_poll_cq, ibv_post_recv, ibv_recv_wr, ibv_wc
from spindle_core.fabric.verbs_link cimport VERBS_FAILED_ERROR, VERBS_FAILED_NONSENSE, reason_of

cdef enum:
    COMPLETIONS_AT_ONCE = 32
    LOOKS_MAX = 32
    CREDIT_ALONE = 0xFFFFFFFF


cdef void finished(verbs_part_t *s, uint32_t peer, uint64_t number) noexcept nogil:
    """Work request `number` has completed, and all before it."""
    cdef verbs_way_t *w = &s.ways[peer]
    cdef flight_t *f
    cdef uint64_t request, place
    while w.finished <= number:
        place = w.finished & (s.depth - 1)
        request = w.requests[place]
        w.finished += 1
        w.pieces_finished += w.pieces[place]
        if request != NO_REQUEST:
            f = flight_of(&s.regions.peers[peer], request)
            done(s.regions, peer, request, REQUEST_DONE, w.results[place] if f.request.kind > REQUEST_WRITE else 0)


cdef bint post_receives(verbs_way_t *w) noexcept nogil:
    """Posts those again that were used; False where the device refuses."""
    cdef ibv_recv_wr *bad = NULL
    cdef ibv_recv_wr *first = w.again
    w.again = NULL
    return first == NULL or ibv_post_recv(w.qp, first, &bad) == 0


cdef bint take_credit(verbs_way_t *w, const piece_t *piece) noexcept nogil:
    """What a piece says of what this side has sent; False if nobody could say that."""
    if piece.taken < w.out_tail or piece.taken > w.out_cut:
        return False
    if piece.received - w.pieces_credited > w.pieces_sent - w.pieces_credited:
        return False
    if piece.credits - w.credits_seen > w.credits_sent - w.credits_seen:
        return False
    w.out_tail = piece.taken
    w.pieces_credited = piece.received
    w.credits_seen = piece.credits
    return True


cdef bint take_piece(verbs_way_t *w, const char *bytes, uint64_t length) noexcept nogil:
    """A piece has come; False if it makes no sense."""
    cdef const piece_t *piece = <const piece_t *>bytes
    cdef uint64_t head
    if length < sizeof(piece_t) or not take_credit(w, piece):
        return False
    length -= sizeof(piece_t)
    if piece.total == CREDIT_ALONE:
        w.credits_received += 1
        return length == 0
    w.pieces_received += 1
    if not w.in_message:
        head = piece.total
        if piece.total > MESSAGE_SIZE_MAX or boxed(piece.total) > MESSAGES_WAITING_MAX - (w.in_head - w.in_tail):
            return False
        put_at(w.inbox, MESSAGES_WAITING_MAX, w.in_head, <char *>&head, HEAD_SIZE)
        w.in_message = 1
        w.in_total = piece.total
        w.in_filled = w.in_head + HEAD_SIZE
        w.in_message_end = w.in_head + boxed(piece.total)
    elif piece.total != w.in_total:
        return False
    if length > w.in_message_end - w.in_filled:
        return False
    put_at(w.inbox, MESSAGES_WAITING_MAX, w.in_filled, bytes + sizeof(piece_t), length)
    w.in_filled += length
    if w.in_filled == w.in_message_end:
        w.in_message = 0
        w.in_head = w.in_message_end
    return True


cdef void take_one(verbs_part_t *s, const ibv_wc *c) noexcept nogil:
    cdef uint32_t peer = <uint32_t>(c.wr_id >> 48) & 0xFF
    cdef verbs_way_t *w = &s.ways[peer]
    cdef bint is_receive = (c.wr_id >> 47) & 1
    cdef uint64_t number = c.wr_id & ((<uint64_t>1 << 47) - 1)
    cdef receive_t *r
    if w.qp == NULL or s.lives[peer] != c.wr_id >> 56 or s.regions.peers[peer].cut:
        return
    if c.status != IBV_WC_SUCCESS:
        end_peer(s.regions, peer, reason_of(c.status))
    elif not is_receive:
        finished(s, peer, number)
    else:
        r = &w.receives[number]
        r.request.next = w.again
        w.again = &r.request
        if not take_piece(w, <char *>r.part.addr, c.byte_len):
            end_peer(s.regions, peer, VERBS_FAILED_NONSENSE)


cdef int take_completions(verbs_part_t *s) noexcept nogil:
    """Takes what has completed and come; returns how much that was."""
    cdef ibv_wc found[COMPLETIONS_AT_ONCE]
    cdef int n = COMPLETIONS_AT_ONCE, i, total = 0, looks = 0
    cdef uint32_t peer
    while n == COMPLETIONS_AT_ONCE and looks < LOOKS_MAX:
        looks += 1
        n = ibv_poll_cq(s.queue, COMPLETIONS_AT_ONCE, found)
        for i in range(n):
            take_one(s, &found[i])
        # What was used is posted again before its sender can be told that it was.
        for i in range(n):
            peer = <uint32_t>(found[i].wr_id >> 48) & 0xFF
            if s.ways[peer].again != NULL and not s.regions.peers[peer].cut and not post_receives(&s.ways[peer]):
                end_peer(s.regions, peer, VERBS_FAILED_ERROR)
        if n > 0:
            total += n
    return total
