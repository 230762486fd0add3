"""`spindle top`: rates live in the terminal."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

import click

from spindle.cli.common import (
    Target,
    bytes_text,
    count_text,
    duration_text,
    escaped,
    json_option,
    print_json,
    table,
    target_options,
)
from spindle.cli.rates import Watched, Watching, Whole, as_object
from spindle.cli.screen import NOTHING, latency_text, rate_text, watch

if TYPE_CHECKING:
    from rich.console import Group

    from spindle.cli.listing import Listing

HISTORY_MAX = 16
BLOCKS = "▁▂▃▄▅▆▇█"

EPILOG = """\b
Examples:
  spindle top                    all nodes of the group, every second
  spindle top --node 2 -i 0.2    one node, five times a second
  spindle top --nodes host1,host2   from a host without a node
  spindle top --once             measured once, as text, for scripts, reports
  spindle top --once --json
  spindle topics NAME --watch    one topic, node by node

\b
Columns, the last ones only where the terminal is wide enough:
  sent, delivered   messages/s of applications there, and at that node
  half in, 99% in   half of what was delivered there, and 99%, was written no
                    longer before (clocks of hosts differ; see spindle doctor)
  nulls             null messages that the node sent for not holding up others
  busy, cpu         part of a core in passes with work, and of the process
  lap (longest)     mean time of such a pass (longest since the node started)
  stalls            passes in which a sender had messages but no free slot
  batch s/r/d       mean messages in one send, receive and delivery batch
  pushes, posts     copies of own state to peers, and the writes they took
  rings, sleeps     doorbells rung, and times the predicate thread slept
Below, by topic: messages and bytes per second at the node that delivers the
fastest; how many messages the slowest member is behind, and who that is.
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
    """Watch the nodes of the group: messages, latencies, who is behind, and what it costs. With --node of one alone.

    q or Ctrl-C ends.
    """
    watching = Watching(target, "spindle top", HISTORY_MAX, alone=target.node is not None)
    try:
        if once or as_json or not sys.stdout.isatty():
            return print_once(watching, target, interval, as_json)
        return watch(interval, watching.look, lambda: screen(watching, target.domain, interval, live=True))
    except KeyboardInterrupt:
        return 0
    finally:
        watching.close()


def print_once(watching: Watching, target: Target, interval: float, as_json: bool) -> int:
    """Two looks, and the rates between them. Exit code 3 if no node answered."""
    from spindle.cli.common import console

    look_twice(watching, interval)
    if as_json:
        print_json({"domain": target.domain, "nodes": [as_object(node) for node in watching.nodes.values()]})
    else:
        console().print(screen(watching, target.domain, interval))
    return 0


def look_twice(watching: Watching, interval: float) -> None:
    """So that there are rates. Raises SpindleError if nobody answers."""
    watching.look()
    watching.check_any()
    time.sleep(interval)
    watching.look()


def head(watching: Watching, title: str, domain: int, interval: float, live: bool) -> Any:
    """The first line: what this is, of which view, and when."""
    from rich.text import Text

    line = Text.assemble((title, "bold cyan"), f"  domain {domain}")
    counters = next((one.last.counters for one in watching.nodes.values() if one.last is not None), {})
    if "view_id" in counters:
        line.append(f"  view {counters['view_id']}")
    line.append(f"  {time.strftime('%H:%M:%S')}  every {interval:g} s")
    if live:
        line.append("   q quits", "dim")
    if watching.state:
        line.append(f"\n{watching.state}", "yellow")
    return line


def screen(watching: Watching, domain: int, interval: float, live: bool = False) -> Group:
    """Everything that is shown."""
    from rich.console import Group
    from rich.text import Text

    nodes = list(watching.nodes.values())
    parts: list[Any] = [head(watching, "spindle top", domain, interval, live), Text(), message_table(nodes), Text()]
    if any(node.rates is not None for node in nodes):
        parts += [work_table(nodes), Text()]
    return Group(*parts, topic_table(watching), *held_up_lines(watching))


