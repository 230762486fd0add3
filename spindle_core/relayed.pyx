"""Of each writer on a host without a node: the source timestamp of its last message that this node has delivered.

Why: when the node that relays for an application dies, the next one must know what the group has had; the survivors
know it (spindle/relay/handover.py). The deliver predicate notes it, so that it is as exact as delivery itself.

Rules: the table belongs to the node, and outlives views and the node's part in topics. It is bounded: in a full bucket
the writer with the oldest timestamp gives way. Changed and read only on the predicate thread, or while that is parked.
"""
from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free


cdef class RelayedTable:
    """The table of one node. Use it while the engine is parked, or no predicate thread runs."""

    def __cinit__(self):
        self.entries = <relayed_t *>calloc(BUCKETS * WAYS, sizeof(relayed_t))
        if self.entries == NULL:
            raise MemoryError

    def until(self, uint64_t writer):
        """Source timestamp of the writer's last message that was noted; 0: none."""
        cdef relayed_t *bucket = bucket_of(self.entries, writer)
        cdef int i
        for i in range(WAYS):
            if bucket[i].writer == writer:
                return bucket[i].source_ns
        return 0

    def note(self, uint64_t writer, uint64_t source_ns):
        """Notes a message that came otherwise than by delivery: as history."""
        relayed_note(self.entries, writer, source_ns)

    def __dealloc__(self):
        free(self.entries)
