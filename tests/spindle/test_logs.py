"""The log of a daemon: text, JSON, the journal's protocol, and the numbers of events.

Goal: whoever collects logs finds events by number and figures by field, and a journal that is slow or away stops
nobody. Method: handlers on a logger of the test's own, a datagram socket in journald's role, pipes that
nobody reads, and real daemons.
"""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import logging
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spindle import logs
from spindle.client import Session, attach
from spindle.config.settings import LOG_FORMATS
from spindle.errors import CastOut, JoinFailed, JournalError, NoDaemon, NoMajority
from spindle.group.topics import TopicSpec
from tests.spindle.daemons import Daemon, daemons
from tests.support import wait_until

ROOT = Path(__file__).resolve().parents[2]


class Journal:
    """journald's socket, and a reader of what comes there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.sock.bind(str(path))
        self.sock.settimeout(10)

    def read(self) -> dict[str, str]:
        """The next entry."""
        data, fds, _, _ = socket.recv_fds(self.sock, 1 << 20, 1)
        if fds:  # an entry that is too large for a datagram comes in a sealed file
            with os.fdopen(fds[0], "rb") as file:
                file.seek(0)
                data = file.read()
        entry = {}
        while data:
            line, _, data = data.partition(b"\n")
            name, equals, value = line.partition(b"=")
            if not equals:
                (size,) = struct.unpack("<Q", data[:8])
                value, data = data[8 : 8 + size], data[8 + size + 1 :]
            entry[name.decode()] = value.decode()
        return entry

    def close(self) -> None:
        self.sock.close()


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal")
    yield made
    made.close()


@pytest.fixture
def logger() -> logging.Logger:
    made = logging.Logger("spindle.test")
    made.propagate = False
    return made


def test_fields_and_numbers_reach_the_journal(journal: Journal, logger: logging.Logger) -> None:
    context = {"domain": 7, "node": None, "view": None}
    handler = logs.JournalHandler(context, str(journal.path))
    logger.addHandler(handler)
    logger.warning("goes on without node %d", 3, extra=logs.about(logs.MEMBER_LOST, member=3, why="a=b\nc"))
    entry = journal.read()
    assert entry.items() >= {
        "MESSAGE": "goes on without node 3", "PRIORITY": "4", "SYSLOG_IDENTIFIER": "spindle", "SPINDLE_DOMAIN": "7",
        "MESSAGE_ID": logs.MEMBER_LOST.message_id, "SPINDLE_EVENT": "member-lost", "SPINDLE_MEMBER": "3",
        "SPINDLE_WHY": "a=b\nc", "SPINDLE_LOGGER": "spindle.test", "CODE_FILE": __file__,
        "CODE_FUNC": "test_fields_and_numbers_reach_the_journal",
    }.items()  # fmt: skip
    assert "SPINDLE_NODE" not in entry, "not known yet"
    context.update(node=2, view=5)
    logger.info("plain")
    entry = journal.read()
    assert (entry["SPINDLE_NODE"], entry["SPINDLE_VIEW"], entry["PRIORITY"]) == ("2", "5", "6")
    assert "MESSAGE_ID" not in entry
    try:
        raise ValueError("nonsense")
    except ValueError:
        logger.exception("failed")
    entry = journal.read()
    assert entry["MESSAGE"].startswith("failed\nTraceback") and entry["PRIORITY"] == "3"
    logger.error("x" * 1_000_000)
    assert len(journal.read()["MESSAGE"]) == 1_000_000
    handler.close()


def test_a_journal_that_takes_nothing_delays_little_and_is_told_of(
    journal: Journal, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logs, "SEND_TIMEOUT_S", 0.01)
    handler = logs.JournalHandler({}, str(journal.path))
    logger.addHandler(handler)
    started, sent = time.monotonic(), 2000
    for number in range(sent):
        logger.info("%d", number)
        if time.monotonic() - started > 0.1:
            break
    taken = 0
    journal.sock.settimeout(0.05)
    while True:
        try:
            journal.read()
            taken += 1
        except TimeoutError:
            break
    logger.info("again")
    assert journal.read()["SPINDLE_LOST_LINES"] == str(number + 1 - taken) != "0"
    logger.info("and again")
    assert "SPINDLE_LOST_LINES" not in journal.read()
    handler.close()


def small_pipe() -> tuple[int, int]:
    """Both ends; four pages fill it."""
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, 4 * 4096)
    return reading, writing


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_that_nobody_reads_holds_up_nobody_and_says_what_is_missing(
    form: str, logger: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lines are whole, those that were lost are counted, and who shares the pipe finds it as it was."""
    monkeypatch.setattr(logs, "SEND_TIMEOUT_S", 0.01)
    reading, writing = small_pipe()
    handler = logs.OutletHandler(logs.Outlet(writing))
    handler.setFormatter(logs.JsonLines({}) if form == "json" else logs.TEXT)
    logger.addHandler(handler)
    assert os.get_blocking(writing)
    for number in range(100):
        logger.info("%d %s", number, "x" * 300)
    taken = os.read(reading, 1 << 16).decode().splitlines()
    logger.info("y" * 20_000)  # never fits
    torn = os.read(reading, 1 << 16).decode().splitlines()
    logger.info("again")
    missing, again = os.read(reading, 1 << 16).decode().splitlines()[1:]
    logger.info("and again")
    (last,) = os.read(reading, 1 << 16).decode().splitlines()
    assert f"{100 - len(taken)} lines of this log are missing" in torn[0] and torn[-1].endswith("y")
    assert f"{101 - len(taken)} lines of this log are missing" in missing
    if form == "json":
        assert [json.loads(line)["message"].split()[0] for line in taken] == [str(one) for one in range(len(taken))]
        assert json.loads(missing)["lost_lines"] == 101 - len(taken)
        assert [json.loads(line)["message"] for line in (again, last)] == ["again", "and again"]
    os.close(reading)
    logger.info("to nobody")
    handler.close()
    os.close(writing)


