"""The core's parts, each timed for itself: what a cost table needs of a machine (measure.py).

Whatever crosses cores is measured with two threads on two of them, who take turns: a slot that another core has filled
costs more than one that lies in the own cache. A baton says whose turn it is; times are of the turns alone.

Rules: no probe runs the multicast as a whole. Every function gives lists of times in nanoseconds, one per round, for
their reader to take the median of; what reading the clock costs (`clock_ns`) is still in them.
"""
from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset

from spindle_lab.bench.payload cimport payload_fill
from spindle_core.atomics cimport (
    cpu_relax,
    fence_store_load,
    monotonic_ns,
    u32_load_relaxed,
    u64_load_acquire,
    u64_store_release,
)
from spindle_core.hot_path cimport (
    STAGE_DELIVER,
    STAGE_RECEIVE,
    STAGE_SEND,
    claim_slots,
    commit_slots,
    evaluate_whole,
    lock_subgroup,
    slot_payload,
    unlock_subgroup,
    whole_pass,
)
from spindle_core.engine cimport Engine
from spindle_core.epoch cimport Epoch
from spindle_core.events cimport event_ring, event_sleep, event_wait, sched_yield
from spindle_core.fabric.fabric cimport POST_GUARD, POST_RING, Fabric, post_t
from spindle_core.state cimport delivery_t, subgroup_t

cdef enum:
    LINE = 8                     # words
    SPINS = 256                  # before a waiting thread gives its core away
    POSTS = 64
    SLOTS_MAX = 1 << 14


cdef void nothing(void *context, const delivery_t *messages, uint32_t n) noexcept nogil:
    pass


def empty_upcall():
    """The address of an upcall that does nothing."""
    return <size_t>&nothing


cdef inline void wait_turn(const uint64_t *baton, uint64_t turn) noexcept nogil:
    cdef uint32_t spins = 0
    while u64_load_acquire(baton) < turn:
        spins += 1
        if spins % SPINS == 0:
            sched_yield()
        else:
            cpu_relax()


def clock_ns(uint64_t rounds=10_000):
    """Of one look at the clock, on the average."""
    cdef uint64_t _i, start = monotonic_ns()
    for _i in range(rounds):
        monotonic_ns()
    return (monotonic_ns() - start) / <double>rounds


# ---- the predicate thread ------------------------------------------------------------------------------------------

def passes(Epoch epoch not None, uint64_t rounds, uint64_t of=100):
    """Of a pass over the predicates, each the average of so many in a row."""
    cdef uint64_t _i, _k, start
    cdef list found = []
    for _i in range(rounds):
        start = monotonic_ns()
        with nogil:
            for _k in range(of):
                whole_pass(&epoch.node, 1)
        found.append((monotonic_ns() - start) / <double>of)
    return found


def post_lists(Fabric fabric not None, uint32_t n, uint64_t rounds, uint64_t of=100):
    """Of a list with one post of a line to each of the peers 1..n, who are awake; as passes()."""
    cdef post_t posts[POSTS]
    cdef uint64_t i, _i, _k, start
    cdef list found = []
    if not 1 <= n <= POSTS or n >= fabric.n_peers:
        raise ValueError(f"a list of {n} posts: one to each of {fabric.n_peers - 1} peers at most")
    for i in range(n):
        posts[i].peer = <uint32_t>(i + 1)
        posts[i].flags = POST_RING | POST_GUARD
        posts[i].offset = 0
        posts[i].length = 64
    for _i in range(rounds):
        start = monotonic_ns()
        with nogil:
            for _k in range(of):
                fabric.table.post_list(fabric.table.self, posts, n)
        found.append((monotonic_ns() - start) / <double>of)
    return found


# ---- one message's way, between two cores --------------------------------------------------------------------------

