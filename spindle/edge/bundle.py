"""A connection whose streams end at sockets: bytes of each socket go through a stream to the other end, and back.

Why the same at both ends: at the edge a socket is that of a program, at the node one end of a pair, whose other end is
a connection like any other (`spindle.transport.wire`). So neither the program nor what serves it sees a difference.

Rules:
- The streams of a connection take turns, a piece each; one whose other end grants nothing waits apart. So a program
  that doesn't read, or a node that doesn't read one program, stops nobody else.
- No more of a stream waits for its socket than STREAM_BYTES, no more of all for the connection than QUEUED_BYTES beside
  what is said about streams.
- A socket that has ended closes its stream, behind what came of it. A stream that has ended closes its socket when all
  that came is written, or LINGER_S later.
- When the connection ends all streams have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from spindle.edge.streams import FRAME_BYTES_MAX, Allowed, Ended, Opened, Received, Room, Streams, last_word
from spindle.errors import ConnectionEnded, NodeStopped, SpindleError, WireError
from spindle.transport.frames import READ_BYTES
from spindle.transport.wire import Limits
from spindle.waiting import within

if TYPE_CHECKING:
    from spindle.transport.wire import Connection, Frame

QUEUED_BYTES = 256 << 10  # that wait for the connection before the next piece is taken
LINGER_S = 5.0  # for a socket to take what its stream had brought
LIMITS = Limits(frame_bytes_max=FRAME_BYTES_MAX, fds_max=0, frame_time_s=30.0, queue_bytes_max=8 << 20)


class Line:
    """A socket and its stream. Lives on after the stream until what came of it is written; `on_end` is called then."""

    def __init__(self, sock: socket.socket, on_end: Callable[[Line], None]) -> None:
        sock.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._sock = sock
        self._fd = sock.fileno()
        self._on_end = on_end
        self._bundle: Bundle | None = None  # as long as there is the stream
        self._number = 0
        self._out: deque[memoryview] = deque()
        self._early = b""  # what was read of the socket before there was a stream
        self._full = False  # nothing more can be sent until the other end grants it
        self._deaf = False  # the socket takes nothing any more
        self._linger: asyncio.TimerHandle | None = None
        self.closed = False

    def join(self, bundle: Bundle, number: int, early: bytes = b"") -> None:
        """From now on bytes go both ways; `early` came of the socket before."""
        self._bundle, self._number, self._early = bundle, number, early
        if early:
            bundle.ready(self)
        else:
            self._loop.add_reader(self._fd, self._readable)

    # --- from the socket

    def _readable(self) -> None:
        self._loop.remove_reader(self._fd)
        if self._bundle is not None:
            self._bundle.ready(self)

    def move(self) -> bool:
        """Sends the next piece; True if there may be more."""
        if self._bundle is None:
            return False
        room = self._bundle.streams.room(self._number)
        if not room:
            self._full = True
            return False
        data, self._early = self._early[:room], self._early[room:]
        if not data:
            try:
                data = self._sock.recv(min(room, READ_BYTES))
            except (BlockingIOError, InterruptedError):
                self._loop.add_reader(self._fd, self._readable)
                return False
            except OSError:
                data = b""
        if not data:
            self.end()
            return False
        self._bundle.streams.send(self._number, data)
        return True

    def more_room(self) -> None:
        """The other end has granted more."""
        if self._full and self._bundle is not None:
            self._full = False
            self._bundle.ready(self)

    # --- to the socket

    def write(self, content: bytes) -> None:
        """Bytes of the stream, for the socket."""
        if self._deaf:
            self._passed(len(content))
            return
        self._out.append(memoryview(content))
        if len(self._out) == 1:
            self._writable()
            if self._out and not self.closed:
                self._loop.add_writer(self._fd, self._writable)

    def _writable(self) -> None:
        written = 0
        try:
            while self._out:
                sent = self._sock.send(self._out[0])
                written += sent
                if sent == len(self._out[0]):
                    self._out.popleft()
                else:
                    self._out[0] = self._out[0][sent:]
        except (BlockingIOError, InterruptedError):
            pass
        except OSError:  # it reads nothing any more; what it had sent is still sent
            self._deaf = True
            written += sum(map(len, self._out))
            self._out.clear()
        self._passed(written)
        if not self._out:
            self._loop.remove_writer(self._fd)
            if self._bundle is None:
                self._close()

    def _passed(self, count: int) -> None:
        if count and self._bundle is not None:
            self._bundle.streams.passed(self._number, count)

    # --- ending

    def end(self, error: SpindleError | None = None) -> None:
        """The socket has ended: so does the stream."""
        bundle, self._bundle = self._bundle, None
        if bundle is not None:
            bundle.leave(self._number, error)
        self._close()

    def finish(self, error: SpindleError | None) -> None:
        """The stream has ended: so does the socket, when all is written. `error`: why, if there is a reason."""
        self._bundle = None
        self._loop.remove_reader(self._fd)
        if error is not None:
            self._tell(error)
        if not self._out:
            self._close()
        elif self._linger is None and not self.closed:
            self._linger = self._loop.call_later(LINGER_S, self._close)

    def _tell(self, error: SpindleError) -> None:
        """Has the socket's other end hear why the stream has ended, if it can be told."""

    def _close(self) -> None:
        if self.closed:
            return
        self.closed = True
        if self._linger is not None:
            self._linger.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        self._out.clear()
        self._sock.close()
        self._on_end(self)


