"""Reaching a process of this host by its Unix socket."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def connect(path: Path | str) -> socket.socket:
    """A non-blocking socket connected to a node. Raises OSError: ECONNREFUSED or ENOENT if nobody is there."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
    try:
        sock.connect(os.fspath(path))  # of a Unix socket: at once, or EAGAIN if its backlog is full
    except BaseException:
        sock.close()
        raise
    return sock
