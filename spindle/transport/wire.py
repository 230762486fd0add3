"""Frames with file descriptors over sockets: how nodes talk to each other and to their applications.

Why not asyncio streams: they can't pass descriptors. Why a codec without input or output (`FrameDecoder`): the node
reads on an event loop, the client on a plain thread, and both must refuse the same malformed bytes in the same words.

Between hosts it is the same frames, without descriptors, over TCP; a `stream` (`spindle.security.tls`) encrypts them.

A frame is an 8-byte header, little endian: u32 body length, u16 number of descriptors, u16 zero; then the body (a
serialized protobuf message, which this module does not look into). The descriptors travel as SCM_RIGHTS with the first
byte of their frame.

How to use it (`BlockingConnection` is in `spindle.transport.wire_blocking`):

    # on an event loop (node)                           # on a thread (client)
    conn = Connection(sock, label="app 7")              conn = BlockingConnection(sock, label="node")
    frame = await conn.receive(timeout_s=2)             frame = conn.receive(timeout_s=2)
    message = SomeProto.FromString(frame.body)          conn.send(message.SerializeToString(), fds=[fd])
    conn.send(reply.SerializeToString(), fds=[fd])      conn.close()      # wakes a receive() of another thread
    conn.start(on_frame, on_end)   # callbacks from now on, instead of receive()
    await conn.drain()             # bulk data: wait for the turn to queue the next frame
    conn.close()

Rules:
- A received frame owns its descriptors: take them with `frame.take_fds()` and close them yourself; what isn't taken is
  closed by `frame.close_fds()` (call it when a message should have no descriptors). `send` never closes or keeps the
  sender's descriptors: it duplicates what it can't send at once.
- Every limit is in `Limits`: body size, descriptors, the time a frame may take from its first byte to its last (slow
  drip), and the bytes queued towards an end that doesn't read, or the time that it takes none of them. Exceeding one is
  a WireError that names it; the connection is closed by then. If the other end closes between two frames, that is
  ConnectionEnded(clean=True), in the middle of a frame ConnectionEnded(clean=False).
- Whoever has much to send waits in `drain` before each frame, and queues the frame before it waits for anything else.
  Then what waits on the connection is bounded, all who do so get on alike, and other frames have little ahead of them.
- `last_word`, if set, makes the body of a last frame for the other end when we cut it off because of an error.
- `start`: on_frame(frame) runs for each frame in order, on_end(error) exactly once, also after close() by oneself
  (error is None then). An exception out of on_frame ends the connection with that error.
- On a connection that isn't a plain Unix socket descriptors are refused by both ends. Under a stream only an end that
  the stream has announced is clean: who cuts the connection can't pass for the other end.
- The first frame of every connection is an Opening (proto/opening.proto), which says who is there: see
  `spindle.transport.peers`.
"""

from __future__ import annotations

import contextlib
import os
import socket
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from spindle.errors import ConnectionEnded, NoResources, SpindleError, WireError, shortage
from spindle.security.access import Credentials, NetworkPeer, PeerCredentials
from spindle.transport.frames import (
    HEADER,
    Frame,
    FrameDecoder,
    Limits,
    Stream,
    carries_fds,
    close_all,
    encode,
    ended,
    no_fds,
    prepare,
    receive_some,
    send_some,
)
from spindle.transport.wire_blocking import BlockingConnection

if TYPE_CHECKING:
    import asyncio

__all__ = [
    "HEADER", "BlockingConnection", "Connection", "Frame", "FrameDecoder", "Limits", "Stream", "close_all",
    "encode",
]


