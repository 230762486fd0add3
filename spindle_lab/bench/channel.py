"""The line between a benchmark's parent and its workers: JSON messages with file descriptors beside them.

Why not pipes: rows and doorbells travel from process to process by descriptor, which only a Unix socket carries; and
SOCK_SEQPACKET keeps messages apart without framing.

Rules: one message is one packet, below MESSAGE_SIZE_MAX; whoever receives descriptors owns them.
"""

from __future__ import annotations

import json
import os
import socket
from typing import Any

MESSAGE_SIZE_MAX = 160 * 1024  # bytes: below the default send buffer of a Unix socket
DESCRIPTORS_MAX = 250  # SCM_MAX_FD is 253


class ChannelClosed(ConnectionError):
    """The other side has closed its end, mostly because it has died."""


class Channel:
    """One end of the line."""

    def __init__(self, end: socket.socket) -> None:
        self.end = end

    @classmethod
    def pair(cls) -> tuple[Channel, Channel]:
        """Two ends, of which one is to be inherited by a worker."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        return cls(ours), cls(theirs)

    @classmethod
    def inherited(cls, fd: int) -> Channel:
        """The end that the parent has passed as descriptor `fd`."""
        return cls(socket.socket(fileno=fd))

    def send(self, message: dict[str, Any], fds: tuple[int, ...] = ()) -> None:
        """Sends one message and duplicates of `fds`. Raises ValueError if it is too large, ChannelClosed."""
        data = json.dumps(message).encode()
        if len(data) > MESSAGE_SIZE_MAX or len(fds) > DESCRIPTORS_MAX:
            raise ValueError(
                f"message of {len(data)} bytes and {len(fds)} descriptors: at most {MESSAGE_SIZE_MAX} "
                f"and {DESCRIPTORS_MAX}"
            )
        try:
            socket.send_fds(self.end, [data], list(fds))
        except OSError as error:
            raise ChannelClosed(f"the other side has gone: {error}") from error

    def receive(self, timeout_s: float | None = None) -> tuple[dict[str, Any], list[int]]:
        """The next message and its descriptors. Raises TimeoutError, ChannelClosed."""
        self.end.settimeout(timeout_s)
        try:
            data, fds, _, _ = socket.recv_fds(self.end, MESSAGE_SIZE_MAX, DESCRIPTORS_MAX)
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosed(f"the other side has gone: {error}") from error
        if not data:
            raise ChannelClosed("the other side has closed its end")
        for fd in fds:
            os.set_inheritable(fd, False)
        return json.loads(data), fds

    def close(self) -> None:
        self.end.close()
