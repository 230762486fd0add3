"""What one node knows of one epoch, as the predicates see it. Private to the process; shared structs are in layout.h.

Counts, not last indices: `received == 7` means the seven first sequence numbers. Message k of sender rank r has
sequence number k * n_senders + r.
"""
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t

from spindle_core.log cimport CURSORS_MAX, log_t
from spindle_core.fabric.fabric cimport fabric_t, post_t
from spindle_core.inbox cimport inbox_t
from spindle_core.large cimport larges_t
from spindle_core.layout cimport NODES_MAX, row_header, slot_header, subgroup_columns
from spindle_core.relayed cimport relayed_t
from spindle_core.timing cimport timing_t

cdef enum:
    POSTS_MAX = 1024    # posts that a step leaves at most; a step pushes four times or less, but for send's slots
    INBOXES_MAX = 256            # writers of one topic on one node
    PERSIST_MARKS = 1024
    UPCALL_BATCH = 512           # messages per batched delivery upcall
    WRITERS_MAX = INBOXES_MAX + 1   # writers that a step leaves to be woken: of inboxes, and those that claim in place

cdef enum:
    TOPIC_WORDS = 4              # of a set of topics, a bit for each place in the view

cdef enum:
    INDEX_JUMP_BITS = 42         # more new indices at once are nonsense: a silence has at most 2 ** 40 rounds
    DONE_MAX = 1 << 20           # what a predicate says it did, at most: their sum is an int

cdef enum level:
    LEVEL_UNORDERED = 0
    LEVEL_ATOMIC = 1
    LEVEL_VOLATILE = 2
    LEVEL_LOGGED = 3


# One delivered message, for upcalls; `payload` points into the sender's slot and is valid during the call only.
cdef struct delivery_t:
    const char *payload
    uint64_t size                # bytes
    uint64_t sequence
    uint64_t source_ns
    uint32_t sender_rank         # rank in the list of senders
    uint32_t sender              # node id
    uint16_t writer_id
    uint8_t tag
    uint8_t large                # 1: the payload is the entry of a large sample

ctypedef void (*upcall_fn)(void *context, const delivery_t *messages, uint32_t n) noexcept nogil


cdef struct node_t


cdef struct sender_t:
    subgroup_columns *columns    # the sender's line, in its row
    char *slots                  # its ring, in its row
    uint64_t received            # its messages (nulls included) that I have
    uint64_t null_until          # deliver: its indices below are nulls of a run that I have seen
    uint64_t taken               # unordered: its messages delivered here
    uint64_t larges_found        # its large samples that I have
    uint32_t rank                # row rank
    uint32_t node_id


cdef struct subgroup_t:
    node_t *node                 # that it belongs to
    uint32_t topic_id, level, n_members, n_senders
    uint64_t window              # messages that may be claimed and not delivered everywhere yet
    uint64_t ring                # slots in each sender's row: ring_slots(window)
    uint64_t size_max, stride    # bytes
    uint64_t header_size         # bytes of a slot before its payload
    bint keyed                   # the headers have keys
    uint32_t place               # position in the view's list: where its columns are
    uint32_t *members            # row ranks, ascending
    subgroup_columns **member_columns
    sender_t *senders
    subgroup_columns *mine
    uint64_t *received_by_sender  # in my row: frozen counts at wedge; acknowledgements if unordered
    uint64_t **members_received_by_sender
    int32_t my_sender            # rank among the senders, -1 if not one
    uint64_t columns_offset, counts_offset, slots_offset   # in every row

    # Sending. `lock` guards claimed..ready against application threads (direct claims only).
    uint32_t lock
    uint32_t claim_waiting       # application threads that wait for a slot
    bint closed                  # wedged: nothing can be claimed any more
    bint claim_one               # batch_send off: one slot per claim, as one message per send
    uint64_t claimed             # indices taken, by applications, inboxes and nulls
    uint64_t committed           # indices below are filled, without a gap
    uint64_t published           # indices below are to be published in this pass, or have been
    uint64_t pushed              # indices below have been: slots and the count that guards them were left as posts
    uint64_t piece_end           # of the slots that go with the next count
    uint64_t piece_pushed        # indices below, of that piece, were left as posts
    uint64_t limit               # indices below may be claimed, as far as last looked
    uint64_t *ready              # per slot: index + 1 of the message filled in it
    uint64_t nulls_unpublished   # of published..committed, for counting
    uint64_t data_unpublished
    uint64_t data_bytes_unpublished
    int space_fd                 # rung when slots come free and claim_waiting; -1 until somebody waits
    uint64_t larges              # large samples among those claimed
    inbox_t **inboxes            # room for INBOXES_MAX, where this node is a sender
    uint32_t n_inboxes, inbox_next

    # Receiving and delivering
    uint64_t received            # sequence numbers that I have without a gap
    uint32_t receive_next        # sender rank to go on with in this pass (batch_receive off)
    uint64_t deliver_index       # of the next message in the delivery order
    uint32_t deliver_rank        # and its sender rank
    uint64_t delivered           # sequence numbers delivered
    uint64_t *wanted_rung        # per member: delivered_wanted that I rang for
    bint held                    # delivery waits (a joiner's history)
    bint receipt_held            # nothing is received either (what an earlier epoch delivered has no room yet)
    bint blocked                 # delivery waits for a keep-all reader
    bint damaged                 # delivery stands still before a slot that is not what it must be
    log_t *log                   # NULL: nobody reads here
    timing_t *timing             # what its messages say of time; NULL: nothing
    upcall_fn upcall             # NULL: no embedded receiver
    void *upcall_context
    bint upcall_batches

    # Persisting
    uint64_t durable             # set by the journal (release): delivered index before which all is on disk
    uint64_t durable_before      # log.count when delivery began in it: must be on disk before anything of it counts
    uint64_t *mark_index         # PERSIST_MARKS, of a logged topic: log.count after a delivery
    uint64_t *mark_delivered     # as many: delivered number after it
    uint64_t marks_head, marks_tail


