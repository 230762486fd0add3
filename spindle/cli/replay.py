"""`spindle replay`: recordings, journals and bags onto topics."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from spindle.cli.common import (
    Amount,
    Target,
    bytes_text,
    console,
    count_text,
    duration_text,
    escaped,
    json_option,
    note,
    print_json,
    progress,
    shows_progress,
    stopped_by_signals,
    table,
    target_options,
    use_all_descriptors,
)
from spindle.cli.ports import LEVELS, Size
from spindle.cli.recordings.words import Moment, Renaming, Span

if TYPE_CHECKING:
    from spindle.cli.recordings.lanes import Lane, Lanes
    from spindle.cli.recordings.player import Player
    from spindle.journal.playing import PlayedFile

PROGRESS_S = 0.25
READERS_GRACE_S = 1.0  # how long readers of the topics are waited for

EPILOG = """\b
Examples:
  spindle replay flight.mcap --list                 what is in it
  spindle replay flight.mcap                        play it, as it was
  spindle replay flight.mcap --speed 4              four times as fast
  spindle replay flight.mcap --speed 0              as fast as readers take it
  spindle replay flight.mcap --start 90 --duration 30
  spindle replay flight.mcap --topics 'flight/*' --rename flight/pfd=test/pfd
  spindle replay flight.mcap --loop --at 19:30:00   from then on, for ever
  spindle replay /var/lib/spindle                   the journals of a node

\b
Played are recordings of `spindle record`, journals of logged topics, and MCAP
files of others: bags of ROS 2, and protobuf. Their topics get the types that
they have in the file; what is in another encoding is played as bytes with
--bytes. A time is in seconds (90, 1:30), --start and --at also a moment:
2026-11-25T19:30:00 is local time, with Z UTC. Samples keep the timestamps of
their writers, unless --now. A coherent set is played as one, or not at all.

