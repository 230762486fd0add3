"""The alert rules: from air data and attitude in one order to alerts, the same on every node.

Why: an alert that one display shows and another doesn't is worse than none. Each monitor works for itself, on its own
node; that they agree follows from what they are fed (the same samples of both topics in the same order) and from the
rules being a function of that alone: no clock, no randomness, no arithmetic that differs between machines
(comparisons and IEEE basic operations; no sines).

| kind               | raised when                                                         | cleared when          |
|--------------------|---------------------------------------------------------------------|-----------------------|
| OVERSPEED          | IAS above 250 kt + 3 below 10,000 ft                                | 250 kt or 10,000 ft   |
| BANK               | roll beyond 25 degrees; below 1,500 ft beyond 15                    | 3 degrees less        |
| RAPID DESCENT      | descending at more than 3,000 ft/min                                | at less than 2,500    |
| STEEP PATH         | below 10,000 ft the path over ground is steeper than 4 degrees down | shallower than 3.5    |
| LEVEL OFF          | coming within 1,000 ft of the selected altitude                     | within 200 ft, or new |
| ALTITUDE DEVIATION | more than 300 ft off the selected altitude once within 200 ft of it | within 200 ft, or new |

BANK and STEEP PATH need figures of both topics. The thresholds are for this example, not for flying.

Rules: a rule is judged when all figures it needs are fresh (flight_state.py); with one missing a standing alert
stays. An alert has a number, counted from 0 in the order raised and cleared. `AlertLog.digest()` hashes all of them:
equal digests mean equal alerts in equal order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from flight_state import FlightState

SPEED_LIMIT_KT = 250.0
SPEED_TOLERANCE_KT = 3.0
SPEED_LIMIT_BELOW_FT = 10_000.0
BANK_LIMIT_DEG = 25.0
BANK_LIMIT_LOW_DEG = 15.0
BANK_LOW_BELOW_FT = 1_500.0
BANK_MARGIN_DEG = 3.0
DESCENT_LIMIT_FPM = 3_000.0
DESCENT_MARGIN_FPM = 500.0
STEEP_LIMIT = 0.0699  # tangent of 4 degrees
STEEP_CLEAR = 0.0612  # tangent of 3.5 degrees
FPM_PER_KT = 101.2686  # feet a minute in a knot
ALTITUDE_NEAR_FT = 1_000.0
ALTITUDE_CAPTURE_FT = 200.0
ALTITUDE_DEVIATION_FT = 300.0


@dataclass(frozen=True, slots=True)
class AlertEvent:
    """An alert raised or cleared."""

    number: int
    kind: str
    raised: bool  # False: cleared
    flight_time: float  # Unix seconds of the recording
    value: float
    limit: float
    text: str

    def encoded(self) -> bytes:
        """What the digest is made of: everything that must agree."""
        return (
            f"{self.number}|{self.kind}|{int(self.raised)}|{self.flight_time:.6f}|{self.value:.3f}|{self.limit:.3f}"
        ).encode()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a rule says now. `raised` None: unchanged, as a figure it needs is missing."""

    raised: bool | None
    value: float = 0.0
    limit: float = 0.0
    text: str = ""


UNKNOWN = Verdict(None)
OFF = Verdict(False)


