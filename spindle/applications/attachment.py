"""The applications of one node: who may attach, who is attached, and what all of them are told.

Rules:
- A connection is taken over after its Opening was read (`Attachments.admit`). Version, domain, access list and limits
  are checked before anything is allocated for it; then OpeningReply and Welcome go out and requests are served
  (`spindle.applications.application`).
- An edge is no application, but brings some (`spindle.applications.edges`).
- Events of the group go to those that watch and may know of their topic.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from spindle import __version__
from spindle.applications.application import Application
from spindle.applications.edges import Edges
from spindle.applications.open_ports import OpenPorts
from spindle.applications.quotas import Quotas
from spindle.applications.relayed import RelayedApplication
from spindle.applications.turns import Turns
from spindle.errors import NodeStopped, ProtocolMismatch, SpindleError, WireError, error_to_wire
from spindle.group.codec import PROTOCOL_VERSION, event_to_wire
from spindle.group.events import GONE, Event
from spindle.logs import Sparing
from spindle.proto import attach_pb2 as pb
from spindle.proto import opening_pb2
from spindle.relay.figures import RelayFigures
from spindle.security.access import Credentials, Permissions
from spindle.transport.opening import EDGE_PROTOCOL, MAGIC
from spindle.transport.wire import Connection

if TYPE_CHECKING:
    from spindle.node.node import Node

LOG = logging.getLogger("spindle.attachment")


class Attachments:
    """All applications of one node. The node hands their connections to `admit` and reports events to `tell`."""

    def __init__(self, node: Node, *, embedded: bool = False) -> None:
        self.node = node
        self.embedded = embedded
        self.apps: dict[int, Application] = {}
        self.turns = Turns()
        self.quotas = Quotas(node.config)
        self.announced: dict[bytes, tuple[OpenPorts, int]] = {}  # by guid: whose port this is
        self.relayed = RelayFigures()
        self.edges = Edges(node, self.admit)
        self.denials = Sparing(LOG)  # of who may not attach, and what access rules forbid
        self._numbers = itertools.count(1)
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopped: SpindleError | None = None
        node.status_told = self.full_status

    def admit(self, conn: Connection, opening: opening_pb2.Opening, credentials: Credentials) -> None:
        """Answer the Opening of an application, or of an edge, and serve it from now on, or refuse and close."""
        edge = opening.role == opening_pb2.EDGE
        protocol = EDGE_PROTOCOL if edge else PROTOCOL_VERSION
        try:
            permissions = self._check(opening, credentials)
        except SpindleError as error:
            self.relayed.refused += not credentials.local
            self.denials.warn((opening.name, str(error).replace(str(credentials), "")), "refused %s %r of %s: %s",
                              "edge" if edge else "application", opening.name, credentials, error)
            self._answer_opening(conn, protocol, error)
            conn.close()
            return
        if edge:
            self._answer_opening(conn, protocol, None)
            self.edges.serve(conn, opening.name, self.quotas.of(credentials))
            return
        kind = Application if credentials.local else RelayedApplication
        app = kind(self, next(self._numbers), conn, opening.name, permissions)
        self.apps[app.number] = app
        self._answer_opening(conn, protocol, None)
        task = asyncio.get_running_loop().create_task(app.serve(), name=str(app))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def adopt(self, sock: socket.socket) -> None:
        """Serve a connected socket that did not come through the node's listening one, from its Opening on.

        Raises OSError if the socket is dead already.
        """
        self.node.adopt(sock)

    def _check(self, opening: opening_pb2.Opening, credentials: Credentials) -> Permissions:
        config = self.node.config
        edge = opening.role == opening_pb2.EDGE
        own, what, who = (EDGE_PROTOCOL, "edge", "edge") if edge else (PROTOCOL_VERSION, "attachment", "application")
        if opening.protocol != own:
            raise ProtocolMismatch(
                f"node {self.node.node_id} speaks version {own} of the {what} protocol, the "
                f"{who} version {opening.protocol}: use the same release of Spindle for both")
        if opening.domain_id != config.domain_id:
            raise ProtocolMismatch(f"node {self.node.node_id} belongs to domain {config.domain_id}, "
                                   f"the {who} wants domain {opening.domain_id}")
        if edge and credentials.local:
            raise ProtocolMismatch("an edge comes over the network: the programs of this host attach to the node")
        if self._stopped is not None:
            raise self._stopped
        permissions = Permissions(config, credentials)
        if len(self.apps) + len(self.edges) >= config.max_apps:
            raise SpindleError(f"node {self.node.node_id} has {config.max_apps} applications, its limit: detach one, "
                               "or raise [limits] max_apps in its configuration")
        quota = self.quotas.of(credentials)
        if quota is not None:
            quota.take_application()
        return permissions

    def _answer_opening(self, conn: Connection, protocol: int, error: SpindleError | None) -> None:
        kind, text = ("", "") if error is None else error_to_wire(error)
        with contextlib.suppress(WireError):  # gone already: serving it ends at once
            conn.send(opening_pb2.OpeningReply(
                magic=MAGIC, protocol=protocol, node_id=self.node.node_id, kind=kind, message=text,
                release=__version__).SerializeToString())

    def holder_of(self, guid: bytes) -> Permissions | None:
        """The permissions of the application that has announced it; None if none of this node has."""
        found = self.announced.get(guid)
        return found[0].permissions if found is not None else next(
            (app.permissions for app in self.apps.values() if guid in app.notices.own), None)

    def is_notice(self, guid: bytes) -> bool:
        """True if an application of this node has announced a topic or participant with it."""
        return any(guid in app.notices.own for app in self.apps.values())

    @property
    def stopping(self) -> bool:
        """True once the node is about to end."""
        return self._stopped is not None

    def tell(self, event: Event) -> None:
        """Pass an event of the group on to the applications that watch and may know of it."""
        if event.kind == GONE:
            return  # every session says that itself when its connection ends, also after kill -9
        topic = event.topic.spec.name if event.topic else None
        body: bytes | None = None  # the same for most
        for app in list(self.apps.values()):
            if not app.watching or (topic is not None and not app.permissions.may_see(topic)):
                continue
            for one in app.notices.events(event) if event.endpoint is not None else (event,):
                if one is event and body is None:
                    body = _frame(event)
                app.send(body if one is event and body is not None else _frame(one))

    def full_status(self) -> dict[str, Any]:
        """The node's own status and what is attached to it, fit for JSON."""
        return {**self.node.status(), "pid": os.getpid(), "embedded": self.embedded,
                "applications": [app.status() for app in self.apps.values()],
                "relayed": {"applications": sum(app.external for app in self.apps.values()), "edges": len(self.edges),
                            **dataclasses.asdict(self.relayed)}}

    def status_for(self, viewer: Permissions) -> dict[str, Any]:
        """The same as far as the viewer may see it: those topics, with their journals, and of other users'
        applications what they have open on these."""
        status = self.full_status()
        if viewer.sees_all:
            return status
        status["topics"] = [topic for topic in status["topics"] if viewer.may_see(topic["name"])]
        seen = []
        for app in self.apps.values():
            shown = app.status()
            peer = app.permissions.peer
            if not (peer.local and viewer.peer.local and peer.uid == viewer.peer.uid):
                for kind in ("writers", "readers"):
                    shown[kind] = [topic for topic in shown[kind] if viewer.may_see(topic)]
                if not (shown["writers"] or shown["readers"]):
                    continue
            seen.append(shown)
        status["applications"] = seen
        return status

    async def group_status_for(self, viewer: Permissions, figures: bool) -> dict[str, Any]:
        """What every member says of itself, in the order of their ranks, as far as the viewer may see it. One that says
        nothing has its node_id and "error"."""
        own = self.node.node_id

        async def told(node_id: int) -> dict[str, Any]:
            if node_id == own:
                said = self.node.figures() if figures else self.full_status()
            else:
                try:
                    said = await self.node.telling.ask(node_id, figures)
                except (SpindleError, TimeoutError) as error:
                    return {"node_id": node_id, "error": str(error)}
            return _seen(viewer, {**said, "node_id": node_id})

        return {"nodes": list(await asyncio.gather(*map(told, self.node.view().node_ids)))}

    async def close(self, reason: SpindleError | None = None) -> None:
        """Say `reason` to every application as the last word; returns when all connections and ports are closed."""
        self._stopped = reason or NodeStopped(f"node {self.node.node_id} was stopped; attach again once a daemon runs")
        self.edges.stop()
        for app in list(self.apps.values()):
            app.end(self._stopped)
        while tasks := list(self._tasks):
            await asyncio.gather(*tasks, return_exceptions=True)
            # Here too: since Python 3.12 gather() of finished tasks returns before their callbacks have run.
            self._tasks.difference_update(tasks)
        await self.edges.close(self._stopped)


def _seen(viewer: Permissions, status: dict[str, Any]) -> dict[str, Any]:
    """What a node has said of itself, without what the viewer may not see: other topics, and applications that have
    nothing open on those. Who is who at another node isn't known here, so nobody sees his own applications there."""
    if viewer.sees_all:
        return status
    found = dict(status)
    if "topics" in status:
        found["topics"] = [topic for topic in status["topics"] if viewer.may_see(str(topic.get("name")))]
    if "applications" in status:
        shown = [{**app, **{kind: [topic for topic in app.get(kind, ()) if viewer.may_see(topic)]
                            for kind in ("writers", "readers")}} for app in status["applications"]]
        found["applications"] = [app for app in shown if app["writers"] or app["readers"]]
    return found


def _frame(event: Event) -> bytes:
    return pb.NodeFrame(event=event_to_wire(event)).SerializeToString()
