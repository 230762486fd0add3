"""One epoch of a node: its row, its peers' rows, its subgroups. All memory of a view is made here, and goes with it.

An epoch is prepared while the one before still carries traffic: new_epoch makes the own row, attach_peer maps the
others', Engine.install switches over. A peer that still writes into an old row can only hurt that dead epoch.
"""
import os
import zlib

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from spindle_core.hot_path cimport free_activity, make_activity
from spindle_core.atomics cimport u64_load_acquire, u64_load_relaxed, u64_store_release
from spindle_core.control cimport ControlRows
from spindle_core.fabric.fabric cimport LANES_FIXED, Fabric
from spindle_core.fabric.mixed cimport MixedFabric
from spindle_core.fabric.shm cimport ShmFabric
from spindle_core.geometry cimport build_subgroups, free_subgroups, point_columns, posts_waiting_max
from spindle_core.layout cimport (
    LAYOUT_VERSION,
    NODES_MAX,
    ROW_AREAS_OFFSET,
    ROW_MAGIC,
    ROW_SUBGROUPS_OFFSET,
    SUBGROUPS_MAX,
    row_header,
)
from spindle_core.memory cimport Mapping
from spindle_core.state cimport subgroup_t

from spindle_core.control import AREAS, CONTROL_COLUMNS  # no-cython-lint: part of this module's surface
from spindle_core.ends import Loose, Ringer
from spindle_core.geometry import check_spec
from spindle_core.geometry import CONTROL_PUSHES_MAX, MESSAGE_SIZE_LIMIT, NODES_LIMIT  # no-cython-lint: surface
from spindle_core.geometry import SubgroupSpec, TOPICS_LIMIT, WINDOW_LIMIT  # no-cython-lint: surface

POPULATED_MAX = 16 << 20     # bytes of slots: takes milliseconds, in which the control thread does nothing else


