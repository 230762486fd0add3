"""History for fresh members: what a volatile or logged topic delivered before they came.

Why the donor pushes: who gives and who gets follows from the view, so nothing has to be asked for, and the cut is
known on both sides without a word: the donor's log as it stands when the old epoch is delivered to its trim and nothing
of the new one has come.

Rules: the donor pins its log with a keep-all cursor before it installs the new view, and lets go when the last chunk is
queued; frames are bounded, and the stream waits for the connection, so a slow joiner costs the donor one chunk of
memory. The receiver holds the topic's delivery meanwhile (`spindle.topics.ports`): history first, then live messages.
"""

from __future__ import annotations

import asyncio
import os
from typing import TYPE_CHECKING

from spindle.errors import WireError
from spindle.proto import node_pb2 as pb

if TYPE_CHECKING:
    from spindle.transport.peers import Peer
    from spindle_core.delivery import Cursor, DeliveryLog
    from spindle_core.engine import Engine
    from spindle_core.reader import LogReader

CHUNK_BYTES = 256 << 10  # payload of one frame, if its messages are smaller
CHUNK_MESSAGES = 1024
WRITER_ID_MAX = 0xFFFF  # of one node, as messages carry it
LAG_POLL_S = 0.005  # between two looks at a log that has not reached the cut yet

Message = tuple[bytes, int, int, int, int, int, int, int]
"""payload, sender, sequence, view id, source_ns, writer id, reception_ns (0: now), relay (see log_record)."""


def local_reader(engine: Engine, log: DeliveryLog, cursor: Cursor) -> LogReader:
    """A reader of a log in this process, with descriptors of its own."""
    from spindle_core.memory import Mapping
    from spindle_core.reader import LogReader

    return LogReader(
        Mapping.attach(os.dup(log.mapping.fd)),
        Mapping.attach(os.dup(cursor.mapping.fd), writable=True),
        os.dup(cursor.data_fd),
        Mapping.attach(os.dup(engine.bell.fd)),
        os.dup(engine.bell_fd),
    )


class Donation:
    """One history on its way to one fresh member. Made at the cut, `run` afterwards.

    Everything that is in the log at the cut belongs to it; if the log lags behind the trim (it is full, or the donor
    itself still gets a history), `cut` is not known yet and is set when the log has caught up.
    """

    def __init__(self, engine: Engine, topic_id: int, log: DeliveryLog, view_id: int, node_id: int) -> None:
        from spindle_core.delivery import Cursor

        self.topic_id, self.view_id, self.node_id = topic_id, view_id, node_id
        self.cut: int | None = None  # messages of the log with a smaller index belong to the history
        self._engine = engine
        self._cursor = Cursor(keep_all=True, from_history=True)
        engine.add_reader(topic_id, self._cursor)
        self._reader = local_reader(engine, log, self._cursor)

    async def run(self, peer: Peer | None) -> int:
        """Streams to the peer; returns how many messages. Raises WireError if the connection ends."""
        if peer is None:
            raise WireError(f"node {self.node_id} is not connected, so it gets no history")
        count = 0
        while True:
            messages, done = self.take()
            count += len(messages)
            chunk = pb.HistoryChunk(view_id=self.view_id, topic_id=self.topic_id, last=done, messages=messages)
            if messages or done:
                peer.conn.send(pb.PeerMessage(history=chunk).SerializeToString())
                await peer.conn.drain(CHUNK_BYTES)
            if done:
                return count
            if not messages:
                await asyncio.sleep(LAG_POLL_S)

    def take(self) -> tuple[list[pb.HistoryMessage], bool]:
        """One chunk, and whether it is the last."""
        messages: list[pb.HistoryMessage] = []
        size = 0
        while size < CHUNK_BYTES and len(messages) < CHUNK_MESSAGES:
            if self.cut is not None and self._reader.position_index >= self.cut:
                return messages, True
            pairs = self._reader.take_pairs(1)
            if not pairs:
                break
            payload, info = pairs[0]
            size += len(payload)
            messages.append(pb.HistoryMessage(
                payload=payload, sender=info.sender, sequence=info.sequence, view_id=info.view_id,
                source_ns=info.source_timestamp, writer_id=info.writer, reception_ns=info.reception_timestamp,
                relay=info.relay))
        return messages, self.cut is not None and self._reader.position_index >= self.cut

    def close(self) -> None:
        """Lets go of the log."""
        self._engine.remove_reader(self.topic_id, self._cursor)
        self._reader.close()
        self._cursor.close()


def received(chunk: pb.HistoryChunk) -> list[Message]:
    """The messages of a chunk, ready to be appended. Raises WireError if no log could take one."""
    if any(one.writer_id > WRITER_ID_MAX for one in chunk.messages):
        raise WireError(f"a history of topic {chunk.topic_id} names a writer beyond {WRITER_ID_MAX}")
    return [
        (one.payload, one.sender, one.sequence, one.view_id, one.source_ns, one.writer_id, one.reception_ns,
         one.relay)
        for one in chunk.messages
    ]
