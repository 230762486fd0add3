"""Goal: made-up hosts have links of their own, which can be cut one way, lose packets, and leave nothing behind.

Method: packets of UDP between sockets in the namespaces. What a process leaves that is killed is shown with one that
is. Skipped, with the reason, where namespaces can't be had.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from spindle.chaos import hosts as hosts_module
from spindle.chaos.hosts import NAMES, Hosts, HostsError, between, clear_up, losses_unavailable, unavailable

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


@pytest.mark.skipif(bool(REASON) or bool(losses_unavailable()), reason="no random losses on this kernel")
def test_packets_are_lost_at_random(hosts: Hosts, sockets: dict[int, socket.socket]) -> None:
    hosts.spoil(2, loss=0.5)
    passed = sum(passes(sockets, 1, 2) for _ in range(1000))
    assert 300 < passed < 700 and all(passes(sockets, 2, 1) for _ in range(100))
    hosts.unspoil(2)
    assert all(passes(sockets, 1, 2) for _ in range(100))


def test_between_is_every_direction_from_one_side_to_another() -> None:
    assert sorted(between([1], [2, 3])) == [(1, 2), (1, 3), (2, 1), (3, 1)]
    assert len(between([1], [2], [3])) == 6


def test_what_a_killed_process_left_is_removed_and_nothing_else(hosts: Hosts) -> None:
    program = "import os, signal; from spindle.chaos.hosts import Hosts; h = Hosts(1); os.kill(os.getpid(), 9)"
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