\b
When the node goes away, it goes on at the same one started again or another
one of the host. What was delivered is not played again; messages that were on
their way are, and may come twice: it says how many. With --no-reattach, or
without a node for --timeout, it ends with exit code 6. Other exit codes:
0 played, 1 not delivered everywhere or the file is cut off, 10 the file can't
be read.
"""


@click.command(epilog=EPILOG)
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path))
@click.option("--list", "only_list", is_flag=True, help="Show what is in the files, and play nothing.")
@click.option("--speed", type=Amount(), default=1.0, show_default=True, metavar="X",
              help="So many times as fast; 0 = as fast as possible.")
@click.option("--start", type=Moment(), metavar="TIME", help="Begin so far into the recording, or at this moment.")
@click.option("--duration", type=Span(), metavar="TIME", help="Play so much of it.")
@click.option("--topics", "patterns", multiple=True, metavar="TOPIC", help="Only these, or ones like 'flight/*'; "
              "repeatable.")
@click.option("--rename", "renames", multiple=True, type=Renaming(), metavar="OLD=NEW",
              help="Play a topic onto one of another name; repeatable.")
@click.option("--loop", is_flag=True, help="Begin again at the end, until Ctrl-C.")
@click.option("--at", type=Moment(of_day=True), metavar="TIME", help="Wait for this moment, or so many seconds.")
@click.option("--now", is_flag=True, help="Samples are of now, instead of when they were written.")
@click.option("--bytes", "as_bytes", is_flag=True, help="Play what is in an unknown encoding as bytes.")
@click.option("--skip-damaged", is_flag=True, help="Leave out what is damaged.")
@click.option("--level", type=click.Choice(LEVELS), help="Level of new topics. [default: as it was, else atomic]")
@click.option("--size-max", type=Size(), metavar="SIZE", help="Slots of new topics. [default: as it was]")
@click.option("--timeout", type=Amount(), default=10.0, show_default=True, metavar="S",
              help="How long a message may be held back by slow readers.")
@click.option("--no-reattach", is_flag=True, help="End when the node goes away, instead of going on at the next one.")
@json_option
@target_options
def replay(target: Target, files: tuple[Path, ...], only_list: bool, speed: float, start: float | int | None,
           duration: float | None, patterns: tuple[str, ...], renames: tuple[tuple[str, str], ...], loop: bool,
           at: float | int | None, now: bool, as_bytes: bool, skip_damaged: bool, level: str | None,
           size_max: int | None, timeout: float, no_reattach: bool, as_json: bool) -> int:
    """Play FILEs (MCAP files, or directories of them) onto topics, in the original order and at the original times."""
    from spindle.cli.journal import progress
    from spindle.journal.playing import close_all, open_all

    with progress("reading") as step:
        opened = open_all(files, progress=step)
    try:
        plain = [file for one in opened for file in one]
        for file in plain:
            if file.problem:
                note(f"{file.path}: {file.problem}. {sum(file.counts.values()):,} messages before that are whole")
        from spindle.cli.recordings.lanes import Lanes
        from spindle.cli.recordings.player import wanted

        lanes = Lanes(plain, as_bytes)
        chosen = [lane for lane in lanes.lanes.values() if wanted(lane.topic, patterns)]
        begin, end = span_of(plain, start, duration)
        if only_list:
            listed(chosen, plain, as_json)
            return 1 if any(file.problem for file in plain) else 0
        check(lanes, chosen, patterns, renames, plain)
        return played(target, opened, lanes, chosen, begin, end, reattach=not no_reattach, speed=speed,
                      renames=dict(renames), loop=loop, at=at, now=now, skip_damaged=skip_damaged, level=level,
                      size_max=size_max or 0, timeout_s=timeout, as_json=as_json)
    finally:
        close_all(opened)


def span_of(files: list[PlayedFile], start: float | int | None, duration: float | None) -> tuple[int, int]:
    """Log times from which on and up to which it is played."""
    first = min((file.times[0] for file in files if any(file.counts.values())), default=0)
    begin = first if start is None else start if isinstance(start, int) else first + int(start * 1e9)
    return begin, 1 << 64 if duration is None else begin + int(duration * 1e9)


def check(lanes: Lanes, chosen: list[Lane], patterns: tuple[str, ...], renames: tuple[tuple[str, str], ...],
          files: list[PlayedFile]) -> None:
    """Raise ClickException unless all of these can be played."""
    from spindle.cli.recordings.player import wanted

    if not chosen:
        have = ", ".join(sorted(lanes.lanes)[:10]) or "none"
        raise click.ClickException(f"there is nothing to play of {', '.join(patterns) or 'these files'}; they have the "
                                   f"topics {have}" if lanes.lanes else "there is no message in these files")
    for like in patterns:
        if not any(wanted(lane.topic, (like,)) for lane in chosen):
            note(f"--topics {like}: no topic in these files is called so; --list shows them")
    for number, (old, new) in enumerate(renames):
        if (other := dict(renames[:number]).get(old, new)) != new:
            raise click.UsageError(f"--rename {old}={new}: it is {old}={other} already; play the files twice for both")
        if old not in lanes.lanes and all(old != lane.order for lane in chosen):
            raise click.UsageError(f"--rename {old}=...: there is no topic {old!r} in these files; --list shows them")
    unknown = [lane for lane in chosen if lane.reason]
    if unknown:
        raise click.ClickException(
            f"{unknown[0].topic} can't be played: {unknown[0].reason}" + (
                f" (and {len(unknown) - 1} topics more)" if len(unknown) > 1 else "")
            + ". Play it as bytes with --bytes, or others with --topics")
    check_types(chosen, dict(renames))


def check_types(chosen: list[Lane], renames: dict[str, str]) -> None:
    """Raise ClickException if a topic would get types that don't go together; before anything is declared."""
    from spindle.cli.recordings.lanes import conflict

    onto: dict[str, list[Lane]] = {}
    for lane in chosen:
        onto.setdefault(renames.get(lane.topic, lane.topic), []).append(lane)
    for name, lanes in onto.items():
        why = conflict([form for lane in lanes for form in lane.forms], any(lane.order for lane in lanes))
        if why and len(lanes) > 1:
            names = ", ".join(lane.topic for lane in lanes)
            raise click.ClickException(f"{names} can't be played onto {name} together: their types don't go together, "
                                       f"{why}. Choose other names with --rename")
        if why:
            sources = sorted(lanes[0].sources)
            raise click.ClickException(
                f"{lanes[0].topic} can't be played: in {', '.join(sources)} it has types that don't go together, "
                f"{why}, and a replay is one program, which has one of them. " + (
                    "Play the files one at a time" if len(sources) > 1 else
                    "Play other topics with --topics; other tools find each type on a channel of its own in the file"))


