"""Connections between hosts: the one port that a node listens on, what comes in there, and what it opens to others.

Why one port for everything: it is one line in a firewall. The first four bytes tell what a connection is: TLS, control
without TLS (only where that is allowed), or a data connection, which carries one member's row to another for one epoch.

Rules:
- Control connections are frames (`spindle.transport.wire`) under TLS 1.3 with certificates of both ends, or plain: on
  loopback, or where `[network] plain` says so. Whoever connects in another way is told why it is refused, if possible.
- The opener of a data connection proves that it knows the token that the acceptor sent over their control connection;
  then the acceptor proves the same. A token is good for one connection. So a data connection belongs to two
  authenticated members, one view and one ballot, and a captured hello is worth nothing later.
- At most INTRODUCING_MAX connections are in introductions at once, each for `handshake_timeout_s` at most.
- Where a life of a node has proved to be, further data connections to it go without asking what its name stands for:
  each view has some, and a group that runs must not depend on a name server that answers.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import functools
import hashlib
import hmac
import ipaddress
import logging
import os
import socket
import struct
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from spindle.config.keys import is_literal, split_address
from spindle.errors import (
    AccessDenied,
    ConfigError,
    ConnectionEnded,
    ListenError,
    NoResources,
    SpindleError,
    shortage,
)
from spindle.logs import Sparing
from spindle.security.access import NetworkPeer, address_text
from spindle.security.identity import PLAIN as PLAIN_MODE
from spindle.security.trust import REMIND_S, Trust
from spindle.transport.frames import notice_vanished
from spindle.transport.wire import Connection, Limits
from spindle.waiting import aside, within

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.transport.names import Found

PLAIN, DATA = b"SPNC", b"SPND"  # how connections without TLS begin
TLS_RECORD = 0x16  # the first byte of one with
DATA_VERSION = 1
INTRODUCING_MAX = 256
LISTEN_BACKLOG = 128
ENDING_TIMEOUT_S = 1.0
UNANSWERED_MS_MIN = 10_000  # what was sent and isn't acknowledged by then ends a connection
RESEND_MS_MAX = 1000  # between attempts to send again, where the kernel can be told so
TCP_THIN_LINEAR_TIMEOUTS, TCP_RTO_MAX_MS = 16, 44  # of <linux/tcp.h>; Linux 6.15 has the second one
LOG = logging.getLogger("spindle.node")

Place = tuple[int, Any]  # the family and the address of a socket

_HELLO = struct.Struct("<4sHHIIQIIQQQ")  # without its proof
_PROOF_BYTES = 32
_ACCEPTED, _REFUSED = b"SPNA", b"SPNX"


@dataclasses.dataclass(frozen=True)
class DataHello:
    """Who opens a data connection, to whom, and for which ballot of which view."""

    domain_id: int
    node_id: int
    incarnation: int
    to_node_id: int
    group_id: int
    view_id: int
    ballot: int

    def pack(self) -> bytes:
        return _HELLO.pack(DATA, DATA_VERSION, 0, self.domain_id, self.node_id, self.incarnation, self.to_node_id, 0,
                           self.group_id, self.view_id, self.ballot)

    @classmethod
    def unpack(cls, data: bytes) -> DataHello:
        """Raises ConnectionEnded for another version."""
        _, version, _, domain, node_id, incarnation, to_node_id, _, group_id, view_id, ballot = _HELLO.unpack(data)
        if version != DATA_VERSION:
            raise ConnectionEnded(f"a data connection of version {version} came, this release has {DATA_VERSION}")
        return cls(domain, node_id, incarnation, to_node_id, group_id, view_id, ballot)


def _proof(token: bytes, what: bytes, hello: bytes) -> bytes:
    return hmac.digest(token, what + hello, hashlib.sha256)


class Network:
    """A node's connections to other hosts.

    on_connection(conn)        a control connection has come in, not introduced yet
    token_for(hello)           the token that the opener of this data connection was sent; None: nobody is expected
    on_data(hello, fd)         the opener has proved that it knows the token; the callee takes over the descriptor
    """

    def __init__(self, config: NodeConfig, on_connection: Callable[[Connection], None],
                 token_for: Callable[[DataHello], bytes | None], on_data: Callable[[DataHello, int], None]) -> None:
        self._config = config
        self._on_connection, self._token_for, self._on_data = on_connection, token_for, on_data
        self._limits = Limits(fds_max=0, frame_time_s=config.handshake_timeout_s)
        self._sock: socket.socket | None = None
        self._reminder: asyncio.TimerHandle | None = None
        self._introducing: set[asyncio.Task[None]] = set()
        self._trust = Trust.of(config)
        self._places: dict[int, tuple[int, Place]] = {}  # by node id: a life of it, and where that has proved to be
        self._astray: set[int] = set()  # node ids: the last attempt to reach them there failed
        self._closed = Sparing(LOG)
        self.endpoint = ""  # host:port, for others
        self.short: NoResources | None = None  # why the last connection that came in could not be taken

    # --- coming in

    def bind(self) -> None:
        """Takes the port. Raises ConfigError, ListenError."""
        if self._config.encrypt:
            from spindle.security import ktls

            if why := ktls.available():
                raise ConfigError(why)
        address = self._config.listen or "127.0.0.1:0"
        host, port = split_address(address)
        try:
            found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
            family, kind, protocol, _, where = found[0]
            sock = socket.socket(family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol)
        except OSError as error:
            raise ConfigError(f"[network] listen = {address}: {error.strerror or error}") from error
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(where)
            sock.listen(LISTEN_BACKLOG)
        except OSError as error:
            sock.close()
            hint = "; another process has that port" if error.errno == errno.EADDRINUSE else ""
            raise ListenError(f"[network] listen = {address}: {error.strerror}{hint}") from error
        if self._trust.mode == PLAIN_MODE:
            try:
                self._trust.check_plain(address_text(sock.getsockname()))
            except SpindleError:
                sock.close()
                raise
        self._sock = sock
        self._remind()

    async def locate(self, timeout_s: float) -> None:
        """Finds out by which address others reach this node. Name servers get this time: a contact whose name isn't
        known by then is taken for another host's."""
        assert self._sock is not None
        config, bound = self._config, self._sock.getsockname()
        hosts = [] if config.advertise else {split_address(contact)[0] for contact in config.contacts}
        asked = {asyncio.ensure_future(looked_up(host, 0, socket.SOCK_DGRAM)): host for host in hosts}
        waited = set(asked)
        known: dict[str, Sequence[Found]] = {}
        until = time.monotonic() + timeout_s
        try:
            while True:
                self.endpoint = endpoint_of(config, bound, lambda host: known.get(host, ()))
                if not waited or self.endpoint in config.contacts:
                    return
                done, waited = await asyncio.wait(waited, timeout=max(0.0, until - time.monotonic()),
                                                  return_when=asyncio.FIRST_COMPLETED)
                if not done:
                    return
                known.update((asked[one], one.result()) for one in done if one.exception() is None)
        finally:
            for one in waited:
                one.cancel()

    def _remind(self) -> None:
        """Warns every day while the certificate is about to end."""
        if warning := self._trust.ends_soon():
            LOG.warning("%s", warning)
        self._reminder = asyncio.get_running_loop().call_later(REMIND_S, self._remind)

    def serve(self) -> None:
        """From now on connections are accepted."""
        assert self._sock is not None
        asyncio.get_running_loop().add_reader(self._sock.fileno(), self._acceptable)

    def _acceptable(self) -> None:
        assert self._sock is not None
        loop = asyncio.get_running_loop()
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptor left: pause instead of spinning
            self.short = shortage(error, "a connection of another node")
            LOG.error("cannot accept a connection: %s", error)
            loop.remove_reader(self._sock.fileno())
            loop.call_later(1.0, self._serve_again)
            return
        self.short = None
        if len(self._introducing) >= INTRODUCING_MAX:
            LOG.warning("refused a connection: %d have not introduced themselves yet", INTRODUCING_MAX)
            sock.close()
            return
        task = loop.create_task(self._introduce(sock))
        self._introducing.add(task)

        def introduced(_: object) -> None:
            self._introducing.discard(task)
            if task.cancelled():  # perhaps before its first step, in which case it has closed nothing
                sock.close()

        task.add_done_callback(introduced)

    def _serve_again(self) -> None:
        if self._sock is not None:
            self.serve()

    async def _introduce(self, sock: socket.socket) -> None:
        """Finds out what a connection is, and hands it over."""
        address = "?"
        try:
            sock.setblocking(False)
            address = address_text(sock.getpeername())
            _prepare(sock, self._config.suspect_timeout_s)
            timeout_s = self._config.handshake_timeout_s
            first = await within(timeout_s, _receive(sock, len(PLAIN)))
            if first[0] == TLS_RECORD:
                await self._admit_tls(sock, first, timeout_s)
            elif first == PLAIN:
                self._admit_plain(sock)
            elif first == DATA:
                await within(timeout_s, self._admit_data(sock))
            else:
                raise ConnectionEnded("it began with what no node of this version sends")
        except (asyncio.TimeoutError, TimeoutError):
            self._say_closed(address, f"it has not introduced itself within {self._config.handshake_timeout_s:g} s")
            sock.close()
        except (OSError, SpindleError) as error:
            self._say_closed(address, str(error))
            sock.close()
        except BaseException:
            sock.close()
            raise

    def _say_closed(self, address: str, why: str) -> None:
        """In the log; the same of one host once a minute, as whatever looks whether the port is open comes for ever."""
        host = address.rpartition(":")[0]
        self._closed.warn((host, why.replace(address, host)), "closed a connection of %s: %s", address, why)

    async def _admit_tls(self, sock: socket.socket, first: bytes, timeout_s: float) -> None:
        if self._trust.mode == PLAIN_MODE:
            raise AccessDenied("it speaks TLS, and this node has no keys: set certificate, key and authority, or "
                               "secret, in its [network]")
        from spindle.security.tls import secured

        stream, identity = await secured(sock, self._trust, server_side=True, first=first, timeout_s=timeout_s)
        self._on_connection(Connection(sock, limits=self._limits, stream=stream, peer=NetworkPeer.of(sock, identity)))

    def _admit_plain(self, sock: socket.socket) -> None:
        conn = Connection(sock, limits=self._limits)
        try:
            self._trust.check_plain(str(conn.peer))
        except SpindleError as error:
            from spindle.transport.reception import refuse

            LOG.warning("refused a connection without keys: %s", error)
            refuse(conn, error)
        else:
            self._on_connection(conn)

    async def _admit_data(self, sock: socket.socket) -> None:
        rest = await _receive(sock, _HELLO.size - len(DATA) + _PROOF_BYTES)
        packed, proof = DATA + rest[:-_PROOF_BYTES], rest[-_PROOF_BYTES:]
        hello = DataHello.unpack(packed)
        token = self._token_for(hello)
        loop = asyncio.get_running_loop()
        if token is None or not hmac.compare_digest(proof, _proof(token, b"open", packed)):
            await loop.sock_sendall(sock, _REFUSED + bytes(_PROOF_BYTES))
            sock.close()
            LOG.debug("refused a data connection of node %d for view %d", hello.node_id, hello.view_id)
            return
        await loop.sock_sendall(sock, _ACCEPTED + _proof(token, b"accept", packed))
        self._protect(sock, token, packed, server_side=True)
        self._on_data(hello, sock.detach())

    # --- going out

    async def control(self, address: str, timeout_s: float) -> Connection:
        """As the function of this name."""
        return await _introduced(await self._connect(address, timeout_s), address, self._trust, timeout_s)

    async def data(self, address: str, hello: DataHello, incarnation: int, token: bytes, timeout_s: float) -> int:
        """The descriptor of a data connection to this life of the node. Raises ConnectionEnded."""
        sock = await self._connect_again(hello.to_node_id, incarnation, address, timeout_s)
        packed = hello.pack()
        try:
            loop = asyncio.get_running_loop()
            await loop.sock_sendall(sock, packed + _proof(token, b"open", packed))
            answer = await within(timeout_s, _receive(sock, len(_ACCEPTED) + _PROOF_BYTES))
            proof = _proof(token, b"accept", packed)
            if answer[:4] != _ACCEPTED or not hmac.compare_digest(answer[4:], proof):
                raise ConnectionEnded(f"node {hello.to_node_id} at {address} does not expect this data connection")
            self._places[hello.to_node_id] = incarnation, (sock.family, sock.getpeername())
            self._astray.discard(hello.to_node_id)
            self._protect(sock, token, packed, server_side=False)
        except (asyncio.TimeoutError, TimeoutError):
            sock.close()
            raise ConnectionEnded(f"node {hello.to_node_id} at {address} does not answer") from None
        except OSError as error:
            sock.close()
            if isinstance(error, SpindleError):
                raise
            raise ConnectionEnded(f"the data connection to {address} broke: {error}") from error
        except BaseException:
            sock.close()
            raise
        return sock.detach()

    async def _connect_again(self, node_id: int, incarnation: int, address: str, timeout_s: float) -> socket.socket:
        """To where this life of the node was. If nobody is reached there, the next attempt asks what the address stands
        for, and the one after that doesn't: the node may have several addresses, or the name server none to tell."""
        life, place = self._places.get(node_id, (-1, None))
        known = place if life == incarnation and node_id not in self._astray else None
        try:
            return await self._connect(address, timeout_s, known)
        except ConnectionEnded:
            (self._astray.discard if known is None else self._astray.add)(node_id)
            raise

    def _protect(self, sock: socket.socket, token: bytes, packed: bytes, server_side: bool) -> None:
        if self._config.encrypt:
            from spindle.security.ktls import protect

            protect(sock, _proof(token, b"keys", packed), server_side)

    async def _connect(self, address: str, timeout_s: float, place: Place | None = None) -> socket.socket:
        found = None if place is None else [(place[0], socket.SOCK_STREAM, 0, "", place[1])]
        return await _connected(address, timeout_s, self._config.suspect_timeout_s, found)

    # --- ending

    def close(self) -> None:
        """No more connections; what was handed over stays. Idempotent."""
        if self._reminder is not None:
            self._reminder.cancel()
        if self._sock is not None:
            asyncio.get_running_loop().remove_reader(self._sock.fileno())
            self._sock.close()
            self._sock = None
        for task in self._introducing:
            task.cancel()

    async def ended(self) -> None:
        """Returns when the tasks that close() has cancelled are over; a loop that ends before would warn of each."""
        if others := self._introducing - {asyncio.current_task()}:
            await asyncio.wait(others, timeout=ENDING_TIMEOUT_S)


