"""Lines between hosts: what TCP is to the nodes, with delays, breaks and hosts that vanish.

A connection is two pairs of Unix sockets and this module between them, so the node's code and the core's TCP fabric
read and write real descriptors. Bytes arrive in order, in pieces of any size, after the line's delay. A direction that
is cut holds them back, as TCP sends again until the line is whole; a host without power never says that it has gone.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import os
import select
import socket
from collections import deque
from typing import TYPE_CHECKING

from spindle_lab.whole.patience import Patience
from spindle_lab.whole.sockets import REAL_SOCKET, SimSocket
from spindle_lab.whole.system import REAL_EPOLL

if TYPE_CHECKING:
    from spindle_lab.whole.system import System

QUEUE_BYTES_MAX = 1 << 18  # what a line takes before its sender's socket fills
PIECE_BYTES_MAX = 1 << 16
RETRY_NS = 200_000
RESEND_NS = 200_000_000  # what isn't acknowledged is sent again
FIRST_PORT = 40_000


@dataclasses.dataclass(eq=False)
class Way:
    """One direction of a connection."""

    number: int
    source: REAL_SOCKET
    target: REAL_SOCKET
    from_host: str
    to_host: str
    patience: Patience  # of the end that sends on it
    queue: deque[tuple[int, bytes]] = dataclasses.field(default_factory=deque)  # arrival, bytes
    waiting: int = 0  # bytes in the queue
    arrival_ns: int = 0
    read: bool = True
    ended: bool = False  # the source says so
    moving: bool = False
    nobody_sends: bool = False  # the source's host has lost its power, and knows nothing of the connection
    nobody_receives: bool = False
    resending_ns: int = -1  # since when what is sent on it stays unanswered
    over: bool = False  # nothing goes this way any more
    back: Way = dataclasses.field(init=False)  # the other direction


class Lines:
    """All lines of a run. Delays are uniform between the two of `delay_ns`."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.delay_ns = (20_000, 300_000)
        self.far_ns: dict[str, tuple[int, int]] = {}  # the same of lines to hosts that are far away
        self.cut: set[tuple[str, str]] = set()  # directions
        self.closed_to_new: set[tuple[str, str]] = set()  # connections can't be opened, old ones stay
        self.powerless: set[str] = set()
        self._listening: dict[tuple[str, int], SimSocket] = {}
        self._users: dict[str, int] = {}  # by "host:port": the user who has that end
        self._ports = FIRST_PORT
        self._ways: dict[int, Way] = {}
        self._epoll = REAL_EPOLL()
        system.watch_always(self._epoll.fileno(), self)

    def address(self, host: str) -> str:
        """The host's address."""
        return f"127.0.{host[1:]}.1"

    def _host(self, address: str) -> str:
        return "h" + address.split(".")[2]

    # --- sockets

    def bind(self, sock: SimSocket, address: tuple[str, int]) -> None:
        """Takes a port, or says that it is taken or not of this host."""
        host, port = address[0], address[1]
        if host in ("0.0.0.0", ""):
            host = self.address(sock.owner.host)
        if host != self.address(sock.owner.host):
            raise OSError(errno.EADDRNOTAVAIL, "Cannot assign requested address")
        if port == 0:
            self._ports += 1
            port = self._ports
        known = self._listening.get((host, port))
        if known is not None and known.fileno() >= 0:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        with self.system.plenty():
            one, other = _pair()
        os.dup2(one.fileno(), sock.fileno())
        one.close()
        sock.setblocking(False)
        sock.here, sock.doorbell = (host, port), other
        self._listening[host, port] = sock
        self._users[f"{host}:{port}"] = sock.owner.uid

    def user_at(self, address: str, here: str) -> int | None:
        """As `spindle.security.loopback` finds it."""
        return self._users.get(address)

    def closed(self, sock: SimSocket) -> None:
        """A listening socket is closed."""
        if self._listening.get(sock.here) is sock:
            del self._listening[sock.here]
        if sock.doorbell is not None:
            sock.doorbell.close()
            sock.doorbell = None
        for waiting, _, _ in sock.pending:
            waiting.close()
        sock.pending.clear()

    def accept(self, sock: SimSocket) -> tuple[SimSocket, tuple[str, int]]:
        """As socket.accept."""
        if self.system.current.short is not None:
            self.system.current.short.open()
        sock.recv(1)  # raises BlockingIOError where nobody waits
        real, address, patience = sock.pending.popleft()
        made = SimSocket(socket.AF_INET, socket.SOCK_STREAM, 0, real.detach())
        made.patience = patience
        made.setblocking(False)
        made.here, made.there = sock.here, address
        return made, address

    async def reach(self, sock: SimSocket, address: tuple[str, int]) -> None:
        """As connect(): refused where nobody listens, without an answer where the line is cut."""
        mine, theirs = sock.owner.host, self._host(address[0])
        while self._unanswered(mine, theirs):
            await asyncio.sleep(0.05)
        await asyncio.sleep(2 * self._draw(mine, theirs) / 1e9)
        self._connect(sock, address)

    def reach_blocking(self, sock: SimSocket, address: tuple[str, int]) -> None:
        """The same for a thread, which waits as long as its socket says. Raises TimeoutError."""
        timeout_s = sock.gettimeout()
        end_ns = None if timeout_s is None else self.system.now_ns + int(timeout_s * 1e9)
        mine, theirs = sock.owner.host, self._host(address[0])
        while self._unanswered(mine, theirs):
            if end_ns is not None and self.system.now_ns >= end_ns:
                raise TimeoutError("timed out")
            self.system.wait(None, 0.05)
        self.system.wait(None, 2 * self._draw(mine, theirs) / 1e9)
        self._connect(sock, address)

    def _connect(self, sock: SimSocket, address: tuple[str, int]) -> None:
        mine, theirs = sock.owner.host, self._host(address[0])
        listener = self._listening.get((address[0], address[1]))
        if listener is None or listener.doorbell is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused")
        with self.system.plenty():
            near, a = _pair()
            far, b = _pair()
        os.dup2(near.fileno(), sock.fileno())
        near.close()
        self._ports += 1
        sock.here, sock.there = (self.address(mine), self._ports), address
        self._users[f"{sock.here[0]}:{sock.here[1]}"] = sock.owner.uid
        there = Way(self.system.next_serial(), a, b, mine, theirs, sock.patience)
        back = Way(self.system.next_serial(), b, a, theirs, mine, Patience())
        there.back, back.back = back, there
        for way in (there, back):
            self._ways[way.source.fileno()] = way
            self._epoll.register(way.source.fileno(), select.EPOLLIN)
        listener.pending.append((far, sock.here, back.patience))
        listener.doorbell.send(b"!")

    def _unanswered(self, mine: str, theirs: str) -> bool:
        return self._silent(mine, theirs) or (mine, theirs) in self.closed_to_new or (
            theirs, mine) in self.closed_to_new

    def lose_power(self, host: str) -> None:
        """Of a host nothing comes any more, not even an end."""
        self.powerless.add(host)
        for way in self._ways.values():
            way.nobody_sends |= way.from_host == host
            if way.to_host == host and not way.nobody_receives:
                way.nobody_receives = True
                if way.patience.keepalive:
                    self._ask_again(way, self.system.now_ns, way.patience.keepidle)

    def _ask_again(self, way: Way, since_ns: int, wait_s: float) -> None:
        self.system.after(int(wait_s * 1e9), lambda: self._probe(way, since_ns))

    def _probe(self, way: Way, since_ns: int) -> None:
        """The end that sends on this way has heard nothing since `since_ns`, and asks whether anybody is there."""
        if way.over or way.nobody_sends:
            return
        silent_s = (self.system.now_ns - since_ns) / 1e9
        if silent_s >= way.patience.silent_s or not self._silent(way.from_host, way.to_host):
            self._break(way)
        else:
            self._ask_again(way, since_ns, way.patience.keepintvl)

    def reset(self, one: str, other: str, most: int | None = None) -> int:
        """Breaks the connections between two hosts, all or at most `most` drawn ones; both ends hear of it. Returns in
        how many directions there was something to break."""
        found = [way for way in self._ways.values() if {way.from_host, way.to_host} == {one, other}
                 and way.number < way.back.number]
        if most is not None:
            found = self.system.random.sample(found, min(most, len(found)))
        broken = [way for there in found for way in (there, there.back) if not way.ended]
        for way in broken:
            self._end(way)
        return len(broken)

    # --- bytes on their way

    def _draw(self, one: str, other: str) -> int:
        delay_ns = self.far_ns.get(one) or self.far_ns.get(other) or self.delay_ns
        return self.system.random.randint(*delay_ns)

    def turn(self) -> None:
        """Takes what has been sent on all of them."""
        found = [(fd, self._ways[fd]) for fd, _ in self._epoll.poll(0)]
        for fd, way in sorted(found, key=lambda one: one[1].number):
            if self._ways.get(fd) is way:
                self._take(fd, way)

    def _take(self, fd: int, way: Way) -> None:
        try:
            data = way.source.recv(self.system.random.randint(1, PIECE_BYTES_MAX))
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._epoll.unregister(fd)
            way.read, way.ended = False, True
        way.arrival_ns = max(way.arrival_ns, self.system.now_ns + self._draw(way.from_host, way.to_host))
        way.queue.append((way.arrival_ns, data))
        way.waiting += len(data)
        if way.read and way.waiting > QUEUE_BYTES_MAX:
            way.read = False
            self._epoll.unregister(fd)
        self._move(way)

    def _move(self, way: Way) -> None:
        if not way.moving and way.queue:
            way.moving = True
            self.system.at(max(way.queue[0][0], self.system.now_ns + 1), lambda: self._arrive(way))

    def _arrive(self, way: Way) -> None:
        way.moving = False
        if way.nobody_sends or way.nobody_receives:
            self._arrive_at_nobody(way)
            return
        again_ns = 0
        if (way.from_host, way.to_host) in self.cut:
            again_ns = 5_000_000
        else:
            while way.queue and way.queue[0][0] <= self.system.now_ns:
                when, data = way.queue[0]
                if not data:
                    self._end(way)
                    return
                try:
                    sent = way.target.send(data)
                except BlockingIOError:
                    again_ns = RETRY_NS
                    break
                except OSError:  # nobody is there any more
                    self._end(way)
                    return
                way.waiting -= sent
                if sent == len(data):
                    way.queue.popleft()
                else:
                    way.queue[0] = (when, data[sent:])
                    again_ns = RETRY_NS
                    break
        if not way.read and not way.ended and way.waiting <= QUEUE_BYTES_MAX // 2:
            way.read = True
            self._epoll.register(way.source.fileno(), select.EPOLLIN)
        if way.queue:
            way.moving = True
            self.system.at(max(way.queue[0][0], self.system.now_ns + max(1, again_ns)), lambda: self._arrive(way))

    def _arrive_at_nobody(self, way: Way) -> None:
        """A host that was without power sends nothing more. What is sent to it is sent again, until the host is back
        and says that it knows no such connection, or until the sender's patience is over."""
        if way.nobody_sends:
            way.queue.clear()
            way.waiting = 0
            return
        if way.resending_ns < 0:
            way.resending_ns = self.system.now_ns
        if self._silent(way.from_host, way.to_host) and (
                self.system.now_ns - way.resending_ns < way.patience.unanswered_s * 1e9):
            way.moving = True
            self.system.after(RESEND_NS, lambda: self._arrive(way))
        else:
            self._break(way)

    def _break(self, way: Way) -> None:
        """The connection is gone as a whole, for who sends on this way."""
        for one in (way, way.back):
            if not one.over:
                self._end(one)

    def _silent(self, mine: str, theirs: str) -> bool:
        """A host gets no answer from another one, not even a refusal."""
        return theirs in self.powerless or (mine, theirs) in self.cut or (theirs, mine) in self.cut

    def _end(self, way: Way) -> None:
        """The source has closed, or the target is gone: so is the connection, as far as this direction goes."""
        way.queue.clear()
        way.waiting = 0
        try:
            way.target.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        if not way.ended:
            way.ended = True
            if way.read:
                way.read = False
                self._epoll.unregister(way.source.fileno())
            try:
                way.source.shutdown(socket.SHUT_RD)
            except OSError:
                pass
        way.over = True
        if way.back.over:
            for one in (way, way.back):
                self._ways.pop(one.source.fileno(), None)
                one.source.close()

    def close(self) -> None:
        """The end of the run."""
        for way in self._ways.values():
            way.source.close()
        self._epoll.close()


def _pair() -> tuple[REAL_SOCKET, REAL_SOCKET]:
    import _socket

    made = []
    for one in _socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK | socket.SOCK_CLOEXEC):
        made.append(REAL_SOCKET(socket.AF_UNIX, socket.SOCK_STREAM, 0, one.detach()))
    return made[0], made[1]
