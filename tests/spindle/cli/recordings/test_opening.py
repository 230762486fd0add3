"""Goal: who reads many topics stands still for none of them: one that can't be opened, here or at the next node, is
named, and the others are read meanwhile.

Method: stand-ins for nodes that keep a topic waiting or refuse it, and the recorder and the bridge in this process.
"""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spindle.cli.common import Target
from spindle.cli.recordings.bridge import Bridge, NoFile, ready
from spindle.cli.recordings.opening import Opening
from spindle.cli.recordings.recorder import Recorder
from spindle.client import Session
from spindle.errors import GroupSilent, JournalError, NodeStopped
from spindle.group.topics import TopicSpec
from tests.spindle.stand_in import StandInNode
from tests.support import wait_until

WAIT_S = 15.0
REFUSALS = [GroupSilent("topic 'a' waits for node 1"), JournalError("node 2 has no room for topic 'a'")]
refusals = pytest.mark.parametrize("refusal", REFUSALS, ids=lambda one: type(one).__name__)


class Slow(StandInNode):
    """Topic a can't be opened: that takes as long as `wait` is clear, and then says `refusal`, unless that is None."""

    wait: threading.Event
    refusal: Exception | None = None

    async def open_reader(self, topic: str, **more: Any) -> Any:
        if topic == "a":
            while not self.wait.is_set():
                await asyncio.sleep(0.01)
            if self.refusal is not None:
                raise self.refusal
        return await super().open_reader(topic, **more)


@pytest.fixture
def nodes(runtime_dir: Path) -> Iterator[tuple[StandInNode, Slow]]:
    directory = runtime_dir / "domain-0"
    directory.mkdir()
    with StandInNode(directory / "node-1.sock") as first, Slow(directory / "node-2.sock") as second:
        second.wait = threading.Event()
        try:
            yield first, second
        finally:
            second.wait.set()


def recorder(session: Session, *patterns: str, again: bool = True) -> Recorder:
    return Recorder(Target(), session, patterns, NoFile(), False, False, again)  # type: ignore[arg-type]


@contextmanager
def running(one: Recorder) -> Iterator[Any]:
    """Runs until the block's end, which must be a good one."""
    with ThreadPoolExecutor() as pool:
        done = pool.submit(one.follow if isinstance(one, Bridge) else lambda: one.run(None, None, lambda: None))
        try:
            yield done
        finally:
            one.stop()
        done.result(WAIT_S)


def until(done: Any, condition: Callable[[], object], what: str) -> None:
    wait_until(lambda: done.done() or condition(), WAIT_S, what)
    assert condition(), done.result(0)


def declare(session: Session, *names: str) -> None:
    for name in names:
        session.declare_topic(TopicSpec(name))


