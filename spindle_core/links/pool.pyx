"""The pool of a host: links over the connections that it has (links.pxd).

Whoever drives it calls run() with the time, and then does the errands that run() could not: `errands` is for leases and
for what only its user knows; what the pool knows itself (long messages, moves, links that go) `tidy` does.

Rules: one thread at a time drives a pool and its regions.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from spindle_core.fabric.regions.flights cimport post, tell
from spindle_core.fabric.regions.regions cimport (
    NO_PEER,
    PEERS_MAX,
    REQUEST_DONE,
    REQUEST_READ,
    Asker,
    Part,
    Regions,
    done_t,
    request_t,
)
from spindle_core.layout cimport (
    LINK_DONES_MAX,
    LINK_MAGIC,
    LINK_REQUESTS_MAX,
    link_pool_page,
    link_request,
    link_user_page,
)
from spindle_core.links.links cimport (
    BROKEN_CONNECTION,
    BUFFERS_MAX,
    ERRAND_FETCH,
    ERRAND_LEASE,
    ERRAND_MOVED,
    ERRAND_SEND,
    ERRANDS_MAX,
    HANDLES_MAX,
    LINK_BROKEN,
    LINK_CLOSING,
    LINK_MOVING,
    LINK_NOBODY,
    LINK_OPEN,
    LINKS_MAX,
    NOTE_LONG,
    NOTE_SIZE_MAX,
    PORTS_MAX,
    POSTED_MAX,
    errand_t,
    handle_t,
    link_t,
    long_t,
    note_t,
    pool_t,
    posted_t,
)
from spindle_core.links.notes cimport lose, owe, pay, take_notes
from spindle_core.links.serving cimport break_link, errand, give, ring_user, serve
from spindle_core.memory cimport Mapping

cdef enum:
    ROUNDS_MAX = 16              # of all links, in one run
    LONG_SIZE = 48 + 48          # bytes of a note of a long message

LINKS = LINKS_MAX
HANDLES = HANDLES_MAX
BUFFERS = BUFFERS_MAX


# ---- a run ---------------------------------------------------------------------------------------------------------

cdef bint is_idle(link_t *link) noexcept nogil:
    """Nothing that this link has asked for is on the way."""
    return link.asker.promised == 0 and not link.noted


cdef void look_after(pool_t *s, link_t *link) noexcept nogil:
    """What follows for a link whose connection has ended, that moves, or whose user has gone."""
    if link.peer != NO_PEER and (s.regions.peers[link.peer].cut or s.regions.peers[link.peer].part == NULL):
        lose(link)
        if link.state == LINK_OPEN or link.state == LINK_MOVING:
            break_link(link, BROKEN_CONNECTION)
    elif link.state == LINK_MOVING and not link.waits and is_idle(link):
        link.waits = errand(s, link, ERRAND_MOVED, 0)


cdef int run_pool(pool_t *s, uint64_t now_ns) noexcept nogil:
    cdef uint32_t i, k, _round
    cdef int total = 0
    cdef bint any = True
    for i in range(s.n_parts):
        if s.parts[i].progress != NULL:
            total += s.parts[i].progress(s.parts[i].self)
    total += take_notes(s)
    for _round in range(<uint32_t>ROUNDS_MAX):
        if not any:
            break
        any = False
        for i in range(s.n_links):
            k = (s.turn + i) % s.n_links
            if s.links[k] != NULL and s.links[k].state == LINK_OPEN and serve(s, s.links[k], now_ns):
                any = True
                total += 1
    s.turn = s.turn + 1 if s.turn + 1 < s.n_links else 0
    for i in range(s.n_links):
        if s.links[i] != NULL:
            look_after(s, s.links[i])
            if s.links[i].state != LINK_CLOSING:
                total += give(s.links[i])
                if s.links[i].news:
                    ring_user(s.links[i])
    return total


# ---- links ---------------------------------------------------------------------------------------------------------

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

    def rung_at(self, int end):
        """Where the user is rung when it sleeps: this end of a doorbell (ends.make_ends), which must stay open until
        the link is closed. -1: nowhere."""
        self.state.end = end

    def add_buffer(self, Mapping memory not None):
        """Lets the user's requests use this memory of its own; returns its handle. ValueError beyond BUFFERS_MAX."""
        cdef uint32_t i
        for i in range(<uint32_t>BUFFERS_MAX):
            if self.state.buffers[i].base == NULL:
                for part in self.pool.regions.parts:
                    part.know(memory)
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
                h.region = self.pool.regions.reach(self.state.peer, grant, memory)
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

    def look_again(self):
        """The region whose lease its next request waits for is open no more: that is looked at once more."""
        self.state.waits = 0

    def close_region(self, handle):
        """The user needs the region no more; what is on the way goes on."""
        self.check(handle, b"close")
        self.state.handles[<uint32_t>handle].open = 0
        self.opened.pop(handle)
        if self.is_open:
            self.pool.regions.forget(self.state.handles[<uint32_t>handle].region)

    def __dealloc__(self):
        free(self.state.asker.ring)


