"""One round: a group with applications on every node, faults for a while, then healing, and what is left of it all.

The end of a round is where promises are due. After the last fault every core node must be in one view again, every
talker's last messages acknowledged and read everywhere, the history of kept topics the same at all nodes, and then
nothing may be sent any more. What doesn't happen in time is a violation as much as what happens wrongly.
"""

from __future__ import annotations

import json
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from spindle.errors import CastOut, NoMajority, SpindleError
from spindle_lab.chaos.checker import Violation, check, differing_lives, told_delays, unexplained_suspicions
from spindle_lab.chaos.faults import CERTAIN_ENDS, LINKS, NAMES, ONE_HOST, Faults
from spindle_lab.chaos.history import LOGGED, TOPICS, Delivery, History, Key, Place, TopicLife, load
from spindle_lab.chaos.hosts import Hosts
from spindle_lab.chaos.message import decode
from spindle_lab.chaos.stage import Stage

if TYPE_CHECKING:
    from spindle.restart.chain import Standing

START_S = 60.0
MAJORITY = "majority"
CONTACTS_WITH_MAJORITY = 3  # of more, a majority may be outside a group that has shrunk node by node
# After which a last holder may acknowledge alone, and die too: then "majority" promises less (docs/reliability.md).
DEATHS_OF_A_MAJORITY = ("kill -9 of two or more at once", "restart of all")
CONVERGE_S = 40.0
FINISH_S = 30.0
LEAVE_S = 20.0
QUIET_S = 0.4
ATTEMPTS = 15


@dataclass
class Plan:
    """What one seed makes of a round."""

    seed: int
    seconds: float
    nodes: int
    suspect_timeout_s: float
    pause_s: float  # between two faults, on average
    settings: list[str]
    hosts: int = 0  # 0: all on this one

    @classmethod
    def of(cls, seed: int, seconds: float, hosts: int = 0) -> Plan:
        draw = random.Random(f"plan {seed}")
        suspect_timeout_s = draw.choice([0.5, 0.8, 1.5])
        rejoin = draw.random() < 0.5
        settings = [
            f"membership.suspect_timeout_s={suspect_timeout_s}",
            f"membership.rejoin={str(rejoin).lower()}",
            "limits.open_timeout_s=5",
            f"topics.window={draw.choice([0, 0, 2, 3, 16, 64])}",
            f"topics.log_capacity={draw.choice([128 << 10, 1 << 20, 8 << 20])}",
            f"topics.log_hot={draw.choice([16 << 10, 128 << 10])}",
            f"topics.inbox_slots={draw.choice([0, 0, 4, 64])}",
            f"journal.restart={draw.choice(['all', MAJORITY])}",
            f"journal.group_commit_ms={draw.choice([0, 2, 20])}",
            f"core.busy_poll_us={draw.choice([0, 10, 50])}",
        ]
        nodes, pause_s = draw.choice([3, 4, 5, 5, 5]), draw.choice([0.3, 0.7, 1.5])
        if hosts:
            nodes = draw.choice([hosts, hosts, max(hosts, nodes)])
            pause_s *= 2  # a partition lasts, and there should be a group now and then
            form = draw.choice([MAJORITY, "all"]) if nodes == hosts <= CONTACTS_WITH_MAJORITY else "all"
            settings.append(f"network.form={form}")
            if form == "all":  # they start again one by one, and each must still be there when the last one comes
                settings.append("membership.join_timeout_s=60")
        return cls(seed, seconds, nodes, suspect_timeout_s, pause_s, settings, hosts)

    def possible(self, kinds: Collection[str]) -> list[str]:
        """Of these kinds of faults, those after which everything is promised that is checked."""
        without: tuple[str, ...] = ()
        if f"journal.restart={MAJORITY}" in self.settings:
            without += DEATHS_OF_A_MAJORITY
        without += ONE_HOST if self.hosts else tuple(one.name for one in LINKS)
        if f"network.form={MAJORITY}" in self.settings:
            without += CERTAIN_ENDS
        return [name for name in kinds if name not in without]

    def __str__(self) -> str:
        where = f" on {self.hosts} hosts" if self.hosts else ""
        return f"{self.nodes} nodes{where}, {', '.join(self.settings)}"


