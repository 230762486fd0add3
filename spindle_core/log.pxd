"""The state of a delivery log's one writer. See log.pxi."""
from libc.stdint cimport uint64_t, uint32_t

from spindle_core.large cimport LARGES_OF_LOG, larges_t, log_large_t
from spindle_core.lasts cimport lasts_t
from spindle_core.layout cimport cursor_page, log_header


cdef enum:
    CURSORS_MAX = 256            # readers of one topic on one node
    LATENCY_OCTAVE_MIN = 10      # latencies below 2**10 ns share the first bucket
    LATENCY_BUCKETS = 1 + 4 * 30 + 1  # ... four to an octave follow, and one for 2**40 ns (18 min) and more


# What was delivered live, for people: written by the predicate thread, read at any time, each number by itself.
cdef struct figures_t:
    uint64_t messages, bytes
    uint64_t latencies[LATENCY_BUCKETS]  # messages, by the time from their source timestamps to their delivery


cdef struct cursor_t:
    cursor_page *page            # the application's: nothing in it is trusted
    uint64_t position            # the last one that we believed: only grows, never beyond the tail
    uint64_t rung                # value of page.armed that we last rang for
    int ring_end                 # our end of the reader's doorbell
    bint keep_all


# The writer's side. Invariant: oldest_position <= position of every keep-all cursor <= tail.
cdef struct log_t:
    log_header *header
    char *ring
    uint64_t capacity            # bytes, a multiple of CACHE_LINE
    uint64_t hot                 # bytes
    bint keeps_history
    uint64_t tail                # position behind the last record, not yet published ones included
    uint64_t tail_offset
    uint64_t last_offset         # of the newest record, if count > 0: whole until the next one is appended
    uint64_t count               # messages appended
    uint64_t oldest_position
    uint64_t oldest_offset
    uint64_t oldest_index
    figures_t figures
    lasts_t *lasts               # the last messages of each key; NULL: not kept
    larges_t *larges             # of the node; NULL: a log that no node has
    uint64_t large_max           # bytes of large samples, unless one alone has more
    uint64_t large_bytes
    uint64_t large_oldest        # large samples are counted from 0: this log has the bytes of oldest..newest-1
    uint64_t large_newest
    log_large_t large[LARGES_OF_LOG]
    cursor_t cursors[CURSORS_MAX]
    uint32_t n_cursors
