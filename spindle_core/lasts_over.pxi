"""Keys that are over, and the limits of the table of last values: which key or sample goes, and when.

A key is over when it has ended and everybody of whom samples are kept has left it. It is kept for `cleanup_ns` more:
not by anybody's clock, but by what the order says of time. The delay begins with the first word "it is now" behind the
end, so a word is wanted then, and once more when the delay is over. The end's own timestamp counts instead if it is
later than that word, which may have been on its way for long, unless it is so much later that somebody lies.

When there are too many samples or keys, what is over goes first, the key that is so longest; then of keys the one whose
last sample lies furthest back, of samples the oldest. What goes for that reason is counted, and isn't lost: whoever has
set the limit wants it so. What finds no room in memory is lost: it goes in the same order, keys where there is a depth,
else samples.

Rules: everything follows from the order, and from what table_over() and table_figures() of delivery.pyx say, which a
fresh member is given. The work for a message is bounded by what it drops, each of which was a message.
"""
from libc.stdint cimport int64_t, uint32_t, uint64_t

from spindle_core.atomics cimport u64_store_relaxed
from spindle_core.lasts cimport ALONE, KINDS, NAMED, instance_t, last_t, lasts_t, line_t
from spindle_core.timing cimport is_far_ahead

cdef uint64_t CLEANUP_NEVER = <uint64_t>1 << 62


# --- keys that are over

cdef inline bint is_over(lasts_t *l, uint32_t at) noexcept nogil:
    """The key has ended, and everybody of whom samples are kept has left it."""
    cdef instance_t *i = &l.instances[at]
    return i.unleft == 0 and i.ended != 0 and not l.restoring


cdef void look_over(lasts_t *l, uint32_t at, uint64_t said_ns) noexcept nogil:
    """Something has happened to a key, which may be over by it. `said_ns`: the timestamp of the message that did it."""
    if l.instances[at].over or not is_over(l, at):
        return
    if l.cleanup_ns:
        append_over(l, at, said_ns)
    else:
        forget_instance(l, at)


cdef void append_over(lasts_t *l, uint32_t at, uint64_t said_ns) noexcept nogil:
    """It waits for a word."""
    cdef instance_t *i = &l.instances[at]
    cdef line_t *line = &l.over[i.kind]
    i.over = True
    i.over_ns = said_ns
    i.over_before = line.last
    i.over_after = 0
    if line.last:
        l.instances[line.last].over_after = at
    else:
        line.first = at
    line.last = at
    line.count += 1
    if l.waiting[i.kind] == 0:
        l.waiting[i.kind] = at


cdef void remove_over(lasts_t *l, uint32_t at) noexcept nogil:
    """It isn't over any more, or goes."""
    cdef instance_t *i = &l.instances[at]
    cdef line_t *line = &l.over[i.kind]
    if not i.over:
        return
    i.over = False
    if i.over_before:
        l.instances[i.over_before].over_after = i.over_after
    else:
        line.first = i.over_after
    if i.over_after:
        l.instances[i.over_after].over_before = i.over_before
    else:
        line.last = i.over_before
    line.count -= 1
    if l.waiting[i.kind] == at:
        l.waiting[i.kind] = i.over_after


cdef void begin_delay(lasts_t *l, uint32_t at, uint64_t now_ns) noexcept nogil:
    """A word has come behind its end."""
    cdef instance_t *i = &l.instances[at]
    if i.over_ns < now_ns or is_far_ahead(i.over_ns, now_ns):    # that isn't believed
        i.over_ns = now_ns
    if i.over_before and l.instances[i.over_before].over_ns > i.over_ns:
        i.over_ns = l.instances[i.over_before].over_ns


cdef void take_time_back(lasts_t *l, uint64_t now_ns) noexcept nogil:
    """What was said was far too late: delays that began with it begin now."""
    cdef uint32_t at
    cdef int kind
    l.said_ns = now_ns
    for kind in range(KINDS):
        at = l.over[kind].first
        while at and at != l.waiting[kind]:
            if l.instances[at].over_ns > now_ns:
                l.instances[at].over_ns = now_ns
            at = l.instances[at].over_after


cdef void tell_time(lasts_t *l, uint64_t now_ns) noexcept nogil:
    """The order says that it is now. For keys that are over since long enough it is the end."""
    cdef uint32_t at
    cdef int kind
    if <int64_t>now_ns < 0 or l.cleanup_ns >= CLEANUP_NEVER:
        return
    if now_ns > l.said_ns:
        l.said_ns = now_ns
    elif is_far_ahead(l.said_ns, now_ns):
        take_time_back(l, now_ns)
    for kind in range(KINDS):
        at = l.waiting[kind]
        while at:
            begin_delay(l, at, l.said_ns)
            at = l.instances[at].over_after
        l.waiting[kind] = 0
        at = l.over[kind].first
        while at and l.instances[at].over_ns + l.cleanup_ns <= l.said_ns:
            forget_instance(l, at)
            at = l.over[kind].first


