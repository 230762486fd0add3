"""The control connection of a session: requests out, answers and events in.

Why threads and no event loop: an application brings its own loop, or none; importing asyncio alone costs more than
attaching may take. One thread reads the connection, so that the death of the node is seen at once and not at the next
call; a second one, started with the first listener, runs callbacks, so that a callback may itself ask the node.

Rules:
- Any thread may send requests; each waits for its own answer.
- The reading thread never runs foreign code and never waits for anything but the connection.
- The channel ends once: every port is marked gone, every waiting request fails, then GONE is the last event.
- After fork() the child closes its copy of the connection without disturbing the parent's, and every call says so.
  Otherwise a child would keep the connection of its dead parent open, and write into its memory.
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextvars import ContextVar
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

from spindle.errors import ConnectionEnded, NodeStopped, SpindleError, error_from_wire, start_thread
from spindle.group.events import GONE, MISSED, Event
from spindle.locks import Condition, Latch
from spindle.transport.frames import no_room
from spindle.transport.wire import BlockingConnection, Frame

if TYPE_CHECKING:
    from spindle.proto import attach_pb2 as pb

REQUEST_TIMEOUT_S = 30.0  # a request may need a view change, which may have to wait for a joining node
EVENTS_WAITING_MAX = 4096  # for a slow callback; beyond it they are dropped and MISSED is said once
THREAD_END_S = 2.0  # how long close() waits for a thread of its own


class Port(Protocol):
    """What a writer's inbox and a reader's log have in common."""

    def mark_gone(self) -> None: ...


class whole_or_closed:
    """All ports of nodes that this thread opens within it are closed again if it is left by an exception: also by one
    of a signal's handler, which may come between an answer and the object that is made of it.

    Such a handler may also raise as it is entered or left, and then nothing is called any more. So what is noted as the
    present one is believed only while somebody has it, and is within it: what others open later is no matter of it.
    """

    __slots__ = ("__weakref__", "_before", "_frame", "closings")

    def __init__(self) -> None:
        self.closings: list[Callable[[], None]] = []  # what closes again what was opened
        self._before: weakref.ref[whole_or_closed] | None = None
        self._frame = 0  # identity of the frame that is within it: a traceback that still has this has that, too

    def __enter__(self) -> None:
        self._frame = id(sys._getframe(1))
        self._before = _present.get()
        _present.set(weakref.ref(self))

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        _present.set(self._before)
        if kind is not None:
            self._close()
            return
        around = closings_within()
        if around is not None:
            around += self.closings  # whoever is around this runs them as well
        self.closings = []

    def __del__(self) -> None:
        if not sys.is_finalizing() and hasattr(self, "closings"):  # else making it was interrupted
            self._close()

    def _close(self) -> None:
        while self.closings:
            self.closings[-1]()
            self.closings.pop()

    def is_around(self) -> bool:
        """The caller is within it."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and id(frame) != self._frame:
            frame = frame.f_back
        return frame is not None


_present: ContextVar[weakref.ref[whole_or_closed] | None] = ContextVar("spindle_whole_or_closed", default=None)


def closings_within() -> list[Callable[[], None]] | None:
    """Where to note what closes again what this thread asks for now: as `whole_or_closed` wants it, if at all."""
    present = _present.get()
    while present is not None and (one := present()) is not None:
        if one.is_around():
            return one.closings
        present = one._before
    return None


class Call:
    """One request that waits for its answer. The descriptors of one that nobody has taken go with it: a session may
    end, or the caller, before it is looked at.

    closings  where is noted what closes again what it opens, see `whole_or_closed()`
    """

    __slots__ = ("answered", "closings", "error", "frame", "number", "reply")

    def __init__(self, number: int) -> None:
        self.number = number
        self.closings = closings_within()
        self.frame: Frame | None = None
        self.answered = Latch()
        self.reply: pb.Reply | None = None
        self.error: SpindleError | None = None


