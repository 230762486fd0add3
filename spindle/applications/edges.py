"""Edges at their node: each brings the programs of a host without a node over one connection (`spindle.edge`).

Why so little: a stream ends at a pair of sockets here, and what comes out of the pair is a connection like that of any
application on another host, so all that is said of those holds.

Rules:
- Whoever comes through an edge has the edge's rights, since its certificate is all that this node knows of them, and
  can only be an application. An edge counts as an application of whoever has its certificate, and so does each program.
- At most max_apps streams are open, of all edges together: others are refused one by one.
- What an edge says against the rules ends its connection, with all programs on it; what one of these says ends that
  one alone.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from spindle.errors import ConnectionEnded, NodeStopped, ProtocolMismatch, SpindleError, shortage
from spindle.proto import opening_pb2
from spindle.transport.reception import OPENING_BYTES_MAX, opening_of, refuse
from spindle.transport.wire import Connection, Limits

if TYPE_CHECKING:
    from spindle.applications.quotas import Quota
    from spindle.edge.bundle import Bundle
    from spindle.node.node import Node
    from spindle.security.access import Credentials

PULSE_S = 1.0  # an edge hears something at least so often
FLUSH_S = 2.0  # for the last words to programs to go, when the node stops
LOG = logging.getLogger("spindle.attachment")


class Edges:
    """All edges of one node. `admit` gets the connection of each program, with its Opening."""

    def __init__(self, node: Node, admit: Callable[[Connection, opening_pb2.Opening, Credentials], None]) -> None:
        self._node, self._admit = node, admit
        self._bundles: dict[Bundle, None] = {}  # in their order
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = False

    def __len__(self) -> int:
        return len(self._bundles)

    @property
    def stream_count(self) -> int:
        """Of all edges."""
        return sum(len(one.streams) for one in self._bundles)

    def serve(self, conn: Connection, name: str, quota: Quota | None) -> None:
        """The connection of an edge that was admitted and has heard so; counted in `quota`."""
        from spindle.edge.bundle import Bundle  # few nodes have edges

        label = f"edge {name[:128] if name.isprintable() else '?'!r} of {conn.peer}"
        conn.label = label
        config = self._node.config
        # The edge counts, too: of one application more or less its programs are told by the quota.
        allowed = config.max_apps if quota is None else min(config.max_apps, config.max_apps_per_user)
        bundle = Bundle(conn, opens=False, allowed=allowed, on_open=lambda number: self._open(bundle, number))
        self._bundles[bundle] = None
        bundle.streams.allow()
        self._start(self._serve(bundle, label, quota))

    async def _serve(self, bundle: Bundle, label: str, quota: Quota | None) -> None:
        LOG.info("%s attached", label)
        pulse = asyncio.get_running_loop().create_task(self._pulse(bundle))
        error: SpindleError | None = None
        try:
            error = await bundle.run()
        finally:
            pulse.cancel()
            self._bundles.pop(bundle, None)
            if quota is not None:
                quota.applications -= 1
            ended = error is None or isinstance(error, ConnectionEnded)
            LOG.info("%s %s", label, "detached" if ended else f"cut off: {error}")

    async def _pulse(self, bundle: Bundle) -> None:
        while True:
            await asyncio.sleep(PULSE_S)
            bundle.streams.pulse()

    def _open(self, bundle: Bundle, number: int) -> None:
        """A program has come to the edge: its stream gets a connection here."""
        try:
            conn = self._connection(bundle, number)
        except SpindleError as error:
            LOG.warning("refused a program of %s: %s", bundle.conn.label, error)
            bundle.refuse(number, error)
            return
        self._start(self._hear(conn))

    def _connection(self, bundle: Bundle, number: int) -> Connection:
        """Raises SpindleError."""
        from spindle.edge.bundle import Line

        node, config = self._node, self._node.config
        if self._stopping:
            raise NodeStopped(f"node {node.node_id} is stopping")
        if self.stream_count > config.max_apps:
            raise SpindleError(f"node {node.node_id} has {config.max_apps} programs at edges, its limit: detach one, "
                               "or raise [limits] max_apps in its configuration")
        what = "a program at an edge"
        node.check_descriptors(what)
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        except OSError as error:
            raise shortage(error, what) or SpindleError(f"{what} can't be served: {error.strerror}") from error
        bundle.join(number, Line(ours, lambda line: None))
        return Connection(theirs, label=f"a program of {bundle.conn.label}", peer=bundle.conn.peer, limits=Limits(
            frame_bytes_max=OPENING_BYTES_MAX, fds_max=0, frame_time_s=config.handshake_timeout_s))

    async def _hear(self, conn: Connection) -> None:
        try:
            opening = await opening_of(conn, self._node.config.handshake_timeout_s)
            if opening.role != opening_pb2.APPLICATION:
                raise ProtocolMismatch("only applications come through an edge")
            self._admit(conn, opening, conn.peer)
        except ConnectionEnded:
            conn.close()
        except (SpindleError, TimeoutError) as error:
            LOG.warning("closed a connection of %s: %s", conn.label, error)
            refuse(conn, error)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def stop(self) -> None:
        """The node is about to end: edges turn to another one."""
        self._stopping = True
        for bundle in self._bundles:
            bundle.streams.allow_no_more()

    async def close(self, reason: SpindleError) -> None:
        """The applications have ended, and been told why: edges are told, too, and closed. After `stop`."""
        await asyncio.gather(*(bundle.flush(FLUSH_S) for bundle in self._bundles))
        for bundle in list(self._bundles):
            bundle.end(reason)
        while tasks := list(self._tasks):
            await asyncio.gather(*tasks, return_exceptions=True)
            self._tasks.difference_update(tasks)
