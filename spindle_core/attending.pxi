"""Attending: a thread that waits for data drives the predicates of its own node meanwhile.

So a message that comes wakes up one thread of the process: the one that wants it. Otherwise the predicate thread is
woken up, delivers, and wakes that one up.

Who waits first looks for itself, for as long as an idle predicate thread would (idling.pxd), then sleeps where that
thread sleeps. The kernel wakes one of them with each ring: the one that went to sleep last. Should that be the
predicate thread, it delivers and rings, as it does for everybody. So the order saves a wake-up, and nothing depends on
it.

Promises:
- One thread at a time attends a node; others that wait are rung by whoever delivers.
- It drives only while the predicate thread is blocked. That one is there all the time: it has its heartbeat's
  timeout, and it takes over at the next ring when nobody attends. If it wakes up, is to park or to end, it gets the
  predicates after the pass that is being made.
- Nobody attends for longer than ATTEND_NS without looking after its own affairs: signals, timeouts, whatever else wakes
  it. What goes on longer goes on in the predicate thread.
- When it leaves, the node sleeps, announced and looked after once more; or the predicate thread has been rung.
- A ring that it has taken is never lost: it makes a pass after it, or knows of a pass that follows, or rings again.
  That of the first heartbeat that is wanted is for the predicate thread, if that sleeps without a timeout so far.
- No lock is held, no Python runs.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.atomics cimport (
    cpu_relax,
    fence_store_load,
    monotonic_ns,
    u32_exchange_acquire,
    u32_load_acquire,
    u32_load_relaxed,
    u32_store_release,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_release,
)
from spindle_core.bell cimport wake_up
from spindle_core.counters cimport C_ATTENDED_LAPS
from spindle_core.events cimport (
    EDGES_MAX,
    end_fd,
    end_take,
    epoll_event,
    epoll_unwatch,
    epoll_wait,
    epoll_watch,
    event_ring,
    sched_yield,
    wait_two,
)
from spindle_core.idling cimport GIVE_CORE_AWAY, LOOK_AGAIN, after_nothing, idling
from spindle_core.layout cimport cursor_page

cdef uint64_t ATTEND_NS = 500_000        # at a time
cdef uint64_t AWAIT_NS = 20_000          # for a predicate thread that is awake to find nothing to do
cdef int LAST_LOOKS = 4                  # passes in a row that find something before the predicate thread is rung


cdef bint begin_attending(driver_t *d) noexcept nogil:
    """False if another thread attends. Else the caller does until end_attending(), asleep or not."""
    return u32_exchange_acquire(&d.attended, 1) == 0


cdef void end_attending(driver_t *d) noexcept nogil:
    u32_store_release(&d.attended, 0)


cdef inline bint is_called_off(driver_t *d) noexcept nogil:
    """The predicate thread is to stand still or to end."""
    return u32_load_acquire(&d.park) or u32_load_acquire(&d.stop)


cdef inline bint may_drive(driver_t *d) noexcept nogil:
    """By who drives."""
    return u32_load_acquire(&d.blocked) and d.running and d.node != NULL and not is_called_off(d)


cdef inline bint is_wanted(driver_t *d) noexcept nogil:
    """By who drives: heartbeats are wanted since the predicate thread has fallen asleep for ever. The ring that was to
    tell it may have come to who attends."""
    return u32_load_relaxed(&d.untimed) and u64_load_relaxed(&d.node.beat_ns)


cdef bint take_over(driver_t *d) noexcept nogil:
    if not u32_load_acquire(&d.blocked) or not try_to_drive(d):
        return False
    if may_drive(d):
        read_clocks(d)
        wake_up(d.bell)
        return True
    stop_driving(d)
    return False


cdef int attended_pass(driver_t *d, uint64_t now) noexcept nogil:
    cdef int done = whole_pass(d.node, now + d.clock_ns)
    tell_control(d.node)
    d.counters[C_ATTENDED_LAPS] += 1
    return done


cdef bint leave(driver_t *d, bint drives) noexcept nogil:
    """After it has driven: True if the node sleeps now; otherwise the predicate thread goes on."""
    cdef int done = 1, i
    if drives or try_to_drive(d):
        if may_drive(d):
            announce_sleep(d)
            for i in range(LAST_LOOKS):
                done = attended_pass(d, monotonic_ns())
                if not done:
                    break
            if is_wanted(d):
                done = 1
        stop_driving(d)
        if not done:
            return True
    if u32_load_acquire(&d.blocked):
        event_ring(d.bell_fd)
    return False


cdef attention attend(driver_t *d, cursor_page *page, const uint64_t *count, uint64_t known, uint64_t most_ns,
                      bint rung) noexcept nogil:
    """Drives until `count`, of a log, is beyond what is known, the node has fallen asleep, somebody else has to
    drive, or `most_ns` are over. `rung`: the caller has taken rings of the node's bell. Between begin_attending() and
    end_attending()."""
    cdef uint64_t now = monotonic_ns(), began = now, until = now + (most_ns if most_ns < ATTEND_NS else ATTEND_NS)
    cdef uint64_t last_work = now, looks = 0
    cdef attention found = ATTEND_OTHERS
    cdef bint drives = False, driven = False     # now; and the bell says on our account that somebody is awake
    cdef int done
    cdef idling what
    # SYNC POINT: attended. Whoever delivers doesn't ring. Dekker with log_take_armed(): taken back, then a last look.
    u64_store_release(&page.attended, 1)
    u32_store_release(&d.relieved, 1)
    while True:
        if u64_load_acquire(count) > known:
            found = ATTEND_DATA
            break
        if now >= until or is_called_off(d):
            break
        if not drives:
            drives = take_over(d)
            if not drives:
                if not driven and now - began >= AWAIT_NS:
                    break
                if driven and not u32_load_acquire(&d.blocked):
                    break
                sched_yield()
                now = monotonic_ns()
                continue
            driven = True
        done = attended_pass(d, now)
        now = monotonic_ns()
        if done:
            last_work, looks = now, 0
        elif may_drive(d):
            looks += 1
            what = after_nothing(d.node, looks, now - last_work, d.busy_poll_ns, False, False)
            if what == LOOK_AGAIN:
                cpu_relax()
            elif what == GIVE_CORE_AWAY:
                stop_driving(d)
                drives = False
                sched_yield()
                now = monotonic_ns()
            else:
                announce_sleep(d)
                if not attended_pass(d, now):
                    if is_wanted(d):
                        break
                    stop_driving(d)
                    drives = driven = rung = False
                    found = ATTEND_ASLEEP
                    break
                wake_up(d.bell)
                now = last_work = monotonic_ns()
                looks = 0
            continue
        if not may_drive(d):
            break
    u32_store_release(&d.relieved, 0)
    if driven:
        if leave(d, drives) and found == ATTEND_OTHERS:
            found = ATTEND_ASLEEP
    elif rung and u32_load_acquire(&d.blocked):
        # SYNC POINT: blocked. Pairs with sleep(): if it isn't blocked, its last look comes after what was rung for.
        event_ring(d.bell_fd)
    u64_store_release(&page.attended, 0)
    fence_store_load()
    return ATTEND_DATA if u64_load_acquire(count) > known else found


cdef int sleep_attending(driver_t *d, cursor_page *page, const uint64_t *count, uint64_t known, int data_end,
                         int other_fd, int timeout_ms) noexcept nogil:
    """After attend() has returned ATTEND_ASLEEP, and after arming and a last look at the count: sleeps until the node
    is rung, and then attends; or until one of the two is readable, as wait_two(). Takes the rings of `data_end`.

    Both are watched level-triggered: whoever is woken by them, this thread is, too.
    """
    cdef epoll_event events[EDGES_MAX]
    cdef int result = 0, n = 0, i, data_fd = end_fd(data_end)
    cdef bint rung = False, data, other
    data = epoll_watch(d.wait_fd, data_fd)
    other = other_fd >= 0 and epoll_watch(d.wait_fd, other_fd)
    if data and (other or other_fd < 0):
        n = epoll_wait(d.wait_fd, events, EDGES_MAX, timeout_ms)
    else:
        result = wait_two(data_fd, other_fd, timeout_ms)     # one can't be watched, for want of memory
    if other:
        epoll_unwatch(d.wait_fd, other_fd)
    if data:
        epoll_unwatch(d.wait_fd, data_fd)
    for i in range(n):
        if events[i].data.fd == data_fd:
            result |= 1
        elif other and events[i].data.fd == other_fd:
            result |= 2
        else:
            rung = True
    if result & 1:
        end_take(data_end)
    if rung and attend(d, page, count, known, ATTEND_NS, True) == ATTEND_DATA:
        result |= 1
    return result
