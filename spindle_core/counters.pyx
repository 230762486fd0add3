"""Counters of a node in a mapped page.

One u64 each. Only the node writes (the predicate thread its own, the control thread `view_*`), without atomics: an
aligned 8-byte store is whole on every machine we build for, and a reader may see any later value.
"""
from libc.stdint cimport uint64_t

from spindle_core.memory cimport Mapping

COUNTER_NAMES = (
    "pushes", "posts", "posted_bytes", "rings", "sleeps", "laps", "attended_laps", "busy_laps", "busy_ns",
    "lap_ns_max", "nulls", "stalls", "send_batches", "send_messages", "sent_bytes", "receive_batches",
    "receive_messages", "delivery_batches", "delivery_messages", "delivered_bytes", "delivery_blocked",
    "persisted_messages", "refused_messages", "resent_messages", "corrupt_slots", "view_id", "view_changes", "crowded",
)
COUNTER_HELP = {
    "pushes": "times a part of the own row was copied to others",
    "posts": "one-sided writes posted (one per range and peer)",
    "posted_bytes": "bytes of those writes",
    "rings": "doorbells rung (system calls)",
    "sleeps": "times the predicate thread blocked on its doorbell",
    "laps": "passes of the predicate thread over all predicates",
    "attended_laps": "passes of threads that waited for data, while the predicate thread was blocked",
    "busy_laps": "passes that found work",
    "busy_ns": "nanoseconds spent in passes that found work",
    "lap_ns_max": "longest such pass in nanoseconds, without time in which the thread was kept from running",
    "nulls": "null messages sent",
    "stalls": "passes in which a sender had messages but no free slot",
    "send_batches": "pushes of the send predicate with at least one message",
    "send_messages": "messages they carried (nulls not counted)",
    "sent_bytes": "payload bytes they carried",
    "receive_batches": "acknowledgements of the receive predicate",
    "receive_messages": "messages and nulls they acknowledged",
    "delivery_batches": "passes of the deliver predicate that delivered",
    "delivery_messages": "messages delivered (nulls not counted)",
    "delivered_bytes": "payload bytes delivered",
    "delivery_blocked": "passes in which a keep-all reader held delivery back",
    "persisted_messages": "sequence numbers of logged topics that are on disk here",
    "refused_messages": "inbox messages dropped: their header was nonsense, or their timestamp in the far future",
    "resent_messages": "own messages sent again in a new view",
    "corrupt_slots": "passes that met a slot or count that makes no sense (never delivered)",
    "view_id": "id of the installed view",
    "view_changes": "views installed",
    "crowded": "times the predicate thread's core, which it had given away while it had little to do, came back late",
}
assert len(COUNTER_NAMES) == COUNTERS_COUNT and set(COUNTER_HELP) == set(COUNTER_NAMES)


cdef class Counters:
    """The page of counters; `mapping` can be handed to anybody read-only."""

    def __init__(self):
        raise TypeError("use Counters.create() or Counters.attach(fd)")

    @classmethod
    def create(cls):
        """A new page of zeros, sealed against other writers."""
        cdef Mapping m = Mapping.create("spindle-counters", COUNTERS_COUNT * 8)
        m.seal_writes()
        return Counters._over(m)

    @classmethod
    def attach(cls, int fd):
        """A node's page for reading; takes ownership of the descriptor. Raises ValueError, OSError."""
        cdef Mapping m = Mapping.attach(fd)
        if m.size < COUNTERS_COUNT * 8:
            raise ValueError(f"a counter page of {m.size} bytes: {COUNTERS_COUNT * 8} expected")
        return Counters._over(m)

    @staticmethod
    def _over(Mapping m):
        cdef Counters c = Counters.__new__(Counters)
        c.mapping = m
        c.values = <uint64_t *>m.base
        return c

    def snapshot(self):
        """All counters by name. ValueError once closed."""
        if self.values == NULL:
            raise ValueError("these counters are closed")
        return {name: self.values[i] for i, name in enumerate(COUNTER_NAMES)}

    def set(self, str name, uint64_t value):
        """On the node's side. Raises ValueError for an unknown name or once closed, BufferError on a reader's side."""
        self._check_writable()
        self.values[COUNTER_NAMES.index(name)] = value

    def add(self, str name, uint64_t value):
        """As set()."""
        self._check_writable()
        self.values[COUNTER_NAMES.index(name)] += value

    cdef int _check_writable(self) except -1:
        if self.values == NULL:
            raise ValueError("these counters are closed")
        if not self.mapping.writable:
            raise BufferError("these counters belong to a node: they can only be read here")
        return 0

    def close(self):
        """Idempotent. On the node's side only once its engine has stopped."""
        self.values = <uint64_t *>NULL
        self.mapping.close()

    def __len__(self):
        return COUNTERS_COUNT
