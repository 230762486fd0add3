"""What stands in for the standard library's while a run lasts.

Only what is not the same every time, or what would block the one thread there is: clocks, randomness, threads, polling,
processes. Everything is put back afterwards, whatever happens.
"""

from __future__ import annotations

import os
import re
import secrets
import select
import socket
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, ClassVar
from unittest.mock import patch

import spindle.client.embedding
import spindle.pool.pooling
import spindle.security.loopback
import spindle.service.daemon
import spindle_core.engine
import spindle_core.links.duplex
import spindle_core.links.user
import spindle_core.remote
from spindle.security.access import PeerCredentials
from spindle_core.remote import Bell
from spindle_lab.whole import threads
from spindle_lab.whole.embedding import SimEmbeddedNode
from spindle_lab.whole.engines import SimEngine
from spindle_lab.whole.loop import SimLoop
from spindle_lab.whole.pools import SimDriver, SimDuplex, SimLinkUser, SimListening
from spindle_lab.whole.sockets import SimSocket
from spindle_lab.whole.system import REAL_EPOLL, PidFd, System
from spindle_lab.whole.turns import EPOCH_NS


class SimPoll:
    """`select.poll` of the running thread."""

    system: System

    def __init__(self) -> None:
        self._masks: dict[int, int] = {}

    def register(self, fd: Any, mask: int = select.POLLIN | select.POLLPRI | select.POLLOUT) -> None:
        """As select.poll's."""
        number = fd if isinstance(fd, int) else fd.fileno()
        if number < 0:
            raise ValueError(f"file descriptor cannot be a negative integer ({number})")
        self._masks[number] = mask

    def poll(self, timeout_ms: float | None = None) -> list[tuple[int, int]]:
        """As select.poll's."""
        system = self.system
        found = self._look()
        if found or timeout_ms == 0 or system.thread is None:
            return found
        with system.plenty():
            epoll = REAL_EPOLL()
        try:
            for fd, mask in self._masks.items():
                epoll.register(fd, mask)
            system.watch(epoll.fileno(), system.thread)
            system.thread.polling = frozenset(self._masks)
            end_ns = None if timeout_ms is None or timeout_ms < 0 else system.now_ns + int(timeout_ms * 1e6)
            while not (found := self._look()) and (end_ns is None or system.now_ns < end_ns):
                system.wait(None, None if end_ns is None else (end_ns - system.now_ns) / 1e9, epoll.fileno())
                if gone := system.thread.hung_up:  # somebody else may have its number by now
                    return [(fd, select.POLLHUP) for fd in sorted(gone)]
            return found
        finally:
            if system.thread is not None:
                system.thread.polling = frozenset()
                system.thread.hung_up.clear()
            system.unwatch(epoll.fileno())
            epoll.close()

    def _look(self) -> list[tuple[int, int]]:
        real = REAL_POLL()
        for fd, mask in self._masks.items():
            real.register(fd, mask)
        return real.poll(0)


class SimBell(Bell):
    """The doorbell of a program on a host without a node."""

    def wait(self, timeout_s: float) -> None:
        """As the bell's."""
        poll = SimPoll()
        poll.register(self.fd, select.POLLIN)
        if poll.poll(timeout_s * 1000):
            os.read(self.fd, 8)


class SimFinalize(weakref.finalize):
    """`weakref.finalize` of a run. A finalizer that hasn't run by its end never does: else this process would keep its
    arguments for good, and call it in the end."""

    __slots__ = ()
    system: ClassVar[System]

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.system.finalizers.append(self)


KINDS = (SimFinalize, threads.Thread, threads.Lock, threads.Condition, threads.Event, SimSocket, SimEngine, SimPoll,
         SimEmbeddedNode, SimDriver, SimLinkUser, SimDuplex, SimListening)
REAL_POLL = select.poll
REAL_OPEN, REAL_CLOSE, REAL_DUP = os.open, os.close, os.dup
REAL_PIDFD_OPEN, REAL_MEMFD_CREATE = os.pidfd_open, os.memfd_create


