"""The end of a data connection that gives large samples of this node to another one, on a thread of its own.

Why bytes are sent from a mapping, not by sendfile: they are few system calls either way, and pages that the network
still holds would keep a sample that is being passed on from being sealed, so a slow receiver would hold up this node.

Rules: the asker is a node that has proven who it is, but it may be mad: what it asks is checked, and bounded. A sample
that is dropped meanwhile stays mapped until the piece is sent.
"""

from __future__ import annotations

import contextlib
import dataclasses
import mmap
import os
import select
import socket
import threading
import time
from typing import TYPE_CHECKING

from spindle.errors import NoResources, SampleMissing, SpindleError, shortage
from spindle.large.handing import UNKNOWN_S
from spindle.large.pieces import (
    DATA,
    DELIVERED,
    FIRST,
    LACKING,
    PIECE,
    PIECE_MAX,
    QUESTION,
    UNWANT,
    WANT,
    WANT_FIRST,
    WANTED_MAX,
    WHY_MAX,
)
from spindle.transport.wire import close_in_child

if TYPE_CHECKING:
    from spindle.large.handing import Find, Source

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
    """See the module's text. Takes over the descriptor. Raises NoResources."""

    def __init__(self, fd: int, node_id: int, find: Find) -> None:
        self.node_id = node_id
        self._find = find
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
                self._looking = True
                wanted = self._next()
                if wanted is not None:
                    self._looking = False
                    self._give(wanted)
                    continue
                for fd, _ in poller.poll(self._pause_ms()):
                    if fd == self._wake:
                        os.eventfd_read(self._wake)
        except (OSError, SpindleError):  # the other end has gone, or is mad
            pass
        finally:
            self._sock.close()
            with self._lock:
                self._over = True
                os.close(self._wake)
            for wanted in self._wanted:
                wanted.let_go()

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
                question, self._asked = self._asked[:QUESTION.size], self._asked[QUESTION.size:]
                self._take_question(*QUESTION.unpack(question))

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

    def _next(self) -> _Wanted | None:
        """The first one of which something can be sent; those that can't be had any more are told so."""
        for wanted in tuple(self._wanted):
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
            elif source.reached > wanted.at:
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
        count = min(source.reached - wanted.at, PIECE_MAX)
        with memoryview(wanted.mapped) as view, view[wanted.at : wanted.at + count] as piece:
            self._send(PIECE.pack(DATA, count, wanted.number, wanted.at), piece)
        wanted.at += count
        if wanted.at == wanted.size:
            wanted.let_go()
            self._wanted.remove(wanted)

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
