"""Streams of bytes that share one connection, without input or output: the rules of `spindle/proto/edge.proto`.

Why streams of bytes and not of frames: a frame may be as large as the largest message. Cut into pieces it keeps no
other stream waiting, and a window has to hold no whole one.

How to use it: `take` each message that comes; it returns what has happened. `open`, `send`, `passed` and `close` say
something to the other end, through `say`. Whatever of it breaks the rules is a WireError: the connection is to end
then, and `last_word` says why.

Rules:
- At most STREAM_BYTES of a stream are on the way in each direction: what comes beyond that is refused, so nobody has to
  keep more than that for a stream whose reader is slow.
- The other end's Close is answered at once. After ours nothing of the stream is handed on, though it counts.
- Numbers are used once. The end that opens streams forgets one no earlier than the other end does, so both agree
  whether there is room for another.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from google.protobuf.message import DecodeError

from spindle.errors import SpindleError, WireError, error_from_wire, error_to_wire
from spindle.proto import edge_pb2 as eb
from spindle.transport.opening import STREAM_BYTES

PIECE_BYTES = 64 << 10  # of a stream at a time, so that the others get on beside it
FRAME_BYTES_MAX = PIECE_BYTES + 4096
CREDIT_BYTES = STREAM_BYTES // 4  # passed on before the other end is told so
TEXT_MAX = 1000  # characters of a reason


@dataclasses.dataclass(frozen=True)
class Opened:
    """The other end has opened a stream."""

    stream: int


@dataclasses.dataclass(frozen=True)
class Received:
    """Bytes have come; tell `passed` when they have been passed on."""

    stream: int
    content: bytes


@dataclasses.dataclass(frozen=True)
class Room:
    """More may be sent than before."""

    stream: int


@dataclasses.dataclass(frozen=True)
class Ended:
    """The other end has closed a stream; `error` says why, None: what it carries has ended."""

    stream: int
    error: SpindleError | None


@dataclasses.dataclass(frozen=True)
class Allowed:
    """So many streams may be open; 0: no more are to be opened, as the other end is about to end."""

    streams: int


Happening = Opened | Received | Room | Ended | Allowed


@dataclasses.dataclass
class Stream:
    """0 <= room, incoming <= STREAM_BYTES."""

    room: int = STREAM_BYTES  # bytes that may be sent
    incoming: int = STREAM_BYTES  # bytes that the other end may send
    passed: int = 0  # of those that came, passed on and not granted again yet
    closed: bool = False  # by this end


class Streams:
    """One end of a connection. `opens`: it is the end that opens streams. `allowed`: how many there may be at one time;
    the end that opens them hears it (0: not yet)."""

    def __init__(self, say: Callable[[bytes], None], *, opens: bool, allowed: int = 0) -> None:
        self.allowed = allowed
        self._say, self._opens = say, opens
        self._streams: dict[int, Stream] = {}
        self._last = 0  # number of the newest

    def __len__(self) -> int:
        """How many count towards what is allowed."""
        return len(self._streams)

    # --- what comes

    def take(self, body: bytes) -> Happening | None:
        """What has happened, None if nothing that matters. Raises WireError, or the other end's last word."""
        try:
            frame = eb.StreamFrame.FromString(body)
        except DecodeError as error:
            raise WireError(f"a message about streams can't be read: {error}") from None
        kind = frame.WhichOneof("body")
        if kind == "data":
            return self._take_data(frame.data)
        if kind == "credit":
            return self._take_credit(frame.credit)
        if kind == "open":
            return self._take_open(frame.open.stream)
        if kind == "close":
            return self._take_close(frame.close)
        if kind == "allowed":
            return self._take_allowed(frame.allowed.streams)
        return None

    def _take_open(self, number: int) -> Happening:
        if self._opens:
            raise WireError(f"stream {number} was opened by the end that may open none")
        if number != self._last + 1:
            raise WireError(f"stream {number} was opened after stream {self._last}: each has the next number")
        if len(self._streams) >= self.allowed:
            raise WireError(f"stream {number} was opened beside {len(self._streams)} others, the limit")
        self._last = number
        self._streams[number] = Stream()
        return Opened(number)

    def _take_data(self, data: eb.Data) -> Happening | None:
        stream, size = self._known(data.stream, "bytes came"), len(data.content)
        if not 0 < size <= PIECE_BYTES:
            raise WireError(f"stream {data.stream}: a piece of {size} bytes came, the limits are 1 and {PIECE_BYTES}")
        if size > stream.incoming:
            raise WireError(f"stream {data.stream}: {size} bytes came, of the {STREAM_BYTES} that may be on the way "
                            f"{stream.incoming} were left")
        stream.incoming -= size
        return None if stream.closed else Received(data.stream, data.content)

    def _take_credit(self, credit: eb.Credit) -> Happening | None:
        stream = self._known(credit.stream, "credit came")
        if not 0 < credit.bytes <= STREAM_BYTES - stream.room:
            raise WireError(f"stream {credit.stream}: credit for {credit.bytes} bytes came, though "
                            f"{STREAM_BYTES - stream.room} are on the way")
        stream.room += credit.bytes
        return None if stream.closed else Room(credit.stream)

    def _take_close(self, close: eb.Close) -> Happening | None:
        if close.stream == 0:
            raise error_from_wire(close.kind, close.text[:TEXT_MAX])
        stream = self._known(close.stream, "its end came")
        del self._streams[close.stream]
        if stream.closed:
            return None
        self._say_close(close.stream, None)
        error = error_from_wire(close.kind, close.text[:TEXT_MAX]) if close.kind else None
        return Ended(close.stream, error)

    def _take_allowed(self, count: int) -> Happening:
        if not self._opens or bool(self.allowed) == bool(count):
            raise WireError(f"{count} streams were allowed: that is said by the end that opens none, once at first, "
                            "and then that there may be none")
        self.allowed = count
        return Allowed(count)

    def _known(self, number: int, what: str) -> Stream:
        stream = self._streams.get(number)
        if stream is None:
            raise WireError(f"stream {number}: {what}, but there is no such stream (any more)")
        return stream

    # --- what goes

    def allow(self) -> None:
        """Says how many streams there may be."""
        self._tell(allowed=eb.Allowed(streams=self.allowed))

    def allow_no_more(self) -> None:
        """Says that this end is about to end. Once, after `allow`."""
        self._tell(allowed=eb.Allowed(streams=0))

    def pulse(self) -> None:
        """A sign of life."""
        self._tell()

    def open(self) -> int:
        """The number of a new stream. Only while there are fewer than allowed."""
        assert self._opens and len(self._streams) < self.allowed
        self._last += 1
        self._streams[self._last] = Stream()
        self._tell(open=eb.Open(stream=self._last))
        return self._last

    def room(self, number: int) -> int:
        """How many bytes `send` takes now; 0 also if the stream is closed."""
        stream = self._streams.get(number)
        return 0 if stream is None or stream.closed else min(stream.room, PIECE_BYTES)

    def send(self, number: int, content: bytes) -> None:
        """Sends bytes, as many as there is room for at most."""
        assert 0 < len(content) <= self.room(number)
        self._streams[number].room -= len(content)
        self._tell(data=eb.Data(stream=number, content=content))

    def passed(self, number: int, count: int) -> None:
        """So many of the bytes that came have been passed on: the other end may send as many more."""
        stream = self._streams.get(number)
        if stream is None or stream.closed:
            return
        stream.passed += count
        assert stream.incoming + stream.passed <= STREAM_BYTES
        if stream.passed >= CREDIT_BYTES:
            stream.incoming += stream.passed
            self._tell(credit=eb.Credit(stream=number, bytes=stream.passed))
            stream.passed = 0

    def close(self, number: int, error: SpindleError | None = None) -> None:
        """Nothing more is sent or handed on. Idempotent."""
        stream = self._streams.get(number)
        if stream is not None and not stream.closed:
            stream.closed = True
            self._say_close(number, error)

    def _say_close(self, number: int, error: SpindleError | None) -> None:
        kind, text = ("", "") if error is None else error_to_wire(error)
        self._tell(close=eb.Close(stream=number, kind=kind, text=text[:TEXT_MAX]))

    def _tell(self, **body: Any) -> None:
        self._say(eb.StreamFrame(**body).SerializeToString())


def last_word(error: SpindleError) -> bytes:
    """Says why the whole connection ends."""
    kind, text = error_to_wire(error)
    return eb.StreamFrame(close=eb.Close(stream=0, kind=kind, text=text[:TEXT_MAX])).SerializeToString()
