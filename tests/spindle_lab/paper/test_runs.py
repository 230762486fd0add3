"""Goal: equal runs show equal figures, and each part of a run's spec has a part in what it shows.

Method: tiny runs, played in this process, and their figures compared.
"""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from itertools import pairwise

import pytest

from spindle_lab.paper.runs import TECHNIQUES, Run, parameters_of, simulate
from tests.spindle_lab.paper.support import TINY


def test_equal_runs_show_equal_figures() -> None:
    assert simulate(TINY) == simulate(replace(TINY))


def test_a_seed_is_a_run_of_its_own() -> None:
    assert simulate(TINY) != simulate(replace(TINY, seed=2))


def test_figures_are_json() -> None:
    figures = simulate(TINY)
    assert json.loads(json.dumps(figures)) == figures


def test_a_run_comes_to_its_end_and_delivers_what_it_measures() -> None:
    figures = simulate(TINY)
    assert figures["finished"]
    assert figures["delivered"] >= 2 * (2 * TINY.window + TINY.messages)
    assert figures["gb_s"] > 0 and figures["latency_us"]["0.5"] > 0


OTHERS = {
    "members": 3, "senders": 1, "techniques": "baseline", "size": 100, "window": 20, "topics": 2, "messages": 40,
    "upcall_us": 2.0, "copies_in": True, "copies_out": True, "disk_bytes_s": 1e7, "work_us": 3.0, "level": 0,
    "table": "per message", "changes": (("deliver_ns", 400.0),), "seed": 2,
    "second_size": 100, "slot": 20480, "range_cost": 0, "push_bytes": 20000, "lock_free": True, "ahead": True,
    "once": True,
}


@pytest.mark.parametrize("name", OTHERS)
def test_every_part_of_a_run_counts(name: str) -> None:
    assert simulate(replace(TINY, **{name: OTHERS[name]})) != simulate(TINY)


def test_a_run_may_change_how_long_the_lock_is_held() -> None:
    short = replace(TINY, table="reference", changes=(("lock_through", 0.0),))
    assert parameters_of(replace(TINY, table="reference")).lock_through and not parameters_of(short).lock_through
    assert simulate(short) != simulate(replace(TINY, table="reference"))


def test_interruptions_active_topics_and_delays_count() -> None:
    longer = replace(TINY, messages=2000)
    assert simulate(replace(longer, paused=True)) != simulate(longer)
    two = replace(TINY, topics=2)
    assert simulate(replace(two, active=2)) != simulate(two)
    late = replace(TINY, delayed=1, delay_us=5.0)
    assert simulate(late) != simulate(TINY)
    assert simulate(replace(late, delay_us=50.0)) != simulate(late)
    assert {field.name for field in fields(Run)} == {*OTHERS, "active", "delayed", "delay_us", "paused"}


def test_who_never_sends_does_not_hold_up_the_others() -> None:
    """Null sends fill the places of a silent sender."""
    figures = simulate(replace(TINY, delayed=1, delay_us=math.inf))
    assert figures["finished"]
    assert figures["nulls_per_message"] > 0


def test_techniques_come_step_by_step() -> None:
    """Each has all that the one before has."""
    steps = [tuple(vars(one).values()) for one in TECHNIQUES.values()]
    assert not any(steps[0]) and all(steps[-1])
    for before, after in pairwise(steps):
        assert before != after and all(b <= a for b, a in zip(before, after, strict=True))


def test_changes_name_a_parameter() -> None:
    assert parameters_of(replace(TINY, changes=(("latency_ns", 5.0),))).network.latency_ns == 5.0
    assert parameters_of(replace(TINY, changes=(("lap_ns", 5.0),))).node.lap_ns == 5.0
    with pytest.raises(ValueError, match="no_such"):
        parameters_of(replace(TINY, changes=(("no_such", 1.0),)))
