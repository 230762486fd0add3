"""Requests on their way: checked, posted, completed. The same for every part (regions.pxd).

Each peer has a ring of flights, numbered in the order posted. A part takes them from `sent` on, and says by `done` that
one has completed, and with it all before it; so what it notes of a request fits in the flight.

Rules: a completion has its place before its request is posted. An owner checks what peers ask of it once more
(`allowed`), where a processor stands between: a peer may lie.
"""
from libc.errno cimport EACCES, EAGAIN, EFAULT, EINVAL, ENOENT, EPIPE, ERANGE
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.fabric.regions.regions cimport (
    BYTES_ON_THE_WAY,
    CARRIES_LATER,
    FLIGHTS_MAX,
    KEYS_MAX,
    LIST_MAX,
    NO_PEER,
    PEERS_MAX,
    REACHED_MAX,
    REQUEST_ADD,
    REQUEST_CUT,
    REQUEST_DONE,
    REQUEST_ENDED,
    REQUEST_INLINE_MAX,
    REQUEST_RANGE,
    REQUEST_READ,
    REQUEST_REFUSED,
    REQUEST_SIGNALLED,
    REQUEST_SIZE_MAX,
    REQUEST_SWAP,
    REQUEST_WRITE,
    RIGHT_ATOMIC,
    RIGHT_READ,
    RIGHT_WRITE,
    asker_t,
    done_t,
    flight_of,
    flight_t,
    memory_t,
    part_t,
    peer_t,
    place_of,
    reached_t,
    regions_t,
    request_t,
)
from spindle_core.fabric.words cimport copy_words


cdef inline uint32_t right_for(uint32_t kind) noexcept nogil:
    """0: there is no such request."""
    if kind == REQUEST_READ:
        return RIGHT_READ
    if kind == REQUEST_WRITE:
        return RIGHT_WRITE
    return RIGHT_ATOMIC if kind == REQUEST_SWAP or kind == REQUEST_ADD else 0


cdef int check(const regions_t *r, const request_t *q, uint32_t *peer) noexcept nogil:
    """0, or why this request can't be posted. `peer`: of the list so far, then its own."""
    cdef uint64_t place = <uint32_t>q.region
    cdef uint32_t right = right_for(q.kind)
    cdef const reached_t *reached
    if right == 0:
        return -EINVAL
    if place >= REACHED_MAX:
        return -ENOENT
    reached = &r.reached[place]
    if reached.rights == 0 or reached.uses != q.region >> 32:
        return -ENOENT
    if peer[0] != NO_PEER and peer[0] != reached.peer:
        return -EINVAL
    peer[0] = reached.peer
    if not reached.rights & right:
        return -EACCES
    if q.length == 0 or q.length > REQUEST_SIZE_MAX:
        return -ERANGE
    if q.offset > reached.size or q.length > reached.size - q.offset:
        return -ERANGE
    if right == RIGHT_ATOMIC:
        if q.length != 8 or q.offset & 7:
            return -ERANGE
    elif q.local == NULL:
        return -EFAULT
    return 0


cdef inline bint is_short_write(const request_t *q) noexcept nogil:
    return q.kind == REQUEST_WRITE and q.length <= REQUEST_INLINE_MAX


cdef inline bint needs_own(const request_t *q) noexcept nogil:
    """Its way reads or fills this node's memory itself, after the post."""
    return q.kind == REQUEST_READ or (q.kind == REQUEST_WRITE and q.length > REQUEST_INLINE_MAX)


cdef int post(regions_t *r, asker_t *asker, const request_t *requests, uint32_t n, uint32_t *bad) noexcept nogil:
    """Posts a list. -EAGAIN: no room on the way or among the completions; -EPIPE: that peer is gone. Else a request is
    wrong, bad[0] says which: -ENOENT no such region, -EACCES no right to it, -ERANGE beyond it or misaligned, -EFAULT
    no memory of this node that the part knows, -EINVAL not a request, one for another peer, or no list of 1 to
    LIST_MAX.
    """
    cdef uint32_t i, peer = NO_PEER, promised = 0
    cdef uint64_t total = 0
    cdef int status
    cdef peer_t *p
    cdef part_t *part
    cdef flight_t *f
    bad[0] = 0
    if n == 0 or n > LIST_MAX:
        return -EINVAL
    for i in range(n):
        bad[0] = i
        status = check(r, &requests[i], &peer)
        if status < 0:
            return status
        total += requests[i].length
        promised += 1 if requests[i].flags & REQUEST_SIGNALLED or i == n - 1 else 0
    p = &r.peers[peer]
    part = p.part
    if p.cut or part == NULL:
        return -EPIPE
    if part.knows != NULL:
        for i in range(n):
            if needs_own(&requests[i]) and not part.knows(part.self, requests[i].local, requests[i].length):
                bad[0] = i
                return -EFAULT
    if promised < n:
        promised += 1                    # one that is not signalled may fail
    if p.bytes and p.bytes + total > BYTES_ON_THE_WAY:
        return -EAGAIN
    if p.posted + n - p.done > FLIGHTS_MAX or asker.head - asker.tail + asker.promised + promised > asker.capacity:
        return -EAGAIN
    asker.promised += promised
    for i in range(n):
        f = flight_of(p, p.posted + i)
        f.request = requests[i]
        f.asker = asker
        f.reached = &r.reached[<uint32_t>requests[i].region]
        f.left = n - 1 - i
        f.promised = 0
        if part.capabilities & CARRIES_LATER and is_short_write(&f.request):
            copy_words(f.data, f.request.local, f.request.length)
            f.request.local = f.data
    f.request.flags |= REQUEST_SIGNALLED
    f.promised = promised
    p.posted += n
    p.bytes += total
    part.carry(part.self, peer)
    return 0


