"""A link, as its pool has it: the memories and regions that its user's requests may name (links.pxd)."""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memcpy, memset

from spindle_core.atomics cimport u64_load_relaxed, u64_store_release
from spindle_core.fabric.regions.regions cimport NO_PEER, REQUEST_CUT, REQUEST_DONE, REQUEST_REFUSED
from spindle_core.layout cimport LINK_REQUESTS_MAX, link_request
from spindle_core.links.links cimport (
    BUFFERS_MAX,
    FOUND_SIZE,
    HANDLES_MAX,
    LINK_FIND,
    LINK_MOVING,
    LINK_NOBODY,
    LINK_OPEN,
    LINK_WRONG,
    NAME_SIZE_MAX,
    buffer_t,
    handle_t,
    link_t,
)
from spindle_core.links.serving cimport answer_ask
from spindle_core.memory cimport Mapping

STATUSES = {"done": REQUEST_DONE, "cut": REQUEST_CUT, "refused": REQUEST_REFUSED, "wrong": LINK_WRONG,
            "nobody": LINK_NOBODY}
HANDLES = HANDLES_MAX
BUFFERS = BUFFERS_MAX


cdef class Link:
    """A link, as its pool has it; Pool.open_link() makes it. Its user gets `user_page` and `pool_page`, with the one
    for writing and the other for reading."""

    def __cinit__(self):
        memset(&self.state, 0, sizeof(link_t))

    @property
    def id(self):
        """How other nodes call it."""
        return self.state.id

    @property
    def peer(self):
        """The connection in use; None where it is of no node."""
        return None if self.state.peer == NO_PEER else self.state.peer

    @property
    def is_open(self):
        """It is neither broken nor closed."""
        return self.state.state == LINK_OPEN or self.state.state == LINK_MOVING

    @property
    def use(self):
        """(requests and messages, bytes) since the last call."""
        found = self.state.requests, self.state.bytes
        self.state.requests = self.state.bytes = 0
        return found

    def sends_to(self, uint32_t port):
        """From now on its user's messages may go to this port only (0xFFFFFFFF: to none), and to links."""
        self.state.sends_to = port

    @property
    def wish(self):
        """What its user wants, once the pool says that it asks: ("find", name, to be changed, too), or
        ("forget", handle, False)."""
        cdef link_request r
        cdef const buffer_t *b
        memcpy(&r, &self.state.user.requests[self.state.taken & (LINK_REQUESTS_MAX - 1)], sizeof(link_request))
        if r.kind != LINK_FIND:
            return "forget", r.region, False
        if r.buffer >= BUFFERS_MAX or r.length > NAME_SIZE_MAX:
            return "find", b"", False                  # the user has changed it meanwhile
        b = &self.state.buffers[r.buffer]
        if b.base == NULL or r.buffer_offset > b.size or r.length > b.size - r.buffer_offset:
            return "find", b"", False
        return "find", b.base[r.buffer_offset:r.buffer_offset + r.length], r.first != 0

    def answer(self, status, uint64_t value=0, uint64_t size=0, uint64_t rights=0):
        """Answers the wish. `status`: "done" with a handle as `value` and what the user sees of the region, or why not:
        "nobody" (there is none of that name), "refused" (not open to changes), "cut", "wrong" with an errno."""
        cdef link_request r
        cdef buffer_t *b
        cdef uint64_t found[2]
        memcpy(&r, &self.state.user.requests[self.state.taken & (LINK_REQUESTS_MAX - 1)], sizeof(link_request))
        if status == "done" and r.kind == LINK_FIND and r.buffer < BUFFERS_MAX:
            b = &self.state.buffers[r.buffer]
            found[0], found[1] = size, rights
            if b.base != NULL and b.writable and r.buffer_offset <= b.size and (
                    b.size - r.buffer_offset >= FOUND_SIZE):
                memcpy(b.base + r.buffer_offset, found, FOUND_SIZE)
        answer_ask(&self.state, r.cookie, STATUSES[status], value)

    def rung_at(self, int end):
        """Where the user is rung when it sleeps: this end of a doorbell (ends.make_ends), which must stay open until
        the link is closed. -1: nowhere."""
        self.state.end = end

    def tell_of_duplex(self):
        """One more was made for its user, which is to ask for it."""
        u64_store_release(&self.state.pool.duplexes, u64_load_relaxed(&self.state.pool.duplexes) + 1)
        self.state.news = 1

    def look_again(self):
        """The region whose lease its next request waits for is open no more: that is looked at once more."""
        self.state.waits = 0

    @property
    def reaches(self):
        """How many regions it has open."""
        return len(self.opened)

    def add_buffer(self, Mapping memory not None):
        """Lets the user's requests use this memory of its own; returns its handle. ValueError beyond BUFFERS_MAX."""
        cdef uint32_t i
        for i in range(<uint32_t>BUFFERS_MAX):
            if self.state.buffers[i].base == NULL:
                self.regions.know(memory)
                self.memories[i] = memory.view()
                self.state.buffers[i].base = memory.base
                self.state.buffers[i].size = memory.size
                self.state.buffers[i].writable = memory.writable
                return i
        raise ValueError(f"a link uses at most {BUFFERS_MAX} memories of its user")

    def open_region(self, grant, uint64_t lease_ns, Mapping memory=None):
        """Lets the user's requests use a region of its node until `lease_ns`; returns its handle. `grant` and `memory`
        as in Regions.reach. ValueError beyond HANDLES_MAX, ConnectionError where the link is of no node."""
        cdef uint32_t i
        cdef handle_t *h
        if self.state.peer == NO_PEER:
            raise ConnectionError("this link is bound to a port, and leads to no node")
        for i in range(<uint32_t>HANDLES_MAX):
            h = &self.state.handles[i]
            if not h.open:
                h.region = self.regions.reach(self.state.peer, grant, memory)
                if self.state.atomics_peer != NO_PEER:
                    try:
                        h.by_atomics = self.regions.reach(self.state.atomics_peer, grant, memory)
                    except BaseException:
                        self.regions.forget(h.region)
                        raise
                h.lease_ns = lease_ns
                h.ended = 0
                h.open = 1
                self.opened[i] = grant, memory
                return i
        raise ValueError(f"a link reaches at most {HANDLES_MAX} regions")

    cdef int check(self, handle, const char *what) except -1:
        if not 0 <= handle < HANDLES_MAX or not self.state.handles[<uint32_t>handle].open:
            raise ValueError(f"there is no region {handle} to {what.decode()}")
        return 0

    def renew(self, handle, uint64_t lease_ns):
        """The region of this handle is still open, until `lease_ns`."""
        self.check(handle, b"renew")
        self.state.handles[<uint32_t>handle].lease_ns = lease_ns
        self.state.waits = 0

    def end_region(self, handle):
        """The region has ended: what is asked of it fails."""
        self.check(handle, b"end")
        self.state.handles[<uint32_t>handle].ended = 1
        self.state.waits = 0

    def close_region(self, handle):
        """The user needs the region no more; what is on the way goes on."""
        self.check(handle, b"close")
        self.state.handles[<uint32_t>handle].open = 0
        self.opened.pop(handle)
        self.forget_region(&self.state.handles[<uint32_t>handle])

    cdef int forget_region(self, const handle_t *h) except -1:
        """It is reached no more, unless its connection has ended: then it isn't anyway."""
        if h.region in self.regions.reached:
            self.regions.forget(h.region)
        if self.state.atomics_peer != NO_PEER and h.by_atomics in self.regions.reached:
            self.regions.forget(h.by_atomics)
        return 0

    def __dealloc__(self):
        free(self.state.asker.ring)
