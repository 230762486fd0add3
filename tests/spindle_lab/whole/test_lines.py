"""Goal: what TCP does when a host is without power, the simulated lines do: silence, until somebody asks.

Method: a connection between two simulated hosts, one of which loses its power.
"""

from __future__ import annotations

import os
import socket
import time

import pytest

from spindle_lab.whole.lines import Lines
from spindle_lab.whole.patches import patched
from spindle_lab.whole.sockets import SimSocket
from spindle_lab.whole.system import System

LOST_S, FOREVER_S = 1.0, 60.0
KEEPALIVE = ((socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 5),
             (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 2), (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3),
             (socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 10_000))


@pytest.mark.parametrize(("back_s", "options", "sends_s", "ends_s"), [
    pytest.param(2.0, (), 3.0, (3.0, 3.3), id="sends to who is back"),
    pytest.param(4.0, (), 3.0, (4.0, 4.5), id="sent again until it is back"),
    pytest.param(2.0, (), FOREVER_S, (FOREVER_S, FOREVER_S + 1), id="asks nobody"),
    pytest.param(2.0, KEEPALIVE, FOREVER_S, (6.0, 6.3), id="asks who is back"),
    pytest.param(FOREVER_S, KEEPALIVE, FOREVER_S, (11.0, 13.1), id="asks who stays away"),
    pytest.param(FOREVER_S, KEEPALIVE[4:], 3.0, (13.0, 13.5), id="sends to who stays away"),
])
def test_a_host_without_power_is_noticed_by_who_asks(
        back_s: float, options: tuple[tuple[int, int, int], ...], sends_s: float, ends_s: tuple[float, float]) -> None:
    system = System(1)
    ended_s: list[float] = []

    def stays() -> None:
        with socket.create_server((lines.address("h1"), 5000)) as listener:
            while True:
                try:
                    sock, _ = listener.accept()
                    break
                except BlockingIOError:
                    time.sleep(0.01)
        with sock:
            for option in options:
                sock.setsockopt(*option)
            sock.setblocking(False)
            sent = False
            while time.monotonic() < FOREVER_S:
                if not sent and time.monotonic() >= sends_s:
                    sent = sock.send(b"?") == 1
                try:
                    assert sock.recv(1) == b""
                    break
                except BlockingIOError:
                    time.sleep(0.05)
            ended_s.append(time.monotonic())

    def goes() -> None:
        with socket.socket(socket.AF_INET) as sock:
            sock.connect((lines.address("h1"), 5000))
            time.sleep(2 * FOREVER_S)

    with patched(system):
        SimSocket.lines = lines = Lines(system)
        one, other = system.process("one", "h1", os.geteuid()), system.process("other", "h2", os.geteuid())
        one.spawn(stays)

        def begin() -> None:
            other.spawn(goes)

        system.after(1_000_000, begin)

        def lose() -> None:
            lines.lose_power("h2")
            system.kill(other)

        system.at(int(LOST_S * 1e9), lose)
        system.at(int(back_s * 1e9), lambda: lines.powerless.discard("h2"))
        while one.threads:
            system.run_one()
        system.end()
        lines.close()
    assert not one.failures, one.failures
    assert ends_s[0] <= ended_s[0] <= ends_s[1]
