"""Sockets and epoll, from nogil code."""
from libc.errno cimport EINTR, errno
from libc.stdint cimport uint32_t, uint64_t
from posix.fcntl cimport F_GETFL, F_SETFL, O_NONBLOCK, fcntl


cdef extern from "sys/uio.h" nogil:
    cdef struct iovec:
        void *iov_base
        size_t iov_len
    ssize_t readv(int fd, const iovec *iov, int n)

cdef extern from "sys/socket.h" nogil:
    cdef struct msghdr:
        void *msg_name
        unsigned int msg_namelen
        iovec *msg_iov
        size_t msg_iovlen
        void *msg_control
        size_t msg_controllen
        int msg_flags
    const int MSG_DONTWAIT
    const int MSG_NOSIGNAL
    const int SHUT_RDWR
    int setsockopt(int fd, int level, int option, const void *value, unsigned int size)
    ssize_t sendmsg(int fd, const msghdr *message, int flags)
    int shutdown(int fd, int how)

cdef extern from "netinet/tcp.h" nogil:
    const int TCP_NODELAY

cdef extern from "netinet/in.h" nogil:
    const int IPPROTO_TCP

cdef extern from "sys/ioctl.h" nogil:
    int ioctl(int fd, unsigned long request, int *value)

cdef extern from "linux/sockios.h" nogil:
    const unsigned long SIOCOUTQ          # bytes that the peer's host has not acknowledged

cdef extern from "sys/epoll.h" nogil:
    const uint32_t EPOLLIN
    const uint32_t EPOLLOUT
    const int EPOLL_CTL_ADD
    const int EPOLL_CTL_MOD
    const int EPOLL_CTL_DEL
    const int EPOLL_CLOEXEC
    ctypedef union epoll_data_t:
        uint32_t u32
        uint64_t u64
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll_fd, int operation, int fd, epoll_event *event)
    int epoll_wait(int epoll_fd, epoll_event *events, int n, int timeout_ms)


cdef inline int new_epoll() except -1:
    """OSError where no descriptor is left."""
    cdef int fd = epoll_create1(EPOLL_CLOEXEC)
    if fd < 0:
        raise OSError(errno, "no descriptor left for epoll: raise the limit of open files (ulimit -n)")
    return fd


cdef inline int take_socket(int epoll_fd, int fd, uint64_t number) except -1:
    """Has epoll tell, under a number, of what comes through a connected stream socket, which blocks no more. OSError
    where the descriptor is none."""
    cdef epoll_event event
    cdef int flags = fcntl(fd, F_GETFL), one = 1
    event.events = EPOLLIN
    event.data.u64 = number
    if flags < 0 or fcntl(fd, F_SETFL, flags | O_NONBLOCK) < 0 or epoll_ctl(epoll_fd, EPOLL_CTL_ADD, fd, &event) < 0:
        raise OSError(errno, f"descriptor {fd} can't be waited for: a connected stream socket is needed")
    # All that waits leaves in one call, so holding back a rest could only cost time. Other sockets do without.
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one))
    return 0


cdef inline void end_socket(int epoll_fd, int fd) noexcept nogil:
    """Nothing goes through it any more; the other side learns it, too."""
    cdef epoll_event none
    epoll_ctl(epoll_fd, EPOLL_CTL_DEL, fd, &none)
    shutdown(fd, SHUT_RDWR)


cdef inline void watch_socket(int epoll_fd, int fd, uint64_t number, bint for_room) noexcept nogil:
    """Has epoll tell when the socket has room again, if `for_room`; else no longer."""
    cdef epoll_event event
    event.events = EPOLLIN | EPOLLOUT if for_room else EPOLLIN
    event.data.u64 = number
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &event)


cdef inline ssize_t send_parts(int fd, iovec *parts, int n) noexcept nogil:
    """Sends what the socket takes of these; returns how many bytes that was, or -1 with errno."""
    cdef msghdr message
    cdef ssize_t sent
    message.msg_name = NULL
    message.msg_namelen = 0
    message.msg_control = NULL
    message.msg_controllen = 0
    message.msg_flags = 0
    message.msg_iov = parts
    message.msg_iovlen = <size_t>n
    while True:
        sent = sendmsg(fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent >= 0 or errno != EINTR:
            return sent
