"""`spindle topics`: what can be published and subscribed, and who does."""

from __future__ import annotations

import json
from collections import Counter
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

from spindle.cli.common import (
    Target,
    complete_topic,
    console,
    escaped,
    json_option,
    note,
    print_json,
    table,
    target_options,
)
from spindle.cli.root import EXIT_FAILED
from spindle.config.settings import size_text
from spindle.errors import AccessDenied, TopicError, TopicUnknown
from spindle.group.topics import CLEANUP_NEVER

if TYPE_CHECKING:
    from collections.abc import Callable

    from spindle.client import Session
    from spindle.group.endpoints import Endpoint
    from spindle.group.holding import Holder
    from spindle.group.topics import TopicInfo

EPILOG = """\b
Examples:
  spindle topics                  all topics of the domain
  spindle topics flight/air       its definition, its readers and writers
  spindle topics 'flight/*'       those whose names are like that (*, ?, [ab])
  spindle topics flight/air --watch   its rates and latencies, node by node
  spindle topics 'flight/*' --watch --once --json
  spindle topics --json | jq -r '.[].name'
  spindle topics old --delete     its number and memory come back
  spindle topics old 'test/*' --delete   several, but for those in use
  spindle topics log --redefine   logged, open nowhere: the next program that
                                  declares it says what it is

\b
Levels: unordered (as received), atomic (same order everywhere), volatile (and
kept in memory for late joiners), logged (and kept on disk).
"""


@click.command(epilog=EPILOG)
@click.argument("names", nargs=-1, metavar="[NAME]...", shell_complete=complete_topic)
@click.option("--delete", is_flag=True, help="Delete NAMEs, or what is like them. What somebody has open stays.")
@click.option("--redefine", is_flag=True,
              help="Give up what NAMEs are, which are logged: the next declaration says what they are, and journals "
              "are put aside when it is opened. Until it comes, --delete takes that back.")
@click.option("-w", "--watch", "watched", is_flag=True,
              help="Watch messages and bytes per second, and latency; q ends.")
@click.option("-i", "--interval", type=click.FloatRange(0.05, 60), metavar="S",
              help="Seconds between two looks of --watch. [default: 1]")
@click.option("--once", is_flag=True, help="With --watch: measure once, print, and end. So it does without a terminal.")
@json_option
@target_options
def topics(target: Target, names: tuple[str, ...], delete: bool, redefine: bool, watched: bool, interval: float | None,
           once: bool, as_json: bool) -> int:
    """List the topics of the domain, or show NAME with its readers and writers, and whom it waits for. A NAME with *
    or ? lists all that are like it. Only --delete and --redefine take several.

    Topics that the access list hides from you are not shown. Who may declare a
    topic may delete it, or redefine it if it is logged: then it can't be deleted.
    Exit code 1: something stays.
    """
    if delete and redefine:
        raise click.UsageError("--delete is for topics that aren't logged, --redefine for those that are: choose one")
    if (delete or redefine) and not names:
        raise click.UsageError(f"--{'delete' if delete else 'redefine'} needs the NAME of a topic")
    if len(names) > 1 and not (delete or redefine):
        raise click.UsageError("several NAMEs are for --delete and --redefine; to list some, give one like 'flight/*', "
                               "in quotes")
    name = names[0] if names else None
    if not watched and (once or interval is not None):
        raise click.UsageError("--once and --interval belong to --watch")
    if watched:
        from spindle.cli.topic_rates import watch_topics

        if delete or redefine:
            raise click.UsageError("--watch looks, --delete and --redefine change: choose one")
        single = name is not None and not set(name) & set("*?[")
        return watch_topics(target, lambda infos: chosen(name, infos), single, interval or 1.0, once, as_json)
    with target.attach("spindle topics") as session:
        if delete:
            return _change(session.delete_topic, "deleted", session, names, as_json)
        if redefine:
            return _change(session.redefine_topic, "redefined", session, names, as_json)
        infos = sorted(session.topics(awaited=True), key=lambda info: info.spec.name)
        several = name is None or _is_pattern(name, infos)
        infos = chosen(name, infos)
        endpoints = session.endpoints("" if several else name or "")
        holders = [] if several else session.held_up_by(infos[0].spec.name)
    if not several:
        described = {**as_object(infos[0], endpoints), "endpoints": [endpoint_object(one) for one in endpoints],
                     "held_up_by": [holder_object(one) for one in holders]}
        if as_json:
            print_json(described)
        else:
            _print_one(described)
        return 0
    listed = [as_object(info, [one for one in endpoints if one.topic == info.spec.name]) for info in infos]
    if as_json:
        print_json(listed)
    elif listed:
        _print_all(listed)
    else:
        click.echo("no topics yet; `spindle pub NAME` or a program makes the first")
    return 0


