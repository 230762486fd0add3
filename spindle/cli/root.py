"""The group `spindle` and its errors: what is listed in --help, what is imported when, what a failure looks like."""

from __future__ import annotations

import codecs
import dataclasses
import importlib
import importlib.util
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

import click

EXIT_FAILED = 1  # the command ran and the answer is no: a check failed, a timeout passed, a journal is damaged
EXIT_USAGE = 2  # wrong options, wrong configuration
EXIT_INTERNAL = 70  # a defect of Spindle (EX_SOFTWARE of sysexits.h)
EXIT_INTERRUPTED = 130  # Ctrl-C, as shells count it: 128 + SIGINT
EXIT_BROKEN_PIPE = 141  # the reader of our output has gone: 128 + SIGPIPE

COMPLETE_VARIABLE = "_SPINDLE_COMPLETE"  # set by the shell's completion script

HELP = """Publish/subscribe with one agreed order of every message on every node.

One node runs per host (`spindle daemon`). Applications attach to it and publish and subscribe topics: through the DDS
API (`import dds`), or from the shell with `spindle pub` and `spindle sub`.
"""

EPILOG = """\b
First steps:
  spindle demo                       see a recorded flight on three nodes
  spindle daemon &                   start a node of domain 0
  spindle sub greetings --create &   print what is published
  echo hello | spindle pub greetings

\b
`spindle COMMAND --help` explains each command with examples.
Environment: SPINDLE_DOMAIN, SPINDLE_NODE_ID, SPINDLE_RUNTIME_DIR,
SPINDLE_CONFIG.
Exit codes: 0 done, 1 failed, 2 wrong usage or configuration, 3 no daemon,
4 access denied, 130 interrupted; all of them in docs/operations.md.
"""


@dataclasses.dataclass(frozen=True)
class Entry:
    """Where a command is, and its line in --help."""

    place: str  # "module:attribute"
    text: str


COMMANDS: dict[str, dict[str, Entry]] = {
    "Run": {
        "demo": Entry("spindle.cli.demo:demo", "Replay a recorded flight on three nodes and prove what they agree on."),
        "daemon": Entry("spindle.cli.daemon:daemon", "Run a node: applications of this host attach to it."),
        "doctor": Entry("spindle.cli.doctor:doctor", "Check what of this machine would hurt, and what to do."),
    },
    "Look": {
        "status": Entry("spindle.cli.status:status", "Show a node, or with --group all of them."),
        "ls": Entry("spindle.cli.ls:ls", "List who is in the domain, and what each writes and reads."),
        "topics": Entry("spindle.cli.topics:topics", "List the topics of the domain, show or watch one."),
        "typeof": Entry("spindle.cli.typeof:typeof", "Print the type of a topic's samples."),
        "cockpit": Entry("spindle.cli.cockpit:cockpit", "Serve a page that shows the group, live."),
        "top": Entry("spindle.cli.top:top", "Watch all nodes live: rates, latencies, who is behind."),
        "foxglove": Entry("spindle.cli.foxglove:foxglove", "Show topics live in Foxglove."),
    },
    "Data": {
        "pub": Entry("spindle.cli.pub:pub", "Publish lines, JSON, bytes or files to a topic."),
        "sub": Entry("spindle.cli.sub:sub", "Print what is published to topics."),
        "record": Entry("spindle.cli.record:record", "Record topics into an MCAP file."),
        "replay": Entry("spindle.cli.replay:replay", "Play recordings, journals and bags onto topics."),
        "journal": Entry("spindle.cli.journal:journal", "Inspect, verify, export, back up journals of logged topics."),
    },
    "Measure and set up": {
        "keys": Entry("spindle.cli.keys:keys", "Make and show the keys by which nodes know each other."),
        "sim": Entry("spindle_lab.sim.cli:sim", "Simulate groups with faults, and check every promise."),
        "bench": Entry("spindle_lab.bench.cli:bench", "Measure throughput, latency and memory."),
        "paper": Entry("spindle_lab.paper.cli:paper", "Reproduce the paper's evaluation in virtual time."),
        "completion": Entry("spindle.cli.completion:completion", "Print tab completion for bash, zsh or fish."),
    },
}
ENTRIES = {name: entry for section in COMMANDS.values() for name, entry in section.items()}
STDERR = 2  # the last of the standard streams
LAB = "spindle_lab"  # a package of its own, which no node needs: its commands are there where it is installed
LAB_BUILT = "spindle_lab.litmus.rounds"  # one of its compiled modules; a tree has them after `make lab`


def installed(entry: Entry) -> bool:
    """Whether the package that has the command is here."""
    return not entry.place.startswith(f"{LAB}.") or importlib.util.find_spec(LAB) is not None


