"""Reaching a process of this host by its Unix socket.

Why not with a timeout of Python's: that makes the socket non-blocking, and the kernel refuses a non-blocking connect at
once while the listener's queue is full, which any user can bring about. A blocking connect waits for its turn.
"""

from __future__ import annotations

import os
import socket
import struct
from pathlib import Path

QUEUE_WAIT_S = 0.1  # how long a node waits for its turn in a full queue; its other work stands still meanwhile
_TIMEVAL = struct.Struct("@ll")  # struct timeval


def connect_waiting(path: Path | str, wait_s: float) -> socket.socket:
    """A blocking socket connected to a node. Raises OSError: ECONNREFUSED or ENOENT if nobody is there, EAGAIN if its
    queue was full for `wait_s` seconds."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
    try:
        whole, rest_us = int(wait_s), max(1, int(wait_s % 1 * 1e6))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(whole, rest_us))
        sock.connect(os.fspath(path))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _TIMEVAL.pack(0, 0))
    except BaseException:
        sock.close()
        raise
    return sock


def connect(path: Path | str) -> socket.socket:
    """A non-blocking socket connected to a node. Raises OSError: ECONNREFUSED or ENOENT if nobody is there, EAGAIN if
    it accepts nobody."""
    sock = connect_waiting(path, QUEUE_WAIT_S)
    sock.setblocking(False)
    return sock
