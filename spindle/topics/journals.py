"""Journals as a node has them: made as its configuration says, refused where there is no room or what is there doesn't
fit, and heard of when one halts.

Why the group is told of a journal that halts, or hangs: its topic's writers are held up everywhere, and whoever asks
why, at any node, is to hear of the disk (`spindle.client.holding`). So the node announces it beside the endpoints of
its applications, until it goes on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from spindle.errors import JournalError
from spindle.group.endpoints import HALTED, TOPIC, Endpoint
from spindle.logs import JOURNAL_GOES_ON, JOURNAL_HALTED, about
from spindle.waiting import within

if TYPE_CHECKING:
    from spindle.config.settings import NodeConfig
    from spindle.group.topics import TopicSpec
    from spindle.journal import Journal
    from spindle.restart.chain import Holders

T = TypeVar("T")

SILENT_S = 5.0  # a disk that takes longer for one commit is said not to answer
_log = logging.getLogger("spindle.journal")


def open_journal(config: NodeConfig, spec: TopicSpec, node_id: int, *reader: Any, **options: Any) -> Journal:
    """A journal with the node's settings. Blocks, and raises, as `Journal` does."""
    from spindle.journal import Journal
    from spindle.journal.retention import Retention

    assert config.journal_dir is not None
    return Journal(
        config.journal_dir, spec, node_id, *reader, fsync=config.journal_fsync,
        group_commit_ms=config.journal_group_commit_ms, max_file_size=config.journal_max_file_size,
        retention=Retention(config.journal_keep_files, config.journal_keep_bytes, config.journal_keep_age_s,
                            config.journal_drop, config.journal_free_min), **options)


async def _on_disk(config: NodeConfig, name: str, work: Callable[..., T], *arguments: Any) -> T:
    """What the work returns, which a thread does. Raises JournalError if the disk doesn't answer: it is frozen for a
    backup, say, or its server has gone."""
    doing = asyncio.get_running_loop().run_in_executor(None, work, *arguments)
    try:
        return await within(config.open_timeout_s, doing)
    except asyncio.TimeoutError:
        raise JournalError(f"topic {name!r}: the disk of this node's journals, {config.journal_dir}, has not answered "
                           f"for {config.open_timeout_s:g} s; is its file system frozen (fsfreeze), or its server "
                           "gone? Try again when it answers") from None


async def check_fits(config: NodeConfig, spec: TopicSpec, node_id: int) -> None:
    """Returns unless this node has messages of another type of the topic on disk. Raises TopicMismatch that says what
    to do."""
    if config.journal_dir is not None:
        await _on_disk(config, spec.name, _check_fits, config.journal_dir, spec, node_id)


def _check_fits(directory: Path, spec: TopicSpec, node_id: int) -> None:
    from spindle.journal.fitting import check_fits

    check_fits(directory, spec, node_id)


async def keeps_any(config: NodeConfig, name: str, node_id: int) -> bool:
    """True if this node has a journal of the topic, or knows who has one."""
    directory = config.journal_dir
    return directory is not None and await _on_disk(config, name, _keeps_any, directory, name, node_id)


def _keeps_any(directory: Path, name: str, node_id: int) -> bool:
    from spindle.journal.files import OsFiles
    from spindle.journal.recovery import journal_numbers
    from spindle.restart.ledger import ledger_path

    try:
        return ledger_path(directory, name, node_id).exists() or bool(
            journal_numbers(OsFiles(), directory, name, node_id))
    except OSError:
        return False


async def check_room(config: NodeConfig, name: str) -> None:
    """Returns if this node can keep a journal of the topic. Raises JournalError that says what to do."""
    directory = config.journal_dir
    if directory is None:
        raise JournalError(f"topic {name!r} is logged, but this node has no journal directory; set [journal] dir in "
                           "its configuration")
    await _on_disk(config, name, _check, directory, config.journal_free_min)


def _check(directory: Path, free_min: int) -> None:
    from spindle.journal import check_directory

    check_directory(directory, free_min=free_min)


class Halts:
    """Tells the group which journals of this node halt, or wait for a disk that doesn't answer. announce(endpoint),
    withdraw(guid) are the ways out."""

    def __init__(self, node_id: int, announce: Callable[[Endpoint], None], withdraw: Callable[[bytes], None]) -> None:
        self._node_id, self._announce, self._withdraw = node_id, announce, withdraw
        self._silent: set[str] = set()  # topics whose journals wait for such a disk, as was said

    def heard(self, topic: str, reason: str) -> None:
        """The journal of this topic has halted; or, if `reason` is empty, it goes on."""
        guid = blake2b(f"journal of {topic}".encode(), digest_size=12, key=b"%d" % self._node_id).digest()
        if not reason:
            self._withdraw(guid)
            return
        said = json.dumps({"qos": {}, HALTED: reason}).encode()
        self._announce(Endpoint(guid, self._node_id, False, topic, said, "journal", kind=TOPIC))

    def look(self, journals: Mapping[str, Journal]) -> None:
        """At what the disks of these journals do, by topic: from time to time."""
        for topic in self._silent - {name for name, one in journals.items() if one.silent_s}:
            self._silent.discard(topic)
            _log.warning("the journal of topic %r goes on", topic, extra=about(JOURNAL_GOES_ON, topic=topic))
            if topic not in journals or not journals[topic].halted:
                self.heard(topic, "")
        for topic, journal in journals.items():
            if journal.silent_s >= SILENT_S and topic not in self._silent:
                self._silent.add(topic)
                why = (f"its disk, {journal.directory}, does not answer: its file system may be frozen (fsfreeze), or "
                       "its server be gone")
                _log.warning("the journal of topic %r has waited for %g s, and holds its writers up: %s", topic,
                             SILENT_S, why, extra=about(JOURNAL_HALTED, topic=topic))
                self.heard(topic, why)


def holding(holders: Holders) -> dict[str, Any]:
    """What the ledger of one of the holders says."""
    return {"holders": holders, "whole": True, "successor": None}


def running(task: asyncio.Task[Journal] | None) -> Journal | None:
    """The journal that the task has opened, if it has."""
    if task is None or not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result()


def look_at(task: asyncio.Task[Journal]) -> None:
    """Whoever opens a reader or writer awaits the task and reports its error; asyncio need not."""
    if not task.cancelled():
        task.exception()


__all__ = ["Halts", "check_fits", "check_room", "holding", "keeps_any", "look_at", "open_journal", "running"]
