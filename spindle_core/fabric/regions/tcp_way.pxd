"""Regions of nodes on other hosts, over one TCP connection for each peer: frames that ask and answer."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spindle_core.fabric.regions.regions cimport (
    FLIGHTS_MAX,
    PEERS_MAX,
    REQUEST_INLINE_MAX,
    regions_t,
)

cdef enum:
    OUT_MAX = 4 * FLIGHTS_MAX    # frames that wait: requests, answers, messages, and one that says what was taken
    MESSAGES_OUT_MAX = FLIGHTS_MAX     # messages among them
    BUFFER_SIZE = 16 << 10       # bytes received that are not in their place yet
    FRAME_MAGIC = 0x53505247     # "SPRG"
    NUMBER_BITS = 56
    HEAD_MAX = 16 + 48 + REQUEST_INLINE_MAX    # of a frame, a request and a short payload

# Kinds of frames; the first four are those of requests.
cdef enum:
    FRAME_READ = 1
    FRAME_WRITE = 2
    FRAME_SWAP = 3
    FRAME_ADD = 4
    FRAME_ANSWER = 5
    FRAME_MESSAGE = 6
    FRAME_TAKEN = 7              # number: bytes of messages taken so far

# Where the payload that is being received goes.
cdef enum:
    LANDS_NOWHERE = 0
    LANDS_IN_REGION = 1          # of this node
    LANDS_LOCALLY = 2            # what this node has read
    LANDS_IN_BOX = 3


# Before each payload, in the byte order of the machine (members are of one kind).
cdef struct frame_t:
    uint64_t place               # kind in the highest byte, below it a number
    uint32_t length              # bytes that follow
    uint32_t magic


# What follows in the frame of a request; then, of a write, its bytes.
cdef struct ask_t:
    uint64_t key
    uint64_t offset
    uint64_t length
    uint64_t first
    uint64_t second
    uint32_t left                # requests behind it in its list
    uint32_t flags


# What follows in an answer; then, of a read that is done, its bytes.
cdef struct answer_t:
    uint64_t value
    uint32_t status
    uint32_t reserved


# A frame that waits: `head`, with a short payload, then what `data` and `more` point to.
cdef struct out_t:
    uint32_t head_length
    uint8_t is_request
    uint8_t is_message
    const char *data
    const char *more
    uint64_t length              # bytes at data
    uint64_t more_length
    char head[HEAD_MAX]


cdef struct tcp_way_t:
    int fd                       # -1: not connected
    uint8_t full                 # its socket is: epoll tells when it isn't
    # Sending: frames out_first..out_last wait, `out_sent` bytes of the first are gone. They begin anew at `out_base`,
    # the same memory, when nothing waits.
    out_t *out
    uint64_t out_first, out_last, out_base, out_sent
    uint64_t gone                # requests whose frames have left whole
    uint64_t skipped_to          # below it requests of a failed list may go without an answer
    # Serving: requests of the peer taken, and those of them whose answer has left or that need none.
    uint64_t asked
    uint64_t answers_waiting
    uint32_t skip                # so many to come belong to a list that failed
    # Receiving: buffer[begin:end] are not looked at yet; `remaining` bytes of a payload are to come.
    char *buffer
    uint32_t begin, end
    uint32_t lands
    char *into                   # in memory; or at `box_at` of the box
    uint64_t box_at
    uint64_t remaining
    uint64_t number              # of the request or answer that the payload belongs to
    uint64_t key                 # of the region that it goes into
    uint32_t status              # to be answered, or told, when it is here
    uint32_t left, flags
    # Messages: rings of bytes (boxes.pxd)
    char *inbox
    uint64_t in_head, in_tail, in_told
    char *outbox
    uint64_t out_head, out_tail  # put, and taken by the peer
    uint32_t messages_out        # that have not left


cdef struct tcp_part_t:
    regions_t *regions
    int epoll_fd
    bint in_pass                 # frames are sent at the end of it
    tcp_way_t ways[PEERS_MAX]
    uint64_t sends, receives, bytes_sent, bytes_received     # system calls, bytes


cdef inline out_t *waiting_frame(tcp_way_t *w, uint64_t number) noexcept nogil:
    return &w.out[(number - w.out_base) & (OUT_MAX - 1)]
