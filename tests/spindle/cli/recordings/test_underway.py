"""Goal: what a replay says again is what its dead node had not acknowledged, in the order in which it was written.
Method: writers of a real node whose deliveries wait for a reader that keeps all; their sessions end."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from spindle.cli.recordings.underway import Underway
from spindle.client import attach
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from tests.spindle.daemons import daemons
from tests.support import halt, wait_until


@pytest.mark.slow
def test_what_is_in_doubt(runtime_dir: Path) -> None:
    """Two writers by turns: the first of each are acknowledged, then the node is stopped and killed."""
    with daemons(runtime_dir, 1) as group:
        session = attach(runtime_dir=runtime_dir)
        info = session.declare_topic(TopicSpec("t", "bytes", b"", Level.ATOMIC, 64, 16))
        reader = session.open_reader("t", keep_all=True, from_history=False, guid=os.urandom(16))
        writers = [session.open_writer("t", guid=os.urandom(16), keep_unacknowledged=True) for _ in range(2)]
        underway = Underway()

        def write(numbers: range) -> None:
            for number in numbers:
                unit: Any = [number]
                way = underway.before(writers[number % 2])
                writers[number % 2].inbox.write(b"%d" % number, 0, 5.0)
                underway.written(way, writers[number % 2], unit)

        halt(group[0].pid)
        write(range(6))
        os.kill(group[0].pid, signal.SIGCONT)
        assert all(one.inbox.wait_acknowledged(10.0) for one in writers) and info.spec.name == "t"
        halt(group[0].pid)
        write(range(6, 13, 2))  # of one writer: what the other wrote stays noted, and is acknowledged
        way = underway.before(writers[0])
        underway.written(way, writers[0], [99])  # type: ignore[list-item]
        group[0].kill()
        wait_until(lambda: session.gone)
        other: Any = object()
        assert underway.take_doubts(other) == [[number] for number in range(6, 13, 2)]
        assert underway.take_doubts(other) == []
        reader.close()
        session.close()
