"""The faults, and who suffers them: chosen by the round's own random numbers, carried out with signals and files.

Why a swarm: each round leaves some kinds of faults out. A mix of everything all the time hides what only shows when
one kind comes often, and what only shows in calm.

Rules: a fault says what it did in one line, or nothing if it wasn't possible now. Whatever it stops, it lets go on
again later by itself, through `Schedule`; `Faults.heal` does that at once for everything. An exit code that a fault
explains is noted with the daemon's life, so that any other is a violation.
"""

from __future__ import annotations

import random
import signal
import time
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from spindle.errors import CastOut, JoinFailed, JournalError, NodeStopped, NoMajority
from spindle_lab.chaos.disk import DISK_BROKEN, DISK_FULL, HARMLESS, Mode, damage_middle, lose_tail, tear
from spindle_lab.chaos.links import LINK_FAULTS
from spindle_lab.chaos.schedule import Schedule
from spindle_lab.chaos.stage import EXTRA_NODES, Process, Stage
from spindle_lab.chaos.upkeep import Upkeep


@dataclass(frozen=True)
class Kind:
    """A kind of fault and how often it is chosen."""

    name: str
    weight: float
    strike: Callable[[Faults], str]


class Faults(Upkeep):
    """Everything that goes wrong in one round."""

    def __init__(self, stage: Stage, nodes: list[int], draw: random.Random, suspect_timeout_s: float,
                 kinds: Collection[str]) -> None:
        super().__init__(stage, nodes, draw)
        self.suspect_timeout_s = suspect_timeout_s
        self.counts: Counter[str] = Counter()
        self.bad_disk = draw.choice(nodes)  # the one node that may lose what was acknowledged: others have it
        drawn = {one.name for one in KINDS if draw.random() < 0.6 or one.name == "kill -9 of a member"}
        if stage.hosts is not None:
            drawn |= {one.name for one in LINKS if draw.random() < 0.6}
        wanted = [one for one in KINDS + LINKS if one.name in kinds]
        self.kinds = [one for one in wanted if one.name in drawn] or wanted

    def strike(self) -> str:
        """One fault; says what it was, "" if none was possible."""
        kind = self.draw.choices(self.kinds, [one.weight for one in self.kinds])[0]
        text = kind.strike(self)
        if text:
            self.counts[kind.name] += 1
            return f"{kind.name}: {text}"
        return ""

    def kill_member(self) -> str:
        victims = [node for node in self.victims() if node != self.leader()]
        for node in victims:
            self.down(node)
        return f"node {victims[0]}" if victims else ""

    def kill_leader(self) -> str:
        leader = self.leader()
        if leader is None:
            return ""
        self.down(leader)
        return f"node {leader}"

    def kill_several(self) -> str:
        """Two at once, or the new leader during its takeover, or all but one."""
        running = sum(map(self.is_well, self.nodes))
        count = self.draw.choice([2, 2, 2, running - 1])
        victims = self.victims(count) if count >= 2 else []
        ranks = self.stage.ranks()
        if len(victims) == 2 and len(ranks) > 2 and self.draw.random() < 0.5:
            victims = [node for node in ranks[:2] if node in self.nodes and self.is_well(node)]
        for node in victims:
            self.down(node)
            if self.draw.random() < 0.5:
                time.sleep(self.draw.uniform(0, 0.02))
        return f"nodes {victims}" if victims else ""

    def kill_in_change(self) -> str:
        """A change of view, and a member that dies somewhere in it."""
        victims = self.victims(1)
        leader = self.leader()
        if not victims or leader is None:
            return ""
        victim = leader if self.draw.random() < 0.6 else victims[0]
        way = self.draw.choice(["churn", "leave", "join"] if self.stage.hosts is None else ["churn"])
        others = [node for node in self.nodes if node != victim and self.is_well(node)]
        delay_s = self.draw.uniform(0, 0.015)
        if way == "leave" and len(others) > 1:
            leaver = self.draw.choice(others)
            self.stage.ask_to_leave(leaver)
        elif way == "join":
            self._start_extra()
            delay_s = self.draw.uniform(0.15, 0.5)
        else:
            for node in others:
                if node in self.stage.talkers:
                    self.stage.talkers[node].order("churn")
        if delay_s > 0.1:
            self.schedule.later(delay_s, lambda: self._kill_if_running(victim))
        else:
            time.sleep(delay_s)
            self._kill_if_running(victim)
        return f"{way}, node {victim} {delay_s * 1000:.1f} ms later"

    def _kill_if_running(self, node: int) -> None:
        if node in self.stage.daemons and self.stage.daemons[node].life.asked == "":
            self.down(node)

    def stop_shortly(self) -> str:
        """SIGSTOP for less than the suspicion time."""
        victims = self.victims()
        if not victims:
            return ""
        duration_s = self.suspect_timeout_s * self.draw.uniform(0.05, 0.6)
        self._stop(victims[0], duration_s)
        return f"node {victims[0]} for {duration_s:.2f} s"

    def stop_long(self) -> str:
        """SIGSTOP for longer than that: the others go on without it, and it must say that it was cast out."""
        victims = self.victims()
        if not victims:
            return ""
        duration_s = self.suspect_timeout_s * self.draw.uniform(1.3, 3.0)
        self._stop(victims[0], duration_s)
        self.excuse(NoMajority.exit_code, NodeStopped.exit_code, JoinFailed.exit_code)
        return f"node {victims[0]} for {duration_s:.2f} s"

    def stop_most(self) -> str:
        """SIGSTOP of a majority for longer than the suspicion time: the rest may only wait."""
        count = len(self.nodes) // 2 + 1
        victims = self.victims(count)
        duration_s = self.suspect_timeout_s * self.draw.uniform(1.3, 2.5)
        for node in victims:
            self._stop(node, duration_s + self.draw.uniform(0, 0.3))
        if victims:
            self.excuse(NoMajority.exit_code, CastOut.exit_code, NodeStopped.exit_code, JoinFailed.exit_code)
        return f"nodes {victims} for {duration_s:.2f} s" if victims else ""

    def _stop(self, node: int, duration_s: float) -> None:
        daemon = self.stage.daemons[node]
        daemon.send(signal.SIGSTOP)
        daemon.life.excused.update((CastOut.exit_code, NoMajority.exit_code))
        self.schedule.later(duration_s, lambda: daemon.send(signal.SIGCONT))

    def leave(self) -> str:
        victims = self.victims(self.draw.choice([1, 1, 2]))
        for node in victims:
            self.stage.ask_to_leave(node)
        return f"nodes {victims}" if victims else ""

    def joiners(self) -> str:
        """Many new nodes at once, some with a watcher; each leaves or is killed soon."""
        started = [node for _ in range(self.draw.randint(1, 4)) if (node := self._start_extra())]
        return f"nodes {started}" if started else ""

    def _start_extra(self) -> int:
        free = [node for node in EXTRA_NODES if node not in self.stage.daemons]
        if not free:
            return 0
        node = free[0]
        daemon = self.stage.start_daemon(node)

        def watch() -> None:
            """Its topics are opened when it has met somebody who knows them: a stranger alone would begin the logged
            one anew, which is not promised to lose nothing (docs/reliability.md)."""
            ranks = self.stage.ranks()
            if node in ranks and any(one in ranks for one in self.nodes):
                self.stage.start_watcher(node)
            elif self.stage.daemons.get(node) is daemon and daemon.running:
                self.schedule.later(0.05, watch)

        if self.draw.random() < 0.5 and node not in self.stage.watchers:
            watch()
        end = self.stage.kill if self.draw.random() < 0.5 else self.stage.ask_to_leave

        def over() -> None:
            if self.stage.daemons.get(node) is daemon and daemon.running:
                end(node)
            if node in self.stage.watchers:
                self.stage.watchers[node].send(signal.SIGKILL)

        self.schedule.later(self.draw.uniform(0.1, 3.0), over)
        return node

    def restart_all(self) -> str:
        """All nodes die at once, and all start again at once."""
        if len(self.stage.daemons) < len(self.nodes):
            return ""
        way, others = self.draw.choice(["kill -9", "kill -9", "SIGTERM"]), self._copies_elsewhere(self.bad_disk)
        for node in list(self.stage.daemons):
            if way == "kill -9":
                self.stage.kill(node)
            else:
                self.stage.ask_to_leave(node)
        for daemon in list(self.stage.daemons.values()):
            daemon.send(signal.SIGCONT)
        ended = self.stage.until(lambda: not self.stage.daemons, 15.0)
        damage = ""
        if way == "kill -9" and self.draw.random() < 0.5:
            node = self.draw.choice(self.nodes)
            damage = self._damage(node, lose_tail if node == self.bad_disk and others else tear)
        for node in self.nodes:
            self.come_back(node, self.draw.uniform(0, 0.3))
        return f"{way}{f', {damage}' if damage else ''}" if ended else f"{way}, not all ended"

    def corrupt_tail(self) -> str:
        """A node dies in the middle of a commit; or a disk loses the last one, where others have it."""
        victims = self.victims()
        if not victims:
            return ""
        node = victims[0]
        way = lose_tail if node == self.bad_disk and self._copies_elsewhere(node) else tear
        self._end_now(node)
        return f"node {node}, " + (self._damage(node, way) or "which has too little to tear")

    def corrupt_middle(self) -> str:
        """A node dies, and a bit flips in the middle of its journal: it must refuse that."""
        node = self.bad_disk
        if not self.is_well(node) or not self._copies_elsewhere(node):
            return ""
        self._end_now(node)
        damage = self._damage(node, damage_middle)
        if damage:
            self.damaged.add(node)
        return f"node {node}, " + (damage or "which has too little to damage")

    def _copies_elsewhere(self, node: int) -> bool:
        """True if at least two other nodes hold the logged topic now: their watchers have opened it in this life."""

        def holds(other: int) -> bool:
            watcher = self.stage.watchers.get(other)
            session = watcher.said.get("attached", {}).get("session") if watcher is not None else None
            return self.is_well(other) and session is not None and session[1] == self.stage.daemons[other].life.pid

        return sum(holds(other) for other in self.nodes if other != node) >= 2

    def _end_now(self, node: int) -> None:
        self.stage.kill(node)
        self.stage.daemons[node].popen.wait()
        self.stage.look()
        self.come_back(node, self.draw.uniform(0.1, 1.0))

    def _damage(self, node: int, way: Callable[..., str]) -> str:
        directory = self.stage.disk(node).directory
        return way(directory, self.draw) if directory.is_dir() else ""

    def fill_disk(self) -> str:
        """No space: the node says so and ends, the others go on."""
        return self._break_disk(DISK_FULL)

    def break_disk(self) -> str:
        """Errors of writing or syncing: as if it were full."""
        return self._break_disk(DISK_BROKEN)

    def _break_disk(self, modes: Sequence[Mode]) -> str:
        victims = self.victims() if self.stage.disk_faults else []
        if not victims:
            return ""
        daemon = self.stage.daemons[victims[0]]
        mode = self.draw.choice(modes)
        daemon.disk.mode = mode
        daemon.life.excused.add(JournalError.exit_code)
        self.schedule.later(self.draw.uniform(0.2, 1.5), lambda: self._mend(daemon.disk))
        return f"node {victims[0]}, {mode.name}"

    def slow_disk(self) -> str:
        """Writes that do less than asked, syncs that take long: nothing may happen."""
        victims = self.victims() if self.stage.disk_faults else []
        if not victims:
            return ""
        disk = self.stage.daemons[victims[0]].disk
        disk.mode = self.draw.choice(HARMLESS)
        text = f"node {victims[0]}, {disk.mode.name}"
        self.schedule.later(self.draw.uniform(0.2, 1.5), lambda: self._mend(disk))
        return text

    @staticmethod
    def _mend(disk: object) -> None:
        disk.mode = Mode.PASS  # type: ignore[attr-defined]

    def crash_with_claim(self) -> str:
        """A writing application dies, its loan half filled."""
        return self._crash(self.stage.talkers)

    def crash_with_loan(self) -> str:
        """A reading application dies with samples that it holds in place."""
        return self._crash(self.stage.watchers)

    def _crash(self, table: dict[int, Process]) -> str:
        node = self.draw.choice(self.nodes)
        if node not in table or table[node].stopped:
            return ""
        table[node].killed = True
        table[node].order("crash")
        return f"at node {node}"

    def stop_application(self) -> str:
        """An application that hangs: a reader that keeps all then holds its topics."""
        table = self.draw.choice([self.stage.talkers, self.stage.watchers])
        node = self.draw.choice(self.nodes)
        if node not in table or table[node].stopped:
            return ""
        process = table[node]
        duration_s = self.draw.uniform(0.1, 1.0)
        process.send(signal.SIGSTOP)
        self.schedule.later(duration_s, lambda: process.send(signal.SIGCONT))
        return f"{process.name} for {duration_s:.2f} s"

    def stop_external(self) -> str:
        """An application on a host without a node that hangs, perhaps for so long that its node gives it up."""
        kind = self.draw.choice(["talker", "watcher"])
        process = self.stage.externals.get(kind)
        if process is None or process.stopped:
            return ""
        duration_s = self.draw.choice([self.draw.uniform(0.1, 1.0), self.draw.uniform(1.0, 6.0)])
        process.send(signal.SIGSTOP)
        self.schedule.later(duration_s, lambda: process.send(signal.SIGCONT))
        return f"{process.name} for {duration_s:.2f} s"

    def churn(self) -> str:
        """Views change because topics come and go."""
        some = [node for node in self.nodes if node in self.stage.talkers and self.draw.random() < 0.7]
        for node in some:
            self.stage.talkers[node].order("churn")
        return f"at nodes {some}" if some else ""


