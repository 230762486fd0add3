"""The end of a data connection that reads large samples of another node, on a thread of its own.

Why a thread with plain blocking calls: each takes many pages at once, outside of Python's lock, so the node's event
loop isn't held up, and nothing but these copies costs time.

Where both nodes' RDMA devices reach each other, the bytes come into a landing (blocks.py), as soon as the other end
knows that.

Rules: whatever comes is checked against what was asked for; what makes no sense ends the connection. What came for a
question that was taken back is passed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import socket
import struct
import threading
import time
from typing import TYPE_CHECKING

from spindle.errors import NoResources, SampleMissing, SpindleError, refusal
from spindle.large.filling import Filling
from spindle.large.pieces import (
    ADDRESS,
    CARD_MAX,
    DATA,
    DELIVERED,
    FIRST,
    LACKING,
    LANDED,
    LANDING,
    PIECE,
    PIECE_MAX,
    QUESTION,
    READY,
    TAKEN,
    UNWANT,
    WANT,
    WANT_FIRST,
    WANTED_MAX,
    WHY_MAX,
)
from spindle.large.routes import BLOCK
from spindle.transport.wire import close_in_child

if TYPE_CHECKING:
    from spindle.large.blocks import Landing, MakeWay

LOG = logging.getLogger("spindle.large")
LOOK_S = 1.0  # what has come of a piece counts at least so often, however slow the way is
IDLE_S = 30.0  # without a question, until the connection is given up
TELL_BLOCKS = 4  # that were taken out of a landing, until the other end is told


@dataclasses.dataclass(eq=False)
class Fetch:
    """One question: `done` has the end of it, or the error."""

    number: int
    filling: Filling
    at: int  # the byte that is to come next
    done: asyncio.Future[None]


class Reader:
    """See the module's text. Takes over the descriptor. `make_way`: this node's end of a way over RDMA to that node,
    if there may be one. `ended` says why it is over; "": it isn't."""

    def __init__(self, fd: int, node_id: int, make_way: MakeWay | None = None) -> None:
        self._loop = asyncio.get_running_loop()
        self.node_id = node_id
        self.ended = ""
        self.received = self.landed = 0  # bytes of samples; and of these over RDMA
        self._make_way = make_way
        self._landing: Landing | None = None
        self._sock = socket.socket(fileno=fd)
        self._sock.setblocking(True)
        close_in_child(self._sock)
        seconds = int(LOOK_S)
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO,
                              struct.pack("@ll", seconds, int((LOOK_S - seconds) * 1e6)))
        self._fetches: dict[int, Fetch] = {}
        self._numbers = 0
        self._lock = threading.Lock()
        self._used_s = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"spindle large from {node_id}", daemon=True)
        try:
            self._thread.start()
        except RuntimeError as error:  # no thread can be had
            self._sock.close()
            raise NoResources(f"no thread for large samples of node {node_id}: {error}") from error

    # --- from the loop

    def lasts(self) -> bool:
        """False if it is over; else it lasts for a while, needed or not."""
        with self._lock:
            self._used_s = time.monotonic()
            return not self.ended

    def want(self, filling: Filling, first: bool, delivered: bool = False) -> Fetch:
        """Has this sample filled from here, before all others if need be. `delivered`: see Bringing.bring(). Raises
        SampleMissing, NoResources."""
        with self._lock:
            if self.ended:
                raise SampleMissing(self.ended)
            if len(self._fetches) >= WANTED_MAX:
                raise SampleMissing(f"{WANTED_MAX} large samples are wanted of node {self.node_id} already")
            self._numbers += 1
            fetch = Fetch(self._numbers, filling, 0, self._loop.create_future())
            fetch.done.add_done_callback(lambda done: done.cancelled() or done.exception())
            fetch.at = filling.give_to(fetch)
            self._fetches[fetch.number] = fetch
        self._ask(WANT_FIRST if first else WANT, fetch, DELIVERED if delivered else 0)
        return fetch

    def hurry(self, fetch: Fetch) -> None:
        """Before all others now."""
        if fetch.number in self._fetches:
            self._ask(FIRST, fetch)

    def unwant(self, fetch: Fetch) -> None:
        """It may be over. Idempotent."""
        if self._fetches.pop(fetch.number, None) is not None:
            self._ask(UNWANT, fetch)

    def _ask(self, what: int, fetch: Fetch, says: int = 0) -> None:
        question = QUESTION.pack(what, says, fetch.number, fetch.filling.large_id, fetch.filling.size, fetch.at)
        try:
            sent = self._sock.send(question, socket.MSG_DONTWAIT)
        except OSError as error:
            sent, why = 0, error.strerror
        else:
            why = "it takes no questions"
        if sent < len(question):
            self._end(f"the data connection to node {self.node_id} broke: {why}")

    def close(self, why: str) -> None:
        """Whoever waits is told. Idempotent; blocks for a moment."""
        self._end(why)
        if self._thread is not threading.current_thread():
            self._thread.join()

    # --- on the thread

    def _end(self, why: str) -> None:
        """On any thread."""
        with self._lock:
            if self.ended:
                return
            self.ended = why
            fetches = list(self._fetches.values())
            self._fetches.clear()
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        for fetch in fetches:
            self._tell(fetch, SampleMissing(why))

    def _tell(self, fetch: Fetch, error: SpindleError | None = None) -> None:
        def tell() -> None:
            if fetch.done.done():
                return
            if error is None:
                fetch.done.set_result(None)
            else:
                fetch.done.set_exception(error)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(tell)

    def _run(self) -> None:
        buffer = memoryview(bytearray(BLOCK))
        try:
            if self._make_way is not None:
                self._tell_landing(self._make_way)
            while True:
                self._receive(buffer[:PIECE.size], idle=True)
                what, length, number, at = PIECE.unpack(buffer[:PIECE.size])
                if what == DATA and 0 < length <= PIECE_MAX:
                    self._take_piece(buffer, length, self._fetches.get(number), at)
                elif what == LACKING and length <= WHY_MAX:
                    self._receive(buffer[:length])
                    self._take_refusal(str(buffer[:length], "utf-8", "replace"), number)
                elif what == LANDED and self._landing is not None:
                    self._take_block(self._landing, length, self._fetches.get(number), at)
                elif what == ADDRESS and self._landing is not None and length <= CARD_MAX:
                    self._receive(buffer[:length])
                    self._take_address(self._landing, bytes(buffer[:length]))
                else:
                    raise SampleMissing(f"node {self.node_id} sent what is no piece of a large sample")
        except (OSError, SpindleError) as error:
            self._end(str(error) if isinstance(error, SpindleError) else
                      f"the data connection to node {self.node_id} broke: {error}")
        finally:
            self._end(f"the data connection to node {self.node_id} has ended by a defect")
            self._end_landing()
            self._sock.close()

    def _tell_landing(self, make_way: MakeWay) -> None:
        """Raises OSError."""
        from spindle.large.blocks import Landing  # only where it is used

        try:
            self._landing = Landing(make_way)
        except (ValueError, OSError) as error:
            LOG.warning("large samples come from node %d over TCP: %s", self.node_id, str(error))
            return
        self._say(QUESTION.pack(LANDING, 0, 0, 0, len(self._landing.card), 0) + self._landing.card)

    def _take_address(self, landing: Landing, address: bytes) -> None:
        """Of the other end of that way; none: it has none. Raises OSError."""
        if not address:
            self._end_landing()
            return
        try:
            landing.connect(address)
        except (ValueError, OSError) as error:
            LOG.warning("large samples come from node %d over TCP: %s", self.node_id, str(error))
            self._end_landing()
            return
        self._say(QUESTION.pack(READY, 0, 0, 0, 0, 0))

    def _end_landing(self) -> None:
        if self._landing is not None:
            self._landing.close()
            self._landing = None

    def _say(self, question: bytes) -> None:
        """Raises OSError, SampleMissing."""
        try:
            sent = self._sock.send(question, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        if sent < len(question):
            raise SampleMissing(f"node {self.node_id} takes no questions")

    def _receive(self, into: memoryview, idle: bool = False) -> None:
        """So many bytes. Raises OSError, SampleMissing."""
        done = 0
        while done < len(into):
            done += self._receive_some(into[done:], idle and not done)

    def _receive_some(self, into: memoryview, idle: bool = False) -> int:
        """All that fits, or less when it comes slowly; 0: nothing came for a while."""
        try:
            count = self._sock.recv_into(into, 0, socket.MSG_WAITALL)
        except BlockingIOError:
            if idle:
                self._look_whether_used()
            return 0
        if not count:
            raise SampleMissing(self.ended or f"node {self.node_id} has closed the data connection")
        self._used_s = time.monotonic()
        return count

    def _look_whether_used(self) -> None:
        with self._lock:
            if self._fetches or time.monotonic() - self._used_s < IDLE_S:
                return
            self.ended = f"the data connection to node {self.node_id} was given up: nobody needs it"
        raise SampleMissing(self.ended)

    def _check(self, length: int, fetch: Fetch | None, at: int) -> None:
        """Raises SampleMissing unless it is what comes next."""
        if fetch is not None and (at != fetch.at or at + length > fetch.filling.size):
            raise SampleMissing(f"node {self.node_id} sent bytes {at} to {at + length} of a large sample of "
                                f"{fetch.filling.size}, where {fetch.at} is next")

    def _take_block(self, landing: Landing, length: int, fetch: Fetch | None, at: int) -> None:
        self._check(length, fetch, at)
        with landing.block(length) as block:
            self.received += length
            self.landed += length
            if fetch is not None:
                self._take(fetch, block)
        self._used_s = time.monotonic()
        landing.taken += 1
        if landing.taken % TELL_BLOCKS == 0:
            self._say(QUESTION.pack(TAKEN, 0, TELL_BLOCKS, 0, 0, 0))

    def _take_piece(self, buffer: memoryview, length: int, fetch: Fetch | None, at: int) -> None:
        self._check(length, fetch, at)
        while length:
            count = self._receive_some(buffer[:min(length, len(buffer))])
            length -= count
            self.received += count
            if fetch is not None and count and not self._take(fetch, buffer[:count]):
                fetch = None

    def _take(self, fetch: Fetch, data: memoryview) -> bool:
        """False if no more of it is needed."""
        fetch.at += len(data)
        failure: NoResources | None = None
        try:
            if not fetch.filling.fill(fetch, data):
                return False  # another source fills it now
            if fetch.at < fetch.filling.size:
                return True
            fetch.filling.complete()
        except NoResources as error:  # this node's own failure
            failure = error
        self._fetches.pop(fetch.number, None)  # before anybody is told: nothing of it is to be asked for any more
        self._tell(fetch, failure)
        return False

    def _take_refusal(self, why: str, number: int) -> None:
        fetch = self._fetches.pop(number, None)
        if fetch is not None:
            self._tell(fetch, refusal(f"node {self.node_id} doesn't give it: {why}"))
