"""A group of nodes as far as a restart of one logged topic sees it: views, disks, messages between nodes. The decisions
are those of the production code (`chain`, `Restorer`); what is modelled here is what surrounds them.

Views change at once, for all nodes that run: that the group agrees on them is another part's promise. A message that is
written is in the memory of every whole member, and waits at the others. Disks keep what was synced.
"""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable

from spindle.restart.chain import (
    NOTHING,
    Holders,
    Life,
    Order,
    Standing,
    Successor,
    Summary,
    agreed_end,
    began_after,
    is_outdated,
    knows,
    supersedes,
)
from spindle.restart.restorer import Ask, Follow, Record, Restorer, Settle, Step

Entry = tuple[Order, int]  # order, number of the message


@dataclasses.dataclass
class Node:
    node_id: int
    standing: Standing = dataclasses.field(default_factory=Standing)  # on disk
    journal: list[Entry] = dataclasses.field(default_factory=list)  # on disk
    forked: list[Entry] = dataclasses.field(default_factory=list)  # on disk, beside
    up: bool = False
    member: bool = False
    whole: bool = False
    entered: int = -1
    guides: tuple[int, ...] = ()
    follow: int | None = None
    waiting: list[Entry] = dataclasses.field(default_factory=list)  # whole: not yet on disk; else: live meanwhile
    restorer: Restorer | None = None
    settling: bool = False  # its standing is new, and what it has on disk not put aside yet

    @property
    def end(self) -> Order:
        return self.journal[-1][0] if self.journal else NOTHING

    @property
    def begin(self) -> Order:
        return self.journal[0][0] if self.journal else NOTHING

    @property
    def content(self) -> list[Entry]:
        """All that a reader of a whole member gets."""
        return self.journal + self.waiting

    @property
    def floor(self) -> int:
        standing = self.standing
        known = [standing.seen_view, *(life.first_view for life in standing.lives)]
        known += [standing.holders.view_id] if standing.holders else []
        known += [standing.successor.holders.view_id] if standing.successor else []
        return max(known) + 1

    def tidy(self) -> None:
        """As whoever looks at a journal does first."""
        if is_outdated(self.standing.lives, self.begin):
            self.forked += self.journal
            self.journal = []

    def update(self, **changes: object) -> None:
        changes["seen_view"] = max(self.standing.seen_view, int(str(changes.get("seen_view", -1))))
        self.standing = dataclasses.replace(self.standing, **changes)  # type: ignore[arg-type]


