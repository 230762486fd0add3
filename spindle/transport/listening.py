"""Accepting connections on a socket that listens, without a flood or a lack of descriptors stopping the loop."""

from __future__ import annotations

import socket
from collections.abc import Callable

from spindle.errors import shortage
from spindle.transport.frames import Limits
from spindle.transport.wire import Connection, close_in_child

ACCEPTS_AT_ONCE = 64  # a flood of connections leaves the queue sooner than it fills it, and others get their turn


class Listener:
    """Accepts connections on a listening Unix socket and hands each over as a Connection.

    `on_connection(conn)` runs on the loop. Accept errors from a full descriptor table pause accepting for a second
    instead of spinning.
    """

    def __init__(self, sock: socket.socket, on_connection: Callable[[Connection], None], limits: Limits) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self._sock = sock
        close_in_child(sock)
        self._on_connection = on_connection
        self._limits = limits
        self.closed = False
        sock.setblocking(False)
        self._loop.add_reader(sock.fileno(), self._acceptable)

    def _acceptable(self) -> None:
        for _ in range(ACCEPTS_AT_ONCE):
            if self.closed or not self._accept():
                return

    def _accept(self) -> bool:
        """Takes one connection; False if none waits, or none can be taken now."""
        try:
            sock, _ = self._sock.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return False
        except OSError as error:
            import logging

            logging.getLogger("spindle.node").error(
                "cannot accept a connection: %s", shortage(error, "a connection that comes in") or error)
            self._loop.remove_reader(self._sock.fileno())
            self._loop.call_later(1.0, self._resume)
            return False
        try:
            conn = Connection(sock, limits=self._limits)
        except OSError:  # the other end is gone already
            sock.close()
            return True
        conn.label = f"process {conn.peer.pid}"
        self._on_connection(conn)
        return True

    def _resume(self) -> None:
        if not self.closed:
            self._loop.add_reader(self._sock.fileno(), self._acceptable)

    def close(self) -> None:
        """Stops accepting. Idempotent."""
        if not self.closed:
            self.closed = True
            self._loop.remove_reader(self._sock.fileno())
            self._sock.close()
