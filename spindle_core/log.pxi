"""Appending to a delivery log: the predicate thread's side of it (delivery.pyx says what a log is).

Rules: one writer. A record is complete before the tail that guards it is published; the oldest position is raised
before anything behind it is overwritten. Positions from readers are read once, checked, and only believed forwards.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from spindle_core.atomics cimport (
    fence_store_load,
    fence_store_store,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_relaxed,
    u64_store_release,
)
from spindle_core.layout cimport (
    LOG_DATA,
    LOG_JUMP,
    LOG_LARGE,
    align_up,
    cursor_page,
    last_bit,
    log_header,
    log_record,
    record_stride,
)
from spindle_core.log cimport LATENCY_BUCKETS, LATENCY_OCTAVE_MIN, cursor_t, log_t
from spindle_core.timing cimport timing_t


cdef void log_refresh_cursors(log_t *log) noexcept nogil:
    """Reads every reader's position once; believes it only forwards and not beyond the tail."""
    cdef uint32_t i
    cdef uint64_t position
    cdef cursor_t *c
    for i in range(log.n_cursors):
        c = &log.cursors[i]
        # SYNC POINT: read. Pairs with the reader's release: it is done with everything before its position.
        position = u64_load_acquire(&c.page.position)
        if position > log.header.tail:
            position = log.header.tail
        if position > c.position:
            c.position = position


cdef inline uint64_t held_position(log_t *log) noexcept nogil:
    """Nothing at or behind this position may be overwritten: the slowest keep-all reader's."""
    cdef uint64_t least = log.tail
    cdef uint32_t i
    for i in range(log.n_cursors):
        if log.cursors[i].keep_all and log.cursors[i].position < least:
            least = log.cursors[i].position
    return least


cdef inline bint all_caught_up(log_t *log) noexcept nogil:
    cdef uint32_t i
    for i in range(log.n_cursors):
        if log.cursors[i].position < log.tail:
            return False
    return True


cdef inline void publish_oldest(log_t *log) noexcept nogil:
    cdef log_header *h = log.header
    u64_store_relaxed(&h.version, h.version + 1)
    # SYNC POINT: overtake. Pairs with the reader's second look at oldest_position after it copied a record.
    fence_store_store()
    u64_store_relaxed(&h.oldest_position, log.oldest_position)
    u64_store_relaxed(&h.oldest_offset, log.oldest_offset)
    u64_store_relaxed(&h.oldest_index, log.oldest_index)
    u64_store_release(&h.version, h.version + 1)
    # What is overwritten from here on must not be seen by somebody who hasn't seen the new oldest position.
    fence_store_load()


cdef inline bint drop_oldest(log_t *log, uint64_t held) noexcept nogil:
    """Gives up the oldest record; False if a keep-all reader still needs it."""
    cdef log_record *r
    if log.oldest_position >= held:
        return False
    if log.oldest_offset == log.capacity:
        log.oldest_offset = 0
    r = <log_record *>(log.ring + log.oldest_offset)
    if r.kind == LOG_JUMP:
        log.oldest_offset = 0
        return True
    log.oldest_position += record_stride(r.size)
    log.oldest_offset += record_stride(r.size)
    log.oldest_index += 1
    if r.kind == LOG_LARGE:
        log_pop_larges_before(log, log.oldest_position)
    return True


cdef inline void return_to_hot(log_t *log) noexcept nogil:
    """Everybody has everything: go on at offset 0, with the whole ring free.

    No record says so, because one would have to stay where it is until every reader has gone through it, in the
    middle of the free space. Whoever reads on from this position does so after it saw a newer tail.
    """
    log.tail_offset = 0
    log_pop_larges_before(log, log.tail)
    log.oldest_position = log.tail
    log.oldest_offset = 0
    log.oldest_index = log.count
    # SYNC POINT: return. Guarded by the release of the next tail; pairs with LogReader.look().
    u64_store_relaxed(&log.header.hot_position, log.tail)
    publish_oldest(log)


