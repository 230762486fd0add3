"""Hosts for a round: network namespaces, joined by a bridge, with links that can be cut in each direction.

Why namespaces: a daemon in one has addresses, ports and TCP of its own, as on a host, and its kernel learns of a broken
link what a host's kernel learns: nothing.

How a direction is cut: who is behind which link address is set by hand here, for all. For a cut the sender is told its
own, and a bridge never sends a frame back to where it came from. So the frame is lost without a word to anybody, and it
takes nothing but `ip`: no packet filter, no module.

Rules:
- Names carry the process id: spindle-<pid>-<number>. What processes left that were killed goes with the next start.
- A direction that was cut twice (two faults at a time) works again when it was mended twice.
- Needs root; `unavailable()` says what is missing. Losses need `tc` with netem or, without that, with bpf filters;
  delays need netem.
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

NAMES = Path("/run/netns")  # where `ip netns` keeps them
PREFIX = "spindle-"
BRIDGE_NAME = "bridge"
CLONE_NEWNET = 0x40000000
SHOT = "2"  # what a filter says to drop a packet

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


def losses_unavailable() -> str:
    """Why packets can't be lost at random here; "" if they can."""
    if reason := unavailable():
        return reason
    with Hosts(1) as hosts:
        try:
            hosts.spoil(1, loss=0.5)
        except HostsError as error:
            return str(error)
    return ""


def clear_up() -> None:
    """Removes what processes left that have ended without a chance to do so."""
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
        self._spoilt: set[int] = set()
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
            neighbours = [_neighbour(other, _link_address(other)) for other in self.numbers if other != host]
            self._at(host, "link set lo up", f"address add {self.address(host)}/24 dev eth0", "link set eth0 up",
                     *neighbours)
            self._fds[host] = os.open(NAMES / f"{self._name}{host}", os.O_RDONLY | os.O_CLOEXEC)

    def close(self) -> None:
        """Removes all of it. Idempotent."""
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
        before = set(+self._cuts)
        self._cuts.update(directions)
        self._apply(before)

    def mend(self, directions: Iterable[Direction]) -> None:
        """The opposite of a cut of the same directions. What isn't cut stays as it is."""
        before = set(+self._cuts)
        self._cuts = +(self._cuts - Counter(directions))
        self._apply(before)

    def _apply(self, before: set[Direction]) -> None:
        now = set(self._cuts)
        for host in self.numbers:
            lines = [_neighbour(other, _link_address(host if (host, other) in now else other))
                     for one, other in sorted(before ^ now) if one == host]
            if lines:
                self._at(host, *lines)

    def unplug(self, host: int) -> None:
        """Its cable is pulled: no carrier, nothing comes or goes."""
        self._unplugged.add(host)
        self._bridge(f"link set host{host} down")

    def plug(self, host: int) -> None:
        self._unplugged.discard(host)
        self._bridge(f"link set host{host} up")

    def spoil(self, host: int, *, loss: float = 0.0, delay_ms: float = 0.0) -> None:
        """Packets to this host are lost with this probability, and come so much later, give or take a half of it.
        Raises HostsError where the kernel can't."""
        self.unspoil(host)
        device = f"host{host}"
        try:
            delay = f"delay {delay_ms}ms {delay_ms / 2}ms ".split() if delay_ms else []
            self._tc("qdisc", "add", "dev", device, "root", "netem", *delay, "loss", f"{loss * 100}%")
        except HostsError:
            if delay_ms:
                raise
            self._tc("qdisc", "add", "dev", device, "clsact")
            self._tc("filter", "add", "dev", device, "egress", "bpf", "direct-action", "bytecode", _losing(loss))
        self._spoilt.add(host)

    def unspoil(self, host: int) -> None:
        if host in self._spoilt:
            self._spoilt.discard(host)
            for where in ("root", "clsact"):
                with contextlib.suppress(HostsError):
                    self._tc("qdisc", "del", "dev", f"host{host}", where)

    def heal(self) -> None:
        """All is well again."""
        self.mend(list(self._cuts.elements()))
        for host in list(self._unplugged):
            self.plug(host)
        for host in list(self._spoilt):
            self.unspoil(host)

    # --- commands

    def _at(self, host: int, *lines: str) -> None:
        _run("ip", "-n", f"{self._name}{host}", "-batch", "-", lines=lines)

    def _bridge(self, *lines: str) -> None:
        _run("ip", "-n", self._name + BRIDGE_NAME, "-batch", "-", lines=lines)

    def _tc(self, *words: str) -> None:
        _run("tc", "-n", self._name + BRIDGE_NAME, *words)


def _link_address(host: int) -> str:
    return f"02:53:50:00:00:{host:02x}"  # locally administered


def _neighbour(host: int, link_address: str) -> str:
    return f"neighbour replace {Hosts.address(host)} lladdr {link_address} nud permanent dev eth0"


def _losing(loss: float) -> str:
    """A classic BPF program: a random number above the limit passes, others don't."""
    limit = min(int(loss * (1 << 32)), (1 << 32) - 1)
    random_word = (1 << 32) - 0x1000 + 56
    return f"4,32 0 0 {random_word},37 1 0 {limit},6 0 0 {SHOT},6 0 0 {(1 << 32) - 1}"


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


__all__ = ["Hosts", "HostsError", "between", "clear_up", "losses_unavailable", "unavailable"]
