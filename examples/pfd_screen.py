"""Draws the primary flight display into 80 by 24 characters: what pilots look at, as text.

Layout: speed tape on the left, horizon in the middle, altitude tape and vertical speed on the right, heading tape
below, alerts and the state of the feed at the bottom. A figure that is missing or stale is shown as amber dashes,
never as its last value.

The horizon is placed by the flight-path angle (vertical rate over groundspeed), as pitch is not among the figures that
an airliner sends; the label FPA says so. Roll is the real one.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from flight_state import FlightState
from text_screen import AMBER, BLACK, CYAN, DARK, GREEN, GREY, MAGENTA, RED, WHITE, YELLOW, Screen

WIDTH, HEIGHT = 80, 24
TOP, BOTTOM = 1, 18  # rows of tapes and horizon: TOP <= row < BOTTOM
CENTRE = (TOP + BOTTOM) // 2  # the row on which the current values are
SPEED_WIDTH = 9
HORIZON_LEFT, HORIZON_RIGHT = 11, 57
ALTITUDE_LEFT, ALTITUDE_RIGHT = 59, 69
RATE_LEFT = 71
SKY, GROUND, SKY_LINE, GROUND_LINE, HORIZON_LINE = 25, 94, 110, 180, WHITE
PIXELS_PER_DEGREE = 1.3
KT_PER_ROW = 4.0
FT_PER_ROW = 50.0
SPEED_LIMIT_KT, SPEED_LIMIT_BELOW_FT = 250.0, 10_000.0
FPM_PER_KT = 101.2686
RATE_MARKS_FPM = (0.0, 500.0, 1000.0, 1500.0, 2000.0, 3000.0, 4000.0, 5000.0, 6000.0)  # one per row from the centre


@dataclass(slots=True)
class AlertLine:
    """A standing alert, and the node whose monitor says so; 0: this program itself."""

    kind: str
    text: str
    node: int = 0


@dataclass(slots=True)
class FeedStatus:
    """What the last line says about the subscription."""

    source: str = ""
    air_data: int = 0
    attitude: int = 0
    lost: int = 0
    latency_ms: float = math.nan
    note: str = ""  # a line for the reader, in place of the second alert


@dataclass(slots=True)
class PfdView:
    """All that is shown. None: missing or stale."""

    speed_kt: float | None = None
    mach: float | None = None
    tas_kt: float | None = None
    groundspeed_kt: float | None = None
    altitude_ft: float | None = None
    geometric_ft: float | None = None
    selected_ft: float | None = None
    setting_hpa: float | None = None
    rate_fpm: float | None = None
    roll_deg: float | None = None
    path_deg: float | None = None
    heading_deg: float | None = None
    track_deg: float | None = None
    latitude: float | None = None
    longitude: float | None = None
    callsign: str = ""
    squawk: str = ""
    flight_time: float = math.nan
    alerts: list[AlertLine] = field(default_factory=list)
    status: FeedStatus = field(default_factory=FeedStatus)


def view_of(state: FlightState, alerts: Sequence[AlertLine] = (), status: FeedStatus | None = None) -> PfdView:
    """What to show of a state."""
    rate, groundspeed = state.get("vertical_rate_fpm"), state.get("groundspeed_kt")
    path = None
    if rate is not None and groundspeed is not None and groundspeed >= 30.0:
        path = math.degrees(math.atan2(rate, groundspeed * FPM_PER_KT))
    return PfdView(
        speed_kt=state.get("ias_kt"),
        mach=state.get("mach"),
        tas_kt=state.get("tas_kt"),
        groundspeed_kt=groundspeed,
        altitude_ft=state.get("altitude_ft"),
        geometric_ft=state.get("altitude_geometric_ft"),
        selected_ft=state.get("selected_altitude_ft"),
        setting_hpa=state.get("barometric_setting_hpa"),
        rate_fpm=rate,
        roll_deg=state.get("roll_deg"),
        path_deg=path,
        heading_deg=state.get("heading_deg"),
        track_deg=state.get("track_deg"),
        latitude=state.get("latitude"),
        longitude=state.get("longitude"),
        callsign=state.text("callsign"),
        squawk=state.text("squawk"),
        flight_time=state.flight_time,
        alerts=list(alerts),
        status=status or FeedStatus(),
    )


def render(view: PfdView) -> Screen:
    """Draws the view."""
    screen = Screen(WIDTH, HEIGHT)
    _header(screen, view)
    _speed_tape(screen, view)
    _horizon(screen, view)
    _altitude_tape(screen, view)
    _vertical_speed(screen, view)
    _heading_tape(screen, view)
    _figures(screen, view)
    _alerts(screen, view)
    _status(screen, view)
    return screen


def line_of(view: PfdView) -> str:
    """The view as one line of text, for a log or a terminal that can't position."""
    parts = [
        _clock(view.flight_time),
        view.callsign or "-------",
        f"IAS {_text(view.speed_kt, '3.0f', 3)} kt",
        f"M {_text(view.mach, '.3f', 5)}",
        f"ALT {_text(view.altitude_ft, '5.0f', 5)} ft",
        f"VS {_text(view.rate_fpm, '+5.0f', 5)}",
        f"HDG {_text(view.heading_deg, '03.0f', 3)}",
        f"ROLL {_text(view.roll_deg, '+5.1f', 5)}",
        f"FPA {_text(view.path_deg, '+4.1f', 4)}",
    ]
    return "  ".join(parts + [f"[{alert.kind}]" for alert in view.alerts])


