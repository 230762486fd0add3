"""Goal: a topic that can't be opened, or whose samples are odd, keeps no other from being shown, and nothing from being
shown of itself that can be.

Method: a stand-in for a node that keeps one topic waiting, and Sampling in this process.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle.client.attaching import attach
from spindle.cockpit.sampling import Feed, Sampling, Source, _text
from spindle.errors import GroupSilent
from spindle.group.topics import TopicSpec
from tests.spindle.stand_in import StandInNode
from tests.support import wait_until


class Waiting(StandInNode):
    """Opens no reader of topic a before `go`, and only refuses until `opens`."""

    def __init__(self, path: Path) -> None:
        self.go, self.opens = threading.Event(), threading.Event()
        self.opened: list[str] = []
        super().__init__(path)

    async def open_reader(self, topic: str, **more: Any) -> Any:
        if topic == "a":
            while not self.go.is_set():
                await asyncio.sleep(0.01)
            if not self.opens.is_set():
                raise GroupSilent("topic 'a' waits for node 2")
        port = await super().open_reader(topic, **more)
        self.opened.append(topic)
        return port


@pytest.fixture
def node(runtime_dir: Path) -> Iterator[Waiting]:
    (runtime_dir / "domain-0").mkdir()
    with Waiting(runtime_dir / "domain-0" / "node-1.sock") as stand_in:
        try:
            yield stand_in
        finally:
            stand_in.go.set()


@pytest.fixture
def sampling(node: Waiting, runtime_dir: Path) -> Iterator[Sampling]:
    with attach() as session:
        for name in ("a", "b", "c"):
            session.declare_topic(TopicSpec(name))
    found = Sampling(lambda _: attach(), lambda _: pytest.fail("no topic has a type"))
    yield found
    found.close()


def shown(feed: Feed) -> list[Any]:
    return [json.loads(text, parse_constant=pytest.fail)["value"] for text in feed.after(0, 100)[0]]


def say(node: StandInNode, topic: str, number: int, payload: bytes) -> None:
    node.logs[topic].append(payload, 1, number, 0, 0)


def test_a_topic_that_waits_keeps_no_other_from_being_shown(node: Waiting, sampling: Sampling) -> None:
    first = sampling.watch(Source("b"))
    wait_until(lambda: first.reader, what="the reader of b")
    waits = sampling.watch(Source("a"))
    later = sampling.watch(Source("c"))
    wait_until(lambda: later.reader, what="the reader of c")
    say(node, "b", 0, b"one")
    wait_until(lambda: shown(first) == ["one"], what="the sample of b")
    assert waits.state == "opening" and waits.reader is None
    before = first.reader
    node.go.set()
    wait_until(lambda: waits.state == "topic 'a' waits for node 2", what="why nothing is shown of a")
    node.opens.set()
    wait_until(lambda: waits.reader, what="the reader of a")
    say(node, "b", 1, b"two")
    wait_until(lambda: shown(first) == ["one", "two"], what="the next sample of b")
    assert waits.state == "" and first.reader is before


def test_what_nobody_watches_any_more_is_closed_when_it_is_open(node: Waiting, sampling: Sampling) -> None:
    node.opens.set()
    stays, waits = sampling.watch(Source("b")), sampling.watch(Source("a"))
    wait_until(lambda: stays.reader and waits.opening, what="the reader of b, and the wait for a")
    sampling.leave(waits)
    wait_until(lambda: waits.opening is None, what="the end of the wait")
    node.go.set()
    wait_until(lambda: {one.topic for one in node.open_ports} == {"b"} and "a" in node.opened, what="a is closed")
    sampling.leave(stays)
    wait_until(lambda: not node.attachments.apps, what="the end of its session")


@pytest.mark.parametrize("text,value", [
    ('{"x": NaN, "y": [1.5, -Infinity]}', {"x": "NaN", "y": [1.5, "-Infinity"]}), ("[1e400, 2]", ["1e400", 2]),
    ("[1, 2", "[1, 2"), ("NaN", "NaN")])
def test_bytes_are_shown_as_what_json_knows(text: str, value: Any) -> None:
    """Browsers refuse a whole message for one number that JSON has no word for; Python writes such."""
    feed = Feed(Source("t"))
    feed.add({"value": _text(text.encode())})
    assert shown(feed) == [value]
