"""What one application has open: readers and writers at the node, their announcements, their share of the limits.

Rules:
- A port that was counted gives its room back when it is closed, once.
- A guid belongs to the port that announced it last: only that one withdraws it.
- Whoever has ended opens nothing more: a port that comes too late is closed again.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Protocol

from spindle.applications.quotas import Quota
from spindle.errors import AccessDenied, NodeStopped, SpindleError, TopicLimit
from spindle.group.endpoints import RELAY_SHIFT, Endpoint
from spindle.security.access import Permissions

if TYPE_CHECKING:
    from spindle.node.node import Node, ReaderPort, WriterPort

LOG = logging.getLogger("spindle.attachment")


@dataclasses.dataclass
class OpenPort:
    """A writer or a reader that an application has open."""

    topic: str
    writer: WriterPort | None = None
    reader: ReaderPort | None = None
    guid: bytes = b""  # empty: not announced
    endpoint: Endpoint | None = None  # as it is announced
    inbox_bytes: int = 0
    counted: bool = False  # by the quota of its user
    number: int = 0


class Guids(Protocol):
    """Whose guids are whose, at the whole node: see `spindle.applications.attachment`."""

    node: Node
    announced: dict[bytes, tuple[OpenPorts, int]]

    def is_notice(self, guid: bytes) -> bool:
        """True if an application of this node has announced a topic or participant with it."""


class OpenPorts:
    """Of one application.

    label    names the application in errors and in the log
    closing  what closes one of its ports; it comes back to close(), which is all that there is to do for most
    ended    set once the application has gone
    """

    def __init__(self, guids: Guids, label: str, permissions: Permissions, quota: Quota | None,
                 closing: Callable[[OpenPort], Awaitable[None]]) -> None:
        self.label = label
        self.permissions = permissions
        self.ended = False
        self._guids = guids
        self._node = guids.node
        self._quota = quota
        self._closing = closing
        self._ports: dict[int, OpenPort] = {}
        self._opening = 0  # ports that running requests are about to add
        self._numbers = itertools.count(1)

    def __iter__(self) -> Iterator[OpenPort]:
        return iter(list(self._ports.values()))

    def find(self, number: int) -> OpenPort | None:
        return self._ports.get(number)

    def get(self, number: int) -> OpenPort:
        """Raises SpindleError."""
        port = self._ports.get(number)
        if port is None:
            raise SpindleError(f"{self.label} has no open port {number}")
        return port

    # --- opening

    @contextlib.asynccontextmanager
    async def room(self, inbox_bytes: int = 0) -> AsyncIterator[Callable[[OpenPort], OpenPort]]:
        """Room for a reader, or a writer with an inbox of so many bytes, within the limits of application and user.
        Call what is yielded with the new port: from then on closing the port gives the room back."""
        limit = self._node.config.max_endpoints_per_app
        if len(self._ports) + self._opening >= limit:
            raise TopicLimit(f"{self.label} has {limit} readers and writers open, the limit: close some, or raise "
                             "[limits] max_endpoints_per_app in the node's configuration")
        self._node.check_descriptors("a reader or writer")
        taken = self._quota is not None
        if self._quota is not None:
            self._quota.take_endpoint(inbox_bytes)

        def counted(port: OpenPort) -> OpenPort:
            nonlocal taken
            port.counted, taken = taken, False
            return port

        self._opening += 1
        try:
            if self._quota is not None:
                await self._quota.change()
            yield counted
        finally:
            self._opening -= 1
            if taken and self._quota is not None:
                self._quota.give_endpoint(inbox_bytes)

    async def add(self, port: OpenPort, endpoint: Endpoint | None) -> int | None:
        """Number of the new port, announced; None if the application has gone meanwhile: the port is closed again."""
        if self.ended:
            await self.close_logged(port)
            return None
        number = port.number = next(self._numbers)
        self._ports[number] = port
        if endpoint is not None:
            try:
                self._announce(port, endpoint)
            except SpindleError:
                if self._ports.pop(number, None) is not None:
                    await self.close_logged(port)
                raise
        return number

    def _announce(self, port: OpenPort, endpoint: Endpoint) -> None:
        if port.writer is not None:
            endpoint = dataclasses.replace(
                endpoint, writer_id=port.writer.inbox.writer_id, relay=port.writer.relayed >> RELAY_SHIFT)
        holder = self._guids.announced.get(endpoint.guid)
        foreign = holder is not None and holder[0] is not self and not holder[0].ended
        if foreign or self._guids.is_notice(endpoint.guid):
            raise AccessDenied(f"guid {endpoint.guid.hex()} is announced by another application of this node")
        self._node.announce_endpoint(endpoint)
        self._guids.announced[endpoint.guid] = (self, port.number)
        port.endpoint = endpoint
        port.guid = endpoint.guid

    def change(self, port: OpenPort, endpoint: bytes, farewell: int) -> None:
        """What is said of it is this from now on, and at a writer's end."""
        if port.endpoint is not None and self._guids.announced.get(port.guid) == (self, port.number):
            changed = dataclasses.replace(port.endpoint, endpoint=endpoint)
            self._node.announce_endpoint(changed)
            port.endpoint = changed
        if port.writer is not None:
            port.writer.farewell = farewell

    # --- closing

    def withdraw(self, port: OpenPort) -> None:
        """Idempotent."""
        if port.guid and self._guids.announced.get(port.guid) == (self, port.number):
            del self._guids.announced[port.guid]  # otherwise it has been announced anew since
            self._node.withdraw_endpoint(port.guid)

    async def close(self, port: OpenPort) -> None:
        self.withdraw(port)
        if port.counted and self._quota is not None:
            port.counted = False
            self._quota.give_endpoint(port.inbox_bytes)
        if port.writer is not None:
            await self._node.close_writer(port.writer)
        if port.reader is not None:
            await self._node.close_reader(port.reader)

    async def close_number(self, number: int) -> None:
        """Raises SpindleError."""
        port = self.get(number)
        del self._ports[number]
        await self._closing(port)

    async def take_back(self, number: int) -> None:
        """Closes a port that nobody has heard of, if there is one of this number."""
        port = self._ports.pop(number, None)
        if port is not None:
            await self.close_logged(port)

    async def close_all(self) -> None:
        ports, self._ports = list(self._ports.values()), {}
        await asyncio.gather(*(self.close_logged(port) for port in ports))

    async def close_logged(self, port: OpenPort) -> None:
        try:
            await self._closing(port)
        except NodeStopped:
            return  # the node closes everything itself
        except SpindleError as error:
            kind = "writer" if port.writer is not None else "reader"
            LOG.warning("%s: closing its %s of %r failed: %s", self.label, kind, port.topic, error)
