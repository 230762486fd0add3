"""Frames: what travels on a control connection, as bytes and descriptors. The header and the rules:
`spindle.transport.wire`.

Why a decoder without input or output: the node reads on an event loop, the client on a thread, a fuzzer from nowhere,
and all must refuse the same malformed bytes in the same words.
"""

from __future__ import annotations

import array
import contextlib
import dataclasses
import os
import socket
import struct
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Protocol

from spindle.errors import ConnectionEnded, NoResources, WireError

HEADER = struct.Struct("<IHH")
READ_BYTES = 1 << 16  # taken from the socket at a time
UNSENT_BYTES = 128 << 10  # of a TCP connection, that the kernel takes at most before it can send them
LOST = -1  # in place of descriptors
FDS_PER_CALL = 64  # descriptors the kernel may hand over in one recvmsg (its own limit is 253)
_FD_BYTES = array.array("i").itemsize
_FDS_SPACE = socket.CMSG_SPACE(FDS_PER_CALL * _FD_BYTES)
_TAKEN = int(socket.MSG_CMSG_CLOEXEC)  # plain numbers: each operation on the enums of `socket` would make an object
_CUT = int(socket.MSG_CTRUNC)


@dataclasses.dataclass(frozen=True)
class Limits:
    """Limits of one connection. Sizes in bytes, times in seconds."""

    frame_bytes_max: int = 4 << 20  # of one body
    fds_max: int = 32  # of one frame, received
    frame_time_s: float = 5.0  # from a frame's first byte to its last
    queue_bytes_max: int = 64 << 20  # waiting for an end that does not read
    unread_time_s: float = float("inf")  # that bytes may wait while the other end takes none at all
    frames_waiting_max: int = 256  # received, not yet asked for by receive(): then reading pauses


class Stream(Protocol):
    """Turns plain bytes into those of the socket and back; `spindle.security.tls` has one. It does no input or output
    itself.

    Rules: what `seal`, `answer` and `goodbye` return must be sent whole and in the order of the calls. After a
    WireError only `goodbye` makes sense.
    """

    ended: bool  # the other end has said that nothing more will come

    def seal(self, data: bytes) -> bytes:
        """Plain bytes to bytes for the socket. Raises WireError."""
        ...

    def unseal(self, data: bytes) -> bytes:
        """Bytes of the socket to the plain bytes that are complete by now. Raises WireError."""
        ...

    def answer(self) -> bytes:
        """What the stream itself has to tell the other end; often nothing."""
        ...

    def goodbye(self) -> bytes:
        """The end of the stream, and what else it still has to tell. Never raises."""
        ...


class Frame:
    """One received frame: `body` bytes, and descriptors that the receiver must take or close; those that nobody took go
    with it. `lacks_fds`: those that came with it are lost, as this process had no room for them."""

    __slots__ = ("body", "fds", "lacks_fds")

    def __init__(self, body: bytes, fds: list[int], lacks_fds: bool = False) -> None:
        self.body = body
        self.fds = fds
        self.lacks_fds = lacks_fds

    def take_fds(self) -> list[int]:
        """Hands the descriptors over to the caller."""
        taken, self.fds = self.fds, []
        return taken

    def close_fds(self) -> None:
        """Closes the descriptors that nobody took."""
        fds = self.fds
        while fds:
            fd = fds[-1]
            del fds[-1]  # a signal's handler raises behind a call, and then nobody would have what pop() returned
            try:  # not suppress(), in which the handler may raise
                os.close(fd)
            except OSError:
                pass

    def __del__(self) -> None:
        if getattr(self, "fds", None):  # none where who made it was interrupted
            self.close_fds()


