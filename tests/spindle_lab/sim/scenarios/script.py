"""A run that is told what happens: worlds of the simulator, driven by a scenario instead of a seed.

Every event is checked as in any run (`spindle_lab.sim.check`), so a scenario only says what is particular about it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.group.view import View
from spindle.membership.machine import Phase
from spindle_lab.sim import events as e
from spindle_lab.sim.node import Life
from spindle_lab.sim.rows import SUBGROUPS_WORD
from spindle_lab.sim.settle import settle
from spindle_lab.sim.setup import Setup
from spindle_lab.sim.world import World

TURNS_MAX = 400
SUBGROUPS_OFFSET = 8 * SUBGROUPS_WORD


class Script:
    """`nodes` members, all of them senders of all topics unless `roles` says otherwise: {(node, topic): role}."""

    def __init__(self, nodes: int = 3, *, fabric: str = "shared", topics: int = 1, window: int = 4, size_max: int = 64,
                 level: Level = Level.ATOMIC, roles: dict[tuple[int, int], int] | None = None,
                 small_logs: bool = False) -> None:
        specs = tuple(
            TopicSpec(f"t{number}", level=level, size_max=size_max, window=window) for number in range(topics))
        self.world = World(Setup(specs, fabric=fabric, small_logs=small_logs))
        for node in range(1, nodes + 1):
            self.start(node)
            self.until(lambda node=node: self.is_member(node))  # type: ignore[misc]
        for node in range(1, nodes + 1):
            for topic in range(topics):
                self.do(e.ROLE, node, topic, (roles or {}).get((node, topic), 2))
        self.quiet()

    # --- looking

    def life(self, node: int) -> Life:
        return self.world.current[node]

    def phase(self, node: int) -> Phase:
        return self.life(node).machine.phase

    def view(self, node: int) -> View:
        view = self.life(node).view
        assert view is not None
        return view

    def is_member(self, node: int) -> bool:
        return self.life(node).view is not None

    def column(self, node: int, column: str) -> int:
        """A column of the node's row as it is itself."""
        epoch = self.life(node).epoch
        assert epoch is not None
        return int(epoch.get(epoch.my_rank, column))

    def seen(self, node: int, other: int, column: str) -> int:
        """... as far as it has reached another node."""
        epoch, rank = self.life(node).epoch, self.view(node).rank_of(other)
        assert epoch is not None
        return int(epoch.get(rank, column))

    def counts(self, node: int, name: str, topic_id: int = 1) -> list[int]:
        """"published" per sender, "received" or "delivered" per member, as the node sees them."""
        epoch = self.life(node).epoch
        assert epoch is not None
        counts: list[int] = epoch.stability(topic_id)[name]
        return counts

    def counter(self, node: int, name: str) -> int:
        """One of the node's counters, as `spindle status` shows them."""
        return int(self.life(node).engine.counters.snapshot()[name])

    def row(self, node: int, other: int) -> memoryview:
        """The bytes of a row as they are at a node, to be changed by a script. With shared rows the own one only."""
        epoch, rank = self.life(node).epoch, self.view(node).rank_of(other)
        assert epoch is not None and rank is not None
        return memoryview(epoch.row) if node == other else epoch.fabric.row_of(rank)

    def slot(self, index: int, *, senders: int, window: int, stride: int = 128) -> int:
        """Where message `index` of any sender lies in its row; of the first topic where there is only one."""
        counts_end = SUBGROUPS_OFFSET + 64 + -(-senders // 8) * 64
        return -(-counts_end // 4096) * 4096 + index % window * stride

    def delivered(self, node: int, topic: int = 0) -> list[bytes]:
        """What the node has delivered of the topic in the installed view."""
        view = self.view(node)
        known = view.topic(f"t{topic}")
        assert known is not None
        sequence = self.world.check.sequences[view.group_id, view.view_id, known.topic_id]
        return [entry[3] for entry in sequence.entries[: sequence.places[self.life(node).number]]]

    def of_view(self, view_id: int, topic_id: int = 1) -> list[bytes]:
        """What anybody has delivered of a topic in a view."""
        return [entry[3] for (_, view, topic), one in self.world.check.sequences.items() for entry in one.entries
                if (view, topic) == (view_id, topic_id)]

    def sent(self, node: int, topic: int = 0) -> list[bytes]:
        """What the node's writers of the topic have committed, one writer after the other."""
        life = self.life(node)
        known = self.view(node).topic(f"t{topic}")
        assert known is not None
        return [payload for writer in life.writers[known.topic_id] for payload in writer.sent]

    def views(self) -> list[View]:
        """All views that anybody has installed, in their order."""
        return [view for chain in self.world.check.chain.values() for view in chain]

    # --- what happens

    def do(self, *event: object) -> bool:
        return self.world.apply(event)

    def start(self, node: int) -> None:
        assert self.do(e.START, node)

    def write(self, node: int, n: int = 1, *, topic: int = 0, size: int = 8) -> None:
        assert self.do(e.WRITE, node, topic, n, size), f"node {node} can't write"

    def turns(self, n: int = 1, *nodes: int) -> None:
        """Turns of these nodes (or all); everything on the way arrives in between, but for what is held up."""
        for _ in range(n):
            for node in nodes or sorted(self.world.current):
                self.do(e.TURN, node)
                self.do(e.LAND, 0, 0, 0)

    def until(self, holds: Callable[[], bool], *nodes: int) -> None:
        """These nodes (or all) work, one small event after the other, until it holds. Fails if it never does."""
        for _ in range(TURNS_MAX):
            for node in nodes or sorted(self.world.current):
                for event in ((e.STEP, node), (e.RECV, node, 0), *[(e.CTL, node, 1)] * 12, (e.TURN, node)):
                    if holds():
                        return
                    self.do(*event)
                self.do(e.LAND, 0, 0, 0)
        states = [f"{life} {life.state()}" for life in self.world.lives]
        raise AssertionError(f"it never happened: {states}")

    def until_phase(self, node: int, phase: Phase, *nodes: int) -> None:
        self.until(lambda: self.phase(node) is phase, *nodes)

    def quiet(self, *nodes: int) -> None:
        """Turns until nobody has anything to do."""
        for _ in range(TURNS_MAX):
            active = False
            for node in nodes or sorted(self.world.current):
                active = self.do(e.TURN, node) or active
                active = self.do(e.LAND, 0, 0, 0) or active
            if not active:
                return
        raise AssertionError("it never becomes quiet")

    def receive(self, node: int, source: int) -> bool:
        """The node takes what comes from this other one only."""
        links = self.life(node).incoming()
        places = [place for place, link in enumerate(links) if link.other(self.life(node)) is self.life(source)]
        return bool(places) and self.do(e.RECV, node, places[0])

    def hold(self, source: int, *targets: int) -> None:
        """What `source` pushes doesn't reach these until release()."""
        for target in targets:
            assert self.do(e.CLOG, source, target)

    def release(self, source: int, *targets: int) -> None:
        for target in targets:
            self.do(e.UNCLOG, source, target)

    def land(self, source: int, target: int, lines: int = 1) -> bool:
        return self.do(e.LAND, self.life(source).number, self.life(target).number, lines)

    def push(self, *nodes: int) -> None:
        """Their predicate threads post what is to be posted, and it arrives where it isn't held."""
        for node in nodes:
            self.do(e.STEP, node)
        self.do(e.LAND, 0, 0, 0)

    def crash(self, *nodes: int) -> None:
        """With copied rows what they had pushed before arrives nevertheless."""
        for node in nodes:
            assert self.do(e.CRASH, node, int(self.world.fabric.certain))

    def suspect(self, node: int, other: int) -> None:
        assert self.do(e.ACCUSE, node, other)

    def pass_time(self, ms: int, *nodes: int) -> None:
        """Time passes, in steps in which every node (or these) looks after its timers."""
        for _ in range(ms // 5):
            self.do(e.TICK, 5_000_000)
            for node in nodes or sorted(self.world.current):
                self.do(e.LOOK, node)
                self.do(e.TURN, node)
                self.do(e.LAND, 0, 0, 0)

    def finish(self, members: Sequence[int] | None = None) -> None:
        """Everything heals, and all that was promised must be so; these are the members then. Ends the run."""
        settle(self.world, 1)
        running = [life.node_id for life in self.world.running()]
        if members is not None:
            assert sorted(running) == sorted(members), [f"{life} {life.state()}" for life in self.world.lives]
        self.world.close()
