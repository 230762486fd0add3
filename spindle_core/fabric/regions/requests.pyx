"""Lists of requests, and where they complete, for who fills and takes them from Python (regions.pxd says what they do).

A `RequestList` is filled, posted by Regions.post(), and used again; an `Asker` is a user's own queue of completions.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from spindle_core.fabric.regions.regions cimport (
    LIST_MAX,
    REQUEST_ADD,
    REQUEST_READ,
    REQUEST_SIGNALLED,
    REQUEST_SWAP,
    REQUEST_WRITE,
    done_t,
    request_t,
)
from spindle_core.memory cimport Mapping

STATUS_NAMES = ("done", "cut", "ended", "range", "refused", "after")
ASKER_SIZE = 1024


cdef class Asker:
    """Where the completions of one user's requests go. `size`: completions that have room, a power of two.

    ValueError for a size below that of two lists, or no power of two.
    """

    def __cinit__(self, size=ASKER_SIZE):
        if size < 2 * LIST_MAX or size & (size - 1) or size > 1 << 24:
            raise ValueError(f"{size} completions: must be a power of two of at least {2 * LIST_MAX}")
        memset(&self.state, 0, sizeof(self.state))
        self.state.ring = <done_t *>calloc(size, sizeof(done_t))
        if self.state.ring == NULL:
            raise MemoryError()
        self.state.capacity = size

    def take(self):
        """Completions so far: [(cookie, status name, value found, peer), ...]. Who drives takes them."""
        cdef done_t *d
        found = []
        while self.state.tail < self.state.head:
            d = &self.state.ring[self.state.tail & (self.state.capacity - 1)]
            found.append((d.cookie, STATUS_NAMES[d.status], d.value, d.peer))
            self.state.tail += 1
        return found

    @property
    def waiting(self):
        """Completions that are still to come, at most."""
        return self.state.promised

    def __dealloc__(self):
        free(self.state.ring)


cdef class RequestList:
    """Requests for one peer, in the order in which they shall happen. To be filled, posted, cleared, and used again.

    Of each request: the region's number, the offset there in bytes, a cookie that comes back with its completion, and
    whether it is signalled (the last one of a list always is). ValueError where memory of this node doesn't fit.
    """

    def __cinit__(self):
        self.n = 0
        self.memories = []

    def clear(self):
        self.n = 0
        self.memories = []

    def __len__(self):
        return self.n

    cdef request_t *add(self, uint32_t kind, region, offset, length, cookie, signalled) except NULL:
        cdef request_t *q = &self.requests[self.n]
        if self.n == LIST_MAX:
            raise ValueError(f"{LIST_MAX} requests in a list are the limit")
        memset(q, 0, sizeof(request_t))
        q.kind = kind
        q.flags = REQUEST_SIGNALLED if signalled else 0
        q.region = region
        q.offset = offset
        q.length = length
        q.cookie = cookie
        self.n += 1
        return q

    cdef char *place(self, Mapping memory, offset, length, bint written) except NULL:
        if memory.base == NULL or (written and not memory.writable):
            raise ValueError("what is read goes into memory that is mapped for writing")
        if not 0 <= offset <= memory.size or length > memory.size - offset:
            raise ValueError(f"{length} bytes at {offset} don't fit a mapping of {memory.size}")
        self.memories.append(memory.view())
        return memory.base + <uint64_t>offset

    def read(self, region, offset, length, Mapping into not None, into_offset=0, *, cookie=0, signalled=False):
        """Reads `length` bytes of the region into memory of this node."""
        cdef char *local = self.place(into, into_offset, length, True)
        self.add(REQUEST_READ, region, offset, length, cookie, signalled).local = local

    def write(self, region, offset, length, Mapping source not None, source_offset=0, *, cookie=0, signalled=False):
        """Writes `length` bytes of memory of this node into the region. More than INLINE_SIZE bytes must stay as they
        are until it completes."""
        cdef char *local = self.place(source, source_offset, length, False)
        self.add(REQUEST_WRITE, region, offset, length, cookie, signalled).local = local

    def compare_swap(self, region, offset, uint64_t expected, uint64_t desired, *, cookie=0, signalled=False,
                     Mapping found=None, found_offset=0):
        """Sets the word to `desired` if it is `expected`. The word found comes with the completion; and lies in `found`
        when that, or a later one, has come."""
        cdef char *local = NULL if found is None else self.place(found, found_offset, 8, True)
        cdef request_t *q = self.add(REQUEST_SWAP, region, offset, 8, cookie, signalled)
        q.local = local
        q.first = expected
        q.second = desired

    def fetch_add(self, region, offset, uint64_t value, *, cookie=0, signalled=False, Mapping found=None,
                  found_offset=0):
        """Adds to the word; what it was before is told as in compare_swap."""
        cdef char *local = NULL if found is None else self.place(found, found_offset, 8, True)
        cdef request_t *q = self.add(REQUEST_ADD, region, offset, 8, cookie, signalled)
        q.local = local
        q.first = value
