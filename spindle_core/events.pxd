"""eventfd, poll and the ends of doorbells, from nogil code.

Rules: a node never blocks on anything that another process can touch. O_NONBLOCK belongs to the open file, which all
who were handed a descriptor of it share, so a node neither reads nor writes an open file that somebody else has:
- It rings an application through its own end of a socket pair (`ends.make_ends`), whose other end the application has.
  Each call asks not to wait. A full socket means that it was rung already, and nobody has looked. (An epoll
  would be faster, but what its holder has it watch counts against the node's user: fs.epoll.max_user_watches.)
- An application in the node's own process has nothing to gain from harming it: its two ends are one eventfd, which
  costs less. EVENT_END in the number of an end says so.
- An application rings it through an eventfd that the application alone keeps. The node only watches that, through an
  edge-triggered epoll of its own: an application that fills or empties it loses its own rings, no others
  (`ends.ApplicationBell`).
- Nodes of one host ring each other through an eventfd of the ringing node, in an epoll that it hands to the other one.
- What remains are eventfds that never leave the process.
"""
from libc.errno cimport EAGAIN, errno
from libc.stdint cimport uint32_t, uint64_t


cdef extern from "poll.h" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    const short POLLIN
    int poll(pollfd *fds, unsigned long n, int timeout_ms)

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef extern from "sys/epoll.h" nogil:
    cdef union epoll_data:
        int fd
    cdef struct epoll_event:
        uint32_t events
        epoll_data data
    const int EPOLL_CTL_ADD, EPOLL_CTL_DEL
    const uint32_t EPOLLIN
    int epoll_wait(int epoll_fd, epoll_event *events, int events_max, int timeout_ms)
    int epoll_ctl(int epoll_fd, int what, int fd, epoll_event *event)

cdef extern from "sys/socket.h" nogil:
    const int MSG_DONTWAIT, MSG_NOSIGNAL, SHUT_RD, SHUT_RDWR
    ssize_t c_send "send"(int fd, const void *buffer, size_t n, int flags)
    ssize_t c_recv "recv"(int fd, void *buffer, size_t n, int flags)
    int c_shutdown "shutdown"(int fd, int how)

cdef enum:
    EDGES_MAX = 16               # rings that one sleep takes at once; others end the next sleep
    RINGS_MAX = 16               # more than a socket of rings holds
    EVENT_END = 1 << 30          # beside the descriptor of an end that is an eventfd
    RUNG_FOR_GOOD = 1 << 30      # more rings than anybody leaves untaken

cdef extern from "sys/eventfd.h" nogil:
    const int EFD_CLOEXEC, EFD_NONBLOCK
    int eventfd(unsigned int initval, int flags)

cdef enum:
    YIELDS_BEFORE_REST = 64
    REST_US = 50

cdef extern from "unistd.h" nogil:
    int usleep(unsigned int us)
    ssize_t c_read "read"(int fd, void *buffer, size_t n)
    ssize_t c_write "write"(int fd, const void *buffer, size_t n)
    int c_close "close"(int fd)


cdef inline void give_way(int *times) noexcept nogil:
    """For a thread that waits for another one to let go: that one may need this core. `times`: how often it has done so
    in this wait. After some times it sleeps a little: one with a real-time priority, as daemons' threads may have it
    (slices.pxd), gives way to no thread without it by yielding, and who is waited for would never run."""
    times[0] += 1
    if times[0] <= YIELDS_BEFORE_REST:
        sched_yield()
    else:
        usleep(REST_US)


cdef inline int event_make() noexcept nogil:
    """An eventfd that does not block; -1 if there is no descriptor left."""
    return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)


cdef inline void event_ring(int fd) noexcept nogil:
    """Rings an eventfd of this process; a full or closed one is nobody's loss."""
    cdef uint64_t one = 1
    if fd >= 0:
        c_write(fd, &one, 8)


cdef inline void event_clear(int fd) noexcept nogil:
    """Takes what was rung; the descriptor must be non-blocking."""
    cdef uint64_t rung
    if fd >= 0:
        c_read(fd, &rung, 8)


cdef inline int event_wait(int fd, int timeout_ms) noexcept nogil:
    """Blocks until rung (1), timeout (0; -1 ms waits for ever) or a signal (-1); clears it."""
    cdef pollfd p
    cdef int r
    p.fd = fd
    p.events = POLLIN
    p.revents = 0
    r = poll(&p, 1, timeout_ms)
    if r > 0:
        event_clear(fd)
        return 1
    return r


