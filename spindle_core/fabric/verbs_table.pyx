"""What the predicates call of the verbs fabric: the functions of fabric.pxd over one verbs_t."""
from libc.errno cimport EAGAIN, EINVAL, EPIPE
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.atomics cimport u32_store_relaxed
from spindle_core.events cimport event_wait_two
from spindle_core.fabric.fabric cimport (
    COMPLETION_CUT,
    COMPLETION_RANGE,
    MAIL_SIZE_MAX,
    MAIL_SLOTS,
    POST_AHEAD,
    completion_t,
    fabric_t,
    post_t,
)
from spindle_core.fabric.verbs_link cimport (
    ENTRY_ADD,
    ENTRY_LETTER,
    ENTRY_READ,
    ENTRY_SWAP,
    VERBS_REQUESTS_MAX,
    arm,
    complete,
    link_end,
    link_error,
    link_gone,
    take_completions,
    take_events,
    verbs_entry,
    verbs_letter,
    verbs_peer_t,
    verbs_t,
)
from spindle_core.fabric.verbs_queue cimport link_write, link_put, link_drive

cdef enum:
    RANGE_COST = 4096            # bytes: a work request more costs device and bus as much, or rather more
    PUSH_BYTES = 64 << 10        # after which a count follows (docs/paper.md, "Past the paper")
    IDLE_BEFORE_ARMING = 2
    IDLE_BETWEEN_EVENTS = 8


cdef void end_gone(verbs_t *s) noexcept nogil:
    """Whoever was cut, or has failed, is not looked at any more."""
    cdef uint32_t i
    for i in range(s.n_links):
        if s.peers[i].connected and not s.peers[i].ended and link_gone(&s.peers[i]):
            link_end(s, i)


cdef int verbs_enter(void *self) noexcept nogil:
    """Takes what has completed and come; returns how much that was. Until verbs_leave() posts are only queued."""
    cdef verbs_t *s = <verbs_t *>self
    cdef int done
    if s.channel == NULL:
        return 0
    done = take_completions(s)
    if done == 0:
        s.idle += 1
        if s.idle % IDLE_BETWEEN_EVENTS == 0:
            take_events(s)       # one that belongs to nothing: some devices send such
        if s.idle >= IDLE_BEFORE_ARMING:
            done = arm(s) + s.restless
            s.restless = False
    if done:
        s.idle = 0
    end_gone(s)
    s.in_pass = True
    return done


cdef void verbs_leave(void *self) noexcept nogil:
    cdef verbs_t *s = <verbs_t *>self
    cdef verbs_peer_t *p
    cdef uint32_t i, link
    cdef bint on_the_way = False
    s.in_pass = False
    for i in range(s.n_links):
        link = (i + s.n_peers) % s.n_links       # first what goes ahead
        p = &s.peers[link]
        if link_gone(p):
            continue
        link_drive(s, link)
        on_the_way |= p.done < p.last or p.owes_ring != 0
    s.draining = s.draining and on_the_way


cdef int verbs_post_list(void *self, const post_t *posts, uint32_t n) noexcept nogil:
    cdef verbs_t *s = <verbs_t *>self
    cdef uint32_t i, link
    for i in range(n):
        link = posts[i].peer
        if (link_gone(&s.peers[link]) or posts[i].offset > s.row_size
                or posts[i].length > s.row_size - posts[i].offset):
            continue
        if posts[i].flags & POST_AHEAD and s.peers[link + s.n_peers].connected:
            link += s.n_peers
        link_write(s, link, posts[i].flags, posts[i].offset, posts[i].length)
    if not s.in_pass:
        verbs_leave(s)
    return 0


