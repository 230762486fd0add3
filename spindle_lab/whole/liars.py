"""Applications that lie, wherever an application can: in the memory that it may write, in what it says, and by silence.

A liar attaches like any other and uses the topics of the honest ones. What it writes may be delivered; nothing else of
it may reach anybody. When the faults end it is killed, if its node has not shown it the door before.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from typing import TYPE_CHECKING

from spindle.client.attaching import attach
from spindle.client.session import taken
from spindle.errors import SpindleError
from spindle.group.codec import PROTOCOL_VERSION, spec_to_wire
from spindle.proto import attach_pb2 as pb
from spindle.proto import opening_pb2
from spindle.transport.opening import MAGIC
from spindle.transport.wire import close_all
from spindle_core.memory import Mapping

if TYPE_CHECKING:
    from spindle.client.session import ReaderHandle, Session, WriterHandle
    from spindle_lab.whole.programs import Reading, Writing
    from spindle_lab.whole.world import World

HEADER_BYTES = 64
STRANGER = 4242  # a user whom no rule names
EXPECTED = (SpindleError, OSError, ValueError, TimeoutError)  # of its own lies
SOME = (0, 1, 7, 1 << 20, 1 << 40, (1 << 64) - 1)


class Liar:
    """One of them."""

    def __init__(self, world: World, number: int, host: str) -> None:
        self.world, self.host, self.rng = world, host, world.system.random
        self.process = world.system.process(f"l{number}", host, world.uid if self.rng.random() < 0.8 else STRANGER)
        self.session: Session | None = None
        self.readers: list[ReaderHandle] = []
        self.writers: list[WriterHandle] = []
        self.raw: list[socket.socket] = []
        self.links: list[tuple[Mapping, int]] = []  # the page of each that it may write, and its bell
        self.link_ids: list[int] = []
        self.kept: list[int] = []  # descriptors of duplexes
        self.process.spawn(self._main)

    def _main(self) -> None:
        while not self.world.finishing:
            with contextlib.suppress(*EXPECTED):
                self._attached()
            if self.session is not None and self.session.gone:
                self.world.met("a liar is shown the door")
            self._forget()
            time.sleep(0.01)
        self.process.result = "done"

    def _forget(self) -> None:
        self.readers.clear()
        self.writers.clear()
        close_all(bell for _, bell in self.links)
        self.links.clear()
        self.link_ids.clear()
        close_all(self.kept)
        self.kept.clear()
        for sock in self.raw:
            sock.close()
        self.raw.clear()
        session, self.session = self.session, None
        if session is not None:
            session.close()

    def _attached(self) -> None:
        rng, world = self.rng, self.world
        lies = [*(self.scribble, self.miscount, self.write, self.open, self.ask_nonsense) * 2, self.say_nonsense,
                self.half_a_frame, self.flood, self.hand_over, self.say_nothing, self.hang_up]
        if world.memories is not None:
            lies += [self.open_link] * 2 + [self.scribble_at_link] * 4 + [self.ask_nonsense_of_links] * 2
            lies += [self.ask_for_duplexes] * 3
        if self.process.uid == STRANGER:
            lies = [self.say_nothing, self.flood]
        else:
            self.session = attach(runtime_dir=world.runtime_dir(self.host), timeout_s=2.0, name=str(self.process))
            self.open()
        for _ in range(rng.choice((3, 10, 30))):
            if world.finishing or (self.session is not None and self.session.gone):
                return
            lie = rng.choice(lies)
            world.met(f"a liar: {lie.__name__}")
            with contextlib.suppress(*EXPECTED):
                lie()
            time.sleep(rng.choice((0.0, 0.001, 0.01)))

    # --- as everybody does it

    def open(self) -> None:
        """A reader that never takes, or a writer."""
        assert self.session is not None
        spec = self.rng.choice(self.world.specs)
        self.session.declare_topic(spec)
        if self.rng.random() < 0.4 and len(self.readers) < 2:
            self.readers.append(self.session.open_reader(spec.name, keep_all=self.rng.random() < 0.3,
                                                         from_history=self.rng.random() < 0.5))
        elif len(self.writers) < 3:
            self.world.checks.lied_to.add(spec.name)
            self.writers.append(self.session.open_writer(spec.name))

    def write(self) -> None:
        """What it likes; also makes its node look at its inbox."""
        for writer in self.writers[:1]:
            writer.inbox.write(self.rng.randbytes(self.rng.randrange(writer.topic.spec.size_max)), timeout_s=0.0)

    # --- in shared memory

    def scribble(self) -> None:
        """Any bytes, in the slots of a writer or the page of a reader."""
        mappings = [*(one.inbox.ring for one in self.writers), *(one.log.cursor for one in self.readers)]
        if mappings:
            with memoryview(self.rng.choice(mappings)).cast("B") as memory:
                for _ in range(self.rng.randrange(1, 10)):
                    size = self.rng.choice((8, 8, 64))
                    at = self.rng.choice((self.rng.randrange(HEADER_BYTES // 8) * 8, self.rng.randrange(len(memory))))
                    at = min(at, len(memory) - size)
                    memory[at : at + size] = self.rng.choice((self.rng.randbytes(size), b"\xff" * size, bytes(size)))
        self.write()

    def miscount(self) -> None:
        """Counts that go back, or beyond what there is."""
        mappings = [*(one.inbox.ring for one in self.writers), *(one.log.cursor for one in self.readers)]
        if mappings:
            with memoryview(self.rng.choice(mappings)).cast("B") as memory:
                at = self.rng.choice((8, 16, 24))
                old = int.from_bytes(memory[at : at + 8], "little")
                new = (old + self.rng.choice((-1, 1)) * self.rng.choice(SOME)) % (1 << 64)
                memory[at : at + 8] = new.to_bytes(8, "little")

    def open_link(self) -> None:
        """To some node, or bound to a port that an honest program may want."""
        assert self.session is not None
        if len(self.links) >= 4:
            return
        nodes = [slot.node_id for slot in self.world.nodes]
        node_id, port = self.rng.choice(((self.rng.choice(nodes), 0), (self.rng.choice(nodes), 2), (0, 3)))
        reply, frame = self.session._channel.request(2.0, open_link=pb.OpenLink(node_id=node_id, port=port, memory=64))
        self.link_ids.append(reply.link.link)
        with taken(frame, 6) as fds:
            page = Mapping.attach(fds.take(), writable=True)
            bell = fds.all()[2]
            fds.keep(bell)
            self.links.append((page, bell))

    def scribble_at_link(self) -> None:
        """Any bytes where it submits and says what it has taken; then it rings."""
        if not self.links:
            return
        page, bell = self.rng.choice(self.links)
        memory = page.view()
        for _ in range(self.rng.randrange(1, 6)):
            size = self.rng.choice((8, 8, 64))
            at = self.rng.choice((self.rng.randrange(HEADER_BYTES // 8) * 8, self.rng.randrange(len(memory) // 8) * 8))
            at = min(at, len(memory) - size)
            small = self.rng.randrange(8).to_bytes(8, "little")
            memory[at : at + size] = self.rng.choice((self.rng.randbytes(size), b"\xff" * size, bytes(size),
                                                      small * (size // 8)))
        with contextlib.suppress(BlockingIOError):
            os.eventfd_write(bell, 1)

    def ask_for_duplexes(self) -> None:
        """To ports at which others listen, and to its own; it keeps some, and uses none."""
        assert self.session is not None
        link = self.rng.choice([*self.link_ids, self.rng.choice(SOME)])
        _, frame = self.session._channel.request(2.0, **self.rng.choice((
            {"open_duplex": pb.OpenDuplex(link=link, port=self.rng.choice((0, 1, 2, 2, 3, 70_000)))},
            {"open_duplex": pb.OpenDuplex(link=link, port=2)},
            {"take_duplex": pb.TakeDuplex(link=link, over=self.rng.choice((0, 0, 1, 1 << 31)))})))
        fds = frame.take_fds()
        if fds and len(self.kept) < 6 and self.rng.random() < 0.5:
            self.kept += fds
        else:
            close_all(fds)

    def ask_nonsense_of_links(self) -> None:
        """What can't be granted."""
        assert self.session is not None
        some = self.rng.choice(SOME)
        self.session._channel.request(2.0, **self.rng.choice((
            {"open_link": pb.OpenLink(node_id=some % (1 << 32), port=70_000)},
            {"open_link": pb.OpenLink(node_id=99)},
            {"open_link": pb.OpenLink(node_id=1, memory=some)},
            {"close_link": pb.CloseLink(link=some)},
            {"offer_region": pb.OfferRegion(name="evil", size=some)},
            {"offer_region": pb.OfferRegion(name="", size=8)},
            {"offer_region": pb.OfferRegion(name="evil", size=8, writer=99)},
            {"offer_region": pb.OfferRegion(name="evil", size=8, writer=1, atomics=True)},
            {"end_region": pb.EndRegion(name=self.rng.choice(("words0", "evil", "")))})))

    # --- on the connection

    def _connect(self) -> socket.socket | None:
        here = [slot.node_id for slot in self.world.nodes if slot.host == self.host and slot.serving]
        if not here or len(self.raw) > 40:
            return None
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.raw.append(sock)
        sock.setblocking(False)
        sock.connect(os.fspath(self.world.runtime_dir(self.host) / "domain-0" / f"node-{self.rng.choice(here)}.sock"))
        return sock

    def _introduced(self) -> socket.socket | None:
        sock = self._connect()
        if sock is not None:
            sock.send(frame(opening_pb2.Opening(magic=MAGIC, role=opening_pb2.APPLICATION, protocol=PROTOCOL_VERSION,
                                                name=str(self.process)).SerializeToString()))
        return sock

    def say_nothing(self) -> None:
        """Connections of which nothing comes, or half an introduction."""
        for _ in range(self.rng.choice((1, 10))):
            sock = self._connect()
            if sock is not None and self.rng.random() < 0.5:
                sock.send(self.rng.choice((b"\x10\0\0\0", b"\x10\0\0\0\0\0\0\0ab", self.rng.randbytes(30))))

    def say_nonsense(self) -> None:
        """Bytes where a frame belongs."""
        assert self.session is not None
        self.session._channel._sock.send(self.rng.choice((
            self.rng.randbytes(self.rng.randrange(1, 300)), frame(self.rng.randbytes(50)), frame(b""),
            struct.pack("<IHH", 1 << 30, 0, 0))))

    def half_a_frame(self) -> None:
        """And then no more of it."""
        sock = self._introduced()
        if sock is not None:
            sock.send(frame(bytes(200))[: self.rng.randrange(1, 200)])

    def flood(self) -> None:
        """Requests of which no answer is read."""
        sock = self._introduced()
        if sock is not None:
            request = frame(pb.Request(number=1, get_status=pb.GetStatus()).SerializeToString())
            with contextlib.suppress(BlockingIOError):
                for _ in range(self.rng.choice((20, 200))):
                    sock.send(request)

    def hand_over(self) -> None:
        """Descriptors that nobody wants."""
        sock = self._introduced()
        if sock is not None:
            read, write = os.pipe()
            try:
                body = frame(b"", fds=self.rng.choice((0, 2)))
                socket.send_fds(sock, [body], [read, write])
            finally:
                os.close(read)
                os.close(write)

    def hang_up(self) -> None:
        """In one direction only."""
        assert self.session is not None
        self.session._channel._sock.shutdown(self.rng.choice((socket.SHUT_WR, socket.SHUT_RD)))

    def ask_nonsense(self) -> None:
        """Well-formed requests that can't be granted."""
        assert self.session is not None
        rng, spec = self.rng, self.rng.choice(self.world.specs)
        self.session.declare_topic(spec)
        other = spec_to_wire(spec)
        other.size_max += 1
        ports: list[Reading | Writing] = [*self.world.checks.readings, *self.world.checks.writings]
        guids = [one.guid for one in ports if one.open and one.guid]
        body = rng.choice((
            {"close_port": pb.ClosePort(port=rng.choice(SOME))},
            {"declare_topic": pb.DeclareTopic(spec=other)},
            {"declare_topic": pb.DeclareTopic()},
            {"open_writer": pb.OpenWriter(topic=spec.name, slots=1 << 31)},
            {"open_writer": pb.OpenWriter(topic="nobody's")},
            {"open_reader": pb.OpenReader(topic=spec.name, start_index=-5)},
            {"open_reader": pb.OpenReader(topic=spec.name, after=[pb.Position(view_id=n) for n in range(1025)])},
            {"open_reader": pb.OpenReader(topic=spec.name, guid=rng.choice(guids)[:16] if guids else b"x")},
            {}))
        # Of a topic that nobody has open and somebody deletes in between, the other definition would be the one.
        held = "declare_topic" in body and self.session.open_reader(spec.name, keep_all=False, from_history=False)
        try:
            self.session._channel.request(2.0, **body)
        finally:
            if held:
                held.close()


def frame(body: bytes, fds: int = 0) -> bytes:
    """As it travels."""
    return struct.pack("<IHH", len(body), fds, 0) + body
