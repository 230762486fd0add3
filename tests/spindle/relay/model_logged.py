"""The model for a logged topic: each node has a disk; when all who had the topic are gone, it is taken up from these.

Beyond `tests.spindle.relay.model`: nodes come back, alone or after all were down. A member that has come is not whole
until it has got everything from one that is; while nobody is, a majority of those that held the topic last takes the
longest of their journals. What only others had delivered or had on disk is lost then, with all that was in flight.

Checked: the order is 1, 2, 3... at any time, so that whatever the client has let go of, because it was told that it is
persisted, is in it, and nothing is in it twice.
"""

from __future__ import annotations

from typing import Any

from spindle.relay.handover import Answer, Handover
from tests.spindle.relay.model import CLIENT, WRITER, Client, Node, World


class LoggedNode(Node):
    """A node with a disk; `owed` is how much of the order an installed view has left it to deliver."""

    world: LoggedWorld

    def __init__(self, world: LoggedWorld, node_id: int) -> None:
        super().__init__(world, node_id)
        self.whole = self.member
        self.disk = self.owed = 0
        self.opening: int | None = None  # turn whose writer is open here and not claimed yet
        self.promised: list[tuple[Answer, int]] = []  # to be answered when so much is on disk

    def restart(self) -> None:
        """A new process on the old disk."""
        self.handover = Handover(self.node_id)
        self.member, self.whole = self.world.random.random() < 0.4, False
        self.delivered, self.position, self.owed, self.view = [], 0, 0, 0
        self.inbox.clear()
        self.relays, self.claims, self.serving, self.opening, self.promised = {}, {}, None, None, []

    def take_up(self, count: int) -> None:
        """Has so much of the order from here on, all of it on disk."""
        self.whole = True
        self.delivered = self.world.order[:count]
        self.position = self.owed = self.disk = count

    @property
    def had(self) -> int:
        """How much of the order counts as delivered here."""
        return max(self.position, self.owed) if self.whole else 0

    def answer(self, answer: Answer) -> None:
        if answer.query.on_disk and not answer.refusal:
            self.promised.append((answer, self.had if self.whole else -1))
        else:
            self.say(answer, max(self.delivered, default=0))

    def keep_promises(self) -> None:
        promised, self.promised = self.promised, []
        for answer, until in promised:
            if self.member and until < 0 and self.whole:
                until = self.had
            if self.member and (not self.whole or self.disk < until):
                self.promised.append((answer, until))
            else:
                self.say(answer, max(self.delivered[: self.disk], default=0) if self.member else 0)

    def flush(self) -> None:
        for turn, state in list(self.relays.items()):
            mine = any(one == turn for one, _ in self.inbox)
            # What came before the view that is installed here is left to all, whether they have come so far or not.
            everywhere = self.owed == len(self.world.order) or min(
                (one.had for one in self.world.living() if one.member), default=0) == len(self.world.order)
            if state == "ending" and not mine and everywhere:
                del self.relays[turn]
                self.do(self.handover.flushed(turn))


class LoggedClient(Client):
    """`acknowledged` is what it has let go of: it is persisted."""

    def turn_to(self, node_id: int) -> None:
        self.turn += 1
        self.node, self.ready = node_id, False
        self.wire.clear()
        node = self.world.nodes[node_id]
        assert isinstance(node, LoggedNode)
        actions = node.handover.begin(CLIENT, self.turn, self.turn)
        if actions is None:
            self.node = None
            return
        node.relays[self.turn] = "open"
        node.do(actions)
        node.member, node.opening = True, self.turn  # its writer is open, and the claim comes when the node is whole


