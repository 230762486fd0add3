"""The operating system of a simulation: processes with threads, one clock, and what is due next.

Rules:
- `run_one` lets one thread run until it waits, or one engine take a pass; which one is drawn from the seed.
- A process is stopped (SIGSTOP: nothing of it runs, its descriptors stay) or killed (nothing of it ever runs again, and
  its descriptors close at once, as the kernel does it). What it had mapped with others stays as it was.
- Nobody reads a real clock. Time passes a little with whatever runs, and jumps to the next deadline when nothing can.
"""

from __future__ import annotations

import heapq
import io
import os
import random
import select
import stat
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from greenlet import GreenletExit, getcurrent

from spindle_lab.whole.threads import Thread
from spindle_lab.whole.turns import Turns, Waiter

if TYPE_CHECKING:
    from spindle.applications.attachment import Attachments
    from spindle_lab.whole.engines import SimEngine
    from spindle_lab.whole.lines import Lines
    from spindle_lab.whole.loop import SimLoop
    from spindle_lab.whole.shortage import Shortage
    from spindle_lab.whole.sockets import SimSocket

FIRST_PID = 1_000_000  # above what the kernel gives to real ones here
REAL_EPOLL = select.epoll


class PidFd:
    """What others poll to see a process end: a pipe whose other end closes then."""

    def __init__(self) -> None:
        self.fd, ours = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._ours: io.FileIO | None = io.FileIO(ours, "wb")

    def end(self) -> None:
        """It has ended."""
        ours, self._ours = self._ours, None
        if ours is not None:
            ours.close()


class Process:
    """One simulated process. `host` names its machine; `uid` its user."""

    def __init__(self, system: System, name: str, host: str, uid: int) -> None:
        self.system, self.name, self.host, self.uid = system, name, host, uid
        self.pid = system.next_pid()
        self.alive = True
        self.stopped = False
        self.short: Shortage | None = None
        self.skew_ns = 0
        self.threads: list[Thread] = []
        self.engines: list[SimEngine] = []
        self.waiters: list[Waiter] = []  # of the engines
        self.loops: list[SimLoop] = []
        self.sockets: dict[int, SimSocket] = {}  # by serial number
        self.fds: dict[int, tuple[int, int]] = {}  # files, and sockets without their object: device and inode of each
        self.memories: set[int] = set()  # that it has made or got: inodes
        self.watchers: list[PidFd] = []
        self.failures: list[tuple[Thread, BaseException]] = []
        self.result: Any = None
        self.on_embedded: Callable[[Attachments], None] = lambda _: None  # a node in it serves
        self.embedded_error: BaseException | None = None  # why that has ended

    def __str__(self) -> str:
        return self.name

    def identity(self, fd: int) -> tuple[int, int]:
        """What is behind a descriptor."""
        found = os.fstat(fd)
        return found.st_dev, found.st_ino

    def own(self, fd: int, identity: tuple[int, int] | None = None) -> None:
        """It has opened this, and the kernel is to close it at its end. `identity`: what is behind it, if known."""
        self.fds[fd] = identity or self.identity(fd)
        before, self.system.owners[fd] = self.system.owners.get(fd), self
        if before is not None and before is not self:  # code of C closed it there, which says nothing of it
            before.fds.pop(fd, None)

    def own_if_socket(self, fd: int) -> None:
        """It has this from another process, or a second time. Only of a socket others hear that its last descriptor is
        closed; and what else changes hands can't be told from its like (eventfds), or is mapped by others as well."""
        found = os.fstat(fd)
        if stat.S_ISSOCK(found.st_mode):
            self.own(fd, (found.st_dev, found.st_ino))

    def thread_failed(self, thread: Thread, error: BaseException) -> None:
        """An exception came out of a thread."""
        self.failures.append((thread, error))
        self.system.defective = True

    def spawn(self, target: Callable[..., Any], *args: Any, name: str = "main") -> Thread:
        """Starts a thread in it."""
        with self.system.within(self):
            thread = Thread(target=target, args=args, name=name)
            thread.start()
        return thread