def close_all(fds: Iterable[int]) -> None:
    """Closes descriptors, whatever state they are in."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def encode(body: bytes, fd_count: int = 0) -> bytes:
    """Header and body of one frame."""
    return HEADER.pack(len(body), fd_count, 0) + body


class FrameDecoder:
    """Bytes and descriptors in, frames out; no input or output of its own.

    Invariant: `fds` holds the descriptors received for frames that are not complete yet, in order of arrival; LOST
    stands for all those of one frame.
    `carries_fds` is False where none can come: on anything but a plain Unix socket.
    """

    def __init__(self, limits: Limits, carries_fds: bool = True) -> None:
        self.limits = limits
        self.carries_fds = carries_fds
        self._buffer = bytearray()
        self._fds: deque[int] = deque()

    @property
    def partial(self) -> bool:
        """True in the middle of a frame."""
        return bool(self._buffer) or bool(self._fds)

    def feed(self, data: bytes, fds: Sequence[int] = ()) -> list[Frame]:
        """The frames completed by `data`. Raises WireError on a malformed or oversized one; call close() then."""
        self._fds.extend(fds)
        buffer = self._buffer
        buffer += data
        frames: list[Frame] = []
        start = 0
        try:
            while len(buffer) - start >= HEADER.size:
                length, fd_count, zero = HEADER.unpack_from(buffer, start)
                self._check(length, fd_count, zero)
                end = start + HEADER.size + length
                if len(buffer) < end:
                    break
                if fd_count and self._fds and self._fds[0] == LOST:
                    self._fds.popleft()
                    frames.append(Frame(bytes(buffer[start + HEADER.size : end]), [], lacks_fds=True))
                    start = end
                    continue
                if len(self._fds) < fd_count:
                    raise WireError(f"a frame announces {fd_count} descriptors but {len(self._fds)} came with it")
                own_fds = [self._fds.popleft() for _ in range(fd_count)]
                frames.append(Frame(bytes(buffer[start + HEADER.size : end]), own_fds))
                start = end
            if len(self._fds) > self.limits.fds_max:
                raise WireError(f"{len(self._fds)} descriptors came in one frame, limit {self.limits.fds_max}")
            if len(buffer) == start and self._fds:
                raise WireError(f"{len(self._fds)} descriptors came that no frame announces")
        except WireError:
            for frame in frames:
                frame.close_fds()
            raise
        del buffer[:start]
        return frames

    def _check(self, length: int, fd_count: int, zero: int) -> None:
        if zero:
            raise WireError("malformed frame header; the other end does not speak this protocol")
        if length > self.limits.frame_bytes_max:
            raise WireError(f"a frame of {length} bytes is over the limit of {self.limits.frame_bytes_max}")
        if fd_count and not self.carries_fds:
            raise WireError(no_fds(fd_count))
        if fd_count > self.limits.fds_max:
            raise WireError(f"a frame with {fd_count} descriptors is over the limit of {self.limits.fds_max}")

    def rest(self) -> bytes:
        """What came of the incomplete frame."""
        return bytes(self._buffer)

    def close(self) -> None:
        """Closes descriptors of the incomplete frame."""
        close_all(self._fds)
        self._fds.clear()
        self._buffer.clear()


def notice_vanished(sock: socket.socket, unanswered_ms: int) -> None:
    """Has the kernel notice that a host vanished without a word: some seconds after it is back, else after
    `unanswered_ms` without an answer (tcp(7))."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3),
                          (socket.TCP_USER_TIMEOUT, unanswered_ms)):
        sock.setsockopt(socket.IPPROTO_TCP, option, value)


def prepare(sock: socket.socket) -> None:
    """What every connection wants of its socket."""
    sock.setblocking(False)
    if sock.family != socket.AF_UNIX:  # frames are answers that somebody waits for, not bulk to be gathered
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # What waits, waits here, where it is counted and small frames get their turn.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)


def carries_fds(sock: socket.socket, stream: Stream | None) -> bool:
    """True if descriptors can travel with the bytes."""
    return stream is None and sock.family == socket.AF_UNIX


def no_fds(fd_count: int) -> str:
    """Why a frame with descriptors is refused, by the sender and by the receiver."""
    return f"a frame with {fd_count} descriptors can't be sent over the network, only between processes of one host"


def receive_some(sock: socket.socket) -> tuple[bytes, list[int]]:
    """One recvmsg: bytes (empty at the end of the stream) and descriptors, close-on-exec. Raises NoResources if this
    process has no room for the descriptors: they are lost, and the other end is not to blame."""
    data, fds = receive_what_fits(sock)
    if fds == [LOST]:
        raise no_room("descriptors were sent")
    return data, fds


def no_room(what: str) -> NoResources:
    """For descriptors that were lost on their way in."""
    return NoResources(f"{what} that this process has no room for: it can open no more (ulimit -n; LimitNOFILE= of its "
                       "service)")


def receive_what_fits(sock: socket.socket) -> tuple[bytes, list[int]]:
    """The same, with [LOST] where this process has no room for the descriptors. (One recvmsg brings those of one frame
    at most, as they are sent with it: unix(7).)"""
    data, ancillary, flags, _ = sock.recvmsg(READ_BYTES, _FDS_SPACE, _TAKEN)
    if not ancillary and not flags & _CUT:
        return data, []
    fds = array.array("i")
    for level, kind, content in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(content[: len(content) - len(content) % _FD_BYTES])
    if flags & _CUT:
        count = len(fds)
        close_all(fds)
        if count < FDS_PER_CALL:  # there was room for more of them, so it was the process that had none
            return data, [LOST]
        raise WireError(f"more than {FDS_PER_CALL} descriptors at once")
    return data, list(fds)


def send_some(sock: socket.socket, data: memoryview, fds: Sequence[int]) -> int:
    if fds:
        return sock.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))])
    return sock.send(data)


def ended(label: str, decoder: FrameDecoder, stream: Stream | None = None) -> ConnectionEnded:
    """The error for the end of the socket's bytes. Anybody may have caused an end that a stream hasn't announced."""
    if decoder.partial:
        return ConnectionEnded(f"{label} closed the connection in the middle of a frame", clean=False)
    if stream is not None and not stream.ended:
        return ConnectionEnded(f"the connection to {label} was cut: its process has died, or somebody on the way did "
                               "it", clean=False)
    return ConnectionEnded(f"{label} closed the connection")
