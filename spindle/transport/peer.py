"""One node at the other end of a control connection, and what is known of how it ended."""

from __future__ import annotations

import dataclasses
import select

from spindle.proto import node_pb2 as pb
from spindle.transport.wire import Connection


@dataclasses.dataclass(eq=False)
class Peer:
    """A connected node. `farewell` is what it said at its end."""

    node_id: int
    incarnation: int
    conn: Connection
    farewell: pb.Farewell | None = None
    pid_fd: int = -1  # readable when its process has ended
    ended: bool = False  # it is certain that it never acts again
    cut: bool = False  # this node has cast it out
    serves: bool = False  # its group did already when this node connected to it
    abilities: int = 0  # beyond the version of its protocol: see opening.proto
    looked: bool = False  # it was looking for a group when the two connected, as far as this node knows

    @property
    def left(self) -> bool:
        """True if it ended in order."""
        return self.farewell is not None and not self.farewell.kind and not self.farewell.cast_out

    @property
    def why(self) -> str:
        """How it ended, for people."""
        if self.farewell is None:
            return "its process has ended" if self.ended else "its connection ended"
        if self.farewell.cast_out:
            return "it takes this node for lost"
        return f"it failed: {self.farewell.text}" if self.farewell.kind else "it left"

    def process_ended(self) -> bool:
        """True if its process is known to have ended."""
        if self.pid_fd >= 0 and not self.ended:
            poller = select.poll()
            poller.register(self.pid_fd, select.POLLIN)
            self.ended = bool(poller.poll(0))
        return self.ended

    def __str__(self) -> str:
        return f"node {self.node_id} ({where(self.conn)})"


def where(conn: Connection) -> str:
    """Where the other end runs, for people."""
    return f"pid {conn.peer.pid}" if conn.peer.local else f"at {conn.peer}"
