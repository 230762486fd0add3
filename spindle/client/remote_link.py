"""One connection of an application to one node of another host: introduced, and what is asked on it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from spindle.client.calls import Call, Lost
from spindle.client.introducing import check_opening, parse, release
from spindle.client.nodes import connect, label_of
from spindle.errors import SpindleError, WireError, error_from_wire
from spindle.group.codec import PROTOCOL_VERSION
from spindle.proto import attach_pb2 as pb
from spindle.proto import opening_pb2
from spindle.proto import relay_pb2 as rb
from spindle.transport.opening import MAGIC
from spindle.transport.wire import BlockingConnection

if TYPE_CHECKING:
    from spindle.client.remote_ports import RemoteReader, RemoteWriter
    from spindle.security.trust import Trust
    from spindle.transport.frames import Frame
    from spindle.transport.names import HostNames


class Link:
    """One connection to one node, introduced."""

    def __init__(self, conn: BlockingConnection, address: str, welcome: pb.Welcome) -> None:
        self.conn = conn
        self.address = address
        self.welcome = welcome
        self.calls: dict[int, Call] = {}
        self.readers: dict[int, RemoteReader] = {}  # by the node's port numbers
        self.writers: dict[int, RemoteWriter] = {}
        self.lost = False

    def __str__(self) -> str:
        return f"node {self.welcome.node_id} at {self.address}"

    def send(self, side: rb.ClientSide, timeout_s: float = 5.0) -> None:
        """Raises Lost."""
        try:
            self.conn.send(side.SerializeToString(), timeout_s=timeout_s)
        except (SpindleError, TimeoutError):
            self.conn.close()  # whoever reads it notices
            raise Lost from None

    def receive(self, silence_s: float) -> Frame:
        """The next frame, however long that takes. Raises TimeoutError if nothing comes for so long, SpindleError."""
        while True:
            before = self.conn.arrived
            try:
                return self.conn.receive(silence_s)
            except TimeoutError:
                if self.conn.arrived == before:
                    raise


def open_link(address: str, names: HostNames, trust: Trust, domain_id: int, name: str, begin: rb.Begin,
              timeout_s: float) -> Link:
    """Connects to a node and introduces the application. Raises SpindleError, TimeoutError."""
    label = label_of(address)
    conn = connect(address, names, trust, timeout_s)
    try:
        conn.send(opening_pb2.Opening(
            magic=MAGIC, role=opening_pb2.APPLICATION, protocol=PROTOCOL_VERSION, domain_id=domain_id,
            name=name, release=release()).SerializeToString(), timeout_s=timeout_s)
        check_opening(parse(opening_pb2.OpeningReply, conn.receive(timeout_s), label), PROTOCOL_VERSION, label)
        side = parse(rb.NodeSide, conn.receive(timeout_s), label)
        message = pb.NodeFrame.FromString(side.node)
        if message.WhichOneof("body") == "refusal":
            raise error_from_wire(message.refusal.kind, message.refusal.text)
        if message.WhichOneof("body") != "welcome":
            raise WireError(f"{label} did not begin with a welcome")
        conn.send(rb.ClientSide(begin=begin).SerializeToString(), timeout_s=timeout_s)
        return Link(conn, address, message.welcome)
    except DecodeError as error:
        conn.close()
        raise WireError(f"{label} sent a message that can't be read: {error}") from None
    except BaseException:
        conn.close()
        raise
