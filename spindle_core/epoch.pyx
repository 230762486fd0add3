"""One epoch of a node: its row, its peers' rows, its subgroups. All memory of a view is made here, and goes with it.

An epoch is prepared while the one before still carries traffic: new_epoch makes the own row, attach_peer maps the
others', Engine.install switches over. A peer that still writes into an old row can only hurt that dead epoch.

The control columns are the membership machine's shared memory: every one only grows. push() makes changes visible to
the others; it is the predicate thread that posts them.
"""
import contextlib
import os
import zlib

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from spindle_core.atomics cimport (
    fence_load_load,
    fence_store_load,
    fence_store_store,
    u32_exchange_acquire,
    u32_load_relaxed,
    u32_store_relaxed,
    u32_store_release,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_relaxed,
    u64_store_release,
)
from spindle_core.events cimport event_ring, sched_yield
from spindle_core.fabric.fabric cimport LANES_FIXED, Fabric
from spindle_core.fabric.mixed cimport MixedFabric
from spindle_core.fabric.shm cimport ShmFabric
from spindle_core.layout cimport (
    CACHE_LINE,
    LAYOUT_VERSION,
    MESSAGE_SIZE_MAX,
    NODES_MAX,
    PROPOSAL_AREA_SIZE,
    ROW_AREAS_OFFSET,
    ROW_MAGIC,
    ROW_SUBGROUPS_OFFSET,
    SUBGROUPS_MAX,
    TRIM_AREA_SIZE,
    WINDOW_MAX,
    align_up,
    area_header,
    bell_page,
    row_header,
    slot_stride,
    subgroup_columns,
)
from spindle_core.memory cimport Mapping
from spindle_core.state cimport LEVEL_LOGGED, LEVEL_UNORDERED, sender_t, subgroup_t

from dataclasses import dataclass

CONTROL_COLUMNS = (
    "heartbeat", "proposed", "acked", "committed", "prepared", "wedged", "trimmed", "trim_echoed", "installed",
    "leaving",
    "suspected0", "suspected1", "suspected2", "suspected3",
)
AREAS = {
    "proposal": (ROW_AREAS_OFFSET, PROPOSAL_AREA_SIZE - sizeof(area_header)),
    "trim": (ROW_AREAS_OFFSET + PROPOSAL_AREA_SIZE, TRIM_AREA_SIZE - sizeof(area_header)),
}
MESSAGE_SIZE_LIMIT = MESSAGE_SIZE_MAX
WINDOW_LIMIT = WINDOW_MAX
NODES_LIMIT = NODES_MAX
TOPICS_LIMIT = SUBGROUPS_MAX - 1
CONTROL_PUSHES_MAX = 256     # that wait for one peer: many times the moves of a membership in one view


@dataclass(frozen=True)
class SubgroupSpec:
    """The members of one topic in one view.

    members and senders: row ranks, ascending, senders among the members (a sender's place is its sender rank);
    window in slots, size_max in bytes; level 0 unordered, 1 atomic, 2 volatile storage, 3 logged storage.
    """

    topic_id: int
    members: tuple
    senders: tuple
    window: int
    size_max: int
    level: int = 1

    def check(self, n_rows):
        """ValueError where the geometry is impossible; the limit is in the message."""
        if not 0 <= self.topic_id < SUBGROUPS_MAX:
            raise ValueError(f"topic {self.topic_id}: numbers have 8 bits")
        if not 1 <= self.window <= WINDOW_MAX:
            raise ValueError(f"window {self.window}: must be between 1 and {WINDOW_MAX} slots")
        if not 1 <= self.size_max <= MESSAGE_SIZE_MAX:
            raise ValueError(f"size_max {self.size_max}: must be between 1 and {MESSAGE_SIZE_MAX} bytes")
        if not LEVEL_UNORDERED <= self.level <= LEVEL_LOGGED:
            raise ValueError(f"level {self.level}: must be between {LEVEL_UNORDERED} and {LEVEL_LOGGED}")
        if list(self.members) != sorted(set(self.members)) or not all(0 <= m < n_rows for m in self.members):
            raise ValueError(f"members {self.members}: must be ascending ranks below {n_rows}")
        if list(self.senders) != sorted(set(self.senders)) or not set(self.senders) <= set(self.members):
            raise ValueError(f"senders {self.senders}: must be ascending and among the members {self.members}")


