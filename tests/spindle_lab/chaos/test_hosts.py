"""Goal: made-up hosts have links of their own, which can be cut one way, be long, slow, or lose packets, and leave
nothing behind.

Method: packets of UDP, and streams, between sockets in the namespaces. What a process leaves that is killed is shown
with one that is. Skipped, with the reason, where namespaces can't be had.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from spindle_lab.chaos import hosts as hosts_module
from spindle_lab.chaos.hosts import NAMES, Hosts, HostsError, between, clear_up, unavailable
from spindle_lab.chaos.lines import Line
from tests.support import readable

REASON = unavailable()
pytestmark = pytest.mark.skipif(bool(REASON), reason=REASON)
PORT = 7402


@pytest.fixture
def hosts() -> Iterator[Hosts]:
    with Hosts(3) as made:
        yield made


@pytest.fixture
def sockets(hosts: Hosts) -> Iterator[dict[int, socket.socket]]:
    made = {}
    for host in hosts.numbers:
        with hosts.within(host):
            made[host] = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        made[host].bind((hosts.address(host), PORT))
    yield made
    for sock in made.values():
        sock.close()


def passes(sockets: dict[int, socket.socket], one: int, other: int) -> bool:
    """What is sent in one namespace is in the other's queue at once, or lost."""
    sockets[one].sendto(b"x", (Hosts.address(other), PORT))
    try:
        return sockets[other].recv(1, socket.MSG_DONTWAIT) == b"x"
    except BlockingIOError:
        return False


def lost(sockets: dict[int, socket.socket]) -> set[tuple[int, int]]:
    return {(one, other) for one in sockets for other in sockets if one != other and not passes(sockets, one, other)}


def test_cuts_have_a_direction_and_are_mended_as_often_as_they_were_made(
        hosts: Hosts, sockets: dict[int, socket.socket]) -> None:
    assert lost(sockets) == set()
    hosts.cut([(1, 2)])
    assert lost(sockets) == {(1, 2)}
    hosts.cut(between([1], [2, 3]))
    assert lost(sockets) == {(1, 2), (2, 1), (1, 3), (3, 1)}
    hosts.mend(between([1], [2, 3]))
    hosts.mend([(2, 3)])  # isn't cut
    assert lost(sockets) == {(1, 2)}
    hosts.cut([(3, 2)])
    hosts.heal()
    assert lost(sockets) == set()


def test_an_unplugged_host_is_alone(hosts: Hosts, sockets: dict[int, socket.socket]) -> None:
    hosts.unplug(2)
    assert lost(sockets) == {(1, 2), (2, 1), (3, 2), (2, 3)}
    hosts.heal()
    for one, other in ((1, 2), (2, 3)):  # a port that has just come up may need a moment
        for _ in range(1000):
            if passes(sockets, one, other):
                break
        else:
            pytest.fail(f"nothing passes from {one} to {other}")


def trips(sockets: dict[int, socket.socket], one: int, other: int, count: int) -> tuple[list[float], int]:
    """How long those that arrive of so many packets take, s; and how many came after one that was sent later."""
    sent: dict[int, float] = {}
    taken: list[float] = []
    newest, overtaken = -1, 0

    def take(timeout_s: float) -> None:
        nonlocal newest, overtaken
        while readable(sockets[other], timeout_s):
            number = int.from_bytes(sockets[other].recv(4), "little")
            taken.append(time.monotonic() - sent[number])
            overtaken += number < newest
            newest = max(newest, number)

    for number in range(count):
        sent[number] = time.monotonic()
        sockets[one].sendto(number.to_bytes(4, "little"), (Hosts.address(other), PORT))
        take(0.001)
    take(0.5)
    return taken, overtaken


@pytest.mark.slow
def test_a_line_delays_one_direction_and_keeps_its_order(hosts: Hosts, sockets: dict[int, socket.socket]) -> None:
    hosts.set_line([(1, 2)], Line(delay_s=0.03, jitter_s=0.02))
    hosts.set_line([(2, 1)], Line(delay_s=0.002))
    taken, overtaken = trips(sockets, 1, 2, 200)
    assert len(taken) == 200 and min(taken) >= 0.03 and overtaken == 0
    assert sorted(taken)[100] < 0.1  # a busy machine's forwarder may be late, not by its half
    back, _ = trips(sockets, 2, 1, 200)
    assert len(back) == 200 and min(back) >= 0.002 and sorted(back)[100] < 0.03
    assert passes(sockets, 1, 3) and passes(sockets, 3, 2)  # at once: these have no lines
    hosts.clear_line([(1, 2), (2, 1)])
    assert lost(sockets) == set()


@pytest.mark.slow
def test_a_line_loses_packets_of_one_direction(hosts: Hosts, sockets: dict[int, socket.socket]) -> None:
    hosts.set_line([(1, 2)], Line(loss=0.5))
    taken, _ = trips(sockets, 1, 2, 500)
    assert 150 < len(taken) < 350 and lost(sockets) <= {(1, 2)}
    counts = hosts.line_counts()[1, 2]
    assert counts["passed"] >= len(taken) and counts["passed"] + counts["lost"] >= 500 and not counts["overrun"]
    hosts.heal()
    assert lost(sockets) == set()


