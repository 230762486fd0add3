"""The last messages of each key: what late readers of a topic get instead of all that was ever delivered.

The table is kept by whoever appends to the delivery log, message by message, so what it holds follows from the order
alone: at the same place in the order all members have the same. A message has a tag; what messages with that tag do to
their key the layer above has said. Of each key the last `depth` samples are kept; with a sample, the end with which its
writer has left the key; the end of the key, if nothing was said of it since; and of a writer what was said of it since
its last sample and its last end. So who reads the table thinks of a key, and of the writers that it hears of, what it
would think after reading all.

A message may be about several keys, of which nobody tells us. It has a key of its own then, and is ALONE. What is in
it may end later: so all ends are kept while there is such a message that came before them. When it goes for want of
memory, what is older of its keys has gone: keys go by the age of their last samples. When it goes because of the depth,
as many later ones have the same in them: the layer above has given these the same key.

In a topic that is ordered by source, what was written before something that is kept of its key is passed over, as its
readers do: else it would take the place of what was written last.

A writer may speak for others of its host, as their carrier; then a message says whose it is, and it may say another
depth for its key. When a carrier ends, all have ended for whom it has spoken.

A key that has ended, and that all writers of its samples have left, is over, and forgotten some time later. When
memory runs out, the key goes whose last sample lies furthest back, or without a depth the oldest sample; what goes so
is counted as given up.

Rules: where all this lies is in lasts_memory.pxi, what goes and when in lasts_over.pxi. The work for a message is
bounded by the depth (without one, by the table), that for the end of a writer by the samples kept of it and their keys,
where writers carry others, and for the end of a node, by the table. A table that is filled from another's, message by
message, becomes the same: so nothing is looked at that left no trace in what is kept, but for what lasts_over.pxi says.
"""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

from spindle_core.lasts cimport (
    ALONE,
    EFFECT_ALONE,
    EFFECT_BOUND,
    EFFECT_CARRIED,
    EFFECT_ENDS,
    EFFECT_LEAVES,
    EFFECT_OF_NODE,
    EFFECT_OF_WRITER,
    EFFECT_SAMPLE,
    EFFECT_WORD,
    KINDS,
    NAMED,
    RANK_YIELDS,
    author_t,
    instance_t,
    last_t,
    lasts_t,
)
from spindle_core.layout cimport LOG_DATA, LOG_LARGE, log_record, record_stride


# --- samples

cdef void unlink_sample(lasts_t *l, uint32_t at) noexcept nogil:
    """From those of its key."""
    cdef last_t *x = &l.lasts[at]
    cdef instance_t *i = &l.instances[x.instance]
    if x.older:
        l.lasts[x.older].newer = x.newer
    else:
        i.oldest = x.newer
    if x.newer:
        l.lasts[x.newer].older = x.older
    else:
        i.newest = x.older
    i.count -= 1
    l.samples -= 1


cdef void drop_sample(lasts_t *l, uint32_t at) noexcept nogil:
    """With an end that only it needs. Its instance stays, even if nothing of it is left."""
    cdef last_t *x = &l.lasts[at]
    cdef instance_t *i = &l.instances[x.instance]
    unlink_sample(l, at)
    i.unleft -= x.left == 0
    unlink_of_writer(l, at)
    if x.left and x.left == i.ended:
        look_ended(l, x.instance)
    release_end(l, x.left)
    release_end(l, x.yields)
    remove_loose(l, at)
    drop_message(l, at)


cdef void clear_ended(lasts_t *l, uint32_t at) noexcept nogil:
    """The key has not ended any more, or by something else."""
    cdef uint32_t end = l.instances[at].ended, y = l.instances[at].others, following
    if end == 0:
        return
    l.instances[at].ended = 0
    release_end(l, end)
    while y:
        following = l.lasts[y].older
        if l.lasts[y].left:
            drop_present(l, y)
        y = following


cdef void forget_instance(lasts_t *l, uint32_t at) noexcept nogil:
    """Oldest first, so that a sample that is the end of older ones goes after them."""
    clear_ended(l, at)
    while l.instances[at].oldest:
        drop_sample(l, l.instances[at].oldest)
    while l.instances[at].others:
        drop_present(l, l.instances[at].others)
    drop_instance(l, at)