async def control(address: str, found: Sequence[Found], trust: Trust, timeout_s: float, suspect_timeout_s: float
                  ) -> Connection:
    """A control connection to host:port, authenticated but not introduced. `found`: what that stands for. Raises
    SpindleError."""
    return await _introduced(await _connected(address, timeout_s, suspect_timeout_s, found), address, trust, timeout_s)


async def _introduced(sock: socket.socket, address: str, trust: Trust, timeout_s: float) -> Connection:
    """The connection that is to be on this socket. Raises SpindleError; the socket is closed then."""
    try:
        if trust.mode == PLAIN_MODE:
            trust.check_plain(address_text(sock.getpeername()))
            await asyncio.get_running_loop().sock_sendall(sock, PLAIN)
            return Connection(sock, label=f"the node at {address}")
        from spindle.security.tls import secured

        stream, identity = await secured(sock, trust, server_side=False, timeout_s=timeout_s)
        return Connection(sock, label=f"the node at {address}", stream=stream, peer=NetworkPeer.of(sock, identity))
    except OSError as error:
        sock.close()
        if isinstance(error, SpindleError):
            raise
        raise ConnectionEnded(f"the connection to {address} broke: {error}") from error
    except BaseException:
        sock.close()
        raise


async def _connected(address: str, timeout_s: float, suspect_timeout_s: float, found: Sequence[Found] | None = None
                     ) -> socket.socket:
    """To what the address stands for, which is `found` if that is known. Raises ConnectionEnded if nobody is there, or
    whoever is does not answer; NoResources."""
    loop = asyncio.get_running_loop()
    problem: Any = "its name has no address"
    if found is None:
        host, port = split_address(address)
        try:
            found = await looked_up(host, port, socket.SOCK_STREAM)
        except OSError as error:
            raise ConnectionEnded(f"{address} cannot be reached: {error.strerror or error}") from error
    for family, kind, protocol, _, where in found:
        try:
            sock = socket.socket(family, kind | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK, protocol)
        except OSError as error:
            raise shortage(error, f"a connection to {address}") or ConnectionEnded(
                f"{address} cannot be reached: {error.strerror}") from error
        try:
            await within(timeout_s, loop.sock_connect(sock, where))
            _prepare(sock, suspect_timeout_s)
            return sock
        except (asyncio.TimeoutError, TimeoutError):
            problem = f"no answer within {timeout_s:g} s"
        except OSError as error:
            problem = os.strerror(error.errno) if error.errno else error  # asyncio puts the address into the text
        except BaseException:
            sock.close()
            raise
        sock.close()
    raise ConnectionEnded(f"{address} cannot be reached: {problem}")


