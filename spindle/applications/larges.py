"""Large samples of one application: the memory that its writers fill, and what its readers open.

Rules:
- The memory is the node's, and counts for the application's user from when it is there until the sample is handed over.
  For its topic it counts as long as nobody else waits for it, or FILL_S (large_room.py).
  What is handed over can't be mapped to be written any more, or is refused.
- A reader opens samples of its own topic, by the ids that it finds in its log.
- What an application elsewhere fills comes in pieces, from the first byte to the last. The message that names it hands
  it over.
- Who waits for memory keeps nothing else of the application waiting.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from spindle.errors import ConfigError, SpindleError, shortage
from spindle.large.memory import write_whole
from spindle.proto import attach_pb2 as pb

if TYPE_CHECKING:
    from spindle.applications.open_ports import OpenPort, OpenPorts
    from spindle.applications.quotas import Quota
    from spindle.applications.turns import Room
    from spindle.node.node import Node
    from spindle.proto import relay_pb2 as rb
    from spindle.topics.large_room import Unfilled

MADE_MAX = 64  # samples of one application that are being filled
WAITING_MAX = 1024  # that it waits for memory for
WAIT_S_MAX = 10.0  # for room, of one request


@dataclasses.dataclass
class _Made:
    port: int
    memory: Unfilled
    filled: int = 0  # bytes that came from an application elsewhere

    @property
    def size(self) -> int:
        return self.memory.size


class ApplicationLarges:
    """See the module's text."""

    def __init__(self, node: Node, ports: OpenPorts, quota: Quota | None, room: Room, user: int | None) -> None:
        self._user = user  # of this host; None: the application is elsewhere, and the node writes and reads for it
        self._larges, self._check_descriptors = node.large_samples, node.check_descriptors
        self._ports, self._quota, self._room = ports, quota, room
        self._made: dict[int, _Made] = {}
        self._making = 0
        self._number = 0
        self.ended = False

    async def make(self, wanted: pb.MakeLarge) -> tuple[pb.Reply, list[int]]:
        """The answer; its descriptor stays this node's. Raises SpindleError."""
        port = self._writer(wanted.port)
        assert port.writer is not None
        self._check_made()
        self._larges.room.check(self)
        if self._making >= WAITING_MAX:
            raise ConfigError(f"{WAITING_MAX} large samples of one program wait for memory, the limit")
        spec = self._larges.spec_of(port.topic)
        self._larges.check_size(spec, wanted.size)
        self._check_descriptors("a large sample")
        if self._quota is not None:
            self._quota.check_bytes(wanted.size)
        self._making += 1
        try:
            # It may wait for a sample of this application, whose pieces and hand-over are still to be read.
            with self._room.left():
                made = await self._larges.make(port.writer, self._user, spec, wanted.size,
                                               min(wanted.timeout_ms / 1000, WAIT_S_MAX), self)
        finally:
            self._making -= 1
        if made is None:
            return pb.Reply(large=pb.LargeMade()), []
        try:
            if self.ended or self._ports.find(wanted.port) is not port:
                raise SpindleError(f"a writer of topic {port.topic!r} was closed while it waited for memory")
            self._check_made()  # again, as below: many may have waited
            if self._quota is not None:
                self._quota.take_region(wanted.size)
        except SpindleError:
            self._larges.give_up(made)
            raise
        self._number += 1
        self._made[self._number] = _Made(wanted.port, made)
        return pb.Reply(large=pb.LargeMade(number=self._number)), [made.fd]

    def _check_made(self) -> None:
        if len(self._made) >= MADE_MAX:
            raise ConfigError(f"{MADE_MAX} large samples of one program are being filled, the limit")

    def fill(self, piece: rb.Piece) -> None:
        """From an application elsewhere. Raises SpindleError."""
        made = self._of_writer(piece.number, piece.port)
        if piece.at != made.filled or not 0 < len(piece.content) <= made.size - made.filled:
            raise SpindleError(f"a piece of {len(piece.content)} bytes at {piece.at} of a large sample of {made.size} "
                               f"bytes, of which {made.filled} have come")
        try:
            write_whole(made.memory.fd, piece.content, piece.at)
        except OSError as error:
            raise shortage(error, f"a large sample of {made.size} bytes") or SpindleError(str(error)) from error
        made.filled += len(piece.content)

    def hand_over_filled(self, port: int, number: int) -> None:
        """As hand_over(), of one that came in pieces. Raises SpindleError."""
        made = self._of_writer(number, port)
        if made.filled != made.size:
            raise SpindleError(f"{made.filled} bytes came of a large sample of {made.size} bytes")
        self.hand_over(pb.HandOverLarge(port=port, number=number))

    def _of_writer(self, number: int, port: int) -> _Made:
        made = self._made.get(number)
        if made is None or made.port != port:
            raise SpindleError(f"{self._ports.label} has no large sample {number} of that writer")
        return made

    def hand_over(self, wanted: pb.HandOverLarge) -> tuple[pb.Reply, list[int]]:
        """The answer. Raises SpindleError; the sample is gone then."""
        made = self._of_writer(wanted.number, wanted.port)
        port = self._writer(wanted.port)
        assert port.writer is not None
        del self._made[wanted.number]
        if self._quota is not None:
            self._quota.give_region(made.size)
        self._larges.hand_over(port.writer, self._user, wanted.number, made.memory)
        return pb.Reply(done=pb.Done()), []

    def drop(self, wanted: pb.DropLarge) -> tuple[pb.Reply, list[int]]:
        """The answer. Idempotent."""
        made = self._made.get(wanted.number)
        if made is not None and made.port == wanted.port:
            self._give_up(wanted.number)
        return pb.Reply(done=pb.Done()), []

    def open(self, wanted: pb.OpenLarge, number: int) -> tuple[pb.Reply, list[int]]:
        """The answer, whose descriptor is the caller's. Raises SpindleError."""
        port = self._ports.get(wanted.port)
        if port.reader is None:
            raise SpindleError(f"{self._ports.label} has no open reader {wanted.port}")
        found = self._larges.open(port.topic, wanted.id, self._user)
        if found is None:
            return pb.Reply(number=number, large_opened=pb.LargeOpened()), []
        return pb.Reply(number=number, large_opened=pb.LargeOpened(size=found[1])), [found[0]]

    def _writer(self, number: int) -> OpenPort:
        port = self._ports.get(number)
        if port.writer is None:
            raise SpindleError(f"{self._ports.label} has no open writer {number}")
        return port

    def _give_up(self, number: int) -> None:
        made = self._made.pop(number)
        if self._quota is not None:
            self._quota.give_region(made.size)
        self._larges.give_up(made.memory)

    def port_closed(self, number: int) -> None:
        """What its writer was filling goes."""
        for one in [one for one, made in self._made.items() if made.port == number]:
            self._give_up(one)

    def end(self) -> None:
        """The application has gone. Idempotent."""
        self.ended = True
        for number in list(self._made):
            self._give_up(number)
