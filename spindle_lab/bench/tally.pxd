"""What one receiver keeps about what it was delivered: see tally.pyx."""
from libc.stddef cimport size_t
from libc.stdint cimport uint8_t, uint64_t

from spindle_lab.bench.payload cimport PAYLOAD_SENDERS_MAX

cdef enum:
    BUCKET_BITS = 7                            # buckets per power of two: 128, so under 1% of error
    BUCKETS_COUNT = (65 - BUCKET_BITS) << BUCKET_BITS


cdef struct tally_t:
    uint64_t order_hash                        # over the identities, in delivery order, up to the last wanted message
    uint64_t delivered                         # messages hashed, wanted and delayed senders' alike
    uint64_t bytes                             # payload bytes of them
    uint64_t wanted                            # messages of counted senders still to come
    uint64_t lost                              # gaps in a sender's indices
    uint64_t misordered                        # a sender's index that came again or too late
    uint64_t corrupt                           # payloads whose sum isn't what word 0 promises
    uint64_t samples                           # messages with a latency sample
    uint64_t first_ns                          # CLOCK_MONOTONIC at the first message
    uint64_t end_ns                            # and at the last wanted one, 0 before
    uint64_t next_index[PAYLOAD_SENDERS_MAX]   # expected next, by sender
    uint64_t of_sender[PAYLOAD_SENDERS_MAX]    # delivered until end_ns, by sender
    uint8_t counted[PAYLOAD_SENDERS_MAX]       # 1: the sender has a number of messages to wait for
    uint64_t *latency_counts                   # BUCKETS_COUNT counters of ns
    uint64_t latency_max_ns


cdef void tally_take(tally_t *tally, const uint8_t *data, size_t size, uint64_t now_ns) noexcept nogil


cdef class Tally:
    cdef tally_t state
    cdef readonly int n_senders
