"""What a pool does for one link: takes its submissions, gives it its completions and messages (links.pxd).

Rules: what stands in the user's page is read once, into a local, and checked before it is used; what is wrong hurts
that link alone. A submission counts as taken when its requests are posted, its message was taken by the receiver, or it
has failed; until then it stays in the user's ring.
"""
from libc.errno cimport EAGAIN, EFAULT, EINVAL, ENAMETOOLONG, ENOENT, ENOTCONN, EPERM, EPIPE, ERANGE
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.atomics cimport fence_store_load, u64_load_acquire, u64_load_relaxed, u64_store_release
from spindle_core.events cimport end_ring
from spindle_core.fabric.regions.boxes cimport HEAD_SIZE, boxed, put_at
from spindle_core.fabric.regions.flights cimport post, tell
from spindle_core.fabric.regions.regions cimport (
    LIST_MAX,
    NO_PEER,
    REQUEST_AFTER,
    REQUEST_DONE,
    REQUEST_ENDED,
    REQUEST_READ,
    REQUEST_SIGNALLED,
    REQUEST_SIZE_MAX,
    REQUEST_WRITE,
    done_t,
    request_t,
)
from spindle_core.layout cimport (
    LINK_BOX_SIZE,
    LINK_DONES_MAX,
    LINK_REQUESTS_MAX,
    link_done,
    link_request,
)
from spindle_core.links.links cimport (
    BROKEN_CONNECTION,
    BROKEN_RULES,
    BUFFERS_MAX,
    ERRAND_ASK,
    ERRAND_LEASE,
    ERRAND_SEND,
    ERRANDS_MAX,
    FOUND_SIZE,
    HANDLES_MAX,
    LINK_BROKEN,
    LINK_FIND,
    LINK_FORGET,
    LINK_INLINE_MAX,
    LINK_RECEIVE,
    LINK_SEND,
    LINK_WRONG,
    NAME_SIZE_MAX,
    NOTE_SEND,
    NOTE_SIZE_MAX,
    PORTS_MAX,
    POSTED_MAX,
    RETRY_SOON,
    buffer_t,
    errand_t,
    handle_t,
    link_t,
    note_t,
    pool_t,
    posted_t,
)


cdef void break_link(link_t *link, uint32_t why) noexcept nogil:
    """This link is over; whoever uses others notices nothing."""
    if link.state != LINK_BROKEN:
        link.state = LINK_BROKEN
        link.news = 1
        u64_store_release(&link.pool.broken, why)


cdef bint errand(pool_t *s, link_t *link, uint32_t kind, uint64_t what) noexcept nogil:
    """Leaves something for who drives the pool; False where so much is left already that it must wait."""
    cdef errand_t *e
    if s.errands_head - s.errands_tail >= ERRANDS_MAX:
        return False
    e = &s.errands[s.errands_head & (ERRANDS_MAX - 1)]
    e.kind = kind
    e.link = link.id
    e.peer = link.peer
    e.what = what
    s.errands_head += 1
    return True


# ---- completions and messages --------------------------------------------------------------------------------------

cdef bint complete(link_t *link, uint64_t cookie, uint32_t status, uint64_t value) noexcept nogil:
    """A completion behind all that the link has got; False where it has no room for one."""
    if link.asker.head - link.asker.tail + link.asker.promised >= link.asker.capacity:
        return False
    tell(&link.asker, NO_PEER, cookie, status, value)
    return True


cdef bint give(link_t *link) noexcept nogil:
    """Puts completions where the user takes them, as many as have room there; whether there were any."""
    cdef uint64_t taken = u64_load_acquire(&link.user.dones_taken)
    cdef uint64_t before = link.told
    cdef done_t *d
    cdef link_done *into
    if link.told - taken > LINK_DONES_MAX:
        break_link(link, BROKEN_RULES)
        return False
    while link.asker.tail < link.asker.head and link.told - taken < LINK_DONES_MAX:
        d = &link.asker.ring[link.asker.tail & (link.asker.capacity - 1)]
        into = &link.pool.ring[link.told & (LINK_DONES_MAX - 1)]
        into.cookie = d.cookie
        into.value = d.value
        into.status = d.status
        link.asker.tail += 1
        link.told += 1
    if link.told == before:
        return False
    # SYNC POINT: completion. Pairs with the user's take(): the completion before the count.
    u64_store_release(&link.pool.dones, link.told)
    link.news = 1
    return True


