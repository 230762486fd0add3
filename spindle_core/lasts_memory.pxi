"""Where the last messages of each key lie: pools of messages, of pieces of their payloads, of keys and of writers.

Rules: nothing is allocated but by lasts_make(); memory that was never needed is never touched. A message takes two
lines and its payload in whole lines, so that what fits doesn't depend on what was there before. Who calls keeps within
bytes_max, so that no pool runs out.
"""
from libc.stdint cimport uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from spindle_core.atomics cimport u64_store_relaxed
from spindle_core.lasts cimport EFFECT_CARRIED, author_t, instance_t, last_t, lasts_t, line_t, pool_t
from spindle_core.layout cimport LOG_LARGE, align_up, large_entry, log_record

cdef enum:
    BLOCK = 64                   # bytes of payload in one piece
    LAST_COST = 128              # bytes that a message takes beside its payload
    CARRIED_DEPTH = 48           # bit at which the depth begins in the last word of what is carried

cdef uint64_t CARRIED_WHO = (<uint64_t>1 << CARRIED_DEPTH) - 1

cdef lasts_t *lasts_make(const uint8_t *effects, uint64_t depth, uint64_t bytes_max, uint64_t secret) noexcept nogil:
    """An empty table that holds `bytes_max` bytes; NULL if there is no memory, or for more than 2**37 bytes."""
    cdef lasts_t *t
    cdef int tag
    cdef uint64_t most = bytes_max // LAST_COST + 2, blocks = bytes_max // BLOCK + 1, buckets = 64
    if bytes_max >> 37:
        return NULL
    while buckets < most:
        buckets *= 2
    t = <lasts_t *>calloc(1, sizeof(lasts_t))
    if t == NULL:
        return NULL
    memcpy(t.effects, effects, 256)
    for tag in range(256):
        t.may_carry = t.may_carry or effects[tag] & EFFECT_CARRIED != 0
    t.depth = depth
    t.bytes_max = bytes_max
    t.secret = secret | 1
    t.mask = <uint32_t>(buckets - 1)
    t.lasts = <last_t *>calloc(most, sizeof(last_t))
    t.blocks = <char *>calloc(blocks, BLOCK)
    t.block_chain = <uint32_t *>calloc(blocks, sizeof(uint32_t))
    t.instances = <instance_t *>calloc(most, sizeof(instance_t))
    t.authors = <author_t *>calloc(most, sizeof(author_t))
    t.instance_buckets = <uint32_t *>calloc(buckets, sizeof(uint32_t))
    t.author_buckets = <uint32_t *>calloc(buckets, sizeof(uint32_t))
    if (t.lasts == NULL or t.blocks == NULL or t.block_chain == NULL or t.instances == NULL or t.authors == NULL
            or t.instance_buckets == NULL or t.author_buckets == NULL):
        lasts_free(t)
        return NULL
    reset(t)
    return t


cdef void unuse_larges(lasts_t *l) noexcept nogil:
    """Of all that is kept."""
    cdef uint32_t at = l.first
    while at:
        unuse_large(l, &l.lasts[at])
        at = l.lasts[at].later


cdef void lasts_free(lasts_t *l) noexcept nogil:
    if l == NULL:
        return
    if l.lasts != NULL:
        unuse_larges(l)
    free(l.lasts)
    free(l.blocks)
    free(l.block_chain)
    free(l.instances)
    free(l.authors)
    free(l.instance_buckets)
    free(l.author_buckets)
    free(l)


cdef void lasts_clear(lasts_t *l) noexcept nogil:
    """Empty again, as if no message had come."""
    unuse_larges(l)
    memset(l.instance_buckets, 0, (<uint64_t>l.mask + 1) * sizeof(uint32_t))
    memset(l.author_buckets, 0, (<uint64_t>l.mask + 1) * sizeof(uint32_t))
    reset(l)


cdef void reset(lasts_t *l) noexcept nogil:
    l.last_pool.fresh = l.block_pool.fresh = l.instance_pool.fresh = l.author_pool.fresh = 1
    l.last_pool.free = l.block_pool.free = l.instance_pool.free = l.author_pool.free = 0
    l.first = l.last = l.authors_first = l.loose_first = l.loose_last = l.kept = l.samples = 0
    memset(l.idle, 0, sizeof(l.idle))
    memset(l.over, 0, sizeof(l.over))
    memset(l.waiting, 0, sizeof(l.waiting))
    l.bytes = l.given_up = l.given_up_keys = l.limited = 0
    l.said_ns = 0
    u64_store_relaxed(&l.due_ns, 0)
    u64_store_relaxed(&l.wait, 0)
    l.next_view = l.next_sequence = l.since_view = l.since_sequence = 0
    l.restoring = False
    l.version += 1


