"""Regions of simulated nodes: what was posted lands when the world says so, and completes when it says so.

`SimWorld` has a queue for each direction between two nodes. The world lands it line by line of 64 bytes, so a read or a
write can be seen half done by whoever changes or reads the same memory in between. What has landed waits to be
answered: a connection that ends in between loses the completion of what did happen. A node that cuts, or dies, leaves
what it had posted: that may land later, as on a network.

There is no clock and no randomness in here. Rules: as in regions.pxd; in one direction all lands and is answered in
order.
"""
cimport cython
from libc.errno cimport EAGAIN
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memcpy, memset

from spindle_core.fabric.regions.boxes cimport boxed
from spindle_core.fabric.regions.flights cimport allowed, done, end_peer
from spindle_core.fabric.regions.regions cimport (
    ATOMIC_WITH_OWNER,
    MESSAGES_WAITING_MAX,
    REQUEST_ADD,
    REQUEST_AFTER,
    REQUEST_DONE,
    REQUEST_INLINE_MAX,
    REQUEST_READ,
    REQUEST_SIGNALLED,
    REQUEST_WRITE,
    Regions,
    flight_of,
    flight_t,
    peer_t,
)
from spindle_core.fabric.words cimport copy_words

cdef enum:
    FAILED_BROKEN = 1
    LINE = 64                    # bytes

KIND_NAMES = ("", "read", "write", "swap", "add", "message")


# ---- queues --------------------------------------------------------------------------------------------------------

cdef inline char *bytes_of(op_t *op) noexcept nogil:
    return <char *>op + sizeof(op_t)


cdef op_t *new_op(uint32_t kind, uint64_t room) noexcept nogil:
    cdef op_t *op = <op_t *>malloc(sizeof(op_t) + room)
    if op != NULL:
        memset(op, 0, sizeof(op_t))
        op.kind = kind
    return op


cdef inline uint64_t lines_of(const op_t *op) noexcept nogil:
    """Lines that are still to land."""
    if op.kind != REQUEST_READ and op.kind != REQUEST_WRITE:
        return 1
    return (op.offset + op.length + LINE - 1) // LINE - (op.offset + op.landed) // LINE


cdef inline void append(op_t **first, op_t **last, op_t *op) noexcept nogil:
    op.next = NULL
    if first[0] == NULL:
        first[0] = op
    else:
        last[0].next = op
    last[0] = op


cdef void drop(op_t **first) noexcept nogil:
    cdef op_t *op
    while first[0] != NULL:
        op = first[0]
        first[0] = op.next
        free(op)


cdef void leave(direction_t *d) noexcept nogil:
    """The source goes: what is to be read of its memory is read now, and nobody takes answers any more."""
    cdef op_t *op = d.first
    d.source = NULL
    drop(&d.answers)
    d.n_answers = 0
    while op != NULL:
        if op.kind == REQUEST_WRITE and op.local != NULL:
            memcpy(bytes_of(op) + op.landed, op.local + op.landed, op.length - op.landed)
            op.local = NULL
        op = op.next


cdef void vanish(direction_t *d) noexcept nogil:
    """The source goes with its memory, which may not be there any more: what was to be read of it never lands."""
    cdef op_t **at = &d.first
    cdef op_t *op
    d.last = NULL
    while at[0] != NULL:
        op = at[0]
        if op.kind == REQUEST_WRITE and op.local != NULL:
            d.lines -= lines_of(op)
            at[0] = op.next
            free(op)
        else:
            d.last = op
            at = &op.next
    leave(d)


cdef void refuse(direction_t *d) noexcept nogil:
    """The target goes: nothing lands any more, and what has landed can't be told."""
    d.target = NULL
    drop(&d.first)
    drop(&d.messages)
    d.last = NULL
    d.lines = 0


# ---- what a node calls ---------------------------------------------------------------------------------------------

