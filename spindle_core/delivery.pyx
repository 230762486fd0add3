"""The delivery log: what a topic delivered on this node, in order, in shared memory.

The predicate thread appends, every reader on the host reads in place with a position of its own. A message is copied
once into the log, however many readers there are, and no reader can make the group wait unless it keeps all.

How space comes free: readers that keep all hold the log's tail back (log_reserve() fails, delivery waits, then the
slots, then the writers); the others are overtaken and notice it by the record's position. A log whose readers have
all caught up and that keeps no history jumps back to its start when it leaves its hot part, so that what is in use
stays in the cache.

Here is what the node makes and frees; log.pxi appends.
"""
import os
import threading
import weakref

from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from spindle_core.atomics cimport realtime_ns, u64_load_relaxed, u64_store_release
from spindle_core.doorbell cimport Doorbell
from spindle_core.events cimport end_ring
from spindle_core.hot_path cimport (
    lasts_clear,
    lasts_copy,
    lasts_free,
    lasts_log_bytes,
    lasts_make,
    lasts_note,
    lasts_rank,
    lasts_restore_over,
    lasts_restored,
    log_commit,
    log_large_room,
    log_pop_larges_before,
    log_publish,
    log_push_large,
    log_reserve,
    log_show_time,
    log_sweep_larges,
    log_take_armed,
    timing_note,
)
from spindle_core.larges cimport Larges
from spindle_core.lasts cimport ALONE, EFFECT_WORD, KINDS, NAMED, instance_t, lasts_t
from spindle_core.layout cimport (
    CURSOR_MAGIC,
    CURSOR_START_OFFSET,
    LOG_DATA,
    LOG_JUMP,
    LOG_LARGE,
    LOG_MAGIC,
    LOG_RING_OFFSET,
    MESSAGE_SIZE_MAX,
    align_up,
    cursor_page,
    cursor_start,
    large_entry,
    log_header,
    log_record,
    record_stride,
)
from spindle_core.log cimport CURSORS_MAX, LATENCY_BUCKETS, LATENCY_OCTAVE_MIN, cursor_t, figures_t, log_t
from spindle_core.memory cimport Mapping
from spindle_core.timing cimport TIMING_SAYS, TIMING_STAMPED, TIMING_WORD, Timing

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from spindle_core.larges import entry_of
from spindle_core.table_copy import table_messages


include "new_table.pxi"


# What a log still has for a reader that goes on from a place in the order (Cursor.kept).
KEPT_BEFORE = 1   # a message before that place: everything from there on is or will be in this log
KEPT_WHOLE = 2    # none, but everything that was ever appended: nothing is missing, if the log had begun by then
KEPT_LATER = 3    # only later ones: some in between may be gone

