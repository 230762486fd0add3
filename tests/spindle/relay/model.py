"""A model of a group around the real protocol of handing over (`spindle.relay.handover`), one schedule for each seed.

The group is virtually synchronous as docs/protocol.md says: all members of a view deliver the same messages in one
order, at their own pace; a node that leaves a view takes with it what not all had received, or leaves it to all. Some
nodes become members of the topic only when they serve the client. The client sends numbers and turns whenever it likes,
or must; whatever it is told is sent it forgets.

Checked: what each survivor has delivered is 1, 2, 3... without gap or repetition, and at the end all of it.
"""

from __future__ import annotations

import random
from collections import deque
from typing import Any

from spindle.relay.handover import Answer, Ask, Done, End, Handover, Query

WRITER = 77
CLIENT = b"c" * 16


class Node:
    """A node of the model: what it has taken of the client, the order that it has delivered so far."""

    def __init__(self, world: World, node_id: int) -> None:
        self.world, self.node_id = world, node_id
        self.member = node_id % 3 != 2  # of the topic
        self.first = 1  # message that it delivers, of the members that were no members at first
        self.delivered: list[int] = []
        self.position = 0  # in the world's order
        self.view = 0  # installed
        self.handover = Handover(node_id)
        self.inbox: deque[tuple[int, int]] = deque()  # (turn, message), taken and not yet in the order
        self.serving: int | None = None  # turn whose writer is open here
        self.relays: dict[int, str] = {}  # turn -> "open", "ending"
        self.claims: dict[int, int] = {}  # number -> turn
        self.inputs: deque[tuple[Any, ...]] = deque()  # from other nodes, in order per sender

    def do(self, actions: list[Any]) -> None:
        for action in actions:
            if isinstance(action, Ask):
                self.world.send(self.node_id, action.node_id, ("ask", self.node_id, action.query))
            elif isinstance(action, Answer):
                self.answer(action)
            elif isinstance(action, End):
                self.relays[action.relay] = "ending"  # type: ignore[index]
                if self.serving == action.relay:
                    self.serving = None
            elif isinstance(action, Done):
                turn = self.claims.pop(action.claim)
                if turn in self.relays and self.relays[turn] == "open" and not action.refusal:
                    self.serving = turn
                    if not self.member:
                        self.member, self.position = True, len(self.world.order)
                        self.first = max(self.world.order, default=0) + 1
                    self.world.client.opened(self.node_id, turn, action.sent_ns)
                elif action.refusal:
                    self.world.client.refused(turn)

    def answer(self, answer: Answer) -> None:
        self.say(answer, max(self.delivered, default=0))

    def say(self, answer: Answer, sent: int) -> None:
        if answer.node_id == self.node_id:
            self.do(self.handover.answered(self.node_id, answer.query.number, answer.view_id, sent, answer.refusal))
        else:
            self.world.send(self.node_id, answer.node_id, ("answer", self.node_id, answer, sent))

    def deliver_one(self) -> None:
        self.delivered.append(self.world.order[self.position])
        self.position += 1

    def flush(self) -> None:
        """Relays that are ending and have nothing left, here or on its way to a member, are flushed."""
        for turn, state in list(self.relays.items()):
            mine = any(one == turn for one, _ in self.inbox)
            everywhere = min(one.position for one in self.world.members()) == len(self.world.order)
            if state == "ending" and not mine and everywhere:
                del self.relays[turn]
                self.do(self.handover.flushed(turn))


