"""Who acts in virtual time: predicate threads and applications."""
from libc.stdint cimport uint32_t, uint64_t

from spindle_lab.paper.clock cimport fiber_t
from spindle_lab.paper.cores cimport cores_t, task_t
from spindle_lab.paper.wire cimport network_state_t
from spindle_core.state cimport delivery_t, node_t, subgroup_t

cdef enum:
    COPY_POINTS_MAX = 24
    YIELDS_BEFORE_SLEEP = 16     # of an application that waits for a slot, as in claims.pxi
    LATENCY_BUCKETS = 32 * 40    # 32 per power of two, from 1 ns
    PAUSES_MAX = 40
    BATCH_BUCKETS = 1024         # batches of up to so many messages are counted by their size


# What a node's own work costs, in picoseconds. `parameters.Node` says where the numbers come from.
cdef struct node_costs_t:
    uint64_t lap                 # a pass over all predicates
    uint64_t subgroup            # of a topic: its predicates when they find nothing
    uint64_t line                # to look at a line that nobody has changed
    uint64_t changed_line        # more, to look at one that somebody has changed
    uint64_t trigger             # of a predicate that fires, its posts and what it delivers not counted
    uint64_t claim, commit       # of a slot; the lock is held meanwhile
    uint64_t retry               # an application looks again whether a slot is free
    uint64_t handover            # of a lock that somebody waits for
    uint64_t deliver             # of a message, the upcall not counted
    uint64_t send                # of a message that is published, for the predicate thread
    uint64_t claim_shared, commit_shared     # what these cost more after a pass
    uint64_t look_shared         # what a pass costs more after a claim
    uint32_t copy_points
    uint64_t copy_size[COPY_POINTS_MAX]      # bytes, ascending
    uint64_t copy[COPY_POINTS_MAX]           # of so many bytes


cdef struct actor_t


# When a thread is interrupted next.
cdef struct pauses_t:
    uint64_t random, at_ps


# One node's side of one topic, as its applications see it.
cdef struct topic_t:
    actor_t *actor
    subgroup_t *s
    uint64_t upcall_ps           # of the application's own work in a delivery upcall, each message
    bint copies_out
    uint64_t disk_per_byte, disk_ahead_ps    # of a log: 0 none; how far behind it may be before delivery waits
    uint64_t disk_free_ps
    uint64_t spent_ps            # of the predicate thread, for this topic


cdef struct application_t:
    actor_t *actor
    topic_t *topic
    application_t *next          # of the same node
    uint64_t left, sent          # messages
    uint32_t size, second_size   # bytes, in turn
    uint64_t delay_ps            # busy, after each message
    bint copies_in
    uint64_t work_ps             # to make a message, in its slot
    bint committing, waiting, locked_out, asleep
    uint32_t yields              # looks for a slot since it got the last one
    uint64_t laps_seen           # of the predicate thread, at the last claim or commit
    task_t task
    uint64_t index, claimed_ps, since_ps, waited_ps, locked_ps
    uint64_t random
    pauses_t pauses


cdef struct run_t:
    network_state_t *net
    node_costs_t costs
    bint lock_free               # applications claim without the lock
    bint lock_through            # predicates hold it from their begin until they post, applications until they commit
    double jitter                # share of a cost by which it varies
    uint32_t n_pauses            # kinds of interruptions of threads; 0: none is interrupted
    uint64_t pause_ps[PAUSES_MAX]            # how long one is,
    double pause_share[PAUSES_MAX]           # and the share of all that are no longer than that
    double pause_every_ps        # of one thread's running time, mean
    cores_t cores
    actor_t *actors
    uint64_t mark_from, mark_until           # messages delivered at a node between which it is measured
    uint32_t n_finished
    uint64_t latency[LATENCY_BUCKETS]
    uint64_t latencies, latency_sum_ps


cdef struct actor_t:
    run_t *run
    node_t *node
    fiber_t fiber
    uint32_t rank, n_topics
    topic_t *topics
    application_t *applications
    uint32_t n_locked_out, n_waiting
    uint64_t now_ps, debt_ps     # debt: spent, and not yet passed
    task_t task
    bint idle, rung
    uint32_t relaxes             # with fewer cores than threads: passes since it last found something
    bint claimed                 # since the last pass
    bint asleep                  # with fewer cores than threads: until somebody rings
    uint64_t worked_ps           # when it last found something
    uint64_t idle_since_ps, lap_ps
    uint64_t changed             # lines that have arrived since the last pass
    uint64_t taken_ps            # of taking what has arrived since, where that is work
    uint64_t taken_from          # members, as bits, from whom
    uint64_t held_until_ps       # an application holds the lock
    uint64_t sends_until_ps      # the send predicate does
    uint64_t random
    pauses_t pauses
    uint64_t posting_ps, busy_ps, laps, null_laps, fired, fired_before_lock, published
    uint64_t looking_ps, firing_ps, delivering_ps    # of passes that found something; waits for a lock not counted
    bint finished                # what was waited for has been delivered, in a pass that is over
    uint64_t delivered, from_ps, until_ps
    uint64_t from_bytes, until_bytes, bytes
    uint64_t sent_before, batches_before, received_before, receipts_before, deliveries_before, messages_before
    uint64_t nulls_before
    uint64_t send_batches[BATCH_BUCKETS]
    uint64_t receive_batches[BATCH_BUCKETS]
    uint64_t delivery_batches[BATCH_BUCKETS]


cdef void predicates(void *self) noexcept nogil
cdef void application(application_t *app) noexcept nogil
cdef void rouse(actor_t *a) noexcept nogil
cdef void something_arrived(actor_t *a, uint32_t source, uint64_t length, bint rings) noexcept nogil
cdef void take(void *context, const delivery_t *messages, uint32_t n) noexcept nogil
cdef void ring_peer(void *self, uint32_t peer) noexcept nogil
cdef uint64_t posting_starts(void *self, uint64_t offset) noexcept nogil
cdef void posting_ends(void *self, uint64_t until_ps, uint32_t posts, uint64_t offset) noexcept nogil
