"""Applications on a host without a node: they use nodes of other hosts, and the next one when theirs is gone.

A reader's life is cut into pieces, one `Reading` each, wherever something may be missing in between or another group's
order begins; what came of each writer is remembered over all pieces of one group, so nothing may come twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from spindle.client.nodes import NodeAddresses
from spindle.client.remote import attach_remote
from spindle.group.levels import Level
from spindle_lab.whole.programs import Program, Reading, Writing

if TYPE_CHECKING:
    from spindle.client.remote import RemoteReaderHandle, RemoteSession, RemoteWriterHandle
    from spindle.client.session import ReaderHandle, Session, WriterHandle
    from spindle.proto import attach_pb2 as pb
    from spindle_lab.whole.checks import Line, Order
    from spindle_lab.whole.world import World

OUTSIDE = "h9"  # the host without a node


class RemoteReading(Reading):
    """A piece of the life of a reader whose node may change."""

    handle: RemoteReaderHandle

    def __init__(self, program: Program, handle: ReaderHandle, keep_all: bool, guid: bytes) -> None:
        super().__init__(program, handle, keep_all)
        self.gaps = handle.gap_count

    @property
    def guid(self) -> bytes:
        """Of a reader that is announced, another one at each node."""
        return self.handle.session.present_guid(self.handle._reader.guid)

    @guid.setter
    def guid(self, guid: bytes) -> None:
        """The reader has it."""

    def following(self) -> RemoteReading | None:
        """The next piece, if this one is over."""
        handle = self.handle
        if handle.start.group_id == self.group_id and handle.gap_count == self.gaps:
            return None
        following = RemoteReading(self.program, handle, self.keep_all, self.guid)
        following.lazy, following.entered = self.lazy, -1
        # Of an unordered topic, what has come from one node may still be on its way to the next, and come again there.
        if following.group_id == self.group_id and self.ordered:
            following.last_of = self.last_of
            following.floor = max([*self.taken[-1:], self.floor])
        return following


class RemoteWriting(Writing):
    """A writer that sends again what its dead node may not have passed on."""

    handle: RemoteWriterHandle

    @property
    def guid(self) -> bytes:
        """As a reader's."""
        return self.handle.session.present_guid(self.handle._writer.guid)

    @guid.setter
    def guid(self, guid: bytes) -> None:
        """The writer has it."""

    def due(self) -> int:
        """All, as long as it can send again, or had nothing left to send when it was closed."""
        session = self.handle.session
        stands = (self.certain and self.program.process.alive and (not self.open or not session.gone)
                  and session.group_id == self.group_id)
        return self.count if stands else 0

    def close(self) -> None:
        """It writes no more."""
        super().close()
        self.ended()

    def ended(self) -> None:
        """What is not delivered by now may never be."""
        self.certain = self.certain and not self.handle._writer.unsettled


