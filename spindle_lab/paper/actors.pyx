"""Who acts in virtual time: the predicate thread and the applications of each node.

The predicate thread is the production core: a pass, step by step, and what its steps leave to be posted. Around it is
nothing but the time that passes: for a pass, by how many lines it looks at and how many of those have changed; for
a list of posts, in its middle, so that others act meanwhile; for each message delivered. An application claims a slot
under the subgroup's lock with the core's own functions, fills it and commits it.

One lock, two actors: while the predicate thread posts under it (switch `post_after_unlock` off) the application finds
it taken, and goes on when it is free. What a predicate spends before it takes the lock is not spent under it (with
`lock_through` all of it is). The other way round, while the application has the lock, a pass waits for it before its
first predicate.

A predicate thread that finds nothing looks again and again. Those passes are not played: it goes on with the pass that
would have been the first to see what has come.
"""
from libc.math cimport log
from libc.stdint cimport int64_t, uint32_t, uint64_t

from spindle_lab.paper.clock cimport clock_add, fiber_leave
from spindle_lab.paper.cores cimport (
    core_given,
    core_left,
    core_shared,
    core_wanted,
    core_woken,
    cores_t,
)
from spindle_lab.paper.wire cimport EVENT_APPLICATION, EVENT_PREDICATES, network_t
from spindle_core.atomics cimport u32_load_relaxed, u32_store_relaxed
from spindle_core.counters cimport (
    C_DELIVERY_BATCHES,
    C_DELIVERY_MESSAGES,
    C_NULLS,
    C_RECEIVE_BATCHES,
    C_RECEIVE_MESSAGES,
    C_SEND_BATCHES,
    C_SEND_MESSAGES,
)
from spindle_core.hot_path cimport claim, claimable, fill_header, mark_ready, whole_pass
from spindle_core.idling cimport FALL_ASLEEP, LOOK_AGAIN, after_nothing, idling
from spindle_core.layout cimport ROW_SUBGROUPS_OFFSET, subgroup_columns
from spindle_core.state cimport delivery_t, subgroup_t

cdef uint64_t DEBT_MAX_PS = 500_000      # what may be spent before others act


# ---- costs ---------------------------------------------------------------------------------------------------------

cdef inline double drawn(uint64_t *random) noexcept nogil:
    """From 0 to 1. xorshift64*: the same run from the same seed."""
    cdef uint64_t x = random[0]
    x ^= x >> 12
    x ^= x << 25
    x ^= x >> 27
    random[0] = x
    return ((x * <uint64_t>2685821657736338717) >> 11) / 9007199254740992.0


cdef inline uint64_t varied(run_t *run, uint64_t *random, uint64_t ps) noexcept nogil:
    if run.jitter == 0:
        return ps
    return <uint64_t>(ps * (1.0 + run.jitter * (2.0 * drawn(random) - 1.0)))


cdef uint64_t until_next(run_t *run, pauses_t *p) noexcept nogil:
    return <uint64_t>(-log(1.0 - drawn(&p.random)) * run.pause_every_ps)


cdef uint64_t interrupted(run_t *run, pauses_t *p, uint64_t from_ps, uint64_t until_ps) noexcept nogil:
    """When a thread is done that would be done at until_ps if nothing interrupted it."""
    cdef double share
    cdef uint32_t i
    if run.n_pauses == 0:
        return until_ps
    if p.at_ps == 0:
        p.at_ps = until_next(run, p)
    while p.at_ps < from_ps:         # while it had nothing to do
        p.at_ps += 1 + until_next(run, p)
    while p.at_ps <= until_ps:
        share = drawn(&p.random)
        i = 0
        while i + 1 < run.n_pauses and share > run.pause_share[i]:
            i += 1
        until_ps += run.pause_ps[i]
        p.at_ps += 1 + run.pause_ps[i] + until_next(run, p)
    return until_ps


