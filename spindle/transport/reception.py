"""Where connections come in: accepts, and hears within limits who is there, before anybody spends anything on them.

Why apart from peers and applications: until a connection has said what it is, it is neither, and all it may cost is a
few bytes and a few seconds.

Rules: the first frame is an Opening of a few hundred bytes without descriptors, and it comes within
`handshake_timeout_s`; at most as many connections are in that state as there are places (`spindle.transport.places`).
Whoever says something else is told so, if it can be told, and closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from spindle import __version__
from spindle.errors import ConnectionEnded, ProtocolMismatch, SpindleError, WireError, error_to_wire
from spindle.proto import opening_pb2
from spindle.transport.listening import Listener
from spindle.transport.opening import MAGIC, PROTOCOL
from spindle.transport.places import PLACES_MAX, Places, holder_of
from spindle.transport.wire import Connection, Limits

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig

OPENING_BYTES_MAX = 4096
SAY_FULL_S = 1.0  # between two lines about places that are all taken: who floods a node is not to fill its log
ROLES = (opening_pb2.PEER, opening_pb2.APPLICATION, opening_pb2.CONTACT, opening_pb2.EDGE)
NO_OPENING = "the first frame was not an Opening; this socket is for Spindle's nodes and applications"
LOG = logging.getLogger("spindle.node")


class Reception:
    """`admit(conn, opening)` gets every connection that has introduced itself."""

    def __init__(self, config: NodeConfig, sock: socket.socket,
                 admit: Callable[[Connection, opening_pb2.Opening], None]) -> None:
        self._admit = admit
        self._timeout_s = config.handshake_timeout_s
        self._limits = Limits(frame_bytes_max=OPENING_BYTES_MAX, fds_max=0, frame_time_s=config.handshake_timeout_s)
        self._path = str(sock.getsockname())
        self._inode = os.stat(self._path).st_ino
        self._listener = Listener(sock, self.greet, self._limits)
        self._greeting: dict[asyncio.Task[None], Connection] = {}
        self._places: Places[Connection] = Places(lambda who: who.local and config.is_node_user(who.uid))
        self._say_full_at = 0.0

    def adopt(self, sock: socket.socket) -> None:
        """Takes a connected socket like an accepted one. Raises OSError if it is dead."""
        conn = Connection(sock, limits=self._limits)
        conn.label = f"process {conn.peer.pid}"
        self.greet(conn)

    def greet(self, conn: Connection) -> None:
        """Hears what a new connection, of this host or another one, says it is."""
        conn.set_limits(self._limits)
        gives_way = self._places.take(conn, conn.peer)
        if gives_way is not None:
            self._turn_away(gives_way)
        if gives_way is conn:
            return
        task = asyncio.get_running_loop().create_task(self._hear(conn))
        self._greeting[task] = conn
        task.add_done_callback(lambda task: self._heard(task, conn))

    def _heard(self, task: asyncio.Task[None], conn: Connection) -> None:
        self._greeting.pop(task, None)
        self._places.leave(conn)

    def _turn_away(self, conn: Connection) -> None:
        error = ConnectionEnded(f"{PLACES_MAX} connections have not said yet who they are, too many of them from "
                                f"{'user ' if conn.peer.local else ''}{holder_of(conn.peer)}: try again")
        now = asyncio.get_running_loop().time()
        if now >= self._say_full_at:
            self._say_full_at = now + SAY_FULL_S
            LOG.warning("refused %s: %s", conn.peer, error)
        refuse(conn, error)

    async def _hear(self, conn: Connection) -> None:
        try:
            self._admit(conn, await opening_of(conn, self._timeout_s))
        except ConnectionEnded as error:
            # Somebody only looked whether we are alive; one that stops in the middle of a frame is worth a line.
            LOG.log(logging.DEBUG if error.clean else logging.WARNING, "%s went away: %s", conn.peer, error)
            conn.close()
        except (SpindleError, TimeoutError) as error:
            LOG.warning("closed a connection of %s: %s", conn.peer, error)
            # A process that was late may have been stopped meanwhile: it is told to try again.
            late = isinstance(error, TimeoutError) and not isinstance(error, SpindleError)
            refuse(conn, ConnectionEnded(f"{error}: try again") if late else error)

    def close(self) -> None:
        """Stops listening and removes the socket's file, if it is still ours; who was about to say what it is sees that
        the node has ended, and tries the next one. Idempotent."""
        if self._listener.closed:
            return
        self._listener.close()
        with contextlib.suppress(FileNotFoundError):
            if os.stat(self._path).st_ino == self._inode:
                os.unlink(self._path)
        for task, conn in self._greeting.items():
            task.cancel()
            conn.close()


def refuse(conn: Connection, error: BaseException) -> None:
    """Tells the other end why it is not served, as far as it reads that, and closes."""
    kind, text = error_to_wire(error)
    with contextlib.suppress(WireError):
        conn.send(opening_pb2.OpeningReply(
            magic=MAGIC, protocol=PROTOCOL, kind=kind, message=text, release=__version__).SerializeToString())
    conn.close()


async def opening_of(conn: Connection, timeout_s: float) -> opening_pb2.Opening:
    """What a connection says first. Raises ProtocolMismatch, and as `receive`."""
    frame = await conn.receive(timeout_s)
    frame.close_fds()
    return _opening(frame.body)


def _opening(body: bytes) -> opening_pb2.Opening:
    try:
        opening = opening_pb2.Opening.FromString(body)
    except DecodeError as error:
        raise ProtocolMismatch(NO_OPENING) from error
    if opening.magic != MAGIC or opening.role not in ROLES:
        raise ProtocolMismatch(NO_OPENING)
    return opening
