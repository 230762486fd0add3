"""`bench peers`: the DDS API in Python beside iceoryx2 and cyclonedds-python, each with the same loops, in one run.

Every process publishes and receives everything, reads every byte, and hashes the order in which it had the messages
(app_node.py). iceoryx2 shares memory and keeps no order between writers; cyclonedds goes over loopback. Ours keeps one
order over all writers at all nodes. What each peer is asked to do is in peer_ports.py.

Rules: the systems take turns, run by run, with fewer messages for the slower ones; the median run counts. A peer's run
that lost something, or did not come to its end in TIMEOUT_S, is left out, and the line says how many there were.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spindle_lab.bench import multicast
from spindle_lab.bench.crew import BenchFailed
from spindle_lab.bench.lines import KB, TEN_KB, Line, Plan, checked, command_of, latency_text, rate_line
from spindle_lab.bench.options import PEERS, MulticastOptions
from spindle_lab.bench.peer_ports import missing
from spindle_lab.bench.results import median_run

TIMEOUT_S = 20.0  # of a peer's run: it takes about a second, or doesn't end
BYTES = {"iceoryx2": 200_000_000, "cyclonedds": 50_000_000}  # of payload at each node in a peer's run, by package

# How each is used: a name, and the options that say so.
WAYS: tuple[tuple[str, MulticastOptions], ...] = (
    ("batches of bytes", MulticastOptions(api="dds")),
    ("batches of bytes, a daemon per node", MulticastOptions(api="dds", daemon=True)),
    ("one by one", MulticastOptions(api="dds", single=True)),
    ("NumPy records, read in place", MulticastOptions(api="dds", in_place=True)),
    ("iceoryx2, copied to bytes", MulticastOptions(api="iceoryx2")),
    ("iceoryx2, read in place", MulticastOptions(api="iceoryx2", in_place=True)),
    ("cyclonedds-python", MulticastOptions(api="cyclonedds")),
)
PACED: tuple[tuple[str, MulticastOptions], ...] = tuple(
    (what, MulticastOptions(senders="one", pace_per_s=1000.0, api=api, daemon=daemon))
    for what, api, daemon in (
        ("embedded", "dds", False),
        ("a daemon per node", "dds", True),
        ("iceoryx2, events", "iceoryx2", False),
        ("iceoryx2, polling", "iceoryx2-polling", False),
        ("cyclonedds-python", "cyclonedds", False),
    )
)


def section(plan: Plan) -> list[Line]:
    """The lines of the suite's section; peers that aren't installed have a line that says so."""
    lines = []
    for size in (KB, TEN_KB):
        ways = [(what, replace(options, size=size)) for what, options in WAYS if is_there(options)]
        found = take_turns(plan, ways)
        for what, options in ways:
            lines.append(rate_of(f"{what}, {size} bytes", options, found[what], plan.repeat))
        say_who_leads(lines[-len(ways) :], ways, found)
    ways = [(what, options) for what, options in PACED if is_there(options)]
    found = take_turns(plan, ways)
    for what, options in ways:
        lines.append(latency_of(f"{what}, 1 KB at 1,000/s, one way", options, found[what], plan.repeat))
    return lines + [Line(api, missing(api)) for api in PEERS if missing(api)]


def is_there(options: MulticastOptions) -> bool:
    return options.api not in PEERS or not missing(options.api)


def take_turns(plan: Plan, ways: list[tuple[str, MulticastOptions]]) -> dict[str, list[dict[str, Any]]]:
    """By name, the runs that came to a right end. Raises BenchFailed when one of ours doesn't."""
    found: dict[str, list[dict[str, Any]]] = {what: [] for what, _ in ways}
    for _ in range(plan.repeat):
        for what, options in ways:
            scaled = replace(options, count=max(100, int(count_of(options) * plan.scale)))
            if options.api in PEERS:
                scaled = replace(scaled, timeout_s=TIMEOUT_S)
            try:
                found[what].append(checked(multicast.run_once(scaled)))
            except BenchFailed:
                if options.api not in PEERS:
                    raise
    return found


def count_of(options: MulticastOptions) -> int:
    """Messages of each sender."""
    if options.api not in PEERS or options.pace_per_s:
        return options.messages_each
    return BYTES[PEERS[options.api]] // max(options.size, 512) // options.n_senders


def rate_of(what: str, options: MulticastOptions, runs: list[dict[str, Any]], repeat: int) -> Line:
    command = command_of(options, repeat)
    if not runs:
        return Line(what, f"none of {repeat} runs delivered everything", command=command)
    found = median_run(runs)
    line = rate_line(what, found, command)
    line.value += "; " + ("one order" if found["order_identical"] else "orders differ") + failures(runs, repeat)
    return line


def latency_of(what: str, options: MulticastOptions, runs: list[dict[str, Any]], repeat: int) -> Line:
    command = command_of(options, repeat)
    if not runs:
        return Line(what, f"none of {repeat} runs delivered everything", command=command)
    found = median_run([{**run, "p50_us": run["latency_us"]["p50"]} for run in runs], "p50_us")
    busiest = max([*found["cpu_share"]["applications"], *found["cpu_share"]["daemons"]])
    return Line(what, f"{latency_text(found)}; busiest process {busiest:.0%} of a core{failures(runs, repeat)}",
                command=command, figures=found)  # fmt: skip


def failures(runs: list[dict[str, Any]], repeat: int) -> str:
    return f"; {repeat - len(runs)} of {repeat} runs did not deliver everything" if len(runs) < repeat else ""


def say_who_leads(lines: list[Line], ways: list[tuple[str, MulticastOptions]],
                  found: dict[str, list[dict[str, Any]]]) -> None:
    """What is promised: at each size the best way of ours is ahead of the best of each peer."""
    rates = {what: median_run(found[what])["messages_per_s"] for what, _ in ways if found[what]}
    theirs = [rates[what] for what, options in ways if options.api in PEERS and what in rates]
    if not theirs:
        return
    for line, (what, options) in zip(lines, ways, strict=True):
        if options.api not in PEERS and not options.daemon and not options.single:
            line.target, line.met = "ahead of all others here", rates[what] > max(theirs)


def text_of(lines: list[Line]) -> str:
    """For a terminal."""
    width = max(len(line.what) for line in lines)
    return "\n".join(f"{line.what:<{width}}  {line.value}" for line in lines)
