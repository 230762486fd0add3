"""`spindle topics --watch`: how fast topics are, and how late, node by node for one of them.

Why no reader: nodes count what they deliver. So to look costs the topic nothing, and changes nobody's view.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from spindle.cli.common import Target, bytes_text, console, escaped, print_json, table
from spindle.cli.rates import Watching, Whole, topic_object
from spindle.cli.screen import NOTHING, latency_text, rate_text, watch
from spindle.cli.top import head, held_up_lines, look_twice, topic_table
from spindle.config.settings import size_text
from spindle.errors import TopicUnknown

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Group

    from spindle.cli.listing import Listing
    from spindle.group.topics import TopicInfo

TITLE = "spindle topics"


def watch_topics(target: Target, wanted: Callable[[list[TopicInfo]], list[TopicInfo]], single: bool, interval: float,
                 once: bool, as_json: bool) -> int:
    """`wanted` chooses among the group's topics, `single`: one, shown node by node. Raises SpindleError."""
    watching = Watching(target, TITLE)

    def chosen() -> list[TopicInfo]:
        try:
            return wanted(list(watching.infos))
        except TopicUnknown:
            if watching.state:
                return []  # nobody tells at the moment
            raise

    def screen(live: bool = True) -> Group:
        from rich.console import Group
        from rich.text import Text

        infos = chosen()
        names = {info.spec.name for info in infos}
        parts: list[Any] = [head(watching, TITLE, target.domain, interval, live), Text()]
        if single and infos:
            parts += [one_line(infos[0]), Text(), node_table(watching, infos[0])]
        elif infos or not watching.state:
            parts.append(topic_table(watching, names))
        return Group(*parts, *held_up_lines(watching, names))

    try:
        if once or as_json or not sys.stdout.isatty():
            look_twice(watching, interval)
            if as_json:
                print_json([rates_object(watching, info) for info in chosen()])
            else:
                console().print(screen(live=False))
            return 0
        watching.look()
        chosen()  # before the terminal is cleared
        return watch(interval, watching.look, screen)
    except KeyboardInterrupt:
        return 0
    finally:
        watching.close()


def one_line(info: TopicInfo) -> Any:
    from rich.text import Text

    spec = info.spec
    return Text.assemble((spec.name, "bold"), f"  {spec.level.name.lower()}, up to {size_text(spec.size_max)}, "
                                              f"window {spec.window}")


def node_table(watching: Watching, info: TopicInfo) -> Listing:
    """What each node delivers of a topic, and all together."""
    figures = ("messages", "bytes", "half in", "99% in", "all in")
    shown = table("node", *figures, "behind", "", right=[*figures, "behind"])
    found = watching.of_topic(info.spec.name)

    def row(name: str, one: Any, note: str = "") -> None:
        shown.add_row(
            f"[bold]{name}[/]", rate_text(one.messages), f"{bytes_text(one.bytes)}/s" if one.bytes else NOTHING,
            *(latency_text(one.latencies, part) for part in (0.5, 0.99, 1.0)), rate_text(one.behind), note)

    slowest = watching.slowest.get(info.spec.name, ())
    for node in watching.nodes.values():
        if node.node in found:
            role = ["writes"] if node.node in info.senders else []
            row(str(node.node), found[node.node], "[yellow]slowest[/]" if node.node in slowest else
                f"[dim]{' '.join(role)}[/]")
        elif node.state:
            shown.add_row(f"[bold]{node.node}[/]", *[""] * 6, f"[yellow]{escaped(node.state)}[/]")
        elif node.node in info.members:
            shown.add_row(f"[bold]{node.node}[/]", *[""] * 6, "[dim]measuring[/]")
    if len(found) > 1:
        row("all", Whole.of(found.values()))
    if not shown.row_count:
        shown.add_row("[dim]nobody reads or writes it[/]")
    return shown


def rates_object(watching: Watching, info: TopicInfo) -> dict[str, Any]:
    """For JSON: per second, and seconds."""
    found = watching.of_topic(info.spec.name)
    return {"name": info.spec.name, **topic_object(Whole.of(found.values())),
            "nodes": [{"node": node, **topic_object(one)} for node, one in found.items()],
            "slowest": watching.slowest.get(info.spec.name, []),
            "held_up_by": [{"node": one.node_id, "text": str(one)} for one in watching.held_up.get(info.spec.name, ())]}


__all__ = ["watch_topics"]