cdef void give_up_instance(lasts_t *l, uint32_t at) noexcept nogil:
    l.given_up += l.instances[at].count
    l.given_up_keys += 1
    forget_instance(l, at)


cdef void give_up_loose(lasts_t *l, uint64_t view_id, uint64_t sequence, uint32_t spared,
                        uint64_t said_ns) noexcept nogil:
    """The last sample of a key is lost, which stood at this place: so are those before it that are ALONE, whose keys
    have later ones. With them go the ends before it: one may be about that key, and isn't true any more."""
    cdef uint32_t at
    cdef last_t *x
    while l.loose_first:
        x = &l.lasts[l.loose_first]
        at = x.instance
        if x.view_id > view_id or (x.view_id == view_id and x.sequence > sequence):
            return
        if l.instances[at].count == 1:
            if at == spared:
                return
            give_up_instance(l, at)
            continue
        l.given_up += 1
        drop_sample(l, l.instances[at].oldest)
        if at != spared:
            look_over(l, at, said_ns)


cdef bint make_room_for_last(lasts_t *l, const log_record *r, uint32_t spared) noexcept nogil:
    """Room for this message, which is of the instance `spared` (0: of none): other keys go before that one. False if
    all others are not enough."""
    cdef uint64_t cost = last_cost(r), view_id, sequence
    cdef uint32_t at
    cdef bint over
    if cost > l.bytes_max:
        return False
    while l.bytes + cost > l.bytes_max:
        at = first_to_go(l, spared)
        if at and l.instances[at].others and not l.instances[at].over:
            drop_present(l, l.instances[at].others)
            look_over(l, at, r.source_ns)
        elif at:
            over = l.instances[at].over
            view_id, sequence = l.lasts[l.instances[at].newest].view_id, l.lasts[l.instances[at].newest].sequence
            give_up_instance(l, at)
            if not over:
                give_up_loose(l, view_id, sequence, spared, r.source_ns)
        elif l.depth or not give_up_oldest(l, spared, r.source_ns):
            return False
    return True


cdef inline bint is_about_all(uint8_t does) noexcept nogil:
    """Concerns all keys of a writer, or of a node's."""
    return does & EFFECT_OF_WRITER or (does & EFFECT_OF_NODE and not does & EFFECT_CARRIED)


cdef bint is_older(lasts_t *l, uint32_t at, const log_record *r) noexcept nogil:
    """Something that is kept of this key was written later, as the sources say: in a topic that goes by that, this is
    no news to readers. What a node says of all keys of a writer was written at no time of the source's."""
    cdef const instance_t *i = &l.instances[at]
    cdef const last_t *end = &l.lasts[i.ended]
    cdef uint64_t newest_ns
    if not l.by_source or at == 0 or i.newest == 0 or i.kind != NAMED:
        return False
    newest_ns = l.lasts[i.newest].source_ns
    if i.ended and not is_about_all(l.effects[end.tag]) and end.source_ns > newest_ns:
        newest_ns = end.source_ns
    return r.source_ns < newest_ns