cdef class Pool:
    """Links over what `regions` is connected to; its parts are there before. `mapping_of(peer, key)`: memory of a peer
    of this host, mapped, or None while it isn't; for long messages on a host."""

    def __cinit__(self):
        self.state = <pool_t *>calloc(1, sizeof(pool_t))
        if self.state == NULL:
            raise MemoryError()
        self.state.note = <char *>malloc(NOTE_SIZE_MAX)
        self.state.heard = <char *>malloc(NOTE_SIZE_MAX)
        if self.state.note == NULL or self.state.heard == NULL:
            raise MemoryError()

    def __init__(self, Regions regions not None, mapping_of=None):
        cdef Part part
        self.regions = regions
        self.mapping_of = mapping_of or (lambda peer, key: None)
        self.replies, self.leaving = [], []
        self.state.regions = regions.state
        self.nodes, self.links, self.closing = {}, {}, set()
        self.free_places = list(range(LINKS_MAX - 1, -1, -1))
        self.uses = [0] * LINKS_MAX
        self.fetching = Asker()
        self.fetches = {}
        self.fetched = 0
        for one in regions.parts:
            part = one
            self.state.parts[self.state.n_parts] = &part.table
            self.state.n_parts += 1

    # ---- connections ----

    def add_connection(self, uint64_t node, uint32_t peer):
        """The regions' `peer` is a connection to that node (its id, not 0): the first one is what links share.
        ValueError where it is one already."""
        if node == 0 or self.state.node_of[peer]:
            raise ValueError(f"connection {peer} can't lead to node {node}: it is one already, or node ids begin at 1")
        self.regions.identify(peer, node)
        self.nodes.setdefault(node, []).append(peer)
        self.state.node_of[peer] = node
        self.state.owed[peer].kind = 0

    def remove_connection(self, uint32_t peer):
        """A connection is given up: with requests on the way these complete as cut, and its links are broken. Move
        them before, if the node is there."""
        cdef Link link
        node = self.state.node_of[peer]
        if node:
            self.nodes[node].remove(peer)
            if not self.nodes[node]:
                del self.nodes[node]
            self.state.node_of[peer] = 0
        self.regions.cut(peer)
        for link in self.links.values():
            if link.state.peer == peer:
                look_after(self.state, &link.state)        # now: its number may be another connection's soon
            elif link.state.state == LINK_MOVING and link.state.next_peer == peer:
                link.state.state = LINK_OPEN               # it stays where it is
                link.state.waits = 0
        self.regions.forget_peer(peer)

    def connections(self, uint64_t node):
        """The connections to a node, the shared one first; none where it isn't known."""
        return list(self.nodes.get(node, ()))

    # ---- links ----

    def open_link(self, node=None):
        """A link to a node of the pool; None: one that shall be bound to a port. Needs no connection of its own.

        ConnectionError where the node isn't known, ValueError beyond LINKS_MAX.
        """
        cdef Link link = Link()
        cdef uint32_t place
        if node is not None and node not in self.nodes:
            raise ConnectionError(f"there is no connection to node {node}")
        if not self.free_places:
            raise ValueError(f"{LINKS_MAX} links of a host are the limit")
        link.state.asker.ring = <done_t *>calloc(LINK_DONES_MAX, sizeof(done_t))
        if link.state.asker.ring == NULL:
            raise MemoryError()
        link.user_page = Mapping.create("spindle-link-user", sizeof(link_user_page))
        link.pool_page = Mapping.create("spindle-link-pool", sizeof(link_pool_page))
        link.pool_page.seal_writes()
        place = self.free_places.pop()
        self.uses[place] += 1
        link.pool, link.node, link.opened, link.memories, link.registered = self, node, {}, {}, {}
        link.state.asker.capacity = LINK_DONES_MAX
        link.state.end = -1
        link.state.id = <uint64_t>self.uses[place] << 16 | place
        link.state.peer = NO_PEER if node is None else self.nodes[node][0]
        link.state.user = <link_user_page *>link.user_page.base
        link.state.pool = <link_pool_page *>link.pool_page.base
        link.state.user.magic = link.state.pool.magic = LINK_MAGIC
        link.state.state = LINK_OPEN
        self.links[link.state.id] = link
        self.state.links[place] = &link.state
        if place >= self.state.n_links:
            self.state.n_links = place + 1
        return link

    def bind(self, Link link not None, uint32_t port):
        """Messages to this port come to that link. ValueError where another one has it, or it is none from 1 to
        PORTS_MAX."""
        if not 1 <= port <= PORTS_MAX:
            raise ValueError(f"port {port}: must be between 1 and {PORTS_MAX}")
        if self.state.ports[port] != NULL:
            raise ValueError(f"port {port} is bound by another link")
        if link.state.port:
            raise ValueError(f"this link is bound to port {link.state.port}")
        self.state.ports[port] = &link.state
        link.state.port = port

    def close_link(self, Link link not None):
        """Its user has gone: nothing of it is taken any more, what is on the way goes on, and then its place and its
        memory are free (tidy). Idempotent."""
        if link.state.port:
            self.state.ports[link.state.port] = NULL
            link.state.port = 0
        link.state.state = LINK_CLOSING
        self.closing.add(link)

    def move(self, Link link not None, uint32_t peer):
        """Has a link go on over another connection to its node, in order. ValueError where that leads elsewhere."""
        if link.state.peer == NO_PEER or self.state.node_of[peer] != link.node:
            raise ValueError(f"connection {peer} doesn't lead to node {link.node}")
        if link.state.state != LINK_OPEN or link.state.peer == peer:
            return
        link.state.next_peer = peer
        link.state.state = LINK_MOVING

    # ---- driving ----

    @property
    def waits(self):
        """tidy() has something to do that nothing will tell of: users that have gone and their memory, answers that had
        no room."""
        return bool(self.closing) or bool(self.replies) or bool(self.leaving)

    @property
    def has_failed(self):
        """A connection has ended by itself and was not removed yet (Regions.failures)."""
        cdef uint32_t i
        for i in range(<uint32_t>PEERS_MAX):
            if self.state.regions.peers[i].part != NULL and self.state.regions.peers[i].failed:
                return True
        return False

    def run(self, uint64_t now_ns):
        """Takes what has come, serves each link in its turn, and gives completions; returns how much that was."""
        cdef int total
        with nogil:
            total = run_pool(self.state, now_ns)
        return total

    def tidy(self):
        """Does the errands that the pool knows, and frees links that have gone. Returns leases that must be renewed:
        [(link, handle), ...]: call its renew() or end_region()."""
        cdef errand_t e
        cdef Link link
        leases = []
        while self.state.errands_tail < self.state.errands_head:
            e = self.state.errands[self.state.errands_tail & (ERRANDS_MAX - 1)]
            self.state.errands_tail += 1
            link = self.links.get(e.link)
            if e.kind == ERRAND_FETCH:
                self.fetch(&e, link)
            elif link is None or link.state.state == LINK_CLOSING:
                continue
            elif e.kind == ERRAND_LEASE:
                if link.state.handles[e.what].open:
                    leases.append((link, e.what))
                else:
                    link.state.waits = 0                   # closed meanwhile: its request is looked at once more
            elif e.kind == ERRAND_SEND:
                self.send_long(link)
            elif link.state.state == LINK_MOVING and is_idle(&link.state):
                self.change(link)
        self.finish_fetches()
        if self.leaving:
            self.leaving = [memory for memory in self.leaving if not self.regions.idle(memory)]
        for link in list(self.closing):
            look_after(self.state, &link.state)
            link.state.asker.tail = link.state.asker.head
            if is_idle(&link.state):
                self.closing.discard(link)
                self.forget(link)
        return leases

    cdef int forget(self, Link link) except -1:
        cdef uint32_t place = link.state.id & 0xFFFF
        for handle in list(link.opened):
            if link.state.peer != NO_PEER and self.regions_has(link, handle):
                self.regions.forget(link.state.handles[<uint32_t>handle].region)
        for buffer, key in link.registered.items():
            self.regions.deregister(key)
            self.leaving.append(link.memories[buffer].obj)
        del self.links[link.state.id]
        self.state.links[place] = NULL
        self.free_places.append(place)
        return 0

    cdef bint regions_has(self, Link link, handle):
        return link.state.handles[<uint32_t>handle].region in self.regions.reached

    cdef int change(self, Link link) except -1:
        """It has nothing on the way any more: now it is on the other connection."""
        cdef handle_t *h
        for handle, (grant, memory) in link.opened.items():
            h = &link.state.handles[<uint32_t>handle]
            self.regions.forget(h.region)
            h.region = self.regions.reach(link.state.next_peer, grant, memory)
        link.state.peer = link.state.next_peer
        link.state.waits = 0
        link.state.state = LINK_OPEN
        return 0

    # ---- long messages ----

    cdef int send_long(self, Link link) except -1:
        """The next submission is a long message: the receiver's pool is told where it lies."""
        cdef link_request r
        cdef note_t note
        cdef long_t where
        cdef char data[LONG_SIZE]
        cdef bytes grant
        memcpy(&r, &link.state.user.requests[link.state.taken & (LINK_REQUESTS_MAX - 1)], sizeof(link_request))
        link.state.waits = 0
        if r.buffer not in link.memories or r.buffer_offset > link.state.buffers[r.buffer].size or (
                r.length > link.state.buffers[r.buffer].size - r.buffer_offset):
            return 0             # the user has changed it meanwhile: it is looked at once more
        if r.buffer not in link.registered:
            link.registered[r.buffer] = self.regions.register(link.memories[r.buffer].obj)
        grant = self.regions.grant(link.registered[r.buffer], link.state.peer)
        memset(&note, 0, sizeof(note_t))
        note.kind = NOTE_LONG
        note.port = r.offset
        note.to = r.first
        note.source = link.state.id
        note.number = link.state.note_number + 1
        note.count = 1
        memcpy(where.grant, <char *>grant, sizeof(where.grant))
        where.offset = r.buffer_offset
        where.length = r.length
        memcpy(data, &note, sizeof(note_t))
        memcpy(data + sizeof(note_t), &where, sizeof(long_t))
        try:
            self.regions.send(link.state.peer, data[:LONG_SIZE])
        except (BlockingIOError, ConnectionError):
            return 0             # it is looked at again, or its link found to be broken
        link.state.noted = 1
        link.state.note_number += 1
        link.state.note_count = 1
        link.state.asker.promised += 1
        link.state.requests += 1
        link.state.bytes += r.length
        return 0

    cdef int fetch(self, errand_t *e, Link link) except -1:
        """A long message has come: reads it into memory that the link has posted, if some is large enough."""
        cdef request_t q
        cdef uint32_t bad = 0
        cdef uint64_t region, k
        cdef posted_t p
        cdef posted_t *found = NULL
        if link is None or link.state.state == LINK_CLOSING or link.state.state == LINK_BROKEN:
            self.replies.append((e.peer, e.note.source, e.note.number, 0, LINK_NOBODY))
            return 0
        for k in range(link.state.posted_tail, link.state.posted_head):
            found = &link.state.posted[k & (POSTED_MAX - 1)]
            if found.length >= e.where.length:
                break
            found = NULL
        try:
            if found == NULL or link.state.asker.head - link.state.asker.tail + link.state.asker.promised >= (
                    link.state.asker.capacity):
                raise BlockingIOError
            region = self.reach_sender(e)
        except (BlockingIOError, ConnectionError, ValueError):
            self.replies.append((e.peer, e.note.source, e.note.number, 0, REQUEST_DONE))
            return 0
        p = found[0]
        while k + 1 < link.state.posted_head:              # those behind it move up
            link.state.posted[k & (POSTED_MAX - 1)] = link.state.posted[(k + 1) & (POSTED_MAX - 1)]
            k += 1
        link.state.posted_head -= 1
        self.fetched += 1
        memset(&q, 0, sizeof(request_t))
        q.kind = REQUEST_READ
        q.region = region
        q.offset = e.where.offset
        q.length = e.where.length
        q.local = p.at
        q.cookie = self.fetched
        link.state.asker.promised += 1
        self.fetches[self.fetched] = (link, e.peer, e.note.source, e.note.number, region, <uint64_t><size_t>p.at,
                                      p.length, p.cookie, e.where.length)
        if post(self.state.regions, &self.fetching.state, &q, 1, &bad) != 0:
            self.fetch_over(self.fetched, False)
        return 0

    cdef uint64_t reach_sender(self, errand_t *e) except? 0xFFFFFFFFFFFFFFFF:
        """The region in which the message lies. BlockingIOError where it can't be mapped yet."""
        grant = (<char *>e.where.grant)[:sizeof(e.where.grant)]
        memory = None
        if self.regions.part_of(e.peer) == "shm":
            memory = self.mapping_of(e.peer, int.from_bytes(grant[:8], "little"))
            if memory is None:
                raise BlockingIOError
        return self.regions.reach(e.peer, grant, memory)

    cdef int fetch_over(self, cookie, bint well) except -1:
        """The sender is told how it went; if not well, the memory waits for another message."""
        cdef Link link
        cdef posted_t *p
        cdef uint64_t at
        link, peer, sender, number, region, at, room, posted_cookie, length = self.fetches.pop(cookie)
        if region in self.regions.reached:
            self.regions.forget(region)
        link.state.asker.promised -= 1
        if well:
            tell(&link.state.asker, NO_PEER, posted_cookie, REQUEST_DONE, length)
        else:
            p = &link.state.posted[link.state.posted_head & (POSTED_MAX - 1)]
            p.at, p.length, p.cookie = <char *><size_t>at, room, posted_cookie
            link.state.posted_head += 1
        self.replies.append((peer, sender, number, 1 if well else 0, REQUEST_DONE))
        return 0

    cdef int finish_fetches(self) except -1:
        cdef note_t note
        for cookie, status, _, _ in self.fetching.take():
            self.fetch_over(cookie, status == "done")
        waiting, self.replies = self.replies, []
        for reply in waiting:
            peer, sender, number, count, status = reply
            if self.state.node_of[<uint32_t>peer] == 0 or self.state.regions.peers[<uint32_t>peer].cut:
                continue         # there is nobody to tell
            if not pay(self.state, peer):
                self.replies.append(reply)
                continue
            memset(&note, 0, sizeof(note_t))
            note.source = sender
            note.number = number
            owe(self.state, peer, &note, count, status)
        return 0

    def __dealloc__(self):
        if self.state != NULL:
            free(self.state.note)
            free(self.state.heard)
            free(self.state)
