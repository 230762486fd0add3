"""What a session with nodes of other hosts has announced, and under which guids: the next node is told all of it.

Rules: an endpoint that was withdrawn with its node never comes back under the same guid. So everything gets another one
when a node is lost, and what belongs to one participant belongs together afterwards, too.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from spindle.errors import SpindleError
from spindle.group.endpoints import OWNER_BYTES

if TYPE_CHECKING:
    from spindle.client.remote_ports import RemoteReader, RemoteWriter
    from spindle.proto import attach_pb2 as pb


class RemoteNotices:
    """The topics and participants that one session has announced, by the guids that the program has given them.

    lock  the channel's
    tell  asks the present node for what the body says, which is made under the lock
    """

    def __init__(self, lock: threading.Condition, tell: Callable[[Callable[[], dict[str, Any]]], None]) -> None:
        self._lock, self._tell = lock, tell
        self._announced: dict[bytes, pb.Announce] = {}
        self._owners: dict[bytes, bytes] = {}  # as given by the program -> as the present node knows them

    def present(self, guid: bytes) -> bytes:
        """The guid by which the present node knows what was opened or announced with `guid`."""
        owner = self._owners.get(guid[:OWNER_BYTES])
        return guid if owner is None else owner + guid[OWNER_BYTES:]

    def renew(self, of_ports: Iterable[bytes]) -> None:
        """The node is lost: all guids are others from now on, those of the open ports, too. Under the lock."""
        given = {guid[:OWNER_BYTES] for guid in (*self._announced, *of_ports) if guid}
        self._owners = {owner: os.urandom(OWNER_BYTES) for owner in given}

    def all(self) -> list[pb.Announce]:
        """What the next node is told."""
        with self._lock:
            return [self._told(one) for one in self._announced.values()]

    def _told(self, one: pb.Announce) -> pb.Announce:
        from spindle.proto import attach_pb2 as pb

        return pb.Announce(guid=self.present(one.guid), kind=one.kind, topic=one.topic, endpoint=one.endpoint)

    # --- for the session; these raise as RemoteChannel.request()

    def announce(self, wanted: pb.Announce) -> None:
        with self._lock:
            before = self._announced.get(wanted.guid)
            self._announced[wanted.guid] = wanted
        try:
            self._tell(lambda: {"announce": self._told(wanted)})
        except SpindleError:
            with self._lock:
                if before is None:
                    self._announced.pop(wanted.guid, None)
                else:
                    self._announced[wanted.guid] = before
            raise

    def withdraw(self, guid: bytes) -> None:
        from spindle.proto import attach_pb2 as pb

        with self._lock:
            self._announced.pop(guid, None)
        self._tell(lambda: {"withdraw": pb.Withdraw(guid=self.present(guid))})

    def change_writer(self, writer: RemoteWriter, endpoint: bytes, farewell: int) -> None:
        """What is said of a writer has changed."""
        from spindle.proto import attach_pb2 as pb

        with self._lock:
            writer.changed(endpoint, farewell)
        self._tell(lambda: {"change_port": pb.ChangePort(port=writer.port, endpoint=endpoint, farewell=farewell)})

    def change_reader(self, reader: RemoteReader, endpoint: bytes) -> None:
        """What is said of a reader has changed."""
        from spindle.proto import attach_pb2 as pb

        with self._lock:
            reader.changed(endpoint)
        self._tell(lambda: {"change_port": pb.ChangePort(port=reader.port, endpoint=endpoint)})


__all__ = ["RemoteNotices"]
