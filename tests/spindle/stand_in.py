"""A stand-in for a node: everything that applications ask of one, without a group behind it.

Why: whether the attachment survives hostile or unlucky applications doesn't depend on ordering and views; here a test
can hold a request back, fail it, or look at what is open.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
import struct
import threading
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar

from spindle.applications.attachment import Attachments
from spindle.client.attaching import open_session
from spindle.client.session import Session
from spindle.config.settings import NodeConfig
from spindle.errors import NodeStopped, TopicInUse, TopicUnknown
from spindle.group.codec import PROTOCOL_VERSION
from spindle.group.endpoints import Endpoint
from spindle.group.events import ENDPOINT_ADDED, ENDPOINT_REMOVED, Event, ViewInfo
from spindle.group.leases import Lease
from spindle.group.position import Position
from spindle.group.topics import TopicInfo, TopicSpec
from spindle.proto import opening_pb2
from spindle.security.access import PeerCredentials
from spindle.transport.listening import Listener
from spindle.transport.wire import BlockingConnection, Connection, Limits
from spindle_core.counters import Counters
from spindle_core.delivery import KEPT_BEFORE, Cursor, DeliveryLog
from spindle_core.inbox import Inbox
from spindle_core.memory import Mapping

T = TypeVar("T")
BELL_MAGIC = 0x314C4542444E5053  # layout.h
GROUP_ID = 99


@dataclasses.dataclass
class StandInEngine:
    bell: Mapping
    bell_fd: int

    def hear(self, fd: int) -> None:
        """Nobody listens here."""

    def unhear(self, fd: int) -> None:
        """As hear."""


@dataclasses.dataclass(eq=False)
class StandInWriter:
    topic: str
    inbox: Inbox
    relayed: int = 0


@dataclasses.dataclass(eq=False)
class StandInReader:
    topic: str
    log_mapping: Mapping
    cursor: Cursor
    start: Position
    continued: bool
    ends: tuple[Position, ...] = ()
    said_ns: int = 0
    types: tuple[bytes, ...] = ()


class StandInNode:
    """Serves applications at `path` on a thread of its own until `stop()`; also a context manager.

    hold: an opening writer or reader waits for this while it is clear.
    open_ports: what is open now.
    """

    def __init__(self, path: Path, config: NodeConfig | None = None) -> None:
        self.path = path
        self.config = config or NodeConfig()
        self.node_id = 7
        self.counters = Counters.create()
        bell = Mapping.create("bell", 4096)
        bell.view()[:8] = struct.pack("<Q", BELL_MAGIC)
        self.engine = StandInEngine(bell, os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC))
        self.open_ports: set[StandInWriter | StandInReader] = set()
        self.announced: dict[bytes, Endpoint] = {}
        self.said_types: list[bytes] = []
        self.links = None  # it serves none
        self.large_samples = None  # nor these
        self.logs: dict[str, DeliveryLog] = {}
        self._topics: dict[str, TopicInfo] = {}
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        assert self._started.wait(10)

    # --- what an Attachments asks of its node

    async def declare_topic(self, spec: TopicSpec) -> TopicInfo:
        spec = spec.with_window()
        if spec.name in self._topics:
            self._topics[spec.name].spec.check_same(spec)
        else:
            self._topics[spec.name] = TopicInfo(spec, len(self._topics) + 1, (7,), (7,))
            self.logs[spec.name] = DeliveryLog(1 << 20)
        return self._topics[spec.name]

    async def delete_topic(self, name: str, renews: bool = False) -> None:
        if any(port.topic == name for port in self.open_ports):
            raise TopicInUse(f"topic {name!r} cannot be deleted: node 7 has it open")
        if renews:
            raise TopicInUse(f"topic {name!r} is not logged")
        if self._topics.pop(name, None) is None:
            raise TopicUnknown(f"topic {name!r} is not declared")

    async def open_writer(
        self, topic: str, *, slots: int = 0, relayed: int = 0, within: bool = False, farewell: int = 0,
        lease: Lease | None = None, type_: bytes = b"",
    ) -> StandInWriter:
        await self.hold.wait()
        size_max = self._known(topic).spec.size_max
        port = StandInWriter(topic, Inbox(size_max, slots or 16, len(self.open_ports) + 1, within=within))
        self.open_ports.add(port)
        self.said_types += [type_] if type_ else []
        return port

    async def open_reader(
        self, topic: str, *, keep_all: bool, from_history: bool, start_index: int = -1,
        after: Sequence[Position] = (), within: bool = False,
    ) -> StandInReader:
        await self.hold.wait()
        self._known(topic)
        cursor = Cursor(keep_all, from_history, start_index, max((one.place for one in after), default=None), within)
        self.logs[topic].add_reader(cursor)
        start = Position(GROUP_ID, *(cursor.next or (0, 0)))
        port = StandInReader(topic, self.logs[topic].mapping, cursor, start, cursor.kept == KEPT_BEFORE,
                             types=self.types(topic))
        self.open_ports.add(port)
        return port

    async def close_writer(self, port: StandInWriter) -> None:
        self.open_ports.remove(port)

    async def close_reader(self, port: StandInReader) -> None:
        self.logs[port.topic].remove_reader(port.cursor)
        self.open_ports.remove(port)

    def check_descriptors(self, what: str) -> None:
        """There are always enough."""

    def types(self, topic: str) -> tuple[bytes, ...]:
        return tuple(self.said_types)

    def topics(self, awaited: bool = False) -> list[TopicInfo]:
        return list(self._topics.values())

    async def hears_of(self, name: str, anew: bool = False) -> None:
        """It is alone: it knows all there is."""

    def topic(self, name: str, awaited: bool = False) -> TopicInfo | None:
        return next((topic for topic in self.topics() if topic.spec.name == name), None)

    def view(self) -> ViewInfo:
        return ViewInfo(3, (5, 7), 1, GROUP_ID)

    def status(self) -> dict[str, Any]:
        return {"node": self.node_id}

    def figures(self) -> dict[str, Any]:
        return {"node_id": self.node_id, "counters": self.counters.snapshot(), "cpu_s": 0.0,
                "topics": self.status().get("topics", [])}

    @property
    def telling(self) -> StandInNode:
        return self

    async def ask(self, node_id: int, figures: bool = False) -> dict[str, Any]:
        raise NodeStopped(f"node {node_id} is not connected")

    def endpoints(self, topic: str = "", everything: bool = False) -> list[Endpoint]:
        return [one for one in self.announced.values() if topic in ("", one.topic)]

    def announce_endpoint(self, endpoint: Endpoint) -> None:
        self.announced[endpoint.guid] = endpoint
        self.attachments.tell(Event(ENDPOINT_ADDED, endpoint=endpoint))

    def withdraw_endpoint(self, guid: bytes) -> None:
        self.attachments.tell(Event(ENDPOINT_REMOVED, endpoint=self.announced.pop(guid)))

    def _known(self, topic: str) -> TopicInfo:
        if topic not in self._topics:
            raise TopicUnknown(f"topic {topic!r}")
        return self._topics[topic]

    # --- for tests

    def session(self, name: str = "test") -> Session:
        """A session over a new connection. Raises what attaching raises."""
        return open_session(self.dial(), self.config.domain_id, name, 5.0, label="node 7")

    def dial(self) -> socket.socket:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.settimeout(5.0)
        sock.connect(str(self.path))
        return sock

    def opened(self, **changes: Any) -> tuple[socket.socket, BlockingConnection, opening_pb2.OpeningReply]:
        """A connection after its Opening, in which `changes` replace the right values."""
        sock = self.dial()
        conn = BlockingConnection(sock)
        right = {"magic": 0x4E495053, "role": opening_pb2.APPLICATION, "protocol": PROTOCOL_VERSION, "domain_id": 0,
                 "name": "raw"}
        conn.send(opening_pb2.Opening(**{**right, **changes}).SerializeToString())
        return sock, conn, opening_pb2.OpeningReply.FromString(conn.receive(5.0).body)

    def call(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine function on the node's loop."""
        return asyncio.run_coroutine_threadsafe(work(), self._loop).result(10)

    def do(self, work: Callable[[], object]) -> None:
        """Run a plain function on the node's loop."""

        async def doing() -> None:
            work()

        self.call(doing)

    def stop(self, *, abruptly: bool = False) -> None:
        """End the node; `abruptly` as by kill -9: connections end without a word."""
        if not self._thread.is_alive():
            return

        async def ending() -> None:
            if abruptly:
                for app in list(self.attachments.apps.values()):
                    app._conn.close()
            await self.attachments.close()
            self._listener.close()

        self.call(ending)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)

    def __enter__(self) -> StandInNode:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _run(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._loop.run_until_complete(self._listen())
        self._started.set()
        self._loop.run_forever()
        self._loop.close()
        os.close(self.engine.bell_fd)

    async def _listen(self) -> None:
        self.hold = asyncio.Event()
        self.hold.set()
        self.attachments = Attachments(self)  # type: ignore[arg-type]
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        sock.bind(str(self.path))
        sock.listen(16)
        limits = Limits(frame_time_s=self.config.handshake_timeout_s)
        self._listener = Listener(sock, self._on_connection, limits)

    def _on_connection(self, conn: Connection) -> None:
        task = self._loop.create_task(self._open(conn))
        task.add_done_callback(lambda done: done.exception())

    async def _open(self, conn: Connection) -> None:
        frame = await conn.receive(self.config.handshake_timeout_s)
        opening = opening_pb2.Opening.FromString(frame.body)
        self.attachments.admit(conn, opening, PeerCredentials.of(conn._sock))
