"""Links as programs use them: those that they open, ports that they listen at, and regions that they offer.

Rules: one thread at a time uses a link or a port; others wait for their turn. What a program has open ends with its
session.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from spindle.errors import ConfigError, LinkError, NoResources, shortage
from spindle.links.ends import Idle, LinkEnd, check_host
from spindle.links.link import SIZE_MAX, TIMEOUT_S, Link, Region, checked_name
from spindle.links.port import Message, Port

if TYPE_CHECKING:
    from spindle.client.session import Session
    from spindle_core.memory import Mapping

MEMORY = 1 << 16  # bytes of a link, unless asked for otherwise


def in_range(what: str, number: int, least: int, most: int) -> int:
    """The number. Raises ConfigError for one that can't be."""
    if not least <= number <= most:
        raise ConfigError(f"{what} {number}: must be between {least} and {most}")
    return number


class OfferedRegion:
    """Memory of this program that others reach by name. `view`: the memory itself; who changes it beside others does so
    word by word."""

    def __init__(self, session: Session, name: str, memory: Mapping) -> None:
        self._session, self.name, self._memory = session, name, memory
        self.view = memory.view()
        self.ended = False
        self._within = False  # a `with`, which is to end it

    def end(self) -> None:
        """Nobody finds it from now on; who has found it may use it for a second. The memory stays this program's.
        Idempotent."""
        from spindle.proto import attach_pb2 as pb

        if not self.ended:
            try:
                if not self._session._channel.ended:
                    self._session._channel.request(end_region=pb.EndRegion(name=self.name))
                self.ended = True
            finally:
                if not self.ended and not self._session._channel.ended:  # interrupted, as by a signal
                    self._session._channel.post_end_region(self.name)
                self.ended = True

    def __enter__(self) -> OfferedRegion:
        self._within = True
        return self

    def __del__(self) -> None:
        """Whoever left its `with` was interrupted before he could end it."""
        if getattr(self, "_within", False) and not self.ended and not sys.is_finalizing():
            self.ended = True
            if not self._session._channel.ended:
                self._session._channel.post_end_region(self.name)

    def __exit__(self, *_: object) -> None:
        self.end()


class Links:
    """Links of one session, which must be with a node of this host (`session.beside_node`)."""

    def __init__(self, session: Session) -> None:
        self._session = session
        if session.idle_links is None:
            session.idle_links = Idle()
        self._idle: Idle = session.idle_links

    def open(self, node_id: int, *, port: int = 0, memory: int = MEMORY, timeout_s: float = TIMEOUT_S) -> Link:
        """A link to a node of the group, this host's own or another.

        port: the only one that it will send to; it must be named where access rules name ports.
        memory: bytes that its requests may read or fill at a time.
        timeout_s: how long its calls wait.
        Raises ConnectionEnded where there is no such node, ConfigError beyond a limit, AccessDenied, NoResources.
        """
        in_range("node", node_id, 0, 0xFFFFFFFF)
        in_range("port", port, 0, 65535)
        in_range("memory", memory, 0, SIZE_MAX)
        node_id = node_id or self._session.node_id
        end = None if port else self._idle.take(node_id, memory)
        if end is None:
            end = self.new_end({"node_id": node_id, "port": port, "memory": memory})
        try:
            return Link(self._session, end, node_id, timeout_s, None if port else self._idle, memory)
        except BaseException:  # what a signal's handler raises
            end.close()
            raise

    def new_end(self, wanted: dict[str, Any]) -> LinkEnd:
        """One that the node makes. What is kept for later gives way where it takes the last place."""
        try:
            return LinkEnd(self._session, wanted)
        except (ConfigError, NoResources):
            if not self._idle.give_up():
                raise
        return LinkEnd(self._session, wanted)

    def listen(self, port: int) -> Port:
        """Takes what is sent to this port (1 to 65535) of the own node. Raises ConfigError where somebody listens there
        already, AccessDenied."""
        end = self.new_end({"node_id": 0, "port": in_range("port", port, 1, 65535), "memory": 1})
        try:
            return Port(self._session, end, port, self.open)
        except BaseException:  # what a signal's handler raises
            end.close()
            raise

    def offer(self, name: str, size: int, *, writer: int = 0, atomics: bool = False) -> OfferedRegion:
        """Memory of `size` bytes, zeros at first, that programs of all nodes may read; programs of the node `writer`
        may write it, or all may change its words by `atomics`.

        Raises ConfigError where this node offers one of that name already or a limit is reached, ConnectionEnded where
        the writer is no node of the group, AccessDenied, NoResources.
        """
        from spindle.client.session import taken
        from spindle.proto import attach_pb2 as pb
        from spindle_core.memory import Mapping

        check_host(self._session)
        checked_name(name)
        in_range("size", size, 1, SIZE_MAX)
        in_range("writer", writer, 0, 0xFFFFFFFF)
        _, frame = self._session._channel.request(offer_region=pb.OfferRegion(
            name=name, size=size, writer=writer, atomics=atomics))
        try:
            with taken(frame, 1) as fds:
                return OfferedRegion(self._session, name, Mapping.attach(fds.take(), writable=True))
        except BaseException as error:  # also what a signal's handler raises
            self._session._channel.post_end_region(name)
            if isinstance(error, OSError):
                raise shortage(error, f"region {name!r}") or error from error
            raise


__all__ = ["Link", "LinkError", "Links", "Message", "OfferedRegion", "Port", "Region"]