class AlertRules:
    """All rules over both topics. `feed` every sample in the agreed order."""

    def __init__(self) -> None:
        self.state = FlightState()
        self.standing: dict[str, AlertEvent] = {}
        """Alerts raised and not cleared, by kind, oldest first."""
        self._count = 0
        self._selected_ft: float | None = None
        self._near = False  # has been more than ALTITUDE_NEAR_FT away from the selected altitude, and now isn't
        self._far = False  # has been more than ALTITUDE_NEAR_FT away since it was selected
        self._captured = False  # has been within ALTITUDE_CAPTURE_FT since it was selected
        self._rules: tuple[tuple[str, Callable[[bool], Verdict]], ...] = (
            ("OVERSPEED", self._overspeed),
            ("BANK", self._bank),
            ("RAPID DESCENT", self._rapid_descent),
            ("STEEP PATH", self._steep_path),
            ("LEVEL OFF", self._level_off),
            ("ALTITUDE DEVIATION", self._altitude_deviation),
        )

    def feed(self, values: Mapping[str, float | str], flight_time: float) -> list[AlertEvent]:
        """Takes the next sample's figures; returns the alerts it raises and clears, in the table's order."""
        if flight_time != flight_time:
            return []
        self.state.apply(values, flight_time)
        self._follow_selected_altitude()
        events: list[AlertEvent] = []
        for kind, judge in self._rules:
            standing = kind in self.standing
            verdict = judge(standing)
            if verdict.raised is None or verdict.raised == standing:
                continue
            event = AlertEvent(
                self._count, kind, verdict.raised, flight_time, verdict.value, verdict.limit, verdict.text or "no more"
            )
            self._count += 1
            if verdict.raised:
                self.standing[kind] = event
            else:
                del self.standing[kind]
            events.append(event)
        return events

    def _overspeed(self, standing: bool) -> Verdict:
        speed, altitude = self.state.get("ias_kt"), self.state.get("altitude_ft")
        if speed is None or altitude is None:
            return UNKNOWN
        limit = SPEED_LIMIT_KT + (0.0 if standing else SPEED_TOLERANCE_KT)
        if altitude >= SPEED_LIMIT_BELOW_FT or speed <= limit:
            return OFF
        return Verdict(True, speed, SPEED_LIMIT_KT, f"{speed:.0f} kt at {altitude:.0f} ft, limit {SPEED_LIMIT_KT:.0f}")

    def _bank(self, standing: bool) -> Verdict:
        roll, altitude = self.state.get("roll_deg"), self.state.get("altitude_ft")
        if roll is None or altitude is None:
            return UNKNOWN
        limit = BANK_LIMIT_LOW_DEG if altitude < BANK_LOW_BELOW_FT else BANK_LIMIT_DEG
        if abs(roll) <= limit - (BANK_MARGIN_DEG if standing else 0.0):
            return OFF
        side = "right" if roll > 0 else "left"
        return Verdict(True, roll, limit, f"{abs(roll):.0f} degrees {side} at {altitude:.0f} ft, limit {limit:.0f}")

    def _rapid_descent(self, standing: bool) -> Verdict:
        rate = self.state.get("vertical_rate_fpm")
        if rate is None:
            return UNKNOWN
        if -rate <= DESCENT_LIMIT_FPM - (DESCENT_MARGIN_FPM if standing else 0.0):
            return OFF
        return Verdict(True, rate, -DESCENT_LIMIT_FPM, f"{-rate:.0f} ft/min down, limit {DESCENT_LIMIT_FPM:.0f}")

    def _steep_path(self, standing: bool) -> Verdict:
        rate, speed = self.state.get("vertical_rate_fpm"), self.state.get("groundspeed_kt")
        altitude = self.state.get("altitude_ft")
        if rate is None or speed is None or altitude is None:
            return UNKNOWN
        # At taxi speed the ratio means nothing.
        if altitude >= SPEED_LIMIT_BELOW_FT or speed < 60.0:
            return OFF
        slope = -rate / (speed * FPM_PER_KT)
        if slope <= (STEEP_CLEAR if standing else STEEP_LIMIT):
            return OFF
        text = f"{slope * 100:.1f}% down at {altitude:.0f} ft, limit {STEEP_LIMIT * 100:.0f}%"
        return Verdict(True, slope, STEEP_LIMIT, text)

    def _follow_selected_altitude(self) -> None:
        selected, altitude = self.state.get("selected_altitude_ft"), self.state.get("altitude_ft")
        if selected is None or altitude is None:
            return
        if selected != self._selected_ft:
            self._selected_ft = selected
            self._far = self._near = self._captured = False
        distance = abs(altitude - selected)
        self._far = self._far or distance > ALTITUDE_NEAR_FT
        self._captured = self._captured or distance <= ALTITUDE_CAPTURE_FT
        self._near = self._far and distance <= ALTITUDE_NEAR_FT

    def _level_off(self, standing: bool) -> Verdict:
        selected, altitude = self.state.get("selected_altitude_ft"), self.state.get("altitude_ft")
        if selected is None or altitude is None:
            return UNKNOWN
        if not self._near or self._captured:
            return OFF
        return Verdict(True, altitude, selected, f"{abs(selected - altitude):.0f} ft to go to {selected:.0f} ft")

    def _altitude_deviation(self, standing: bool) -> Verdict:
        selected, altitude = self.state.get("selected_altitude_ft"), self.state.get("altitude_ft")
        if selected is None or altitude is None:
            return UNKNOWN
        distance = abs(altitude - selected)
        if not self._captured or distance <= (ALTITUDE_CAPTURE_FT if standing else ALTITUDE_DEVIATION_FT):
            return OFF
        return Verdict(True, altitude, selected, f"{distance:.0f} ft off the selected {selected:.0f} ft")


class AlertLog:
    """Counts alerts and hashes them in their order."""

    def __init__(self) -> None:
        self._hash = hashlib.blake2b(digest_size=8)
        self.count = 0

    def add(self, event: AlertEvent) -> None:
        self._hash.update(event.encoded() + b"\n")
        self.count += 1

    def digest(self) -> str:
        """16 hexadecimal digits over all alerts so far."""
        return self._hash.copy().hexdigest()
