"""Goal: nodes that have just joined are reached like all others.

Method: real nodes on one loop, on hosts of their own.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from pathlib import Path

import pytest

from spindle.errors import ConnectionEnded, NodeStopped
from spindle.node.node import Node
from tests.spindle.large.group import run_on_hosts


def test_a_newcomer_is_reached_before_its_view_is_installed_here(runtime_dir: Path) -> None:
    """Goal: a program at a node that has just joined opens a link to another host at once, though that one's node has
    not installed the view yet in which the newcomer is.

    Method: the view of the node that opens the connection is put back by one, as it is for a moment at each join.
    """
    async def body(one: Node, two: Node) -> None:
        changes = one._changes
        installed = changes.view
        assert installed is not None
        changes.view = dataclasses.replace(installed, members=installed.members[:1])
        try:
            assert changes.view.member(2) is None
            assert await two.links.neighbours.reach(1) == one.links.pooling().life
        finally:
            changes.view = installed

    run_on_hosts(runtime_dir, [[1], [2]], body)


def test_who_keeps_what_was_logged_keeps_nothing_open(runtime_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: an attempt that comes to nothing, as when the node stops in the middle, leaves nothing open with the pool.

    Method: `caplog` keeps all records; the pool of one node takes nothing any more. Whatever is open is found at the
    end.
    """
    async def body(one: Node, two: Node) -> None:
        async def stops(work: Callable[[], object]) -> object:
            raise NodeStopped("the node stops, and its links with it")

        one.links.pooling().do = stops  # type: ignore[method-assign, assignment]
        with contextlib.suppress(ConnectionEnded):
            await two.links.neighbours.reach(1)
        one.links.neighbours.end(two.links.pooling().life, ConnectionEnded("over"))

    run_on_hosts(runtime_dir, [[1], [2]], body)
    assert any("the node stops" in record.getMessage() for record in caplog.records)
