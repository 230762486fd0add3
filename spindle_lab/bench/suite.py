"""`bench suite`: every figure that the project promises, measured in one run and put into one table.

Why in one run: a machine's speed drifts, so whatever is compared (switches with the baseline, a daemon with embedded
nodes, delayed senders with undelayed ones, everything with the limit) is measured alternating, and medians are
compared.

Rules: each line carries the command that gives its number alone; a figure that fails to be measured is a line that
says so, and the rest goes on.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from spindle_lab.bench import (
    codecs,
    doorbell,
    failover,
    idle,
    idle_topics,
    keyed,
    limit,
    memcpy,
    multicast,
    peers,
    startup,
)
from spindle_lab.bench.crew import BenchFailed
from spindle_lab.bench.lines import (
    COMMAND,
    HEADER,
    KB,
    TEN_KB,
    Line,
    Plan,
    alternate,
    checked,
    command_of,
    rate_line,
)
from spindle_lab.bench.options import SWITCHES, MulticastOptions
from spindle_lab.bench.results import markdown_table, median_run, rate_text

QUIET_SHARE = 0.05  # of all cores, used by others: more, and nothing measured means much


# ---- the sections -----------------------------------------------------------------------------------------------


def machine_section(plan: Plan) -> list[Line]:
    found = memcpy.run(seconds=0.05 if plan.scale < 1 else 0.15)
    return [
        Line(
            "copy, hot ring and cold ring",
            f"{found['hot_bytes_per_s'] / 1e9:.0f} and {found['cold_bytes_per_s'] / 1e9:.0f} GB/s",
            command=f"{COMMAND} memcpy",
            figures=found,
        )
    ]


def doorbell_line(plan: Plan) -> Line:
    """What a paced message can't do without, measured in the same minute as the latencies."""
    found = doorbell.run(int(2000 * plan.scale) or 100)
    idle = found.get("idle_core", found)
    return Line(
        "one doorbell for an idle core: the call, and ring to wake-up",
        f"p50 {idle['ring_us']['p50']} and {idle['wakeup_us']['p50']}, "
        f"p99 {idle['ring_us']['p99']} and {idle['wakeup_us']['p99']} us",
        command=f"{COMMAND} wakeup",
        figures=found,
    )


def core_section(plan: Plan) -> list[Line]:
    lines = []
    for size, wanted in ((KB, 0.4), (TEN_KB, 0.65)):
        limits, runs = [], []
        options = MulticastOptions(size=size)
        for _ in range(plan.repeat):
            limits.append(limit.run_once(3, size, count=int(limit.count_for(size) * plan.scale)))
            runs += alternate(replace(plan, repeat=1), [options])
        ceiling, found = median_run(limits), median_run(runs)
        ratio = found["messages_per_s"] / ceiling["messages_per_s"]
        lines.append(
            Line(
                f"limit of the hardware, {size} bytes",
                f"{rate_text(ceiling['messages_per_s'])}/s",
                command=f"{COMMAND} limit --size {size} --repeat {plan.repeat}",
                figures=ceiling,
            )
        )
        line = rate_line(f"core, {size} bytes", found, command_of(options, plan.repeat, with_limit=True))
        line.value = f"{ratio:.2f} of the limit: {line.value}"
        line.target, line.met = f"at least {wanted:g} of the limit", ratio >= wanted
        line.figures = {**found, "ratio_to_limit": round(ratio, 3)}
        lines.append(line)
    for senders in ("half", "one"):
        options = MulticastOptions(senders=senders)
        [found] = alternate(plan, [options])
        lines.append(rate_line(f"core, {senders} sending, 1 KB", found, command_of(options, plan.repeat)))
    return lines


def tcp_section(plan: Plan) -> list[Line]:
    """The core over connections, each run beside one of the limit: one stream over loopback."""
    lines = []
    for size, least_ratio, least_rate in ((KB, 0.0, 250_000), (TEN_KB, 0.6, 0)):
        options = MulticastOptions(size=size, fabric="tcp")
        scaled = replace(options, count=max(100, int(options.messages_each * plan.scale)))
        found = checked(multicast.run(scaled, repeat=plan.repeat, with_limit=True))
        command = command_of(options, plan.repeat, with_limit=True)
        line = rate_line(f"core over tcp, {size} bytes", found, command, least_rate)
        line.value = (f"{found['ratio_to_limit']:.2f} of one stream ({found['limit_bytes_per_s'] / 1e9:.2f} GB/s)"
                      f" leaves all nodes: {line.value}")
        if least_ratio:
            line.target, line.met = f"at least {least_ratio:g} of one stream", found["ratio_to_limit"] >= least_ratio
        lines.append(line)
    return lines