cdef char *log_reserve(log_t *log, uint64_t size) noexcept nogil:
    """Room for a record with `size` payload bytes: its header, payload behind it; NULL while a reader holds it back.

    Invariants: there is always room for a jump at tail_offset, since records and the ring are whole lines. A jump
    record counts as oldest until every keep-all reader has gone through it, also when it had nothing left to read:
    its position says that it has everything, but its offset still points there. The ring holds two of the largest
    records, so that one of the two sides of tail_offset has room when it is empty.
    """
    cdef uint64_t need = record_stride(size), held = 0, slack, jump_offset = log.capacity
    cdef bint dropped = False
    cdef log_record *r
    if not log.keeps_history and log.tail_offset and log.tail_offset >= log.hot and log.tail == log.header.tail:
        log_refresh_cursors(log)
        if all_caught_up(log):
            return_to_hot(log)
    while True:
        if log.oldest_position == log.tail and log.oldest_offset == log.tail_offset:
            # Empty: only the place matters.
            if log.capacity - log.tail_offset < need:
                jump_offset = log.tail_offset
                log.tail_offset = 0
            break
        if log.tail_offset > log.oldest_offset:
            if log.capacity - log.tail_offset >= need:
                break
            if log.oldest_offset >= need:
                jump_offset = log.tail_offset
                log.tail_offset = 0
                break
        elif log.oldest_offset - log.tail_offset >= need:
            break
        if log.oldest_position >= held:
            log_refresh_cursors(log)
            held = held_position(log)
        if not drop_oldest(log, held):
            if dropped:
                publish_oldest(log)
            return NULL
        dropped = True
    if dropped:
        # Overtake in strides: each one costs two fences, and nobody misses the last sixteenth of a full ring.
        slack = log.oldest_position + (log.capacity >> 4)
        while log.oldest_position < slack and log.oldest_position < log.tail and drop_oldest(log, held):
            pass
        publish_oldest(log)
    # Only now is the memory ours to write: a reader may have been in it until the oldest position was raised.
    if jump_offset < log.capacity:
        r = <log_record *>(log.ring + jump_offset)
        r.position = log.tail
        r.kind = LOG_JUMP
        r.tag = 0
        r.size = 0
    r = <log_record *>(log.ring + log.tail_offset)
    r.position = log.tail
    r.key = 0
    r.size = <uint32_t>size
    r.kind = LOG_DATA
    r.tag = 0
    return <char *>r


cdef void log_commit(log_t *log, uint64_t size) noexcept nogil:
    """The reserved record is filled; readers see it with the next log_publish()."""
    cdef uint64_t stride = record_stride(size)
    if log.lasts != NULL:
        lasts_note(log.lasts, <log_record *>(log.ring + log.tail_offset))
    log.last_offset = log.tail_offset
    log.tail += stride
    log.tail_offset += stride
    log.count += 1


cdef inline uint32_t latency_bucket(uint64_t ns) noexcept nogil:
    cdef uint32_t octave, at
    if ns >> LATENCY_OCTAVE_MIN == 0:
        return 0
    octave = last_bit(ns)
    at = 1 + 4 * (octave - LATENCY_OCTAVE_MIN) + (<uint32_t>(ns >> (octave - 2)) & 3)
    return at if at < LATENCY_BUCKETS else LATENCY_BUCKETS - 1


cdef inline void log_count(log_t *log, const log_record *r, uint64_t size) noexcept nogil:
    """Counts a message of so many bytes that was delivered live. One that says that it comes from the future took no
    time."""
    log.figures.messages += 1
    log.figures.bytes += size
    log.figures.latencies[latency_bucket(r.reception_ns - r.source_ns if r.reception_ns > r.source_ns else 0)] += 1


cdef void log_publish(log_t *log) noexcept nogil:
    cdef log_header *h = log.header
    u64_store_relaxed(&h.tail_offset, log.tail_offset)
    u64_store_relaxed(&h.count, log.count)
    # SYNC POINT: deliver. Pairs with the reader's acquire of `tail`: records are whole before it.
    u64_store_release(&h.tail, log.tail)


cdef void log_show_time(log_t *log, const timing_t *timing) noexcept nogil:
    """Shows readers what time the order has said: before they see the message that says so, or with it."""
    # Relaxed: it guards nothing.
    u64_store_relaxed(&log.header.said_ns, timing.said_ns)


cdef uint32_t log_take_armed(log_t *log, int *readers, uint32_t most) noexcept nogil:
    """Descriptors of readers that armed since they were last rung, who are to be rung now; returns how many, at most
    `most`: the others wait until the next message. After log_publish()."""
    cdef uint32_t i, n = 0
    cdef uint64_t armed
    cdef cursor_t *c
    if log.n_cursors == 0:
        return 0
    # Pairs with the reader's fence between arming and its last look at the tail.
    fence_store_load()
    for i in range(log.n_cursors):
        c = &log.cursors[i]
        armed = u64_load_acquire(&c.page.armed)
        if armed != c.rung and n < most:
            c.rung = armed
            # SYNC POINT: attended. Who attends looks by itself, once more when it has stopped, and arms anew before it
            # sleeps.
            if u64_load_relaxed(&c.page.attended):
                continue
            readers[n] = c.ring_end
            n += 1
    return n


cdef void log_set_blocked(log_t *log, bint blocked) noexcept nogil:
    if u64_load_relaxed(&log.header.blocked) != <uint64_t>blocked:
        u64_store_release(&log.header.blocked, blocked)
        # Pairs with the reader's fence between raising its position and looking at `blocked`.
        fence_store_load()
