"""Readers in other processes while the log is written at full speed: order, gaps, torn messages."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from spindle_core.delivery import Cursor, DeliveryLog
from tests.spindle_core.reading_child import numbered

CHILD = Path(__file__).with_name("reading_child.py")
SIZES = (1, 3, 7, 8, 15, 16, 30, 60, 100, 2, 5, 250, 1, 1, 9)  # words; not a multiple of anything


class Child:
    """A reader of `log` in a process of its own; result() is what it saw once the log has stopped."""

    def __init__(self, log: DeliveryLog, keep_all: bool, how: str) -> None:
        self.cursor = Cursor(keep_all)
        log.add_reader(self.cursor)
        fds = (log.mapping.fd, self.cursor.mapping.fd, self.cursor.their_fd)
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD), *map(str, fds), how],
            pass_fds=fds,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONSAFEPATH": "1"},
        )

    def result(self) -> dict[str, int]:
        out, _ = self.process.communicate(timeout=60)
        assert self.process.returncode == 0
        return json.loads(out)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()


def write_for(log: DeliveryLog, seconds: float, largest_words: int, sizes: tuple[int, ...] = SIZES) -> int:
    """Appends numbered messages for `seconds`; returns how many. A keep-all reader that holds back is waited for."""
    deadline = time.monotonic() + seconds
    give_up = deadline + 60
    number = 0
    message = numbered(0, 1)
    while time.monotonic() < deadline or number == 0:
        for _ in range(200):
            while not log.append(message, 1, number, 1, 1):
                assert time.monotonic() < give_up, "a keep-all reader doesn't go on"
                os.sched_yield()
            number += 1
            words = largest_words if number % 97 == 0 else sizes[number % len(sizes)]
            message = numbered(number, min(words, largest_words))
    return number


@pytest.mark.slow
@pytest.mark.parametrize(("capacity", "hot"), [(4096, 512), (8192, 8192), (65536, 16384)])
def test_readers_in_other_processes(capacity: int, hot: int) -> None:
    """Goal: under full speed a keep-all reader gets every message whole and in order; a reader that doesn't keep all
    gets whole messages in order, and what it lost and skipped is all that is missing.

    Method: five processes read one log in five ways, while this one writes messages of mixed sizes up to half the ring.
    """
    log = DeliveryLog(capacity, hot)
    ways = [(True, "take"), (True, "block"), (False, "take"), (False, "lazy"), (False, "last")]
    children = [Child(log, keep_all, how) for keep_all, how in ways]
    try:
        written = write_for(log, 0.7, (capacity // 2 - 64 - 4) // 8)
        log.stop()
        seen = [child.result() for child in children]
    finally:
        for child in children:
            child.end()
    for (keep_all, how), s in zip(ways, seen, strict=True):
        assert (s["error"], s["torn"], s["backwards"]) == ("", 0, 0), (how, s)
        assert s["index"] == written
        if keep_all:
            assert (s["taken"], s["gaps"], s["lost"]) == (written, 0, 0), (how, s)
        elif how != "last":
            assert s["taken"] + s["lost"] == written, (how, s)


@pytest.mark.slow
def test_readers_that_only_the_log_overtakes() -> None:
    """Goal: no torn message when nobody holds the writer back and it goes round a small ring as fast as it can.

    Method: only readers that don't keep all, large messages (a copy takes long), all three ways of copying.
    """
    log = DeliveryLog(16384, 0)
    ways = ["take", "block", "lazy"]
    children = [Child(log, False, how) for how in ways]
    try:
        written = write_for(log, 1.0, (8192 - 64 - 4) // 8, (200, 1, 500, 900, 40, 1000, 3))
        log.stop()
        seen = [child.result() for child in children]
    finally:
        for child in children:
            child.end()
    for how, s in zip(ways, seen, strict=True):
        assert (s["error"], s["torn"], s["backwards"]) == ("", 0, 0), (how, s)
        assert s["index"] == written
        if how != "block":
            assert s["taken"] + s["lost"] == written
    assert any(s["lost"] for s in seen)
