"""Goal: the display shows what it is given, and never a figure that is missing. Method: screens in text compared with
files beside this one (UPDATE_SNAPSHOTS=1 rewrites them); properties for any values."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path

import pytest
from flight_state import FlightState
from hypothesis import given, settings
from hypothesis import strategies as st
from pfd_screen import HEIGHT, WIDTH, AlertLine, FeedStatus, PfdView, line_of, render, view_of

SNAPSHOTS = Path(__file__).parent / "snapshots"

TURNING = PfdView(
    speed_kt=261, mach=0.504, tas_kt=322, groundspeed_kt=274, altitude_ft=13700, geometric_ft=13750, selected_ft=19000,
    setting_hpa=1004, rate_fpm=768, roll_deg=-26.5, path_deg=1.6, heading_deg=192, track_deg=189, latitude=48.8375,
    longitude=2.1436, callsign="AFR34ZG", squawk="1000", flight_time=1720249530.0,
    alerts=[AlertLine("BANK", "26 degrees left at 13700 ft, limit 25", 3)],
    status=FeedStatus("node 2", 1234, 1230, 0, 0.12),
)  # fmt: skip
LOW = PfdView(
    speed_kt=254, altitude_ft=9850, selected_ft=9700, rate_fpm=-3100, roll_deg=4.0, path_deg=-4.0, heading_deg=1.0,
    latitude=-33.5, longitude=-70.25, flight_time=1720249530.0,
    alerts=[AlertLine("OVERSPEED", "254 kt"), AlertLine("LEVEL OFF", "150 ft to go to 9700 ft", 2)],
)  # fmt: skip


@pytest.mark.parametrize(("name", "view"), [("turning", TURNING), ("low", LOW), ("nothing", PfdView())])
def test_the_screen_is_as_kept(name: str, view: PfdView) -> None:
    """Goal: no unnoticed change of the picture. Method: snapshots of a turn, of low fast flight, of no data."""
    path, text = SNAPSHOTS / f"{name}.txt", render(view).to_text() + "\n"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert text == path.read_text()


numbers = st.none() | st.floats(-400, 45000)


@settings(max_examples=60, deadline=None)
@given(st.builds(PfdView, numbers, numbers, numbers, numbers, numbers, numbers, numbers, numbers,
                 st.none() | st.floats(-9000, 9000), st.none() | st.floats(-180, 180), st.none() | st.floats(-90, 90),
                 st.none() | st.floats(0, 360)))  # fmt: skip
def test_any_figures_fit_the_terminal(view: PfdView) -> None:
    """Goal: 80 by 24, whatever comes, in colours too. Method: random figures; count lines and characters."""
    screen = render(view)
    plain = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", screen.to_ansi()).split("\r\n")
    assert [len(line) for line in plain] == [WIDTH] * HEIGHT
    assert line_of(view)


def test_a_stale_figure_is_not_shown() -> None:
    """Goal: dashes instead of a figure that is too old. Method: speed is heard once, then only altitude."""
    state = FlightState()
    state.apply({"ias_kt": 250.0, "altitude_ft": 9000.0, "callsign": "AFR34ZG"}, 100.0)
    assert view_of(state).speed_kt == 250.0
    state.apply({"altitude_ft": 9100.0, "ias_kt": math.nan, "callsign": ""}, 130.0)
    view = view_of(state)
    assert (view.speed_kt, view.altitude_ft, view.callsign) == (None, 9100.0, "AFR34ZG")
    assert "IAS ---" in line_of(view)


def test_the_horizon_leans_the_right_way() -> None:
    """Goal: right wing down shows more ground on the right. Method: count ground colours left and right."""
    from pfd_screen import GROUND, HORIZON_LEFT, HORIZON_RIGHT

    screen = render(PfdView(roll_deg=20.0, path_deg=0.0, groundspeed_kt=200.0))
    middle = (HORIZON_LEFT + HORIZON_RIGHT) // 2
    ground = [
        sum(screen.cell(row, column).background == GROUND for row in range(1, 18) for column in columns)
        for columns in (range(HORIZON_LEFT, middle), range(middle, HORIZON_RIGHT))
    ]
    assert ground[1] > 1.5 * ground[0]