cdef uint64_t copy_ps(const node_costs_t *c, uint64_t size) noexcept nogil:
    """Between two measured sizes in proportion; beyond the last one at its pace."""
    cdef uint32_t i
    for i in range(c.copy_points):
        if size <= c.copy_size[i]:
            if i == 0:
                return c.copy[0]
            return c.copy[i - 1] + (c.copy[i] - c.copy[i - 1]) * (size - c.copy_size[i - 1]) // (
                c.copy_size[i] - c.copy_size[i - 1])
    if c.copy_points == 0:
        return 0
    i = c.copy_points - 1
    return <uint64_t>(<double>c.copy[i] * size / c.copy_size[i])


cdef inline void spend_until(actor_t *a, uint64_t until_ps) noexcept nogil:
    """The predicate thread is busy until then; others act meanwhile."""
    until_ps = interrupted(a.run, &a.pauses, a.now_ps, until_ps)
    a.now_ps = until_ps
    if a.run.net.clock.n and a.run.net.clock.heap[0].at_ps <= until_ps:
        clock_add(&a.run.net.clock, until_ps, EVENT_PREDICATES, a)
        fiber_leave(&a.fiber)
    else:
        a.run.net.clock.now_ps = until_ps


cdef inline void pay(actor_t *a) noexcept nogil:
    """Lets the time pass that was spent."""
    cdef uint64_t debt_ps = a.debt_ps
    a.debt_ps = 0
    if debt_ps:
        spend_until(a, a.now_ps + debt_ps)


cdef void free_locks(actor_t *a) noexcept nogil:
    """Applications that found a lock taken go on where it is free now."""
    cdef application_t *app = a.applications
    if a.n_locked_out == 0:
        return
    while app != NULL:
        if app.locked_out and not u32_load_relaxed(&app.topic.s.lock):
            app.locked_out = False
            a.n_locked_out -= 1
            app.locked_ps += a.now_ps - app.since_ps
            core_wanted(&a.run.cores, &app.task, a.now_ps + a.run.costs.handover)
        app = app.next


cdef void free_slots(actor_t *a, uint64_t now_ps) noexcept nogil:
    """Applications that wait for a slot see it at their next look."""
    cdef application_t *app = a.applications
    if a.n_waiting == 0 or a.run.cores.n:
        return
    while app != NULL:
        if app.waiting and claimable(app.topic.s, 1):
            app.waiting = False
            a.n_waiting -= 1
            app.waited_ps += now_ps - app.since_ps
            clock_add(&a.run.net.clock, now_ps + varied(a.run, &app.random, a.run.costs.retry), EVENT_APPLICATION, app)
        app = app.next


cdef void wake_applications(actor_t *a) noexcept nogil:
    """Wakes the applications that sleep until there are slots, where the send predicate has rung for them."""
    cdef application_t *app = a.applications
    if a.n_waiting == 0:
        return
    while app != NULL:
        if app.asleep and not u32_load_relaxed(&app.topic.s.claim_waiting):
            app.asleep = False
            a.n_waiting -= 1
            app.waited_ps += a.now_ps - app.since_ps
            a.debt_ps += core_woken(&a.run.cores, &app.task, a.now_ps)
        app = app.next


# ---- the predicate thread ------------------------------------------------------------------------------------------

cdef topic_t *topic_at(actor_t *a, uint64_t offset) noexcept nogil:
    """The topic that this part of a row belongs to."""
    cdef uint64_t place
    cdef uint32_t i
    if offset < ROW_SUBGROUPS_OFFSET:
        return NULL
    place = (offset - ROW_SUBGROUPS_OFFSET) // sizeof(subgroup_columns)
    if place < a.n_topics:
        return &a.topics[place]
    for i in range(a.n_topics):
        if a.node.subgroups[i].counts_offset <= offset < a.node.subgroups[i].counts_offset + 64:
            return &a.topics[i]
        if 0 <= <int64_t>(offset - a.node.subgroups[i].slots_offset) < <int64_t>(
                a.node.subgroups[i].ring * a.node.subgroups[i].stride):
            return &a.topics[i]
    return NULL


