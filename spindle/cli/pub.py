"""`spindle pub`: publish from the shell."""

from __future__ import annotations

import errno
import itertools
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, cast

import click

from spindle.cli import typed
from spindle.cli.common import (
    Amount,
    Target,
    complete_topic,
    interrupted_by_signals,
    json_option,
    note,
    print_json,
    shows_progress,
    target_options,
)
from spindle.cli.ports import OPAQUE_TYPE, declared, found, level_option, size_max_option, wait_for_readers
from spindle.cli.published import Published
from spindle.cli.sending import Sending

if TYPE_CHECKING:
    import io

    from spindle.client import WriterHandle

CHUNK_BYTES = 1 << 16  # of stdin: what a pipe holds
HELD_UP_TIMEOUT_S = 1.0  # for the node to say whom a message waits for
READERS_GRACE_S = 1.0  # how long one reader is waited for when nothing was said

EPILOG = """\b
Examples:
  spindle pub greetings hello world           two messages
  tail -f app.log | spindle pub log           each line a message, at once
  spindle pub image --file photo.jpg          a file as one message
  echo 'de ad be ef' | spindle pub raw --hex  bytes in hexadecimal
  spindle pub tick now --rate 10 --count 0    ten a second until Ctrl-C
  spindle pub alerts fire --level logged      on disk at each subscribing node
  spindle pub fixes '{"aircraft": "HB-JNA", "altitude": 900}'


On a topic with a type each message is a sample as one JSON object; `spindle
typeof TOPIC` shows its members.

\b
The topic is declared as bytes if nobody has declared it. Ends when the last
message has been delivered at every subscribing node. When the node goes away,
it goes on at the same one started again or another one of the host; messages
that were on their way are published again, and may come twice. With
--no-reattach, or without a node for --timeout, it ends with exit code 6.
"""


@click.command(epilog=EPILOG)
@click.argument("topic", shell_complete=complete_topic)
@click.argument("messages", nargs=-1)
@click.option(
    "--file",
    "files",
    multiple=True,
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Publish this file as one message; repeatable.",
)
@click.option("--bytes", "whole", is_flag=True, help="Stdin as one message instead of one a line.")
@click.option("--hex", "as_hex", is_flag=True, help="Messages or lines are hexadecimal digits; spaces don't matter.")
@click.option(
    "-c",
    "--count",
    type=click.IntRange(0),
    help="Publish so many, repeating the messages; 0 = for ever. [default: each once]",
)
@click.option(
    "-r",
    "--rate",
    type=click.FloatRange(0, 1e6, min_open=True),
    metavar="HZ",
    help="Messages per second. [default: as fast as possible]",
)
@level_option
@size_max_option
@click.option(
    "--readers", type=click.IntRange(0), help="Wait for so many subscribers first. [default: for one, 1 s at most]"
)
@click.option(
    "--timeout",
    type=Amount(),
    default=10.0,
    show_default=True,
    metavar="S",
    help="How long a message may be held back by slow readers.",
)
@click.option("--no-reattach", is_flag=True, help="End when the node goes away, instead of going on at the next one.")
@click.option("--force", is_flag=True, help="Publish raw bytes to a topic that has a type.")
@json_option
@target_options
@interrupted_by_signals()
def pub(
    target: Target,
    topic: str,
    messages: tuple[str, ...],
    files: tuple[Path, ...],
    whole: bool,
    as_hex: bool,
    count: int | None,
    rate: float | None,
    level: str | None,
    size_max: int | None,
    readers: int | None,
    timeout: float,
    no_reattach: bool,
    force: bool,
    as_json: bool,
) -> int:
    """Publish MESSAGES, or the lines of stdin, to TOPIC.

    Every subscribing node delivers them in the same order as all other messages of the topic.
    """
    batches = paced(limited(source(messages, files, whole, as_hex), count), rate)
    published = Published(time.monotonic(), progress=shows_progress() and not as_json)
    with target.attach("spindle pub") as session:
        grouped = found(session, topic) is None and bool(typed.order_of(session, topic))
        info = None if grouped else declared(session, topic, level, size_max)
        type_name = typed.ORDER_GROUP if info is None else info.spec.type_name
        if info is None or (type_name != OPAQUE_TYPE and not force):
            if whole or as_hex:
                raise click.UsageError(
                    f"topic {topic!r} carries {type_name}: its samples are JSON, one object a line; --force with "
                    "--bytes or --hex writes raw bytes, which readers refuse unless they are of their type")
            of, order = typed.wait_for_type(session, topic, type_name, READERS_GRACE_S)
            with typed.participant(target, session, "spindle pub", not no_reattach) as within:
                sender = typed.open_writer(within, topic, of, order, timeout)
                wait_for_readers(session, order or topic, readers, READERS_GRACE_S)
                try:
                    typed.publish(sender, of, batches, published)
                except KeyboardInterrupt:
                    pass
                finally:
                    published.clear()
                delivered = typed.wait_for_acks(sender, timeout, published)
            return finished(topic, published, delivered, timeout, as_json)
        with Sending(target, session, info, not no_reattach, timeout) as writer:
            wait_for_readers(session, topic, readers, READERS_GRACE_S)
            try:
                publish(writer, batches, timeout, published)
            except KeyboardInterrupt:
                pass  # the usual end of --count 0; what was published counts
            finally:
                published.clear()
            delivered = writer.wait_acknowledged(timeout)
            published.resent = writer.resent
    return finished(topic, published, delivered, timeout, as_json)