# A bucket has latencies below its bound, in nanoseconds, and not below the one before; one more has the later ones.
LATENCY_LIMITS_NS = (1 << LATENCY_OCTAVE_MIN, *(
    (5 + at % 4) << (LATENCY_OCTAVE_MIN - 2 + at // 4) for at in range(LATENCY_BUCKETS - 2)))

TABLE_BYTES_MIN = 4096
TABLE_BYTES_MAX = (1 << 37) - 1
CLEANUP_NEVER = 1 << 62


cdef class Cursor(Doorbell):
    """The node's side of one reader: where it stands, and the doorbell that wakes it.

    keep_all: holds delivery back rather than lose a message. from_history: starts with the oldest retained message
    (at `start_index`, if that is given and still there), else with the next one delivered. after: (view id, sequence)
    of the first message that the reader hasn't had, wherever it had the others from; starts there, or with the oldest
    retained one behind it, and `kept` says whether any may be missing. The log may still lag behind that place: then
    the reader itself drops what it has had (LogReader, `after`). within: see Doorbell.

    with_table: of a log that keeps the last messages of each key, what is retained is that table. `table` becomes a
    copy of it, for the reader to read first, and the cursor is placed at the end of the log. So too with `after`,
    unless the log proves that it goes on from there without a gap; `since` says in which views nothing can be missing.
    """

    def __init__(self, bint keep_all, bint from_history=False, start_index=-1, after=None, bint within=False,
                 bint with_table=False, since=0):
        self.with_table = with_table
        self.since = since
        self.keep_all = keep_all
        self.from_history = from_history
        self.start_index = start_index
        self.after = after
        self.mapping = Mapping.create("spindle-cursor", 4096)
        self.page = <cursor_page *>self.mapping.base
        self.page.magic = CURSOR_MAGIC
        Doorbell.__init__(self, within)

    cdef int keep_larges(self, Larges larges) except -1:
        """The large samples that its table names stay until it has been read."""
        self.larges = larges
        named = [entry_of(payload)[0] for payload, *_, large in table_messages(self.table) if large]
        self.table_larges = [id for id in named if larges is not None and larges.use(id)]
        return 0

    cdef int let_larges_go(self) except -1:
        """If it has been read, or nobody reads it any more."""
        if self.table_larges and (self.page == NULL or u64_load_relaxed(&self.page.table_read)):
            for id in self.table_larges:
                self.larges.unuse(id)
            self.table_larges = None
        return 0

    def close(self):
        """Frees the memory. Only after DeliveryLog.remove_reader, or when nothing is appended to its log any more.
        Idempotent."""
        self.page = NULL
        self.let_larges_go()
        self.hang_up()
        self.mapping.close()
        self.table = None

    def give_table_away(self):
        """The reader has the copy of the table by now, or never will."""
        self.table = None


cdef class DeliveryLog:
    """The node's side of a topic's log. `capacity` and `hot` in bytes; `history_depth` 0 = all that fits.

    effects: of each tag, what a message with it does to its key (lasts.pxd), 256 numbers. With it the log keeps a table
    of the last `history_depth` samples of each key (0: all), in `table_bytes` of memory beside the ring; of all keys at
    most `samples_max`, and of at most `keys_max` keys (0: no limit); what is over for `cleanup_ns` after its end, as
    `timing` says (CLEANUP_NEVER and more: for ever). See lasts_over.pxi.
    ranks: where of each key only one writer counts, 256 numbers (RANK_... of lasts.pxd); see lasts_ranked.pxi.
    timing: what the topic's messages say of time; it is noted of those that come by append() and note(), and shown to
    readers.
    larges: of the node that has the log. Of large samples the log has up to `large_max` bytes beside its own, or one
    that is larger.

    The engine owns the appending side once the log is bound to a topic: its add_reader and remove_reader park the
    predicate thread. The methods here are for a log that no engine delivers into at the moment.
    Raises ValueError for a capacity that is not between 4096 bytes and 1 TiB, a negative hot part, a table without
    room, or a delay without `timing`; MemoryError.
    """

    def __init__(self, capacity=8 << 20, hot=256 << 10, bint keep_history=False, history_depth=0, bytes effects=b"",
                 table_bytes=0, Timing timing=None, samples_max=0, keys_max=0, cleanup_ns=0,
                 Larges larges=None, large_max=0, bytes ranks=b""):
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
        self.timing = timing
        cdef log_t *s = &self.state
        memset(s, 0, sizeof(log_t))
        s.header = <log_header *>self.mapping.base
        s.ring = self.mapping.base + LOG_RING_OFFSET
        s.capacity = capacity
        s.hot = min(hot, capacity)
        s.keeps_history = keep_history
        self.larges = larges
        s.larges = larges.pointer() if larges is not None else NULL
        s.large_max = large_max
        s.header.capacity = capacity
        s.header.hot = s.hot
        s.header.keeps_history = keep_history
        s.header.magic = LOG_MAGIC
        if timing is not None:
            log_show_time(s, timing.pointer())
        if effects:
            s.lasts = new_table(effects, history_depth, table_bytes, samples_max, keys_max, cleanup_ns, ranks, timing)
            s.lasts.larges = s.larges

    def __dealloc__(self):
        if self.state.lasts != NULL:
            self.state.lasts.larges = NULL     # the node may have gone; close() has given up what is large
        lasts_free(self.state.lasts)

    cdef lasts_t *table(self) except NULL:
        self.check_open()
        if self.state.lasts == NULL:
            raise ValueError("this log keeps no table of keys")
        return self.state.lasts

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

        Raises ValueError if the topic has CURSORS_MAX readers already, or if the log or the cursor is closed.
        """
        cdef log_t *s = &self.state
        cdef cursor_start *start = <cursor_start *>(cursor.mapping.base + CURSOR_START_OFFSET)
        cdef uint64_t position, offset, index, wanted
        cdef cursor_t *c
        cdef log_record *r
        self.check_open()
        if cursor.ring_end < 0:
            raise ValueError("this cursor is closed")
        if s.n_cursors >= CURSORS_MAX:
            raise ValueError(f"this topic has {CURSORS_MAX} readers on this node, which is the limit")
        if cursor.after is not None:
            view_id, sequence = cursor.after
            cursor.kept = self.locate_after(view_id, sequence, &position, &offset, &index)
            if (cursor.with_table and s.lasts != NULL and cursor.kept != KEPT_BEFORE
                    and not (cursor.kept == KEPT_WHOLE and view_id >= cursor.since)):
                cursor.table, cursor.kept = self.copy_table(), KEPT_LATER
                position, offset, index = s.tail, s.tail_offset, s.count
        elif cursor.with_table and cursor.from_history and cursor.start_index < 0 and s.lasts != NULL:
            cursor.table = self.copy_table()
            position, offset, index = s.tail, s.tail_offset, s.count
        elif cursor.from_history:
            wanted = s.oldest_index
            if self.history_depth and s.count > self.history_depth:
                wanted = max(wanted, s.count - self.history_depth)
            if cursor.start_index >= 0:
                wanted = max(s.oldest_index, min(cursor.start_index, s.count))
            self.locate(wanted, &position, &offset, &index)
        else:
            position, offset, index = s.tail, s.tail_offset, s.count
        if cursor.table is not None:
            cursor.keep_larges(self.larges)
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
        c.ring_end = cursor.ring_end
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

    @property
    def keeps_table(self):
        """True if it keeps the last messages of each key."""
        return self.state.lasts != NULL

    def note(self, payload, uint32_t sender, uint64_t sequence, uint64_t view_id, uint64_t source_ns,
             uint16_t writer_id=0, uint64_t reception_ns=0, uint32_t relay=0, uint8_t tag=0, uint64_t key=0,
             bint large=False):
        """As append(), but only the table hears of the message: of one that comes before all that the log will have.
        Never held back. ValueError without a table."""
        cdef lasts_t *t = self.table()
        cdef Py_buffer buffer
        cdef object record = PyBytes_FromStringAndSize(NULL, sizeof(log_record) + len(payload))
        cdef log_record *r = <log_record *>PyBytes_AS_STRING(record)
        PyObject_GetBuffer(payload, &buffer, PyBUF_SIMPLE)
        try:
            r.size = buffer.len
            r.tag = tag
            r.writer_id = writer_id
            r.key = key
            r.sequence = sequence
            r.source_ns = source_ns
            r.reception_ns = reception_ns if reception_ns else realtime_ns()
            r.sender = sender
            r.relay = relay
            r.view_id = view_id
            r.kind = LOG_LARGE if large else LOG_DATA
            memcpy(<char *>r + sizeof(log_record), buffer.buf, buffer.len)
        finally:
            PyBuffer_Release(&buffer)
        lasts_note(t, r)
        self.note_time(r)

    cdef void note_time(self, const log_record *r) noexcept:
        cdef const char *payload = <const char *>r + sizeof(log_record)
        cdef uint64_t size = r.size
        if self.timing is not None:
            if r.kind == LOG_LARGE:
                payload = <const char *>(<const large_entry *>payload).first
                size = sizeof(large_entry) - 2 * sizeof(uint64_t)     # its beginning and its end
            timing_note(self.timing.pointer(), r.tag, r.writer_id, r.source_ns, payload, size)
            log_show_time(&self.state, self.timing.pointer())

    def say_time(self, now_ns):
        """The order has said so, before any message that comes here. Nothing happens without `timing`."""
        if self.timing is not None:
            self.timing.say(now_ns)
            log_show_time(&self.state, self.timing.pointer())

    def table_stands_for(self, uint64_t view_id, uint64_t sequence, uint64_t given_up=0, uint64_t given_up_keys=0,
                         uint64_t limited=0, uint64_t said_ns=0, over=()):
        """The table is another member's: it stands for all before this place in the order, so what the log still gets
        of that changes nothing. So many messages, and all of so many keys, had found no room in it; so many went
        because of a limit; the order had said this time, and these keys are over (table_over())."""
        cdef lasts_t *t = self.table()
        cdef uint64_t key, ns
        cdef bint waits
        t.restoring = False
        t.since_view, t.since_sequence = view_id, sequence
        t.given_up, t.given_up_keys, t.limited, t.said_ns = given_up, given_up_keys, limited, said_ns
        for key, ns, waits in over:
            lasts_restore_over(t, key, ns, waits)
        lasts_restored(t)
        t.version += 1

    def table_over(self):
        """The keys that are over, those that go first first: key, UTC ns since when, and whether that isn't settled
        yet, as no time was said since. For table_stands_for() of another log."""
        cdef lasts_t *t = self.table()
        cdef uint32_t at
        cdef int kind
        cdef instance_t *i
        cdef bint waits
        found = []
        for kind in range(KINDS):
            at, waits = t.over[kind].first, False
            while at:
                i = &t.instances[at]
                waits = waits or at == t.waiting[kind]
                found.append((i.key, i.over_ns, waits))
                at = i.over_after
        return found

    @property
    def table_due_ns(self):
        """When a key is to go that is over, UTC: a word that says the time is wanted then. 0: none is."""
        return u64_load_relaxed(&self.state.lasts.due_ns) if self.state.lasts != NULL else 0

    @property
    def table_waits(self):
        """Not 0: a word that says the time is wanted soon, since a key is over; another number for each such word."""
        return u64_load_relaxed(&self.state.lasts.wait) if self.state.lasts != NULL else 0

    def restore_table(self):
        """As if no message had come. What is noted from here on is another member's table, up to table_stands_for()."""
        cdef lasts_t *t = self.table()
        lasts_clear(t)
        t.restoring = True

    def table_figures(self):
        """keys: those of which something is kept; messages: all that is kept, ends included; bytes of bytes_max;
        given_up: samples that found no room any more; given_up_keys: how often that was all of a key; limited: samples
        that went because of samples_max or keys_max; over: keys that are over, and kept for a while."""
        cdef lasts_t *t = self.table()
        return {"keys": t.idle[NAMED].count + t.idle[ALONE].count, "messages": t.kept, "bytes": t.bytes,
                "bytes_max": t.bytes_max, "given_up": t.given_up, "given_up_keys": t.given_up_keys,
                "limited": t.limited, "over": t.over[NAMED].count + t.over[ALONE].count}

    def copy_table(self, bint shared=True):
        """The table as it is, for readers (LogReader, `table`) or for table_messages(), in memory that others can map
        unless `shared` is False. Readers that come one after the other, while nothing changes, get the same copy.
        Raises OSError, MemoryError."""
        cdef lasts_t *t = self.table()
        cdef uint64_t size = lasts_log_bytes(t), capacity = align_up(size + 1, 4096)
        cdef Mapping copy
        cdef log_header *h
        if shared and self.last_copy is not None and self.last_copy[1] == t.version:
            copy = self.last_copy[0]()
            if copy is not None and copy.fd >= 0:
                return copy
        if shared:
            copy = Mapping.create("spindle-table", LOG_RING_OFFSET + capacity)
        else:
            copy = Mapping.private(LOG_RING_OFFSET + capacity)
        copy.populate(0, copy.size)      # memory that has run out is an error here, and not a signal later
        with nogil:
            lasts_copy(t, copy.base + LOG_RING_OFFSET)
        h = <log_header *>copy.base
        h.capacity = capacity
        h.keeps_history = 1
        h.behind_view, h.behind_sequence = t.next_view, t.next_sequence
        if (t.since_view, t.since_sequence) > (t.next_view, t.next_sequence):
            h.behind_view, h.behind_sequence = t.since_view, t.since_sequence
        h.given_up = t.given_up
        h.tail = h.tail_offset = size
        h.count = t.kept
        h.magic = LOG_MAGIC
        if shared:
            copy.seal_writes()
            self.last_copy = weakref.ref(copy), t.version
        return copy

    def append(self, payload, uint32_t sender, uint64_t sequence, uint64_t view_id, uint64_t source_ns,
               uint16_t writer_id=0, uint64_t reception_ns=0, uint32_t relay=0, uint8_t tag=0, uint64_t key=0,
               bint large=False):
        """Appends and publishes one message; False while a keep-all reader holds it back.

        large: the payload is the entry of a large sample. If the node doesn't have its bytes, readers count it as lost.
        Raises ValueError if it is too large (a log must hold two such messages), if it is not what `large` says, or if
        the log is closed.
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
            if large and (buffer.len != sizeof(large_entry) or self.larges is None):
                raise ValueError(f"a large sample's entry has {sizeof(large_entry)} bytes, and a node that has them")
            if large and not log_large_room(&self.state, (<large_entry *>buffer.buf).size):
                return False
            r = <log_record *>log_reserve(&self.state, buffer.len)
            if r == NULL:
                return False
            if large:
                r.kind = LOG_LARGE
                log_push_large(&self.state, <large_entry *>buffer.buf)
            r.sequence = sequence
            r.source_ns = source_ns
            r.reception_ns = reception_ns if reception_ns else realtime_ns()
            r.sender = sender
            r.relay = relay
            r.tag = tag
            r.key = key
            r.writer_id = writer_id
            r.view_id = view_id
            memcpy(<char *>r + sizeof(log_record), buffer.buf, buffer.len)
            log_commit(&self.state, buffer.len)
            self.note_time(r)
        finally:
            PyBuffer_Release(&buffer)
        log_publish(&self.state)
        cdef int readers[CURSORS_MAX]
        cdef uint32_t i
        for i in range(log_take_armed(&self.state, readers, CURSORS_MAX)):
            end_ring(readers[i])
        return True

    @property
    def said_ns(self):
        """The latest time that the order has said, UTC; 0: none."""
        return u64_load_relaxed(&self.state.header.said_ns) if self.mapping.base != NULL else 0

    @property
    def delivered(self):
        """Messages appended ever."""
        return u64_load_relaxed(&self.state.header.count) if self.mapping.base != NULL else 0

    def figures(self):
        """(messages, bytes, {bucket of LATENCY_LIMITS_NS: messages}) that an engine has delivered, each of a moment."""
        cdef figures_t *f = &self.state.figures
        cdef int i
        return (u64_load_relaxed(&f.messages), u64_load_relaxed(&f.bytes),
                {i: u64_load_relaxed(&f.latencies[i]) for i in range(LATENCY_BUCKETS) if f.latencies[i]})

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

    def sweep_larges(self):
        """Gives up the bytes of large samples that all readers have taken, unless the log keeps history, and those of
        copies of its table that were read. Parked."""
        cdef Cursor cursor
        if self.mapping.base != NULL:
            log_sweep_larges(&self.state)
            for cursor in self.cursors:
                cursor.let_larges_go()

    @property
    def large_bytes(self):
        """Bytes of large samples that the log has."""
        return self.state.large_bytes

    def stop(self):
        """Nothing will be appended any more: readers get what is there, then NodeGone."""
        cdef Cursor cursor
        if self.mapping.base != NULL and self.mapping.fd >= 0:
            u64_store_release(&self.state.header.stopped, 1)
            for cursor in self.cursors:  # who was closed since has no end any more: its number may be another file's
                end_ring(cursor.ring_end)

    def close(self):
        """Frees the memory on this side, and gives up its large samples. Only when no engine delivers into it.
        Idempotent."""
        self.stop()
        log_pop_larges_before(&self.state, <uint64_t>-1)
        if self.state.lasts != NULL and self.state.lasts.kept:
            lasts_clear(self.state.lasts)
        self.mapping.close()
