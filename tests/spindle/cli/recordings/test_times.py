"""Goal: a recording has the order and the intervals in which messages were delivered, also where the clock of the host
is set in the middle of it.

Method: a Timeline with clocks that are numbers; a stand-in for a node whose messages say when they were delivered, and
a recorder with such clocks.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from spindle.cli.common import Target
from spindle.cli.recordings import recorder
from spindle.cli.recordings.recorder import Recorder
from spindle.cli.recordings.times import STEP_NS, Timeline
from spindle.group.topics import TopicSpec
from spindle.journal.playing import PlayedFile
from spindle.journal.recording import RecordingWriter
from tests.spindle.stand_in import StandInNode
from tests.support import wait_until

S = 1_000_000_000
NOW = 1_800_000_000 * S
HOUR = 3600 * S
both_ways = pytest.mark.parametrize("step", [-HOUR, HOUR], ids=["back", "on"])


def test_as_long_as_nobody_sets_the_clock_times_are_the_nodes() -> None:
    """Also if a node's clock is another host's, and if looking at two clocks takes a while."""
    times = Timeline(NOW, 0)
    for late in (0, STEP_NS // 2):
        times.look(NOW + 10 * S + late, 10 * S)
        assert [times.at(at) for at in (NOW, NOW - HOUR, NOW + HOUR)] == [NOW, NOW - HOUR, NOW + HOUR]


@both_ways
def test_what_was_delivered_before_and_behind_a_step(step: int) -> None:
    times = Timeline(NOW, 0)
    times.look(NOW + 20 * S + step, 20 * S)  # the clock was set at 10 s
    before, behind = [NOW + S, NOW + 9 * S], [NOW + 11 * S + step, NOW + 20 * S + step]
    assert [times.at(at) for at in before + behind] == [NOW + at * S for at in (1, 9, 11, 20)]


@both_ways
def test_it_is_set_back_and_on_again(step: int) -> None:
    times = Timeline(NOW, 0)
    for at, setting in ((10, step), (20, 0), (30, 2 * step), (40, 0)):
        times.look(NOW + at * S + setting, at * S)
        assert times.at(NOW + at * S + setting) == NOW + at * S


def test_a_clock_that_nobody_here_knows() -> None:
    """Of another host, ahead of all: then it is now."""
    times = Timeline(NOW, 0)
    times.look(NOW + 10 * S + 60 * S, 10 * S)
    assert times.at(NOW + 9 * HOUR) == NOW + 10 * S


@both_ways
def test_a_recording_goes_on_as_if_the_clock_had_not_been_set(runtime_dir: Path, tmp_path: Path, step: int,
                                                              monkeypatch: pytest.MonkeyPatch) -> None:
    """Topics that were read before it was, and one that comes later."""
    now = [NOW, 0]
    monkeypatch.setattr(recorder, "clocks", lambda: tuple(now))
    (runtime_dir / "domain-0").mkdir()
    out = tmp_path / "r.mcap"
    with StandInNode(runtime_dir / "domain-0" / "node-1.sock") as node, Target().attach("records") as session:
        session.declare_topic(TopicSpec("a"))
        session.declare_topic(TopicSpec("b"))
        writer = RecordingWriter(out, {})
        with Recorder(Target(), session, ["*"], writer, False, False, False) as one:
            one.look()
            wait_until(lambda: one.take_up() or len(one.tracks) == 2, what="the readers")
            for number, name in enumerate("aaba"):
                now[:] = [NOW + (number + 1) * S + (step if number >= 2 else 0), (number + 1) * S]
                node.logs[name].append(b"%d" % number, 1, number, 0, 0, reception_ns=now[0])
                one._pass(None)
        writer.close()
    file = PlayedFile(out)
    assert [(one.payload, one.log_time) for one in file.messages()] == [
        (b"%d" % number, NOW + (number + 1) * S) for number in range(4)]
    file.close()
