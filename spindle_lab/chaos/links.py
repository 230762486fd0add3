"""What goes wrong between hosts: partitions of all shapes, for a moment or longer than the suspicion time; lines that
are long, slow, or lose packets.

Rules: each fault is mended by itself after a while, through the schedule, and may overlap with others. Whoever may be
left in a minority, or be taken for dead by others, is excused for ending so, as are all that start meanwhile.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from spindle.errors import CastOut, JoinFailed, NodeStopped, NoMajority
from spindle_lab.chaos.hosts import Direction, Hosts, between
from spindle_lab.chaos.lines import Line

if TYPE_CHECKING:
    import random

    from spindle_lab.chaos.schedule import Schedule
    from spindle_lab.chaos.stage import Stage

# In a minority, taken for dead, without a group to join, refused by a node that stops.
EXCUSED = (NoMajority.exit_code, CastOut.exit_code, JoinFailed.exit_code, NodeStopped.exit_code)
FLAPS = 12
SLOW = 200e3  # bytes a second; below that, heartbeats may wait too long behind messages


class Faults(Protocol):
    """What the faults of links need of those of a round (`spindle_lab.chaos.faults`)."""

    stage: Stage
    draw: random.Random
    suspect_timeout_s: float
    schedule: Schedule

    def excuse(self, *codes: int) -> None:
        """Daemons may end with these exit codes from now on."""

    def come_back(self, node: int, delay_s: float) -> None:
        """A node that has ended is started again later."""


def _hosts(faults: Faults) -> Hosts:
    assert faults.stage.hosts is not None
    return faults.stage.hosts


def _duration_s(faults: Faults) -> float:
    """Half of them too short for suspicions."""
    low, high = faults.draw.choice([(0.05, 0.4), (1.3, 4.0)])
    return faults.suspect_timeout_s * faults.draw.uniform(low, high)


def excuse(faults: Faults) -> None:
    """What links do to nodes from now on is nobody's fault."""
    faults.stage.excused.update(EXCUSED)
    faults.excuse(*EXCUSED)


def _cut(faults: Faults, directions: list[Direction], duration_s: float) -> None:
    hosts = _hosts(faults)
    excuse(faults)
    hosts.cut(directions)
    faults.schedule.later(duration_s, lambda: hosts.mend(directions))


def _sides(faults: Faults) -> tuple[list[int], list[int]]:
    numbers = list(_hosts(faults).numbers)
    faults.draw.shuffle(numbers)
    count = faults.draw.randint(1, len(numbers) - 1)
    return sorted(numbers[:count]), sorted(numbers[count:])


def halves(faults: Faults) -> str:
    """Two sides that don't reach each other."""
    one, other = _sides(faults)
    duration_s = _duration_s(faults)
    _cut(faults, between(one, other), duration_s)
    return f"{one} and {other} for {duration_s:.2f} s"


def one_way(faults: Faults) -> str:
    """One side hears the other, and isn't heard."""
    one, other = _sides(faults)
    duration_s = _duration_s(faults)
    _cut(faults, [(a, b) for a in one for b in other], duration_s)
    return f"from {one} to {other} for {duration_s:.2f} s"


def ring(faults: Faults) -> str:
    """Everybody has two neighbours (of three hosts one has two, the others one), and reaches nobody else."""
    numbers = list(_hosts(faults).numbers)
    faults.draw.shuffle(numbers)
    near = {frozenset(pair) for pair in itertools.pairwise(numbers)}
    if len(numbers) > 3:
        near.add(frozenset((numbers[0], numbers[-1])))
    far = [pair for pair in itertools.permutations(numbers, 2) if frozenset(pair) not in near]
    if not far:
        return ""
    duration_s = _duration_s(faults)
    _cut(faults, far, duration_s)
    return f"{numbers} for {duration_s:.2f} s"


def every_one_alone(faults: Faults) -> str:
    """As if the switch had gone."""
    duration_s = _duration_s(faults)
    _cut(faults, between(*([one] for one in _hosts(faults).numbers)), duration_s)
    return f"for {duration_s:.2f} s"


