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
import threading
import time
from pathlib import Path

import pytest

from spindle.cli.common import Target
from spindle.cli.rates import Look, TopicLook, Watching, as_object, rates
from spindle.cli.top import sparkline
from spindle.client import attach
from spindle.group.figures import Latencies
from spindle.group.topics import TopicSpec
from spindle_core.errors import WriteTimeout
from tests.spindle.cli.support import Cli, spawn
from tests.spindle.daemons import daemons
from tests.spindle.hosts import hosts
from tests.spindle.stand_in import StandInNode
from tests.support import free_ports, wait_until

ZERO = dict.fromkeys(("busy_ns", "lap_ns_max", "busy_laps", "delivery_batches", "delivery_messages", "nulls"), 0)


def topic(messages: int, latencies: dict[float, int] | None = None) -> TopicLook:
    return TopicLook(messages, 100 * messages, Latencies(tuple((latencies or {}).items())))


def test_rates_between_two_looks() -> None:
    before = Look(10.0, {**ZERO, "delivery_messages": 100}, {"a": topic(5, {1024: 5})}, 1.0)
    counters = {"delivery_messages": 500, "delivery_batches": 50, "nulls": 8, "busy_ns": 10**9, "busy_laps": 1000,
                "lap_ns_max": 7000}  # fmt: skip
    found = rates(3, before, Look(12.0, counters, {"a": topic(25, {1024: 5, 2048: 20}), "b": topic(4)}, 1.5))
    assert found.node == 3 and found.interval_s == 2.0
    assert found.per_s["delivery_messages"] == 200 and found.per_s["nulls"] == 4 and found.per_s["pushes"] == 0
    assert found.batches == {"send": 0.0, "receive": 0.0, "delivery": 8.0}
    assert {name: (one.messages, one.bytes) for name, one in found.topics.items()} == {"a": (10, 1000), "b": (2, 200)}
    assert found.topics["a"].latencies.counts == ((2048, 20),) and found.latencies.count == 20
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
    topics = cli("top", "--once", "--json", "-i", "0.05").json["nodes"][1]["topics"]
    assert {name: one["behind"] for name, one in topics.items()} == {"slow": 60, "any": None, "elsewhere": None}
    [line] = [line for line in cli("top", "--once", "-i", "0.05").out.splitlines() if line.startswith("slow ")]
    assert "60" in line.split()


def test_a_new_life_of_a_node_gives_no_negative_rates() -> None:
    """Nor one of a log; what was delivered into that since it was made counts."""
    found = rates(1, Look(1.0, {"nulls": 50}, {"a": topic(9, {1024: 9})}, 5.0),
                  Look(2.0, {"nulls": 3}, {"a": topic(1, {1024: 1})}, 0.1))
    assert found.per_s["nulls"] == 0 and found.cpu == 0
    assert found.topics["a"].messages == 1 and found.topics["a"].latencies.count == 1


def test_no_time_and_no_process() -> None:
    same = Look(1.0, ZERO, {}, None)
    assert rates(1, same, same).cpu is None


def test_sparkline() -> None:
    assert sparkline([]) == ""
    assert sparkline([0, 0]) == "▁▁"
    assert sparkline([0, 4, 8]) == "▁▄█"


def test_watching_survives_its_node(stand_in: StandInNode) -> None:
    """The stand-in says that node 5 is a member, too, which nobody reaches."""
    watching = Watching(Target(), "test", 3)
    watching.look()
    assert as_object(watching.nodes[7]) == {"node": 7, "state": "no figures yet"}
    for _ in range(5):
        watching.look()
    assert len(watching.nodes[7].history) == 3 and as_object(watching.nodes[7])["node"] == 7
    assert as_object(watching.nodes[5]) == {"node": 5, "state": "node 5 is not connected"}
    stand_in.stop()
    watching.look()
    assert watching.state and watching.nodes[7].rates is None and watching.nodes[7].state == watching.state
    watching.close()


def test_once(cli: Cli, stand_in: StandInNode) -> None:
    stand_in.call(lambda: stand_in.declare_topic(TopicSpec("flight/air")))
    stand_in.do(lambda: stand_in.counters.set("delivery_messages", 5))
    found = cli("top", "--once", "--json", "-i", "0.05").json
    assert found["domain"] == 0 and [node["node"] for node in found["nodes"]] == [5, 7]
    assert found["nodes"][1]["per_s"]["delivery_messages"] == 0, "a rate, not a count"
    assert [node["node"] for node in cli("top", "--once", "--json", "-i", "0.05", "--node", 7).json["nodes"]] == [7]
    shown = cli("top", "-i", "0.05")
    assert shown.code == 0 and "flight/air" in shown.out and "\x1b[" not in shown.out, "no terminal: one plain snapshot"


