"""Where the messages of one reader come from: one order, whatever node serves it.

Why: each node has a log of its own, which ends with the node. The next one's log goes on behind it, or behind a gap.
Whoever reads, waits or counts has one object that knows this, and nobody else does.

What it promises:
- Messages come in the order of the topic: those that a dead node has left, then those of the next. `log` has the next
  ones. When it has no more, `turn()` goes on in the one behind it, if that is there; `first()` does so until something
  is found, and raises if nothing can come any more.
- `index` counts the messages on through all logs, and never falls.
- What is missing is said once: `lost` counts what was overtaken here, `gap_at` is where messages may be missing that
  nobody has told of, `breaks` how often what comes may not follow what had come, `status` what programs are told.
- Who waits is woken by the log that grows, be that a later one than the one being read. While no node serves, the
  thread that finds the next one rings the wakers of the hub.

Rules: nobody keeps `log`, which is another one after turn(); it stands open because taking in place costs no call but
the log's own. One thread at a time turns, under the lock of who takes. Any may call follow() and close().
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from dds.exceptions import DDSException, DDSNodeLost, closed, translate
from dds.status import ReattachedStatus
from dds.waiting.wake import Hub, Waker, park, wait_readable
from spindle.errors import ForkedChild, SpindleError

if TYPE_CHECKING:
    from dds.internal import SampleInfo
    from dds.readers.instances import Instance
    from spindle.client import Session
    from spindle.group.position import Position

NEVER = 1 << 63  # an index that no message has

R = TypeVar("R")


class Block(Protocol):
    """Samples in place: see `spindle_core.reader.Block`."""

    @property
    def buffer(self) -> memoryview: ...
    @property
    def offset(self) -> int: ...
    @property
    def stride(self) -> int: ...
    @property
    def payload_size(self) -> int: ...
    @property
    def count(self) -> int: ...
    @property
    def stays(self) -> bool: ...
    def info(self, i: int, info_type: type) -> SampleInfo: ...
    def release(self) -> None: ...


class Log(Protocol):
    """What one node has for the reader: `spindle_core.reader.LogReader` says what these are. Another one is in
    `dds.matching.notices`, for readers that take nothing in place: it has take_pairs() only."""

    only_plain: bool
    goes_on: bool

    @property
    def pending(self) -> int: ...
    @property
    def arrived(self) -> int: ...
    @property
    def lost(self) -> int: ...
    @property
    def position_index(self) -> int: ...
    @property
    def next_view(self) -> int: ...
    @property
    def next_sequence(self) -> int: ...
    @property
    def meets_tagged(self) -> bool: ...
    @property
    def tagged_ahead(self) -> bool: ...
    @property
    def said_ns(self) -> int: ...
    @property
    def is_gone(self) -> bool: ...

    def take(self, n: int, payload_type: type, info_type: type, before: list[bool],
             into: list[Any]) -> list[Any]: ...
    def take_with(self, n: int, decode: Callable[[memoryview], Any], info_type: type, *, keys: object = None,
                  learn: Callable[..., Instance] | None = None,
                  decode_large: Callable[[memoryview], Any] | None = None, into: list[Any] | None = None,
                  interrupts: Callable[[Exception], object] | None = None) -> list[Any]: ...
    def take_block(self, n: int, keys: object = None, learn: Callable[..., Instance] | None = None,
                   info_type: type = ...) -> Block | None: ...
    def take_pairs(self, n: int, *, in_place: bool = False, into: deque[tuple[Any, Any]] | None = None
                   ) -> list[tuple[Any, Any]]: ...
    def tagged_within(self, n: int) -> bool: ...
    def skip_to_last(self, depth: int) -> int: ...
    def arm(self) -> bool: ...
    def wait_or(self, other_fd: int, timeout_s: float, known: int) -> int: ...
    def clear(self) -> None: ...
    def fileno(self) -> int: ...
    def read_on(self) -> bool: ...


class NodesLog(Protocol):
    """A log, and what its node says of it: `spindle.client.ReaderHandle`."""

    @property
    def session(self) -> Session: ...
    @property
    def log(self) -> Log: ...
    @property
    def start(self) -> Position: ...
    @property
    def ends(self) -> Iterable[Position]: ...
    @property
    def continued(self) -> bool: ...

    def close(self) -> None: ...


# What a log raises besides ValueError, where the bytes of a large sample can't be had: its node doesn't answer, say, or
# this process may have no more descriptors or memory.
UNREADABLE = (SpindleError, OSError, MemoryError)
REFUSALS = (ValueError, *UNREADABLE)


class Taker(Protocol):
    """Who takes: `dds.readers.reader.ReaderCore`. It is asked and told under its lock."""

    _open: bool
    _lock: threading.RLock

    def _check_open(self) -> None:
        """DDSException if it is closed."""

    def _is_through(self) -> bool:
        """All that it has taken is let in, and what it lost of this log is counted: the next one may come."""

    def _turned(self, view_id: int) -> None:
        """The next log is being read; it stood in view `view_id` of the one before."""


class Supply(Protocol):
    """Who finds the next node: `dds.nodes.attachment.Attachment`."""

    @property
    def hopeful(self) -> bool: ...
    def lost(self, session: Session) -> None: ...
    def lost_error(self, what: str) -> DDSNodeLost: ...


class LogSource:
    """The logs of one reader, one behind the other.

    log     the one that is being read
    handle  of the log that is being read
    newest  of the log that grows: the same, or a later one
    gap_at  index of the message in front of which others are missing that nobody has told of; NEVER = there is none
    breaks  how often what comes does not follow, for certain, what had come, and nothing else
    error   why no later node serves this reader; None = one may
    error_passes  one may all the same, later
    status  how often another node went on serving it
    """

    __slots__ = ("_before_index", "_before_lost", "_closed", "_hub", "_is_turning", "_later",
                 "_logs_lock", "_overtaken", "_seen_lost", "_supply", "_taker", "_topic", "breaks", "error",
                 "error_passes", "gap_at", "handle", "log", "newest", "status")

    def __init__(self, handle: NodesLog, taker: Callable[[], Taker | None], hub: Hub, supply: Supply,
                 topic: str) -> None:
        """`taker`: a weak reference. `hub`: the wakers of all who wait. `topic`: its name, for errors."""
        self.handle = self.newest = handle
        self.gap_at = NEVER
        self.breaks = 0
        self.error: DDSException | None = None
        self.error_passes = False
        self.status = ReattachedStatus()
        self._taker = taker
        self._hub = hub
        self._supply = supply
        self._topic = topic
        self._later: deque[NodesLog] = deque()  # opened behind, in the order in which they must be read
        self._logs_lock = threading.Lock()  # of which logs there are
        self._closed = self._is_turning = False
        self._overtaken = False  # what is missing at gap_at was lost in a log, by this reader alone
        self._seen_lost = 0  # of `lost`, when gap_at was set last
        self._before_index = self._before_lost = 0  # what all earlier logs add
        self._read(handle)

    def _read(self, handle: NodesLog) -> None:
        """From this log from now on."""
        self.handle, self.log = handle, handle.log
        self.log.only_plain = True
        self.log.goes_on = self._supply.hopeful

    # --- where it stands

    @property
    def index(self) -> int:
        """Of the next message to be taken."""
        return self._before_index + self.log.position_index

    @property
    def arrived(self) -> int:
        """Of the first message that is not there yet, of the log that is being read."""
        return self.index + self.log.pending

    @property
    def starts_at(self) -> tuple[int, int]:
        """View and sequence number where the log that is being read begins for this reader, as stands_at."""
        return self.handle.start.place

    @property
    def stands_at(self) -> tuple[int, int]:
        """View and sequence number behind the last message that was taken, in the order of `session`'s group."""
        return self.log.next_view, self.log.next_sequence

    @property
    def session(self) -> Session:
        """Whose order is being read."""
        return self.handle.session

    @property
    def said_ns(self) -> int:
        """The time that the order has said last, perhaps behind what was taken, UTC ns; 0: none."""
        return self.log.said_ns

    def skip_to_last(self, depth: int) -> None:
        """Skip all but the newest `depth` messages. DDSException if the reader is closed, or has a batch open."""
        try:
            self.log.skip_to_last(depth)
        except (ForkedChild, ValueError) as error:
            raise self.refusal(error) from None

    def take_pairs(self, n: int, into: deque[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        """Up to `n` pairs of a payload and its info, which are appended to `into` at once: a signal may come before
        they are returned. The payload of a large sample is a memoryview, of memory that stays as it is. Raises as
        skip_to_last()."""
        log = self.log
        try:
            pairs = log.take_pairs(n, in_place=True, into=into)
        except REFUSALS as error:
            raise self.refusal(error) from None
        if pairs and self._before_lost + log.lost != self._seen_lost:
            self._seen_lost = self._before_lost + log.lost
            self.gap_at, self._overtaken = self.index - len(pairs), True
        return pairs

    # --- what is missing

    @property
    def lost(self) -> int:
        """Messages that were overtaken before they were taken."""
        return self._before_lost + self.log.lost

    def expect_gap(self) -> None:
        """Something may be missing behind what the log has now. Any thread may say so."""
        self.gap_at = self.arrived

    def pass_gap(self) -> bool:
        """The message at `gap_at` was taken. True if what is missing in front of it was overtaken, so that others may
        have had it."""
        overtaken, self.gap_at, self._overtaken = self._overtaken, NEVER, False
        return overtaken

    # --- going on at another node

    @property
    def hopeful(self) -> bool:
        """More may come after the log that has ended."""
        return self.error is None and not self._closed and self._supply.hopeful

    @property
    def is_over(self) -> bool:
        """Nothing more comes from the log that is being read, nor from another."""
        return self.error is not None or (self.log.is_gone and not self._later and not self.hopeful)

    def follow(self, handle: NodesLog, continued: bool) -> bool:
        """This log comes next; `continued`: nothing is missing in front of it, nor comes again. False if the reader is
        closed: so is the log then."""
        with self._logs_lock:
            if self._closed:
                handle.close()
                return False
            self.breaks += not continued  # before anything comes from there
            self._later.append(handle)
            self.newest = handle
            self.error = None
            return True

    def turn(self) -> bool:
        """Go on in the next log, if there is one and this one was taken to its end. True if so: look again."""
        if not self._later:
            return False
        taker = self._taker()
        if taker is None:
            return False
        with taker._lock:
            if not self._later or self.log.pending or self._is_turning:
                return False
            self._is_turning = True  # who counts what was lost may want to look for more
            try:
                if not taker._is_through():
                    return False
            finally:
                self._is_turning = False
            view_id = self.log.next_view
            self._turn()
            taker._turned(view_id)
            return True

    def _turn(self) -> None:
        done, index, lost = self.handle, self.index, self.lost
        with self._logs_lock:
            self._read(self._later.popleft())
        self._before_index = index - self.log.position_index
        self._before_lost = lost
        self._seen_lost = self.lost
        self.gap_at = NEVER if self.handle.continued else index
        done.close()

    def turn_or_end(self) -> bool:
        """What is being read has nothing, and its node is gone. True if the next log is being read now, False if one
        may come yet. Raises DDSNodeLost, or `error`, if not."""
        if self.turn():
            return True
        if self._later or self.hopeful:
            return False
        taker = self._taker()
        if taker is not None:
            taker._check_open()
        if self.read_on():
            return True
        if self.error is not None:
            raise self.error
        self._supply.lost(self.session)  # who hears of it by this error finds it in the statuses, too
        raise self._supply.lost_error(f"reading topic {self._topic!r}")

    def read_on(self) -> bool:
        """No other node will give what could not be read of the log that has ended: what stands behind that comes from
        here. True if there is something."""
        taker = self._taker()
        if taker is None or self._later or self.hopeful or not self.log.is_gone:
            return False
        if self.error_passes and self._supply.hopeful:
            return False
        with taker._lock:
            return self.log.read_on()

    def first(self, look: Callable[[], R], found: R) -> R:
        """What look() finds, which has just found `found`: it looks again as long as that is nothing, and there is a
        log behind the one that it has looked at. Raises as turn_or_end()."""
        while not found and (log := self.log).is_gone and not log.pending and self.turn_or_end():
            found = look()
        return found

    # --- waiting for the log that grows

    @property
    def bell(self) -> Log | None:
        """Whose descriptor is rung when a message comes after arm(). None while no node serves, and nothing is rung."""
        log = self.newest.log
        return None if log.is_gone else log

    @property
    def head(self) -> tuple[int, int]:
        """How often another node went on serving, and how many messages have come in the log that grows."""
        log = self.newest.log
        return self.status.total_count, log.position_index + log.pending

    def arm(self) -> int:
        """The next message rings. Returns how many had come by then, for wait(). DDSException if it is closed."""
        while True:
            log = self.newest.log
            try:
                log.arm()
                return log.arrived
            except (ForkedChild, ValueError) as error:
                if log is self.newest.log:
                    raise self.refusal(error) from None
                # It was closed when the next one, which grows now, had come.

    def wait(self, waker: Waker, left_s: float | None, known: int) -> None:
        """Wait for more messages than were `known`, for `waker`, or so long (None = for ever); others who wait learn of
        messages. Returns also if another thread closes the reader, or brings the next log: who waits looks again."""
        log = self.newest.log
        if log.is_gone:
            wait_readable((waker.fd,), left_s)
            waker.clear()
            return
        try:
            rung = log.wait_or(waker.fd, -1.0 if left_s is None else left_s, known)
        except ForkedChild as error:
            raise self.refusal(error) from None
        except ValueError:  # this log is closed
            taker = self._taker()
            if taker is None or not taker._open:
                park()
            return
        if rung & 1:
            self._hub.woken(waker)
        if rung & 2:
            waker.clear()

    def clear(self, waker: Waker | None) -> None:
        """The descriptor was rung: empty it, and let everybody else who waits know."""
        self.newest.log.clear()
        self._hub.woken(waker)

    # --- the end

    def refusal(self, error: Exception) -> DDSException:
        """What to raise where the log refuses: after a fork(), for a closed reader, while a batch is open, or where the
        bytes of a large sample can't be had (yet)."""
        if isinstance(error, ForkedChild):
            return DDSNodeLost(str(error))
        taker = self._taker()
        if taker is None or not taker._open:
            return closed(repr(taker))
        if isinstance(error, UNREADABLE):
            return translate(error, f"a sample of topic {self._topic!r}")
        return DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET, f"{taker!r}: {error}")

    def change(self, endpoint: bytes) -> None:
        """What is said of the reader, to those who hear of it, is this from now on. DDSException; then nothing has
        changed."""

    def close(self) -> None:
        """Give all logs back. Idempotent."""
        with self._logs_lock:
            self._closed = True
            handles = [self.handle, *self._later]
        for handle in handles:
            handle.close()


class Losses:
    """Counts what a reader lost by being overtaken: not what KeepLast(depth) would have replaced anyway."""

    __slots__ = ("_seen", "_source", "depth", "found")

    def __init__(self, source: LogSource, depth: int) -> None:
        """`depth` 0 = every sample that was overtaken is lost."""
        self._source = source
        self.depth = depth
        self._seen = 0
        self.found = 0  # lost samples that no status tells of yet

    def look(self) -> None:
        """Call it when the reader stands where it goes on, before it takes."""
        source = self._source
        overtaken = source._before_lost + source.log.lost - self._seen
        if overtaken:
            self._seen += overtaken
            self.found += min(overtaken, max(0, self.depth - source.log.pending)) if self.depth else overtaken


__all__ = ["NEVER", "Block", "Log", "LogSource", "Losses", "NodesLog", "Supply", "Taker"]
