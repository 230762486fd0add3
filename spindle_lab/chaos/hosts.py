"""Hosts for a round: network namespaces, joined by a bridge, with links that can be cut in each direction.

Why namespaces: a daemon in one has addresses, ports and TCP of its own, as on a host, and its kernel learns of a broken
link what a host's kernel learns: nothing.

How a direction is cut: every host's neighbour table is set by hand here. For a cut, the sender's entry for the other
host gets the sender's own link address: a bridge never sends a frame back to where it came from, so the frame is lost
without a word to anybody. That takes nothing but `ip`: no packet filter, no module. For a line, the entry gets the
address of a process that holds frames back (`forwarder`): only directions with a line go that way, and no kernel needs
netem.

Rules:
- Names carry the process id: spindle-<pid>-<number>. The next start removes what killed processes have left.
- A direction that was cut twice (two faults at a time) works again when it was mended twice.
- A direction has one line at most, the newest. A cut is stronger: what is under way arrives, nothing more enters.
- When a line is cleared, what is under way arrives at once, and a faster frame may overtake it: only lines keep order.
- Needs root and `ip`; `unavailable()` says what is missing.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path

from spindle_lab.chaos import forwarder
from spindle_lab.chaos.forwarder import Forwarder, ForwarderError
from spindle_lab.chaos.lines import Line

NAMES = Path("/run/netns")  # where `ip netns` keeps them
PREFIX = "spindle-"
BRIDGE_NAME = "bridge"
LINES_PORT, LINES_END = "lines", "lines-end"  # of the bridge, and what the forwarder listens at
LINES_ADDRESS = forwarder.ADDRESS.hex(":")
SEGMENTS_MAX = 65535  # of one frame, the kernel's own limit
CLONE_NEWNET = 0x40000000
BRIDGE = 0  # beside the numbers of hosts

_LIBC = ctypes.CDLL(None, use_errno=True)  # loaded before any fork

Direction = tuple[int, int]  # from this host to that one


class HostsError(Exception):
    """A command failed; the text says which, and why."""


def unavailable() -> str:
    """Why hosts can't be made here; "" if they can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Hosts(1):
            return ""
    except HostsError as error:
        return str(error)


def clear_up() -> None:
    """Removes what was left by processes that ended without a chance to remove it."""
    with contextlib.suppress(OSError):
        for name in sorted(os.listdir(NAMES)):
            found = re.fullmatch(rf"{PREFIX}(\d+)-\w+", name)
            if found and not Path("/proc", found[1]).exists():
                with contextlib.suppress(HostsError):
                    _run("ip", "netns", "del", name)


def between(*sides: Collection[int]) -> list[Direction]:
    """All directions from one of the sides to another one."""
    return [(one, other) for here, there in itertools.permutations(sides, 2) for one in here for other in there]


