"""Reads the recorded flight, as the compact table beside this file or as the full recording.

Why: the publishers replay one real flight, so that what is on the display and in the alerts is what an airliner did.
The recording is what was heard on the ground: every figure comes when the aircraft sent it, and not otherwise.

Rules:
- No value is invented. A row has the figures that were heard in its interval; all others are NaN (text: empty).
- A row's figure is the last one heard in the interval. Nothing is interpolated, averaged or carried over.
- A frame that can't be true is left out whole. Replies to interrogations (downlink formats 0, 4, 5, 16, 20, 21) have no
  checksum of their own, the address being folded into it, so a flipped bit or a misread register goes unnoticed by the
  receiver: a figure is rejected when it differs from the median of the seven heard around it by more than its limit.
  Callsign and squawk count when heard twice running.
"""

from __future__ import annotations

import contextlib
import csv
import gzip
import io
import json
import math
import statistics
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Any

TABLE_PATH = Path(__file__).resolve().parent / "data" / "flight_table.csv.gz"
RATE_HZ = 4

NAN = math.nan


@dataclass(slots=True)
class FlightRow:
    """What was heard in one interval. NaN or an empty text: not heard."""

    time: float  # Unix time in seconds; start of the interval
    latitude: float = NAN  # degrees, north positive
    longitude: float = NAN  # degrees, east positive
    altitude_ft: float = NAN  # barometric, against 1013.25 hPa
    geo_minus_baro_ft: float = NAN  # geometric (GNSS) altitude minus barometric altitude
    ias_kt: float = NAN
    tas_kt: float = NAN
    mach: float = NAN
    heading_deg: float = NAN  # magnetic
    roll_deg: float = NAN  # right wing down positive
    track_deg: float = NAN  # true, over ground
    track_rate_deg_s: float = NAN
    groundspeed_kt: float = NAN
    vertical_rate_fpm: float = NAN  # barometric
    vertical_rate_inertial_fpm: float = NAN
    selected_altitude_ft: float = NAN  # set on the mode control panel
    barometric_setting_hpa: float = NAN
    callsign: str = ""
    squawk: str = ""


COLUMNS: tuple[str, ...] = tuple(field.name for field in fields(FlightRow))

# Column -> (fields of a frame that hold it, decimals kept in the table, limit against the neighbours' median).
# Decimals keep at least the resolution that the aircraft sends. An angle's limit holds the short way round.
_NUMBERS: dict[str, tuple[tuple[str, ...], int, float]] = {
    "latitude": (("latitude",), 5, 0.02),
    "longitude": (("longitude",), 5, 0.02),
    "altitude_ft": (("altitude",), 0, 400.0),
    "geo_minus_baro_ft": (("geo_minus_baro",), 0, 200.0),
    "ias_kt": (("IAS",), 0, 15.0),
    "tas_kt": (("TAS",), 0, 20.0),
    "mach": (("Mach",), 3, 0.05),
    "heading_deg": (("heading",), 2, 30.0),
    "roll_deg": (("roll",), 2, 15.0),
    "track_deg": (("track",), 2, 90.0),
    "track_rate_deg_s": (("track_rate",), 3, 4.0),
    "groundspeed_kt": (("groundspeed",), 1, 25.0),
    "vertical_rate_fpm": (("vertical_rate", "vrate_barometric"), 0, 2000.0),
    "vertical_rate_inertial_fpm": (("vrate_inertial",), 0, 2000.0),
    "selected_altitude_ft": (("selected_mcp",), 0, math.inf),
    "barometric_setting_hpa": (("barometric_setting",), 1, 20.0),
}
_ANGLES = frozenset({"heading_deg", "track_deg"})
_TEXTS = {"callsign": "callsign", "squawk": "squawk"}
_COLUMN_OF = {name: column for column, (names, _, _) in _NUMBERS.items() for name in names}
_NEIGHBOURS = 3  # on each side
_NEIGHBOUR_SPAN_S = 15.0  # a figure whose neighbours are farther apart than this is not judged

Frame = Mapping[str, Any]


class FlightDataError(ValueError):
    """A file that is not what it should be; the message says which, where and what was expected."""


def open_text(path: Path) -> IO[str]:
    """Opens a text file for reading, gzip-compressed or plain, whatever its name says."""
    stream = path.open("rb")
    head = stream.read(2)
    stream.seek(0)
    if head == b"\x1f\x8b":
        return io.TextIOWrapper(gzip.GzipFile(fileobj=stream), encoding="utf-8", newline="")
    return io.TextIOWrapper(stream, encoding="utf-8", newline="")


