"""What pools tell each other: messages of links, and their answers (links.pxd).

An answer says how many messages of a note were taken. It is owed until the connection has room for it, and until then
nothing more is taken of that connection: so no answer is lost, and one is kept for each connection, not for each link.

Rules: what a note says is checked; a pool that sends nonsense is cut, with all links to it. An answer that belongs to
no note is one of a link that has gone, and passed over.
"""
from libc.stdint cimport uint32_t, uint64_t
from libc.string cimport memcpy, memset

from spindle_core.fabric.regions.boxes cimport HEAD_SIZE, boxed
from spindle_core.fabric.regions.flights cimport end_peer
from spindle_core.fabric.regions.regions cimport PEER_NONSENSE, REQUEST_CUT, REQUEST_DONE, peer_t
from spindle_core.links.links cimport (
    ERRAND_FETCH,
    ERRANDS_MAX,
    LINK_FREE,
    LINK_INLINE_MAX,
    LINK_MOVING,
    LINK_NOBODY,
    LINK_OPEN,
    NOTE_ANSWER,
    NOTE_LONG,
    NOTE_SEND,
    NOTE_SIZE_MAX,
    PORTS_MAX,
    RETRY_FIRST_NS,
    RETRY_LAST_NS,
    RETRY_SOON,
    errand_t,
    link_of,
    link_t,
    long_t,
    note_t,
    pool_t,
)
from spindle_core.links.serving cimport answered, put_in_box

cdef enum:
    NOTES_AT_ONCE = 64           # of one connection, before others get their turn


cdef bint pay(pool_t *s, uint32_t peer) noexcept nogil:
    """Sends the answer that is owed, if any; False where there is still no room."""
    cdef peer_t *p = &s.regions.peers[peer]
    if s.owed[peer].kind == 0:
        return True
    if p.part.send(p.part.self, peer, <char *>&s.owed[peer], sizeof(note_t)) < 0:
        return False
    s.owed[peer].kind = 0
    return True


cdef void owe(pool_t *s, uint32_t peer, const note_t *note, uint64_t count, uint32_t status) noexcept nogil:
    cdef note_t *answer = &s.owed[peer]
    memset(answer, 0, sizeof(note_t))
    answer.kind = NOTE_ANSWER
    answer.status = status
    answer.to = note.source
    answer.number = note.number
    answer.count = count
    pay(s, peer)


cdef inline link_t *receiver(pool_t *s, const note_t *note) noexcept nogil:
    """Whom a note is for; NULL: nobody. Who is bound to a port is reached by that alone: rules of access name it."""
    cdef link_t *link = s.ports[note.port] if note.port else link_of(s, note.to)
    if link != NULL and link.port != note.port:
        return NULL
    return link if link != NULL and (link.state == LINK_OPEN or link.state == LINK_MOVING) else NULL


cdef bint take_messages(pool_t *s, uint32_t peer, const note_t *note, const char *data, uint64_t length) noexcept nogil:
    """False if it makes no sense."""
    cdef link_t *link
    cdef uint64_t at = 0, head, count = 0
    cdef bint full = False
    if note.port > PORTS_MAX:
        return False
    link = receiver(s, note)
    while at < length:
        if length - at < HEAD_SIZE:
            return False
        memcpy(&head, data + at, HEAD_SIZE)
        if head > LINK_INLINE_MAX or boxed(<uint32_t>head) > length - at:
            return False
        if link != NULL and not full:
            if put_in_box(link, note.source, s.node_of[peer], data + at + HEAD_SIZE, <uint32_t>head):
                count += 1
            else:
                full = True
        at += boxed(<uint32_t>head)
    owe(s, peer, note, count, REQUEST_DONE if link != NULL else LINK_NOBODY)
    return True


cdef bint take_long(pool_t *s, uint32_t peer, const note_t *note, const char *data, uint64_t length) noexcept nogil:
    cdef errand_t *e
    cdef link_t *link
    if length != sizeof(long_t) or note.port > PORTS_MAX:
        return False
    link = receiver(s, note)
    if link == NULL:
        owe(s, peer, note, 0, LINK_NOBODY)
        return True
    if s.errands_head - s.errands_tail >= ERRANDS_MAX or link.posted_head == link.posted_tail:
        owe(s, peer, note, 0, REQUEST_DONE)        # no room: it comes again
        return True
    e = &s.errands[s.errands_head & (ERRANDS_MAX - 1)]
    e.kind = ERRAND_FETCH
    e.peer = peer
    e.link = link.id
    e.note = note[0]
    memcpy(&e.where, data, sizeof(long_t))
    s.errands_head += 1
    return True


cdef bint take_answer(pool_t *s, uint32_t peer, const note_t *note) noexcept nogil:
    cdef link_t *link = link_of(s, note.to)
    if link == NULL or link.state == LINK_FREE or link.peer != peer or not link.noted or (
            note.number != link.note_number):
        return True
    if note.count > link.note_count or (note.status != REQUEST_DONE and note.status != LINK_NOBODY):
        return False
    answered(link, note.count, note.status)
    link.backoff_ns = 0 if note.count or note.status != REQUEST_DONE else (
        RETRY_FIRST_NS if link.backoff_ns == 0 else link.backoff_ns * 2)
    if link.backoff_ns > RETRY_LAST_NS:
        link.backoff_ns = RETRY_LAST_NS
    link.retry_ns = 0 if link.backoff_ns == 0 else RETRY_SOON
    return True


cdef void lose(link_t *link) noexcept nogil:
    """The connection has ended with a note on the way: its messages may have been taken, or not."""
    if link.noted:
        answered(link, 0, REQUEST_CUT)


cdef int take_notes(pool_t *s) noexcept nogil:
    """Takes what other pools have sent; returns how many notes that were."""
    cdef uint32_t peer, _k
    cdef int length, total = 0
    cdef peer_t *p
    cdef note_t note
    cdef bint good
    for peer in range(256):
        p = &s.regions.peers[peer]
        if s.node_of[peer] == 0:
            continue
        for _k in range(<uint32_t>NOTES_AT_ONCE):
            if p.cut or p.part == NULL or not pay(s, peer):
                break
            length = p.part.waiting(p.part.self, peer)
            if length < 0:
                break
            if length < <int>sizeof(note_t) or length > NOTE_SIZE_MAX:
                end_peer(s.regions, peer, PEER_NONSENSE)
                break
            p.part.receive(p.part.self, peer, s.heard, <uint32_t>length)
            memcpy(&note, s.heard, sizeof(note_t))
            total += 1
            good = False
            if note.kind == NOTE_SEND:
                good = take_messages(s, peer, &note, s.heard + sizeof(note_t), length - sizeof(note_t))
            elif note.kind == NOTE_LONG:
                good = take_long(s, peer, &note, s.heard + sizeof(note_t), length - sizeof(note_t))
            elif note.kind == NOTE_ANSWER and length == sizeof(note_t):
                good = take_answer(s, peer, &note)
            if not good:
                end_peer(s.regions, peer, PEER_NONSENSE)
                break
    return total