def fill_turns(Engine engine not None, Epoch epoch not None, topic_id, uint32_t size, uint32_t n, uint64_t rounds,
               uint64_t[::1] baton):
    """The application's turns: claims n slots one by one, fills them with `size` bytes, commits them one by one.

    Returns lists of times: claims, fills, commits, each of n.
    """
    cdef subgroup_t *s = epoch.subgroup(topic_id)
    cdef uint64_t i, k, sent = 0
    cdef uint64_t t[4]
    cdef uint64_t[::1] index = memoryview(bytearray(8 * n)).cast("Q")
    cdef list claims = []
    cdef list fills = []
    cdef list commits = []
    if n > SLOTS_MAX or n > s.window:
        raise ValueError(f"{n} slots at once: the window has {s.window}")
    for i in range(rounds):
        with nogil:
            wait_turn(&baton[0], 2 * i)
            t[0] = monotonic_ns()
            for k in range(n):
                claim_slots(&engine.driver, s, 1, 0, &index[k])
            t[1] = monotonic_ns()
            if size:
                for k in range(n):
                    payload_fill(<uint8_t *>slot_payload(s, index[k]), size, 0, sent + k, 0)
            t[2] = monotonic_ns()
            for k in range(n):
                commit_slots(&engine.driver, s, index[k], 1, &size, 0)
            t[3] = monotonic_ns()
            sent += n
            u64_store_release(&baton[0], 2 * i + 1)
        claims.append(t[1] - t[0])
        fills.append(t[2] - t[1])
        commits.append(t[3] - t[2])
    return claims, fills, commits


def take_turns(Epoch epoch not None, topic_id, uint64_t rounds, uint64_t[::1] baton):
    """The predicate thread's turns: publishes, receives and delivers what was committed. Lists of times of each."""
    cdef subgroup_t *s = epoch.subgroup(topic_id)
    cdef uint64_t i
    cdef uint64_t t[4]
    cdef list sends = []
    cdef list receives = []
    cdef list deliveries = []
    for i in range(rounds):
        with nogil:
            wait_turn(&baton[0], 2 * i + 1)
            t[0] = monotonic_ns()
            evaluate_whole(&epoch.node, s, STAGE_SEND)
            t[1] = monotonic_ns()
            evaluate_whole(&epoch.node, s, STAGE_RECEIVE)
            t[2] = monotonic_ns()
            evaluate_whole(&epoch.node, s, STAGE_DELIVER)
            t[3] = monotonic_ns()
            u64_store_release(&baton[0], 2 * i + 2)
        sends.append(t[1] - t[0])
        receives.append(t[2] - t[1])
        deliveries.append(t[3] - t[2])
    return sends, receives, deliveries


def open_turns(Engine engine not None, Epoch epoch not None, topic_id, uint32_t size, uint64_t rounds,
               uint64_t[::1] baton):
    """The application's turns where the predicate thread looks between claim and commit. Lists of times: claims,
    commits, each of one."""
    cdef subgroup_t *s = epoch.subgroup(topic_id)
    cdef uint64_t i, index
    cdef uint64_t t[4]
    cdef list claims = []
    cdef list commits = []
    for i in range(rounds):
        with nogil:
            wait_turn(&baton[0], 4 * i)
            t[0] = monotonic_ns()
            claim_slots(&engine.driver, s, 1, 0, &index)
            t[1] = monotonic_ns()
            u64_store_release(&baton[0], 4 * i + 1)
            if size:
                payload_fill(<uint8_t *>slot_payload(s, index), size, 0, i, 0)
            wait_turn(&baton[0], 4 * i + 2)
            t[2] = monotonic_ns()
            commit_slots(&engine.driver, s, index, 1, &size, 0)
            t[3] = monotonic_ns()
            u64_store_release(&baton[0], 4 * i + 3)
        claims.append(t[1] - t[0])
        commits.append(t[3] - t[2])
    return claims, commits


def look_turns(Epoch epoch not None, topic_id, uint64_t rounds, uint64_t[::1] baton):
    """The predicate thread's: finds a slot claimed and not committed, then what was committed. Times of the first."""
    cdef subgroup_t *s = epoch.subgroup(topic_id)
    cdef uint64_t i, start
    cdef list looks = []
    for i in range(rounds):
        with nogil:
            wait_turn(&baton[0], 4 * i + 1)
            start = monotonic_ns()
            evaluate_whole(&epoch.node, s, STAGE_SEND)
            start = monotonic_ns() - start
            u64_store_release(&baton[0], 4 * i + 2)
            wait_turn(&baton[0], 4 * i + 3)
            evaluate_whole(&epoch.node, s, STAGE_SEND)
            evaluate_whole(&epoch.node, s, STAGE_RECEIVE)
            evaluate_whole(&epoch.node, s, STAGE_DELIVER)
            u64_store_release(&baton[0], 4 * i + 4)
        looks.append(start)
    return looks


# ---- lines, locks, cores -------------------------------------------------------------------------------------------