class Bundle:
    """A connection with the lines of its streams. `run` it.

    on_open(number)  the other end has opened a stream: `join` a line to it, or `refuse` it
    """

    def __init__(self, conn: Connection, *, opens: bool, allowed: int = 0, on_open: Callable[[int], None] | None = None
                 ) -> None:
        self.conn = conn
        self.streams = Streams(self._say, opens=opens, allowed=allowed)
        self.lines: dict[int, Line] = {}
        self.heard_at = asyncio.get_running_loop().time()
        self.allowed = asyncio.Event()  # it is known how many streams there may be
        self.leaving = asyncio.Event()  # there may be no more
        self._on_open = on_open
        self._ready: deque[Line] = deque()
        self._work = asyncio.Event()
        self._gone = asyncio.Event()  # a line has left
        self._ended: asyncio.Future[SpindleError | None] = asyncio.get_running_loop().create_future()
        conn.last_word = last_word
        conn.set_limits(LIMITS)

    async def run(self) -> SpindleError:
        """Serves the streams until the connection ends; returns why it has."""
        pump = asyncio.get_running_loop().create_task(self._pump())
        self.conn.start(self._take, self._on_end)
        try:
            error = await asyncio.shield(self._ended)
            return error or ConnectionEnded(f"the connection to {self.conn.label} was closed")
        finally:
            pump.cancel()
            self.conn.close()
            self._finish_all(ConnectionEnded(f"the connection to {self.conn.label} was closed"))

    def _on_end(self, error: SpindleError | None) -> None:
        self._finish_all(error or ConnectionEnded(f"the connection to {self.conn.label} was closed"))
        if not self._ended.done():
            self._ended.set_result(error)

    def _finish_all(self, error: SpindleError) -> None:
        lines, self.lines = self.lines, {}
        for line in lines.values():
            line.finish(NodeStopped(f"{self.conn.label} is gone: {error}"))
        self._gone.set()
        self._work.set()

    # --- lines

    def join(self, number: int, line: Line, early: bytes = b"") -> None:
        """The stream's bytes go from and to this line."""
        self.lines[number] = line
        line.join(self, number, early)

    def refuse(self, number: int, error: SpindleError) -> None:
        """There is no line for a stream that the other end has opened."""
        self.streams.close(number, error)

    def leave(self, number: int, error: SpindleError | None) -> None:
        """The line's socket has ended."""
        self.lines.pop(number, None)
        self.streams.close(number, error)
        self._gone.set()

    def ready(self, line: Line) -> None:
        """The line may have a piece to send."""
        self._ready.append(line)
        self._work.set()

    def end(self, reason: SpindleError) -> None:
        """Says why and closes the connection."""
        self._say(last_word(reason))
        self.conn.close()

    def finish(self, reason: SpindleError) -> None:
        """Ends all streams from this end, and their sockets, which are told the reason."""
        lines, self.lines = self.lines, {}
        for number, line in lines.items():
            self.streams.close(number)
            line.finish(reason)

    async def flush(self, timeout_s: float) -> None:
        """Waits until all lines have left and what they said is sent, so long at most."""
        with contextlib.suppress(asyncio.TimeoutError, SpindleError):
            await within(timeout_s, self._flushed())

    async def _flushed(self) -> None:
        while self.lines:
            self._gone.clear()
            await self._gone.wait()
        await self.conn.drain(0)

    # --- the connection

    def _say(self, body: bytes) -> None:
        with contextlib.suppress(WireError):  # it has ended, or is about to: the streams hear of that
            self.conn.send(body)

    async def _pump(self) -> None:
        with contextlib.suppress(SpindleError):
            while True:
                await self._work.wait()
                self._work.clear()
                while self._ready:
                    await self.conn.drain(QUEUED_BYTES)
                    if self._ready and (line := self._ready.popleft()).move():
                        self._ready.append(line)

    def _take(self, frame: Frame) -> None:
        """Raises WireError, which ends the connection."""
        self.heard_at = asyncio.get_running_loop().time()
        happened = self.streams.take(frame.body)
        if isinstance(happened, Received):
            if (line := self.lines.get(happened.stream)) is not None:
                line.write(happened.content)
        elif isinstance(happened, Room):
            if (line := self.lines.get(happened.stream)) is not None:
                line.more_room()
        elif isinstance(happened, Opened):
            assert self._on_open is not None
            self._on_open(happened.stream)
        elif isinstance(happened, Ended):
            if (line := self.lines.pop(happened.stream, None)) is not None:
                line.finish(happened.error)
                self._gone.set()
        elif isinstance(happened, Allowed):
            (self.allowed if happened.streams else self.leaving).set()
