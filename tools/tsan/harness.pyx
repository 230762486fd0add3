"""Threads on the production core, for ThreadSanitizer; see unit.py.

Three nodes over shared-memory rows, in one address space: a predicate thread each (thread.drive), an application thread
each, which fills an inbox, claims slots in place and reads its node's logs, and one control thread that parks the
predicate threads and changes control columns. Every message is checked: whole, in order, the same order on all nodes.

What the sanitizer can't judge stays out: bytes that are copied first and checked afterwards (areas that are read while
they are written, readers that may be overtaken), and stand-alone fences, which order wake-ups only.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.stdio cimport printf
from libc.stdlib cimport abort, atoi
from libc.string cimport memcpy, memset

from spindle_core.atomics cimport (
    fence_store_load,
    fence_store_store,
    u32_exchange_acquire,
    u32_fetch_add_acq_rel,
    u32_load_acquire,
    u32_store_relaxed,
    u32_store_release,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_relaxed,
    u64_store_release,
)
from spindle_core.bell cimport is_asleep
from spindle_core.counters cimport COUNTERS_COUNT, C_CORRUPT, C_REFUSED
from spindle_core.events cimport event_ring, sched_yield
from spindle_core.fabric.fabric cimport fabric_t
from spindle_core.inbox cimport inbox_t
from spindle_core.layout cimport (
    CACHE_LINE,
    LOG_DATA,
    ROW_AREAS_OFFSET,
    ROW_SUBGROUPS_OFFSET,
    SLOT_DATA,
    align_up,
    area_header,
    bell_page,
    cursor_page,
    inbox_header,
    inbox_progress,
    log_header,
    log_record,
    record_stride,
    ring_slots,
    row_header,
    slot_header,
    slot_stride,
    subgroup_columns,
)
from spindle_core.state cimport INBOXES_MAX, LEVEL_ATOMIC, LEVEL_UNORDERED, node_t, sender_t, subgroup_t


cdef extern from "stdlib.h" nogil:
    void *aligned_alloc(size_t alignment, size_t size)

cdef extern from "pthread.h" nogil:
    ctypedef unsigned long pthread_t
    int pthread_create(pthread_t *thread, void *attr, void *(*body)(void *) noexcept nogil, void *argument)
    int pthread_join(pthread_t thread, void **result)

cdef extern from "sys/eventfd.h" nogil:
    int eventfd(unsigned int first, int flags)
    const int EFD_NONBLOCK

cdef enum:
    NODES = 3
    TOPICS = 2                   # 0: ordered, through inboxes; 1: unordered, claimed in place
    WINDOW = 8
    MESSAGE_SIZE = 96            # two lines of a slot
    INBOX_SLOTS = 16
    LOG_CAPACITY = 1 << 15
    PARKS = 300


cdef struct message_t:
    uint64_t sender, index, check
    char rest[MESSAGE_SIZE - 24]


# One application: what it has sent and read of each topic.
cdef struct world_t:
    node_t *node
    driver_t driver
    shm_t shm
    fabric_t fabric
    log_t logs[TOPICS]
    cursor_page *cursors[TOPICS]
    inbox_t inbox
    inbox_header *inbox_mine     # the application's end of it
    uint64_t sent[TOPICS]
    uint64_t position[TOPICS]
    uint64_t offset[TOPICS]
    uint64_t seen[TOPICS][NODES]
    uint64_t order               # digest over what was read of the ordered topic
    uint32_t ticket              # of the control thread: the last one for which it parked this node
    bint took_over               # instead, because the predicate thread was blocked
    pthread_t predicates, application

cdef world_t worlds[NODES]
cdef uint64_t messages           # of each sender and topic
cdef uint32_t applications_done


cdef void *zeroed(uint64_t size) noexcept nogil:
    cdef void *p = aligned_alloc(4096, align_up(size, 4096))
    if p == NULL:
        abort()
    memset(p, 0, align_up(size, 4096))
    return p


cdef void fail(const char *what, uint32_t node) noexcept nogil:
    printf("tsan: node %u: %s\n", node, what)
    abort()


# ---- what Epoch and Engine do ----------------------------------------------------------------------------------------

cdef void build_subgroup(world_t *w, uint32_t place) noexcept nogil:
    cdef subgroup_t *s = &w.node.subgroups[place]
    cdef uint32_t k
    s.node = w.node
    s.topic_id = s.place = place
    s.level = LEVEL_ATOMIC if place == 0 else LEVEL_UNORDERED
    s.window = WINDOW
    s.ring = ring_slots(WINDOW)
    s.size_max = MESSAGE_SIZE
    s.stride = slot_stride(MESSAGE_SIZE)
    s.header_size = sizeof(slot_header)
    s.n_members = s.n_senders = NODES
    s.my_sender = <int>w.node.my_rank
    s.space_fd = eventfd(0, EFD_NONBLOCK)
    s.columns_offset = ROW_SUBGROUPS_OFFSET + place * sizeof(subgroup_columns)
    s.counts_offset = ROW_SUBGROUPS_OFFSET + TOPICS * sizeof(subgroup_columns) + place * CACHE_LINE
    s.slots_offset = ROW_SUBGROUPS_OFFSET + 4096 * (1 + place)
    s.members = <uint32_t *>zeroed(NODES * sizeof(uint32_t))
    s.member_columns = <subgroup_columns **>zeroed(NODES * sizeof(void *))
    s.members_received_by_sender = <uint64_t **>zeroed(NODES * sizeof(void *))
    s.wanted_rung = <uint64_t *>zeroed(NODES * sizeof(uint64_t))
    s.senders = <sender_t *>zeroed(NODES * sizeof(sender_t))
    s.ready = <uint64_t *>zeroed(ring_slots(WINDOW) * sizeof(uint64_t))
    s.inboxes = <inbox_t **>zeroed(INBOXES_MAX * sizeof(void *))
    for k in range(NODES):
        s.members[k] = s.senders[k].rank = s.senders[k].node_id = k
        s.member_columns[k] = s.senders[k].columns = <subgroup_columns *>(w.node.rows[k] + s.columns_offset)
        s.members_received_by_sender[k] = <uint64_t *>(w.node.rows[k] + s.counts_offset)
        s.senders[k].slots = w.node.rows[k] + s.slots_offset
    s.mine = s.member_columns[w.node.my_rank]
    s.received_by_sender = s.members_received_by_sender[w.node.my_rank]


cdef void build_log(world_t *w, uint32_t topic) noexcept nogil:
    cdef log_t *log = &w.logs[topic]
    log.header = <log_header *>zeroed(4096)
    log.ring = <char *>zeroed(LOG_CAPACITY)
    log.capacity = LOG_CAPACITY
    log.hot = 1 << 12
    log.n_cursors = 1
    log.cursors[0].page = w.cursors[topic] = <cursor_page *>zeroed(4096)
    log.cursors[0].keep_all = True
    log.cursors[0].ring_end = -1
    w.node.subgroups[topic].log = log


cdef void build_inbox(world_t *w) noexcept nogil:
    cdef inbox_t *box = &w.inbox
    box.header = w.inbox_mine = <inbox_header *>zeroed(4096)
    box.progress = <inbox_progress *>zeroed(4096)
    box.slots = <char *>zeroed(ring_slots(INBOX_SLOTS) * slot_stride(MESSAGE_SIZE))
    box.size_max = MESSAGE_SIZE
    box.stride = slot_stride(MESSAGE_SIZE)
    box.n_slots = INBOX_SLOTS
    box.ring = ring_slots(INBOX_SLOTS)
    box.ring_end = -1
    w.node.subgroups[0].inboxes[0] = box
    w.node.subgroups[0].n_inboxes = 1


cdef void build_node(uint32_t rank, char **rows) noexcept nogil:
    cdef world_t *w = &worlds[rank]
    cdef node_t *node = <node_t *>zeroed(sizeof(node_t))
    w.node = node
    node.epoch = 1
    node.my_rank = node.node_id = rank
    node.n_rows = NODES
    node.n_subgroups = TOPICS
    node.rows = <char **>zeroed(NODES * sizeof(char *))
    memcpy(node.rows, rows, NODES * sizeof(char *))
    node.control_seen = <uint64_t *>zeroed(NODES * sizeof(uint64_t))
    node.subgroups = <subgroup_t *>zeroed(TOPICS * sizeof(subgroup_t))
    node.counters = <uint64_t *>zeroed(COUNTERS_COUNT * sizeof(uint64_t))
    node.batch_send = node.batch_receive = node.batch_delivery = node.null_sends = node.post_after_unlock = True
    node.control_fd = -1
    node.skip_idle = True
    node.exchange_first = True
    node.fabric = &w.fabric
    w.driver.bell = <bell_page *>zeroed(4096)
    w.driver.bell_fd = eventfd(0, EFD_NONBLOCK)
    w.driver.resume_fd = eventfd(0, EFD_NONBLOCK)
    w.driver.busy_poll_ns = 5000
    w.driver.counters = node.counters
    w.driver.node = node
    w.shm.rank = rank
    w.shm.n_peers = NODES
    w.shm.peers = <shm_peer_t *>zeroed(NODES * sizeof(shm_peer_t))
    w.shm.bell = w.driver.bell
    w.shm.bell_fd = w.driver.bell_fd
    w.fabric.self = &w.shm
    w.fabric.post_list = shm_post_list
    w.fabric.ring = shm_ring
    w.fabric.cut = shm_cut
    w.fabric.prepare_wait = shm_prepare_wait
    w.fabric.wait = shm_wait
    w.fabric.finish_wait = shm_finish_wait
    build_subgroup(w, 0)
    build_subgroup(w, 1)
    build_log(w, 0)
    build_log(w, 1)
    build_inbox(w)
    if make_activity(node) < 0 or make_doors(node) < 0:
        abort()
    memset(node.row_shared, 1, NODES)
    note_all(node)


# ---- the application thread ------------------------------------------------------------------------------------------

cdef void fill(message_t *m, uint64_t sender, uint64_t index) noexcept nogil:
    m.sender = sender
    m.index = index
    m.check = sender * 1000003 + index
    memset(m.rest, <int>(m.check & 0xff), sizeof(m.rest))


cdef void ring_if_asleep(world_t *w) noexcept nogil:
    fence_store_load()
    if is_asleep(w.driver.bell):
        event_ring(w.driver.bell_fd)


cdef bint write_some(world_t *w) noexcept nogil:
    """As InboxWriter does."""
    cdef uint64_t limit = u64_load_acquire(&w.inbox.progress.consumed) + INBOX_SLOTS
    cdef uint64_t first = w.sent[0]
    cdef slot_header *h
    while w.sent[0] < messages and w.sent[0] < limit and w.sent[0] < first + 5:
        h = <slot_header *>(w.inbox.slots + (w.sent[0] & (ring_slots(INBOX_SLOTS) - 1)) * w.inbox.stride)
        h.index = w.sent[0]
        h.size = MESSAGE_SIZE
        h.kind = SLOT_DATA
        h.tag = 0
        h.source_ns = 1
        fill(<message_t *>(<char *>h + sizeof(slot_header)), w.node.my_rank, w.sent[0])
        w.sent[0] += 1
    if w.sent[0] == first:
        return False
    u64_store_release(&w.inbox_mine.committed, w.sent[0])
    ring_if_asleep(w)
    return True


cdef bint claim_some(world_t *w) noexcept nogil:
    cdef subgroup_t *s = &w.node.subgroups[1]
    cdef uint64_t first = 0, n, i
    cdef uint32_t sizes[4]
    if w.sent[1] >= messages:
        return False
    n = messages - w.sent[1]
    n = claim_slots(&w.driver, s, n if n < 4 else 4, 0, &first)
    for i in range(n):
        fill(<message_t *>slot_payload(s, first + i), w.node.my_rank, w.sent[1])
        w.sent[1] += 1
        sizes[i] = MESSAGE_SIZE
    if n:
        commit_slots(&w.driver, s, first, n, sizes, 1)
    return n > 0


cdef bint read_some(world_t *w, uint32_t topic) noexcept nogil:
    """As LogReader does that keeps all."""
    cdef log_t *log = &w.logs[topic]
    cdef log_record *r
    cdef message_t *m
    cdef uint64_t tail = u64_load_acquire(&log.header.tail)
    cdef bint some = False
    if w.position[topic] >= tail:
        return False
    if u64_load_relaxed(&log.header.hot_position) == w.position[topic]:
        w.offset[topic] = 0
    while w.position[topic] < tail:
        if w.offset[topic] >= LOG_CAPACITY:
            w.offset[topic] = 0
        r = <log_record *>(log.ring + w.offset[topic])
        if r.position != w.position[topic]:
            fail("a record is not where its predecessor says", w.node.my_rank)
        if r.kind != LOG_DATA:
            w.offset[topic] = 0
            continue
        m = <message_t *>(<char *>r + sizeof(log_record))
        if (r.size != MESSAGE_SIZE or m.sender != r.sender or m.check != m.sender * 1000003 + m.index
                or m.rest[sizeof(m.rest) - 1] != <char>(m.check & 0xff)):
            fail("a message is not what was sent", w.node.my_rank)
        if m.index != w.seen[topic][m.sender]:
            fail("a sender's messages are out of order", w.node.my_rank)
        w.seen[topic][m.sender] += 1
        if topic == 0:
            w.order = w.order * <uint64_t>1099511628211 + m.check
        w.position[topic] += record_stride(r.size)
        w.offset[topic] += record_stride(r.size)
        some = True
    u64_store_release(&w.cursors[topic].position, w.position[topic])
    fence_store_load()
    if u64_load_acquire(&log.header.blocked):
        event_ring(w.driver.bell_fd)
    return some


cdef bint has_all(world_t *w) noexcept nogil:
    cdef uint32_t topic, k
    for topic in range(TOPICS):
        for k in range(NODES):
            if w.seen[topic][k] < messages:
                return False
    return True


cdef void *run_application(void *argument) noexcept nogil:
    cdef world_t *w = <world_t *>argument
    cdef bint busy
    while not has_all(w):
        busy = write_some(w)
        busy = claim_some(w) or busy
        busy = read_some(w, 0) or busy
        busy = read_some(w, 1) or busy
        if not busy:
            sched_yield()
    u32_fetch_add_acq_rel(&applications_done, 1)
    return NULL


# ---- the control thread ----------------------------------------------------------------------------------------------

cdef void park(world_t *w) noexcept nogil:
    """As Engine.park()."""
    cdef driver_t *d = &w.driver
    w.took_over = try_to_drive(d)
    if w.took_over:
        return
    w.ticket += 1
    u32_store_release(&d.park, w.ticket)
    event_ring(d.bell_fd)
    while u32_load_acquire(&d.parked) != w.ticket:
        sched_yield()


cdef void resume(world_t *w) noexcept nogil:
    """As Engine.resume()."""
    note_all(w.node)
    if w.took_over:
        stop_driving(&w.driver)
        event_ring(w.driver.bell_fd)
    else:
        u32_store_release(&w.driver.park, 0)
        event_ring(w.driver.resume_fd)


cdef void hold_control(world_t *w) noexcept nogil:
    """As Epoch.hold_control()."""
    while u32_exchange_acquire(&w.node.control_lock, 1):
        sched_yield()


cdef void write_control(world_t *w, uint64_t value) noexcept nogil:
    """As Epoch.write_area(), set() and push()."""
    cdef row_header *h = <row_header *>w.node.rows[w.node.my_rank]
    cdef area_header *area = <area_header *>(<char *>h + ROW_AREAS_OFFSET)
    hold_control(w)
    u64_store_relaxed(&area.version, area.version + 1)
    fence_store_store()
    u32_store_relaxed(&area.size, <uint32_t>(value % 100))
    u64_store_release(&area.version, area.version + 1)
    u32_store_release(&w.node.control_lock, 0)
    u64_store_release(&h.control[0], value)
    hold_control(w)
    u64_store_release(&h.control_version, h.control_version + 1)
    u32_store_release(&w.node.control_lock, 0)
    ring_if_asleep(w)


cdef void *run_predicates(void *argument) noexcept nogil:
    drive(<driver_t *>argument)
    return NULL


cdef public int run_harness(int argc, char **argv) noexcept nogil:
    cdef char *rows[NODES]
    cdef uint32_t k, i, round = 0
    cdef int _
    cdef uint64_t parks = 0, taken_over = 0
    set_constants()
    global messages
    messages = <uint64_t>atoi(argv[1]) if argc > 1 else 20000
    for k in range(NODES):
        rows[k] = <char *>zeroed(ROW_SUBGROUPS_OFFSET + 4096 * (1 + TOPICS))
    for k in range(NODES):
        build_node(k, rows)
    for k in range(NODES):
        for i in range(NODES):
            worlds[k].shm.peers[i].bell = worlds[i].driver.bell
            worlds[k].shm.peers[i].bell_fd = worlds[i].driver.bell_fd
    for k in range(NODES):
        pthread_create(&worlds[k].predicates, NULL, run_predicates, &worlds[k].driver)
        pthread_create(&worlds[k].application, NULL, run_application, &worlds[k])
    while u32_load_acquire(&applications_done) < NODES:
        round += 1
        k = round % NODES
        if parks + taken_over < PARKS:
            park(&worlds[k])
            worlds[k].node.subgroups[0].held = not worlds[k].node.subgroups[0].held
            parks += not worlds[k].took_over
            taken_over += worlds[k].took_over
            resume(&worlds[k])
            if worlds[k].node.subgroups[0].held:
                park(&worlds[k])
                worlds[k].node.subgroups[0].held = False
                resume(&worlds[k])
        write_control(&worlds[k], round)
        for _ in range(20):
            sched_yield()
    for k in range(NODES):
        pthread_join(worlds[k].application, NULL)
        u32_store_release(&worlds[k].driver.stop, 1)
        event_ring(worlds[k].driver.bell_fd)
        event_ring(worlds[k].driver.resume_fd)
    for k in range(NODES):
        pthread_join(worlds[k].predicates, NULL)
        if worlds[k].order != worlds[0].order:
            fail("another order than on node 0", k)
        if worlds[k].node.counters[C_CORRUPT] or worlds[k].node.counters[C_REFUSED]:
            fail("damaged slots", k)
    printf("tsan: %llu messages on each of %d nodes in the same order, parked %llu times, taken over %llu times\n",
           <unsigned long long>(messages * NODES * TOPICS), <int>NODES, <unsigned long long>parks,
           <unsigned long long>taken_over)
    return 0
