"""Finding the group on other hosts: asking the contacts, and when nodes that find none may form one.

Why not whoever comes first: of two nodes that start at once on two hosts, or on both sides of a broken cable, each
would form a group of its own, and both would serve. On one host a lock settles that (`spindle.joining.bootstrap`);
between hosts a majority of the contacts does.

Rules:
- Asking changes nothing at either end: a question is a connection that is answered and closed.
- A node that finds a member of a group joins it, one that serves before one that doesn't.
- If nobody is a member, of the contacts that are there the node with the lowest id forms a group of itself, once
  enough of them are there; the others then find it. Who is the first doesn't go by the list: each file may have another
  order (its own host first, say), or another name of a host.
- Before it does, it says that it is forming, and looks once more. Of two that say so and see each other, the one with
  the higher id gives way, and the other waits until it has. So of nodes that reach each other only one forms a group,
  though they start at the same moment; else each would wait in a group of its own for contacts that are in another.
- A node that is no contact by its own file only joins, and says so: files may differ by a host, so others may have it
  among theirs, and would wait for it.
- A group serves (takes applications) once enough of the contacts are members of it: `[network] form` says how many. So
  two groups never both serve, whatever the lookers saw of each other. A node ends, and may try again, if its group
  doesn't serve within `join_timeout_s`, or sees that another group serves.
- A contact that refuses this node, or that this node refuses (another program has its port, another authority signed
  its certificate), keeps nobody from joining through the others: it is warned of once. But it may be a member that
  this node just can't see, so while there is one, this node forms no group. If all are like that, it is this node that
  has the wrong keys or contacts, and it ends with what the first of them said.
- "Enough" is asked for when a group begins. From then on the views' own majorities decide.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from spindle.errors import ConnectionEnded, NodeStopped, NoResources, SpindleError
from spindle.proto import opening_pb2

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.group.view import View
    from spindle.transport.network import Network
    from spindle.transport.peers import Peers

ANSWER_TIMEOUT_S = 1.0  # of one contact
LOG = logging.getLogger("spindle.node")

LOOKING, MEMBER, SERVING, FORMING, WAITING = (
    opening_pb2.OpeningReply.LOOKING, opening_pb2.OpeningReply.MEMBER, opening_pb2.OpeningReply.SERVING,
    opening_pb2.OpeningReply.FORMING, opening_pb2.OpeningReply.WAITING)


Life = tuple[int, int]  # node id and incarnation


@dataclasses.dataclass(frozen=True)
class Answer:
    """What one contact said. Its place in the list of contacts says how to reach it."""

    place: int
    node_id: int
    incarnation: int
    standing: int = LOOKING
    group_id: int = 0

    @property
    def life(self) -> Life:
        return self.node_id, self.incarnation


@dataclasses.dataclass(frozen=True)
class Answers:
    """All answers of one look around, and why the other contacts gave none: they are not there, or they and this node
    don't get on."""

    answers: tuple[Answer, ...]
    silent: dict[str, str]
    refused: dict[str, SpindleError] = dataclasses.field(default_factory=dict)

    def to_join(self) -> Answer | None:
        """The member through whom to join."""
        members = [one for one in self.answers if one.standing in (MEMBER, SERVING)]
        return min(members, key=lambda one: (one.standing != SERVING, one.life), default=None)

    def serving_elsewhere(self, group_id: int) -> Answer | None:
        """A member of another group that serves."""
        return next((one for one in self.answers if one.standing == SERVING and one.group_id != group_id), None)

    @property
    def others_form(self) -> bool:
        """True if somebody else is about to form a group."""
        return any(one.standing == FORMING for one in self.answers)


def enough(config: NodeConfig) -> int:
    """How many of the contacts a group needs before it serves."""
    count = len(config.contacts)
    if config.form == "all":
        return count
    return 0 if config.form == "alone" or not count else count // 2 + 1


def contacts_in(config: NodeConfig, view: View) -> int:
    """How many of the contacts are members."""
    return len({member.endpoint for member in view.members} & set(config.contacts))


def may_form(config: NodeConfig, contact: Life | None, found: Answers) -> bool:
    """True if this node, with this life (None: it is no contact), is the one to form the group."""
    if found.refused:  # it may be of a group
        return False
    if config.form == "alone":
        return found.to_join() is None
    if contact is None or found.to_join() is not None:
        return False
    others = [one.life for one in found.answers if one.standing != WAITING]
    return len(found.answers) + 1 >= enough(config) and contact == min([contact, *others])


