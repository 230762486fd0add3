"""Inboxes: how an application hands messages to its node. The node's side; the application's is in inbox_writer.pyx.

One ring of slots per writer: one producer (the application), one consumer (the send predicate), so that no lock is
shared between processes and an application that dies, stalls or lies in the middle of a message costs nobody
anything. The price is one copy from the inbox into the node's own ring, made while the message is hot in the cache.

Rules: the node reads every field of the application's memory once, into a local, and checks it there; a slot's
header that makes no sense is counted as refused and skipped. Messages keep the order of their commits.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

from spindle_core.atomics cimport u64_load_acquire, u64_load_relaxed
from spindle_core.doorbell cimport Doorbell
from spindle_core.layout cimport (
    INBOX_MAGIC,
    INBOX_SLOTS_OFFSET,
    MESSAGE_SIZE_MAX,
    WINDOW_MAX,
    inbox_header,
    inbox_progress,
    large_entry,
    ring_slots,
    slot_stride,
)
from spindle_core.memory cimport Mapping

from cpython.bytes cimport PyBytes_AS_STRING


cdef class Inbox(Doorbell):
    """The node's side of one writer's ring: `slots` messages of up to `size_max` bytes.

    `relay`: of a writer on a host without a node. `within`: see Doorbell. Raises ValueError outside
    1..MESSAGE_SIZE_MAX bytes, 1..WINDOW_MAX slots, 0..65535 writer_id.
    """

    def __init__(self, size_max, slots, writer_id, uint32_t relay=0, bint within=False):
        if not 1 <= size_max <= MESSAGE_SIZE_MAX:
            raise ValueError(f"size_max {size_max}: must be between 1 and {MESSAGE_SIZE_MAX} bytes")
        if not 1 <= slots <= WINDOW_MAX:
            raise ValueError(f"{slots} inbox slots: must be between 1 and {WINDOW_MAX}")
        if not 0 <= writer_id <= 65535:
            raise ValueError(f"writer_id {writer_id}: must be between 0 and 65535")
        cdef uint64_t stride = slot_stride(size_max)
        cdef inbox_t *s = &self.state
        self.ring = Mapping.create("spindle-inbox", INBOX_SLOTS_OFFSET + stride * ring_slots(slots))
        self.progress = Mapping.create("spindle-inbox-progress", 4096)
        self.progress.seal_writes()
        Doorbell.__init__(self, within)
        memset(s, 0, sizeof(inbox_t))
        s.header = <inbox_header *>self.ring.base
        s.slots = self.ring.base + INBOX_SLOTS_OFFSET
        s.progress = <inbox_progress *>self.progress.base
        s.size_max = size_max
        s.n_slots = slots
        s.ring = ring_slots(slots)
        s.stride = stride
        s.ring_end = self.ring_end
        s.writer_id = writer_id
        s.relay = relay
        s.progress.size_max = size_max
        s.progress.slots = slots
        s.progress.writer_id = writer_id
        s.header.magic = INBOX_MAGIC
        s.progress.magic = INBOX_MAGIC

    cdef inbox_t *pointer(self) noexcept:
        return &self.state

    @property
    def writer_id(self):
        return self.state.writer_id

    @property
    def committed(self):
        """What the application says it has committed, if its ring can hold that: of an inbox that claims more, nothing
        is taken."""
        cdef uint64_t n = self.state.until
        if not self.state.ended:
            n = u64_load_acquire(&self.state.header.committed) if self.ring.base != NULL else 0
        return n if n - self.state.consumed <= self.state.n_slots else self.state.consumed

    def finish(self, uint8_t farewell=0):
        """Takes what is committed by now and nothing later, whatever the application says from here on; returns how
        many messages that makes, all told. Once. While the predicate thread is parked.

        farewell: unless it is 0, a message without payload and with this tag follows, which is not counted.
        """
        self.state.until = self.committed
        self.state.ended = True
        self.state.aside_tag = 0
        self.state.farewell_tag = farewell
        self.state.farewell = FAREWELL_DUE if farewell else FAREWELL_NONE
        return self.state.until

    def say(self, uint8_t tag, uint64_t source_ns=0):
        """A message without payload and with this tag (not 0) goes in the writer's name, behind what it has committed
        by now, and before the next. The last one said goes, of those that did not go yet. While the predicate thread
        is parked. source_ns: its source timestamp; 0: none."""
        if not self.state.ended:
            self.state.aside_tag = tag
            self.state.aside_at = self.committed
            self.state.aside_ns = source_ns

    def take_charge(self, uint64_t token, bytes entry not None):
        """A large sample that the writer has handed over, and names by this number (not 0) in a slot to come. False
        where as many wait as there may be. While the predicate thread is parked."""
        cdef int i
        if len(entry) != sizeof(large_entry) or token == 0:
            raise ValueError("a large sample is handed over with its entry, under a number that is not 0")
        for i in range(LARGES_OF_INBOX):
            if self.state.larges[i].token == 0:
                self.state.larges[i].token = token
                memcpy(&self.state.larges[i].entry, PyBytes_AS_STRING(entry), sizeof(large_entry))
                return True
        return False

    @property
    def larges_waiting(self):
        """Ids of the large samples that the writer has handed over, and that were not taken over yet."""
        return [self.state.larges[i].entry.id for i in range(LARGES_OF_INBOX) if self.state.larges[i].token]

    @property
    def signs_of_life(self):
        """Changes when the application has committed something, or says that it lives."""
        if self.ring.base == NULL:
            return 0, 0
        return u64_load_relaxed(&self.state.header.committed), u64_load_relaxed(&self.state.header.signs)

    @property
    def is_finished(self):
        """After finish(): every member has delivered all of it."""
        cdef inbox_t *s = &self.state
        return s.ended and self.acknowledged >= s.until and s.farewell in (FAREWELL_NONE, FAREWELL_DELIVERED)

    @property
    def consumed(self):
        """Messages taken over into the node's ring."""
        return self.state.consumed

    @property
    def acknowledged(self):
        """Messages that every member has delivered."""
        return u64_load_relaxed(&self.state.progress.acknowledged) if self.progress.base != NULL else 0

    @property
    def persisted(self):
        """Messages that every member has on disk (logged topics)."""
        return u64_load_relaxed(&self.state.progress.persisted) if self.progress.base != NULL else 0

    @property
    def refused(self):
        return u64_load_relaxed(&self.state.progress.refused) if self.progress.base != NULL else 0

    def close(self):
        """Frees the memory. Only after Engine.remove_inbox. Idempotent."""
        self.hang_up()
        self.ring.close()
        self.progress.close()