cdef class Epoch:
    """Made by Engine.new_epoch."""

    def __cinit__(self):
        memset(&self.node, 0, sizeof(self.node))
        self.closed = False

    def __init__(self, epoch, my_rank, node_ids, subgroups, incarnation, Mapping bell not None, int bell_fd,
                 Fabric fabric=None):
        n = len(node_ids)
        if not 1 <= n <= NODES_MAX:
            raise ValueError(f"a view of {n} nodes: between 1 and {NODES_MAX}")
        if not 0 <= my_rank < n:
            raise ValueError(f"rank {my_rank} of {n} nodes")
        if len(set(node_ids)) != n:
            raise ValueError(f"node ids {list(node_ids)}: each must appear once")
        if len(subgroups) > SUBGROUPS_MAX:
            raise ValueError(f"{len(subgroups)} topics: {SUBGROUPS_MAX} at most")
        self.epoch = epoch
        self.my_rank = my_rank
        self.node_ids = tuple(node_ids)
        self.subgroups = tuple(subgroups)
        self.bell = bell
        self.bell_fd = bell_fd
        self.by_topic = {}
        for i, spec in enumerate(self.subgroups):
            spec.check(n)
            if spec.topic_id in self.by_topic:
                raise ValueError(f"topic {spec.topic_id} appears twice")
            self.by_topic[spec.topic_id] = i
        self.peer_rows = [None] * n
        if fabric is None:
            fabric = ShmFabric(my_rank, n, bell, bell_fd)
        elif (fabric.rank, fabric.n_peers) != (my_rank, n):
            raise ValueError(f"a fabric for rank {fabric.rank} of {fabric.n_peers}, not {my_rank} of {n}")
        self.fabric = fabric
        self.node.epoch = epoch
        self.node.my_rank = my_rank
        self.node.n_rows = n
        self.node.node_id = node_ids[my_rank]
        self.node.fabric = &self.fabric.table
        self.node.control_fd = -1
        self.node.rows = <char **>calloc(n, sizeof(char *))
        self.node.control_seen = <uint64_t *>calloc(n, sizeof(uint64_t))
        self.node.subgroups = <subgroup_t *>calloc(max(1, len(self.subgroups)), sizeof(subgroup_t))
        if self.node.rows == NULL or self.node.control_seen == NULL or self.node.subgroups == NULL:
            raise MemoryError()
        self.node.n_subgroups = len(self.subgroups)
        self.build_subgroups()
        fabric.reserve(self.posts_waiting_max(), LANES_FIXED + 2 * self.node.n_subgroups)
        self.row = fabric.make_row(f"spindle-row-{node_ids[my_rank]}-{epoch}", self.row_size)
        self.node.rows[my_rank] = self.row.base
        cdef row_header *h = <row_header *>self.row.base
        h.layout_version = LAYOUT_VERSION
        h.node_id = node_ids[my_rank]
        h.incarnation = incarnation
        h.epoch = epoch
        h.row_size = self.row.size
        h.layout_hash = self.layout_hash()
        u64_store_release(&h.magic, ROW_MAGIC)
        if n == 1:
            self.point_columns()

    def posts_waiting_max(self):
        """Posts of this epoch that can wait for one peer at once, where a fabric makes use of lanes (fabric.pxd).

        A message is claimed once every member has delivered the one a window before it. So of each topic in which
        this node sends, a peer can lack a window of messages, in as many ranges at most, each with a count behind it;
        and one may be on its way in part. What is said often waits once: a topic's line and counts, the heartbeat.
        Frozen counts are posted once in an epoch; other control columns whenever the membership moves.
        """
        cdef uint32_t i
        cdef uint64_t n = 1 + 4 * CONTROL_PUSHES_MAX
        for i in range(self.node.n_subgroups):
            n += 2 + 2 + 1
            if self.node.subgroups[i].my_sender >= 0:
                n += 2 * self.node.subgroups[i].window
        return n

    def layout_hash(self):
        """What members must agree on to understand each other's rows."""
        if self.hash is not None:
            return self.hash
        text = repr((LAYOUT_VERSION, self.node_ids, [
            (s.topic_id, s.members, s.senders, s.window, s.size_max, s.level) for s in self.subgroups])).encode()
        self.hash = zlib.crc32(text) << 32 | zlib.crc32(text[::-1])
        return self.hash

    cdef int build_subgroups(self) except -1:
        """Sets geometry, offsets and the row's size."""
        cdef subgroup_t *s
        cdef uint64_t columns = ROW_SUBGROUPS_OFFSET
        cdef uint64_t counts = columns + self.node.n_subgroups * sizeof(subgroup_columns)
        cdef uint64_t slots
        cdef uint32_t i
        for i, spec in enumerate(self.subgroups):
            s = &self.node.subgroups[i]
            s.node = &self.node
            s.topic_id = spec.topic_id
            s.level = spec.level
            s.window = spec.window
            s.size_max = spec.size_max
            s.stride = slot_stride(spec.size_max)
            s.place = i
            s.n_members = len(spec.members)
            s.n_senders = len(spec.senders)
            s.my_sender = spec.senders.index(self.my_rank) if self.my_rank in spec.senders else -1
            s.space_fd = -1
            s.columns_offset = columns + i * sizeof(subgroup_columns)
            s.counts_offset = counts
            counts += align_up(max(1, s.n_senders) * sizeof(uint64_t), CACHE_LINE)
            s.members = <uint32_t *>calloc(max(1, s.n_members), sizeof(uint32_t))
            s.member_columns = <subgroup_columns **>calloc(max(1, s.n_members), sizeof(void *))
            s.members_received_by_sender = <uint64_t **>calloc(max(1, s.n_members), sizeof(void *))
            s.wanted_rung = <uint64_t *>calloc(max(1, s.n_members), sizeof(uint64_t))
            s.senders = <sender_t *>calloc(max(1, s.n_senders), sizeof(sender_t))
            s.ready = <uint64_t *>calloc(s.window if s.my_sender >= 0 else 1, sizeof(uint64_t))
            if (s.members == NULL or s.member_columns == NULL or s.members_received_by_sender == NULL
                    or s.wanted_rung == NULL or s.senders == NULL or s.ready == NULL):
                raise MemoryError()
            for k, rank in enumerate(spec.members):
                s.members[k] = rank
            for k, rank in enumerate(spec.senders):
                s.senders[k].rank = rank
                s.senders[k].node_id = self.node_ids[rank]
        slots = align_up(counts, 4096)
        for i in range(self.node.n_subgroups):
            s = &self.node.subgroups[i]
            s.slots_offset = slots
            slots = align_up(slots + s.window * s.stride, 4096)
            if slots > 1 << 40:
                raise ValueError("the topics of this view need more than 1 TiB per node: smaller windows or size_max")
        self.row_size = slots
        return 0

    cdef int point_columns(self) except -1:
        """All rows are there: the predicates' pointers into them."""
        cdef subgroup_t *s
        cdef uint32_t i, k
        for i in range(self.node.n_subgroups):
            s = &self.node.subgroups[i]
            for k in range(s.n_members):
                s.member_columns[k] = <subgroup_columns *>(self.node.rows[s.members[k]] + s.columns_offset)
                s.members_received_by_sender[k] = <uint64_t *>(self.node.rows[s.members[k]] + s.counts_offset)
                if s.members[k] == self.node.my_rank:
                    s.mine = s.member_columns[k]
                    s.received_by_sender = s.members_received_by_sender[k]
            for k in range(s.n_senders):
                s.senders[k].columns = <subgroup_columns *>(self.node.rows[s.senders[k].rank] + s.columns_offset)
                s.senders[k].slots = self.node.rows[s.senders[k].rank] + s.slots_offset
        self.columns_ready = True
        return 0

    def attach_peer(self, rank, int row_fd, int bell_page_fd, int bell_fd, int mail_fd=-1):
        """Maps a peer's row, doorbell and mail; takes ownership of the descriptors.

        Raises ValueError where they are not what this view expects of that rank: another version, epoch, node or
        layout.
        """
        cdef Mapping row, bell, mail = None
        cdef list left = [bell_page_fd, bell_fd, mail_fd]
        try:
            self.fabric.check_peer(rank)
            row = Mapping.attach(row_fd)
            left.remove(bell_page_fd)
            bell = Mapping.attach(bell_page_fd)
            if mail_fd >= 0:
                left.remove(mail_fd)
                mail = Mapping.attach(mail_fd)
            self.check_row(rank, row)
            left.remove(bell_fd)
            self.connect(rank, "shm", row, bell, bell_fd, mail)
        finally:
            for fd in left:
                if fd >= 0:
                    os.close(fd)
        self.take_row(rank, row)

    def attach_stream(self, rank, int fd, incarnation, layout_hash, row_size):
        """Reaches a peer through a connected stream socket, whose ownership passes over: for fabrics that copy rows.

        The rest is what the peer says of its row. Raises ValueError where this view expects another one.
        """
        cdef Mapping row
        try:
            self.fabric.check_peer(rank)
            row = Mapping.private(self.row.size)
            self.say_row(rank, row, incarnation, layout_hash, row_size)
        except BaseException:
            os.close(fd)
            raise
        self.take_row(rank, self.connect(rank, "tcp", fd, row))

    def verbs_address(self, rank):
        """What the member of that rank needs for its attach_verbs: bytes, the same at every call."""
        return self.part("verbs").local_address(rank)

    def attach_verbs(self, rank, bytes address, incarnation, layout_hash, row_size):
        """As attach_stream, for a peer on an RDMA network: `address` is its verbs_address for this member.

        OSError where there is no way to it.
        """
        fabric = self.part("verbs")
        self.fabric.check_peer(rank)
        fabric.local_address(rank)         # its copy is there from then on, and nothing lands in it before connect()
        self.say_row(rank, fabric.copy_of(rank), incarnation, layout_hash, row_size)
        self.take_row(rank, self.connect(rank, "verbs", address))

    cdef int say_row(self, rank, Mapping row, incarnation, layout_hash, row_size) except -1:
        """Writes what a peer says of its row into this node's copy; ValueError if this view expects another one."""
        cdef row_header *h = <row_header *>row.base
        h.layout_version = LAYOUT_VERSION
        h.node_id = self.node_ids[rank]
        h.incarnation = incarnation
        h.epoch = self.node.epoch
        h.row_size = row_size
        h.layout_hash = layout_hash
        u64_store_release(&h.magic, ROW_MAGIC)
        if row_size != self.row.size:
            raise ValueError(f"node {h.node_id} has another idea of the topics of view {self.epoch}")
        return self.check_row(rank, row)

    def part(self, str name):
        """The fabric of that name where there are several, else the only one."""
        return self.fabric.parts[name] if isinstance(self.fabric, MixedFabric) else self.fabric

    def connect(self, rank, str part, *how):
        """Makes a peer reachable, by the part of that name where there are several."""
        if isinstance(self.fabric, MixedFabric):
            return self.fabric.connect(rank, part, *how)
        return self.fabric.connect(rank, *how)

    @property
    def failures(self):
        """{rank: why the connection to it is over}, of those that were not cut; never of those on this host."""
        return {} if self.closed else self.fabric.failures()

    def attach_local(self, rank, Epoch peer not None):
        """As attach_peer, for a member in this process whose fabric knows how (the simulator's)."""
        self.fabric.check_peer(rank)
        self.check_row(rank, peer.row)
        self.take_row(rank, self.fabric.connect(rank, peer.fabric, peer.row))

    cdef int check_row(self, rank, Mapping row) except -1:
        """ValueError where this is not the row that this view expects of that rank."""
        cdef row_header *h
        if row.size < ROW_SUBGROUPS_OFFSET:
            raise ValueError(f"a row of {row.size} bytes is too small")
        h = <row_header *>row.base
        if u64_load_acquire(&h.magic) != ROW_MAGIC or h.layout_version != LAYOUT_VERSION:
            raise ValueError(f"the row of rank {rank} has another layout version: run the same release on all nodes")
        if h.epoch != self.node.epoch or h.node_id != self.node_ids[rank]:
            raise ValueError(f"the row is node {h.node_id}'s of epoch {h.epoch}; expected node"
                             f" {self.node_ids[rank]}'s of epoch {self.epoch}")
        if h.layout_hash != self.layout_hash() or row.size != self.row.size:
            raise ValueError(f"node {h.node_id} has another idea of the topics of view {self.epoch}")
        return 0

    cdef int take_row(self, rank, Mapping row) except -1:
        self.node.rows[<uint32_t>rank] = row.base
        self.peer_rows[rank] = row
        if self.complete and not self.columns_ready:
            self.point_columns()
        return 0

    @property
    def complete(self):
        """All rows are attached."""
        return all(row is not None for rank, row in enumerate(self.peer_rows) if rank != self.my_rank)

    @property
    def n_rows(self):
        return len(self.node_ids)

    cdef row_header *header(self, rank) except NULL:
        if self.closed:
            raise ValueError("this epoch is closed")
        if not 0 <= rank < self.node.n_rows or self.node.rows[<uint32_t>rank] == NULL:
            raise ValueError(f"rank {rank} is not attached")
        return <row_header *>self.node.rows[<uint32_t>rank]

    cdef subgroup_t *subgroup(self, topic_id) except NULL:
        if self.closed:
            raise ValueError("this epoch is closed")
        if topic_id not in self.by_topic:
            raise KeyError(f"topic {topic_id} is not in view {self.epoch}")
        return &self.node.subgroups[<uint32_t>self.by_topic[topic_id]]

    def has_topic(self, topic_id):
        return topic_id in self.by_topic

    def cut(self, rank):
        """Ends everything with a peer in this epoch, at once and for good. Nothing to do for others. Idempotent."""
        if not self.closed and 0 <= rank < self.node.n_rows and rank != self.my_rank:
            self.node.fabric.cut(self.node.fabric.self, rank)

    # ---- control columns ----

    def get(self, rank, str column):
        """A control column of any row."""
        return u64_load_acquire(&self.header(rank).control[<int>CONTROL_COLUMNS.index(column)])

    def set(self, str column, value):
        """Raises a control column of the own row; ValueError if it would shrink. Visible to others after push()."""
        cdef row_header *h = self.header(self.my_rank)
        cdef int i = CONTROL_COLUMNS.index(column)
        if value < h.control[i]:
            raise ValueError(f"column {column} only grows: {h.control[i]} -> {value}")
        u64_store_release(&h.control[i], value)

    cdef void hold_control(self) noexcept:
        """Keeps the predicate thread from posting what is being changed. To be held for stores only."""
        # SYNC POINT: control lock. Pairs with push_control() in step, which holds it while it posts.
        with nogil:
            while u32_exchange_acquire(&self.node.control_lock, 1):
                sched_yield()

    @contextlib.contextmanager
    def control_held(self):
        """For tests: as if the control thread were in the middle of a change."""
        self.hold_control()
        try:
            yield
        finally:
            u32_store_release(&self.node.control_lock, 0)

    def beat(self, value):
        """Raises the own heartbeat. Where rows are copied the predicate thread posts it; on one host it is there."""
        self.set("heartbeat", value)
        if self.fabric.wait_fd >= 0:
            u32_store_relaxed(&self.node.beat_due, 1)
            fence_store_load()
            if u32_load_relaxed(&(<bell_page *>self.bell.base).asleep):
                event_ring(self.bell_fd)

    def push(self):
        """Makes the own control columns and areas visible to all: the predicate thread posts them."""
        cdef row_header *h = self.header(self.my_rank)
        self.hold_control()
        # SYNC POINT: control. Pairs with control() in step: columns and areas before the version.
        u64_store_release(&h.control_version, h.control_version + 1)
        u32_store_release(&self.node.control_lock, 0)
        fence_store_load()
        if u32_load_relaxed(&(<bell_page *>self.bell.base).asleep):
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

    # ---- subgroups ----

    def frozen_counts(self, rank, topic_id):
        """Messages received per sender rank, as that member froze them at its wedge (zeros before)."""
        cdef subgroup_t *s = self.subgroup(topic_id)
        self.header(rank)
        cdef uint64_t *counts = <uint64_t *>(self.node.rows[<uint32_t>rank] + s.counts_offset)
        return [u64_load_acquire(&counts[k]) for k in range(s.n_senders)]

    def stability(self, topic_id):
        """{members, senders: node ids; published: per sender; received, delivered, persisted: per member}, counts."""
        cdef subgroup_t *s = self.subgroup(topic_id)
        cdef uint32_t k
        if not self.columns_ready:
            raise ValueError("not all rows are attached")
        return {
            "members": [self.node_ids[s.members[k]] for k in range(s.n_members)],
            "senders": [s.senders[k].node_id for k in range(s.n_senders)],
            "published": [u64_load_acquire(&s.senders[k].columns.published) for k in range(s.n_senders)],
            "received": [u64_load_acquire(&s.member_columns[k].received) for k in range(s.n_members)],
            "delivered": [u64_load_acquire(&s.member_columns[k].delivered) for k in range(s.n_members)],
            "persisted": [max(0, <long long>u64_load_acquire(&s.member_columns[k].persisted) - 1)
                          for k in range(s.n_members)],
        }

    def drain(self):
        """Drives the fabric where nobody else does any more; True when all that was posted has arrived."""
        if self.node.fabric.enter != NULL:
            self.node.fabric.enter(self.node.fabric.self)
            self.node.fabric.leave(self.node.fabric.self)
        return self.fabric.drained

    def close(self):
        """Gives the memory back. Not while installed. Idempotent."""
        if not self.closed:
            self.fabric.goodbye()
            self.fabric.close()
        self.closed = True
        self.columns_ready = False

    def __dealloc__(self):
        cdef uint32_t i
        cdef subgroup_t *s
        if self.node.subgroups != NULL:
            for i in range(self.node.n_subgroups):
                s = &self.node.subgroups[i]
                free(s.members)
                free(s.member_columns)
                free(s.members_received_by_sender)
                free(s.wanted_rung)
                free(s.senders)
                free(s.ready)
                if s.space_fd >= 0:
                    os.close(s.space_fd)
            free(self.node.subgroups)
        free(self.node.rows)
        free(self.node.control_seen)