class Client:
    """Sends 1, 2, 3...; `sent` is how far on the present connection."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.written = self.acknowledged = self.sent = 0
        self.turn = 0
        self.node: int | None = None
        self.ready = False
        self.wire: deque[int] = deque()

    def turn_to(self, node_id: int) -> None:
        self.turn += 1
        self.node, self.ready = node_id, False
        self.wire.clear()  # what was on its way on the old connection: the node may have read it, or not
        node = self.world.nodes[node_id]
        actions = node.handover.begin(CLIENT, self.turn, self.turn)
        if actions is None:
            self.node = None
            return
        node.relays[self.turn] = "open"
        node.do(actions)
        number, actions = node.handover.claim(CLIENT, self.turn, WRITER)
        node.claims[number] = self.turn
        node.do(actions)

    def opened(self, node_id: int, turn: int, sent: int) -> None:
        if turn == self.turn and node_id == self.node:
            self.ready = True
            self.acknowledged = max(self.acknowledged, sent)
            self.sent = self.acknowledged

    def refused(self, turn: int) -> None:
        if turn == self.turn:
            self.node = None


class World:
    def __init__(self, seed: int, count: int, node: type[Node] = Node, client: type[Client] = Client) -> None:
        self.random = random.Random(seed)
        self.order: list[int] = []  # stable: every member of the view has it, and will deliver it
        self.flight: list[tuple[int, int]] = []  # (sender, message): published, not yet received by all
        self.view = 1
        self.alive = set(range(1, count + 1))  # in the view
        self.mail: dict[tuple[int, int], deque[tuple[Any, ...]]] = {}
        self.nodes = {node_id: node(self, node_id) for node_id in sorted(self.alive)}
        self.client = client(self)
        self.weights = {"write": 8, "wire": 8, "take": 8, "publish": 8, "stable": 8, "flush": 8,
                        "deliver": self.random.choice((1, 16)), "pick_mail": self.random.choice((3, 12)),
                        "turn": self.random.choice((0.4, 2)), "crash": self.random.choice((0.1, 0.6)),
                        "lag": self.random.choice((0.5, 4))}
        for one in self.nodes.values():
            self.install(one)

    def members(self) -> list[Node]:
        """Of the topic, in the view."""
        return [one for one in self.living() if one.member]

    def living(self) -> list[Node]:
        return [self.nodes[one] for one in sorted(self.alive)]

    def install(self, node: Node) -> None:
        node.view = self.view
        node.do(node.handover.installed(9, self.view, sorted(self.alive)))

    def send(self, sender: int, to: int, what: tuple[Any, ...]) -> None:
        self.mail.setdefault((sender, to), deque()).append(what)

    # --- what can happen

    def step(self) -> None:
        choice = self.random.choices(list(self.weights), list(self.weights.values()))[0]
        getattr(self, choice)()
        self.check()

    def write(self) -> None:
        if self.client.written < 60:
            self.client.written += 1

    def wire(self) -> None:
        client = self.client
        if client.ready and client.sent < client.written:
            client.sent += 1
            client.wire.append(client.sent)

    def take(self) -> None:
        client = self.client
        if client.node is None or not client.wire or client.node not in self.alive:
            return
        node = self.nodes[client.node]
        if node.serving == client.turn and node.relays.get(client.turn) == "open":
            node.inbox.append((client.turn, client.wire.popleft()))

    def publish(self) -> None:
        node = self.random.choice(self.living())
        if node.inbox:
            # In the order of its commits, as an inbox is; it stays counted as the relay's until it is stable.
            message = node.inbox[0][1]
            if (node.node_id, message) not in self.flight:
                self.flight.append((node.node_id, message))

    def stable(self) -> None:
        if self.flight:
            sender, message = self.flight.pop(0)
            self.order.append(message)
            self.nodes[sender].inbox.popleft()

    def deliver(self) -> None:
        node = self.random.choice(self.members())
        if node.position < len(self.order):
            node.deliver_one()
        client = self.client
        everywhere = min(one.position for one in self.members())
        if client.ready and self.random.random() < 0.3 and client.node in self.alive:
            had = max(self.order[:everywhere], default=0)
            client.acknowledged = max(client.acknowledged, min(had, client.sent))

    def mail_one(self, box: tuple[int, int]) -> None:
        sender, to = box
        what = self.mail[box].popleft()
        if not self.mail[box]:
            del self.mail[box]
        if to not in self.alive:
            return
        node = self.nodes[to]
        if what[0] == "ask":
            query: Query = what[2]
            node.do(node.handover.asked(sender, query))
        else:
            answer: Answer = what[2]
            node.do(node.handover.answered(sender, answer.query.number, answer.view_id, what[3], answer.refusal))

    def pick_mail(self) -> None:
        if self.mail:
            self.mail_one(self.random.choice(list(self.mail)))

    def flush(self) -> None:
        self.random.choice(self.living()).flush()

    def turn(self) -> None:
        """To another node, though the present one may live and go on with what it has."""
        lost = self.client.node
        if lost is not None and lost in self.alive and self.random.random() < 0.7:
            relay = self.nodes[lost].relays
            for turn in list(relay):  # it notices the end of the connection, at once or later
                if relay[turn] == "open" and self.random.random() < 0.5:
                    relay[turn] = "ending"
                    self.nodes[lost].serving = None
        self.client.turn_to(self.random.choice(sorted(self.alive)))

    def crash(self) -> None:
        victim = self.random.choice(sorted(self.alive))
        if [one.node_id for one in self.members()] == [victim]:
            return  # a topic whose members all die is another matter
        self.lose(victim)

    def lose(self, victim: int) -> None:
        self.alive.discard(victim)
        # The trim: of what was in flight of the dead a prefix is kept, and delivered by all before they install.
        mine = [one for one in self.flight if one[0] == victim]
        kept = mine[: self.random.randint(0, len(mine))]
        for one in kept:
            self.order.append(one[1])
        self.flight = [one for one in self.flight if one[0] != victim]
        for box in [box for box in self.mail if victim == box[1] or (victim == box[0] and self.random.random() < 0.7)]:
            del self.mail[box]
        self.view += 1
        if self.client.node == victim:
            self.client.node, self.client.ready = None, False
            self.client.wire.clear()

    def lag(self) -> None:
        """A member installs the newest view, having delivered all that came before."""
        node = self.random.choice(self.living())
        if node.view < self.view:
            self.catch_up(node)

    def catch_up(self, node: Node) -> None:
        while node.member and node.position < len(self.order):
            node.deliver_one()
        self.install(node)

    # --- what must hold

    def check(self) -> None:
        for node in self.nodes.values():
            assert node.delivered == list(range(node.first, node.first + len(node.delivered))), node.node_id

    def finish(self) -> None:
        """No more faults: everything that was written arrives everywhere."""
        for _ in range(20000):
            for node in self.living():
                if node.view < self.view:
                    self.catch_up(node)
            if self.client.node is None or self.client.node not in self.alive:
                self.client.turn_to(min(self.alive))
            for choice in ("wire", "take", "publish", "stable", "deliver", "pick_mail", "flush"):
                getattr(self, choice)()
            self.check()
            if all(one.first + len(one.delivered) - 1 == self.client.written for one in self.members()):
                return
        raise AssertionError(f"stuck: {self.client.written} written, "
                             f"{[(one.node_id, len(one.delivered)) for one in self.members()]}")