cdef void look_due(lasts_t *l) noexcept nogil:
    """Says when the next word is wanted."""
    cdef uint64_t due = 0, one
    cdef bint waits = False
    cdef uint32_t at
    cdef int kind
    if l.cleanup_ns == 0 or l.cleanup_ns >= CLEANUP_NEVER:
        return
    for kind in range(KINDS):
        at = l.over[kind].first
        waits = waits or l.waiting[kind] != 0
        if at and at != l.waiting[kind]:
            one = rounded_up(l.instances[at].over_ns + l.cleanup_ns, l.cleanup_ns)
            if due == 0 or one < due:
                due = one
    if waits != (l.wait != 0):
        l.waits += waits
        l.sooner = l.sooner or waits
        # Relaxed: whoever looks too early looks again when it is told.
        u64_store_relaxed(&l.wait, l.waits if waits else 0)
    if due != l.due_ns:
        l.sooner = l.sooner or (due != 0 and (l.due_ns == 0 or due < l.due_ns))
        u64_store_relaxed(&l.due_ns, due)


# --- what goes first

cdef inline uint32_t first_but(lasts_t *l, const line_t *line, uint32_t spared, bint by_end) noexcept nogil:
    """The first of a line that isn't `spared`; 0: none."""
    if line.first != spared:
        return line.first
    if spared == 0:
        return 0
    return l.instances[spared].over_after if by_end else l.instances[spared].after


cdef inline uint32_t over_longest(lasts_t *l, uint32_t spared) noexcept nogil:
    """Of keys that are over the first to go; 0: none is."""
    cdef uint32_t at = first_but(l, &l.over[NAMED], spared, True)
    return at if at else first_but(l, &l.over[ALONE], spared, True)


cdef inline bint was_before(lasts_t *l, uint32_t one, uint32_t other) noexcept nogil:
    """The last sample of the one key came before that of the other."""
    return stands_before(l, l.instances[one].newest, l.instances[other].newest)


cdef uint32_t first_to_go(lasts_t *l, uint32_t spared) noexcept nogil:
    """The key that goes for want of memory, but for `spared`; 0: there is no other, or samples go."""
    cdef uint32_t at = over_longest(l, spared), other
    if at or l.depth == 0:
        return at
    at = first_but(l, &l.idle[NAMED], spared, False)
    other = first_but(l, &l.idle[ALONE], spared, False)
    if at == 0 or (other and was_before(l, other, at)):
        return other
    return at


cdef bint give_up_oldest(lasts_t *l, uint32_t spared, uint64_t said_ns) noexcept nogil:
    """The oldest sample of all, for want of memory. False if there is none, or it is the only one of `spared`."""
    # The first of all that is kept is a sample: an end comes behind those that it is about.
    cdef uint32_t at = l.lasts[l.first].instance if l.first else 0
    if at and l.lasts[l.first].present:
        drop_present(l, l.first)
        if at != spared:
            look_over(l, at, said_ns)
        return True
    if at == 0 or (at == spared and l.instances[at].count == 1):
        return False
    if l.instances[at].count == 1:
        give_up_instance(l, at)
        return True
    l.given_up += 1
    drop_sample(l, l.first)
    if at != spared:
        look_over(l, at, said_ns)
    return True


cdef void drop_limited(lasts_t *l, uint32_t at) noexcept nogil:
    l.limited += l.instances[at].count
    forget_instance(l, at)


cdef void limit_keys(lasts_t *l, uint32_t spared) noexcept nogil:
    """Drops keys until there are no more than may be."""
    cdef uint32_t at
    while l.keys_max and l.idle[NAMED].count > l.keys_max and not l.restoring:
        at = first_but(l, &l.over[NAMED], spared, True)
        drop_limited(l, at if at else first_but(l, &l.idle[NAMED], spared, False))


cdef void limit_samples(lasts_t *l, uint32_t spared, uint64_t said_ns) noexcept nogil:
    """Drops samples until there may be one more, which is of the key `spared`."""
    cdef uint32_t at
    while l.samples_max and l.samples >= l.samples_max and not l.restoring:
        at = over_longest(l, spared)
        if at:
            drop_limited(l, at)
            continue
        at = l.lasts[l.first].instance
        if l.lasts[l.first].present:
            drop_present(l, l.first)
            if at != spared:
                look_over(l, at, said_ns)
            continue
        if at != spared and l.instances[at].count == 1:
            drop_limited(l, at)
            continue
        l.limited += 1
        drop_sample(l, l.first)
        if at != spared:
            look_over(l, at, said_ns)


# --- a table from another's

cdef void lasts_restore_over(lasts_t *l, uint64_t key, uint64_t ns, bint waits) noexcept nogil:
    """A key that is over at the other member: the next one in their order. What isn't so is left out."""
    cdef uint32_t at = find_instance(l, key), kind
    if at == 0 or l.instances[at].over or not is_over(l, at) or l.cleanup_ns == 0:
        return
    kind = l.instances[at].kind
    waits = waits or l.waiting[kind] != 0
    append_over(l, at, ns)
    if not waits:
        l.waiting[kind] = 0
        begin_delay(l, at, ns)


cdef void lasts_restored(lasts_t *l) noexcept nogil:
    """All that is over at the other member has been said."""
    cdef uint32_t at, following
    cdef int kind
    for kind in range(KINDS):
        at = l.idle[kind].first
        while at:
            following = l.instances[at].after
            if l.instances[at].count:
                look_over(l, at, 0)
            else:
                forget_instance(l, at)     # no member has such a key
            at = following
    look_due(l)
