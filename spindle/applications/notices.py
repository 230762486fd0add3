"""What one application announces beside its readers and writers (topics, participants), and what it may know of what
others announce.

Rules: of readers, writers and topics an application hears if it may see their topic. Of a participant it hears as long
as that has any of these, is its own, or belongs to the same user of this host; and always, if no rule hides anything
from it. So a participant comes and goes, for it, with the last thing of it that it may see: `shown` remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from spindle.errors import AccessDenied, ConfigError, SpindleError, TopicLimit
from spindle.group.endpoints import PARTICIPANT, PORT, Endpoint
from spindle.group.events import ANNOUNCED, WITHDRAWN, Event

if TYPE_CHECKING:
    from spindle.node.node import Node
    from spindle.proto import attach_pb2 as pb
    from spindle.security.access import Permissions


class Notices:
    """Of one application, `who` for error texts.

    holder  guid -> permissions of the application of this node that has announced it; None if none has
    """

    def __init__(self, node: Node, who: str, name: str, permissions: Permissions,
                 holder: Callable[[bytes], Permissions | None]) -> None:
        self._node, self._who, self._name, self._permissions, self._holder = node, who, name, permissions, holder
        self.own: set[bytes] = set()
        self._shown: set[bytes] = set()  # participants that it has heard of; empty if it sees all

    # --- its own

    def announce(self, wanted: pb.Announce) -> None:
        """Tells the group of a topic or participant. Raises AccessDenied, ConfigError, TopicLimit."""
        if wanted.kind == PORT:
            raise ConfigError("readers and writers are announced when they are opened")
        if wanted.kind != PARTICIPANT:
            self._permissions.check_declare(wanted.topic)
        if wanted.guid not in self.own and self._holder(wanted.guid) is not None:
            raise AccessDenied(f"guid {wanted.guid.hex()} is announced already")
        limit = self._node.config.max_endpoints_per_app
        if wanted.guid not in self.own and len(self.own) >= limit:
            raise TopicLimit(f"{self._who} has announced {limit} topics and participants, the limit: close some, or "
                             "raise [limits] max_endpoints_per_app in the node's configuration")
        self._node.announce_endpoint(Endpoint(
            guid=wanted.guid, node_id=self._node.node_id, is_writer=False, topic=wanted.topic,
            endpoint=wanted.endpoint, app_name=self._name, pid=self._permissions.peer.pid, kind=wanted.kind))
        self.own.add(wanted.guid)

    def withdraw(self, guid: bytes) -> None:
        """Raises SpindleError for what it hasn't announced."""
        if guid not in self.own:
            raise SpindleError(f"{self._who} has announced no topic or participant {guid.hex()}")
        self.own.discard(guid)
        self._node.withdraw_endpoint(guid)

    def end(self) -> None:
        """The application has gone."""
        for guid in self.own:
            self._node.withdraw_endpoint(guid)
        self.own = set()

    # --- others'

    def may_see(self, endpoint: Endpoint) -> bool:
        if endpoint.kind != PARTICIPANT:
            return self._permissions.may_see(endpoint.topic)
        return self._permissions.sees_all or endpoint.guid in self.own or self._same_user(endpoint) or any(
            one.kind != PARTICIPANT and self._permissions.may_see(one.topic)
            for one in self._node.endpoints_of(endpoint.owner))

    def _same_user(self, endpoint: Endpoint) -> bool:
        holder = self._holder(endpoint.guid)
        me = self._permissions.peer
        return holder is not None and holder.peer.local and me.local and holder.peer.uid == me.uid

    def listed(self, topic: str, everything: bool) -> list[Endpoint]:
        """What it may see of the group's announcements."""
        seen = [one for one in self._node.endpoints(topic, everything) if self.may_see(one)]
        if not self._permissions.sees_all:
            self._shown.update(one.guid for one in seen if one.kind == PARTICIPANT)
        return seen

    def events(self, event: Event) -> Iterator[Event]:
        """What it is told when something was announced or withdrawn."""
        endpoint = event.endpoint
        assert endpoint is not None
        if self._permissions.sees_all:
            yield event
        elif endpoint.kind == PARTICIPANT:
            if event.kind == ANNOUNCED and self.may_see(endpoint):
                self._shown.add(endpoint.guid)
                yield event
            elif event.kind == WITHDRAWN and endpoint.guid in self._shown:
                self._shown.discard(endpoint.guid)
                yield event
        elif self.may_see(endpoint):
            yield event
            for one in list(self._node.endpoints_of(endpoint.owner)):
                if one.kind == PARTICIPANT and self.may_see(one) != (one.guid in self._shown):
                    yield from self._turned(one)

    def _turned(self, participant: Endpoint) -> Iterator[Event]:
        """It may see it now, and could not before; or the other way round."""
        if participant.guid in self._shown:
            self._shown.discard(participant.guid)
            yield Event(WITHDRAWN, endpoint=participant)
        else:
            self._shown.add(participant.guid)
            yield Event(ANNOUNCED, endpoint=participant)


__all__ = ["Notices"]
