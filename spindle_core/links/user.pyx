"""The user's end of a link: it submits requests and messages, and takes completions and messages, in two mappings that
it shares with the pool (layout.h).

Rules: one thread at a time uses an end. What the pool writes is trusted by the user, never the other way round.
"""
import errno

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from spindle_core.atomics cimport (
    cpu_relax,
    fence_store_load,
    monotonic_ns,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_release,
)
from spindle_core.bell cimport fall_asleep, ring_once, wake_up
from spindle_core.events cimport c_close, end_clear, end_fd, end_wait, end_wake
from spindle_core.fabric.regions.boxes cimport HEAD_SIZE, boxed, next_length, take_at
from spindle_core.fabric.regions.regions cimport (
    LIST_MAX,
    REQUEST_ADD,
    REQUEST_READ,
    REQUEST_SIGNALLED,
    REQUEST_SIZE_MAX,
    REQUEST_SWAP,
    REQUEST_WRITE,
)
from spindle_core.layout cimport (
    BELL_MAGIC,
    LINK_BOX_SIZE,
    LINK_DONES_MAX,
    LINK_MAGIC,
    LINK_REQUESTS_MAX,
    bell_page,
    link_done,
    link_pool_page,
    link_request,
    link_user_page,
)
from spindle_core.links.links cimport (
    BUFFERS_MAX,
    HANDLES_MAX,
    LINK_FIND,
    LINK_FORGET,
    LINK_NOBODY,
    LINK_RECEIVE,
    LINK_SEND,
    LINK_WRONG,
    NAME_SIZE_MAX,
    PORTS_MAX,
    POSTED_MAX,
)
from spindle_core.memory cimport Mapping, forks

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

STATUS_NAMES = {0: "done", 1: "cut", 2: "ended", 3: "range", 4: "refused", 5: "after", LINK_WRONG: "wrong",
                LINK_NOBODY: "nobody"}
WRONG = {
    errno.EINVAL: f"there is no such request, its list is not one of 1 to {LIST_MAX} requests for one node, or its port"
                  f" none up to {PORTS_MAX}",
    errno.ENOENT: f"no region has that handle: a link reaches at most {HANDLES_MAX}",
    errno.EACCES: "the grant doesn't allow it: a region is open to reads, and to one node's writes or to atomics",
    errno.ERANGE: f"it goes beyond the region, or more than {REQUEST_SIZE_MAX} bytes or none, or an atomic isn't on 8"
                  " bytes",
    errno.EFAULT: f"its memory is none of the link's, at most {BUFFERS_MAX}; or too short; or is not to be written",
    errno.EPERM: "no access rule of the node lets its user do that",
    errno.ENOSPC: f"a link reaches at most {HANDLES_MAX} regions, and all links of a program together"
                  " at most so many as its node says: close one",
    errno.ENAMETOOLONG: f"a region's name has 1 to {NAME_SIZE_MAX} bytes",
    errno.ENOTCONN: "the link leads to no node",
    errno.EAGAIN: f"{POSTED_MAX} memories for long messages, posted or being filled, are the limit",
}
BROKEN = {1: "the connection to that node is over", 2: "what it submitted makes no sense"}
REQUESTS_WAITING = LINK_REQUESTS_MAX
PAGE_SIZES = sizeof(link_user_page), sizeof(link_pool_page)      # bytes: of the user's page, of the pool's


