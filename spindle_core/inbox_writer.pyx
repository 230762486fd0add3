"""The application's side of an inbox (inbox.pyx): it fills slots, commits them, and waits for room.

Rules: for one thread at a time, except while it waits. The node's progress is read only; a writer whose node is gone
says so, and keeps what was not acknowledged.
"""
import threading
import time

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.atomics cimport (
    fence_store_load,
    realtime_ns,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_relaxed,
    u64_store_release,
)
from spindle_core.bell cimport is_asleep, ring_once
from spindle_core.events cimport c_close, end_fd, end_wait, end_wake, sched_yield
from spindle_core.large cimport LARGES_OF_INBOX
from spindle_core.layout cimport (
    BELL_MAGIC,
    INBOX_MAGIC,
    INBOX_SLOTS_OFFSET,
    LARGE_SAMPLE_MAX,
    MESSAGE_SIZE_MAX,
    SLOT_DATA,
    SLOT_LARGE,
    WINDOW_MAX,
    bell_page,
    inbox_header,
    inbox_progress,
    large_entry,
    ring_slots,
    slot_header,
    slot_stride,
)
from spindle_core.memory cimport Mapping, forks
from spindle_core.timing cimport AHEAD_MAX_S, is_far_ahead

from spindle_core.ends import end_of
from spindle_core.errors import ForkedChild, MessageTooLarge, NodeGone, WriteTimeout

from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.exc cimport PyErr_CheckSignals
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize, PyBytes_GET_SIZE

cdef int YIELDS = 8  # a full ring is usually drained within microseconds: give the core away before sleeping