cdef inline uint64_t last_cost(const log_record *r) noexcept nogil:
    """Bytes that a message takes; the bytes of a large sample count as those of any other."""
    cdef uint64_t size = r.size
    if r.kind == LOG_LARGE and size == sizeof(large_entry):
        size += (<const large_entry *>(<const char *>r + sizeof(log_record))).size - sizeof(large_entry)
    return LAST_COST + align_up(size, BLOCK)


cdef inline uint32_t bucket_of(lasts_t *l, uint64_t key) noexcept nogil:
    key = (key ^ l.secret) * <uint64_t>0x9E3779B97F4A7C15
    key = (key ^ (key >> 32)) * l.secret
    return <uint32_t>(key >> 32) & l.mask


cdef inline uint64_t identity_of(uint32_t sender, uint32_t relay, uint16_t writer_id) noexcept nogil:
    """Of a writer: of one on a host without a node it stays the same at every node."""
    if relay:
        return <uint64_t>1 << 63 | <uint64_t>relay << 16 | writer_id
    return <uint64_t>sender << 16 | writer_id


cdef inline uint64_t last_word(const log_record *r, uint8_t does) noexcept nogil:
    """The last 8 bytes of what is carried, which say by whom it is, and how many of its key are kept; 0: nothing. (Of a
    large sample they stand in its entry.)"""
    cdef uint64_t word = 0
    if does & EFFECT_CARRIED and r.size >= sizeof(uint64_t):
        memcpy(&word, <const char *>r + sizeof(log_record) + r.size - sizeof(uint64_t), sizeof(uint64_t))
    return word


cdef inline uint64_t author_of_record(const log_record *r, uint8_t does) noexcept nogil:
    """Identity of whoever says this. Of what is carried: the writer with the number in the last word, in front of which
    stands what a record has as `relay`; 0: the carrier itself."""
    cdef uint64_t who = last_word(r, does) & CARRIED_WHO
    cdef uint32_t relay = <uint32_t>(who >> 16)
    if who == 0 or (relay != 0) != (r.relay != 0):    # a writer without a node isn't carried by one with a node
        return identity_of(r.sender, r.relay, r.writer_id)
    return identity_of(r.sender, relay, <uint16_t>(who & 0xFFFF))


cdef void store_payload(lasts_t *l, last_t *x, const char *payload) noexcept nogil:
    cdef uint32_t at
    cdef uint32_t *link = &x.block
    cdef uint64_t left = x.size, n
    while left:
        at = l.block_pool.free
        if at:
            l.block_pool.free = l.block_chain[at]
        else:
            at = l.block_pool.fresh
            l.block_pool.fresh += 1
        n = left if left < BLOCK else BLOCK
        # Place 0 is none, so block 1 is the first.
        memcpy(l.blocks + (<uint64_t>at - 1) * BLOCK, payload, n)
        payload += n
        left -= n
        link[0] = at
        link = &l.block_chain[at]
    link[0] = 0


cdef void load_payload(lasts_t *l, const last_t *x, char *to) noexcept nogil:
    cdef uint32_t at = x.block
    cdef uint64_t left = x.size, n
    while at:
        n = left if left < BLOCK else BLOCK
        memcpy(to, l.blocks + (<uint64_t>at - 1) * BLOCK, n)
        to += n
        left -= n
        at = l.block_chain[at]


cdef void use_large(lasts_t *l, last_t *x, const large_entry *entry) noexcept nogil:
    x.large = True
    if l.larges != NULL:
        larges_use(l.larges, entry.id)


cdef void unuse_large(lasts_t *l, const last_t *x) noexcept nogil:
    cdef large_entry entry
    if x.large and l.larges != NULL:
        load_payload(l, x, <char *>&entry)
        larges_unuse(l.larges, entry.id)


