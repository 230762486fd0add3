"""`spindle status`: one node, and the group as it sees it."""

from __future__ import annotations

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
from spindle.cli.topics import as_object, holder_object
from spindle.config.settings import size_text
from spindle.group.endpoints import PORT
from spindle.group.holding import holders

if TYPE_CHECKING:
    from rich.console import Console

    from spindle.client import Session

SILENT_SHOWN_S = 0.3  # a node sends some twenty heartbeats a suspect timeout, so this silence is worth a word
EPILOG = """\b
Examples:
  spindle status                   the daemon of domain 0 on this host
  spindle status --group           every node of the group, from any of them
  spindle status --domain 4 --node 2
  spindle status --json | jq .counters.nulls
  spindle status >/dev/null && echo up       (exit code 3: no daemon)
  spindle status --group >/dev/null || echo "not whole"    (exit code 1)
"""


@click.command(epilog=EPILOG)
@click.option("-g", "--group", is_flag=True, help="Show all nodes of the group, as they say themselves.")
@json_option
@target_options
def status(target: Target, group: bool, as_json: bool) -> int:
    """Show a node: its group, its topics and how far they are, its applications, its counters; or the whole group.

    Received, delivered and persisted count a topic's messages since this node has had it open. Where a topic's writers
    are held up, the node, and the programs whose readers are too slow there, are named.
    """
    if group:
        from spindle.cli.group_status import show_group

        return show_group(target, as_json)
    with target.attach("spindle status") as session:
        state = state_of(session)
    if as_json:
        print_json(state)
        return 0
    out = console()
    print_head(out, state)
    for part in (print_members, print_topics, print_applications, print_counters):
        out.print()
        part(out, state)
    return 0


def state_of(session: Session) -> dict[str, Any]:
    """Everything that is known about a node, for JSON: the node's own status, completed by what all nodes tell alike.

    Always there: node_id, domain_id, pid, embedded, view_id, rank, members, topics, applications, counters.
    """
    state = session.status()
    view = session.view()
    announced = session.endpoints(everything=True)
    endpoints = [one for one in announced if one.kind == PORT]
    own_topics = {one.get("name"): one for one in state.get("topics", ()) if isinstance(one, dict)}
    topics = []
    for info in session.topics():
        own = own_topics.get(info.spec.name, {})
        held_up_by = [holder_object(one) for one in holders(own, announced)]
        topics.append({**own, **as_object(info, [one for one in endpoints if one.topic == info.spec.name]),
                       "held_up_by": held_up_by})
    members = state.get("members") or [{"node_id": node} for node in view.node_ids]
    return {
        **state,
        "node_id": session.node_id,
        "domain_id": session.domain_id,
        "pid": session.node_pid,
        "embedded": session.embedded,
        "view_id": view.view_id,
        "rank": view.my_rank,
        "members": members,
        "topics": sorted(topics, key=lambda one: one["name"]),
        "applications": state.get("applications", []),
        "counters": session.counters().snapshot(),
    }


def print_head(out: Console, state: dict[str, Any]) -> None:
    parts = [f"[bold cyan]node {state['node_id']}[/]"]
    if state.get("name"):
        parts.append(escaped(str(state["name"])))
    parts.append(f"domain {state['domain_id']}")
    parts.append(f"process {state['pid']}{' (embedded)' if state['embedded'] else ''}")
    parts.append(f"view {state['view_id']}, rank {state['rank']} of {len(state['members'])}")
    if isinstance(state.get("uptime_s"), (int, float)):
        parts.append(f"up {duration_text(state['uptime_s'])}")
    if state.get("phase") not in (None, "stable"):
        awaiting = f", waiting for {escaped(str(state['awaiting']))}" if state.get("awaiting") else ""
        parts.append(f"[yellow]{escaped(str(state['phase']))}{awaiting}[/]")
    out.print("  ".join(parts))


def print_members(out: Console, state: dict[str, Any]) -> None:
    shown = table("rank", "node", "process", "name", "by", "", title="Members", right=("rank", "node", "process"),
                  folds=("name",))
    for rank, one in enumerate(state["members"]):
        here = "this node" if one["node_id"] == state["node_id"] else ""
        note = f"[dim]{here}[/]"
        if not one.get("live", True):
            note = "[yellow]lost, about to be left out[/]"
        elif one.get("silent_s", 0) >= SILENT_SHOWN_S:
            note = f"[yellow]no sign of life for {one['silent_s']:.1f} s[/]"
        shown.add_row(
            str(rank),
            f"[bold]{one['node_id']}[/]",
            str(one.get("pid") or "?"),
            escaped(str(one.get("name") or "")),
            escaped(_way(one)),
            note,
        )
    out.print(shown)


def _way(member: dict[str, Any]) -> str:
    """By which fabric this node reaches the member, and where if that is another host."""
    fabric = str(member.get("fabric") or "")
    return f"{fabric} {member['endpoint']}" if fabric not in ("", "shm") and member.get("endpoint") else fabric