def _text(value: float | None, form: str, width: int) -> str:
    return "-" * width if value is None else format(value, form)


def _clock(flight_time: float) -> str:
    if flight_time != flight_time:
        return "--:--:--Z"
    return time.strftime("%H:%M:%SZ", time.gmtime(flight_time))


def _figure(screen: Screen, row: int, column: int, label: str, value: float | None, form: str, unit: str) -> int:
    """Label, value and unit; returns the column after them."""
    screen.put(row, column, label, GREY)
    column += len(label) + 1
    text = "---" if value is None else format(value, form)
    screen.put(row, column, text, AMBER if value is None else GREEN)
    column += len(text)
    screen.put(row, column, unit, GREY)
    return column + len(unit) + 2


def _header(screen: Screen, view: PfdView) -> None:
    screen.put(0, 0, " " * WIDTH, WHITE, DARK)
    screen.put(0, 1, view.callsign or "-------", WHITE)
    screen.put(0, 10, f"SQ {view.squawk or '----'}", GREY)
    screen.put(0, 20, "PRIMARY FLIGHT DISPLAY", GREY)
    selected = "-----" if view.selected_ft is None else f"{view.selected_ft:.0f}"
    screen.put(0, 45, "SEL ALT", GREY)
    screen.put_right(0, 58, selected, AMBER if view.selected_ft is None else MAGENTA)
    if view.flight_time == view.flight_time:
        screen.put_right(0, WIDTH - 1, time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(view.flight_time)), WHITE)


def _speed_tape(screen: Screen, view: PfdView) -> None:
    for row in range(TOP, BOTTOM):
        screen.put(row, 0, " " * SPEED_WIDTH, WHITE, DARK)
    if view.speed_kt is None:
        screen.put(CENTRE - 2, 2, "SPEED", GREY)
        screen.put(CENTRE, 2, " --- ", AMBER, BLACK)
        return
    speed = view.speed_kt
    limited = view.altitude_ft is not None and view.altitude_ft < SPEED_LIMIT_BELOW_FT
    for row in range(TOP, BOTTOM):
        middle = speed + (CENTRE - row) * KT_PER_ROW
        mark = _mark_in(middle, KT_PER_ROW, 10.0)
        if mark is not None and mark >= 0:
            screen.put_right(row, 6, f"{mark:3.0f}" if mark % 20 == 0 else "", WHITE)
            screen.put(row, 7, "─", WHITE)
        over = limited and middle > SPEED_LIMIT_KT
        screen.put(row, SPEED_WIDTH - 1, "▐" if over else "│", RED if over else GREY)
    over = limited and speed > SPEED_LIMIT_KT
    screen.put(CENTRE, 1, f" {speed:3.0f} ▶", RED if over else WHITE, BLACK)
    mach = "  M ---" if view.mach is None else f"  M {view.mach:.3f}".replace("0.", ".")
    screen.put(BOTTOM, 0, mach, AMBER if view.mach is None else GREEN)


