"""What the predicates call of the verbs fabric: the functions of fabric.pxd over one verbs_epoch_t.

Epochs share connections, and with them queues, events and passes: whoever drives one epoch drives what the one before
has left behind.
"""
from libc.stdint cimport int64_t, uint32_t

from spindle_core.atomics cimport u32_load_acquire
from spindle_core.events cimport event_wait_two
from spindle_core.fabric.fabric cimport POST_AHEAD, fabric_t, post_t
from spindle_core.fabric.verbs_link cimport (
    arm,
    link_cut,
    link_end,
    link_gone,
    link_to,
    take_completions,
    take_events,
    verbs_epoch_t,
    verbs_link_t,
    verbs_t,
)
from spindle_core.fabric.verbs_queue cimport link_drive, link_write

cdef enum:
    RANGE_COST = 4096            # bytes: a work request more costs device and bus as much, or rather more
    PUSH_BYTES = 64 << 10        # after which a count follows (docs/paper.md, "Past the paper")
    IDLE_BEFORE_ARMING = 2
    IDLE_BETWEEN_EVENTS = 8


cdef inline verbs_link_t *nth(verbs_t *s, uint32_t i, uint32_t used) noexcept nogil:
    """All connections that were ever made, first those for what goes ahead."""
    return &s.links[i + s.n_places if i < used else i - used]


cdef void end_gone(verbs_t *s) noexcept nogil:
    """Whoever was cut, or has failed, is not looked at any more."""
    cdef uint32_t i, used = u32_load_acquire(&s.n_used)
    cdef verbs_link_t *p
    for i in range(2 * used):
        p = nth(s, i, used)
        if u32_load_acquire(&p.connected) and not p.ended and link_gone(p):
            link_end(p)


cdef int take(verbs_t *s) noexcept nogil:
    """Takes what has completed and come; returns how much that was."""
    cdef int done = take_completions(s)
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
    return done


cdef void send(verbs_t *s) noexcept nogil:
    """Hands over what waits for anybody."""
    cdef verbs_link_t *p
    cdef uint32_t i, used = u32_load_acquire(&s.n_used)
    cdef bint on_the_way = False
    for i in range(2 * used):
        p = nth(s, i, used)
        if link_gone(p):
            continue
        link_drive(s, p)
        on_the_way |= p.done < p.last or p.owes_ring != 0
    s.draining = s.draining and on_the_way


cdef int verbs_enter(void *self) noexcept nogil:
    """As take(). Until verbs_leave() posts are only queued. Within the pass of another epoch it does nothing."""
    cdef verbs_t *s = (<verbs_epoch_t *>self).node
    if s == NULL:
        return 0
    s.passes += 1
    return take(s) if s.passes == 1 else 0


cdef void verbs_leave(void *self) noexcept nogil:
    cdef verbs_t *s = (<verbs_epoch_t *>self).node
    if s == NULL:
        return
    s.passes -= 1
    if s.passes == 0:
        send(s)


cdef int verbs_post_list(void *self, const post_t *posts, uint32_t n) noexcept nogil:
    cdef verbs_epoch_t *e = <verbs_epoch_t *>self
    cdef verbs_link_t *p
    cdef uint32_t i, peer
    if e.node == NULL:
        return 0
    for i in range(n):
        peer = posts[i].peer
        p = link_to(e, peer, False)
        if (p == NULL or link_gone(p) or posts[i].offset > e.row_size
                or posts[i].length > e.row_size - posts[i].offset):
            continue
        link_write(e, peer, posts[i].flags & POST_AHEAD and u32_load_acquire(&link_to(e, peer, True).connected),
                   posts[i].flags, posts[i].offset, posts[i].length)
    if not e.node.passes:
        send(e.node)
    return 0


cdef int verbs_ring(void *self, uint32_t peer) noexcept nogil:
    cdef verbs_epoch_t *e = <verbs_epoch_t *>self
    cdef verbs_link_t *p = link_to(e, peer, False) if e.node != NULL else NULL
    if p == NULL or link_gone(p):
        return 0
    p.owes_ring = 1
    if not e.node.passes:
        link_drive(e.node, p)
    return 1


cdef void verbs_cut(void *self, uint32_t peer) noexcept nogil:
    """From any thread. In the error state the queue pairs exchange nothing; they go when no epoch has them."""
    cdef verbs_epoch_t *e = <verbs_epoch_t *>self
    e.targets[peer].cut = 1
    if e.node != NULL and link_to(e, peer, False) != NULL:
        link_cut(link_to(e, peer, False))
        link_cut(link_to(e, peer, True))


cdef void verbs_prepare_wait(void *self) noexcept nogil:
    """Arms the completion queues, after which the caller looks for work once more."""
    cdef verbs_t *s = (<verbs_epoch_t *>self).node
    if s == NULL:
        return
    take(s)
    send(s)
    if arm(s):
        send(s)                  # a word may have brought credit for a ring that is owed


cdef int verbs_wait(void *self, int64_t timeout_ns) noexcept nogil:
    cdef verbs_epoch_t *e = <verbs_epoch_t *>self
    cdef verbs_t *s = e.node
    cdef int timeout_ms = -1 if timeout_ns < 0 else <int>(timeout_ns // 1000000)
    cdef int found
    if s != NULL and s.restless:
        s.restless = False
        return 1
    found = event_wait_two(e.bell_fd, e.wait_fd, timeout_ms)
    if found & 2:
        verbs_prepare_wait(self)
        take_events(s)           # also one whose completion was taken before
    return 1 if found else 0


cdef void verbs_finish_wait(void *self) noexcept nogil:
    pass


cdef void set_table(fabric_t *table, verbs_epoch_t *e) noexcept:
    """Makes the table that of this epoch."""
    table.self = e
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
