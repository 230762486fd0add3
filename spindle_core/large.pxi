"""Large samples: which of them this node has, who still names them, and which ones a predicate waits for.

A sample that is larger than its topic's slots goes as an entry in the order (layout.h, large_entry), and its bytes lie
beside, in sealed memory that every process of a host maps. To the order it is one message like any other: a member
acknowledges it once it has the entry and the bytes, so what is stable is whole at every member, whoever dies.

The control thread brings the bytes (larges_add). A predicate that meets an entry without them says so (larges_want) and
goes on with everything else. A log holds the bytes of the last samples that it delivered, as far as its bounds allow;
when no log, table of keys or backlog names a sample any more, the control thread is told to give its memory back.

Rules: bytes that are named are there. Nothing is allocated. A place of the table is found by linear probing, and what
follows a place that comes free moves up, so that no search meets a hole before its end.
"""
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.atomics cimport cpu_relax, u32_exchange_acquire, u32_load_relaxed, u32_store_release
from spindle_core.events cimport give_way
from spindle_core.large cimport (
    LARGE_PLACES,
    LARGE_WANTS_MAX,
    LARGES_MAX,
    LARGES_OF_LOG,
    large_t,
    large_want_t,
    larges_t,
    log_large_t,
)
from spindle_core.layout cimport large_entry


cdef void lock_larges(larges_t *l) noexcept nogil:
    cdef int spins = 0, times = 0
    # SYNC POINT: larges. Pairs with unlock_larges().
    while u32_exchange_acquire(&l.lock, 1):
        while u32_load_relaxed(&l.lock):
            spins += 1
            if spins % SPINS_BEFORE_YIELD == 0:
                give_way(&times)
            else:
                cpu_relax()


cdef void unlock_larges(larges_t *l) noexcept nogil:
    u32_store_release(&l.lock, 0)


cdef inline uint32_t home_of(uint64_t id) noexcept nogil:
    return <uint32_t>((id * <uint64_t>0x9E3779B97F4A7C15) >> 32) & (LARGE_PLACES - 1)


cdef large_t *find_large(larges_t *l, uint64_t id) noexcept nogil:
    """NULL: this node doesn't have it. Under the lock."""
    cdef uint32_t at = home_of(id)
    if id == 0:
        return NULL
    while l.places[at].id:
        if l.places[at].id == id:
            return &l.places[at]
        at = (at + 1) & (LARGE_PLACES - 1)
    return NULL


cdef void remove_large(larges_t *l, large_t *gone) noexcept nogil:
    """Under the lock."""
    cdef uint32_t hole = <uint32_t>(gone - l.places), at = hole, home
    l.count -= 1
    while True:
        at = (at + 1) & (LARGE_PLACES - 1)
        if l.places[at].id == 0:
            break
        home = home_of(l.places[at].id)
        # It may move into the hole unless its search begins behind that.
        if (at - home) & (LARGE_PLACES - 1) >= (at - hole) & (LARGE_PLACES - 1):
            l.places[hole] = l.places[at]
            hole = at
    l.places[hole].id = 0


cdef inline void look_released(larges_t *l, large_t *x) noexcept nogil:
    """Under the lock: nobody names it, and it comes no more."""
    if x.uses == 0 and x.delivered:
        l.released[l.n_released] = x.id      # as many as the table has places for
        l.n_released += 1
        remove_large(l, x)


cdef bint larges_add(larges_t *l, uint64_t id) noexcept nogil:
    """This node has the bytes from now on; False where LARGES_MAX are there. Nothing happens if they were there."""
    cdef uint32_t at = home_of(id)
    cdef bint room
    lock_larges(l)
    room = find_large(l, id) != NULL
    # What was released and not taken yet counts too: the list has no more places.
    if not room and id and l.count + l.n_released < LARGES_MAX:
        while l.places[at].id:
            at = (at + 1) & (LARGE_PLACES - 1)
        l.places[at].id = id
        l.places[at].uses = l.places[at].delivered = 0
        l.count += 1
        room = True
    if room:
        larges_forget_want(l, id)
    unlock_larges(l)
    return room


cdef bint larges_drop(larges_t *l, uint64_t id) noexcept nogil:
    """The control thread gives up one that has not come in the order; False if somebody names it."""
    cdef large_t *x
    cdef bint unused
    lock_larges(l)
    x = find_large(l, id)
    unused = x == NULL or x.uses == 0
    if x != NULL and unused:
        remove_large(l, x)
    unlock_larges(l)
    return unused