class Channel:
    """See the module's text. `start()` once, then `request()` from any thread; `close()` is idempotent."""

    def __init__(self, conn: BlockingConnection, sock: socket.socket, label: str) -> None:
        """`sock` is the socket under `conn`; `label` names the node in errors."""
        self.label = label
        self._conn = conn
        self._sock = sock
        self._pid = os.getpid()
        self._forked = False
        self._lock = threading.RLock()  # reentrant: the garbage collector may close() while we hold it
        self._calls: dict[int, Call] = {}
        self._ports: dict[int, Port] = {}
        self._to_close: deque[dict[str, Any]] = deque()  # requests to end what nobody waits for, not yet sent
        self._number = 0
        self._end_error: SpindleError | None = None
        self._closing = False
        self._dispatcher = Dispatcher(f"spindle events of {label}")
        self._reader = threading.Thread(target=self._read, name=f"spindle control of {label}", daemon=True)
        _channels.add(self)

    def start(self) -> None:
        self._reader.start()

    # --- requests

    def check(self) -> None:
        """Raise the reason if nothing can be asked any more."""
        check_usable(self._forked, self._pid, self._end_error)

    def request(self, timeout_s: float = REQUEST_TIMEOUT_S, /, **body: object) -> tuple[pb.Reply, Frame]:
        """Send one Request with the field `body` set and wait for its reply, whose descriptors the caller must take.

        Raises the error that the node answers with, TimeoutError, or NodeStopped once the channel has ended.
        """
        call = self.begin(timeout_s, **body)
        try:
            if not call.answered.wait(timeout_s):
                with self._lock:
                    late = self._calls.pop(call.number, None)
                if late is not None:
                    raise TimeoutError(f"{self.label} did not answer {next(iter(body))} within {timeout_s:g} s; "
                                       "it may be waiting for a view change (see `spindle status`)")
                call.answered.wait()  # the answer came in this very moment
            return self.answer_to(call)
        except BaseException:  # also what a signal's handler raises: what the answer opens is nobody's
            self._abandon(call)
            raise

    def begin(self, timeout_s: float = REQUEST_TIMEOUT_S, /, **body: object) -> Call:
        """Send a Request, whose answer `answer_to()` returns once it is `answered`; until then, `give_up()`.

        Raises TimeoutError where it could not be sent, or NodeStopped once the channel has ended.
        """
        from spindle.proto import attach_pb2 as pb

        self.check()
        with self._lock:
            self._number = number = self._number % 0xFFFFFFFF + 1
            self._calls[number] = call = Call(number)
        try:
            self._begin(call, pb.Request(number=number, **body), timeout_s)  # type: ignore[arg-type]
        except BaseException:
            self._abandon(call)
            raise
        return call

    def _begin(self, call: Call, request: pb.Request, timeout_s: float) -> None:
        try:
            self._conn.send(request.SerializeToString(), timeout_s=timeout_s)
        except (SpindleError, TimeoutError) as error:
            if isinstance(error, TimeoutError):
                raise
            if self._reader.is_alive():
                self._reader.join(THREAD_END_S)  # it knows better why: the node's last word may just have come
            self.check()
            if self._closing:  # and that thread hasn't come to it yet
                raise NodeStopped(f"this session with {self.label} was closed") from None
            raise
        if self._to_close:
            self._send_closes()
        if self._end_error is not None:  # ended between check() and registering: nobody would wake us
            call.answered.set()

    def _abandon(self, call: Call) -> None:
        """Nobody has its answer, whenever that comes: what it opens is closed."""
        with self._lock:
            self._calls.pop(call.number, None)
            frame, call.frame = call.frame, None
        if call.reply is not None and frame is not None:
            self._close_again(call.reply, frame)

    def answer_to(self, call: Call) -> tuple[pb.Reply, Frame]:
        """Of a call that is answered, once: its reply, whose descriptors the caller must take. Raises the error that
        the node answers with, or NodeStopped once the channel has ended."""
        if call.error is not None:
            raise call.error
        reply, frame, call.frame = call.reply, call.frame, None
        if reply is None or frame is None:
            self.check()
            raise NodeStopped(f"{self.label} is gone")
        return reply, frame

    def give_up(self, call: Call) -> None:
        """Nobody wants its answer any more, which may have come. What that opens is to be closed by the caller."""
        with self._lock:
            self._calls.pop(call.number, None)
        if call.frame is not None:
            call.frame.close_fds()

    def add_port(self, number: int, port: Port) -> None:
        """From now on `port` is marked gone when the channel ends; at once if it has."""
        with self._lock:
            ended = self._end_error is not None or self._forked
            if not ended:
                self._ports[number] = port
        if ended:
            port.mark_gone()

    def remove_port(self, number: int) -> bool:
        """False if it was removed before: whoever did that closes it; or if the channel has ended."""
        with self._lock:
            return self._ports.pop(number, None) is not None

    def add_listener(self, callback: Callable[[Event], None]) -> None:
        self._dispatcher.add(callback)
        if self._end_error is not None and not self._closing:
            self._dispatcher.put(Event(GONE, text=str(self._end_error)))

    @property
    def end_error(self) -> SpindleError | None:
        """Why it ended; None while it works."""
        return self._end_error

    @property
    def ended(self) -> bool:
        return self._end_error is not None or self._forked

    # --- the reading thread

    def _read(self) -> None:
        try:
            while True:
                self._take(self._conn.receive(None))
        except ConnectionEnded as error:
            if self._closing:
                self._end(NodeStopped(f"this session with {self.label} was closed"))
            else:
                self._end(NodeStopped(f"{self.label} has stopped or died ({error}). Samples already received can be "
                                      "taken; attach again once a daemon runs"))
        except SpindleError as error:
            self._end(error)
        except Exception as error:  # a bug here must not leave callers waiting for ever
            self._end(SpindleError(f"reading from {self.label} failed: {type(error).__name__}: {error}"))
            raise

    def _take(self, frame: Frame) -> None:
        """Handle one frame; raises the node's last word."""
        from google.protobuf.message import DecodeError

        from spindle.group.codec import event_from_wire
        from spindle.proto import attach_pb2 as pb

        try:
            message = pb.NodeFrame.FromString(frame.body)
        except DecodeError as error:
            frame.close_fds()
            raise SpindleError(f"{self.label} sent a message that can't be read: {error}") from None
        kind = message.WhichOneof("body")
        if kind == "reply":
            self._answer(message.reply, frame)
            return
        frame.close_fds()
        if kind == "event":
            self._dispatcher.put(event_from_wire(message.event))
        elif kind == "refusal":
            refused = error_from_wire(message.refusal.kind, message.refusal.text)
            if message.refusal.number == 0:
                raise refused
            with self._lock:
                call = self._calls.pop(message.refusal.number, None)
            if call is not None:
                call.error = refused
                call.answered.set()

    def _answer(self, reply: pb.Reply, frame: Frame) -> None:
        with self._lock:
            call = self._calls.pop(reply.number, None)
            if call is not None and not frame.lacks_fds:  # at once, for _abandon()
                call.reply, call.frame = reply, frame
                if call.closings is not None and (port := port_in(reply)):
                    call.closings.append(lambda: self._give_back(port))
        if call is not None and frame.lacks_fds:
            frame.close_fds()  # before the caller goes on, who needs the room
            call.error = no_room("an answer of the node came with descriptors")
            call.answered.set()
        elif call is not None:
            call.answered.set()
            return
        self._close_again(reply, frame)

    def _close_again(self, reply: pb.Reply, frame: Frame) -> None:
        """The caller gave up, or can't have it: don't leave open what it would have got."""

        frame.close_fds()
        opened = reply.WhichOneof("body")
        if port := port_in(reply):
            self.post_close(port)
        elif opened == "link":
            self.post_close_link(reply.link.link)
        elif opened == "offered":
            self.post_end_region(reply.offered.name)

    def _give_back(self, port: int) -> None:
        self.remove_port(port)
        self.post_close(port)

    def post_close(self, port: int) -> None:
        """Ask for a port to be closed, without waiting for the answer."""
        from spindle.proto import attach_pb2 as pb

        self._post(close_port=pb.ClosePort(port=port))

    def post_close_link(self, link: int) -> None:
        """The same of a link."""
        from spindle.proto import attach_pb2 as pb

        self._post(close_link=pb.CloseLink(link=link))

    def post_end_region(self, name: str) -> None:
        """The same of a region that is offered."""
        from spindle.proto import attach_pb2 as pb

        self._post(end_region=pb.EndRegion(name=name))

    def _post(self, **request: Any) -> None:
        """Sends a request without waiting for its answer, nor for another thread that is sending: that thread then
        sends this one after its own."""
        self._to_close.append(request)
        self._send_closes()

    def _send_closes(self) -> None:
        from spindle.proto import attach_pb2 as pb

        while self._to_close:
            with self._lock:
                self._number = number = self._number % 0xFFFFFFFF + 1
            try:
                request = self._to_close[0]
                if not self._conn.try_send(pb.Request(number=number, **request).SerializeToString()):
                    return  # whoever is sending looks at the queue afterwards, and finds it there
                self._to_close.remove(request)
            except (IndexError, ValueError):
                continue  # another thread was quicker; that something is closed twice does no harm
            except (SpindleError, TimeoutError):
                self._to_close.clear()
                return  # the connection is over, and with it all that was open

    def _end(self, error: SpindleError) -> None:
        with self._lock:
            if self._end_error is not None:
                return
            self._end_error = error
            calls, self._calls = list(self._calls.values()), {}
            # Let go of, as they know us: in a ring they would keep their descriptors until the garbage collector comes.
            ports, self._ports = list(self._ports.values()), {}
        for port in ports:
            port.mark_gone()
        for call in calls:
            call.answered.set()
        self._conn.close()
        if not self._closing:
            self._dispatcher.put(Event(GONE, text=str(error)))
        self._dispatcher.finish()

    # --- ending

    def close(self) -> None:
        """End the channel from this side. Idempotent; callable from every thread, also from a callback."""
        if self._forked:
            return
        self._closing = True
        self._conn.close()
        if self._reader.ident is None:  # never started
            self._end(NodeStopped(f"this session with {self.label} was closed"))
        elif self._reader is not threading.current_thread():
            self._reader.join(THREAD_END_S)
        self._dispatcher.finish()
        self._dispatcher.join(THREAD_END_S)

    def forked(self) -> None:
        """Called in the child after fork(). Takes no lock: another thread may have held it in the parent."""
        self._forked = True
        self._sock.close()  # only our copy: no shutdown(), which would end the parent's connection
        for port in list(self._ports.values()):
            port.mark_gone()


