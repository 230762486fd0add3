"""Many random groups of machines, each with a mix of faults of its own.

    python -m tests.spindle.membership.swarm [SEEDS] [FIRST]     exit code 1 at the first seed that breaks a property

Why beside hypothesis: it looks for the smallest case and spends its time on small ones, while some mistakes show only
when two leaders die in a row with half of a trim on its way. Here a seed decides how eager each kind of event is in its
run (a swarm), so that every mix comes up: one in which nothing but suspicions arrive late, one full of joiners.
"""

from __future__ import annotations

import random
import sys

from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.membership import messages as m
from spindle.membership.machine import Phase
from tests.spindle.membership.fake_group import FakeGroup, FakeNode
from tests.spindle.membership.test_failures import check

KINDS = ("start", "leave", "crash", "crash leader", "pause", "resume", "suspect", "suspect leader", "role", "declare",
         "delete", "idle")
NODES = 7


def mix(seed: int) -> None:
    """One run. AssertionError if a property is broken, or the group does not come to rest in one view."""
    rng = random.Random(seed)
    group = FakeGroup(seed, shared=rng.random() < 0.5)
    _busy(group, rng.randint(2, 6))
    weights = [rng.choice((0, 0, 1, 1, 3, 8)) for _ in KINDS]
    if not any(weights):
        weights[KINDS.index("crash leader")] = 1
    patience = rng.choice((1, 3, 8, 20))
    for _ in range(rng.randint(1, 16)):
        kind = rng.choices(KINDS, weights)[0]
        _do(group, rng, kind)
        for _ in range(rng.randrange(patience + 1)):
            group.happen()
        check(group)
    _settle(group)


def _busy(group: FakeGroup, count: int) -> None:
    for node_id in range(1, count + 1):
        group.start(node_id)
        group.run()
    group.declare(1, TopicSpec("t", level=Level.ATOMIC, window=4, size_max=16))
    for node in list(group.nodes.values()):
        node.machine.take_role(m.Role("t", True, True))
        group.drive(node)
    group.run()


def _members(group: FakeGroup) -> list[FakeNode]:
    return [one for one in group.nodes.values() if one.running and one.views and not one.machine.leaving]


def _do(group: FakeGroup, rng: random.Random, kind: str) -> None:
    inside = _members(group)
    node = group.nodes.get(rng.randint(1, NODES))
    if kind.endswith("leader") and inside:
        # The oldest of a random member's view: one that leads, or is about to.
        view = rng.choice(inside).views[-1]
        node = group.nodes.get(view.node_ids[rng.choice((0, 0, 0, 1)) % len(view.node_ids)])
        kind = kind.removesuffix(" leader")
    if kind == "start":
        outside = [one for one in range(1, NODES + 1) if one not in group.nodes or not group.nodes[one].running]
        if inside and outside:
            group.start(rng.choice(outside))
    elif node is None or not node.running:
        pass
    elif kind == "leave" and len(inside) > 1 and not node.paused:
        node.machine.leave()
        group.drive(node)
    elif kind == "crash" and len(inside) > 1:
        group.crash(node.node_id)
    elif kind == "pause":
        node.paused = True
    elif kind == "resume":
        for one in group.nodes.values():
            one.paused = False
            group.drive(one)
    elif kind == "suspect" and inside:
        group.suspect(rng.choice(inside).node_id, node.node_id)
    elif kind == "declare" and node.views and not node.paused:
        group.declare(node.node_id, TopicSpec(
            f"t{rng.randrange(20)}", level=rng.choice((Level.ATOMIC, Level.ATOMIC, Level.LOGGED)),
            size_max=rng.choice((16, 16, 32))))
        group.drive(node)
    elif kind == "delete" and node.views and node.views[-1].topics and not node.paused:
        topic = rng.choice(node.views[-1].topics)
        node.machine.delete(m.Deletion(topic.spec.name, topic.born, renews=topic.spec.level is Level.LOGGED))
        group.drive(node)
    elif kind == "role" and node.views and not node.paused:
        node.machine.take_role(m.Role("t", rng.random() < 0.8, False))
        group.drive(node)


def _settle(group: FakeGroup) -> None:
    """Faults end, who hangs still is taken for dead; then all that run are in one view, at rest."""
    for node in list(group.nodes.values()):
        if node.paused and node.running:
            for one in group.nodes.values():
                group.suspect(one.node_id, node.node_id)
    group.run()
    for node in group.nodes.values():
        node.paused = False
        group.drive(node)
    group.run()
    check(group)
    running = [node for node in group.nodes.values() if node.running and node.views]
    for node in running:
        assert node.machine.phase is Phase.STABLE, (node.node_id, node.machine.phase, node.machine.awaiting())
        assert node.views[-1] == running[0].views[-1]
        assert set(node.views[-1].node_ids) == {one.node_id for one in running}
    for node in [*group.nodes.values(), *group.former]:
        assert node.failed is None or node.failed.kind in ("CastOut", "NoMajority", "NodeIdTaken"), node.failed


def main() -> int:
    seeds, first = (int(one) for one in (*sys.argv[1:], *("1000", "0")[len(sys.argv) - 1 :]))
    for seed in range(first, first + seeds):
        try:
            mix(seed)
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__} {error}")
            return 1
    print(f"{seeds} mixes of faults, no property broken")
    return 0


if __name__ == "__main__":
    sys.exit(main())