class LoggedWorld(World):
    """See the module."""

    nodes: dict[int, LoggedNode]  # type: ignore[assignment]

    def __init__(self, seed: int, count: int) -> None:
        super().__init__(seed, count, LoggedNode, LoggedClient)
        self.group = 9
        self.trim = 0  # so much of the order is of earlier views
        self.persisted = 0  # so much of the order is on the disks of all holders
        self.holders = {one.node_id for one in self.members()}
        self.weights |= {"sync": self.random.choice((2, 12)), "persist": 6, "fill": 4, "restore": 4, "claim": 8,
                         "come_back": self.random.choice((0.3, 2)), "blackout": self.random.choice((0, 0.1, 0.4)),
                         "promises": 8}

    def install(self, node: Node) -> None:
        node.view = self.view
        node.do(node.handover.installed(getattr(self, "group", 9), self.view, sorted(self.alive)))

    def view_begins(self) -> None:
        self.view += 1
        self.trim = len(self.order)

    def whole(self) -> list[LoggedNode]:
        return [one for one in self.living() if one.member and one.whole]

    def living(self) -> list[LoggedNode]:  # type: ignore[override]
        return [self.nodes[one] for one in sorted(self.alive)]

    # --- what can happen

    def stable(self) -> None:
        if all(one.view == self.view for one in self.members()):
            super().stable()

    def deliver(self) -> None:
        for node in self.random.sample(self.whole(), min(1, len(self.whole()))):
            if node.position < len(self.order):
                node.deliver_one()

    def sync(self) -> None:
        for node in self.random.sample(self.whole(), min(1, len(self.whole()))):
            node.disk = self.random.randint(node.disk, node.position)

    def persist(self) -> None:
        """What all holders have on disk is acknowledged, and the client may hear it."""
        members = self.members()
        if members and all(one.whole for one in members):  # type: ignore[attr-defined]
            self.holders = {one.node_id for one in members}
            self.persisted = max(self.persisted, min(one.disk for one in members))  # type: ignore[attr-defined]
        client = self.client
        if client.ready and client.node in self.alive and self.random.random() < 0.5:
            told = max(self.order[: self.persisted], default=0)
            client.acknowledged = max(client.acknowledged, min(told, client.sent))

    def fill(self) -> None:
        """A member gets everything from one that is whole."""
        waiting = [one for one in self.living() if one.member and not one.whole]
        if waiting and self.whole():
            self.random.choice(waiting).take_up(len(self.order))

    def restore(self) -> None:
        """Nobody has it whole: the journals of those who held it decide."""
        waiting = [one for one in self.living() if one.member]
        voters = [one for one in self.living() if one.node_id in self.holders]
        if not waiting or self.whole() or 2 * len(voters) <= len(self.holders):
            return
        count = max(one.disk for one in voters)
        assert count >= self.persisted
        del self.order[count:]
        self.trim = min(self.trim, count)
        for node in self.nodes.values():  # what they have beyond is put aside when they look
            node.disk = min(node.disk, count)
        self.random.choice(waiting).take_up(count)
        self.flight.clear()

    def claim(self) -> None:
        for node in self.living():
            turn = node.opening
            if turn is not None and node.whole and node.relays.get(turn) == "open":
                node.opening = None
                number, actions = node.handover.claim(CLIENT, turn, WRITER, logged=True)
                node.claims[number] = turn
                node.do(actions)

    def promises(self) -> None:
        self.random.choice(self.living()).keep_promises()

    def crash(self) -> None:
        if len(self.alive) > 1:
            victim = self.random.choice(sorted(self.alive))
            self.lose(victim)

    def lose(self, victim: int) -> None:
        super().lose(victim)
        self.trim = len(self.order)
        if not self.whole():
            self.flight.clear()

    def catch_up(self, node: Node) -> None:
        assert isinstance(node, LoggedNode)
        if node.whole:
            node.owed = max(node.owed, self.trim)
        self.install(node)

    def come_back(self) -> None:
        gone = sorted(set(self.nodes) - self.alive)
        if gone:
            node = self.nodes[self.random.choice(gone)]
            node.restart()
            self.alive.add(node.node_id)
            self.view_begins()
            self.install(node)

    def blackout(self) -> None:
        """All nodes die, and come back, some later."""
        self.flight.clear()
        self.mail.clear()
        back = self.random.sample(sorted(self.nodes), self.random.randint(1, len(self.nodes)))
        self.group, self.alive = self.group + 1, set(back)
        self.view_begins()
        for node in self.living():
            node.restart()
        for node in self.living():
            self.install(node)
        self.client.node, self.client.ready = None, False
        self.client.wire.clear()

    def turn(self) -> None:
        if self.client.node is None or self.random.random() < 0.3:
            super().turn()

    # --- what must hold

    def check(self) -> None:
        assert self.order == list(range(1, len(self.order) + 1))
        assert self.client.acknowledged <= max(self.order, default=0)
        for node in self.living():
            if node.whole:
                assert node.delivered == self.order[: node.position]

    def finish(self) -> None:
        """No more faults: everything that was written arrives everywhere."""
        while len(self.alive) < len(self.nodes):
            self.come_back()
        choices: tuple[Any, ...] = ("wire", "take", "publish", "stable", "deliver", "pick_mail", "flush", "sync",
                                    "persist", "fill", "restore", "claim", "promises")
        for _ in range(20000):
            for node in self.living():
                if node.view < self.view:
                    self.catch_up(node)
            if self.client.node is None or self.client.node not in self.alive:
                self.client.turn_to(min(self.alive))
            for choice in choices:
                getattr(self, choice)()
            self.check()
            if self.client.acknowledged == self.client.written == len(self.order):
                return
        raise AssertionError(f"stuck: {self.client.written} written, {len(self.order)} in the order, "
                             f"{self.client.acknowledged} persisted")
