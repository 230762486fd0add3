"""The pool of a host: links over the connections that it has (links.pxd).

Whoever drives it calls run() with the time, and then does the errands that run() could not: `errands` is for leases and
for what only its user knows; what the pool knows itself (long messages, moves, links that go) `tidy` does.

Rules: one thread at a time drives a pool and its regions.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc

from spindle_core.fabric.regions.regions cimport NO_PEER, PEERS_MAX, Part, Regions, done_t
from spindle_core.layout cimport LINK_DONES_MAX, LINK_MAGIC, link_pool_page, link_user_page
from spindle_core.links.link cimport Link
from spindle_core.links.links cimport (
    BROKEN_CONNECTION,
    ERRAND_ASK,
    ERRAND_FETCH,
    ERRAND_LEASE,
    ERRAND_MOVED,
    ERRAND_NONE,
    ERRAND_SEND,
    ERRANDS_MAX,
    LINK_CLOSING,
    LINK_MOVING,
    LINK_OPEN,
    LINKS_MAX,
    NOTE_SIZE_MAX,
    PORTS_MAX,
    errand_t,
    handle_t,
    link_t,
    pool_t,
)
from spindle_core.links.long_messages cimport LongMessages
from spindle_core.links.notes cimport lose, take_notes
from spindle_core.links.serving cimport break_link, errand, give, is_over, ring_user, serve
from spindle_core.memory cimport Mapping

cdef enum:
    ROUNDS_MAX = 16              # of all links, in one run

LINKS = LINKS_MAX


# ---- a run ---------------------------------------------------------------------------------------------------------

cdef bint is_idle(link_t *link) noexcept nogil:
    """Nothing that this link has asked for is on the way."""
    return link.asker.promised == 0 and not link.noted


cdef void look_after(pool_t *s, link_t *link) noexcept nogil:
    """What follows for a link whose connection has ended, that moves, or whose user has gone."""
    if is_over(s, link.peer) or is_over(s, link.atomics_peer):
        lose(link)
        if link.state == LINK_OPEN or link.state == LINK_MOVING:
            break_link(link, BROKEN_CONNECTION)
    elif link.state == LINK_MOVING and not link.waits and is_idle(link):
        link.waits = errand(s, link, ERRAND_MOVED, 0)


cdef int run_pool(pool_t *s, uint64_t now_ns) noexcept nogil:
    cdef uint32_t i, _round
    cdef int total = 0
    cdef link_t *link
    cdef bint any = True
    for i in range(s.n_parts):
        if s.parts[i].progress != NULL:
            total += s.parts[i].progress(s.parts[i].self)
    total += take_notes(s)
    for _round in range(<uint32_t>ROUNDS_MAX):
        if not any:
            break
        any = False
        for i in range(s.n_used):
            link = s.used[(s.turn + i) % s.n_used]
            if link.state == LINK_OPEN and serve(s, link, now_ns):
                any = True
                total += 1
    s.turn = s.turn + 1 if s.turn + 1 < s.n_used else 0
    for i in range(s.n_used):
        look_after(s, s.used[i])
        if s.used[i].state != LINK_CLOSING:
            total += give(s.used[i])
            if s.used[i].news:
                ring_user(s.used[i])
    return total


# ---- links -----------------------------------------------------------------------------------------------------------

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
        self.long_messages = LongMessages(regions, mapping_of or (lambda peer, key: None))
        self.long_messages.state = self.state
        self.state.regions = regions.state
        self.nodes, self.links = {}, {}
        self.for_atomics = {}
        self.closing, self.asking = [], []
        self.free_places = list(range(LINKS_MAX - 1, -1, -1))
        self.uses = [0] * LINKS_MAX
        for one in regions.parts:
            part = one
            self.state.parts[self.state.n_parts] = &part.table
            self.state.n_parts += 1

    # ---- connections ----

    def add_connection(self, uint64_t node, uint32_t peer, atomics=False):
        """The regions' `peer` is a connection to that node (its id, not 0): the first one is what links share.
        `atomics`: it is for lists with an atomic in them, and must be there before links are opened.

        ValueError where it is one already."""
        if node == 0 or self.state.node_of[peer]:
            raise ValueError(f"connection {peer} can't lead to node {node}: it is one already, or node ids begin at 1")
        if atomics and node in self.for_atomics:
            raise ValueError(f"node {node} has a connection for atomics already")
        self.regions.identify(peer, node)
        if atomics:
            self.for_atomics[node] = peer
        else:
            self.nodes.setdefault(node, []).append(peer)
        self.state.node_of[peer] = node
        self.state.owed[peer].kind = 0

    def remove_connection(self, uint32_t peer):
        """A connection is given up: with requests on the way these complete as cut, and its links are broken. Move
        them before, if the node is there."""
        cdef Link link
        node = self.state.node_of[peer]
        if node:
            if self.for_atomics.get(node) == peer:
                del self.for_atomics[node]
            else:
                self.nodes[node].remove(peer)
                if not self.nodes[node]:
                    del self.nodes[node]
            self.state.node_of[peer] = 0
        self.regions.cut(peer)
        self.long_messages.drop(peer)
        for link in self.links.values():
            if link.state.peer == peer or link.state.atomics_peer == peer:
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
        link.regions, link.node, link.opened, link.memories = self.regions, node, {}, {}
        link.registered, link.lent = {}, set()
        link.state.asker.capacity = LINK_DONES_MAX
        link.state.end = -1
        link.state.id = <uint64_t>self.uses[place] << 16 | place
        link.state.peer = NO_PEER if node is None else self.nodes[node][0]
        link.state.atomics_peer = NO_PEER
        if node in self.for_atomics:
            link.state.atomics_peer = self.for_atomics[node]
        link.state.user = <link_user_page *>link.user_page.base
        link.state.pool = <link_pool_page *>link.pool_page.base
        link.state.user.magic = link.state.pool.magic = LINK_MAGIC
        link.state.state = LINK_OPEN
        link.state.at = self.state.n_used
        self.links[link.state.id] = link
        self.state.links[place] = self.state.used[link.state.at] = &link.state
        self.state.n_used += 1
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
        if link.state.state != LINK_CLOSING:
            link.state.state = LINK_CLOSING
            self.closing.append(link)

    def move(self, Link link not None, uint32_t peer):
        """Has a link go on over another connection to its node, in order. ValueError where that leads elsewhere."""
        if link.state.peer == NO_PEER or peer not in self.nodes.get(link.node, ()):
            raise ValueError(f"connection {peer} doesn't lead to node {link.node}")
        if link.state.state != LINK_OPEN or link.state.peer == peer:
            return
        link.state.next_peer = peer
        link.state.state = LINK_MOVING

    # ---- driving ----

    @property
    def waits(self):
        """tidy() has something to do that nothing will tell of: users that have gone, answers that had no room."""
        return bool(self.closing) or self.long_messages.waits()

    @property
    def has_failed(self):
        """A connection has ended by itself and was not removed yet (Regions.failures)."""
        cdef uint32_t i
        for i in range(<uint32_t>PEERS_MAX):
            if self.state.regions.peers[i].part != NULL and self.state.regions.peers[i].failed:
                return True
        return False

    def open_links(self):
        """All whose users have not gone."""
        return [link for link in self.links.values() if (<Link>link).state.state != LINK_CLOSING]

    def asked(self):
        """Links whose users want a region found or forgotten, since the last call (Link.wish, Link.answer)."""
        found, self.asking = self.asking, []
        return found

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
                self.long_messages.fetch(&e, link)
            elif e.kind == ERRAND_NONE or link is None:
                continue
            elif link.state.state == LINK_CLOSING:
                if e.kind == ERRAND_ASK:
                    link.state.asker.promised -= 1
                continue
            elif e.kind == ERRAND_ASK:
                self.asking.append(link)
            elif e.kind == ERRAND_LEASE:
                if link.state.handles[e.what].open:
                    leases.append((link, e.what))
                else:
                    link.state.waits = 0                   # closed meanwhile: its request is looked at once more
            elif e.kind == ERRAND_SEND:
                self.long_messages.send(link)
            elif link.state.state == LINK_MOVING and is_idle(&link.state):
                self.change(link)
        self.long_messages.tidy()
        if self.closing:
            self.closing = [link for link in self.closing if not self.forgotten(link)]
        return leases

    cdef bint forgotten(self, Link link) except? True:
        """A link whose user has gone has nothing on the way any more, and all that it had is free."""
        look_after(self.state, &link.state)
        link.state.asker.tail = link.state.asker.head
        if is_idle(&link.state):
            self.forget(link)
            return True
        return False

    cdef int forget(self, Link link) except -1:
        cdef uint32_t place = link.state.id & 0xFFFF
        for handle in list(link.opened):
            link.forget_region(&link.state.handles[<uint32_t>handle])
        self.long_messages.forget(link)
        for view in link.memories.values():
            self.regions.let_go(view.obj)
        del self.links[link.state.id]
        self.state.links[place] = NULL
        self.state.n_used -= 1
        self.state.used[link.state.at] = self.state.used[self.state.n_used]      # the last one takes its place
        self.state.used[link.state.at].at = link.state.at
        self.free_places.append(place)
        return 0

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

    def __dealloc__(self):
        if self.state != NULL:
            free(self.state.note)
            free(self.state.heard)
            free(self.state)
