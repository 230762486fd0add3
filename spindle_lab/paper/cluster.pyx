"""A cluster in virtual time: nodes with the production core, their applications, and the network between them.

Made whole, run once, asked for its results. Deterministic: the same arguments give the same results.
"""
import random
from dataclasses import dataclass, field, replace

from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from spindle_lab.paper.actors cimport (
    BATCH_BUCKETS,
    COPY_POINTS_MAX,
    LATENCY_BUCKETS,
    PAUSES_MAX,
    actor_t,
    application,
    application_t,
    posting_ends,
    posting_starts,
    predicates,
    ring_peer,
    run_t,
    something_arrived,
    take,
    topic_t,
)
from spindle_lab.paper.clock cimport clock_add, clock_take, event_t, fiber_enter, fiber_free, fiber_make
from spindle_lab.paper.cores cimport CORES_MAX, core_wanted
from spindle_lab.paper.wire cimport (
    AREAS_MAX,
    EVENT_APPLICATION,
    EVENT_ARRIVED,
    EVENT_CARD,
    EVENT_POSTED,
    EVENT_PREDICATES,
    MEMBERS_MAX,
    TimedFabric,
    arrived,
    card_next,
    card_t,
    free_network,
    network_state_t,
    posted,
    ps_of,
    set_network,
    transfer_t,
)
from spindle_core.epoch cimport Epoch
from spindle_core.state cimport upcall_fn

from spindle_core.engine import Engine, SubgroupSpec
from spindle_core.switches import Switches

MEMBERS_LIMIT = MEMBERS_MAX
BATCHES_COUNTED = BATCH_BUCKETS


@dataclass
class Sender:
    """An application: so many messages of `size` bytes into a topic; second_size: of every second one (None: the same);
    delay_us: busy after each; work_us: to make one, in its slot; copies_in: each is copied into its slot; start_us:
    when the application begins."""

    rank: int
    topic: int
    messages: int
    size: int
    delay_us: float = 0.0
    copies_in: bool = False
    work_us: float = 0.0
    start_us: float = 0.0
    second_size: int | None = None


@dataclass
class Upcall:
    """What delivery of a topic costs the application: us of each message, a copy, a log on disk (bytes/s; 0: none)."""

    us: float = 0.0
    copies_out: bool = False
    disk_bytes_s: float = 0.0
    disk_ahead_bytes: int = 64 << 20


@dataclass
class Outcome:
    """What a run has shown. Times in seconds; per node where it says so, in the order of ranks."""

    finished: bool                  # False: it came to a stand before everything was delivered
    seconds: float                  # until the last node had delivered everything that was waited for
    bytes_s: list                   # per node: payload delivered, between the marks
    messages_s: list                # per node
    latency_s: dict                 # quantile (0.5, 0.9, 0.99) -> seconds, over all deliveries between the marks
    latency_mean_s: float
    counters: list                  # per node: the core's
    posting_s: list                 # per node: the predicate thread in posts,
    looking_s: list                 # at columns, in passes that found something,
    firing_s: list                  # in what predicates do that fire, their posts and deliveries not counted,
    delivering_s: list              # in delivery upcalls
    busy_s: list                    # per node: passes that found something
    laps: list
    null_laps: list                 # passes with nulls
    topic_shares: list              # per node: {topic: share of the predicate thread's time}
    waiting_s: list                 # per sender: for a slot
    locked_s: list                  # per sender: for the lock
    sent: list                      # per sender
    batches: dict                   # "send", "receive", "delivery" -> {size: how often}, over all nodes
    writes: int
    bytes: int                      # posted
    out_bytes: list = field(default_factory=list)      # per node
    port_s: list = field(default_factory=list)         # per node: its port sends
    port_counts_s: list = field(default_factory=list)  # counts, of that
    acknowledgement_s: float = 0.0  # from its post until it is seen, mean
    cores_s: float = 0.0            # of all cores together, where there are fewer than threads: in use
    switches: int = 0               # of threads on cores