class LazyGroup(click.Group):
    """A group that imports a command's module when the command is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return [name for name, entry in ENTRIES.items() if installed(entry)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = ENTRIES.get(cmd_name)
        if entry is None:
            return None
        if not installed(entry):
            raise click.UsageError(f"`spindle {cmd_name}` is part of the package spindle-dds-lab, which is not "
                                   "installed: in the source tree of this release, `pip install ./spindle_lab`")
        if entry.place.startswith(f"{LAB}.") and importlib.util.find_spec(LAB_BUILT) is None:
            raise click.UsageError(f"`spindle {cmd_name}` needs modules that are not compiled yet: `make lab` in the "
                                   "source tree")
        module, _, attribute = entry.place.partition(":")
        command = getattr(importlib.import_module(module), attribute)
        assert isinstance(command, click.Command)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in ENTRIES and not args[0].startswith("-"):
            import difflib

            close = difflib.get_close_matches(args[0], ENTRIES, n=1, cutoff=0.5)
            hint = f"; did you mean `spindle {close[0]}`?" if close else "; see `spindle --help`"
            raise click.UsageError(f"there is no command {args[0]!r}{hint}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[Any]:
        """As click's, without importing every command for its help text."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=ENTRIES[name].text)
                 for name in self.list_commands(ctx) if name.startswith(incomplete)]
        return found + click.Command.shell_complete(self, ctx, incomplete)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, section in COMMANDS.items():
            with formatter.section(title):
                formatter.write_dl([
                    (f"{name:<10}", entry.text) for name, entry in section.items() if installed(entry)])


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from spindle import __version__

    click.echo(f"spindle {__version__}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_print_version,
    help="Print the version and exit.",
)
@click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks of errors (also after the command).")
def cli() -> None:
    pass


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command line and leave with its exit code."""
    args = list(sys.argv[1:] if argv is None else argv)
    _open_streams()
    _print_any_name()
    code = run(args)
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = _pipe_broken()
    except OSError as error:
        code = code or _fail(f"standard output: {error.strerror}", EXIT_FAILED)
        _drop_output()
    sys.exit(code)


def _open_streams() -> None:
    """Put /dev/null in the place of each standard stream that was closed at the start (`>&-`).

    Python has None for such a stream, and the next socket or file would get its number: whatever writes to that stream
    would write into it.
    """
    while (number := os.open(os.devnull, os.O_RDWR)) <= STDERR:
        os.set_inheritable(number, True)
    os.close(number)
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _print_any_name() -> None:
    """Have standard output escape what its encoding lacks, as standard error does (`\\xe9`).

    Names and samples are any text of Unicode. In a locale that isn't UTF-8 (de_DE.ISO-8859-1) one such name would end
    the listing of all.
    """
    stdout = sys.stdout
    if isinstance(stdout, io.TextIOWrapper) and codecs.lookup(stdout.encoding).name != "utf-8":
        stdout.reconfigure(errors="backslashreplace")


def run(args: list[str]) -> int:
    """Run the command line; the exit code. Everything that can go wrong becomes one line on stderr."""
    # click stops options of the group at the command's name, so both places are looked at here
    options = args[: args.index("--")] if "--" in args else args
    debug = "--debug" in options or bool(os.environ.get("SPINDLE_DEBUG"))
    try:
        result = _invoke(args)
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.UsageError as error:
        where = error.ctx.command_path if error.ctx else "spindle"
        what = f"{_of_environment(error)}{error.format_message()}"
        return _fail(f"{what}\n(`{where} --help` explains the command)", EXIT_USAGE)
    except click.ClickException as error:
        return _fail(error.format_message(), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        return _pipe_broken()
    except Exception as error:
        from spindle.cli.common import is_interrupt

        if isinstance(error, RuntimeError) and is_interrupt(error):
            return EXIT_INTERRUPTED
        if debug:
            import traceback

            traceback.print_exc()
        return _fail(*_explained(error))
    return result if isinstance(result, int) else 0


def _of_environment(error: click.UsageError) -> str:
    """What a message about an option begins with that nobody has typed."""
    option, context = getattr(error, "param", None), error.ctx
    if option is None or context is None or not isinstance(option.envvar, str) or not option.name:
        return ""
    given = context.get_parameter_source(option.name) is click.core.ParameterSource.ENVIRONMENT
    return f"${option.envvar}: " if given else ""


def _invoke(args: list[str]) -> Any:
    """What click's own main() does between its answers to errors, of which we have our own."""
    instruction = os.environ.get(COMPLETE_VARIABLE)
    if instruction:
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "spindle", COMPLETE_VARIABLE, instruction)
    with cli.make_context("spindle", args) as context:
        return cli.invoke(context)


def _explained(error: Exception) -> tuple[str, int]:
    """Text and exit code of an exception that came out of a command."""
    from spindle.errors import SpindleError, shortage

    if isinstance(error, SpindleError):
        return str(error), error.exit_code
    if not isinstance(error, BlockingIOError) and (short := shortage(error, "this command")) is not None:
        return str(short), short.exit_code
    if any(kind.__name__ == "CoreError" for kind in type(error).__mro__):
        return str(error), EXIT_FAILED
    if isinstance(error, OSError):
        where = error.filename or ("standard output" if _is_of_output(error) else "")
        named = f"{where}: {error.strerror}" if where and error.strerror else str(error)
        return named or type(error).__name__, EXIT_FAILED
    if isinstance(error, UnicodeEncodeError) and error.encoding == "utf-8":  # bytes of an argument or the environment
        return f"{error.object[:40]!r} is no text in UTF-8", EXIT_USAGE
    text = f"internal error: {type(error).__name__}: {error} (--debug shows where; please report it)"
    return text, EXIT_INTERNAL


def _is_of_output(error: OSError) -> bool:
    """True if what failed was writing to standard output: the error itself names no file."""
    frames = error.__traceback__
    names = set()
    while frames is not None:
        names.add(frames.tb_frame.f_globals.get("__name__"))
        frames = frames.tb_next
    return not names.isdisjoint(("click.utils", "rich.console"))


def _fail(message: str, code: int) -> int:
    try:
        click.echo(f"spindle: {message}", err=True)
    except OSError:
        pass  # stderr is closed: the exit code must do
    return code


def _pipe_broken() -> int:
    _drop_output()
    return EXIT_BROKEN_PIPE


def _drop_output() -> None:
    """What is still buffered has nowhere to go; without this the interpreter complains at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
