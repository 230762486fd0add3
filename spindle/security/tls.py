"""TLS 1.3 with certificates of both ends, under the frames of control connections between hosts.

Why not asyncio's TLS: connections here are sockets with callbacks of their own (`spindle.transport.wire`), on a loop
or on a plain thread. OpenSSL can work on memory alone, so all of this is without input or output, and two short
functions drive the handshake: `secured` on a loop, `secured_blocking` on a thread.

The handshake ends with a verdict of each end, inside TLS: u16 length, little endian, and a text of so many bytes; empty
if the other end is welcome, else why not. Why: in TLS 1.3 the end that connects has finished before the other has seen
its certificate, so without an answer it would learn of a refusal only later, in the middle of something else; and TLS's
own alerts can't say what to do.

Rules:
- A handshake that fails is a SpindleError at both ends, which says what to do, and the socket is closed. It is
  ConnectionEnded where another attempt may succeed (the other end has gone, or is slow), else of another kind.
- The end that refuses waits a moment until the other has read why: closed at once, TCP would throw it away.
- All of it, to the verdict of the other end, takes `timeout_s` at most.
- Bytes that came behind the verdict stay in the stream; the Connection that is made with it has them first.
"""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import ssl
import struct
import time
from typing import Any

from spindle.errors import AccessDenied, ProtocolMismatch, SpindleError, WireError
from spindle.security import tls_errors
from spindle.security.access import address_text
from spindle.security.contexts import ALPN
from spindle.security.identity import NODE, Identity
from spindle.security.trust import Trust
from spindle.waiting import within

READ_BYTES = 1 << 16
VERDICT_BYTES_MAX = 1024
LINGER_S = 1.0  # for the other end to read why it is refused
_VERDICT = struct.Struct("<H")


class TlsStream:
    """One end of a connection as `spindle.transport.frames.Stream` wants it; until its handshake is done,
    `Handshake` has it.
    """

    def __init__(self, context: ssl.SSLContext, server_side: bool) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=server_side)
        self._left = b""  # plain bytes that were read too early
        self.ended = False

    def handshake(self, data: bytes) -> bool:
        """Goes on with these bytes of the socket; True when it is done. Raises ssl.SSLError."""
        self._incoming.write(data)
        try:
            self._tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def certificate(self) -> dict[str, Any] | None:
        """What the certificate of the other end says."""
        return self._tls.getpeercert()

    def speaks_spindle(self) -> bool:
        """True if the other end, too, is here for this protocol and not for another one over TLS."""
        return self._tls.selected_alpn_protocol() == ALPN

    def version(self) -> str:
        """Protocol and cipher, for people."""
        cipher = self._tls.cipher()
        return f"{self._tls.version()} {cipher[0] if cipher else ''}".strip()

    def seal(self, data: bytes) -> bytes:
        try:
            view = memoryview(data)
            while view:
                view = view[self._tls.write(view):]
        except ssl.SSLError as error:
            raise WireError(f"can't be encrypted any more: {error.reason or error}") from None
        return self._outgoing.read()

    def unseal(self, data: bytes) -> bytes:
        try:
            return self.decrypt(data)
        except ssl.SSLError as error:
            raise WireError(tls_errors.undecryptable(error)) from None

    def decrypt(self, data: bytes) -> bytes:
        """Like `unseal`, with OpenSSL's own errors."""
        if data:
            self._incoming.write(data)
        plain, self._left = [self._left], b""
        with contextlib.suppress(ssl.SSLWantReadError):
            while not self.ended:
                try:
                    piece = self._tls.read(READ_BYTES)
                except ssl.SSLZeroReturnError:
                    piece = b""
                plain.append(piece)
                self.ended = not piece
        return b"".join(plain)

    def give_back(self, data: bytes) -> None:
        """Plain bytes that belong to whoever reads next."""
        self._left = data

    def answer(self) -> bytes:
        return self._outgoing.read()

    def goodbye(self) -> bytes:
        with contextlib.suppress(ssl.SSLError, ValueError):
            self._tls.unwrap()
        return self._outgoing.read()


class Handshake:
    """Makes a TlsStream, without input or output: feed() what comes, send what output() gives until `identity` is set.

    Raises what `tls_errors` says, at the first thing that is wrong; output() then still has what the other end must
    hear about it. `label` names the other end.
    """

    def __init__(self, trust: Trust, server_side: bool, label: str) -> None:
        self._trust = trust
        self._server_side = server_side
        self._label = label
        self._shaken: Identity | None = None  # TLS is done, and so is our verdict
        self._plain = b""
        self._out = b""
        self.stream = TlsStream(trust.context(server_side), server_side)
        self.identity: Identity | None = None  # of the other end, once both are content

    def output(self) -> bytes:
        """Bytes for the socket."""
        out, self._out = self._out + self.stream.answer(), b""
        return out

    def feed(self, data: bytes) -> None:
        """Goes on with bytes of the socket; b"" to begin."""
        try:
            if self._shaken is None:
                if not self.stream.handshake(data):
                    return
                data = b""
                self._shaken = self._judge()
            self._plain += self.stream.decrypt(data)
        except ssl.SSLError as error:
            raise tls_errors.explained(error, self._label, self._trust.mode) from None
        self._hear_verdict()

    def _judge(self) -> Identity:
        """Our verdict about the other end."""
        try:
            if not self.stream.speaks_spindle():
                raise ProtocolMismatch("it speaks TLS, but not for Spindle")
            identity = self._trust.identify(self.stream.certificate())
            if not self._server_side and identity.role != NODE:
                raise AccessDenied(f"{identity} is an application's, and listens as a node")
        except SpindleError as error:
            self._say(str(error))
            raise type(error)(f"{self._label} is refused: {error}") from None
        self._say("")
        return identity

    def _say(self, text: str) -> None:
        raw = text.encode()[:VERDICT_BYTES_MAX]
        self._out += self.stream.seal(_VERDICT.pack(len(raw)) + raw)

    def _hear_verdict(self) -> None:
        if len(self._plain) >= _VERDICT.size:
            length = _VERDICT.unpack_from(self._plain)[0]
            if length > VERDICT_BYTES_MAX:
                raise ProtocolMismatch(f"{self._label} speaks TLS, but not as a node of Spindle does")
            if len(self._plain) >= _VERDICT.size + length:
                text = self._plain[_VERDICT.size : _VERDICT.size + length].decode(errors="replace")
                if text:
                    raise AccessDenied(f"{self._label} refuses this end: {tls_errors.printable(text)}")
                self.stream.give_back(self._plain[_VERDICT.size + length :])
                self.identity = self._shaken
                return
        if self.stream.ended:
            raise tls_errors.cut(self._label)


