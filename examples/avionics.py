"""The topics of the avionics examples: their types, names and quality of service.

Why three kinds of type: air data is a record of a fixed layout, which is filled like a struct in C; attitude and
alerts are dataclasses and travel as CDR. Why these levels:

| topic             | order group | level    | because                                                                |
|-------------------|-------------|----------|------------------------------------------------------------------------|
| `flight/air_data` | `flight`    | logged   | a monitor needs both topics in one order, the same on every node; it   |
| `flight/attitude` | `flight`    | logged   | may start late and gets the flight so far; the recorder keeps it       |
| `flight/alerts`   |             | volatile | a display that starts late must show what stands; nobody records it    |

Air data and alerts have owners (Ownership.Exclusive): several publishers write the same, and of the strongest that is
alive everybody hears. If that one dies, all go on with the next strongest from the same sample on. An alert is an
instance, with its kind as key: it is written when it is raised, and disposed of when it clears.

Rules: NaN and empty texts mean "not heard". `time_ns` is the time of measurement on the wall clock; `flight_time` is
the recording's own clock, Unix seconds.
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
from dds.idl.annotations import key
from dds.idl.types import float64, uint32, uint64
from dds.topic import Topic
from dds.util import duration

AIR_DATA_NAME = "flight/air_data"
ATTITUDE_NAME = "flight/attitude"
ALERTS_NAME = "flight/alerts"
ORDER = "flight"
"""The order group of air data and attitude."""

HISTORY_BYTES = 16 << 20
"""Kept for those who start late: 80 minutes at 8 samples a second, the whole flight."""


def _kept(depth: int) -> Any:
    return Policy.DurabilityService(
        cleanup_delay=0,
        history=Policy.History.KeepLast(depth),
        max_samples=-1,
        max_instances=-1,
        max_samples_per_instance=-1,
    )


LOGGED = Qos(Policy.Reliability.Reliable(duration(seconds=10)), Policy.Durability.Persistent)
OWNED = Qos(Policy.Ownership.Exclusive)
STANDING = Qos(Policy.Reliability.Reliable(duration(seconds=10)), Policy.Durability.TransientLocal, _kept(1)) + OWNED
NEWEST = Qos(Policy.History.KeepLast(256))
"""For displays: who falls behind is overtaken instead of holding the others back."""
IN_ORDER = Qos(Policy.PresentationAccessScope.Group(coherent_access=False, ordered_access=True))
"""For publishers and subscribers of topics of an order group: samples of all topics are given out in their order."""

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
    """An alert that stands; `number` counts what was raised and cleared, equal on all monitors."""

    kind: str = ""
    key("kind")
    number: uint32 = 0
    flight_time: float64 = math.nan
    value: float64 = math.nan
    limit: float64 = math.nan
    text: str = ""


def air_data_topic(participant: DomainParticipant) -> Any:
    return Topic(participant, AIR_DATA_NAME, AIR_DATA, qos=LOGGED + OWNED, order=ORDER, history_bytes=HISTORY_BYTES)


def attitude_topic(participant: DomainParticipant) -> Any:
    return Topic(participant, ATTITUDE_NAME, Attitude, qos=LOGGED, order=ORDER, history_bytes=HISTORY_BYTES)


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


def fill_air_data(record: Any, time_ns: int, row: FlightRow, sequence: int) -> None:
    """Writes one air data sample into `record` (of dtype AIR_DATA), in place."""
    record["time_ns"] = time_ns
    record["flight_time"] = row.time
    record["sequence"] = sequence
    for name, value in air_figures(row).items():
        record[name] = value


def attitude_of(time_ns: int, row: FlightRow, sequence: int) -> Attitude:
    """One attitude sample."""
    return Attitude(time_ns=time_ns, flight_time=row.time, sequence=sequence, **attitude_figures(row))


def alert_of(event: AlertEvent) -> Alert:
    return Alert(event.kind, event.number, event.flight_time, event.value, event.limit, event.text)


def figures_in(sample: Any, names: Iterable[str]) -> dict[str, Any]:
    """The figures of a sample of either topic, as plain Python values."""
    values = {name: getattr(sample, name) for name in names}
    return {name: value if isinstance(value, str) else float(value) for name, value in values.items()}
