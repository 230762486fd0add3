"""Goal: hosts that lose each other, in whatever shape, keep every promise: one group at most serves, who can't be of it
stops and says so, and all come together again.

Method: rounds of chaos on hosts of network namespaces, with daemons, writers and readers on each, in which the faults
are a script (`scene`). All of them by `make netns-test`, one by `make test`; skipped, with the reason, where no
namespaces can be had.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest

from spindle.errors import JoinFailed, NoMajority
from spindle_lab.chaos.hosts import between, unavailable
from spindle_lab.chaos.lines import Line
from spindle_lab.chaos.links import excuse
from tests.spindle_lab.chaos.scene import Scene, all_of_them, play

REASON = unavailable()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)


def test_a_host_that_is_cut_off_stops_and_the_others_go_on(tmp_path: Path) -> None:
    """Two sides of 2 and 1; then the third host comes back."""

    def script(scene: Scene) -> None:
        scene.hosts.cut(between([1, 2], [3]))
        scene.go_on([1, 2])
        scene.stop([3])
        assert scene.life(3).code == NoMajority.exit_code

    scene = play(tmp_path, script)
    assert "node 3" in scene.log(scene.life(1))


@all_of_them
def test_the_leader_is_cut_off(tmp_path: Path) -> None:
    def script(scene: Scene) -> None:
        leader = scene.stage.ranks()[0]
        others = [node for node in scene.nodes if node != leader]
        scene.hosts.cut(between([leader], others))
        scene.go_on(others)
        scene.stop([leader])

    play(tmp_path, script)


@all_of_them
def test_three_of_five_go_on_and_two_rejoin_by_themselves(tmp_path: Path) -> None:
    """With [membership] rejoin the same processes come back once the links do; meanwhile they form no group."""

    def script(scene: Scene) -> None:
        sides = between([1, 2, 3], [4, 5])
        scene.hosts.cut(sides)
        scene.go_on([1, 2, 3])
        pids = [scene.life(node).pid for node in scene.nodes]
        scene.wait(lambda: all("starts anew" in scene.log(scene.life(node)) for node in (4, 5)), "4 and 5 start anew")
        scene.hosts.mend(sides)
        scene.go_on([1, 2, 3, 4, 5])
        assert pids == [scene.life(node).pid for node in scene.nodes]

    play(tmp_path, script, hosts=5, timeout_s=3.0, membership__rejoin="true")


@all_of_them
@pytest.mark.parametrize("node", [1, 3])
def test_who_is_not_heard_by_the_others(tmp_path: Path, node: int) -> None:
    """It hears them: that they have gone on without."""

    def script(scene: Scene) -> None:
        others = [one for one in scene.nodes if one != node]
        scene.hosts.cut((node, one) for one in others)
        scene.go_on(others)
        scene.stop([node])

    play(tmp_path, script)


@all_of_them
@pytest.mark.parametrize("node", [1, 3])
def test_who_hears_nobody(tmp_path: Path, node: int) -> None:
    """The others hear it, and have no reason to accuse it but what TCP says; it gives up by itself."""

    def script(scene: Scene) -> None:
        others = [one for one in scene.nodes if one != node]
        scene.hosts.cut((one, node) for one in others)
        scene.go_on(others)
        scene.stop([node])

    play(tmp_path, script)


@all_of_them
def test_two_ends_of_a_chain(tmp_path: Path) -> None:
    """1 and 3 lose each other, both reach 2: one of them stays with it."""

    def script(scene: Scene) -> None:
        scene.hosts.cut(between([1], [3]))
        scene.wait(lambda: scene.life(1).ended or scene.life(3).ended, "one of the ends stops")
        stopped = 1 if scene.life(1).ended else 3
        scene.go_on([node for node in scene.nodes if node != stopped])
        scene.stop([stopped])

    play(tmp_path, script)


@all_of_them
def test_a_ring_of_five(tmp_path: Path) -> None:
    """Everybody reaches two neighbours: all see a majority, none the same. Whoever is left is of one group."""

    def script(scene: Scene) -> None:
        far = [(a, b) for a, b in itertools.permutations(scene.nodes, 2) if (a - b) % 5 not in (1, 4)]
        scene.hosts.cut(far)
        scene.wait(lambda: sum(bool(scene.life(node).ended) for node in scene.nodes) >= 2, "no ring can be a group")
        scene.wait(lambda: len(scene.serving()) <= 1, "one group at most")

    play(tmp_path, script, hosts=5, timeout_s=3.0)


@all_of_them
def test_of_two_hosts_both_stop(tmp_path: Path) -> None:
    """Neither can know whether the other one goes on."""

    def script(scene: Scene) -> None:
        scene.hosts.cut(between([1], [2]))
        scene.stop([1, 2])

    play(tmp_path, script, hosts=2)


@all_of_them
def test_nodes_of_one_host_are_together_in_a_partition(tmp_path: Path) -> None:
    """Five nodes on three hosts: two of them leave with their host, three remain."""

    def script(scene: Scene) -> None:
        assert [scene.stage.host_of(node) for node in scene.nodes] == [1, 2, 3, 1, 2]
        scene.hosts.cut(between([1], [2, 3]))
        scene.go_on([2, 3, 5])
        scene.stop([1, 4])

    play(tmp_path, script, nodes=5, timeout_s=3.0)


def test_a_host_that_vanishes_is_noticed_by_its_silence(tmp_path: Path) -> None:
    """A pulled cable, and then the power: nobody says goodbye, no connection ends."""

    def script(scene: Scene) -> None:
        scene.hosts.unplug(2)
        scene.stage.kill(2)
        scene.go_on([1, 3])
        logs = scene.log(scene.life(1)) + scene.log(scene.life(3))
        assert "it has given no sign of life" in logs

    play(tmp_path, script)


@all_of_them
def test_a_break_for_all_that_is_over_in_time_costs_nobody_its_life(tmp_path: Path) -> None:
    """As when a switch starts anew: nobody has a majority, so all wait; the links are back before twice the timeout."""

    def script(scene: Scene) -> None:
        group, cuts = scene.group_of(1), between([1], [2], [3])
        scene.hosts.cut(cuts)
        scene.wait(lambda: all("this node waits" in scene.log(scene.life(node)) for node in scene.nodes), "all wait")
        scene.hosts.mend(cuts)
        scene.go_on([1, 2, 3])
        assert scene.group_of(1) == group and len(scene.lives()) == 3

    play(tmp_path, script, timeout_s=4.0)


@all_of_them
def test_partitions_in_the_middle_of_view_changes(tmp_path: Path) -> None:
    """Topics come and go everywhere while one host after the other is cut off."""

    def script(scene: Scene) -> None:
        for node in (1, 2, 3):
            others = [one for one in scene.nodes if one != node]
            scene.churn()
            scene.stage.listen(0.003 * node)
            cuts = between([node], others)
            scene.hosts.cut(cuts)
            scene.go_on(others)
            scene.stop([node])
            scene.hosts.mend(cuts)
            scene.stage.start_daemon(node)
            scene.go_on(scene.nodes)

    play(tmp_path, script)


@all_of_them
def test_links_that_flap(tmp_path: Path) -> None:
    """Every break is far shorter than the suspicion time, and another one follows: the group stays."""

    def script(scene: Scene) -> None:
        group = scene.group_of(1)
        every = list(itertools.permutations(scene.nodes, 2))
        for count in range(20):
            some = scene.faults.draw.sample(every, 1 + count % len(every))
            scene.hosts.cut(some)
            scene.pause(scene.faults.draw.uniform(0.01, 0.1 * scene.timeout_s))
            scene.hosts.mend(some)
            scene.pause(scene.faults.draw.uniform(0.5, 1.0))  # TCP tries once a second
        scene.go_on(scene.nodes)
        assert scene.group_of(1) == group

    play(tmp_path, script, timeout_s=4.0)


@all_of_them
def test_lines_that_lose_packets(tmp_path: Path) -> None:
    """Nothing is lost or reordered by it, and the group stays."""

    def script(scene: Scene) -> None:
        group = scene.group_of(1)
        scene.hosts.set_line(itertools.permutations(scene.nodes, 2), Line(loss=0.05))
        for _ in range(5):
            scene.churn()
            scene.go_on(scene.nodes)
        assert scene.group_of(1) == group

    play(tmp_path, script, timeout_s=4.0)


class Cold(Scene):
    """The cuts are there before anybody starts."""

    def __init__(self, *arguments: Any, cuts: list[tuple[int, int]], **how: Any) -> None:
        super().__init__(*arguments, **how)
        self._cuts = cuts

    def _start(self) -> None:
        excuse(self._faults)
        self.hosts.cut(self._cuts)
        for node in self.nodes:
            self._stage.start_daemon(node)
        self._script(self)
        self.hosts.heal()
        for node in self.nodes:
            if self.life(node).ended:
                self._stage.start_daemon(node)
        self.wait(lambda: all(self.members(node) == self.nodes for node in self.nodes), "all in one group")
        self._script = lambda scene: None
        self._faults.look_after()


def test_no_group_begins_without_a_majority(tmp_path: Path) -> None:
    """All are alone when they start: they wait, and nobody serves; then they find each other."""

    def script(scene: Scene) -> None:
        scene.wait(lambda: all("no group yet" in scene.log(scene.life(node)) for node in scene.nodes), "all look")
        assert not any("view 0" in scene.log(life) for life in scene.lives())

    Cold(tmp_path, script, cuts=between([1], [2], [3])).play()


@all_of_them
def test_two_of_three_begin_and_the_third_waits(tmp_path: Path) -> None:
    def script(scene: Scene) -> None:
        scene.wait(lambda: scene.members(1) == scene.members(3) == [1, 3], "two form the group")
        assert "view 0" not in scene.log(scene.life(2))

    Cold(tmp_path, script, cuts=between([2], [1, 3])).play()


@all_of_them
def test_two_that_reach_a_third_but_not_each_other_begin_no_two_groups_that_serve(tmp_path: Path) -> None:
    """Each of them finds a majority with the middle one, which can be in one group only."""

    def script(scene: Scene) -> None:
        scene.wait(lambda: sum(_ready(scene, node) for node in scene.nodes) == 2, "two serve")
        other = next(node for node in scene.nodes if not _ready(scene, node))
        scene.wait(lambda: scene.life(other).ended, "the other one doesn't")
        assert scene.life(other).code == JoinFailed.exit_code

    Cold(tmp_path, script, cuts=between([1], [3])).play()


def _ready(scene: Scene, node: int) -> bool:
    daemon = scene.stage.daemons.get(node)
    return daemon is not None and daemon.ready


