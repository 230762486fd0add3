"""Both ends of rings with a network between them: one at an application without a node on its host, the other at the
node that it uses.

Why the same rings: writers and readers of an application put into an inbox and take from a log, whoever is behind
these. Here that is a thread of the application's own process (`Bell`, `Outbox`, `ArrivalLog`), which moves messages
between them and a connection. At the node, the relay (`RelayWriter`) writes into an inbox as an application would.

Rules:
- A message keeps its slot in the Outbox until every member has delivered it, and of a logged topic has it on disk: it
  may have to be sent again, to another node. So `consumed` is what needs no slot any more, and never passes
  `acknowledged`.
- The source timestamps that an Outbox hands out strictly increase, and stay with their messages: by them the group
  knows what it has had of a writer. A timestamp that is too small is raised to a nanosecond after the last.
"""
import os

from libc.stdint cimport uint64_t

from spindle_core.atomics cimport (
    fence_store_load,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_release,
)
from spindle_core.bell cimport fall_asleep, wake_up
from spindle_core.delivery cimport DeliveryLog
from spindle_core.hot_path cimport log_refresh_cursors, log_set_blocked
from spindle_core.events cimport c_close, end_clear, end_fd, end_ring, event_ring, event_wait
from spindle_core.inbox cimport Inbox, inbox_t
from spindle_core.inbox_writer cimport InboxWriter
from spindle_core.layout cimport BELL_MAGIC, SLOT_LARGE, bell_page, large_entry, record_stride, slot_header
from spindle_core.memory cimport Mapping
from spindle_core.reader cimport LogReader

from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_CheckSignals


def log_cost(size):
    """Bytes that a message of `size` bytes takes in a delivery log."""
    return record_stride(size)


cdef class Bell:
    """The doorbell of a process that serves its own ports: they ring it as they would a node's.

    Use: doze(); look whether there is work; wait() if there is none; awake().
    """

    def __cinit__(self):
        self.fd = -1

    def __init__(self):
        self.page = Mapping.create("spindle-bell", 4096)
        self.page.seal_writes()
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.bell = <bell_page *>self.page.base
        self.bell.magic = BELL_MAGIC

    def doze(self):
        """From now on the ports ring."""
        fall_asleep(self.bell)

    def awake(self):
        """From now on the ports need not ring."""
        wake_up(self.bell)

    def wait(self, double timeout_s):
        """Blocks until rung, without the GIL."""
        cdef int timeout_ms = <int>(timeout_s * 1000), fd = self.fd
        with nogil:
            event_wait(fd, timeout_ms)
        PyErr_CheckSignals()

    def ring(self):
        """Wakes whoever waits."""
        event_ring(self.fd)

    def end(self):
        """Nobody serves the ports any more."""
        u64_store_release(&self.bell.stopped, 1)

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)