cdef inline void event_sleep(int epoll_fd, int timeout_ms) noexcept nogil:
    """Blocks until something that this epoll watches has been rung, or a signal comes, or the time is up (-1: never).
    What is watched edge-triggered need not be cleared."""
    cdef epoll_event edges[EDGES_MAX]
    epoll_wait(epoll_fd, edges, EDGES_MAX, timeout_ms)


cdef inline bint epoll_watch(int epoll_fd, int fd) noexcept nogil:
    """As long as `fd` is readable, whoever waits at this epoll is woken; False if it can't be watched."""
    cdef epoll_event event
    event.events = EPOLLIN
    event.data.fd = fd
    return epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) == 0


cdef inline void epoll_unwatch(int epoll_fd, int fd) noexcept nogil:
    cdef epoll_event unused
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &unused)


cdef inline int wait_two(int fd, int other_fd, int timeout_ms) noexcept nogil:
    """Blocks until one of two is readable: 1, 2 or 3; 0 on timeout or a signal. Clears neither."""
    cdef pollfd p[2]
    p[0].fd = fd
    p[1].fd = other_fd
    p[0].events = p[1].events = POLLIN
    p[0].revents = p[1].revents = 0
    if poll(p, 2, timeout_ms) <= 0:
        return 0
    return (1 if p[0].revents else 0) | (2 if p[1].revents else 0)


cdef inline int event_wait_two(int fd, int other_fd, int timeout_ms) noexcept nogil:
    """The same of an eventfd and another descriptor; clears the eventfd."""
    cdef int r = wait_two(fd, other_fd, timeout_ms)
    if r & 1:
        event_clear(fd)
    return r


cdef inline int end_fd(int end) noexcept nogil:
    """The descriptor of an end; -1 if there is none."""
    return end & ~EVENT_END if end >= 0 else -1


cdef inline bint is_event(int end) noexcept nogil:
    return end >= 0 and (end & EVENT_END) != 0


cdef inline void end_ring(int end) noexcept nogil:
    """Rings the holder of the other end. One system call, which never waits, whatever was done to that end."""
    cdef char one = 1
    if is_event(end):
        event_ring(end_fd(end))
    elif end >= 0:
        c_send(end, &one, 1, MSG_DONTWAIT | MSG_NOSIGNAL)


cdef inline void end_wake(int end) noexcept nogil:
    """Ends all waiting at this end, which is of this process: now, and each later wait at once."""
    cdef uint64_t rings = <uint64_t>RUNG_FOR_GOOD
    if is_event(end):
        c_write(end_fd(end), &rings, 8)
    elif end >= 0:
        c_shutdown(end, SHUT_RD)


cdef inline bint end_take(int end) noexcept nogil:
    """Takes one ring, of an eventfd all; False if there was none. If there are more, they end later waits, which then
    find nothing: rare, and cheaper than asking after each wait whether there are any."""
    cdef uint64_t rung
    if not is_event(end):
        return c_recv(end, &rung, 1, MSG_DONTWAIT) >= 0
    if c_read(end_fd(end), &rung, 8) != 8:
        return False
    if rung >= <uint64_t>RUNG_FOR_GOOD:
        end_wake(end)
    return True


cdef inline void end_clear(int end) noexcept nogil:
    """Takes all that was rung at this end: it isn't readable any more."""
    cdef int _
    for _ in range(RINGS_MAX):
        if end < 0 or not end_take(end) or is_event(end):
            return


cdef inline int end_wait(int end, int timeout_ms) noexcept nogil:
    """Blocks until this end is rung (1), timeout (0; -1 ms waits for ever) or a signal (-1); takes that ring.

    At a socket and without a timeout it is one system call. (Who has an end may have made it non-blocking: then it is
    polled.)
    """
    cdef pollfd p
    cdef char rung
    cdef int r
    if timeout_ms < 0 and end >= 0 and not is_event(end):
        if c_recv(end, &rung, 1, 0) >= 0:
            return 1
        if errno != EAGAIN:
            return -1
    p.fd = end_fd(end)
    p.events = POLLIN
    p.revents = 0
    r = poll(&p, 1, timeout_ms)
    if r > 0:
        end_take(end)
        return 1
    return r
