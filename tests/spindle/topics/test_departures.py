"""Goal: what a topic says of a node that has gone stands between the messages of two views.

Method: a node on a loop of the test's own, and a daemon that is killed.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from spindle.client.attaching import attach
from spindle.group.topics import TopicSpec
from spindle.group.view import View
from spindle.node.node import Node
from spindle.restart.pieces import Message
from tests.spindle.daemons import Daemon
from tests.spindle.nodes import run_with_nodes
from tests.spindle.ports import reader_of

DEPARTURE = 200


@pytest.mark.slow
def test_the_end_of_a_node_is_said_before_the_next_view_is_there(runtime_dir: Path) -> None:
    """Messages of the next view come behind it only if it is held ready when that may begin. Method: what the topic has
    ready at that moment, and what the reader gets."""

    def daemon_that_wrote() -> Daemon:
        daemon = Daemon(2, runtime_dir=runtime_dir).wait_ready()
        with attach(node_id=2) as session:
            writer = session.open_writer("t")
            writer.inbox.write(b"x")
            daemon.kill()
        return daemon

    async def body(one: Node) -> None:
        await one.declare_topic(TopicSpec("t", window=8, size_max=64, departure=DEPARTURE))
        log = reader_of(one, await one.open_reader("t", keep_all=True, from_history=False))
        had: list[list[int]] = []
        topics = one._changes.topics
        before_install = topics.before_install

        def watched(view: View) -> None:
            before_install(view)
            if len(view.node_ids) == 1:
                had.append([one.tag for one in topics.local["t"]._backlog if isinstance(one, Message)])

        topics.before_install = watched  # type: ignore[method-assign]
        daemon = await asyncio.to_thread(daemon_that_wrote)
        try:
            while not had:
                await asyncio.sleep(0.001)
            assert had[0][-1:] == [DEPARTURE]
            got: list[int] = []
            while DEPARTURE not in got:
                got += [info.tag for _, info in log.take_pairs(10)]
                await asyncio.sleep(0.001)
            assert got[-1] == DEPARTURE
        finally:
            daemon.stop()

    run_with_nodes(runtime_dir, 1, body)
