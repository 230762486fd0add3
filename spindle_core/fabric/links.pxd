"""The queues of the simulated fabric: what was posted, and how it lands."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.fabric cimport post_t
from spindle_core.layout cimport bell_page

cdef enum:
    SIM_NODES_MAX = 64

cdef enum op_kind:
    OP_WRITE                     # a range of the sender's row
    OP_RING                      # a doorbell alone


# Something posted. Its bytes follow it in memory when it carries them.
cdef struct op_t:
    op_t *next
    uint32_t kind                # enum op_kind
    bint ring                    # wakes the peer when it has landed
    uint32_t flags               # of the post: its lane, and whether it is a count
    bint carries                 # bytes as they were at the post; else read from the row when they land
    uint64_t offset, length      # bytes, in the row
    uint64_t landed              # bytes of a write


cdef struct sim_t


# One direction between two members of one epoch. Freed when both ends are gone. `ahead`: the way for what need not
# wait (POST_AHEAD), with an order of its own; `held` and `broken` count only in the link it belongs to.
cdef struct link_t:
    link_t *next                 # of the same pair of nodes, in a later epoch
    link_t *ahead                # NULL: posts of that kind wait with all others
    sim_t *source                # NULL: that end is gone; what it had posted still lands
    sim_t *target                # NULL: that end is gone, and with it the memory to land in
    uint64_t epoch
    uint32_t source_node, target_node      # places in the network
    const char *row              # of the source
    char *copy                   # of it, at the target; NULL where rows are shared
    op_t *first
    op_t *last
    uint64_t lines               # of all that waits here
    bint held
    bint broken                  # cut or dropped: nothing passes any more


cdef struct net_t:
    uint32_t lock
    bint copies, fences, late, joins, immediate, ahead
    uint64_t range_cost, push_bytes
    uint32_t n_nodes
    uint64_t rung[SIM_NODES_MAX]
    link_t *links[SIM_NODES_MAX * SIM_NODES_MAX]          # by source and target
    uint64_t posts, bytes, lines, rings, dropped, unconnected, woken
    void (*on_post)(uint32_t node, uint64_t offset, uint64_t length) noexcept nogil      # tests: before it is queued


# One node's end of all its links of one epoch.
cdef struct sim_t:
    net_t *net
    uint32_t n_peers, node
    uint64_t epoch
    const char *row
    uint64_t row_size
    link_t **out                 # by rank
    link_t **into
    bell_page *bell              # for wait(); NULL where nobody waits
    int bell_fd


cdef void lock(net_t *net) noexcept nogil
cdef void unlock(net_t *net) noexcept nogil
cdef op_t *new_op(uint32_t kind, uint64_t room) noexcept nogil
cdef char *bytes_of(op_t *op) noexcept nogil
cdef void put_bytes(char *to, const char *source, uint64_t n) noexcept nogil
cdef bint join(link_t *link, const post_t *p, const char *row) noexcept nogil
cdef void append(link_t *link, op_t *op) noexcept nogil
cdef uint64_t lines_waiting(link_t *link) noexcept nogil
cdef void ring_node(net_t *net, link_t *link) noexcept nogil
cdef uint64_t land_lines(net_t *net, link_t *link, uint64_t n, bint ahead) noexcept nogil
cdef void break_link(net_t *net, link_t *link) noexcept nogil
cdef void leave_link(link_t *link) noexcept nogil
cdef void remove_link(net_t *net, link_t *link) noexcept nogil