cdef uint32_t keep_message(lasts_t *l, const log_record *r) noexcept nogil:
    """A place for the message, the last in the order. There is room."""
    cdef uint32_t at = l.last_pool.free
    cdef last_t *x
    if at:
        l.last_pool.free = l.lasts[at].later
    else:
        at = l.last_pool.fresh
        l.last_pool.fresh += 1
    x = &l.lasts[at]
    memset(x, 0, sizeof(last_t))
    x.key = r.key
    x.sequence = r.sequence
    x.view_id = r.view_id
    x.source_ns = r.source_ns
    x.reception_ns = r.reception_ns
    x.sender = r.sender
    x.relay = r.relay
    x.size = r.size
    x.writer_id = r.writer_id
    x.tag = r.tag
    if l.ranked:
        x.rank = rank_of(l, r)
    store_payload(l, x, <const char *>r + sizeof(log_record))
    if r.kind == LOG_LARGE and r.size == sizeof(large_entry):
        use_large(l, x, <const large_entry *>(<const char *>r + sizeof(log_record)))
    x.earlier = l.last
    if l.last:
        l.lasts[l.last].later = at
    else:
        l.first = at
    l.last = at
    x.cost = last_cost(r)
    l.bytes += x.cost
    l.kept += 1
    return at


cdef void drop_message(lasts_t *l, uint32_t at) noexcept nogil:
    """Nothing but the order refers to it any more."""
    cdef last_t *x = &l.lasts[at]
    cdef uint32_t block = x.block, last = 0
    unuse_large(l, x)
    if x.earlier:
        l.lasts[x.earlier].later = x.later
    else:
        l.first = x.later
    if x.later:
        l.lasts[x.later].earlier = x.earlier
    else:
        l.last = x.earlier
    while block:
        last = block
        block = l.block_chain[block]
    if last:
        l.block_chain[last] = l.block_pool.free
        l.block_pool.free = x.block
    l.bytes -= x.cost
    l.kept -= 1
    x.later = l.last_pool.free
    l.last_pool.free = at


cdef void link_of_writer(lasts_t *l, uint32_t at) noexcept nogil:
    """Of its writer's samples it is the last."""
    cdef last_t *x = &l.lasts[at]
    x.of_writer_after = l.authors[x.writer].first
    if x.of_writer_after:
        l.lasts[x.of_writer_after].of_writer_before = at
    l.authors[x.writer].first = at


cdef void unlink_of_writer(lasts_t *l, uint32_t at) noexcept nogil:
    """Without samples there is no writer."""
    cdef last_t *x = &l.lasts[at]
    if x.of_writer_before:
        l.lasts[x.of_writer_before].of_writer_after = x.of_writer_after
    else:
        l.authors[x.writer].first = x.of_writer_after
    if x.of_writer_after:
        l.lasts[x.of_writer_after].of_writer_before = x.of_writer_before
    if l.authors[x.writer].first == 0:
        drop_author(l, x.writer)


cdef inline bint stands_before(lasts_t *l, uint32_t one, uint32_t other) noexcept nogil:
    """Of two messages, in the order."""
    cdef const last_t *x = &l.lasts[one]
    cdef const last_t *y = &l.lasts[other]
    return x.view_id < y.view_id or (x.view_id == y.view_id and x.sequence < y.sequence)


cdef inline void hold_end(lasts_t *l, uint32_t end) noexcept nogil:
    """An end is needed once more. One that is a sample is there as long as older ones of its key."""
    if l.lasts[end].instance == 0:
        l.lasts[end].about += 1


cdef inline void release_end(lasts_t *l, uint32_t end) noexcept nogil:
    if end and l.lasts[end].instance == 0:
        l.lasts[end].about -= 1
        if l.lasts[end].about == 0:
            drop_message(l, end)


# --- what no key says enough of

cdef void append_loose(lasts_t *l, uint32_t at) noexcept nogil:
    """A sample that is ALONE, or an end while there is such a sample: it may be about anything that is in that one."""
    cdef last_t *x = &l.lasts[at]
    x.loose = True
    x.loose_before = l.loose_last
    if l.loose_last:
        l.lasts[l.loose_last].loose_after = at
    else:
        l.loose_first = at
    l.loose_last = at
    hold_end(l, at)


cdef void unlink_loose(lasts_t *l, uint32_t at) noexcept nogil:
    cdef last_t *x = &l.lasts[at]
    if x.loose_before:
        l.lasts[x.loose_before].loose_after = x.loose_after
    else:
        l.loose_first = x.loose_after
    if x.loose_after:
        l.lasts[x.loose_after].loose_before = x.loose_before
    else:
        l.loose_last = x.loose_before
    x.loose = False