def dds_section(plan: Plan) -> list[Line]:
    """Each way of the DDS API, in turns with the limit of the same size; and each beside the same through daemons."""
    lines = []
    for what, embedded, wanted in (
        ("batches, 1 KB", MulticastOptions(api="dds"), 0.3),
        ("batches, 10 KB", MulticastOptions(api="dds", size=TEN_KB), 0.45),
        ("one write and one sample a message, 1 KB", MulticastOptions(api="dds", single=True), 0.2),
        ("NumPy records in place, 1 KB", MulticastOptions(api="dds", in_place=True), 0.55),
    ):
        with_daemon = embedded.size == KB and not embedded.in_place
        ways = [embedded, replace(embedded, daemon=True)] if with_daemon else [embedded]
        limits: list[dict[str, Any]] = []
        found: list[list[dict[str, Any]]] = [[] for _ in ways]
        for _ in range(plan.repeat):
            count = int(limit.count_for(embedded.size) * plan.scale)
            limits.append(limit.run_once(3, embedded.size, count=count))
            for place, one in enumerate(alternate(replace(plan, repeat=1), ways)):
                found[place].append(one)
        ceiling, (alone, *through) = median_run(limits), [median_run(one) for one in found]
        ratio = alone["messages_per_s"] / ceiling["messages_per_s"]
        line = rate_line(f"DDS, {what}", alone, command_of(embedded, plan.repeat, with_limit=True))
        line.value = f"{ratio:.2f} of the limit ({rate_text(ceiling['messages_per_s'])}/s): {line.value}"
        line.target, line.met = f"at least {wanted:g} of the limit", ratio >= wanted
        line.figures = {**alone, "ratio_to_limit": round(ratio, 3)}
        lines.append(line)
        for one in through:
            share = one["messages_per_s"] / alone["messages_per_s"]
            line = rate_line(f"DDS, {what}, a daemon per node", one, command_of(ways[1], plan.repeat))
            line.value = f"{share:.2f} of embedded: {line.value}"
            line.target, line.met = "at least 0.7 of the above", share >= 0.7
            lines.append(line)
    return lines


def types_section(plan: Plan) -> list[Line]:
    """What IDL types and keys cost, in processor time of one thread."""
    rounds = max(1, round(15 * plan.scale))
    found = codecs.run(rounds)
    other = found["compared_with"]
    lines = []
    for name in ("small", "track", "image"):
        figures, times = found[name], found[name]["times_as_fast"]
        least = min(times.values())
        lines.append(Line(
            f"IDL type {name}, {figures['bytes']:,} bytes",
            f"encoded in {figures['compiled']['encode_ns']:,} ns, {times['encode']:g} times as fast as {other}; "
            f"decoded in {figures['compiled']['decode_ns']:,} ns, {times['decode']:g} times",
            "at least 5 times as fast", least >= 5, f"{COMMAND} types --rounds {rounds}", figures))
    figures = keyed.run(max(11, round(101 * plan.scale)), instances=max(1000, round(100_000 * plan.scale)))
    costs, ratios = figures["take_ns"], figures["keyed_to_unkeyed"]
    for name in ("idl", "records"):
        lines.append(Line(
            f"taking a sample with a key, {name}",
            f"{costs[f'{name}_keyed']:,} ns, {ratios[name]:.2f} times one without ({costs[name]:,} ns)",
            "at most 1.25 times", ratios[name] <= 1.25, f"{COMMAND} keyed", figures))
    lines.append(Line(
        "memory of an instance, of its reader and its writer",
        f"{figures['bytes_alive']} bytes alive; {figures['bytes_gone']} left of each that has gone",
        command=f"{COMMAND} keyed", figures=figures))
    return lines


def latency_section(plan: Plan) -> list[Line]:
    lines = [doorbell_line(plan)]
    paced = MulticastOptions(senders="one", pace_per_s=1000.0)
    paced = replace(paced, count=max(200, int(paced.messages_each * plan.scale)))
    for what, options in (
        ("core", paced),
        ("DDS", replace(paced, api="dds")),
        ("DDS, a daemon per node", replace(paced, api="dds", daemon=True)),
    ):
        found = checked(multicast.latency_run(options, repeat=plan.repeat))
        latency = found["latency_us"]
        shares = [*found["cpu_share"]["applications"], *found["cpu_share"]["daemons"]]
        lines.append(
            Line(
                f"{what}, 1 KB at 1,000/s, one way",
                f"p50 {latency['p50']:g}, p99 {latency['p99']:g}, p99.9 {latency['p99.9']:g} us; "
                f"busiest process {max(shares):.0%} of a core",
                "p50 at most 40, p99 at most 200 us",
                latency["p50"] <= 40 and latency["p99"] <= 200,
                command_of(replace(options, count=0), plan.repeat),
                found,
            )
        )
    return lines