def ping(uint64_t[::1] lines, uint32_t side, uint64_t rounds):
    """Two threads answer each other, each in a line of its own; the time of all rounds, as a list of one."""
    cdef uint64_t i, start
    with nogil:
        start = monotonic_ns()
        for i in range(1, rounds + 1):
            if side == 0:
                u64_store_release(&lines[0], i)
                wait_turn(&lines[LINE], i)
            else:
                wait_turn(&lines[0], i)
                u64_store_release(&lines[LINE], i)
        start = monotonic_ns() - start
    return [start / <double>rounds]


def change_lines(uint64_t[::1] lines, uint64_t[::1] order, uint64_t rounds, uint64_t[::1] baton):
    """Stores into every line of `order`, which others have read since, and waits each time until they can see it, as a
    push does. Times of all of them."""
    cdef uint64_t i, k, start, n = order.shape[0]
    cdef list found = []
    for i in range(rounds):
        with nogil:
            wait_turn(&baton[0], 2 * i)
            start = monotonic_ns()
            for k in range(n):
                u64_store_release(&lines[order[k] * LINE], i + 1)
                fence_store_load()
            start = monotonic_ns() - start
            u64_store_release(&baton[0], 2 * i + 1)
        found.append(start)
    return found


def read_lines(uint64_t[::1] lines, uint64_t[::1] order, uint64_t rounds, uint64_t[::1] baton):
    """Looks at the lines of `order` when they have been changed, one after the other, and once more; both times."""
    cdef uint64_t i, k, n = order.shape[0], zero
    cdef uint64_t t[3]
    cdef list first = []
    cdef list again = []
    for i in range(rounds):
        with nogil:
            wait_turn(&baton[0], 2 * i + 1)
            zero = 0
            t[0] = monotonic_ns()
            for k in range(n):           # the next one's place waits for this one's value
                zero = u64_load_acquire(&lines[order[k + zero] * LINE]) - (i + 1)
            t[1] = monotonic_ns()
            for k in range(n):
                zero = u64_load_acquire(&lines[order[k + zero] * LINE]) - (i + 1)
            t[2] = monotonic_ns()
            u64_store_release(&baton[0], 2 * i + 2)
        first.append(t[1] - t[0])
        again.append(t[2] - t[1])
    return first, again


def hold_lock(Epoch epoch not None, topic_id, uint64_t hold_ns, uint64_t[::1] let_go, uint64_t[::1] baton):
    """Takes a topic's lock, holds it until the other thread has waited for so long, notes when it let go; each turn."""
    cdef subgroup_t *s = epoch.subgroup(topic_id)
    cdef uint64_t i, start
    with nogil:
        for i in range(<uint64_t>let_go.shape[0]):
            wait_turn(&baton[0], 2 * i)
            lock_subgroup(s)
            u64_store_release(&baton[0], 2 * i + 1)
            start = monotonic_ns()
            while monotonic_ns() - start < hold_ns:
                cpu_relax()
            u64_store_release(&let_go[i], monotonic_ns())
            unlock_subgroup(s)


def take_lock(Epoch epoch not None, topic_id, uint64_t[::1] let_go, uint64_t[::1] baton):
    """Waits for it; times from letting go to having it."""
    cdef subgroup_t *s = epoch.subgroup(topic_id)
    cdef uint64_t i, now
    cdef list found = []
    for i in range(<uint64_t>let_go.shape[0]):
        with nogil:
            wait_turn(&baton[0], 2 * i + 1)
            lock_subgroup(s)
            now = monotonic_ns()
            unlock_subgroup(s)
            u64_store_release(&baton[0], 2 * i + 2)
        found.append(now - u64_load_acquire(&let_go[i]))
    return found


def spins(uint64_t rounds, uint64_t of=32):
    """Looks so often at a lock that is taken, as lock_subgroup() (sst.pxi) does before it gives the core away."""
    cdef uint64_t _i, _k, start
    cdef uint32_t lock = 1
    cdef list found = []
    for _i in range(rounds):
        with nogil:
            start = monotonic_ns()
            for _k in range(of):
                if u32_load_relaxed(&lock):
                    cpu_relax()
            start = monotonic_ns() - start
        found.append(start)
    return found


def yields(uint64_t rounds, uint64_t of=100):
    """Gives the core away; times of one, each the average of so many in a row. Alone there is nobody to take it."""
    cdef uint64_t _i, _k, start
    cdef list found = []
    for _i in range(rounds):
        with nogil:
            start = monotonic_ns()
            for _k in range(of):
                sched_yield()
            start = monotonic_ns() - start
        found.append(start / <double>of)
    return found


