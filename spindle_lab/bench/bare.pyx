"""The bare loops of `bench limit` and `bench memcpy`: what the hardware allows for the work that a multicast does.

Why: a rate means little without the rate that this machine could reach. So the same number of processes, over the
same kind of shared memory, fill, count, copy out and sum; there is no application, no control plane, no switch, no
order between senders, and every ring is small enough to stay in the cache. A real multicast can come close to it and
not beyond.

Rules: one row per node, stored into by that node only; the published count is stored after the slots it guards; a
slot is filled again when every other node has consumed it.
"""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy, memset

from spindle_lab.bench.payload cimport (
    PAYLOAD_SENDER_SHIFT, PAYLOAD_SIZE_MIN, payload_fill, payload_memory, payload_sum, payload_sum_expected,
)
from spindle_core.atomics cimport monotonic_ns, u64_load_acquire, u64_store_release
from spindle_core.events cimport sched_yield

cdef extern from "sys/prctl.h" nogil:
    const int PR_SET_PDEATHSIG
    int prctl(int option, unsigned long value, ...)

cdef extern from "signal.h" nogil:
    const int SIGKILL

cdef enum:
    NODES_MAX = 64
    LINE_WORDS = 8                 # a cache line in u64 words
    ROW_SLOTS_OFFSET = 8192        # bytes: published line, one consumed line per peer, then the slots


def row_size(window: int, size: int) -> int:
    """Bytes of one row with `window` slots for messages of `size` bytes."""
    return ROW_SLOTS_OFFSET + window * slot_stride(size)


def slot_stride(size: int) -> int:
    """Bytes from slot to slot: whole cache lines."""
    return (size + 63) // 64 * 64


cdef struct Ring:
    uint64_t *published            # count of messages in it, on a line of its own
    uint64_t *consumed             # by me: count, on a line of its own in my row
    uint8_t *slots
    uint64_t taken                 # my local copy of *consumed


def run_limit(list rows, int rank, list sending, uint64_t count, size_t size, uint64_t window, uint64_t batch_max,
              uint64_t timeout_ns) -> dict:
    """One node of the limit: fill and publish `count` messages if `sending[rank]`, copy out and sum everybody's.

    rows: writable buffers of row_size() bytes, by rank. batch_max: messages filled before they are published.
    Returns start_ns, end_ns (CLOCK_MONOTONIC), received, filled_sum and received_sum (modulo 2**64), yields.
    Raises TimeoutError when the others don't come along for `timeout_ns`, ValueError for impossible sizes.
    """
    cdef int n_nodes = len(rows)
    cdef int n_rings = 0
    cdef uint8_t[::1] view
    cdef list keep = []
    cdef uint8_t *base[NODES_MAX]
    cdef Ring rings[NODES_MAX]
    cdef uint64_t *consumed_by[NODES_MAX]
    cdef int i
    if n_nodes > NODES_MAX:
        raise ValueError(f"at most {NODES_MAX} nodes, not {n_nodes}")
    if size < PAYLOAD_SIZE_MIN:
        raise ValueError(f"messages have at least {PAYLOAD_SIZE_MIN} bytes, not {size}")
    cdef size_t stride = slot_stride(size)
    for i in range(n_nodes):
        view = rows[i]
        if <size_t>view.shape[0] < row_size(window, size):
            raise ValueError(f"row {i} has {view.shape[0]} bytes, {row_size(window, size)} are needed")
        keep.append(view)
        base[i] = &view[0]
        consumed_by[i] = <uint64_t *>base[i] + LINE_WORDS * (1 + rank)
    for i in range(n_nodes):
        if sending[i]:
            rings[n_rings].published = <uint64_t *>base[i]
            rings[n_rings].consumed = <uint64_t *>base[rank] + LINE_WORDS * (1 + i)
            rings[n_rings].slots = base[i] + ROW_SLOTS_OFFSET
            rings[n_rings].taken = 0
            n_rings += 1

    cdef uint64_t to_send = count if sending[rank] else 0
    cdef uint64_t *my_published = <uint64_t *>base[rank]
    cdef uint8_t *my_slots = base[rank] + ROW_SLOTS_OFFSET
    cdef uint8_t *hot = payload_memory(stride)
    cdef uint64_t sent = 0, received = 0, filled_sum = 0, received_sum = 0, yields = 0
    cdef uint64_t wanted = count * n_rings
    cdef uint64_t published, free_until, n, k, idle_since, start, end
    cdef Ring *ring
    cdef bint progress, late = False
    if hot == NULL:
        raise MemoryError()
    with nogil:
        start = monotonic_ns()
        idle_since = 0
        while sent < to_send or received < wanted:
            progress = False
            if sent < to_send:
                free_until = to_send
                for i in range(n_nodes):
                    # SYNC POINT: reuse. Pairs with the release of `consumed` below: the copy is done before I refill.
                    n = u64_load_acquire(consumed_by[i]) + window
                    if n < free_until:
                        free_until = n
                if free_until > sent + batch_max:
                    free_until = sent + batch_max
                if free_until > sent:
                    for k in range(sent, free_until):
                        payload_fill(my_slots + (k % window) * stride, size, rank, k, 0)
                    sent = free_until
                    # SYNC POINT: publish. Pairs with the acquire below: slot bytes visible before the count.
                    u64_store_release(my_published, sent)
                    progress = True
            for i in range(n_rings):
                ring = &rings[i]
                # SYNC POINT: receive. Pairs with the release of `published` above.
                published = u64_load_acquire(ring.published)
                if published == ring.taken:
                    continue
                for k in range(ring.taken, published):
                    memcpy(hot, ring.slots + (k % window) * stride, size)
                    received_sum += payload_sum(hot, size)
                received += published - ring.taken
                ring.taken = published
                u64_store_release(ring.consumed, published)
                progress = True
            if progress:
                idle_since = 0
            else:
                yields += 1
                sched_yield()
                if yields & 0xfff == 0:
                    end = monotonic_ns()
                    if idle_since == 0:
                        idle_since = end
                    elif end - idle_since > timeout_ns:
                        late = True
                        break
        end = monotonic_ns()
        for k in range(sent):
            filled_sum += payload_sum_expected((<uint64_t>rank << PAYLOAD_SENDER_SHIFT) | k, size)
    free(hot)
    if late:
        raise TimeoutError(f"node {rank} got {received} of {wanted} messages, then nothing for {timeout_ns / 1e9:g} s")
    return {
        "start_ns": start, "end_ns": end, "received": received, "filled_sum": filled_sum,
        "received_sum": received_sum, "yields": yields,
    }