def switches_section(plan: Plan) -> list[Line]:
    """All sets and each switch alone. Without batch_send the core claims one message at a time, as in the paper."""
    names = ["baseline", *SWITCHES, "batching", "nulls", "spindle"]
    runs = [MulticastOptions(switches=name) for name in names]
    found = dict(zip(names, alternate(plan, runs), strict=True))
    baseline = found["baseline"]
    lines = []
    for name, options in zip(names, runs, strict=True):
        ratio = found[name]["messages_per_s"] / baseline["messages_per_s"]
        line = rate_line(f"switches: {name}", found[name], command_of(options, plan.repeat))
        line.value = f"{ratio:.2f} of baseline: {line.value}"
        if name == "spindle":
            lower = found[name]["latency_us"]["p50"] < baseline["latency_us"]["p50"]
            line.target, line.met = "at least 3 times baseline, lower latency", ratio >= 3 and lower
        lines.append(line)
    return lines


def delay_section(plan: Plan) -> list[Line]:
    runs = [
        MulticastOptions(),
        MulticastOptions(delayed="silent"),
        MulticastOptions(delayed="one"),
        MulticastOptions(delayed="half"),
    ]
    found = alternate(plan, runs)
    full = found[0]["messages_per_s_per_full_sender"]
    lines = [rate_line("all three send", found[0], command_of(runs[0], plan.repeat))]
    for options, result, what in zip(
        runs[1:], found[1:], ("one silent", "one delayed by 100 us", "half delayed by 100 us"), strict=True
    ):
        ratio = result["messages_per_s_per_full_sender"] / full
        lines.append(
            Line(
                f"{what}: rate of each of the others",
                f"{ratio:.2f} of theirs when all send: {rate_text(result['messages_per_s_per_full_sender'])}/s, "
                f"{result['nulls']:,} nulls",
                "at least 0.9",
                ratio >= 0.9,
                command_of(options, plan.repeat),
                result,
            )
        )
    return lines


def idle_section(plan: Plan) -> list[Line]:
    found = idle.run(seconds=plan.idle_s)
    share = max(*found["cpu_share_daemons"], *found["cpu_share_applications"])
    return [
        Line(
            "idle view of three nodes",
            f"{found['pushes']} pushes, busiest process {share:.2%} of a core",
            "no pushes, below 1%",
            found["pushes"] == 0 and share < 0.01,
            f"{COMMAND} idle",
            found,
        )
    ]


def idle_topics_section(plan: Plan) -> list[Line]:
    options = MulticastOptions(idle_topics=200)
    scaled = replace(options, count=max(100, int(options.messages_each * plan.scale)))
    found = idle_topics.run(scaled, plan.repeat)
    command = f"{COMMAND} idle-topics --repeat {plan.repeat}"
    return [
        Line(
            "core, one active topic beside 200 idle ones",
            f"{found['rate_ratio']:.2f} of its rate alone: {rate_text(found['messages_per_s'])}/s; "
            f"{found['latency_ratio']:.2f} times its latency: p50 {found['p50_us']:g} us",
            "at least 0.95 of its rate, at most 1.1 times its latency",
            found["rate_ratio"] >= 0.95 and found["latency_ratio"] <= 1.1,
            command,
            found,
        )
    ]


def failover_section(plan: Plan) -> list[Line]:
    """Kills, hangs, joins and leaves, on one host and over connections."""
    lines = []
    rounds = max(1, round(plan.repeat * plan.scale))
    for fabric in ("shm", "tcp"):
        options = {"rate": 1000, "size": 256, "suspect_timeout_s": 2.0, "fabric": fabric}
        found = failover.run(options, kills=rounds, stops=rounds, joins=rounds, say=lambda text: None)
        for key, what in FAILOVERS.items():
            figures = found[key]
            lines.append(
                Line(
                    f"{what}{', over TCP' if fabric == 'tcp' else ''}",
                    f"median {figures['median_ms']:g}, p99 {figures['p99_ms']:g}, max {figures['max_ms']:g} ms "
                    f"of {figures['samples']}",
                    f"at most {figures['target_ms']:g} ms",
                    figures["met"],
                    f"{COMMAND} failover --fabric {fabric}",
                    figures,
                )
            )
    return lines