cdef class Outbox(Inbox):
    """The other end of a writer's inbox in the same process: hands out messages, and hears what became of them.

    keep: messages are kept until they are persisted.
    """

    def __init__(self, size_max, slots, writer_id, bint keep=False):
        Inbox.__init__(self, size_max, slots, writer_id)
        self.keep = keep

    def take(self, uint64_t until, Py_ssize_t bytes_max):
        """[(payload, source timestamp, tag, key, number)] of the next messages below index `until`, in their order: at
        least one if there is any, then no more than `bytes_max` bytes. One that names a large sample comes alone, and
        has its number and no payload; the others have the number 0."""
        cdef inbox_t *s = &self.state
        cdef slot_header *h
        # SYNC POINT: commit. Pairs with InboxWriter.publish(): slots before the count.
        cdef uint64_t end = u64_load_acquire(&s.header.committed) if self.ring.base != NULL else 0
        cdef list out = []
        cdef bint large
        cdef Py_ssize_t bytes_taken = 0
        if end > until:
            end = until
        while self.taken < end:
            h = <slot_header *>(s.slots + (self.taken & (s.ring - 1)) * s.stride)
            bytes_taken += h.size
            large = h.kind & SLOT_LARGE != 0
            if out and (large or bytes_taken > bytes_max):
                break
            if h.source_ns <= self.last_ns:
                h.source_ns = self.last_ns + 1
            self.last_ns = h.source_ns
            self.taken += 1
            if large:
                out.append((b"", h.source_ns, h.tag, h.run, (<large_entry *>(<char *>h + sizeof(slot_header))).id))
                break
            payload = PyBytes_FromStringAndSize(<char *>h + sizeof(slot_header), h.size)
            out.append((payload, h.source_ns, h.tag, h.run, 0))
        return out

    def index_after(self, uint64_t last_ns):
        """Index behind the last message that was taken and has this source timestamp or an earlier one."""
        cdef inbox_t *s = &self.state
        cdef uint64_t k = s.consumed
        while (k < self.taken
               and (<slot_header *>(s.slots + (k & (s.ring - 1)) * s.stride)).source_ns <= last_ns):
            k += 1
        return k

    def rewind(self, uint64_t index):
        """Hands out the messages from `index` on again, with the same timestamps. ValueError if they are gone."""
        cdef inbox_t *s = &self.state
        if not s.consumed <= index <= self.taken:
            raise ValueError(f"message {index} isn't here: there are those from {s.consumed} to {self.taken}")
        self.taken = index
        self.last_ns = self.freed_ns
        if index > s.consumed:
            self.last_ns = (<slot_header *>(s.slots + ((index - 1) & (s.ring - 1)) * s.stride)).source_ns

    def settle(self, uint64_t acknowledged, uint64_t persisted):
        """Every member has delivered so many messages, and so many are on disk. ValueError beyond what was taken."""
        cdef inbox_t *s = &self.state
        cdef uint64_t waiting, freed
        if acknowledged > self.taken or persisted > self.taken:
            raise ValueError(f"{max(acknowledged, persisted)} messages are acknowledged, only {self.taken} were sent")
        acknowledged = max(acknowledged, u64_load_relaxed(&s.progress.acknowledged))
        persisted = max(persisted, u64_load_relaxed(&s.progress.persisted))
        u64_store_release(&s.progress.acknowledged, acknowledged)
        u64_store_release(&s.progress.persisted, persisted)
        freed = min(acknowledged, persisted) if self.keep else acknowledged
        if freed > s.consumed:
            self.freed_ns = (<slot_header *>(s.slots + ((freed - 1) & (s.ring - 1)) * s.stride)).source_ns
            s.consumed = freed
            # SYNC POINT: reuse. Pairs with InboxWriter.free_slot(): these slots are done with.
            u64_store_release(&s.progress.consumed, freed)
        # Pairs with the writer's fence between space_waiting and its last look.
        fence_store_load()
        waiting = u64_load_acquire(&s.header.space_waiting)
        if waiting != s.space_rung:
            s.space_rung = waiting
            end_ring(s.ring_end)


cdef class ArrivalLog(DeliveryLog):
    """The log of one reader, whose messages come over a network."""

    @property
    def tail(self):
        """Bytes of the log (as log_cost counts) that have come."""
        return self.state.tail

    def passed(self):
        """Bytes of the log (as log_cost counts) that its reader is done with."""
        log_refresh_cursors(&self.state)
        return self.state.cursors[0].position if self.state.n_cursors else self.state.tail

    def ask_to_ring(self, bint on):
        """A reader that keeps all rings the bell when it has made room."""
        log_set_blocked(&self.state, on)


cdef class ArrivalReader(LogReader):
    """Its reader."""

    def count_lost(self, uint64_t n):
        """So many messages did not come: the node has overtaken its reader there."""
        self.lost += n


cdef class RelayWriter(InboxWriter):
    """A node's own end of the inbox of a writer elsewhere: never waits, and tells what becomes of its messages."""

    def relay(self, messages):
        """Commits messages, each with `payload`, `source_ns`, `tag`, `key` and `large`, and publishes them together.
        large: not 0: in place of a payload, the number of a large sample that was handed over.

        Raises ValueError if their timestamps don't increase or are in the far future where they decide something, or a
        tag has more than 8 bits; WriteTimeout if there is no room, MessageTooLarge.
        """
        cdef uint64_t source_ns
        cdef bytes payload
        try:
            self.usable()
            for one in messages:
                payload, source_ns = one.payload, one.source_ns
                if source_ns <= self.last_ns:
                    raise ValueError(f"source timestamp {source_ns} comes after {self.last_ns}")
                if one.tag > 255:
                    raise ValueError(f"a message can't have the tag {one.tag}; 255 is the largest")
                if one.large:
                    if self.stamped:
                        self.check_stamp(source_ns)
                    self.put_number(one.large, source_ns, 0.0, one.tag, one.key)
                else:
                    self.put(payload, len(payload), source_ns, 0.0, one.tag, one.key)
                self.last_ns = source_ns
        finally:
            self.publish()

    def arm(self):
        """Asks for one ring of the descriptor with the next progress; returns (consumed, acknowledged, persisted)."""
        # SYNC POINT: space. Pairs with inbox_progressed().
        u64_store_release(&self.header.space_waiting, u64_load_relaxed(&self.header.space_waiting) + 1)
        fence_store_load()
        return self.consumed, self.acknowledged, self.persisted

    def fileno(self):
        """What becomes readable after arm()."""
        return end_fd(self.space_end)

    def clear(self):
        """Takes what was rung."""
        end_clear(self.space_end)
