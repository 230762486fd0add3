"""Goal: the flight's rows hold what was heard and nothing else. Method: small made-up recordings; the shipped table."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import flight_data
import pytest
from flight_data import (
    FlightDataError,
    FlightRow,
    plausible_frames,
    read_flight,
    read_table,
    rows_as_heard,
    rows_at_rate,
)
from hypothesis import given
from hypothesis import strategies as st


def frame(timestamp: float, **figures: Any) -> dict[str, Any]:
    return {"timestamp": timestamp, **figures}


def same(left: FlightRow, right: FlightRow) -> bool:
    return repr(left) == repr(right)  # NaN equals NaN in text


def test_a_row_holds_the_last_figure_of_its_interval_and_gaps_stay_gaps() -> None:
    """Goal: last wins within an interval, silence gives an empty row. Method: 2 Hz over four intervals, one silent."""
    frames = [frame(100.0, altitude=100), frame(100.4, altitude=125, IAS=140), frame(101.6, Mach=0.4)]
    rows = list(rows_at_rate(frames, 2))
    assert [row.time for row in rows] == [100.0, 100.5, 101.0, 101.5]
    assert (rows[0].altitude_ft, rows[0].ias_kt) == (125, 140)
    assert all(math.isnan(rows[i].altitude_ft) for i in (1, 2, 3)), "a figure was carried over"
    assert rows[3].mach == 0.4


@given(
    st.lists(st.tuples(st.floats(0, 99), st.sampled_from(["altitude", "IAS"]), st.integers(0, 400)), max_size=40),
    st.integers(1, 4),
)
def test_every_cell_was_heard_in_its_interval(heard: list[tuple[float, str, int]], rate_hz: int) -> None:
    """Goal: no cell without a frame that says so in that interval. Method: random frames, look each cell up."""
    heard.sort(key=lambda one: one[0])
    columns = {"altitude": "altitude_ft", "IAS": "ias_kt"}
    for row in rows_at_rate([frame(t, **{name: value}) for t, name, value in heard], rate_hz):
        for name, column in columns.items():
            inside = [v for t, n, v in heard if n == name and math.floor(t * rate_hz) == row.time * rate_hz]
            value = getattr(row, column)
            assert value == inside[-1] if inside else math.isnan(value)


def test_an_impossible_figure_takes_its_frame_along() -> None:
    """Goal: a flipped bit is left out with the frame it is in. Method: one wild altitude and one squawk heard once."""
    frames = [frame(float(i), altitude=35000 + i, squawk="1000") for i in range(20)]
    frames[10]["altitude"] = 16800
    frames[15]["squawk"] = "1246"
    assert flight_data.implausible_frames(frames) == {10, 15}


def test_north_is_no_outlier() -> None:
    """Goal: headings on both sides of north are neighbours. Method: a turn through 0; nothing may be rejected."""
    frames = [frame(float(i), heading=(350 + i) % 360) for i in range(20)]
    assert flight_data.implausible_frames(frames) == set()


def test_the_full_recording_is_read_plain_and_compressed(tmp_path: Path) -> None:
    """Goal: JSONL by path, .gz or not, gives a row per frame with a figure, at its own time."""
    frames = [frame(10.0, altitude=100), frame(10.1, df="11"), frame(12.5, IAS=150)]
    text = "".join(json.dumps(one) + "\n" for one in frames)
    plain, packed = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    plain.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    rows = [list(read_flight(path)) for path in (plain, packed)]
    assert [row.time for row in rows[0]] == [10.0, 12.5]
    assert all(same(left, right) for left, right in zip(*rows, strict=True))
    assert math.isnan(rows[0][1].altitude_ft), "a figure was carried over"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}\n", "line 1"),
        ("not json\n", "line 1"),
        ('{"timestamp": 2}\n{"timestamp": 1}\n', "line 2"),
        ("[1]\n", "timestamp"),
    ],
)
def test_a_bad_recording_is_refused_with_the_line(tmp_path: Path, text: str, words: str) -> None:
    """Goal: the message names the place. Method: files that are not recordings."""
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(FlightDataError, match=words):
        plausible_frames(path)


def test_what_is_no_text_or_has_no_end_is_refused(tmp_path: Path) -> None:
    """Goal: a recording whose copying was broken off is named, as is a file of another kind."""
    path = tmp_path / "bad.jsonl.gz"
    packed = gzip.compress(b'{"timestamp": 1}\n' * 1000)
    for data in (packed[:-10], packed[:20] + b"x" * 20, b"\x7fELF\xd0", packed[:12]):
        path.write_bytes(data)
        with pytest.raises(FlightDataError, match=r"bad\.jsonl\.gz: expected text"):
            plausible_frames(path)


def test_a_bad_table_is_refused_with_the_line(tmp_path: Path) -> None:
    """Goal: wrong columns and wrong cells are named. Method: a table with each."""
    path = tmp_path / "bad.csv"
    path.write_text("time,speed\n1,2\n")
    with pytest.raises(FlightDataError, match="expected the columns time, latitude"):
        list(read_table(path))
    path.write_text(",".join(flight_data.COLUMNS) + "\n1,north" + "," * 17 + "\n")
    with pytest.raises(FlightDataError, match="line 2"):
        list(read_table(path))


def test_a_table_survives_a_round_trip_with_the_same_bytes(tmp_path: Path) -> None:
    """Goal: what is written is read again, and writing is reproducible. Method: some rows of the table, twice."""
    rows = [row for i, row in enumerate(read_table()) if 4000 <= i < 4200]
    paths = [tmp_path / "one.csv.gz", tmp_path / "two.csv.gz"]
    for path in paths:
        assert flight_data.write_table(path, rows) == 200
    assert paths[0].read_bytes() == paths[1].read_bytes()
    assert all(same(left, right) for left, right in zip(rows, read_table(paths[0]), strict=True))


def test_the_shipped_table_is_the_flight() -> None:
    """Goal: the table is whole, small, and says what the flight did. Method: its size and a few known figures."""
    assert flight_data.TABLE_PATH.stat().st_size < 500_000
    rows = list(rows_as_heard([])) + list(read_table())
    assert len(rows) == 19112
    assert rows[-1].time - rows[0].time == (len(rows) - 1) / flight_data.RATE_HZ
    altitudes = [row.altitude_ft for row in rows if not math.isnan(row.altitude_ft)]
    assert max(altitudes) == 35050
    assert {row.callsign for row in rows} == {"", "AFR34ZG"}
    assert {row.squawk for row in rows} == {"", "1000"}
