"""The end of a data connection that gives large samples of this node to another one, on a thread of its own.

Why bytes are sent from a mapping, not by sendfile: they are few system calls either way, and pages that the network
still holds would keep a sample that is being passed on from being sealed, so a slow receiver would hold up this node.

Where both nodes' RDMA devices reach each other, the bytes go by one-sided writes (blocks.py), as soon as the asker has
said where to, and until that way breaks: then what has not landed is sent again, over the connection.

Rules: the asker is a node that has proven who it is, but it may be mad: what it asks is checked, and bounded. A sample
that is dropped meanwhile stays mapped until the piece is sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import mmap
import os
import select
import socket
import threading
import time
from collections import deque
from typing import TYPE_CHECKING

from spindle.errors import ConnectionEnded, NoResources, SampleMissing, SpindleError, shortage
from spindle.large.handing import UNKNOWN_S
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
    from spindle.large.blocks import BlockWriter, MakeWay
    from spindle.large.handing import Find, Source

LOG = logging.getLogger("spindle.large")
SO_PRIORITY_BULK = 2  # TC_PRIO_BULK of linux/pkt_sched.h: what waits for the network card lets all else pass


@dataclasses.dataclass(eq=False)
class _Wanted:
    """One question."""

    number: int
    large_id: int
    size: int
    at: int  # the byte to be sent next
    until_s: float  # unless it is heard of by then
    source: Source | None = None
    mapped: mmap.mmap | None = None

    def let_go(self) -> None:
        """Ends the mapping."""
        if self.mapped is not None:
            self.mapped.close()
            self.mapped = None


class Giver:
    """See the module's text. Takes over the descriptor. `make_way`: this node's end of a way over RDMA to that node,
    if there may be one. Raises NoResources."""

    def __init__(self, fd: int, node_id: int, find: Find, make_way: MakeWay | None = None) -> None:
        self.node_id = node_id
        self._find, self._make_way = find, make_way
        self._has_landing = False  # the asker has told one
        self._blocks: BlockWriter | None = None  # for it
        self._ready = False  # it may be written to
        self._on_the_way: deque[tuple[_Wanted, int, int]] = deque()  # by RDMA: from which byte on, how many
        self._sock = socket.socket(fileno=fd)
        self._sock.setblocking(True)
        with contextlib.suppress(OSError):
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_PRIORITY, SO_PRIORITY_BULK)
        close_in_child(self._sock)
        self._wanted: list[_Wanted] = []  # the one to be served first in front
        self._asked = b""  # the beginning of a question
        self._looking = False  # it sleeps soon, or does: it wants to be woken
        self._lock = threading.Lock()
        self._over = False
        self._thread = threading.Thread(target=self._run, name=f"spindle large to {node_id}", daemon=True)
        try:
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            try:
                self._thread.start()
            except RuntimeError:
                os.close(self._wake)
                raise
        except (OSError, RuntimeError) as error:
            self._sock.close()
            raise NoResources(f"large samples can't be given to node {node_id}: {error}") from error

    def changed(self, _large_id: int) -> None:
        """On any thread: there may be more of that sample, or it has gone."""
        if self._looking:
            with self._lock:
                if not self._over:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_write(self._wake, 1)

    def close(self) -> None:
        """Idempotent; blocks for a moment."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._thread.join()

    # --- on the thread

    def _run(self) -> None:
        try:
            poller = select.poll()
            poller.register(self._sock, select.POLLIN)
            poller.register(self._wake, select.POLLIN)
            while True:
                self._take_questions()
                self._tell_what_landed()
                self._looking = True
                wanted = self._next(self._blocks is None or not self._ready or self._blocks.room > 0)
                if wanted is not None:
                    self._looking = False
                    self._give(wanted)
                    continue
                self._sleep(poller)
        except (OSError, SpindleError):  # the other end has gone, or is mad
            pass
        finally:
            self._end_blocks()
            self._sock.close()
            with self._lock:
                self._over = True
                os.close(self._wake)
            for wanted in self._wanted:
                wanted.let_go()

    def _sleep(self, poller: select.poll) -> None:
        """Until there is something to do."""
        blocks = self._blocks
        if blocks is None:
            found = poller.poll(self._pause_ms())
        else:
            fds = blocks.fds
            for fd in fds:
                poller.register(fd, select.POLLIN)
            found = poller.poll(self._pause_ms()) if blocks.fall_asleep() else []
            blocks.wake_up()
            for fd in fds:
                poller.unregister(fd)
        if any(fd == self._wake for fd, _ in found):
            os.eventfd_read(self._wake)

    def _pause_ms(self) -> float | None:
        ends = [wanted.until_s for wanted in self._wanted if wanted.source is None]
        return max(0.0, min(ends) - time.monotonic()) * 1000 + 1 if ends else None

    def _take_questions(self) -> None:
        """Raises OSError, SampleMissing at the end of the connection."""
        while True:
            try:
                data = self._sock.recv(QUESTION.size * 64, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            if not data:
                raise SampleMissing("the other end has closed")
            self._asked += data
            while len(self._asked) >= QUESTION.size:
                what, says, number, large_id, size, at = QUESTION.unpack_from(self._asked)
                behind = QUESTION.size
                if what == LANDING:
                    if size > CARD_MAX:
                        raise SampleMissing("a question that makes no sense")
                    behind += size
                    if len(self._asked) < behind:
                        break
                    self._take_landing(self._asked[QUESTION.size : behind])
                elif what in (READY, TAKEN):
                    self._take_word_of_blocks(what, number)
                else:
                    self._take_question(what, says, number, large_id, size, at)
                self._asked = self._asked[behind:]

    def _take_landing(self, card: bytes) -> None:
        """Raises SampleMissing, OSError."""
        if self._has_landing:
            raise SampleMissing("a second landing")
        self._has_landing = True
        address = b""
        if self._make_way is not None:
            from spindle.large.blocks import BlockWriter  # only where it is used

            try:
                self._blocks = BlockWriter(self._make_way, card)
                address = self._blocks.address
            except (ValueError, OSError) as error:
                LOG.warning("large samples go to node %d over TCP: %s", self.node_id, str(error))
        self._send(PIECE.pack(ADDRESS, len(address), 0, 0), memoryview(address))

    def _take_word_of_blocks(self, what: int, count: int) -> None:
        """Raises WireError."""
        if self._blocks is None:
            return  # that way has broken meanwhile
        if what == READY:
            self._ready = True
        else:
            self._blocks.took(count)

    def _take_question(self, what: int, says: int, number: int, large_id: int, size: int, at: int) -> None:
        known = next((wanted for wanted in self._wanted if wanted.number == number), None)
        if what in (WANT, WANT_FIRST):
            if known is not None or at > size or len(self._wanted) >= WANTED_MAX:
                raise SampleMissing("a question that makes no sense")
            patience_s = 0.0 if says == DELIVERED else UNKNOWN_S
            wanted = _Wanted(number, large_id, size, at, time.monotonic() + patience_s)
            self._wanted.insert(0 if what == WANT_FIRST else len(self._wanted), wanted)
        elif known is not None and what in (FIRST, UNWANT):
            self._wanted.remove(known)
            if what == FIRST:
                self._wanted.insert(0, known)
            else:
                known.let_go()

    def _next(self, has_room: bool) -> _Wanted | None:
        """The first one of which something can be sent, if there is room for it; those that can't be had any more are
        told so, also while there is none."""
        for wanted in tuple(self._wanted):
            if wanted.at == wanted.size and self._on_the_way:
                continue  # its last blocks have to land
            found = self._find(wanted.large_id)
            if found is not None and found is not wanted.source:
                wanted.let_go()
                wanted.source = found
            source = wanted.source
            if source is None:
                if wanted.until_s <= time.monotonic():
                    self._refuse(wanted, "it hasn't heard of it")
            elif source.size != wanted.size:
                self._refuse(wanted, f"the large sample {wanted.large_id:#x} has {source.size} bytes there, not "
                                     f"{wanted.size}")
            elif source.ended:
                self._refuse(wanted, source.ended)
            elif source.reached > wanted.at and has_room:
                return wanted
        return None

    def _give(self, wanted: _Wanted) -> None:
        """One piece."""
        source = wanted.source
        assert source is not None
        if wanted.mapped is None:
            try:
                fd = source.open()
                try:
                    wanted.mapped = mmap.mmap(fd, source.size, mmap.MAP_SHARED, mmap.PROT_READ)
                finally:
                    os.close(fd)
            except (OSError, SpindleError) as error:
                if isinstance(error, SampleMissing) and not source.ended:  # all has come, and is put into the store now
                    wanted.source, wanted.until_s = None, time.monotonic() + UNKNOWN_S
                    return
                self._refuse(wanted, str(shortage(error, "a large sample") or error))
                return
        blocks = self._blocks if self._ready else None
        count = min(source.reached - wanted.at, PIECE_MAX if blocks is None else BLOCK)
        with memoryview(wanted.mapped) as view, view[wanted.at : wanted.at + count] as piece:
            if blocks is None:
                self._send(PIECE.pack(DATA, count, wanted.number, wanted.at), piece)
            elif not self._write(blocks, wanted, piece):
                return
        wanted.at += count
        if wanted.at == wanted.size:
            wanted.let_go()
            if blocks is None:
                self._wanted.remove(wanted)

    def _write(self, blocks: BlockWriter, wanted: _Wanted, piece: memoryview) -> bool:
        """False if that way is over."""
        try:
            blocks.write(piece)
        except ConnectionEnded as error:
            self._go_back(error)
            return False
        self._on_the_way.append((wanted, wanted.at, len(piece)))
        return True

    def _tell_what_landed(self) -> None:
        if self._blocks is None:
            return
        try:
            completed = self._blocks.completed()
        except ConnectionEnded as error:
            self._go_back(error)
            return
        for _ in range(completed):
            wanted, at, count = self._on_the_way.popleft()
            self._send(PIECE.pack(LANDED, count, wanted.number, at), memoryview(b""))
            if at + count == wanted.size and wanted in self._wanted:
                self._wanted.remove(wanted)

    def _go_back(self, error: ConnectionEnded) -> None:
        """To the connection, on which all is sent again that may not have landed."""
        LOG.warning("large samples go to node %d over TCP from now on: %s", self.node_id, str(error))
        self._end_blocks()
        while self._on_the_way:
            wanted, at, _ = self._on_the_way.pop()
            wanted.at = at

    def _end_blocks(self) -> None:
        if self._blocks is not None:
            self._blocks.close()
            self._blocks, self._ready = None, False

    def _refuse(self, wanted: _Wanted, why: str) -> None:
        wanted.let_go()
        self._wanted.remove(wanted)
        text = why.encode()[:WHY_MAX]
        self._send(PIECE.pack(LACKING, len(text), wanted.number, 0), memoryview(text))

    def _send(self, header: bytes, content: memoryview) -> None:
        sent = self._sock.sendmsg([header, content]) - len(header)
        if sent < 0:
            self._sock.sendall(header[sent:])
            sent = 0
        if sent < len(content):
            self._sock.sendall(content[sent:])
