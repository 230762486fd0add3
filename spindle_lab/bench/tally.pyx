"""Receiving side of the benchmarks: reads every byte, checks it, and hashes the order of delivery.

Why a hash: nodes must agree on the whole sequence of (sender, index), and comparing 64 bits at the end costs the
receivers nothing while the clock runs. The hash stops at the last message of the senders that have a number of
messages to send; a delayed sender, which goes on until it is told to stop, is hashed as far as that. In a total order
that point is the same place on every node, so that equal order still gives equal hashes.

Rules: tally_take() needs no GIL and allocates nothing; all other functions are for Python and hold the GIL.
"""
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_Check, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport int64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from spindle_lab.bench.payload cimport (
    PAYLOAD_SENDER_SHIFT, PAYLOAD_SIZE_MIN, payload_fill, payload_sum, payload_sum_expected,
)
from spindle_core.atomics cimport monotonic_ns as clock_ns


cdef inline int bucket_of(uint64_t value) noexcept nogil:
    """Values below 256 have a bucket each, then 128 buckets per power of two."""
    cdef int shift = 0
    cdef uint64_t rest = value >> (BUCKET_BITS + 1)
    while rest:
        shift += 1
        rest >>= 1
    return (shift << BUCKET_BITS) + <int>(value >> shift)


cdef inline uint64_t bucket_value(int bucket) noexcept nogil:
    """Middle of a bucket; inverse of bucket_of() up to its width."""
    cdef int shift
    if bucket < (2 << BUCKET_BITS):
        return bucket
    shift = (bucket >> BUCKET_BITS) - 1
    return ((<uint64_t>(bucket - (shift << BUCKET_BITS))) << shift) + ((1ULL << shift) >> 1)


cdef void tally_take(tally_t *tally, const uint8_t *data, size_t size, uint64_t now_ns) noexcept nogil:
    """Accounts one delivered payload. now_ns: CLOCK_MONOTONIC at its delivery, or 0 to look only if it is needed."""
    cdef uint64_t identity, sender, index, sent_ns, ns
    if tally.wanted == 0:
        return
    if size < PAYLOAD_SIZE_MIN:
        tally.corrupt += 1
        return
    identity = (<const uint64_t *>data)[0]
    sent_ns = (<const uint64_t *>data)[1]
    sender = identity >> PAYLOAD_SENDER_SHIFT
    index = identity & ((1ULL << PAYLOAD_SENDER_SHIFT) - 1)
    if payload_sum(data, size) != payload_sum_expected(identity, size) or sender >= PAYLOAD_SENDERS_MAX:
        tally.corrupt += 1
        return
    if index != tally.next_index[sender]:
        if index > tally.next_index[sender]:
            tally.lost += index - tally.next_index[sender]
        else:
            tally.misordered += 1
    tally.next_index[sender] = index + 1
    # One multiplication per message suffices: the identities are distinct, and the order is what must count.
    tally.order_hash = (tally.order_hash ^ identity) * 0x9e3779b97f4a7c15ULL
    tally.order_hash ^= tally.order_hash >> 29
    if tally.delivered == 0:
        tally.first_ns = now_ns or clock_ns()
    tally.delivered += 1
    tally.bytes += size
    tally.of_sender[sender] += 1
    if sent_ns != 0:
        ns = now_ns or clock_ns()
        ns = ns - sent_ns if ns > sent_ns else 0
        tally.samples += 1
        tally.latency_counts[bucket_of(ns)] += 1
        if ns > tally.latency_max_ns:
            tally.latency_max_ns = ns
    if tally.counted[sender]:
        tally.wanted -= 1
        if tally.wanted == 0:
            tally.end_ns = clock_ns()