cdef void tell(asker_t *asker, uint32_t peer, uint64_t cookie, uint32_t status, uint64_t value) noexcept nogil:
    """A completion, for whoever is still there to take it."""
    cdef done_t *d
    if asker == NULL:
        return
    d = &asker.ring[asker.head & (asker.capacity - 1)]
    d.cookie = cookie
    d.value = value
    d.peer = peer
    d.status = status
    asker.head += 1


cdef inline void give_back(flight_t *f) noexcept nogil:
    """Places that a list was promised and that its completions don't need any more."""
    if f.promised and f.asker != NULL:
        f.asker.promised -= f.promised


cdef bint done(regions_t *r, uint32_t peer, uint64_t number, uint32_t status, uint64_t value) noexcept nogil:
    """Request `number` has completed, and so have all before it. False, and nothing is done, where that can't be: it
    is not on the way, or one before it would have completed by itself."""
    cdef peer_t *p = &r.peers[peer]
    cdef flight_t *f
    cdef uint64_t k
    if not p.done <= number < p.sent:
        return False
    for k in range(p.done, number):
        if flight_of(p, k).request.flags & REQUEST_SIGNALLED:
            return False
    f = flight_of(p, number)
    if f.request.kind > REQUEST_WRITE and status == REQUEST_DONE and f.request.local != NULL:
        (<uint64_t *>f.request.local)[0] = value
    give_back(f)
    if status != REQUEST_DONE or f.request.flags & REQUEST_SIGNALLED:
        tell(f.asker, peer, f.request.cookie, status, value)
    for k in range(p.done, number + 1):
        p.bytes -= flight_of(p, k).request.length
    p.done = number + 1
    return True


cdef void end_peer(regions_t *r, uint32_t peer, uint32_t why) noexcept nogil:
    """Nothing is exchanged with it any more: all that is on the way completes as cut. Idempotent. `why`: 0 where this
    node cuts it."""
    cdef peer_t *p = &r.peers[peer]
    cdef flight_t *f
    if p.cut or p.part == NULL:
        return
    p.cut = 1
    p.failed = why
    p.part.end(p.part.self, peer)
    while p.done < p.posted:
        f = flight_of(p, p.done)
        give_back(f)
        if f.request.flags & REQUEST_SIGNALLED:
            tell(f.asker, peer, f.request.cookie, REQUEST_CUT, 0)
        p.done += 1
    p.sent = p.posted
    p.bytes = 0


cdef void abandon(regions_t *r, const asker_t *asker) noexcept nogil:
    """Nobody takes the completions of this one any more; what it has on the way goes on."""
    cdef uint32_t i
    cdef uint64_t k
    cdef flight_t *f
    for i in range(<uint32_t>PEERS_MAX):
        for k in range(r.peers[i].done, r.peers[i].posted):
            f = flight_of(&r.peers[i], k)
            if f.asker == asker:
                f.asker = NULL


cdef uint32_t allowed(const regions_t *r, uint32_t peer, uint32_t kind, uint64_t key, uint64_t offset, uint64_t length,
                      char **place) noexcept nogil:
    """Whether a peer may do this to the region of this node that the key names: REQUEST_DONE and its place, else why
    not."""
    cdef uint32_t right = right_for(kind)
    cdef const memory_t *m
    if place_of(key) >= KEYS_MAX:
        return REQUEST_ENDED
    m = &r.memories[place_of(key)]
    if m.rights == 0 or m.version != key >> 32:
        return REQUEST_ENDED
    if not m.rights & right or (right == RIGHT_WRITE and m.writer != r.peers[peer].identity):
        return REQUEST_REFUSED
    if offset > m.size or length > m.size - offset or (right == RIGHT_ATOMIC and (offset & 7 or length != 8)):
        return REQUEST_RANGE
    place[0] = m.base + offset
    return REQUEST_DONE
