"""Whose turn it is: what a simulation does at every step, and so as little of it as possible in Python.

A waiter is a thread, or belongs to an engine. Who may run is found by looking at all of them, in the order of their
processes: they are few, and what wakes them (a list that has got something, a condition) tells nobody.
"""
import heapq
import sys
from asyncio import events as asyncio_events, tasks

from greenlet import GreenletExit

from libc.stdint cimport int64_t, uint32_t, uint64_t

from spindle_core.engine import Engine

DEF NEVER = 0x7FFFFFFFFFFFFFFF
DEF EVENTS_MAX = 1024
DEF LAPS_BEFORE_SLEEP = 2

EPOCH_NS = 1_900_000_000 * 1_000_000_000  # what the simulated clocks say at the beginning
cdef int64_t _EPOCH_NS = EPOCH_NS


cdef bint TASK_OF_THREAD = sys.version_info >= (3, 14)
cdef object running_loop = asyncio_events._get_running_loop
cdef object set_running_loop = asyncio_events._set_running_loop


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

    cdef public object process
    cdef public object ident          # of a thread: its number in its process
    cdef public object greenlet       # of a thread: what runs it
    cdef public bint finished         # of a thread: it has ended
    cdef public int polled_fd         # of a thread: an epoll descriptor, readable when one that it waits for is
    cdef public int edges_fd          # of an engine: the epoll descriptor that it sleeps at
    cdef public int idle              # of an engine: its passes since something happened
    cdef public bint runnable         # it needs nothing
    cdef public object told           # until this has something in it
    cdef public object ready          # until this returns something true; called at every step
    cdef int64_t _deadline_ns
    cdef bint _rung                   # its descriptor is readable

    def __cinit__(self, *_, **__):
        self.told = ()
        self._deadline_ns = NEVER
        self.polled_fd = self.edges_fd = -1

    cpdef wake(self):
        """Of an engine: it looks again; until then its page says that it sleeps, as that of a thread that waits for a
        core does."""
        self.idle = 0
        self._deadline_ns = NEVER
        self.runnable = True

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
    cdef public object scheduler      # the greenlet that drives the simulation
    cdef public object outside        # whoever drives it, as a process
    cdef public object current        # the process that runs
    cdef public object thread         # the thread that runs, if one does
    cdef public object on_pass        # called after each turn of an engine, with it
    cdef public bint ending           # the run is over: nothing of it goes on
    cdef public bint defective        # something has failed, which whoever drives the simulation is to look at
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

    def run_until(self, condition, int64_t end_ns, int64_t every=1):
        """One turn after the other until `condition()`, which is asked after every so many of them: True. False if the
        time is over, or something has failed. Raises Stuck as run_one does."""
        cdef int64_t count = 0
        while count % every or not condition():
            if self.now_ns > end_ns or self.defective:
                return False
            try:
                self.run_one()
            except Stuck:
                if condition():
                    return True
                raise
            count += 1
        return True

    cpdef run_one(self):
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

    # --- turns

    cdef turn(self, Waiter thread):
        """Lets a thread run until it waits."""
        process, before, thread_before = thread.process, self.current, self.thread
        thread.runnable = True
        self.current, self.thread = process, thread
        try:
            if process.short is None:
                thread.greenlet.switch()
            else:
                with process.short.holding():
                    thread.greenlet.switch()
        finally:
            self.current, self.thread = before, thread_before
        if thread.finished:
            process.threads.remove(thread)

    cdef turn_of_engine(self, engine):
        """Lets an engine take a pass, or the last look before it sleeps."""
        cdef epoll_event rung[8]
        cdef Waiter waiter = engine.waiter
        cdef int64_t longest_ms
        process = engine.process
        self.current = process
        try:
            if not waiter.runnable:
                epoll_wait(waiter.edges_fd, rung, 8, 0)
                waiter.wake()
            now_ns = _EPOCH_NS + self.now_ns + <int64_t>process.skew_ns
            if waiter.idle < LAPS_BEFORE_SLEEP:
                waiter.idle = 0 if engine.step_once(now_ns) else waiter.idle + 1
            else:
                epoll_wait(waiter.edges_fd, rung, 8, 0)
                waiter.runnable = False
                longest_ms = engine.sleep_ms_max
                waiter._deadline_ns = NEVER if longest_ms < 0 else self.now_ns + longest_ms * 1_000_000
                if engine.step_once(now_ns, falls_asleep=True):
                    waiter.wake()
        finally:
            self.current = self.outside
        if self.on_pass is not None:
            self.on_pass(engine)

    # --- waiting

    def wait(self, ready, timeout_s, int polled_fd=-1, told=()):
        """The running thread waits until `ready()`, or `told` has something, or `polled_fd` is readable, or the time is
        over; False for that. `ready` is called at every step of the run, and costs accordingly."""
        cdef Waiter thread
        if self.ending:
            raise GreenletExit
        if told or (ready is not None and ready()):
            return True
        if self.thread is None:
            raise RuntimeError(f"{self.current} waits outside of a thread")
        thread = self.thread
        thread.ready, thread.told = ready, told
        thread._deadline_ns = NEVER if timeout_s is None else self.now_ns + max(0, int(timeout_s * 1e9))
        thread.polled_fd = polled_fd
        thread.runnable = False
        self.pause()
        thread.told = ()
        if told or (ready is not None and ready()):
            return True
        return self.now_ns < thread._deadline_ns

    cpdef pause(self):
        """The running thread lets others run, and could go on at once. The running loop of asyncio is this thread's
        own, and so is its task, which from Python 3.14 on asyncio keeps for each thread of the system and no longer for
        each loop."""
        loop, task = running_loop(), None
        if loop is None:
            self.scheduler.switch()
            return
        if TASK_OF_THREAD:
            task = tasks._swap_current_task(loop, None)
        set_running_loop(None)
        try:
            self.scheduler.switch()
        finally:
            set_running_loop(loop)
            if task is not None:
                tasks._swap_current_task(loop, task)