cdef class LinkUser:
    """`user_page`: mapped for writing, `pool_page`: for reading. `bell` and `bell_fd`: by which the pool is rung;
    `end`: at which this end is (events.pxd). Takes over both descriptors, whatever happens.

    ValueError where these are no pages of a link.
    """

    def __cinit__(self, Mapping user_page not None, Mapping pool_page not None, Mapping bell=None, int bell_fd=-1,
                  int end=-1):
        self.bell_fd, self.end, self.forks = bell_fd, end, forks

    def __init__(self, Mapping user_page not None, Mapping pool_page not None, Mapping bell=None, int bell_fd=-1,
                 int end=-1):
        if bell is not None:
            if bell.size < sizeof(bell_page) or (<const bell_page *>bell.base).magic != BELL_MAGIC:
                raise ValueError("this mapping is no doorbell of this version")
            self.bell = <const bell_page *>bell.base
        if user_page.size < sizeof(link_user_page) or pool_page.size < sizeof(link_pool_page) or not user_page.writable:
            raise ValueError("these mappings are no pages of a link")
        self.user = <link_user_page *>user_page.base
        self.pool = <link_pool_page *>pool_page.base
        if self.user.magic != LINK_MAGIC or self.pool.magic != LINK_MAGIC:
            raise ValueError("these mappings are no pages of a link of this version")
        self.kept = user_page.view(), pool_page.view(), None if bell is None else bell.view()
        self.filled = self.list_from = u64_load_relaxed(&self.user.submitted)

    # ---- submitting ----

    cdef link_request *add(self, uint32_t kind, cookie, signalled) except NULL:
        cdef link_request *r
        if self.filled - u64_load_acquire(&self.pool.taken) >= LINK_REQUESTS_MAX:
            raise BlockingIOError(errno.EAGAIN, f"{LINK_REQUESTS_MAX} requests of this link wait to be taken")
        if self.filled - self.list_from >= LIST_MAX:
            raise ValueError(f"{LIST_MAX} requests in a list are the limit")
        r = &self.user.requests[self.filled & (LINK_REQUESTS_MAX - 1)]
        memset(r, 0, sizeof(link_request))
        r.kind = kind
        r.flags = REQUEST_SIGNALLED if signalled else 0
        r.buffer = BUFFERS_MAX
        r.cookie = cookie
        self.filled += 1
        return r

    def read(self, uint32_t region, uint64_t offset, uint32_t length, uint32_t buffer, uint64_t buffer_offset=0, *,
             cookie=0, signalled=False):
        """Adds to the list: `length` bytes of the region into own memory. BlockingIOError where the ring is full."""
        cdef link_request *r = self.add(REQUEST_READ, cookie, signalled)
        r.region, r.offset, r.length, r.buffer, r.buffer_offset = region, offset, length, buffer, buffer_offset

    def write(self, uint32_t region, uint64_t offset, uint32_t length, uint32_t buffer, uint64_t buffer_offset=0, *,
              cookie=0, signalled=False):
        """Adds to the list: own memory into the region. It must stay as it is until that completes."""
        cdef link_request *r = self.add(REQUEST_WRITE, cookie, signalled)
        r.region, r.offset, r.length, r.buffer, r.buffer_offset = region, offset, length, buffer, buffer_offset

    def compare_swap(self, uint32_t region, uint64_t offset, uint64_t expected, uint64_t desired, *, cookie=0,
                     signalled=False, uint32_t buffer=BUFFERS_MAX, uint64_t buffer_offset=0):
        """Adds to the list: the word becomes `desired` if it is `expected`. What it was comes with the completion, and
        lies in own memory if some is named."""
        cdef link_request *r = self.add(REQUEST_SWAP, cookie, signalled)
        r.region, r.offset, r.length, r.buffer, r.buffer_offset = region, offset, 8, buffer, buffer_offset
        r.first, r.second = expected, desired

    def fetch_add(self, uint32_t region, uint64_t offset, uint64_t value, *, cookie=0, signalled=False,
                  uint32_t buffer=BUFFERS_MAX, uint64_t buffer_offset=0):
        """Adds to the list: the word grows by `value`; as compare_swap."""
        cdef link_request *r = self.add(REQUEST_ADD, cookie, signalled)
        r.region, r.offset, r.length, r.buffer, r.buffer_offset = region, offset, 8, buffer, buffer_offset
        r.first = value

    def send(self, uint32_t length, uint32_t buffer, uint64_t buffer_offset=0, *, port=0, to=0, cookie=0):
        """Submits a message out of own memory, to a port of the link's node or to the link `to` there."""
        self.alone()
        cdef link_request *r = self.add(LINK_SEND, cookie, True)
        r.offset, r.first, r.length, r.buffer, r.buffer_offset = port, to, length, buffer, buffer_offset
        self.submit()

    def receive(self, uint32_t length, uint32_t buffer, uint64_t buffer_offset=0, *, cookie=0):
        """Submits memory for one long message; it completes when that is there."""
        self.alone()
        cdef link_request *r = self.add(LINK_RECEIVE, cookie, True)
        r.length, r.buffer, r.buffer_offset = length, buffer, buffer_offset
        self.submit()

    def find(self, uint32_t length, uint32_t buffer, uint64_t buffer_offset=0, *, change=False, cookie=0):
        """Submits the name of a region, in own memory; completes with its handle, and there lie then its size in bytes
        and its rights, of 8 bytes each. `change`: it will be written, or words of it changed."""
        self.alone()
        cdef link_request *r = self.add(LINK_FIND, cookie, True)
        r.length, r.buffer, r.buffer_offset, r.first = length, buffer, buffer_offset, 1 if change else 0
        self.submit()

    def forget(self, uint32_t region, *, cookie=0):
        """Submits that a region is needed no more."""
        self.alone()
        cdef link_request *r = self.add(LINK_FORGET, cookie, True)
        r.region = region
        self.submit()

    cdef int alone(self) except -1:
        if self.filled != self.list_from:
            raise ValueError("a list is being made: submit() it first")
        return 0

    def submit(self):
        """Hands over the list that was made; its last request is signalled."""
        cdef uint64_t k
        cdef link_request *r
        for k in range(self.list_from, self.filled):
            r = &self.user.requests[k & (LINK_REQUESTS_MAX - 1)]
            r.left = <uint32_t>(self.filled - 1 - k)
            if self.expects and r.cookie == self.expected:
                self.expects, self.on_way = False, True
        # SYNC POINT: submission. Pairs with serve(): the requests before the count.
        u64_store_release(&self.user.submitted, self.filled)
        self.list_from = self.filled
        if self.bell != NULL:
            fence_store_load()
            ring_once(self.bell, self.bell_fd, &self.rung)

    def expect(self, uint64_t cookie):
        """Before the request with this cookie is submitted: whether it is `on_way`, and its `outcome`, are known from
        then on by this end itself. So whoever is interrupted in the middle of submitting or taking, as by a signal, can
        go on afterwards."""
        self.expected, self.expects, self.on_way, self.outcome = cookie, True, False, None

    def drop(self):
        """Forgets the list that was being made."""
        self.filled = self.list_from
        self.expects = False

    # ---- waiting ----

    cdef bint has_news(self) noexcept nogil:
        return (u64_load_acquire(&self.pool.dones) != u64_load_relaxed(&self.user.dones_taken)
                or u64_load_acquire(&self.pool.messages) != u64_load_relaxed(&self.user.messages_taken)
                or u64_load_acquire(&self.pool.broken) != 0 or self.gone
                or u64_load_acquire(&self.pool.duplexes) != self.duplexes_taken)

    cdef bint lie_down(self) noexcept nogil:
        """The last look before a sleep: what came before whoever has news saw the sleep is found in it."""
        fall_asleep(&self.user.bell)
        return self.has_news()

    def wait(self, double timeout_s, double spin_s=0.0):
        """Blocks until there are completions or messages, the link is broken or its node has ended (True), or for
        `timeout_s` seconds (False). It looks for `spin_s` seconds before it sleeps. A signal ends the wait: False, or
        what its handler raises."""
        cdef uint64_t now = monotonic_ns()
        cdef uint64_t until = now + <uint64_t>(min(timeout_s, 1e9) * 1e9), busy_until = now + <uint64_t>(spin_s * 1e9)
        cdef bint found = False
        cdef int ms
        with nogil:
            while True:
                found = self.has_news()
                now = monotonic_ns()
                if found or now >= until:
                    break
                if now < busy_until or self.end < 0:
                    cpu_relax()
                    continue
                if self.lie_down():
                    wake_up(&self.user.bell)
                    continue
                ms = <int>min((until - now + 999999) // 1000000, <uint64_t>1000000000)
                ms = end_wait(self.end, ms)
                wake_up(&self.user.bell)
                if ms < 0:
                    found = self.has_news()
                    break
        return found

    # The parts of wait(), for who waits in another way and has another clock (the simulator).

    @property
    def news(self):
        """wait() would end at once."""
        return self.has_news()

    def fileno(self):
        """Where this end is rung; -1: nowhere."""
        return end_fd(self.end)

    def fall_asleep(self):
        """Whoever has news for it rings it from now on. False: there is something already. Then wake_up()."""
        return not self.lie_down()

    def wake_up(self):
        """After a sleep: takes what it was rung for."""
        end_clear(self.end)
        wake_up(&self.user.bell)

    def mark_gone(self):
        """The node has ended: whoever waits wakes up, and each later wait ends at once. Any thread may call this."""
        self.gone = True
        if self.forks == forks:  # otherwise the end is the parent's
            end_wake(self.end)

    def close(self):
        """Gives its descriptors back. Idempotent."""
        if self.bell_fd >= 0:
            c_close(self.bell_fd)
        if self.end >= 0:
            c_close(end_fd(self.end))
        self.bell_fd = self.end = -1
        self.bell = NULL

    def __dealloc__(self):
        self.close()

    # ---- taking ----

    def take(self):
        """Completions so far: [(cookie, status name, value), ...]. `value`: what an atomic found; bytes of a long
        message; of a wrong request what rule it broke, in words."""
        cdef uint64_t taken = u64_load_relaxed(&self.user.dones_taken), n = u64_load_acquire(&self.pool.dones)
        cdef const link_done *d
        found = []
        while taken < n:
            d = &self.pool.ring[taken & (LINK_DONES_MAX - 1)]
            value = WRONG[d.value] if d.status == LINK_WRONG else d.value
            found.append((d.cookie, STATUS_NAMES[d.status], value))
            if self.on_way and d.cookie == self.expected:
                self.on_way, self.outcome = False, (STATUS_NAMES[d.status], value)
            taken += 1
        u64_store_release(&self.user.dones_taken, taken)
        return found

    def messages(self, into=None):
        """Messages so far: [(node id, link id of the sender, bytes), ...]. `into`: what they are appended to, so that
        who is interrupted before it has the result, as by a signal, has them all the same."""
        cdef uint64_t taken = u64_load_relaxed(&self.user.messages_taken), end = u64_load_acquire(&self.pool.messages)
        cdef uint64_t node, sender
        cdef int length
        found = [] if into is None else into
        while (length := next_length(self.pool.box, LINK_BOX_SIZE, taken, end, LINK_BOX_SIZE)) >= 16:
            take_at(self.pool.box, LINK_BOX_SIZE, taken + HEAD_SIZE, <char *>&node, 8)
            take_at(self.pool.box, LINK_BOX_SIZE, taken + HEAD_SIZE + 8, <char *>&sender, 8)
            data = PyBytes_FromStringAndSize(NULL, length - 16)
            take_at(self.pool.box, LINK_BOX_SIZE, taken + HEAD_SIZE + 16, PyBytes_AS_STRING(data), length - 16)
            found.append((node, sender, data))
            taken += boxed(length)
        u64_store_release(&self.user.messages_taken, taken)
        return found

    @property
    def duplexes(self):
        """How many more were made for this end, which is bound to a port (duplex.pyx), since it was last asked."""
        cdef uint64_t made = u64_load_acquire(&self.pool.duplexes), more = made - self.duplexes_taken
        self.duplexes_taken = made
        return more

    @property
    def pending(self):
        """Submissions that were not taken, or have not completed; those of unsignalled requests never do."""
        return self.filled - u64_load_relaxed(&self.user.dones_taken)

    @property
    def waiting(self):
        """Submissions that the pool has not taken."""
        return self.filled - u64_load_acquire(&self.pool.taken)

    @property
    def broken(self):
        """Why the link is over; "" while it isn't."""
        return BROKEN.get(u64_load_acquire(&self.pool.broken), "")
