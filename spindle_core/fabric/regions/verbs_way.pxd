"""Regions reached through an RDMA device: one reliable connection for each peer, and what its device has of it."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spindle_core.fabric.regions.regions cimport MESSAGES_WAITING_MAX, PEERS_MAX, REQUEST_INLINE_MAX, regions_t
from spindle_core.fabric.verbs_api cimport ibv_comp_channel, ibv_cq, ibv_qp, ibv_recv_wr, ibv_send_wr, ibv_sge

cdef enum:
    PIECE_MAX = 4096             # bytes of a message's piece, its head among them
    PIECES = 64                  # pieces that a peer may send before it is told that some were taken
    CREDITS = 2                  # messages of credit that may be on the way besides
    RECEIVES = PIECES + CREDITS
    PIECES_OUT = 16              # pieces, credit among them, in the device's queue
    DEPTH_MIN = 2 * PIECES_OUT
    LIST_OF_WORK_MAX = 32        # work requests of one doorbell
    LOCALS_MAX = 4096            # memories of this node that requests may use
    NO_REQUEST = 0xFFFFFFFFFFFFFFFF


# Before the bytes of each piece. What it says of messages and pieces counts from the beginning of the connection.
cdef struct piece_t:
    uint64_t taken               # bytes of messages that the sender of this has taken
    uint32_t received            # pieces of the peer that it can take again
    uint32_t credits             # messages of credit that it has got
    uint32_t total               # bytes of the message that this is a piece of; 0xFFFFFFFF: credit alone
    uint32_t reserved


cdef struct local_t:
    char *base
    uint64_t size                # bytes
    uint32_t key


cdef struct receive_t:
    ibv_recv_wr request
    ibv_sge part


# Invariant: finished <= handed <= finished + depth; both count work requests.
cdef struct verbs_way_t:
    ibv_qp *qp                   # NULL: no connection
    uint8_t connected
    uint64_t handed, finished
    uint64_t part_at             # bytes of the next request that were handed over, where one work request can't do it
    uint64_t *requests           # by number % depth: the request that it is, or NO_REQUEST
    uint8_t *pieces              # the same: it is a piece
    uint64_t *results            # the same: what an atomic found
    char *inlined                # the same: REQUEST_INLINE_MAX bytes of a short write; NULL: the device carries them
    # Messages out: a ring of bytes, put up to out_head, cut into pieces to out_cut, taken by the peer to out_tail.
    char *outbox
    uint64_t out_head, out_cut, out_tail
    uint64_t out_message_end     # of the message that is being cut
    uint32_t out_total           # its bytes
    char *piece_bytes            # PIECES_OUT * PIECE_MAX
    uint32_t pieces_handed, pieces_finished          # data and credit
    uint32_t pieces_sent, pieces_credited            # data; and of these the peer can take again
    uint32_t credits_sent, credits_seen              # credit sent; and of it the peer has got
    # Messages in
    char *inbox
    uint64_t in_head, in_filled, in_tail, in_told    # whole messages, bytes, taken, told
    uint32_t in_total
    uint64_t in_message_end
    uint8_t in_message
    uint32_t pieces_received, pieces_told, credits_received
    receive_t *receives
    ibv_recv_wr *again           # those to be posted again
    uint32_t arena_key           # of all that the device reads and writes of this struct


cdef struct verbs_part_t:
    regions_t *regions
    uint32_t depth               # work requests in a queue: a power of two
    uint32_t inline_max          # bytes that a work request can carry itself
    uint64_t message_max         # bytes of one work request
    uint8_t lives[PEERS_MAX]     # how often a peer's number was used: what completes of an old connection is nobody's
    ibv_comp_channel *channel
    ibv_cq *queue
    bint armed
    uint32_t events              # taken and not acknowledged to the library
    local_t locals[LOCALS_MAX]   # in the order of their addresses, none of which overlap
    uint32_t n_locals
    ibv_send_wr list[LIST_OF_WORK_MAX]
    ibv_sge parts[LIST_OF_WORK_MAX]
    uint64_t n_work, n_doorbells, n_signalled
    verbs_way_t ways[PEERS_MAX]


cdef inline uint64_t id_of(const verbs_part_t *s, uint32_t peer, uint64_t number, bint is_receive) noexcept nogil:
    """The id of a work request: life and number of the peer in 8 bits each, whether it is a receive, its number."""
    return <uint64_t>s.lives[peer] << 56 | <uint64_t>peer << 48 | <uint64_t>is_receive << 47 | number


cdef inline uint32_t locals_to(const verbs_part_t *s, const char *at) noexcept nogil:
    """How many of the memories begin at this address or before it."""
    cdef uint32_t low = 0, high = s.n_locals, middle
    while low < high:
        middle = (low + high) // 2
        if s.locals[middle].base <= at:
            low = middle + 1
        else:
            high = middle
    return low


cdef inline uint32_t key_of(const verbs_part_t *s, const char *at, uint64_t length) noexcept nogil:
    """The device's key of this node's memory there; 0: it doesn't know it."""
    cdef uint32_t n = locals_to(s, at)
    cdef const local_t *one
    if n == 0:
        return 0
    one = &s.locals[n - 1]
    if length <= one.size and <uint64_t>(at - one.base) <= one.size - length:
        return one.key
    return 0
