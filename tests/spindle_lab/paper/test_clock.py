"""Goal: events happen in the order of their times, at the same time in the order of their making, and none in the past.

Method: writes (flights.fly) that share nothing, so that an event is all there is to each; fibers are what every
cluster's predicate threads run on (test_cluster).
"""

from __future__ import annotations

import random

from spindle_lab.paper.flights import fly
from spindle_lab.paper.parameters import Network

# Nothing takes any time: a write arrives when it is posted.
AT_ONCE = Network(post_first_ns=0, post_next_ns=0, latency_ns=0, small_ns_per_byte=0, bytes_s=1e15)
PAIRS = [(source, target) for source in range(64) for target in range(64) if source != target]


def test_events_come_in_the_order_of_their_times() -> None:
    """Method: 3,000 in disorder; the queue of events grows several times meanwhile."""
    shuffled = random.Random(1)
    times = shuffled.sample(range(1_000_000), 3000)
    found = fly(AT_ONCE, [(at_ns, *PAIRS[k], 8) for k, at_ns in enumerate(times)])
    assert [at_ns for at_ns, _ in found] == sorted(times)
    assert [times[place] for _, place in found] == sorted(times)


def test_events_of_one_moment_come_in_the_order_of_their_making() -> None:
    found = fly(AT_ONCE, [(5, k, (k + 1) % 64, 8) for k in range(64)])
    assert found == [(5, place) for place in range(64)]


def test_times_are_whole_picoseconds() -> None:
    assert fly(AT_ONCE, [(0.0014, 0, 1, 8), (0.0016, 2, 3, 8)]) == [(0.001, 0), (0.002, 1)]


def test_no_event_is_in_the_past() -> None:
    """Method: a write that is named behind a later one of its pair waits for that one's turn, but time never goes
    back."""
    times = [at_ns for at_ns, _ in fly(AT_ONCE, [(10, 0, 1, 8), (5, 0, 1, 8), (7, 2, 3, 8)])]
    assert times == sorted(times)
