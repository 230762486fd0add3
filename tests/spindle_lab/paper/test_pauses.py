"""Goal: interruptions of a thread are counted and measured.

Method: the clock is looked at for a while on this machine, whatever happens there.
"""

from __future__ import annotations

from spindle_lab.paper.parameters import PAUSES
from spindle_lab.paper.pauses import pauses


def test_gaps_are_counted_by_their_length() -> None:
    """No kind is shorter than asked for, and all of them together take no longer than there was time."""
    found = pauses(200_000_000, 1_000)
    assert all(ns >= 1_000 and count > 0 for ns, count in found.items())
    assert len({ns.bit_length() for ns in found}) == len(found)
    assert sum(ns * count for ns, count in found.items()) <= 1.01e9


def test_longer_gaps_are_fewer() -> None:
    assert not pauses(1_000_000, 10**12)


def test_what_is_kept_of_a_machine_is_plausible() -> None:
    assert 0 < sum(ns * count for ns, count in PAUSES.items()) < 0.1e9
