"""Sockets of simulated processes.

Unix sockets are the kernel's: bytes and descriptors pass as they do between processes. What the kernel can't know is
which simulated process is at the other end, so that is kept here. Sockets of other hosts are pairs of Unix sockets
with a line between them (`spindle_lab.whole.lines`).
"""

from __future__ import annotations

import os
import select
import socket
import ssl
import struct
from collections import deque
from typing import TYPE_CHECKING, Any

from spindle_lab.whole.patience import Patience

if TYPE_CHECKING:
    from spindle_lab.whole.lines import Lines
    from spindle_lab.whole.system import Process, System

REAL_SOCKET = socket.socket
FD = struct.Struct("i")
# Bytes that every buffer has room for. A handshake of TLS and the answer that follows it are among them: from OpenSSL
# 3.5 on a handshake has a key of ML-KEM, too (1,216 bytes).
LEAST_BUFFER = 2048 + (1280 if ssl.OPENSSL_VERSION_INFO >= (3, 5) else 0)


class SimSocket(REAL_SOCKET):
    """`socket.socket` in a run."""

    system: System
    lines: Lines
    small_buffers = False
    short_writes = False  # of what is sent, the kernel takes a part at times, or nothing just now

    def __init__(self, family: int = -1, type: int = -1, proto: int = -1, fileno: int | None = None) -> None:
        self.inet = family in (socket.AF_INET, socket.AF_INET6)
        if self.inet:
            super().__init__(socket.AF_UNIX, socket.SOCK_STREAM | (type & ~0xF if type > 0 else 0), 0, fileno)
        else:
            super().__init__(family, type, proto, fileno)
        self.owner: Process = self.system.current
        self.peer: Process = self.owner
        self.serial = self.system.next_serial()
        self.owner.sockets[self.serial] = self
        if self.small_buffers and not self.inet and self.type & 0xF == socket.SOCK_STREAM:
            REAL_SOCKET.setsockopt(self, socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel's least, a few KB
        self.sent = 0  # bytes, or more
        self.waits = False  # a thread's calls wait, as those of a blocking socket do
        self.receive_s: float | None = None  # how long
        self.path = ""
        self.here: tuple[str, int] = ("", 0)
        self.there: tuple[str, int] = ("", 0)
        self.patience = Patience()  # of one to another host
        self.pending: deque[Any] = deque()  # who has connected to a listening one
        self.doorbell: REAL_SOCKET | None = None  # of a listening one of another host: a byte for each that waits

    # --- what is sent

    def _taken(self, size: int) -> int:
        """How much the kernel takes of so many bytes; the first ones always. Raises BlockingIOError."""
        if not self.short_writes or self.type & 0xF != socket.SOCK_STREAM or size == 0:
            return size
        self.sent += size
        if self.sent < LEAST_BUFFER:
            return size
        rng = self.system.random
        chance = rng.random()
        if chance < 0.1:
            raise BlockingIOError
        return rng.randint(1, size) if chance < 0.3 else size

    def send(self, data: Any, *args: Any) -> int:
        return super().send(memoryview(data)[: self._taken(len(data))], *args)

    def sendmsg(self, buffers: Any, *args: Any) -> int:
        data = memoryview(b"".join(buffers))
        while True:
            try:
                return super().sendmsg([data[: self._taken(len(data))]], *args)
            except BlockingIOError:
                if not self._wait(select.POLLOUT):
                    raise

    def sendall(self, data: Any, flags: int = 0) -> None:
        view = memoryview(data)
        while view:
            view = view[self.sendmsg([view]):]

    # --- what comes with it

    def recvmsg(self, *args: Any) -> Any:
        """What comes with the bytes is the receiver's, and closed when that is killed."""
        came = super().recvmsg(*args)
        for level, kind, content in came[1]:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                for (fd,) in FD.iter_unpack(content[: len(content) - len(content) % FD.size]):
                    self.system.current.own_if_socket(fd)
                    self.system.current.memories.add(os.fstat(fd).st_ino)
        return came

    # --- a thread that waits

    def setblocking(self, flag: bool) -> None:
        """The descriptor never blocks: there is one thread for all that are simulated."""
        self.waits = flag
        super().setblocking(False)

    def _wait(self, mask: int, seconds: float | None = None) -> bool:
        """Whether it is ready; False after so long, or where calls don't wait."""
        if not self.waits or self.system.thread is None:
            return False
        poll = select.poll()
        poll.register(self, mask)
        return bool(poll.poll(None if seconds is None else seconds * 1000))

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        if not self.waits or flags & socket.MSG_DONTWAIT:
            return super().recv_into(buffer, nbytes, flags)
        view, done = memoryview(buffer), 0
        view = view[:nbytes or len(view)]
        while done < len(view):
            try:
                count = super().recv_into(view[done:])
            except BlockingIOError:
                if self._wait(select.POLLIN, self.receive_s):
                    continue
                if not done:
                    raise
                break
            done += count
            if not count or not flags & socket.MSG_WAITALL:
                break
        return done

    # --- one host

    def bind(self, address: Any) -> None:
        if self.inet:
            self.lines.bind(self, address)
            return
        super().bind(address)
        self.path = os.fspath(address)
        self.system.listening[self.path] = self

    def connect(self, address: Any) -> None:
        if self.inet:
            self.lines.reach_blocking(self, address)
            return
        super().connect(address)
        listener = self.system.listening.get(os.fspath(address))
        if listener is not None:
            self.peer = listener.owner
            listener.pending.append(self.owner)

    def listen(self, *args: Any) -> None:
        if not self.inet:
            super().listen(*args)

    def accept(self) -> tuple[Any, Any]:
        if self.inet:
            return self.lines.accept(self)
        sock, address = super().accept()
        if self.pending:
            sock.peer = self.pending.popleft()  # type: ignore[attr-defined]
        return sock, address

    async def reach(self, address: tuple[str, int]) -> None:
        """Connects to another host."""
        await self.lines.reach(self, address)

    # --- what it says of itself

    @property
    def family(self) -> Any:
        return socket.AF_INET if self.inet else super().family

    def getsockname(self) -> Any:
        return self.here if self.inet else super().getsockname()

    def getpeername(self) -> Any:
        return self.there if self.inet else super().getpeername()

    def setsockopt(self, *args: Any) -> None:
        if args[:2] == (socket.SOL_SOCKET, socket.SO_RCVTIMEO):
            seconds, microseconds = struct.unpack("@ll", args[2])
            self.receive_s = seconds + microseconds / 1e6
        elif self.inet:
            self.patience.set(*args)
        else:
            super().setsockopt(*args)

    # --- its end

    def shutdown(self, how: int) -> None:
        self._wake()
        super().shutdown(how)

    def close(self) -> None:
        self._wake()
        self._forget()
        super().close()

    def _wake(self) -> None:
        """Whoever polls it is woken before the descriptor is gone, as the kernel does it."""
        fd = self.fileno()
        for thread in self.owner.threads:
            if fd in thread.polling:
                thread.runnable = True
                thread.hung_up.add(fd)

    def detach(self) -> int:
        self._forget()
        fd = super().detach()
        if fd >= 0:
            self.owner.own(fd)
        return fd

    def close_as_kernel(self) -> None:
        """Its process was killed."""
        self._forget()
        super().close()

    def _forget(self) -> None:
        self.owner.sockets.pop(self.serial, None)
        if self.doorbell is not None:
            self.lines.closed(self)
