"""Readers and writers of an application on a host without a node: rings in its own memory, and how far they are.

Why the same rings as beside a node: whoever reads and writes, sleeps or is woken sees no difference. What a node does
at their other end, a thread of this process does here (`spindle.client.remote_channel`).

Rules: everything here is called under the channel's lock, but `RemoteReader.take_in`, which only the thread that reads
the connection calls. Totals of one connection begin anew with the next; `_base` and `_came_before` tell where.
"""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING

from spindle.client.remote_larges import HELD_MAX, ArrivedLarges, KeptLarges, Sending
from spindle.errors import WireError
from spindle.group.levels import Level
from spindle.group.position import Position, farthest, places
from spindle.group.topics import choose_inbox_slots

if TYPE_CHECKING:
    import threading

    from spindle.group.leases import Lease
    from spindle.group.topics import TopicInfo
    from spindle.proto import attach_pb2 as pb
    from spindle.proto import relay_pb2 as rb
    from spindle_core.remote import Bell

WRITER_BITS = 47  # of a relayed writer's identity
SLOTS_FACTOR = 4  # slots are held until messages are delivered everywhere, over a longer way than on one host...
LOGGED_FACTOR = 16  # ...and until they are on all disks
SLOTS_MAX = 4096
BATCH_BYTES = 64 << 10  # payload of one frame, if its messages are smaller
CREDIT_BYTES = 1 << 20  # on their way to one reader, if messages are smaller


def new_identity() -> int:
    """The identity of a relayed writer, the same at every node. Its bits above the lowest 15 are never all 0."""
    while True:
        found = int.from_bytes(os.urandom(8), "little") >> (64 - WRITER_BITS)
        if found >> 15:
            return found


class RemoteWriter:
    """One writer: its ring, and what of it is on the way to the present node."""

    def __init__(self, bell: Bell, topic: TopicInfo, slots: int, endpoint: bytes, guid: bytes, farewell: int,
                 lease: Lease | None, type_: bytes, changed: threading.Condition) -> None:
        from spindle_core.ends import Loose
        from spindle_core.inbox_writer import InboxWriter
        from spindle_core.memory import Mapping
        from spindle_core.remote import Outbox

        size_max = topic.spec.size_max
        logged = topic.spec.level is Level.LOGGED
        slots = slots or min(SLOTS_MAX, (LOGGED_FACTOR if logged else SLOTS_FACTOR) * choose_inbox_slots(size_max))
        self.topic = topic
        self.identity = new_identity()
        # Messages of a logged topic that aren't persisted may have to be sent again after all nodes were down.
        self.outbox = Outbox(size_max, slots, 0, keep=logged)
        ring = Mapping.attach(os.dup(self.outbox.ring.fd), writable=True)
        progress, page = Mapping.attach(os.dup(self.outbox.progress.fd)), Mapping.attach(os.dup(bell.page.fd))
        with Loose.copies(self.outbox.their_fd, bell.fd) as fds:
            stamped = topic.spec.stamped
            space_fd, bell_fd = fds.take_all()
            self.inbox = InboxWriter(ring, progress, space_fd, page, bell_fd, stamped=stamped)
        self.larges = self.inbox.beside = KeptLarges(topic.spec.name, changed, self.inbox)
        self.sending: Sending | None = None  # the large sample that goes to the present node
        self._large_sent = 0  # messages up to the last one that named such a one and went there
        self.writer_id = 0
        self.port = 0  # at the present node; 0: none
        self.known = False  # some node has it, or has had
        self.guid = guid
        self._endpoint, self._farewell, self._lease, self._type = endpoint, farewell, lease, type_
        self._signs = 0  # of life, as far as they were sent
        self._base = 0  # our messages before the first that the present node was sent
        self._consumed = 0  # of the messages that it was sent, how many it has taken over
        self._window = 0

    def request(self, guid: bytes) -> pb.OpenWriter:
        """What opens it at the next node, with its present guid."""
        from spindle.group.codec import lease_to_wire
        from spindle.proto import attach_pb2 as pb

        return pb.OpenWriter(topic=self.topic.spec.name, endpoint=self._endpoint, guid=guid,
                             relayed=self.identity, resumed=self.known, farewell=self._farewell,
                             lease=lease_to_wire(self._lease), type=self._type)

    def opened(self, reply: pb.WriterOpened) -> None:
        """It is open there: what the group has had is acknowledged, the rest will be handed out again. Raises
        SpindleError if that node doesn't take it, or has another topic."""
        self.larges.check(reply.large_max)
        self.topic = _same_topic(reply.topic, self.topic)
        index = self.outbox.index_after(reply.sent_ns) if self.known else 0
        self.outbox.settle(index, index)  # of a logged topic it is on all disks by then
        self.larges.settled(self.outbox.consumed)
        self.outbox.rewind(index)
        self._base, self._consumed, self._window = index, 0, reply.slots
        self.sending, self._large_sent = None, index
        self.port, self.writer_id, self.known = reply.port, reply.writer_id, True

    def lost(self) -> None:
        """Its node is gone."""
        self.port = 0

    def changed(self, endpoint: bytes, farewell: int) -> None:
        """What is said of it has changed, for the next node."""
        self._endpoint, self._farewell = endpoint, farewell

    def batch(self) -> list[tuple[bytes, int, int, int]]:
        """What may be sent now: payload, source timestamp, tag and key of each. None, but `sending`, if the next one is
        a large sample; none as long as there is that."""
        if self.sending is not None:
            return []
        until = self._base + self._consumed + self._window
        found = self.outbox.take(until, BATCH_BYTES)
        if found and found[0][4]:
            _, source_ns, tag, key, number = found[0]
            fd, size = self.larges.sent(number, self.outbox.taken - 1)
            self.sending = Sending(fd, size, source_ns, tag, key)
            return []
        return [one[:4] for one in found]

    @property
    def may_name_large(self) -> bool:
        """The present node has taken over the message that named a large sample last: its inbox has one at a time."""
        return self._base + self._consumed >= self._large_sent

    def names_large(self) -> None:
        """All its pieces went, and the message that names it goes now: that may be acknowledged before this thread goes
        on."""
        self.sending, self._large_sent = None, self.outbox.taken

    def gives_sign(self) -> bool:
        """True if its program has said that it lives since this was asked last."""
        before, (_, self._signs) = self._signs, self.outbox.signs_of_life
        return before != self._signs

    def progressed(self, progress: rb.Progress) -> None:
        """Raises WireError if that can't be."""
        acknowledged = self._base + progress.acknowledged
        persisted = self._base + progress.persisted if progress.persisted else 0
        if self.sending is not None and max(acknowledged, persisted) >= self.outbox.taken:
            raise WireError(f"topic {self.topic.spec.name!r}: a large sample is acknowledged that is still being sent")
        self._consumed = max(self._consumed, progress.consumed)
        try:
            self.outbox.settle(acknowledged, persisted)
        except (ValueError, OverflowError) as error:
            raise WireError(f"topic {self.topic.spec.name!r}: {error}") from None
        self.larges.settled(self.outbox.consumed)

    @property
    def large_progress(self) -> tuple[int, int, int]:
        """Changes when one of its large samples has got on."""
        sending = self.sending
        return (self.outbox.taken, sending.number, sending.at) if sending else (self._large_sent, 0, 0)

    @property
    def unsettled(self) -> bool:
        """Something of it is not delivered everywhere yet, or, of a logged topic, not on all disks."""
        return bool(self.outbox.consumed < self.outbox.committed)