def finished(topic: str, published: Published, delivered: bool, timeout: float, as_json: bool) -> int:
    """Say what was published; the exit code."""
    if as_json:
        print_json(
            {
                "topic": topic,
                "published": published.count,
                "bytes": published.size,
                "seconds": round(published.seconds, 6),
                "delivered": delivered,
                "resent": published.resent,
            }
        )
    elif sys.stderr.isatty():
        note(published.text())
    if not delivered:
        note(f"{topic}: not delivered everywhere within {timeout:g} s; look at `spindle status`")
        return 1
    return 0


def source(messages: tuple[str, ...], files: tuple[Path, ...], whole: bool, as_hex: bool) -> Iterator[list[bytes]]:
    """Batches of messages as they become available: arguments and files, else stdin. Raises UsageError at once."""
    if whole and as_hex:
        raise click.UsageError("--bytes takes stdin as it is, --hex reads lines: choose one")
    if messages or files:
        if whole:
            raise click.UsageError("--bytes reads stdin; leave it out with messages or --file")
        raw = [one.encode(errors="surrogateescape") for one in messages]  # the bytes of the argument, UTF-8 or not
        given = [unhexed(one, n) for n, one in enumerate(raw, 1)] if as_hex else raw
        return iter([given + [path.read_bytes() for path in files]])
    if whole:
        return iter([[_from_stdin(lambda stdin: stdin.read())]])
    return ([unhexed(line, n) if as_hex else line for n, line in batch] for batch in _numbered(stdin_lines()))


def stdin_lines() -> Iterator[list[bytes]]:
    """The lines of stdin without their ends, all that are there at a time."""
    rest = b""
    while chunk := _from_stdin(lambda stdin: stdin.read1(CHUNK_BYTES)):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
    if rest:
        yield [rest]


def _from_stdin(read: Callable[[io.BufferedReader], bytes]) -> bytes:
    """What read(standard input) gives; nothing where it was a terminal that has gone. Raises ClickException that says
    why it can't be read."""
    try:
        return read(cast("io.BufferedReader", sys.stdin.buffer))
    except OSError as error:
        why = error.strerror or str(error)
        if error.errno == errno.EIO and stat.S_ISCHR(os.fstat(sys.stdin.fileno()).st_mode):
            if _has_gone(sys.stdin.fileno()):  # most programs that read then are told of the end, a few of this error
                return b""
            why = ("it is a terminal that another program reads, as this one runs in the background; give messages as "
                   "arguments, or by a file or a pipe")
        raise click.ClickException(f"standard input can't be read: {why}") from None


def _has_gone(terminal: int) -> bool:
    """isatty() may still say yes."""
    poller = select.poll()
    poller.register(terminal, 0)
    return bool(poller.poll(0))


def _numbered(batches: Iterator[list[bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    numbers = itertools.count(1)
    for batch in batches:
        yield [(next(numbers), line) for line in batch]


def unhexed(line: bytes, number: int) -> bytes:
    """Bytes of a line of hexadecimal digits."""
    try:
        return bytes.fromhex(line.decode("ascii"))
    except ValueError:
        raise click.ClickException(f"message {number}: not hexadecimal: {line[:40]!r}") from None


def limited(batches: Iterator[list[bytes]], count: int | None) -> Iterator[list[bytes]]:
    """At most `count` messages, repeating them all from the beginning; None = each once, 0 = for ever."""
    if count is None:
        yield from batches
        return
    left = count or sys.maxsize
    seen: list[list[bytes]] = []
    for batch in batches:
        yield batch[:left]
        left -= min(left, len(batch))
        if not left:
            return
        seen.append(batch)
    for batch in itertools.cycle(seen):
        yield batch[:left]
        left -= min(left, len(batch))
        if not left:
            return


def paced(batches: Iterator[list[bytes]], rate: float | None) -> Iterator[list[bytes]]:
    """One message at a time, `rate` per second on average from the first; unchanged without a rate."""
    if rate is None:
        yield from batches
        return
    begin = time.monotonic()
    for n, message in enumerate(itertools.chain.from_iterable(batches)):
        wait = begin + n / rate - time.monotonic()
        if wait > 0:
            time.sleep(wait)
        yield [message]


def publish(sending: Sending, batches: Iterator[list[bytes]], timeout_s: float, published: Published) -> None:
    """Write everything. Raises ClickException naming the message that is too large or was held back too long."""
    from spindle_core.errors import MessageTooLarge, WriteTimeout

    spec = sending.writer.topic.spec
    for batch in batches:
        try:
            sending.write(batch, timeout_s)
        except (MessageTooLarge, WriteTimeout, KeyboardInterrupt) as error:
            done = getattr(error, "written", 0)  # what stood before it in the batch is published
            published.add(batch[:done])
            if isinstance(error, KeyboardInterrupt):
                raise
            number = f"message {published.count + 1}"
            if isinstance(error, MessageTooLarge):
                if spec.takes_large and sending.writer.inbox.beside is not None:
                    raise click.ClickException(f"{number} is too large: {error}") from None
                raise click.ClickException(
                    f"{number} has {len(batch[done])} bytes, size_max of topic {spec.name!r} is {spec.size_max}: "
                    "publish smaller ones, or declare another topic with a larger --size-max"
                ) from None
            few = error.for_memory if isinstance(error, WriteTimeout) else False
            why = _reason(sending.writer, few)
            raise click.ClickException(f"{number} was held back for {timeout_s:g} s: {why}") from None
        published.add(batch)


def _reason(writer: WriterHandle, few: bool) -> str:
    """Why a message was held back; `few`: for memory of large ones."""
    from spindle.errors import SpindleError

    name = writer.topic.spec.name
    try:
        found = "; ".join(map(str, writer.session.held_up_by(name, HELD_UP_TIMEOUT_S, few)))
    except (SpindleError, OSError):
        found = ""
    return f"topic {name!r} waits for {found}" if found else (
        f"a reader of topic {name!r} that keeps all doesn't take; `spindle topics {name}` shows the readers")
