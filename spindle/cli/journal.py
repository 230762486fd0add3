"""`spindle journal`: the files of logged topics, see spindle.journal.tools."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spindle.cli.common import (
    bytes_text,
    complete_topic,
    console,
    debug_option,
    duration_text,
    escaped,
    json_option,
    note,
    print_json,
    table,
)

if TYPE_CHECKING:
    from spindle.journal.reading import JournalMessage
    from spindle.restart.backup import Copied

EPILOG = """\b
Examples:
  spindle journal info /var/lib/spindle             what is there
  spindle journal verify /var/lib/spindle           check every byte
  spindle journal repair /var/lib/spindle           cut damage, get the rest
                                                    from other nodes
  spindle journal export /var/lib/spindle -t alerts -o alerts.jsonl
  spindle journal export alerts-1-1.mcap --format csv --payload text
  spindle journal backup /var/lib/spindle -o /backup/spindle

\b
The files are standard MCAP: Foxglove and the `mcap` tool open them too. All
of this but repair, restore and set-aside may be done beside a running node.
"""

EXPORT_EPILOG = """\b
Formats:
  jsonl, csv  a line for each message
  mcap        a recording, as of `spindle record`: each sample by itself with
              its schema, also those of order groups and coherent sets; of all
              journals there are, unless --topic or --node choose

\b
Payloads:
  base64  as it is, the field is called "payload" (the default)
  text    UTF-8; what isn't is shown with backslashes
  hex     hexadecimal digits
  json    parsed as JSON; in CSV the members of objects become columns, all
          that any message has
"""

VERIFY_EPILOG = """\b
Exit codes: 0 whole (or repaired), 1 torn or damaged, 10 nothing to verify or
the journal to be repaired is in use.
"""

REPAIR_EPILOG = """\b
The other nodes that held the topic must have what the damage took. If this
was the only one, the topic goes on with what is left of it only when told to,
by [journal] restart = "any". Exit codes: 0 done, 10 in use or not possible.
"""

BACKUP_EPILOG = """\b
Example:
  spindle journal backup /var/lib/spindle -o /backup/spindle
  spindle journal verify /backup/spindle

\b
A backup is a directory of journals: info, verify, export and `spindle replay`
read it. Files that retention has removed since stay in it.
"""

RESTORE_EPILOG = """\b
Example, on each node that has lost its journals, while it is stopped:
  spindle journal restore /backup/spindle /var/lib/spindle

\b
A node whose group has gone on gets what is missing from the others. If most
of the nodes that held a topic are restored, the topic goes on from the
backup. Exit codes: 0 restored, 10 a journal is there, in use, or the backup
damaged.
"""

ASIDE_EPILOG = """\b
Example, with all nodes of the group stopped, on each of them:
  spindle journal set-aside /var/lib/spindle -t alerts -o /var/lib/spindle-old

