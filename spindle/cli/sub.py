"""`spindle sub`: print what is published."""

from __future__ import annotations

import base64
import codecs
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from spindle.cli import typed
from spindle.cli.common import (
    Amount,
    Target,
    check_topics,
    complete_topic,
    interrupted_by_signals,
    interrupts,
    note,
    put,
    target_options,
    time_text,
    use_all_descriptors,
)
from spindle.cli.following import Following
from spindle.cli.ports import (
    OPAQUE_TYPE,
    declared,
    found,
    level_option,
    size_max_option,
    wait_for_topic,
)
from spindle.cli.several import Several, is_pattern

if TYPE_CHECKING:
    from spindle_core.message import MessageInfo

TAKE_MAX = 256  # samples at a time: few enough that the first ones are seen at once
SHOWN_BYTES_MAX = 4096  # of one sample in text

EPILOG = """\b
Examples:
  spindle sub greetings                     wait for the topic and print it
  spindle sub greetings --create            declare it as bytes if it is new
  spindle sub 'flight/*' status             several, those that come later too
  spindle sub alerts --history --count 10   the first ten that are kept
  spindle sub flight --format json | jq .   one JSON object a line
  spindle sub image -f raw -c 1 > photo.jpg a message exactly as published

\b
Formats:
  text   time of day, node:writer, sequence number, then the message
  lines  only the message and a line end
  hex    as text, the message in hexadecimal
  json   one object a line; "text" if it is UTF-8, "base64" otherwise
         Of several topics, text and hex name the topic before each message.
         On a topic with a type, text and lines print samples as JSON, and
         json has the sample in "sample"; {"ended": ..., "key": ...} is the
         end of an instance
  raw    the bytes of the messages and nothing else

\b
The sequence number is the message's place in the delivery order: the same on
every node. When the node goes away, it goes on at the same one started again
or another one of the host, where it stood; with --no-reattach it ends with
exit code 6. Ctrl-C ends with exit code 0. With --count the exit code is 1 if
fewer came before the --timeout.
"""


@click.command(epilog=EPILOG)
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, shell_complete=complete_topic,
                callback=check_topics)
@click.option(
    "-f",
    "--format",
    "style",
    type=click.Choice(["text", "lines", "hex", "json", "raw"]),
    help="How a message is printed. [default: text; lines on one topic with a type]",
)
@click.option("--json", "as_json", is_flag=True, help="Same as --format json.")
@click.option("-c", "--count", type=click.IntRange(0), metavar="N", help="End after so many; 0 = never. [default: 0]")
@click.option("-t", "--timeout", type=Amount(), metavar="S", help="End when nothing came for so long.")
@click.option("--history", is_flag=True, help="Begin with what a volatile or logged topic keeps.")
@click.option("--keep-all", is_flag=True, help="Lose nothing: writers wait if this command is too slow.")
@click.option("--create", is_flag=True, help="Declare the topic as bytes if it is new, instead of waiting for it.")
@click.option("--no-reattach", is_flag=True, help="End when the node goes away, instead of going on at the next one.")
@level_option
@size_max_option
@target_options
@interrupted_by_signals()
def sub(
    target: Target,
    topics: tuple[str, ...],
    style: str | None,
    as_json: bool,
    count: int | None,
    timeout: float | None,
    history: bool,
    keep_all: bool,
    create: bool,
    no_reattach: bool,
    level: str | None,
    size_max: int | None,
) -> int:
    """Print what is published to TOPIC, in the order that all nodes agree on. A TOPIC with * or ? means all that are
    like it, those that come later too."""
    style = "json" if as_json else style
    count = count or None
    seen = 0
    lost = 0
    [topic] = topics if len(topics) == 1 else [""]
    if len(topics) > 1 or is_pattern(topic):
        use_all_descriptors()
        try:
            with interrupts(), target.attach("spindle sub") as session:
                for one in topics:
                    if create and not is_pattern(one):
                        declared(session, one, level, size_max)
                seen, lost = Several(
                    target, session, topics, style or "text", named_printer, count=count, timeout_s=timeout,
                    history=history, keep_all=keep_all, again=not no_reattach).run()
        except KeyboardInterrupt:
            return 0
        return ended(seen, lost, count)
    try:
        with interrupts(), target.attach("spindle sub") as session:
            grouped = found(session, topic) is None and bool(typed.order_of(session, topic, history))
            if grouped:
                info = None
            elif create:
                info = declared(session, topic, level, size_max)
            else:
                info = wait_for_topic(session, topic, timeout, lambda: bool(typed.order_of(session, topic)))
            type_name = typed.ORDER_GROUP if info is None else info.spec.type_name
            if info is None or (type_name != OPAQUE_TYPE and style not in ("hex", "raw")):
                if style in ("hex", "raw"):
                    raise click.UsageError(f"samples of {topic!r} come in packets of its order group: leave --format "
                                           "out, or say text, lines or json")
                of, order = typed.wait_for_type(session, topic, type_name, timeout)
                with typed.participant(target, session, "spindle sub", not no_reattach) as within:
                    typed_reader = typed.open_reader(within, topic, of, order, keep_all, history)
                    if sys.stderr.isatty():
                        note(f"reading {topic!r} ({of.name}); Ctrl-C ends")
                    seen, lost = typed.print_samples(typed_reader, of, style or "lines", topic, count, timeout)
                return ended(seen, lost, count)
            printer = PRINTERS[style or "text"](topic)
            with Following(target, session, info, keep_all, history, not no_reattach) as reader:
                if sys.stderr.isatty():
                    note(f"reading {topic!r} ({info.spec.level.name.lower()}, {info.spec.type_name}); Ctrl-C ends")
                seen, lost = print_samples(reader, printer, count, timeout)
    except KeyboardInterrupt:
        return 0
    return ended(seen, lost, count)


