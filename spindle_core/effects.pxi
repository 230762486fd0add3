"""The effects that a step leaves, and how they are carried out: posts, doorbells, locks to be released.

step() is memory in, data out. Its caller carries out what a step has left before it calls the next one. All callers do
so through here: the predicate thread, a caller by hand, a simulator, the model of the paper.

The order: first the readers are rung, and the peers for which something has just come true; then the posts go out; then
the lock is released that a predicate wanted held until then (the control lock always, a topic's if the switch
`post_after_unlock` is off); last come the writers that wait for space, since no message waits for that.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.atomics cimport u32_store_release
from spindle_core.counters cimport C_POSTS, C_RINGS
from spindle_core.events cimport end_ring, event_ring
from spindle_core.state cimport node_t, subgroup_t


cdef void carry_out(node_t *node) noexcept nogil:
    cdef uint32_t i
    cdef int rung
    for i in range(node.n_readers):
        end_ring(node.readers[i])
    node.counters[C_RINGS] += node.n_readers
    node.n_readers = 0
    for i in range(node.n_peers):
        node.counters[C_RINGS] += <uint64_t>node.fabric.ring(node.fabric.self, node.peers[i])
    node.n_peers = 0
    if node.n_posts:
        rung = node.fabric.post_list(node.fabric.self, node.posts, node.n_posts)
        node.counters[C_POSTS] += node.n_posts
        if rung > 0:
            node.counters[C_RINGS] += <uint64_t>rung
        node.n_posts = 0
    if node.release != NULL:
        u32_store_release(node.release, 0)
        node.release = NULL
    for i in range(node.n_writers):
        if node.writers[i] >= 0:
            end_ring(node.writers[i])
        else:
            event_ring(-1 - node.writers[i])
    node.n_writers = 0


cdef int whole_pass(node_t *node, uint64_t now_ns) noexcept nogil:
    """A pass, from what has arrived to what is sent. Returns how much was done: 0 means that nothing will happen until
    somebody rings."""
    cdef int arrived = 0
    if node.fabric.enter != NULL:
        arrived = node.fabric.enter(node.fabric.self)
    if node.past != NULL:
        node.past.enter(node.past.self)
        node.past.leave(node.past.self)
    begin_pass(node, now_ns)
    while step(node):
        carry_out(node)
    if node.fabric.leave != NULL:
        node.fabric.leave(node.fabric.self)
    return node.done + arrived


cdef int evaluate_whole(node_t *node, subgroup_t *s, stage which) noexcept nogil:
    """One predicate of one topic, outside of a pass."""
    cdef int done = evaluate(node, s, which)
    carry_out(node)
    while node.unfinished:
        done += evaluate(node, s, which)
        carry_out(node)
    return done


cdef void tell_control(node_t *node) noexcept nogil:
    """After a pass: tells the control thread if another row's control columns have changed."""
    if node.control_changed:
        node.control_changed = False
        event_ring(node.control_fd)
