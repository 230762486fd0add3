"""Large samples of a session whose node is on another host: their bytes lie in memory of this process.

A writer's are kept until what names them needs its slot no more: they may have to be sent again, to another node. A
reader's stay while its log has them, as at a node.

Rules: as in `spindle.client.remote_ports`: everything is called under the channel's lock, but what InboxWriter and
LogReader call (`make`, `hand_over`, `drop`, `bytes_of`, `open`), which are for any thread, and `take_piece` and `take`
of ArrivedLarges, which only the thread that reads the connection calls.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
import weakref
from collections import deque
from typing import TYPE_CHECKING

from spindle.errors import NoResources, SpindleError, WireError, shortage
from spindle.large import memory as sample_memory
from spindle.large.cost import large_cost

if TYPE_CHECKING:
    from spindle.client.calls import Call
    from spindle.proto import relay_pb2 as rb
    from spindle_core.inbox_writer import InboxWriter
    from spindle_core.memory import Mapping

HELD_MAX = 256 << 20  # bytes of one writer's samples that are not settled, or of those that a reader's log has
# Of one writer's samples that are not settled: each has a descriptor. Fewer than an inbox takes, so that a writer waits
# here, where it is known why the node takes none.
HELD_COUNT_MAX = 60
AGAIN_S = 0.5  # until a node that has refused the memory is asked again
ASK_MS = 5000  # that a node waits for room in one request


@dataclasses.dataclass
class _Kept:
    fd: int
    size: int
    index: int = -1  # of its message; not known before that is sent for the first time


class KeptLarges:
    """Of one writer: see InboxWriter, `beside`. `changed` is the channel's lock, told when something is given back."""

    def __init__(self, topic: str, changed: threading.Condition, inbox: InboxWriter) -> None:
        self._topic, self._changed = topic, changed
        self._inbox = weakref.ref(inbox)  # as in LargeWriter
        self.size_max = 0  # as the present node has said
        self._made: dict[int, int] = {}  # sizes of those that are being filled, by the address of the object
        self._kept: dict[int, _Kept] = {}  # by number
        self._number = 0
        self._count = self._bytes = 0  # of both
        self._refused = ""  # why the node has no memory for the one that is to be sent

    def make(self, size: int, timeout_s: float) -> Mapping:
        """Memory to be filled. Raises WriteTimeout, MessageTooLarge, NoResources, NodeGone."""
        from spindle_core.errors import NodeGone, WriteTimeout
        from spindle_core.memory import Mapping

        deadline = time.monotonic() + timeout_s if timeout_s >= 0 else float("inf")
        self._check_size(size)
        with self._changed:
            while self._count and (self._bytes + size > HELD_MAX or self._count >= HELD_COUNT_MAX):
                inbox = self._inbox()
                if inbox is None or inbox.is_gone:
                    raise NodeGone("no node is behind this writer any more: attach again once one runs")
                left_s = deadline - time.monotonic()
                if left_s <= 0:
                    late = WriteTimeout(f"no memory for a sample of {size} bytes within {timeout_s:g} s: {self._count} "
                                        f"of this writer with {self._bytes} bytes are on their way, and "
                                        f"{HELD_COUNT_MAX} with {HELD_MAX} bytes are the most ("
                                        + (self._refused or "a reader that keeps all and doesn't take holds its "
                                                            "writers back") + ")")
                    late.for_memory = True
                    raise late
                self._changed.wait(min(left_s, 1.0))
            self._count += 1
            self._bytes += size
        try:
            memory = Mapping.attach(sample_memory.make(size), writable=True)
            memory.make_ready(size)
        except BaseException as error:
            self._give(size)
            if isinstance(error, OSError) and not isinstance(error, SpindleError):
                raise shortage(error, f"a sample of {size} bytes") or error from None
            raise
        self._made[id(memory)] = size
        return memory

    def _check_size(self, size: int) -> None:
        from spindle_core.errors import MessageTooLarge

        if size > self.size_max:
            raise MessageTooLarge(f"topic {self._topic!r}: a sample of {size} bytes; {self.size_max} are the most that "
                                  "the node takes ([topics] large_sample_max in its configuration)")

    def hand_over(self, memory: Mapping) -> int:
        """Its number. Nobody can write into it any more. Raises OSError; MessageTooLarge if the next node serves by
        now, and takes less."""
        fd = os.open(f"/proc/self/fd/{memory.fd}", os.O_RDONLY | os.O_CLOEXEC)
        try:
            memory.become_private()
            with self._changed:
                self._check_size(self._made[id(memory)])
                self._number += 1
                self._kept[self._number] = _Kept(fd, self._made.pop(id(memory)))
                return self._number
        except BaseException:
            os.close(fd)
            raise

    def drop(self, memory: Mapping) -> None:
        """Of one that is not handed over. Idempotent."""
        size = self._made.pop(id(memory), None)
        memory.close_descriptor()
        if size is not None:
            self._give(size)

    def bytes_of(self, number: int) -> bytes | None:
        """What was handed over, as long as it may have to be sent again."""
        with self._changed:
            kept = self._kept.get(number)
            fd = os.dup(kept.fd) if kept is not None else -1
        if fd < 0:
            return None
        with open(fd, "rb") as file:
            return file.read()

    def check(self, size_max: int) -> None:
        """A node takes samples of up to so many bytes. Raises SpindleError if one waits that is larger."""
        largest = max((one.size for one in self._kept.values()), default=0)
        if largest > size_max:
            raise SpindleError(f"topic {self._topic!r}: a sample of {largest} bytes is still to be sent, and this node "
                               f"takes {size_max} ([topics] large_sample_max in its configuration)")
        self.size_max = size_max

    def sent(self, number: int, index: int) -> tuple[int, int]:
        """The one that the message with this index names: its descriptor and size."""
        kept = self._kept[number]
        kept.index = index
        return kept.fd, kept.size

    def settled(self, index: int) -> None:
        """The messages before this one need their slots no more."""
        for number in [number for number, kept in self._kept.items() if 0 <= kept.index < index]:
            kept = self._kept.pop(number)
            os.close(kept.fd)
            self._give(kept.size)

    def was_refused(self, why: str) -> None:
        """The node has, or has no longer ("") refused memory for the one that is to be sent; it is asked again."""
        if why and not self._refused:
            import logging

            logging.getLogger("spindle.client").warning(
                "topic %r: a large sample can't be sent yet, the node refuses it: %s", self._topic, why)
        self._refused = why

    def _give(self, size: int) -> None:
        with self._changed:
            self._count -= 1
            self._bytes -= size
            self._changed.notify_all()

    def close(self) -> None:
        """Idempotent."""
        kept, self._kept = self._kept, {}
        for one in kept.values():
            os.close(one.fd)

    def __del__(self) -> None:
        if hasattr(self, "_kept"):  # else making it was interrupted
            self.close()


