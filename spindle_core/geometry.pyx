"""Where the topics of a view lie in every row, and what a node knows of them: their subgroups' memory.

All members compute it from the same specification, in the same order, so that the same offsets mean the same
everywhere.
"""
import functools
from dataclasses import dataclass

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from spindle_core.events cimport c_close
from spindle_core.inbox cimport inbox_t
from spindle_core.layout cimport (
    CACHE_LINE,
    MESSAGE_SIZE_MAX,
    NODES_MAX,
    ROW_SUBGROUPS_OFFSET,
    SUBGROUPS_MAX,
    WINDOW_MAX,
    align_up,
    keyed_slot_header,
    ring_slots,
    slot_header,
    subgroup_columns,
)
from spindle_core.state cimport (
    INBOXES_MAX,
    LEVEL_LOGGED,
    LEVEL_UNORDERED,
    PERSIST_MARKS,
    node_t,
    sender_t,
    subgroup_t,
)

MESSAGE_SIZE_LIMIT = MESSAGE_SIZE_MAX
WINDOW_LIMIT = WINDOW_MAX
NODES_LIMIT = NODES_MAX
TOPICS_LIMIT = SUBGROUPS_MAX - 1
CONTROL_PUSHES_MAX = 256     # may wait for one peer: many times the moves of a membership in one view


@dataclass(frozen=True)
class SubgroupSpec:
    """The members of one topic in one view.

    members and senders: row ranks, ascending, senders among the members (a sender's place is its sender rank);
    window in slots, size_max in bytes; level 0 unordered, 1 atomic, 2 volatile storage, 3 logged storage; keyed:
    messages have keys.
    """

    topic_id: int
    members: tuple
    senders: tuple
    window: int
    size_max: int
    level: int = 1
    keyed: bool = False

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

    @functools.cached_property
    def checked_for(self):
        """Sizes of views for which check() has passed."""
        return set()

    @functools.cached_property
    def text(self):
        """The part of a layout's description that is about this topic."""
        return repr((self.topic_id, self.members, self.senders, self.window, self.size_max, self.level, self.keyed))


# From one view to the next nearly all specifications stay what they were.
def check_spec(spec, n_rows):
    """SubgroupSpec.check(), if it has not passed for this size of view before."""
    if n_rows not in spec.checked_for:
        spec.check(n_rows)
        spec.checked_for.add(n_rows)


