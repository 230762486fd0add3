"""`spindle bench`: the command line of the benchmarks.

Every command prints a table for people, or with --json one object for scripts. Rates are delivered messages per
second at each node. Exit code 1 when a run failed, lost something or was not in the same order everywhere.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import click

from spindle_lab.bench import results
from spindle_lab.bench.options import (
    APIS,
    DELAYED,
    FABRICS,
    IDLE_TOPICS_MAX,
    LEVELS,
    SENDERS,
    SWITCHES,
    MulticastOptions,
    OptionError,
)

EPILOG = """\b
Examples:
  spindle bench limit                         what this machine allows at 1 KB
  spindle bench multicast --limit             core API, three nodes, 1 KB, and
                                              the ratio to that
  spindle bench multicast --api dds --daemon  DDS API in Python, a daemon each
  spindle bench latency                       one way at 1,000 messages/s
  spindle bench suite --quick                 everything once, as a table
"""

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of a table.")
nodes_option = click.option("--nodes", type=click.IntRange(1, 64), default=3, show_default=True, help="Node processes.")
size_option = click.option(
    "--size", type=click.IntRange(16, 64 << 20), default=1024, show_default=True, help="Bytes of a message."
)
repeat_option = click.option(
    "--repeat", type=click.IntRange(1, 100), default=1, show_default=True, help="Runs; the median one is shown."
)
fabric_option = click.option(
    "--fabric", type=click.Choice(FABRICS), default="shm", show_default=True, help="How nodes reach each other."
)
window_option = click.option(
    "--window", type=click.IntRange(0, 65536), default=0, help="Slots of a sender's ring. [default: chosen by size]"
)


@click.group(name="bench", epilog=EPILOG)
def bench() -> None:
    """Measure throughput, latency and memory, beside what this machine allows."""


def failing_clearly(function: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Runs a benchmark; its failure becomes one message and exit code 1."""
    from spindle_lab.bench.crew import BenchFailed

    try:
        return function()
    except BenchFailed as error:
        raise click.ClickException(str(error)) from None


def show(result: dict[str, Any], as_json: bool) -> None:
    """Prints a result; nested objects become dotted names in the table."""
    if as_json:
        click.echo(results.as_json(result))
        return
    rows = list(flat(result))
    width = max(len(name) for name, _ in rows)
    for name, value in rows:
        click.echo(f"{name:<{width}}  {value}")


