"""Who may write a key: where only one counts, the one of the highest rank, whose a key is; and what the table has of
the others.

Where all writers count, the table has the last samples of a key, whoever has written them, and one message of each
other writer of it until that leaves, so that who reads it knows whom it would know after reading all. Of who writes
through a carrier (EFFECT_CARRIED) nothing is kept but his samples.

Where one counts: a key is its last writer's, unless that has left or yielded it, or somebody else has ended it; while
it is anybody's, only he and who has a higher rank has something to say of it (of equal ranks: whose number is smaller).
What others say is passed over, as their readers do: else it would take the place of what counts, and who comes late
would begin with that. Only that they are there is kept, one message of each, until they leave: a key has not ended
while somebody is there who may write it. Such a message is given with a tag that says so.

Rules: whose a key is follows from what is kept of it. What others have said pushes out nobody's samples, and goes
before the samples of its key do. Where one counts, nobody speaks for others (EFFECT_CARRIED), and a writer that ends a
key of which it has written nothing that counts doesn't get it: nobody has it then.
"""
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from spindle_core.lasts cimport (
    EFFECT_CARRIED,
    EFFECT_ENDS,
    NAMED,
    RANK_COUNTS,
    RANK_COUNTS_RANKED,
    RANK_PLACE_MAX,
    RANK_PRESENT,
    RANK_PRESENT_RANKED,
    author_t,
    instance_t,
    last_t,
    lasts_t,
)
from spindle_core.layout cimport LOG_LARGE, large_entry, log_record


cdef void lasts_rank(lasts_t *l, const uint8_t *ranks) noexcept nogil:
    """Of each key only one writer counts: `ranks` by tag, see RANK_... Of an empty table."""
    cdef int tag
    memcpy(l.ranks, ranks, 256)
    l.ranked = True
    for tag in range(256):
        l.shared = l.shared or ranks[tag] == RANK_COUNTS or ranks[tag] == RANK_COUNTS_RANKED
        if ranks[tag] == RANK_PRESENT:
            l.present_tags[0] = <uint8_t>tag
        elif ranks[tag] == RANK_PRESENT_RANKED:
            l.present_tags[1] = <uint8_t>tag


cdef int32_t rank_of(lasts_t *l, const log_record *r) noexcept nogil:
    """Of the writer of a message, as that says it."""
    cdef uint64_t place = l.ranks[r.tag]
    cdef const char *payload = <const char *>r + sizeof(log_record)
    cdef int32_t rank = 0
    if place == 0 or place > RANK_PLACE_MAX or r.size < place:
        return 0
    if r.kind == LOG_LARGE and r.size == sizeof(large_entry):
        memcpy(&rank, (<const large_entry *>payload).last + RANK_PLACE_MAX - place, sizeof(rank))
    else:
        memcpy(&rank, payload + r.size - place, sizeof(rank))
    return rank


cdef inline uint64_t identity_of_last(const last_t *x) noexcept nogil:
    return identity_of(x.sender, x.relay, x.writer_id)


cdef uint32_t holding(lasts_t *l, uint32_t at) noexcept nogil:
    """The message that says last whose a key is, and how strong he is; 0: it is nobody's."""
    cdef const instance_t *i = &l.instances[at]
    cdef const last_t *newest = &l.lasts[i.newest]
    if l.shared or at == 0 or i.over or i.kind != NAMED or i.newest == 0 or newest.left or newest.yields:
        return 0
    return i.ended if i.ended else i.newest


cdef bint may_say(lasts_t *l, uint32_t at, uint64_t identity, int32_t rank) noexcept nogil:
    """Whether it counts what this writer says of a key."""
    cdef uint32_t says = holding(l, at)
    cdef uint64_t holder
    if says == 0:
        return True
    holder = identity_of_last(&l.lasts[says])
    return holder == identity or rank > l.lasts[says].rank or (rank == l.lasts[says].rank and identity < holder)


