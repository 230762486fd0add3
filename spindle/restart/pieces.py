"""A history in chunks of bounded size, and back: large messages travel in pieces.

Why pieces: histories share a connection with the words that keep the group alive, and frames go one behind the other. A
message may have 64 MiB, and a line may be slow. So no frame is large, whatever the messages are.

Rules:
- A message that doesn't fit goes on at the beginning of the next chunk of the same history, until nothing of it is
  missing. Only its first piece says whose it is.
- Both ends measure a history by `cost`. Nothing is allocated for what was only announced.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from spindle.errors import WireError
from spindle.group.levels import Level
from spindle.group.topics import TAG_MAX, TopicSpec
from spindle.proto import node_pb2 as pb
from spindle.restart.chain import Order

CHUNK_BYTES = 128 << 10  # payload of one chunk
CHUNK_MESSAGES = 1024
PIECE_COST = 64  # bytes that a message or piece is taken to cost beside its payload
JOURNAL_SAMPLE_MAX = 64 << 20  # bytes of a sample of a logged topic: its journal writes it as one message
ENTRY_SIZE = 40  # bytes of what stands in the order for a large sample
ENTRY_SAYS = slice(16, 40)  # of that: the sample's first and last bytes, where it says something of time and rank
OVER_COST = 32  # ... and a key that is over
CHUNK_COST_MAX = CHUNK_BYTES + CHUNK_MESSAGES * PIECE_COST
WRITER_ID_MAX = 0xFFFF  # of one node, as messages carry it


def entry_id(entry: bytes) -> int:
    """Of a large sample."""
    return int.from_bytes(entry[:8], "little")


def message_max(spec: TopicSpec) -> int:
    """Bytes of the largest message that a history brings whole: of a logged topic as its journals have it, of others
    what fits a slot, as larger samples are asked for apart."""
    return max(spec.size_max, JOURNAL_SAMPLE_MAX) if spec.level is Level.LOGGED else max(spec.size_max, ENTRY_SIZE)


class Message(NamedTuple):
    """A message as delivery logs and the core's backlog have it, in the order of DeliveryLog.append()."""

    payload: bytes
    sender: int  # node id
    sequence: int
    view_id: int
    source_ns: int
    writer_id: int
    reception_ns: int  # 0: now
    relay: int  # of a writer on a host without a node, else 0; see log_record
    tag: int  # what the layer above gave it; 0: an ordinary message
    key: int = 0  # of what it is about
    large: bool = False  # the payload is the entry of a large sample, whose bytes lie beside

    @property
    def order(self) -> Order:
        """Its place in the topic's order."""
        return self.view_id, self.sequence

    @property
    def relayed_writer(self) -> int:
        """Identity of a relayed writer, see `spindle.relay`."""
        return self.relay << 15 | self.writer_id & 0x7FFF


def cost(chunk: pb.HistoryChunk) -> int:
    """How much of a history a chunk is, in bytes."""
    return sum(len(one.payload) + PIECE_COST for one in chunk.messages) + len(chunk.over) * OVER_COST


class Cutter:
    """Messages in, chunks out. `following` brings the next message, or None if there is none at the moment."""

    def __init__(self, following: Callable[[], Message | None]) -> None:
        self._following = following
        self._message: Message | None = None  # a part of which has gone already
        self._gone = 0  # bytes of it

    def fill(self, chunk: pb.HistoryChunk) -> bool:
        """Puts what fits into the chunk; False if there would have been room for more than there was."""
        room = CHUNK_BYTES
        while room and len(chunk.messages) < CHUNK_MESSAGES:
            if self._message is None:
                self._message = self._following()
                if self._message is None:
                    return False
                self._gone = 0
            one = self._message
            piece = one.payload[self._gone : self._gone + room]
            missing = len(one.payload) - self._gone - len(piece)
            if self._gone:
                chunk.messages.add(payload=piece, missing=missing)
            else:
                chunk.messages.add(
                    payload=piece, missing=missing, sender=one.sender, sequence=one.sequence, view_id=one.view_id,
                    source_ns=one.source_ns, writer_id=one.writer_id, reception_ns=one.reception_ns, relay=one.relay,
                    tag=one.tag, key=one.key, large=one.large)
            room -= len(piece)
            self._gone += len(piece)
            if not missing:
                self._message = None
        return True


class Gatherer:
    """The chunks of one history in, messages of at most `size_max` bytes out."""

    def __init__(self, topic: str, size_max: int) -> None:
        self._topic, self._size_max = topic, size_max
        self._first: pb.HistoryMessage | None = None  # piece of the message that isn't whole yet
        self._payload = bytearray()
        self._missing = 0

    @property
    def partial(self) -> bool:
        """True in the middle of a message."""
        return self._first is not None

    def take(self, chunk: pb.HistoryChunk) -> list[Message]:
        """The messages that this chunk makes whole, ready to be appended. Raises WireError if no log could take one."""
        messages: list[Message] = []
        for piece in chunk.messages:
            if self._first is None:
                self._begin(piece)
            elif not piece.payload or len(piece.payload) + piece.missing != self._missing:
                raise WireError(f"a history of topic {self._topic!r} has a message of which {self._missing} bytes are "
                                f"missing, and {len(piece.payload)} of {piece.missing + len(piece.payload)} came")
            else:
                self._payload += piece.payload
                self._missing = piece.missing
            if not self._missing:
                assert self._first is not None
                one, payload = self._first, bytes(self._payload)
                messages.append(Message(payload, one.sender, one.sequence, one.view_id, one.source_ns, one.writer_id,
                                        one.reception_ns, one.relay, one.tag, one.key, one.large))
                self._first, self._payload = None, bytearray()
        if chunk.last and self._first is not None:
            raise WireError(f"a history of topic {self._topic!r} ends in the middle of a message")
        return messages

    def _begin(self, piece: pb.HistoryMessage) -> None:
        if len(piece.payload) + piece.missing > self._size_max:
            raise WireError(f"a history of topic {self._topic!r} has a message of more than {self._size_max} bytes")
        if piece.large and len(piece.payload) + piece.missing != ENTRY_SIZE:
            raise WireError(f"a history of topic {self._topic!r} has a large sample without its entry")
        if piece.writer_id > WRITER_ID_MAX:
            raise WireError(f"a history of topic {self._topic!r} names a writer beyond {WRITER_ID_MAX}")
        if piece.tag > TAG_MAX:
            raise WireError(f"a history of topic {self._topic!r} has a message with a tag beyond {TAG_MAX}")
        self._first, self._missing = piece, piece.missing
        self._payload = bytearray(piece.payload)
