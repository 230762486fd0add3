"""The simulated fabric with a cost model: network cards and links in virtual time."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_lab.paper.clock cimport clock_t
from spindle_core.fabric.fabric cimport POST_INLINE_MAX, Fabric
from spindle_core.memory cimport Mapping

cdef enum:
    MEMBERS_MAX = 64
    AREAS_MAX = 256

# Kinds of events.
cdef enum:
    EVENT_POSTED                 # transfer_t: the card has it
    EVENT_CARD                   # card_t: its port is free for the next packet
    EVENT_ARRIVED                # transfer_t
    EVENT_PREDICATES             # a predicate thread goes on
    EVENT_APPLICATION


# What the network costs; picoseconds, bytes. `parameters.Network` says where the numbers come from.
cdef struct network_t:
    uint64_t post_first, post_next           # of the posting thread, for the first post of a list and each further one
    uint64_t latency                         # of the first byte, unloaded
    uint64_t small, small_per_byte           # what each byte adds up to `small` bytes, besides its place on the wire
    uint64_t per_byte                        # on the wire
    uint64_t packet, packet_overhead         # bytes
    uint64_t post_per_byte, take_per_byte    # of the posting and of the receiving thread, where these copy
    uint64_t leave, leave_post               # where posts leave at the end of a pass: for each peer, each of them
    uint64_t take, take_post                 # of the receiving thread: for each peer that sent something, each write


# One write on its way.
cdef struct transfer_t:
    transfer_t *next
    wire_t *wire
    uint64_t offset, length, left            # bytes
    bint carries                             # bytes as they were at the post
    bint rings
    bint acknowledges                        # it could go ahead
    uint64_t posted_ps
    char bytes[POST_INLINE_MAX]


# One direction between two members.
cdef struct wire_t:
    wire_t *next                             # among those that the card has something to send on
    transfer_t *first
    transfer_t *last
    bint active
    uint32_t source, target
    uint64_t arrival_ps                      # of the last write
    const char *row
    char *copy


cdef struct card_t:
    wire_t *first                            # round robin
    wire_t *last
    bint busy
    uint64_t in_free_ps                      # the port's other direction
    uint64_t out_bytes, out_busy_ps
    uint64_t counts_busy_ps                  # of that, with short writes, which are no slots


# Slots of one topic: of each only the header is copied, whatever the message's size. The model has no use for payload.
cdef struct slots_area_t:
    uint64_t begin, end, stride              # bytes, in every row


cdef struct network_state_t:
    clock_t clock
    network_t costs
    uint32_t n
    card_t cards[MEMBERS_MAX]
    wire_t wires[2][MEMBERS_MAX * MEMBERS_MAX]   # by pair; the second one of each for what need not wait, if `ahead`
    bint ahead
    bint once                                # acknowledgements leave at the end of a pass, each count once
    slots_area_t areas[AREAS_MAX]
    uint32_t n_areas
    transfer_t *free
    uint64_t writes, bytes
    uint64_t acknowledgements, acknowledgements_ps   # seen; from post to sight, all together


# One member's end of it.
cdef struct end_t:
    network_state_t *net
    uint32_t rank
    void *poster                                                    # who posts, for the next three
    uint64_t (*start)(void *poster, uint64_t offset) noexcept nogil  # its time, in picoseconds
    void (*spend)(void *poster, uint64_t until_ps, uint32_t posts, uint64_t offset) noexcept nogil
    void (*ring)(void *poster, uint32_t peer) noexcept nogil
    transfer_t *first[MEMBERS_MAX]                                  # posted in this pass, by peer
    transfer_t *last[MEMBERS_MAX]
    uint32_t n_waiting


cdef uint64_t ps_of(value_ns) except? 0xFFFFFFFFFFFFFFFF
cdef int set_network(network_state_t *net, costs) except -1
cdef void free_network(network_state_t *net) noexcept
cdef void posted(network_state_t *net, transfer_t *t) noexcept nogil
cdef void card_next(network_state_t *net, card_t *card) noexcept nogil
cdef uint32_t arrived(network_state_t *net, transfer_t *t) noexcept nogil


cdef class TimedFabric(Fabric):
    cdef end_t end
    cdef object net_owner
    cdef readonly Mapping row
    cdef list copies
