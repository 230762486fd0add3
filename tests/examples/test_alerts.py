"""Goal: the alert rules raise and clear what their table says, and all monitors agree. Method: single figures fed by
hand; then a piece of the real flight, its samples in any order."""

from __future__ import annotations

import random
from dataclasses import asdict
from functools import cache

import pytest
from alerts import AlertEvent, AlertLog, AlertRules
from flight_data import read_table
from hypothesis import given, settings
from hypothesis import strategies as st

AIR_FIGURES = ("altitude_ft", "ias_kt", "vertical_rate_fpm", "selected_altitude_ft")


class Flight:
    """Feeds rules with figures, one sample a second."""

    def __init__(self) -> None:
        self.rules = AlertRules()
        self.time = 0.0

    def feed(self, **figures: float) -> list[tuple[str, bool]]:
        self.time += 1.0
        return [(event.kind, event.raised) for event in self.rules.feed(figures, self.time)]


def test_overspeed_is_for_low_altitude_and_has_hysteresis() -> None:
    """Goal: more than 253 kt below 10,000 ft raises, 250 clears. Method: up and down through the limits."""
    flight = Flight()
    assert flight.feed(altitude_ft=12000, ias_kt=300) == []
    assert flight.feed(altitude_ft=9975) == [("OVERSPEED", True)]
    assert flight.feed(ias_kt=251) == [], "between the two limits it stays"
    assert flight.feed(ias_kt=250) == [("OVERSPEED", False)]
    assert flight.feed(ias_kt=253) == []
    assert flight.feed(ias_kt=254) == [("OVERSPEED", True)]
    assert flight.feed(altitude_ft=10000) == [("OVERSPEED", False)]


def test_bank_limit_depends_on_altitude() -> None:
    """Goal: figures of both topics in one rule. Method: the same bank high and low, both sides."""
    flight = Flight()
    assert flight.feed(altitude_ft=9000, roll_deg=-20) == []
    assert flight.feed(altitude_ft=1000) == [("BANK", True)]
    assert flight.feed(roll_deg=-12) == [("BANK", False)]
    assert flight.feed(altitude_ft=9000, roll_deg=26) == [("BANK", True)]


def test_rapid_descent_and_steep_path() -> None:
    """Goal: the rate alone, and the rate over the groundspeed. Method: the same rate fast and slow, high and low."""
    flight = Flight()
    assert flight.feed(altitude_ft=20000, vertical_rate_fpm=-3008, groundspeed_kt=400) == [("RAPID DESCENT", True)]
    assert flight.feed(vertical_rate_fpm=-2500) == [("RAPID DESCENT", False)]
    assert flight.feed(altitude_ft=9000) == []
    assert flight.feed(groundspeed_kt=250) == [("STEEP PATH", True)]
    assert flight.feed(groundspeed_kt=30) == [("STEEP PATH", False)]


def test_selected_altitude_is_approached_captured_and_left() -> None:
    """Goal: level-off call, silence when captured, deviation, and a new selection starting over."""
    flight = Flight()
    assert flight.feed(altitude_ft=5000, selected_altitude_ft=8000) == []
    assert flight.feed(altitude_ft=7000) == [("LEVEL OFF", True)]
    assert flight.feed(altitude_ft=7800) == [("LEVEL OFF", False)]
    assert flight.feed(altitude_ft=8300) == []
    assert flight.feed(altitude_ft=8325) == [("ALTITUDE DEVIATION", True)]
    assert flight.feed(altitude_ft=8250) == [], "still more than 200 ft off"
    assert flight.feed(selected_altitude_ft=9000) == [("ALTITUDE DEVIATION", False)]
    assert flight.feed(altitude_ft=8500) == [], "it was never more than 1,000 ft away from the new one"


def test_a_stale_figure_is_not_judged() -> None:
    """Goal: no alert from an old figure, and a standing one stays. Method: one figure stops for long."""
    flight = Flight()
    assert flight.feed(altitude_ft=9000, ias_kt=260) == [("OVERSPEED", True)]
    flight.time += 20
    assert flight.feed(altitude_ft=12000) == [], "the speed is stale: unknown"
    assert flight.feed(ias_kt=260) == [("OVERSPEED", False)]


def test_empty_samples_change_nothing() -> None:
    """Goal: NaN is "not heard". Method: a sample of NaN only, and one without flight time."""
    flight = Flight()
    flight.feed(altitude_ft=9000, ias_kt=260)
    nothing = float("nan")
    assert flight.feed(altitude_ft=nothing, ias_kt=nothing) == []
    assert flight.rules.feed({"ias_kt": 100.0}, nothing) == []
    assert list(flight.rules.standing) == ["OVERSPEED"]


def test_the_digest_tells_order_and_content() -> None:
    """Goal: equal alerts in equal order and nothing else give equal digests. Method: two events, both ways round."""
    events = [AlertEvent(i, "BANK", bool(i), 1.0 + i, 2.0, 3.0, "") for i in range(2)]
    logs = [AlertLog(), AlertLog(), AlertLog()]
    for log, order in zip(logs, ([0, 1], [1, 0], [0, 1]), strict=True):
        for i in order:
            log.add(events[i])
    assert logs[0].digest() == logs[2].digest() != logs[1].digest()
    assert logs[0].count == 2


@cache
def samples() -> tuple[tuple[float, dict[str, float]], ...]:
    """A piece of the flight with alerts in it, as the samples of both topics."""
    rows = [row for row in read_table()][(3580 * 4) : (3720 * 4)]
    found: list[tuple[float, dict[str, float]]] = []
    for row in rows:
        figures = asdict(row)
        air = {name: figures[name] for name in AIR_FIGURES if name in figures}
        found += [(row.time, air), (row.time, {k: v for k, v in figures.items() if k not in (*air, "time")})]
    return tuple(found)


def alerts_of(order: list[int]) -> list[bytes]:
    """Judges the piece's samples in this order."""
    rules, out = AlertRules(), []
    for place in order:
        time, values = samples()[place]
        out += [event.encoded() for event in rules.feed(values, time)]
    return out


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 2**32))
def test_any_order_gives_everybody_the_same_alerts(seed: int) -> None:
    """Goal: monitors agree whatever order the group agrees on. Method: samples a little out of turn, judged twice."""
    chance = random.Random(seed)
    order = sorted(range(len(samples())), key=lambda place: place + chance.uniform(0, 9))
    found = alerts_of(order)
    assert found == alerts_of(order)
    assert len(found) >= 10, "a piece without alerts would prove nothing"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["OVERSPEED", "BANK", "RAPID DESCENT", "STEEP PATH", "LEVEL OFF"])
def test_the_flight_raises_alerts_of_each_kind(kind: str) -> None:
    """Goal: the demonstration has something to show. Method: the whole shipped flight."""
    rules = AlertRules()
    kinds = set()
    for row in read_table():
        figures = asdict(row)
        kinds |= {event.kind for event in rules.feed(figures, figures.pop("time"))}
    assert kind in kinds
