"""Connections of plain threads. What travels on them, and the rules: `spindle.transport.wire`, which this is a part of.

Why apart from those of an event loop: an application may have no loop, several threads of it send, and one waits
for what comes.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from spindle.errors import ConnectionEnded, WireError
from spindle.transport.frames import (
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
    receive_what_fits,
    send_some,
)


class BlockingConnection:
    """A framed connection for plain threads: any number may send, one may receive.

    Under a stream: `_send_lock` keeps the order of sealing that of sending, `_stream_lock` only guards the stream, so
    that a receiver never waits for a sender whom the other end keeps waiting. Whoever needs both takes them in this
    order. Raises WireError if what came with the end of the stream's handshake is malformed.

    The socket is closed when nobody uses it any more: close() in the middle of another thread's receive() shuts it
    down, and the receiver closes it as it ends. Otherwise the descriptor's number could go to another file while the
    receiver is about to wait for it: it would then wait for that file, or take bytes that are not its own.
    """

    def __init__(self, sock: socket.socket, *, label: str = "the node", limits: Limits | None = None,
                 stream: Stream | None = None) -> None:
        prepare(sock)
        self._sock = sock
        self.label = label
        self.limits = limits or Limits()
        self._stream = stream
        self._decoder = FrameDecoder(self.limits, carries_fds=carries_fds(sock, stream))
        self._frames: deque[Frame] = deque()
        self._send_lock = threading.Lock()
        self._stream_lock = threading.Lock()
        self._use_lock = threading.Lock()  # for the two below; held for moments only
        self._receiving = False
        self.closed = False
        self.arrived = 0  # bytes, ever
        if stream is not None:
            self._frames.extend(self._decoder.feed(self._unseal(b"")))

    def fileno(self) -> int:
        """Readable when receive(0) would have bytes to look at."""
        return self._sock.fileno()

    def send(self, body: bytes, fds: Sequence[int] = (), timeout_s: float | None = 5.0) -> None:
        """Sends one frame, however long that takes. Raises TimeoutError if nothing of it goes for `timeout_s` seconds
        (the connection is closed then, as half a frame may have gone), ConnectionEnded or WireError."""
        with self._send_lock:
            sent = self._send_all(self._seal(body, fds), fds, timeout_s)
        if not sent:
            self.close()
            raise TimeoutError(f"{self.label} took no data for {timeout_s:g} s")

    def try_send(self, body: bytes, timeout_s: float = 1.0) -> bool:
        """Like send, but False at once while somebody else sends. For threads that must not wait for another."""
        sent = self._unless_somebody_sends(lambda: self._send_all(self._seal(body, ()), (), timeout_s))
        if sent is False:
            self.close()
            raise TimeoutError(f"{self.label} took no data for {timeout_s:g} s")
        return sent is not None

    def _unless_somebody_sends(self, act: Callable[[], bool]) -> bool | None:
        """Does this as who sends; None, and nothing is done, where somebody else does.

        Handlers of signals run on the main thread. There one that raises behind acquire() would leave the lock taken
        for good, and whoever sends waits for it: `with` is one step. So that thread may wait for one that was quicker
        by a moment, which none may that receives.
        """
        if threading.current_thread() is threading.main_thread():
            if self._send_lock.locked():
                return None
            with self._send_lock:
                return act()
        if not self._send_lock.acquire(blocking=False):
            return None
        try:
            return act()
        finally:
            self._send_lock.release()

    def _seal(self, body: bytes, fds: Sequence[int]) -> bytes:
        if fds and not self._decoder.carries_fds:
            raise WireError(f"{self.label}: {no_fds(len(fds))}")
        data = encode(body, len(fds))
        if self._stream is None:
            return data
        with self._stream_lock:
            return self._stream.seal(data)

    def _unseal(self, data: bytes) -> bytes:
        assert self._stream is not None
        with self._stream_lock:
            return self._stream.unseal(data)

    def _answer(self) -> None:
        """Sends what the stream wants to say; what it wants while somebody sends goes with the next frame."""
        stream = self._stream
        if stream is None:
            return

        def answer() -> bool:
            with self._stream_lock:
                data = stream.answer()
            return self._send_all(data, (), 1.0)

        if self._unless_somebody_sends(answer) is False:
            raise ConnectionEnded(f"{self.label} took no data for 1 s", clean=False)

    def _send_all(self, data: bytes, fds: Sequence[int], timeout_s: float | None) -> bool:
        """False if nothing went for so long: a large frame takes its time on a slow line. Under the lock."""
        left = memoryview(data)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while left:
            try:
                sent = send_some(self._sock, left, fds)
            except (BlockingIOError, InterruptedError):
                if not self._poll(select.POLLOUT, deadline):
                    return False
                continue
            except OSError as error:
                raise ConnectionEnded(f"the connection to {self.label} broke: {error}", clean=False) from None
            left, fds = left[sent:], ()
            if timeout_s is not None:
                deadline = time.monotonic() + timeout_s
        return True

    def receive(self, timeout_s: float | None = None) -> Frame:
        """The next frame. Raises ConnectionEnded, WireError, or TimeoutError after `timeout_s` seconds."""
        with self._use_lock:
            if self.closed:
                raise ConnectionEnded(f"the connection to {self.label} is closed")
            self._receiving = True
        try:
            return self._receive(timeout_s)
        finally:
            with self._use_lock:
                self._receiving = False
                closed = self.closed
            if closed:
                self._release()

    def _receive(self, timeout_s: float | None) -> Frame:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._frames:
            try:
                if self._stream is not None and self._stream.ended:
                    raise ended(self.label, self._decoder, self._stream)
                data, fds = receive_what_fits(self._sock)
                if not data:
                    close_all(fds)
                    raise ended(self.label, self._decoder, self._stream)
                self.arrived += len(data)
                if self._stream is not None:
                    data = self._unseal(data)
                    self._answer()
                self._frames.extend(self._decoder.feed(data, fds))
            except (BlockingIOError, InterruptedError):
                if not self._poll(select.POLLIN, deadline):
                    raise TimeoutError(f"{self.label} sent nothing for {timeout_s:g} s") from None
            except WireError:
                self.close()
                raise
            except OSError as error:
                self.close()
                raise ConnectionEnded(f"the connection to {self.label} broke: {error}", clean=False) from None
        return self._frames.popleft()

    def _poll(self, event: int, deadline: float | None) -> bool:
        poller = select.poll()
        try:
            poller.register(self._sock, event)
        except (ValueError, OSError):
            raise ConnectionEnded(f"the connection to {self.label} is closed") from None
        wait_ms = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
        return bool(poller.poll(wait_ms))

    def close(self) -> None:
        """Closes; a receive() in another thread ends with ConnectionEnded. Idempotent."""
        with self._use_lock:
            if self.closed:
                return
            self.closed = True
            receiving = self._receiving
        self._say_goodbye()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        if not receiving:
            self._release()

    def _release(self) -> None:
        """Gives back the descriptors; called once, by who closes or by who was receiving then."""
        with self._send_lock:
            self._sock.close()
        for frame in self._frames:
            frame.close_fds()
        self._frames.clear()
        self._decoder.close()

    def _say_goodbye(self) -> None:
        """As far as it fits, and not in the middle of what another thread sends."""
        stream = self._stream
        if stream is None:
            return

        def say_goodbye() -> bool:
            with self._stream_lock:
                data = stream.goodbye()
            with contextlib.suppress(OSError):
                self._sock.send(data)
            return True

        self._unless_somebody_sends(say_goodbye)