@contextlib.contextmanager
def readable_text(path: Path) -> Iterator[IO[str]]:
    """The same, for a `with` in which it is read: raises FlightDataError if it isn't text, or its end is missing."""
    with open_text(path) as stream:
        try:
            yield stream
        except (UnicodeDecodeError, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise FlightDataError(f"{path}: expected text, plain or compressed by gzip, to its end ({error})") from None


def read_frames(path: Path) -> Iterator[dict[str, Any]]:
    """The recording's frames, one dictionary each, in the order they were heard.

    Raises FlightDataError, with the line's number, if one is not a JSON object with a `timestamp`, or time runs back.
    """
    time_before = -math.inf
    with readable_text(path) as stream:
        for number, line in enumerate(stream, 1):
            try:
                frame = json.loads(line)
                time = float(frame["timestamp"])
            except (ValueError, TypeError, KeyError) as error:
                raise FlightDataError(
                    f"{path}, line {number}: expected a JSON object with a numeric 'timestamp' ({error})"
                ) from None
            if time < time_before:
                raise FlightDataError(f"{path}, line {number}: time runs back from {time_before} to {time}")
            time_before = time
            yield frame


def _difference(column: str, left: float, right: float) -> float:
    """How far apart two values are; angles the short way round."""
    distance = abs(left - right)
    return min(distance, 360.0 - distance) if column in _ANGLES else distance


def implausible_frames(frames: Sequence[Frame]) -> set[int]:
    """Positions of the frames that hold a figure which can't be true (see the module's rules)."""
    rejected: set[int] = set()
    for name, column in _COLUMN_OF.items():
        limit = _NUMBERS[column][2]
        heard = [(i, frame["timestamp"], frame[name]) for i, frame in enumerate(frames) if frame.get(name) is not None]
        for i in range(_NEIGHBOURS, len(heard) - _NEIGHBOURS):
            around = heard[i - _NEIGHBOURS : i + _NEIGHBOURS + 1]
            if around[-1][1] - around[0][1] > _NEIGHBOUR_SPAN_S:
                continue
            value = heard[i][2]
            # An angle's median is taken around the value itself, so that 359 and 1 are neighbours.
            if column in _ANGLES:
                middle = value + statistics.median((v - value + 180.0) % 360.0 - 180.0 for _, _, v in around)
            else:
                middle = statistics.median(v for _, _, v in around)
            if _difference(column, value, middle % 360.0 if column in _ANGLES else middle) > limit:
                rejected.add(heard[i][0])
    for name in _TEXTS.values():
        texts = [(i, frame[name]) for i, frame in enumerate(frames) if frame.get(name)]
        for place, (i, text) in enumerate(texts):
            twice = (place > 0 and texts[place - 1][1] == text) or (
                place + 1 < len(texts) and texts[place + 1][1] == text
            )
            if not twice:
                rejected.add(i)
    return rejected


def plausible_frames(path: Path) -> list[dict[str, Any]]:
    """The recording without the frames that can't be true."""
    frames = list(read_frames(path))
    rejected = implausible_frames(frames)
    return [frame for i, frame in enumerate(frames) if i not in rejected]


def _fill(row: FlightRow, frame: Frame) -> bool:
    """Puts a frame's figures into the row, over older ones. Returns whether there were any."""
    found = False
    for name, column in _COLUMN_OF.items():
        value = frame.get(name)
        if value is not None:
            setattr(row, column, round(float(value), _NUMBERS[column][1]))
            found = True
    for column, name in _TEXTS.items():
        text = frame.get(name)
        if text:
            setattr(row, column, str(text))
            found = True
    return found


def rows_at_rate(frames: Iterable[Frame], rate_hz: int = RATE_HZ) -> Iterator[FlightRow]:
    """One row per 1/rate_hz seconds from the first frame's interval to the last's, empty ones included."""
    if rate_hz <= 0:
        raise ValueError(f"rate_hz must be positive, not {rate_hz}")
    row: FlightRow | None = None
    slot = 0
    for frame in frames:
        frame_slot = math.floor(frame["timestamp"] * rate_hz)
        while row is None or slot < frame_slot:
            if row is not None:
                yield row
            slot = frame_slot if row is None else slot + 1
            row = FlightRow(slot / rate_hz)
        _fill(row, frame)
    if row is not None:
        yield row


def rows_as_heard(frames: Iterable[Frame]) -> Iterator[FlightRow]:
    """One row per frame that holds a figure, at the frame's own time."""
    for frame in frames:
        row = FlightRow(float(frame["timestamp"]))
        if _fill(row, frame):
            yield row


def write_table(path: Path, rows: Iterable[FlightRow]) -> int:
    """Writes rows as CSV (gzip-compressed, same bytes for same rows). Returns how many."""
    count = 0
    with path.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=9, mtime=0) as packed:
        with io.TextIOWrapper(packed, encoding="utf-8", newline="") as stream:
            writer = csv.writer(stream, lineterminator="\n")
            writer.writerow(COLUMNS)
            for row in rows:
                writer.writerow([_cell(column, getattr(row, column)) for column in COLUMNS])
                count += 1
    return count


def _cell(column: str, value: float | str) -> str:
    if isinstance(value, str):
        return value
    if math.isnan(value):
        return ""
    if column == "time":
        return f"{value:.2f}"
    text = f"{value:.{_NUMBERS[column][1]}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def read_table(path: Path = TABLE_PATH) -> Iterator[FlightRow]:
    """The rows of a table made by write_table. Raises FlightDataError if the columns differ or a cell is no number."""
    with readable_text(path) as stream:
        reader = csv.reader(stream)
        header = next(reader, [])
        if tuple(header) != COLUMNS:
            found = ", ".join(header) or "none"
            raise FlightDataError(f"{path}: expected the columns {', '.join(COLUMNS)}; found {found}")
        makers: list[Callable[[str], Any]] = [str if column in _TEXTS else _number for column in COLUMNS]
        for cells in reader:
            try:
                yield FlightRow(*[make(cell) for make, cell in zip(makers, cells, strict=True)])
            except ValueError as error:
                raise FlightDataError(f"{path}, line {reader.line_num}: {error}") from None


def _number(cell: str) -> float:
    return float(cell) if cell else NAN


def read_flight(jsonl: Path | None = None) -> Iterator[FlightRow]:
    """The shipped table's rows, or, given the full recording (JSONL, plain or .gz), a row for every frame heard."""
    if jsonl is None:
        return read_table()
    return rows_as_heard(plausible_frames(jsonl))