cdef void sim_carry(void *self, uint32_t peer) noexcept nogil:
    cdef sim_part_t *s = <sim_part_t *>self
    cdef peer_t *p = &s.regions.peers[peer]
    cdef direction_t *d = s.out[peer]
    cdef flight_t *f
    cdef op_t *op
    while p.sent < p.posted:
        f = flight_of(p, p.sent)
        op = new_op(f.request.kind, f.request.length)
        if op == NULL:
            return
        op.number = p.sent
        op.key = f.reached.key
        op.offset = f.request.offset
        op.length = f.request.length
        op.first = f.request.first
        op.second = f.request.second
        op.left = f.left
        op.flags = f.request.flags
        if op.kind == REQUEST_WRITE and op.length <= REQUEST_INLINE_MAX:
            memcpy(bytes_of(op), f.request.local, op.length)
        elif op.kind == REQUEST_WRITE:
            op.local = f.request.local
        p.sent += 1
        if d.target == NULL:
            free(op)             # it will never be answered: the connection is over, and nobody knows it here
            continue
        append(&d.first, &d.last, op)
        d.lines += lines_of(op)


cdef int sim_send(void *self, uint32_t peer, const char *data, uint32_t length) noexcept nogil:
    cdef direction_t *d = (<sim_part_t *>self).out[peer]
    cdef op_t *op
    if d.message_bytes + boxed(length) > MESSAGES_WAITING_MAX:
        return -EAGAIN
    op = new_op(OP_MESSAGE, length)
    if op == NULL:
        return -EAGAIN
    op.length = length
    memcpy(bytes_of(op), data, length)
    d.message_bytes += boxed(length)
    if d.target == NULL:
        free(op)
        return 0
    append(&d.first, &d.last, op)
    d.lines += 1
    return 0


cdef int sim_waiting(void *self, uint32_t peer) noexcept nogil:
    cdef direction_t *d = (<sim_part_t *>self).into[peer]
    return <int>d.messages.length if d.messages != NULL else -1


cdef void sim_receive(void *self, uint32_t peer, char *into, uint32_t length) noexcept nogil:
    cdef direction_t *d = (<sim_part_t *>self).into[peer]
    cdef op_t *op = d.messages
    memcpy(into, bytes_of(op), length)
    d.message_bytes -= boxed(length)
    d.messages = op.next
    free(op)


cdef void sim_end(void *self, uint32_t peer) noexcept nogil:
    cdef sim_part_t *s = <sim_part_t *>self
    leave(s.out[peer])
    refuse(s.into[peer])


# ---- landing -------------------------------------------------------------------------------------------------------

cdef void land_line(direction_t *d, op_t *op, char *place) noexcept nogil:
    """The next line of a read or a write that is allowed."""
    cdef uint64_t size = LINE - (op.offset + op.landed) % LINE
    cdef const char *source
    if size > op.length - op.landed:
        size = op.length - op.landed
    if op.kind == REQUEST_READ:
        copy_words(bytes_of(op) + op.landed, place, size)
    else:
        source = op.local if op.local != NULL else bytes_of(op)
        copy_words(place, source + op.landed, size)
    op.landed += size


cdef bint land_request(direction_t *d, op_t *op) noexcept nogil:
    """One line of a request lands. True when that was its last one."""
    cdef char *place = NULL
    if not op.begun and d.skip:
        d.skip -= 1
        op.status = REQUEST_AFTER
        return True
    op.begun = 1
    op.status = allowed(d.target.regions, d.target_peer, op.kind, op.key, op.offset + op.landed, op.length - op.landed,
                        &place)
    if op.status != REQUEST_DONE:
        d.skip = op.left
        return True
    if op.kind == REQUEST_READ or op.kind == REQUEST_WRITE:
        land_line(d, op, place)
        return op.landed == op.length
    op.value = (<uint64_t *>place)[0]
    if op.kind == REQUEST_ADD:
        (<uint64_t *>place)[0] = op.value + op.first
    elif op.value == op.first:
        (<uint64_t *>place)[0] = op.second
    return True