cdef uint64_t build_subgroups(node_t *node, tuple specs, tuple node_ids) except 0:
    """Sets geometry and offsets; returns the row's size in bytes."""
    cdef subgroup_t *s
    cdef uint64_t columns = ROW_SUBGROUPS_OFFSET
    cdef uint64_t counts = columns + node.n_subgroups * sizeof(subgroup_columns)
    cdef uint64_t slots
    cdef uint32_t i
    for i in range(node.n_subgroups):
        node.subgroups[i].space_fd = -1      # all of them, before anything can fail: 0 is somebody's descriptor
    for i, spec in enumerate(specs):
        s = &node.subgroups[i]
        s.node = node
        s.topic_id = spec.topic_id
        s.level = spec.level
        s.window = spec.window
        s.ring = ring_slots(s.window)
        s.size_max = spec.size_max
        s.keyed = spec.keyed
        s.header_size = sizeof(keyed_slot_header) if s.keyed else sizeof(slot_header)
        s.stride = align_up(s.header_size + s.size_max, CACHE_LINE)
        s.place = i
        s.n_members = len(spec.members)
        s.n_senders = len(spec.senders)
        s.my_sender = spec.senders.index(node.my_rank) if node.my_rank in spec.senders else -1
        s.columns_offset = columns + i * sizeof(subgroup_columns)
        s.counts_offset = counts
        counts += align_up(max(1, s.n_senders) * sizeof(uint64_t), CACHE_LINE)
        s.members = <uint32_t *>calloc(max(1, s.n_members), sizeof(uint32_t))
        s.member_columns = <subgroup_columns **>calloc(max(1, s.n_members), sizeof(void *))
        s.members_received_by_sender = <uint64_t **>calloc(max(1, s.n_members), sizeof(void *))
        s.wanted_rung = <uint64_t *>calloc(max(1, s.n_members), sizeof(uint64_t))
        s.senders = <sender_t *>calloc(max(1, s.n_senders), sizeof(sender_t))
        s.ready = <uint64_t *>calloc(s.ring if s.my_sender >= 0 else 1, sizeof(uint64_t))
        s.inboxes = <inbox_t **>calloc(INBOXES_MAX if s.my_sender >= 0 else 1, sizeof(inbox_t *))
        s.mark_index = <uint64_t *>calloc(2 * PERSIST_MARKS if s.level == LEVEL_LOGGED else 1, sizeof(uint64_t))
        if (s.members == NULL or s.member_columns == NULL or s.members_received_by_sender == NULL
                or s.wanted_rung == NULL or s.senders == NULL or s.ready == NULL or s.inboxes == NULL
                or s.mark_index == NULL):
            raise MemoryError()
        s.mark_delivered = s.mark_index + PERSIST_MARKS if s.level == LEVEL_LOGGED else NULL
        for k, rank in enumerate(spec.members):
            s.members[k] = rank
        for k, rank in enumerate(spec.senders):
            s.senders[k].rank = rank
            s.senders[k].node_id = node_ids[rank]
    slots = align_up(counts, 4096)
    for i in range(node.n_subgroups):
        s = &node.subgroups[i]
        s.slots_offset = slots
        slots = align_up(slots + s.ring * s.stride, 4096)
        if slots > 1 << 40:
            raise ValueError("the topics of this view need more than 1 TiB per node: smaller windows or size_max")
    return slots


cdef void point_columns(node_t *node) noexcept:
    """All rows are there: the predicates' pointers into them."""
    cdef subgroup_t *s
    cdef uint32_t i, k
    for i in range(node.n_subgroups):
        s = &node.subgroups[i]
        for k in range(s.n_members):
            s.member_columns[k] = <subgroup_columns *>(node.rows[s.members[k]] + s.columns_offset)
            s.members_received_by_sender[k] = <uint64_t *>(node.rows[s.members[k]] + s.counts_offset)
            if s.members[k] == node.my_rank:
                s.mine = s.member_columns[k]
                s.received_by_sender = s.members_received_by_sender[k]
        for k in range(s.n_senders):
            s.senders[k].columns = <subgroup_columns *>(node.rows[s.senders[k].rank] + s.columns_offset)
            s.senders[k].slots = node.rows[s.senders[k].rank] + s.slots_offset


cdef uint64_t posts_waiting_max(node_t *node) noexcept:
    """Posts of this epoch that can wait for one peer at once, where a fabric makes use of lanes (fabric.pxd).

    A message is claimed once every member has delivered the one a window before it. So of each topic in which
    this node sends, a peer can lack a window of messages, in as many ranges at most, each with a count behind it;
    and one may be on its way in part. Of what is posted again and again (a topic's line and counts, the heartbeat),
    only the newest waits.
    Frozen counts are posted once in an epoch; other control columns whenever the membership moves.
    """
    cdef uint32_t i
    cdef uint64_t n = 1 + 4 * CONTROL_PUSHES_MAX
    for i in range(node.n_subgroups):
        n += 2 + 2 + 1
        if node.subgroups[i].my_sender >= 0:
            n += 2 * node.subgroups[i].window
    return n


cdef void free_subgroups(node_t *node) noexcept:
    cdef uint32_t i
    cdef subgroup_t *s
    if node.subgroups == NULL:
        return
    for i in range(node.n_subgroups):
        s = &node.subgroups[i]
        free(s.members)
        free(s.member_columns)
        free(s.members_received_by_sender)
        free(s.wanted_rung)
        free(s.senders)
        free(s.ready)
        free(s.inboxes)
        free(s.mark_index)
        if s.space_fd >= 0:
            c_close(s.space_fd)
    free(node.subgroups)