async def secured(sock: socket.socket, trust: Trust, *, server_side: bool, first: bytes = b"", timeout_s: float,
                  label: str = "") -> tuple[TlsStream, Identity]:
    """Shakes hands on the running loop; the stream for a Connection on this socket, and who is at the other end.

    `first`: what has been read of the socket already. Raises SpindleError; the socket is closed then, or if cancelled.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s

    async def receive() -> bytes:
        try:
            return await within(max(0.0, deadline - loop.time()), loop.sock_recv(sock, READ_BYTES))
        except asyncio.TimeoutError:
            return _receive_late(sock, label, timeout_s)

    async def send(data: bytes) -> None:
        try:
            await within(max(0.0, deadline - loop.time()), loop.sock_sendall(sock, data))
        except asyncio.TimeoutError:
            raise tls_errors.late(label, timeout_s) from None

    handshake = None
    try:
        label = label or address_text(sock.getpeername())
        sock.setblocking(False)
        handshake = Handshake(trust, server_side, label)
        data = first
        while True:
            handshake.feed(data)
            if out := handshake.output():
                await send(out)
            if handshake.identity is not None:
                return handshake.stream, handshake.identity
            data = await receive()
            if not data:
                raise tls_errors.cut(label)
    except (OSError, SpindleError) as error:
        failed = error if isinstance(error, SpindleError) else tls_errors.cut(label, error.strerror or str(error))
        try:
            if handshake is not None and (out := handshake.output()):
                with contextlib.suppress(OSError, asyncio.TimeoutError):
                    await within(LINGER_S, _explain(loop, sock, out))
        finally:  # also if cancelled meanwhile
            sock.close()
        raise failed from None
    except BaseException:
        sock.close()
        raise


async def _explain(loop: asyncio.AbstractEventLoop, sock: socket.socket, last_word: bytes) -> None:
    await loop.sock_sendall(sock, last_word)
    sock.shutdown(socket.SHUT_WR)
    while await loop.sock_recv(sock, READ_BYTES):
        pass


def secured_blocking(sock: socket.socket, trust: Trust, *, server_side: bool = False, first: bytes = b"",
                     timeout_s: float, label: str = "") -> tuple[TlsStream, Identity]:
    """`secured` for a plain thread; the stream is for a BlockingConnection on this socket."""
    deadline = time.monotonic() + timeout_s
    handshake = None
    try:
        label = label or address_text(sock.getpeername())
        sock.setblocking(False)
        handshake = Handshake(trust, server_side, label)
        data = first
        while True:
            handshake.feed(data)
            if not _send_until(sock, handshake.output(), deadline):
                raise tls_errors.late(label, timeout_s)
            if handshake.identity is not None:
                return handshake.stream, handshake.identity
            _ready(sock, select.POLLIN, deadline)
            data = _receive_late(sock, label, timeout_s)
            if not data:
                raise tls_errors.cut(label)
    except (OSError, SpindleError) as error:
        failed = error if isinstance(error, SpindleError) else tls_errors.cut(label, error.strerror or str(error))
        with contextlib.suppress(OSError):
            if handshake is not None and (out := handshake.output()):
                deadline = time.monotonic() + LINGER_S
                if _send_until(sock, out, deadline):
                    sock.shutdown(socket.SHUT_WR)
                while _ready(sock, select.POLLIN, deadline) and sock.recv(READ_BYTES):
                    pass
        sock.close()
        raise failed from None
    except BaseException:
        sock.close()
        raise


def _receive_late(sock: socket.socket, label: str, timeout_s: float) -> bytes:
    """What is there. This process may have stood still itself: what came meanwhile counts, though the time is over."""
    try:
        return sock.recv(READ_BYTES)
    except (BlockingIOError, InterruptedError):
        raise tls_errors.late(label, timeout_s) from None


def _send_until(sock: socket.socket, data: bytes, deadline: float) -> bool:
    left = memoryview(data)
    while left:
        try:
            left = left[sock.send(left):]
        except (BlockingIOError, InterruptedError):
            if not _ready(sock, select.POLLOUT, deadline):
                return False
    return True


def _ready(sock: socket.socket, event: int, deadline: float) -> bool:
    poller = select.poll()
    poller.register(sock, event)
    return bool(poller.poll(max(0.0, deadline - time.monotonic()) * 1000))