def message_table(nodes: list[Watched]) -> Listing:
    """One line a node: what its applications got from it."""
    figures = ("sent", "delivered", "bytes", "half in", "99% in", "nulls")
    shown = table("node", *figures, "delivered, lately", right=figures)
    for node in nodes:
        r = node.rates
        if r is None:
            shown.add_row(f"[bold]{node.node or '?'}[/]", *[""] * len(figures), _waiting(node))
            continue
        delivered_bytes = r.per_s["delivered_bytes"]
        shown.add_row(
            f"[bold]{node.node}[/]",
            rate_text(r.per_s["send_messages"]),
            rate_text(r.per_s["delivery_messages"]),
            f"{bytes_text(delivered_bytes)}/s" if delivered_bytes else NOTHING,
            latency_text(r.latencies, 0.5),
            latency_text(r.latencies, 0.99),
            rate_text(r.per_s["nulls"]),
            f"[cyan]{sparkline(node.history)}[/]",
        )
    return shown


def work_table(nodes: list[Watched]) -> Listing:
    """One line a node: what that cost it."""
    spare = ("pushes", "posts", "rings", "sleeps")
    figures = ("busy", "cpu", "lap (longest)", "stalls", "batch s/r/d", *spare)
    shown = table("node", *figures, right=figures, spare=spare)
    for node in nodes:
        r = node.rates
        if r is None:
            continue
        stalls = r.per_s["stalls"]
        batches = "/".join(count_text(r.batches[kind]) for kind in ("send", "receive", "delivery"))
        shown.add_row(
            f"[bold]{node.node}[/]",
            f"{100 * r.busy:.0f}%",
            "?" if r.cpu is None else f"{100 * r.cpu:.0f}%",
            f"{duration_text(r.lap_s)} ({duration_text(r.lap_max_s)})" if r.lap_s else NOTHING,
            f"[yellow]{count_text(stalls)}[/]" if stalls else NOTHING,
            batches if any(r.batches.values()) else NOTHING,
            *(rate_text(r.per_s[name]) for name in spare),
        )
    return shown


def _waiting(node: Watched) -> str:
    return f"[yellow]{escaped(node.state)}[/]" if node.state else "[dim]measuring[/]"


def topic_table(watching: Watching, names: set[str] | None = None) -> Listing:
    """One line a topic, the busiest first. `names`: those alone."""
    figures = ("messages", "bytes", "half in", "99% in", "behind")
    shown = table("topic", "level", *figures, "slowest", "nodes", right=figures, folds=["topic"], spare=["nodes"])
    rows = []
    for info in watching.infos:
        if names is None or info.spec.name in names:
            rows.append((info, Whole.of(watching.of_topic(info.spec.name).values())))
    for info, whole in sorted(rows, key=lambda row: (-row[1].messages, row[0].spec.name)):
        slowest = watching.slowest.get(info.spec.name)
        shown.add_row(
            f"[bold]{escaped(info.spec.name)}[/]",
            info.spec.level.name.lower(),
            rate_text(whole.messages),
            f"{bytes_text(whole.bytes)}/s" if whole.bytes else NOTHING,
            latency_text(whole.latencies, 0.5),
            latency_text(whole.latencies, 0.99),
            rate_text(whole.behind),
            f"[yellow]node {' '.join(map(str, slowest))}[/]" if slowest else "",
            " ".join(map(str, info.members)),
        )
    if not rows:
        shown.add_row("[dim]no topics yet[/]")
    return shown


def held_up_lines(watching: Watching, names: set[str] | None = None) -> list[Any]:
    """Whom topics wait for, in words."""
    from rich.text import Text

    return [Text.from_markup(f"[yellow]topic {escaped(name)} waits for {escaped(str(one))}[/]")
            for name, found in sorted(watching.held_up.items()) if names is None or name in names for one in found]


def sparkline(values: list[float]) -> str:
    """Rates as a line of blocks, the greatest of them full height."""
    high = max(values, default=0.0)
    if high <= 0:
        return BLOCKS[0] * len(values)
    return "".join(BLOCKS[min(7, int(value / high * 7.999))] for value in values)
