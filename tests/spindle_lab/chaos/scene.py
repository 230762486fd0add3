"""A round of chaos on hosts of network namespaces in which the faults are a script.

A script waits for what must come, so no time is asserted; at the end everybody must be back in one view, all that was
acknowledged everywhere, and the checker compares all deliveries.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from spindle.errors import CastOut, NoMajority
from spindle_lab.chaos.history import DaemonLife, History, load
from spindle_lab.chaos.links import excuse
from spindle_lab.chaos.round import Plan, Round

# For all but one of those that hold the same promise.
all_of_them = pytest.mark.skipif("SPINDLE_NETNS" not in os.environ, reason="takes minutes: make netns-test")

STOPPED = {NoMajority.exit_code, CastOut.exit_code}
BOUND_S = 60.0  # for what must come
MESSAGES_MIN = 100  # before anything goes wrong


class Scene(Round):
    """A round on `hosts` hosts with a script instead of chance. `before`: what is done before anybody starts. `pace`:
    messages a second and node."""

    def __init__(self, directory: Path, script: Callable[[Scene], None], *, hosts: int = 3, nodes: int = 0,
                 timeout_s: float = 2.0, pace: float = 100.0, before: Callable[[Scene], None] = lambda scene: None,
                 **settings: Any) -> None:
        chosen = {"membership.suspect_timeout_s": timeout_s, "membership.join_timeout_s": 20, **{
            name.replace("__", "."): value for name, value in settings.items()}}
        settings_of_all = [f"{name}={value}" for name, value in chosen.items()]
        plan = Plan(5, 0.0, nodes or hosts, timeout_s, 1.0, settings_of_all, hosts)
        super().__init__(plan, directory, None, pace, lambda text: None)
        assert self._hosts is not None
        self.hosts, self.stage, self.faults, self.nodes = self._hosts, self._stage, self._faults, self._nodes
        self.timeout_s = timeout_s
        self._before, self._script = before, script
        self.problem: BaseException | None = None

    def _start(self) -> None:
        self._before(self)
        super()._start()

    def _accepted(self) -> int:
        """Messages that talkers have written so far."""
        history = History()
        load(self._stage.records(), history)
        return sum(one.accepted for one in history.writers.values())

    def _go_wrong(self) -> None:
        excuse(self._faults)
        self._until(lambda: self._accepted() > MESSAGES_MIN, BOUND_S, "start", "so few messages came: nobody writes")
        try:
            self._script(self)
        except BaseException as error:
            self.problem = error
            raise

    def play(self) -> Scene:
        """Runs it; every promise must have been kept."""
        outcome = self.run()
        if self.problem is not None:
            raise self.problem
        assert outcome.violations == [] and outcome.messages > MESSAGES_MIN
        return self

    # --- for scripts

    def churn(self) -> None:
        """Views change because topics come and go everywhere."""
        for talker in self.stage.talkers.values():
            talker.order("churn")

    def pause(self, seconds: float) -> None:
        """Time that a fault lasts."""
        self.stage.until(lambda: False, seconds)

    def stayed(self, group: Any) -> bool:
        """True if it is still this group, and every node has had one life."""
        return all(self.group_of(node) == group for node in self.nodes) and len(self.lives()) == len(self.nodes)

    def wait(self, condition: Callable[[], object], what: str, bound_s: float = BOUND_S) -> None:
        def holds() -> bool:
            self._faults.schedule.run()
            return bool(condition())

        found = self._stage.until(holds, bound_s)
        assert found, f"not within {bound_s:g} s: {what}\n{self.logs()}"

    def logs(self) -> str:
        return "\n".join(f"--- {life}, ended with {life.code}\n" + self.log(life)[-2000:] for life in self.lives())

    @staticmethod
    def log(life: DaemonLife) -> str:
        return life.log.read_text() if life.log is not None else ""

    def lives(self) -> list[DaemonLife]:
        return self._stage.history.daemons

    def life(self, node: int) -> DaemonLife:
        """The last one."""
        return next(life for life in reversed(self.lives()) if life.node == node)

    def members(self, node: int) -> list[int]:
        return sorted(one["node_id"] for one in self._status(node).get("members", []))

    def group(self, node: int) -> Any:
        return self._status(node).get("group_id")

    def group_of(self, node: int) -> Any:
        """The same of a node that must be in one. It is asked until it says so: one that is busy may not do in time."""
        found = None

        def says() -> bool:
            nonlocal found
            found = self.group(node)
            return found is not None

        self.wait(says, f"node {node} says of which group it is")
        return found

    def go_on(self, nodes: Collection[int]) -> None:
        """These are the group, and what is written there is read there."""
        self.wait(lambda: all(self.members(node) == sorted(nodes) for node in nodes), f"{nodes} go on")
        before = {node: self._heard(node) for node in nodes}
        self.wait(lambda: all(self._heard(node) > before[node] for node in nodes), f"messages at {nodes}")

    def _heard(self, node: int) -> int:
        return sum(one.stat().st_size for one in self._stage.records() if one.name.startswith(f"watcher-{node}-"))

    def stop(self, nodes: Collection[int]) -> None:
        """These end by themselves, and say why."""
        self.wait(lambda: all(self.life(node).ended for node in nodes), f"{nodes} stop")
        for node in nodes:
            assert self.life(node).code in STOPPED, self.logs()
            assert "majority" in self.log(self.life(node)) or "goes on" in self.log(self.life(node))

    def serving(self) -> list[set[int]]:
        """Nodes that have ended by now left out: the groups that are left."""
        running = [node for node in self.nodes if not self.life(node).ended]
        groups: dict[Any, set[int]] = {}
        for node in running:
            groups.setdefault(self.group(node), set()).add(node)
        return list(groups.values())


def play(directory: Path, script: Callable[[Scene], None], **how: Any) -> Scene:
    return Scene(directory, script, **how).play()