AWAITED = "[yellow]what the next declaration says[/]"
SAID = {"deleted": "deleted {}", "redefined": "{} is what the next declaration says; until then --delete takes it back"}


def _change(change: Callable[[str], None], done: str, session: Session, names: tuple[str, ...], as_json: bool) -> int:
    """Deletes, or redefines, what can be, and says what has become of each; the exit code. `done`: one of SAID."""
    infos = sorted(session.topics(awaited=True), key=lambda info: info.spec.name)
    if len(names) == 1 and not _is_pattern(names[0], infos):
        change(names[0])  # alone, its error is that of the command
        if as_json:
            print_json({done: list(names), "kept": []})
        else:
            click.echo(SAID[done].format(names[0]))
        return 0
    wanted: dict[str, None] = {}  # in order, each once
    changed, kept = [], []
    for name in names:
        try:
            wanted |= dict.fromkeys(one.spec.name for one in chosen(name, infos))
        except TopicUnknown as error:
            if done == "redefined" and not _is_pattern(name, infos):
                wanted[name] = None  # a node may have journals of what nobody has declared
            else:
                kept.append({"topic": name, "why": str(error)})
    for topic in wanted:
        try:
            change(topic)
        except (TopicError, AccessDenied) as error:
            kept.append({"topic": topic, "why": str(error)})
        else:
            changed.append(topic)
            if not as_json:
                click.echo(SAID[done].format(topic))
    if as_json:
        print_json({done: changed, "kept": kept})
    else:
        for one in kept:
            note(one["why"])
        if kept:
            note(f"{len(changed)} {done}, {len(kept)} not")
    return EXIT_FAILED if kept else 0


def chosen(name: str | None, infos: list[TopicInfo]) -> list[TopicInfo]:
    """Those that NAME means: that one, all that are like it, or all without. Raises TopicUnknown if there is none."""
    if name is None:
        return infos
    if _is_pattern(name, infos):
        found = [info for info in infos if fnmatchcase(info.spec.name, name)]
        if not found:
            raise TopicUnknown(f"there is no topic like {name!r}; `spindle topics` lists them")
        return found
    found = [info for info in infos if info.spec.name == name]
    if not found:
        raise TopicUnknown(_unknown(name, [info.spec.name for info in infos]))
    return found


def holder_object(one: Holder) -> dict[str, Any]:
    """Whom a topic waits for, for JSON; "text" is the same in words."""
    readers = [{"application": name, "pid": pid} for name, pid in one.readers]
    return {"node": one.node_id, "behind": one.behind, "received": one.receives, "readers": readers,
            "journal": one.journal, "text": str(one)}


def _is_pattern(name: str, infos: list[TopicInfo]) -> bool:
    """A topic may have such a name, too."""
    return bool(set(name) & set("*?[")) and all(info.spec.name != name for info in infos)


def as_object(info: TopicInfo, endpoints: list[Endpoint]) -> dict[str, Any]:
    """A topic for JSON: sizes in bytes, members and senders as node ids in rank order."""
    spec = info.spec
    roles = Counter("writers" if one.is_writer else "readers" for one in endpoints)
    return {
        "name": spec.name,
        "type": spec.type_name,
        "type_hash": spec.type_hash.hex(),
        "level": spec.level.name.lower(),
        "size_max": spec.size_max,
        "window": spec.window,
        "history_depth": spec.history_depth,
        "history_bytes": spec.history_bytes,
        "keyed": bool(spec.effects),
        "samples_max": spec.samples_max,
        "keys_max": spec.keys_max,
        "cleanup_s": spec.cleanup_ns / 1e9,
        "topic_id": info.topic_id,
        "members": list(info.members),
        "senders": list(info.senders),
        "writers": roles["writers"],
        "readers": roles["readers"],
        "awaits_definition": info.awaits_definition,
    }


def endpoint_object(one: Endpoint) -> dict[str, Any]:
    """An endpoint for JSON; "qos" is there if the DDS layer made it, "topic" if it is one of an order group."""
    found: dict[str, Any] = {
        "kind": "writer" if one.is_writer else "reader",
        "node": one.node_id,
        "application": one.app_name,
        "pid": one.pid,
        "guid": one.guid.hex(),
    }
    if one.is_writer:
        found["writer"] = one.writer_id
    qos = qos_texts(one.endpoint)
    if qos:
        found["qos"] = qos
    topic = topic_in_group(one.endpoint)
    if topic:
        found["topic"] = topic
    return found