cdef bint put_in_box(link_t *link, uint64_t sender, uint64_t node, const char *data, uint32_t length) noexcept nogil:
    """Puts a message where the user takes it; False where it has no room."""
    cdef uint64_t taken = u64_load_acquire(&link.user.messages_taken)
    cdef uint64_t head = length + 16
    if link.boxed - taken > LINK_BOX_SIZE:
        break_link(link, BROKEN_RULES)
        return False
    if boxed(length + 16) > LINK_BOX_SIZE - (link.boxed - taken):
        return False
    put_at(link.pool.box, LINK_BOX_SIZE, link.boxed, <char *>&head, HEAD_SIZE)
    put_at(link.pool.box, LINK_BOX_SIZE, link.boxed + HEAD_SIZE, <char *>&node, 8)
    put_at(link.pool.box, LINK_BOX_SIZE, link.boxed + HEAD_SIZE + 8, <char *>&sender, 8)
    put_at(link.pool.box, LINK_BOX_SIZE, link.boxed + HEAD_SIZE + 16, data, length)
    link.boxed += boxed(length + 16)
    # SYNC POINT: message. Pairs with the user's messages(): the message before the count.
    u64_store_release(&link.pool.messages, link.boxed)
    link.news = 1
    return True


cdef void ring_user(link_t *link) noexcept nogil:
    """Wakes the user if it sleeps, for all that it was given since."""
    cdef uint64_t sleep
    link.news = 0
    if link.end < 0:
        return
    fence_store_load()
    sleep = u64_load_relaxed(&link.user.bell.sleeps)
    if sleep & 1 and sleep != link.rung:
        link.rung = sleep
        end_ring(link.end)


# ---- submissions ---------------------------------------------------------------------------------------------------

cdef inline void took(link_t *link, uint64_t n) noexcept nogil:
    link.taken += n
    u64_store_release(&link.pool.taken, link.taken)


cdef void answered(link_t *link, uint64_t count, uint32_t status) noexcept nogil:
    """Of the note that is on the way so many messages were taken; what `status` says, if it isn't done, is so of all
    others. Where it is, these wait in their ring for another try."""
    cdef uint64_t i, n = count if status == REQUEST_DONE else link.note_count
    cdef const link_request *r
    link.asker.promised -= <uint32_t>link.note_count
    for i in range(n):
        r = &link.user.requests[(link.taken + i) & (LINK_REQUESTS_MAX - 1)]
        tell(&link.asker, link.peer, u64_load_relaxed(&r.cookie), REQUEST_DONE if i < count else status, 0)
    link.noted = 0
    took(link, n)


cdef bint fail_list(link_t *link, uint64_t n, uint64_t bad, uint32_t status, uint64_t value) noexcept nogil:
    """Nothing of the next n submissions happens, a list, for what is said of one of them: so it completes, signalled or
    not. The others that are signalled complete as `after`, as when a request fails at the owner. False where there is
    no room for that yet."""
    cdef uint64_t i, signalled = 0, count = 0
    cdef const link_request *r
    for i in range(n):
        r = &link.user.requests[(link.taken + i) & (LINK_REQUESTS_MAX - 1)]
        if i == bad or i == n - 1 or r.flags & REQUEST_SIGNALLED:
            signalled |= <uint64_t>1 << i
            count += 1
    if link.asker.head - link.asker.tail + link.asker.promised + count > link.asker.capacity:
        return False
    for i in range(n):
        r = &link.user.requests[(link.taken + i) & (LINK_REQUESTS_MAX - 1)]
        if i == bad:
            tell(&link.asker, NO_PEER, r.cookie, status, value)
        elif signalled & (<uint64_t>1 << i):
            tell(&link.asker, NO_PEER, r.cookie, REQUEST_AFTER, 0)
    took(link, n)
    return True


cdef bint wrong(link_t *link, uint64_t cookie, int error) noexcept nogil:
    """The next submission breaks a rule: its user is told."""
    if not complete(link, cookie, LINK_WRONG, <uint64_t>error):
        return False
    took(link, 1)
    return True


