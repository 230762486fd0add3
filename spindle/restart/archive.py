"""What a node has on disk of its logged topics, as the event loop deals with it: the ledgers, where the journals are,
and work that blocks, on a thread."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from spindle.restart.pieces import Message

if TYPE_CHECKING:
    from pathlib import Path

    from spindle.journal.reading import JournalMessage
    from spindle.journal.recovery import Known
    from spindle.restart.disk import Store
    from spindle.restart.ledger import Ledger

NO_JOURNALS = "it has no journal directory ([journal] dir)"
T = TypeVar("T")


class Archive:
    """The journal directory of a node; None: it has none."""

    def __init__(self, directory: Path | None, node_id: int) -> None:
        self.directory, self._node_id = directory, node_id
        self._ledgers: dict[str, Ledger] = {}
        self._known: Known | None = None

    def ledger(self, topic: str) -> Ledger:
        """The one ledger of this node for the topic."""
        from spindle.restart.ledger import Ledger

        assert self.directory is not None
        if topic not in self._ledgers:
            self._ledgers[topic] = Ledger(self.directory, topic, self._node_id)
        return self._ledgers[topic]

    def store(self, topic: str) -> Store:
        """Where this node keeps the topic's journal."""
        from spindle.journal.files import OsFiles
        from spindle.journal.recovery import Known
        from spindle.restart.disk import Store

        assert self.directory is not None
        self._known = self._known or Known()
        return Store(self.directory, topic, self._node_id, OsFiles(), self._known)


async def in_thread(work: Callable[..., T], *arguments: object) -> T:
    """Runs what blocks on a thread; returns its result."""
    return await asyncio.get_running_loop().run_in_executor(None, work, *arguments)


def plain(one: JournalMessage) -> Message:
    """A journal's message as it goes into a delivery log: with the timestamp that it has in everybody's."""
    return Message(one.payload, one.sender, one.sequence, one.view_id, one.source_ns, one.writer & 0xFFFF, one.log_time,
                   one.writer >> 16 & 0xFFFFFFFF, one.tag, one.key)