cdef void add_sample(lasts_t *l, const log_record *r, uint8_t does) noexcept nogil:
    cdef uint32_t at = find_instance(l, r.key), place, writer
    cdef uint32_t kind = ALONE if does & EFFECT_ALONE else NAMED
    cdef uint64_t depth = last_word(r, does) >> CARRIED_DEPTH
    cdef last_t *x
    cdef instance_t *i
    # A key that is over begins anew, whatever its next sample's time. Of another table all that is kept was taken in.
    if kind == NAMED and not l.instances[at].over and not l.restoring:
        if l.ranked and not may_say(l, at, author_of_record(r, does), rank_of(l, r)):
            keep_present(l, at, r)
            return
        if is_older(l, at, r):
            if l.ranked and not does & EFFECT_CARRIED:
                keep_present(l, at, r)
            return
    if depth == 0:
        depth = l.depth
    if at == 0:
        at = make_instance(l, r.key, kind)
    else:
        remove_over(l, at)
        remove_idle(l, at)
        l.instances[at].kind = kind
        append_idle(l, at)
        clear_ended(l, at)
        while kind == ALONE and l.instances[at].others:
            drop_present(l, l.instances[at].others)      # nobody knows any more who leaves it
        while depth and l.instances[at].count >= depth:
            if l.ranked and kind == NAMED and stays_present(l, l.instances[at].oldest, author_of_record(r, does)):
                turn_into_present(l, l.instances[at].oldest)
            else:
                drop_sample(l, l.instances[at].oldest)
    if l.ranked and find_present(l, at, author_of_record(r, does)):
        drop_present(l, find_present(l, at, author_of_record(r, does)))
    limit_keys(l, at)
    limit_samples(l, at, r.source_ns)
    while not make_room_for_last(l, r, at):
        if l.instances[at].others:
            drop_present(l, l.instances[at].others)
            continue
        l.given_up += 1
        if l.instances[at].count == 0:
            give_up_instance(l, at)
            return
        drop_sample(l, l.instances[at].oldest)
    place = keep_message(l, r)
    writer = author_of(l, author_of_record(r, does))
    clear_word(l, writer)
    x, i = &l.lasts[place], &l.instances[at]
    x.instance = at
    x.writer = writer
    x.older = i.newest
    if i.newest:
        l.lasts[i.newest].newer = place
    else:
        i.oldest = place
    i.newest = place
    i.count += 1
    l.samples += 1
    i.unleft += 1
    link_of_writer(l, place)
    if kind == ALONE:
        append_loose(l, place)
    if does & (EFFECT_LEAVES | EFFECT_ENDS):
        meet_end(l, at, place, writer, does)
        look_over(l, at, r.source_ns)


# --- ends

cdef void meet_end(lasts_t *l, uint32_t at, uint32_t end, uint32_t writer, uint8_t does) noexcept nogil:
    """A key ends, or `writer` leaves it, or both."""
    cdef uint32_t y = l.instances[at].oldest if does & EFFECT_LEAVES else 0
    cdef last_t *x
    while y:
        x = &l.lasts[y]
        if x.left == 0 and x.writer == writer:
            x.left = end
            l.instances[at].unleft -= 1
            hold_end(l, end)
        y = x.newer
    if does & EFFECT_ENDS and l.instances[at].ended != end:
        hold_end(l, end)
        clear_ended(l, at)
        l.instances[at].ended = end


cdef bint concerns(lasts_t *l, uint32_t at, uint32_t writer, uint8_t does) noexcept nogil:
    """Whether an end has anything to say of the samples of an instance."""
    cdef uint32_t y = l.instances[at].oldest
    if does & EFFECT_ENDS:
        return y != 0
    while y:
        if l.lasts[y].left == 0 and l.lasts[y].writer == writer:
            return True
        y = l.lasts[y].newer
    return False


cdef bint make_room_for_end(lasts_t *l, const log_record *r, uint32_t spared) noexcept nogil:
    """As make_room_for_last(). If there is no room, nothing stays that is ALONE: the end may be about that."""
    cdef uint32_t at
    if make_room_for_last(l, r, spared):
        return True
    at = l.idle[ALONE].first
    while at:
        give_up_instance(l, at)
        at = l.idle[ALONE].first
    return False


cdef void keep_loose(lasts_t *l, const log_record *r) noexcept nogil:
    """An end about nothing that is known to be kept."""
    if l.loose_first and make_room_for_end(l, r, 0) and l.loose_first:
        append_loose(l, keep_message(l, r))


cdef uint32_t keep_end(lasts_t *l, const log_record *r) noexcept nogil:
    """An end; held by us, until it is known who needs it: release_end()."""
    cdef uint32_t end = keep_message(l, r)
    l.lasts[end].about = 1
    if l.loose_first:
        append_loose(l, end)
    return end


