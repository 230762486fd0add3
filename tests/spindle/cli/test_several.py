"""Goal: `spindle sub` of several topics prints all that is like what was asked for, those that come later and those
with a type included, and goes on where its node goes away.

Method: real daemons, and `spindle sub` as a process of its own, with its output read line by line.
"""

from __future__ import annotations

import json
import queue
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import dds
from dds.idl import IdlStruct
from spindle.cli import several, sub
from spindle.cli.common import Target
from spindle.cli.several import Several
from spindle.client import attach
from spindle.errors import AccessDenied, GroupSilent, JournalError, NoResources, TopicMismatch
from spindle.group.topics import TopicSpec
from tests.spindle.cli.support import Cli, Spawned, spawn
from tests.spindle.daemons import daemons
from tests.spindle.stand_in import StandInNode
from tests.support import wait_until


@dataclass
class Speed(IdlStruct):
    knots: int


class Lines:
    """What a process prints, line by line."""

    def __init__(self, process: Spawned) -> None:
        self.process = process
        self.seen: list[str] = []
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.decode().rstrip("\n"))

    def until(self, wanted: str) -> str:
        while True:
            self.seen.append(self._lines.get(timeout=20))
            if wanted in self.seen[-1]:
                return self.seen[-1]


@contextmanager
def subscribed(*args: object) -> Iterator[Lines]:
    with spawn("sub", *args) as process:
        try:
            yield Lines(process)
        finally:
            process.terminate()
            process.wait(20)


def publish(cli: Cli, topic: str, text: str) -> None:
    assert cli("pub", topic, text, "--readers", 1).code == 0


@pytest.mark.slow
def test_patterns_and_names_now_and_later(cli: Cli, runtime_dir: Path) -> None:
    with daemons(runtime_dir, 1), attach(runtime_dir=runtime_dir) as session:
        for name in ("flight/air", "other", "status"):
            session.declare_topic(TopicSpec(name))
        with subscribed("flight/*", "status", "late") as lines:
            publish(cli, "flight/air", "one")
            assert lines.until("one").startswith("flight/air  ")
            publish(cli, "status", "two")
            assert lines.until("two").startswith("status  ")
            for name in ("flight/new", "late"):
                session.declare_topic(TopicSpec(name))
                publish(cli, name, name.upper())
                assert lines.until(name.upper()).startswith(f"{name}  ")
            assert [app["readers"] for app in session.status()["applications"] if app["name"] == "spindle sub"] == [
                ["flight/air", "flight/new", "late", "status"]], "not the other one, and all by one application"
        assert lines.process.returncode == 0


@pytest.mark.slow
def test_topics_with_a_type(cli: Cli, runtime_dir: Path) -> None:
    """Beside one without; JSON has the topic of each."""
    with daemons(runtime_dir, 1), dds.DomainParticipant() as participant:
        writer = dds.DataWriter(participant, dds.Topic(participant, "flight/speed", Speed))
        with attach(runtime_dir=runtime_dir) as session:
            session.declare_topic(TopicSpec("flight/text"))
        with subscribed("flight/*", "--json") as lines:
            publish(cli, "flight/text", "hello")
            assert json.loads(lines.until("hello"))["topic"] == "flight/text"
            wait_until(lambda: len(writer.get_matched_subscriptions()) == 1)
            writer.write(Speed(140))
            found = json.loads(lines.until("140"))
            assert (found["topic"], found["sample"]) == ("flight/speed", {"knots": 140})
        assert lines.process.returncode == 0


@pytest.mark.slow
def test_it_goes_on_where_its_node_goes_away(cli: Cli, runtime_dir: Path) -> None:
    """At the other daemon of the host, with the topics that it had and new ones."""
    with daemons(runtime_dir, 2) as running, attach(runtime_dir=runtime_dir, node_id=2) as session:
        for name in ("a/1", "a/2"):
            session.declare_topic(TopicSpec(name))
        with subscribed("a/*") as lines:
            for name in ("a/1", "a/2"):
                publish(cli, name, f"first of {name}")
                lines.until(f"first of {name}")
            running[0].terminate()
            for name in ("a/1", "a/2"):
                wait_until(lambda name=name: len([  # type: ignore[misc]
                    one for one in session.endpoints(name) if one.node_id == 2 and not one.is_writer]) == 1)
                publish(cli, name, f"second of {name}")
                lines.until(f"second of {name}")
            session.declare_topic(TopicSpec("a/3"))
            publish(cli, "a/3", "third")
            lines.until("third")
        assert lines.process.returncode == 0


