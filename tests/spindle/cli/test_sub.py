"""Goal: every format prints exactly what was published, ends when it should, and with the right exit code.

Method: a stand-in node whose delivery log is filled by the test; the command runs in this process, or as its own where
it must be interrupted.
"""

from __future__ import annotations

import base64
import json
import signal

import pytest

from spindle.cli.sub import SHOWN_BYTES_MAX, shown
from spindle.group.topics import TopicSpec
from tests.spindle.cli.support import Cli, spawn
from tests.spindle.stand_in import StandInNode, StandInReader
from tests.support import wait_until

TIME_NS = 1_700_000_000_123_456_789


@pytest.fixture
def node(stand_in: StandInNode) -> StandInNode:
    stand_in.call(lambda: stand_in.declare_topic(TopicSpec("t")))
    return stand_in


def publish_when_read(node: StandInNode, payloads: list[bytes]) -> None:
    """Deliver the payloads on the node's loop as soon as a reader is open."""

    async def deliver() -> None:
        import asyncio

        while not any(isinstance(port, StandInReader) for port in node.open_ports):
            await asyncio.sleep(0.001)
        for at, payload in enumerate(payloads):
            node.logs["t"].append(payload, 5, 10 + at, 3, TIME_NS)

    node._loop.call_soon_threadsafe(lambda: tasks.append(node._loop.create_task(deliver())))


tasks: list[object] = []  # the loop itself keeps only weak references


def test_text(cli: Cli, node: StandInNode) -> None:
    publish_when_read(node, [b"hello", "ü\x1b[2J\tx".encode(), b"\xff\x00"])
    result = cli("sub", "t", "-c", 3)
    assert result.code == 0
    lines = result.out.splitlines()
    assert lines[0].endswith(".123456  5:0      10  hello")
    assert lines[1].endswith(r"ü\x1b[2J\tx"), "nothing that a terminal would obey"
    assert lines[2].endswith("ff 00")


@pytest.mark.parametrize(("style", "expected"), [("lines", b"a\nb\x00\n"), ("raw", b"ab\x00")], ids=["lines", "raw"])
def test_payloads_only(cli: Cli, node: StandInNode, style: str, expected: bytes) -> None:
    publish_when_read(node, [b"a", b"b\x00"])
    assert cli("sub", "t", "-c", 2, "-f", style).out.encode() == expected


@pytest.mark.slow
@pytest.mark.parametrize("how", [[], ["-c", 0]], ids=["by default", "with 0"])
def test_without_a_count_it_goes_on(cli: Cli, node: StandInNode, how: list[object]) -> None:
    """0 means the same as for `spindle pub`: for ever. Here until nothing comes, which then is no failure."""
    publish_when_read(node, [b"a", b"b"])
    result = cli("sub", "t", *how, "-t", "0.5", "-f", "lines")
    assert (result.code, result.out) == (0, "a\nb\n")


def test_hex(cli: Cli, node: StandInNode) -> None:
    publish_when_read(node, [b"\x01ab"])
    assert cli("sub", "t", "-c", 1, "-f", "hex").out.endswith("  01 61 62\n")


@pytest.mark.parametrize("how", [["--json"], ["--format", "json"]])
def test_json(cli: Cli, node: StandInNode, how: list[str]) -> None:
    publish_when_read(node, [b"text", b"\xff"])
    first, second = (json.loads(line) for line in cli("sub", "t", "-c", 2, *how).out.splitlines())
    assert first["text"] == "text" and "base64" not in first
    assert base64.b64decode(second["base64"]) == b"\xff" and second["size"] == 1
    assert (first["topic"], first["node"], first["sequence"], first["view"]) == ("t", 5, 10, 3)
    assert first["source_timestamp"] == TIME_NS and first["reception_timestamp"] > TIME_NS


