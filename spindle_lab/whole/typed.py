"""What writers of a run say of the types of their samples, and what must be known of them.

    H5  who takes a message of a topic that keeps history finds the type that its writer has said, with the reader or at
        the reader's node, whoever has gone since; and the journal's file that has the message has the type
"""

from __future__ import annotations

import random
from pathlib import Path
from typing import TYPE_CHECKING

from spindle.group.types import TYPE_BYTES_MAX
from spindle.journal.files import OsFiles
from spindle.journal.reading import Channels, add_channels, messages_of
from spindle.journal.recovery import journal_numbers, open_scan
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle_lab.whole.programs import Reading

KINDS = 12  # types of one run
SIZES = (3, 40, 40, 700, TYPE_BYTES_MAX)


class Types:
    """Of one run. Nobody says any unless begin() was called."""

    def __init__(self) -> None:
        self._rng = random.Random(0)
        self._kinds: list[bytes] = []
        self._said: dict[bytes, bytes] = {}  # by the writer's name

    def begin(self, seed: int) -> None:
        """Writers say types from now on."""
        self._rng = random.Random(f"types {seed}")
        self._kinds = [(b"%d " % number).ljust(self._rng.choice(SIZES), b".") for number in range(KINDS)]

    def of_writer(self, name: str) -> bytes:
        """What a new writer is to say; empty for some."""
        if not self._kinds or self._rng.random() < 0.2:
            return b""
        said = self._said[name.encode()] = self._rng.choice(self._kinds)
        return said

    def took(self, reading: Reading, name: bytes) -> None:
        """A reader has taken a message of this writer. Raises Violation."""
        said, program = self._said.get(name), reading.program
        if said is None or not reading.keeps_history or said in reading.handle.types or program.outside:
            return  # what comes to a host without a node may be older than all that the node keeps
        node = program.world.node_of(program.session)
        local = node._changes.topics.local.get(reading.topic) if node is not None else None
        if node is None or local is None or not local.member or local._entered != reading.entered:
            return
        if said not in local.types.said.values():
            raise Violation("H5", f"{reading} takes a message of {name!r}, and nobody there knows its type "
                                  f"{said[:20]!r} ({len(local.types.said)} others)")
        if len(node.view().node_ids) > 1 and name.rpartition(b".")[0] != str(program.process).encode():
            program.world.met("a reader finds the type of another program's writer")

    def look_at_journal(self, directory: Path, topic: str, node_id: int) -> int:
        """Of how many messages on disk the type is there. Raises Violation."""
        files, found = OsFiles(), 0
        for _, path in journal_numbers(files, directory, topic, node_id):
            handle = files.open(path)
            try:
                scan, channels = open_scan(files, handle, path), Channels()
                known = set(scan.head.types)
                for layout, body in scan.commits():
                    add_channels(channels, layout)
                    for message in messages_of(topic, layout, body, channels):
                        said = self._said.get(message.payload.partition(b":")[0])
                        if said is not None and said not in known:
                            raise Violation("H5", f"{path.name} has a message of which it doesn't know the type: "
                                                  f"{message.payload[:40]!r}")
                        found += said is not None
            finally:
                files.close(handle)
        return found


__all__ = ["Types"]
