"""What the commands share: which node is meant, how it is attached to, and how things are written for people.

Rules: imports at the top are those that `spindle pub` needs anyway; rich is imported by what draws tables.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import math
import os
import re
import signal
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from spindle.config.settings import DOMAIN_MAX

if TYPE_CHECKING:
    from types import FrameType

    from click.shell_completion import CompletionItem
    from rich.console import Console

    from spindle.cli.listing import Listing
    from spindle.client import Session

F = TypeVar("F", bound=Callable[..., Any])

ATTACH_TIMEOUT_S = 5.0
AMOUNT_MAX = 1e9  # seconds, or times as fast: longer or faster than anything
COMPLETION_TIMEOUT_S = 0.5  # a key press must not wait for a node that hangs
_SOCKET = re.compile(r"node-([0-9]+)\.sock")


@dataclasses.dataclass(frozen=True)
class Target:
    """The node that a command talks to. `node` None means the daemon with the lowest id; `nodes` are on other hosts."""

    domain: int = 0
    node: int | None = None
    runtime_dir: Path | None = None
    nodes: str | None = None

    def attach(self, name: str, timeout_s: float = ATTACH_TIMEOUT_S) -> Session:
        """A session with the node. Raises NoDaemon, AccessDenied, ProtocolMismatch, TimeoutError."""
        if self.nodes:
            from spindle.client.remote import attach_remote

            return attach_remote(self.nodes, self.domain, name=name, timeout_s=timeout_s)
        from spindle.client.attaching import attach

        return attach(
            self.domain, runtime_dir=self.runtime_dir, node_id=self.node, name=name, timeout_s=timeout_s, embedded=True
        )

    @property
    def directory(self) -> Path:
        """Directory of the domain's sockets."""
        from spindle.config.settings import default_runtime_dir

        return (self.runtime_dir or default_runtime_dir()) / f"domain-{self.domain}"

    def local_nodes(self) -> list[int]:
        """Ids of the nodes of this host that have a socket (alive or left over), or the one that was asked for."""
        if self.node is not None:
            return [self.node]
        try:
            names = [path.name for path in self.directory.iterdir()]
        except OSError:
            return []
        return sorted(int(match[1]) for name in names if (match := _SOCKET.fullmatch(name)))


def target_options(function: F) -> F:
    """Adds --domain, --node, --runtime-dir, --nodes and --debug; the function gets them as `target`."""

    @functools.wraps(function)
    def with_target(domain: int, node: int | None, runtime_dir: Path | None, nodes: str | None, **more: Any) -> Any:
        if not given_on_line("nodes"):
            # An option about this host wins over what the environment says of other hosts; a variable about this host
            # doesn't, as in programs.
            if given_on_line("node") or given_on_line("runtime_dir"):
                nodes = None
            elif not nodes and os.environ.get("SPINDLE_CLIENT_CONFIG"):
                from spindle.client.nodes import nodes_in_file

                nodes = nodes_in_file()
        return function(target=Target(domain, node, runtime_dir, nodes), **more)

    decorated: Any = with_target  # the options' types are click's affair
    for option in reversed(
        [
            click.option(
                "-d",
                "--domain",
                type=click.IntRange(0, DOMAIN_MAX),
                metavar="N",
                default=0,
                envvar="SPINDLE_DOMAIN",
                show_default=True,
                help="DDS domain.",
            ),
            click.option(
                "-n",
                "--node",
                type=click.IntRange(1, 65535),
                metavar="N",
                envvar="SPINDLE_NODE_ID",
                help="Node to attach to. [default: the daemon with the lowest id]",
            ),
            click.option(
                "--runtime-dir",
                type=click.Path(path_type=Path),
                envvar="SPINDLE_RUNTIME_DIR",
                help="Directory of the nodes' sockets.",
            ),
            click.option(
                "--nodes",
                metavar="HOST:PORT,...",
                envvar="SPINDLE_NODES",
                help="Nodes on other hosts, for a host without one; keys as $SPINDLE_CERTIFICATE and so on say.",
            ),
            debug_option,
        ]
    ):
        decorated = option(decorated)
    return decorated