class Contacts:
    """Asks the contacts, for a node that starts."""

    def __init__(self, config: NodeConfig, network: Network, peers: Peers) -> None:
        self._config, self._network, self._peers = config, network, peers
        self._itself: set[int] = set()  # places of contacts that have answered as this very node
        self._said = ""
        self._warned: dict[str, str] = {}  # by contact

    @property
    def own_place(self) -> int | None:
        """Where this node stands among the contacts."""
        contacts: Sequence[str] = self._config.contacts
        return contacts.index(self._network.endpoint) if self._network.endpoint in contacts else None

    @property
    def contact(self) -> Life | None:
        """This node as one of the contacts; None if it is none."""
        me = self._peers.me
        return None if me is None or self.own_place is None else (me.node_id, me.incarnation)

    def standing(self, forms: bool) -> opening_pb2.OpeningReply.Standing:
        """What others are told of this node while there is no group; `forms`: it is the first of those it sees."""
        return FORMING if forms else WAITING if self.contact is None and self._config.form != "alone" else LOOKING

    @property
    def recognised(self) -> str:
        """A contact that has turned out to be this node though nothing else said so: when the node started, its name
        could not be looked up, say. "" if there is none, or where [network] advertise says how this node is known."""
        if self._config.advertise or self.own_place is not None or not self._itself:
            return ""
        return self._config.contacts[min(self._itself)]

    async def look(self) -> Answers:
        """Asks all at once. Raises what the first contact refuses this node with, if all do; NoResources."""
        places = [place for place in range(len(self._config.contacts)) if place != self.own_place]
        replies = await asyncio.gather(*(self._ask(place) for place in places), return_exceptions=True)
        answers: list[Answer] = []
        silent: dict[str, str] = {}
        refused: dict[str, SpindleError] = {}
        for place, reply in zip(places, replies, strict=True):
            if isinstance(reply, Answer):
                if reply.incarnation not in {one.incarnation for one in answers}:  # two names of one node count once
                    answers.append(reply)
            elif isinstance(reply, (ConnectionEnded, NodeStopped, TimeoutError)):
                silent[self._config.contacts[place]] = str(reply)
            elif isinstance(reply, SpindleError) and not isinstance(reply, NoResources):
                refused[self._config.contacts[place]] = reply
            else:
                raise reply
        if refused and not answers and not silent:
            raise next(iter(refused.values()))
        self._warn(refused)
        return Answers(tuple(answers), silent, refused)

    def _warn(self, refused: dict[str, SpindleError]) -> None:
        """Once per contact and reason."""
        for contact, error in refused.items():
            if self._warned.get(contact) != str(error):
                self._warned[contact] = str(error)
                LOG.warning("contact %s is of no use to this node, which goes by the others: %s", contact, error)

    async def _ask(self, place: int) -> Answer:
        conn = await self._network.control(self._config.contacts[place], ANSWER_TIMEOUT_S)
        try:
            reply = await self._peers.ask(conn, opening_pb2.CONTACT, ANSWER_TIMEOUT_S)
        finally:
            conn.close()
        if self._peers.me is not None and reply.incarnation == self._peers.me.incarnation:
            self._itself.add(place)
            raise ConnectionEnded("is this node itself")
        return Answer(place, reply.node_id, reply.incarnation, reply.standing, reply.group_id)

    def say(self, found: Answers) -> bool:
        """What this node waits for, once per change; False if that is no news."""
        text = self.awaiting(found)
        if text == self._said:
            return False
        self._said = text
        LOG.info("no group yet: %s", text)
        return True

    def awaiting(self, found: Answers) -> str:
        """What is missing before a group is there."""
        silent = "; ".join([*found.silent.values(), *map(str, found.refused.values())]) or "all others answered"
        if self.own_place is None:
            return (f"this node ({self._network.endpoint}) is none of [network] contacts, so it waits for one that is "
                    f"a member ({silent})")
        here, all_of_them = len(found.answers) + 1, len(self._config.contacts)
        needed = "none is formed while a contact and this node refuse each other" if found.refused else (
            f"{enough(self._config)} are needed to form one")
        return f"{here} of {all_of_them} contacts are there, {needed} ({silent})"
