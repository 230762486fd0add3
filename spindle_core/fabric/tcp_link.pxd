"""One TCP connection between two members of an epoch: frames that write and ring."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spindle_core.fabric.fabric cimport POST_INLINE_MAX
from spindle_core.fabric.lanes cimport lane_t

cdef enum:
    TCP_BUFFER_SIZE = 16 << 10   # bytes received that are not in their place yet
    TCP_QUEUE_MAX = 1 << 24      # frames
    TCP_LANES_MAX = 1 << 10
    # Frames that wait for a peer besides what its epoch posts (Epoch.posts_waiting_max): a ring, a goodbye.
    TCP_QUEUE_OWN = 2


cdef enum:
    FRAME_MAGIC = 0x53504446     # "SPDF"
    PLACE_BITS = 56


# Kinds of frames. The other side's `link_receive` does what they ask for.
cdef enum:
    FRAME_WRITE = 1              # at an offset of the sender's row
    FRAME_RING = 2
    FRAME_GOODBYE = 3            # the last one

# Why a connection is over (tcp_peer_t.failed).
cdef enum:
    FAILED_CLOSED = 1            # by the peer, or its host
    FAILED_ERROR = 2             # of the network
    FAILED_NONSENSE = 3          # what came is no frame of this protocol, or goes where it must not
    FAILED_BEHIND = 4            # the peer does not take what it is sent
    ENDED_GOODBYE = 5            # no failure: one of the two had said goodbye


# What goes over the wire before each payload, in the byte order of the machine (members are of one kind).
cdef struct tcp_frame:
    uint64_t place               # kind in the highest byte; below it the offset of a write
    uint32_t length              # bytes of payload
    uint32_t magic


# A frame that waits to be sent. Its payload follows it directly if it is short; else it is read where it is.
cdef struct tcp_entry:
    const char *at               # NULL: in `data`
    uint64_t rest                # bytes of a long write that follow in frames of their own
    tcp_frame frame
    char data[POST_INLINE_MAX]


cdef struct tcp_peer_t:
    int fd                       # -1: not connected
    uint32_t cut                 # set by the control thread while the predicate thread posts
    uint32_t failed              # why the connection broke, 0 while it hasn't
    uint8_t ended                # it is not looked at any more
    uint8_t waits                # its socket is full: epoll tells when it isn't
    uint8_t mute                 # nothing can be sent any more; what it sent before is still taken
    uint8_t leaves               # it has said goodbye
    uint8_t left                 # I have said goodbye
    char *row                    # my copy of its row
    uint64_t row_size
    # Sending: frames first..last - 1 wait, in queue[(first - base) % capacity] and so on; `sent` bytes of the first are
    # gone. base follows first when nothing waits, so that the same entries are used again.
    tcp_entry *queue
    lane_t *lanes                # numbers in this queue; of a lane whose counts go ahead, in `ahead`
    uint64_t first, last, base, sent
    uint64_t waiting_max         # frames that ever waited at once
    uint8_t begun                # the first is a long write of which a part may be gone: nothing joins it
    # What need not wait (POST_AHEAD): ahead[number % n_ahead], from ahead_first up to ahead_last; it leaves before the
    # next frame of the others that begins. `ahead_sent` bytes of the first are gone.
    tcp_entry *ahead
    uint64_t ahead_first, ahead_last, ahead_sent
    # Receiving: buffer[begin:end] are not looked at yet; of the frame that is being received `remaining` bytes go to
    # `into`.
    char *buffer
    uint32_t begin, end
    char *into
    uint64_t remaining


cdef struct tcp_t:
    uint32_t rank, n_peers
    tcp_peer_t *peers
    uint64_t capacity            # of a queue, in frames
    uint32_t n_lanes
    uint32_t n_ahead             # one that waits of each lane, and one that is leaving
    int epoll_fd
    int bell_fd
    int failed_fd                # rung when a connection breaks
    bint in_pass                 # posts are sent at the end of the pass
    char *row                    # mine
    uint64_t row_size
    uint64_t frames_sent, frames_received, bytes_sent, bytes_received, sends, receives   # system calls


cdef inline uint64_t placed(uint32_t kind, uint64_t place) noexcept nogil:
    return <uint64_t>kind << PLACE_BITS | place


cdef int link_receive(tcp_t *s, uint32_t peer) noexcept nogil
cdef void link_end(tcp_t *s, uint32_t peer) noexcept nogil
