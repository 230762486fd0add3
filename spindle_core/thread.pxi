"""The predicate thread: step, carry out, and when there is nothing to do, get out of the way (idling.pxd says when).

One thread evaluates all predicates of a node. It never takes the GIL, allocates, logs or waits for anybody. After
`busy_poll_ns` without work it blocks on its doorbell. It is also what raises the node's heartbeat, asleep or not, so
that a control thread with much to do, or an interpreter that others keep busy, is not taken for dead (step.pxi).
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memset

from spindle_core.atomics cimport (
    cpu_relax,
    fence_store_load,
    fence_store_store,
    monotonic_ns,
    realtime_ns,
    thread_ns,
    u32_exchange_acquire,
    u32_fetch_add_acq_rel,
    u32_load_acquire,
    u32_store_relaxed,
    u32_store_release,
    u64_load_relaxed,
    u64_store_release,
)
from spindle_core.bell cimport fall_asleep, is_asleep, wake_up
from spindle_core.counters cimport C_BUSY_LAPS, C_BUSY_NS, C_CROWDED, C_LAP_NS_MAX, C_LAPS, C_SLEEPS
from spindle_core.events cimport event_sleep, event_wait, give_way, sched_yield
from spindle_core.idling cimport (
    BUSY_NS,
    GIVE_CORE_AWAY,
    LOOK_AGAIN,
    LOOKS_BEFORE_YIELD,
    after_nothing,
    crowd_t,
    does_much,
    idling,
    is_busy,
    mostly_sleeps,
    note_core_back,
)
from spindle_core.slices cimport (
    SLICE_NS,
    spindle_be_prompt,
    spindle_be_usual,
    spindle_can_be_realtime,
    spindle_note_turns,
    spindle_take_turns,
    spindle_turns,
)
from spindle_core.state cimport node_t

cdef uint64_t NS_PER_MS = 1_000_000
cdef uint64_t CLOCK_EVERY_LAPS = 4096    # how often the offset between the two clocks is read again
cdef uint64_t LONG_LAP_NS = 100_000      # a pass that took longer may have been a wait


cdef bint try_to_drive(driver_t *d) noexcept nogil:
    """Takes the predicates over while the predicate thread is blocked, or has given its core away; False if it hasn't,
    or if somebody else has them.

    An application thread that has just committed a message can so publish it itself: the predicate thread's wake-up is
    then no part of the message's way. And one that waits for a slot can do what frees it. SYNC POINT: drive. Pairs with
    stop_driving().
    """
    return u32_exchange_acquire(&d.driving, 1) == 0


cdef void stop_driving(driver_t *d) noexcept nogil:
    u32_store_release(&d.driving, 0)


cdef void announce_sleep(driver_t *d) noexcept nogil:
    """Before the last look for work, after which the thread blocks.

    SYNC POINT: wake. Pairs with every ringer: that it sleeps is seen, and commits are counted anew, before that look.
    """
    u32_store_relaxed(&d.commits, 0)
    fall_asleep(d.bell)


cdef int64_t commits_asleep(driver_t *d) noexcept nogil:
    """For an application thread that has committed: how many commits before its own have found the predicate thread
    blocked since that announced its sleep; -1 if it isn't blocked. A caller that is told 0 rings.

    SYNC POINT: wake. Pairs with announce_sleep(): what was committed is visible before this look at the page and at
    the count. So a commit that is told another number is found after the ring of the one that was told 0, or by the
    thread's last look.
    """
    fence_store_load()
    if not is_asleep(d.bell):
        return -1
    return u32_fetch_add_acq_rel(&d.commits, 1)


cdef inline void read_clocks(driver_t *d) noexcept nogil:
    """By who drives."""
    d.clock_ns = realtime_ns() - monotonic_ns()


cdef uint64_t worked_ns(driver_t *d, uint64_t lap_ns) noexcept nogil:
    """How much of a pass was work, at the most: the rest of a long one is time in which the thread was kept from
    running, by the scheduler, a debugger or SIGSTOP. Who looks for a slow node is misled by that.

    How much that is at the most is known from what the thread has used since it slept, gave its core away or had the
    last long pass: what it has used is read there, where a system call more or less doesn't count."""
    cdef uint64_t used_ns, since_ns
    if lap_ns < LONG_LAP_NS:
        return lap_ns
    used_ns = thread_ns()
    since_ns = used_ns - d.used_ns
    d.used_ns = used_ns
    return lap_ns if lap_ns < since_ns else since_ns


cdef inline void resume_driving(driver_t *d) noexcept nogil:
    cdef int times = 0
    while not try_to_drive(d):
        give_way(&times)         # an application is publishing, or in a pass: microseconds


