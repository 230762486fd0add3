"""The delivery log: what a topic delivered on this node, in order, in shared memory.

The predicate thread appends, every reader on the host reads in place with a position of its own. A message is copied
once into the log, however many readers there are, and no reader can make the group wait unless it keeps all.

How space comes free: readers that keep all hold the log's tail back (log_reserve() fails, delivery waits, then the
slots, then the writers); the others are overtaken and notice it by the record's position. A log whose readers have
all caught up and that keeps no history jumps back to its start when it leaves its hot part, so that what is in use
stays in the cache.

Rules: one writer. A record is complete before the tail that guards it is published; the oldest position is raised
before anything behind it is overwritten. Positions from readers are read once, checked, and only believed forwards.
"""
import os
import threading

from libc.stdint cimport uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from spindle_core.atomics cimport (
    fence_store_load,
    fence_store_store,
    realtime_ns,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_relaxed,
    u64_store_release,
)
from spindle_core.events cimport c_close, end_ring
from spindle_core.layout cimport (
    CURSOR_MAGIC,
    CURSOR_START_OFFSET,
    LOG_DATA,
    LOG_JUMP,
    LOG_MAGIC,
    LOG_RING_OFFSET,
    MESSAGE_SIZE_MAX,
    align_up,
    cursor_page,
    cursor_start,
    log_header,
    log_record,
    record_stride,
)
from spindle_core.memory cimport Mapping

from spindle_core.ends import make_ends

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer


# ---- the writer, nogil -----------------------------------------------------------------------------------------------

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
    return True


cdef inline void return_to_hot(log_t *log) noexcept nogil:
    """Everybody has everything: go on at offset 0, with the whole ring free.

    No record says so, because one would have to stay where it is until every reader has gone through it, in the
    middle of the free space. Whoever reads on from this position does so after it saw a newer tail.
    """
    log.tail_offset = 0
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
        r.size = 0
    r = <log_record *>(log.ring + log.tail_offset)
    r.position = log.tail
    r.index = log.count
    r.size = <uint32_t>size
    r.kind = LOG_DATA
    return <char *>r


cdef void log_commit(log_t *log, uint64_t size) noexcept nogil:
    """The reserved record is filled; readers see it with the next log_publish()."""
    cdef uint64_t stride = record_stride(size)
    log.last_offset = log.tail_offset
    log.tail += stride
    log.tail_offset += stride
    log.count += 1


cdef void log_publish(log_t *log) noexcept nogil:
    cdef log_header *h = log.header
    u64_store_relaxed(&h.tail_offset, log.tail_offset)
    u64_store_relaxed(&h.count, log.count)
    # SYNC POINT: deliver. Pairs with the reader's acquire of `tail`: records are whole before it.
    u64_store_release(&h.tail, log.tail)


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
            readers[n] = c.ring_fd
            n += 1
    return n


cdef void log_set_blocked(log_t *log, bint blocked) noexcept nogil:
    if u64_load_relaxed(&log.header.blocked) != <uint64_t>blocked:
        u64_store_release(&log.header.blocked, blocked)
        # Pairs with the reader's fence between raising its position and looking at `blocked`.
        fence_store_load()


# ---- Python's side ---------------------------------------------------------------------------------------------------

# What a log still has for a reader that goes on from a place in the order (Cursor.kept).
KEPT_BEFORE = 1   # a message before that place: everything from there on is or will be in this log
KEPT_WHOLE = 2    # none, but everything that was ever appended: nothing is missing, if the log had begun by then
KEPT_LATER = 3    # only later ones: some in between may be gone


cdef class Cursor:
    """The node's side of one reader: where it stands, and the doorbell that wakes it.

    keep_all: holds delivery back rather than lose a message. from_history: starts with the oldest retained message
    (at `start_index`, if that is given and still there), else with the next one delivered. after: (view id, sequence)
    of the first message that the reader hasn't had, wherever it had the others from; starts there, or with the oldest
    retained one behind it, and `kept` says whether any may be missing. The log may still lag behind that place: then
    the reader itself drops what it has had (LogReader, `after`).
    """

    def __cinit__(self):
        self.ring_fd = self.data_fd = -1

    def __init__(self, bint keep_all, bint from_history=False, start_index=-1, after=None):
        self.keep_all = keep_all
        self.from_history = from_history
        self.start_index = start_index
        self.after = after
        self.mapping = Mapping.create("spindle-cursor", 4096)
        self.page = <cursor_page *>self.mapping.base
        self.page.magic = CURSOR_MAGIC
        self.ring_fd, self.data_fd = make_ends()

    def hand_over(self):
        """The reader has its end, `data_fd`: the node keeps no copy of it. Idempotent."""
        if self.data_fd >= 0:
            os.close(self.data_fd)
            self.data_fd = -1

    def close(self):
        """Frees the memory. Only after DeliveryLog.remove_reader. Idempotent."""
        if self.ring_fd >= 0:
            end_ring(self.ring_fd)
            os.close(self.ring_fd)
            self.ring_fd = -1
        self.hand_over()
        self.mapping.close()

    def __dealloc__(self):
        if self.ring_fd >= 0:
            c_close(self.ring_fd)
        if self.data_fd >= 0:
            c_close(self.data_fd)