@refusals
def test_a_topic_that_waits_keeps_no_other_from_being_recorded(
        nodes: tuple[StandInNode, Slow], refusal: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    _, second = nodes
    second.refusal = refusal
    with Target(node=2).attach("records") as session:
        declare(session, "a", "b")
        with recorder(session, "*") as one, running(one) as done:
            until(done, lambda: "b" in one.tracks, "the other topic")
            declare(session, "c")  # in the middle of it; a stand-in tells nobody
            one._news.set()
            until(done, lambda: "c" in one.tracks, "one that came later")
            second.wait.set()
            until(done, lambda: "a" in one._refused, "the refusal")
            second.refusal = None
            one._retry_s = 0.0
            until(done, lambda: "a" in one.tracks, "the topic that waited")
    err = capsys.readouterr().err
    assert f"a is not recorded: {refusal}" in err and "a is recorded from now on" in err


@refusals
def test_a_topic_that_the_next_node_can_t_take_up_keeps_no_other(
        nodes: tuple[StandInNode, Slow], refusal: Exception, capsys: pytest.CaptureFixture[str]) -> None:
    """What isn't recorded any more is said, also at the end."""
    first, second = nodes
    second.refusal = refusal
    with Target().attach("records") as session:
        declare(session, "a", "b")
        with recorder(session, "*") as one, running(one) as done:
            until(done, lambda: len(one.tracks) == 2, "both topics")
            first.stop()
            until(done, lambda: one.tracks["b"].session is not session, "the other topic at the next node")
            assert one.left_out == {"a": "it is still being opened there"}
            second.wait.set()
            until(done, lambda: one.left_out == {"a": str(refusal)}, "the refusal")
            second.refusal = None
            one._retry_s = 0.0
            until(done, lambda: one.tracks["a"].session is not session, "the topic that waited")
            assert not one.left_out
    err = capsys.readouterr().err
    assert err.count("goes on at node") == 1 and err.count(f"a is not recorded: {refusal}") == 1


def test_what_was_opened_when_the_node_went_is_read(nodes: tuple[StandInNode, Slow], monkeypatch: pytest.MonkeyPatch
                                                   ) -> None:
    """What had come to a reader that nobody has taken up yet is recorded, before it goes on at the next node."""
    first, second = nodes
    second.wait.set()
    taken, moved, wait = [], [], threading.Event()
    opened, begun = Recorder._reader, Opening.begin

    def reader(self: Recorder, session: Session, *of: Any, **more: Any) -> Any:
        handle = opened(self, session, *of, **more)
        assert session is not attached or wait.wait(WAIT_S)
        return handle

    def begin(self: Opening, name: str, session: Session, track: Any, opens: Any) -> None:
        moved.extend([len(taken)] if session is not attached else [])
        begun(self, name, session, track, opens)

    monkeypatch.setattr(Recorder, "_reader", reader)
    monkeypatch.setattr(Opening, "begin", begin)
    monkeypatch.setattr(Recorder, "_write", lambda self, track, unit, info, at: taken.append(unit[0].payload) or 1)
    with Target().attach("records") as attached:
        declare(attached, "b")
        with recorder(attached, "*") as one, running(one) as done:
            until(done, lambda: first.open_ports, "the reader")
            for number in range(3):
                first.logs["b"].append(b"%d" % number, 1, number, 0, 0)
            first.stop()
            wait_until(lambda: attached.gone, WAIT_S, "the end of the first node")
            wait.set()
            until(done, lambda: len(taken) == 3 and moved, "what had come, and the next node")
    assert taken == [b"0", b"1", b"2"] and moved[0] == 3


def test_a_topic_that_is_another_one_at_the_next_node(nodes: tuple[StandInNode, Slow],
                                                      capsys: pytest.CaptureFixture[str]) -> None:
    """It is recorded as what it is there."""
    first, second = nodes
    second.wait.set()
    with Target().attach("records") as session, Target(node=2).attach("declares") as other:
        declare(session, "a", "b")
        other.declare_topic(TopicSpec("b", size_max=99))
        with recorder(session, "a", "b") as one, running(one) as done:
            until(done, lambda: len(one.tracks) == 2, "both topics")
            first.stop()
            until(done, lambda: "b" in one.tracks and one.tracks["b"].info.spec.size_max == 99, "the other topic")
            until(done, lambda: one.tracks["a"].session is not session, "the same topic")
    assert "b is another topic at node" in capsys.readouterr().err


def test_a_node_that_goes_before_there_is_a_topic(nodes: tuple[StandInNode, Slow]) -> None:
    first, second = nodes
    second.wait.set()
    with Target().attach("records") as session, Target(node=2).attach("declares") as other:
        declare(other, "late")
        with recorder(session, "late") as one, running(one) as done:
            first.stop()
            until(done, lambda: "late" in one.tracks, "the topic at the next node")


@pytest.mark.parametrize("names", [(), ("b",)])
def test_without_reattaching_it_ends_with_its_node(nodes: tuple[StandInNode, Slow], names: tuple[str, ...]) -> None:
    """With or without topics, and with what had come."""
    first, _ = nodes
    with Target().attach("records") as session:
        declare(session, *names)
        with recorder(session, "*", again=False) as one, ThreadPoolExecutor() as pool:
            done = pool.submit(one.run, None, None, lambda: None)
            until(done, lambda: len(one.tracks) == len(names), "the topics")
            first.stop()
            with pytest.raises(NodeStopped):
                done.result(WAIT_S)


def test_the_time_ends_a_recorder_without_a_node(nodes: tuple[StandInNode, Slow]) -> None:
    first, second = nodes
    with Target().attach("records") as session:
        declare(session, "b")
        with recorder(session, "*") as one, ThreadPoolExecutor() as pool:
            done = pool.submit(one.run, 3.0, None, lambda: None)
            until(done, lambda: "b" in one.tracks, "the topic")
            first.stop()
            second.stop()
            done.result(WAIT_S)


@refusals
def test_a_bridge_shows_other_topics_meanwhile(nodes: tuple[StandInNode, Slow], refusal: Exception,
                                               capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody looks at a topic that can't be opened, and at another one; the bridge lives."""
    pytest.importorskip("foxglove", reason="needs foxglove-sdk")
    _, second = nodes
    second.refusal = refusal
    session = Target(node=2).attach("shows")
    declare(session, "a", "b")
    with Bridge(Target(node=2), session, ["*"], True, True) as bridge:
        ready(bridge)
        for show in (show for of in bridge._shows.values() for show in of.values()):
            bridge._lookers.on_subscribe(SimpleNamespace(id=1), SimpleNamespace(id=show.channel.id()))
        with running(bridge) as done:
            until(done, lambda: "b" in bridge.tracks, "the other topic")
            second.wait.set()
            until(done, lambda: "a" in bridge._refused, "the refusal")
            second.refusal = None
            bridge._retry_s = 0.0
            until(done, lambda: "a" in bridge.tracks, "the topic that waited")
    assert capsys.readouterr().err.count(f"a is not shown: {refusal}") == 1


def test_a_topic_that_nobody_looks_at_any_more_costs_a_bridge_no_descriptor(nodes: tuple[StandInNode, Slow]) -> None:
    """However many were looked at; and it is shown again to who looks again."""
    pytest.importorskip("foxglove", reason="needs foxglove-sdk")
    session = Target(node=1).attach("shows")
    declare(session, "b", "c", "d")
    with Bridge(Target(node=1), session, ["*"], True, True) as bridge:
        ready(bridge)
        numbers = [SimpleNamespace(id=show.channel.id()) for of in bridge._shows.values() for show in of.values()]
        with running(bridge) as done:
            for _ in range(2):
                for number in numbers:
                    bridge._lookers.on_subscribe(SimpleNamespace(id=1), number)
                until(done, lambda: len(bridge.tracks) == 3, "all topics")
                logs = [weakref.ref(track.handle) for track in bridge.tracks.values()]  # what has them
                for number in numbers:
                    bridge._lookers.on_unsubscribe(SimpleNamespace(id=1), number)
                until(done, lambda: not bridge.tracks, "none of them")
                until(done, lambda logs=logs: gc.collect() >= 0 and not any(log() for log in logs),
                      "what was open for them")


def test_what_nobody_takes_any_more_is_closed(nodes: tuple[StandInNode, Slow]) -> None:
    """Of an earlier session, or opened behind the end."""
    first, _ = nodes
    with Target().attach("opens") as session, Target().attach("opens later") as later:
        declare(session, "b")
        opening = Opening(lambda: None)

        def opens(at: Session) -> Any:
            return at.open_reader("b", keep_all=False, from_history=False)

        for number in range(2):
            opening.begin("b", session, number, lambda: opens(session))
        opening.settle((), WAIT_S)
        assert len(first.open_ports) == 1 and not opening.take(later)
        wait_until(lambda: not first.open_ports, WAIT_S, "the earlier session's reader is closed")
        opening.begin("b", later, 2, lambda: opens(later))
        opening.settle((), WAIT_S)
        [one] = opening.take(later)
        assert one.track == 2 and one.handle is not None and one.error is None
        one.close()
        go = threading.Event()
        opening.begin("b", later, 3, lambda: go.wait(WAIT_S) and opens(later))
        opening.close()
        go.set()
        wait_until(lambda: not first.open_ports, WAIT_S, "the reader that came too late is closed")
        opening.begin("b", later, 4, lambda: opens(later))
        assert not opening.take(later)