cdef bint ends_by_leaving(lasts_t *l, uint32_t at, uint64_t identity) noexcept nogil:
    """Whether a writer that ends all of its keys ends this one: it hasn't ended yet, and isn't another's."""
    cdef uint32_t says = holding(l, at)
    return l.instances[at].ended == 0 and (says == 0 or identity_of_last(&l.lasts[says]) == identity)


cdef inline bint ends_all_of_writer(lasts_t *l, uint32_t end) noexcept nogil:
    """It is what a writer, or its node, says of all of the writer's keys, and ends them."""
    cdef uint8_t does = l.effects[l.lasts[end].tag]
    return does & EFFECT_ENDS and is_about_all(does)


cdef inline uint32_t earlier_end(lasts_t *l, uint32_t at, uint32_t behind, uint32_t found) noexcept nogil:
    """Of the end with which a message's writer has left, if that is such a one behind `behind`, and `found`: the
    earlier."""
    cdef uint32_t end = l.lasts[at].left
    if end == 0 or end == found or not ends_all_of_writer(l, end) or not stands_before(l, behind, end):
        return found
    return end if found == 0 or stands_before(l, end, found) else found


cdef void look_ended(lasts_t *l, uint32_t at) noexcept nogil:
    """Something of the key has gone. What a writer says of all of its keys ends those of which something of it is kept:
    of others who reads the table can't know. So the key goes on, for us too, unless another one has said the same."""
    cdef uint32_t end = l.instances[at].ended, y = l.instances[at].oldest, found = 0
    if not ends_all_of_writer(l, end):
        return
    while y:
        if l.lasts[y].left == end:
            return
        found = earlier_end(l, y, end, found)
        y = l.lasts[y].newer
    y = l.instances[at].others
    while y:
        if l.lasts[y].left == end:
            return
        y = l.lasts[y].older
    if found == 0:
        remove_over(l, at)
    else:
        hold_end(l, found)
    clear_ended(l, at)
    l.instances[at].ended = found


cdef uint32_t find_present(lasts_t *l, uint32_t at, uint64_t identity) noexcept nogil:
    """What is kept of a writer that has no say in a key; 0: nothing."""
    cdef uint32_t y = l.instances[at].others
    while y and identity_of_last(&l.lasts[y]) != identity:
        y = l.lasts[y].older
    return y


cdef void drop_present(lasts_t *l, uint32_t at) noexcept nogil:
    cdef last_t *x = &l.lasts[at]
    cdef instance_t *i = &l.instances[x.instance]
    if x.newer:
        l.lasts[x.newer].older = x.older
    else:
        i.others = x.older
    if x.older:
        l.lasts[x.older].newer = x.newer
    i.unleft -= x.left == 0
    unlink_of_writer(l, at)
    if x.left and x.left == i.ended:
        look_ended(l, x.instance)
    release_end(l, x.left)
    drop_message(l, at)


cdef void let_present_go(lasts_t *l, uint32_t at, uint32_t end) noexcept nogil:
    """Its writer has left all of its keys. It stays while the key has ended by that: else nobody could know."""
    cdef last_t *x = &l.lasts[at]
    if x.left:
        return
    if l.instances[x.instance].ended != end:
        drop_present(l, at)
        return
    x.left = end
    hold_end(l, end)
    l.instances[x.instance].unleft -= 1


cdef void let_presents_go(lasts_t *l, uint32_t writer, uint32_t end) noexcept nogil:
    """All of that writer. Whether keys are over by it, the caller looks."""
    cdef uint32_t y = l.authors[writer].first, following
    while y:
        following = l.lasts[y].of_writer_after
        if l.lasts[y].present:
            let_present_go(l, y, end)
        y = following