cdef class DeliveryLog:
    """The node's side of a topic's log. `capacity` and `hot` in bytes; `history_depth` 0 = all that fits.

    The engine owns the appending side once the log is bound to a topic: its add_cursor and remove_cursor park the
    predicate thread. The methods here are for a log that no engine delivers into at the moment.
    Raises ValueError where capacity can't hold a handful of the smallest records.
    """

    def __init__(self, capacity=8 << 20, hot=256 << 10, bint keep_history=False, history_depth=0):
        if not 4096 <= capacity <= 1 << 40:
            raise ValueError(f"a log of {capacity} bytes: must be between 4096 and {1 << 40}")
        if hot < 0:
            raise ValueError(f"a hot part of {hot} bytes: must not be negative")
        capacity = align_up(capacity, 4096)
        self.mapping = Mapping.create("spindle-log", LOG_RING_OFFSET + capacity)
        self.mapping.seal_writes()
        self.history_depth = history_depth
        self.cursors = []
        self.engine_lock = threading.RLock()
        cdef log_t *s = &self.state
        memset(s, 0, sizeof(log_t))
        s.header = <log_header *>self.mapping.base
        s.ring = self.mapping.base + LOG_RING_OFFSET
        s.capacity = capacity
        s.hot = min(hot, capacity)
        s.keeps_history = keep_history
        s.header.capacity = capacity
        s.header.hot = s.hot
        s.header.keeps_history = keep_history
        s.header.magic = LOG_MAGIC

    cdef log_t *pointer(self) noexcept:
        return &self.state

    cdef int check_open(self) except -1:
        if self.mapping.base == NULL or self.mapping.fd < 0:
            raise ValueError("this delivery log is closed")
        return 0

    cdef int locate(self, uint64_t index, uint64_t *position, uint64_t *offset, uint64_t *found) except -1:
        """Where message `index` lies, or the oldest retained one behind it."""
        cdef log_t *s = &self.state
        cdef log_record *r
        position[0] = s.oldest_position
        offset[0] = s.oldest_offset
        found[0] = s.oldest_index
        while found[0] < index and position[0] < s.tail:
            if offset[0] == s.capacity:
                offset[0] = 0
            r = <log_record *>(s.ring + offset[0])
            if r.kind == LOG_JUMP:
                offset[0] = 0
                continue
            position[0] += record_stride(r.size)
            offset[0] += record_stride(r.size)
            found[0] += 1
        return 0

    cdef object locate_after(self, uint64_t view_id, uint64_t sequence, uint64_t *position, uint64_t *offset,
                             uint64_t *found):
        """Where the first retained message at or behind this place in the order lies; returns a KEPT_... constant."""
        cdef log_t *s = &self.state
        cdef log_record *r
        cdef bint passed = False
        position[0] = s.oldest_position
        offset[0] = s.oldest_offset
        found[0] = s.oldest_index
        while position[0] < s.tail:
            if offset[0] == s.capacity:
                offset[0] = 0
            r = <log_record *>(s.ring + offset[0])
            if r.kind == LOG_JUMP:
                offset[0] = 0
                continue
            if r.view_id > view_id or (r.view_id == view_id and r.sequence >= sequence):
                break
            passed = True
            position[0] += record_stride(r.size)
            offset[0] += record_stride(r.size)
            found[0] += 1
        if not passed and s.count and position[0] == s.tail:
            # Nothing is retained; but the newest record stays readable, and may be the one before that place.
            r = <log_record *>(s.ring + s.last_offset)
            passed = r.view_id < view_id or (r.view_id == view_id and r.sequence < sequence)
        return KEPT_BEFORE if passed else KEPT_WHOLE if s.oldest_index == 0 else KEPT_LATER

    def add_reader(self, Cursor cursor not None):
        """Places the cursor and lets it take part.

        Raises ValueError if the topic has CURSORS_MAX readers already, or one of the two is closed.
        """
        cdef log_t *s = &self.state
        cdef cursor_start *start = <cursor_start *>(cursor.mapping.base + CURSOR_START_OFFSET)
        cdef uint64_t position, offset, index, wanted
        cdef cursor_t *c
        cdef log_record *r
        self.check_open()
        if cursor.ring_fd < 0:
            raise ValueError("this cursor is closed")
        if s.n_cursors >= CURSORS_MAX:
            raise ValueError(f"this topic has {CURSORS_MAX} readers on this node, which is the limit")
        if cursor.after is not None:
            view_id, sequence = cursor.after
            cursor.kept = self.locate_after(view_id, sequence, &position, &offset, &index)
        elif cursor.from_history:
            wanted = s.oldest_index
            if self.history_depth and s.count > self.history_depth:
                wanted = max(wanted, s.count - self.history_depth)
            if cursor.start_index >= 0:
                wanted = max(s.oldest_index, min(cursor.start_index, s.count))
            self.locate(wanted, &position, &offset, &index)
        else:
            position, offset, index = s.tail, s.tail_offset, s.count
        if position < s.tail:
            r = <log_record *>(s.ring + (offset if offset < s.capacity else 0))
            if r.kind == LOG_JUMP:
                r = <log_record *>s.ring
            cursor.next = r.view_id, r.sequence
        elif s.count:
            r = <log_record *>(s.ring + s.last_offset)
            cursor.next = r.view_id, r.sequence + 1
        start.position = position
        start.offset = offset
        start.index = index
        start.keep_all = cursor.keep_all
        cursor.page.position = position
        cursor.page.index = index
        c = &s.cursors[s.n_cursors]
        c.page = cursor.page
        c.position = position
        c.rung = 0
        c.ring_fd = cursor.ring_fd
        c.keep_all = cursor.keep_all
        s.n_cursors += 1
        self.cursors.append(cursor)

    def remove_reader(self, Cursor cursor not None):
        """Forgets the cursor; nothing happens if it isn't one of ours."""
        cdef log_t *s = &self.state
        cdef uint32_t i
        for i in range(s.n_cursors):
            if s.cursors[i].page == cursor.page:
                s.n_cursors -= 1
                s.cursors[i] = s.cursors[s.n_cursors]
                self.cursors.remove(cursor)
                return

    def append(self, payload, uint32_t sender, uint64_t sequence, uint64_t view_id, uint64_t source_ns,
               uint16_t writer_id=0, uint64_t reception_ns=0, uint32_t relay=0):
        """Appends and publishes one message; False while a keep-all reader holds it back.

        Raises ValueError if it is too large (a log must hold two such messages) or the log is closed.
        """
        cdef Py_buffer buffer
        cdef log_record *r
        cdef uint64_t size_max = min(self.state.capacity // 2 - sizeof(log_record), <uint64_t>MESSAGE_SIZE_MAX)
        self.check_open()
        PyObject_GetBuffer(payload, &buffer, PyBUF_SIMPLE)
        try:
            if <uint64_t>buffer.len > size_max:
                raise ValueError(f"a message of {buffer.len} bytes: a log of {self.state.capacity} bytes takes up to"
                                 f" {size_max}")
            r = <log_record *>log_reserve(&self.state, buffer.len)
            if r == NULL:
                return False
            r.sequence = sequence
            r.source_ns = source_ns
            r.reception_ns = reception_ns if reception_ns else realtime_ns()
            r.sender = sender
            r.relay = relay
            r.writer_id = writer_id
            r.view_id = view_id
            memcpy(<char *>r + sizeof(log_record), buffer.buf, buffer.len)
            log_commit(&self.state, buffer.len)
        finally:
            PyBuffer_Release(&buffer)
        log_publish(&self.state)
        cdef int readers[CURSORS_MAX]
        cdef uint32_t i
        for i in range(log_take_armed(&self.state, readers, CURSORS_MAX)):
            end_ring(readers[i])
        return True

    @property
    def delivered(self):
        """Messages appended ever."""
        return u64_load_relaxed(&self.state.header.count) if self.mapping.base != NULL else 0

    @property
    def oldest_index(self):
        """Index of the oldest message that can still be read."""
        return u64_load_relaxed(&self.state.header.oldest_index) if self.mapping.base != NULL else 0

    @property
    def capacity(self):
        return self.state.capacity

    @property
    def readers(self):
        return len(self.cursors)

    def stop(self):
        """Nothing will be appended any more: readers get what is there, then NodeGone."""
        cdef uint32_t i
        if self.mapping.base != NULL and self.mapping.fd >= 0:
            u64_store_release(&self.state.header.stopped, 1)
            for i in range(self.state.n_cursors):
                end_ring(self.state.cursors[i].ring_fd)

    def close(self):
        """Frees the memory on this side. Only when no engine delivers into it. Idempotent."""
        self.stop()
        self.mapping.close()