KINDS = (
    Kind("kill -9 of a member", 3, Faults.kill_member),
    Kind("kill -9 of a leader", 3, Faults.kill_leader),
    Kind("kill -9 of two or more at once", 2, Faults.kill_several),
    Kind("kill -9 in a view change", 3, Faults.kill_in_change),
    Kind("SIGSTOP, short", 2, Faults.stop_shortly),
    Kind("SIGSTOP, too long", 2, Faults.stop_long),
    Kind("SIGSTOP of most, too long", 0.5, Faults.stop_most),
    Kind("leave", 1.5, Faults.leave),
    Kind("many joiners", 1, Faults.joiners),
    Kind("restart of all", 0.7, Faults.restart_all),
    Kind("journal's tail corrupt", 1, Faults.corrupt_tail),
    Kind("journal's middle corrupt", 0.5, Faults.corrupt_middle),
    Kind("disk full", 0.7, Faults.fill_disk),
    Kind("disk errors (EIO)", 0.7, Faults.break_disk),
    Kind("slow disk", 1, Faults.slow_disk),
    Kind("application crashed with a claim", 1, Faults.crash_with_claim),
    Kind("application crashed with a loan", 1, Faults.crash_with_loan),
    Kind("application stopped", 1, Faults.stop_application),
    Kind("churn", 2, Faults.churn),
    Kind("external application stopped", 1, Faults.stop_external),
)

# Where there are several hosts.
LINKS = tuple(Kind(*one) for one in LINK_FAULTS)

# On several hosts, nodes that are no contacts would be a group of their own when all others had died.
ONE_HOST = ("many joiners",)

# After these a group may go on with so few of the contacts that the others find a majority of them outside
# (docs/reliability.md), so they come only where `[network] form` asks for all.
CERTAIN_ENDS = ("leave", "restart of all", "journal's middle corrupt", "disk full", "disk errors (EIO)")

NAMES = tuple(one.name for one in KINDS)

__all__ = ["CERTAIN_ENDS", "EXTRA_NODES", "KINDS", "LINKS", "NAMES", "ONE_HOST", "Faults", "Kind", "Schedule"]