def any_directions(faults: Faults) -> str:
    """A few directions between two hosts each."""
    every = list(itertools.permutations(_hosts(faults).numbers, 2))
    some = sorted(faults.draw.sample(every, faults.draw.randint(1, len(every) // 2)))
    duration_s = _duration_s(faults)
    _cut(faults, some, duration_s)
    return f"{', '.join(f'{a} to {b}' for a, b in some)} for {duration_s:.2f} s"


def unplug(faults: Faults) -> str:
    """A cable is pulled; in half of the cases the host loses its power: nobody says goodbye for its nodes."""
    hosts = _hosts(faults)
    host = faults.draw.choice(hosts.numbers)
    duration_s, dies = _duration_s(faults), faults.draw.random() < 0.5
    excuse(faults)
    hosts.unplug(host)
    faults.schedule.later(duration_s, lambda: hosts.plug(host))
    if dies:
        for node in [node for node in faults.stage.daemons if faults.stage.host_of(node) == host]:
            faults.stage.kill(node)
            faults.come_back(node, duration_s)
    return f"host {host} for {duration_s:.2f} s{', its nodes die' if dies else ''}"


def flaps(faults: Faults) -> str:
    """Many short cuts of any directions, each far below the suspicion time."""
    excuse(faults)  # what TCP makes of them may take longer
    hosts, count = _hosts(faults), faults.draw.randint(3, FLAPS)
    every = list(itertools.permutations(hosts.numbers, 2))
    begin_s = 0.0
    for _ in range(count):
        some = faults.draw.sample(every, faults.draw.randint(1, len(every)))
        duration_s = faults.draw.uniform(0.005, 0.15) * faults.suspect_timeout_s
        faults.schedule.later(begin_s, lambda some=some: hosts.cut(some))  # type: ignore[misc]
        faults.schedule.later(begin_s + duration_s, lambda some=some: hosts.mend(some))  # type: ignore[misc]
        begin_s += duration_s + faults.draw.uniform(0.01, 0.3)
    return f"{count} times within {begin_s:.2f} s"


def _around(faults: Faults) -> tuple[list[Direction], str]:
    """All directions to some hosts, from them, or both."""
    numbers = _hosts(faults).numbers
    some = sorted(faults.draw.sample(numbers, faults.draw.randint(1, len(numbers) - 1)))
    here = [(a, b) for a, b in itertools.permutations(numbers, 2) if a in some]
    there = [(a, b) for a, b in itertools.permutations(numbers, 2) if b in some]
    way, directions = faults.draw.choice([("from", here), ("to", there), ("from and to", sorted({*here, *there}))])
    return directions, f"{way} {some}"


def _lay(faults: Faults, line: Line, duration_s: float, excused: bool) -> str:
    hosts = _hosts(faults)
    directions, text = _around(faults)
    if excused:
        excuse(faults)
    hosts.set_line(directions, line)
    faults.schedule.later(duration_s, lambda: hosts.clear_line(directions))
    return f"{text}, {line}, for {duration_s:.2f} s"


def bad_line(faults: Faults) -> str:
    """Packets are lost, and those that aren't may be late."""
    loss, delay_s = faults.draw.choice([0.01, 0.05, 0.2]), faults.draw.choice([0.0, 0.001, 0.02])
    return _lay(faults, Line(delay_s, delay_s / 2, loss), faults.draw.uniform(0.5, 3.0), loss > 0.1)


def long_line(faults: Faults) -> str:
    """Delays as between cities or continents, from now on; far below the suspicion time."""
    delay_s = faults.suspect_timeout_s * faults.draw.choice([0.01, 0.03, 0.1, 0.2])
    return _lay(faults, Line(delay_s, delay_s * faults.draw.choice([0.0, 0.5])), faults.draw.uniform(1.0, 5.0), False)


def line_too_long(faults: Faults) -> str:
    """What arrives is late by about the suspicion time, or more: those behind it can't be told from hosts that hang."""
    delay_s = faults.suspect_timeout_s * faults.draw.choice([0.5, 0.9, 1.1, 2.0, 3.0])
    return _lay(faults, Line(delay_s, delay_s * faults.draw.choice([0.0, 0.3])),
                faults.suspect_timeout_s * faults.draw.uniform(1.0, 4.0), True)


def slow_line(faults: Faults) -> str:
    """Some hosts get, or can send, less than others."""
    rate, delay_s = faults.draw.choice([30e3, 300e3, 3e6]), faults.draw.choice([0.0, 0.01])
    return _lay(faults, Line(delay_s, rate=rate), faults.draw.uniform(1.0, 5.0), rate < SLOW)


LINK_FAULTS: tuple[tuple[str, float, Callable[[Faults], str]], ...] = (
    ("partition in two", 3, halves),
    ("partition, one way", 2, one_way),
    ("partition as a ring", 2, ring),
    ("partition of all from all", 0.7, every_one_alone),
    ("some directions cut", 2, any_directions),
    ("host unplugged", 2, unplug),
    ("links flap", 1.5, flaps),
    ("bad line", 2, bad_line),
    ("long line", 2, long_line),
    ("line too long", 1, line_too_long),
    ("slow line", 1.5, slow_line),
)

__all__ = ["LINK_FAULTS", "excuse"]