@contextmanager
def patched(system: System) -> Iterator[None]:
    """While in it, this process's standard library is that of the simulation."""

    def opened(path: Any, *args: Any, **more: Any) -> int:
        if path == os.devnull:  # nodes hold many of these: a copy does the same, and is cheaper
            fd = REAL_DUP(system.nothing)
            system.current.fds[fd] = nothing
        elif whose := re.fullmatch(r"/proc/(\d+)/fd/(\d+)", str(path)):
            fd = opened_beside(int(whose[1]), int(whose[2]), *args)
        elif str(path).startswith("/proc/self/fd/"):  # memory, of which the kernel knows who maps it
            if system.current.short is not None:
                system.current.short.map()
            fd = REAL_OPEN(path, *args)
        else:
            fd = REAL_OPEN(path, *args, **more)
            system.current.own(fd)
        return fd

    def opened_beside(pid: int, fd: int, flags: int) -> int:
        """Of another process. Every other one has more rights than its user, so nobody may look into it."""
        process = system.by_pid(pid)
        if process is None or not process.alive or process.host != system.current.host:
            raise FileNotFoundError(2, "No such file or directory")
        if process.uid != system.current.uid or pid % 2:
            raise PermissionError(13, "Permission denied")
        held = REAL_OPEN(f"/proc/self/fd/{fd}", flags)
        if os.fstat(held).st_ino not in process.memories:  # what another simulated process has under that number
            REAL_CLOSE(held)
            raise FileNotFoundError(2, "No such file or directory")
        return held

    def copied(fd: int) -> int:
        copy = REAL_DUP(fd)
        system.current.own_if_socket(copy)
        return copy

    def closed(fd: int) -> None:
        system.current.fds.pop(fd, None)
        REAL_CLOSE(fd)

    def pidfd_open(pid: int, flags: int = 0) -> int:
        process = system.by_pid(pid)
        if process is None:
            return REAL_PIDFD_OPEN(pid, flags)
        if not process.alive:
            raise ProcessLookupError(3, "No such process")
        if system.current.short is not None:
            system.current.short.open()
        with system.plenty():
            made = PidFd()
        process.watchers.append(made)
        return made.fd

    def memfd_create(*args: Any) -> int:
        if system.current.short is not None:
            system.current.short.map()
        fd = REAL_MEMFD_CREATE(*args)
        system.current.memories.add(os.fstat(fd).st_ino)
        return fd

    def credentials(sock: Any) -> PeerCredentials:
        peer = sock.peer
        return PeerCredentials(peer.pid, peer.uid, peer.uid, frozenset({peer.uid}))

    def sleep(seconds: float) -> None:
        system.wait(None, seconds)

    def now_ns() -> int:
        return system.now_ns + system.current.skew_ns

    nothing = system.outside.identity(system.nothing)
    for kind in KINDS:
        kind.system = system
    rng = system.random
    replaced: list[tuple[Any, str, Any]] = [
        (time, "monotonic", lambda: now_ns() / 1e9),
        (time, "monotonic_ns", now_ns),
        (time, "perf_counter", lambda: now_ns() / 1e9),
        (time, "time", lambda: (EPOCH_NS + now_ns()) / 1e9),
        (time, "time_ns", lambda: EPOCH_NS + now_ns()),
        (time, "sleep", sleep),
        (threading, "Thread", threads.Thread),
        (threading, "Lock", threads.Lock),
        (threading, "RLock", threads.RLock),
        (threading, "Condition", threads.Condition),
        (threading, "Event", threads.Event),
        (threading, "current_thread", lambda: system.thread or threads.REAL_CURRENT_THREAD()),
        (select, "poll", SimPoll),
        (weakref, "finalize", SimFinalize),
        (socket, "socket", SimSocket),
        (os, "getpid", lambda: system.current.pid),
        (os, "geteuid", lambda: system.current.uid),
        (os, "pidfd_open", pidfd_open),
        (os, "memfd_create", memfd_create),
        (os, "open", opened),
        (os, "close", closed),
        (os, "dup", copied),
        (os, "urandom", lambda n: rng.randbytes(n)),
        (secrets, "token_bytes", lambda n=32: rng.randbytes(n)),
        (secrets, "token_hex", lambda n=32: rng.randbytes(n).hex()),
        (secrets, "randbits", rng.getrandbits),
        (spindle_core.engine, "Engine", SimEngine),
        (spindle_core.remote, "Bell", SimBell),
        (spindle.pool.pooling, "Driver", SimDriver),
        (spindle.pool.pooling, "be_prompt", lambda realtime, nice: ""),
        (spindle_core.links.user, "LinkUser", SimLinkUser),
        (spindle_core.links.duplex, "Duplex", SimDuplex),
        (spindle_core.links.duplex, "Listening", SimListening),
        (spindle.client.embedding, "EmbeddedNode", SimEmbeddedNode),
        (spindle.service.daemon, "new_loop", lambda: SimLoop(system, system.current, system.keep_back)),
        (spindle.security.loopback, "user_at", lambda address, here: SimSocket.lines.user_at(address, here)),
        (PeerCredentials, "of", staticmethod(credentials)),
    ]
    with ExitStack() as stack:
        for where, name, stand_in in replaced:
            stack.enter_context(patch.object(where, name, stand_in))
        yield


def forget() -> None:
    """After a run: nothing holds it any more."""
    for kind in KINDS:
        del kind.system
    del SimSocket.lines
