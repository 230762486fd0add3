"""Goal: a disk that doesn't answer, as one that is frozen for a backup, keeps nobody waiting without a word, and logged
topics open when it answers again.

Method: one node, and a disk whose answers wait for the test.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from spindle.errors import JournalError
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.topics import journals
from tests.spindle.node.test_node import Group, with_group


class Disk:
    """What it is asked waits while it is frozen."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *works: str) -> None:
        self._works, self._monkeypatch = works, monkeypatch
        self._thawed = threading.Event()

    def __enter__(self) -> None:
        for name in self._works:
            self._monkeypatch.setattr(journals, name, self._late(getattr(journals, name)))

    def _late(self, work: Any) -> Any:
        def late(*arguments: Any) -> Any:
            self._thawed.wait(60)
            return work(*arguments)

        return late

    def __exit__(self, *_: object) -> None:
        self._thawed.set()


@pytest.mark.parametrize("works", [("_check_fits",), ("_check",), ("_check_fits", "_check", "_keeps_any")], ids=str)
def test_a_disk_that_does_not_answer_is_named(
        runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, works: tuple[str, ...]) -> None:
    @with_group
    async def body(group: Group) -> None:
        node = await group.start(journal_dir=runtime_dir / "journal", open_timeout_s=1.0)
        with Disk(monkeypatch, *works):
            with pytest.raises(JournalError, match=r"'t': the disk of .*journal, has not answered for 1 s"):
                await node.declare_topic(TopicSpec("t", level=Level.LOGGED))
                await node.open_writer("t")
            await node.declare_topic(TopicSpec("other"))
            await node.open_writer("other")
        await node.declare_topic(TopicSpec("t", level=Level.LOGGED))
        await asyncio.wait_for(node.open_writer("t"), 20)

    body(runtime_dir)