def slices(uint64_t for_ns, uint64_t gap_ns):
    """Runs without a pause for so long, on a core that another thread wants as well; how long it was left to, each
    time. A gap is what is longer than `gap_ns`."""
    cdef uint64_t start = monotonic_ns(), begin = start, before = start, now = start
    cdef list found = []
    while now - start < for_ns:
        with nogil:
            while True:
                now = monotonic_ns()
                if now - before > gap_ns or now - start >= for_ns:
                    break
                before = now
        found.append(before - begin)
        begin = before = now
    return found[1:len(found) - 1]


def ring_sleeper(int fd, int gone_fd, uint64_t rounds):
    """Rings for a thread that sleeps on this core, each time after waiting until that is about to sleep. Times of the
    rings."""
    cdef uint64_t _i, start
    cdef list found = []
    for _i in range(rounds):
        with nogil:
            event_wait(gone_fd, 1000)
            start = monotonic_ns()
            event_ring(fd)
            start = monotonic_ns() - start
        found.append(start)
    return found


def sleep_rounds(int epoll_fd, int gone_fd, uint64_t rounds):
    """Its other side: says that it is about to sleep, and sleeps, at an epoll that hears the rings."""
    cdef uint64_t _i
    with nogil:
        for _i in range(rounds):
            event_ring(gone_fd)
            event_sleep(epoll_fd, 1000)


# ---- fabrics that copy ---------------------------------------------------------------------------------------------

def post_turns(Fabric fabric not None, uint32_t peer, uint32_t n, uint64_t length, uint64_t rounds,
               uint64_t[::1] baton):
    """The sender's turns: n posts of `length` bytes to a peer, no two of which touch, in one pass.

    Returns lists of times: of the posts, and of the end of the pass, when they leave.
    """
    cdef post_t *posts = <post_t *>malloc(n * sizeof(post_t))
    cdef uint64_t i, k
    cdef uint64_t t[3]
    cdef list posting = []
    cdef list leaving = []
    if posts == NULL:
        raise MemoryError()
    memset(posts, 0, n * sizeof(post_t))
    for k in range(n):
        posts[k].peer = peer
        posts[k].offset = 2 * k * length
        posts[k].length = length
    try:
        for i in range(rounds):
            with nogil:
                wait_turn(&baton[0], 2 * i)
                fabric.table.enter(fabric.table.self)
                t[0] = monotonic_ns()
                fabric.table.post_list(fabric.table.self, posts, n)
                t[1] = monotonic_ns()
                fabric.table.leave(fabric.table.self)
                t[2] = monotonic_ns()
                u64_store_release(&baton[0], 2 * i + 1)
            posting.append(t[1] - t[0])
            leaving.append(t[2] - t[1])
    finally:
        free(posts)
    return posting, leaving


def arrival_turns(Fabric fabric not None, uint32_t n, uint64_t rounds, uint64_t[::1] baton):
    """The receiver's turns: takes n writes. Lists of times: until all are here, and of a look that finds nothing."""
    cdef uint64_t i
    cdef uint64_t t[3]
    cdef uint32_t got
    cdef list taking = []
    cdef list looking = []
    for i in range(rounds):
        with nogil:
            wait_turn(&baton[0], 2 * i + 1)
            got = 0
            t[0] = monotonic_ns()
            while got < n:
                got += <uint32_t>fabric.table.enter(fabric.table.self)
                fabric.table.leave(fabric.table.self)
            t[1] = monotonic_ns()
            fabric.table.enter(fabric.table.self)
            fabric.table.leave(fabric.table.self)
            t[2] = monotonic_ns()
            u64_store_release(&baton[0], 2 * i + 2)
        taking.append(t[1] - t[0])
        looking.append(t[2] - t[1])
    return taking, looking


def answers(Fabric fabric not None, uint32_t peer, bint first, uint64_t rounds):
    """Two threads answer each other's write of a line; times of whole rounds, where this one began them."""
    cdef post_t post
    cdef uint64_t _i, start
    cdef list found = []
    memset(&post, 0, sizeof(post))
    post.peer = peer
    post.length = 64
    for _i in range(rounds):
        with nogil:
            start = monotonic_ns()
            if first:
                fabric.table.post_list(fabric.table.self, &post, 1)
            while fabric.table.enter(fabric.table.self) == 0:
                fabric.table.leave(fabric.table.self)
            fabric.table.leave(fabric.table.self)
            if not first:
                fabric.table.post_list(fabric.table.self, &post, 1)
            start = monotonic_ns() - start
        found.append(start)
    return found
