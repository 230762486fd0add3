"""What a demonstration found, what disagrees in it, and how it is shown.

Rules: a check that could not be made counts as failed. `disagreements` alone decides the exit code.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

Topics = dict[str, dict[str, Any]]
"""Of one node: topic name to what its verifier reports."""


@dataclass(slots=True)
class MonitorFinding:
    """What the alert monitor of a node came to."""

    alerts: int
    digest: str
    heard: int = 0  # samples of the flight
    owners: list[dict[str, int]] = field(default_factory=list)  # of the air data: node, and number of its first sample


@dataclass(slots=True)
class JournalFinding:
    """What is on the disk of a node."""

    intact: bool
    messages: dict[str, int] = field(default_factory=dict)  # by topic
    hashes: dict[str, str] = field(default_factory=dict)  # by topic, over the payloads in their order
    detail: str = ""


@dataclass(slots=True)
class Findings:
    """Everything measured; node ids are the keys."""

    seconds: float = 0.0
    speed: float = 1.0
    published: dict[str, int] = field(default_factory=dict)  # by topic
    delivered: dict[int, Topics] = field(default_factory=dict)
    first_difference: dict[str, str] = field(default_factory=dict)  # by topic, where hashes differ
    latency_us: dict[int, dict[str, dict[str, float]]] = field(default_factory=dict)
    monitors: dict[int, MonitorFinding] = field(default_factory=dict)
    late_alerts: MonitorFinding | None = None  # of a monitor that started when all was over
    recorded: int = 0  # samples that the recorder's readers got
    killed_at: int | None = None  # samples that the publisher of the air data had written when it was killed
    journals: dict[int, JournalFinding] = field(default_factory=dict)
    counters: dict[int, dict[str, int]] = field(default_factory=dict)
    views: dict[int, int] = field(default_factory=dict)
    trouble: list[str] = field(default_factory=list)  # processes that failed or had to be killed

    def disagreements(self, nodes: list[int]) -> list[str]:
        """What is not as it must be, one line each; empty if all agree."""
        found = list(self.trouble)
        for topic, count in self.published.items():
            for node in nodes:
                got = self.delivered.get(node, {}).get(topic, {"count": 0, "lost": 0})
                if got["count"] != count:
                    found.append(f"{topic}: {count} published, {got['count']} delivered on node {node}")
                if got["lost"]:
                    found.append(f"{topic}: the reader on node {node} lost {got['lost']}")
            hashes = {self.delivered.get(node, {}).get(topic, {}).get("hash") for node in nodes}
            if len(hashes) != 1 or None in hashes:
                found.append(f"{topic}: the order differs between the nodes{self.first_difference.get(topic, '')}")
            if not count:
                found.append(f"{topic}: nothing was published, so nothing is proven")
        found += self._alert_disagreements(nodes)
        heard = {one.heard for one in self.monitors.values()}
        if heard != {self.recorded}:
            found.append(f"the flight recorder got {self.recorded} samples, the monitors {heard}")
        for node in nodes:
            journal = self.journals.get(node)
            if journal is None:
                found.append(f"the journals of node {node} were not verified")
                continue
            if not journal.intact:
                found.append(f"the journals of node {node} are damaged: {journal.detail}")
            for topic, count in journal.messages.items():
                if count != self.published.get(topic):
                    found.append(f"{topic}: {count} of {self.published.get(topic)} in the journal of node {node}")
                elif journal.hashes.get(topic) != self.delivered.get(node, {}).get(topic, {}).get("payload_hash"):
                    found.append(f"{topic}: the journal of node {node} is not what was delivered there")
        return found

    def _alert_disagreements(self, nodes: list[int]) -> list[str]:
        found = []
        if set(self.monitors) != set(nodes):
            found.append("not every node's alert monitor reported")
        digests = {node: (one.alerts, one.digest) for node, one in self.monitors.items()}
        if len(set(digests.values())) > 1:
            found.append(f"the alerts differ between the nodes: {digests}")
        owners = {node: [(own["node"], own["sample"]) for own in one.owners] for node, one in self.monitors.items()}
        if len({str(one) for one in owners.values()}) > 1:
            found.append(f"who was heard of the air data differs between the nodes: {owners}")
        elif self.killed_at is not None and any(len(one) < 2 for one in owners.values()):
            found.append(f"no other publisher of the air data was heard after the one that was killed: {owners}")
        late = self.late_alerts
        for node, one in self.monitors.items():
            if late is None:
                found.append("no monitor came late")
                break
            if one != late:
                found.append(f"the alerts on node {node} are not those of a monitor that came late ({one}, {late})")
        return found

    def as_json(self, nodes: list[int]) -> dict[str, Any]:
        disagreements = self.disagreements(nodes)
        return {**asdict(self), "agreed": not disagreements, "disagreements": disagreements}


def text_of(found: Findings, nodes: list[int]) -> str:
    """The result for people, 80 columns wide."""
    lines = ["", f"{found.seconds:g} s, {found.speed:g} times real time, {len(nodes)} nodes", ""]
    lines.append(_row("messages delivered", ["published", *(f"node {node}" for node in nodes)]) + "  order")
    for topic, count in found.published.items():
        topics = [found.delivered.get(node, {}).get(topic, {}) for node in nodes]
        hashes = {str(one.get("hash", "?"))[:8] for one in topics}
        verdict = f"same ({hashes.pop()})" if len(hashes) == 1 else "DIFFERS"
        lines.append(f"{_row(topic, [count, *(one.get('count', 0) for one in topics)])}  {verdict}")
    lines += ["", *_alert_lines(found, nodes), ""]
    lines.append(_row("latency and work", ["", *(f"node {node}" for node in nodes)]))
    latencies = [found.latency_us.get(node, {}) for node in nodes]
    for way in ("write to delivery", "write to take"):
        for name in ("p50", "p99"):
            values = [one.get(way, {}).get(name, math.nan) for one in latencies]
            lines.append(_row(f"{way}, {name}", ["", *map(_time, values)]))
    counters = [found.counters.get(node, {}) for node in nodes]
    for kind in ("send", "receive", "delivery"):
        lines.append(_row(f"messages/{kind} batch", ["", *(_batch(one, kind) for one in counters)]))
    for name in ("nulls", "pushes"):
        lines.append(_row(name, ["", *(one.get(name, 0) for one in counters)]))
    lines.append(_row("views", ["", *(found.views.get(node, 0) for node in nodes)]))
    lines.append(_row("journal (MCAP)", ["", *(_journal(found.journals.get(node)) for node in nodes)]))
    disagreements = found.disagreements(nodes)
    lines.append("")
    if disagreements:
        lines += ["DISAGREEMENT", *[f"  - {one}" for one in disagreements]]
    else:
        total = sum(found.published.values())
        lines.append(f"All agree: {total} messages, each on every node, in one order, none lost, none twice;")
        lines.append("the journals hold what was delivered.")
    return "\n".join(lines)


def _row(label: str, cells: Sequence[object]) -> str:
    return f"  {label:<23}" + "".join(f"{cell!s:>9}" for cell in cells)


def _alert_lines(found: Findings, nodes: list[int]) -> list[str]:
    monitors = found.monitors
    if len({one.digest for one in monitors.values()}) != 1 or len(monitors) != len(nodes):
        return [f"  alerts DIFFER: {', '.join(f'node {n} {m.alerts} ({m.digest})' for n, m in monitors.items())}"]
    one = next(iter(monitors.values()))
    lines = [f"  {one.alerts} alerts raised or cleared, the same on every node ({one.digest})"]
    if found.late_alerts:
        lines[0] += ","
        lines.append("  and to a monitor that came late, from the recorded flight")
    if found.killed_at is not None and one.owners:
        last = one.owners[-1]
        lines.append(f"  the publisher of the air data was killed after {found.killed_at} samples;")
        lines.append(f"  from sample {last['sample']} on everybody heard that of node {last['node']}")
    return lines


def _batch(counters: dict[str, int], kind: str) -> str:
    batches = counters.get(f"{kind}_batches", 0)
    return f"{counters.get(f'{kind}_messages', 0) / batches:.2f}" if batches else "-"


def _journal(finding: JournalFinding | None) -> str:
    return "missing" if finding is None else "intact" if finding.intact else "DAMAGED"


def _time(microseconds: float) -> str:
    if math.isnan(microseconds):
        return "-"
    return f"{microseconds:.0f} us" if microseconds < 1000 else f"{microseconds / 1000:.1f} ms"


def first_difference(marks: dict[int, bytes], mark_bytes: int) -> str:
    """Where the nodes' orders part, from the marks that their verifiers kept per message."""
    shortest = min(len(one) for one in marks.values()) // mark_bytes
    for place in range(shortest):
        at = slice(place * mark_bytes, (place + 1) * mark_bytes)
        if len({one[at] for one in marks.values()}) > 1:
            values = ", ".join(f"node {node} {one[at].hex()}" for node, one in marks.items())
            return f", first at message {place} ({values})"
    return f", after message {shortest}, where the shortest ends"
