"""What one user's applications may use of a node, together: applications, topics, endpoints, links, memory, and
changes of the group.

Why at the node that is asked: what is declared or opened costs memory on every node, and each change costs a view; so
the node that an application is attached to refuses before anybody else hears of it.

Rules:
- Users of this host are told apart by their number, applications of other hosts by the name in their certificate, or
  else by their address. Who may be a node is not limited: it could do everything anyway.
- What is too much is refused with the limit and its key. Changes that come too fast are not refused; they wait.
- A topic counts for who declared it, through this node, as long as the group has it.
- Memory is that of the rings: of a declared topic the ring of one sender, of an open writer its inbox; and that of
  links and of regions that are offered.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from spindle.config.keys import size_text
from spindle.errors import SpindleError, TopicLimit
from spindle.group.layout import sender_bytes
from spindle.group.topics import TopicSpec
from spindle.security.access import NetworkPeer
from spindle.security.identity import NODE

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.security.access import Credentials

CHANGES_AT_ONCE_S = 5.0  # so many seconds' worth of changes may come at once


@dataclasses.dataclass(eq=False)
class Quota:
    """What one user has. `take_*` raise TopicLimit or SpindleError. `give_endpoint` gives an endpoint back; whoever
    took an application counts it down in `applications`."""

    who: str
    config: NodeConfig
    applications: int = 0
    endpoints: int = 0
    writer_bytes: int = 0
    links: int = 0
    link_bytes: int = 0  # of them and of regions
    topics: dict[str, int] = dataclasses.field(default_factory=dict)  # bytes by name
    _deciding: list[str] = dataclasses.field(default_factory=list)  # names of `topics` on which the group is deciding
    _spent: float = 0.0  # changes, beyond what time has given back
    _spent_at: float = 0.0

    def take_application(self) -> None:
        limit = self.config.max_apps_per_user
        if self.applications >= limit:
            raise SpindleError(f"{self.who} has {limit} applications attached, the limit: detach one, or raise "
                               "[limits] max_apps_per_user in the node's configuration")
        self.applications += 1

    def take_endpoint(self, inbox_bytes: int = 0) -> None:
        """A reader, or a writer with an inbox of so many bytes."""
        limit = self.config.max_endpoints_per_user
        if self.endpoints >= limit:
            raise TopicLimit(f"{self.who} has {limit} readers and writers open, the limit: close some, or raise "
                             "[limits] max_endpoints_per_user in the node's configuration")
        self.check_bytes(inbox_bytes)
        self.endpoints += 1
        self.writer_bytes += inbox_bytes

    def give_endpoint(self, inbox_bytes: int = 0) -> None:
        self.endpoints -= 1
        self.writer_bytes -= inbox_bytes

    def take_link(self, size: int) -> None:
        """A link that costs so many bytes."""
        limit = self.config.max_links_per_user
        if self.links >= limit:
            raise SpindleError(f"{self.who} has {limit} links open, the limit: close some, or raise [limits] "
                               "max_links_per_user in the node's configuration")
        self.take_region(size)
        self.links += 1

    def give_link(self, size: int) -> None:
        self.links -= 1
        self.link_bytes -= size

    def take_region(self, size: int) -> None:
        """A region of so many bytes that is offered."""
        self.check_bytes(size)
        self.link_bytes += size

    def give_region(self, size: int) -> None:
        self.link_bytes -= size

    @contextlib.contextmanager
    def declaring(self, spec: TopicSpec, existing: Iterable[str]) -> Iterator[None]:
        """Counts a topic while the group decides on it, and afterwards unless that fails. `existing`: the group's
        topics; what the group has no more doesn't count either."""
        known = {*existing, *self._deciding}
        self.topics = {name: size for name, size in self.topics.items() if name in known}
        self._check_topic(spec)
        self.topics[spec.name] = sender_bytes(spec)
        self._deciding.append(spec.name)
        try:
            yield
        except BaseException:
            self.topics.pop(spec.name, None)
            raise
        finally:
            self._deciding.remove(spec.name)

    def _check_topic(self, spec: TopicSpec) -> None:
        limit = self.config.max_topics_per_user
        if len(self.topics) >= limit:
            raise TopicLimit(f"topic {spec.name!r}: {self.who} has declared {limit} topics, the limit: raise [limits] "
                             "max_topics_per_user in the node's configuration")
        self.check_bytes(sender_bytes(spec))

    def check_bytes(self, more: int) -> None:
        """Raises TopicLimit if the user may not have so many bytes more."""
        limit = self.config.max_bytes_per_user
        used = self.writer_bytes + self.link_bytes + sum(self.topics.values())
        if used + more > limit:
            raise TopicLimit(f"{self.who} would use {used + more} bytes for its topics, writers, links and regions, "
                             f"the limit is {size_text(limit)}: take smaller messages or windows, close some, or raise "
                             "[limits] max_bytes_per_user in the node's configuration")

    async def change(self) -> None:
        """Returns when one more change of the group is not too much."""
        wait_s = self.change_due_in_s(time.monotonic())
        if wait_s > 0:
            await asyncio.sleep(wait_s)

    def change_due_in_s(self, now: float) -> float:
        """Counts a change that is asked for at `now`; after how many seconds it may begin."""
        rate = self.config.max_changes_per_user_s
        self._spent = max(0.0, self._spent - (now - self._spent_at) * rate) + 1
        self._spent_at = now
        return max(0.0, self._spent / rate - CHANGES_AT_ONCE_S)

    @property
    def idle(self) -> bool:
        """True if there is nothing to remember."""
        spent = self._spent - (time.monotonic() - self._spent_at) * self.config.max_changes_per_user_s
        return not (self.applications or self.endpoints or self.links or self.link_bytes or self.topics or spent > 0)


class Quotas:
    """The quotas of all users of one node."""

    def __init__(self, config: NodeConfig) -> None:
        self._config = config
        self._quotas: dict[str, Quota] = {}

    def of(self, who: Credentials) -> Quota | None:
        """The quota of the user at the other end; None if that one isn't limited."""
        user: int | None = who.uid
        if isinstance(who, NetworkPeer):
            user = who.host_user
            if who.identity is not None and who.identity.role == NODE:
                return None
        if user is not None and self._config.is_node_user(user):
            return None
        if isinstance(who, NetworkPeer) and who.identity is not None and who.identity.name:
            name = f"application {who.identity.name!r}"
        elif isinstance(who, NetworkPeer) and (user is None or user < 0):
            name = who.address.rpartition(":")[0]
        else:
            name = f"user {user}"
        for other in [key for key, quota in self._quotas.items() if quota.idle and key != name]:
            del self._quotas[other]
        return self._quotas.setdefault(name, Quota(name, self._config))