@pytest.mark.slow
def test_a_cut_line_carries_nothing_and_is_a_line_again_when_mended(
        hosts: Hosts, sockets: dict[int, socket.socket]) -> None:
    hosts.set_line([(1, 2)], Line(delay_s=0.01))
    hosts.cut([(1, 2)])
    assert trips(sockets, 1, 2, 5)[0] == []
    hosts.mend([(1, 2)])
    taken, _ = trips(sockets, 1, 2, 5)
    assert len(taken) == 5 and min(taken) >= 0.01


def stream(hosts: Hosts, one: int, other: int, size: int) -> float:
    """Sends so many bytes by TCP, compares them, and says how long that took, s."""
    with hosts.within(other):
        listener = socket.create_server((hosts.address(other), PORT))
    with hosts.within(one):
        near = socket.socket()
    with listener, near:
        near.connect((hosts.address(other), PORT))
        far, _ = listener.accept()
        with far, ThreadPoolExecutor(1) as pool:
            data, began = random.Random(size).randbytes(size), time.monotonic()
            sending = pool.submit(near.sendall, data)
            found = bytearray()
            while len(found) < size:
                found += far.recv(1 << 20)
            sending.result()
            assert bytes(found) == data
            return time.monotonic() - began


@pytest.mark.parametrize("line", [Line(), Line(0.002), Line(loss=0.01), Line(0.002, loss=0.02)], ids=str)
def test_streams_are_whole_behind_lines(hosts: Hosts, line: Line) -> None:
    """With all that network cards do for their hosts: checksums and splitting are left to whoever is last."""
    hosts.set_line([(1, 2), (2, 1)], line)
    stream(hosts, 1, 2, 8 << 20)
    counts = hosts.line_counts()[1, 2]
    packets = (8 << 20) / 1460
    assert counts["passed"] >= packets if line.loss else counts["passed"] < packets / 2
    assert bool(counts["lost"]) == bool(line.loss)


@pytest.mark.slow
def test_a_slow_line_takes_its_rate_and_no_more(hosts: Hosts) -> None:
    hosts.set_line([(1, 2)], Line(rate=2e6))
    took_s = stream(hosts, 1, 2, 2_000_000)
    assert took_s >= 0.9
    hosts.clear_line([(1, 2)])


def test_what_is_under_way_arrives_when_a_line_goes(hosts: Hosts, sockets: dict[int, socket.socket]) -> None:
    hosts.set_line([(1, 2)], Line(delay_s=3600.0))
    assert not passes(sockets, 1, 2)
    hosts.clear_line([(1, 2)])
    assert readable(sockets[2], 60.0)


def test_lines_end_with_their_process(hosts: Hosts) -> None:
    """The forwarder of a process that is killed ends by itself; one that dies itself is reported."""
    hosts.set_line([(1, 2)], Line(delay_s=0.01))
    assert hosts._forwarder is not None
    hosts._forwarder._process.kill()
    with pytest.raises(HostsError, match="process of the lines has ended"):
        hosts.set_line([(1, 2)], Line(delay_s=0.02))
    program = ("import os; from spindle_lab.chaos.hosts import Hosts; "
               "from spindle_lab.chaos.lines import Line; h = Hosts(2); "
               "h.set_line([(1, 2)], Line(1.0)); print(h._forwarder._process.pid, flush=True); os.kill(os.getpid(), 9)")
    killed = subprocess.run([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=False)
    forwarder, end = Path(f"/proc/{int(killed.stdout)}"), time.monotonic() + 60.0
    while forwarder.exists() and "State:\tZ" not in (forwarder / "status").read_text():  # nobody may collect it
        assert time.monotonic() < end, "it outlives its parent"
        time.sleep(0.01)
    clear_up()


def test_between_is_every_direction_from_one_side_to_another() -> None:
    assert sorted(between([1], [2, 3])) == [(1, 2), (1, 3), (2, 1), (3, 1)]
    assert len(between([1], [2], [3])) == 6


def test_what_a_killed_process_left_is_removed_and_nothing_else(hosts: Hosts) -> None:
    program = "import os, signal; from spindle_lab.chaos.hosts import Hosts; h = Hosts(1); os.kill(os.getpid(), 9)"
    killed = subprocess.Popen([sys.executable, "-c", program])
    assert killed.wait() == -signal.SIGKILL
    names = {name for name in os.listdir(NAMES) if f"-{killed.pid}-" in name}
    assert len(names) == 2
    ours = {name for name in os.listdir(NAMES) if f"-{os.getpid()}-" in name}
    clear_up()
    assert not names & set(os.listdir(NAMES)) and ours <= set(os.listdir(NAMES)) and len(ours) == 4
    hosts.close()
    assert not ours & set(os.listdir(NAMES))


def test_what_is_missing_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert "root" in unavailable()
    monkeypatch.undo()
    monkeypatch.setenv("PATH", "/nonexistent")
    assert unavailable() == "ip: No such file or directory"
    with pytest.raises(HostsError, match="No such file"):
        hosts_module.Hosts(1)
