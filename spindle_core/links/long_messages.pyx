"""Messages that stay where they are until the receiver's pool reads them, one-sidedly, straight into memory that the
receiver has posted (links.pxd; KRCore, section 4.5).

The sender's pool opens the bytes of the message, and says where they lie. The receiver's reads them, and answers when
they are there, as it answers notes; or that there was no room, and the message is told of again.

Rules: what a note says is checked, by post() and by the owner. Memory in which a message lay stays mapped until nothing
is read there any more.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from spindle_core.fabric.regions.flights cimport post, tell
from spindle_core.fabric.regions.regions cimport (
    NO_PEER,
    REQUEST_DONE,
    REQUEST_READ,
    REQUEST_SIZE_MAX,
    Regions,
    request_t,
)
from spindle_core.fabric.regions.requests cimport Asker
from spindle_core.layout cimport LINK_REQUESTS_MAX, link_request
from spindle_core.links.link cimport Link
from spindle_core.links.links cimport (
    ERRAND_FETCH,
    ERRAND_NONE,
    ERRANDS_MAX,
    LINK_BROKEN,
    LINK_CLOSING,
    LINK_NOBODY,
    LINK_SEND,
    NOTE_LONG,
    PORTS_MAX,
    POSTED_MAX,
    RETRY_LAST_NS,
    RETRY_SOON,
    errand_t,
    long_t,
    note_t,
    posted_t,
)
from spindle_core.links.notes cimport owe, pay

cdef enum:
    LONG_SIZE = 48 + 48          # bytes of a note of a long message

POSTED = POSTED_MAX


cdef class LongMessages:
    """Of one pool, whose `state` and `regions` these are; `mapping_of` as Pool has it."""

    def __init__(self, Regions regions not None, mapping_of):
        self.regions = regions
        self.mapping_of = mapping_of
        self.fetching = Asker()
        self.fetches, self.replies = {}, []
        self.fetched = 0
        self.sending, self.leaving = [], []

    cdef int send(self, Link link) except -1:
        """The next submission is a long message: the receiver's pool is told where it lies."""
        cdef link_request r
        cdef note_t note
        cdef long_t where
        cdef char data[LONG_SIZE]
        cdef bytes grant
        cdef uint64_t key
        memcpy(&r, &link.state.user.requests[link.state.taken & (LINK_REQUESTS_MAX - 1)], sizeof(link_request))
        link.state.waits = 0
        if r.kind != LINK_SEND or r.offset > PORTS_MAX or r.length > REQUEST_SIZE_MAX:
            return 0             # the user has changed it meanwhile: it is looked at once more
        if r.buffer not in link.memories or r.buffer_offset > link.state.buffers[r.buffer].size or (
                r.length > link.state.buffers[r.buffer].size - r.buffer_offset):
            return 0
        try:
            key = self.key_for(link, &r)
            grant = self.regions.grant(key, link.state.peer)
        except (OSError, ValueError):
            # There are as many regions as there may be, or a device can't pin more; or the link is found to be broken.
            link.state.retry_ns, link.state.backoff_ns = RETRY_SOON, RETRY_LAST_NS
            return 0
        memset(&note, 0, sizeof(note_t))
        note.kind = NOTE_LONG
        note.port = r.offset
        note.to = r.first
        note.source = link.state.id
        note.number = link.state.note_number + 1
        note.count = 1
        memcpy(where.grant, <char *>grant, sizeof(where.grant))
        where.offset = r.buffer_offset if key != link.key else 0
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

    cdef uint64_t key_for(self, Link link, const link_request *r) except? 0:
        """The key under which the receiver's pool reads this message: of its range alone, until it was taken. On this
        host, where a memory is mapped as a whole, of all of that, as long as the link lasts: mapping it for each
        message would cost more than the message. OSError, ValueError as Regions.register()."""
        memory = link.memories[r.buffer].obj
        link.lent.add(memory)
        if self.regions.part_of(link.state.peer) == "shm":
            if r.buffer not in link.registered:
                link.registered[r.buffer] = self.regions.register(memory)
            return link.registered[r.buffer]
        found = (r.buffer, r.buffer_offset, r.length)
        if link.key and (link.key_range != found or link.key_number != link.state.taken):
            self.end_key(link)
        if not link.key:              # a message that comes again, since it had no room, has its key
            link.key = self.regions.register(memory, begin=r.buffer_offset, size=r.length)
            link.key_range, link.key_number = found, link.state.taken
            self.sending.append(link)
        return link.key

    cdef int end_key(self, Link link) except -1:
        if link.key:
            self.regions.deregister(link.key)
            link.key = 0
            self.sending.remove(link)
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
        link.state.fetching += 1
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
        link.state.fetching -= 1
        if well:
            tell(&link.state.asker, NO_PEER, posted_cookie, REQUEST_DONE, length)
        else:
            p = &link.state.posted[link.state.posted_head & (POSTED_MAX - 1)]
            p.at, p.length, p.cookie = <char *><size_t>at, room, posted_cookie
            link.state.posted_head += 1
        self.replies.append((peer, sender, number, 1 if well else 0, REQUEST_DONE))
        return 0

    cdef int answer(self) except -1:
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

    cdef bint waits(self):
        """tidy() has something to do that nothing will tell of."""
        return bool(self.replies) or bool(self.sending) or bool(self.leaving)

    cdef int tidy(self) except -1:
        """Answers what was fetched, ends keys of messages that were taken, lets go of what nobody reads any more."""
        cdef Link link
        self.answer()
        for link in list(self.sending):      # each has one at a time
            if link.state.taken != link.key_number:
                self.end_key(link)
        if self.leaving:
            self.leaving = [memory for memory in self.leaving if not self.regions.idle(memory)]
        return 0

    cdef int forget(self, Link link) except -1:
        """The link has gone."""
        self.end_key(link)
        for key in link.registered.values():
            self.regions.deregister(key)
        self.leaving += link.lent
        return 0

    cdef int drop(self, uint32_t peer) except -1:
        """A connection is over: what has come over it is not fetched, since who has its number next knows nothing of
        that; and nobody is answered."""
        cdef uint64_t k
        cdef errand_t *e
        for k in range(self.state.errands_tail, self.state.errands_head):
            e = &self.state.errands[k & (ERRANDS_MAX - 1)]
            if e.kind == ERRAND_FETCH and e.peer == peer:
                e.kind = ERRAND_NONE
        return self.answer()
