"""An embedded sender and receiver on the bare core: direct claims, delivery upcall, no Python while the clock runs.

The sender claims as many slots as are free, up to a batch, fills every byte in place and commits. The receiver copies
each payload out and sums the copy: the same work as that of the bare loops in bare.pyx, so that the two rates compare.
"""
from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy

from spindle_lab.bench.payload cimport PAYLOAD_SIZE_MIN, payload_fill, payload_memory
from spindle_lab.bench.tally cimport Tally, tally_t, tally_take
from spindle_core.atomics cimport monotonic_ns, u64_load_relaxed
from spindle_core.hot_path cimport claim_slots, commit_slots, slot_payload
from spindle_core.engine cimport Engine
from spindle_core.epoch cimport Epoch
from spindle_core.state cimport delivery_t, subgroup_t

cdef extern from "time.h" nogil:
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int clock_nanosleep(int clock, int flags, const timespec *request, timespec *remain)
    const int CLOCK_MONOTONIC
    const int TIMER_ABSTIME

cdef enum:
    BATCH_MAX = 1024               # slots of one claim
    CLAIM_TIMEOUT_MS = 10_000


cdef struct receiver_t:
    tally_t *tally
    uint8_t *hot                   # small and always the same: stays in the cache
    size_t hot_size


cdef inline void sleep_until(uint64_t due_ns) noexcept nogil:
    cdef timespec due
    due.tv_sec = due_ns // 1_000_000_000
    due.tv_nsec = due_ns % 1_000_000_000
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL)


cdef void on_delivery(void *context, const delivery_t *messages, uint32_t n) noexcept nogil:
    cdef receiver_t *receiver = <receiver_t *>context
    cdef uint32_t i
    for i in range(n):
        if messages[i].size <= receiver.hot_size:
            memcpy(receiver.hot, messages[i].payload, messages[i].size)
            tally_take(receiver.tally, receiver.hot, messages[i].size, 0)


cdef class CoreReceiver:
    """Takes a topic's deliveries into a Tally. `size`: largest payload in bytes. Keep it as long as the engine."""
    cdef readonly Tally tally
    cdef receiver_t state

    def __cinit__(self, Tally tally not None, size_t size):
        self.tally = tally
        self.state.tally = &tally.state
        self.state.hot = payload_memory(size)
        self.state.hot_size = size
        if self.state.hot == NULL:
            raise MemoryError()

    def __dealloc__(self):
        free(self.state.hot)

    def bind(self, engine, topic_id, bint batches):
        """Lets the engine deliver here; batches: as many messages per call as there are, else one."""
        engine.set_upcall(topic_id, <size_t>&on_delivery, <size_t>&self.state, batches=batches, keep=self)


def send(Engine engine not None, Epoch epoch not None, topic_id, uint64_t rank, int64_t count, size_t size,
         uint64_t batch_max, uint64_t sample_every, uint64_t delay_ns, uint64_t period_ns, Tally tally not None) -> int:
    """Sends `count` messages, or with a negative count until the tally has all that it waits for.

    sample_every: one message in so many carries its time. delay_ns: sleep after each message. period_ns: one message
    per period, by the clock. Returns the number sent. Raises TimeoutError when no slot comes free for 10 s.
    """
    cdef subgroup_t *s = epoch.subgroup(topic_id)
    cdef uint32_t sizes[BATCH_MAX]
    cdef uint64_t sent = 0, n, i, first = 0, most, due_ns
    cdef bint late = False, endless = count < 0
    if size < PAYLOAD_SIZE_MIN or size > s.size_max:
        raise ValueError(f"messages of {size} bytes: from {PAYLOAD_SIZE_MIN} to the topic's {s.size_max}")
    if delay_ns or period_ns or endless:
        batch_max = 1
    batch_max = max(<uint64_t>1, min(batch_max, <uint64_t>BATCH_MAX))
    for i in range(<uint64_t>BATCH_MAX):
        sizes[i] = <uint32_t>size
    with nogil:
        due_ns = monotonic_ns()
        while endless or sent < <uint64_t>count:
            if endless and u64_load_relaxed(&tally.state.wanted) == 0:
                break
            if period_ns:
                due_ns += period_ns
                sleep_until(due_ns)
            most = batch_max
            if not endless and most > <uint64_t>count - sent:
                most = <uint64_t>count - sent
            n = claim_slots(&engine.driver, s, most, CLAIM_TIMEOUT_MS, &first)
            if n == 0:
                late = not (endless and u64_load_relaxed(&tally.state.wanted) == 0)
                break
            for i in range(n):
                payload_fill(
                    <uint8_t *>slot_payload(s, first + i), size, rank, sent + i,
                    monotonic_ns() if sample_every and (sent + i) % sample_every == 0 else 0,
                )
            commit_slots(&engine.driver, s, first, n, sizes, 0)
            sent += n
            if delay_ns:
                sleep_until(monotonic_ns() + delay_ns)
    if late:
        raise TimeoutError(f"sender {rank} found no free slot for {CLAIM_TIMEOUT_MS / 1000:g} s after {sent} messages")
    return sent