def port_in(reply: pb.Reply) -> int:
    """Number of the port that it opens; 0 if it opens none."""
    opened = reply.WhichOneof("body")
    return reply.writer.port if opened == "writer" else reply.reader.port if opened == "reader" else 0


class Dispatcher:
    """Runs callbacks on a thread of its own, in the order of events, never under a lock."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._callbacks: tuple[Callable[[Event], None], ...] = ()
        self._events: deque[Event] = deque()
        self._changed = Condition()
        self._finished = False
        self._thread: threading.Thread | None = None

    def add(self, callback: Callable[[Event], None]) -> None:
        """Call it for each event from now on. Raises NoResources."""
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                start_thread(thread, "hearing of events")
                self._thread = thread
            self._callbacks += (callback,)

    def put(self, event: Event) -> None:
        with self._changed:
            if self._thread is None:
                return  # nobody listens
            if len(self._events) >= EVENTS_WAITING_MAX:
                self._events.clear()
                self._events.append(Event(MISSED, text=f"more than {EVENTS_WAITING_MAX} events waited for a callback"))
            self._events.append(event)
            self._changed.notify()

    def finish(self) -> None:
        """No more events come; the thread ends after those that wait."""
        with self._changed:
            self._finished = True
            self._changed.notify()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread, unless called from it."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout_s)

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._events and not self._finished:
                    self._changed.wait()
                if not self._events:
                    return
                event = self._events.popleft()
                callbacks = self._callbacks
            for callback in callbacks:
                try:
                    callback(event)
                except Exception:  # one listener's error must not silence the others
                    import logging

                    logging.getLogger("spindle.client").exception("a listener failed on event %s", event.kind)


def check_usable(forked: bool, pid: int, end_error: SpindleError | None) -> None:
    """Raise why nothing can be asked any more of a session that process `pid` has made; nothing if it can."""
    if forked:
        raise SpindleError(
            f"this session was made by process {pid} and does not work in its child {os.getpid()} after "
            "fork(): attach again in the child (with multiprocessing, prefer the start method 'spawn')")
    if end_error is not None:
        raise _again(end_error)


def _again(error: SpindleError) -> SpindleError:
    """A fresh copy of `error`: one exception object raised by several threads would mix up their tracebacks."""
    return type(error)(str(error))


_channels: weakref.WeakSet[Channel] = weakref.WeakSet()


def _after_fork_in_child() -> None:
    for channel in list(_channels):
        channel.forked()


os.register_at_fork(after_in_child=_after_fork_in_child)