def _same_topic(there: pb.TopicInfo, here: TopicInfo) -> TopicInfo:
    """The topic as a node has it that opens a reader or writer. In another group, that of a restart, it is as another
    program may have declared it: raises TopicMismatch if its messages are others."""
    from spindle.group.codec import topic_from_wire

    found = topic_from_wire(there)
    found.spec.check_same(dataclasses.replace(here.spec, window=0, departure=0))
    return found


class RemoteReader:
    """One reader: its log, how far that is, and what the present node may send."""

    def __init__(self, bell: Bell, topic: TopicInfo, keep_all: bool, endpoint: bytes, guid: bytes) -> None:
        from spindle_core.delivery import Cursor
        from spindle_core.ends import Loose
        from spindle_core.memory import Mapping
        from spindle_core.remote import ArrivalLog, ArrivalReader, log_cost
        from spindle_core.timing import Timing

        largest = log_cost(topic.spec.size_max)
        self.topic, self.keep_all = topic, keep_all
        self._window = max(CREDIT_BYTES, 4 * largest)
        # One message more than is granted may come, and the end of the ring may stay empty if none fits there.
        timing = Timing(topic.spec.timing) if topic.spec.timing else None
        self.larges = ArrivedLarges(topic.spec.name)
        # What may come is bounded by what is granted, where the reader keeps all.
        self.log = ArrivalLog(capacity=self._window + 4 * largest, timing=timing, larges=self.larges.core,
                              large_max=1 << 62 if keep_all else HELD_MAX)
        cursor = Cursor(keep_all=keep_all)
        self.log.add_reader(cursor)
        self._cursor = cursor
        self._bell = bell
        self.reader: ArrivalReader | None = None  # once it is known where it begins

        def new_reader(place: tuple[int, int]) -> ArrivalReader:
            log, page = Mapping.attach(os.dup(self.log.mapping.fd)), Mapping.attach(os.dup(bell.page.fd))
            progress = Mapping.attach(os.dup(cursor.mapping.fd), writable=True)
            with Loose.copies(cursor.their_fd, bell.fd) as fds:
                data_fd, bell_fd = fds.take_all()
                reader = ArrivalReader(log, progress, data_fd, page, bell_fd, place)
            reader.opener = self.larges.open
            return reader

        self._new_reader = new_reader
        self._cost = log_cost
        self.port = 0
        self.start = Position(0, 0, 0)
        self.continued = True
        self.gap_count = 0
        self.rewind_count = 0
        self.ends: tuple[Position, ...] = ()
        self.types: tuple[bytes, ...] = ()
        self._place = (0, 0)  # behind the last message that came
        self._places: list[Position] = []  # where it has stood in other groups
        self.guid = guid
        self._endpoint = endpoint
        self._came = 0  # bytes of the log, ever
        self._came_before = 0  # those of earlier nodes
        self._granted = 0

    def request(self, guid: bytes) -> pb.OpenReader:
        """What opens it at the next node, where it stands, with its present guid."""
        from spindle.group.codec import position_to_wire
        from spindle.proto import attach_pb2 as pb

        been = places(self.ends, self.start.group_id, self._place)
        earlier = farthest([*self._places, *been[:-1]])
        self._places = [one for one in earlier if one.group_id != been[-1].group_id]
        return pb.OpenReader(
            topic=self.topic.spec.name, keep_all=self.keep_all, start_index=-1, endpoint=self._endpoint,
            from_history=self.topic.spec.level is not Level.UNORDERED, guid=guid,
            after=map(position_to_wire, [been[-1], *self._places]))

    def opened(self, reply: pb.ReaderOpened) -> None:
        """It is open there. Raises TopicMismatch if that node has another topic."""
        from spindle.group.codec import position_from_wire

        _same_topic(reply.topic, self.topic)
        self.log.say_time(reply.said_ns)
        start = position_from_wire(reply.start)
        if self.reader is None:
            self.reader = self._new_reader(start.place)
            self._place = start.place
        else:
            self.rewind_count += self.topic.spec.level is not Level.UNORDERED and start.place < self._place
            if start.group_id != self.start.group_id:
                self._places = farthest([*self._places, *places(self.ends, self.start.group_id, self._place)])
                self._place = start.place
            self.gap_count += not reply.continued
        self.start = start
        self.ends = tuple(position_from_wire(one) for one in reply.ends)
        self.types = tuple(reply.types)
        self.continued = reply.continued
        self.port = reply.port
        self._came_before, self._granted = self._came, 0
        self.larges.begin()

    def lost(self) -> None:
        """Its node is gone."""
        self.port = 0

    def changed(self, endpoint: bytes) -> None:
        """What is said of it has changed, for the next node."""
        self._endpoint = endpoint

    def take_piece(self, piece: rb.Piece) -> None:
        """Of a large sample of the present node. Raises WireError if it is more than was granted, NoResources."""
        if self._came - self._came_before >= self._granted:
            raise WireError(f"topic {self.topic.spec.name!r}: more came than was granted")
        self.larges.take_piece(piece)

    def take_in(self, deliveries: rb.Deliveries) -> None:
        """Messages of the present node, into the log. Raises WireError if they are more than was granted, NoResources.
        """
        append, cost = self.log.append, self._cost
        for one in deliveries.messages:
            if len(one.payload) > self.topic.spec.size_max or one.writer_id > 0xFFFF or one.tag > 0xFF:
                raise WireError(f"topic {self.topic.spec.name!r}: a message can't be of this topic")
            payload, beside = self.larges.take(one.payload) if one.large else (one.payload, 0)
            if not append(payload, one.sender, one.sequence, one.view_id, one.source_ns, one.writer_id,
                          one.reception_ns, one.relay, one.tag, 0, one.large):
                raise WireError(f"topic {self.topic.spec.name!r}: more messages came than there is room for")
            if one.large:
                self.larges.appended(self.log.tail, beside)
            self._came += cost(len(payload)) + beside
            self._place = one.view_id, one.sequence + 1
        if deliveries.lost and self.reader is not None:
            self.reader.count_lost(deliveries.lost)

    def grant(self) -> int:
        """Bytes that the node may have sent in all, if it is worth telling it now; else 0."""
        done = self._came
        if self.keep_all:
            done = self._passed()
            self.log.ask_to_ring(self._came - done > self._window // 2)
            done = self._passed()  # again: the reader may have made room before it saw that it has to ring
        self.log.sweep_larges()
        self.larges.let_go()
        granted = self._window + done - self._came_before
        if granted - self._granted < self._window // 4 and self._granted:
            return 0
        self._granted = granted
        return granted

    def _passed(self) -> int:
        place = self.log.passed()
        return int(place) + self.larges.passed(place)

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        self.log.close()
        self.larges.close()
