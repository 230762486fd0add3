"""A group of machines in plain memory: rows whose pushes land late, messages in flight, preparations that take time.

One scheduler chooses what happens next, so every interleaving is a sequence of choices. What would be memory and
sockets is a queue here: per pair of nodes one for pushes and one for messages, each first in, first out.

`shared` groups see each other's rows at once, and the end of a process is certain, as on one host. In the others a push
lands late or, if its sender crashes, never, and nobody is ever certain.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections import deque
from collections.abc import Sequence

from spindle.group.settings import UNSAID, Settings
from spindle.group.topics import TopicSpec
from spindle.group.view import Member, View
from spindle.membership import messages as m
from spindle.membership.machine import Machine, Phase
from spindle.membership.table import Area

Row = tuple[dict[str, int], dict[str, bytes], dict[int, tuple[int, ...]]]


def in_memory(view: View) -> View:
    """What all that install a view have alike. Of its later revisions one that died may have had another."""
    return dataclasses.replace(view, revision=0, topics=tuple(topic for topic in view.topics if topic.members))


class FakeTable:
    """One node's table of one epoch. `seen[rank]` is what has landed here of that row."""

    def __init__(self, group: FakeGroup, view: View, node_id: int) -> None:
        rank = view.rank_of(node_id)
        assert rank is not None
        self.group, self.view, self.my_rank, self.n_rows = group, view, rank, len(view.members)
        self.seen: list[Row] = [({}, {}, {}) for _ in view.members]
        if group.shared:
            self.seen = group.rows.setdefault(view.view_id, self.seen)

    def get(self, rank: int, column: str) -> int:
        return self.seen[rank][0].get(column, 0)

    def set(self, column: str, value: int) -> None:
        row = self.seen[self.my_rank][0]
        assert value >= row.get(column, 0), f"column {column} went back from {row[column]} to {value}"
        row[column] = value

    def write_area(self, area: Area, data: bytes) -> None:
        self.seen[self.my_rank][1][area] = data

    def read_area(self, rank: int, area: Area) -> bytes:
        return self.seen[rank][1].get(area, b"")

    def frozen_counts(self, rank: int, topic_id: int) -> Sequence[int]:
        return self.seen[rank][2][topic_id]

    def frozen_topics(self, rank: int) -> Sequence[int]:
        return [topic_id for topic_id, counts in self.seen[rank][2].items() if any(counts)]

    def push(self) -> None:
        columns, areas, frozen = self.seen[self.my_rank]
        self.group.pushed = True
        for rank, member in enumerate(self.view.members):
            if rank != self.my_rank and not self.group.shared:
                pair = (self.view.members[self.my_rank].node_id, member.node_id)
                self.group.pushes.setdefault(pair, deque()).append(
                    (self.view.view_id, self.my_rank, (dict(columns), dict(areas), dict(frozen))))


@dataclasses.dataclass(frozen=True)
class HungUp:
    """The end of a connection: the last thing that comes from a node. `left`: it said before that it left in order;
    `said`: that it has stopped, for whatever reason."""

    member: Member
    left: bool
    why: str = ""
    said: bool = False


