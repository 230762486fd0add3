"""embed(): a node inside this process, and a session with it.

Why the same code path: the session attaches to the embedded node over a socket pair, with the same messages,
descriptors and checks as to a daemon. What works with one works with the other, and several embedded nodes may live in
one process without sharing anything.

Rules: the node runs on a thread of its own with its own event loop. It leaves the group when its session is closed, is
forgotten, or the program ends.
"""

from __future__ import annotations

import os
import socket
import threading
from typing import TYPE_CHECKING

from spindle.errors import NodeStopped, SpindleError, start_thread
from spindle.locks import Latch

if TYPE_CHECKING:
    import asyncio

    from spindle.applications.attachment import Attachments
    from spindle.client.session import Session
    from spindle.config.settings import NodeConfig
    from spindle_core.engine import Engine

START_MARGIN_S = 10.0  # beyond join_timeout_s, before we believe that the node's thread hangs
STOP_TIMEOUT_S = 10.0  # for a clean leave


def embed(
    domain_id: int = 0, *, node_id: int | None = None, config: NodeConfig | None = None, name: str = ""
) -> Session:
    """Start a node on a thread of this process, let it join its group, and attach to it.

    domain_id and node_id, where given, go before those of `config`. With no node_id in either: the lowest free one.
    Raises what joining raises: JoinFailed, NodeIdTaken, ConfigError, and so on.
    """
    import dataclasses

    from spindle.client.attaching import open_session
    from spindle.config.settings import NodeConfig

    config = config or NodeConfig(domain_id=domain_id)
    node = EmbeddedNode(dataclasses.replace(
        config, domain_id=domain_id or config.domain_id, node_id=node_id or config.node_id))
    node.start()
    try:
        session = open_session(node.connect(), node.config.domain_id, name, START_MARGIN_S,
                               label=f"embedded node {node.node_id}", on_close=node.stop)
        session.is_within(node.engine)
        return session
    except BaseException:
        node.stop()
        raise


class EmbeddedNode:
    """A node on a thread of this process."""

    def __init__(self, config: NodeConfig) -> None:
        self.config = config
        self.node_id = config.node_id
        self._pid = os.getpid()
        self._ready = Latch()
        self._error: BaseException | None = None  # why it didn't start, or ended
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stopping: asyncio.Event | None = None
        self._attachments: Attachments | None = None
        self._thread = threading.Thread(target=self._run, name="spindle node", daemon=True)

    def start(self) -> None:
        """Start the node; returns once it is a member of its group. Raises what stopped it otherwise."""
        start_thread(self._thread, "a node in this process")
        if not self._ready.wait(self.config.join_timeout_s + START_MARGIN_S):
            self.stop()
            raise NodeStopped("the embedded node did not come up in time; run with log level debug to see why")
        if self._error is not None:
            self._thread.join(STOP_TIMEOUT_S)
            raise self._error

    @property
    def engine(self) -> Engine:
        """The node's core."""
        assert self._attachments is not None, "it has started"
        return self._attachments.node.engine

    def connect(self) -> socket.socket:
        """A socket whose other end the node serves like one that came through its listening socket."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        loop = self._loop
        try:
            if loop is None:
                raise RuntimeError("not running")
            loop.call_soon_threadsafe(self._adopt, theirs)
        except RuntimeError:  # the loop has ended
            ours.close()
            theirs.close()
            raise NodeStopped("the embedded node has stopped") from self._error
        return ours

    def stop(self) -> None:
        """Leave the group and end the thread. Idempotent; callable from every thread."""
        if os.getpid() != self._pid:
            return  # a child after fork(): the node is the parent's
        loop, stopping = self._loop, self._stopping
        if loop is not None and stopping is not None:
            try:
                loop.call_soon_threadsafe(stopping.set)
            except RuntimeError:
                pass  # the loop has ended already
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(STOP_TIMEOUT_S)

    # --- on the node's thread

    def _run(self) -> None:
        loop: asyncio.AbstractEventLoop | None = None
        try:
            from spindle.service.daemon import new_loop

            loop = new_loop()
            loop.run_until_complete(self._live())
        except BaseException as error:  # of importing, too, which takes descriptors
            self._error = error
        finally:
            self._loop = None
            self._ready.set()
            if loop is not None:
                loop.close()

    async def _live(self) -> None:
        import asyncio

        from spindle.service.daemon import serve

        self._loop = asyncio.get_running_loop()
        self._stopping = asyncio.Event()
        await serve(self.config, self._stopping, self._on_ready, embedded=True)

    def _on_ready(self, attachments: Attachments) -> None:
        self._attachments = attachments
        self.node_id = attachments.node.node_id
        self._ready.set()

    def _adopt(self, sock: socket.socket) -> None:
        if self._attachments is None:
            sock.close()
            return
        try:
            self._attachments.adopt(sock)
        except (OSError, SpindleError):
            sock.close()