def test_count_and_timeout(cli: Cli, node: StandInNode) -> None:
    publish_when_read(node, [b"1", b"2", b"3"])
    assert cli("sub", "t", "-c", 2, "-f", "lines").out == "1\n2\n"
    publish_when_read(node, [b"1"])
    short = cli("sub", "t", "-c", 2, "-t", "0.2", "-f", "lines")
    assert (short.code, short.out) == (1, "1\n")
    assert cli("sub", "t", "-t", "0.05").code == 0, "without a count the timeout is a usual end"


def test_unknown_topic_is_waited_for(cli: Cli, node: StandInNode) -> None:
    result = cli("sub", "other", "-t", "0.1")
    assert result.code == 1 and "waiting for topic 'other'" in result.err and "nobody declared" in result.err


def test_create_declares_as_asked(cli: Cli, node: StandInNode) -> None:
    assert cli("sub", "new", "--create", "--level", "volatile", "--size-max", "1KiB", "-t", "0.05").code == 0
    info = next(one for one in node.topics() if one.spec.name == "new")
    assert (info.spec.level.name, info.spec.size_max, info.spec.type_name) == ("VOLATILE", 1024, "bytes")
    assert cli("sub", "new", "--create", "-t", "0.05").code == 0, "what exists is taken as it is"
    refused = cli("sub", "new", "--create", "--level", "atomic", "-t", "0.05")
    assert refused.code == 1 and "has level volatile, not atomic" in refused.err


def test_keep_all_and_announcement(cli: Cli, node: StandInNode) -> None:
    seen = []
    node.announce_endpoint = lambda endpoint: seen.append(endpoint) or node.announced.update({endpoint.guid: endpoint})  # type: ignore[method-assign, func-returns-value]
    assert cli("sub", "t", "--keep-all", "-t", "0.05").code == 0
    assert not seen[0].is_writer and json.loads(seen[0].endpoint)["qos"]["Reliability"]["kind"] == "BestEffort"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ends_cleanly_when_interrupted(node: StandInNode, number: signal.Signals) -> None:
    with spawn("sub", "t", "-f", "lines") as process:
        assert process.stdout is not None and process.stderr is not None
        publish_when_read(node, [b"seen"])
        assert process.stdout.readline() == b"seen\n", "flushed at once"
        process.send_signal(number)
        assert process.wait(10) == 0
        assert process.stderr.read() == b""
    wait_until(lambda: not node.open_ports, what="reader closed")


def test_node_that_goes_ends_it_if_told_so(node: StandInNode) -> None:
    with spawn("sub", "t", "-f", "lines", "--no-reattach") as process:
        assert process.stdout is not None and process.stderr is not None
        publish_when_read(node, [b"seen"])
        assert process.stdout.readline() == b"seen\n"
        node.stop()
        assert process.wait(10) == 6
        message = process.stderr.read().decode()
        assert message.startswith("spindle: ") and "Traceback" not in message


def test_long_text_is_cut_and_says_so() -> None:
    assert shown(b"x" * (SHOWN_BYTES_MAX + 1)).endswith(f"... ({SHOWN_BYTES_MAX + 1} bytes)")
    for letter in ("x", "ä", "🙂"):  # some of which end beyond what is looked at
        long = ("+" + letter * 5 * SHOWN_BYTES_MAX).encode()
        assert shown(long) == f"+{letter * (SHOWN_BYTES_MAX - 1)}... ({len(long)} bytes)"
    assert shown(b"\x00" * (SHOWN_BYTES_MAX + 1)).endswith(f"... ({SHOWN_BYTES_MAX + 1} bytes)")


@pytest.mark.parametrize("words", [["sub"], ["sub", "t"], ["record", "-o", "x.mcap"], ["foxglove"]], ids=" ".join)
@pytest.mark.parametrize("name", ["", "a\nb", "ü" * 128], ids=["empty", "control", "long"])
def test_no_command_waits_for_a_topic_that_can_not_be(cli: Cli, words: list[str], name: str) -> None:
    """Method: there is no node; with one, the command would wait."""
    result = cli(*words, name)
    assert result.code == 2 and "topic name" in result.err
