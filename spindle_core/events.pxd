"""eventfd and poll, from nogil code."""
from libc.stdint cimport uint64_t


cdef extern from "poll.h" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    const short POLLIN
    int poll(pollfd *fds, unsigned long n, int timeout_ms)

cdef extern from "sched.h" nogil:
    int sched_yield()

cdef extern from "unistd.h" nogil:
    ssize_t c_read "read"(int fd, void *buffer, size_t n)
    ssize_t c_write "write"(int fd, const void *buffer, size_t n)
    int c_close "close"(int fd)


cdef inline void event_ring(int fd) noexcept nogil:
    """Rings an eventfd; a full or closed one is nobody's loss."""
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


cdef inline void event_wait_at(int wait_fd, int fd, int timeout_ms) noexcept nogil:
    """Blocks until `wait_fd` is readable, or a signal comes, or the time is up (-1: never), and clears `fd`, which is
    the same or part of it."""
    cdef pollfd p
    p.fd = wait_fd
    p.events = POLLIN
    p.revents = 0
    if poll(&p, 1, timeout_ms) > 0:
        event_clear(fd)


cdef inline int event_wait_two(int fd, int other_fd, int timeout_ms) noexcept nogil:
    """Blocks until one of two is readable: 1, 2 or 3; 0 on timeout or a signal. Clears the first only."""
    cdef pollfd p[2]
    cdef int r
    p[0].fd = fd
    p[1].fd = other_fd
    p[0].events = p[1].events = POLLIN
    p[0].revents = p[1].revents = 0
    if poll(p, 2, timeout_ms) <= 0:
        return 0
    r = (1 if p[0].revents else 0) | (2 if p[1].revents else 0)
    if r & 1:
        event_clear(fd)
    return r
