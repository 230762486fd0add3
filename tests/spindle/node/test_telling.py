"""Goal: a node says of itself what others ask; who can't is named, and nobody is waited for longer than a second.

Method: real nodes on one loop; what goes between them is counted at the connection.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from spindle.errors import NodeStopped, ProtocolMismatch
from spindle.node import telling
from spindle.node.node import Node
from spindle.proto import node_pb2 as pb
from spindle.proto import opening_pb2
from tests.spindle.nodes import run_with_nodes


def test_what_is_asked_is_answered(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        said = await one.telling.ask(2)
        assert said["node_id"] == 2 and said["phase"] == "stable" and said["counters"]["view_changes"] >= 1
        figures = await one.telling.ask(2, figures=True)
        assert figures["node_id"] == 2 and "members" not in figures and figures["cpu_s"] > 0
        with pytest.raises(NodeStopped, match="node 3 is not connected"):
            await one.telling.ask(3)

    run_with_nodes(runtime_dir, 2, body)


def test_an_answer_of_many_pieces(runtime_dir: Path) -> None:
    """More than is sent at once arrives whole, and others' messages between its pieces do no harm."""

    async def body(one: Node, two: Node) -> None:
        much = ["x" * 100] * (10 * telling.PIECE_BYTES // 100)
        two.status_told = lambda: {"much": much}
        told, small = await asyncio.gather(one.telling.ask(2), one.telling.ask(2, figures=True))
        assert told["much"] == much and small["node_id"] == 2

    run_with_nodes(runtime_dir, 2, body)


def test_who_asks_the_same_meanwhile_costs_nothing(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        asked = 0

        def status() -> dict[str, Any]:
            nonlocal asked
            asked += 1
            return {"asked": asked}

        two.status_told = status
        found = await asyncio.gather(*(one.telling.ask(2) for _ in range(50)))
        assert [told["asked"] for told in found] == [1] * 50
        assert (await one.telling.ask(2))["asked"] == 2

    run_with_nodes(runtime_dir, 2, body)


def test_a_node_of_an_earlier_version_is_named(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        one._peers.connected[2].abilities = opening_pb2.KEEPS_TYPES
        with pytest.raises(ProtocolMismatch, match="node 2 is of an earlier version"):
            await one.telling.ask(2)

    run_with_nodes(runtime_dir, 2, body)


def test_nobody_is_waited_for_who_goes_or_hangs(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        monkeypatch.setattr(Node, "_told", lambda node, figures: {"node_id": node.node_id})
        begun = asyncio.Event()

        async def never(node_id: int, number: int, figures: bool) -> None:
            begun.set()

        two.telling._answer = three.telling._answer = never  # type: ignore[method-assign]
        asking = asyncio.ensure_future(one.telling.ask(2))
        await begun.wait()
        await two.stop()
        with pytest.raises(NodeStopped, match="node 2 has gone"):
            await asking
        monkeypatch.setattr(telling, "TIMEOUT_S", 0.05)
        with pytest.raises(TimeoutError, match=r"node 3 did not say anything of itself within 0\.05 s"):
            await one.telling.ask(3)
        assert not one.telling._waiting and not one.telling._asked

    run_with_nodes(runtime_dir, 3, body)


def test_a_late_or_foreign_answer_is_nothing(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        one.telling.take(2, pb.PeerMessage(status_part=pb.StatusPart(number=99, json=b"{}", last=True)))
        asking = asyncio.ensure_future(one.telling.ask(2))
        await asyncio.sleep(0)
        [number] = one.telling._waiting
        one.telling.take(3, pb.PeerMessage(status_part=pb.StatusPart(number=number, json=b'{"a": 1}', last=True)))
        assert (await asking)["node_id"] == 2

    run_with_nodes(runtime_dir, 3, body)
