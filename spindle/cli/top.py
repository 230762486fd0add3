"""`spindle top`: rates live in the terminal."""

from __future__ import annotations

import contextlib
import dataclasses
import select
import sys
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from spindle.cli.common import (
    Target,
    bytes_text,
    console,
    count_text,
    duration_text,
    escaped,
    json_option,
    print_json,
    table,
    target_options,
)
from spindle.cli.rates import Watched, as_object
from spindle.errors import NoDaemon

if TYPE_CHECKING:
    from rich.console import Group

    from spindle.cli.listing import Listing

HISTORY_MAX = 24
NOTHING = "[dim]-[/]"
BLOCKS = "▁▂▃▄▅▆▇█"

EPILOG = """\b
Examples:
  spindle top                    all nodes of this host, every second
  spindle top --node 2 -i 0.2    one node, five times a second
  spindle top --nodes host1,host2   these nodes of other hosts
  spindle top --once             one measurement as text, for scripts and reports
  spindle top --once --json

\b
Columns:
  sent, delivered   messages per second of applications here, and at this node
  nulls             null messages this node sent for not holding up the others
  batch s/r/d       mean messages in one send, receive and delivery batch
  pushes, posts     copies of own state to peers, and the writes they took
  rings, sleeps     doorbells rung, and times the predicate thread slept
  stalls            passes in which a sender had messages but no free slot
  lap               mean time of a pass that found work (longest since start)
  busy, cpu         part of a core in such passes, and of the whole process
Below, by topic: messages per second delivered to the readers on each node, and
how many messages the slowest member is behind (spindle status names who).
"""


@click.command(epilog=EPILOG)
@click.option(
    "-i",
    "--interval",
    type=click.FloatRange(0.05, 60),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between two looks.",
)
@click.option("--once", is_flag=True, help="Measure once, print, and end. So it does without a terminal.")
@json_option
@target_options
def top(target: Target, interval: float, once: bool, as_json: bool) -> int:
    """Watch the rates of the nodes of this host, or of those that --nodes names: messages, batches, nulls, doorbells,
    lap times.

    q or Ctrl-C ends.
    """
    if target.nodes:
        nodes = [Watched(dataclasses.replace(target, nodes=one)) for one in target.nodes.split(",")]
    else:
        nodes = [Watched(target, node) for node in target.local_nodes()]
    if not nodes:
        target.attach("spindle top").close()  # says why there is none
        raise NoDaemon(f"no daemon in domain {target.domain}: start one with `spindle daemon`")
    try:
        if once or as_json or not sys.stdout.isatty():
            return print_once(nodes, target, interval, as_json)
        return watch(nodes, target, interval)
    except KeyboardInterrupt:
        return 0
    finally:
        for node in nodes:
            node.close()


def print_once(nodes: list[Watched], target: Target, interval: float, as_json: bool) -> int:
    """Two looks, and the rates between them. Exit code 3 if no node answered."""
    for node in nodes:
        node.look(HISTORY_MAX)
    if all(node.last is None for node in nodes):
        raise NoDaemon(f"{nodes[0].state}: start one with `spindle daemon`" if not target.nodes else nodes[0].state)
    time.sleep(interval)
    for node in nodes:
        node.look(HISTORY_MAX)
    if as_json:
        print_json({"domain": target.domain, "nodes": [as_object(node) for node in nodes]})
    else:
        console().print(screen(nodes, target.domain, interval))
    return 0


def watch(nodes: list[Watched], target: Target, interval: float) -> int:
    """The live view, until q."""
    from rich.live import Live

    out = console()
    with keys() as pressed, Live(console=out, screen=True, auto_refresh=False) as live:
        due = time.monotonic()
        while True:
            _add_new(nodes, target)
            for node in nodes:
                node.look(HISTORY_MAX)
            live.update(screen(nodes, target.domain, interval, live=True), refresh=True)
            due = max(due + interval, time.monotonic())
            if pressed(due) in ("q", "Q", "\x1b"):
                return 0


def _add_new(nodes: list[Watched], target: Target) -> None:
    if target.nodes:
        return
    known = {node.node for node in nodes}
    nodes += [Watched(target, node) for node in target.local_nodes() if node not in known]
    nodes.sort(key=lambda node: node.node)


@contextlib.contextmanager
def keys() -> Iterator[Any]:
    """A function that waits until a time (monotonic) for a key and returns it, "" if there was none."""
    if not sys.stdin.isatty():
        yield _no_key
        return
    import os
    import termios
    import tty

    fd = sys.stdin.fileno()
    saved = termios.tcgetattr(fd)

    def pressed(until: float) -> str:
        ready, _, _ = select.select([fd], [], [], max(0.0, until - time.monotonic()))
        return os.read(fd, 64).decode(errors="replace")[:1] if ready else ""

    try:
        tty.setcbreak(fd)
        yield pressed
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, saved)


