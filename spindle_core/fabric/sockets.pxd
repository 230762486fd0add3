"""Sockets and epoll, from nogil code."""
from libc.stdint cimport uint32_t, uint64_t


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