cdef void end_of_key(lasts_t *l, const log_record *r, uint8_t does) noexcept nogil:
    cdef uint64_t identity = author_of_record(r, does)
    cdef uint32_t at = find_instance(l, r.key), end
    if l.ranked and at and l.instances[at].kind == NAMED:
        if does & EFFECT_ENDS and not may_say(l, at, identity, rank_of(l, r)):
            does &= ~<uint8_t>EFFECT_ENDS
            if not does & EFFECT_LEAVES:
                keep_present(l, at, r)
                return
    if is_older(l, at, r):
        does &= ~<uint8_t>EFFECT_ENDS
    if does & EFFECT_LEAVES and l.instances[at].kind == NAMED and find_present(l, at, identity):
        drop_present(l, find_present(l, at, identity))
        if not concerns(l, at, find_author(l, identity), does):
            look_over(l, at, r.source_ns)
            at = find_instance(l, r.key)
    if at == 0 or not concerns(l, at, find_author(l, identity), does):
        keep_loose(l, r)
        return
    if not make_room_for_end(l, r, at):
        at = find_instance(l, r.key)
        if at:
            give_up_instance(l, at)
        return
    if not concerns(l, at, find_author(l, identity), does):
        look_over(l, at, r.source_ns)    # what it was about made room for it
        keep_loose(l, r)
        return
    end = keep_end(l, r)
    if l.ranked and does & EFFECT_ENDS:
        take_key(l, at, end)
    meet_end(l, at, end, find_author(l, identity), does)
    release_end(l, end)
    look_over(l, at, r.source_ns)


cdef void leave_all(lasts_t *l, uint32_t end, uint32_t writer, uint8_t does) noexcept nogil:
    """A writer has to do with none of its keys any more."""
    cdef uint32_t y = l.authors[writer].first, at
    cdef uint8_t does_here
    while y:
        at = l.lasts[y].instance
        if l.lasts[y].left == 0:
            does_here = does
            if l.ranked and not ends_by_leaving(l, at, l.authors[writer].identity):
                does_here &= ~<uint8_t>EFFECT_ENDS
            meet_end(l, at, end, writer, does_here)
        y = l.lasts[y].of_writer_after


cdef void look_all_over(lasts_t *l, uint64_t said_ns) noexcept nogil:
    """look_over() of all keys."""
    cdef uint32_t at, following
    cdef int kind
    for kind in range(KINDS):
        at = l.idle[kind].first
        while at:
            following = l.instances[at].after
            look_over(l, at, said_ns)
            at = following


cdef inline bint is_carried_by(lasts_t *l, uint32_t sample, uint64_t carrier) noexcept nogil:
    """This carrier has brought it, for another one."""
    cdef const last_t *x = &l.lasts[sample]
    return (l.effects[x.tag] & EFFECT_CARRIED and identity_of(x.sender, x.relay, x.writer_id) == carrier
            and l.authors[x.writer].identity != carrier)


cdef bint carries_any(lasts_t *l, uint64_t carrier) noexcept nogil:
    cdef uint32_t at = l.authors_first if l.may_carry else 0, y
    while at:
        y = l.authors[at].first
        while y:
            if is_carried_by(l, y, carrier):
                return True
            y = l.lasts[y].of_writer_after
        at = l.authors[at].after
    return False


cdef void end_of_writer(lasts_t *l, const log_record *r, uint8_t does) noexcept nogil:
    cdef uint64_t identity = author_of_record(r, does)
    cdef bint leaves = does & (EFFECT_LEAVES | EFFECT_ENDS) != 0
    cdef bint carries = leaves and not does & EFFECT_CARRIED and carries_any(l, identity)
    cdef uint32_t writer, end
    if find_author(l, identity) == 0 and not carries:
        keep_loose(l, r)
        return
    if not make_room_for_end(l, r, 0):
        return
    writer = find_author(l, identity)
    carries = carries and carries_any(l, identity)
    if writer == 0 and not carries:
        keep_loose(l, r)
        return
    end = keep_end(l, r)
    if writer:
        clear_word(l, writer)
        if not leaves:
            l.authors[writer].word = end
            return
        leave_all(l, end, writer, does)
    if carries:
        if writer:
            let_presents_go(l, writer, end)
        end_carried(l, r, end, identity, does)
    elif writer:
        look_over_of(l, writer, end, r.source_ns)
    release_end(l, end)