cdef void remove_loose(lasts_t *l, uint32_t at) noexcept nogil:
    """A sample goes, if it is one of these: with it the ends that have no other one before them."""
    if not l.lasts[at].loose:
        return
    unlink_loose(l, at)
    while l.loose_first and l.lasts[l.loose_first].instance == 0:
        at = l.loose_first
        unlink_loose(l, at)
        release_end(l, at)


cdef void clear_word(lasts_t *l, uint32_t writer) noexcept nogil:
    """What was said of a writer isn't the last any more: it goes, also from what is loose, for who gets the table would
    take it for the last, if what follows it has gone."""
    cdef uint32_t word = l.authors[writer].word
    l.authors[writer].word = 0
    if word and l.lasts[word].loose:
        unlink_loose(l, word)
        release_end(l, word)
    release_end(l, word)


# --- keys and writers

cdef uint32_t find_instance(lasts_t *l, uint64_t key) noexcept nogil:
    cdef uint32_t at = l.instance_buckets[bucket_of(l, key)]
    while at and l.instances[at].key != key:
        at = l.instances[at].chain
    return at


cdef uint32_t make_instance(lasts_t *l, uint64_t key, uint32_t kind) noexcept nogil:
    cdef uint32_t at = l.instance_pool.free, bucket = bucket_of(l, key)
    cdef instance_t *i
    if at:
        l.instance_pool.free = l.instances[at].chain
    else:
        at = l.instance_pool.fresh
        l.instance_pool.fresh += 1
    i = &l.instances[at]
    memset(i, 0, sizeof(instance_t))
    i.key = key
    i.kind = kind
    i.chain = l.instance_buckets[bucket]
    l.instance_buckets[bucket] = at
    append_idle(l, at)
    return at


cdef void append_idle(lasts_t *l, uint32_t at) noexcept nogil:
    cdef instance_t *i = &l.instances[at]
    cdef line_t *line = &l.idle[i.kind]
    i.before = line.last
    i.after = 0
    if line.last:
        l.instances[line.last].after = at
    else:
        line.first = at
    line.last = at
    line.count += 1


cdef void remove_idle(lasts_t *l, uint32_t at) noexcept nogil:
    cdef instance_t *i = &l.instances[at]
    cdef line_t *line = &l.idle[i.kind]
    if i.before:
        l.instances[i.before].after = i.after
    else:
        line.first = i.after
    if i.after:
        l.instances[i.after].before = i.before
    else:
        line.last = i.before
    line.count -= 1


cdef void drop_instance(lasts_t *l, uint32_t at) noexcept nogil:
    """It has no samples."""
    remove_over(l, at)
    cdef uint32_t *link = &l.instance_buckets[bucket_of(l, l.instances[at].key)]
    while link[0] != at:
        link = &l.instances[link[0]].chain
    link[0] = l.instances[at].chain
    remove_idle(l, at)
    l.instances[at].chain = l.instance_pool.free
    l.instance_pool.free = at


cdef uint32_t find_author(lasts_t *l, uint64_t identity) noexcept nogil:
    cdef uint32_t at = l.author_buckets[bucket_of(l, identity)]
    while at and l.authors[at].identity != identity:
        at = l.authors[at].chain
    return at


cdef uint32_t author_of(lasts_t *l, uint64_t identity) noexcept nogil:
    cdef uint32_t at = find_author(l, identity), bucket = bucket_of(l, identity)
    cdef author_t *a
    if at:
        return at
    at = l.author_pool.free
    if at:
        l.author_pool.free = l.authors[at].chain
    else:
        at = l.author_pool.fresh
        l.author_pool.fresh += 1
    a = &l.authors[at]
    memset(a, 0, sizeof(author_t))
    a.identity = identity
    a.chain = l.author_buckets[bucket]
    l.author_buckets[bucket] = at
    a.after = l.authors_first
    if a.after:
        l.authors[a.after].before = at
    l.authors_first = at
    return at


cdef void drop_author(lasts_t *l, uint32_t at) noexcept nogil:
    """It has no samples."""
    cdef author_t *a = &l.authors[at]
    release_end(l, a.word)
    cdef uint32_t *link = &l.author_buckets[bucket_of(l, a.identity)]
    while link[0] != at:
        link = &l.authors[link[0]].chain
    link[0] = a.chain
    if a.before:
        l.authors[a.before].after = a.after
    else:
        l.authors_first = a.after
    if a.after:
        l.authors[a.after].before = a.before
    a.chain = l.author_pool.free
    l.author_pool.free = at
