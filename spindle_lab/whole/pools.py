"""The pool of a node and the links of programs, with the simulation's clock: where production blocks, a thread of the
simulation waits.

What `spindle_core.links.driver` and `spindle_core.links.user` do around a sleep is done here: saying that one sleeps
before the last look, and waking when rung.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from spindle_core.links.driver import Driver
from spindle_core.links.duplex import Duplex, Listening
from spindle_core.links.user import LinkUser

if TYPE_CHECKING:
    from spindle_lab.whole.system import System

LAPS_BEFORE_SLEEP = 2


class SimDriver(Driver):
    """`spindle_core.links.driver.Driver` in a run."""

    system: System

    def drive(self, timeout_s: float, spin_s: float = 0.0) -> None:
        """As the driver's."""
        until_ns = time.monotonic_ns() + int(timeout_s * 1e9)
        idle = 0
        while True:
            now_ns = time.monotonic_ns()
            idle = 0 if self.step(now_ns) else idle + 1
            if self.wanted or now_ns >= until_ns:
                break
            if idle <= LAPS_BEFORE_SLEEP:
                self.system.pause()
                continue
            wake_ns = self.lie_down(now_ns, until_ns)
            if wake_ns > now_ns:
                _wait_at(self.system, self.fileno(), wake_ns - now_ns)
            self.rise()
            idle = 0
        self.heard_call()


class SimLinkUser(LinkUser):
    """`spindle_core.links.user.LinkUser` in a run."""

    system: System

    def wait(self, timeout_s: float, spin_s: float = 0.0) -> bool:
        """As the user's."""
        until_ns = time.monotonic_ns() + int(min(timeout_s, 1e9) * 1e9)
        while not self.news:
            now_ns = time.monotonic_ns()
            if now_ns >= until_ns:
                return False
            if self.fall_asleep():
                _wait_at(self.system, self.fileno(), until_ns - now_ns)
            self.wake_up()
        return True


class SimDuplex(Duplex):
    """`spindle_core.links.duplex.Duplex` in a run."""

    system: System

    def wait(self, timeout_s: float, spin_s: float = 0.0, room: int = 0, messages: bool = True) -> bool:
        """As the duplex's."""
        until_ns = time.monotonic_ns() + int(min(timeout_s, 1e9) * 1e9)
        while not self.news(room, messages):
            now_ns = time.monotonic_ns()
            if now_ns >= until_ns:
                return False
            if self.fall_asleep(room, messages):
                _wait_at(self.system, self.fileno(), until_ns - now_ns)
            self.wake_up()
        return True


class SimListening(Listening):
    """`spindle_core.links.duplex.Listening` in a run."""

    system: System

    def wait(self, timeout_s: float, spin_s: float = 0.0) -> bool:
        """As the other's."""
        until_ns = time.monotonic_ns() + int(min(timeout_s, 1e9) * 1e9)
        while not self.news:
            now_ns = time.monotonic_ns()
            if now_ns >= until_ns:
                return False
            if self.fall_asleep():
                _wait_at(self.system, self.fileno(), until_ns - now_ns)
            self.wake_up()
        return True


def _wait_at(system: System, fd: int, for_ns: int) -> None:
    """The running thread sleeps until that descriptor is readable, or so long."""
    assert system.thread is not None
    system.watch(fd, system.thread)
    try:
        system.wait(None, for_ns / 1e9, fd)
    finally:
        system.unwatch(fd)
