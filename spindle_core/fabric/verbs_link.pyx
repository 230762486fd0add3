"""Reliable connections between two nodes: what is posted becomes lists of work requests, what the peer writes lands in
this node's memory by itself. Each pair of nodes has two of them, so that acknowledgements, and all else that need not
wait (POST_AHEAD), don't stand behind data in the device's queue. Each of the two has queues, rings and credit of its
own. They outlive epochs (verbs_pairs).

Ringing: the last write of a list carries an immediate word. It takes a receive at the peer and completes there, which
wakes whoever waits for the completion channel; all that was written before is in place by then. A peer without a
receive would refuse (RNR), so rings are counted. Each side posts rings + 2 receives, posts each again as soon as it has
completed, and every word says how many rings may have been made in all: rings + those taken so far.
Whoever has reached the limit writes on without ringing, and owes the ring. Credit must get back even while neither side
writes: so a side whose peer has half of its rings left, or fewer, sends a grant. That is a word that counts as no ring;
one receive is reserved for it. Only one grant is on its way: the next one is sent when the peer has rung beyond the
limit that it knew before the last one. By then it has taken that one, and posted the reserved receive again before it
rang. A peer that has used up its limit has rung so far, and gets a grant as soon as its rings are taken here, so nobody
starves. Another receive is for a goodbye: nothing comes after it, and no end is a failure then.

Rules: words of a peer are checked before they are believed. What a peer can write is this node's copy of its row, by a
key that dies with the epoch, and its page, by one that dies with the connection; receives have no memory, so nothing
else comes in. Order: what must stay in order goes through one queue pair, whose device places writes in the order
posted; no region is registered with relaxed ordering.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memset

from spindle_core.atomics cimport u32_load_acquire, u32_load_relaxed, u32_store_relaxed, u64_store_release
from spindle_core.events cimport event_ring
from spindle_core.fabric.verbs_api cimport (
    IBV_QP_STATE,
    IBV_QPS_ERR,
    IBV_WC_LOC_LEN_ERR,
    IBV_WC_LOC_QP_OP_ERR,
    IBV_WC_RECV_RDMA_WITH_IMM,
    IBV_WC_REM_ACCESS_ERR,
    IBV_WC_REM_INV_REQ_ERR,
    IBV_WC_REM_OP_ERR,
    IBV_WC_RETRY_EXC_ERR,
    IBV_WC_RNR_RETRY_EXC_ERR,
    IBV_WC_SUCCESS,
    IBV_WC_WR_FLUSH_ERR,
    ibv_ack_cq_events,
    ibv_cq,
    ibv_get_cq_event,
    ibv_modify_qp,
    ibv_poll_cq,
    ibv_post_recv,
    ibv_qp,
    ibv_qp_attr,
    ibv_recv_wr,
    ibv_req_notify_cq,
    ibv_wc,
    ntohl,
)

cdef enum:
    COMPLETIONS_AT_ONCE = 32
    LOOKS_MAX = 32               # of so many, before the predicates get their turn
    ACKNOWLEDGE_EVERY = 64       # events: acknowledging takes a mutex
    ARMINGS_MAX = 8


cdef bint link_gone(verbs_link_t *p) noexcept nogil:
    """SYNC POINT: connect. Pairs with VerbsPairs.connect(): all of a connection is visible before `connected`."""
    return not u32_load_acquire(&p.connected) or p.ended or p.failed != 0 or u32_load_relaxed(&p.cut) != 0


cdef verbs_link_t *other_way(verbs_t *s, verbs_link_t *p) noexcept nogil:
    """The other one of a peer's two connections."""
    return &s.links[(<uint32_t>(p - s.links) + s.n_places) % (2 * s.n_places)]


cdef void fail(verbs_t *s, verbs_link_t *p, uint32_t why) noexcept nogil:
    """Notes why a connection is over, and with it the peer's other one."""
    cdef verbs_link_t *other = other_way(s, p)
    if p.left or p.leaves or other.left or other.leaves:
        p.failed = VERBS_GOODBYE
    elif not p.failed:
        p.failed = why
        event_ring(s.failed_fd)
    elif p.failed == VERBS_FAILED_CLOSED:
        p.failed = why           # what is flushed in the wake of an error may be found before it
    other.failed = p.failed


cdef void link_error(ibv_qp *qp) noexcept nogil:
    """Ends a queue pair: from here on the device neither sends for it nor takes anything that comes. Any thread."""
    cdef ibv_qp_attr change
    memset(&change, 0, sizeof(change))
    change.qp_state = IBV_QPS_ERR
    ibv_modify_qp(qp, &change, IBV_QP_STATE)


