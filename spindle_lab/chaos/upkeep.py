"""What follows a fault: who is well, who comes back and when, whose journal is mended, and the end of all faults."""

from __future__ import annotations

import random
import shutil
import signal
import time

from spindle.restart.repairing import repair_journals
from spindle_lab.chaos.disk import Mode
from spindle_lab.chaos.schedule import Schedule
from spindle_lab.chaos.stage import EXTRA_NODES, Stage


class Upkeep:
    """Of the nodes of one round, and the applications that are with them."""

    def __init__(self, stage: Stage, nodes: list[int], draw: random.Random) -> None:
        self.stage = stage
        self.nodes = nodes
        self.draw = draw
        self.schedule = Schedule()
        self.kept_down: set[int] = set()  # nodes whose next start somebody takes care of
        self.leaving: set[int] = set()  # extra nodes that leave after the faults
        self.damaged: set[int] = set()  # nodes with a journal that must be refused

    def victims(self, count: int = 1) -> list[int]:
        """So many nodes that run and weren't told to end, at random; [] if that would leave none."""
        running = [node for node in self.nodes if self.is_well(node)]
        return self.draw.sample(running, count) if len(running) > count else []

    def is_well(self, node: int) -> bool:
        """It runs, and wasn't told to end."""
        daemon = self.stage.daemons.get(node)
        return daemon is not None and not daemon.stopped and not daemon.life.asked

    def leader(self) -> int | None:
        """The core node that leads; None if it is another one, or is not well."""
        ranks = self.stage.ranks()
        return ranks[0] if ranks and ranks[0] in self.nodes and self.is_well(ranks[0]) else None

    # --- ends and new starts

    def down(self, node: int, restart: bool = True) -> None:
        """kill -9, and a new start a moment later."""
        self.stage.kill(node)
        if restart:
            self.come_back(node)

    def come_back(self, node: int, delay_s: float | None = None) -> None:
        """Start a core node again a little later."""
        if node in self.nodes and node not in self.kept_down:
            self.kept_down.add(node)
            self.schedule.later(self.draw.expovariate(1.5) if delay_s is None else delay_s, lambda: self._start(node))

    def _start(self, node: int) -> None:
        self.stage.look()
        self.kept_down.discard(node)
        if node in self.stage.daemons:  # the kernel hasn't quite ended the old one
            self.come_back(node, 0.01)
            return
        self.stage.disk(node).mode = Mode.PASS
        self.stage.start_daemon(node)
        if node in self.damaged:
            self.schedule.later(self.draw.uniform(0.5, 2.0), lambda: self.mend_journal(node))

    def mend_journal(self, node: int) -> None:
        """Repairs a damaged journal, as its refusal tells the operator to; or moves it away, as one in a hurry does."""
        if node not in self.damaged:
            return
        self.damaged.discard(node)
        if node in self.stage.daemons:
            self.stage.kill(node)
            self.stage.daemons[node].popen.wait()
            self.stage.look()
        directory = self.stage.disk(node).directory
        if self.draw.random() < 0.5:
            repair_journals(directory)
        else:
            shutil.move(directory, directory.with_name(f"{directory.name}-damaged-{time.monotonic_ns()}"))
        self.come_back(node, 0.01)

    def look_after_nodes(self) -> None:
        """Start again each core node that is not there, unless its start is arranged already."""
        for node in self.nodes:
            if node not in self.stage.daemons:
                self.come_back(node)

    def look_after(self) -> None:
        """Start again each core node or application that is not there, unless its start is arranged already."""
        self.look_after_nodes()
        for node in self.nodes:
            if node not in self.stage.talkers:
                self.stage.start_talker(node)
            if node not in self.stage.watchers:
                self.stage.start_watcher(node)
        for node in (0, self.nodes[-1]):
            if node not in self.stage.wanderers:
                self.stage.start_wanderer(node)
        for kind in ("talker", "watcher") if self.stage.hosts is None else ():
            if kind not in self.stage.externals:
                self.stage.start_external(kind)

    def excuse(self, *codes: int) -> None:
        """Exit codes that from now on nobody who runs is to blame for."""
        for daemon in self.stage.daemons.values():
            daemon.life.excused.update(codes)

    def heal(self) -> None:
        """The end of all faults: what was stopped goes on, disks work, damaged journals are out of the way."""
        self.schedule.clear()
        self.kept_down.clear()
        for process in self.stage.everybody():
            process.send(signal.SIGCONT)
        if self.stage.hosts is not None:
            self.stage.hosts.heal()
        for disk in self.stage.disks.values():
            disk.mode = Mode.PASS
        for node in list(self.damaged):
            self.mend_journal(node)
        for node in EXTRA_NODES:
            if node in self.stage.watchers:
                self.stage.watchers[node].send(signal.SIGKILL)
            if node in self.stage.daemons:
                if self.stage.daemons[node].life.asked:
                    continue
            elif any(self.stage.disk(node).directory.glob("*.mcap")):
                self.stage.start_daemon(node)  # it may be the last that holds a logged topic: it comes back once more
            else:
                continue
            self.leaving.add(node)

    def send_away(self) -> None:
        """The extra nodes leave, once the others have what only those may have had."""
        for node in self.leaving & set(self.stage.daemons):
            self.stage.ask_to_leave(node)
        self.leaving.clear()
