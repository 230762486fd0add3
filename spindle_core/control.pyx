"""The control columns and areas of all rows: the membership machine's shared memory. Every column only grows.

push() makes the own ones visible to the others; it is the predicate thread that posts them, under the control lock
(push_control() in step), so that it never posts what is being changed.
"""
import contextlib
import zlib

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.atomics cimport (
    fence_load_load,
    fence_store_load,
    fence_store_store,
    u32_exchange_acquire,
    u32_store_relaxed,
    u32_store_release,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_relaxed,
    u64_store_release,
)
from spindle_core.bell cimport is_asleep
from spindle_core.events cimport event_ring, give_way
from spindle_core.layout cimport (
    PROPOSAL_AREA_SIZE,
    ROW_AREAS_OFFSET,
    TRIM_AREA_SIZE,
    area_header,
    bell_page,
    row_header,
)

CONTROL_COLUMNS = (
    "heartbeat", "proposed", "acked", "committed", "prepared", "wedged", "trimmed", "trim_echoed", "installed",
    "leaving",
    "suspected0", "suspected1", "suspected2", "suspected3",
)
COLUMN_AT = {name: at for at, name in enumerate(CONTROL_COLUMNS)}
AREAS = {
    "proposal": (ROW_AREAS_OFFSET, PROPOSAL_AREA_SIZE - sizeof(area_header)),
    "trim": (ROW_AREAS_OFFSET + PROPOSAL_AREA_SIZE, TRIM_AREA_SIZE - sizeof(area_header)),
}
MAX_BETWEEN_BEATS_NS = 60_000_000_000


cdef class ControlRows:
    """The rows of one epoch as the control thread sees them."""

    cdef row_header *header(self, rank) except NULL:
        if self.closed:
            raise ValueError("this epoch is closed")
        if not 0 <= rank < self.node.n_rows or self.node.rows[<uint32_t>rank] == NULL:
            raise ValueError(f"rank {rank} is not attached")
        return <row_header *>self.node.rows[<uint32_t>rank]

    def get(self, rank, str column):
        """A control column of any row."""
        return u64_load_acquire(&self.header(rank).control[<int>COLUMN_AT[column]])

    def set(self, str column, value):
        """Raises a control column of the own row; ValueError if it would shrink. Visible to others after push()."""
        cdef row_header *h = self.header(self.my_rank)
        cdef int i = COLUMN_AT[column]
        if value < h.control[i]:
            raise ValueError(f"column {column} only grows: {h.control[i]} -> {value}")
        u64_store_release(&h.control[i], value)

    cdef void hold_control(self) noexcept:
        """Keeps the predicate thread from posting what is being changed. To be held for stores only."""
        cdef int times = 0
        # SYNC POINT: control lock. Pairs with push_control() in step, which holds it while it posts.
        with nogil:
            while u32_exchange_acquire(&self.node.control_lock, 1):
                give_way(&times)

    @contextlib.contextmanager
    def control_held(self):
        """For tests: as if the control thread were in the middle of a change."""
        self.hold_control()
        try:
            yield
        finally:
            u32_store_release(&self.node.control_lock, 0)

    def vouch(self, between_ns, beats_max):
        """For the control thread: a sign of life. Whoever evaluates predicates raises the own heartbeat from now on
        every `between_ns` ns (and posts it where rows are copied), at most `beats_max` times after the last sign."""
        if not 0 < between_ns <= MAX_BETWEEN_BEATS_NS or not 0 < beats_max < 1 << 32:
            raise ValueError(f"a heartbeat every {between_ns} ns, {beats_max} at most: must be 1 to "
                             f"{MAX_BETWEEN_BEATS_NS} ns, and 1 at least")
        cdef bint first = self.node.beat_ns == 0
        self.node.beat_posted = self.fabric.copies
        u32_store_relaxed(&self.node.beats_max, beats_max)
        u32_store_release(&self.node.vouched, self.node.vouched + 1)
        u64_store_release(&self.node.beat_ns, between_ns)
        if first:                # the predicate thread may be asleep without a time to wake up at
            fence_store_load()
            if is_asleep(<bell_page *>self.bell.base):
                event_ring(self.bell_fd)

    def push(self):
        """Makes the own control columns and areas visible to all: the predicate thread posts them."""
        cdef row_header *h = self.header(self.my_rank)
        self.hold_control()
        # SYNC POINT: control. Pairs with control() in step: columns and areas before the version.
        u64_store_release(&h.control_version, h.control_version + 1)
        u32_store_release(&self.node.control_lock, 0)
        fence_store_load()
        if is_asleep(<bell_page *>self.bell.base):
            event_ring(self.bell_fd)

    def write_area(self, str area, bytes data):
        """Replaces the bytes of an area of the own row, guarded by version, length and CRC. ValueError if too long."""
        offset, room = AREAS[area]
        cdef area_header *h = <area_header *>(<char *>self.header(self.my_rank) + <uint64_t>offset)
        cdef const char *source = data
        cdef uint64_t length = len(data)
        cdef uint32_t crc
        if length > <uint64_t>room:
            raise ValueError(f"{len(data)} bytes for the {area} area: {room} at most (fewer topics or nodes)")
        crc = zlib.crc32(data)
        self.hold_control()
        u64_store_relaxed(&h.version, h.version + 1)
        fence_store_store()
        u32_store_relaxed(&h.size, <uint32_t>length)
        h.crc = crc
        memcpy(<char *>h + sizeof(area_header), source, length)
        u64_store_release(&h.version, h.version + 1)
        u32_store_release(&self.node.control_lock, 0)

    def read_area(self, rank, str area):
        """The bytes of an area of any row; b"" if never written. ValueError while it is torn: look again later."""
        offset, room = AREAS[area]
        cdef area_header *h = <area_header *>(<char *>self.header(rank) + <uint64_t>offset)
        cdef uint64_t version = u64_load_acquire(&h.version)
        cdef uint32_t size = h.size, crc = h.crc
        if version == 0:
            return b""
        if version & 1 or size > room:
            raise ValueError(f"the {area} area of rank {rank} is being written")
        data = (<char *>h + sizeof(area_header))[:size]
        fence_load_load()
        if u64_load_relaxed(&h.version) != version or zlib.crc32(data) != crc:
            raise ValueError(f"the {area} area of rank {rank} is torn")
        return data

    def row_identity(self, rank):
        """(node id, incarnation, epoch) that the row itself says."""
        cdef row_header *h = self.header(rank)
        return h.node_id, h.incarnation, h.epoch