def beside_file(given: Mapping[str, tuple[str, Any]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What the running command's parameters say beside its configuration file, by the fields of NodeConfig: what the
    file wins over, and what wins over the file. `given` has field and value of each parameter.

    The file wins over the environment if it is named on the command line (parameter `path`). Where the environment
    names the file, too, it means both, and the variable is the more particular.
    """
    sources = {name: click.get_current_context().get_parameter_source(name) for name in ["path", *given]}
    named = sources["path"] is click.core.ParameterSource.COMMANDLINE
    below: dict[str, Any] = {}
    above: dict[str, Any] = {}
    for name, (field, value) in given.items():
        if sources[name] in (click.core.ParameterSource.COMMANDLINE, click.core.ParameterSource.ENVIRONMENT):
            weak = named and sources[name] is click.core.ParameterSource.ENVIRONMENT
            (below if weak else above)[field] = value
    return below, above


def given_on_line(name: str) -> bool:
    """True if the running command's parameter is on the command line."""
    return click.get_current_context().get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE


# its value is looked at in spindle.cli.root, where errors are shown
debug_option = click.option("--debug", is_flag=True, expose_value=False, hidden=True)
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


def complete_topic(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Topic names from the running node; none if there is no node or it doesn't answer."""
    from click.shell_completion import CompletionItem

    given = ctx.params
    target = Target(given.get("domain") or 0, given.get("node"), given.get("runtime_dir"), given.get("nodes"))
    try:
        with target.attach("spindle completion", COMPLETION_TIMEOUT_S) as session:
            topics = session.topics()
    except Exception:
        return []  # a completion has nowhere to complain: a message would end up in the command line
    return [
        CompletionItem(info.spec.name, help=info.spec.type_name)
        for info in topics
        if info.spec.name.startswith(incomplete)
    ]


def check_topics(_ctx: click.Context, _param: click.Parameter, topics: tuple[str, ...]) -> tuple[str, ...]:
    """TOPICs to wait for. Raises ConfigError if no topic can be called one of them: it would be waited for forever."""
    from spindle.group.topics import check_name

    for topic in topics:
        check_name("topic name", topic)
    return topics


def print_json(value: Any) -> None:
    """One object, indented, to stdout."""
    click.echo(json.dumps(value, indent=2, default=json_default))


def json_default(value: Any) -> Any:
    """JSON of what json doesn't know: bytes as hex, paths as text, sets and tuples as lists."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value).hex()
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, (set, frozenset)):
        return sorted(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")


def is_interrupt(error: BaseException) -> bool:
    """True if a Ctrl-C came to this: what `threading` does in Python, Thread.start() for one, makes "release unlocked
    lock" of an exception that a signal's handler raises at the wrong place."""
    seen: set[int] = set()
    found: BaseException | None = error
    while found is not None and id(found) not in seen:
        if isinstance(found, KeyboardInterrupt):
            return True
        seen.add(id(found))
        found = found.__context__
    return False


@contextlib.contextmanager
def interrupts() -> Iterator[None]:
    """A Ctrl-C comes out of it as KeyboardInterrupt, whatever it has become within."""
    try:
        yield
    except RuntimeError as error:
        if is_interrupt(error):
            raise KeyboardInterrupt from error
        raise


def ending_signals() -> tuple[signal.Signals, ...]:
    """What ends a command as Ctrl-C does: SIGTERM, and SIGHUP, the end of its terminal, unless it was started so that
    this is ignored (nohup)."""
    hung_up = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
    return (signal.SIGINT, signal.SIGTERM, *hung_up)


@contextlib.contextmanager
def stopped_by_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Ctrl-C, SIGTERM and SIGHUP call this meanwhile, instead of ending the command where it is."""
    with _handled(lambda *_: stop()):
        yield


@contextlib.contextmanager
def interrupted_by_signals() -> Iterator[Callable[[], bool]]:
    """SIGTERM and SIGHUP raise KeyboardInterrupt meanwhile, as Ctrl-C does. Decorates a command, too. Gives what says
    whether one came: what is raised in a finalizer Python forgets."""
    came: list[int] = []

    def interrupt(number: int, frame: FrameType | None) -> None:
        came.append(number)
        signal.default_int_handler(number, frame)

    with _handled(interrupt):
        yield lambda: bool(came)


@contextlib.contextmanager
def _handled(handler: Callable[[int, FrameType | None], object]) -> Iterator[None]:
    before = {number: signal.signal(number, handler) for number in ending_signals()}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def use_all_descriptors() -> None:
    """For a command that may have hundreds of readers or writers open, of four descriptors each: it has as many as it
    may have, where 1024 is the usual soft limit."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # then the limit stays
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def is_like(name: str, patterns: Iterable[str]) -> bool:
    """True if it is one of these names, or like one of these patterns. (Names may have brackets and stars in them.)"""
    return any(name == like or fnmatchcase(name, like) for like in patterns)


class Amount(click.FloatRange):
    """A number that is 0 or more: `nan` is none, and `inf` as much as makes no difference."""

    name = "amount"

    def __init__(self) -> None:
        super().__init__(0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if math.isnan(number):
            self.fail(f"{value!r} is no number", param, ctx)
        return min(number, AMOUNT_MAX)


def note(text: str) -> None:
    """One line for the person at the terminal, on stderr so that pipes stay clean."""
    _tell(f"spindle: {text}\n")


def shows_progress() -> bool:
    """True if standard error is a terminal on which a line can be replaced."""
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def progress(text: str = "") -> None:
    """Show this in the place of the last such line."""
    _tell(f"\r\x1b[K{text}")


def _tell(text: str) -> None:
    """On standard error. Where it has gone, with its terminal, say, nothing is told, and nothing ends for that."""
    with contextlib.suppress(OSError):
        click.echo(text, err=True, nl=False)


def put(data: bytes) -> None:
    """Write to standard output at once. Raises OSError, which names it."""
    try:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from None


def console() -> Console:
    """A rich console on stdout; as wide as needed when the output is not a terminal, so that no line is broken."""
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else 100_000, highlight=False)


def table(*columns: str, right: Iterable[str] = (), folds: Iterable[str] = (), spare: Iterable[str] = (),
          title: str | None = None) -> Listing:
    """An empty table in the house style, of which a narrow terminal cuts nothing. `right`: figures; `folds`: long
    texts, which may be broken into lines; `spare`: columns that a narrow terminal leaves out."""
    from spindle.cli.listing import Column, Listing

    numbers, long, wide = set(right), set(folds), set(spare)
    return Listing([Column(name, name in numbers, name in long, name in wide) for name in columns], title)


def escaped(text: str) -> str:
    """Text of others for rich: neither rich nor the terminal takes anything in it for a command."""
    from rich.markup import escape

    return escape("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text))


def count_text(value: float) -> str:
    """A count or rate for people in at most six characters: 950, 12.3k, 4.56M."""
    if value < 0:
        return "-" + count_text(-value)
    if value < 1000:
        return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"
    for limit, unit in ((1e6, "k"), (1e9, "M"), (1e12, "G")):
        if value < limit * 0.9995:
            scaled = value / (limit / 1000)
            return f"{scaled:.{2 if scaled < 10 else 1 if scaled < 100 else 0}f}{unit}"
    return f"{value / 1e12:.2f}T"


def bytes_text(value: float) -> str:
    """A size or a rate in bytes for people: 512 B, 12.3 KB, 1.20 GB (powers of 1000)."""
    if value < 1000:
        return f"{value:.0f} B"
    text = count_text(value)
    return f"{text[:-1]} {text[-1].upper()}B"


def duration_text(seconds: float) -> str:
    """A time for people: 850 ns, 12.3 us, 4.0 ms, 12 s, 3 min 20 s, 5 h 10 min."""
    if seconds < 60:
        for factor, unit in ((1, "s"), (1e3, "ms"), (1e6, "us")):
            if seconds * factor >= 1:
                return f"{seconds * factor:.{0 if seconds * factor >= 100 or factor == 1 else 1}f} {unit}"
        return f"{seconds * 1e9:.0f} ns"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes} min"
    return f"{hours // 24} d {hours % 24} h"


def time_text(timestamp_ns: int) -> str:
    """Local time of day with microseconds."""
    import time

    seconds, rest = divmod(timestamp_ns, 10**9)
    return f"{time.strftime('%H:%M:%S', time.localtime(seconds))}.{rest // 1000:06d}"
