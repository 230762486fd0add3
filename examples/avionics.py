"""The topics of the avionics examples: their types, names and quality of service.

Why three kinds of type: air data is a fixed layout and built in place, in the memory it is sent from; attitude and
alerts are dataclasses and travel as CDR. Why these levels:

| topic             | level    | because                                                                          |
|-------------------|----------|----------------------------------------------------------------------------------|
| `flight/air_data` | logged   | the flight recorder's; a monitor that starts late still gets the flight so far   |
| `flight/attitude` | logged   | likewise                                                                         |
| `flight/alerts`   | volatile | a display that starts late must show the alerts that stand; nobody records them  |

Rules: NaN and empty texts mean "not heard". `time_ns` is the time of measurement on the wall clock, by which topics
are merged (merge.py); `flight_time` is the recording's own clock, Unix seconds. A sample whose `flight_time` is NaN
is empty: it only says that time has gone on.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from alerts import AlertEvent
from flight_data import FlightRow

from dds.core import Policy, Qos
from dds.domain import DomainParticipant
from dds.idl import IdlStruct
from dds.idl.types import float64, uint32, uint64
from dds.topic import Topic
from dds.util import duration

AIR_DATA_NAME = "flight/air_data"
ATTITUDE_NAME = "flight/attitude"
ALERTS_NAME = "flight/alerts"

HISTORY = 20_000
"""Samples kept for those who start late: 80 minutes at 4 a second, the whole flight."""


def _kept(depth: int) -> Any:
    return Policy.DurabilityService(
        cleanup_delay=0,
        history=Policy.History.KeepLast(depth),
        max_samples=-1,
        max_instances=-1,
        max_samples_per_instance=-1,
    )


LOGGED = Qos(Policy.Reliability.Reliable(duration(seconds=10)), Policy.Durability.Persistent, _kept(HISTORY))
STANDING = Qos(Policy.Reliability.Reliable(duration(seconds=10)), Policy.Durability.TransientLocal, _kept(1000))
NEWEST = Qos(Policy.History.KeepLast(256))
"""For displays: who falls behind is overtaken instead of holding the others back."""

AIR_FIGURES = (
    "altitude_ft",
    "altitude_geometric_ft",
    "ias_kt",
    "tas_kt",
    "mach",
    "vertical_rate_fpm",
    "vertical_rate_inertial_fpm",
    "selected_altitude_ft",
    "barometric_setting_hpa",
)
ATTITUDE_FIGURES = (
    "roll_deg",
    "heading_deg",
    "track_deg",
    "track_rate_deg_s",
    "groundspeed_kt",
    "latitude",
    "longitude",
    "callsign",
    "squawk",
)

AIR_DATA = np.dtype(
    [("time_ns", "<u8"), ("flight_time", "<f8"), ("sequence", "<u8"), *((name, "<f8") for name in AIR_FIGURES)]
)
"""One sample of air data: 96 bytes, the same on every machine."""


@dataclass
class Attitude(IdlStruct, typename="avionics.Attitude"):
    """Attitude, movement over ground, position, identity."""

    time_ns: uint64 = 0
    flight_time: float64 = math.nan
    sequence: uint64 = 0
    roll_deg: float64 = math.nan
    heading_deg: float64 = math.nan
    track_deg: float64 = math.nan
    track_rate_deg_s: float64 = math.nan
    groundspeed_kt: float64 = math.nan
    latitude: float64 = math.nan
    longitude: float64 = math.nan
    callsign: str = ""
    squawk: str = ""


@dataclass
class Alert(IdlStruct, typename="avionics.Alert"):
    """An alert raised or cleared by one monitor; `number` counts them, equal on all monitors."""

    number: uint32 = 0
    kind: str = ""
    raised: bool = False
    flight_time: float64 = math.nan
    value: float64 = math.nan
    limit: float64 = math.nan
    text: str = ""


def air_data_topic(participant: DomainParticipant) -> Any:
    return Topic(participant, AIR_DATA_NAME, AIR_DATA, qos=LOGGED)


def attitude_topic(participant: DomainParticipant) -> Any:
    return Topic(participant, ATTITUDE_NAME, Attitude, qos=LOGGED)


def alerts_topic(participant: DomainParticipant) -> Any:
    return Topic(participant, ALERTS_NAME, Alert, qos=STANDING)


def air_figures(row: FlightRow) -> dict[str, float]:
    """A row's air data. Geometric altitude is known where both its parts were heard in the interval."""
    figures = {name: getattr(row, name, math.nan) for name in AIR_FIGURES}
    figures["altitude_geometric_ft"] = row.altitude_ft + row.geo_minus_baro_ft
    return figures


def attitude_figures(row: FlightRow) -> dict[str, Any]:
    """A row's attitude, movement, position and identity."""
    return {name: getattr(row, name) for name in ATTITUDE_FIGURES}


def fill_air_data(record: Any, time_ns: int, row: FlightRow | None, sequence: int) -> None:
    """Writes one air data sample into `record` (of dtype AIR_DATA), in place. Row None: an empty sample."""
    record["time_ns"] = time_ns
    record["flight_time"] = math.nan if row is None else row.time
    record["sequence"] = sequence
    for name, value in (dict.fromkeys(AIR_FIGURES, math.nan) if row is None else air_figures(row)).items():
        record[name] = value


def attitude_of(time_ns: int, row: FlightRow | None, sequence: int) -> Attitude:
    """One attitude sample. Row None: an empty sample."""
    if row is None:
        return Attitude(time_ns=time_ns, sequence=sequence)
    return Attitude(time_ns=time_ns, flight_time=row.time, sequence=sequence, **attitude_figures(row))


def alert_of(event: AlertEvent) -> Alert:
    return Alert(event.number, event.kind, event.raised, event.flight_time, event.value, event.limit, event.text)


def figures_in(sample: Any, names: Iterable[str]) -> dict[str, Any]:
    """The figures of a sample of either topic, as plain Python values."""
    values = {name: getattr(sample, name) for name in names}
    return {name: value if isinstance(value, str) else float(value) for name, value in values.items()}