def listed(lanes: list[Lane], files: list[PlayedFile], as_json: bool) -> None:
    """Print what there is."""
    if as_json:
        print_json({"files": [{"path": str(file.path), "kind": file.kind, "start_time": file.times[0],
                               "end_time": file.times[1], "problem": file.problem} for file in files],
                    "topics": [{"topic": lane.topic, "order": lane.order, "level": lane.level,
                                "messages": lane.messages, "types": [form.name for form in lane.forms],
                                "encodings": sorted({form.encoding for form in lane.forms}), "problem": lane.reason}
                               for lane in lanes]})
        return
    from spindle.cli.journal import when

    out = console()
    for file in files:
        lasting = duration_text((file.times[1] - file.times[0]) / 1e9) if any(file.counts.values()) else "-"
        out.print(f"{escaped(str(file.path))}: {file.kind}, {sum(file.counts.values()):,} messages from "
                  f"{when(file.times[0])}, lasting {lasting}", soft_wrap=True)
    shown = table("topic", "messages", "level", "encoding", "order", "type", right=("messages",), folds=("type",))
    for lane in sorted(lanes, key=lambda one: one.topic):
        shown.add_row(
            f"[bold]{escaped(lane.topic)}[/]", f"{lane.messages:,}", lane.level or "-",
            escaped(", ".join(sorted({form.encoding for form in lane.forms})) or "-"), escaped(lane.order or "-"),
            escaped(", ".join(form.name for form in lane.forms) or "-"))
    out.print(shown)
    for lane in lanes:
        if lane.reason:
            out.print(f"[yellow]{escaped(lane.topic)}: {escaped(lane.reason)}[/]", soft_wrap=True)


def played(target: Target, opened: list[list[PlayedFile]], lanes: Lanes, chosen: list[Lane], begin: int, end: int, *,
           reattach: bool, speed: float, renames: dict[str, str], loop: bool, at: float | int | None, now: bool,
           skip_damaged: bool, level: str | None, size_max: int, timeout_s: float, as_json: bool) -> int:
    """Play; the exit code."""
    from spindle.cli import typed
    from spindle.cli.recordings.player import Player
    from spindle.journal.playing import merged

    names = set(map(id, chosen))
    largest = Largest(opened, lanes)
    finishes = max((file.times[1] for one in opened for file in one), default=0)
    begun_s = time.monotonic()
    rounds = 0
    use_all_descriptors()
    with target.attach("spindle replay") as session, \
            typed.participant(target, session, "spindle replay", reattach) as within:
        player = Player(session, within, chosen, lambda name: renames.get(name, name), level, size_max, timeout_s,
                        not now)
        player.open(largest.of)
        with stopped_by_signals(player.stop):  # and what was written is waited for
            wait_for_readers(session, [renames.get(lane.order or lane.topic, lane.order or lane.topic)
                                       for lane in chosen], player)
            wait_until(at, player)
            show = Progress(player, begin, min(finishes, end), speed, shows_progress() and not as_json)
            try:
                while not player.stopping:
                    rounds += 1
                    units = ([said for said in unit if id(said.lane) in names]
                             for unit in lanes.all(merged(opened, begin, end, skip_damaged)))
                    if not player.play(filter(None, units), speed, begin, show.show) and not player.stopping:
                        raise click.ClickException(
                            f"there is nothing to play in this part: the files last {length_of(opened)}, and the "
                            "topics that were chosen have no message in it; see --start, --duration, --topics")
                    if not loop:
                        break
            finally:
                show.clear()
        delivered = player.finish()
    seconds = time.monotonic() - begun_s
    cut = [file for one in opened for file in one if file.problem]
    if as_json:
        print_json({"messages": player.count, "bytes": player.bytes, "seconds": round(seconds, 3), "rounds": rounds,
                    "left_out": player.skipped + lanes.refused, "torn_sets": lanes.torn, "resent": player.resent,
                    "delivered": delivered, "problems": [file.problem for file in cut],
                    "damaged": sum(len(file.damaged) for one in opened for file in one)})
    else:
        note(f"{player.count:,} messages ({bytes_text(player.bytes)}) played in {duration_text(seconds)}")
    if player.skipped + lanes.refused:
        note(f"{player.skipped + lanes.refused:,} messages were left out: they are none of their topics' types")
    for file in (file for one in opened for file in one if file.damaged):
        count = len(file.damaged)
        note(f"{file.path}: {count:,} {'chunk is' if count == 1 else 'chunks are'} damaged, the first at byte "
             f"{min(file.damaged):,}, and left out")
    if lanes.torn:
        note(f"{lanes.torn:,} coherent sets were left out: the files have only a part of them")
    if not delivered:
        note(f"not delivered everywhere within {timeout_s:g} s; look at `spindle status`")
    return 0 if delivered and not cut else 1


