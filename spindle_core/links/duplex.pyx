"""Messages both ways between two programs of one host, with nobody between them: the shortest way of a call.

Each of the two has one side of a memory that both map: a ring into which it puts messages, and how much it has taken
of the other one's. So a call costs two wake-ups at most, that of who is called and that of who waits for the answer.
Nodes make that memory and hand it over, once they have checked that the one may send to the other; then they have
nothing of it.

Rules:
- A program goes by its own counts, never by what stands in its side; what the other one writes is read once and
  checked. One that writes nonsense, in whichever side, spoils the messages between these two and nothing else.
- A message is the receiver's once it lies in the ring. A ring without room lets its sender wait, who says so.
- Each end hears of the other one's: by its word (`closed`), and where it had no time for that by the socket, which the
  kernel closes.
- One thread at a time uses a side.
"""
import select

from libc.errno cimport EAGAIN, EINTR, ENOBUFS, ENOMEM, errno
from libc.stdint cimport uint32_t, uint64_t

from spindle_core.atomics cimport (
    cpu_relax,
    fence_store_load,
    monotonic_ns,
    u64_load_acquire,
    u64_load_relaxed,
    u64_store_release,
)
from spindle_core.bell cimport fall_asleep, wake_up
from spindle_core.events cimport (
    EDGES_MAX,
    MSG_DONTWAIT,
    MSG_NOSIGNAL,
    SHUT_RDWR,
    c_close,
    c_recv,
    c_send,
    c_shutdown,
    end_fd,
    end_take,
    epoll_event,
    epoll_wait,
    poll,
    POLLIN,
    pollfd,
)
from spindle_core.fabric.regions.boxes cimport HEAD_SIZE, boxed, next_length, put_at, take_at
from spindle_core.layout cimport DUPLEX_MAGIC, DUPLEX_RING_SIZE, duplex_page
from spindle_core.links.links cimport LINK_INLINE_MAX
from spindle_core.links.spins cimport has_spun, next_spin
from spindle_core.links.user cimport LinkUser
from spindle_core.memory cimport Mapping, forks

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize

DUPLEXES = DUPLEXES_MAX
PAGE_SIZE = sizeof(duplex_page)  # bytes


def make_page():
    """Memory for a duplex, which nobody has yet. OSError."""
    made = Mapping.create("spindle-duplex", sizeof(duplex_page))
    (<duplex_page *>(<Mapping>made).base).magic = DUPLEX_MAGIC
    return made


# ---- one side ------------------------------------------------------------------------------------------------------

cdef inline bint has_room(const duplex_t *d, uint64_t size) noexcept nogil:
    cdef uint64_t taken = u64_load_acquire(&d.other.taken)
    return d.put - taken <= DUPLEX_RING_SIZE - size


cdef inline bint has_ended(const duplex_t *d) noexcept nogil:
    return d.over or d.gone or u64_load_acquire(&d.other.closed) != 0


cdef inline bint has_come(const duplex_t *d) noexcept nogil:
    """A message, or an end."""
    return u64_load_acquire(&d.other.put) != d.taken or has_ended(d)


cdef void ring_other(duplex_t *d) noexcept nogil:
    """Wakes the other side if it sleeps, once for each sleep. After a fence."""
    cdef uint64_t sleep = u64_load_relaxed(&d.other.bell.sleeps)
    cdef char one = 1
    if not sleep & 1 or sleep == d.rung or d.end < 0:
        return
    d.rung = sleep
    if c_send(d.end, &one, 1, MSG_DONTWAIT | MSG_NOSIGNAL) >= 0 or errno == EAGAIN:
        return
    if errno == ENOBUFS or errno == ENOMEM:
        d.rung = 0               # what is put next rings again
    else:
        d.over = 1


cdef void hear(duplex_t *d) noexcept nogil:
    """Takes a ring, if there is one; hears of the other side's end."""
    cdef char rung
    cdef ssize_t n
    if d.end < 0:
        return
    n = c_recv(d.end, &rung, 1, MSG_DONTWAIT)
    if n == 0 or (n < 0 and errno != EAGAIN and errno != EINTR):
        d.over = 1