cdef int ask(verbs_t *s, uint32_t peer, uint32_t kind, uint32_t key, uint64_t offset, uint64_t length, void *into,
             uint64_t first, uint64_t second, uint64_t cookie) noexcept nogil:
    """Queues a read or an atomic. What is outside of the peer's memory is not sent, since it would end the connection;
    nor is what the queue has no room for."""
    cdef verbs_peer_t *p = &s.peers[peer]
    cdef verbs_entry *e = NULL
    cdef uint32_t number, local_key = s.results_key, i
    cdef uint64_t part, parts = (length + s.message_max - 1) // s.message_max if length else 1
    if s.n_requests + (s.completions_head - s.completions_tail) >= VERBS_REQUESTS_MAX:
        return -EAGAIN
    if link_gone(p):
        complete(s, peer, cookie, COMPLETION_CUT, 0)
        return 0
    if (key >= p.n_memories or offset > p.memories[key].size or length > p.memories[key].size - offset
            or kind != ENTRY_READ and offset & 7):
        complete(s, peer, cookie, COMPLETION_RANGE, 0)
        return 0
    if p.last - p.sent + parts > s.capacity:
        return -EAGAIN
    while s.requests[s.next_request].busy:
        s.next_request = (s.next_request + 1) % VERBS_REQUESTS_MAX
    number = s.next_request
    if kind == ENTRY_READ:
        for i in range(s.n_regions + 1):
            if i == s.n_regions:
                return -EINVAL   # where nothing is registered nothing can land
            if (<uint64_t>into >= s.regions[i].base
                    and <uint64_t>into - s.regions[i].base + length <= s.regions[i].size):
                local_key = s.regions[i].key
                break
    else:
        into = &s.results[number]
    while e == NULL or length:
        part = length if length < s.message_max else s.message_max
        e = link_put(s, p, kind, NULL, <uint32_t>part)
        if e == NULL:
            return -EAGAIN       # not here: there was room
        e.local = <const char *>into
        e.local_key = local_key
        e.remote = p.memories[key].base + offset
        e.remote_key = p.memories[key].key
        e.first = first
        e.second = second
        offset += part
        length -= part
        into = <char *>into + part
    e.request = number
    s.requests[number].busy = 1
    s.requests[number].atomic = kind != ENTRY_READ
    s.requests[number].peer = peer
    s.requests[number].cookie = cookie
    s.n_requests += 1
    if not s.in_pass:
        link_drive(s, peer)
    return 0


cdef int verbs_post_read(void *self, uint32_t peer, uint32_t key, uint64_t offset, void *into, uint64_t length,
                         uint64_t cookie) noexcept nogil:
    if length >= 1 << 30:
        return -EINVAL
    return ask(<verbs_t *>self, peer, ENTRY_READ, key, offset, length, into, 0, 0, cookie)


cdef int verbs_post_compare_swap(void *self, uint32_t peer, uint32_t key, uint64_t offset, uint64_t expected,
                                 uint64_t desired, uint64_t cookie) noexcept nogil:
    return ask(<verbs_t *>self, peer, ENTRY_SWAP, key, offset, 8, NULL, expected, desired, cookie)


cdef int verbs_post_fetch_add(void *self, uint32_t peer, uint32_t key, uint64_t offset, uint64_t value,
                              uint64_t cookie) noexcept nogil:
    return ask(<verbs_t *>self, peer, ENTRY_ADD, key, offset, 8, NULL, value, 0, cookie)


cdef int verbs_send(void *self, uint32_t peer, const void *data, uint32_t length) noexcept nogil:
    cdef verbs_t *s = <verbs_t *>self
    cdef verbs_peer_t *p = &s.peers[peer]
    if link_gone(p):
        return -EPIPE
    if length > MAIL_SIZE_MAX:
        return -EINVAL
    if p.letters_sent - p.letters_credited >= MAIL_SLOTS or p.last - p.sent >= s.capacity:
        return -EAGAIN
    p.letters_sent += 1
    link_put(s, p, ENTRY_LETTER, data, length)
    if not s.in_pass:
        link_drive(s, peer)
    return 0