def _prepare(sock: socket.socket, suspect_timeout_s: float) -> None:
    """Small frames go at once, a host that has gone is noticed, and a link that is back is used again soon: TCP doubles
    the pause before each further attempt, so after a break it would stay silent for about as long again."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    # A last resort: heartbeats judge silence, and sooner.
    notice_vanished(sock, max(UNANSWERED_MS_MIN, int(2000 * suspect_timeout_s)))
    sock.setsockopt(socket.IPPROTO_TCP, TCP_THIN_LINEAR_TIMEOUTS, 1)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.IPPROTO_TCP, TCP_RTO_MAX_MS, RESEND_MS_MAX)


async def _receive(sock: socket.socket, count: int) -> bytes:
    """Exactly `count` bytes. Raises ConnectionEnded."""
    data = b""
    while len(data) < count:
        more = await asyncio.get_running_loop().sock_recv(sock, count - len(data))
        if not more:
            raise ConnectionEnded("the other end closed the connection before it had introduced itself")
        data += more
    return data


async def looked_up(host: str, port: int, kind: int) -> Sequence[Found]:
    """As getaddrinfo(). Raises OSError, NoResources."""
    if is_literal(host):
        return socket.getaddrinfo(host, port, type=kind, flags=socket.AI_NUMERICHOST)
    try:
        return await aside(functools.partial(socket.getaddrinfo, host, port, type=kind))
    except RuntimeError as error:
        raise shortage(error, f"a thread that looks {host} up") or error from None


def addresses_of(host: str) -> list[Found]:
    """What a name stands for, for sockets of UDP; nothing if that can't be found out."""
    try:
        return list(socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM))
    except OSError:
        return []


def endpoint_of(config: NodeConfig, bound: Any, look: Callable[[str], Sequence[Found]] = addresses_of) -> str:
    """host:port by which the others reach a node that listens at `bound` (of getsockname): as configured, else the
    contact that is this host's, else where it listens, else its name. `look` is what looks names up."""
    if config.advertise:
        return config.advertise
    port, address = bound[1], ipaddress.ip_address(bound[0].partition("%")[0])
    for contact in config.contacts:
        host, contact_port = split_address(contact)
        # Where one address is listened at, only that one counts: a host may have several, and another node at each.
        if contact_port == port and (is_own(host, look) if address.is_unspecified else
                                     any(one[4][0] == str(address) for one in look(host))):
            return contact
    host = socket.gethostname() if address.is_unspecified else str(address)
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_own(host: str, look: Callable[[str], Sequence[Found]] = addresses_of) -> bool:
    """True if an address of `host` is one of this host's (of this network namespace)."""
    for family, kind, protocol, _, where in look(host):
        with contextlib.suppress(OSError), socket.socket(family, kind, protocol) as sock:
            sock.bind(where)
            return True
    return False
