"""What the predicates call of the verbs fabric: the functions of fabric.pxd over one verbs_t."""
from libc.stdint cimport int64_t, uint32_t

from spindle_core.atomics cimport u32_store_relaxed
from spindle_core.events cimport event_wait_two
from spindle_core.fabric.fabric cimport POST_AHEAD, fabric_t, post_t
from spindle_core.fabric.verbs_link cimport (
    arm,
    link_end,
    link_error,
    link_gone,
    take_completions,
    take_events,
    verbs_peer_t,
    verbs_t,
)
from spindle_core.fabric.verbs_queue cimport link_drive, link_write

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
    table.ring = verbs_ring
    table.cut = verbs_cut
    table.prepare_wait = verbs_prepare_wait
    table.wait = verbs_wait
    table.finish_wait = verbs_finish_wait