cdef class Epoch(ControlRows):
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
            check_spec(spec, n)
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
        cdef uint64_t row_size = build_subgroups(&self.node, self.subgroups, self.node_ids)
        if make_activity(&self.node) < 0:
            raise MemoryError()
        fabric.reserve(self.posts_waiting_max(), LANES_FIXED + 2 * self.node.n_subgroups)
        self.row = fabric.make_row(f"spindle-row-{node_ids[my_rank]}-{epoch}", row_size)
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
            self.point()

    cdef void point(self) noexcept:
        point_columns(&self.node)
        self.columns_ready = True

    def posts_waiting_max(self):
        """Posts of this epoch that can wait for one peer at once, where a fabric makes use of lanes (fabric.pxd)."""
        return posts_waiting_max(&self.node)

    def layout_hash(self):
        """What members must agree on to understand each other's rows."""
        if self.hash is not None:
            return self.hash
        text = f"({LAYOUT_VERSION}, {self.node_ids}, [{', '.join([spec.text for spec in self.subgroups])}])".encode()
        self.hash = zlib.crc32(text) << 32 | zlib.crc32(text[::-1])
        return self.hash

    # ---- peers ----

    def attach_peer(self, rank, int row_fd, int bell_page_fd, int bell_fd):
        """Maps a peer's row and doorbell; takes ownership of the descriptors.

        Raises ValueError where they are not what this view expects of that rank: another version, epoch, node or
        layout.
        """
        cdef Mapping row, bell
        cdef list left = [row_fd, bell_page_fd, bell_fd]
        try:
            self.fabric.check_peer(rank)
            left.remove(row_fd)
            row = Mapping.attach(row_fd)
            left.remove(bell_page_fd)
            bell = Mapping.attach(bell_page_fd)
            self.check_row(rank, row)
            left.remove(bell_fd)
            self.connect(rank, "shm", row, bell, bell_fd)
        finally:
            for fd in left:
                if fd >= 0:
                    os.close(fd)
        self.take_row(rank, row, True)

    def make_ringers(self, peers, int all_fd):
        """{peer: Ringer} by which peers of this host are rung, by whatever keys the caller has. They also listen at
        eventfds together, by which all are rung at once: without this node's predicate thread, or with it (`all_fd`,
        that of its engine). Raises OSError."""
        cdef dict made = {}
        cdef int others_fd = -1
        peers = tuple(peers)
        if not peers:
            return made
        try:
            if len(peers) > 1:
                others_fd = Loose.events(1).take()
            self.part("shm").ring_together(others_fd, all_fd)
            for peer in peers:
                made[peer] = Ringer(others_fd, all_fd)
        except OSError:
            for ringer in made.values():
                ringer.close()
            raise
        return made

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
        self.take_row(rank, self.connect(rank, "tcp", fd, row), False)

    def verbs_address(self, rank):
        """What the member of that rank needs for its attach_verbs: bytes, the same at every call until then."""
        return self.part("verbs").local_address(rank)

    def attach_verbs(self, rank, bytes address, incarnation, layout_hash, row_size):
        """As attach_stream, for a peer on an RDMA network: `address` is its verbs_address for this member. False: it
        means a connection that is over here; it says another when it has the own address. The own verbs_address may
        be another afterwards, of which the peer is to be told.

        OSError where there is no way to it.
        """
        fabric = self.part("verbs")
        self.fabric.check_peer(rank)
        fabric.local_address(rank)         # makes the copy of the peer's row; nothing lands in it before connect()
        self.say_row(rank, fabric.copy_of(rank), incarnation, layout_hash, row_size)
        row = self.connect(rank, "verbs", address)
        if row is False:
            return False
        self.take_row(rank, row, False)
        return True

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
        row = self.fabric.connect(rank, peer.fabric, peer.row)
        self.take_row(rank, row, row is peer.row)

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

    cdef int take_row(self, rank, Mapping row, bint shared) except -1:
        """`shared`: it is the owner's own row, and no copy."""
        self.node.row_shared[<uint32_t>rank] = shared
        self.node.rows[<uint32_t>rank] = row.base
        self.peer_rows[rank] = row
        if self.complete and not self.columns_ready:
            self.point()
        return 0

    @property
    def complete(self):
        """All rows are attached."""
        return all(row is not None for rank, row in enumerate(self.peer_rows) if rank != self.my_rank)

    @property
    def n_rows(self):
        return len(self.node_ids)

    def populate(self, Epoch before):
        """Populates the memory that will be used at once: the own header and columns, and for each sender of `before`
        (the epoch that this one follows; None: there is none) as many slots as it used there. Returns bytes.

        Otherwise the first messages of a view would take a page fault for each page. At most POPULATED_MAX bytes of
        slots; the others come as they are used. OSError where memory has run out.
        """
        cdef subgroup_t *s
        cdef subgroup_t *old
        cdef uint32_t i, k, j
        cdef uint64_t n, left = POPULATED_MAX, done
        cdef Mapping row
        done = self.row.populate(0, ROW_AREAS_OFFSET)
        if self.node.n_subgroups:
            done += self.row.populate(ROW_SUBGROUPS_OFFSET, self.node.subgroups[0].slots_offset - ROW_SUBGROUPS_OFFSET)
        if before is None or before.closed:
            return done
        for i in range(self.node.n_subgroups):
            s = &self.node.subgroups[i]
            if s.mine == NULL or not before.has_topic(s.topic_id):
                continue
            old = before.subgroup(s.topic_id)
            for k in range(s.n_senders):
                for j in range(old.n_senders):
                    if old.senders[j].node_id == s.senders[k].node_id:
                        n = min(u64_load_relaxed(&old.senders[j].received), s.ring) * s.stride
                        row = self.row if s.senders[k].rank == self.node.my_rank else self.peer_rows[s.senders[k].rank]
                        if n <= left:
                            done += row.populate(s.slots_offset, n)
                            left -= n
                        break
        return done

    # ---- subgroups ----

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

    def frozen_counts(self, rank, topic_id):
        """Messages received per sender rank, as that member froze them at its wedge (zeros before)."""
        cdef subgroup_t *s = self.subgroup(topic_id)
        self.header(rank)
        cdef uint64_t *counts = <uint64_t *>(self.node.rows[<uint32_t>rank] + s.counts_offset)
        return [u64_load_acquire(&counts[k]) for k in range(s.n_senders)]

    def frozen_topics(self, rank):
        """Topics of which that member has frozen a count above zero, by number: all others are zeros."""
        cdef subgroup_t *s
        cdef uint64_t *counts
        cdef uint32_t i, k
        cdef list found = []
        self.header(rank)
        for i in range(self.node.n_subgroups):
            s = &self.node.subgroups[i]
            counts = <uint64_t *>(self.node.rows[<uint32_t>rank] + s.counts_offset)
            for k in range(s.n_senders):
                if u64_load_acquire(&counts[k]):
                    found.append(s.topic_id)
                    break
        return found

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
        free_subgroups(&self.node)
        free(self.node.rows)
        free(self.node.control_seen)
        free_activity(&self.node)
