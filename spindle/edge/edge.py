"""An edge: what the programs of a host without a node attach to, over a Unix socket as to a node.

Why: one connection of the host to a node instead of one for each program, with keys that only the edge has to read.

Rules:
- The kernel says who a program is; [access] says who may come, as at a node. At the node all have the edge's rights.
- Bytes are passed on as they come. Of what a program says only its Opening is looked at, of what it is told where
  frames end, so that it can be told why its node is gone.
- What a program does that nobody understands is between it and its node; here it costs its own line.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

from spindle import __version__
from spindle.config.settings import EDGE_SOCKET
from spindle.edge.bundle import Line
from spindle.edge.uplink import Uplink
from spindle.errors import (
    ConfigError,
    NodeIdTaken,
    NodeStopped,
    ProtocolMismatch,
    SpindleError,
    error_to_wire,
)
from spindle.joining.bootstrap import SOCKET_PATH_MAX, listen_at, newcomer_lock, prepare_directory
from spindle.proto import attach_pb2 as pb
from spindle.proto import opening_pb2
from spindle.proto import relay_pb2 as rb
from spindle.security.access import Permissions
from spindle.transport.frames import HEADER, encode
from spindle.transport.local import connect
from spindle.transport.opening import MAGIC
from spindle.transport.reception import Reception, refuse

if TYPE_CHECKING:
    from collections.abc import Callable

    from spindle.config.settings import NodeConfig
    from spindle.edge.streams import Streams
    from spindle.security.trust import Trust
    from spindle.transport.wire import Connection

SHARE = 0.75  # of the programs that the node takes of this host, for one user who doesn't run it
FLUSH_S = 2.0  # for programs to be told that the edge ends, and for what they said to go
LOG = logging.getLogger("spindle.edge")


class Frames:
    """Where in a stream of frames one is, by their headers alone."""

    def __init__(self) -> None:
        self._header = b""
        self._left = 0  # bytes of the present body

    @property
    def between(self) -> bool:
        """True if no frame has begun that is not complete."""
        return not self._header and not self._left

    def feed(self, data: bytes) -> None:
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
            else:
                step = min(HEADER.size - len(self._header), len(data) - at)
                self._header += data[at : at + step]
                if len(self._header) == HEADER.size:
                    self._left, self._header = HEADER.unpack(self._header)[0], b""
            at += step


class ProgramLine(Line):
    """A program's socket and its stream."""

    def __init__(self, sock: socket.socket, on_end: Callable[[Line], None]) -> None:
        super().__init__(sock, on_end)
        self._frames: Frames | None = None  # of what it was told; None: nothing yet

    def write(self, content: bytes) -> None:
        if self._frames is None:
            self._frames = Frames()
        self._frames.feed(content)
        super().write(content)

    def _tell(self, error: SpindleError) -> None:
        kind, text = error_to_wire(error)
        if self._frames is None:
            super().write(encode(opening_pb2.OpeningReply(
                magic=MAGIC, kind=kind, message=text, release=__version__).SerializeToString()))
        elif self._frames.between:
            word = pb.NodeFrame(refusal=pb.Refusal(kind=kind, text=text)).SerializeToString()
            super().write(encode(rb.NodeSide(node=word).SerializeToString()))