@dataclass
class Outcome:
    """What a round showed."""

    violations: list[Violation] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    messages: int = 0  # accepted from writers
    deliveries: int = 0
    views: int = 0
    groups: int = 0
    lives: int = 0  # of daemons
    spoiled: int = 0  # calls that disks refused
    told_s: float = 0.0  # longest time until an application knew
    ends: Counter[str] = field(default_factory=Counter)  # daemons' exit codes
    converged_s: float = 0.0
    suspicions: int = 0  # of daemons that nothing had stopped

    def add(self, other: Outcome) -> None:
        self.violations += other.violations
        self.faults += other.faults
        self.ends += other.ends
        for name in ("messages", "deliveries", "views", "groups", "lives", "spoiled", "suspicions"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.told_s = max(self.told_s, other.told_s)
        self.converged_s = max(self.converged_s, other.converged_s)


class Broken(Exception):
    """A promise about time was broken, so that the round can't go on. `violation` says which."""

    def __init__(self, promise: str, text: str) -> None:
        super().__init__(text)
        self.violation = Violation(promise, text)


class Round:
    """`run()` it once."""

    def __init__(self, plan: Plan, directory: Path, library: Path | None, pace: float, say: Callable[[str], None],
                 kinds: Collection[str] = NAMES) -> None:
        self.plan = plan
        self.directory = directory
        self.say = say
        self.outcome = Outcome()
        self._nodes = list(range(1, plan.nodes + 1))
        self._hosts = Hosts(plan.hosts) if plan.hosts else None
        self._stage = Stage(directory, str(plan.seed), plan.settings, library, pace, self._nodes, self._hosts)
        if self._hosts is not None:  # a node that starves may hear from all others that it is lost, and nothing else
            self._stage.excused.add(NoMajority.exit_code)
        self._draw = random.Random(f"faults {plan.seed}")
        self._began = time.monotonic()
        self._events = (directory / "faults.txt").open("w")
        self._faults = Faults(self._stage, self._nodes, self._draw, plan.suspect_timeout_s, plan.possible(kinds))

    def run(self) -> Outcome:
        """The whole round; its processes have ended when it returns."""
        self.note(str(self.plan))
        try:
            self._start()
            self._go_wrong()
            self._converge()
            self._finish()
            self._quiet()
            self._leave()
        except Broken as error:
            self.outcome.violations.append(error.violation)
            self._dump()
        except Exception:  # a defect here must not pass for a round without violation, nor end the others
            self.outcome.violations.append(Violation("trouble", f"the round itself failed: {traceback.format_exc()}"))
        finally:
            self._stage.close()
            self._events.close()
            if self._hosts is not None:
                self._hosts.close()
        self._examine()
        return self.outcome

    def note(self, text: str) -> None:
        """A line of the round's own log."""
        self._events.write(f"{time.monotonic_ns()} {time.monotonic() - self._began:7.3f} {text}\n")
        self._events.flush()
        self.say(text)

    # --- the parts

    def _start(self) -> None:
        for node in self._nodes:
            self._stage.start_daemon(node)

        def are_ready() -> bool:
            failed = [life for life in self._stage.history.daemons
                      if life.ended and life.code not in life.excused | {CastOut.exit_code}]
            if failed:
                raise Broken("start", f"{failed[0]} ended with code {failed[0].code}")
            self._faults.schedule.run()  # a node that starves while so many start may be cast out
            self._faults.look_after_nodes()
            return all(map(self._is_ready, self._nodes))

        def are_watched() -> bool:
            self._faults.schedule.run()
            self._faults.look_after()
            return all("attached" in one.said for one in self._stage.watchers.values())

        self._until(are_ready, START_S, "start", "not all nodes got ready")
        self._until(are_watched, START_S, "start", "not all watchers attached")

    def _is_ready(self, node: int) -> bool:
        return node in self._stage.daemons and self._stage.daemons[node].ready

    def _go_wrong(self) -> None:
        end = time.monotonic() + self.plan.seconds
        following = time.monotonic() + 0.5
        while time.monotonic() < end:
            self._faults.schedule.run()
            self._faults.look_after()
            if time.monotonic() >= following:
                text = self._faults.strike()
                if text:
                    self.note(text)
                following = time.monotonic() + self._draw.expovariate(1 / self.plan.pause_s)
            self._stage.listen(min(0.01, self._faults.schedule.next_in_s))

    def _converge(self) -> None:
        """Every core node is back, in one stable view of just these."""
        self.note("healing")
        began = time.monotonic()
        self._faults.heal()
        state: dict[int, Any] = {}

        def converged() -> bool:
            self._faults.schedule.run()
            self._faults.look_after()
            self._stage.listen(0.05)
            whole = self._faults.leaving and all(self._is_ready(one) and self._is_watched(one) for one in self._nodes)
            if whole:
                self._faults.send_away()
            state.clear()
            if len(self._stage.daemons) > len(self._nodes) or not all(map(self._is_ready, self._nodes)):
                return False
            for node in self._nodes:
                state[node] = self._status(node)
            seen = {(one.get("group_id"), one.get("view_id")) for one in state.values()}
            members = [sorted(m["node_id"] for m in one.get("members", [])) for one in state.values()]
            return (len(seen) == 1 and all(one == self._nodes for one in members)
                    and all(one.get("phase") == "stable" for one in state.values()))

        within_s = CONVERGE_S if self._hosts is None else 2 * CONVERGE_S  # handshakes, and TCP that tries again
        if not self._stage.until(converged, within_s):
            shown = {node: {name: one.get(name) for name in ("group_id", "view_id", "phase", "awaiting", "error")}
                     for node, one in state.items()}
            running = sorted(self._stage.daemons)
            raise Broken("progress", f"the nodes did not come together again within {within_s:g} s; running "
                                     f"{running}, they say {shown}")
        self.outcome.converged_s = time.monotonic() - began
        self.note(f"converged after {self.outcome.converged_s:.2f} s")

    def _is_watched(self, node: int) -> bool:
        """True if the node's watcher, and a wanderer that is there, have all readers in the node's present life."""
        incarnation = self._status(node).get("incarnation")
        sessions = [one.said.get("attached", {}).get("session") for one in self._stage.wanderers.values()]
        watcher = self._stage.watchers.get(node)
        here = [one for one in sessions if one is not None and one[0] == node]
        here.append(watcher.said.get("attached", {}).get("session") if watcher is not None else None)
        return None not in sessions and all(one is not None and one[2] == incarnation for one in here)

    def _status(self, node: int) -> dict[str, Any]:
        from spindle.client import attach

        runtime = self._stage.runtime_of(node)
        try:
            with attach(0, runtime_dir=runtime, node_id=node, name="chaos", timeout_s=1.0) as session:
                return {**session.status(), "pushes": session.counters().snapshot().get("pushes", 0)}
        except (SpindleError, OSError) as error:
            return {"error": str(error)}

    def _finish(self) -> None:
        """The last messages arrive everywhere."""
        self._until(lambda: all(map(self._is_watched, self._nodes)), FINISH_S, "progress",
                    lambda: "after the faults no watcher has opened its readers at nodes "
                    f"{[node for node in self._nodes if not self._is_watched(node)]}")
        talkers, externals = self._stage.talkers, self._stage.externals
        speakers = [*talkers.values(), *(one for kind, one in externals.items() if kind == "talker")]
        for talker in speakers:
            talker.order("finish")
        self._until(
            lambda: len(talkers) == len(self._nodes) and all("finished" in one.said for one in speakers),
            FINISH_S, "progress",
            lambda: "last messages were not acknowledged at nodes "
            f"{[node for node in self._nodes if node not in talkers or 'finished' not in talkers[node].said]}, or by "
            f"{[one.name for one in speakers if 'finished' not in one.said]}")
        targets: dict[str, dict[int, int]] = {one.name: {} for one in TOPICS}
        for talker in speakers:
            for topic, (epoch, count) in talker.said["finished"]["wrote"].items():
                targets[topic][epoch] = count
        order = f"drain {json.dumps(targets, separators=(',', ':'))}"
        for node in self._nodes:
            self._stage.start_auditor(node)
        listeners = [*(self._stage.watchers[node] for node in self._nodes), *self._stage.auditors.values(),
                     *self._stage.wanderers.values(), *(one for kind, one in externals.items() if kind == "watcher")]
        for process in listeners:
            process.order(order)

        def have_drained() -> bool:
            self._faults.schedule.run()
            self._faults.look_after_nodes()  # a node that starves now is cast out, and its auditor waits for its return
            return all("drained" in one.said for one in listeners)

        self._until(have_drained, FINISH_S, "progress",
                    lambda: "messages that were acknowledged did not come to "
                    f"{[one.name for one in listeners if 'drained' not in one.said]}")

    def _quiet(self) -> None:
        """Nobody writes: soon nothing is sent any more."""

        def pushes() -> list[int]:
            return [self._status(node).get("pushes", -1) for node in self._nodes]

        for _ in range(ATTEMPTS):
            before = pushes()
            time.sleep(QUIET_S)
            if pushes() == before:
                return
        self.outcome.violations.append(Violation("N2", f"nodes go on sending though nobody writes: {before}, then "
                                                       f"{pushes()} pushes {QUIET_S:g} s later"))

    def _leave(self) -> None:
        for process in self._stage.everybody():
            if process not in self._stage.daemons.values():
                process.order("end")
        self._until(lambda: len(self._stage.everybody()) == len(self._stage.daemons), FINISH_S, "progress",
                    "applications did not end")
        for node in list(self._stage.daemons):
            self._stage.ask_to_leave(node)
        self._until(lambda: not self._stage.daemons, LEAVE_S, "progress", "daemons did not leave")

    def _until(self, condition: Callable[[], bool], timeout_s: float, promise: str, text: str | Callable[[], str]
               ) -> None:
        if not self._stage.until(condition, timeout_s):
            what = text if isinstance(text, str) else text()
            raise Broken(promise, f"{what} within {timeout_s:g} s")

    def _dump(self) -> None:
        """What the daemons say of themselves, for whoever looks for the reason."""
        for node in list(self._stage.daemons):
            found = json.dumps(self._status(node), indent=1, default=str)
            (self.directory / f"status-{node}.json").write_text(found)

    # --- afterwards

    def _examine(self) -> None:
        history, outcome = self._stage.history, self.outcome
        load(self._stage.records(), history)
        if not outcome.violations:
            self._read_journals(history)
        outcome.violations += check(history)
        outcome.faults = self._faults.counts
        outcome.messages = sum(one.accepted for one in history.writers.values())
        outcome.deliveries = sum(len(one.deliveries) for one in history.readers.values())
        outcome.views = len({(one.session.group, one.view) for one in history.views})
        outcome.groups = len({one.session.group for one in history.readers.values()})
        outcome.lives = len(history.daemons)
        outcome.spoiled = sum(one.spoiled_in_all for one in self._stage.disks.values())
        outcome.told_s = max((delay for delay, _ in told_delays(history)), default=0.0)
        outcome.suspicions = unexplained_suspicions(history)
        outcome.ends = Counter(f"{one.asked or 'by itself'} {one.code}" for one in history.daemons)
        (self.directory / "said.txt").write_text("\n".join(history.said) + "\n")
        if outcome.violations:
            (self.directory / "violations.txt").write_text("\n".join(map(str, outcome.violations)) + "\n")

    def _read_journals(self, history: History) -> None:
        """What is on the disks of the core nodes, read as anybody can read it."""
        from spindle.journal.tools import read, verify
        from spindle.restart.ledger import Ledger

        for topic in TOPICS:
            if topic.kind != LOGGED:
                continue
            standings: dict[int, Standing] = {}
            for node in self._nodes:
                directory = self._stage.disk(node).directory
                try:
                    report = verify(directory)
                    for problem in [] if report.ok else report.problems:
                        self.outcome.violations.append(Violation("P2", f"the journal of node {node}: {problem}"))
                    history.journals[node] = [
                        Delivery(Place(one.view_id, one.sequence), Key(stamp.epoch, stamp.number), one.sender)
                        for one in read(directory, topic=topic.name, node_id=node)
                        if (stamp := decode(one.payload))
                    ]
                    standings[node] = Ledger(directory, topic.name, node).read()
                except (SpindleError, ValueError) as error:
                    self.outcome.violations.append(Violation("P2", f"the journal of node {node}: {error}"))
            self.outcome.violations += differing_lives(topic.name, standings)
            history.topic_lives[topic.name] = [
                TopicLife(f"{one.group_id:016x}", one.first_view, Place(*one.after))
                for one in max((one.lives for one in standings.values()), default=(),
                               key=lambda lives: lives[-1].first_view if lives else -1)
            ]


__all__ = ["Broken", "Outcome", "Plan", "Round"]
