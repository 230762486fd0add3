"""One iteration of a simulated process's loop: what asyncio's own `_run_once` does, and as little of it as possible in
Python. A run has some thousands of them.
"""
import heapq
import selectors
from asyncio.base_events import BaseEventLoop

from libc.stdint cimport uint32_t

DEF EVENTS_MAX = 1024
DEF TIMERS_MANY = 100  # from here on asyncio looks for cancelled timers in the middle, too


cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN
        EPOLLOUT

    ctypedef union epoll_data_t:
        int fd

    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data

    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)


cdef int EVENT_READ = selectors.EVENT_READ
cdef int EVENT_WRITE = selectors.EVENT_WRITE
cdef object heappop = heapq.heappop


cdef object _by_serial(one):
    return one[0]


cpdef ready_keys(selector, int epoll_fd):
    """What `SimSelector.select` returns: (key, events) of every descriptor that can be read or written, in the order of
    registration, without those that are kept back."""
    cdef epoll_event events[EVENTS_MAX]
    cdef list found = None
    cdef int i, mask, wanted, fd, count = epoll_wait(epoll_fd, events, EVENTS_MAX, 0)
    if count <= 0:
        return ()
    found = []
    for i in range(count):
        fd = events[i].data.fd
        mask = 0
        if events[i].events & ~<uint32_t>EPOLLIN:
            mask |= EVENT_WRITE
        if events[i].events & ~<uint32_t>EPOLLOUT:
            mask |= EVENT_READ
        serial, key = selector._keys[fd]
        wanted = key.events
        mask &= wanted
        if mask & EVENT_READ and fd not in selector._shown and (delay := selector.keep_back(fd)) > 0:
            selector._hide(fd, serial, delay)
            continue
        selector._shown.discard(fd)
        if mask:
            found.append((serial, key, mask))
    if len(found) > 1:
        found.sort(key=_by_serial)
    return [(key, mask) for _, key, mask in found]


cpdef iterate(loop, selector, int epoll_fd):
    """Looks at the descriptors and the timers, and calls back what is ready by then."""
    cdef int mask
    scheduled, ready = loop._scheduled, loop._ready
    if len(scheduled) > TIMERS_MANY:
        BaseEventLoop._run_once(loop)
        return
    while scheduled and scheduled[0]._cancelled:
        loop._timer_cancelled_count -= 1
        heappop(scheduled)._scheduled = False
    for key, mask in ready_keys(selector, epoll_fd):
        reader, writer = key.data
        if mask & EVENT_READ and reader is not None:
            if reader._cancelled:
                loop._remove_reader(key.fileobj)
            else:
                ready.append(reader)
        if mask & EVENT_WRITE and writer is not None:
            if writer._cancelled:
                loop._remove_writer(key.fileobj)
            else:
                ready.append(writer)
    if scheduled:
        end_s = loop.time() + loop._clock_resolution
        while scheduled and scheduled[0]._when < end_s:
            handle = heappop(scheduled)
            handle._scheduled = False
            ready.append(handle)
    for _ in range(len(ready)):
        handle = ready.popleft()
        if not handle._cancelled:
            handle._run()


def iterate_until_done(loop, selector, int epoll_fd, task):
    """The loop's thread: one iteration after the other, and between them whoever else has something to do."""
    cdef double timeout_s
    system, ready = loop.system, loop._ready
    while True:
        iterate(loop, selector, epoll_fd)
        if task.done():
            return
        if ready:
            system.pause()
            continue
        scheduled = loop._scheduled
        while scheduled and scheduled[0]._cancelled:
            heappop(scheduled)._scheduled = False
            loop._timer_cancelled_count -= 1
        timeout = None
        if scheduled:
            timeout_s = scheduled[0]._when - loop.time()
            timeout = max(0.0, timeout_s) + 1e-7
        system.wait(None, timeout, epoll_fd, ready)
