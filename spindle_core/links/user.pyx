"""The user's end of a link: it submits requests and messages, and takes completions and messages, in two mappings that
it shares with the pool (layout.h).

Rules: one thread at a time uses an end. What the pool writes is trusted by the user, never the other way round.
"""
import errno

from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from spindle_core.atomics cimport u64_load_acquire, u64_load_relaxed, u64_store_release
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
    LINK_BOX_SIZE,
    LINK_DONES_MAX,
    LINK_MAGIC,
    LINK_REQUESTS_MAX,
    link_done,
    link_pool_page,
    link_request,
    link_user_page,
)
from spindle_core.links.links cimport (
    BUFFERS_MAX,
    HANDLES_MAX,
    LINK_NOBODY,
    LINK_RECEIVE,
    LINK_SEND,
    LINK_WRONG,
    PORTS_MAX,
    POSTED_MAX,
)
from spindle_core.memory cimport Mapping

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
    errno.EAGAIN: f"{POSTED_MAX} memories for long messages, posted or being filled, are the limit",
}
BROKEN = {1: "the connection to that node is over", 2: "what it submitted makes no sense"}
REQUESTS_WAITING = LINK_REQUESTS_MAX
PAGE_SIZES = sizeof(link_user_page), sizeof(link_pool_page)      # bytes: of the user's page, of the pool's


cdef class LinkUser:
    """`user_page`: mapped for writing, `pool_page`: for reading. ValueError where they are no pages of a link."""

    cdef link_user_page *user
    cdef const link_pool_page *pool
    cdef object kept
    cdef uint64_t filled         # requests that were added, submitted or not
    cdef uint64_t list_from      # the first of the list that is being made

    def __init__(self, Mapping user_page not None, Mapping pool_page not None):
        if user_page.size < sizeof(link_user_page) or pool_page.size < sizeof(link_pool_page) or not user_page.writable:
            raise ValueError("these mappings are no pages of a link")
        self.user = <link_user_page *>user_page.base
        self.pool = <link_pool_page *>pool_page.base
        if self.user.magic != LINK_MAGIC or self.pool.magic != LINK_MAGIC:
            raise ValueError("these mappings are no pages of a link of this version")
        self.kept = user_page.view(), pool_page.view()
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
        # SYNC POINT: submission. Pairs with serve(): the requests before the count.
        u64_store_release(&self.user.submitted, self.filled)
        self.list_from = self.filled

    def drop(self):
        """Forgets the list that was being made."""
        self.filled = self.list_from

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
            taken += 1
        u64_store_release(&self.user.dones_taken, taken)
        return found

    def messages(self):
        """Messages so far: [(node id, link id of the sender, bytes), ...]."""
        cdef uint64_t taken = u64_load_relaxed(&self.user.messages_taken), end = u64_load_acquire(&self.pool.messages)
        cdef uint64_t node, sender
        cdef int length
        found = []
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
    def waiting(self):
        """Submissions that the pool has not taken."""
        return self.filled - u64_load_acquire(&self.pool.taken)

    @property
    def broken(self):
        """Why the link is over; "" while it isn't."""
        return BROKEN.get(u64_load_acquire(&self.pool.broken), "")
