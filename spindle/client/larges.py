"""Large samples of a session: where its writers put them, and how its readers open them.

A sample that is larger than its topic's slots goes into memory that the node makes for it: one copy, or none where the
program fills it in place. Then its mapping is taken away, so that nobody can change it any more, and the node has it.
"""

from __future__ import annotations

import contextlib
import os
import time
import weakref
from typing import TYPE_CHECKING

from spindle.errors import NodeStopped, SampleUnfit, SpindleError, TopicLimit, shortage

if TYPE_CHECKING:
    from spindle.client.channel import Channel
    from spindle_core.inbox_writer import InboxWriter
    from spindle_core.memory import Mapping

ASK_S = 5.0  # that the node waits for room in one request
WENT = -2  # in place of a descriptor: it went with its node. As LogReader has it


class LargeWriter:
    """Of one writer: see InboxWriter, `beside`. keep: what was handed over stays known to bytes_of() until every member
    has it."""

    def __init__(self, channel: Channel, port: int, inbox: InboxWriter, keep: bool) -> None:
        self._channel, self._port, self._keep = channel, port, keep
        self._inbox = weakref.ref(inbox)  # which has this object: its descriptors must not wait for the collector
        self._made: dict[int, tuple[int, int]] = {}  # number and bytes of those being filled, by the object's address
        self._kept: dict[int, tuple[int, int, int]] = {}  # by number: index of its message, descriptor, bytes

    def make(self, size: int, timeout_s: float) -> Mapping:
        """Memory to be filled. Raises WriteTimeout, MessageTooLarge, NoResources, NodeGone."""
        from spindle_core.memory import Mapping

        number, fd = self._have_made(size, timeout_s)
        try:
            memory = Mapping.attach(fd, writable=True)
        except OSError as error:
            self._give_up(number)
            raise shortage(error, f"a sample of {size} bytes") or error from None
        self._made[id(memory)] = number, size
        self._make_ready(memory, size)
        return memory

    def _have_made(self, size: int, timeout_s: float) -> tuple[int, int]:
        """Memory of the node: its number, and a descriptor. Raises as make()."""
        from spindle.proto import attach_pb2 as pb
        from spindle_core.errors import MessageTooLarge, WriteTimeout

        deadline = time.monotonic() + timeout_s if timeout_s >= 0 else float("inf")
        while True:
            left_s = deadline - time.monotonic()
            ask_s = max(0.0, min(left_s, ASK_S))
            try:
                reply, fds = self._ask(make_large=pb.MakeLarge(
                    port=self._port, size=size, timeout_ms=int(ask_s * 1000)))
            except TopicLimit as error:
                raise MessageTooLarge(str(error)) from None
            if reply.large.number:
                return reply.large.number, fds[0]
            if time.monotonic() >= deadline:
                late = WriteTimeout(f"no memory for a sample of {size} bytes within {timeout_s:g} s: those on their "
                                    "way are waiting for the group (a reader that keeps all and doesn't take holds "
                                    "its writers back), or a program of this node has yet to fill a loan that "
                                    "takes it (30 s at most), or [topics] large_capacity is too small")
                late.for_memory = True
                raise late

    def _make_ready(self, memory: Mapping, size: int) -> None:
        """Has its pages there, which is this process's work and not the node's. Raises NoResources."""
        try:
            memory.make_ready(size)
        except OSError as error:
            self.drop(memory)
            raise shortage(error, f"a sample of {size} bytes") or error from None

    def hand_over(self, memory: Mapping) -> int:
        """Its number. Nobody can write into it any more. Raises NodeGone, NoResources, WriteTimeout, OSError."""
        (number, size), inbox = self._made[id(memory)], self._inbox()
        assert inbox is not None, "its writer calls this"
        fd = self._reading(memory.fd)
        try:
            memory.become_private()
            del self._made[id(memory)]
            try:
                self._give(number)
            except SampleUnfit:  # the node says so of what somebody may still write
                if fd >= 0:
                    os.close(fd)
                    fd = -1
                number, fd = self._hand_over_copy(memory, size)
        except BaseException:
            if fd >= 0:
                os.close(fd)
            raise
        if fd >= 0:
            self._prune(inbox.acknowledged)
            self._kept[number] = inbox.committed, fd, size
        return number

    def _hand_over_copy(self, memory: Mapping, size: int) -> tuple[int, int]:
        """A process that another thread forked while the memory was filled has it mapped, too, for as long as it runs.
        So what is in it goes in other memory, which nobody maps before it is sealed: none that is forked meanwhile can
        have that. Its number, and a descriptor to be kept, or -1."""
        from spindle.large.memory import write_whole

        number, fd = self._have_made(size, ASK_S)
        kept = -1
        try:
            with memory.view() as view, view[:size] as content:
                write_whole(fd, content, 0)
            kept = self._reading(fd)
        except BaseException as error:
            os.close(fd)
            self._give_up(number)
            if isinstance(error, OSError):
                raise shortage(error, f"a sample of {size} bytes") or error from None
            raise
        os.close(fd)
        try:
            self._give(number)
        except BaseException:
            if kept >= 0:
                os.close(kept)
            raise
        return number, kept

    def _reading(self, fd: int) -> int:
        """A descriptor of the same memory for bytes_of(), or -1."""
        return os.open(f"/proc/self/fd/{fd}", os.O_RDONLY | os.O_CLOEXEC) if self._keep else -1

    def _give(self, number: int) -> None:
        from spindle.proto import attach_pb2 as pb

        self._ask(hand_over_large=pb.HandOverLarge(port=self._port, number=number))

    def _give_up(self, number: int) -> None:
        from spindle.proto import attach_pb2 as pb

        self._ask(drop_large=pb.DropLarge(port=self._port, number=number))

    def drop(self, memory: Mapping) -> None:
        """Of one that is not handed over. Idempotent."""
        made = self._made.pop(id(memory), None)
        memory.close_descriptor()
        if made is not None:
            with contextlib.suppress(SpindleError, OSError):
                self._give_up(made[0])

    def bytes_of(self, number: int) -> bytes | None:
        """What was handed over, as long as it may have to be sent again."""
        kept = self._kept.get(number)
        if kept is None:
            return None
        _, fd, size = kept
        with open(os.dup(fd), "rb") as file:
            file.seek(0)
            return file.read(size)  # its memory may have more

    def _prune(self, done: int) -> None:
        for number in [one for one, (index, _, _) in self._kept.items() if index < done]:
            os.close(self._kept.pop(number)[1])

    def _ask(self, **body: object):  # type: ignore[no-untyped-def]
        from spindle_core.errors import NodeGone

        try:
            reply, frame = self._channel.request(**body)
        except NodeStopped as error:
            raise NodeGone(str(error)) from None
        return reply, frame.take_fds()

    def close(self) -> None:
        """Idempotent."""
        kept, self._kept = self._kept, {}
        for _, fd, _ in kept.values():
            os.close(fd)

    def __del__(self) -> None:
        if hasattr(self, "_kept"):  # else making it was interrupted
            self.close()


class LargeOpener:
    """Of one reader: see LogReader, `opener`."""

    def __init__(self, channel: Channel, port: int) -> None:
        self._channel, self._port = channel, port

    def __call__(self, large_id: int) -> int:
        from spindle.proto import attach_pb2 as pb

        try:
            reply, frame = self._channel.request(open_large=pb.OpenLarge(port=self._port, id=large_id))
        except SpindleError:
            if self._channel.ended:
                return WENT
            raise
        fds = frame.take_fds()
        return fds[0] if reply.large_opened.size else -1