@dataclasses.dataclass
class Sending:
    """A large sample on its way to the present node, which has made memory for it once it has said its number."""

    fd: int  # of what is kept: the channel sees to it that this isn't settled meanwhile
    size: int
    source_ns: int
    tag: int
    key: int
    call: Call | None = None
    again_s: float = 0.0  # not asked before that
    number: int = 0
    at: int = 0

    def piece(self) -> bytes:
        """The next bytes. Raises OSError, SpindleError."""
        content = os.pread(self.fd, min(sample_memory.PIECE_BYTES, self.size - self.at), self.at)
        if not content:
            raise SpindleError(f"a large sample of {self.size} bytes ends after {self.at}")
        self.at += len(content)
        return content


class ArrivedLarges:
    """Of one reader: see LogReader, `opener`; `core` is what its log knows of them."""

    def __init__(self, topic: str) -> None:
        from spindle_core.larges import Larges

        self.core = Larges()
        self._topic = topic
        self._lock = threading.Lock()
        self._fds: dict[int, int] = {}
        self._coming: tuple[int, int] | None = None  # descriptor and size of the one that comes
        self._reached = 0
        self._last_id = 0
        self._costs: deque[tuple[int, int]] = deque()  # place in the log behind each, and what it costs
        self._passed = 0
        self._closed = False

    def take_piece(self, piece: rb.Piece) -> None:
        """Raises WireError, NoResources."""
        with self._lock:
            if not self._closed:
                self._fill(piece)

    def _fill(self, piece: rb.Piece) -> None:
        if self._coming is None:
            self._coming, self._reached = (sample_memory.make(piece.size), piece.size), 0
        fd, size = self._coming
        if piece.size != size or piece.at != self._reached or not 0 < len(piece.content) <= size - piece.at:
            raise WireError(f"topic {self._topic!r}: a piece of a large sample that makes no sense")
        try:
            sample_memory.write_whole(fd, piece.content, piece.at)
        except OSError as error:
            raise shortage(error, f"a sample of {size} bytes") or error from error
        self._reached += len(piece.content)

    def take(self, payload: bytes) -> tuple[bytes, int]:
        """The sample is whole: its entry as it goes into this log, and what it costs. Raises WireError, NoResources."""
        from spindle_core.larges import ENTRY_SIZE, entry_of, make_entry

        with self._lock:
            if self._closed:  # in this moment: nobody will read it
                return payload, 0
            coming, self._coming = self._coming, None
        if (coming is None or len(payload) != ENTRY_SIZE or self._reached != coming[1]
                or entry_of(payload)[1] != coming[1]):
            if coming is not None:
                os.close(coming[0])
            raise WireError(f"topic {self._topic!r}: a large sample came without its bytes")
        fd, size = coming
        self._last_id += 1
        sample_memory.seal(fd)
        with self._lock:
            if self._closed:
                os.close(fd)
            else:
                self._fds[self._last_id] = fd
        if not self.core.add(self._last_id):
            raise NoResources(f"topic {self._topic!r}: too many large samples wait to be taken")
        return make_entry(self._last_id, size, payload[16:24], payload[24:]), large_cost(size)

    def appended(self, end: int, cost: int) -> None:
        """Its record ends at this place in the log."""
        self._costs.append((end, cost))

    def passed(self, place: int) -> int:
        """What those before this place in the log have cost, ever."""
        while self._costs and self._costs[0][0] <= place:
            self._passed += self._costs.popleft()[1]
        return self._passed

    def open(self, large_id: int) -> int:
        """A descriptor to read it, or -1: the log has given it up. Raises NoResources."""
        with self._lock:
            fd = self._fds.get(large_id, -1)
            return -1 if fd < 0 else sample_memory.open_anew(fd)

    def let_go(self) -> None:
        """Of what the log needs no more."""
        for large_id in self.core.take_released():
            with self._lock:
                fd = self._fds.pop(large_id, -1)
            if fd >= 0:
                os.close(fd)

    def begin(self) -> None:
        """Another node serves: what came of the last one's is not the beginning of anything."""
        with self._lock:
            self._begin()

    def _begin(self) -> None:
        coming, self._coming = self._coming, None
        if coming is not None:
            os.close(coming[0])

    def close(self) -> None:
        """Idempotent; for any thread."""
        with self._lock:
            self._closed = True
            self._close()

    def _close(self) -> None:
        self._begin()
        fds, self._fds = self._fds, {}
        for fd in fds.values():
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_fds") and hasattr(self, "_coming"):  # else making it was interrupted
            self._close()
