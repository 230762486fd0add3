"""`spindle status --group`: every member of the group, and what is the matter with any of them.

Why as the members say themselves: what one node sees of the others (`spindle status`) doesn't tell which of them hang,
have another view, or run another release.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from spindle.cli.common import Target, bytes_text, console, count_text, duration_text, escaped, print_json, table
from spindle.cli.topics import holder_object
from spindle.group.endpoints import PORT
from spindle.group.holding import holders, stuck

if TYPE_CHECKING:
    from rich.console import Console

    from spindle.client import Session
    from spindle.group.endpoints import Endpoint
    from spindle.group.holding import Holder

HEALTHY = "serves"
SECOND_LOOK_S = 0.25  # after the first one: what is only in flight is delivered by then


def show_group(target: Target, as_json: bool) -> int:
    """Prints it. The exit code is 1 if a member doesn't answer, or isn't at one with the others."""
    with target.attach("spindle status") as session:
        state = group_of(session)
    if as_json:
        print_json(state)
    else:
        out = console()
        print_head(out, state)
        print_nodes(out, state["nodes"])
        print_topics(out, state["topics"])
        print_matters(out, state)
    return 1 if state["matters"] else 0


def group_of(session: Session) -> dict[str, Any]:
    """For JSON: the asked node and its view, "nodes" (each as in `spindle status --json`, and "state"), "topics" over
    all nodes, and "matters": in words, what should not be."""
    view, nodes, endpoints = session.view(), session.group_status(), session.endpoints(everything=True)
    settled = max((int(one.get("view_id", -1)) for one in nodes), default=-1)
    known = {member["node_id"]: member for one in nodes for member in one.get("members", ())}
    for one in nodes:
        one["state"] = state_of_node(one, settled)
        if "error" in one:  # what others know of it
            member = known.get(one["node_id"], {})
            one |= {name: member[name] for name in ("name", "pid") if name in member}
    topics: dict[str, dict[str, Any]] = {}
    for info in session.topics():
        name = info.spec.name
        here = [one for one in endpoints if one.topic == name and one.kind == PORT]
        topics[name] = {"name": name, "level": info.spec.level.name.lower(), "members": list(info.members),
                        "writers": sum(one.is_writer for one in here),
                        "readers": sum(not one.is_writer for one in here), "held_up_by": []}
    for name, found in stuck_topics(session, nodes, endpoints).items():
        if name in topics:
            topics[name]["held_up_by"] = [holder_object(one) for one in found]
    listed = sorted(topics.values(), key=lambda one: one["name"])
    return {"domain_id": session.domain_id, "asked": session.node_id, "view_id": view.view_id,
            "nodes": nodes, "topics": listed, "matters": list(matters(nodes, listed))}


def stuck_topics(session: Session, nodes: Iterable[Mapping[str, Any]], endpoints: list[Endpoint]
                 ) -> dict[str, list[Holder]]:
    """Topics that don't go on, and because of whom. What seems to be held up is looked at a second time."""
    before = {(one["node_id"], topic["name"]): topic for one in nodes for topic in one.get("topics", ())
              if holders(topic, endpoints)}
    found: dict[str, list[Holder]] = {}
    if not before:
        return found
    time.sleep(SECOND_LOOK_S)
    for one in session.group_status(figures=True):
        for topic in one.get("topics", ()):
            then = before.get((one["node_id"], topic["name"]))
            if then is not None and (still := stuck(then, topic, endpoints)):
                found.setdefault(topic["name"], still)
    return found


def state_of_node(one: Mapping[str, Any], settled: int) -> str:
    """What a member does, in a word or two."""
    if "error" in one:
        return "doesn't answer"
    if one.get("phase") not in (None, "stable"):
        awaiting = f", waits for {one['awaiting']}" if one.get("awaiting") else ""
        return f"changes its view{awaiting}"
    if int(one.get("view_id", settled)) < settled:
        return f"is in view {one['view_id']} still"
    return HEALTHY


def matters(nodes: Iterable[Mapping[str, Any]], topics: Iterable[Mapping[str, Any]]) -> Iterable[str]:
    listed = list(nodes)
    for one in listed:
        if "error" in one:
            yield str(one["error"])
        elif one["state"] != HEALTHY:
            yield f"node {one['node_id']} {one['state']}"
        for member in one.get("members", ()):
            if not member.get("live", True):
                yield f"node {one['node_id']} is about to leave node {member['node_id']} out"
    releases = {str(one["release"]) for one in listed if one.get("release")}
    if len(releases) > 1:
        yield f"the nodes run different releases: {', '.join(sorted(releases))}"
    for topic in topics:
        for holder in topic["held_up_by"]:
            yield f"topic {topic['name']} waits for {holder['text']}"
    for one in listed:
        for topic in one.get("topics", ()):
            if topic.get("waits_for"):
                yield f"topic {topic['name']} waits at node {one['node_id']} for {topic['waits_for']}"


def print_head(out: Console, state: Mapping[str, Any]) -> None:
    count = len(state["nodes"])
    out.print(f"[bold cyan]group of {count} node{'' if count == 1 else 's'}[/]  domain {state['domain_id']}  "
              f"view {state['view_id']}  [dim]asked at node {state['asked']}[/]\n")


def print_nodes(out: Console, nodes: Iterable[Mapping[str, Any]]) -> None:
    figures = ("process", "up", "programs", "sent", "delivered", "bytes")
    listed = list(nodes)
    known = {member["node_id"]: member for one in listed for member in one.get("members", ())}
    releases = {one.get("release", "") for one in listed} - {""}
    columns = ["node", "name", "state", *figures, *(["release"] if len(releases) > 1 else []), "address"]
    shown = table(*columns, right=["node", *figures], folds=("name", "state"), spare=("address",))
    for one in listed:
        healthy = one["state"] == HEALTHY
        counters = one.get("counters", {})
        own = known.get(one["node_id"], {})
        shown.add_row(
            f"[bold]{one['node_id']}[/]",
            escaped(str(one.get("name", ""))),
            f"[{'green' if healthy else 'yellow'}]{escaped(one['state'])}[/]",
            str(one.get("pid") or ""),
            duration_text(one["uptime_s"]) if "uptime_s" in one else "",
            str(sum(app.get("name") != "spindle status" for app in one["applications"])) if "applications" in one
            else "",
            count_text(counters["send_messages"]) if counters else "",
            count_text(counters["delivery_messages"]) if counters else "",
            bytes_text(counters["delivered_bytes"]) if counters else "",
            *([str(one.get("release", ""))] if len(releases) > 1 else []),
            escaped(str(own.get("endpoint", ""))),
        )
    out.print(shown)


def print_topics(out: Console, topics: Iterable[Mapping[str, Any]]) -> None:
    shown = table("topic", "level", "writers", "readers", "nodes", "waits for", title="\nTopics",
                  right=("writers", "readers"), folds=("topic",))
    for one in topics:
        slowest = " ".join(str(holder["node"]) for holder in one["held_up_by"])
        shown.add_row(f"[bold]{escaped(one['name'])}[/]", one["level"], str(one["writers"]), str(one["readers"]),
                      " ".join(map(str, one["members"])) or "-", f"[yellow]node {slowest}[/]" if slowest else "")
    if shown.row_count:
        out.print(shown)
    else:
        out.print("\n[dim]no topics yet[/]")


def print_matters(out: Console, state: Mapping[str, Any]) -> None:
    out.print()
    if not state["matters"]:
        out.print("[green]all members answer, in one view; no topic is held up[/]")
    for one in state["matters"]:
        out.print(f"[yellow]{escaped(one)}[/]")


__all__ = ["show_group"]
