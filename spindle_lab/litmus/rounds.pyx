"""Two threads, or three, race through the few instructions on which a wake-up depends, again and again.

Why: who goes to sleep says so and looks for work once more; who has work makes it visible and looks whether the other
sleeps. Each stores, then loads what the other stores (store buffering, Dekker): without a fence on both sides both may
load the old value, and a message lies there until somebody else rings. That is rare, and no test that really sleeps
runs often enough to meet it.

Method: nobody sleeps here. In each round all meet, wait for some moments by chance, and do what production does, by
calling it: announce_sleep() and commits_asleep() (applications), a fabric's post_list() (peers of one host), a reader's
arm_cursor() and log_take_armed(). A round is lost if the one who would sleep has not seen the work and nobody would
have rung. How often each of the other outcomes came shows how close the race was.

Rules: all memory is laid out as in production: the doorbell in a page of its own, the work in another.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from spindle_core.arming cimport arm_cursor
from spindle_core.atomics cimport (
    cpu_relax,
    u64_load_acquire,
    u64_store_relaxed,
    u64_store_release,
)
from spindle_core.bell cimport wake_up
from spindle_core.log cimport log_t
from spindle_core.hot_path cimport announce_sleep, commits_asleep, driver_t, log_take_armed
from spindle_core.events cimport sched_yield
from spindle_core.fabric.fabric cimport POST_RING, Fabric, post_t
from spindle_core.fabric.shm import ShmFabric
from spindle_core.layout cimport BELL_MAGIC, bell_page, cursor_page, log_header
from spindle_core.memory cimport Mapping

cdef enum:
    APPLICATION, PEER, READER    # who has work: an application, another node, the node for its reader
    WORKERS_MAX = 2
    PAGE = 4096
    SPINS_BEFORE_YIELD = 2000
    SKEW_MAX = 64                # stores, about a nanosecond each

SHAPES = {"application": (APPLICATION, 1), "two applications": (APPLICATION, 2), "peer": (PEER, 1),
          "reader": (READER, 1)}


cdef struct place_t:             # of one thread, in a page of its own
    uint64_t met                 # rounds that it has come to the start of
    uint64_t ended               # round << 1 | what it found
    uint64_t idle[8]             # written to pass the time


cdef class Race:
    """One race of `rounds` rounds; `sleep()` and `work(k)` each on a thread of their own, at the same time.

    seen_rung  rounds by outcome: [work was seen by the last look] [somebody would have rung]
    lost       rounds in which one who has work neither was seen nor rung for
    """

    cdef readonly uint64_t rounds, lost
    cdef uint64_t outcomes[4]
    cdef int shape
    cdef readonly uint32_t workers
    cdef driver_t driver
    cdef log_t log
    cdef bell_page *bell
    cdef cursor_page *cursor
    cdef uint64_t *jobs[WORKERS_MAX]
    cdef place_t *places[WORKERS_MAX + 1]
    cdef uint64_t chance
    cdef Fabric fabric
    cdef Mapping memory, bell_memory

    def __init__(self, str shape, uint64_t rounds, uint64_t seed=1):
        cdef uint32_t k, jobs_max = WORKERS_MAX
        self.shape, self.workers = SHAPES[shape]
        self.rounds = rounds
        self.chance = seed * 2 + 1
        self.bell_memory = Mapping.create("litmus-bell", PAGE)
        self.memory = Mapping.create("litmus", PAGE * (2 * WORKERS_MAX + 4))
        memset(&self.driver, 0, sizeof(self.driver))
        memset(&self.log, 0, sizeof(self.log))
        memset(self.outcomes, 0, sizeof(self.outcomes))
        self.bell = <bell_page *>self.bell_memory.base
        self.bell.magic = BELL_MAGIC
        self.driver.bell = self.bell
        self.driver.bell_fd = -1                   # nobody sleeps, so nothing is rung: it is counted
        for k in range(jobs_max + 1):
            self.places[k] = <place_t *>(self.memory.base + PAGE * k)
        for k in range(jobs_max):
            self.jobs[k] = <uint64_t *>(self.memory.base + PAGE * (WORKERS_MAX + 1 + k))
        self.cursor = <cursor_page *>(self.memory.base + PAGE * (2 * WORKERS_MAX + 1))
        self.log.header = <log_header *>(self.memory.base + PAGE * (2 * WORKERS_MAX + 2))
        self.log.n_cursors = 1
        self.log.cursors[0].page = self.cursor
        self.log.cursors[0].ring_end = -1
        if self.shape == READER:
            self.jobs[0] = &self.log.header.tail
        self.fabric = ShmFabric(0, 2, Mapping.create("litmus-own-bell", PAGE), -1)
        self.fabric.connect(1, self.memory, self.bell_memory, -1)

    @property
    def seen_rung(self):
        return [[self.outcomes[0], self.outcomes[1]], [self.outcomes[2], self.outcomes[3]]]

    def sleep(self):
        """The one who would sleep; counts the outcomes."""
        with nogil:
            run_sleeper(self)

    def work(self, uint32_t k):
        """The k-th of those who have work."""
        if k >= self.workers:
            raise ValueError(f"worker {k} of {self.workers}")
        with nogil:
            run_worker(self, k)


cdef inline void wait_for(uint64_t *counter, uint64_t value) noexcept nogil:
    cdef uint32_t spins = 0
    while u64_load_acquire(counter) < value:
        spins += 1
        if spins < SPINS_BEFORE_YIELD:
            cpu_relax()
        else:
            spins = 0
            sched_yield()        # more threads than processors: the other one may be waiting for this one's


cdef inline void meet(Race race, uint32_t me, uint64_t n, uint64_t *chance) noexcept nogil:
    """All come to the start of round n; then some moments pass, others for each."""
    cdef uint32_t k, i
    cdef place_t *own = race.places[me]
    u64_store_release(&own.met, n)
    for k in range(race.workers + 1):
        wait_for(&race.places[k].met, n)
    chance[0] ^= chance[0] << 13
    chance[0] ^= chance[0] >> 7
    chance[0] ^= chance[0] << 17
    for i in range(<uint32_t>(chance[0] % SKEW_MAX)):
        u64_store_relaxed(&own.idle[i & 7], i)


cdef void run_sleeper(Race race) noexcept nogil:
    cdef uint64_t n, chance = race.chance, seen, rung, found
    cdef uint32_t k
    for n in range(1, race.rounds + 1):
        meet(race, 0, n, &chance)
        if race.shape == READER:
            arm_cursor(race.cursor)
        else:
            announce_sleep(&race.driver)
        seen = 0
        for k in range(race.workers):
            if u64_load_acquire(race.jobs[k]) >= n:
                seen |= 1 << k
        u64_store_release(&race.places[0].ended, n << 1)
        rung = 0
        for k in range(race.workers):
            wait_for(&race.places[1 + k].ended, n << 1)
            found = u64_load_acquire(&race.places[1 + k].ended)
            rung |= found & 1
        wake_up(race.bell)
        seen = seen == (<uint64_t>1 << race.workers) - 1
        race.outcomes[seen << 1 | rung] += 1
        if not seen and not rung:
            race.lost += 1


cdef void run_worker(Race race, uint32_t k) noexcept nogil:
    cdef uint64_t n, chance = race.chance + 2 * (k + 1), rings
    cdef int reader
    cdef post_t post
    post.peer = 1
    post.flags = POST_RING
    post.offset = 0
    post.length = 8
    for n in range(1, race.rounds + 1):
        meet(race, 1 + k, n, &chance)
        u64_store_release(race.jobs[k], n)
        if race.shape == APPLICATION:
            rings = commits_asleep(&race.driver) == 0
        elif race.shape == PEER:
            rings = race.fabric.table.post_list(race.fabric.table.self, &post, 1)
        else:
            rings = log_take_armed(&race.log, &reader, 1)
        u64_store_release(&race.places[1 + k].ended, n << 1 | rings)
        wait_for(&race.places[0].ended, n << 1)