class Hosts:
    """`count` hosts, numbered from 1. A context that removes them at its end."""

    _serial = itertools.count(1)

    def __init__(self, count: int) -> None:
        clear_up()
        self.numbers = list(range(1, count + 1))
        self._name = f"{PREFIX}{os.getpid()}-{next(self._serial)}x"
        self._made: list[str] = []
        self._fds: dict[int, int] = {}
        self._cuts: Counter[Direction] = Counter()
        self._unplugged: set[int] = set()
        self._lines: dict[Direction, Line] = {}
        self._ways: dict[Direction, str] = {}  # the link address by which a host reaches another one
        self._forwarder: Forwarder | None = None  # from the first line on
        self._in_packets = False
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Hosts:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _make(self) -> None:
        for name in [BRIDGE_NAME, *map(str, self.numbers)]:
            _run("ip", "netns", "add", self._name + name)
            self._made.append(self._name + name)
        self._bridge("link add name bridge type bridge", "link set bridge up")
        for host in self.numbers:
            self._bridge(f"link add host{host} type veth peer name eth0 address {_link_address(host)} "
                         f"netns {self._name}{host}", f"link set host{host} master bridge up")
            self._at(host, "link set lo up", f"address add {self.address(host)}/24 dev eth0", "link set eth0 up")
            self._fds[host] = os.open(NAMES / f"{self._name}{host}", os.O_RDONLY | os.O_CLOEXEC)
        self._fds[BRIDGE] = os.open(NAMES / f"{self._name}{BRIDGE_NAME}", os.O_RDONLY | os.O_CLOEXEC)
        self._apply()

    def close(self) -> None:
        """Removes all of it. Idempotent."""
        if self._forwarder is not None:
            self._forwarder.close()
            self._forwarder = None
        for fd in self._fds.values():
            os.close(fd)
        self._fds.clear()
        for name in self._made:
            with contextlib.suppress(HostsError):
                _run("ip", "netns", "del", name)
        self._made.clear()

    # --- where they are

    @staticmethod
    def address(host: int) -> str:
        return f"10.83.80.{host}"

    def entry(self, host: int) -> Callable[[], None]:
        """What brings the calling thread into a host: for `preexec_fn`."""
        return functools.partial(_enter, self._fds[host])

    @contextlib.contextmanager
    def within(self, host: int) -> Iterator[None]:
        """The calling thread is in a host; sockets that it makes stay there."""
        home = os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)
        try:
            _enter(self._fds[host])
            yield
        finally:
            _enter(home)
            os.close(home)

    # --- what goes wrong

    def cut(self, directions: Iterable[Direction]) -> None:
        """What is sent that way is lost from now on."""
        self._cuts.update(directions)
        self._apply()

    def mend(self, directions: Iterable[Direction]) -> None:
        """The opposite of a cut of the same directions. What isn't cut stays as it is."""
        self._cuts = +(self._cuts - Counter(directions))
        self._apply()

    def set_line(self, directions: Iterable[Direction], line: Line) -> None:
        """What is sent that way goes over such a line from now on. Raises HostsError."""
        directions = list(directions)
        self._set(directions, line)
        self._lines.update(dict.fromkeys(directions, line))
        self._split()
        self._apply()

    def clear_line(self, directions: Iterable[Direction]) -> None:
        """They have no line any more, whoever set it."""
        directions = [one for one in directions if one in self._lines]
        self._set(directions, Line())
        for one in directions:
            del self._lines[one]
        self._split()
        self._apply()

    def line_counts(self) -> dict[Direction, dict[str, int]]:
        """See `Forwarder.counts`; {} if there was no line yet."""
        try:
            return self._forwarder.counts() if self._forwarder is not None else {}
        except ForwarderError as error:
            raise HostsError(str(error)) from error

    def _set(self, directions: list[Direction], line: Line) -> None:
        if not directions:
            return
        try:
            if self._forwarder is None:
                self._bridge(f"link add name {LINES_PORT} type veth peer name {LINES_END}",
                             f"link set {LINES_PORT} master bridge up", f"link set {LINES_END} up")
                with self.within(BRIDGE):
                    sock = forwarder.packet_socket(LINES_END)
                self._forwarder = Forwarder(sock)
            self._forwarder.set(directions, line)
        except (ForwarderError, OSError) as error:
            raise HostsError(str(error)) from error

    def _split(self) -> None:
        """Frames come to the lines in packets while their number or size matters."""
        packets = any(line.counts_packets for line in self._lines.values())
        if self._forwarder is not None and packets != self._in_packets:
            self._bridge(f"link set {LINES_PORT} gso_max_segs {1 if packets else SEGMENTS_MAX}")
            self._in_packets = packets

    def _apply(self) -> None:
        """Tells each host by which link addresses it reaches the others now."""
        for host in self.numbers:
            lines = []
            for other in self.numbers:
                direction = (host, other)
                way = _link_address(other)
                if direction in self._cuts:
                    way = _link_address(host)
                elif direction in self._lines:
                    way = LINES_ADDRESS
                if host != other and self._ways.get(direction) != way:
                    self._ways[direction] = way
                    lines.append(f"neighbour replace {self.address(other)} lladdr {way} nud permanent dev eth0")
            if lines:
                self._at(host, *lines)

    def unplug(self, host: int) -> None:
        """Its cable is pulled: no carrier, nothing comes or goes."""
        self._unplugged.add(host)
        self._bridge(f"link set host{host} down")

    def plug(self, host: int) -> None:
        self._unplugged.discard(host)
        self._bridge(f"link set host{host} up")

    def heal(self) -> None:
        """All is well again."""
        self.mend(list(self._cuts.elements()))
        for host in list(self._unplugged):
            self.plug(host)
        self.clear_line(list(self._lines))

    # --- commands

    def _at(self, host: int, *lines: str) -> None:
        _run("ip", "-n", f"{self._name}{host}", "-batch", "-", lines=lines)

    def _bridge(self, *lines: str) -> None:
        _run("ip", "-n", self._name + BRIDGE_NAME, "-batch", "-", lines=lines)


def _link_address(host: int) -> str:
    return f"02:53:50:00:00:{host:02x}"  # locally administered


def _enter(fd: int) -> None:
    if _LIBC.setns(fd, CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "setns")


def _run(*words: str, lines: Iterable[str] = ()) -> None:
    try:
        done = subprocess.run(words, input="".join(f"{line}\n" for line in lines), text=True, capture_output=True,
                              check=False)
    except OSError as error:
        raise HostsError(f"{words[0]}: {error.strerror}") from error
    if done.returncode:
        raise HostsError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")


__all__ = ["Direction", "Hosts", "HostsError", "between", "clear_up", "unavailable"]