cdef class Duplex:
    """`side`: 0 of who has asked for it, 1 of who listens. Takes over the descriptor, whatever happens.

    ValueError where this memory is none of a duplex.
    """

    def __cinit__(self, Mapping page not None, int end, uint32_t side):
        self.state.end, self.forks = end, forks

    def __init__(self, Mapping page not None, int end, uint32_t side):
        cdef duplex_page *p = <duplex_page *>page.base
        if page.size < sizeof(duplex_page) or not page.writable or p.magic != DUPLEX_MAGIC or side > 1:
            raise ValueError("this mapping is no duplex of this version")
        self.state.own, self.state.other = &p.sides[side], &p.sides[1 - side]
        self.kept = page.view()

    def put(self, uint64_t number, bytes data not None):
        """Hands over a message with its number; False: it has no room now, or the duplex is over and nobody has taken
        it."""
        cdef duplex_t *d = &self.state
        cdef uint64_t length = <uint64_t>len(data), head = length + 8
        cdef bint taken
        if length > LINK_INLINE_MAX:
            raise ValueError(f"a message of {length} bytes: {LINK_INLINE_MAX} are the limit")
        if d.over or d.end < 0:
            return False
        if not has_room(d, boxed(<uint32_t>head)):
            if u64_load_acquire(&d.other.closed):
                d.over = 1       # there never will be any
            return False
        put_at(d.own.ring, DUPLEX_RING_SIZE, d.put, <char *>&head, HEAD_SIZE)
        put_at(d.own.ring, DUPLEX_RING_SIZE, d.put + HEAD_SIZE, <char *>&number, 8)
        put_at(d.own.ring, DUPLEX_RING_SIZE, d.put + HEAD_SIZE + 8, data, length)
        d.put += boxed(<uint32_t>head)
        with nogil:
            # SYNC POINT: message. Pairs with take(): the message before the count.
            u64_store_release(&d.own.put, d.put)
            fence_store_load()
            if u64_load_acquire(&d.other.closed):
                d.over = 1
            else:
                ring_other(d)
            # What it has taken is final then.
            taken = not d.over or u64_load_acquire(&d.other.taken) == d.put
        return taken

    def take(self):
        """The next message as (number, bytes); None: there is none."""
        cdef duplex_t *d = &self.state
        # In this order: what it has put before it ended is taken first.
        cdef bint closed = u64_load_acquire(&d.other.closed) != 0
        cdef uint64_t end = u64_load_acquire(&d.other.put), number
        cdef int length
        if d.gone:
            return None          # the other side has been told that nothing is taken any more
        if end == d.taken:
            if closed:
                d.over = 1
            return None
        length = next_length(d.other.ring, DUPLEX_RING_SIZE, d.taken, end, LINK_INLINE_MAX + 8)
        if length < 8:           # nonsense
            d.over = 1
            return None
        take_at(d.other.ring, DUPLEX_RING_SIZE, d.taken + HEAD_SIZE, <char *>&number, 8)
        data = PyBytes_FromStringAndSize(NULL, length - 8)
        take_at(d.other.ring, DUPLEX_RING_SIZE, d.taken + HEAD_SIZE + 8, PyBytes_AS_STRING(data), length - 8)
        d.taken += boxed(<uint32_t>length)
        u64_store_release(&d.own.taken, d.taken)
        fence_store_load()
        if u64_load_relaxed(&d.other.wants_room):
            ring_other(d)
        return number, data

    def take_into(self, into, tuple whose not None, uint32_t n):
        """Appends the next messages to `into`, `n` at most, each as (*whose, bytes, number, duplex): who is interrupted
        before it has them, as by a signal, has them all the same. Returns how many."""
        cdef uint32_t i
        for i in range(n):
            came = self.take()
            if came is None:
                return i
            into.append((*whose, came[1], came[0], self))
        return n

    @property
    def over(self):
        """Nothing is taken at the other side any more, or it writes nonsense. What has come before can be taken."""
        return self.state.over != 0

    def look(self):
        """Whether the other side is there: also where it has ended without a word. One system call."""
        hear(&self.state)
        return not self.state.over

    # ---- waiting ----

    def wait(self, double timeout_s, double spin_s=0.0, uint32_t room=0, bint messages=True):
        """Blocks until there is a message (unless not `messages`), or room for one of `room` bytes (0: nobody wants
        any), or the duplex or the session is over (True); or for `timeout_s` seconds (False). It looks for `spin_s`
        seconds before it sleeps, unless that was in vain lately. A signal ends the wait: False, or what its handler
        raises."""
        cdef duplex_t *d = &self.state
        cdef uint64_t now = monotonic_ns()
        cdef uint64_t until = now + <uint64_t>(min(timeout_s, 1e9) * 1e9)
        cdef uint64_t busy_until = now + next_spin(&self.state.spins, <uint64_t>(spin_s * 1e9))
        cdef bint found = False, spins = False
        cdef pollfd rung
        cdef int n
        with nogil:
            while True:
                found = self.has_news(room, messages)
                now = monotonic_ns()
                if found or now >= until:
                    break
                if now < busy_until:
                    spins = True
                    cpu_relax()
                    continue
                if spins:
                    has_spun(&self.state.spins, False)
                    spins = False
                if not self.lie_down(room, messages):
                    rung.fd, rung.events = d.end, POLLIN
                    n = poll(&rung, 1, <int>min((until - now + 999999) // 1000000, <uint64_t>1000000000))
                    hear(d)
                    if n < 0:
                        self.rise()
                        found = self.has_news(room, messages)
                        break
                self.rise()
            if spins:
                has_spun(&self.state.spins, found)
        return found

    cdef bint has_news(self, uint32_t room, bint messages) noexcept nogil:
        return (has_come(&self.state) if messages else has_ended(&self.state)) or (
            room and has_room(&self.state, boxed(room + 8)))

    cdef bint lie_down(self, uint32_t room, bint messages) noexcept nogil:
        """The last look before a sleep: what came before the other side saw the sleep is found in it."""
        u64_store_release(&self.state.own.wants_room, room)
        fall_asleep(&self.state.own.bell)
        return self.has_news(room, messages)

    cdef void rise(self) noexcept nogil:
        wake_up(&self.state.own.bell)
        u64_store_release(&self.state.own.wants_room, 0)

    # The parts of wait(), for who waits in another way and has another clock (the simulator).

    def news(self, uint32_t room=0, bint messages=True):
        """wait() would end at once."""
        return self.has_news(room, messages)

    def fileno(self):
        """Where this side is rung; -1: it is closed."""
        return self.state.end

    def fall_asleep(self, uint32_t room=0, bint messages=True):
        """The other side rings from now on. False: there is something already. Then wake_up()."""
        return not self.lie_down(room, messages)

    def wake_up(self):
        """After a sleep: takes what it was rung for."""
        hear(&self.state)
        self.rise()

    def mark_gone(self):
        """The session has ended: whoever waits wakes up, each later wait ends at once, and nothing is taken any more;
        the other side hears of that. Any thread may call this. In a child of the program it closes the child's copy of
        the descriptor alone: otherwise nobody would hear of the parent's end while the child lives."""
        self.state.gone = 1
        if self.forks != forks:
            self.close()
        elif self.state.end >= 0:
            c_shutdown(self.state.end, SHUT_RDWR)

    def close(self):
        """Says that it takes nothing any more, and gives its descriptor back. Idempotent."""
        cdef duplex_t *d = &self.state
        if d.end < 0:
            return
        if d.own != NULL and self.forks == forks:
            u64_store_release(&d.own.closed, 1)
            fence_store_load()
            ring_other(d)
        c_close(d.end)
        d.end = -1
        d.over = 1

    def __dealloc__(self):
        if self.state.end >= 0:
            c_close(self.state.end)                        # its memory may have gone already


# ---- who listens at a port -------------------------------------------------------------------------------------------

cdef class Listening:
    """Waits at a link that is bound to a port, and at all duplexes to it, at once. OSError where no descriptor is left.
    """

    def __cinit__(self, LinkUser user not None):
        self.poller = -1

    def __init__(self, LinkUser user not None):
        self.user, self.known = user, []
        self.epoll = select.epoll()
        self.poller = self.epoll.fileno()
        self.epoll.register(end_fd(user.end), select.EPOLLIN)

    def add(self, Duplex duplex not None):
        """OSError; ValueError beyond DUPLEXES_MAX."""
        if self.n_duplexes >= DUPLEXES_MAX:
            raise ValueError(f"{DUPLEXES_MAX} duplexes of a port are the limit")
        self.epoll.register(duplex.state.end, select.EPOLLIN)
        self.known.append(duplex)
        self.duplexes[self.n_duplexes] = &duplex.state
        self.n_duplexes += 1
        if self.gone:
            duplex.mark_gone()

    def mark_gone(self):
        """The session has ended: that of all duplexes. Any thread may call this."""
        self.gone = True
        for duplex in tuple(self.known):
            duplex.mark_gone()

    def remove(self, Duplex duplex not None):
        """Closes it, too."""
        cdef Duplex one
        cdef uint32_t i
        self.known.remove(duplex)
        self.n_duplexes = <uint32_t>len(self.known)
        for i in range(self.n_duplexes):
            one = self.known[i]
            self.duplexes[i] = &one.state
        if duplex.state.end >= 0:
            self.epoll.unregister(duplex.state.end)
        duplex.close()

    @property
    def all(self):
        """Those that were added, in that order."""
        return tuple(self.known)

    cdef bint has_news(self) noexcept nogil:
        cdef uint32_t i
        if self.user.has_news():
            return True
        for i in range(self.n_duplexes):
            if has_come(self.duplexes[i]):
                return True
        return False

    cdef bint lie_down(self) noexcept nogil:
        """As that of a duplex."""
        cdef uint32_t i
        fall_asleep(&self.user.user.bell)
        for i in range(self.n_duplexes):
            fall_asleep(&self.duplexes[i].own.bell)
        return self.has_news()

    cdef void rise(self) noexcept nogil:
        cdef uint32_t i
        wake_up(&self.user.user.bell)
        for i in range(self.n_duplexes):
            wake_up(&self.duplexes[i].own.bell)

    cdef int hear(self, int ms) noexcept nogil:
        """Waits so long for rings, and takes them; how many, -1 for a signal."""
        cdef epoll_event events[EDGES_MAX]
        cdef int n = epoll_wait(self.poller, events, EDGES_MAX, ms), i
        cdef uint32_t k
        for i in range(n):
            if events[i].data.fd == end_fd(self.user.end):
                end_take(self.user.end)
                continue
            for k in range(self.n_duplexes):
                if self.duplexes[k].end == events[i].data.fd:
                    hear(self.duplexes[k])
        return n

    def wait(self, double timeout_s, double spin_s=0.0):
        """As that of a duplex."""
        cdef uint64_t now = monotonic_ns()
        cdef uint64_t until = now + <uint64_t>(min(timeout_s, 1e9) * 1e9)
        cdef uint64_t busy_until = now + next_spin(&self.spins, <uint64_t>(spin_s * 1e9))
        cdef bint found = False, spins = False
        cdef int n = 0
        with nogil:
            while True:
                found = self.has_news()
                now = monotonic_ns()
                if found or now >= until or n < 0:
                    break
                if now < busy_until:
                    spins = True
                    cpu_relax()
                    continue
                if spins:
                    has_spun(&self.spins, False)
                    spins = False
                if not self.lie_down():
                    n = self.hear(<int>min((until - now + 999999) // 1000000, <uint64_t>1000000000))
                self.rise()
            if spins:
                has_spun(&self.spins, found)
        return found

    # The parts of wait(), for who waits in another way and has another clock (the simulator).

    @property
    def news(self):
        """wait() would end at once."""
        return self.has_news()

    def fileno(self):
        """Readable when something wakes the thread."""
        return self.poller

    def fall_asleep(self):
        """Whoever has news for it rings it from now on. False: there is something already. Then wake_up()."""
        return not self.lie_down()

    def wake_up(self):
        """After a sleep: takes what it was rung for."""
        self.hear(0)
        self.rise()

    def close(self):
        """Closes all duplexes; the link stays. Idempotent."""
        for duplex in tuple(self.known):
            self.remove(duplex)
        if self.poller >= 0:
            self.poller = -1
            self.epoll.close()