cdef inline void owe_triggers(actor_t *a) noexcept nogil:
    """Adds to the debt what the predicates cost that have fired since the last time."""
    cdef uint64_t *c = a.node.counters
    cdef uint64_t fired = c[C_SEND_BATCHES] + c[C_RECEIVE_BATCHES] + c[C_DELIVERY_BATCHES]
    if c[C_SEND_MESSAGES] != a.published and a.run.costs.send:
        a.firing_ps += (c[C_SEND_MESSAGES] - a.published) * a.run.costs.send
        a.debt_ps += (c[C_SEND_MESSAGES] - a.published) * a.run.costs.send
        a.sends_until_ps = a.now_ps + a.debt_ps
    a.firing_ps += (fired - a.fired) * a.run.costs.trigger
    a.debt_ps += (fired - a.fired) * a.run.costs.trigger
    a.fired = fired
    a.fired_before_lock = c[C_RECEIVE_BATCHES] + c[C_DELIVERY_BATCHES]
    a.published = c[C_SEND_MESSAGES]


cdef void pay_before_lock(actor_t *a) noexcept nogil:
    """A predicate that posts under the lock takes it only for that: while it and those before it spent what they have
    spent, the application could have the lock. Only the send predicate decides under it."""
    cdef uint64_t *c = a.node.counters
    cdef uint64_t fired = c[C_RECEIVE_BATCHES] + c[C_DELIVERY_BATCHES]
    cdef subgroup_t *s = NULL
    cdef uint32_t i
    for i in range(a.n_topics):
        if u32_load_relaxed(&a.node.subgroups[i].lock):
            s = &a.node.subgroups[i]
    if s == NULL or a.run.lock_free:
        return
    a.firing_ps += (fired - a.fired_before_lock) * a.run.costs.trigger
    a.debt_ps += (fired - a.fired_before_lock) * a.run.costs.trigger
    a.fired += fired - a.fired_before_lock
    a.fired_before_lock = fired
    u32_store_relaxed(&s.lock, 0)
    free_locks(a)
    pay(a)
    if a.held_until_ps > a.now_ps:
        spend_until(a, a.held_until_ps)
    u32_store_relaxed(&s.lock, 1)


cdef void pay_locked(actor_t *a, subgroup_t *s) noexcept nogil:
    """Lets the time pass that was spent, while applications find the lock taken."""
    cdef uint32_t held = u32_load_relaxed(&s.lock)
    while a.held_until_ps > a.now_ps:        # a commit at that instant extends it
        spend_until(a, a.held_until_ps)
    u32_store_relaxed(&s.lock, 1)
    pay(a)
    u32_store_relaxed(&s.lock, held)


cdef uint64_t posting_starts(void *self, uint64_t offset) noexcept nogil:
    cdef actor_t *a = <actor_t *>self
    cdef topic_t *topic
    if a.run.lock_through:
        topic = topic_at(a, offset)
        owe_triggers(a)
        if topic != NULL:
            pay_locked(a, topic.s)
    else:
        pay_before_lock(a)
    free_locks(a)
    owe_triggers(a)
    a.now_ps += a.debt_ps
    a.debt_ps = 0
    return a.now_ps


cdef void posting_ends(void *self, uint64_t until_ps, uint32_t posts, uint64_t offset) noexcept nogil:
    cdef actor_t *a = <actor_t *>self
    cdef topic_t *topic = topic_at(a, offset)
    a.posting_ps += until_ps - a.now_ps
    if topic != NULL:
        topic.spent_ps += until_ps - a.now_ps
    spend_until(a, until_ps)


