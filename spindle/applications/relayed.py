"""An application on another host, at the node that serves it.

Why an application like any other: what it opens are real readers and writers of this node, with its permissions and
limits, so the group sees no difference. Only that memory can't be shared: its messages come in frames and are put into
an inbox here, and what its readers get is taken from the log here and sent.

Rules:
- Bounded memory: a writer has no more messages on the way than its inbox has slots, a reader gets no more bytes than
  the application has granted, and the next batch is taken when the last one has left. A client that is slow holds up
  its own readers and writers, and, with a reader that keeps all, writers of that topic, as a local application does.
- Whatever is malformed, too much or out of order ends this connection and nothing else.
- The end of the connection closes everything, like that of a local application: what has come is still sent. `flushed`
  is done when all of it is delivered everywhere.
- Only a writer with a lease is kept until the application turns up again, here or elsewhere, or the lease has run out:
  else nobody could say that the writer gives no sign of life.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from spindle.applications.application import QUEUE_BYTES_MAX, Answer, Application, last_word
from spindle.applications.open_ports import OpenPort
from spindle.errors import ConfigError, NodeStopped, SpindleError, WireError, shortage
from spindle.group.levels import Level
from spindle.large.cost import large_cost
from spindle.large.memory import PIECE_BYTES
from spindle.proto import attach_pb2 as pb
from spindle.proto import relay_pb2 as rb
from spindle.transport.wire import ConnectionEnded
from spindle.waiting import within

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from spindle.applications.application import Registry
    from spindle.group.leases import Lease
    from spindle.security.access import Permissions
    from spindle.topics.ports import ReaderPort, WriterPort
    from spindle.transport.wire import Connection, Frame
    from spindle_core.engine import Engine
    from spindle_core.reader import LogReader
    from spindle_core.remote import RelayWriter

BATCH_BYTES = 256 << 10  # payload of one frame, if its messages are smaller
BATCH_MESSAGES = 512
QUEUED_MAX = 512 << 10  # bytes that wait for the connection before the next batch is taken
FRAME_OVERHEAD = 512 << 10  # of a frame with messages: a batch beside the largest one
FRAME_TIME_S = 30.0  # for a frame to come: networks are slower than sockets of one host
PULSE_S = 1.0  # the application hears something at least so often
STOPPING_POLL_S = 0.2
CLIENT_BYTES = 16
RELAYED_MAX = 1 << 47  # identities of relayed writers are below this


@dataclasses.dataclass(eq=False)
class Feed:
    """A reader of the application: what it is sent, in bytes of the log."""

    number: int
    reader: LogReader
    stride_max: int
    topic: str
    credit: int = 0
    sent: int = 0
    lost: int = 0  # messages lost, as it was last told
    gone: int = 0  # of them, large samples whose bytes this node has given up
    large: Large | None = None  # the one that goes now


@dataclasses.dataclass(eq=False)
class Large:
    """A large sample on its way to a reader: its bytes, and the message that goes behind them."""

    fd: int
    size: int
    delivery: rb.Delivery
    at: int = 0


@dataclasses.dataclass(eq=False)
class Intake:
    """A writer of the application: its inbox."""

    number: int
    writer: RelayWriter
    told: tuple[int, int, int] = (0, 0, 0)


class RelayedApplication(Application):
    """One attached application of another host. See the module."""

    external = True

    def __init__(self, all_apps: Registry, number: int, conn: Connection, name: str, permissions: Permissions
    ) -> None:
        super().__init__(all_apps, number, conn, name, permissions)
        self._within = True  # what it reads and writes passes through this process
        self.client = b""
        self.turn = 0
        self.flushed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._feeds: dict[int, Feed] = {}
        self._intakes: dict[int, Intake] = {}
        self._drains: set[asyncio.Task[None]] = set()
        self._work = asyncio.Event()  # for the pump
        self._size_max = 0
        self._newest_port = 0
        self._over = asyncio.Event()  # the application has turned up again, or the node stops
        conn.last_word = lambda error: in_frame(last_word(error))
        self._adjust_limits(0)

    def __str__(self) -> str:
        return f"external application {self.number} {self.name!r} of {self.permissions.peer}"

    def status(self) -> dict[str, Any]:
        return {**super().status(), "address": self.permissions.peer.address}  # type: ignore[union-attr]

    def send(self, body: bytes, fds: list[int] | None = None) -> None:
        super().send(in_frame(body))

    def _adjust_limits(self, size_max: int) -> None:
        """Frames may carry a message of so many bytes from now on."""
        self._size_max = max(self._size_max, size_max)
        room = self._size_max + FRAME_OVERHEAD
        self._conn.set_limits(dataclasses.replace(
            self._conn.limits, frame_time_s=FRAME_TIME_S, frame_bytes_max=max(self._node.config.frame_max, room),
            queue_bytes_max=QUEUE_BYTES_MAX + room))

    # --- the life of the connection

    async def serve(self) -> None:
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(self._pump()), loop.create_task(self._pulse())]
        try:
            await super().serve()
        finally:
            for task in tasks:
                task.cancel()
            while self._drains and not self._all.stopping:
                _, self._drains = await asyncio.wait(self._drains, timeout=STOPPING_POLL_S)
            # A node that stops must not say that all is delivered: the view without it will tell what is.
            if not self._all.stopping:
                self.flushed.set_result(None)

    def _on_end(self, error: SpindleError | None) -> None:
        self._work.set()
        super()._on_end(error)

    def _begin(self, frame: Frame) -> None:
        try:
            side = rb.ClientSide.FromString(frame.body)
            kind = side.WhichOneof("body")
            if kind == "request":
                if not self.client:
                    raise WireError("a request came before Begin")
                if len(side.request) > self._node.config.frame_max:
                    raise WireError(f"a request of {len(side.request)} bytes is over the limit of "
                                    f"{self._node.config.frame_max}")
                self._start(pb.Request.FromString(side.request))
                return
        except DecodeError as error:
            raise WireError(f"a frame can't be read: {error}") from None
        self._room.release()  # only requests run at the same time
        if kind == "messages":
            self._take_messages(side.messages)
        elif kind == "piece":
            self._take_piece(side.piece)
        elif kind == "credit":
            self._take_credit(side.credit)
        elif kind == "begin":
            self._take_begin(side.begin)
        elif kind is not None:
            raise WireError(f"a frame has a body that this release doesn't know: {kind}")

    def _take_begin(self, begin: rb.Begin) -> None:
        if self.client or len(begin.client) != CLIENT_BYTES or not begin.turn:
            raise WireError("Begin comes once, with a client and a turn")
        self._node.relays.begin(begin.client, begin.turn, self)
        self.client, self.turn = begin.client, begin.turn
        self._all.relayed.turned += begin.turn > 1

    def end(self, reason: SpindleError) -> None:
        """As Application.end."""
        if isinstance(reason, NodeStopped):
            self._over.set()
        if not self._conn.closed and not isinstance(reason, (ConnectionEnded, NodeStopped)):
            self._all.relayed.refused += 1
        super().end(reason)

    def _own_status(self) -> dict[str, Any]:
        return {**super()._own_status(), "counters": self._node.counters.snapshot()}

    def _make_bell(self) -> None:
        return None  # this node rings itself when the application writes or reads

    # --- writers

    async def _open_writer(self, request: pb.Request) -> Answer:
        wanted = request.open_writer
        if not 1 <= wanted.relayed < RELAYED_MAX or not wanted.relayed >> 15:
            raise ConfigError(f"{wanted.relayed} can't be the identity of a relayed writer")
        if any(port.writer is not None and port.writer.relayed == wanted.relayed for port in self._ports):
            raise ConfigError(f"writer {wanted.relayed:x} is open already")
        self.permissions.check_publish(wanted.topic)
        sent_ns = 0
        logged = (await self._known(wanted.topic)).spec.level is Level.LOGGED
        if wanted.resumed and not logged:
            sent_ns = await self._claim(wanted, logged)
        answer = await super()._open_writer(request)
        if answer is None:
            return None
        reply, _ = answer
        number = reply.writer.port
        async with self._or_closed(number, f"a writer of topic {wanted.topic!r}"):
            if wanted.resumed and logged:
                # Not before this node is a whole member: until then nobody may know what the journals hold.
                sent_ns = await self._claim(wanted, logged)
            opened = self._ports.find(number)
            if opened is None:
                return None  # the application has gone meanwhile
            port = opened.writer
            assert port is not None
            self._newest_port = max(self._newest_port, number)
            spec = self._topic(wanted.topic).spec
            self._adjust_limits(spec.size_max)
            self._intakes[number] = self._intake(number, port, spec.stamped)
        reply.writer.slots = port.slots
        reply.writer.sent_ns = sent_ns
        reply.writer.large_max = self._node.large_samples.size_max(spec)
        return reply, []

    @contextlib.asynccontextmanager
    async def _or_closed(self, number: int, what: str) -> AsyncIterator[None]:
        """Closes the port again if this node can't make its own end of it: nobody else knows of the port."""
        try:
            yield
        except BaseException as error:
            await self._ports.take_back(number)
            if short := shortage(error, what):
                raise short from error
            raise

    async def _claim(self, wanted: pb.OpenWriter, logged: bool) -> int:
        return await self._node.relays.claim(self.client, self.turn, wanted.relayed, wanted.topic, logged)

    def _identity(self, wanted: pb.OpenWriter) -> int:
        return wanted.relayed

    def _intake(self, number: int, port: WriterPort, stamped: bool) -> Intake:
        from spindle_core.ends import Loose
        from spindle_core.memory import Mapping
        from spindle_core.remote import RelayWriter

        engine, inbox = self._node.engine, port.inbox
        ring, progress = Mapping.attach(os.dup(inbox.ring.fd), writable=True), Mapping.attach(os.dup(inbox.progress.fd))
        bell = Mapping.attach(os.dup(engine.bell.fd))
        with Loose.copies(inbox.their_fd, engine.bell_fd) as fds:
            writer = RelayWriter(ring, progress, fds.take(), bell, fds.take(), stamped=stamped)
        intake = Intake(number, writer)
        writer.arm()
        asyncio.get_running_loop().add_reader(writer.fileno(), self._progressed, intake)
        return intake

    def _take_messages(self, messages: rb.Messages) -> None:
        intake = self._intakes.get(messages.port)
        if intake is None:
            if 0 < messages.port <= self._newest_port:
                return  # sent before it heard that the port is closed
            raise WireError(f"messages for port {messages.port}, which is no writer of this application")
        try:
            if not messages.messages:
                intake.writer.give_sign_of_life()
            for one in messages.messages:
                if one.large:
                    self._larges.hand_over_filled(messages.port, one.large)
            intake.writer.relay(messages.messages)
            self._all.relayed.taken += len(messages.messages)
            self._all.relayed.taken_bytes += sum(len(one.payload) for one in messages.messages)
        except (ValueError, SpindleError, OSError) as error:  # TimeoutError is an OSError
            raise WireError(f"messages for port {messages.port} are refused: {error}") from None

    async def _hand_over_large(self, request: pb.Request) -> Answer:
        raise ConfigError("a large sample of an application elsewhere is handed over by the message that names it")

    def _take_piece(self, piece: rb.Piece) -> None:
        if piece.port not in self._intakes:
            if 0 < piece.port <= self._newest_port:
                return  # sent before it heard that the port is closed
            raise WireError(f"a piece for port {piece.port}, which is no writer of this application")
        try:
            self._larges.fill(piece)
            self._all.relayed.taken_bytes += len(piece.content)
        except SpindleError as error:
            raise WireError(f"a piece for port {piece.port} is refused: {error}") from None

    def _progressed(self, intake: Intake) -> None:
        intake.writer.clear()
        figures = intake.writer.arm()
        if figures != intake.told:
            intake.told = figures
            consumed, acknowledged, persisted = figures
            self._send_side(rb.NodeSide(progress=rb.Progress(
                port=intake.number, consumed=consumed, acknowledged=acknowledged, persisted=persisted)))

    # --- readers

    async def _open_reader(self, request: pb.Request) -> Answer:
        answer = await super()._open_reader(request)
        if answer is None:
            return None
        reply, _ = answer
        number = reply.reader.port
        port = self._ports.get(number).reader
        assert port is not None
        self._newest_port = max(self._newest_port, number)
        async with self._or_closed(number, f"a reader of topic {port.topic!r}"):
            self._feeds[number] = self._feed(number, port, bool(request.open_reader.after))
        return reply, []

    def _feed(self, number: int, port: ReaderPort, goes_on: bool) -> Feed:
        from spindle_core.remote import log_cost

        spec = self._topic(port.topic).spec
        self._adjust_limits(spec.size_max)
        reader = reader_of(self._node.engine, port, skips=goes_on and spec.level.ordered)
        reader.entries = True
        feed = Feed(number, reader, log_cost(spec.size_max), port.topic)
        asyncio.get_running_loop().add_reader(reader.fileno(), self._data, feed)
        return feed

    def _data(self, feed: Feed) -> None:
        feed.reader.clear()
        self._work.set()

    def _take_credit(self, credit: rb.Credit) -> None:
        feed = self._feeds.get(credit.port)
        if feed is not None and credit.bytes > feed.credit:
            feed.credit = credit.bytes
            self._work.set()

    async def _pump(self) -> None:
        """Feeds the readers. What this node is short of ends the connection, and the application goes on elsewhere."""
        try:
            await self._feed_all()
        except (SpindleError, OSError) as error:
            self.end(error if isinstance(error, SpindleError) else SpindleError(f"a reader can't be fed: {error}"))

    async def _feed_all(self) -> None:
        """Sends what readers are granted, batch by batch; the next one when the last has left."""
        while not self._ended:
            busy = False
            for feed in list(self._feeds.values()):
                # A feed may have been closed while the batch of another one left.
                if feed.number in self._feeds and self._feed_some(feed):
                    busy = True
                    await self._conn.drain(QUEUED_MAX)
            if busy:
                await asyncio.sleep(0)
                continue
            if any(self._more(feed) for feed in self._feeds.values()):
                continue
            await self._work.wait()
            self._work.clear()

    async def _pulse(self) -> None:
        while not self._ended:
            await asyncio.sleep(PULSE_S)
            self._send_side(rb.NodeSide())

    def _more(self, feed: Feed) -> bool:
        """True if there is something to send at once; otherwise the log will ring, or credit comes."""
        return feed.large is not None or (
            feed.sent < feed.credit and feed.reader.arm() and feed.reader.pending > 0)

    def _feed_some(self, feed: Feed) -> bool:
        """One batch, as far as it is granted; True if there was any."""
        from spindle_core.remote import log_cost

        if feed.large is not None:
            self._feed_piece(feed, feed.large)
            return True
        if feed.sent >= feed.credit:
            return False
        messages: list[rb.Delivery] = []
        size = 0
        while feed.large is None and size < BATCH_BYTES and len(messages) < BATCH_MESSAGES and feed.sent < feed.credit:
            room = min(feed.credit - feed.sent, BATCH_BYTES - size)
            pairs = feed.reader.take_pairs(max(1, min(BATCH_MESSAGES - len(messages), room // feed.stride_max)))
            if not pairs:
                break
            for payload, info in pairs:
                delivery = rb.Delivery(
                    payload=payload, sender=info.sender, sequence=info.sequence, view_id=info.view_id,
                    source_ns=info.source_timestamp, writer_id=info.writer, reception_ns=info.reception_timestamp,
                    relay=info.relay, tag=info.tag, large=info.large)
                if info.large and not self._begin_large(feed, delivery):
                    continue
                size += len(payload)
                feed.sent += log_cost(len(payload))
                if not info.large:
                    messages.append(delivery)
        lost = feed.reader.lost + feed.gone
        if not messages and lost == feed.lost:
            return feed.large is not None
        deliveries = rb.Deliveries(port=feed.number, messages=messages, lost=lost - feed.lost)
        feed.lost = lost
        self._all.relayed.given += len(messages)
        self._all.relayed.given_bytes += size
        self._send_side(rb.NodeSide(deliveries=deliveries))
        return True

    def _begin_large(self, feed: Feed, delivery: rb.Delivery) -> bool:
        """Its pieces go next; False if this node has it no more, and it counts as lost. Opened at once: that the reader
        has taken it lets the node give it up."""
        from spindle_core.larges import entry_of

        found = self._node.large_samples.open(feed.topic, entry_of(delivery.payload)[0])
        if found is None:
            feed.gone += 1
            return False
        feed.large = Large(*found, delivery)
        feed.sent += large_cost(feed.large.size)
        return True

    def _feed_piece(self, feed: Feed, large: Large) -> None:
        """The next piece of a large sample, and behind the last one the message that names it."""
        content = os.pread(large.fd, min(PIECE_BYTES, large.size - large.at), large.at)
        self._send_side(rb.NodeSide(piece=rb.Piece(port=feed.number, size=large.size, at=large.at, content=content)))
        large.at += len(content)
        if large.at >= large.size:
            end_large(feed)
            self._all.relayed.given += 1
            self._all.relayed.given_bytes += large.size
            self._send_side(rb.NodeSide(deliveries=rb.Deliveries(port=feed.number, messages=[large.delivery])))

    def _send_side(self, side: rb.NodeSide) -> None:
        with contextlib.suppress(WireError):
            self._conn.send(side.SerializeToString())

    # --- closing

    async def _close_port(self, port: OpenPort) -> None:
        loop = asyncio.get_running_loop()
        intake = self._intakes.pop(port.number, None)
        if intake is not None:
            loop.remove_reader(intake.writer.fileno())
            intake.writer.close()
        feed = self._feeds.pop(port.number, None)
        if feed is not None:
            loop.remove_reader(feed.reader.fileno())
            feed.reader.close()
            end_large(feed)
        if port.writer is not None and self._ended:
            port.writer.farewell = 0  # its application goes on at another node; this is no end
            if port.writer.lease is not None:
                await self._outlive(port, port.writer, port.writer.lease)
        try:
            await super()._close_port(port)
        finally:
            if port.writer is not None and port.writer.draining is not None:
                self._drains.add(port.writer.draining)


    async def _outlive(self, port: OpenPort, writer: WriterPort, lease: Lease) -> None:
        """Waits until its lease has run out, unless it turns out that the application goes on."""
        self._ports.withdraw(port)
        while not self._node.has_lapsed(writer):
            if self._over.is_set() or self._all.stopping:
                return
            with contextlib.suppress(asyncio.TimeoutError):
                await within(min(STOPPING_POLL_S, lease.duration_ns / 1e9), self._over.wait())
        writer.farewell = lease.lapse  # once more: what was said may not have gone yet


def end_large(feed: Feed) -> None:
    """The large sample that goes to it, if one does, goes no further."""
    large, feed.large = feed.large, None
    if large is not None:
        os.close(large.fd)


def in_frame(body: bytes) -> bytes:
    """A NodeFrame of attach.proto, as it travels here."""
    return rb.NodeSide(node=body).SerializeToString()


def reader_of(engine: Engine, port: ReaderPort, skips: bool) -> LogReader:
    """A reader of the port's log in this process, with descriptors of its own."""
    from spindle_core.ends import Loose
    from spindle_core.memory import Mapping
    from spindle_core.reader import LogReader

    log = Mapping.attach(os.dup(port.log_mapping.fd))
    cursor = Mapping.attach(os.dup(port.cursor.mapping.fd), writable=True)
    bell = Mapping.attach(os.dup(engine.bell.fd))
    table = port.cursor.table and Mapping.attach(os.dup(port.cursor.table.fd))
    with Loose.copies(port.cursor.their_fd, engine.bell_fd) as fds:
        start = port.start.place
        data_fd, bell_fd = fds.take_all()
        return LogReader(log, cursor, data_fd, bell, bell_fd, start, skips, table)
