"""Goal: the example programs do what their texts say. Method: real daemons, the programs as processes, a short and fast
piece of the flight; what monitors come to is compared with what the recording alone gives."""

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
def test_monitors_agree_with_each_other_a_late_one_and_the_recording(programs: Start, daemons: Daemons) -> None:
    """Goal: the same alerts everywhere, from history too, and the recorder got all."""
    daemons(2)
    expected = offline(*PIECE)
    assert expected["alerts"] >= 4
    patient = ("--json", "--patience", "60")  # publishers may start seconds apart where the processor is busy...
    monitors = [programs("alert_monitor.py", *patient, "--node", node) for node in (1, 2)]
    recorder = programs("flight_recorder.py", "--json", "--node", 2)
    ready(*monitors, recorder)
    together = (*FAST, "--at", str(time.time()))  # ...and stamp the same row with the same time all the same
    publishers = [programs(f"{name}_publisher.py", "--json", *together) for name in ("air_data", "attitude")]
    assert [one.wait() for one in publishers] == [0, 0]
    counts = [one.report("published")["count"] for one in publishers]
    assert counts == [241, 241], "four rows a second, and the closing sample"
    late = programs("alert_monitor.py", *patient, "--node", 1)
    for monitor in (*monitors, late):
        wait_until(lambda monitor=monitor: monitor.report("status").get("heard") == sum(counts), 30, "all heard")
        assert monitor.end() == 0
        final = monitor.report("final")
        assert (final["alerts"], final["digest"], final["stepped_in"]) == (expected["alerts"], expected["digest"], 0)
    wait_until(lambda: recorder.report("status").get("count") == sum(counts), 30, "all recorded")
    assert Path(recorder.report("journal")["path"]).is_file()
    assert recorder.end() == 0
    assert recorder.report("final")["topics"] == {"flight/air_data": 241, "flight/attitude": 241}


@pytest.mark.slow
def test_monitors_agree_when_a_topic_is_silent(programs: Start, daemons: Daemons) -> None:
    """Goal: silence is agreed, too. Method: air data only; impatient monitors on two nodes; both go on, alike."""
    daemons(2)
    monitors = [programs("alert_monitor.py", "--json", "--patience", "0.3", "--node", node) for node in (1, 2)]
    ready(*monitors)
    assert programs("air_data_publisher.py", "--json", *FAST).wait() == 0

    def settled() -> bool:
        said = [one.report("status") for one in monitors]
        return all(one.get("held") == 0 and one.get("heard", 0) >= 242 for one in said) and said[0] == said[1]

    wait_until(settled, 30, "both monitors settled", interval_s=0.05)
    assert [one.end() for one in monitors] == [0, 0]
    finals = [one.report("final") for one in monitors]
    assert finals[0]["digest"] == finals[1]["digest"]
    assert finals[0]["alerts"] == finals[1]["alerts"] > 0
    assert sum(one["stepped_in"] for one in finals) >= 1


def test_the_full_recording_by_path(tmp_path: Path) -> None:
    """Goal: --jsonl reads frames. Method: a few made-up frames that overspeed; computed offline."""
    path = tmp_path / "short.jsonl"
    frames = [{"timestamp": 1000.0 + i, "altitude": 9000 - i, "IAS": 240 + 2 * i} for i in range(20)]
    path.write_text("".join(json.dumps(one) + "\n" for one in frames))
    assert offline("--jsonl", path)["alerts"] == 1


@pytest.mark.parametrize("script", ["air_data_publisher.py", "alert_monitor.py", "primary_flight_display.py"])
def test_without_a_daemon_one_line_says_so(programs: Start, script: str) -> None:
    """Goal: a newcomer's first mistake gets an answer. Method: no daemon in the test's runtime directory."""
    program = programs(script)
    assert program.wait() == 1
    assert len(program.lines) == 1
    assert "spindle daemon" in program.lines[0]


def test_a_bad_option_is_refused(programs: Start) -> None:
    """Goal: impossible values are named. Method: a speed of zero."""
    program = programs("air_data_publisher.py", "--speed", "0")
    assert program.wait() == 1
    assert "speed must be a positive number" in program.lines[0]


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
def test_the_display_prints_lines_elsewhere(programs: Start) -> None:
    """Goal: a line a second without a terminal."""
    program = programs("primary_flight_display.py", "--offline", "--start", "3580", "--duration", "90", "--speed", "60")
    assert program.wait() == 0
    assert program.lines and all("ALT" in line and "IAS" in line for line in program.lines)