def _no_key(until: float) -> str:
    time.sleep(max(0.0, until - time.monotonic()))
    return ""


def screen(nodes: list[Watched], domain: int, interval: float, live: bool = False) -> Group:
    """Everything that is shown."""
    from rich.console import Group
    from rich.text import Text

    head = Text.assemble(("spindle top", "bold cyan"), f"  domain {domain}")
    if "view_id" in (counters := next((n.last.counters for n in nodes if n.last is not None), {})):
        head.append(f"  view {counters['view_id']}")
    head.append(f"  {time.strftime('%H:%M:%S')}  every {interval:g} s")
    if live:
        head.append("   q quits", "dim")
    parts: list[Any] = [head, Text(), message_table(nodes), Text()]
    if any(node.rates is not None for node in nodes):
        parts += [work_table(nodes), Text()]
    return Group(*parts, topic_table(nodes))


def message_table(nodes: list[Watched]) -> Listing:
    """One line a node: what its applications got from it."""
    figures = ("sent", "delivered", "bytes", "nulls", "batch s/r/d")
    shown = table("node", *figures, "delivered, lately", right=figures)
    for node in nodes:
        r = node.rates
        if r is None:
            shown.add_row(f"[bold]{node.node or '?'}[/]", *[""] * len(figures), _waiting(node))
            continue
        batches = "/".join(count_text(r.batches[kind]) for kind in ("send", "receive", "delivery"))
        delivered_bytes = r.per_s["delivered_bytes"]
        shown.add_row(
            f"[bold]{node.node}[/]",
            _rate(r.per_s["send_messages"]),
            _rate(r.per_s["delivery_messages"]),
            f"{bytes_text(delivered_bytes)}/s" if delivered_bytes else NOTHING,
            _rate(r.per_s["nulls"]),
            batches if any(r.batches.values()) else NOTHING,
            f"[cyan]{sparkline(node.history)}[/]",
        )
    return shown


def work_table(nodes: list[Watched]) -> Listing:
    """One line a node: what that cost it."""
    figures = ("pushes", "posts", "rings", "sleeps", "stalls", "lap (longest)", "busy", "cpu")
    shown = table("node", *figures, right=figures)
    for node in nodes:
        r = node.rates
        if r is None:
            continue
        stalls = r.per_s["stalls"]
        shown.add_row(
            f"[bold]{node.node}[/]",
            *(_rate(r.per_s[name]) for name in ("pushes", "posts", "rings", "sleeps")),
            f"[yellow]{count_text(stalls)}[/]" if stalls else NOTHING,
            f"{duration_text(r.lap_s)} ({duration_text(r.lap_max_s)})" if r.lap_s else NOTHING,
            f"{100 * r.busy:.0f}%",
            "?" if r.cpu is None else f"{100 * r.cpu:.0f}%",
        )
    return shown


def _waiting(node: Watched) -> str:
    return f"[yellow]{escaped(node.state)}[/]" if node.state else "[dim]measuring[/]"


def topic_table(nodes: list[Watched]) -> Listing:
    """One line a topic, the busiest first: how fast each node delivers it."""
    columns = [f"node {node.node or '?'}" for node in nodes]
    shown = table("topic", "level", *columns, "behind", "members", right=[*columns, "behind"],
                  folds=["topic"])
    infos = {info.spec.name: info for node in nodes if node.last is not None for info in node.last.infos}
    busiest = {name: max((n.rates.topics.get(name, 0.0) for n in nodes if n.rates), default=0.0) for name in infos}
    for name in sorted(infos, key=lambda name: (-busiest[name], name)):
        shown.add_row(
            f"[bold]{escaped(name)}[/]",
            infos[name].spec.level.name.lower(),
            *(_rate(node.rates.topics.get(name, 0.0)) if node.rates else NOTHING for node in nodes),
            _rate(max((node.rates.behind.get(name, 0) for node in nodes if node.rates), default=0)),
            " ".join(map(str, infos[name].members)),
        )
    if not infos:
        shown.add_row("[dim]no topics yet[/]")
    return shown


def sparkline(values: list[float]) -> str:
    """Rates as a line of blocks, the greatest of them full height."""
    high = max(values, default=0.0)
    if high <= 0:
        return BLOCKS[0] * len(values)
    return "".join(BLOCKS[min(7, int(value / high * 7.999))] for value in values)


def _rate(value: float) -> str:
    return count_text(value) if value else NOTHING