cdef class Tally:
    """One receiver's account. counts[r]: messages to expect from sender r, -1 for one that is heard but not waited for.

    Raises ValueError for more than 256 senders.
    """

    def __cinit__(self):
        memset(&self.state, 0, sizeof(tally_t))
        self.state.latency_counts = <uint64_t *>calloc(BUCKETS_COUNT, sizeof(uint64_t))
        if self.state.latency_counts == NULL:
            raise MemoryError()

    def __init__(self, counts):
        cdef int sender
        cdef int64_t count
        if len(counts) > PAYLOAD_SENDERS_MAX:
            raise ValueError(f"at most {PAYLOAD_SENDERS_MAX} senders, not {len(counts)}")
        self.n_senders = len(counts)
        for sender in range(self.n_senders):
            count = counts[sender]
            if count >= 0:
                self.state.wanted += count
                self.state.counted[sender] = 1

    def __dealloc__(self):
        free(self.state.latency_counts)

    @property
    def done(self) -> bool:
        """All messages that were to be waited for have come."""
        return self.state.wanted == 0

    @property
    def delivered(self) -> int:
        """Messages accounted so far."""
        return self.state.delivered

    def take(self, data) -> None:
        """Accounts one payload, any contiguous buffer."""
        cdef const uint8_t[::1] view = data
        tally_take(&self.state, &view[0] if view.shape[0] else NULL, view.shape[0], 0)

    def take_list(self, list samples) -> None:
        """Accounts a list of bytes objects, in its order; samples that aren't bytes go through take()."""
        cdef object sample
        cdef uint64_t now_ns = clock_ns()
        for sample in samples:
            if PyBytes_Check(sample):
                tally_take(
                    &self.state, <const uint8_t *>PyBytes_AS_STRING(sample), PyBytes_GET_SIZE(sample), now_ns
                )
            else:
                self.take(sample)

    def take_rows(self, data) -> None:
        """Accounts the rows of an array of bytes, shape (count, size), which needn't lie close together."""
        cdef const uint8_t[:, :] view = data
        cdef Py_ssize_t k
        cdef uint64_t now_ns = clock_ns()
        if view.shape[1] and view.strides[1] != 1:
            raise ValueError("the bytes of a row must lie one behind the other")
        for k in range(view.shape[0]):
            tally_take(&self.state, &view[k, 0] if view.shape[1] else NULL, view.shape[1], now_ns)

    def result(self) -> dict:
        """Everything counted, JSON-able; latency_ns_counts maps a latency in ns (within 1%) to its messages."""
        cdef int i
        cdef uint64_t missing = self.state.wanted
        return {
            "order_hash": f"{self.state.order_hash:016x}",
            "delivered": self.state.delivered,
            "bytes": self.state.bytes,
            "missing": missing,
            "lost": self.state.lost,
            "misordered": self.state.misordered,
            "corrupt": self.state.corrupt,
            "first_ns": self.state.first_ns,
            "end_ns": self.state.end_ns,
            "of_sender": [self.state.of_sender[i] for i in range(self.n_senders)],
            "latency_ns_counts": {
                str(bucket_value(i)): self.state.latency_counts[i]
                for i in range(BUCKETS_COUNT) if self.state.latency_counts[i]
            },
            "latency_max_ns": self.state.latency_max_ns,
        }


def monotonic_ns() -> int:
    """CLOCK_MONOTONIC, the clock of all timestamps here."""
    return clock_ns()


def make_payloads(uint64_t sender, uint64_t first, int count, size_t size, uint64_t sample_every) -> list:
    """Messages `first` to `first + count - 1` of a sender as new bytes objects, every byte filled.

    sample_every: one message in so many carries the time of its filling, for the latency; 0: none does. Raises
    ValueError for sizes below 16 bytes.
    """
    cdef list made = []
    cdef bytes payload
    cdef uint64_t index
    if size < PAYLOAD_SIZE_MIN:
        raise ValueError(f"messages have at least {PAYLOAD_SIZE_MIN} bytes, not {size}")
    for index in range(first, first + count):
        payload = PyBytes_FromStringAndSize(NULL, size)
        payload_fill(
            <uint8_t *>PyBytes_AS_STRING(payload), size, sender, index,
            clock_ns() if sample_every and index % sample_every == 0 else 0,
        )
        made.append(payload)
    return made


def fill_rows(out, uint64_t sender, uint64_t first, size_t size, uint64_t sample_every) -> None:
    """Messages from `first` on of a sender, one behind the other in a writable buffer; otherwise as make_payloads().
    Raises ValueError unless they fill it."""
    cdef uint8_t[::1] view = out
    cdef uint64_t k, count
    if size < PAYLOAD_SIZE_MIN or view.shape[0] % size:
        raise ValueError(f"{view.shape[0]} bytes are not whole messages of {size}, of at least {PAYLOAD_SIZE_MIN}")
    count = view.shape[0] // size
    for k in range(count):
        payload_fill(
            &view[k * size], size, sender, first + k,
            clock_ns() if sample_every and (first + k) % sample_every == 0 else 0,
        )


def fill_payload(out, uint64_t sender, uint64_t index, bint sampled) -> None:
    """Fills a writable buffer in place as message `index` of `sender`. Raises ValueError below 16 bytes."""
    cdef uint8_t[::1] view = out
    if view.shape[0] < PAYLOAD_SIZE_MIN:
        raise ValueError(f"messages have at least {PAYLOAD_SIZE_MIN} bytes, not {view.shape[0]}")
    payload_fill(&view[0], view.shape[0], sender, index, clock_ns() if sampled else 0)