cdef void link_end(verbs_link_t *p) noexcept nogil:
    """Nothing is exchanged over it any more."""
    if p.ended:
        return
    p.ended = 1
    link_error(p.qp)
    p.owes_ring = 0


cdef void link_cut(verbs_link_t *p) noexcept nogil:
    """The same, from any thread. Relaxed: the device does the rest, whenever the flag is seen."""
    u32_store_relaxed(&p.cut, 1)
    if p.qp != NULL:
        link_error(p.qp)


cdef uint32_t reason_of(int status) noexcept nogil:
    """Why the connection is over on which a work request completed so."""
    if status == IBV_WC_WR_FLUSH_ERR:
        return VERBS_FAILED_CLOSED
    if status == IBV_WC_RETRY_EXC_ERR:
        return VERBS_FAILED_SILENT
    if status == IBV_WC_RNR_RETRY_EXC_ERR:
        return VERBS_FAILED_UNREADY
    if status == IBV_WC_REM_ACCESS_ERR or status == IBV_WC_REM_INV_REQ_ERR or status == IBV_WC_REM_OP_ERR:
        return VERBS_FAILED_REFUSED
    return VERBS_FAILED_ERROR


cdef void fault(verbs_t *s, verbs_link_t *p, int status) noexcept nogil:
    """A work request has failed, and with it the connection."""
    cdef uint32_t why
    if p.ended:
        return
    why = reason_of(status)
    if why != VERBS_FAILED_CLOSED or not p.failed:
        fail(s, p, why)


cdef inline verbs_link_t *completed(verbs_t *s, const ibv_wc *c) noexcept nogil:
    """The connection of a work request; NULL: it is gone, and its place, perhaps, another's."""
    cdef verbs_link_t *p = &s.links[<uint32_t>(c.wr_id >> 32) & 0xFFFF]
    return p if p.qp != NULL and (p.life & 0xFFFF) == c.wr_id >> 48 else NULL


cdef int sent_one(verbs_t *s, const ibv_wc *c) noexcept nogil:
    """A signalled work request has completed, and all before it; returns whether that is news for anybody."""
    cdef verbs_link_t *p = completed(s, c)
    if p == NULL:
        return 0
    s.n_completions += 1
    if c.status != IBV_WC_SUCCESS:
        fault(s, p, c.status)
        return 1
    if p.ended:
        return 0
    # SYNC POINT: done. Pairs with VerbsFabric.give_back(): the device doesn't read any more what was posted before.
    u64_store_release(&p.done, p.done + 1 + <uint32_t>(c.wr_id - p.done))
    return 1 if p.sent < p.last else 0


cdef bint take_word(verbs_link_t *p, uint32_t w) noexcept nogil:
    """Takes the credit that a word tells; False if nobody could have told that."""
    cdef uint64_t limit = p.rung_limit + ((w - p.rung_limit) & WORD_LIMIT)
    if limit > p.rung + p.peer_rings:
        return False
    p.rung_limit = limit
    return True


cdef void received_one(verbs_t *s, const ibv_wc *c) noexcept nogil:
    """The peer has rung, granted, or said goodbye."""
    cdef uint32_t w, kind
    cdef verbs_link_t *p = completed(s, c)
    cdef ibv_recv_wr *r
    cdef bint good
    if p == NULL:
        return
    # Bytes that a receive has no memory for; devices in software call it a fault of the receive itself.
    if (c.status == IBV_WC_LOC_LEN_ERR or c.status == IBV_WC_LOC_QP_OP_ERR) and not p.ended:
        fail(s, p, VERBS_FAILED_NONSENSE)
        return
    if c.status != IBV_WC_SUCCESS:
        fault(s, p, c.status)
        return
    if p.ended:
        return
    r = &p.receives[<uint32_t>c.wr_id]
    r.next = p.again
    p.again = r
    w = ntohl(c.imm_data)
    kind = w >> WORD_SHIFT
    s.n_received += 1
    good = c.opcode == IBV_WC_RECV_RDMA_WITH_IMM and kind <= WORD_GOODBYE and not p.leaves
    if good:
        p.rings_taken += kind == WORD_RING
        p.leaves = kind == WORD_GOODBYE
    if not good or p.rings_taken > p.told or not take_word(p, w):
        fail(s, p, VERBS_FAILED_NONSENSE)