def print_topics(out: Console, state: dict[str, Any]) -> None:
    columns = ("received", "delivered", "persisted", "waits for")
    shown = table(
        "topic",
        "level",
        "size max",
        "window",
        "writers",
        "readers",
        *columns,
        title="Topics",
        right=("size max", "window", "writers", "readers", "received", "delivered", "persisted"),
        folds=("topic",),
        spare=("size max", "window"),  # `spindle topics` has them
    )
    for one in state["topics"]:
        received, delivered, persisted, behind = frontiers(one, state["node_id"])
        slowest = [holder["node"] for holder in one.get("held_up_by", ())] or behind
        shown.add_row(
            f"[bold]{escaped(one['name'])}[/]",
            one["level"],
            size_text(one["size_max"]),
            str(one["window"]),
            str(one["writers"]),
            str(one["readers"]),
            _number(received),
            _number(delivered),
            _number(persisted) if one["level"] == "logged" else "[dim]-[/]",
            f"{'node' if len(slowest) == 1 else 'nodes'} {' '.join(map(str, slowest))}" if slowest else "",
        )
    if state["topics"]:
        out.print(shown)
        for one in state["topics"]:
            for holder in one.get("held_up_by", ()):
                out.print(f"[yellow]topic {escaped(one['name'])} waits for {escaped(holder['text'])}[/]")
            if one.get("waits_for"):
                out.print(f"[yellow]topic {escaped(one['name'])} waits for {escaped(one['waits_for'])}[/]")
    else:
        out.print("[dim]no topics yet[/]")


def frontiers(topic: dict[str, Any], node_id: int) -> tuple[int | None, int | None, int | None, list[int]]:
    """A topic's numbers at this node (received, delivered, persisted), and the nodes whose received number is behind.
    They count messages since the node has had the topic open. Those of the view begin anew with each view, and count
    null messages, too: they only say how far received and persisted are from what was delivered."""
    members = topic.get("members", [])
    stability = topic.get("stability") or {}

    def own(kind: str) -> int | None:
        values = stability.get(kind)
        if not isinstance(values, list) or node_id not in members or len(values) != len(members):
            return None
        return int(values[members.index(node_id)])

    found = own("received"), own("delivered"), own("persisted")
    total = topic.get("delivered")
    before = total - found[1] if isinstance(total, int) and found[1] is not None else 0
    received, delivered, persisted = (None if value is None else max(before + value, 0) for value in found)
    values = stability.get("received")
    behind = [node for node, value in zip(members, values, strict=True) if found[0] is not None and value < found[0]
              ] if isinstance(values, list) and found[0] is not None else []
    return received, delivered, persisted, behind


def print_applications(out: Console, state: dict[str, Any]) -> None:
    shown = table("application", "process", "user", "writes", "reads", title="Applications", right=("process", "user"),
                  folds=("writes", "reads"))
    for one in state["applications"]:
        if one.get("name") == "spindle status":
            continue  # ourselves
        shown.add_row(
            f"[bold]{escaped(str(one.get('name', '')))}[/]",
            str(one.get("pid") or "?"),
            str(one.get("uid", "?")),
            _topics(one.get("writers", [])),
            _topics(one.get("readers", [])),
        )
    if shown.row_count:
        out.print(shown)
    else:
        out.print("[dim]no applications attached[/]")


def print_counters(out: Console, state: dict[str, Any]) -> None:
    counters: dict[str, int] = state["counters"]
    shown = table("", "count", "more", title="Counters since the start", folds=("more",))
    shown.show_header = False

    def mean(kind: str) -> str:
        batches = counters.get(f"{kind}_batches", 0)
        return f"{counters.get(f'{kind}_messages', 0) / batches:.1f} a batch" if batches else ""

    def row(name: str, value: str, more: str = "") -> None:
        shown.add_row(f"[dim]{name}[/]", value, f"[dim]{more}[/]")

    def count(name: str) -> str:
        return f"{counters.get(name, 0):,}"

    row("sent", count("send_messages"), _joined(bytes_text(counters.get("sent_bytes", 0)), mean("send")))
    row("received", count("receive_messages"), _joined("nulls included", mean("receive")))
    row(
        "delivered",
        count("delivery_messages"),
        _joined(bytes_text(counters.get("delivered_bytes", 0)), mean("delivery")),
    )
    row("nulls sent", count("nulls"))
    row("pushes", count("pushes"), f"{count('posts')} posts, {count('rings')} doorbells rung")
    laps = counters.get("busy_laps", 0)
    lap = duration_text(counters.get("busy_ns", 0) * 1e-9 / laps) if laps else "-"
    longest = duration_text(counters.get("lap_ns_max", 0) * 1e-9)
    row(
        "laps",
        count_text(counters.get("laps", 0)),
        f"{count_text(laps)} busy, {lap} each, longest {longest}; slept {count('sleeps')} times",
    )
    if counters.get("persisted_messages"):
        row("persisted", count("persisted_messages"))
    row("view changes", count("view_changes"))
    for name, text in TROUBLES.items():
        if counters.get(name):
            shown.add_row(f"[yellow]{name.replace('_', ' ')}[/]", f"[yellow]{count(name)}[/]", f"[dim]{text}[/]")
    out.print(shown)


# counters that are shown only when they are not 0, and what they mean for the operator
TROUBLES = {
    "stalls": "passes in which a sender had messages but no free slot: somebody is slow",
    "delivery_blocked": "passes in which a keep-all reader held delivery back",
    "resent_messages": "own messages sent again in a new view",
    "refused_messages": "messages of an application dropped because their header was nonsense",
    "corrupt_slots": "slots with a wrong stamp, never delivered: please report this",
}


def _joined(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _number(value: int | None) -> str:
    return "[dim]-[/]" if value is None else str(value)


def _topics(names: list[str]) -> str:
    from collections import Counter

    times = Counter(names)
    return escaped(", ".join(name if count == 1 else f"{name} ×{count}" for name, count in sorted(times.items())))