\b
What was moved stays readable with `spindle journal` and `spindle replay`.
Exit codes: 0 moved, 10 nothing is there, a node has it open, or it can't be
moved.
"""

path_argument = click.argument("path", type=click.Path(path_type=Path))
topic_option = click.option("-t", "--topic", shell_complete=complete_topic, help="Only the journal of this topic.")
journal_node_option = click.option("-n", "--node", "node_id", type=int, help="Only the journal of this node.")
COLOURS = {
    "ok": "green",
    "closed": "green",
    "live": "green",
    "unfinished": "yellow",
    "torn": "yellow",
    "corrupt": "red",
}


@click.group(epilog=EPILOG)
def journal() -> None:
    """Inspect, verify, export, back up and restore journals of logged topics.

    PATH is a directory of journals or one file of them.
    """


@journal.command()
@path_argument
@topic_option
@journal_node_option
@json_option
@debug_option
def info(path: Path, topic: str | None, node_id: int | None, as_json: bool) -> int:
    """Show topics, files, counts and times."""
    from spindle.journal.tools import info as journal_info

    with progress("reading") as step:
        found = journal_info(path, topic=topic, node_id=node_id, progress=step)
    if as_json:
        print_json(found)
        return 0
    out = console()
    shown = table(
        "topic",
        "node",
        "state",
        "messages",
        "writers",
        "size",
        "files",
        "from",
        "lasting",
        "type",
        right=("node", "messages", "writers", "size", "files"),
        folds=("type",),
    )
    for one in found["journals"]:
        lasting = (one["end_time"] - one["start_time"]) / 1e9
        shown.add_row(
            f"[bold]{escaped(one['topic'])}[/]",
            str(one["node"]),
            f"[{COLOURS.get(one['state'], 'default')}]{one['state']}[/]",
            f"{one['messages']:,}",
            str(len(one["writers"])),
            bytes_text(one["bytes"]),
            str(len(one["files"])),
            when(one["start_time"]),
            duration_text(lasting) if one["messages"] else "-",
            escaped(one["type"]),
        )
    out.print(shown)
    for one in found["journals"]:
        for file in one["files"]:
            if file["problem"]:
                out.print(f"[red]{escaped(file['path'])}: {escaped(file['problem'])}[/]")
    return 0


@journal.command(epilog=VERIFY_EPILOG)
@path_argument
@topic_option
@journal_node_option
@click.option("--repair", is_flag=True, help="Cut torn tails off; they are kept beside the file as .torn.")
@json_option
@debug_option
def verify(path: Path, topic: str | None, node_id: int | None, repair: bool, as_json: bool) -> int:
    """Check checksums, structure, order and counts of every file, and the
    .standing beside it.

    A torn tail is what a crash leaves: nothing acknowledged is in it. Any other damage is reported with its place and
    never touched.
    """
    from spindle.restart.verifying import verify_journals

    with progress("verifying") as step:
        report = verify_journals(path, topic, node_id, repair, step)
    if as_json:
        print_json(report.to_dict())
        return 0 if report.ok else 1
    for file in report.files:
        state = "repaired" if file.repaired else file.status.value
        colour = "green" if file.repaired else COLOURS[file.status.value]
        facts = f"{file.messages:,} messages, {file.commits:,} commits, {bytes_text(file.size)}"
        if file.in_use:
            facts += ", being written"
        click.echo(f"{click.style(f'{state:<8}', fg=colour)}  {file.path.name}  {facts}")
        if file.repaired:
            click.echo(f"          {file.torn_bytes:,} bytes kept in {file.torn_path}")
    for problem in report.problems:
        click.echo(click.style(problem, fg="red"))
    click.echo(f"{report.messages:,} messages in {len(report.files)} files: {report.status.value}")
    return 0 if report.ok else 1


@journal.command(epilog=REPAIR_EPILOG)
@path_argument
@topic_option
@journal_node_option
@debug_option
def repair(path: Path, topic: str | None, node_id: int | None) -> int:
    """End damaged journals before their damage, so that their nodes get the rest from the other nodes.

    What is cut off is kept beside, as .damaged. Where only the .standing is
    damaged, the messages stay. The node must not be running.
    """
    from spindle.restart.repairing import repair_journals

    found = repair_journals(path, topic, node_id)
    for one in found:
        click.echo(f"{click.style('repaired', fg='green')}  topic {one.topic!r} of node {one.node_id}")
        for kept in one.kept:
            click.echo(f"          kept {kept}")
    if not found:
        click.echo("no journal there is damaged")
    return 0


@journal.command(epilog=EXPORT_EPILOG)
@path_argument
@click.option("-o", "--out", default="-", show_default="stdout", metavar="FILE", help="Where to write.")
@click.option(
    "-f", "--format", "style", type=click.Choice(["jsonl", "csv", "mcap"]), default="jsonl", show_default=True
)
@click.option(
    "-p",
    "--payload",
    type=click.Choice(["base64", "text", "hex", "json"]),
    default="base64",
    show_default=True,
    help="How payloads are written.",
)
@topic_option
@journal_node_option
@click.option("--skip-damaged", is_flag=True, help="Go on behind damage with what is whole again.")
@click.option("--force", is_flag=True, help="With mcap: replace a file that is there. (Text replaces it anyway.)")
@debug_option
def export(
    path: Path, out: str, style: str, payload: str, topic: str | None, node_id: int | None, skip_damaged: bool,
    force: bool,
) -> int:
    """Write the messages of one journal as JSON lines or CSV; or of several as a recording, for other tools."""
    if style == "mcap":
        return export_recording(path, out, topic, node_id, skip_damaged, force)
    from spindle.journal.tools import export as journal_export

    # a bar between the lines of stdout on the same terminal would spoil both
    with progress("exporting", wanted=out != "-" or not sys.stdout.isatty()) as step:
        count = journal_export(
            path, out, style, DECODERS[payload], topic=topic, node_id=node_id, skip_damaged=skip_damaged, progress=step
        )
    if out != "-":
        note(f"{count:,} messages written to {out}")
    return 0


def export_recording(path: Path, out: str, topic: str | None, node_id: int | None, skip_damaged: bool, force: bool
                     ) -> int:
    """Journals as a recording."""
    from spindle.cli.recordings.converting import convert
    from spindle.journal.exporting import check_out
    from spindle.journal.playing import close_all, open_all
    from spindle.journal.reading import find_journals
    from spindle.journal.recovery import check_whole

    if out == "-":
        raise click.UsageError("--format mcap writes a file: name it with --out")
    journals = find_journals(path, topic, node_id)
    check_out(Path(out), [file for one in journals for file in one.paths])
    opened = []
    try:
        for one in journals:
            opened += [[file for of in open_all(one.paths) for file in of]]
        for file in (file for one in opened for file in one if file.problem):
            if not skip_damaged:
                check_whole(file.path)  # a torn tail is what a crash leaves
            note(f"{file.path}: {file.problem}. What is before that is exported")
        count = convert(opened, Path(out), force, skip_damaged)
    finally:
        close_all(opened)
    note(f"{count:,} messages of {len(journals)} journals written to {out}")
    return 0


def _as_json(message: JournalMessage) -> Any:
    try:
        return json.loads(message.payload)
    except ValueError as error:
        raise click.ClickException(
            f"message {message.position} of topic {message.topic!r} is not JSON: {error}; choose another --payload"
        ) from None


DECODERS: dict[str, Callable[[JournalMessage], Any] | None] = {
    "base64": None,
    "text": lambda message: message.payload.decode(errors="backslashreplace"),
    "hex": lambda message: message.payload.hex(),
    "json": _as_json,
}


@journal.command(epilog=BACKUP_EPILOG)
@click.argument("source", metavar="DIR", type=click.Path(path_type=Path))
@click.option("-o", "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where to copy to.")
@topic_option
@journal_node_option
@json_option
@debug_option
def backup(source: Path, out: Path, topic: str | None, node_id: int | None, as_json: bool) -> int:
    """Copy the journals in DIR, also while their node writes them.

    What was committed when a file is copied is in the copy, which is whole and closed. Done again, only what has
    changed is copied.
    """
    from spindle.restart.backup import backup as make_backup

    with progress("copying") as step:
        copied = make_backup(source, out, topic, node_id, step)
    return told(copied, out, as_json, "backed up")


@journal.command(epilog=RESTORE_EPILOG)
@click.argument("source", metavar="BACKUP", type=click.Path(path_type=Path))
@click.argument("target", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@topic_option
@journal_node_option
@json_option
@debug_option
def restore(source: Path, target: Path, topic: str | None, node_id: int | None, as_json: bool) -> int:
    """Put the journals of a BACKUP into DIR, a node's [journal] dir, where there are none of the same topics."""
    from spindle.restart.backup import restore as put_back

    with progress("restoring") as step:
        copied = put_back(source, target, topic, node_id, step)
    return told(copied, target, as_json, "restored")