def length_of(opened: list[list[PlayedFile]]) -> str:
    """How long the files are, in words."""
    times = [file.times for one in opened for file in one if any(file.counts.values())]
    return duration_text((max(end for _, end in times) - min(start for start, _ in times)) / 1e9) if times else "0 s"


def wait_for_readers(session: Any, topics: list[str], player: Player) -> None:
    """A moment for the readers of these topics, as of `spindle pub`."""
    deadline = time.monotonic() + READERS_GRACE_S
    while time.monotonic() < deadline and not player.stopping:
        read = {one.topic for one in session.endpoints("") if not one.is_writer}
        if set(topics) <= read:
            return
        time.sleep(0.02)


def wait_until(at: float | int | None, player: Player) -> None:
    """Until this moment (UTC ns), or for so many seconds."""
    if at is None:
        return
    now_s = time.time if isinstance(at, int) else time.monotonic  # the former may be set meanwhile
    end_s = at / 1e9 if isinstance(at, int) else now_s() + at
    if end_s > now_s() and sys.stderr.isatty():
        note(f"begins in {duration_text(end_s - now_s())}")
    while (left := end_s - now_s()) > 0 and not player.stopping:
        time.sleep(min(left, PROGRESS_S))


class Largest:
    """Bytes of the largest message of each lane; looked for when it is asked for the first time."""

    def __init__(self, opened: list[list[PlayedFile]], lanes: Lanes) -> None:
        self._opened, self._lanes = opened, lanes
        self._found: dict[int, int] | None = None

    def of(self, lane: Lane) -> int:
        if self._found is None:
            from spindle.journal.playing import merged

            self._found = {}
            for message in merged(self._opened, skip_damaged=True):
                channel = message.channel.topic
                one = self._lanes.lanes.get(channel)
                if one is not None:
                    self._found[id(one)] = max(self._found.get(id(one), 0), len(message.payload))
        return self._found.get(id(lane), 0)


class Progress:
    """The line on the terminal."""

    def __init__(self, player: Player, begin: int, end: int, speed: float, wanted: bool) -> None:
        self._player, self._begin, self._end, self._speed, self._wanted = player, begin, end, speed, wanted
        self._begun = self._shown = time.monotonic()
        self._open = False

    def show(self, at: int) -> None:
        now = time.monotonic()
        if not self._wanted or now - self._shown < PROGRESS_S:
            return
        self._shown, self._open = now, True
        done, whole = (at - self._begin) / 1e9, max(self._end - self._begin, 1) / 1e9
        rate = self._player.count / max(now - self._begun, 1e-9)
        late = f", {duration_text(self._player.behind_s)} late" if self._speed and self._player.behind_s > 0.1 else ""
        progress(f"{clock(done)} of {clock(whole)}, {self._player.count:,} messages, {count_text(rate)}/s"
                 f"{late}; Ctrl-C ends")

    def clear(self) -> None:
        if self._open:
            progress()


def clock(seconds: float) -> str:
    """0:00:00."""
    whole = max(0, int(seconds))
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"


