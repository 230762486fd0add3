"""`spindle ls`: who is in the domain, and what each reads and writes."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import click

from spindle.cli.common import (
    Target,
    complete_topic,
    console,
    escaped,
    is_like,
    json_option,
    print_json,
    table,
    target_options,
)
from spindle.cli.topics import topic_in_group

if TYPE_CHECKING:
    from spindle.group.endpoints import Endpoint

EPILOG = """\b
Examples:
  spindle ls                      all participants, their writers and readers
  spindle ls 'flight/*'           those who have such topics open
  spindle ls --json | jq -r '.[].application'

\b
A participant is a program, or a part of one. Topics in an order group stand
there under their own names. `spindle topics` lists the topics themselves.
"""


@dataclasses.dataclass(frozen=True)
class Has:
    """A reader or writer, as far as it is the same as others of its participant."""

    writes: bool
    topic: str
    group: str  # the order group that the topic is in; empty: none
    type_name: str  # empty: it doesn't say


@dataclasses.dataclass
class Participant:
    """What announces itself as one, or an application without."""

    node_id: int
    application: str
    pid: int
    name: str = ""
    has: Counter[Has] = dataclasses.field(default_factory=Counter)

    def as_object(self) -> dict[str, Any]:
        """For JSON. pid 0: not visible to its node."""
        ends = [{"kind": "writer" if one.writes else "reader", "topic": one.topic, "type": one.type_name,
                 **({"order": one.group} if one.group else {}), "count": count} for one, count in self.sorted()]
        return {"name": self.name, "node": self.node_id, "application": self.application, "pid": self.pid,
                "endpoints": ends}

    def sorted(self) -> list[tuple[Has, int]]:
        """Writers first, by topic; each with how many there are."""
        return sorted(self.has.items(), key=lambda item: (not item[0].writes, item[0].topic, item[0].type_name))


@click.command(epilog=EPILOG)
@click.argument("topics", nargs=-1, shell_complete=complete_topic)
@json_option
@target_options
def ls(target: Target, topics: tuple[str, ...], as_json: bool) -> int:
    """List who is in the domain, and the topics that each writes and reads.

    With TOPICS (names, or patterns with * and ?) only those who have one of
    them open. What the access list hides from you is not shown.
    """
    with target.attach("spindle ls") as session:
        endpoints = session.endpoints(everything=True)
    found = participants(endpoints, topics)
    if as_json:
        print_json([one.as_object() for one in found])
    elif found:
        _print(found)
    else:
        click.echo(f"nobody has {' or '.join(map(repr, topics))} open" if topics else
                   "nobody is here; programs are shown while they run")
    return 0


def participants(endpoints: Iterable[Endpoint], patterns: tuple[str, ...] = ()) -> list[Participant]:
    """Who has announced something, by node, application and pid; with `patterns` those who read or write a topic whose
    name, or whose order group's, is like one of them."""
    from spindle.group.endpoints import PARTICIPANT, PORT

    listed = list(endpoints)
    found: dict[Any, Participant] = {
        one.owner: Participant(one.node_id, one.app_name, one.pid, _name(one.endpoint))
        for one in listed if one.kind == PARTICIPANT}
    for one in listed:
        if one.kind != PORT:
            continue
        group = one.topic if (topic := topic_in_group(one.endpoint)) else ""
        topic = topic or one.topic
        if patterns and not any(is_like(name, patterns) for name in (topic, group)):
            continue
        owner = one.owner if one.owner in found else (one.node_id, one.app_name, one.pid)
        there = found.setdefault(owner, Participant(one.node_id, one.app_name, one.pid))
        there.has[Has(one.is_writer, topic, group, _type_name(one.endpoint))] += 1
    return sorted((one for one in found.values() if one.has or not patterns),
                  key=lambda one: (one.node_id, one.application, one.pid, one.name))


def _said(endpoint: bytes) -> dict[str, Any]:
    """What an endpoint of the DDS layer announces; nothing of endpoints of others."""
    try:
        said = json.loads(endpoint)
    except (ValueError, RecursionError):
        return {}
    return said if isinstance(said, dict) else {}


def _name(endpoint: bytes) -> str:
    try:
        return str(_said(endpoint)["qos"]["EntityName"]["name"])
    except (KeyError, TypeError):
        return ""


def _type_name(endpoint: bytes) -> str:
    found = _said(endpoint).get("type", "")
    return found if isinstance(found, str) else ""


def _print(found: list[Participant]) -> None:
    shown = table("", "topic", "type", "", folds=("type",))
    shown.show_header = False
    for number, one in enumerate(found):
        if number:
            shown.add_row()
        shown.add_row(f"[dim]node {one.node_id}[/]", f"[bold]{escaped(one.name or one.application)}[/]",
                      escaped(one.application) if one.name else "", f"pid {one.pid}" if one.pid else "")
        for has, count in one.sorted():
            shown.add_row(
                "  [green]writes[/]" if has.writes else "  [cyan]reads[/]",
                escaped(has.topic) + (f" [dim]in[/] {escaped(has.group)}" if has.group else ""),
                escaped(has.type_name), f"{count} times" if count > 1 else "")
    console().print(shown)