class Connection:
    """A framed connection on the running asyncio (or uvloop) loop. See the module's text for its use and rules.

    `peer` tells who is there, if more is known than the socket says. Raises OSError if the socket is dead already.
    """

    def __init__(self, sock: socket.socket, *, label: str = "the other end", limits: Limits | None = None,
                 stream: Stream | None = None, peer: Credentials | None = None) -> None:
        import asyncio

        self._loop = asyncio.get_running_loop()
        self.label = label
        self.limits = limits or Limits()
        self.peer = peer or _peer_of(sock)
        prepare(sock)
        self._sock = sock
        self._fd = sock.fileno()
        close_in_child(sock)
        self._stream = stream
        self._decoder = FrameDecoder(self.limits, carries_fds=carries_fds(sock, stream))
        self._frames: deque[Frame] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self._turns: deque[tuple[int, asyncio.Future[None]]] = deque()  # who waits in drain(), and for what
        self._giving: asyncio.Handle | None = None  # the next look at whose turn it is
        self._out: deque[tuple[memoryview, list[int]]] = deque()
        self._out_bytes = 0
        self._taken_at = 0.0  # when the other end last took some of what waits, or it began to wait
        self._unread: asyncio.TimerHandle | None = None
        self._drip: asyncio.TimerHandle | None = None
        self._on_frame: Callable[[Frame], None] | None = None
        self._on_end: Callable[[SpindleError | None], None] | None = None
        self.last_word: Callable[[SpindleError], bytes] | None = None  # body of a frame that says why we close
        self.on_short: Callable[[SpindleError], None] | None = None  # no room for descriptors that came; not the end
        self._error: SpindleError | None = None
        self._unsendable: ConnectionEnded | None = None  # sending has failed; the end comes once all is read
        self._reading = True
        self.closed = False
        self._loop.add_reader(self._fd, self._readable)
        if stream is not None:  # frames may have come together with the end of its handshake
            self._take_in(lambda: (b"", []))

    def set_limits(self, limits: Limits) -> None:
        """Other limits from the next frame on, for example once the other end has said who it is."""
        self.limits = self._decoder.limits = limits
        if self._out:
            self._watch_unread()

    # --- receiving

    def _readable(self) -> bool:
        """Takes what is there, at most READ_BYTES; False if there was nothing, or this was the end."""
        return self._take_in(self._receive_some)

    def _receive_some(self) -> tuple[bytes, list[int]]:
        data, fds = receive_some(self._sock)
        if not data:
            close_all(fds)
            raise ended(self.label, self._decoder, self._stream)
        return data, fds

    def _take_in(self, source: Callable[[], tuple[bytes, list[int]]]) -> bool:
        try:
            data, fds = source()
            if self._stream is not None:
                data = self._stream.unseal(data)
                with contextlib.suppress(ConnectionEnded):  # what has come counts, though no answer can be sent
                    self._put(self._stream.answer())
            frames = self._decoder.feed(data, fds)
        except (BlockingIOError, InterruptedError):
            return False
        except ConnectionEnded as error:
            self._end(error)
            return False
        except WireError as error:
            if not self.closed:
                self._end(WireError(f"{self.label}: {error}"))
            return False
        except NoResources as error:
            if self.on_short is None:
                self._end(error)
            else:
                self._loop.remove_reader(self._fd)
                self.on_short(error)
            return False
        except OSError as error:
            self._end(ConnectionEnded(f"the connection to {self.label} broke: {error}", clean=False))
            return False
        self._watch_drip(bool(frames))
        for number, frame in enumerate(frames):
            if self.closed:
                for left in frames[number:]:
                    left.close_fds()
                return False
            self._hand_over(frame)
        if self._stream is not None and self._stream.ended:
            self._end(ended(self.label, self._decoder, self._stream))
            return False
        return True

    def _hand_over(self, frame: Frame) -> None:
        if self._on_frame is None:
            self._frames.append(frame)
            if len(self._frames) >= self.limits.frames_waiting_max and self._reading:
                self._reading = False
                self._loop.remove_reader(self._fd)
            self._wake_receiver()
            return
        try:
            self._on_frame(frame)
        except SpindleError as error:
            self._end(error)
        except Exception as error:  # a bug in the handler must not leave a half-dead connection behind
            self._loop.call_exception_handler({"message": f"handler of {self.label} failed", "exception": error})
            self._end(WireError(f"{self.label}: handling a frame failed: {type(error).__name__}: {error}"))

    def _watch_drip(self, progressed: bool) -> None:
        """A frame must be complete frame_time_s after its first byte, however many bytes trickle in meanwhile."""
        if self._drip is not None and (progressed or not self._decoder.partial):
            self._drip.cancel()
            self._drip = None
        if self._drip is None and self._decoder.partial and not self.closed:
            self._drip = self._loop.call_later(self.limits.frame_time_s, self._dripped)

    def _dripped(self) -> None:
        late = self._drip
        self._readable()  # as in receive()
        if self._drip is not late or self.closed:
            return
        self._drip = None
        self._end(WireError(f"{self.label}: a frame took longer than {self.limits.frame_time_s:g} s"))

    async def receive(self, timeout_s: float | None = None) -> Frame:
        """The next frame. Raises ConnectionEnded, WireError, or TimeoutError after `timeout_s` seconds."""
        import asyncio

        from spindle.waiting import within

        if self._on_frame is not None:
            raise WireError(f"{self.label}: frames go to the callback since start(); receive() would steal them")
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        while not self._frames:
            if self.closed:
                raise self._error or ConnectionEnded(f"the connection to {self.label} is closed")
            self._waiter = self._loop.create_future()
            left = None if deadline is None else max(0.0, deadline - self._loop.time())
            try:
                await within(left, self._waiter)
            except asyncio.TimeoutError:
                # This process may have stood still itself: what has come meanwhile may not be read yet.
                if not (self._readable() or self._frames or self.closed):
                    raise TimeoutError(f"{self.label} sent nothing for {timeout_s:g} s") from None
            finally:
                self._waiter = None
        frame = self._frames.popleft()
        if len(self._frames) < self.limits.frames_waiting_max:  # one look brings many small ones
            self._resume_reading()
        return frame

    def _resume_reading(self) -> None:
        if not self._reading and not self.closed:
            self._reading = True
            self._loop.add_reader(self._fd, self._readable)

    def _wake_receiver(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def start(self, on_frame: Callable[[Frame], None], on_end: Callable[[SpindleError | None], None]) -> None:
        """From now on frames go to `on_frame`, the end to `on_end` (once). Frames that wait are handed over first."""
        self._on_frame, self._on_end = on_frame, on_end
        while self._frames and not self.closed:
            self._hand_over(self._frames.popleft())
        self._resume_reading()
        if self.closed:  # it ended before anybody listened
            self._on_end = None
            self._loop.call_soon(on_end, self._error)

    def watch_end(self, on_end: Callable[[SpindleError | None], None]) -> None:
        """Like the on_end of `start`, for those who take frames with receive()."""
        self._on_end = on_end
        if self.closed:
            self._on_end = None
            self._loop.call_soon(on_end, self._error)

    # --- sending

    def send(self, body: bytes, fds: Sequence[int] = ()) -> None:
        """Queues one frame; never blocks. Raises WireError if closed, or if the other end has stopped reading;
        NoResources, and nothing is sent, if its descriptors have to wait and can't be duplicated."""
        if self.closed:
            raise self._error or ConnectionEnded(f"the connection to {self.label} is closed")
        if self._unsendable is not None:
            raise self._unsendable
        if fds and not self._decoder.carries_fds:
            self._end(WireError(f"{self.label}: {no_fds(len(fds))}"))
            assert self._error is not None
            raise self._error
        data = encode(body, len(fds))
        self._put(data if self._stream is None else self._stream.seal(data), fds)

    def _put(self, content: bytes, fds: Sequence[int] = ()) -> None:
        """Sends bytes as they are, behind those that wait already."""
        data = memoryview(content)
        if not data:
            return
        if not self._out:
            try:
                sent = send_some(self._sock, data, fds)
            except (BlockingIOError, InterruptedError):
                sent = 0
            except OSError as error:
                raise self._broke(error) from None
            if sent == len(data):
                return
            if sent:
                data, fds = data[sent:], ()
        kept = _duplicates(fds)
        if not self._out:
            self._loop.add_writer(self._fd, self._writable)
            self._taken_at = self._loop.time()
            self._watch_unread()
        self._out.append((data, kept))
        self._out_bytes += len(data)
        if self._out_bytes > self.limits.queue_bytes_max:
            self._end(WireError(f"{self.label} does not read: {self._out_bytes} bytes wait for it, "
                                f"limit {self.limits.queue_bytes_max}"))
            assert self._error is not None
            raise self._error

    def _writable(self) -> None:
        try:
            while self._out:
                data, fds = self._out[0]
                sent = send_some(self._sock, data, fds)
                close_all(fds)
                self._taken_at = self._loop.time()
                self._out_bytes -= sent
                if sent == len(data):
                    self._out.popleft()
                else:
                    self._out[0] = (data[sent:], [])
        except (BlockingIOError, InterruptedError):
            pass
        except OSError as error:
            self._broke(error)
            return
        if not self._out:
            self._loop.remove_writer(self._fd)
        self._give_turn_soon()

    def _watch_unread(self) -> None:
        """Looks again when nothing of what waits may have been taken for as long as the limits allow."""
        if self._unread is None and self.limits.unread_time_s < float("inf"):
            self._unread = self._loop.call_at(self._taken_at + self.limits.unread_time_s, self._look_whether_read)

    def _look_whether_read(self) -> None:
        self._unread = None
        if self._out:
            self._writable()  # this process may have stood still itself
        if not self._out or self.closed or self._unsendable is not None:
            return
        waited_s = self._loop.time() - self._taken_at
        if waited_s < self.limits.unread_time_s:
            self._watch_unread()
            return
        self._end(WireError(f"{self.label} does not read: it has taken none of the {self._out_bytes} bytes that wait "
                            f"for it in {waited_s:.0f} s, limit {self.limits.unread_time_s:g} s"))

    def _broke(self, error: OSError) -> ConnectionEnded:
        """Sending has failed. What the other end said before it went (a farewell, perhaps) has arrived already: it is
        handed over before the end, but not in the middle of a send()."""
        if self._unsendable is None:
            self._unsendable = ConnectionEnded(f"the connection to {self.label} broke: {error}", clean=False)
            self._loop.remove_writer(self._fd)
            self._loop.call_soon(self._take_rest, self._unsendable)
        return self._unsendable

    def _take_rest(self, error: ConnectionEnded) -> None:
        while not self.closed and self._readable():
            pass
        self._end(error)

    async def drain(self, queued_bytes: int = 1 << 20) -> None:
        """Waits until at most `queued_bytes` are still queued. Raises the connection's error if it ends first.

        Any number of tasks may wait here. They go on one at a time, in the order in which they came, and each finds
        what the one before it has queued. It always gives way to the loop once.
        """
        if not self.closed:
            turn: asyncio.Future[None] = self._loop.create_future()
            self._turns.append((queued_bytes, turn))
            self._give_turn_soon()
            await turn
        if self.closed:
            raise self._error or ConnectionEnded(f"the connection to {self.label} is closed")

    def _give_turn_soon(self) -> None:
        if self._turns and self._giving is None:
            self._giving = self._loop.call_soon(self._give_turn)

    def _give_turn(self) -> None:
        """Lets the first waiter go on, if little enough is queued."""
        self._giving = None
        while self._turns and self._turns[0][1].done():  # given up
            self._turns.popleft()
        if self._turns and self._out_bytes <= self._turns[0][0]:
            self._turns.popleft()[1].set_result(None)
            self._give_turn_soon()  # a look behind the first one's next step, in which it queues its frame

    # --- ending

    def close(self) -> None:
        """Closes at once; what is still queued is dropped (await drain(0) first to keep it). Idempotent."""
        self._end(None)

    def detach(self) -> tuple[socket.socket, bytes]:
        """Ends the connection, not its socket: that is the caller's now, with what has come and nobody has received.
        Nothing may wait to be sent, and there may be no stream."""
        assert not self.closed and not self._out and self._stream is None
        self.closed = True
        if self._drip is not None:
            self._drip.cancel()
        self._loop.remove_reader(self._fd)
        early = b"".join(encode(frame.body) for frame in self._frames) + self._decoder.rest()
        for frame in self._frames:
            frame.close_fds()
        self._frames.clear()
        self._decoder.close()
        return self._sock, early

    def take_arrived(self) -> None:
        """Hands over what has arrived by now, as far as one look takes it."""
        if not self.closed:
            self._readable()

    def finish(self) -> None:
        """The process at the other end has died, though a child of it may hold its socket open: takes what it had sent,
        then ends as if it had closed."""
        while not self.closed and self._readable():
            pass
        self._end(ended(self.label, self._decoder))

    def _end(self, error: SpindleError | None) -> None:
        if self.closed:
            return
        self.closed = True
        self._error = error
        for timer in (self._drip, self._unread):
            if timer is not None:
                timer.cancel()
        self._loop.remove_reader(self._fd)
        self._loop.remove_writer(self._fd)
        if not self._out and self._unsendable is None and not isinstance(error, ConnectionEnded):
            # As far as it fits: the other end may have stopped reading.
            with contextlib.suppress(OSError, WireError):
                self._send_last(None if error is None or self.last_word is None else self.last_word(error))
        self._sock.close()
        self._decoder.close()
        for _, fds in self._out:
            close_all(fds)
        self._out.clear()
        self._out_bytes = 0
        self._wake_receiver()
        turns, self._turns = self._turns, deque()
        for _, turn in turns:
            if not turn.done():
                turn.set_result(None)  # to find that the connection is closed
        ended, self._on_end = self._on_end, None
        if ended is not None:
            self._loop.call_soon(ended, error)

    def _send_last(self, body: bytes | None) -> None:
        data = b"" if body is None else encode(body)
        if self._stream is not None:
            with contextlib.suppress(WireError):  # a stream that is broken has an alert to send instead
                data = self._stream.seal(data) if data else data
            data += self._stream.goodbye()
        if data:
            send_some(self._sock, memoryview(data), ())


def _peer_of(sock: socket.socket) -> Credentials:
    return PeerCredentials.of(sock) if sock.family == socket.AF_UNIX else NetworkPeer.of(sock)


def _duplicates(fds: Sequence[int]) -> list[int]:
    """Raises NoResources, and leaves nothing open then."""
    made: list[int] = []
    try:
        for fd in fds:
            made.append(os.dup(fd))
    except OSError as error:
        close_all(made)
        raise shortage(error, "what waits to be sent") or error from None
    return made


_on_loops: weakref.WeakSet[socket.socket] = weakref.WeakSet()


def close_in_child(sock: socket.socket) -> None:
    """A forked child closes its copy of this socket."""
    _on_loops.add(sock)


def _after_fork_in_child() -> None:
    """A forked child drops its copies of a node's sockets: held open, they would hide its death from the others."""
    for sock in list(_on_loops):
        sock.close()


os.register_at_fork(after_in_child=_after_fork_in_child)
