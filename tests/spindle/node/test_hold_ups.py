"""Goal: who holds a topic up is in the log where it helps, once, and so is that it goes on. A topic that goes on is
never named, however full its rings are.

Method: looks at made-up numbers of a topic, in a time of their own; then three real daemons with a reader that takes
nothing, and their logs.
"""

from __future__ import annotations

import logging
import types
from pathlib import Path
from typing import Any

import pytest

from spindle.client import attach
from spindle.group.endpoints import Endpoint
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.group.view import Topic
from spindle.node.hold_ups import AGAIN_S, HoldUps
from spindle.topics.journals import Halts
from spindle_core.errors import WriteTimeout
from tests.spindle.daemons import daemons
from tests.support import wait_until


class Group:
    """What HoldUps sees of a node: one topic, with numbers that a test sets."""

    def __init__(self, node_id: int, writes: bool) -> None:
        self.received, self.delivered = [0, 0, 0], [0, 0, 0]
        topic = Topic(TopicSpec("t", level=Level.ATOMIC, size_max=64, window=100), 1, (1, 2, 3), (1,))
        self.view = types.SimpleNamespace(topics=(topic,))
        self.epoch = self
        local = types.SimpleNamespace(writers=[object()] if writes else [])
        self.topics = types.SimpleNamespace(local={"t": local})
        readers = [Endpoint(b"r", 2, False, "t", app_name="slow", pid=42)]
        changes: Any = self
        halts = Halts(node_id, lambda _: None, lambda _: None)
        self.hold_ups = HoldUps(node_id, changes, lambda topic, everything: readers, halts)

    def has_topic(self, topic_id: int) -> bool:
        return True

    def stability(self, topic_id: int) -> dict[str, list[int]]:
        return {"members": [1, 2, 3], "senders": [1], "received": list(self.received),
                "delivered": list(self.delivered)}


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    caplog.clear()
    return found


@pytest.mark.parametrize(("node_id", "writes", "says"), [(1, True, True), (2, False, True), (3, False, False)])
def test_it_is_said_once_where_it_helps(caplog: pytest.LogCaptureFixture, node_id: int, writes: bool, says: bool
                                        ) -> None:
    caplog.set_level(logging.INFO)
    group = Group(node_id, writes)
    group.received, group.delivered = [100] * 3, [100, 0, 100]
    for now in range(10):
        group.hold_ups.look(float(now))
        assert bool(caplog.records) == (says and now >= 2), "a moment is no matter"
    assert len(caplog.records) == says
    if not says:
        return
    [line] = lines(caplog)
    assert line == ("topic 't' is held up: its writers wait for a reader of slow (process 42) at node 2, which keeps "
                    "all and has not taken")
    group.hold_ups.look(AGAIN_S + 5)
    assert len(lines(caplog)) == 1
    group.delivered = [100] * 3
    for now in range(5):
        group.hold_ups.look(AGAIN_S + 6 + now)
    assert lines(caplog) == ["topic 't' goes on"]
    group.received, group.delivered = [200] * 3, [200, 100, 200]
    for now in range(5):
        group.hold_ups.look(AGAIN_S + 20 + now)
    assert lines(caplog) == [], "again only after a while"


def test_full_rings_are_no_matter(caplog: pytest.LogCaptureFixture) -> None:
    """As fast as it can: the slowest is a window behind at each look, and far from where it was at the one before."""
    caplog.set_level(logging.INFO)
    group = Group(1, True)
    for now in range(20):
        group.received, group.delivered = [1000 * now + 100] * 3, [1000 * now + 100, 1000 * now, 1000 * now + 100]
        group.hold_ups.look(float(now))
    assert not caplog.records


@pytest.mark.slow
def test_in_the_log_of_daemons(runtime_dir: Path) -> None:
    """At the writer's node and the reader's; not at the third, which has nothing of it."""
    with daemons(runtime_dir, 3) as running, attach(runtime_dir=runtime_dir, node_id=1) as one, \
            attach(runtime_dir=runtime_dir, node_id=2, name="sleeper") as two:
        one.declare_topic(TopicSpec("t", size_max=65536, window=4))
        reader = two.open_reader("t", keep_all=True, from_history=False, guid=b"g" * 16)
        writer = one.open_writer("t")
        with pytest.raises(WriteTimeout):
            while True:
                writer.inbox.write(bytes(65536), timeout_s=0.5)
        said = "topic 't' is held up: its writers wait for a reader of sleeper (process "
        wait_until(lambda: all(said in daemon.log for daemon in running[:2]))
        wait_until(lambda: reader.log.take(1000) == [] and "topic 't' goes on" in running[0].log)
        assert "held up" not in running[2].log
        assert running[0].log.count("is held up") == 1
