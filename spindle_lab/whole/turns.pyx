"""Whose turn it is: what a simulation does at every step, and so as little of it as possible in Python.

A waiter is a thread, or belongs to an engine. Who may run is found by looking at all of them, in the order of their
processes: they are few, and what wakes them (a list that has got something, a condition) tells nobody.
"""
import heapq

from libc.stdint cimport int64_t, uint32_t, uint64_t

from spindle_core.engine import Engine

DEF NEVER = 0x7FFFFFFFFFFFFFFF
DEF EVENTS_MAX = 1024


cdef extern from "<sys/epoll.h>" nogil:
    ctypedef union epoll_data_t:
        int fd

    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data

    int epoll_wait(int epfd, epoll_event *events, int maxevents, int timeout)


class Stuck(Exception):
    """Nothing can ever run again."""


cdef class Waiter:
    """What a thread or an engine waits for, while it does: whichever comes first."""

    cdef public bint runnable         # it needs nothing
    cdef public object told           # until this has something in it
    cdef public object ready          # until this returns something true; called at every step
    cdef int64_t _deadline_ns
    cdef bint _rung                   # its descriptor is readable

    def __cinit__(self, *_, **__):
        self.told = ()
        self._deadline_ns = NEVER

    @property
    def deadline_ns(self):
        """Until then; None: for ever."""
        return None if self._deadline_ns == NEVER else self._deadline_ns

    @deadline_ns.setter
    def deadline_ns(self, when_ns):
        self._deadline_ns = NEVER if when_ns is None else when_ns


cdef class Turns:
    """The clock, and everybody who may run."""

    cdef public int64_t now_ns
    cdef public list alive            # processes
    cdef public list due              # a heap: time, serial number, what to call then
    cdef public dict waits            # by descriptor: the waiter, or the lines
    cdef public object watched        # an epoll of these descriptors
    cdef public int lines_fd
    cdef public uint64_t steps, hash
    cdef int _watched_fd
    cdef object _bits

    def __init__(self, watched, bits):
        self.now_ns = 0
        self.alive, self.due, self.waits = [], [], {}
        self.watched, self._watched_fd, self.lines_fd = watched, watched.fileno(), -1
        self._bits = bits             # random.getrandbits

    def mix(self, value):
        """Takes something of the run into its hash."""
        self._mix(value)

    cdef void _mix(self, uint64_t value) noexcept:
        self.hash = self.hash * <uint64_t>0x9E3779B97F4A7C15 + value + 1

    cdef int64_t _below(self, int64_t n) except -1:
        """A number from 0 to n - 1."""
        cdef int bits = 0
        cdef int64_t drawn
        while n >> bits:
            bits += 1
        drawn = self._bits(bits)
        while drawn >= n:
            drawn = self._bits(bits)
        return drawn

    cdef list _candidates(self):
        """Everything that can run now, in an order of its own."""
        cdef epoll_event events[EVENTS_MAX]
        cdef list found = [], rung = []
        cdef int64_t now_ns = self.now_ns
        cdef Waiter one
        cdef int i, count = epoll_wait(self._watched_fd, events, EVENTS_MAX, 0)
        for i in range(count):
            who = self.waits.get(events[i].data.fd)
            if isinstance(who, Waiter):
                (<Waiter>who)._rung = True
                rung.append(who)
            elif who is not None:
                found.append(who)
        try:
            for process in self.alive:
                if process.stopped:
                    continue
                for one in process.threads:
                    if one.runnable or one.told or one._rung or one._deadline_ns <= now_ns or (
                            one.ready is not None and one.ready()):
                        found.append(one)
                if process.engines:
                    for one, engine in zip(process.waiters, process.engines):
                        if one.runnable or one._rung or one._deadline_ns <= now_ns:
                            found.append(engine)
        finally:
            for one in rung:
                one._rung = False
        return found

    cdef int64_t _next_deadline(self):
        """When something can run that can't now."""
        cdef int64_t found = self.due[0][0] if self.due else NEVER
        cdef Waiter one
        for process in self.alive:
            if not process.stopped:
                for one in process.threads:
                    found = min(found, one._deadline_ns)
                for one in process.waiters:
                    found = min(found, one._deadline_ns)
        return found

    def run_one(self):
        """One turn of somebody. Raises Stuck if nobody can ever have one."""
        cdef list found
        cdef int64_t following
        while True:
            if self.due and <int64_t>self.due[0][0] <= self.now_ns:
                heapq.heappop(self.due)[2]()
                return
            found = self._candidates()
            if found:
                break
            following = self._next_deadline()
            if following == NEVER:
                raise Stuck("nothing can run any more, and nothing is due")
            self.now_ns = max(self.now_ns, following)
        self.steps += 1
        one = found[self._below(len(found))] if len(found) > 1 else found[0]
        self.now_ns += 500 + self._below(19_500)
        if isinstance(one, Waiter):
            self._mix(<uint64_t>one.process.pid * 64 + <uint64_t>one.ident)
            self.turn(one)
        elif isinstance(one, Engine):
            self._mix(<uint64_t>one.process.pid * 64 + 63)
            self.turn_of_engine(one)
        else:
            one.turn()