cdef uint64_t land_lines(direction_t *d, uint64_t n) noexcept nogil:
    """Lands up to n lines; returns how many."""
    cdef op_t *op
    cdef uint64_t landed = 0, before
    while landed < n and d.first != NULL:
        op = d.first
        landed += 1
        before = lines_of(op)
        if op.kind != OP_MESSAGE and not land_request(d, op):
            d.lines -= before - lines_of(op)
            continue
        d.lines -= before
        d.first = op.next
        if op.kind == OP_MESSAGE:
            append(&d.messages, &d.messages_last, op)
        elif d.source != NULL and (op.flags & REQUEST_SIGNALLED or op.kind == REQUEST_READ or op.kind > REQUEST_WRITE
                                   or op.status != REQUEST_DONE):
            append(&d.answers, &d.answers_last, op)
            d.n_answers += 1
        else:
            free(op)
    return landed


cdef uint64_t answer(direction_t *d, uint64_t n) noexcept nogil:
    """The source gets up to n answers; returns how many."""
    cdef op_t *op
    cdef uint64_t given = 0
    while given < n and d.answers != NULL:
        op = d.answers
        d.answers = op.next
        d.n_answers -= 1
        if op.kind == REQUEST_READ and op.status == REQUEST_DONE:
            copy_words(flight_of(&d.source.regions.peers[d.source_peer], op.number).request.local, bytes_of(op),
                       op.length)
        if op.status != REQUEST_AFTER or op.flags & REQUEST_SIGNALLED:
            done(d.source.regions, d.source_peer, op.number, op.status, op.value)
        free(op)
        given += 1
    return given


# ---- the world's side ----------------------------------------------------------------------------------------------

@cython.no_gc_clear     # its end needs the world
cdef class SimPart(Part):
    """The way to simulated peers. `node`: how the world calls this one."""

    def __cinit__(self, Regions regions not None, SimWorld world not None, node):
        self.state = <sim_part_t *>calloc(1, sizeof(sim_part_t))
        if self.state == NULL:
            raise MemoryError()

    def __init__(self, Regions regions not None, SimWorld world not None, node):
        self.node = node
        self.world = world
        self.state.regions = regions.state
        self.table.self = self.state
        self.table.capabilities = ATOMIC_WITH_OWNER
        self.table.carry = sim_carry
        self.table.send = sim_send
        self.table.waiting = sim_waiting
        self.table.receive = sim_receive
        self.table.end = sim_end
        Part.__init__(self, regions, "sim")

    def connect(self, SimPart other not None):
        """Connects two nodes; returns (the other's number here, this one's number there)."""
        cdef uint32_t here = self.take_peer(), there
        try:
            there = other.take_peer()
        except BaseException:
            self.regions.state.peers[here].part = NULL
            raise
        self.add_direction(here, other, there)
        other.add_direction(there, self, here)
        return here, there

    cdef int add_direction(self, uint32_t here, SimPart other, uint32_t there) except -1:
        cdef direction_t *d = <direction_t *>calloc(1, sizeof(direction_t))
        if d == NULL:
            raise MemoryError()
        d.source = self.state
        d.target = other.state
        d.source_peer = here
        d.target_peer = there
        self.state.out[here] = d
        other.state.into[there] = d
        self.world.directions.setdefault((self.node, other.node), []).append(<size_t>d)
        return 0

    def give_up(self, uint32_t peer):
        """As in Part. What was posted and has not landed stays with the world."""
        self.state.out[peer] = NULL
        self.state.into[peer] = NULL

    def why(self, uint32_t reason):
        """As in Part."""
        return "the connection broke"

    def busy(self, memory):
        """As in Part: what lands is looked up line by line, so nothing holds on to it."""
        return False

    def __dealloc__(self):
        cdef uint32_t i
        if self.state != NULL:
            for i in range(<uint32_t>PEERS_MAX):
                if self.state.out[i] != NULL:
                    vanish(self.state.out[i])
                if self.state.into[i] != NULL:
                    refuse(self.state.into[i])
            free(self.state)