cdef void take(void *context, const delivery_t *messages, uint32_t n) noexcept nogil:
    """The delivery upcall."""
    cdef topic_t *topic = <topic_t *>context
    cdef actor_t *a = topic.actor
    cdef run_t *run = a.run
    cdef uint32_t i, octave
    cdef uint64_t ps, ns, wait_ps, before_ps = a.now_ps + a.debt_ps
    for i in range(n):
        a.debt_ps += run.costs.deliver + topic.upcall_ps
        if topic.copies_out:
            a.debt_ps += copy_ps(&run.costs, messages[i].size)
        if topic.disk_per_byte:
            if topic.disk_free_ps < a.now_ps + a.debt_ps:
                topic.disk_free_ps = a.now_ps + a.debt_ps
            topic.disk_free_ps += messages[i].size * topic.disk_per_byte
            wait_ps = topic.disk_free_ps - a.now_ps - a.debt_ps
            if wait_ps > topic.disk_ahead_ps:
                a.debt_ps += wait_ps - topic.disk_ahead_ps
        a.bytes += messages[i].size
        a.delivered += 1
        if a.delivered == run.mark_from:
            a.from_ps = a.now_ps + a.debt_ps
            a.from_bytes = a.bytes
        elif a.delivered == run.mark_until:
            a.until_ps = a.now_ps + a.debt_ps
            a.until_bytes = a.bytes
        if run.mark_from <= a.delivered <= run.mark_until:
            ps = a.now_ps + a.debt_ps - messages[i].source_ns * 1000
            run.latencies += 1
            run.latency_sum_ps += ps
            ns = ps // 1000 + 32
            octave = 0
            while ns >> octave >= 64:
                octave += 1
            octave = octave * 32 + <uint32_t>(ns >> octave) - 32
            run.latency[octave if octave < LATENCY_BUCKETS else LATENCY_BUCKETS - 1] += 1
        if a.debt_ps > DEBT_MAX_PS:
            topic.spent_ps += a.now_ps + a.debt_ps - before_ps
            a.delivering_ps += a.now_ps + a.debt_ps - before_ps
            if run.lock_through:
                pay_locked(a, topic.s)
            else:
                pay(a)
            before_ps = a.now_ps
    topic.spent_ps += a.now_ps + a.debt_ps - before_ps
    a.delivering_ps += a.now_ps + a.debt_ps - before_ps


cdef inline void count_batch(uint64_t *buckets, uint64_t batches, uint64_t messages) noexcept nogil:
    """What one pass has done of a kind, of one topic: one batch, or one message at a time."""
    if batches:
        messages //= batches
        buckets[messages if messages < BATCH_BUCKETS else BATCH_BUCKETS - 1] += batches


cdef void count_batches(actor_t *a) noexcept nogil:
    cdef uint64_t *c = a.node.counters
    count_batch(a.send_batches, c[C_SEND_BATCHES] - a.batches_before, c[C_SEND_MESSAGES] - a.sent_before)
    count_batch(a.receive_batches, c[C_RECEIVE_BATCHES] - a.receipts_before, c[C_RECEIVE_MESSAGES] - a.received_before)
    count_batch(a.delivery_batches, c[C_DELIVERY_BATCHES] - a.deliveries_before,
                c[C_DELIVERY_MESSAGES] - a.messages_before)
    a.null_laps += c[C_NULLS] != a.nulls_before
    a.batches_before, a.sent_before = c[C_SEND_BATCHES], c[C_SEND_MESSAGES]
    a.receipts_before, a.received_before = c[C_RECEIVE_BATCHES], c[C_RECEIVE_MESSAGES]
    a.deliveries_before, a.messages_before = c[C_DELIVERY_BATCHES], c[C_DELIVERY_MESSAGES]
    a.nulls_before = c[C_NULLS]


cdef uint64_t look_at_all(actor_t *a) noexcept nogil:
    """What a pass costs whose predicates find nothing, and the lines that have changed."""
    cdef node_costs_t *c = &a.run.costs
    cdef uint64_t ps = c.lap, one
    cdef uint32_t i
    cdef subgroup_t *s
    for i in range(a.n_topics):
        s = &a.node.subgroups[i]
        if s.mine == NULL:
            continue
        # The receive and the null-send predicate look at the senders' lines, the deliver predicate at the members'.
        one = c.subgroup + (2 * s.n_senders + s.n_members) * c.line
        a.topics[i].spent_ps += one
        ps += one
    ps += a.changed * c.changed_line + a.taken_ps + (c.look_shared if a.claimed else 0)
    a.claimed = False
    a.changed = a.taken_ps = a.taken_from = 0
    return ps


cdef inline idling what_next(actor_t *a) noexcept nogil:
    return after_nothing(a.node, a.relaxes, (a.now_ps - a.worked_ps) // 1000, a.run.cores.costs.poll // 1000,
                         False, False)