def test_only_the_first_line_that_nobody_takes_is_waited_for(logger: logging.Logger) -> None:
    waited = []

    class Full(logs.Outlet):
        def write(self, text: str, timeout_s: float = 60.0) -> bool:
            waited.append(timeout_s)
            return len(waited) == 4

    handler = logs.OutletHandler(Full(2))
    logger.addHandler(handler)
    for number in range(5):
        logger.info("%d", number)
    assert waited == [logs.SEND_TIMEOUT_S, 0, 0, 0, logs.SEND_TIMEOUT_S]
    handler.close()


def test_a_terminal_that_is_halted_holds_up_nobody() -> None:
    """Ctrl-S, and Ctrl-Q."""
    mine, terminal = os.openpty()
    outlet = logs.Outlet(terminal)
    termios.tcflow(terminal, termios.TCOOFF)
    assert not outlet.write("a\n", 0.01)
    termios.tcflow(terminal, termios.TCOON)
    assert outlet.write("b\n", 10)
    assert b"b\r\n" in os.read(mine, 100)
    outlet.close()
    os.close(mine)
    os.close(terminal)


def test_what_is_no_stream_of_the_system_has_no_outlet() -> None:
    assert logs.Outlet.of(None) is None and logs.Outlet.of(io.StringIO()) is None


def test_a_daemon_whose_output_nobody_takes_serves_and_ends_in_order(runtime_dir: Path) -> None:
    """Its log fills a pipe that nobody reads, and who read standard output has gone."""
    gone, output = os.pipe()
    os.close(gone)
    reading, log = small_pipe()
    daemon = subprocess.Popen(
        [sys.executable, "-m", "spindle.cli", "daemon", "--runtime-dir", str(runtime_dir), "--log-level", "debug"],
        stdout=output, stderr=log)
    try:
        with wait_until(lambda: attached(runtime_dir)) as session:
            for number in range(40):
                session.declare_topic(TopicSpec(f"t{number}"))
                session.open_writer(f"t{number}").close()
        assert b"did not take the line" in os.read(reading, 1 << 16)
        daemon.terminate()
        assert daemon.wait(20) == 0
    finally:
        daemon.kill()
        daemon.wait()
        for fd in (output, reading, log):
            os.close(fd)


def attached(runtime_dir: Path) -> Session | None:
    with contextlib.suppress(NoDaemon):
        return attach(runtime_dir=runtime_dir)
    return None


def test_a_journal_that_comes_back_is_found(journal: Journal, logger: logging.Logger) -> None:
    handler = logs.JournalHandler({}, str(journal.path))
    logger.addHandler(handler)
    journal.close()
    logger.info("to nobody")
    journal.path.unlink()
    again = Journal(journal.path)
    logger.info("to the new one")
    entry = again.read()
    assert (entry["MESSAGE"], entry["SPINDLE_LOST_LINES"]) == ("to the new one", "1")
    again.close()
    handler.close()