cdef inline char *own_memory(link_t *link, const link_request *r, bint written) noexcept nogil:
    """Where in the user's memory; NULL: nowhere."""
    cdef buffer_t *b
    if r.buffer >= BUFFERS_MAX:
        return NULL
    b = &link.buffers[r.buffer]
    if b.base == NULL or (written and not b.writable) or r.buffer_offset > b.size or (
            r.length > b.size - r.buffer_offset):
        return NULL
    return b.base + r.buffer_offset


cdef bint serve_list(pool_t *s, link_t *link, uint64_t n, uint64_t now_ns) noexcept nogil:
    """The next n submissions are a list of requests."""
    cdef request_t requests[LIST_MAX]
    cdef uint64_t by_atomics[LIST_MAX]
    cdef link_request r
    cdef handle_t *h
    cdef request_t *q
    cdef uint64_t i, total = 0
    cdef bint atomics = False
    cdef uint32_t bad = 0
    cdef int status
    for i in range(n):
        memcpy(&r, &link.user.requests[(link.taken + i) & (LINK_REQUESTS_MAX - 1)], sizeof(link_request))
        q = &requests[i]
        q.kind = r.kind
        q.flags = r.flags & REQUEST_SIGNALLED
        q.offset = r.offset
        q.length = r.length
        q.first = r.first
        q.second = r.second
        q.cookie = r.cookie
        q.local = NULL
        if r.left != n - 1 - i or r.kind < REQUEST_READ or r.kind >= LINK_SEND:
            return fail_list(link, n, i, LINK_WRONG, EINVAL)
        if r.region >= HANDLES_MAX or not link.handles[r.region].open:
            return fail_list(link, n, i, LINK_WRONG, ENOENT)
        h = &link.handles[r.region]
        if h.ended:
            return fail_list(link, n, i, REQUEST_ENDED, 0)
        if now_ns >= h.lease_ns:
            if errand(s, link, ERRAND_LEASE, r.region):
                link.waits = 1
            return False
        q.region = h.region
        by_atomics[i] = h.by_atomics
        atomics = atomics or r.kind > REQUEST_WRITE
        if r.kind <= REQUEST_WRITE or r.buffer != BUFFERS_MAX:
            q.local = own_memory(link, &r, r.kind != REQUEST_WRITE)
            if q.local == NULL:
                return fail_list(link, n, i, LINK_WRONG, EFAULT)
        total += r.length
    if link.atomics_peer != NO_PEER:
        if atomics != link.on_atomics:
            if link.asker.promised:
                return False     # what is on the other connection comes first
            link.on_atomics = atomics
        for i in range(n if atomics else 0):
            requests[i].region = by_atomics[i]
    status = post(s.regions, &link.asker, requests, <uint32_t>n, &bad)
    if status == -EAGAIN:
        return False
    if status == -EPIPE:
        break_link(link, BROKEN_CONNECTION)
        return True
    if status < 0:
        return fail_list(link, n, bad, LINK_WRONG, <uint64_t>-status)
    link.requests += n
    link.bytes += total
    took(link, n)
    return True


cdef bint serve_ask(pool_t *s, link_t *link, const link_request *r) noexcept nogil:
    """Something that the pool's user answers (answer_ask): until then the link takes nothing else."""
    if r.kind == LINK_FIND:
        if r.length == 0 or r.length > NAME_SIZE_MAX:
            return wrong(link, r.cookie, ENAMETOOLONG)
        if link.peer == NO_PEER:
            return wrong(link, r.cookie, ENOTCONN)
        if own_memory(link, r, True) == NULL or link.buffers[r.buffer].size - r.buffer_offset < FOUND_SIZE:
            return wrong(link, r.cookie, EFAULT)
    elif r.region >= HANDLES_MAX or not link.handles[r.region].open:
        return wrong(link, r.cookie, ENOENT)
    if link.asker.head - link.asker.tail + link.asker.promised >= link.asker.capacity:
        return False
    if errand(s, link, ERRAND_ASK, 0):
        link.waits = 1
        link.asker.promised += 1
    return False


cdef void answer_ask(link_t *link, uint64_t cookie, uint32_t status, uint64_t value) noexcept nogil:
    """The answer: the submission is taken, and completes."""
    link.waits = 0
    link.asker.promised -= 1
    tell(&link.asker, NO_PEER, cookie, status, value)
    took(link, 1)


