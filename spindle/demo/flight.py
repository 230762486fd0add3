"""The demonstration itself: three daemons, the example programs on them, the flight, and the examination afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from spindle.client import Session, attach
from spindle.demo.findings import Findings, JournalFinding, MonitorFinding, first_difference
from spindle.demo.processes import Child, DemoFailed
from spindle.demo.verifier import MARK_BYTES, PayloadOrder
from spindle.errors import SpindleError
from spindle.programs import module_arguments

NODES = [1, 2, 3]
AIR_DATA, ATTITUDE, ALERTS = "flight/air_data", "flight/attitude", "flight/alerts"
FLIGHT = "flight"  # the order group of air data and attitude: to the nodes one topic
TOPICS = [FLIGHT, ALERTS]
PUBLISHER_NODE = {AIR_DATA: 1, ATTITUDE: 2}
PAGE_NODES = (1, 3)  # whose displays stand side by side in a browser; the first has the cockpit
DISPLAY_NODE = RECORDER_NODE = STANDBY_NODE = 3
STRENGTH, STANDBY_STRENGTH = 2, 1  # of the publishers of the air data

START_TIMEOUT_S = 30.0
PAGE_TIMEOUT_S = 10.0
DRAIN_TIMEOUT_S = 20.0
END_TIMEOUT_S = 12.0
LEAD_S = 0.5  # for the moment at which the publishers begin to reach them
GRACE_S = 20.0  # for a publisher to end after its part of the flight


@dataclass(frozen=True)
class Plan:
    """What to fly."""

    examples: Path
    seconds: float
    speed: float
    start: float
    jsonl: Path | None
    terminal: bool  # draw the display on the terminal
    fabric: str = "auto"  # how messages get from node to node


class Demonstration:
    """One run. `run()` returns the findings; `close()` ends every process, whatever happened before."""

    def __init__(self, plan: Plan, directory: Path, say: Callable[[str], None]) -> None:
        self.plan = plan
        self.directory = directory
        self.say = say
        self.findings = Findings(plan.seconds, plan.speed)
        self._daemons: dict[int, Child] = {}
        self._programs: list[Child] = []
        self._sessions: dict[int, Session] = {}
        self._published: dict[str, int] = {}  # by topic of the flight, of the publishers that lived to its end
        self._told = 0  # samples of which the one that was killed had told
        self._display: Child | None = None
        self._page = ""  # for browsers
        self._runtime = directory / "run"
        self._runtime.mkdir(mode=0o700)

    async def run(self) -> Findings:
        """Everything in its order. Raises DemoFailed when it can't go on."""
        await self._start_daemons()
        monitors, recorder, verifiers = await self._start_subscribers()
        await self._fly()
        await self._drain(monitors, recorder, verifiers)
        await self._examine(monitors, recorder, verifiers)
        await self._stop_daemons()
        await self._verify_journals()
        return self.findings

    # --- starting

    def _environment(self, node: int) -> dict[str, str]:
        return {"SPINDLE_RUNTIME_DIR": str(self._runtime), "SPINDLE_NODE_ID": str(node), "PYTHONUNBUFFERED": "1"}

    def _journal_dir(self, node: int) -> Path:
        return self.directory / f"journal-{node}"

    async def _start_daemons(self) -> None:
        self.say(f"starting {len(NODES)} daemons")
        ready: dict[int, asyncio.Event] = {node: asyncio.Event() for node in NODES}

        def listen(node: int) -> Callable[[str], None]:
            return lambda line: ready[node].set() if " ready" in line else None

        paged = importlib.util.find_spec("aiohttp") is not None
        for node in NODES:
            arguments = [*module_arguments("spindle.cli"), "daemon", "--node", str(node),
                         "--runtime-dir", str(self._runtime)]
            if node == PAGE_NODES[0] and paged:
                arguments += ["--web", "127.0.0.1:0"]
            arguments += ["--journal-dir", str(self._journal_dir(node)), "--set", f"network.fabric={self.plan.fabric}"]
            self._daemons[node] = await Child.start(
                f"daemon {node}", arguments, self.directory, environment=self._environment(node), on_line=listen(node)
            )
        for node, daemon in self._daemons.items():
            await daemon.until(ready[node].is_set, START_TIMEOUT_S, "its readiness")
        for node in NODES:
            attaching = partial(attach, runtime_dir=self._runtime, node_id=node, name="demo")
            self._sessions[node] = await _in_thread(attaching)
        await self._until(self._group_complete, START_TIMEOUT_S, "one view of all nodes")
        self._page = await self._page_address() if paged else ""
        self.say(f"in a browser: {self._page}" if self._page else
                 "no page for browsers: the cockpit's package aiohttp is not installed, or it did not start")

    async def _page_address(self) -> str:
        """Where two displays are shown side by side in a browser; empty if the cockpit doesn't get there."""
        path = self._runtime / "domain-0" / f"cockpit-{PAGE_NODES[0]}.url"
        try:
            await self._until(lambda: _in_thread(path.exists), PAGE_TIMEOUT_S, "the cockpit's address")
        except DemoFailed:
            return ""
        base, _, token = path.read_text().strip().partition("/#token=")
        return f"{base}/f?{','.join(map(str, PAGE_NODES))}#t={token}"

    async def _group_complete(self) -> bool:
        views = [await _in_thread(session.view) for session in self._sessions.values()]
        return all(sorted(view.node_ids) == NODES for view in views)

    async def _until(self, condition: Callable[[], Any], timeout_s: float, what: str) -> None:
        end = time.monotonic() + timeout_s
        while not await condition():
            if time.monotonic() > end:
                raise DemoFailed(f"{what}: not within {timeout_s:g} s")
            await asyncio.sleep(0.05)

    async def _start_program(self, name: str, script: str, node: int, *options: str, **more: Any) -> Child:
        arguments = [str(self.plan.examples / script), *options]
        child = await Child.start(name, arguments, self.directory, environment=self._environment(node), **more)
        self._programs.append(child)
        return child

    async def _start_subscribers(self) -> tuple[dict[int, Child], Child, dict[int, Child]]:
        self.say("starting the flight recorder, an alert monitor and a verifier on each node")
        monitors: dict[int, Child] = {}
        for node in NODES:
            monitors[node] = await self._start_program(f"alert monitor {node}", "alert_monitor.py", node, "--json")
        recorder = await self._start_program("flight recorder", "flight_recorder.py", RECORDER_NODE, "--json")
        for child in (*monitors.values(), recorder):
            await child.until_report("ready", START_TIMEOUT_S)
        verifiers: dict[int, Child] = {}
        for node in NODES:
            verifiers[node] = await Child.start(
                f"verifier {node}",
                [*module_arguments("spindle.demo.verifier"), *TOPICS],
                self.directory,
                environment=self._environment(node),
            )
            self._programs.append(verifiers[node])
        for child in verifiers.values():
            await child.until_report("ready", START_TIMEOUT_S)
        return monitors, recorder, verifiers

    # --- flying

    async def _fly(self) -> None:
        plan = self.plan
        self.say(f"flying {plan.seconds * plan.speed / 60:.0f} minutes of the flight in {plan.seconds:g} s")
        options = ["--json", "--speed", repr(plan.speed), "--start", repr(plan.start)]
        options += ["--duration", repr(plan.seconds * plan.speed), "--at", "-"]
        if plan.jsonl is not None:
            options += ["--jsonl", str(plan.jsonl)]

        async def air_data(name: str, node: int, strength: int) -> Child:
            return await self._start_program(
                name, "air_data_publisher.py", node, *options, "--strength", str(strength))

        owner = await air_data("air data publisher", PUBLISHER_NODE[AIR_DATA], STRENGTH)
        publishers = {
            AIR_DATA: await air_data("standby publisher", STANDBY_NODE, STANDBY_STRENGTH),
            ATTITUDE: await self._start_program(
                "attitude publisher", "attitude_publisher.py", PUBLISHER_NODE[ATTITUDE], *options),
        }
        for child in (owner, *publishers.values()):
            await child.until_report("ready", START_TIMEOUT_S)
        self._display = await self._start_program(
            "flight display", "primary_flight_display.py", DISPLAY_NODE,
            *(["--note", self._page] if self._page and plan.terminal else []), terminal=plan.terminal, on_line=self.say
        )
        began = time.time() + LEAD_S  # only now: however long it takes them to start, they begin together
        for child in (owner, *publishers.values()):
            await child.tell(repr(began))
        await asyncio.sleep(max(0.0, began + plan.seconds / 2 - time.time()))
        await self._kill(owner)
        for topic, child in publishers.items():
            final = await child.until_report("published", LEAD_S + plan.seconds + GRACE_S)
            self._published[topic] = int(final["count"])
            self._note(child, await child.wait(END_TIMEOUT_S))
        self.findings.published[FLIGHT] = sum(self._published.values())

    async def _kill(self, owner: Child) -> None:
        """kill -9 of the publisher of the air data that is heard, in the middle of the flight."""
        self._told = int(owner.report.get("status", {}).get("count", 0))
        owner.send(signal.SIGKILL)
        if await owner.wait(END_TIMEOUT_S) != -signal.SIGKILL:
            raise DemoFailed(f"{owner.name} ended before it could be killed{owner.tail()}")

    def _note(self, child: Child, code: int) -> None:
        """Remembers a process that did not end well."""
        failure = child.failure(code)
        if failure:
            self.findings.trouble.append(failure)

    # --- examining

    async def _drain(self, monitors: dict[int, Child], recorder: Child, verifiers: dict[int, Child]) -> None:
        """Waits until everything published has come to everybody. What is missing then, the findings say."""
        await self._end_display()
        self.say("waiting until all is drained")
        await self._patiently(lambda: all(map(self._has_heard_all, monitors.values())))
        heard = 0
        for node, child in monitors.items():
            self._note(child, await child.end(END_TIMEOUT_S))
            final = child.report.get("final")
            if final is not None:
                self.findings.monitors[node] = monitor_finding(final)
                heard = max(heard, final["heard"])
                for topic, count in final["wrote"].items():
                    self.findings.published[topic] = self.findings.published.get(topic, 0) + count
        self.findings.late_alerts = await self._late_alerts()
        await self._patiently(lambda: recorder.report.get("status", {}).get("count", 0) >= heard)
        end = time.monotonic() + DRAIN_TIMEOUT_S
        while True:
            for node, child in verifiers.items():
                report = await child.ask("report", "report", END_TIMEOUT_S)
                self.findings.delivered[node] = report["topics"]
                self.findings.latency_us[node] = report["latency_us"]
            self._count_the_killed()
            counts = [{t: r["count"] for t, r in topics.items()} for topics in self.findings.delivered.values()]
            if all(one == self.findings.published for one in counts) or time.monotonic() > end:
                return
            await asyncio.sleep(0.2)

    def _has_heard_all(self, monitor: Child) -> bool:
        last = monitor.report.get("status", {}).get("last", {})
        return all(last.get(topic) == count - 1 for topic, count in self._published.items())

    def _count_the_killed(self) -> None:
        """What the killed publisher had written, nobody can say but the nodes that delivered it: at least what it had
        told, and the same at each."""
        known = sum(self._published.values())
        delivered = max(topics[FLIGHT]["count"] for topics in self.findings.delivered.values())
        self.findings.killed_at = max(delivered - known, self._told)
        self.findings.published[FLIGHT] = known + self.findings.killed_at

    async def _patiently(self, condition: Callable[[], bool]) -> None:
        end = time.monotonic() + DRAIN_TIMEOUT_S
        while not condition() and time.monotonic() < end:
            await asyncio.sleep(0.1)

    async def _end_display(self) -> None:
        if self._display is not None:
            display, self._display = self._display, None
            code = await display.end(END_TIMEOUT_S)
            # A flight of seconds on a busy machine is over before the display has come as far as its handler of
            # signals: it then ends by the signal itself, as it was told to.
            self._note(display, 0 if code == -signal.SIGTERM else code)

    async def _examine(self, monitors: dict[int, Child], recorder: Child, verifiers: dict[int, Child]) -> None:
        self._note(recorder, await recorder.end(END_TIMEOUT_S))
        self.findings.recorded = sum(recorder.report.get("final", {}).get("topics", {}).values())
        orders = {t: {topics[t]["hash"] for topics in self.findings.delivered.values()} for t in TOPICS}
        if any(len(hashes) > 1 for hashes in orders.values()):
            await self._find_differences(verifiers)
        for child in verifiers.values():
            assert child.process.stdin is not None
            child.process.stdin.close()
            self._note(child, await child.wait(END_TIMEOUT_S))
        for node, session in self._sessions.items():
            self.findings.counters[node] = session.counters().snapshot()
            self.findings.views[node] = (await _in_thread(session.view)).view_id

    async def _find_differences(self, verifiers: dict[int, Child]) -> None:
        marks: dict[int, dict[str, str]] = {}
        for node, child in verifiers.items():
            path = self.directory / f"marks-{node}.json"
            await child.ask(f"dump {path}", "dump", END_TIMEOUT_S)
            marks[node] = json.loads(path.read_text())
        for topic in TOPICS:
            of_topic = {node: bytes.fromhex(found[topic]) for node, found in marks.items()}
            if len(set(of_topic.values())) > 1:
                self.findings.first_difference[topic] = first_difference(of_topic, MARK_BYTES)

    async def _late_alerts(self) -> MonitorFinding | None:
        """What a monitor comes to that only starts now, from what the nodes have kept of the flight."""
        late = await self._start_program("late alert monitor", "alert_monitor.py", RECORDER_NODE, "--json", "--mute")
        await late.until_report("ready", START_TIMEOUT_S)
        await self._patiently(lambda: self._has_heard_all(late))
        self._note(late, await late.end(END_TIMEOUT_S))
        final = late.report.get("final")
        return None if final is None else monitor_finding(final)

    # --- ending

    async def _stop_daemons(self) -> None:
        self.say("stopping the daemons")
        for session in self._sessions.values():
            await _in_thread(session.close)
        self._sessions.clear()
        for daemon in self._daemons.values():
            daemon.send(signal.SIGTERM)
        for daemon in self._daemons.values():
            self._note(daemon, await daemon.wait(END_TIMEOUT_S))

    async def _verify_journals(self) -> None:
        for node in NODES:
            self.findings.journals[node] = await _in_thread(partial(verify_journals, self._journal_dir(node)))

    async def close(self) -> None:
        """Ends what still runs: programs first, so that none of them sees its node go; then the daemons."""
        for session in self._sessions.values():
            with contextlib.suppress(Exception):
                await _in_thread(session.close)
        running = [child for child in self._programs if child.process.returncode is None]
        daemons = [child for child in self._daemons.values() if child.process.returncode is None]
        for group in (running, daemons):
            for child in group:
                child.send(signal.SIGTERM)
            await asyncio.gather(*(child.wait(3.0) for child in group))