cdef int verbs_receive(void *self, uint32_t *peer, void *into, uint32_t capacity) noexcept nogil:
    cdef verbs_t *s = <verbs_t *>self
    cdef uint32_t i, rank
    cdef verbs_peer_t *p
    cdef verbs_letter *letter
    for i in range(s.n_peers):
        rank = (s.mail_next + i) % s.n_peers
        p = &s.peers[rank]
        if p.letters_in == p.letters_taken or link_gone(p):
            continue
        letter = &p.letters[p.letters_taken % MAIL_SLOTS]
        if letter.size > capacity:
            return -EINVAL
        memcpy(into, letter.data, letter.size)
        p.letters_taken += 1
        s.mail_next = rank + 1
        peer[0] = rank
        p.owes_ring = 1          # its word tells what was taken
        if not s.in_pass:
            link_drive(s, rank)
        return <int>letter.size
    return -EAGAIN


cdef int verbs_poll(void *self, completion_t *completions, int n) noexcept nogil:
    cdef verbs_t *s = <verbs_t *>self
    cdef int i = 0
    end_gone(s)
    while i < n and s.completions_tail < s.completions_head:
        completions[i] = s.completions[s.completions_tail % VERBS_REQUESTS_MAX]
        s.completions_tail += 1
        i += 1
    return i


cdef int verbs_ring(void *self, uint32_t peer) noexcept nogil:
    cdef verbs_t *s = <verbs_t *>self
    cdef verbs_peer_t *p = &s.peers[peer]
    if link_gone(p):
        return 0
    p.owes_ring = 1
    if not s.in_pass:
        link_drive(s, peer)
    return 1


cdef inline void cut_one(verbs_peer_t *p) noexcept nogil:
    u32_store_relaxed(&p.cut, 1)
    if p.qp != NULL:
        link_error(p.qp)


cdef void verbs_cut(void *self, uint32_t peer) noexcept nogil:
    """From any thread. The queue pairs go with the fabric; in the error state they exchange nothing."""
    cdef verbs_t *s = <verbs_t *>self
    cut_one(&s.peers[peer])
    cut_one(&s.peers[peer + s.n_peers])


cdef void verbs_prepare_wait(void *self) noexcept nogil:
    """Arms the completion queues, after which the caller looks for work once more."""
    cdef verbs_t *s = <verbs_t *>self
    verbs_enter(s)
    verbs_leave(s)
    if s.channel != NULL and arm(s):
        verbs_leave(s)           # a word may have brought credit for a ring that is owed


cdef int verbs_wait(void *self, int64_t timeout_ns) noexcept nogil:
    cdef verbs_t *s = <verbs_t *>self
    cdef int timeout_ms = -1 if timeout_ns < 0 else <int>(timeout_ns // 1000000)
    if s.restless:
        s.restless = False
        return 1
    cdef int found = event_wait_two(s.bell_fd, s.channel.fd if s.channel != NULL else -1, timeout_ms)
    if found & 2:
        verbs_prepare_wait(self)
        take_events(s)           # also one whose completion was taken before
    return 1 if found else 0


cdef void verbs_finish_wait(void *self) noexcept nogil:
    pass


cdef void set_table(fabric_t *table, verbs_t *s) noexcept:
    """Makes the table that of this fabric."""
    table.self = s
    table.range_cost = RANGE_COST
    table.push_bytes = PUSH_BYTES
    table.enter = verbs_enter
    table.leave = verbs_leave
    table.post_list = verbs_post_list
    table.post_read = verbs_post_read
    table.post_compare_swap = verbs_post_compare_swap
    table.post_fetch_add = verbs_post_fetch_add
    table.send = verbs_send
    table.receive = verbs_receive
    table.poll = verbs_poll
    table.ring = verbs_ring
    table.cut = verbs_cut
    table.prepare_wait = verbs_prepare_wait
    table.wait = verbs_wait
    table.finish_wait = verbs_finish_wait