@dataclasses.dataclass
class FakeNode:
    """A machine with what its driver keeps."""

    machine: Machine
    node_id: int
    table: FakeTable | None = None
    preparing: m.Prepare | None = None
    begun: set[tuple[int, int]] = dataclasses.field(default_factory=set)  # from then on others find its row
    prepared: set[tuple[int, int]] = dataclasses.field(default_factory=set)
    views: list[View] = dataclasses.field(default_factory=list)
    trims: dict[int, dict[int, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    frozen: dict[int, dict[int, tuple[int, ...]]] = dataclasses.field(default_factory=dict)
    rejected: list[m.Rejected] = dataclasses.field(default_factory=list)
    failed: m.Failed | None = None
    left: bool = False
    crashed: bool = False
    paused: bool = False
    gathering: bool = False  # it waits a moment
    reported: set[tuple[int, int]] = dataclasses.field(default_factory=set)  # what it lacks for these
    decided: list[int] = dataclasses.field(default_factory=list)  # ballots of which it left somebody out
    given_up: int = 0  # in how many cases it lost its majority

    @property
    def running(self) -> bool:
        return not (self.crashed or self.left or self.failed)

    @property
    def life(self) -> tuple[int, int]:
        return self.machine.me.life


class FakeGroup:
    """All nodes of a run, and everything in flight between them."""

    def __init__(self, seed: int, shared: bool = False) -> None:
        self.random = random.Random(seed)
        self.shared = shared
        self.rows: dict[int, list[Row]] = {}  # by view, if they are shared
        self.pushed = False  # a shared row has changed: everybody looks
        self.cut: set[tuple[int, int]] = set()  # pairs of node ids between which nothing passes any more
        self.walls: set[frozenset[int]] = set()  # pairs of node ids that can't exchange memory, and talk all the same
        self.former: list[FakeNode] = []  # earlier lives
        self.nodes: dict[int, FakeNode] = {}
        self.pushes: dict[tuple[int, int], deque[tuple[int, int, Row]]] = {}
        self.mail: dict[tuple[int, int], deque[m.Message | HungUp]] = {}
        self.early: list[tuple[int, tuple[int, int, Row]]] = []
        self.steps = 0
        self.gathers = 0
        self.revisions = 0  # that anybody has taken
        self.incarnations = itertools.count(1000)

    # --- what the outside does

    def start(self, node_id: int, settings: Settings = UNSAID) -> FakeNode:
        """The first node forms the group; the others are told a view by somebody."""
        me = Member(node_id, incarnation=next(self.incarnations), address=f"node-{node_id}")
        machine = Machine(me, settings)
        if node_id in self.nodes:
            self.former.append(self.nodes[node_id])
        for other in self.nodes:
            self.mail.pop((other, node_id), None)
            self.pushes.pop((other, node_id), None)
            self.cut -= {(node_id, other), (other, node_id)}
        node = self.nodes[node_id] = FakeNode(machine, node_id)
        members = [one for one in self.nodes.values() if one.running and one.views]
        if members:
            self.post(self.random.choice(members).node_id, node_id, m.CurrentView(members[0].views[-1]))
        else:
            machine.form(group_id=77)
        self.drive(node)
        return node

    def crash(self, node_id: int) -> None:
        """Everybody gets an end of file, after what was still in flight; of its pushes a part is lost."""
        node = self.nodes[node_id]
        node.crashed = True
        for (sender, _), queue in self.pushes.items():
            if sender == node_id:
                for _ in range(self.random.randrange(len(queue) + 1)):
                    queue.pop()
        self.hang_up(node)

    def hang_up(self, node: FakeNode, why: str = "") -> None:
        for other in self.nodes.values():
            if other is not node:
                self.mail.setdefault((node.node_id, other.node_id), deque()).append(
                    HungUp(node.machine.me, node.left, why, node.left or node.failed is not None))

    def suspect(self, node_id: int, suspects: int) -> None:
        """One node takes another for dead, rightly or not."""
        node = self.nodes[node_id]
        if node.running and not node.paused:
            node.machine.suspect(suspects, "it is silent")
            self.drive(node)

    def declare(self, node_id: int, spec: TopicSpec) -> int:
        return self.nodes[node_id].machine.declare(spec)

    # --- what happens

    def post(self, sender: int, receiver: int, message: m.Message) -> None:
        self.mail.setdefault((sender, receiver), deque()).append(message)

    def drive(self, node: FakeNode) -> None:
        """Steps the machine and carries out its actions until there are none."""
        while node.running and not node.paused:
            node.machine.step()
            actions = node.machine.take_actions()
            if not actions:
                return
            for action in actions:
                self.carry_out(node, action)

    def carry_out(self, node: FakeNode, action: m.Action) -> None:
        if isinstance(action, m.Send):
            self.post(node.node_id, action.node_id, action.message)
        elif isinstance(action, m.Gather):
            self.gathers += 1
            node.gathering = True
        elif isinstance(action, m.Prepare):
            self.check_acknowledged(node, action)
            node.preparing = action
            node.begun.add((action.view.view_id, action.ballot))
        elif isinstance(action, m.Wedge):
            self.wedge(node, action.ballot)
        elif isinstance(action, m.Cut):
            assert node.machine.view is not None
            if node.machine.view.member(action.node_id) != self.nodes[action.node_id].machine.me:
                return  # of a former life
            self.cut |= {(node.node_id, action.node_id), (action.node_id, node.node_id)}
            self.mail.setdefault((node.node_id, action.node_id), deque()).append(
                HungUp(node.machine.me, False, "it was cut off"))
        elif isinstance(action, m.DeliverToTrim):
            node.trims[node.views[-1].view_id] = action.trims
        elif isinstance(action, m.Install):
            node.table = FakeTable(self, action.view, node.node_id)
            node.views.append(action.view)
            node.machine.installed(node.table)
            self.land_early(node)
            self.tell_outsiders(node)
            for member in action.view.members:
                other = self.nodes[member.node_id]
                told = any(isinstance(one, HungUp) for one in self.mail.get((member.node_id, node.node_id), ()))
                if member.life != other.life or not (other.running or told):
                    node.machine.peer_gone(member, other.left and member.life == other.life, ended=self.shared)
        elif isinstance(action, m.Revise):
            self.revise(node, action.view)
        elif isinstance(action, m.Left):
            node.left = True
            self.hang_up(node)
        elif isinstance(action, m.Rejected):
            node.rejected.append(action)
            if action.request_id == 0:
                node.failed = m.Failed(action.kind, action.text)
                self.hang_up(node, action.kind)
        elif isinstance(action, m.Failed):
            node.failed = action
            self.hang_up(node, action.kind)

    def life_of(self, member: Member) -> FakeNode:
        return next(one for one in [*self.nodes.values(), *self.former] if one.life == member.life)

    def live_members(self, node: FakeNode) -> list[Member]:
        """The members of the installed view that the node doesn't suspect."""
        return [node.views[-1].members[rank] for rank in node.machine.live_ranks()] if node.views else []

    def revise(self, node: FakeNode, view: View) -> None:
        """All that live have the same revisions of a view: never one that another has otherwise."""
        assert view.revises(node.views[-1]) and view.revision == node.views[-1].revision + 1
        assert [topic for topic in view.topics if topic.members] == [
            topic for topic in node.views[-1].topics if topic.members]
        node.views[-1] = view
        self.revisions += 1
        for other in self.nodes.values():
            if other is not node and other.running and other.views and other.views[-1].state == view.state:
                takes_part = {member.life for member in self.live_members(node)}
                assert other.life not in takes_part or other.views[-1] == view

    def check_acknowledged(self, node: FakeNode, action: m.Prepare) -> None:
        """Nobody tells newcomers of a proposal that a live member has not acknowledged."""
        if all(member in node.views[-1].members for member in action.view.members) if node.views else True:
            return
        for member in self.live_members(node):
            table = self.life_of(member).table
            if table is not None and table.view.view_id == node.views[-1].view_id:
                assert table.seen[table.my_rank][0].get("acked", 0) >= action.ballot

    def check_prepared(self, node: FakeNode) -> None:
        """Nobody stops sending before everybody live in both views has the next epoch's memory."""
        view, ballot = node.machine.next_view, node.machine.ballot
        assert view is not None
        for member in {*self.live_members(node), *view.members}:
            assert (view.view_id, ballot) in self.life_of(member).prepared, f"{member} is not prepared"

    def wedge(self, node: FakeNode, ballot: int) -> None:
        assert node.table is not None
        self.check_prepared(node)
        view = node.views[-1]
        frozen = node.table.seen[node.table.my_rank][2]
        for topic in view.topics:
            if node.node_id in topic.members:
                frozen[topic.topic_id] = tuple(self.random.randrange(50) for _ in topic.senders)
        node.frozen[view.view_id] = dict(frozen)
        node.table.set("wedged", ballot)
        node.table.push()

    def tell_outsiders(self, node: FakeNode) -> None:
        for other in self.nodes.values():
            if other.running and other.machine.phase in (Phase.OUTSIDE, Phase.ADMITTED):
                self.post(node.node_id, other.node_id, m.CurrentView(node.views[-1]))

    def land_early(self, node: FakeNode) -> None:
        """A row of the new epoch is visible from the moment its reader has installed it."""
        here, self.early = self.early, []
        for node_id, push in here:
            if node_id == node.node_id:
                self.land(node, push)
            else:
                self.early.append((node_id, push))

    def land(self, node: FakeNode, push: tuple[int, int, Row]) -> None:
        view_id, rank, row = push
        installed = node.views[-1].view_id if node.views else -1
        if view_id > installed:
            self.early.append((node.node_id, push))
        elif view_id == installed and node.table is not None:
            node.table.seen[rank] = row

    def try_prepare(self, node: FakeNode) -> bool:
        """Preparing ends when every other member of the next view has begun it: then all rows are exchanged."""
        wanted = node.preparing
        assert wanted is not None
        for member in wanted.view.members:
            other = self.nodes[member.node_id]
            if member.node_id == node.node_id or wanted.view.rank_of(node.node_id) is None:
                continue
            if frozenset((node.node_id, member.node_id)) in self.walls:
                return False
            if other.life != member.life or (node.node_id, member.node_id) in self.cut or (
                    wanted.view.view_id, wanted.ballot) not in other.begun:
                return False
        node.prepared.add((wanted.view.view_id, wanted.ballot))
        node.machine.prepared(wanted.ballot)
        self.drive(node)
        return True

    def choices(self) -> list[tuple[str, int, int]]:
        """Everything that could happen next."""
        found = [("push", *pair) for pair, queue in self.pushes.items() if queue]
        found += [("mail", *pair) for pair, queue in self.mail.items() if queue]
        found += [("prepare", node.node_id, 0) for node in self.nodes.values()
                  if node.running and node.preparing and not node.paused]
        found += [("gather", node.node_id, 0) for node in self.nodes.values()
                  if node.running and node.gathering and not node.paused]
        found += [("look", node.node_id, 0) for node in self.nodes.values() if self.pushed and node.running]
        return [one for one in found if one[0] not in ("mail", "push") or not self.stuck(*one)]

    def stuck(self, kind: str, sender: int, receiver: int) -> bool:
        """Nothing is taken by a node that is paused, and who says that it has stopped does so when its row has arrived
        everywhere."""
        if self.nodes[receiver].paused and self.nodes[receiver].running:
            return True
        first = self.mail[sender, receiver][0] if kind == "mail" else None
        return isinstance(first, HungUp) and first.said and bool(self.pushes.get((sender, receiver)))

    def happen(self) -> bool:
        """One random thing; False if nothing is left that could happen."""
        options = self.choices()
        while options:
            self.steps += 1
            kind, a, b = option = self.random.choice(options)
            if kind == "prepare":
                node = self.nodes[a]
                wanted = node.preparing
                if self.try_prepare(node):
                    if node.preparing is wanted:
                        node.preparing = None
                    return True
                options.remove(option)
                continue
            if kind == "gather":
                self.nodes[a].gathering = False
                self.nodes[a].machine.gathered()
                self.drive(self.nodes[a])
                return True
            if kind == "look":
                self.look()
                return True
            node = self.nodes[b]
            if kind == "push":
                push = self.pushes[a, b].popleft()
                if node.running and (a, b) not in self.cut:
                    self.land(node, push)
            else:
                message = self.mail[a, b].popleft()
                if node.running and isinstance(message, HungUp):
                    node.machine.peer_gone(message.member, message.left, message.why,
                                           ended=message.said or (self.shared and message.why != "it was cut off"))
                elif node.running and not isinstance(message, HungUp) and (a, b) not in self.cut:
                    node.machine.receive(a, message)
            self.drive(node)
            return True
        return False

    def look(self) -> None:
        """Shared rows have changed: everybody looks, in any order."""
        self.pushed = False
        nodes = list(self.nodes.values())
        self.random.shuffle(nodes)
        for node in nodes:
            self.drive(node)

    def run(self, steps: int = 100_000) -> None:
        """Until nothing can happen any more. AssertionError if that takes too long."""
        for _ in range(steps):
            if not self.happen() and not self.overdue() and not self.give_up():
                return
        raise AssertionError(f"the group is not at rest after {steps} steps")

    def overdue(self) -> bool:
        """At rest, those whose preparation a wall holds up say so, and then the leader decides; True if one of both was
        due."""
        waiting = [node for node in self.nodes.values() if node.running and node.preparing and not node.paused]
        for node in waiting if self.walls else ():
            assert node.preparing is not None
            view, ballot = node.preparing.view, node.preparing.ballot
            lacks = {one: "a wall" for one in view.node_ids if frozenset((one, node.node_id)) in self.walls}
            if lacks and (view.view_id, ballot) not in node.reported:
                node.reported.add((view.view_id, ballot))
                node.machine.lacks(ballot, lacks)
                self.drive(node)
                return True
        for node in list(self.nodes.values()) if self.walls else ():
            decided = node.machine.ballot, node.decided.count(node.machine.ballot)
            if node.running and not node.paused and node.machine.is_leader and decided[0] and decided[1] < 2:
                node.machine.leave_out(decided[0], again=decided[1] > 0)
                node.decided.append(decided[0])
                self.drive(node)
                return True
        return False

    def give_up(self) -> bool:
        """At rest, who has lost its majority stops; True if somebody did."""
        for node in self.nodes.values():
            if node.running and not node.paused and node.machine.in_minority:
                node.machine.give_up()
                self.drive(node)
                return True
        return False