def monitor_finding(final: dict[str, Any]) -> MonitorFinding:
    """What a monitor says at its end."""
    return MonitorFinding(final["alerts"], final["digest"], final["heard"], final["owners"])


async def _in_thread(work: Callable[[], Any]) -> Any:
    return await asyncio.get_running_loop().run_in_executor(None, work)


def verify_journals(directory: Path) -> JournalFinding:
    """Has Spindle's own tool verify a node's journals, and reads them with the mcap library alone."""
    from mcap.exceptions import McapError
    from mcap.reader import make_reader

    from spindle.journal.tools import verify

    finding = JournalFinding(True)
    orders = {FLIGHT: PayloadOrder()}
    try:
        report = verify(directory)
        finding.intact, finding.detail = report.ok, "; ".join(report.problems)
        for path in sorted(directory.glob("*.mcap")):
            with path.open("rb") as stream:
                for _, channel, message in make_reader(stream).iter_messages():
                    if channel.topic in orders and message.data:
                        orders[channel.topic].add(message.data)
    except (McapError, SpindleError, OSError) as error:
        finding.intact, finding.detail = False, f"{type(error).__name__}: {error}"
    finding.messages = {topic: order.count for topic, order in orders.items()}
    finding.hashes = {topic: order.hexdigest() for topic, order in orders.items()}
    return finding
