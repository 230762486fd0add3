"""Frames as they are on a socket, for tests that speak for themselves."""

from __future__ import annotations

import socket

from spindle.transport.frames import HEADER


def receive_frame(sock: socket.socket) -> bytes:
    """The body of the next frame. Raises EOFError when the other end has closed."""
    length = HEADER.unpack(_exactly(sock, HEADER.size))[0]
    return _exactly(sock, length)


def _exactly(sock: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count:
        some = sock.recv(count - len(data))
        if not some:
            raise EOFError
        data += some
    return data