cdef class Cluster:
    """`topics`: SubgroupSpec of each; `parameters`: parameters.Parameters; range_cost: of a further post, in bytes of
    unused slots that are posted along (None: whole slots, as in the paper); push_bytes: of a batch, after which a
    count follows (None: at its end, as in the paper); lock_free: claims take no lock; ahead: what
    need not wait for data (POST_AHEAD: acknowledgements) has a connection of its own, else one connection carries all;
    once: what a pass acknowledges leaves at its end, in one list, and what it has received and delivered in one write.

    Raises ValueError for what no epoch can have, or above the model's limits.
    """
    cdef network_state_t *net
    cdef run_t state
    cdef actor_t *actors
    cdef topic_t *topics
    cdef application_t *applications
    cdef uint32_t n, n_topics, n_applications
    cdef readonly list engines
    cdef list epochs
    cdef list senders
    cdef bint over

    def __cinit__(self):
        memset(&self.state, 0, sizeof(run_t))

    def __init__(self, parameters, n, topics, senders, *, switches=None, upcalls=None, range_cost=None,
                 push_bytes=None, lock_free=False, ahead=False, once=False, upcall_batches=True, seed=1):
        cdef uint32_t i, k
        cdef Epoch epoch
        cdef TimedFabric fabric
        cdef network_state_t *net
        if not 1 <= n <= MEMBERS_MAX:
            raise ValueError(f"{n} members: between 1 and {MEMBERS_MAX}")
        if not 1 <= len(topics) <= AREAS_MAX:
            raise ValueError(f"{len(topics)} topics: between 1 and {AREAS_MAX}")
        for spec in topics:
            if not isinstance(spec, SubgroupSpec):
                raise TypeError("topics are SubgroupSpecs")
        self.n, self.n_topics, self.n_applications = n, len(topics), len(senders)
        self.senders = list(senders)
        self.net = net = <network_state_t *>calloc(1, sizeof(network_state_t))
        self.actors = <actor_t *>calloc(n, sizeof(actor_t))
        self.topics = <topic_t *>calloc(n * len(topics), sizeof(topic_t))
        self.applications = <application_t *>calloc(max(1, len(senders)), sizeof(application_t))
        if net == NULL or self.actors == NULL or self.topics == NULL or self.applications == NULL:
            raise MemoryError()
        self.state.net = net
        self.state.actors = self.actors
        net.n = n
        net.ahead = ahead
        net.once = once
        self.set_costs(parameters)
        self.state.lock_free = lock_free
        self.state.lock_through = parameters.lock_through
        self.engines, self.epochs = [], []
        for rank in range(n):
            # As in the paper, every pass looks at every topic, one after the other: that is what a pass costs here.
            engine = Engine(rank + 1,
                            switches=replace(switches or Switches(), skip_idle=False, exchange_first=False))
            fabric = TimedFabric(rank, n)
            fabric.net_owner = self
            fabric.end.net = net
            fabric.end.poster = &self.actors[<uint32_t>rank]
            fabric.end.start = posting_starts
            fabric.end.spend = posting_ends
            fabric.end.ring = ring_peer
            if range_cost is not None:
                fabric.table.range_cost = range_cost
            if push_bytes is not None:
                fabric.table.push_bytes = push_bytes
            self.engines.append(engine)
            self.epochs.append(engine.new_epoch(1, rank, range(1, n + 1), topics, fabric))
        for rank, epoch in enumerate(self.epochs):
            for other in range(n):
                if other != rank:
                    epoch.attach_local(other, self.epochs[other])
        for rank, epoch in enumerate(self.epochs):
            self.engines[rank].install(epoch)
            self.make_actor(rank, epoch, seed)
            for place, spec in enumerate(topics):
                if rank in spec.members:
                    upcall = (upcalls or {}).get(spec.topic_id, Upcall())
                    self.bind(rank, place, upcall, upcall_batches)
        epoch = self.epochs[0]
        for i in range(self.n_topics):
            net.areas[i].begin = epoch.node.subgroups[i].slots_offset
            net.areas[i].end = net.areas[i].begin + epoch.node.subgroups[i].ring * epoch.node.subgroups[i].stride
            net.areas[i].stride = epoch.node.subgroups[i].stride
        net.n_areas = self.n_topics
        places = {spec.topic_id: place for place, spec in enumerate(topics)}
        for k, sender in enumerate(senders):
            self.make_application(k, sender, places[sender.topic], seed)
        self.place_threads(seed)

    cdef int set_costs(self, parameters) except -1:
        node = parameters.node
        set_network(self.net, parameters.network)
        c = &self.state.costs
        c.lap = ps_of(node.lap_ns)
        c.subgroup = ps_of(node.subgroup_ns)
        c.line = ps_of(node.line_ns)
        c.changed_line = ps_of(node.changed_line_ns)
        c.trigger = ps_of(node.trigger_ns)
        c.claim = ps_of(node.claim_ns)
        c.commit = ps_of(node.commit_ns)
        c.retry = ps_of(node.retry_ns)
        c.handover = ps_of(node.handover_ns)
        c.deliver = ps_of(node.deliver_ns)
        c.send = ps_of(node.send_ns)
        c.claim_shared = ps_of(node.claim_shared_ns)
        c.commit_shared = ps_of(node.commit_shared_ns)
        c.look_shared = ps_of(node.look_shared_ns)
        if len(node.copy_ns) > COPY_POINTS_MAX:
            raise ValueError(f"a curve of {len(node.copy_ns)} points: {COPY_POINTS_MAX} at most")
        c.copy_points = len(node.copy_ns)
        for i, (size, ns) in enumerate(sorted(node.copy_ns.items())):
            c.copy_size[<uint32_t>i] = size
            c.copy[<uint32_t>i] = ps_of(ns)
        self.state.jitter = parameters.jitter
        self.set_pauses(parameters.pauses)
        if not 0 <= parameters.cores <= CORES_MAX:
            raise ValueError(f"{parameters.cores} cores: at most {CORES_MAX}, or 0 for as many as threads")
        cores = &self.state.cores
        cores.n = parameters.cores
        cores.clock = &self.net.clock
        cores.costs.give = ps_of(node.yield_ns)
        cores.costs.spin = ps_of(node.spin_ns)
        cores.costs.change = ps_of(node.switch_ns)
        cores.costs.slice = ps_of(node.slice_ns)
        cores.costs.ring = ps_of(node.ring_ns)
        cores.costs.ring_busy = ps_of(node.ring_busy_ns)
        cores.costs.woken = ps_of(node.woken_ns)
        cores.costs.poll = ps_of(node.busy_poll_ns)
        return 0

    cdef int set_pauses(self, pauses) except -1:
        """`pauses`: {ns: how many a second}."""
        if len(pauses) > PAUSES_MAX:
            raise ValueError(f"{len(pauses)} kinds of interruptions: {PAUSES_MAX} at most")
        every_s = sum(pauses.values())
        if not pauses or not every_s:
            return 0
        running = 1 - sum(ns * count for ns, count in pauses.items()) / 1e9
        if running <= 0:
            raise ValueError("threads that are interrupted all the time")
        self.state.n_pauses = len(pauses)
        self.state.pause_every_ps = 1e12 * running / every_s
        share = 0.0
        for i, (ns, count) in enumerate(sorted(pauses.items())):
            share += count / every_s
            self.state.pause_ps[<uint32_t>i] = ps_of(ns)
            self.state.pause_share[<uint32_t>i] = share
        return 0

    cdef int make_actor(self, rank, Epoch epoch, seed) except -1:
        cdef actor_t *a = &self.actors[<uint32_t>rank]
        cdef uint32_t i
        a.run = &self.state
        a.task.kind = EVENT_PREDICATES
        a.task.what = a
        a.node = &epoch.node
        a.rank = rank
        a.n_topics = self.n_topics
        a.topics = &self.topics[<uint32_t>rank * self.n_topics]
        a.random = (seed * 7919 + rank + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF | 1
        a.pauses.random = (seed * 6007 + rank + 1) * 0x9E3779B97F4A7C15 & 0xFFFFFFFFFFFFFFFF | 1
        for i in range(self.n_topics):
            a.topics[i].actor = a
            a.topics[i].s = &epoch.node.subgroups[i]
        if not fiber_make(&a.fiber, predicates, a):
            raise MemoryError()
        return 0

    cdef int bind(self, rank, place, upcall, upcall_batches) except -1:
        cdef topic_t *topic = &self.topics[<uint32_t>rank * self.n_topics + <uint32_t>place]
        cdef upcall_fn function = take
        topic.upcall_ps = ps_of(upcall.us * 1000)
        topic.copies_out = upcall.copies_out
        if upcall.disk_bytes_s:
            topic.disk_per_byte = ps_of(1e9 / upcall.disk_bytes_s)
            topic.disk_ahead_ps = upcall.disk_ahead_bytes * topic.disk_per_byte
        self.engines[rank].set_upcall(topic.s.topic_id, <size_t>function, <size_t>topic, batches=upcall_batches,
                                      keep=self)
        return 0

    cdef int make_application(self, k, sender, place, seed) except -1:
        cdef application_t *app = &self.applications[<uint32_t>k]
        cdef actor_t *a = &self.actors[<uint32_t>sender.rank]
        app.actor = a
        app.task.kind = EVENT_APPLICATION
        app.task.what = app
        app.topic = &a.topics[<uint32_t>place]
        if app.topic.s.my_sender < 0:
            raise ValueError(f"rank {sender.rank} is no sender of topic {sender.topic}")
        second_size = sender.size if sender.second_size is None else sender.second_size
        for size in (sender.size, second_size):
            if not 0 <= size <= app.topic.s.size_max:
                raise ValueError(f"messages of {size} bytes: the topic's size_max is {app.topic.s.size_max}")
        app.left = sender.messages
        app.size, app.second_size = sender.size, second_size
        app.delay_ps = ps_of(sender.delay_us * 1000)
        app.copies_in = sender.copies_in
        app.work_ps = ps_of(sender.work_us * 1000)
        app.random = (seed * 104729 + k + 1) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF | 1
        app.pauses.random = (seed * 50021 + k + 1) * 0xBF58476D1CE4E5B9 & 0xFFFFFFFFFFFFFFFF | 1
        app.next = a.applications
        a.applications = app
        return 0

    cdef int place_threads(self, seed) except -1:
        """Spreads the threads evenly over the cores; chance says which go where."""
        cdef uint32_t k, i
        if self.state.cores.n == 0:
            return 0
        places = list(range(self.n + self.n_applications))
        random.Random(seed).shuffle(places)
        for place, number in enumerate(places):
            k, i = place % self.state.cores.n, number
            if i < self.n:
                self.actors[i].task.core = k
            else:
                self.applications[i - self.n].task.core = k
        return 0

    def run(self, *, until=None, warm_up=0.25, limit_s=60.0):
        """Runs until every node has delivered `until` messages (default: all), or `limit_s` of virtual time are over.

        What comes after the share `warm_up` of that is measured. To be called once. Returns an Outcome.
        """
        cdef uint32_t i
        cdef uint64_t start_ps, limit_ps = round(limit_s * 1e12)
        if self.over:
            raise RuntimeError("a cluster runs once")
        self.over = True
        total = sum(sender.messages for sender in self.senders)
        until = total if until is None else min(until, total)
        self.state.mark_until = max(2, until)
        self.state.mark_from = max(1, round(until * warm_up))
        for i in range(self.n):
            core_wanted(&self.state.cores, &self.actors[i].task, 0)
        for i in range(self.n_applications):
            if self.applications[i].left:
                start_ps = ps_of(self.senders[i].start_us * 1000)
                clock_add(&self.net.clock, start_ps + self.applications[i].random % 1_000_000, EVENT_APPLICATION,
                          &self.applications[i])
        with nogil:
            self.play(limit_ps)
        if self.net.clock.failed:
            raise MemoryError("no memory for the events of this run")
        return self.outcome()

    cdef void play(self, uint64_t limit_ps) noexcept nogil:
        cdef event_t event
        cdef uint64_t length
        cdef uint32_t source
        cdef bint rings
        cdef transfer_t *t
        while (self.state.n_finished < self.n and self.net.clock.n and self.net.clock.heap[0].at_ps < limit_ps
               and clock_take(&self.net.clock, &event)):
            if event.kind == EVENT_PREDICATES:
                fiber_enter(&(<actor_t *>event.what).fiber)
            elif event.kind == EVENT_POSTED:
                posted(self.net, <transfer_t *>event.what)
            elif event.kind == EVENT_CARD:
                card_next(self.net, <card_t *>event.what)
            elif event.kind == EVENT_ARRIVED:
                t = <transfer_t *>event.what
                length, source, rings = t.length, t.wire.source, t.rings
                something_arrived(&self.actors[arrived(self.net, t)], source, length, rings)
            else:
                application(<application_t *>event.what)

    def outcome(self):
        cdef uint32_t i, k
        cdef actor_t *a
        cdef uint64_t now_ps = self.net.clock.now_ps
        spans = []
        for i in range(self.n):
            a = &self.actors[i]
            until_ps, until_bytes, messages = a.until_ps, a.until_bytes, self.state.mark_until - self.state.mark_from
            if not until_ps:                     # came to a stand
                until_ps, until_bytes = now_ps, a.bytes
                messages = a.delivered - min(a.delivered, self.state.mark_from)
            seconds = max(1e-12, (until_ps - a.from_ps) / 1e12)
            spans.append((seconds, until_bytes - a.from_bytes if a.from_ps else 0, messages))
        latency, batches = {}, {"send": {}, "receive": {}, "delivery": {}}
        counts = [self.state.latency[i] for i in range(<uint32_t>LATENCY_BUCKETS)]
        for quantile in (0.5, 0.9, 0.99):
            latency[quantile] = quantile_of(counts, self.state.latencies * quantile)
        for k in range(<uint32_t>BATCH_BUCKETS):
            for name, count in (
                ("send", sum([self.actors[i].send_batches[k] for i in range(self.n)])),
                ("receive", sum([self.actors[i].receive_batches[k] for i in range(self.n)])),
                ("delivery", sum([self.actors[i].delivery_batches[k] for i in range(self.n)])),
            ):
                if count:
                    batches[name][k] = count
        shares = []
        for i in range(self.n):
            a = &self.actors[i]
            whole = sum([a.topics[k].spent_ps for k in range(self.n_topics)]) or 1
            shares.append({a.topics[k].s.topic_id: a.topics[k].spent_ps / whole for k in range(self.n_topics)})
        return Outcome(
            finished=self.state.n_finished == self.n,
            seconds=now_ps / 1e12,
            bytes_s=[span[1] / span[0] for span in spans],
            messages_s=[span[2] / span[0] for span in spans],
            latency_s=latency,
            latency_mean_s=self.state.latency_sum_ps / (self.state.latencies or 1) / 1e12,
            counters=[engine.counters.snapshot() for engine in self.engines],
            posting_s=[self.actors[i].posting_ps / 1e12 for i in range(self.n)],
            looking_s=[self.actors[i].looking_ps / 1e12 for i in range(self.n)],
            firing_s=[self.actors[i].firing_ps / 1e12 for i in range(self.n)],
            delivering_s=[self.actors[i].delivering_ps / 1e12 for i in range(self.n)],
            busy_s=[self.actors[i].busy_ps / 1e12 for i in range(self.n)],
            laps=[self.actors[i].laps for i in range(self.n)],
            null_laps=[self.actors[i].null_laps for i in range(self.n)],
            topic_shares=shares,
            waiting_s=[self.applications[i].waited_ps / 1e12 for i in range(self.n_applications)],
            locked_s=[self.applications[i].locked_ps / 1e12 for i in range(self.n_applications)],
            sent=[self.applications[i].sent for i in range(self.n_applications)],
            batches=batches,
            writes=self.net.writes,
            bytes=self.net.bytes,
            out_bytes=[self.net.cards[i].out_bytes for i in range(self.n)],
            port_s=[self.net.cards[i].out_busy_ps / 1e12 for i in range(self.n)],
            port_counts_s=[self.net.cards[i].counts_busy_ps / 1e12 for i in range(self.n)],
            acknowledgement_s=self.net.acknowledgements_ps / (self.net.acknowledgements or 1) / 1e12,
            cores_s=self.state.cores.used_ps / 1e12,
            switches=self.state.cores.changes,
        )

    def close(self):
        """Frees memory and descriptors. Idempotent."""
        for engine in self.engines or []:
            engine.stop(drain_s=0)
        self.engines, self.epochs = [], []

    def __dealloc__(self):
        cdef uint32_t i
        if self.actors != NULL:
            for i in range(self.n):
                fiber_free(&self.actors[i].fiber)
        free_network(self.net)
        free(self.actors)
        free(self.topics)
        free(self.applications)


def quantile_of(counts, place):
    """The time in seconds up to which so many of the latencies are; buckets are a 32nd of a power of two wide."""
    for i, count in enumerate(counts):
        place -= count
        if place <= 0 and count:
            return (((32 + i % 32) << i // 32) - 32 + (1 << i // 32) / 2) / 1e9
    return 0.0
