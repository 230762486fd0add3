"""Goal: hosts between which everything is late, slow or lossy are a group like any other; one that is late by more than
the suspicion time is left behind as if it hung, does no harm, and comes back when it isn't late any more.

Method: rounds of chaos on hosts of network namespaces, in which the faults are a script (`scene`), over lines that hold
back what passes (`spindle_lab.chaos.lines`). All of them by `make netns-test`, one by `make test`; skipped, with the
reason, where no namespaces can be had.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from pathlib import Path

import pytest

from spindle_lab.chaos.hosts import Direction, unavailable
from spindle_lab.chaos.lines import Line
from tests.spindle_lab.chaos.scene import Scene, all_of_them, play

REASON = unavailable()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)

CHURNS = 5


def every(scene: Scene) -> Iterable[Direction]:
    return itertools.permutations(scene.hosts.numbers, 2)


def around(scene: Scene, host: int) -> list[Direction]:
    """All directions to a host and from it."""
    return [pair for pair in every(scene) if host in pair]


def changes(scene: Scene) -> None:
    """The group goes on through several changes of view."""
    for _ in range(CHURNS):
        scene.churn()
        scene.go_on(scene.nodes)


@pytest.mark.parametrize("delay_ms", [5, pytest.param(50, marks=all_of_them), pytest.param(200, marks=all_of_them)])
def test_a_group_forms_and_works_over_long_lines(tmp_path: Path, delay_ms: int) -> None:
    """Within a country; between neighbours; around the world, at the edge of what an introduction waits for."""

    def script(scene: Scene) -> None:
        group = scene.group_of(1)
        changes(scene)
        assert scene.stayed(group)
        counts = scene.hosts.line_counts()
        assert len(counts) == 6 and all(one["passed"] for one in counts.values())

    play(tmp_path, script, before=lambda scene: scene.hosts.set_line(every(scene), Line(delay_ms / 1000)))


@all_of_them
def test_lines_that_are_long_in_one_direction(tmp_path: Path) -> None:
    def script(scene: Scene) -> None:
        group = scene.group_of(1)
        for long_ones in ([(1, 2), (2, 3), (3, 1)], [(1, 2), (1, 3)], [(2, 1), (3, 1)]):
            scene.hosts.set_line(long_ones, Line(0.08, 0.02))
            scene.hosts.set_line(set(every(scene)) - set(long_ones), Line(0.001))
            changes(scene)
        assert scene.stayed(group)

    play(tmp_path, script)


@all_of_them
def test_delays_that_jump_below_the_suspicion_time(tmp_path: Path) -> None:
    """What is under way when a line gets longer isn't: what follows is late by the difference, once."""

    def script(scene: Scene) -> None:
        group = scene.group_of(1)
        for count in range(8):
            for pair in every(scene):
                scene.hosts.set_line([pair], Line(scene.faults.draw.choice([0.0, 0.01, 0.1, 0.3]) * scene.timeout_s))
            scene.pause(0.3)
            if count % 2:
                scene.churn()
                scene.go_on(scene.nodes)
        assert scene.stayed(group)

    play(tmp_path, script, timeout_s=4.0)


@pytest.mark.parametrize("node", [pytest.param(1, marks=all_of_them), 3])
def test_a_host_that_is_suddenly_too_late_is_left_behind(tmp_path: Path, node: int) -> None:
    """Two others go on, and what it says later changes nothing. Started anew, it is let in once it isn't late."""

    def script(scene: Scene) -> None:
        scene.hosts.set_line(around(scene, node), Line(3 * scene.timeout_s))
        others = [one for one in scene.nodes if one != node]
        scene.go_on(others)
        scene.stop([node])
        scene.stage.start_daemon(node)
        scene.pause(scene.timeout_s)  # what it tries meanwhile disturbs nobody
        scene.go_on(others)
        scene.hosts.clear_line(around(scene, node))
        scene.go_on(scene.nodes)

    play(tmp_path, script)


@all_of_them
def test_a_host_that_was_too_late_rejoins_by_itself(tmp_path: Path) -> None:
    def script(scene: Scene) -> None:
        pids = [scene.life(node).pid for node in scene.nodes]
        scene.hosts.set_line(around(scene, 2), Line(3 * scene.timeout_s))
        scene.go_on([1, 3])
        scene.wait(lambda: "starts anew" in scene.log(scene.life(2)), "2 starts anew")
        scene.hosts.clear_line(around(scene, 2))
        scene.go_on(scene.nodes)
        assert pids == [scene.life(node).pid for node in scene.nodes]

    play(tmp_path, script, membership__rejoin="true")


@all_of_them
@pytest.mark.parametrize("away", [True, False], ids=["what it says", "what it hears"])
def test_a_host_that_is_too_late_in_one_direction(tmp_path: Path, away: bool) -> None:
    def script(scene: Scene) -> None:
        late = [(one, other) for one, other in around(scene, 3) if (one == 3) == away]
        scene.hosts.set_line(late, Line(3 * scene.timeout_s))
        scene.go_on([1, 2])
        scene.stop([3])

    play(tmp_path, script)


@all_of_them
def test_delays_that_rise_slowly(tmp_path: Path) -> None:
    """Signs of life go on coming, only late: nobody is silent. To a round trip of a second, after which TCP sends all
    again here (spindle/transport/network.py), so that a longer one is no line to live with."""

    def script(scene: Scene) -> None:
        group, steps = scene.group_of(1), 20
        for step in range(steps):
            scene.hosts.set_line(around(scene, 3), Line(0.45 * step / steps))
            scene.pause(0.3)
        assert scene.stayed(group)
        scene.hosts.clear_line(around(scene, 3))
        scene.go_on(scene.nodes)
        assert scene.stayed(group)

    play(tmp_path, script)


@all_of_them
@pytest.mark.parametrize("rate", [50e3, 150e3])
def test_a_slow_line_slows_the_group_and_costs_nobody_its_life(tmp_path: Path, rate: float) -> None:
    """More is written than it takes: writers wait, and signs of life pass beside what waits."""

    def script(scene: Scene) -> None:
        group = scene.group_of(1)
        scene.hosts.set_line(around(scene, 3), Line(0.002, rate=rate))
        changes(scene)
        scene.wait(lambda: scene.hosts.line_counts()[1, 3]["carried"] > 2 * scene.timeout_s * rate, "much is sent")
        changes(scene)
        assert scene.stayed(group)

    play(tmp_path, script, timeout_s=4.0, pace=3000.0)


@all_of_them
@pytest.mark.parametrize("loss", [0.01, 0.05])
def test_long_lines_that_lose_packets(tmp_path: Path, loss: float) -> None:
    def script(scene: Scene) -> None:
        group = scene.group_of(1)
        scene.hosts.set_line(every(scene), Line(0.01, 0.005, loss))
        changes(scene)
        assert scene.stayed(group)
        assert sum(one["lost"] for one in scene.hosts.line_counts().values()) > 0

    play(tmp_path, script, timeout_s=4.0, pace=1000.0)


@all_of_them
def test_five_hosts_of_which_two_are_far_away(tmp_path: Path) -> None:
    """Two sites; then the line between them gets too long, and the smaller one stops."""

    def script(scene: Scene) -> None:
        between = [(one, other) for one, other in every(scene) if (one > 3) != (other > 3)]
        scene.hosts.set_line(between, Line(0.04, 0.01, 0.001))
        changes(scene)
        scene.hosts.set_line(between, Line(4 * scene.timeout_s))
        scene.go_on([1, 2, 3])
        scene.stop([4, 5])

    play(tmp_path, script, hosts=5, timeout_s=3.0)