# An inbox that a pass looks at.
cdef struct door_t:
    inbox_t *box
    uint32_t place               # of its topic


cdef struct node_t:
    uint64_t epoch
    uint32_t my_rank, n_rows, node_id
    char **rows
    subgroup_t *subgroups
    uint32_t n_subgroups
    fabric_t *fabric
    fabric_t *past               # of the epoch before, while its last posts are on their way; NULL otherwise
    uint64_t *counters
    relayed_t *relayed           # NULL: not noted
    larges_t *larges             # NULL: there are none, and one that comes is damage
    bint batch_send, batch_receive, batch_delivery, null_sends, post_after_unlock
    bint exchange_first          # a pass delivers nothing before it has exchanged of all topics (step.pxi)
    bint skip_idle               # a pass visits only topics in which something may have changed (activity.pxi)
    uint64_t noted[TOPIC_WORDS]  # topics that another thread of this process has given something to do
    uint64_t again[TOPIC_WORDS]  # topics whose last visit has done something, or that wait for a reader
    uint64_t expecting[TOPIC_WORDS]  # topics of which something was received and not delivered
    uint64_t apart[TOPIC_WORDS]  # unordered, and mine to send: members acknowledge in counts behind the lines
    uint64_t activity            # marks made in my row
    uint64_t *marks_seen         # per row: how many of its marks were taken
    uint8_t *row_shared          # per row: it is the owner's own, with its marks; else a copy
    uint64_t *lines_seen         # per row and topic: of a copy, the sum of the topic's columns
    door_t *doors                # all inboxes of this node's topics
    uint32_t n_doors
    bint wedged                  # nothing is sent, received or delivered any more in this epoch
    uint64_t now_ns              # UTC, of this pass
    uint32_t control_lock        # held while the own control columns and areas are changed, and while they are posted
    uint64_t *control_seen       # per row: control_version that the control thread was told of; own row: pushed
    uint64_t areas_pushed[2]     # versions of the own proposal and trim area that the others were sent
    int control_fd
    bint control_changed         # the driver has to tell the control thread
    # My heartbeat, which is raised here and not by the control thread: that one may have much to do.
    uint64_t beat_ns             # between two; 0: not yet
    uint64_t beat_at_ns          # of the last one
    uint32_t beats_max           # beats after a sign of life of the control thread: if it hangs, so do I for others
    uint32_t beats               # since its last sign of life
    uint32_t vouched             # raised by the control thread with each sign of life
    uint32_t vouched_seen
    bint beat_posted             # rows are copied: it isn't enough to store it

    # A pass: where it is (step), and what its last step has left to be carried out (effects).
    uint32_t stage, place        # what is next, and in which topic
    uint64_t topics[TOPIC_WORDS]  # that are still to be visited in this half of the pass
    bint delivers                # this is the second half
    uint64_t to_deliver[TOPIC_WORDS]  # topics of the second half
    uint64_t exchanged[TOPIC_WORDS]   # topics in which the first half has done something
    int done_there               # how much was done in that topic, in this half
    bint unfinished              # that predicate goes on when what it has left is carried out
    int done
    post_t posts[POSTS_MAX]
    uint32_t n_posts
    uint32_t *release            # a lock that is held until these are posted; NULL: none
    int readers[CURSORS_MAX]     # descriptors to be rung: there are messages for them,
    uint32_t n_readers
    uint32_t peers[NODES_MAX]    # row ranks: what they wait for has come,
    uint32_t n_peers
    int writers[WRITERS_MAX]     # and slots or acknowledgements; -1 - fd: an eventfd of this process
    uint32_t n_writers