cdef bint serve_receive(link_t *link, const link_request *r) noexcept nogil:
    cdef posted_t *p
    cdef char *at = own_memory(link, r, True)
    if at == NULL or r.length == 0:
        return wrong(link, r.cookie, EFAULT)
    if link.posted_head - link.posted_tail + link.fetching >= POSTED_MAX:
        return wrong(link, r.cookie, EAGAIN)
    p = &link.posted[link.posted_head & (POSTED_MAX - 1)]
    p.at = at
    p.length = r.length
    p.cookie = r.cookie
    link.posted_head += 1
    took(link, 1)
    return True


cdef bint serve_sends(pool_t *s, link_t *link, const link_request *first, uint64_t submitted, uint64_t now_ns
                      ) noexcept nogil:
    """The next submission is a message: it goes with all short ones behind it that have the same way."""
    cdef note_t *note = <note_t *>s.note
    cdef uint64_t at = sizeof(note_t), count = 0, head
    cdef uint64_t room = link.asker.capacity - (link.asker.head - link.asker.tail + link.asker.promised)
    cdef link_request r
    cdef char *data
    cdef int status
    if link.retry_ns == RETRY_SOON:
        link.retry_ns = now_ns + link.backoff_ns
    if now_ns < link.retry_ns:
        return False
    if first.offset > PORTS_MAX or link.peer == NO_PEER:
        return wrong(link, first.cookie, EINVAL)
    if link.sends_to and first.offset and first.offset != link.sends_to:
        return wrong(link, first.cookie, EPERM)
    if first.length > REQUEST_SIZE_MAX:
        return wrong(link, first.cookie, ERANGE)
    if own_memory(link, first, False) == NULL:
        return wrong(link, first.cookie, EFAULT)
    if first.length > LINK_INLINE_MAX:
        if errand(s, link, ERRAND_SEND, 0):
            link.waits = 1
        return False
    while link.taken + count < submitted and count < room:
        memcpy(&r, &link.user.requests[(link.taken + count) & (LINK_REQUESTS_MAX - 1)], sizeof(link_request))
        data = own_memory(link, &r, False)
        if r.kind != LINK_SEND or r.offset != first.offset or r.first != first.first or r.length > LINK_INLINE_MAX or (
                data == NULL or at + boxed(r.length) > NOTE_SIZE_MAX):
            break
        head = r.length
        memcpy(s.note + at, &head, HEAD_SIZE)
        memcpy(s.note + at + HEAD_SIZE, data, r.length)
        at += boxed(r.length)
        count += 1
    if count == 0:
        return False             # no room for a completion; or the user has changed it, and is looked at once more
    note.kind = NOTE_SEND
    note.status = 0
    note.port = first.offset
    note.to = first.first
    note.source = link.id
    note.number = link.note_number + 1
    note.count = count
    status = s.regions.peers[link.peer].part.send(s.regions.peers[link.peer].part.self, link.peer, s.note,
                                                  <uint32_t>at)
    if status < 0:
        if status != -EAGAIN:
            break_link(link, BROKEN_CONNECTION)
        return False
    link.noted = 1
    link.asker.promised += <uint32_t>count
    link.note_number += 1
    link.note_count = count
    link.requests += count
    link.bytes += at
    return True


cdef bint serve(pool_t *s, link_t *link, uint64_t now_ns) noexcept nogil:
    """Takes the next list, or the next messages, of a link that is open; whether anything happened."""
    cdef uint64_t submitted = u64_load_acquire(&link.user.submitted), n
    cdef link_request r
    if submitted - link.taken > LINK_REQUESTS_MAX:
        break_link(link, BROKEN_RULES)
        return False
    if submitted == link.taken or link.noted or link.waits:
        return False
    if is_over(s, link.peer) or is_over(s, link.atomics_peer):
        break_link(link, BROKEN_CONNECTION)
        return True
    memcpy(&r, &link.user.requests[link.taken & (LINK_REQUESTS_MAX - 1)], sizeof(link_request))
    if r.kind == LINK_SEND:
        return serve_sends(s, link, &r, submitted, now_ns)
    if r.kind == LINK_RECEIVE:
        return serve_receive(link, &r)
    if r.kind == LINK_FIND or r.kind == LINK_FORGET:
        return serve_ask(s, link, &r)
    n = <uint64_t>r.left + 1
    if n > LIST_MAX:
        return wrong(link, r.cookie, EINVAL)
    if submitted - link.taken < n:
        return False             # the rest of the list is being written
    return serve_list(s, link, n, now_ns)