def copy_rate(size_t source_size, size_t target_size, size_t block, uint64_t duration_ns) -> float:
    """Bytes per second of memcpy in pieces of `block` bytes, round a source and a target ring of the given sizes.

    A ring that fits the cache is hot; one much larger than it is cold. Raises ValueError if a ring is smaller than a
    block.
    """
    if block == 0 or source_size < block or target_size < block:
        raise ValueError(f"rings of {source_size} and {target_size} bytes don't hold a block of {block} bytes")
    cdef uint8_t *source = <uint8_t *>malloc(source_size)
    cdef uint8_t *target = <uint8_t *>malloc(target_size)
    cdef size_t at = 0, to = 0
    cdef uint64_t copied = 0, start = 0, now = 0, one_round = min(source_size, target_size)
    cdef volatile uint8_t kept = 0     # the compiler may not drop copies that nobody would read
    cdef int _i
    if source == NULL or target == NULL:
        free(source)
        free(target)
        raise MemoryError()
    with nogil:
        # Every page is touched before the clock starts: page faults aren't copy bandwidth. Nor is a machine's first
        # look at memory that its host had taken back: hence one round of copies more.
        memset(source, 0x5a, source_size)
        memset(target, 0xa5, target_size)
        memcpy(target, source, one_round)
        kept = target[one_round // 2]
        start = monotonic_ns()
        while True:
            for _i in range(64):
                memcpy(target + to, source + at, block)
                at += block
                if at + block > source_size:
                    at = 0
                to += block
                if to + block > target_size:
                    to = 0
            copied += 64 * block
            kept = target[to]
            now = monotonic_ns()
            if now - start >= duration_ns:
                break
    free(source)
    free(target)
    return copied * 1e9 / (now - start)


def die_with_parent() -> None:
    """The kernel kills this process when the thread that started it ends. Raises OSError."""
    if prctl(PR_SET_PDEATHSIG, SIGKILL) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) failed")
