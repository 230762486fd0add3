"""Goal: the example programs do what their texts say. Method: real daemons, the programs as processes, a short and fast
piece of the flight; what monitors come to is compared with each other's."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path
from typing import Any

import pytest

from tests.examples.support import EXAMPLES, ROOT, Daemons, Program, Start
from tests.support import wait_until

PIECE = ("--start", "3580", "--duration", "60")
FAST = (*PIECE, "--speed", "60")


def offline(*options: object) -> dict[str, Any]:
    """What the recording alone gives."""
    run = subprocess.run(
        [sys.executable, EXAMPLES / "alert_monitor.py", "--offline", "--json", *map(str, options)],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return dict(json.loads(run.stdout.splitlines()[-1]))


def ready(*started: Program) -> None:
    for program in started:
        program.until('"ready"')


@pytest.mark.slow
def test_hello(programs: Start, daemons: Daemons) -> None:
    """Goal: the README's fifteen lines work. Method: two nodes, a subscriber on each, one publisher."""
    daemons(2)
    subscribers = [programs("hello_subscriber.py", SPINDLE_NODE_ID=str(node)) for node in (1, 2)]
    status = ["-m", "spindle.cli", "topics", "--json"]

    def both_subscribed() -> bool:
        asked = subprocess.run([sys.executable, *status], cwd=ROOT, capture_output=True, timeout=30, check=True)
        topics = json.loads(asked.stdout)
        return any(one["name"] == "hello" and len(one["members"]) == 2 for one in topics)

    wait_until(both_subscribed, 30, "both subscribers", interval_s=0.2)
    assert programs("hello_publisher.py").wait() == 0
    for subscriber in subscribers:
        subscriber.until("9 good morning")
        assert subscriber.lines == [f"{number} good morning" for number in range(10)]


@pytest.mark.slow
def test_monitors_agree_with_each_other_and_a_late_one(programs: Start, daemons: Daemons) -> None:
    """Goal: the same alerts everywhere, from history too, and the recorder got all."""
    daemons(2)
    expected = offline(*PIECE)
    assert expected["alerts"] >= 4
    monitors = [programs("alert_monitor.py", "--json", "--node", node) for node in (1, 2)]
    recorder = programs("flight_recorder.py", "--json", "--node", 2)
    ready(*monitors, recorder)
    publishers = [programs(f"{name}_publisher.py", "--json", *PIECE, "--speed", "15", "--at", "-")
                  for name in ("air_data", "attitude")]
    ready(*publishers)
    began = time.time()
    for publisher in publishers:
        publisher.tell(str(began))
    assert [one.wait() for one in publishers] == [0, 0]
    counts = [one.report("published")["count"] for one in publishers]
    assert counts == [240, 240], "four rows a second"
    late = programs("alert_monitor.py", "--json", "--mute", "--node", 1)
    finals = []
    for monitor in (*monitors, late):
        wait_until(lambda monitor=monitor: monitor.report("status").get("heard") == sum(counts), 30, "all heard")
        assert monitor.end() == 0
        finals.append(monitor.report("final"))
    assert len({(one["alerts"], one["digest"]) for one in finals}) == 1
    assert finals[0]["alerts"] >= 1 and finals[-1]["wrote"] == {}
    wait_until(lambda: recorder.report("status").get("count") == sum(counts), 30, "all recorded")
    assert Path(recorder.report("journal")["path"]).is_file() and recorder.report("journal")["topic"] == "flight"
    assert recorder.end() == 0
    assert recorder.report("final")["topics"] == {"flight/air_data": 240, "flight/attitude": 240}


@pytest.mark.slow
def test_a_silent_topic_holds_nobody_up(programs: Start, daemons: Daemons) -> None:
    """Goal: what there is is judged. Method: air data only; monitors on two nodes."""
    daemons(2)
    monitors = [programs("alert_monitor.py", "--json", "--node", node) for node in (1, 2)]
    ready(*monitors)
    assert programs("air_data_publisher.py", "--json", *FAST).wait() == 0
    for monitor in monitors:
        wait_until(lambda monitor=monitor: monitor.report("status").get("heard") == 240, 30, "all heard")
    assert [one.end() for one in monitors] == [0, 0]
    finals = [one.report("final") for one in monitors]
    assert finals[0]["digest"] == finals[1]["digest"]
    assert finals[0]["alerts"] == finals[1]["alerts"] > 0


@pytest.mark.slow
def test_the_full_recording_by_path(tmp_path: Path) -> None:
    """Goal: --jsonl reads frames. Method: a few made-up frames that overspeed; computed offline."""
    path = tmp_path / "short.jsonl"
    frames = [{"timestamp": 1000.0 + i, "altitude": 9000 - i, "IAS": 240 + 2 * i} for i in range(20)]
    path.write_text("".join(json.dumps(one) + "\n" for one in frames))
    assert offline("--jsonl", path)["alerts"] == 1