cdef void post_receives(verbs_t *s, verbs_link_t *p) noexcept nogil:
    cdef ibv_recv_wr *bad = NULL
    cdef ibv_recv_wr *first = p.again
    p.again = NULL
    if first != NULL and ibv_post_recv(p.qp, first, &bad) != 0:
        fail(s, p, VERBS_FAILED_ERROR)


cdef int take_sent(verbs_t *s) noexcept nogil:
    cdef ibv_wc found[COMPLETIONS_AT_ONCE]
    cdef int n = COMPLETIONS_AT_ONCE, i, done = 0, looks = 0
    while n == COMPLETIONS_AT_ONCE and looks < LOOKS_MAX:
        looks += 1
        n = ibv_poll_cq(s.send_cq, COMPLETIONS_AT_ONCE, found)
        for i in range(n):
            done += sent_one(s, &found[i])
        if n > 0:
            s.send_owed = s.send_armed
            s.n_found += <uint64_t>n
    return done


cdef int take_received(verbs_t *s) noexcept nogil:
    cdef ibv_wc found[COMPLETIONS_AT_ONCE]
    cdef int n = COMPLETIONS_AT_ONCE, i, done = 0, looks = 0
    cdef uint32_t k
    cdef verbs_link_t *p
    while n == COMPLETIONS_AT_ONCE and looks < LOOKS_MAX:
        looks += 1
        n = ibv_poll_cq(s.receive_cq, COMPLETIONS_AT_ONCE, found)
        for i in range(n):
            received_one(s, &found[i])
            done += 1
        if n > 0:
            s.receive_owed = s.receive_armed
            s.n_found += <uint64_t>n
    if done:
        for k in range(2 * u32_load_acquire(&s.n_used)):
            p = &s.links[k // 2 + (k % 2) * s.n_places]
            if u32_load_acquire(&p.connected) and p.again != NULL:
                post_receives(s, p)
    return done


cdef int take_completions(verbs_t *s) noexcept nogil:
    """Takes what has completed and what has come; returns how much is news. Sends come first: their errors say more."""
    cdef int done = take_sent(s) + take_received(s)
    if s.send_owed or s.receive_owed:
        take_events(s)
    return done


cdef void take_events(verbs_t *s) noexcept nogil:
    """Takes the events of the completion channel, which would keep its descriptor readable."""
    cdef ibv_cq *queue = NULL
    cdef void *context = NULL
    while (s.send_armed or s.receive_armed) and ibv_get_cq_event(s.channel, &queue, &context) == 0:
        if queue == s.send_cq:
            s.send_armed = s.send_owed = False
            s.send_events += 1
        else:
            s.receive_armed = s.receive_owed = False
            s.receive_events += 1
    if s.send_events >= ACKNOWLEDGE_EVERY:
        ibv_ack_cq_events(s.send_cq, s.send_events)
        s.send_events = 0
    if s.receive_events >= ACKNOWLEDGE_EVERY:
        ibv_ack_cq_events(s.receive_cq, s.receive_events)
        s.receive_events = 0


cdef bint ask_for_events(verbs_t *s) noexcept nogil:
    """Asks for an event at the next completion; True if that is new, so the queues must be looked at once more.

    The send queue is armed as well, though nobody waits for sends: the end of a connection may show there alone, since
    not every device flushes the receives. Few sends are signalled, so that wakes nobody often.
    """
    cdef bint new = False
    if not s.receive_armed:
        s.receive_armed = new = ibv_req_notify_cq(s.receive_cq, 0) == 0
    if not s.send_armed:
        s.send_armed = ibv_req_notify_cq(s.send_cq, 0) == 0
        new |= s.send_armed
    return new


cdef int arm(verbs_t *s) noexcept nogil:
    """Arms both queues, and looks at them after the last arming: what completes later sends an event. Returns how much
    is news. SYNC POINT: wake. Pairs with the device: it adds a completion, then looks whether the queue is armed.

    A look that finds something after the arming may have taken the event, too; so this arms and looks again. Under a
    flood that would not end; then `restless` says not to sleep.
    """
    cdef uint64_t before
    cdef int news = 0, _i
    for _i in range(ARMINGS_MAX):
        if not ask_for_events(s):
            return news
        before = s.n_found
        news += take_completions(s)
        # An event that comes long after its completion was taken ends the new arming: then it is done again.
        if s.n_found == before and s.send_armed and s.receive_armed:
            return news
    s.restless = True
    return news