cdef int until_next_beat_ms(node_t *node) noexcept nogil:
    """The longest sleep in ms that leaves no heartbeat out; -1: for ever."""
    cdef uint64_t between_ns = u64_load_relaxed(&node.beat_ns)
    return <int>(between_ns // NS_PER_MS + 1) if between_ns else -1


cdef void sleep(driver_t *d) noexcept nogil:
    """Blocks until rung, or until the heartbeat is due. Announce, look once more, block: no ring is lost in between."""
    cdef node_t *node = d.node
    cdef int done = 0, timeout_ms = -1
    # SYNC POINT: blocked. Pairs with attend(): who has taken a ring for this sleep sees that this thread won't look.
    u32_store_release(&d.blocked, 1)
    fence_store_store()
    announce_sleep(d)
    if node != NULL:
        # Read after the announcement: whoever asks for heartbeats for the first time after that rings.
        timeout_ms = until_next_beat_ms(node)
        # Relaxed: whoever drives meanwhile does so after stop_driving() below.
        u32_store_relaxed(&d.untimed, timeout_ms < 0)
        done = whole_pass(node, realtime_ns())
        tell_control(node)
    if not done and not u32_load_acquire(&d.park) and not u32_load_acquire(&d.stop):
        d.counters[C_SLEEPS] += 1
        stop_driving(d)
        # On the own doorbell, not through the fabric: from here on the epoch may be exchanged and freed (Engine.park).
        event_sleep(d.wait_fd, timeout_ms)
        u32_store_relaxed(&d.untimed, 0)
        u32_store_release(&d.blocked, 0)     # first: a thread that drives meanwhile leaves off when it sees this
        resume_driving(d)
    u32_store_release(&d.blocked, 0)
    wake_up(d.bell)


cdef void drive(driver_t *d) noexcept nogil:
    """Runs until d.stop. The node may be exchanged while parked."""
    cdef uint64_t now, lap, before = monotonic_ns(), last_work = before, laps = 0
    cdef int done, idle = 0
    cdef idling what
    cdef uint32_t ticket
    cdef uint64_t awake_ns       # when it woke up
    cdef uint64_t awake_from     # ... and its processor time then
    cdef uint64_t given_away, used_ns
    cdef crowd_t crowd
    cdef bint crowded
    cdef spindle_turns turns
    cdef uint32_t realtime
    cdef bint prompt, can_ask, wants     # can_ask: not where there are neither short slices nor a right
    spindle_note_turns(&turns)
    prompt = can_ask = spindle_take_turns(&turns, SLICE_NS, turns.nice + d.nice) != 0
    memset(&crowd, 0, sizeof(crowd_t))
    crowd.looked_ns, crowd.looked_used_ns = before, thread_ns()
    resume_driving(d)
    read_clocks(d)
    d.used_ns = awake_from = thread_ns()
    awake_ns = before
    d.running = True
    while not u32_load_acquire(&d.stop):
        ticket = u32_load_acquire(&d.park)
        if ticket:
            u32_store_release(&d.parked, ticket)
            while u32_load_acquire(&d.park) == ticket and not u32_load_acquire(&d.stop):
                event_wait(d.resume_fd, 100)
            u32_store_release(&d.parked, 0)
            read_clocks(d)
            before = last_work = monotonic_ns()
            continue
        if d.node == NULL:
            sleep(d)
            continue
        done = whole_pass(d.node, before + d.clock_ns)
        tell_control(d.node)
        laps += 1
        now = monotonic_ns()
        d.counters[C_LAPS] += 1
        if done:
            d.counters[C_BUSY_LAPS] += 1
            lap = worked_ns(d, now - before)
            d.counters[C_BUSY_NS] += lap
            if lap > d.counters[C_LAP_NS_MAX]:
                d.counters[C_LAP_NS_MAX] = lap
            last_work = now
            idle = 0
        else:
            idle += 1
            crowded = now < crowd.until_ns and idle > LOOKS_BEFORE_YIELD
            if crowded:
                d.used_ns = thread_ns()
                crowded = not does_much(&crowd, now, d.used_ns)
            what = after_nothing(d.node, <uint64_t>idle, now - last_work, d.busy_poll_ns,
                                 u32_load_acquire(&d.relieved) != 0, crowded)
            if what == LOOK_AGAIN:
                cpu_relax()
            elif what == GIVE_CORE_AWAY:
                given_away = now
                if turns.realtime:
                    # By yielding it would give it to nobody.
                    spindle_take_turns(&turns, SLICE_NS, turns.nice + d.nice)
                stop_driving(d)
                sched_yield()
                resume_driving(d)
                d.used_ns = thread_ns()
                now = monotonic_ns()
                if note_core_back(&crowd, now, now - given_away, d.used_ns):
                    d.counters[C_CROWDED] += 1
            else:
                realtime = 0
                if d.realtime and now < crowd.until_ns and not does_much(&crowd, now, d.used_ns):
                    realtime = d.realtime
                if turns.realtime and not realtime:
                    spindle_take_turns(&turns, SLICE_NS, turns.nice + d.nice)
                wants = spindle_can_be_realtime(&turns, realtime) != 0
                if not prompt:
                    wants = (can_ask or wants) and mostly_sleeps(&crowd, now, d.used_ns, d.used_ns - awake_from)
                if wants:
                    prompt = spindle_be_prompt(&turns, SLICE_NS, turns.nice + d.nice, realtime) != 0
                sleep(d)
                read_clocks(d)
                d.used_ns = awake_from = thread_ns()
                awake_ns = now = last_work = monotonic_ns()
                idle = 0
        if prompt and now - awake_ns > BUSY_NS:
            used_ns = thread_ns()
            if is_busy(&crowd, now, used_ns, used_ns - awake_from):
                spindle_be_usual(&turns)
                prompt = False
        before = now
        if laps % CLOCK_EVERY_LAPS == 0:
            read_clocks(d)
    d.running = False
    stop_driving(d)
    u64_store_release(&d.bell.stopped, 1)