cdef void look_over_of(lasts_t *l, uint32_t writer, uint32_t end, uint64_t said_ns) noexcept nogil:
    """look_over() of all keys of a writer, which has left them with this end."""
    cdef uint32_t y = l.authors[writer].first, following, at
    while y:
        at = l.lasts[y].instance
        following = l.lasts[y].of_writer_after
        if l.lasts[y].present:
            let_present_go(l, y, end)
        if is_over(l, at):
            while following and l.lasts[following].instance == at:
                following = l.lasts[following].of_writer_after
            look_over(l, at, said_ns)
        y = following


cdef void end_carried(lasts_t *l, const log_record *r, uint32_t end, uint64_t carrier, uint8_t does) noexcept nogil:
    """The carrier has ended, and whomever it has spoken for. What that does to a key, the last sample in it says."""
    cdef uint32_t writer = l.authors_first, y
    cdef uint8_t bound
    while writer:
        y = l.authors[writer].first
        while y:
            if l.lasts[y].left == 0 and is_carried_by(l, y, carrier):
                bound = l.effects[l.lasts[y].tag] & EFFECT_BOUND
                meet_end(l, l.lasts[y].instance, end, writer, does | EFFECT_ENDS if bound else does)
            y = l.lasts[y].of_writer_after
        writer = l.authors[writer].after
    look_all_over(l, r.source_ns)


cdef void end_of_node(lasts_t *l, const log_record *r, uint8_t does) noexcept nogil:
    cdef uint32_t writer, end, following
    if not make_room_for_end(l, r, 0):
        return
    end = keep_end(l, r)
    writer = l.authors_first
    while writer:
        following = l.authors[writer].after
        if l.authors[writer].identity >> 16 == r.sender:
            leave_all(l, end, writer, does)
            let_presents_go(l, writer, end)
        writer = following
    look_all_over(l, r.source_ns)
    release_end(l, end)


cdef void lasts_note(lasts_t *l, const log_record *r) noexcept nogil:
    """The message that follows in the order, as it stands in a delivery log."""
    cdef uint8_t does = l.effects[r.tag]
    if r.view_id < l.since_view or (r.view_id == l.since_view and r.sequence < l.since_sequence):
        return
    l.next_view = r.view_id
    l.next_sequence = r.sequence + 1
    l.version += 1
    if does & EFFECT_OF_NODE and not does & EFFECT_CARRIED:
        if r.writer_id == 0:
            end_of_node(l, r, does)
    elif does & EFFECT_OF_WRITER:
        end_of_writer(l, r, does)
    elif does & EFFECT_SAMPLE:
        add_sample(l, r, does)
    elif does & EFFECT_WORD:
        if r.writer_id == 0:
            tell_time(l, r.source_ns)
    elif does & (EFFECT_LEAVES | EFFECT_ENDS):
        end_of_key(l, r, does)
    elif l.ranked and l.ranks[r.tag] == RANK_YIELDS:
        end_of_turn(l, r)
    elif l.ranked and l.ranks[r.tag] > RANK_YIELDS:
        note_present(l, r)
    look_due(l)


# --- copies

cdef uint64_t lasts_log_bytes(lasts_t *l) noexcept nogil:
    """Bytes of all that is kept, as records of a delivery log."""
    cdef uint64_t n = 0
    cdef uint32_t at = l.first
    while at:
        n += record_stride(l.lasts[at].size)
        at = l.lasts[at].later
    return n


cdef void lasts_copy(lasts_t *l, char *ring) noexcept nogil:
    """All that is kept, in the order, as records of a delivery log that begins at `ring`."""
    cdef uint32_t at = l.first
    cdef uint64_t position = 0
    cdef last_t *x
    cdef log_record *r
    while at:
        x = &l.lasts[at]
        r = <log_record *>(ring + position)
        r.position = position
        r.size = x.size
        r.kind = LOG_LARGE if x.large else LOG_DATA
        r.tag = x.tag
        r.writer_id = x.writer_id
        r.key = x.key
        r.sequence = x.sequence
        r.source_ns = x.source_ns
        r.reception_ns = x.reception_ns
        r.sender = x.sender
        r.relay = x.relay
        r.view_id = x.view_id
        load_payload(l, x, <char *>r + sizeof(log_record))
        position += record_stride(x.size)
        at = x.later
