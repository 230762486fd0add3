"""The process that lines between hosts run through: it takes frames from a packet socket, and sends them on when due.

    python -m spindle_lab.chaos.forwarder DESCRIPTOR     (started by `Forwarder`, which gives the orders on its stdin)

How frames come here: a host whose direction to another one has a line is told this process's link address for it. The
bridge brings the frame to the port where the socket listens; it goes on from there with the right address.

Rules:
- Frames pass as hosts hand them over, up to 64 kB, with what is left to do to them (checksums, splitting) in front: a
  header that the kernel gives and takes (PACKET_VNET_HDR). Where packets count, the port splits them (`Hosts`).
- An order is in force when its answer has come. The process ends with its stdin, and on an error of its own.
- It has priority over all other processes, as a line isn't slower where hosts are busy. A line holds at most about
  HELD_BYTES_MAX.
- It carries 370 MB/s of one stream without delay and 190 with 5 ms, both directions through it, and in single packets
  35 MB/s (25,000 frames a second); measured on a machine of two cores beside both ends.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable

from spindle_lab.chaos.lines import NS, Line, Transit

ADDRESS = bytes.fromhex("025350ff0000")  # of all lines; hosts have 02:53:50:00:00 and their number
HOST = bytes.fromhex("0253500000")
ETH_P_IP = 0x0800
SOL_PACKET, PACKET_VNET_HDR, PACKET_IGNORE_OUTGOING = 263, 15, 23
SO_RCVBUFFORCE, SO_SNDBUFFORCE = 33, 32
SOCKET_BYTES = 64 << 20
HEADER = 10  # bytes of struct virtio_net_hdr
TO, FROM, SENDER, KIND, RECEIVER = HEADER, HEADER + 6, HEADER + 11, HEADER + 12, HEADER + 33  # in a frame: bytes
FRAME_MAX = HEADER + 14 + (1 << 16)
FRAMES_AT_ONCE = 64  # taken, before those that are due go on
HELD_BYTES_MAX = 512 << 20
NICE = -19

Direction = tuple[int, int]


class ForwarderError(Exception):
    """The process has ended; the text is what it said."""


def packet_socket(device: str) -> socket.socket:
    """A socket for the IPv4 frames that come to a device of the calling thread's namespace. Raises OSError."""
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0)
    try:
        sock.setsockopt(SOL_PACKET, PACKET_VNET_HDR, 1)
        sock.setsockopt(SOL_PACKET, PACKET_IGNORE_OUTGOING, 1)
        sock.setsockopt(socket.SOL_SOCKET, SO_RCVBUFFORCE, SOCKET_BYTES)
        sock.setsockopt(socket.SOL_SOCKET, SO_SNDBUFFORCE, SOCKET_BYTES)
        sock.bind((device, ETH_P_IP))
    except BaseException:
        sock.close()
        raise
    return sock


class Forwarder:
    """The process, as whoever started it sees it. `sock` is closed here: the process has its own."""

    def __init__(self, sock: socket.socket) -> None:
        with sock:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "spindle_lab.chaos.forwarder", str(sock.fileno())], pass_fds=[sock.fileno()],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def set(self, directions: Iterable[Direction], line: Line) -> None:
        """These directions have such lines from now on. Raises ForwarderError."""
        self._ask({"set": list(directions), "line": dataclasses.asdict(line)})

    def counts(self) -> dict[Direction, dict[str, int]]:
        """For each direction that has had a line, frames `passed`, `lost`, `overrun` (too many for the rate), and
        bytes `carried` by those that passed and `held`. Raises ForwarderError."""
        return {(one, other): found for one, other, found in self._ask({"counts": True})}

    def _ask(self, order: object) -> list[tuple[int, int, dict[str, int]]]:
        assert self._process.stdin is not None and self._process.stdout is not None
        answer = ""
        with contextlib.suppress(OSError, ValueError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            answer = self._process.stdout.readline()
        if not answer:
            self._process.kill()
            said = self._process.communicate()[1].strip()
            raise ForwarderError(f"the process of the lines has ended with {self._process.returncode}: {said}")
        return [(one, other, found) for one, other, found in json.loads(answer)]

    def close(self) -> None:
        """Ends it; what is under way is lost. Idempotent."""
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


class Lines:
    """All lines, and the socket that they are on."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._transits: dict[Direction, Transit] = {}
        self._buffer = bytearray(FRAME_MAX)
        self._frame = memoryview(self._buffer)

    def run(self) -> None:
        """Until stdin ends."""
        sock, orders = self._sock, sys.stdin.fileno()
        rest = b""
        while True:
            readable, _, _ = select.select([sock, orders], [], [], self._send_due())
            if sock in readable:
                self._take()
            if orders in readable:
                data = os.read(orders, 65536)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                for line in lines:
                    print(json.dumps(self._obey(json.loads(line))), flush=True)

    def _take(self) -> None:
        """What has come enters its line; what is for no line is nothing to us."""
        buffer = self._buffer
        for _ in range(FRAMES_AT_ONCE):
            try:
                size = self._sock.recv_into(buffer, FRAME_MAX, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            transit = self._transits.get((buffer[SENDER], buffer[RECEIVER])) if size > RECEIVER else None
            if transit is None or buffer[TO:FROM] != ADDRESS or transit.held_bytes > HELD_BYTES_MAX:
                continue
            buffer[TO:FROM] = HOST + buffer[RECEIVER:RECEIVER + 1]
            buffer[FROM:KIND] = ADDRESS
            # Each frame has its own time: this process may not have run since the one before, and no line is early.
            transit.enter(bytes(self._frame[:size]), time.monotonic_ns())

    def _send_due(self) -> float | None:
        """Sends what is due; the seconds until more is, None if nothing is under way."""
        now_ns, next_ns = time.monotonic_ns(), None
        for transit in self._transits.values():
            while (frame := transit.leave(now_ns)) is not None:
                with contextlib.suppress(OSError):  # the far end is unplugged, or takes no more: it is lost
                    self._sock.send(frame, socket.MSG_DONTWAIT)
            due_ns = transit.next_ns
            if due_ns is not None and (next_ns is None or due_ns < next_ns):
                next_ns = due_ns
        return None if next_ns is None else max(0, next_ns - time.monotonic_ns()) / NS

    def _obey(self, order: dict[str, object]) -> list[object]:
        if "counts" in order:
            return [[*direction, {"passed": one.passed, "lost": one.lost, "overrun": one.overrun,
                                  "carried": one.passed_bytes, "held": one.held_bytes}]
                    for direction, one in sorted(self._transits.items())]
        line, now_ns = Line(**order["line"]), time.monotonic_ns()  # type: ignore[arg-type]
        for one, other in order["set"]:  # type: ignore[attr-defined]
            if (one, other) in self._transits:
                self._transits[one, other].change(line, now_ns)
            else:
                self._transits[one, other] = Transit(line, f"{one} {other}")
        self._send_due()
        return []


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal: who started us ends us
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, NICE)
    inherited = int(sys.argv[1])
    number = os.dup(inherited)  # the lowest that is free: select() takes none above 1,023
    os.close(inherited)
    with socket.socket(fileno=number) as sock:
        Lines(sock).run()


if __name__ == "__main__":
    main()

__all__ = ["ADDRESS", "Forwarder", "ForwarderError", "packet_socket"]