cdef class InboxWriter:
    """The application's side: claim, fill, commit; or write, which is all three.

    For one thread at a time (the GIL is held except while waiting; callers that share one writer between threads
    hold a lock around it). Takes ownership of the mappings and descriptors. keep_unacknowledged: a slot is used again
    only when every member has delivered its message, so that `unacknowledged()` has them all if the node dies.
    stamped: source timestamps decide something in this topic; those in the far future raise ValueError here, as the
    node would refuse the message.

    beside: attribute; who takes samples that are larger than a slot: make(size, timeout_s) -> Mapping of at least so
    many bytes, to be filled; hand_over(mapping) -> the number by which the node knows it then, after which nobody can
    change it, though views of it stay valid; drop(mapping), of one that is not handed over, whose views stay valid,
    too; bytes_of(number) -> what was handed over, None if it isn't known any more. Their errors propagate. None: there
    are no such samples.
    """

    def __cinit__(self):
        self.space_end = -1
        self.bell_fd = -1

    def __init__(self, Mapping ring not None, Mapping progress not None, int space_fd, Mapping bell not None,
                 int bell_fd, bint keep_unacknowledged=False, bint stamped=False):
        self.space_end = space_fd  # owned, whatever comes
        self.bell_fd = bell_fd
        self.space_end = end_of(space_fd)
        self.ring = ring
        self.progress = progress
        self.bell = bell
        self.forks = forks
        self.stamped = stamped
        if ring.base == NULL or progress.base == NULL or bell.base == NULL or not ring.writable:
            raise ValueError("an inbox needs its ring writable, and its progress and the doorbell open")
        self.header = <inbox_header *>ring.base
        self.seen = <inbox_progress *>progress.base
        self.node_bell = <bell_page *>bell.base
        if self.header.magic != INBOX_MAGIC or self.seen.magic != INBOX_MAGIC or self.node_bell.magic != BELL_MAGIC:
            raise ValueError("these mappings are not an inbox of this version")
        self.size_max = self.seen.size_max
        self.slots_count = self.seen.slots
        self.stride = slot_stride(self.size_max)
        if (not 1 <= self.size_max <= MESSAGE_SIZE_MAX or not 1 <= self.slots_count <= WINDOW_MAX
                or ring.size < INBOX_SLOTS_OFFSET + self.stride * ring_slots(self.slots_count)):
            raise ValueError("the inbox is smaller than its geometry says")
        self.mask = ring_slots(self.slots_count) - 1
        self.slots = ring.base + INBOX_SLOTS_OFFSET
        self.ring_view = memoryview(ring)
        self.next = u64_load_relaxed(&self.header.committed)
        self.freed = &self.seen.acknowledged if keep_unacknowledged else &self.seen.consumed
        self.turn = threading.Condition()
        self.limit = u64_load_acquire(self.freed) + self.slots_count

    cdef int alive(self) except -1:
        if self.forks != forks:
            raise ForkedChild("this writer was opened before fork(), in the parent, and doesn't work in the child:"
                              " attach again there (with multiprocessing, prefer the start method 'spawn')")
        if self.closed:
            raise ValueError("this writer is closed")
        if self.gone or u64_load_relaxed(&self.node_bell.stopped):
            self.gone = True
            raise NodeGone("the node behind this writer has stopped: attach again once a daemon runs")
        return 0

    cdef int usable(self) except -1:
        self.alive()
        if self.claimed:
            raise ValueError("a claim is open: commit or abort it first")
        return 0

    cdef char *free_slot(self, double timeout_s) except NULL:
        # A loop, because another thread of the application may write while this one waits without the GIL.
        while self.next >= self.limit:
            # SYNC POINT: reuse. Pairs with the send predicate's release of `consumed`: it is done with the slot.
            # (`acknowledged`, where `freed` is that, never passes `consumed`.)
            self.limit = u64_load_acquire(self.freed) + self.slots_count
            if self.next < self.limit:
                break
            if not self.await_progress(self.next - self.slots_count + 1, timeout_s):
                raise WriteTimeout(
                    f"no free slot within {timeout_s:g} s: all {self.slots_count} are waiting for the group"
                    " (a reader that keeps all and doesn't take holds its writers back)")
        return self.slots + (self.next & self.mask) * self.stride

    cdef int await_progress(self, uint64_t until, double timeout_s) except -1:
        """Waits until so many slots have been freed; 1 when it has, 0 on timeout. The GIL is released."""
        cdef double deadline = time.monotonic() + timeout_s if timeout_s >= 0 else 0.0
        cdef double left_s = -1.0
        cdef uint64_t wakes
        cdef int _
        cdef inbox_header *header = self.header
        cdef uint64_t *freed = self.freed
        cdef bell_page *node_bell = self.node_bell
        for _ in range(YIELDS):
            if u64_load_acquire(freed) >= until:
                return 1
            if timeout_s == 0:
                return 0
            with nogil:
                sched_yield()
        while True:
            wakes = self.wakes
            # SYNC POINT: space. Pairs with inbox_progressed(): it looks at space_waiting after it raised consumed.
            u64_store_release(&header.space_waiting, u64_load_relaxed(&header.space_waiting) + 1)
            fence_store_load()
            if u64_load_acquire(freed) >= until:
                return 1
            if self.gone or self.closed or u64_load_relaxed(&node_bell.stopped):
                self.gone = True
                raise NodeGone("the node behind this writer has stopped: attach again once a daemon runs")
            if timeout_s >= 0:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return 0
            self.rest(wakes, left_s)

    cdef int rest(self, uint64_t wakes, double left_s) except -1:
        """Blocks until something may have changed since `wakes` was read, a second at most.

        A ring wakes one thread. When several wait, one for a slot and others for acknowledgements, the first waits for
        the ring and tells the others. What is read and set here between two releases of the GIL is one step.
        """
        cdef int timeout_ms = 1000, space_end = self.space_end
        if self.wakes != wakes:
            return 0
        if left_s >= 0:
            timeout_ms = min(timeout_ms, <int>(left_s * 1000) + 1)
        ring_once(self.node_bell, self.bell_fd, &self.rung)
        if not self.polling:
            self.polling = True
            with nogil:
                end_wait(space_end, timeout_ms)
            self.polling = False
            self.wakes += 1
            if self.followers:
                with self.turn:
                    self.turn.notify_all()
            PyErr_CheckSignals()
            return 0
        self.followers += 1
        try:
            with self.turn:
                # If the polling thread came back since, it looked for followers before this one had counted itself.
                if self.wakes == wakes:
                    self.turn.wait(timeout_ms / 1000.0)
        finally:
            self.followers -= 1
        return 0

    cdef void publish(self) noexcept:
        if self.forks != forks:
            return               # the ring is the parent's
        # SYNC POINT: commit. Pairs with the send predicate's acquire of `committed`: slots before the count.
        cdef publish_fn publish_for = self.publish_for
        cdef void *driver = self.driver
        cdef object _kept = self.engine       # another thread may close this writer meanwhile
        u64_store_release(&self.header.committed, self.next)
        fence_store_load()
        if publish_for == NULL:
            ring_once(self.node_bell, self.bell_fd, &self.rung)
        elif is_asleep(self.node_bell):
            with nogil:
                publish_for(driver)

    cdef int check_large(self, uint64_t size) except -1:
        """MessageTooLarge for a message that goes neither into a slot nor beside it."""
        if self.beside is None or self.size_max < sizeof(large_entry):
            raise MessageTooLarge(f"a message of {size} bytes: this topic's size_max is {self.size_max} bytes")
        if size > LARGE_SAMPLE_MAX:
            raise MessageTooLarge(f"a message of {size} bytes: {LARGE_SAMPLE_MAX} bytes are the most of any message")
        return 0

    cdef int free_large(self, double timeout_s) except -1:
        """Waits until the inbox has a place for one more large sample: it has fewer of these than slots."""
        cdef uint64_t until = self.larges[self.n_larges % LARGES_OF_INBOX]
        if u64_load_acquire(self.freed) >= until:
            return 0
        self.publish()           # as in put_large()
        if not self.await_progress(until, timeout_s):
            raise WriteTimeout(
                f"no place for a large sample within {timeout_s:g} s: {LARGES_OF_INBOX} of this writer are waiting for"
                " the group (a reader that keeps all and doesn't take holds its writers back)")
        return 0

    cdef int put_large(self, const char *data, uint64_t size, uint64_t timestamp_ns, double timeout_s,
                       uint8_t tag, uint64_t key) except -1:
        """One message whose bytes go beside the order: one copy, and its entry in a slot."""
        cdef Mapping memory
        self.check_large(size)
        if self.stamped:
            self.check_stamp(timestamp_ns)
        if self.next >= self.limit:
            self.publish()       # what write_many() has put before: it may be what has to be delivered first
        self.free_slot(timeout_s)
        self.free_large(timeout_s)
        memory = self.beside.make(size, timeout_s)
        try:
            with nogil:
                memcpy(memory.base, data, size)
            return self.put_entry(memory, timestamp_ns, timeout_s, tag, key)
        except BaseException:
            self.beside.drop(memory)
            raise

    cdef int put_entry(self, Mapping memory, uint64_t timestamp_ns, double timeout_s, uint8_t tag,
                       uint64_t key) except -1:
        """Fills a slot with the entry of a large sample, which the node takes."""
        self.free_slot(timeout_s)    # first: what is handed over can't be taken back
        return self.put_number(self.beside.hand_over(memory), timestamp_ns, timeout_s, tag, key)

    cdef int put_number(self, uint64_t number, uint64_t timestamp_ns, double timeout_s, uint8_t tag,
                        uint64_t key) except -1:
        """The same, of one that was handed over by this number."""
        cdef slot_header *h = <slot_header *>self.free_slot(timeout_s)
        h.index = self.next
        h.size = sizeof(large_entry)
        h.kind = SLOT_DATA | SLOT_LARGE
        h.tag = tag
        h.run = key
        h.source_ns = timestamp_ns
        (<large_entry *>(<char *>h + sizeof(slot_header))).id = number
        self.next += 1
        self.larges[self.n_larges % LARGES_OF_INBOX] = self.next
        self.n_larges += 1
        return 0

    cdef int check_stamp(self, uint64_t timestamp_ns) except -1:
        cdef uint64_t now_ns = realtime_ns()
        if is_far_ahead(timestamp_ns, now_ns):
            raise ValueError(f"source timestamp {timestamp_ns} is {(timestamp_ns - now_ns) / 1e9:.1f} s in the future:"
                             f" in this topic, where they decide what is the latest, {AHEAD_MAX_S} s are the most")
        return 0

    cdef int put(self, const char *data, uint64_t size, uint64_t timestamp_ns, double timeout_s,
                 uint8_t tag=0, uint64_t key=0) except -1:
        cdef char *slot
        cdef slot_header *h
        if size > self.size_max:
            return self.put_large(data, size, timestamp_ns, timeout_s, tag, key)
        if self.stamped:
            self.check_stamp(timestamp_ns)
        slot = self.free_slot(timeout_s)
        h = <slot_header *>slot
        h.index = self.next
        h.size = <uint32_t>size
        h.kind = SLOT_DATA
        h.tag = tag
        h.run = key
        h.source_ns = timestamp_ns
        memcpy(slot + sizeof(slot_header), data, size)
        self.next += 1
        return 0

    def write(self, data, uint64_t timestamp_ns=0, double timeout_s=-1.0, uint8_t tag=0, uint64_t key=0):
        """Copies one message in and commits it. `timestamp_ns` 0 = now (UTC); readers find `tag` in its info, and `key`
        where the topic has keys.

        Raises MessageTooLarge, WriteTimeout (nothing was written), NodeGone, TypeError without a buffer.
        """
        cdef Py_buffer buffer
        self.usable()
        if timestamp_ns == 0:
            timestamp_ns = realtime_ns()
        if PyBytes_CheckExact(data):
            self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), timestamp_ns, timeout_s, tag, key)
        else:
            PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
            try:
                self.put(<const char *>buffer.buf, buffer.len, timestamp_ns, timeout_s, tag, key)
            finally:
                PyBuffer_Release(&buffer)
        self.publish()

    def write_many(self, buffers, uint64_t timestamp_ns=0, double timeout_s=-1.0, bint keyed=False):
        """Copies many messages in, publishing whenever the ring is full and at the end; returns how many. `keyed`: they
        are pairs of a message and its key.

        On an error the messages before it are published and counted in the exception's `written` attribute.
        """
        cdef Py_buffer buffer
        cdef uint64_t first = self.next, key = 0
        if timestamp_ns == 0:
            timestamp_ns = realtime_ns()
        try:
            self.usable()
            for data in buffers:
                if keyed:
                    data, key = data
                if self.gone:
                    self.alive()   # the node died while the caller made the next message: nobody takes it
                if self.next >= self.limit:
                    self.publish()
                if PyBytes_CheckExact(data):
                    self.put(PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), timestamp_ns, timeout_s, 0, key)
                else:
                    PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
                    try:
                        self.put(<const char *>buffer.buf, buffer.len, timestamp_ns, timeout_s, 0, key)
                    finally:
                        PyBuffer_Release(&buffer)
        except BaseException as e:
            self.publish()
            e.written = self.next - first
            raise
        self.publish()
        return self.next - first

    def write_array(self, data, uint64_t item_size, uint64_t timestamp_ns=0, double timeout_s=-1.0,
                    const uint64_t[::1] keys=None):
        """Writes a contiguous buffer of records of `item_size` bytes, one message each; returns how many. `keys`: one
        of each record.

        Raises ValueError unless the buffer holds whole records, as many as keys; otherwise as write_many.
        """
        cdef Py_buffer buffer
        cdef uint64_t first = self.next, i, n
        if timestamp_ns == 0:
            timestamp_ns = realtime_ns()
        PyObject_GetBuffer(data, &buffer, PyBUF_SIMPLE)
        try:
            self.usable()
            if item_size == 0 or buffer.len % item_size:
                raise ValueError(f"a buffer of {buffer.len} bytes doesn't hold whole records of {item_size} bytes")
            n = buffer.len // item_size
            if keys is not None and <uint64_t>keys.shape[0] != n:
                raise ValueError(f"{keys.shape[0]} keys for {n} records")
            for i in range(n):
                if self.next >= self.limit:
                    self.publish()
                self.put(<const char *>buffer.buf + i * item_size, item_size, timestamp_ns, timeout_s, 0,
                         keys[i] if keys is not None else 0)
        except BaseException as e:
            e.written = self.next - first
            raise
        finally:
            PyBuffer_Release(&buffer)
            self.publish()
        return self.next - first

    def claim(self, size, double timeout_s=-1.0):
        """A writable view of `size` bytes in the next slot, to be filled in place and then committed.

        commit() and abort() release it; views made from it (of NumPy, say) must not be used any more then. Of more
        than a slot has it is memory of its own: views of it stay valid, and what is written through them later goes
        nowhere. Raises as write.
        """
        cdef char *slot
        cdef Py_ssize_t at
        self.usable()
        if size < 0:
            raise ValueError(f"a claim of {size} bytes: must not be negative")
        if size > self.size_max:
            self.check_large(size)
            self.free_slot(timeout_s)
            self.free_large(timeout_s)
            self.claimed_large = self.beside.make(size, timeout_s)
            self.claimed = True
            self.large_size, self.large_timeout_s = size, timeout_s
            self.claim_view = memoryview(self.claimed_large)[:<Py_ssize_t>size]
            return self.claim_view
        slot = self.free_slot(timeout_s)
        (<slot_header *>slot).size = <uint32_t>size
        self.claimed = True
        # A slice of a view of the mapping: it keeps that mapped, whatever becomes of this writer.
        at = slot - self.ring.base + sizeof(slot_header)
        self.claim_view = self.ring_view[at:at + <Py_ssize_t>size]
        return self.claim_view

    def commit(self, size=None, uint64_t timestamp_ns=0, uint64_t key=0):
        """Publishes the open claim; `size` may be smaller than claimed. ValueError without one."""
        cdef slot_header *h
        if not self.claimed:
            raise ValueError("no claim is open")
        if self.stamped and timestamp_ns:
            self.check_stamp(timestamp_ns)
        if self.claimed_large is not None:
            self.commit_large(size, timestamp_ns if timestamp_ns else realtime_ns(), key)
            return
        h = <slot_header *>(self.slots + (self.next & self.mask) * self.stride)
        if size is not None:
            if not 0 <= size <= h.size:
                raise ValueError(f"commit of {size} bytes: {h.size} were claimed")
            h.size = <uint32_t>size
        self.abort()
        self.usable()
        h.index = self.next
        h.kind = SLOT_DATA
        h.tag = 0
        h.run = key
        h.source_ns = timestamp_ns if timestamp_ns else realtime_ns()
        self.next += 1
        self.publish()

    cdef int commit_large(self, object size, uint64_t timestamp_ns, uint64_t key) except -1:
        """Hands over the open claim of a large sample. Views of it that are still in use see what was sent, and what
        is written through them nobody sees. One that is smaller than claimed is copied."""
        cdef Mapping memory = self.claimed_large
        cdef uint64_t used = self.large_size if size is None else size
        cdef uint64_t claimed = self.large_size
        if used > claimed:
            raise ValueError(f"commit of {used} bytes: {claimed} were claimed")
        self.claimed_large = None
        self.abort()
        try:
            self.usable()
            if used < claimed:
                self.beside.drop(memory)     # first: the copy may need its room. What is in it stays.
            if used <= self.size_max:
                self.put(memory.base, used, timestamp_ns, self.large_timeout_s, 0, key)
            elif used < claimed:
                self.put_large(memory.base, used, timestamp_ns, self.large_timeout_s, 0, key)
            else:
                self.put_entry(memory, timestamp_ns, self.large_timeout_s, 0, key)
        except BaseException:
            self.beside.drop(memory)
            raise
        self.publish()
        return 0

    def abort(self):
        """Gives the open claim back unused. Nothing happens without one."""
        view, self.claim_view = self.claim_view, None
        large, self.claimed_large = self.claimed_large, None
        self.claimed = False
        # Of a large sample nothing is released: NumPy uses memory of views that were, and this would be gone.
        if view is not None and not self.large_size:
            try:
                view.release()
            except BufferError:
                pass   # somebody made views of it: they stay mapped, and see what comes next in this slot
        self.large_size = 0
        if large is not None:
            self.beside.drop(large)

    def wait_acknowledged(self, double timeout_s, bint persisted=False):
        """True once every member has delivered (`persisted`: has on disk) all that was committed so far; False on
        timeout. Raises NodeGone."""
        cdef uint64_t until = self.next
        cdef double deadline = time.monotonic() + timeout_s if timeout_s >= 0 else 0.0
        cdef double left_s = -1.0
        cdef uint64_t wakes
        cdef uint64_t *place = &self.seen.persisted if persisted else &self.seen.acknowledged
        cdef inbox_header *header = self.header
        while True:
            wakes = self.wakes
            if self.forks == forks and u64_load_acquire(place) >= until:
                return True
            self.alive()
            # SYNC POINT: space. Pairs with inbox_progressed().
            u64_store_release(&header.space_waiting, u64_load_relaxed(&header.space_waiting) + 1)
            fence_store_load()
            if u64_load_acquire(place) >= until:
                return True
            if timeout_s >= 0:
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    return False
            self.rest(wakes, left_s)

    @property
    def writer_id(self):
        """Number of this writer on its node, as in the info of its messages."""
        return self.seen.writer_id if self.progress.base != NULL else 0

    @property
    def committed(self):
        """Messages committed by this writer."""
        return self.next

    @property
    def consumed(self):
        return u64_load_acquire(&self.seen.consumed) if self.progress.base != NULL else self.next

    @property
    def acknowledged(self):
        """Messages that every member has delivered."""
        return u64_load_acquire(&self.seen.acknowledged) if self.progress.base != NULL else 0

    @property
    def persisted(self):
        return u64_load_acquire(&self.seen.persisted) if self.progress.base != NULL else 0

    @property
    def refused(self):
        return u64_load_acquire(&self.seen.refused) if self.progress.base != NULL else 0

    @property
    def is_gone(self):
        return self.gone or u64_load_relaxed(&self.node_bell.stopped) != 0

    def unacknowledged(self):
        """What was committed and not yet delivered by every member, as far as the node has said: a list of (index,
        source timestamp, payload, tag). The payload is None where its slot was used again (never, if they are kept).

        Once the node is gone nobody can say whether these were delivered to the others.
        """
        cdef uint64_t first = self.acknowledged, k
        cdef slot_header *h
        cdef list out = []
        if self.ring.base == NULL or self.progress.base == NULL:
            return out
        for k in range(first, self.next):
            h = <slot_header *>(self.slots + (k & self.mask) * self.stride)
            if h.index != k or (self.claimed and k + self.mask + 1 == self.next):
                out.append((k, 0, None, 0))
            elif h.kind & SLOT_LARGE:
                payload = self.beside.bytes_of((<large_entry *>(<char *>h + sizeof(slot_header))).id)
                out.append((k, h.source_ns, payload, h.tag))
            else:
                out.append((k, h.source_ns, PyBytes_FromStringAndSize(<char *>h + sizeof(slot_header), h.size), h.tag))
        return out

    def give_sign_of_life(self):
        """Tells the node, if it watches this writer, that its application lives and has nothing to say."""
        if self.forks == forks and not self.closed:
            u64_store_relaxed(&self.header.signs, u64_load_relaxed(&self.header.signs) + 1)

    def mark_gone(self):
        """The node died: waiting calls wake up and fail with NodeGone, later ones fail at once."""
        self.gone = True
        if self.forks == forks:
            end_wake(self.space_end)

    def close(self):
        """Idempotent. An open claim is dropped, what was committed stays with the node."""
        if self.closed:
            return
        self.abort()
        self.closed = True
        self.gone = True
        self.publish_for, self.driver, self.engine = NULL, NULL, None
        if self.forks == forks:
            end_wake(self.space_end)

    def __dealloc__(self):
        # Not in close(): another thread may still wait on them.
        if self.space_end >= 0:
            c_close(end_fd(self.space_end))
        if self.bell_fd >= 0:
            c_close(self.bell_fd)