class World:
    def __init__(self, count: int, rng: random.Random, mode: str) -> None:
        self.nodes = {node_id: Node(node_id) for node_id in range(1, count + 1)}
        self.rng, self.mode = rng, mode
        self.ranks: list[int] = []  # nodes of the view, oldest first
        self.view_id, self.groups = -1, 0
        self.sequence = 0
        self.numbers = 0
        self.acknowledged: set[int] = set()
        self.events: list[tuple[set[int], Callable[[], None]]] = []  # nodes that must be up, what happens
        self.restarts = 0
        self.renewed_since: int | None = None  # view after which it was declared anew in this group
        self.renewed_at = 0  # number of the first message that may come after that
        self.may_renew = False  # it was declared anew since it went on last
        self.first = 0  # number of the first message that counts still

    # --- the group

    def declare_anew(self) -> None:
        """By somebody, while nobody has the topic open."""
        if self.ranks and not self.members:
            self.renewed_since, self.renewed_at = self.view_id, self.numbers
            self.may_renew = True

    @property
    def members(self) -> tuple[int, ...]:
        return tuple(node_id for node_id in self.ranks if self.nodes[node_id].member)

    def change(self, ranks: list[int], joining: set[int] = frozenset(), leaving: set[int] = frozenset()) -> None:  # type: ignore[assignment]
        """A new view of these nodes; `joining` and `leaving` are nodes that begin or end being members of the topic."""
        before = self.members
        floor = max((self.nodes[one].floor for one in ranks if one not in self.ranks), default=0)
        if not self.ranks:
            self.groups += 1
            self.view_id, self.renewed_since = -1, None
        self.view_id = max(self.view_id + 1, floor)
        self.sequence = 0
        self.ranks = ranks
        for node_id in joining:
            self.nodes[node_id].member = True
        for node_id in leaving:
            self.nodes[node_id].member = False
        members = self.members
        stayed = [node_id for node_id in members if node_id in before]
        for node_id in members:
            node = self.nodes[node_id]
            if node_id in joining:
                fresh = [one for one in members if one in joining]
                node.entered, node.whole, node.follow = self.view_id, False, None
                node.guides, node.waiting, node.restorer = (*stayed, *fresh), [], None
            elif node.whole and members != before:
                node.update(holders=Holders(self.view_id, members), whole=True, successor=None)
            node.guides = tuple(one for one in node.guides if one in stayed or node_id in joining)
            if node.follow not in stayed:
                node.follow = None
            if node.restorer is not None:
                node.restorer.begin(str(self.groups), self.view_id, tuple(self.ranks), members, self.renewed_since)
        whole = tuple(node_id for node_id in members if self.nodes[node_id].whole)
        for node_id in set(ranks) - set(members) - set(leaving):
            if whole and not knows(self.nodes[node_id].standing, Holders(self.view_id, whole)):
                self.nodes[node_id].update(successor=Successor(Holders(self.view_id, whole)))
        for node_id in leaving:
            node = self.nodes[node_id]
            if node.whole:
                self.sync(node_id, len(node.waiting))
                if stayed:
                    node.update(successor=Successor(Holders(self.view_id, members)))
            node.whole, node.restorer, node.waiting, node.settling = False, None, [], False

    def crash(self, crashed: set[int]) -> None:
        for node_id in crashed:
            node = self.nodes[node_id]
            node.up = node.member = node.whole = node.settling = False
            node.waiting, node.restorer = [], None
        rest = [node_id for node_id in self.ranks if node_id not in crashed]
        if rest:
            self.change_after_crash(rest, crashed)
        else:
            self.ranks = []

    def change_after_crash(self, rest: list[int], crashed: set[int]) -> None:
        # `members` is what it was before only if the crashed still count: holders must see that they changed.
        for node_id in crashed:
            self.nodes[node_id].member = node_id in self.ranks
        before = self.members
        for node_id in crashed:
            self.nodes[node_id].member = False
        if before != self.members:
            self.change(rest)
            for node_id in self.members:
                if self.nodes[node_id].whole:
                    self.nodes[node_id].update(holders=Holders(self.view_id, self.members), successor=None)
        else:
            self.change(rest)

    # --- messages

    def write(self) -> None:
        if not any(self.nodes[one].whole for one in self.members):
            return
        entry = ((self.view_id, self.sequence), self.numbers)
        self.sequence += 1
        self.numbers += 1
        for node_id in self.members:
            self.nodes[node_id].waiting.append(entry)

    def sync(self, node_id: int, count: int) -> None:
        node = self.nodes[node_id]
        if not node.whole:
            return
        for entry in node.waiting[:count]:
            assert entry[0] > node.end, "a journal's order rises"
            node.journal.append(entry)
            node.update(seen_view=entry[0][0])
        del node.waiting[:count]
        members = [self.nodes[one] for one in self.members]
        if members and all(one.whole for one in members):
            common = set.intersection(*(set(one.journal) for one in members))
            self.acknowledged |= {number for _, number in common}

    # --- catching up, as spindle.restart.catching_up does it

    def fill(self, node_id: int) -> None:
        """One step of a member that isn't whole."""
        node = self.nodes[node_id]
        if not node.member or node.whole:
            return
        node.tidy()
        if node.settling:
            node.settling = False
            self.settled(node)
            return
        guide = node.follow or next(one for one in node.guides if one in self.members)
        if guide == node_id:
            if node.restorer is None:
                node.restorer = Restorer(node_id, self.mode)
                node.restorer.begin(
                    str(self.groups), self.view_id, tuple(self.ranks), self.members, self.renewed_since)
            self.act(node)
            return
        node.restorer = None
        donor = self.nodes[guide]
        if not donor.whole:
            return
        self.sync(guide, len(donor.waiting))
        lives = donor.standing.lives
        if not self.take(node, donor, lives, max(node.entered, lives[-1].first_view), donor.end):
            return
        node.update(holders=Holders(self.view_id, self.members), whole=True, successor=None)
        self.become_whole(node)

    def take(self, node: Node, source: Node, lives: tuple[Life, ...], until_view: int, end: Order) -> bool:
        """Some of what the source has; True when that was the last of it."""
        agreed = agreed_end(lives, end, node.standing.lives, node.end)
        if node.end > agreed:
            renewed = self.renewed_since is not None and not began_after(
                node.standing.lives, int(str(self.groups), 16), self.renewed_since)
            if renewed and supersedes(lives, node.begin, node.standing):
                node.update(lives=lives)
            else:
                node.update(whole=False)
            node.forked += [one for one in node.journal if one[0] > agreed]
            node.journal = [one for one in node.journal if one[0] <= agreed]
            return False
        node.update(lives=lives)
        rest = [one for one in source.journal if node.end < one[0] < (until_view, 0) and one[0] <= end]
        for entry in rest[: self.rng.randint(1, 4)]:
            node.journal.append(entry)
            node.update(seen_view=entry[0][0])
        return len(rest) <= 1 or node.end == rest[-1][0]

    def become_whole(self, node: Node) -> None:
        first = max(node.entered, node.standing.lives[-1].first_view)
        node.waiting = [one for one in node.waiting if one[0][0] >= first]
        node.whole, node.restorer = True, None
        others = [self.nodes[one] for one in self.members if self.nodes[one].whole and one != node.node_id]
        for other in others:
            assert other.content == node.content, f"{other} and {node} disagree"
        assert [one[0] for one in node.content] == sorted({one[0] for one in node.content})
        if self.mode != "any":
            have = {number for _, number in node.content}
            assert self.acknowledged <= have, f"{node} lacks {sorted(self.acknowledged - have)}"
            assert all(number >= self.first for number in have), f"{node} has what is of an earlier definition"

    def summary(self, node: Node) -> Summary:
        if node.member and node.whole:
            return Summary(node.standing, serving=True)
        node.tidy()
        return Summary(node.standing, node.begin, node.end, len(node.journal))

    def act(self, node: Node) -> None:
        restorer = node.restorer
        assert restorer is not None
        for action in restorer.take_actions():
            if isinstance(action, Ask):
                self.ask(node, restorer, action)
            elif isinstance(action, Record):
                self.record(node, restorer, action)
            elif isinstance(action, Settle):
                standing = action.standing
                node.update(lives=standing.lives, holders=standing.holders, whole=True, successor=None,
                            seen_view=standing.seen_view)
                if self.mode != "any":
                    assert self.may_renew or not action.renews, "what goes on was not given up, or counts again"
                    self.may_renew = self.may_renew and (action.renews or self.renewed_since is not None)
                if action.renews:
                    self.first = self.renewed_at  # perhaps in a group before this one
                    self.acknowledged = {number for number in self.acknowledged if number >= self.first}
                    node.settling = True
                else:
                    self.settled(node)
                return
            elif isinstance(action, Follow):
                node.follow, node.restorer = action.node_id, None
                return
        if restorer.step is Step.FILLING and restorer.decision is not None:
            decision = restorer.decision
            if decision.source in (None, node.node_id):
                agreed = agreed_end(decision.lives, decision.end, node.standing.lives, node.end)
                done = self.take(node, node, decision.lives[:-1], self.view_id, agreed)
            else:
                source = self.nodes[decision.source]
                agreed = agreed_end(decision.lives, decision.end, node.standing.lives, node.end)
                if node.end > agreed:
                    self.take(node, source, decision.lives, self.view_id, agreed)
                    return
                done = self.take(node, source, decision.lives[:-1], self.view_id, decision.end) \
                    if self.same(node, decision.lives[:-1]) else self.adopt(node, decision.lives[:-1])
            if done and node.end == decision.end:
                restorer.filled(self.view_id)

    def settled(self, node: Node) -> None:
        assert node.restorer is not None
        node.restorer.settled()
        self.restarts += 1
        self.become_whole(node)

    @staticmethod
    def same(node: Node, lives: tuple[Life, ...]) -> bool:
        return node.standing.lives == lives

    @staticmethod
    def adopt(node: Node, lives: tuple[Life, ...]) -> bool:
        node.update(lives=lives)
        return False

    def ask(self, node: Node, restorer: Restorer, action: Ask) -> None:
        asked = self.nodes[action.node_id]

        def answer() -> None:
            summary = self.summary(asked)
            self.events.append(({node.node_id}, lambda: restorer.heard(asked.node_id, action.view_id, summary)))

        self.events.append(({asked.node_id}, answer))

    def record(self, node: Node, restorer: Restorer, action: Record) -> None:
        asked = self.nodes[action.node_id]

        def write_down() -> None:
            if not knows(asked.standing, action.successor.holders):
                asked.update(successor=action.successor)
            self.events.append(({node.node_id}, lambda: restorer.recorded(asked.node_id, action.view_id)))

        self.events.append(({asked.node_id}, write_down))

    def deliver(self) -> None:
        """One message between nodes arrives, or is lost with one of its ends."""
        if self.events:
            needed, event = self.events.pop(self.rng.randrange(len(self.events)))
            if all(self.nodes[one].up for one in needed):
                event()