def told(copied: list[Copied], where: Path, as_json: bool, done: str) -> int:
    """Print what was copied."""
    if as_json:
        print_json([dataclasses.asdict(one) for one in copied])
        return 0
    for one in copied:
        kept = f", {one.kept} files were there" if one.kept else ""
        live = ", being written" if one.live else ""
        click.echo(f"{click.style(done, fg='green')}  topic {escaped_plain(one.topic)} of node {one.node_id}: "
                   f"{one.messages:,} messages, {one.files} files ({bytes_text(one.size)}){kept}{live}")
        for name in one.aside:
            click.echo(f"           {name} is what was there of another journal of this topic")
    note(f"{len(copied)} journals {done} in {where}")
    return 0


@journal.command(name="set-aside", epilog=ASIDE_EPILOG)
@click.argument("directory", metavar="DIR", type=click.Path(file_okay=False, path_type=Path))
@click.option("-t", "--topic", required=True, shell_complete=complete_topic, help="The topic.")
@click.option("-o", "--out", required=True, type=click.Path(file_okay=False, path_type=Path), help="Where to move it.")
@journal_node_option
@json_option
@debug_option
def aside(directory: Path, topic: str, out: Path, node_id: int | None, as_json: bool) -> int:
    """Move everything of a topic out of DIR, a node's [journal] dir, so that it can begin anew with another definition.

    The group must not be running.
    """
    from spindle.restart.aside import set_aside

    moved = set_aside(directory, out, topic, node_id)
    if as_json:
        print_json({"topic": topic, "out": str(out), "journals": [dataclasses.asdict(one) for one in moved]})
        return 0
    for one in moved:
        click.echo(f"{click.style('put aside', fg='green')}  topic {escaped_plain(topic)} of node {one.node_id}: "
                   f"{len(one.names)} files")
    return 0


def escaped_plain(text: str) -> str:
    """Text of others for a terminal that takes no part of it for a command."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


@contextlib.contextmanager
def progress(what: str, wanted: bool = True) -> Iterator[Callable[[int, int], None] | None]:
    """A bar on stderr while the work lasts, if that is a terminal; gives the function that moves it, or None."""
    if not wanted or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn(what), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    # stdout is the result's, and may be a file: the bar must not take what is printed there and show it above itself
    with Progress(*columns, console=Console(stderr=True), transient=True, redirect_stdout=False) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def when(timestamp_ns: int) -> str:
    """UTC date and time to the second, "-" for 0."""
    if not timestamp_ns:
        return "-"
    return datetime.fromtimestamp(timestamp_ns // 10**9, timezone.utc).strftime("%Y-%m-%d %H:%M:%SZ")