FAILOVERS = {
    "kill_member": "a member is killed: until the others deliver again",
    "kill_leader": "the leader is killed",
    "stop_member": "a member hangs",
    "stop_leader": "the leader hangs",
    "join_and_leave": "a node joins or leaves: the longest pause of the others",
}


def startup_section(plan: Plan) -> list[Line]:
    found = startup.run(plan.repeat)
    command = f"{COMMAND} startup"
    lines = [
        Line(what, f"{found[key]:g} {unit}", f"below {wanted} {unit}", found[key] < wanted, command)
        for what, key, unit, wanted in (
            ("import dds", "import_dds_ms", "ms", 150),
            ("first node ready", "node_ready_ms", "ms", 300),
            ("second node ready", "second_node_ready_ms", "ms", 300),
            ("attach to a daemon", "attach_ms", "ms", 5),
            (f"daemon with {startup.TOPICS} topics, resident", "resident_mb", "MB", 100),
        )
    ]
    lines.append(
        Line("a program's first attach, with its imports", f"{found['first_attach_ms']:g} ms", command=command)
    )
    lines[0].figures = found
    return lines


SECTIONS: dict[str, tuple[str, Callable[[Plan], list[Line]]]] = {
    "machine": ("This machine", machine_section),
    "core": ("Core", core_section),
    "tcp": ("Core over TCP", tcp_section),
    "switches": ("Switches", switches_section),
    "delays": ("Silent and delayed senders", delay_section),
    "dds": ("DDS API in Python", dds_section),
    "types": ("Types and keys", types_section),
    "peers": ("Beside other systems", peers.section),
    "latency": ("Latency at a paced rate", latency_section),
    "idle": ("Idle", idle_section),
    "idle-topics": ("Idle topics", idle_topics_section),
    "failover": ("Failover", failover_section),
    "startup": ("Start and memory", startup_section),
}


def machine() -> dict[str, Any]:
    """What the numbers were measured on, as far as it says something to people who have another machine."""
    return {
        "architecture": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "busy_before": round(busy_share(), 2),
    }


def busy_share(seconds: float = 0.5) -> float:
    """Share of all cores that other programs use, looked at for so long while we do nothing."""

    def ticks() -> tuple[int, int]:
        fields = [int(text) for text in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
        return sum(fields), fields[3] + fields[4]  # all; idle and waiting for disks

    total, idle_ticks = ticks()
    time.sleep(seconds)
    total_after, idle_after = ticks()
    return 1.0 - (idle_after - idle_ticks) / max(1, total_after - total)


def run(
    plan: Plan, sections: Sequence[str] = (), progress: Callable[[str], None] = lambda text: None
) -> dict[str, Any]:
    """Runs the sections (all if none is named). `progress` gets a line of text before each."""
    result: dict[str, Any] = {"machine": machine(), "repeat": plan.repeat, "sections": []}
    for key in sections or SECTIONS:
        title, function = SECTIONS[key]
        progress(title)
        try:
            lines = function(plan)
        except (BenchFailed, OSError, ImportError) as error:
            lines = [Line(title, f"failed: {str(error).splitlines()[0]}", met=False, figures={"error": str(error)})]
        result["sections"].append({"title": title, "lines": [asdict(line) for line in lines]})
    promised = [line for section in result["sections"] for line in section["lines"] if line["met"] is not None]
    result["met"] = sum(line["met"] for line in promised)
    result["promised"] = len(promised)
    return result


def markdown(result: dict[str, Any]) -> str:
    """The tables of docs/benchmarks.md."""
    found = result["machine"]
    noise = found["busy_before"]
    parts = [
        f"{found['architecture']}, {found['cores']} cores, Python {found['python']}; "
        f"medians of {result['repeat']}. {result['met']} of {result['promised']} targets met."
    ]
    if noise > QUIET_SHARE:
        parts.append(f"Other programs used {noise:.0%} of this machine before the run: these numbers don't count.")
    for section in result["sections"]:
        rows = [Line(**line).cells() for line in section["lines"]]
        parts += [f"### {section['title']}", markdown_table(HEADER, rows)]
    return "\n\n".join(parts) + "\n"


BEGIN = "<!-- suite: written by `spindle bench suite --markdown docs/benchmarks.md` -->"
END = "<!-- end of suite -->"


def rewritten(document: str, tables: str) -> str:
    """`document` with the part between the markers replaced; without markers the tables alone."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        return tables
    return f"{before}{BEGIN}\n\n{tables}\n{END}{after}"
