"""A topic that is being read, and what is known of its types."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING

from dds.codecs.schemas import schema_of
from dds.codecs.types import codec_for
from dds.dynamic import TopicType
from dds.messages import announced
from dds.messages.contents import GONE, Contents, Said, node_of
from spindle.errors import SpindleError
from spindle.group.schemas import MessageSchema

if TYPE_CHECKING:
    from spindle.client import ReaderHandle, Session
    from spindle.group.position import Position
    from spindle.group.topics import TopicInfo

NODE_SHIFT, WRITER_MASK = 16, 0xFFFF  # of publication handles
TYPE_BYTES_MAX = 1 << 20  # of a type's description in a channel's metadata


@dataclasses.dataclass(frozen=True)
class Kind:
    """A type as a recording has it. `key` tells types of one topic apart."""

    key: bytes
    schema: MessageSchema | None
    said: str
    keyed: bool


OPAQUE = Kind(b"", schema_of(bytes), "", False)
UNKNOWN = Kind(b"?", None, "", False)


class Writers:
    """What a recording calls the writers of one order: their node, and a number that the next one gets when they have
    ended. Each has channels of its own there, of which a file has only so many."""

    def __init__(self) -> None:
        self._names: dict[int, int] = {}
        self._used: dict[int, set[int]] = {}  # numbers, by node

    def name(self, writer: int) -> int:
        found = self._names.get(writer)
        if found is None:
            used = self._used.setdefault(node_of(writer), set())
            number = next(number for number in itertools.count(1) if number not in used)
            used.add(number)
            found = self._names[writer] = node_of(writer) << NODE_SHIFT | number
        return found

    def end(self, said: Said) -> None:
        """It, or its node, has ended."""
        ended = [said.writer]
        if said.kind == GONE:
            ended = [writer for writer in self._names if node_of(writer) == node_of(said.writer)]
        for writer in ended:
            name = self._names.pop(writer, None)
            if name is not None:
                self._used[node_of(writer)].discard(name & WRITER_MASK)


class Track:
    """A topic of the node that is being read: a topic, or an order group with several."""

    def __init__(self, info: TopicInfo) -> None:
        self.info = info
        self.last_time = 0
        self.writers = Writers()
        self.names: dict[int, str] = {}  # of an order group: topics by channel number
        self.kinds: dict[str, dict[bytes, Kind]] = {}  # types of each topic by the marks of their payloads
        self.looked_s = 0.0
        self.since: dict[str, float] = {}  # when a type was first missing

    def begin(self, session: Session, handle: ReaderHandle) -> None:
        """It is read by this handle; of what was read before nothing counts any more."""
        self.session, self.handle = session, handle
        self.contents = Contents()
        self.lost_before = 0
        self.places: dict[int, Position] = {}  # how far it was in each group that it has left
        self.after: Position | None = None  # where the next node's reader goes on; the log has nothing later
        self.is_read = False  # up to there

    def leave(self) -> None:
        """Its node has gone: what the log has by now is read, and nothing later."""
        try:
            self.after = self.handle.freeze()
        except SpindleError:  # killed while it changed the log: its rest can't be read
            self.after = self.handle.position
        self.is_read = False
        self.places |= {one.group_id: one for one in self.handle.passed(self.after)}

    def goes_on(self, session: Session, handle: ReaderHandle) -> None:
        """It is read by this handle of the next node, from where it stood."""
        assert self.after is not None
        self.places[self.after.group_id] = self.after
        self.lost_before += int(self.handle.log.lost)
        self.session, self.handle, self.after = session, handle, None

    @property
    def lost(self) -> int:
        return self.lost_before + int(self.handle.log.lost)


def kind_of(one: TopicType) -> Kind:
    """A type that is announced, as a recording has it."""
    codec = codec_for(one.data_type, keys=one.keys)
    said = announced.encode({"qos": {}}, codec, TYPE_BYTES_MAX).decode()
    try:
        schema: MessageSchema | None = one.schema
    except ValueError:
        schema = None
    return Kind(one.announced.identifier, schema, said, codec.key_of is not None)


__all__ = ["OPAQUE", "UNKNOWN", "Kind", "Track", "kind_of"]