cdef bint larges_have(larges_t *l, uint64_t id) noexcept nogil:
    cdef bint here
    lock_larges(l)
    here = find_large(l, id) != NULL
    unlock_larges(l)
    return here


cdef bint larges_use(larges_t *l, uint64_t id) noexcept nogil:
    """Somebody names it from now on, behind its place in the order; False if this node doesn't have it."""
    cdef large_t *x
    lock_larges(l)
    x = find_large(l, id)
    if x != NULL:
        x.uses += 1
        x.delivered = 1
    unlock_larges(l)
    return x != NULL


cdef void larges_unuse(larges_t *l, uint64_t id) noexcept nogil:
    cdef large_t *x
    lock_larges(l)
    x = find_large(l, id)
    if x != NULL and x.uses:
        x.uses -= 1
        look_released(l, x)
    unlock_larges(l)


cdef void larges_pass(larges_t *l, uint64_t id) noexcept nogil:
    """It has come in the order where nobody reads."""
    cdef large_t *x
    lock_larges(l)
    x = find_large(l, id)
    if x != NULL:
        x.delivered = 1
        look_released(l, x)
    unlock_larges(l)


cdef bint larges_want(larges_t *l, const large_want_t *want) noexcept nogil:
    """Notes one that is missing; True if that is news for the control thread. It stays noted until it comes, or the
    control thread forgets it. What finds no place is noted with a later look."""
    cdef uint32_t i
    cdef bint is_new = True
    lock_larges(l)
    for i in range(l.n_wants):
        if l.wants[i].id == want.id and l.wants[i].topic_id == want.topic_id:
            is_new = False
    is_new = is_new and l.n_wants < LARGE_WANTS_MAX
    if is_new:
        l.wants[l.n_wants] = want[0]
        l.n_wants += 1
    unlock_larges(l)
    return is_new


cdef void larges_forget_want(larges_t *l, uint64_t id) noexcept nogil:
    """Of this sample, whoever waits for it. Under the lock."""
    cdef uint32_t i = 0
    while i < l.n_wants:
        if l.wants[i].id == id:
            l.n_wants -= 1
            l.wants[i] = l.wants[l.n_wants]
        else:
            i += 1


# --- what a log has of them

cdef inline log_large_t *log_large_at(log_t *log, uint64_t n) noexcept nogil:
    return &log.large[n % LARGES_OF_LOG]


cdef void log_pop_large(log_t *log) noexcept nogil:
    """The log has no use for the bytes of its oldest large sample any more. There is one."""
    cdef log_large_t *first = log_large_at(log, log.large_oldest)
    log.large_bytes -= first.size
    log.large_oldest += 1
    if log.larges != NULL:
        larges_unuse(log.larges, first.id)


cdef void log_pop_larges_before(log_t *log, uint64_t position) noexcept nogil:
    while log.large_oldest < log.large_newest and log_large_at(log, log.large_oldest).position < position:
        log_pop_large(log)


cdef bint log_large_room(log_t *log, uint64_t size) noexcept nogil:
    """Room for the bytes of a large sample: the oldest ones go; False if a keep-all reader needs one of those.

    One that is larger than all the room there is has it alone.
    """
    while log.large_oldest < log.large_newest and (
            log.large_newest - log.large_oldest == LARGES_OF_LOG or log.large_bytes + size > log.large_max):
        log_refresh_cursors(log)
        if log_large_at(log, log.large_oldest).position >= held_position(log):
            return False
        log_pop_large(log)
    return True


cdef void log_push_large(log_t *log, const large_entry *entry) noexcept nogil:
    """Of the record that is appended next; log_large_room() has said that there is room, and somebody that the bytes
    are there."""
    cdef log_large_t *x = log_large_at(log, log.large_newest)
    x.position = log.tail
    x.id = entry.id
    x.size = entry.size
    log.large_newest += 1
    log.large_bytes += entry.size
    if log.larges != NULL:
        larges_use(log.larges, entry.id)


cdef void log_sweep_larges(log_t *log) noexcept nogil:
    """Gives up the bytes of samples that every present reader has taken, of a log that keeps them for no others."""
    cdef uint64_t least = log.header.tail
    cdef uint32_t i
    if log.keeps_history or log.large_oldest == log.large_newest:
        return
    log_refresh_cursors(log)
    for i in range(log.n_cursors):
        if log.cursors[i].position < least:
            least = log.cursors[i].position
    log_pop_larges_before(log, least)
