"""Reliable connections between two nodes, whatever epochs come and go: queues of work requests, rings, their credit."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spindle_core.fabric.fabric cimport POST_INLINE_MAX
from spindle_core.fabric.lanes cimport lane_t
from spindle_core.fabric.verbs_api cimport (
    ibv_comp_channel,
    ibv_cq,
    ibv_qp,
    ibv_recv_wr,
    ibv_send_wr,
    ibv_sge,
)

cdef enum:
    VERBS_QUEUE_MAX = 1 << 16    # entries
    VERBS_QUEUE_OWN = 256        # entries for what is no post, and for posts longer than a work request
    VERBS_LANES_MAX = 1024
    VERBS_LIST_MAX = 64          # work requests of one doorbell
    VERBS_RINGS_MAX = 4096
    OTHER_RECEIVES = 2           # besides those for rings: for a grant and for a goodbye
    VERBS_NO_PLACE = 0xFFFF


# What an entry of a send queue asks of the device; each is one work request.
cdef enum:
    ENTRY_WRITE = 1              # a range of my row
    ENTRY_RING = 2               # a write of nothing that rings
    ENTRY_GRANT = 3              # the same on the reserved receive: tells credit to a peer that has none left
    ENTRY_MARK = 4               # a write of nothing whose completion says that all before it has arrived
    ENTRY_GOODBYE = 5            # a ring after which nothing is posted any more
    ENTRY_END = 6                # behind the last write of an epoch: tells the peer in its page that there are no more

# A word that goes with a ring, a grant or a goodbye: limit of rings in 30 bits, above them what it is.
cdef enum:
    WORD_RING = 0
    WORD_GRANT = 1
    WORD_GOODBYE = 2
    WORD_SHIFT = 30
    WORD_LIMIT = (1 << WORD_SHIFT) - 1

# Why a connection is over (verbs_peer_t.failed).
cdef enum:
    VERBS_FAILED_CLOSED = 1      # by the peer, or with it
    VERBS_FAILED_SILENT = 2      # no acknowledgement after all retries
    VERBS_FAILED_REFUSED = 3     # the peer's device refused an access
    VERBS_FAILED_NONSENSE = 4    # what came is no word of this protocol
    VERBS_FAILED_BEHIND = 5      # the own queue is full
    VERBS_FAILED_UNREADY = 6     # no receive was posted where there must be one
    VERBS_FAILED_ERROR = 7       # of device or network
    VERBS_GOODBYE = 8            # one side had said so: no failure


# A work request that waits. It has all that it needs, so those of an epoch that is over leave before those of the next.
cdef struct verbs_entry:
    const char *local            # the payload, in the row; NULL: in `data`
    uint64_t remote              # address
    uint32_t length              # bytes
    uint32_t kind
    uint32_t local_key           # of the row
    uint32_t remote_key
    char data[POST_INLINE_MAX]


# One connection to a peer. There are two: the second one, for what need not wait (POST_AHEAD), says no goodbye. They
# fail, or are cut, only together. Who drives the predicates owns one from `connected` on; until then, and while nobody
# drives, the control thread does.
cdef struct verbs_link_t:
    ibv_qp *qp                   # NULL: this place is free
    uint32_t life                # how often this place was used: what completes of an earlier use is nobody's
    uint32_t connected           # released when all else is in place
    uint32_t cut                 # set by the control thread while the predicate thread posts
    uint32_t failed              # why the connection broke, 0 while it hasn't
    uint8_t ended                # it is not looked at any more
    uint8_t left, leaves         # I have said goodbye to it, it has to me
    # The page of a connection is written by the peer alone, and lives as long. In it stands, for each of the two ways,
    # the last epoch of which the peer posts nothing any more. All before it has arrived, as writes of one way do so in
    # order.
    uint64_t *page
    uint64_t remote_page         # its page of this connection
    uint32_t remote_page_key
    # Sending. Work requests have numbers. Invariant: done <= sent <= last, and sent <= done + depth, and
    # last <= sent + capacity.
    # Those below `done` have completed, below `sent` the device has them, below `last` they wait, in
    # queue[(number - base) % capacity]; `signalled`: behind the last one that says so when it completes.
    verbs_entry *queue
    uint64_t capacity            # in entries: a power of two
    uint64_t done, sent, last, signalled, base
    char *bytes                  # POST_INLINE_MAX for each that the device has, where it can't carry them itself
    uint32_t bytes_key
    # Rings to the peer. Invariant: rung <= rung_limit, which the peer has told.
    uint64_t rung, rung_limit
    uint32_t peer_rings          # rings that it has receives for
    uint8_t owes_ring            # something was written that it has not been rung for
    # Rings of the peer, and what it has been told that it may ring up to.
    uint64_t rings_taken, told
    uint64_t grant_after         # rings that it must have made before the reserved receive is free again
    uint8_t granting             # a grant is in the queue
    # Receives
    ibv_recv_wr *receives        # without memory: what takes one is a word
    ibv_recv_wr *again           # those to be posted again


# All connections of a node over one device.
cdef struct verbs_t:
    uint32_t n_places            # pairs that there may be at once
    uint32_t n_used              # places below this one have been used: nobody looks at others
    verbs_link_t *links          # by place; from n_places on, by place again, those for what goes ahead
    uint32_t depth               # work requests that a send queue of the device holds: a power of two
    uint32_t signal_every
    uint32_t rings               # that each peer may have on the way
    uint32_t receives            # posted per connection
    uint32_t inline_max          # bytes that a work request can carry itself
    uint64_t message_max         # bytes of one work request
    ibv_comp_channel *channel    # NULL: closed
    ibv_cq *send_cq
    ibv_cq *receive_cq
    bint send_armed, receive_armed
    bint send_owed, receive_owed             # a completion was found on the armed queue: its event has come, or will
    uint32_t send_events, receive_events     # taken and not acknowledged to the library
    uint64_t n_found             # completions, whatever they were
    bint restless                # a completion may be there for which no event comes
    uint64_t idle                # passes in a row that found nothing
    bint draining                # somebody asks whether all has arrived
    uint32_t passes              # begun and not ended, of one epoch in that of another: posts are sent at the end
    int failed_fd                # rung when a connection breaks
    ibv_send_wr list[VERBS_LIST_MAX]
    ibv_sge parts[VERBS_LIST_MAX]
    # Counts for statistics()
    uint64_t n_posts, n_merged, n_work_requests, n_doorbells, n_signalled, n_inlined, n_rings, n_grants, n_bytes
    uint64_t n_completions, n_received, n_waiting_max, n_starved


# How an epoch reaches a peer.
cdef struct verbs_target_t:
    uint32_t place               # VERBS_NO_PLACE: not at all, so far
    uint32_t remote_row_key
    uint64_t remote_row          # its copy of my row
    uint32_t cut                 # in this epoch


# What an epoch has of the connections.
cdef struct verbs_epoch_t:
    verbs_t *node                # NULL: closed
    uint32_t n_peers
    verbs_target_t *targets      # by rank
    lane_t *lanes                # n_lanes of each peer, by rank; then again, for what goes ahead
    uint64_t n_lanes
    char *row                    # mine
    uint64_t row_size
    uint32_t row_key
    int bell_fd
    int wait_fd


cdef inline verbs_link_t *link_to(verbs_epoch_t *e, uint32_t peer, bint ahead) noexcept nogil:
    """NULL: there is none."""
    cdef uint32_t place = e.targets[peer].place
    if place == VERBS_NO_PLACE:
        return NULL
    return &e.node.links[place + (e.node.n_places if ahead else 0)]


cdef inline uint64_t id_of(verbs_t *s, verbs_link_t *p, uint64_t number) noexcept nogil:
    """The id of a work request: life and place of its connection in 16 bits each, the number's last 32."""
    return <uint64_t>(p.life & 0xFFFF) << 48 | <uint64_t>(p - s.links) << 32 | <uint32_t>number


cdef bint link_gone(verbs_link_t *p) noexcept nogil
cdef verbs_link_t *other_way(verbs_t *s, verbs_link_t *p) noexcept nogil
cdef void fail(verbs_t *s, verbs_link_t *p, uint32_t why) noexcept nogil
cdef uint32_t reason_of(int status) noexcept nogil
cdef void link_error(ibv_qp *qp) noexcept nogil
cdef void link_end(verbs_link_t *p) noexcept nogil
cdef void link_cut(verbs_link_t *p) noexcept nogil
cdef void post_receives(verbs_t *s, verbs_link_t *p) noexcept nogil
cdef int take_sent(verbs_t *s) noexcept nogil
cdef int take_completions(verbs_t *s) noexcept nogil
cdef void take_events(verbs_t *s) noexcept nogil
cdef int arm(verbs_t *s) noexcept nogil
