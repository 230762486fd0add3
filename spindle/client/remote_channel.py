"""The connection of a session whose node is on another host, and the next one when that node is gone.

Threads: the *keeper* reads the connection; when it ends, it finds the next node and opens there what is open here. The
*pump* sends what writers have committed, and says how much more readers may be sent; readers and writers ring it. A
third one, started with the first listener, runs callbacks.

Rules:
- Those of `spindle.client.remote_requests`, which has what is asked of a node.
- The pump holds `_flow` from taking messages until they are sent, so that no writer is rewound for the next connection
  in between.
- A node that says nothing for SILENCE_S is given up: it sends a pulse every second, if it lives.
- The channel ends once, with close(), or when no node serves within the session's patience: every port is marked gone,
  every waiting request fails, then GONE is the last event.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError

from spindle.client.calls import Lost
from spindle.client.channel import THREAD_END_S, Dispatcher
from spindle.client.finding import Finder
from spindle.client.nodes import NodeAddresses, close_quietly
from spindle.client.remote_larges import AGAIN_S, ASK_MS
from spindle.client.remote_link import Link
from spindle.client.remote_notices import RemoteNotices
from spindle.client.remote_requests import REQUEST_TIMEOUT_S, SILENCE_S, RemoteRequests
from spindle.errors import NodeStopped, ProtocolMismatch, SpindleError, TopicUnknown, WireError, start_thread
from spindle.group.codec import event_from_wire, spec_to_wire, topic_from_wire
from spindle.group.events import GONE, MISSED, TURNED, Event
from spindle.locks import Latch
from spindle.proto import attach_pb2 as pb
from spindle.proto import relay_pb2 as rb
from spindle.transport.wire import Frame
from spindle_core.slices import be_prompt

if TYPE_CHECKING:
    from spindle.client.remote_larges import Sending
    from spindle.client.remote_ports import RemoteReader, RemoteWriter
    from spindle.group.topics import TopicInfo

PAUSE_S, PAUSE_MAX_S = 0.05, 0.5  # between two rounds of looking for a node; doubles
CLOSE_FLUSH_S = 2.0  # how long a closing writer waits until what it had committed is delivered...
LARGE_FLUSH_S = 10.0  # ...and until the node has the end of a large sample, which a slow line may still have
IDLE_S = 1.0


class RemoteChannel(RemoteRequests):
    """See the module. `start()` once."""

    def __init__(self, nodes: NodeAddresses, domain_id: int, name: str, patience_s: float | None) -> None:
        from spindle_core.remote import Bell

        super().__init__()
        self.domain_id = domain_id
        self.bell = Bell()
        self._finder = Finder(nodes, domain_id, name)
        self._patience_s = patience_s
        self._flow = threading.Lock()
        self._last: Link | None = None  # the newest, whatever state it is in
        self._readers: tuple[RemoteReader, ...] = ()
        self._writers: tuple[RemoteWriter, ...] = ()
        self._to_close: deque[tuple[Link, int]] = deque()  # what nobody has, by the nodes' numbers
        self.notices = RemoteNotices(self._changed, self.tell)
        self._watching = False
        self._closing = Latch()
        self._dispatcher = Dispatcher("spindle events")
        self._keeper = threading.Thread(target=self._keep, name="spindle connection", daemon=True)
        self._pumper = threading.Thread(target=self._pump, name="spindle pump", daemon=True)
        _channels.add(self)

    def start(self, timeout_s: float) -> None:
        """Attaches to the first node that serves. Raises why none does, NoResources; it is closed then."""
        deadline = time.monotonic() + timeout_s
        pause_s = PAUSE_S
        while True:
            try:
                self._link = self._last = self._serving = self._finder.find(max(0.1, deadline - time.monotonic()))
                break
            except SpindleError as error:
                # A site that is just starting is waited for, as long as `timeout_s` allows.
                if not isinstance(error, NodeStopped) or time.monotonic() + pause_s > deadline:
                    raise
                time.sleep(pause_s)
        try:
            for one in (self._keeper, self._pumper):
                start_thread(one, f"a connection to {self._link}")
        except BaseException:
            self.close()
            raise

    # --- events

    def add_listener(self, callback: Callable[[Event], None]) -> None:
        self._dispatcher.add(callback)
        self._watching = True
        if self._end_error is not None and not self._closing.is_set():
            self._dispatcher.put(Event(GONE, text=str(self._end_error)))

    # --- readers and writers

    def open_writer(self, writer: RemoteWriter) -> None:
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            wanted = writer.request(self.notices.present(writer.guid))
            link, opened = self._opened_at(deadline, writer, open_writer=wanted)
            with self._changed:
                if link.lost:
                    continue
                writer.opened(opened.writer)
                link.writers[opened.writer.port] = writer
                self._writers += (writer,)
            return

    def open_reader(self, reader: RemoteReader, wanted: pb.OpenReader) -> TopicInfo:
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        while True:
            wanted.guid = self.notices.present(reader.guid)
            link, opened = self._opened_at(deadline, reader, open_reader=wanted)
            with self._changed:
                if link.lost:
                    continue
                reader.opened(opened.reader)
                link.readers[opened.reader.port] = reader
                self._readers += (reader,)
            self.bell.ring()
            return topic_from_wire(opened.reader.topic)

    def _opened_at(self, deadline: float, port: RemoteReader | RemoteWriter, **body: Any) -> tuple[Link, pb.Reply]:
        """The link to the node that has opened it, perhaps over by now, and the reply. Raises as request()."""
        link: Link | None = None
        while True:
            link = self._present(deadline, body, link)
            try:
                return link, self._open_there(link, deadline, port, **body)
            except Lost:
                continue

    def _give_back(self, link: Link, port: int) -> None:
        # The pump does it: whoever was interrupted waits for nothing, and the keeper must not wait for a node to read.
        with self._changed:
            self._to_close.append((link, port))
            opened = link.readers.pop(port, None) or link.writers.pop(port, None)
            self._readers = tuple(one for one in self._readers if one is not opened)
            self._writers = tuple(one for one in self._writers if one is not opened)
            if opened is not None and self._link is not None and self._link is not link and opened.port:
                self._to_close.append((self._link, opened.port))  # turned to meanwhile; it knows it by another number
            if opened is not None:
                opened.port = 0  # whoever closes what was made of it has nothing left to close at the node
        if opened is not None:
            opened.larges.close()
        self.bell.ring()

    def close_writer(self, writer: RemoteWriter) -> None:
        if self._forked:
            return
        self._flush([writer])
        with self._changed:
            self._writers = tuple(one for one in self._writers if one is not writer)
        self._close_port(writer)
        with self._flow, self._changed:
            writer.sending = None
            writer.larges.close()

    def close_reader(self, reader: RemoteReader) -> None:
        if self._forked:
            return
        with self._changed:
            self._readers = tuple(one for one in self._readers if one is not reader)
        self._close_port(reader)
        reader.larges.close()

    def _close_port(self, port: RemoteReader | RemoteWriter) -> None:
        """Has the present node close it, if there is one; the next node never hears of it."""
        with self._changed:
            link, number = self._link, port.port
            port.port = 0
            if link is None or link.lost or not number:
                return
            link.readers.pop(number, None)
            link.writers.pop(number, None)
        self._close_there(link, number)

    def _close_there(self, link: Link, number: int) -> None:
        with contextlib.suppress(Lost, SpindleError):  # a refusal: it was given back at the same moment
            self._ask(link, time.monotonic() + REQUEST_TIMEOUT_S, close_port=pb.ClosePort(port=number))

    def _flush(self, writers: list[RemoteWriter]) -> None:
        """Waits a moment until all that they had committed is delivered everywhere; until the next moment, if a large
        sample of theirs has got on."""
        self.bell.ring()
        got_on: list[tuple[int, int, int]] = []
        began = since = time.monotonic()
        with self._changed:
            while any(one.unsettled for one in writers) and not self.ended:
                now = [one.large_progress for one in writers]
                if now != got_on:
                    got_on, since = now, time.monotonic()
                on_the_line = any(not one.may_name_large for one in writers)
                if time.monotonic() - since >= (LARGE_FLUSH_S if on_the_line else CLOSE_FLUSH_S):
                    break
                self._changed.wait(0.05)
        left = sum(one.unsettled for one in writers)
        if left:
            import logging

            logging.getLogger("spindle.client").warning(
                "%d closed writers had messages that were not delivered everywhere after %g s; some may be lost",
                left, time.monotonic() - began)

    def tell(self, body: Callable[[], dict[str, Any]]) -> None:
        """Asks the present node for what the next one will be told anyway when this one goes. `body` is called under
        the lock. Raises as request()."""
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        link = self._present(deadline, {"announcing": None}, None)
        with self._changed:
            told = body()
        with contextlib.suppress(Lost):
            self._ask(link, deadline, **told)

    # --- the pump

    def _pump(self) -> None:
        be_prompt(realtime=0, nice=0)
        while not self.ended:
            try:
                if not self._move():
                    self.bell.doze()
                    if not self._move():
                        self.bell.wait(AGAIN_S if any(one.sending for one in self._writers) else IDLE_S)
                    self.bell.awake()
            except Lost:
                self.bell.wait(0.01)  # the keeper is about to notice
            except Exception as error:  # callers must not wait for ever; nor would it go better at the next node
                self._end(SpindleError(f"what was written can't be sent: {type(error).__name__}: {error}"))
                if self._last is not None:
                    close_quietly(self._last.conn)  # the keeper ends, too
                if not isinstance(error, (SpindleError, OSError)):
                    raise

    def _move(self) -> bool:
        """Sends what there is to send; True if there was anything. Raises Lost."""
        # Also to a node at which not everything is open yet: it opens a writer only when what earlier turns sent is
        # delivered, and that may have to wait until our readers have taken what is in the node's log.
        link = self._last
        if link is None or link.lost:
            return False
        moved = False
        while self._to_close:
            of, number = self._to_close.popleft()
            if not of.lost:
                self._send_request(of, {"close_port": pb.ClosePort(port=number)})
        for reader in self._readers:
            with self._changed:
                port = reader.port
                granted = reader.grant() if port and not link.lost else 0
            if granted:
                link.send(rb.ClientSide(credit=rb.Credit(port=port, bytes=granted)))
        for writer in self._writers:
            with self._flow:
                with self._changed:
                    port = writer.port
                    batch = writer.batch() if port and not link.lost else []
                    lives = writer.gives_sign()
                if batch or (lives and port):
                    link.send(rb.ClientSide(messages=rb.Messages(
                        port=port, messages=[
                            rb.Message(payload=payload, source_ns=ns, tag=tag, key=key)
                            for payload, ns, tag, key in batch])))
                    moved = True
                if port and writer.sending is not None:
                    moved |= self._move_large(link, writer, port, writer.sending)
        return moved

    def _move_large(self, link: Link, writer: RemoteWriter, port: int, large: Sending) -> bool:
        """The next step of a large sample: the node is asked for its memory, which has to answer, gets its bytes, piece
        by piece, and then the message that names it. True if there may be more to do. Raises Lost."""
        if not large.number:
            if large.call is None:
                if time.monotonic() >= large.again_s:
                    # Not sooner again either if it has no room, which it says when it has waited.
                    large.again_s = time.monotonic() + AGAIN_S
                    large.call = self._send_call(link, {"make_large": pb.MakeLarge(
                        port=port, size=large.size, timeout_ms=ASK_MS)})
                return False
            if not large.call.answered.is_set():
                return False
            call, large.call = large.call, None
            if call.error is not None:  # it is short of something
                large.again_s = time.monotonic() + AGAIN_S
                writer.larges.was_refused(str(call.error))
            elif call.reply is not None and call.reply.large.number:
                writer.larges.was_refused("")
                large.number = call.reply.large.number
            return bool(large.number)
        if large.at < large.size:
            at, content = large.at, large.piece()
            link.send(rb.ClientSide(piece=rb.Piece(port=port, number=large.number, at=at, content=content)))
            return True
        if not writer.may_name_large:
            return False
        with self._changed:
            writer.names_large()
        link.send(rb.ClientSide(messages=rb.Messages(port=port, messages=[
            rb.Message(source_ns=large.source_ns, tag=large.tag, key=large.key, large=large.number)])))
        return True

    # --- the keeper

    def _keep(self) -> None:
        link = self._link
        assert link is not None
        error: SpindleError
        while True:
            error = self._serve(link)
            self._lose(link)
            if self._closing.is_set():
                self._end(NodeStopped(f"this session with {link} was closed"))
            if self._end_error is not None:
                return
            try:
                following = self._turn_to_next(link, error)
            except SpindleError as final:
                self._end(final)
                return
            except Exception as bug:  # callers must not wait for ever
                self._end(SpindleError(f"finding the next node failed: {type(bug).__name__}: {bug}"))
                raise
            link = following

    def _serve(self, link: Link) -> SpindleError:
        """Reads until the connection ends; returns why."""
        try:
            while True:
                self._take(link, link.receive(SILENCE_S))
        except SpindleError as error:
            return error
        except TimeoutError:
            return NodeStopped(f"{link} has said nothing for {SILENCE_S:g} s")
        except Exception as error:
            return SpindleError(f"reading from {link} failed: {type(error).__name__}: {error}")

    def _take(self, link: Link, frame: Frame) -> None:
        """Handles one frame; raises the node's last word."""
        try:
            side = rb.NodeSide.FromString(frame.body)
            kind = side.WhichOneof("body")
            message = pb.NodeFrame.FromString(side.node) if kind == "node" else None
        except DecodeError as error:
            raise WireError(f"{link} sent a message that can't be read: {error}") from None
        if kind == "deliveries":
            reader = link.readers.get(side.deliveries.port)
            if reader is not None and reader in self._readers:
                reader.take_in(side.deliveries)
                self.bell.ring()
        elif kind == "piece":
            reader = link.readers.get(side.piece.port)
            if reader is not None and reader in self._readers:
                reader.take_piece(side.piece)
        elif kind == "progress":
            writer = link.writers.get(side.progress.port)
            if writer is not None and writer in self._writers:
                with self._changed:
                    writer.progressed(side.progress)
                    if not writer.unsettled:
                        self._changed.notify_all()
                self.bell.ring()
        elif message is not None:
            self._take_frame(link, message)

    def _take_frame(self, link: Link, message: pb.NodeFrame) -> None:
        if message.WhichOneof("body") == "event":
            self._dispatcher.put(event_from_wire(message.event))
        else:
            self._answer(link, message)
            if message.reply.WhichOneof("body") == "large" or any(one.sending for one in self._writers):
                self.bell.ring()  # it may be what the pump waits for

    def _lose(self, link: Link) -> None:
        """The link is over: calls that wait for an answer ask again."""
        close_quietly(link.conn)
        with self._flow, self._changed:
            link.lost = True
            if self._link is link:
                self._link = None
            calls, link.calls = list(link.calls.values()), {}
            for reader in self._readers:
                reader.lost()
            for writer in self._writers:
                writer.lost()
            self.notices.renew([*(one.guid for one in self._readers), *(one.guid for one in self._writers)])
            self._changed.notify_all()
        for call in calls:
            call.answered.set()

    def _turn_to_next(self, lost: Link, error: SpindleError) -> Link:
        """The next node, with all ports open there. Raises why there is none."""
        deadline = None if self._patience_s is None else time.monotonic() + self._patience_s
        pause_s, tried = PAUSE_S, 0
        self._finder.pass_over()
        while True:
            link: Link | None = None
            try:
                link = self._finder.find(
                    REQUEST_TIMEOUT_S if deadline is None else max(1.0, deadline - time.monotonic()))
                with self._changed:
                    self._last = link
                    if self._closing.is_set():  # close() may have looked for a connection before this one
                        raise NodeStopped("closed meanwhile")
                self._resume(link)
                self.bell.ring()
                self._dispatcher.put(Event(TURNED, text=f"{link} serves now: {error}"))
                self._dispatcher.put(Event(MISSED, text=f"while turning from {lost} to {link}"))
                return link
            except (Lost, SpindleError, OSError) as problem:  # also a timeout, or a shortage in this process
                if link is not None:
                    self._lose(link)
                    self._finder.pass_over()
                    tried += 1
                if self._closing.is_set():
                    raise NodeStopped("this session was closed") from None
                final = isinstance(problem, (PermissionError, ValueError, ProtocolMismatch))
                if link is not None and not final and tried % len(self._finder):
                    continue  # lost while turning to it: the others are tried at once
                if final or (deadline is not None and time.monotonic() + pause_s > deadline):
                    raise NodeStopped(
                        f"{lost} has stopped or died ({error}), and no other node serves: {problem}. Samples already "
                        "received can be taken; attach again once one does") from None
            self._closing.wait(pause_s)
            pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _resume(self, link: Link) -> None:
        """Opens there what is open here: readers first, so that nothing that our writers send is delivered before our
        readers are open. What is closed here meanwhile is closed there, too; then requests go to that node."""
        deadline = time.monotonic() + REQUEST_TIMEOUT_S
        if self._watching:
            self._ask(link, deadline, watch=pb.Watch())
        for one in self.notices.all():
            self._ask(link, deadline, announce=one)
        for reader in self._readers:
            wanted = reader.request(self.notices.present(reader.guid))
            opened = self._open_there(link, deadline, reader, open_reader=wanted).reader
            with self._changed:
                link.readers[opened.port] = reader
                if reader in self._readers:
                    reader.opened(opened)
            self.bell.ring()
        for writer in self._writers:
            wanted_writer = writer.request(self.notices.present(writer.guid))
            opened_writer = self._open_there(link, deadline, writer, open_writer=wanted_writer).writer
            with self._flow, self._changed:
                link.writers[opened_writer.port] = writer
                if writer in self._writers:
                    writer.opened(opened_writer)
                self._changed.notify_all()
        while True:
            with self._changed:
                closed = [number for number, reader in link.readers.items() if reader not in self._readers]
                closed += [number for number, writer in link.writers.items() if writer not in self._writers]
                if not closed:
                    self._link = self._serving = link
                    self._changed.notify_all()
                    return
                for number in closed:
                    link.readers.pop(number, None)
                    link.writers.pop(number, None)
            for number in closed:
                self._ask(link, deadline, close_port=pb.ClosePort(port=number))

    def _open_there(self, link: Link, deadline: float, port: RemoteReader | RemoteWriter, **body: Any) -> pb.Reply:
        """Raises as _ask."""
        try:
            return self._ask(link, deadline, **body)
        except TopicUnknown:  # another group, that of a restart
            self._ask(link, deadline, declare_topic=pb.DeclareTopic(spec=spec_to_wire(port.topic.spec)))
            return self._ask(link, deadline, **body)

    # --- ending

    def _end(self, error: SpindleError) -> None:
        with self._changed:
            if self._end_error is not None:
                return
            self._end_error = error
            self._changed.notify_all()
        self.bell.end()
        self._mark_gone()
        self.bell.ring()
        if not self._closing.is_set():
            self._dispatcher.put(Event(GONE, text=str(error)))
        self._dispatcher.finish()

    def close(self) -> None:
        """Ends the session; waits a moment for what writers had committed. Idempotent, callable from every thread."""
        if self._forked or self._closing.is_set():
            return
        if self._end_error is None and self._writers:
            self._flush(list(self._writers))
        with self._changed:
            self._closing.set()
            last = self._last
        if last is not None:
            close_quietly(last.conn)
        if self._keeper.ident is None:
            self._end(NodeStopped("this session was closed"))
        elif threading.current_thread() not in (self._keeper, self._pumper):
            self._keeper.join(THREAD_END_S)
            self.bell.ring()
            if self._pumper.ident is not None:  # else start() could not start it
                self._pumper.join(THREAD_END_S)
        self._dispatcher.finish()
        self._dispatcher.join(THREAD_END_S)

    def forked(self) -> None:
        """In the child after fork(). Takes no lock: another thread may have held it in the parent. From now on it is a
        new one."""
        self._forked = True
        self._changed.begin_anew()
        if self._last is not None:
            self._last.conn._sock.close()
        self._mark_gone()

    def _mark_gone(self) -> None:
        """Wakes whoever waits at a reader or writer; later calls fail at once."""
        for reader in self._readers:
            if reader.reader is not None:
                reader.reader.mark_gone()
        for writer in self._writers:
            writer.inbox.mark_gone()


_channels: weakref.WeakSet[RemoteChannel] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for channel in list(_channels):
        channel.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