cdef void nothing_found(actor_t *a) noexcept nogil:
    """With fewer cores than threads: looks again, gives the core away, or sleeps, by the thread's own rule."""
    cdef cores_t *cores = &a.run.cores
    a.relaxes += 1
    if what_next(a) == LOOK_AGAIN:
        return
    a.debt_ps += cores.costs.give
    pay(a)
    if a.rung:
        return
    if what_next(a) == FALL_ASLEEP:
        a.asleep = True
        core_left(cores, &a.task, a.now_ps)
        fiber_leave(&a.fiber)
        a.worked_ps = a.run.net.clock.now_ps
    elif core_given(cores, &a.task, a.now_ps):
        fiber_leave(&a.fiber)


cdef void predicates(void *self) noexcept nogil:
    """The body of the predicate thread's fiber."""
    cdef actor_t *a = <actor_t *>self
    cdef run_t *run = a.run
    cdef uint64_t begin_ps, looked_ps
    cdef int done
    while True:
        a.now_ps = begin_ps = run.net.clock.now_ps
        a.rung = False
        a.lap_ps = look_at_all(a)
        looked_ps = varied(run, &a.random, a.lap_ps)
        spend_until(a, a.now_ps + looked_ps)
        if a.held_until_ps > a.now_ps and not run.lock_free:
            spend_until(a, a.held_until_ps)
        if a.n_waiting and not run.lock_free and not run.cores.n:
            a.debt_ps += run.costs.handover      # an application that waits for a slot takes the lock to look
        done = whole_pass(a.node, a.now_ps // 1000)
        a.laps += 1
        count_batches(a)
        owe_triggers(a)
        pay(a)
        if not a.finished and a.delivered >= run.mark_until:
            a.finished = True
            run.n_finished += 1
        free_locks(a)
        free_slots(a, a.now_ps)
        if run.cores.n:
            wake_applications(a)
            pay(a)
        if done:
            a.busy_ps += a.now_ps - begin_ps
            a.looking_ps += looked_ps
            a.worked_ps = a.now_ps
            a.relaxes = 0
            if core_shared(&run.cores, &a.task, a.now_ps):
                fiber_leave(&a.fiber)
        elif not a.rung and run.cores.n:
            nothing_found(a)
        elif not a.rung:
            a.idle = True
            a.idle_since_ps = a.now_ps
            fiber_leave(&a.fiber)


cdef void rouse(actor_t *a) noexcept nogil:
    """There is something for the predicate thread: its next look finds it."""
    cdef uint64_t now_ps = a.run.net.clock.now_ps, laps
    a.rung = True
    if a.idle:
        a.idle = False
        laps = (now_ps - a.idle_since_ps + a.lap_ps - 1) // a.lap_ps if a.lap_ps else 0
        clock_add(&a.run.net.clock, a.idle_since_ps + laps * a.lap_ps, EVENT_PREDICATES, a)


cdef uint64_t wake(actor_t *a) noexcept nogil:
    """Wakes a predicate thread if it sleeps; returns what that costs the one that rings."""
    if not a.asleep:
        return 0
    a.asleep = False
    return core_woken(&a.run.cores, &a.task, a.run.net.clock.now_ps)


cdef void ring_peer(void *self, uint32_t peer) noexcept nogil:
    """A doorbell without a post."""
    cdef actor_t *a = <actor_t *>self
    a.debt_ps += wake(&a.run.actors[peer])


cdef void something_arrived(actor_t *a, uint32_t source, uint64_t length, bint rings) noexcept nogil:
    cdef network_t *costs = &a.run.net.costs
    a.changed += 1
    a.taken_ps += costs.take_post + length * costs.take_per_byte
    if not a.taken_from >> source & 1:
        a.taken_from |= <uint64_t>1 << source
        a.taken_ps += costs.take
    free_slots(a, a.run.net.clock.now_ps)
    rouse(a)
    if rings or costs.leave:         # a socket wakes whoever waits at it
        a.run.actors[source].debt_ps += wake(a)


# ---- the application -----------------------------------------------------------------------------------------------

cdef inline bint looked_since(application_t *app) noexcept nogil:
    """The predicate thread has made a pass since the last claim or commit: what both change is in its cache."""
    cdef bint looked = app.actor.laps != app.laps_seen or app.actor.idle
    app.laps_seen = app.actor.laps
    return looked


cdef inline uint32_t size_of(application_t *app) noexcept nogil:
    """Of the message that is next."""
    return app.second_size if app.sent & 1 else app.size


cdef void wait_for_slot(application_t *app) noexcept nogil:
    """Looks again and again; with fewer cores than threads it gives its own away in between, and sleeps after a while,
    as claims.pxi does. Passes that it makes itself meanwhile, as there, are not in the model."""
    cdef actor_t *a = app.actor
    cdef run_t *run = a.run
    cdef uint64_t now_ps = run.net.clock.now_ps
    if run.cores.n == 0:
        app.waiting = True
        app.since_ps = now_ps
        a.n_waiting += 1
    elif app.yields < YIELDS_BEFORE_SLEEP:
        app.yields += 1
        now_ps += run.costs.retry + run.cores.costs.give
        if not core_given(&run.cores, &app.task, now_ps):
            clock_add(&run.net.clock, now_ps, EVENT_APPLICATION, app)
    else:
        # The send predicate sees the flag, asks the members to ring when they have delivered, and wakes this thread.
        app.yields = 0
        app.asleep = True
        app.since_ps = now_ps
        a.n_waiting += 1
        u32_store_relaxed(&app.topic.s.claim_waiting, 1)
        rouse(a)
        core_left(&run.cores, &app.task, now_ps + wake(a))


cdef void application(application_t *app) noexcept nogil:
    """Goes on: claims a slot, or commits the one that it has filled meanwhile."""
    cdef actor_t *a = app.actor
    cdef run_t *run = a.run
    cdef subgroup_t *s = app.topic.s
    cdef uint64_t now_ps = run.net.clock.now_ps, ps, commit_ps
    # The reference's `send` has the lock from its claim until it has committed.
    cdef bint locks = not run.lock_free and not (run.lock_through and app.committing)
    if run.cores.n and not app.task.running:
        core_wanted(&run.cores, &app.task, now_ps)
        return
    if core_shared(&run.cores, &app.task, now_ps):
        return
    if now_ps < a.sends_until_ps and locks:
        app.locked_ps += a.sends_until_ps - now_ps
        if a.sends_until_ps - now_ps > run.cores.costs.spin and core_given(
                &run.cores, &app.task, now_ps + run.cores.costs.spin + run.cores.costs.give):
            return
        clock_add(&run.net.clock, a.sends_until_ps + run.costs.handover, EVENT_APPLICATION, app)
        return
    if locks and u32_load_relaxed(&s.lock):
        app.locked_out = True
        app.since_ps = now_ps
        a.n_locked_out += 1
        core_left(&run.cores, &app.task, now_ps)
        return
    if not app.committing:
        if claimable(s, 1) == 0:
            wait_for_slot(app)
            return
        app.yields = 0
        app.index = claim(s, 1)
        app.claimed_ps = now_ps
        app.committing = True
        a.claimed = True
        ps = run.costs.claim + (run.costs.claim_shared if looked_since(app) else 0)
        a.held_until_ps = now_ps + ps
        ps += app.work_ps
        if app.copies_in:
            ps += copy_ps(&run.costs, size_of(app))
        ps = interrupted(run, &app.pauses, now_ps, now_ps + varied(run, &app.random, ps))
        if run.lock_through:
            a.held_until_ps = ps
        clock_add(&run.net.clock, ps, EVENT_APPLICATION, app)
        return
    fill_header(s, app.index, size_of(app), 0, app.claimed_ps // 1000, 0)
    mark_ready(s, app.index, 1)
    commit_ps = run.costs.commit + (run.costs.commit_shared if looked_since(app) else 0)
    a.held_until_ps = now_ps + commit_ps
    app.committing = False
    app.sent += 1
    app.left -= 1
    rouse(a)
    ps = now_ps + varied(run, &app.random, commit_ps) + wake(a)
    if app.left == 0:
        core_left(&run.cores, &app.task, ps)
    else:
        if app.delay_ps:
            core_left(&run.cores, &app.task, ps)
        clock_add(&run.net.clock, interrupted(run, &app.pauses, now_ps, ps + app.delay_ps), EVENT_APPLICATION, app)