@pytest.mark.slow
@pytest.mark.parametrize("script", ["air_data_publisher.py", "alert_monitor.py", "primary_flight_display.py",
                                    "camera_publisher.py", "camera_viewer.py"])
def test_without_a_daemon_one_line_says_so(programs: Start, script: str) -> None:
    """Goal: a newcomer's first mistake gets an answer. Method: no daemon in the test's runtime directory."""
    program = programs(script)
    assert program.wait() == 1
    assert len(program.lines) == 1
    assert "spindle daemon" in program.lines[0]


@pytest.mark.slow
def test_a_bad_option_is_refused(programs: Start) -> None:
    """Goal: impossible values are named. Method: a speed of zero."""
    program = programs("air_data_publisher.py", "--speed", "0")
    assert program.wait() == 1
    assert "speed must be a positive number" in program.lines[0]


@pytest.mark.slow
def test_a_start_behind_the_end_is_refused(programs: Start) -> None:
    """It said `0 samples published`, and ended with 0."""
    for script in ("air_data_publisher.py", "attitude_publisher.py"):
        program = programs(script, "--start", "99999999")
        assert program.wait() == 1
        assert "ends in its second 4777.75" in program.lines[-1]


@pytest.mark.slow
def test_the_display_draws_on_a_terminal_and_gives_it_back() -> None:
    """Goal: a full screen of 80 by 24, and the old one at the end. Method: offline on a pseudo terminal."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    options = ["--offline", "--start", "3580", "--duration", "90", "--speed", "60"]
    process = subprocess.Popen(
        [sys.executable, EXAMPLES / "primary_flight_display.py", *options],
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        env={**os.environ, "TERM": "xterm-256color"},
    )
    os.close(secondary)
    drawn = bytearray()
    try:
        while True:
            try:
                chunk = os.read(primary, 65536)
            except OSError:  # the other end is closed
                break
            if not chunk:
                break
            drawn += chunk
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(primary)
    text = drawn.decode()
    assert text.startswith("\x1b[?1049h") and text.rstrip().endswith("\x1b[?1049l")
    assert text.count("\x1b[H") >= 2, "frames: many a second where there is a processor for them"
    assert "AFR34ZG" in text and "FPA -" in text


@pytest.mark.slow
def test_a_display_that_is_stopped_gives_the_terminal_back() -> None:
    """Goal: Ctrl-Z leaves the other screen, and fg fills it again. Method: a shell with job control."""
    def begin() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    display = f"{sys.executable} {EXAMPLES / 'primary_flight_display.py'} --offline --start 3580"
    process = subprocess.Popen(
        ["sh", "-mc", f'{display}; echo "stopped: $?"; read answer; fg; echo "ended: $?"'],
        stdin=secondary,
        stdout=secondary,
        stderr=secondary,
        env={**os.environ, "TERM": "xterm-256color"},
        start_new_session=True,
        preexec_fn=begin,
    )
    os.close(secondary)
    seen = bytearray()

    def until(wanted: bytes) -> None:
        def came() -> bool:
            seen.extend(os.read(primary, 65536))
            return wanted in seen

        wait_until(came, 30, f"{wanted!r}")

    try:
        until(b"\x1b[H")
        os.write(primary, b"\x1a")
        until(b"stopped: 148")
        assert seen.rindex(b"\x1b[?1049l") > seen.rindex(b"\x1b[?1049h")
        seen.clear()
        os.write(primary, b"\n")
        until(b"\x1b[?1049h")
        until(b"\x1b[H")
        os.write(primary, b"\x03")
        until(b"ended: 0")
        assert process.wait(20) == 0
    finally:
        process.kill()
        process.wait()
        os.close(primary)


@pytest.mark.slow
def test_the_display_prints_lines_elsewhere(programs: Start) -> None:
    """Goal: a line a second without a terminal."""
    program = programs("primary_flight_display.py", "--offline", "--start", "3580", "--duration", "90", "--speed", "60")
    assert program.wait() == 0
    assert program.lines and all("ALT" in line and "IAS" in line for line in program.lines)


@pytest.mark.slow
def test_a_camera_and_its_viewers(programs: Start, daemons: Daemons) -> None:
    """Goal: viewers on each node see the frames whole, and end with the last.

    Method: two nodes; where the bar is follows from the frame's number.
    """
    daemons(2)
    viewers = [programs("camera_viewer.py", "--last", 29, SPINDLE_NODE_ID=str(node)) for node in (1, 2)]
    camera = programs("camera_publisher.py", "--count", 30, "--rate", 50, "--viewers", 2)
    assert camera.wait() == 0 and camera.lines == ["30 frames"]
    for viewer in viewers:
        assert viewer.wait() == 0
        for line in viewer.lines:
            number, bar = int(line.split()[1]), int(line.split()[4])
            assert bar == number * 160 % 1600 and "5760000 bytes in place" in line
        assert viewer.lines[-1].startswith("frame 29 ")