class RemoteProgram(Program):
    """An application on the host without a node."""

    outside = True

    def __init__(self, world: World, number: int) -> None:
        super().__init__(world, number, OUTSIDE, "x")
        self.patience_s: float | None = 0.0
        self.detaches = False  # it has closed its session itself, whatever that is doing

    def _short(self) -> bool:
        """Any process may have run short: the program may be at the next node already, and the last one isn't known."""
        return bool(self.world.short)

    def _attach(self) -> Session:
        rng, world = self.rng, self.world
        ids = [one.node_id for one in world.nodes]
        rng.shuffle(ids)
        addresses = tuple(world.endpoint(node_id) for node_id in ids[: rng.choice((1, 2, 5, 5))])
        if world.edge is not None:
            addresses = rng.choice(((str(world.edge.path),), (str(world.edge.path),), addresses,
                                    (str(world.edge.path), *addresses)))
        self.patience_s = rng.choice((0.0, 1.0, None, None))
        self.detaches = False
        nodes = NodeAddresses(addresses, plain=True) if world.guard is None else world.guard.addresses(addresses)
        session: RemoteSession = attach_remote(nodes, name=str(self.process),
                                               patience_s=self.patience_s)  # type: ignore[assignment]
        world.met("a program without a node has found one")
        if session.address.startswith("/"):
            world.met("a program without a node has found one through an edge")
        if rng.random() < 0.3:
            session.add_listener(lambda event: world.met(f"a program without a node hears of {event.kind}"))
        return session

    def _reading(self, handle: ReaderHandle, keep_all: bool, guid: bytes) -> Reading:
        reading = RemoteReading(self, handle, keep_all, guid)
        self._add(reading)
        port = reading.handle._reader
        opened = port.opened

        def opened_again(reply: pb.ReaderOpened) -> None:
            # What has come is of the piece that ends here, if it ends.
            current = next((one for one in self.readings if one.handle is handle), None)
            if current is not None:
                self._take_from(current, 1 << 30, hurry=True)
            opened(reply)
            self.world.met(f"a reader {'goes on at' if reply.continued else 'may have missed something before'} "
                           "the next node")
            if isinstance(current, RemoteReading) and (following := current.following()) is not None:
                current.open = False
                self.readings.remove(current)
                self._add(following)

        port.opened = opened_again  # type: ignore[method-assign]
        return reading

    def _add(self, reading: Reading) -> None:
        self.readings.append(reading)
        self.world.checks.readings.append(reading)

    def _writing(self, handle: WriterHandle, name: str, guid: bytes) -> Writing:
        writing = RemoteWriting(self, handle, name, guid)
        self.world.checks.relayed.add(name.encode())
        port = writing.handle._writer
        opened = port.opened

        def opened_again(reply: pb.WriterOpened) -> None:
            waiting = writing.waiting()
            opened(reply)
            if waiting:
                sent = "sends again" if writing.waiting() else "hears that all was delivered"
                self.world.met(f"a writer {sent} at the next node")

        port.opened = opened_again  # type: ignore[method-assign]
        return writing

    def _forget(self) -> None:
        writings = list(self.writings)
        super()._forget()
        for writing in writings:
            assert isinstance(writing, RemoteWriting)
            writing.ended()

    def _may_be_told(self, kind: str, text: str) -> bool:
        # A program that waits for the next node as long as it takes hears only when it attaches that there is none.
        if self.detaches and kind == "NodeStopped" and "was closed" in text:
            return True
        # A liar may take its guid between two of its connections.
        if self.world.liars and "is announced by another application" in text:
            return True
        if self.patience_s is None and self.session is not None and kind not in ("GroupSilent", "TimeoutError"):
            return (kind == "JournalError" and self.world.disks_failed) or (
                kind == "TopicUnknown" and self._may_be_unknown()) or (
                self.world.renewals.may_be_told(kind, text) or self._may_lack(text))
        return super()._may_be_told(kind, text)

    def _settle(self) -> None:
        """Somebody who comes now must find everything once."""
        assert self.session is not None
        names = {one.spec.name for one in self.session.topics() if one.spec.level is Level.LOGGED}
        for spec in self.world.specs:
            if spec.name in names and len(self.readings) < 8:
                self._open_reader_of(spec, keep_all=True, from_history=True)

    def _detach(self) -> None:
        self.detaches = True
        super()._detach()

    def _node(self) -> int | None:
        return None


def known(world: World, line: Line, order: Order, whole: bool = False) -> bool:
    """True if a node lives that has been a member of the topic, or a whole one, since before this message."""
    group_id, topic = line
    for slot in world.nodes:
        if not slot.serving:
            continue
        assert slot.attachments is not None
        node = slot.attachments.node
        local = node._changes.topics.local.get(topic)
        if node._view is None or node._view.group_id != group_id or local is None or not local.member:
            continue
        since = local._entered
        if whole:
            assert slot.process is not None
            since = world.checks.whole_since.get((slot.process.pid, topic), order[0] + 1)
        if since <= order[0]:
            return True
    return False