class Edge:
    """on_found(address): there is a node now, or another one."""

    def __init__(self, config: NodeConfig, trust: Trust, on_found: Callable[[str], None]) -> None:
        self._config = config
        self._uplink = Uplink(config, trust, on_found)
        self._reception: Reception | None = None
        self._lines: dict[Line, int] = {}  # users
        self._opening: dict[asyncio.Task[None], int] = {}
        self._searching: asyncio.Task[None] | None = None
        self._stopped = False

    @property
    def path(self) -> Path:
        return self._config.domain_dir / EDGE_SOCKET

    async def start(self) -> None:
        """From now on programs are heard. Raises AccessDenied, ConfigError, NodeIdTaken if there is an edge already."""
        if len(os.fsencode(self.path)) > SOCKET_PATH_MAX:
            raise ConfigError(f"{self.path} is too long for a Unix socket ({SOCKET_PATH_MAX} bytes); choose a shorter "
                              "[node] runtime_dir")
        prepare_directory(self._config)
        async with newcomer_lock(self._config.domain_dir, self._config.join_timeout_s):
            self._make_way()
            self._reception = Reception(self._config, listen_at(self._config, self.path), self._admit)
        self._searching = asyncio.get_running_loop().create_task(self._uplink.run())

    def _make_way(self) -> None:
        """Removes what an edge has left that is dead."""
        try:
            connect(self.path).close()
        except FileNotFoundError:
            return
        except ConnectionRefusedError:
            if self.path.lstat().st_uid == os.geteuid():
                self.path.unlink(missing_ok=True)
            return
        except OSError as error:
            raise NodeIdTaken(f"{self.path} can't be had: {error.strerror}") from None
        raise NodeIdTaken(f"an edge of domain {self._config.domain_id} runs already: somebody listens at {self.path}")

    # --- programs

    def _admit(self, conn: Connection, opening: opening_pb2.Opening) -> None:
        """A program that has said who it is."""
        try:
            if opening.role != opening_pb2.APPLICATION:
                raise ProtocolMismatch("this is an edge, for applications of this host; it is no node of the group")
            user = conn.peer.uid
            Permissions(self._config, conn.peer)
            self._check_room(user)
        except SpindleError as error:
            LOG.warning("refused application %r of %s: %s", opening.name, conn.peer, error)
            refuse(conn, error)
            return
        task = asyncio.get_running_loop().create_task(self._open(conn, opening, user))
        self._opening[task] = user
        task.add_done_callback(lambda task: self._opening.pop(task, None))

    def _check_room(self, user: int) -> None:
        """Raises SpindleError if no more programs may come, or no more of this user."""
        config = self._config
        users = [*self._lines.values(), *self._opening.values()]
        if self._stopped:
            raise NodeStopped("the edge of this host is ending")
        if len(users) >= config.max_apps:
            raise SpindleError(f"the edge of this host has {config.max_apps} programs, its limit: end one, or raise "
                               "[limits] max_apps in its configuration")
        if not config.is_node_user(user) and users.count(user) >= config.max_apps_per_user:
            raise SpindleError(f"user {user} has {config.max_apps_per_user} programs at the edge of this host, the "
                               "limit: end one, or raise [limits] max_apps_per_user in its configuration")

    async def _open(self, conn: Connection, opening: opening_pb2.Opening, user: int) -> None:
        try:
            bundle = await self._uplink.bundle()
            self._check_places(bundle.streams, user)
        except SpindleError as error:
            refuse(conn, error)
            return
        except asyncio.CancelledError:
            refuse(conn, NodeStopped("the edge of this host was stopped"))
            raise
        if conn.closed:
            return
        sock, early = conn.detach()
        line = ProgramLine(sock, self._left)
        self._lines[line] = user
        bundle.join(bundle.streams.open(), line, encode(opening.SerializeToString()) + early)

    def _check_places(self, streams: Streams, user: int) -> None:
        """Raises SpindleError if the node takes no more programs of this edge, or would take too few of other users."""
        allowed = streams.allowed
        if len(streams) >= allowed:
            raise SpindleError(f"the node has {allowed} programs of this host, its limit: end one, or raise [limits] "
                               "max_apps, max_apps_per_user in the node's configuration")
        share = max(1, int(SHARE * allowed))
        if not self._config.is_node_user(user) and list(self._lines.values()).count(user) >= share:
            raise SpindleError(f"user {user} has {share} programs at the edge of this host; the node takes {allowed} "
                               "of all its users together, and some places are left to the others: end one, or raise "
                               "[limits] max_apps, max_apps_per_user in the node's configuration")

    def _left(self, line: Line) -> None:
        self._lines.pop(line, None)

    # --- ending

    async def close(self) -> None:
        """Tells the programs that the edge ends, and closes everything."""
        self._stopped = True
        if self._reception is not None:
            self._reception.close()
        for task in list(self._opening):
            task.cancel()
        if self._searching is not None:
            await self._uplink.finish(NodeStopped("the edge of this host was stopped"), FLUSH_S)
            self._searching.cancel()
            await asyncio.wait({self._searching})
        deadline = asyncio.get_running_loop().time() + FLUSH_S
        while self._lines and asyncio.get_running_loop().time() < deadline:
            await asyncio.sleep(0.01)

    async def failed(self) -> None:
        """Returns never; raises what has ended the search for nodes, a defect."""
        assert self._searching is not None
        await asyncio.shield(self._searching)
