"""Who relays for an application on a host without a node, and what the group has had of it: without input or output.

The application counts its *turns*: with each it goes to a node and sends all that it doesn't know to be delivered. So
that nothing comes twice, that node first *claims* each writer: it asks every node of its view (itself, too), and each
answers with the greatest source timestamp of the writer that it has delivered, as soon as

- it relays no more for earlier turns of the application, and what it had taken for them is delivered everywhere, and
- it has installed the view that the asker had, so that it has delivered everything of those who are not in it.

The greatest answer is what the group has had; the application sends what comes after that. Proof: a message of an
earlier turn is with a node of the view, or with one that has left it. In the first case that node has answered after
every member of the topic had delivered the message, itself among them, as it is a sender of the topic. In the second
case the view changes have decided: either all members that go on have delivered it before they installed the view, or
nobody has and nobody will; whoever was a member then and is in the view has said so.

On a logged topic, what nodes have delivered is no answer: the topic may have been restored from journals since, with
more than a new node remembers, or without the last messages that an old one remembers. There the asker is a whole
member before it claims, so that its journal is the topic's, and asks in two rounds:

1. As above. When all have answered in the asker's view, everything of earlier turns is delivered at every member, the
   asker among them, or never will be. An answer from a later view doesn't prove that: the asker installs that view,
   and asks anew.
2. Each member answers when it is whole and what it has delivered is on its disk. The asker's own answer is what its
   journal has of the writer; by then all holders have it on disk, so it counts as persisted and outlives a restart.

A node that has heard of a later turn refuses earlier ones. So a node that was stopped in the middle of a claim and goes
on can't relay for a turn that is over: a claim needs everybody's answer.

Rules:
- Each input returns actions, to be carried out in order. The driver finds out what an `Answer` says when it carries the
  action out, or later. It then sends the answer, or, if this node asked itself, passes it to `answered`.
- With every view that is installed, claims that are under way ask anew.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections import OrderedDict
from collections.abc import Hashable, Iterable

CLIENTS_MAX = 16384  # whose newest turns are remembered


@dataclasses.dataclass(frozen=True)
class Query:
    number: int
    client: bytes
    turn: int
    writer: int
    group_id: int
    view_id: int
    topic: str = ""  # for the driver
    on_disk: bool = False  # the second round


@dataclasses.dataclass(frozen=True)
class Ask:
    """Send `query` to a node."""

    node_id: int
    query: Query


@dataclasses.dataclass(frozen=True)
class Answer:
    """Answer a node's query (this node's own, too), in the view that is installed here; `refusal` is not empty if the
    turn is over. In the second round: when this node is whole in the topic or no member of it, and what it has
    delivered by now is on its disk."""

    node_id: int
    query: Query
    view_id: int
    refusal: str = ""


@dataclasses.dataclass(frozen=True)
class End:
    """Take no more from this relay, and say `flushed` when what it has taken is delivered everywhere."""

    relay: Hashable


@dataclasses.dataclass(frozen=True)
class Done:
    """The claim is decided: everything up to `sent_ns` is sent, or, with a refusal, the application is elsewhere."""

    claim: int
    sent_ns: int
    refusal: str = ""


Action = Ask | Answer | End | Done


@dataclasses.dataclass
class _Claim:
    client: bytes
    turn: int
    writer: int
    topic: str
    logged: bool
    on_disk: bool = False  # in the second round
    waiting: dict[int, int] = dataclasses.field(default_factory=dict)  # node id -> number of the query
    sent_ns: int = 0


@dataclasses.dataclass
class _Relay:
    client: bytes
    turn: int
    ending: bool = False


class Handover:
    """The part of one node. See the module."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self._group_id = self._view_id = 0
        self._nodes: tuple[int, ...] = ()
        self._newest: OrderedDict[bytes, int] = OrderedDict()  # turn of each client
        self._relays: dict[Hashable, _Relay] = {}
        self._claims: dict[int, _Claim] = {}
        self._pending: list[tuple[int, Query]] = []  # asked by a node, not answered yet
        self._numbers = itertools.count(1)

    # --- relays of this node

    def begin(self, client: bytes, turn: int, relay: Hashable) -> list[Action] | None:
        """An application begins its turn here. None: it must not, as this turn, or a later one, has begun before."""
        if not self._note(client, turn) or any(
                one.turn == turn for one in self._relays.values() if one.client == client):
            return None
        actions = self._end_earlier(client, turn)
        self._relays[relay] = _Relay(client, turn)
        return actions

    def flushed(self, relay: Hashable) -> list[Action]:
        """It takes no more, and all that it had taken is delivered everywhere."""
        self._relays.pop(relay, None)
        return self._answers()

    def _note(self, client: bytes, turn: int) -> bool:
        """False if a later turn is known."""
        newest = self._newest.pop(client, 0)
        self._newest[client] = max(newest, turn)
        if len(self._newest) > CLIENTS_MAX:
            self._newest.popitem(last=False)
        return turn >= newest

    def _end_earlier(self, client: bytes, turn: int) -> list[Action]:
        actions: list[Action] = []
        for relay, one in self._relays.items():
            if one.client == client and one.turn < turn and not one.ending:
                one.ending = True
                actions.append(End(relay))
        return actions

    # --- claims of this node

    def claim(self, client: bytes, turn: int, writer: int, topic: str = "", logged: bool = False
    ) -> tuple[int, list[Action]]:
        """Number of a new claim. Of a logged topic this node is a whole member, and stays one."""
        number = next(self._numbers)
        claim = self._claims[number] = _Claim(client, turn, writer, topic, logged)
        return number, self._ask(claim)

    def give_up(self, claim: int) -> None:
        """Nobody waits for it any more."""
        self._claims.pop(claim, None)

    def _ask(self, claim: _Claim, on_disk: bool = False) -> list[Action]:
        claim.waiting, claim.sent_ns, claim.on_disk = {}, 0, on_disk
        queries = []
        for node_id in self._nodes:
            query = Query(next(self._numbers), claim.client, claim.turn, claim.writer, self._group_id, self._view_id,
                          claim.topic, on_disk)
            claim.waiting[node_id] = query.number
            queries.append((node_id, query))
        actions: list[Action] = [Ask(node_id, query) for node_id, query in queries if node_id != self.node_id]
        for node_id, query in queries:
            if node_id == self.node_id:
                actions += self.asked(node_id, query)
        return actions

    def answered(self, node_id: int, number: int, view_id: int, sent_ns: int, refusal: str = "") -> list[Action]:
        """A node's answer, from the time when it had installed view `view_id`."""
        claim_number = next((k for k, one in self._claims.items() if one.waiting.get(node_id) == number), None)
        if claim_number is None or (view_id != self._view_id and not refusal):
            return []
        claim = self._claims[claim_number]
        del claim.waiting[node_id]
        if node_id == self.node_id or not claim.on_disk:
            claim.sent_ns = max(claim.sent_ns, sent_ns)
        if not refusal and not claim.waiting and claim.logged and not claim.on_disk:
            return self._ask(claim, on_disk=True)
        if refusal or not claim.waiting:
            del self._claims[claim_number]
            return [Done(claim_number, 0 if refusal else claim.sent_ns, refusal)]
        return []

    # --- questions of other nodes

    def asked(self, node_id: int, query: Query) -> list[Action]:
        """A node (or this one) asks."""
        if not self._note(query.client, query.turn):
            return [Answer(node_id, query, self._view_id, "the application has turned to another node since")]
        actions = self._end_earlier(query.client, query.turn)
        self._pending.append((node_id, query))
        return actions + self._answers()

    def _answers(self) -> list[Action]:
        ready = [one for one in self._pending if self._ready(one[1])]
        self._pending = [one for one in self._pending if one not in ready]
        return [Answer(node_id, query, self._view_id) for node_id, query in ready]

    def _ready(self, query: Query) -> bool:
        if query.group_id != self._group_id or query.view_id > self._view_id:
            return False
        return not any(one.client == query.client and one.turn < query.turn for one in self._relays.values())

    # --- views

    def installed(self, group_id: int, view_id: int, nodes: Iterable[int]) -> list[Action]:
        """This node has installed a view, and delivered all that came before."""
        self._group_id, self._view_id, self._nodes = group_id, view_id, tuple(nodes)
        self._pending = [(one, query) for one, query in self._pending if (  # those of another group are older
            one in self._nodes and one != self.node_id and query.group_id == group_id)]
        actions = self._answers()
        for claim in list(self._claims.values()):
            actions += self._ask(claim)
        return actions