@pytest.mark.slow
def test_nodes_of_other_hosts(cli: Cli, runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: all nodes of the group are seen from a host without one. Method: two daemons that are found by the address
    of one alone; then an address where nobody is."""
    [nobody] = free_ports(1)
    with hosts(runtime_dir, 2) as site:
        monkeypatch.setenv("SPINDLE_NODES", f"127.0.0.1:{nobody},{site[1].address}")
        one, other = cli("top", "--once", "--json", "-i", "0.05").json["nodes"]
        assert [one["node"], other["node"]] == [1, 2]
        assert one["per_s"]["laps"] >= 0 and one["cpu"] >= 0 and other["cpu"] >= 0
    result = cli("top", "--once", "--nodes", f"127.0.0.1:{nobody}")
    assert result.code == 3 and f"the node at 127.0.0.1:{nobody} cannot be reached" in result.err


@pytest.mark.slow
def test_a_group_under_traffic(cli: Cli, runtime_dir: Path) -> None:
    """Goal: rates, latencies, and who is slow are seen of all nodes from any, and of a topic alone. Method: two daemons
    and a reader that doesn't take; the screens at 80 columns."""
    with daemons(runtime_dir, 2), attach(runtime_dir=runtime_dir, node_id=1) as one, \
            attach(runtime_dir=runtime_dir, node_id=2, name="sleeper") as two:
        one.declare_topic(TopicSpec("flight/air", size_max=64, window=8))
        reader = two.open_reader("flight/air", keep_all=False, from_history=False)
        writer = one.open_writer("flight/air")
        stop = threading.Event()

        def write() -> None:
            while not stop.is_set():
                try:
                    writer.inbox.write(b"x" * 50, timeout_s=0.1)
                except WriteTimeout:
                    pass

        thread = threading.Thread(target=write)
        thread.start()
        try:
            found = cli("topics", "flight/air", "--watch", "--json", "-i", "0.3").json
            assert [topic["name"] for topic in found] == ["flight/air"] and found[0]["messages"] > 0
            by_node = {node["node"]: node for node in found[0]["nodes"]}
            assert by_node[2]["bytes"] == pytest.approx(50 * by_node[2]["messages"])
            assert 0 < by_node[2]["latency"]["half_s"] <= by_node[2]["latency"]["all_s"] < 60
            top = cli("top", "--once", "--json", "-i", "0.3", "--node", 1).json["nodes"]
            assert [node["node"] for node in top] == [1] and top[0]["per_s"]["send_messages"] > 0
            shown = cli("topics", "flight/*", "--watch", "--once", "-i", "0.3").out
            assert "flight/air" in shown and "99% in" in shown
            assert cli("topics", "flight/none", "--watch", "--once").code == 1
            assert cli("topics", "--once").code == 2 and cli("topics", "x", "--watch", "--delete").code == 2

            two.open_reader("flight/air", keep_all=True, from_history=False, guid=b"g" * 16)
            text = f"a reader of sleeper (process {os.getpid()}) at node 2, which keeps all and has not taken"
            wait_until(lambda: f"waits for {text}" in cli("status", "--group").out)
            for command in (("top", "--once"), ("topics", "flight/air", "--watch", "--once"), ("topics", "flight/air"),
                            ("topics", "--watch", "--once"), ("status",)):
                result = cli(*command, *(["-i", "0.05"] if "--once" in command else []))
                assert result.code == 0 and f"waits for {text}" in " ".join(result.out.split()), command
            result = cli("status", "--group")
            assert result.code == 1 and f"waits for {text}" in result.out
        finally:
            stop.set()
            thread.join()
            reader.close()


@pytest.mark.slow
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
    assert "q quits" in text and "lap (longest)" in text and "99% in" in text and "…" not in text


def read_some(fd: int) -> bytes:
    one = select.poll()  # takes descriptors of any number
    one.register(fd, select.POLLIN)
    return os.read(fd, 65536) if one.poll(50) else b""


def read_until(fd: int, wanted: bytes, timeout_s: float = 10.0) -> bytes:
    seen = b""
    deadline = time.monotonic() + timeout_s
    while wanted not in seen:
        assert time.monotonic() < deadline, f"{wanted!r} did not come, but {seen!r}"
        seen += read_some(fd)
    return seen