def test_stderr_is_the_journal_only_if_it_is_that_very_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "stream").open("w") as stream, (tmp_path / "other").open("w") as other:
        found = os.fstat(stream.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{found.st_dev}:{found.st_ino}")
        assert logs.stderr_is_journal(stream)
        assert not logs.stderr_is_journal(other), "turned elsewhere: 2> file"
        for nonsense in ("", "8", "x:y", ":"):
            monkeypatch.setenv("JOURNAL_STREAM", nonsense)
            assert not logs.stderr_is_journal(stream)


def test_json_lines(logger: logging.Logger) -> None:
    form = logs.JsonLines({"domain": 0, "node": 2, "view": None})

    def line(**more: object) -> dict[str, object]:
        record = logging.LogRecord("spindle.node", logging.WARNING, "f.py", 1, "lost %s\nand more", ("π",), None)
        record.__dict__.update(more)
        text = form.format(record)
        assert "\n" not in text
        return json.loads(text)

    plain = line()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", str(plain.pop("time")))
    assert plain == {
        "level": "warning", "logger": "spindle.node", "message": "lost π\nand more", "domain": 0, "node": 2,
    }  # fmt: skip
    event = line(**logs.about(logs.MEMBER_LOST, member=3, message="not the message", at=Path("x")))
    assert event["event"] == "member-lost" and event["member"] == 3 and event["at"] == "x"
    assert event["message"] == "lost π\nand more", "a field never hides what every line has"
    try:
        raise ValueError("nonsense")
    except ValueError:
        assert "ValueError: nonsense" in str(line(exc_info=sys.exc_info())["traceback"])


@pytest.mark.parametrize(
    ("error", "event"),
    [(CastOut("x"), logs.CAST_OUT), (NoMajority("x"), logs.NO_MAJORITY), (JournalError("x"), logs.JOURNAL_FAILED),
     (JoinFailed("x"), logs.NODE_FAILED)],
)  # fmt: skip
def test_the_end_of_a_node_has_the_number_of_its_cause(error: Exception, event: logs.Event) -> None:
    found, fields = logs.about_failure(error)["spindle"]
    assert found is event and fields == {"error": type(error).__name__}


def test_numbers_are_numbers_and_each_is_documented() -> None:
    assert len({event.message_id for event in logs.EVENTS}) == len({event.name for event in logs.EVENTS}) == 16
    assert all(re.fullmatch("[0-9a-f]{32}", event.message_id) for event in logs.EVENTS)
    text = (ROOT / "docs/operations.md").read_text()
    for event in logs.EVENTS:
        assert f"| `{event.name}` | `{event.message_id}` | {event.meaning} |" in text, event
    catalog = (ROOT / "packaging/spindle.catalog").read_text()
    assert re.findall(r"^-- ([0-9a-f]{32})$", catalog, re.MULTILINE) == [event.message_id for event in logs.EVENTS]


def events_of(daemon: Daemon) -> list[dict[str, object]]:
    lines = [json.loads(line) for line in daemon.log.splitlines()]
    return [line for line in lines if "event" in line]


@pytest.mark.slow
def test_a_daemon_in_json(runtime_dir: Path) -> None:
    """Goal: the life of a group reads as events with figures. Method: three daemons, one is killed, one cast out."""
    settings = ["--set", "log.format=json", "--set", "membership.suspect_timeout_s=0.3"]
    with daemons(runtime_dir, 4, settings) as (one, two, three, _), attach(node_id=1) as watching:
        two.kill()
        wait_until(lambda: watching.view().node_ids == (1, 3, 4))
        os.kill(three.pid, signal.SIGSTOP)
        wait_until(lambda: watching.view().node_ids == (1, 4), 15)
        os.kill(three.pid, signal.SIGCONT)
        assert three.wait() == 12
        assert one.terminate() == 0
        events = events_of(one)
        assert [event["event"] for event in events] == [
            "node-starts", *["view-installed"] * 4, "member-lost", "view-installed", "member-lost", "view-installed",
            "node-leaves", "node-left",
        ]  # fmt: skip
        views = [event for event in events if event["event"] == "view-installed"]
        assert [(event["node"], event["view"]) for event in views] == [(1, number) for number in range(6)]
        assert views[-1]["members"] == "1 4"
        assert [event["member"] for event in events if event["event"] == "member-lost"] == [2, 3]
        ends = events_of(three)[-2:]
        assert [(end["event"], end["error"]) for end in ends] == [("cast-out", "CastOut"), ("daemon-ends", "CastOut")]
        assert ends[-1]["exit_code"] == 12


@pytest.mark.slow
def test_a_daemon_whose_journal_is_away_logs_to_stderr(runtime_dir: Path) -> None:
    if os.path.exists("/run/systemd/journal/socket"):
        pytest.skip("this machine has a journal")
    with daemons(runtime_dir, 1, ["--set", "log.format=journal"]) as (daemon,):
        assert daemon.terminate() == 0
        assert "journald can't be reached" in daemon.log and "view 0" in daemon.log


def test_every_format_is_tried_here() -> None:
    assert LOG_FORMATS == ("auto", "text", "json", "journal")


def test_what_may_come_for_ever_is_said_sparingly(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
                                                  ) -> None:
    """Goal: the same once in a while, with how often it was; and of different ones no more than so many."""
    log = logging.getLogger("spindle.sparing")
    caplog.set_level(logging.WARNING, log.name)
    monkeypatch.setattr(logs, "SAID_AT_ONCE", 3)
    sparing = logs.Sparing(log)

    def said() -> list[str]:
        found = [one.getMessage() for one in caplog.records]
        caplog.clear()
        return found

    for _ in range(4):
        sparing.warn("a", "%s came", "a%")
    assert said() == ["a% came"]
    for what in "bcdefg":
        sparing.warn(what, "%s came", what)
    assert said()[:2] == ["b came", "c came"] and len(sparing) == 3
    monkeypatch.setattr(logs, "SAY_AGAIN_S", 0.0)
    sparing.warn("a", "%s came", "a%")
    assert said() == ["a% came (3 more like it since this was said last)"]
    monkeypatch.setattr(logs, "SAID_MAX", 2)
    sparing.warn("h", "%s came", "h")
    assert len(sparing) <= 3 and said() == ["h came"]
