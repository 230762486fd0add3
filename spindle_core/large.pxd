"""Large samples, whose bytes lie beside the order: what a node's predicates know of them. See large.pxi."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.layout cimport large_entry


cdef enum:
    LARGES_MAX = 4096            # large samples that a node has at once
    LARGE_PLACES = 8192          # of the table: a power of two, and never more than half full
    LARGE_WANTS_MAX = 256        # that are reported as missing at once: each sender of a topic lacks one at a time
    LARGES_OF_LOG = 256          # large samples of which one log has the bytes
    LARGES_OF_INBOX = 64         # large samples of one writer that are handed over and not yet taken over


# A large sample of which this node has the bytes.
cdef struct large_t:
    uint64_t id                  # 0: a free place
    uint32_t uses                # logs, tables of keys and backlogs that still name it
    uint32_t delivered           # it has come in the order: without uses it is released


# One that a predicate waits for.
cdef struct large_want_t:
    uint64_t id, size            # as its sender says; nothing of it is checked
    uint64_t sequence            # its place in the topic's order
    uint32_t topic_id
    uint32_t sender              # node id


# Of one node. `lock` is held for a few loads and stores, never across anything that waits.
cdef struct larges_t:
    uint32_t lock
    uint32_t count
    large_t places[LARGE_PLACES]
    large_want_t wants[LARGE_WANTS_MAX]
    uint32_t n_wants
    uint64_t released[LARGES_MAX]     # nobody names them any more: the control thread gives their memory back
    uint32_t n_released


# A large sample of which a log has the bytes, in the order of the log.
cdef struct log_large_t:
    uint64_t position            # of its record
    uint64_t id, size


# A large sample that a writer has handed over to the control thread.
cdef struct inbox_large_t:
    uint64_t token               # by which its slot names it; 0: a free place
    large_entry entry