def named_printer(style: str, topic: str) -> Callable[[bytes, MessageInfo], bytes]:
    """One of several topics: what is for people begins with its name."""
    printer, name = PRINTERS[style](topic), f"{topic}  ".encode()
    if style not in ("text", "hex"):
        return printer
    return lambda payload, info: name + printer(payload, info)


def ended(seen: int, lost: int, count: int | None) -> int:
    """The exit code."""
    if lost:
        note(f"{lost} samples lost: this command was slower than the writers (--keep-all makes them wait), or they "
             "are not of the topic's type")
    return 1 if count is not None and seen < count else 0


def print_samples(
    reader: Following, printer: Callable[[bytes, MessageInfo], bytes], count: int | None, timeout_s: float | None
) -> tuple[int, int]:
    """Print until count or timeout; returns (samples printed, samples lost). Raises what Following.batches() raises,
    and KeyboardInterrupt."""
    seen = 0
    for pairs in reader.batches(TAKE_MAX if count is None else min(TAKE_MAX, count), timeout_s):
        pairs = pairs if count is None else pairs[: count - seen]
        put(b"".join(printer(payload, info) for payload, info in pairs))
        seen += len(pairs)
        if seen == count:
            break
    return seen, reader.lost


def shown(payload: bytes) -> str:
    """A payload for a terminal: text with nothing in it that a terminal would obey, or hexadecimal if it isn't text.
    Of a long one, what is shown decides."""
    begin = payload[: 4 * SHOWN_BYTES_MAX]  # as much as so many characters take
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(begin, len(begin) == len(payload))
    except UnicodeDecodeError:
        return hexed(payload)
    if any(not (c.isprintable() or c in "\t\n\r\x1b") for c in text):
        return hexed(payload)
    cut = text[:SHOWN_BYTES_MAX]
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)
    return safe if cut == text and len(begin) == len(payload) else f"{safe}... ({len(payload)} bytes)"


def hexed(payload: bytes) -> str:
    """A payload in hexadecimal, long ones cut."""
    text = payload[:SHOWN_BYTES_MAX].hex(" ")
    return text if len(payload) <= SHOWN_BYTES_MAX else f"{text} ... ({len(payload)} bytes)"


def head(info: MessageInfo) -> str:
    """Time of writing, who wrote it, and its place in the order."""
    return f"{time_text(info.source_timestamp)}  {info.sender}:{info.writer}  {info.sequence:>6}  "


def as_object(topic: str, payload: bytes, info: MessageInfo) -> dict[str, object]:
    """A sample for JSON. Times are UTC nanoseconds."""
    record: dict[str, object] = {
        "topic": topic,
        "source_timestamp": info.source_timestamp,
        "reception_timestamp": info.reception_timestamp,
        "node": info.sender,
        "writer": info.writer,
        "sequence": info.sequence,
        "view": info.view_id,
        "index": info.index,
        "size": len(payload),
    }
    try:
        record["text"] = payload.decode()
    except UnicodeDecodeError:
        record["base64"] = base64.b64encode(payload).decode()
    return record


PRINTERS: dict[str, Callable[[str], Callable[[bytes, MessageInfo], bytes]]] = {
    "text": lambda topic: lambda payload, info: f"{head(info)}{shown(payload)}\n".encode(),
    "hex": lambda topic: lambda payload, info: f"{head(info)}{hexed(payload)}\n".encode(),
    "lines": lambda topic: lambda payload, info: payload + b"\n",
    "raw": lambda topic: lambda payload, info: payload,
    "json": lambda topic: lambda payload, info: json.dumps(as_object(topic, payload, info)).encode() + b"\n",
}
