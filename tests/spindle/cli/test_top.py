"""Goal: rates are right, also when a node restarts or is silent, and the screen fits a terminal and obeys q.

Method: looks with known figures for the arithmetic; a stand-in node for one measurement; a pseudo-terminal for the
live view.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import termios
import time
from pathlib import Path

import pytest

from spindle.cli.common import Target
from spindle.cli.rates import Look, Watched, as_object, cpu_seconds, rates
from spindle.cli.top import sparkline
from spindle.group.topics import TopicSpec
from tests.spindle.cli.support import Cli, spawn
from tests.spindle.hosts import hosts
from tests.spindle.stand_in import StandInNode
from tests.support import free_ports, wait_until

ZERO = dict.fromkeys(("busy_ns", "lap_ns_max", "busy_laps", "delivery_batches", "delivery_messages", "nulls"), 0)


def test_rates_between_two_looks() -> None:
    before = Look(10.0, {**ZERO, "delivery_messages": 100}, {"a": 5}, 1.0)
    counters = {"delivery_messages": 500, "delivery_batches": 50, "nulls": 8, "busy_ns": 10**9, "busy_laps": 1000,
                "lap_ns_max": 7000}  # fmt: skip
    found = rates(3, before, Look(12.0, counters, {"a": 25, "b": 4}, 1.5))
    assert found.node == 3 and found.interval_s == 2.0
    assert found.per_s["delivery_messages"] == 200 and found.per_s["nulls"] == 4 and found.per_s["pushes"] == 0
    assert found.batches == {"send": 0.0, "receive": 0.0, "delivery": 8.0}
    assert found.topics == {"a": 10, "b": 2}
    assert found.lap_s == pytest.approx(1e-3) and found.lap_max_s == pytest.approx(7e-6)
    assert found.busy == 0.5 and found.cpu == 0.25


def test_how_far_the_slowest_member_is_behind(cli: Cli, stand_in: StandInNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a topic that doesn't go on is seen, also where its rate is 0. A node that is no member says nothing."""
    numbers = {"received": [90, 100], "delivered": [90, 40]}
    status = {**stand_in.status(), "topics": [
        {"name": "slow", "level": "atomic", "stability": numbers}, {"name": "any", "level": "unordered",
                                                                    "stability": numbers}, {"name": "elsewhere"}]}
    monkeypatch.setattr(stand_in, "status", lambda: status)
    for name in ("slow", "any", "elsewhere"):
        stand_in.call(lambda name=name: stand_in.declare_topic(TopicSpec(name)))
    assert cli("top", "--once", "--json", "-i", "0.05").json["nodes"][0]["behind"] == {"slow": 60}
    [line] = [line for line in cli("top", "--once", "-i", "0.05").out.splitlines() if line.startswith("slow ")]
    assert "60" in line.split()


def test_a_new_life_of_a_node_gives_no_negative_rates() -> None:
    found = rates(1, Look(1.0, {"nulls": 50}, {"a": 9}, 5.0), Look(2.0, {"nulls": 3}, {"a": 1}, 0.1))
    assert found.per_s["nulls"] == 0 and found.topics["a"] == 0 and found.cpu == 0


def test_no_time_and_no_process() -> None:
    same = Look(1.0, ZERO, {}, None)
    assert rates(1, same, same).cpu is None
    assert cpu_seconds(os.getpid()) is not None
    assert cpu_seconds(1 << 22) is None


def test_sparkline() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 4, 8]) == "▁▄█"


def test_watched_survives_its_node(stand_in: StandInNode) -> None:
    watched = Watched(Target(), 7)
    watched.look(3)
    assert watched.rates is None and as_object(watched) == {"node": 7, "state": "no figures yet"}
    for _ in range(5):
        watched.look(3)
    assert len(watched.history) == 3 and as_object(watched)["node"] == 7
    stand_in.stop()
    watched.look(3)
    assert watched.rates is None and watched.state
    watched.close()


def test_once(cli: Cli, stand_in: StandInNode) -> None:
    stand_in.call(lambda: stand_in.declare_topic(TopicSpec("flight/air")))
    stand_in.do(lambda: stand_in.counters.set("delivery_messages", 5))
    found = cli("top", "--once", "--json", "-i", "0.05").json
    assert found["domain"] == 0 and found["nodes"][0]["node"] == 7
    assert found["nodes"][0]["per_s"]["delivery_messages"] == 0, "a rate, not a count"
    shown = cli("top", "-i", "0.05")
    assert shown.code == 0 and "flight/air" in shown.out and "\x1b[" not in shown.out, "no terminal: one plain snapshot"


@pytest.mark.slow
def test_nodes_of_other_hosts(cli: Cli, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Method: two daemons that are found by their addresses alone, and an address where nobody is; then only that."""
    [nobody] = free_ports(1)
    with hosts(runtime_dir, 2) as site:
        monkeypatch.setenv("SPINDLE_NODES", f"{site[1].address},{site[0].address},127.0.0.1:{nobody}")
        one, other, none = cli("top", "--once", "--json", "-i", "0.05").json["nodes"]
        assert [one["node"], other["node"], none["node"]] == [2, 1, 0]
        assert one["per_s"]["laps"] >= 0 and one["cpu"] is None, "its process is on another host"
        assert none["state"].startswith(f"127.0.0.1:{nobody}: no node")
    result = cli("top", "--once", "--nodes", f"127.0.0.1:{nobody}")
    assert result.code == 3 and f"127.0.0.1:{nobody}: no node" in result.err and "spindle daemon" not in result.err


def test_live(stand_in: StandInNode) -> None:
    """Method: an 80 column terminal; new figures must come by themselves, nothing may be cut, q must end it."""
    stand_in.call(lambda: stand_in.declare_topic(TopicSpec("flight/air")))
    stand_in.do(lambda: stand_in.counters.set("view_id", 41))
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    before = termios.tcgetattr(terminal)
    with spawn("top", "-i", "0.1", stdin=terminal, stdout=terminal) as process:
        seen = read_until(main, b"flight/air")
        stand_in.do(lambda: stand_in.counters.set("view_id", 42))
        seen += read_until(main, b"view 42")
        seen += read_until(main, b"q quits")  # the next frame's end: all of what is looked for below has come
        os.write(main, b"q")
        wait_until(lambda: process.poll() is not None or not read_some(main), what="top ends")
        assert process.wait(10) == 0
    assert termios.tcgetattr(terminal) == before, "the terminal is as it was"
    os.close(terminal)
    os.close(main)
    text = re.sub(rb"\x1b\[[0-9;?]*[a-zA-Z]", b"", seen).decode()
    assert "q quits" in text and "lap (longest)" in text and "…" not in text


def read_some(fd: int) -> bytes:
    ready, _, _ = select.select([fd], [], [], 0.05)
    return os.read(fd, 65536) if ready else b""


def read_until(fd: int, wanted: bytes, timeout_s: float = 10.0) -> bytes:
    seen = b""
    deadline = time.monotonic() + timeout_s
    while wanted not in seen:
        assert time.monotonic() < deadline, f"{wanted!r} did not come, but {seen!r}"
        seen += read_some(fd)
    return seen
