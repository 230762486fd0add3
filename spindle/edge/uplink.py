"""The one connection of an edge to a node, and the next one when that is gone.

Rules:
- Nodes are tried in the order of their addresses, beginning behind the one that was lost. A node that says nothing for
  SILENCE_S is given up: it says something every second.
- A program that comes while the nodes are tried for the first time since one was lost waits for the outcome. Once all
  of them were tried in vain, who comes is told so at once; the search goes on.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from spindle import __version__
from spindle.edge.bundle import LIMITS, Bundle
from spindle.errors import (
    AccessDenied,
    ConfigError,
    ConnectionEnded,
    NoDaemon,
    NodeStopped,
    ProtocolMismatch,
    SpindleError,
    error_from_wire,
)
from spindle.proto import opening_pb2
from spindle.transport.names import HostNames
from spindle.transport.network import control
from spindle.transport.opening import EDGE_PROTOCOL, MAGIC
from spindle.waiting import within

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.security.trust import Trust
    from spindle.transport.wire import Connection

CONNECT_TIMEOUT_S = 3.0  # for one node, if there are others
ALONE_TIMEOUT_S = 5.0
SILENCE_S = 4.0
PAUSE_S, PAUSE_MAX_S = 0.05, 1.0  # between two rounds of trying the nodes; doubles
SETTLED_S = 1.0  # a connection that lasted so long was no failed attempt
LOG = logging.getLogger("spindle.edge")


class Uplink:
    """on_found(address): there is a node, or another one."""

    def __init__(self, config: NodeConfig, trust: Trust, on_found: Callable[[str], None]) -> None:
        self._config, self._trust, self._on_found = config, trust, on_found
        self._addresses: Sequence[str] = config.edge_nodes
        self._names = HostNames(self._addresses)
        self._next = 0
        self._bundle: Bundle | None = None
        self._error: SpindleError = NodeStopped("no node was tried yet")
        self._last: set[asyncio.Task[SpindleError]] = set()  # connections of nodes that are stopping
        self._settled = asyncio.Event()  # it is known whether a node serves

    async def bundle(self) -> Bundle:
        """The connection to the node. Raises why there is none."""
        while True:
            await self._settled.wait()
            if self._bundle is None:
                raise self._error
            if not self._bundle.conn.closed and not self._bundle.leaving.is_set():
                return self._bundle
            await asyncio.sleep(0)  # about to be noticed

    async def finish(self, reason: SpindleError, timeout_s: float) -> None:
        """Ends all programs and tells them why; waits so long at most until the node has heard of it."""
        if self._bundle is not None:
            self._bundle.finish(reason)
            await self._bundle.flush(timeout_s)
        for task in self._last:
            task.cancel()

    async def run(self) -> None:
        """Keeps a connection for ever."""
        loop, pause_s = asyncio.get_running_loop(), PAUSE_S
        while True:
            begun_s = loop.time()
            try:
                found = await self._find()
            except SpindleError as error:
                if not self._settled.is_set() or str(error) != str(self._error):
                    LOG.warning("%s", error)
                self._error = error
                self._settled.set()
            else:
                await self._serve(*found)
                if loop.time() - begun_s > SETTLED_S:
                    pause_s = PAUSE_S
                    continue
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    async def _serve(self, bundle: Bundle, running: asyncio.Task[SpindleError], address: str) -> None:
        """Until the node is gone, or says that it is about to go: then its last streams end beside the next node's."""
        loop = asyncio.get_running_loop()
        watch, leaving = loop.create_task(self._watch(bundle, address)), loop.create_task(bundle.leaving.wait())
        try:
            self._bundle = bundle
            self._settled.set()
            self._on_found(address)
            await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            running.cancel()
            raise
        finally:
            leaving.cancel()
            running.add_done_callback(lambda _: watch.cancel())
            self._settled.clear()
            self._bundle = None
        LOG.warning("the node at %s %s", address, f"is gone: {running.result()}" if running.done() else "is stopping")
        if not running.done():
            self._last.add(running)
            running.add_done_callback(self._last.discard)
        self._next = (self._next + 1) % len(self._addresses)

    async def _watch(self, bundle: Bundle, address: str) -> None:
        """Ends the connection to a node that hangs."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(SILENCE_S / 4)
            if loop.time() - bundle.heard_at > SILENCE_S:
                bundle.conn.take_arrived()  # this process may have stood still itself
                if loop.time() - bundle.heard_at > SILENCE_S:
                    LOG.warning("the node at %s has said nothing for %g s", address, SILENCE_S)
                    bundle.conn.close()

    async def _find(self) -> tuple[Bundle, asyncio.Task[SpindleError], str]:
        """The connection to the first node that serves, as it runs, and the node's address. Raises why none does."""
        self._names.begin()
        problems: list[SpindleError] = []
        each_s = CONNECT_TIMEOUT_S if len(self._addresses) > 1 else ALONE_TIMEOUT_S
        for k in range(len(self._addresses)):
            number = (self._next + k) % len(self._addresses)
            address = self._addresses[number]
            try:
                found = await within(each_s, self._begin(address, each_s))
            except asyncio.TimeoutError:
                problems.append(ConnectionEnded(f"{address} doesn't answer within {each_s:g} s"))
            except (SpindleError, OSError) as error:
                problems.append(error if isinstance(error, SpindleError) else NodeStopped(str(error)))
            else:
                self._next = number
                return *found, address
        for kind in (AccessDenied, ProtocolMismatch, ConfigError, NodeStopped):
            for problem in problems:
                if isinstance(problem, kind):
                    raise type(problem)(f"the edge of this host finds no node: {problem}")
        raise NoDaemon(f"the edge of this host finds no node of domain {self._config.domain_id} that serves: "
                       f"{'; '.join(map(str, problems))}")

    async def _begin(self, address: str, timeout_s: float) -> tuple[Bundle, asyncio.Task[SpindleError]]:
        """A connection on which streams may be opened. Raises SpindleError."""
        loop = asyncio.get_running_loop()
        bundle = Bundle(await self._open(address, timeout_s), opens=True)
        running, allowed = loop.create_task(bundle.run()), loop.create_task(bundle.allowed.wait())
        try:
            await asyncio.wait({running, allowed}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                raise running.result()
            return bundle, running
        except BaseException:
            running.cancel()
            raise
        finally:
            allowed.cancel()

    async def _open(self, address: str, timeout_s: float) -> Connection:
        """Raises SpindleError."""
        found = await self._names.found_by_task(address, timeout_s)
        conn = await control(address, found, self._trust, timeout_s, self._config.suspect_timeout_s)
        try:
            conn.set_limits(LIMITS)
            conn.send(opening_pb2.Opening(
                magic=MAGIC, role=opening_pb2.EDGE, protocol=EDGE_PROTOCOL, domain_id=self._config.domain_id,
                name=self._config.name or socket.gethostname(), release=__version__).SerializeToString())
            reply = opening_pb2.OpeningReply.FromString((await conn.receive(timeout_s)).body)
            if reply.magic != MAGIC:
                raise ProtocolMismatch(f"{conn.label} does not speak Spindle's protocol")
            if reply.kind:
                raise error_from_wire(reply.kind, reply.message)
            if reply.protocol != EDGE_PROTOCOL:
                raise ProtocolMismatch(f"{conn.label} speaks version {reply.protocol} of the edge protocol, this edge "
                                       f"version {EDGE_PROTOCOL}: use the same release of Spindle for both")
            return conn
        except DecodeError as error:
            conn.close()
            raise ProtocolMismatch(f"{conn.label} sent a message that can't be read: {error}") from None
        except BaseException:
            conn.close()
            raise