def flat(result: dict[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    rows: list[tuple[str, str]] = []
    for name, value in result.items():
        if isinstance(value, dict):
            rows += flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            continue
        elif isinstance(value, bool):
            rows.append((prefix + name, "yes" if value else "no"))
        elif isinstance(value, int):
            rows.append((prefix + name, f"{value:,}"))
        elif isinstance(value, list):
            rows.append((prefix + name, "  ".join(f"{v:,}" if isinstance(v, int) else str(v) for v in value)))
        else:
            rows.append((prefix + name, str(value)))
    return rows


def check(result: dict[str, Any]) -> None:
    """Exit code 1 when what was measured wasn't right."""
    unordered = not result.get("ordered", True)
    if result.get("lost") or result.get("corrupt") or (result.get("order_identical") is False and not unordered):
        click.echo(
            "messages were lost, torn or not in the same order on all nodes: these numbers don't count", err=True
        )
        sys.exit(1)


@bench.command()
@nodes_option
@size_option
@click.option("--senders", type=click.Choice(SENDERS), default="all", show_default=True)
@click.option("--count", type=click.IntRange(0), default=0, help="Messages per sender. [default: about half a second]")
@fabric_option
@window_option
@repeat_option
@json_option
def limit(
    nodes: int, size: int, senders: str, count: int, fabric: str, window: int, repeat: int, as_json: bool
) -> None:
    """What the hardware allows for the same work: bare loops that fill, count, copy out and sum.

    As many processes over the same kind of shared memory, with no application, no control plane, no order between
    senders, and rings that stay in the cache. With --fabric tcp: what one stream over loopback moves, whatever the
    other options say, measured with iperf3 (if it is installed) and with a sender and receiver of our own; with
    --fabric verbs: what one connection moves through the RDMA device.
    """
    from spindle_lab.bench import limit as limit_module
    from spindle_lab.bench import stream
    from spindle_lab.bench.options import senders_count

    if fabric != "shm":
        show(failing_clearly(lambda: stream.run(1.0, repeat, fabric)), as_json)
        return
    show(
        failing_clearly(
            lambda: limit_module.run(
                nodes, size, senders=senders_count(senders, nodes), count=count, window=window, repeat=repeat
            )
        ),
        as_json,
    )


@bench.command()
@click.option("--rounds", type=click.IntRange(10, 100_000), default=3000, show_default=True, help="Rings.")
@click.option("--gap-us", type=click.FloatRange(0, 1e6), default=1000, show_default=True, help="Silence before each.")
@json_option
def wakeup(rounds: int, gap_us: float, as_json: bool) -> None:
    """What one doorbell costs: the call that rings, and ring to wake-up, on the same core and on an idle one."""
    from spindle_lab.bench import doorbell

    show(failing_clearly(lambda: doorbell.run(rounds, gap_us)), as_json)


@bench.command()
@click.option("--rounds", type=click.IntRange(60, 100_000), default=2000, show_default=True, help="Of each.")
@json_option
def links(rounds: int, as_json: bool) -> None:
    """What opening a link, a read and a call cost, beside a doorbell and a fresh TLS connection."""
    from spindle_lab.bench import links as links_module

    show(failing_clearly(lambda: links_module.run(rounds)), as_json)


@bench.command()
@nodes_option
@click.option("--megabytes", type=click.IntRange(1, 1000), default=100, show_default=True, help="Of a sample.")
@click.option("--count", type=click.IntRange(1, 100_000), default=40, show_default=True, help="Samples of a run.")
@click.option("--peers/--no-peers", default=True, help="Beside iceoryx2 and cyclonedds, where they are installed.")
@click.option("--paced/--no-paced", default=True, help="And what small messages notice of it.")
@click.option("--apart", is_flag=True, help="Nodes as on hosts of their own: TCP on loopback, beside one stream.")
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs; the median is shown.")
@json_option
def large(
    nodes: int, megabytes: int, count: int, peers: bool, paced: bool, apart: bool, repeat: int, as_json: bool
) -> None:
    """Large samples, filled and read in place, beside what copying memory takes and beside small messages."""
    from spindle_lab.bench import large as large_module

    show(
        failing_clearly(
            lambda: large_module.run(
                nodes, megabytes * large_module.MB, count, repeat=repeat, peers=peers and not apart, paced=paced,
                apart=apart
            )
        ),
        as_json,
    )


@bench.command()
@click.option("--block", type=click.IntRange(64, 1 << 20), default=4096, show_default=True, help="Bytes per copy.")
@click.option("--seconds", type=click.FloatRange(0.01, 10), default=0.15, show_default=True, help="Time at each size.")
@json_option
def memcpy(block: int, seconds: float, as_json: bool) -> None:
    """Copy bandwidth of this machine, from rings that stay in the cache to rings that don't."""
    from spindle_lab.bench import memcpy as memcpy_module

    result = memcpy_module.run(block, seconds)
    if as_json:
        click.echo(results.as_json(result))
        return
    click.echo(f"{'ring':>12}  {'GB/s':>6}")
    for row in result["rings"]:
        click.echo(f"{row['ring'] // 1024:>8} KiB  {row['bytes_per_s'] / 1e9:>6.1f}")
    click.echo(f"cold into a 64 KiB buffer: {result['cold_to_hot_bytes_per_s'] / 1e9:.1f} GB/s")


def multicast_options(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options that `multicast` and `latency` share."""
    for option in reversed(
        (
            nodes_option,
            size_option,
            click.option(
                "--count", type=click.IntRange(0), default=0, help="Messages per sender. [default: about a second]"
            ),
            click.option(
                "--switches",
                default="spindle",
                show_default=True,
                help="baseline (none), batching, nulls (batching and null-sends), spindle (all), or single ones: "
                + ", ".join(SWITCHES)
                + ".",
            ),
            click.option(
                "--api", type=click.Choice(APIS), default="core", show_default=True, help="core: bare loops in C."
            ),
            click.option("--daemon", is_flag=True, help="dds: a daemon per node instead of a node in each process."),
            fabric_option,
            click.option("--level", type=click.Choice(LEVELS), default="atomic", show_default=True),
            click.option("--single", is_flag=True, help="dds: one write and one sample object per message."),
            click.option("--in-place", is_flag=True, help="dds: NumPy records, written as arrays and read in place."),
            window_option,
            click.option("--idle-topics", type=click.IntRange(0, IDLE_TOPICS_MAX), default=0,
                         help="Topics in which nothing is sent, open at all nodes beside the one that is measured."),
            click.option("--look-at-all", "skip_idle", is_flag=True, flag_value=False, default=True,
                         help="Each pass of the predicates looks at every topic (core.skip_idle off)."),
            click.option(
                "--busy-poll-us",
                type=click.IntRange(0, 1_000_000),
                default=50,
                show_default=True,
                help="How long an idle predicate thread spins before it sleeps.",
            ),
            click.option(
                "--timeout",
                "timeout_s",
                type=click.FloatRange(1, 3600),
                default=60.0,
                show_default=True,
                help="Seconds after which a run has failed.",
            ),
            repeat_option,
            json_option,
        )
    ):
        function = option(function)
    return function


def make_options(**values: Any) -> MulticastOptions:
    try:
        return MulticastOptions(**values)
    except OptionError as error:
        raise click.UsageError(str(error)) from None


@bench.command()
@multicast_options
@click.option("--senders", type=click.Choice(SENDERS), default="all", show_default=True)
@click.option(
    "--delayed",
    type=click.Choice(DELAYED),
    default="none",
    show_default=True,
    help="Which senders wait --delay-us after each message; silent: one sender sends nothing at all.",
)
@click.option("--delay-us", type=click.FloatRange(0, 1e6), default=100.0, show_default=True)
@click.option(
    "--claim",
    type=click.IntRange(0, 1024),
    default=0,
    help="core: slots that a sender claims at once at most, 1: message by message. [default: an eighth of the window]",
)
@click.option(
    "--limit", "with_limit", is_flag=True, help="Alternate with the runs of `limit` and print the ratio."
)
def multicast(repeat: int, as_json: bool, with_limit: bool, **values: Any) -> None:
    """Throughput: every sender sends as fast as it can, every node delivers everything.

    Each sender fills every byte of each message, each receiver copies or sums every byte, and the order of delivery
    is compared over all nodes.
    """
    from spindle_lab.bench import multicast as multicast_module

    options = make_options(**values)
    result = failing_clearly(lambda: multicast_module.run(options, repeat=repeat, with_limit=with_limit))
    show(result, as_json)
    check(result)


@bench.command()
@multicast_options
@click.option("--senders", type=click.Choice(SENDERS), default="one", show_default=True)
@click.option(
    "--rate",
    "pace_per_s",
    type=click.FloatRange(0.1, 1e6),
    default=1000.0,
    show_default=True,
    help="Messages per second of each sender.",
)
def latency(repeat: int, as_json: bool, **values: Any) -> None:
    """One-way latency at a paced rate, from the filling of a message to its delivery, over all receivers."""
    from spindle_lab.bench import multicast as multicast_module

    options = make_options(**values)
    result = failing_clearly(lambda: multicast_module.latency_run(options, repeat=repeat))
    show(result, as_json)
    check(result)


@bench.command("types")
@click.option("--rounds", type=click.IntRange(1, 1000), default=9, show_default=True, help="Measurements of each.")
@json_option
def types_command(rounds: int, as_json: bool) -> None:
    """What encoding and decoding IDL types costs, beside the library's own way and, where installed, cyclonedds."""
    from spindle_lab.bench import codecs

    show(failing_clearly(lambda: codecs.run(rounds)), as_json)


@bench.command()
@click.option("--rounds", type=click.IntRange(1, 10_000), default=101, show_default=True, help="Batches of each kind.")
@click.option("--keys", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Of the samples.")
@click.option("--instances", type=click.IntRange(1, 10_000_000), default=100_000, show_default=True,
              help="For what they take of memory.")
@json_option
def keyed(rounds: int, keys: int, instances: int, as_json: bool) -> None:
    """What samples with keys cost a reader, beside the same without; and the memory of instances."""
    from spindle_lab.bench import keyed as keyed_module

    show(failing_clearly(lambda: keyed_module.run(rounds, keys, instances)), as_json)


@bench.command()
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each, in turns.")
@click.option("--quick", is_flag=True, help="Each once, with few messages: does it work at all?")
@json_option
def peers(repeat: int, quick: bool, as_json: bool) -> None:
    """The DDS API in Python beside iceoryx2 and cyclonedds-python, where they are installed: rates and latencies.

    All processes publish and receive everything and read every byte. Takes two minutes.
    """
    from dataclasses import asdict, replace

    from spindle_lab.bench import lines
    from spindle_lab.bench import peers as peers_module

    plan = lines.QUICK if quick else replace(lines.Plan(), repeat=repeat)
    found = failing_clearly(lambda: {"lines": peers_module.section(plan)})["lines"]
    click.echo(results.as_json([asdict(line) for line in found]) if as_json else peers_module.text_of(found))


@bench.command("idle-topics")
@nodes_option
@size_option
@click.option("--topics", "idle_topics", type=click.IntRange(1, IDLE_TOPICS_MAX), default=200, show_default=True,
              help="How many of them there are.")
@click.option("--api", type=click.Choice(APIS), default="core", show_default=True, help="core: bare loops in C.")
@click.option("--daemon", is_flag=True, help="dds: a daemon per node instead of a node in each process.")
@fabric_option
@click.option("--count", type=click.IntRange(0), default=0, help="Messages per sender. [default: about a second]")
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="Pairs of runs.")
@json_option
def idle_topics_command(repeat: int, as_json: bool, **values: Any) -> None:
    """What topics in which nothing happens cost one in which something does: its rate and latency, alone and beside."""
    from spindle_lab.bench import idle_topics

    options = make_options(**values)
    show(failing_clearly(lambda: idle_topics.run(options, repeat)), as_json)


@bench.command()
@nodes_option
@click.option("--seconds", type=click.FloatRange(0.1, 600), default=5.0, show_default=True, help="How long to look.")
@fabric_option
@json_option
def idle(nodes: int, seconds: float, fabric: str, as_json: bool) -> None:
    """What a group costs that has nothing to do: pushes and CPU time of daemons and applications."""
    from spindle_lab.bench import idle as idle_module

    show(failing_clearly(lambda: idle_module.run(nodes, seconds, fabric)), as_json)


@bench.command()
@repeat_option
@json_option
def startup(repeat: int, as_json: bool) -> None:
    """Times until a program can work (import, node, attachment), and a node's memory with ten topics."""
    from spindle_lab.bench import startup as startup_module

    show(failing_clearly(lambda: startup_module.run(repeat)), as_json)


@bench.command()
@nodes_option
@click.option("--topics", type=click.IntRange(1, 255), default=200, show_default=True, help="Topics to be opened.")
@click.option("--level", type=click.Choice(LEVELS), default="atomic", show_default=True, help="Their level.")
@json_option
def topics(nodes: int, topics: int, level: str, as_json: bool) -> None:
    """How long it takes to open many topics at all nodes, by a program at each and by one for all."""
    from spindle_lab.bench import topics as topics_module

    show(failing_clearly(lambda: topics_module.run(nodes, topics, LEVELS.index(level))), as_json)


@bench.command()
@nodes_option
@click.option("--adds", "count", type=click.IntRange(1, 100_000), default=300, show_default=True,
              help="Commands of each process, one after the other.")
@click.option("--puts", type=click.IntRange(1, 1_000_000), default=5000, show_default=True,
              help="Commands of each process, 50 in flight.")
@click.option("--repeat", type=click.IntRange(1, 100), default=3, show_default=True, help="Runs of each system.")
@json_option
def replicas(nodes: int, count: int, puts: int, repeat: int, as_json: bool) -> None:
    """Replicated objects in several processes: rates and latency, beside pysyncobj if that is installed."""
    from spindle_lab.bench import replicas as replicas_module

    show(failing_clearly(lambda: replicas_module.run(nodes, count, puts, repeat)), as_json)


@bench.command()
@click.option("--kills", type=click.IntRange(0, 10_000), default=5, show_default=True, help="kill -9, of each kind.")
@click.option("--stops", type=click.IntRange(0, 10_000), default=2, show_default=True, help="SIGSTOP, of each kind.")
@click.option("--joins", type=click.IntRange(0, 10_000), default=10, show_default=True, help="Clean joins and leaves.")
@click.option("--rate", type=click.IntRange(1, 100_000), default=1000, show_default=True, help="Messages/s per writer.")
@click.option("--size", type=click.IntRange(16, 65536), default=64, show_default=True, help="Bytes of a message.")
@click.option(
    "--suspect-timeout", "suspect_timeout_s", type=click.FloatRange(0.05, 60), default=1.0, show_default=True,
    help="Of the daemons, seconds.",
)  # fmt: skip
@fabric_option
@json_option
def failover(kills: int, stops: int, joins: int, as_json: bool, **options: Any) -> None:
    """How long delivery pauses when a node is killed, hangs, joins or leaves; nothing may be lost or doubled.

    Three daemons with an application each that writes and reads.
    """
    from spindle_lab.bench import failover as failover_module

    def say(name: str) -> None:
        click.echo(f"measuring: {name}", err=True)

    show(failing_clearly(lambda: failover_module.run(options, kills, stops, joins, say)), as_json)


@bench.command()
@click.option("--quick", is_flag=True, help="Each figure once, with few messages: does it work at all?")
@click.option(
    "--repeat", type=click.IntRange(1, 100), default=5, show_default=True, help="Runs of which the median counts."
)
@click.option(
    "--only",
    "sections",
    multiple=True,
    help="A section: machine, core, tcp, switches, delays, dds, types, peers, latency, idle, idle-topics, failover, "
    "startup; repeatable. [default: all]",
)
@click.option(
    "--markdown",
    "markdown_path",
    type=click.Path(dir_okay=False, writable=True),
    help="Write the tables to this file, between its markers if it has them.",
)
@json_option
def suite(quick: bool, repeat: int, sections: tuple[str, ...], markdown_path: str | None, as_json: bool) -> None:
    """Every figure of docs/benchmarks.md in one run, each with the command that gives it alone.

    Takes a few minutes on a quiet machine; --quick half a minute.
    """
    from pathlib import Path

    from spindle_lab.bench import lines
    from spindle_lab.bench import suite as suite_module

    for name in sections:
        if name not in suite_module.SECTIONS:
            raise click.UsageError(f"unknown section {name!r}: one of {', '.join(suite_module.SECTIONS)}")
    plan = lines.QUICK if quick else lines.Plan(repeat=repeat)
    result = suite_module.run(plan, sections, lambda text: click.echo(f"measuring: {text}", err=True))
    text = suite_module.markdown(result)
    if markdown_path:
        place = Path(markdown_path)
        place.write_text(suite_module.rewritten(place.read_text() if place.exists() else "", text))
    click.echo(results.as_json(result) if as_json else text)
