"""`spindle record`: topics into an MCAP file."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import click

from spindle.cli import typed
from spindle.cli.common import (
    Amount,
    Target,
    bytes_text,
    check_topics,
    complete_topic,
    duration_text,
    json_option,
    note,
    print_json,
    progress,
    shows_progress,
    stopped_by_signals,
    target_options,
    use_all_descriptors,
)

PROGRESS_S = 0.5
UNOPENED = "the group has not agreed to open it by the end; see `spindle status --group`"

EPILOG = """\b
Examples:
  spindle record greetings -o greetings.mcap       until Ctrl-C
  spindle record 'flight/*' alerts -o flight.mcap  several, also new ones
  spindle record '*' -o all.mcap --duration 60     everything for a minute
  spindle record alerts -o a.mcap --history -c 10  the first ten that are kept
  spindle replay flight.mcap                       play it again

\b
The file is standard MCAP, with the schemas of the topics' types: Foxglove,
the `mcap` tool and the `mcap` libraries open it. It is whole at every moment:
if this command or its node is killed, the file has all but the last second.
When the node goes away, it goes on at the next one of the host, where it
stood; with --no-reattach it ends with exit code 6. Exit codes: 0 recorded,
1 something was lost, 10 the disk refuses.
"""


@click.command(epilog=EPILOG)
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", shell_complete=complete_topic,
                callback=check_topics)
@click.option("-o", "--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File to write.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--duration", type=Amount(), metavar="S", help="End after so many seconds.")
@click.option("-c", "--count", type=click.IntRange(1), metavar="N", help="End after so many messages.")
@click.option("--history", is_flag=True, help="Begin with what volatile and logged topics keep.")
@click.option("--keep-all", is_flag=True, help="Lose nothing: writers wait if this command is too slow.")
@click.option("--compression", type=click.Choice(["zstd", "lz4", "none"]), default="zstd", show_default=True)
@click.option("--no-reattach", is_flag=True, help="End when the node goes away, instead of going on at the next one.")
@json_option
@target_options
def record(target: Target, topics: tuple[str, ...], out: Path, force: bool, duration: float | None, count: int | None,
           history: bool, keep_all: bool, compression: str, no_reattach: bool, as_json: bool) -> int:
    """Record TOPICs (names, or patterns with * and ?) into an MCAP file, in the order that all nodes agree on."""
    from spindle.cli.recordings.recorder import Recorder, progress_of
    from spindle.journal.recording import RecordingWriter

    if str(out) == "-":
        raise click.UsageError("-o -: a recording is written into a file, places in it more than once; for messages "
                               "on standard output there is `spindle sub`")
    begun_s = time.monotonic()
    use_all_descriptors()
    with target.attach("spindle record") as session:
        writer = RecordingWriter(out, {
            "created": str(time.time_ns()), "domain": str(target.domain), "node": str(session.node_id),
            "topics": "\n".join(topics)}, compression, force)
        try:
            with Recorder(target, session, topics, writer, keep_all, history, not no_reattach) as recorder, \
                    stopped_by_signals(recorder.stop):
                recorder.begin()
                for like in recorder.missing():
                    note(f"waiting for {like!r}; nobody has declared such a topic yet")
                if sys.stderr.isatty():
                    note(f"recording {len(recorder.tracks)} topics into {out}; Ctrl-C ends")
                lines = progress_of(writer, recorder, begun_s)
                shown = shows_progress() and not as_json
                show = shower(lines) if shown else lambda: None
                recorder.run(duration, count, show)
                if shown:
                    progress()
                lost, refused, seen = recorder.lost, recorder.refused, len(recorder.topics)
                untold, left_out, unopened = sorted(recorder.untold), recorder.left_out, recorder.unopened
                lacking = {**recorder.lacking, **dict.fromkeys(unopened, UNOPENED)}
            writer.close({"lost": str(sum(lost.values())), **{f"lost.{name}": str(n) for name, n in lost.items()}})
        finally:
            writer.abandon()
    seconds = time.monotonic() - begun_s
    if as_json:
        print_json({"file": str(out), "messages": writer.messages, "topics": seen, "bytes": writer.bytes,
                    "size": writer.size, "seconds": round(seconds, 3), "lost": lost,
                    "left_out": {**left_out, **lacking}})
    else:
        note(f"{writer.messages:,} messages of {seen} topics ({bytes_text(writer.bytes)}) in {duration_text(seconds)}, "
             f"written to {out}")
    for name in untold:
        note(f"{name} is recorded without a schema, as bytes: {typed.UNTOLD}")
    for name, number in lost.items():
        note(f"{name}: {number:,} messages lost, this command was slower than the writers (--keep-all makes them wait)")
    if refused:
        note(f"{refused:,} messages that no writer of this version sends are left out")
    for name, why in left_out.items():
        note(f"{name} is not recorded any more since its node has gone away: {why}")
    for name, why in lacking.items():
        note(f"nothing of {name} is recorded: {why}" if name not in unopened else f"{name} is not recorded: {why}")
    return 1 if lost or left_out or lacking else 0


def shower(lines: Iterator[str]) -> Callable[[], None]:
    """What shows the next line on the terminal, in the place of the last, if it is time for it."""
    shown = 0.0

    def show() -> None:
        nonlocal shown
        if time.monotonic() - shown >= PROGRESS_S:
            shown = time.monotonic()
            progress(next(lines))

    return show