class System(Turns):
    """All processes of a run, and their clock."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        # Everything that a thread or an engine waits at is watched by one epoll.
        super().__init__(REAL_EPOLL(), self.random.getrandbits)
        self.processes: list[Process] = []
        self.broken: Exception | None = None  # a promise that a check has seen broken in the middle of a turn
        self.defective = False  # `broken` is set, or a thread or task has failed and nobody there looks at it
        self.outside = self.current = Process.__new__(Process)  # whoever drives the simulation
        self.thread = None
        self.scheduler = getcurrent()
        self.serial = self.idents = self.pids = 0
        self.finalizers: list[weakref.finalize[..., Any]] = []  # of all processes
        self.owners: dict[int, Process] = {}  # who has last owned a descriptor of this number
        self.taken: list[int] = []  # descriptors of killed processes, whose numbers stay taken
        self.nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
        self.listening: dict[str, Any] = {}
        self.ending = False
        self.on_pass = None
        self.on_kill: Callable[[Process], None] | None = None
        self.keep_back: Callable[[int], int] = lambda _: 0  # see SimSelector
        self._outside_init()

    def _outside_init(self) -> None:
        one = self.outside
        one.system, one.name, one.host, one.uid, one.pid = self, "outside", "", 0, os.getpid()
        one.alive, one.stopped, one.skew_ns, one.short = True, False, 0, None
        one.threads, one.engines, one.waiters, one.sockets, one.fds = [], [], [], {}, {}
        one.memories, one.watchers, one.failures, one.result = set(), [], [], None

    def next_pid(self) -> int:
        """A pid that nobody had."""
        self.pids += 1
        return FIRST_PID + self.pids

    def next_ident(self) -> int:
        """A thread's number."""
        self.idents += 1
        return self.idents

    def next_serial(self) -> int:
        """A number for whatever needs an order of its own."""
        self.serial += 1
        return self.serial

    @contextmanager
    def within(self, process: Process) -> Iterator[None]:
        """What happens is done by this process."""
        before, self.current = self.current, process
        try:
            yield
        finally:
            self.current = before

    # --- processes

    def process(self, name: str, host: str, uid: int = 0) -> Process:
        """A new one, without threads yet."""
        process = Process(self, name, host, uid)
        self.processes.append(process)
        self.alive.append(process)
        return process

    def by_pid(self, pid: int) -> Process | None:
        """The process of this pid, dead ones included."""
        at = pid - FIRST_PID - 1
        return self.processes[at] if 0 <= at < len(self.processes) else None

    def kill(self, process: Process) -> None:
        """kill -9."""
        if not process.alive:
            return
        process.alive = False
        self.alive.remove(process)
        for thread in process.threads:
            self.unwatch(thread.polled_fd)
        for engine in process.engines:
            self.unwatch(engine.edges.fileno())
        for sock in list(process.sockets.values()):
            sock.close_as_kernel()
        with self.within(process):
            for engine in process.engines:
                engine.disconnect()
        for fd, identity in list(process.fds.items()):
            try:
                if process.identity(fd) == identity:  # else closed by code that says nothing of it
                    # Its number stays taken: what is torn down later closes it again, and not somebody else's.
                    os.dup2(self.nothing, fd, inheritable=False)
                    self.taken.append(fd)
            except OSError:
                pass
        process.fds.clear()
        if self.on_kill is not None:
            self.on_kill(process)
        for pidfd in process.watchers:
            pidfd.end()
        process.watchers.clear()

    def end(self) -> None:
        """The run is over: nothing of it runs any more, and nothing of it says anything."""
        for process in self.processes:
            for thread in list(process.threads):
                self._end_thread(thread)
            with self.within(process):
                for loop in process.loops:
                    loop.end()
            self.kill(process)
        for finalizer in self.finalizers:
            finalizer.detach()
        self.due.clear()
        self.watched.close()

    def forget(self) -> None:
        """Lets go of everything."""
        self.processes.clear()
        self.alive.clear()
        self.owners.clear()
        self.listening.clear()
        self.waits.clear()
        self.broken = None  # its traceback has all that ran when it was raised
        self.on_pass = self.on_kill = None
        self.keep_back = lambda _: 0

    def close(self) -> None:
        """Call it once all that was forgotten is gone: those objects still close what they had open."""
        nothing = self.outside.identity(self.nothing)
        for fd in set(self.taken):
            try:
                if self.outside.identity(fd) == nothing:
                    os.close(fd)
            except OSError:  # closed already by what was torn down
                pass
        os.close(self.nothing)

    def _end_thread(self, thread: Thread) -> None:
        """Whatever it has to say on its way out, nobody hears it."""
        self.current, self.thread = thread.process, thread
        self.ending = True
        try:
            for _ in range(20):
                if thread.greenlet is None or thread.finished or thread.greenlet.dead:
                    break
                thread.greenlet.throw(GreenletExit)
        except BaseException:
            pass
        finally:
            self.current, self.thread = self.outside, None

    # --- time

    def at(self, when_ns: int, call: Callable[[], None]) -> None:
        """Calls it at that time, outside all processes."""
        heapq.heappush(self.due, (when_ns, self.next_serial(), call))

    def after(self, delay_ns: int, call: Callable[[], None]) -> None:
        """Calls it after so long."""
        self.at(self.now_ns + delay_ns, call)

    # --- waiting: `wait` and `pause` are those of `Turns`

    def watch(self, fd: int, who: Waiter) -> None:
        """`who` may run when this descriptor is readable."""
        self.waits[fd] = who
        self.watched.register(fd, select.EPOLLIN)

    def watch_always(self, fd: int, lines: Lines) -> None:
        """The lines, which belong to no process."""
        self.waits[fd] = lines
        self.lines_fd = fd
        self.watched.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        """Not any more."""
        if self.waits.pop(fd, None) is not None:
            try:
                self.watched.unregister(fd)
            except (OSError, ValueError):
                pass

    # --- running

    @contextmanager
    def plenty(self) -> Iterator[None]:
        """What is opened meanwhile is the simulation's own, whatever the running process can still have."""
        with self.current.short.plenty() if self.current.short is not None else nullcontext():
            yield