def _mark_in(middle: float, span: float, step: float) -> float | None:
    """The multiple of `step` that lies in the row around `middle`, if any."""
    mark = round(middle / step) * step
    return mark if -span / 2 <= mark - middle < span / 2 else None


def _horizon(screen: Screen, view: PfdView) -> None:
    width = HORIZON_RIGHT - HORIZON_LEFT
    if view.roll_deg is None:
        for row in range(TOP, BOTTOM):
            screen.put(row, HORIZON_LEFT, " " * width, WHITE, BLACK)
        screen.put(CENTRE, HORIZON_LEFT + width // 2 - 2, " ATT ", BLACK, AMBER)
        return
    roll, pitch = math.radians(view.roll_deg), view.path_deg or 0.0
    sine, cosine = math.sin(roll), math.cos(roll)

    def colour(x: float, y: float) -> int:
        """Colour of the point x to the right of and y above the middle, in pixels."""
        elevation = (y * cosine - x * sine) / PIXELS_PER_DEGREE + pitch
        if abs(elevation) * PIXELS_PER_DEGREE < 0.5:
            return HORIZON_LINE
        sky = elevation > 0
        mark = round(elevation / 5.0) * 5.0
        if mark and abs(elevation - mark) * PIXELS_PER_DEGREE < 0.5:
            along = abs(x * cosine + y * sine)
            if along < (7.0 if mark % 10.0 == 0 else 4.0):
                return SKY_LINE if sky else GROUND_LINE
        return SKY if sky else GROUND

    middle = HORIZON_LEFT + width / 2 - 0.5
    centre_y = CENTRE + 0.5  # the middle of the row CENTRE, in rows
    for row in range(TOP, BOTTOM):
        upper, lower = (centre_y - row - 0.25) * 2, (centre_y - row - 0.75) * 2
        for column in range(HORIZON_LEFT, HORIZON_RIGHT):
            x = column - middle
            screen.put_pixels(row, column, colour(x, upper), colour(x, lower))
    _ladder_labels(screen, pitch, sine, cosine, middle)
    _roll_scale(screen, view.roll_deg, middle)
    screen.put(CENTRE, round(middle) - 8, "━━━━━┓", YELLOW)
    screen.put(CENTRE, round(middle), "◆", YELLOW)
    screen.put(CENTRE, round(middle) + 3, "┏━━━━━", YELLOW)
    path = "FPA ---" if view.path_deg is None else f"FPA {view.path_deg:+.1f}°"
    screen.put(BOTTOM - 1, HORIZON_LEFT + 1, path, AMBER if view.path_deg is None else WHITE)
    side = "" if abs(view.roll_deg) < 0.5 else "R" if view.roll_deg > 0 else "L"
    screen.put_right(BOTTOM - 1, HORIZON_RIGHT - 1, f"ROLL {abs(view.roll_deg):.0f}°{side}", WHITE)


def _ladder_labels(screen: Screen, pitch: float, sine: float, cosine: float, middle: float) -> None:
    for mark in (-20, -10, 10, 20):
        up, along = (mark - pitch) * PIXELS_PER_DEGREE, 9.0
        for side in (-1.0, 1.0):
            x, y = side * along * cosine - up * sine, side * along * sine + up * cosine
            row = math.floor(CENTRE + 0.5 - y / 2)
            column = round(middle + x)
            inside = TOP + 4 < row < BOTTOM - 1 and HORIZON_LEFT + 1 < column < HORIZON_RIGHT - 1
            if inside and row != CENTRE:
                screen.put(row, column - 1, f"{abs(mark)}", WHITE)


def _roll_scale(screen: Screen, roll_deg: float, middle: float) -> None:
    """Marks at fixed angles on an arc; the pointer stays with the sky."""
    radius = 15.0  # pixels
    for angle in (-60, -45, -30, -20, -10, 0, 10, 20, 30, 45, 60):
        x, y = radius * 1.25 * math.sin(math.radians(angle)), radius * math.cos(math.radians(angle))
        screen.put(math.floor(CENTRE + 0.5 - y / 2), round(middle + x), "┃" if angle % 30 == 0 else "╷", WHITE)
    pointer = math.radians(max(-65.0, min(65.0, -roll_deg)))
    x, y = radius * 1.25 * math.sin(pointer), radius * math.cos(pointer)
    column = round(middle + x)
    screen.put(math.floor(CENTRE + 0.5 - y / 2) + 1, column, "▲", AMBER if abs(roll_deg) > 25 else YELLOW)


def _altitude_tape(screen: Screen, view: PfdView) -> None:
    width = ALTITUDE_RIGHT - ALTITUDE_LEFT
    for row in range(TOP, BOTTOM):
        screen.put(row, ALTITUDE_LEFT, " " * width, WHITE, DARK)
    if view.altitude_ft is None:
        screen.put(CENTRE - 2, ALTITUDE_LEFT + 2, "ALT", GREY)
        screen.put(CENTRE, ALTITUDE_LEFT + 2, " ----- ", AMBER, BLACK)
        return
    altitude = view.altitude_ft
    for row in range(TOP, BOTTOM):
        middle = altitude + (CENTRE - row) * FT_PER_ROW
        mark = _mark_in(middle, FT_PER_ROW, 100.0)
        if mark is not None:
            screen.put(row, ALTITUDE_LEFT, "─", WHITE)
            if mark % 200 == 0:
                screen.put_right(row, ALTITUDE_LEFT + 8, f"{mark:.0f}", WHITE)
    if view.selected_ft is not None:
        row = CENTRE - round((view.selected_ft - altitude) / FT_PER_ROW)
        text = f"{view.selected_ft:.0f}"
        if row < TOP:
            screen.put_right(TOP, ALTITUDE_RIGHT, f"▲{text:>6}", MAGENTA)
        elif row >= BOTTOM:
            screen.put_right(BOTTOM - 1, ALTITUDE_RIGHT, f"▼{text:>6}", MAGENTA)
        else:
            screen.put(row, ALTITUDE_RIGHT - 1, "◀", MAGENTA)
    screen.put(CENTRE, ALTITUDE_LEFT, f"◀ {altitude:6.0f} ", WHITE, BLACK)
    if view.setting_hpa is not None:
        screen.put(BOTTOM, ALTITUDE_LEFT, f"{view.setting_hpa:.0f} hPa", GREEN)


def _vertical_speed(screen: Screen, view: PfdView) -> None:
    for row in range(TOP, BOTTOM):
        screen.put(row, RATE_LEFT, " " * 9, WHITE, DARK)
        distance = abs(row - CENTRE)
        mark = RATE_MARKS_FPM[distance] / 1000.0
        if distance == 0 or mark == int(mark):
            screen.put(row, RATE_LEFT, f"{mark:.0f}" if distance else "0", GREY)
        screen.put(row, RATE_LEFT + 2, "┼" if distance == 0 else "┤", GREY)
    if view.rate_fpm is None:
        screen.put(CENTRE, RATE_LEFT + 3, " ---- ", AMBER)
        return
    rows = _rate_rows(abs(view.rate_fpm))
    full = math.floor(rows)
    direction = -1 if view.rate_fpm > 0 else 1
    colour = AMBER if view.rate_fpm <= -3000 else GREEN
    for distance in range(1, full + 1):
        screen.put(CENTRE + direction * distance, RATE_LEFT + 3, "█", colour)
    if rows - full >= 0.25 and full < 8:
        half = "▄" if direction < 0 else "▀"
        screen.put(CENTRE + direction * (full + 1), RATE_LEFT + 3, half, colour)
    screen.put(CENTRE, RATE_LEFT + 3, f"{view.rate_fpm:+6.0f}", colour)


def _rate_rows(rate_fpm: float) -> float:
    """How many rows of the vertical-speed scale a rate takes."""
    for place in range(1, len(RATE_MARKS_FPM)):
        low, high = RATE_MARKS_FPM[place - 1], RATE_MARKS_FPM[place]
        if rate_fpm <= high:
            return place - 1 + (rate_fpm - low) / (high - low)
    return float(len(RATE_MARKS_FPM) - 1)


def _heading_tape(screen: Screen, view: PfdView) -> None:
    left, right = HORIZON_LEFT, HORIZON_RIGHT
    centre = (left + right) // 2
    screen.put(18, left, " " * (right - left), WHITE, DARK)
    screen.put(19, left, " " * (right - left), WHITE, DARK)
    if view.heading_deg is None:
        screen.put(18, centre - 2, " --- ", AMBER, BLACK)
        return
    names = {0: "N", 90: "E", 180: "S", 270: "W"}
    for column in range(left, right):
        degree = round(view.heading_deg) + column - centre
        if degree % 10 == 0:
            label = names.get(degree % 360, f"{degree % 360 // 10:02d}")
            screen.put(18, column, "│", WHITE)
            if left < column < right - 1:
                screen.put(19, column - (len(label) - 1), label, WHITE)
        elif degree % 5 == 0:
            screen.put(18, column, "╵", GREY)
    screen.put(18, centre - 2, f" {round(view.heading_deg) % 360:03d} ", WHITE, BLACK)


def _figures(screen: Screen, view: PfdView) -> None:
    column = _figure(screen, 20, 1, "GS", view.groundspeed_kt, ".0f", " kt")
    column = _figure(screen, 20, column, "TAS", view.tas_kt, ".0f", " kt")
    column = _figure(screen, 20, column, "TRK", view.track_deg, ".0f", "°T")
    column = _figure(screen, 20, column, "GNSS ALT", view.geometric_ft, ".0f", " ft")
    if view.latitude is not None and view.longitude is not None:
        north, east = "N" if view.latitude >= 0 else "S", "E" if view.longitude >= 0 else "W"
        position = f"{north} {abs(view.latitude):.4f}° {east} {abs(view.longitude):.4f}°"
        screen.put_right(20, WIDTH - 1, position, GREEN)
    else:
        screen.put_right(20, WIDTH - 1, "POS ---", AMBER)


def _alerts(screen: Screen, view: PfdView) -> None:
    note = view.status.note
    screen.put(22, 1, note[:WIDTH - 2], CYAN)
    for row, alert in zip((21,) if note else (21, 22), view.alerts[-2:][::-1], strict=False):
        caution = alert.kind == "LEVEL OFF"
        screen.put(row, 1, f" {alert.kind} ", BLACK, CYAN if caution else AMBER)
        screen.put(row, 22, alert.text, WHITE)
        source = f"monitor of node {alert.node}" if alert.node else ""
        screen.put_right(row, WIDTH - 1, source, GREY)


def _status(screen: Screen, view: PfdView) -> None:
    status = view.status
    screen.put(23, 0, " " * WIDTH, GREY, DARK)
    latency = "" if status.latency_ms != status.latency_ms else f"  age {status.latency_ms:.1f} ms"
    text = f"{status.source}  air data {status.air_data}  attitude {status.attitude}  lost {status.lost}{latency}"
    screen.put(23, 1, text, GREY)
    screen.put_right(23, WIDTH - 1, "Ctrl-C ends", GREY)