cdef void link_present(lasts_t *l, uint32_t at, uint32_t place) noexcept nogil:
    """One of the others of the key `at`, of which the last to come is the first; with the tag that says so."""
    cdef last_t *x = &l.lasts[place]
    cdef uint8_t says = l.ranks[x.tag]
    cdef uint32_t newer = 0, older = l.instances[at].others
    while older and stands_before(l, place, older):
        newer = older
        older = l.lasts[older].older
    x.present = True
    if says != RANK_PRESENT and says != RANK_PRESENT_RANKED:
        x.tag = l.present_tags[1 if says and says != RANK_COUNTS else 0]
    x.instance = at
    x.newer = newer
    x.older = older
    if older:
        l.lasts[older].newer = place
    if newer:
        l.lasts[newer].older = place
    else:
        l.instances[at].others = place


cdef void keep_present(lasts_t *l, uint32_t at, const log_record *r) noexcept nogil:
    """What this writer says of the key doesn't count, but it is there. If there is no room, it goes unsaid."""
    cdef uint64_t identity = identity_of(r.sender, r.relay, r.writer_id)
    cdef uint32_t place = find_present(l, at, identity), writer
    if place:
        drop_present(l, place)
    if l.bytes + last_cost(r) > l.bytes_max:
        look_over(l, at, r.source_ns)
        return
    place = keep_message(l, r)
    writer = author_of(l, identity)
    clear_word(l, writer)
    l.lasts[place].writer = writer
    link_present(l, at, place)
    l.instances[at].unleft += 1
    link_of_writer(l, place)


cdef bint stays_present(lasts_t *l, uint32_t at, uint64_t follows) noexcept nogil:
    """Whether a sample that has had its time is the last that says that its writer is there; `follows`: whose sample
    takes its place."""
    cdef const last_t *x = &l.lasts[at]
    cdef uint64_t identity = identity_of_last(x)
    cdef uint32_t y = x.newer
    if x.left or x.loose or identity == follows or l.effects[x.tag] & EFFECT_CARRIED:
        return False
    if find_present(l, x.instance, identity):
        return False
    while y and l.lasts[y].writer != x.writer:
        if l.lasts[y].loose:
            return False         # it may say that the writer has left
        y = l.lasts[y].newer
    return y == 0


cdef void turn_into_present(lasts_t *l, uint32_t at) noexcept nogil:
    cdef last_t *x = &l.lasts[at]
    unlink_sample(l, at)
    release_end(l, x.yields)
    x.yields = 0
    link_present(l, x.instance, at)


cdef void note_present(lasts_t *l, const log_record *r) noexcept nogil:
    """Somebody's table has said so, or a program. In another table that may come before what counts of the key."""
    cdef uint32_t at = find_instance(l, r.key)
    if at == 0 and l.restoring:
        at = make_instance(l, r.key, NAMED)
    if at and l.instances[at].kind == NAMED and not l.instances[at].over:
        keep_present(l, at, r)


cdef void take_key(lasts_t *l, uint32_t at, uint32_t end) noexcept nogil:
    """Somebody ends the key, and may: whose it was, if it was another's, has it no more."""
    cdef uint32_t says = holding(l, at)
    if says and identity_of_last(&l.lasts[says]) != identity_of_last(&l.lasts[end]):
        l.lasts[l.instances[at].newest].yields = end
        hold_end(l, end)


cdef void end_of_turn(lasts_t *l, const log_record *r) noexcept nogil:
    """A writer yields the key, if it has it."""
    cdef uint32_t at = find_instance(l, r.key), says = holding(l, at), end
    if says == 0 or identity_of_last(&l.lasts[says]) != identity_of(r.sender, r.relay, r.writer_id):
        keep_loose(l, r)
        return
    if not make_room_for_end(l, r, at):
        at = find_instance(l, r.key)
        if at:
            give_up_instance(l, at)
        return
    end = keep_end(l, r)
    l.lasts[l.instances[at].newest].yields = end
    hold_end(l, end)
    release_end(l, end)
