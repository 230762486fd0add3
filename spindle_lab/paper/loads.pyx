"""What bytes cost while every core moves some: payload in the rings of a group, and streams over its connections.

A core alone is faster than one beside another that is as busy, and a line costs what was done with it last, and where.
So the threads here run at the same time, over as much memory as a group of that many nodes has, in the order in which a
group uses it: a ring is filled, read by everybody (and where a fabric copies, from each one's own copy), and filled
again. There is no protocol in it: what waits for whom is fixed.

Rules as in probes.pyx.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from spindle_lab.bench.payload cimport payload_fill
from spindle_lab.bench.tally cimport Tally, tally_take
from spindle_core.atomics cimport cpu_relax, monotonic_ns, u64_load_acquire, u64_store_release
from spindle_core.events cimport sched_yield
from spindle_core.fabric.fabric cimport post_t
from spindle_core.fabric.tcp cimport TcpFabric
from spindle_core.fabric.tcp_link cimport tcp_t
from spindle_core.layout cimport slot_header
from spindle_core.memory cimport Mapping

cdef enum:
    LINE = 8                     # words
    SPINS = 1024
    THREADS_MAX = 16
    PIECES_MAX = 64              # rings that a thread fills, or reads


# What one thread has moved.
cdef struct moved_t:
    uint64_t sent, sends, leave_ns
    uint64_t received, receives, take_ns
    uint64_t looks, look_ns


cdef struct stream_t:
    moved_t *moved
    uint64_t length              # bytes of a post


cdef void meet(uint64_t *places, uint32_t n, uint32_t me, uint64_t turn) noexcept nogil:
    """Waits until all n threads are as far."""
    cdef uint32_t i, spins = 0
    u64_store_release(&places[me * LINE], turn)
    for i in range(n):
        while u64_load_acquire(&places[i * LINE]) < turn:
            spins += 1
            if spins % SPINS == 0:
                sched_yield()
            else:
                cpu_relax()


cdef uint32_t bases_of(list rings, char **bases, uint64_t bytes) except? 0xFFFFFFFF:
    cdef Mapping ring
    cdef uint32_t i
    if len(rings) > PIECES_MAX:
        raise ValueError(f"{len(rings)} rings: {PIECES_MAX} at most")
    for i in range(<uint32_t>len(rings)):
        ring = rings[i]
        if ring.size < bytes:
            raise ValueError(f"a ring of {ring.size} bytes: {bytes} are used")
        bases[i] = ring.base
    return <uint32_t>len(rings)


def payload_turns(list fills not None, list copies not None, list reads not None, size_t size, uint64_t stride,
                  uint64_t window, uint64_t batch, uint64_t rounds, uint64_t[::1] places, uint32_t n, uint32_t me):
    """One of n threads: in each round fills `batch` slots of each ring of `fills`, then copies the same slots from one
    ring to another for each pair of `copies`, then takes them from each ring of `reads`, as the benchmarks' senders and
    receivers do; taking begins with the slot's header. All threads are in the same part of a round.

    Rings are Mappings of window * stride bytes. Returns lists of times, of whole parts: fills, takes. Raises ValueError
    for what does not fit, RuntimeError where a slot is not what was filled.
    """
    cdef char *filled[PIECES_MAX]
    cdef char *source[PIECES_MAX]
    cdef char *target[PIECES_MAX]
    cdef char *read[PIECES_MAX]
    cdef uint64_t i, k, at, sent = 0
    cdef uint64_t t[4]
    cdef uint32_t n_fills = bases_of(fills, filled, window * stride), r
    cdef uint32_t n_copies = bases_of([pair[0] for pair in copies], source, window * stride)
    cdef uint32_t n_reads = bases_of(reads, read, window * stride)
    cdef Tally tally = Tally([1 << 40])
    cdef uint8_t *hot
    cdef bint torn = False
    cdef list filling = []
    cdef list taking = []
    bases_of([pair[1] for pair in copies], target, window * stride)
    if (size < 16 or size + sizeof(slot_header) > stride or batch > window or n > THREADS_MAX or me >= n
            or places.shape[0] < n * LINE):
        raise ValueError("slots of 16 bytes at least, a batch of a window at most, and a line for each thread")
    hot = <uint8_t *>malloc(size)
    if hot == NULL:
        raise MemoryError()
    try:
        for i in range(rounds):
            with nogil:
                meet(&places[0], n, me, 4 * i + 1)
                t[0] = monotonic_ns()
                for r in range(n_fills):
                    for k in range(batch):
                        at = (sent + k) % window * stride
                        payload_fill(<uint8_t *>filled[r] + at + sizeof(slot_header), size, 0, sent + k, 0)
                t[1] = monotonic_ns()
                for r in range(n_fills):
                    for k in range(batch):
                        (<uint64_t *>(filled[r] + (sent + k) % window * stride))[0] = sent + k + 1
                meet(&places[0], n, me, 4 * i + 2)
                for r in range(n_copies):
                    for k in range(batch):
                        at = (sent + k) % window * stride
                        memcpy(target[r] + at, source[r] + at, sizeof(slot_header) + size)
                meet(&places[0], n, me, 4 * i + 3)
                t[2] = monotonic_ns()
                for k in range(batch):
                    at = (sent + k) % window * stride
                    for r in range(n_reads):
                        torn |= (<uint64_t *>(read[r] + at))[0] != sent + k + 1
                        memcpy(hot, read[r] + at + sizeof(slot_header), size)
                        tally_take(&tally.state, hot, size, 0)
                t[3] = monotonic_ns()
                sent += batch
                meet(&places[0], n, me, 4 * i + 4)
            filling.append(t[1] - t[0])
            taking.append(t[3] - t[2])
    finally:
        free(hot)
    if torn:
        raise RuntimeError("a slot was read before it was filled")
    return filling, taking


cdef inline bint all_have(const uint64_t *places, uint32_t n, uint64_t count) noexcept nogil:
    cdef uint32_t i
    for i in range(n):
        if u64_load_acquire(&places[i * LINE]) < count:
            return False
    return True


cdef void stream_pass(TcpFabric fabric, const stream_t *stream, bint posts_now, uint64_t at) noexcept nogil:
    """One pass of a fabric, with its times."""
    cdef tcp_t *s = &fabric.state
    cdef moved_t *m = stream.moved
    cdef post_t post
    cdef uint32_t peer
    cdef uint64_t t[4]
    cdef uint64_t calls = s.receives, bytes = s.bytes_received, sends = s.sends
    t[0] = monotonic_ns()
    fabric.table.enter(fabric.table.self)
    t[1] = monotonic_ns()
    if s.receives == calls:
        m.looks += 1
        m.look_ns += t[1] - t[0]
    else:
        m.receives += s.receives - calls
        m.received += s.bytes_received - bytes
        m.take_ns += t[1] - t[0]
    bytes = s.bytes_sent
    if posts_now:
        memset(&post, 0, sizeof(post))
        post.offset = at
        post.length = stream.length
        for peer in range(s.n_peers):
            if peer != s.rank:
                post.peer = peer
                fabric.table.post_list(fabric.table.self, &post, 1)
    t[2] = monotonic_ns()
    fabric.table.leave(fabric.table.self)
    t[3] = monotonic_ns()
    if s.sends != sends:
        m.sends += s.sends - sends
        m.sent += s.bytes_sent - bytes
        m.leave_ns += t[3] - t[2]


def stream_passes(list mine not None, list filled not None, uint64_t length, uint64_t ring, uint64_t ahead,
                  uint64_t rounds, uint64_t[::1] places, uint32_t n):
    """One thread of streams in all directions between n fabrics: drives those of `mine`, pass after pass. A pass takes
    what has come, posts the next `length` bytes of the row to every peer if all have received what was sent `ahead`
    bytes before, and lets them leave. Between passes the thread fills as much of the rows `filled`, as applications do.

    ring: bytes of each row that are used in turn, a multiple of length. places: a line for each fabric, for what it has
    received. Returns sums over all passes after the first round through the ring, when no page is new any more: bytes
    "sent" by so many "sends" (calls) in "leave_ns"; "received" by so many "receives" in "take_ns"; and "looks" that
    found nothing, in "look_ns". Raises ValueError for what does not fit.
    """
    cdef TcpFabric fabric
    cdef Mapping row
    cdef moved_t moved
    cdef stream_t stream
    cdef uint64_t end = rounds * length * (n - 1), due
    cdef uint64_t posted[THREADS_MAX]
    cdef uint64_t fills = 0, first = ring // length + 1
    cdef uint32_t i, n_mine = <uint32_t>len(mine), n_over
    cdef bint posts_now, counts = False
    if n_mine > THREADS_MAX or n > THREADS_MAX or length == 0 or ring % length or ahead < length:
        raise ValueError("a ring is a multiple of what is posted at once, and so much may be ahead at least")
    if n_mine == 0 or rounds <= first:
        raise ValueError("a fabric at least, and more rounds than one through the ring")
    for fabric in mine:
        if fabric.row.size < ring:
            raise ValueError(f"a row of {fabric.row.size} bytes: {ring} are used")
    memset(&moved, 0, sizeof(moved))
    memset(posted, 0, sizeof(posted))
    stream.moved = &moved
    stream.length = length
    while True:
        n_over = 0
        for i in range(n_mine):
            fabric = mine[i]
            if filled and fills < rounds:
                row = filled[fills % len(filled)]
                memset(row.base + fills * length % ring, <int>fills & 0xff, length)
                fills += 1
            with nogil:
                due = posted[i] * length
                due = (due - ahead) * (n - 1) if due > ahead else 0
                posts_now = posted[i] < rounds and all_have(&places[0], n, due)
                stream_pass(fabric, &stream, posts_now, posted[i] * length % ring)
                posted[i] += posts_now
                if posted[n_mine - 1] == first and not counts:
                    counts = True
                    memset(&moved, 0, sizeof(moved))
                u64_store_release(&places[fabric.rank * LINE], fabric.state.bytes_received)
            n_over += posted[i] == rounds and all_have(&places[0], n, end)
        if n_over == n_mine:
            break
    return moved
