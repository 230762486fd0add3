"""What waits to be sent to a peer over TCP, and how it leaves: requests, answers and messages, one frame each, in the
order in which they were put.

A short payload is copied into its frame as it is; a longer one is read from where it lies when it leaves. Many frames
leave in one call, as many bytes as the socket takes. The queue has room for all that may wait: requests and answers are
bounded by what each side may have on the way, messages by their own number.
"""
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.fabric.regions.flights cimport end_peer
from spindle_core.fabric.regions.regions cimport REQUEST_INLINE_MAX
from spindle_core.fabric.regions.tcp_way cimport (
    FRAME_ANSWER,
    FRAME_MAGIC,
    NUMBER_BITS,
    OUT_MAX,
    frame_t,
    out_t,
    tcp_part_t,
    tcp_way_t,
    waiting_frame,
)
from spindle_core.fabric.sockets cimport iovec, send_parts, watch_socket
from spindle_core.fabric.tcp_link cimport FAILED_ERROR
from spindle_core.fabric.words cimport copy_words

cdef enum:
    IOVECS = 256                 # of one call


cdef out_t *put(tcp_way_t *w, uint32_t kind, uint64_t number, const void *what, uint32_t length) noexcept nogil:
    """Queues a frame that begins with `length` bytes at `what`; NULL where there is no room, which is a mistake."""
    cdef out_t *o
    cdef frame_t *frame
    if w.out_first == w.out_last:
        w.out_base = w.out_first       # the same memory again: the cache has it
    if w.out_last - w.out_first >= OUT_MAX:
        return NULL
    o = waiting_frame(w, w.out_last)
    w.out_last += 1
    frame = <frame_t *>o.head
    frame.place = <uint64_t>kind << NUMBER_BITS | (number & ((<uint64_t>1 << NUMBER_BITS) - 1))
    frame.length = length
    frame.magic = FRAME_MAGIC
    if length:
        memcpy(o.head + sizeof(frame_t), what, length)
    o.head_length = sizeof(frame_t) + length
    o.data = o.more = NULL
    o.length = o.more_length = 0
    o.is_request = o.is_message = 0
    return o


cdef void attach(out_t *o, const char *data, uint64_t length) noexcept nogil:
    """The frame's payload: copied now if it is short, else read when it leaves."""
    (<frame_t *>o.head).length += <uint32_t>length
    if length <= REQUEST_INLINE_MAX:
        copy_words(o.head + o.head_length, data, length)
        o.head_length += <uint32_t>length
    else:
        o.data = data
        o.length = length


cdef inline int add_part(iovec *parts, int n, const char *data, uint64_t length, uint64_t *skip) noexcept nogil:
    """What of these bytes is still to be sent."""
    if skip[0] >= length:
        skip[0] -= length
        return n
    parts[n].iov_base = <char *>data + skip[0]
    parts[n].iov_len = length - skip[0]
    skip[0] = 0
    return n + 1


cdef int gather(tcp_way_t *w, iovec *parts) noexcept nogil:
    cdef uint64_t i, skip = w.out_sent
    cdef int n = 0
    cdef out_t *o
    for i in range(w.out_first, w.out_last):
        if n + 3 > IOVECS:
            break
        o = waiting_frame(w, i)
        n = add_part(parts, n, o.head, o.head_length, &skip)
        n = add_part(parts, n, o.data, o.length, &skip)
        n = add_part(parts, n, o.more, o.more_length, &skip)
    return n


cdef void left(tcp_way_t *w, uint64_t n) noexcept nogil:
    """So many bytes have left."""
    cdef out_t *o
    cdef uint64_t size
    w.out_sent += n
    while w.out_first < w.out_last:
        o = waiting_frame(w, w.out_first)
        size = o.head_length + o.length + o.more_length
        if w.out_sent < size:
            return
        w.out_sent -= size
        w.out_first += 1
        w.gone += o.is_request
        w.messages_out -= o.is_message
        if (<frame_t *>o.head).place >> NUMBER_BITS == FRAME_ANSWER:
            w.answers_waiting -= 1


cdef void look_for_room(tcp_part_t *s, uint32_t peer, bint wanted) noexcept nogil:
    """Has epoll tell when the socket has room again, if `wanted`; else no longer."""
    cdef tcp_way_t *w = &s.ways[peer]
    if w.full == wanted:
        return
    w.full = wanted
    watch_socket(s.epoll_fd, w.fd, peer, wanted)


cdef int flush(tcp_part_t *s, uint32_t peer) noexcept nogil:
    """Sends what the socket takes; returns how many frames have left."""
    cdef tcp_way_t *w = &s.ways[peer]
    cdef iovec parts[IOVECS]
    cdef ssize_t n
    cdef uint64_t before = w.out_first
    while w.out_first < w.out_last:
        n = send_parts(w.fd, parts, gather(w, parts))
        s.sends += 1
        if n < 0:
            if errno == EAGAIN:
                look_for_room(s, peer, True)
                return <int>(w.out_first - before)
            end_peer(s.regions, peer, FAILED_ERROR)
            return <int>(w.out_first - before)
        s.bytes_sent += <uint64_t>n
        left(w, <uint64_t>n)
    look_for_room(s, peer, False)
    return <int>(w.out_first - before)