cdef class SimWorld:
    """All directions between the nodes of a run. Nodes are named as they were given to SimPart. Who were connected
    several times have as many connections, numbered from 0; -1 is the newest."""

    def __init__(self):
        self.directions = {}

    cdef direction_t *of(self, source, target, int connection) except NULL:
        several = self.directions[source, target]
        return <direction_t *><size_t>several[connection if connection >= 0 else len(several) - 1]

    @property
    def waiting(self):
        """{(source, target, connection): (lines that have not landed, answers that were not given)}, where there are
        any."""
        cdef direction_t *d
        found = {}
        for (source, target), several in self.directions.items():
            for k in range(len(several)):
                d = self.of(source, target, k)
                if d.lines or d.n_answers:
                    found[source, target, k] = (d.lines, d.n_answers)
        return found

    def land(self, source, target, connection=-1, n=None):
        """Lands up to `n` lines, all by default; returns how many."""
        return land_lines(self.of(source, target, connection), <uint64_t>-1 if n is None else n)

    def answer(self, source, target, connection=-1, n=None):
        """Gives the source up to `n` answers of what has landed, all by default; returns how many."""
        return answer(self.of(source, target, connection), <uint64_t>-1 if n is None else n)

    def run(self):
        """Lands and answers all."""
        while waiting := self.waiting:
            for way in waiting:
                self.land(*way)
                self.answer(*way)

    def next_of(self, source, target, connection=-1):
        """(kind, bytes that have landed, bytes) of what lands next; None: nothing waits."""
        cdef direction_t *d = self.of(source, target, connection)
        return None if d.first == NULL else (KIND_NAMES[d.first.kind], d.first.landed, d.first.length)

    def posted(self, source, target, connection=-1, first=0):
        """What waits to land, from number `first` on: [(kind, bytes, lines, whether its source is told), ...]. Who
        gives a run a clock finds in it what is due when."""
        cdef op_t *op = self.of(source, target, connection).first
        cdef uint64_t skip = first
        found = []
        while op != NULL:
            if skip:
                skip -= 1
            else:
                found.append((KIND_NAMES[op.kind], op.length, lines_of(op),
                              op.kind != OP_MESSAGE and op.flags & REQUEST_SIGNALLED != 0))
            op = op.next
        return found

    def lose(self, source, target, connection=-1, n=1):
        """Takes what was posted last off the network: up to `n` posts never land. Only where the source has cut or is
        gone: a connection that lives loses nothing (ValueError). Returns how many."""
        cdef direction_t *d = self.of(source, target, connection)
        cdef op_t **at
        lost = 0
        if d.source != NULL:
            raise ValueError(f"{source} is connected to {target}: only a connection that is over loses what was posted")
        while lost < n and d.first != NULL:
            at = &d.first
            d.last = NULL
            while at[0].next != NULL:
                d.last = at[0]
                at = &at[0].next
            d.lines -= lines_of(at[0])
            free(at[0])
            at[0] = NULL
            lost += 1
        return lost

    def break_connection(self, one, other):
        """Both ends find their newest connection over: what is on the way completes as cut, though some of it may have
        landed, or may land yet."""
        cdef direction_t *d
        for source, target in ((one, other), (other, one)):
            d = self.of(source, target, -1)
            if d.source != NULL:
                end_peer(d.source.regions, d.source_peer, FAILED_BROKEN)

    def __dealloc__(self):
        cdef direction_t *d
        if self.directions is not None:
            for several in self.directions.values():
                for address in several:
                    d = <direction_t *><size_t>address
                    drop(&d.first)
                    drop(&d.answers)
                    drop(&d.messages)
                    free(d)