@pytest.mark.slow
def test_without_going_on(cli: Cli, runtime_dir: Path) -> None:
    with daemons(runtime_dir, 1) as running:
        with attach(runtime_dir=runtime_dir) as session:
            session.declare_topic(TopicSpec("a/1"))
        with subscribed("a/*", "--no-reattach") as lines:
            publish(cli, "a/1", "one")
            lines.until("one")
            running[0].terminate()
            assert lines.process.wait(20) == 6


@pytest.mark.slow
def test_how_it_ends(cli: Cli, stand_in: StandInNode) -> None:
    """By the count over all topics, or when nothing comes on any."""
    result = cli("sub", "a/*", "b", "--timeout", 0.2)
    assert result.code == 0 and "waiting for topics like 'a/*' 'b'" in result.err
    assert cli("sub", "a/*", "b", "--timeout", 0.2, "--count", 1).code == 1
    assert cli("sub", "a", "b", "--create", "--timeout", 0.1).code == 0
    assert [info.spec.name for info in stand_in.topics()] == ["a", "b"]
    assert cli("sub").code == 2


class Refusing(StandInNode):
    """Opens no reader of topic a as long as there are `refusals`."""

    refusals: list[Exception]

    async def open_reader(self, topic: str, **more: Any) -> Any:
        if topic == "a" and self.refusals:
            raise self.refusals.pop(0)
        return await super().open_reader(topic, **more)


@pytest.mark.parametrize("refusals", [
    [GroupSilent("topic 'a' waits for node 1")] * 2, [JournalError("no room"), TopicMismatch("another type")],
    [NoResources("no descriptor is left")]], ids=lambda one: type(one[0]).__name__)
def test_a_topic_that_could_not_be_read_is_tried_again(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch,
                                                       capfd: pytest.CaptureFixture[str], refusals: list[Exception]
                                                       ) -> None:
    """What is the matter is said once; samples that come later are printed."""
    monkeypatch.setattr(several, "RETRY_S", 0.01)
    (runtime_dir / "domain-0").mkdir()
    with Refusing(runtime_dir / "domain-0" / "node-1.sock") as node, Target().attach("reads") as session:
        node.refusals = list(refusals)
        for name in ("a", "b"):
            session.declare_topic(TopicSpec(name))
        reading = Several(Target(), session, ["*"], "lines", sub.named_printer, count=1, timeout_s=None, history=False,
                          keep_all=False, again=True)
        with ThreadPoolExecutor() as pool:
            done = pool.submit(reading.run)
            wait_until(lambda: done.done() or len(node.open_ports) == 2, what="readers of both topics")
            assert not done.done(), done.result()
            node.logs["a"].append(b"hello", 1, 0, 0, 0, 0)
            assert done.result(10) == (1, 0)
    out, err = capfd.readouterr()
    assert out == "hello\n" and all(err.count(f"a: {one}; the others go on") == 1 for one in refusals)


def test_a_topic_that_the_rules_forbid_is_not_tried_again(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch,
                                                          capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(several, "RETRY_S", 0.01)
    (runtime_dir / "domain-0").mkdir()
    with Refusing(runtime_dir / "domain-0" / "node-1.sock") as node, Target().attach("reads") as session:
        node.refusals = [AccessDenied("no rule lets you")]
        session.declare_topic(TopicSpec("a"))
        assert Several(Target(), session, ["*"], "lines", sub.named_printer, count=None, timeout_s=0.5, history=False,
                       keep_all=False, again=True).run() == (0, 0)
    assert capfd.readouterr().err.count("no rule lets you") == 1 and not node.refusals