def topic_in_group(endpoint: bytes) -> str:
    """The topic of an endpoint of the DDS layer, if what the node has is the order group of several; else nothing."""
    try:
        return str(json.loads(endpoint).get("topic", ""))
    except (ValueError, AttributeError):
        return ""


def qos_texts(endpoint: bytes) -> list[str]:
    """The policies that an endpoint of the DDS layer announces, in its notation; nothing for endpoints of others."""
    try:
        policies = json.loads(endpoint)["qos"]
        return [_policy_text(str(scope), fields) for scope, fields in policies.items()]
    except (ValueError, KeyError, TypeError, AttributeError):
        return []


def _policy_text(scope: str, fields: dict[str, Any]) -> str:
    kind = fields.get("kind")
    values = ", ".join(f"{name}={value}" for name, value in fields.items() if name != "kind")
    return f"{scope}{f'.{kind}' if kind else ''}{f'({values})' if values else ''}"


def _print_all(listed: list[dict[str, Any]]) -> None:
    shown = table(
        "topic", "level", "type", "size max", "nodes", "writers", "readers", right=("size max", "writers", "readers"),
        folds=("type",),
    )
    for one in listed:
        shown.add_row(
            f"[bold]{escaped(one['name'])}[/]",
            one["level"],
            AWAITED if one["awaits_definition"] else escaped(one["type"]),
            size_text(one["size_max"]),
            " ".join(map(str, one["members"])) or "-",
            str(one["writers"]),
            str(one["readers"]),
        )
    console().print(shown)


def kept_text(one: dict[str, Any]) -> str:
    """What is kept of a topic, for people."""
    count = one["history_depth"]
    depth = f"{count} message{'s' if count > 1 else ''}" if count else "all messages"
    room = size_text(one["history_bytes"]) if one["history_bytes"] else "the delivery log"
    found = [f"{depth}{' of each key' if one['keyed'] else ''} that fit {room}"]
    if one["samples_max"]:
        found.append(f"{one['samples_max']} in all")
    if one["keys_max"]:
        found.append(f"of {one['keys_max']} keys")
    if one["cleanup_s"]:
        delay = "for ever" if one["cleanup_s"] >= CLEANUP_NEVER / 1e9 else f"for {one['cleanup_s']:g} s"
        found.append(f"a key that has ended {delay}")
    return ", ".join(found)


def _nodes_text(node_ids: list[int]) -> str:
    if not node_ids:
        return "no node"
    return f"node{'s' if len(node_ids) > 1 else ''} {' '.join(map(str, node_ids))}"


def _print_one(one: dict[str, Any]) -> None:
    out = console()
    out.print(f"[bold]{escaped(one['name'])}[/]")
    history = "nothing"
    if one["level"] in ("volatile", "logged"):
        history = kept_text(one)
    kind = escaped(one["type"]) + (f" ({one['type_hash'][:16]})" if one["type_hash"] else "")
    facts = table("", "value", folds=("value",))
    facts.show_header = False
    for name, value in (
        ("level", one["level"]),
        ("type", AWAITED if one["awaits_definition"] else kind),
        ("size max", size_text(one["size_max"])),
        ("window", f"{one['window']} slots a sender"),
        ("keeps", history),
        ("subscribed on", _nodes_text(one["members"])),
        ("published on", _nodes_text(one["senders"])),
    ):
        facts.add_row(f"[dim]{name}[/]", value)
    out.print(facts)
    for holder in one["held_up_by"]:
        out.print(f"[yellow]waits for {escaped(holder['text'])}[/]")
    if not one["endpoints"]:
        out.print("\nno readers and writers announced")
        return
    shown = table("", "node", "application", "pid", "writer", "qos", right=("node", "pid", "writer"), folds=("qos",))
    for end in sorted(one["endpoints"], key=lambda e: (e["kind"] != "writer", e["node"], e["pid"])):
        shown.add_row(
            f"[{'green' if end['kind'] == 'writer' else 'cyan'}]{end['kind']}[/]",
            str(end["node"]),
            escaped(end["application"]),
            str(end["pid"] or "?"),
            str(end.get("writer", "")),
            escaped(", ".join([*([f"topic {end['topic']}"] if "topic" in end else []), *end.get("qos", [])])),
        )
    out.print()
    out.print(shown)


def _unknown(name: str, known: list[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f"there is no topic {name!r}; did you mean {close[0]!r}?"
    return f"there is no topic {name!r}; `spindle topics` lists them"
