"""Who is at the other end: the clients or servers that a pair of endpoints is matched with.

A client or server has a writer and a reader, and says who it is in the user data of both. It is there when both are
matched. Whom a sample comes from follows from its writer, not from what it says: nobody can answer, or ask, in the name
of another.
"""

from __future__ import annotations

import threading
from typing import Any

from dds.exceptions import DDSException
from dds.pub import DataWriter
from dds.qos import Policy
from dds.rpc.messages import Announcement
from dds.sub import DataReader

STRANGERS_MAX = 1024  # writers that are no peers and need not be asked about again


class Peers:
    """The peers of one role. Thread-safe."""

    def __init__(self, reader: DataReader[Any], writer: DataWriter[Any], role: str) -> None:
        self._reader = reader
        self._writer = writer
        self._role = role
        self._lock = threading.Lock()
        self._known: dict[bytes, Announcement | None] = {}  # by guid of the endpoint
        self._writers: dict[int, Announcement] = {}  # by handle of their writer
        self._strangers: set[int] = set()
        self._there: dict[bytes, Announcement] = {}

    def read(self, reader: DataReader[Any]) -> None:
        """Their writers are matched with this one from now on."""
        with self._lock:
            self._reader = reader

    @property
    def there(self) -> set[bytes]:
        """The ids of those that were there at the last look."""
        return set(self._there)

    def look(self) -> tuple[list[Announcement], list[Announcement]]:
        """Who has come and who has gone since the last look."""
        with self._lock:
            writers = {one.handle: said for one, said in self._said_by(self._reader)}
            readers = {said.id for _, said in self._said_by(self._writer)}
            self._writers = writers
            self._strangers.clear()
            complete = at_both_ends({one.id for one in writers.values()}, readers)
            there = {one.id: one for one in writers.values() if one.id in complete}
            came = [one for id, one in there.items() if id not in self._there]
            gone = [one for id, one in self._there.items() if id not in there]
            self._there = there
            return came, gone

    def _said_by(self, endpoint: DataReader[Any] | DataWriter[Any]) -> list[tuple[Any, Announcement]]:
        matched = list(endpoint._matches.matched.values())
        for one in matched:
            if one.guid not in self._known:
                data = one.qos[Policy.Userdata]
                self._known[one.guid] = Announcement.decode(b"" if data is None else data.data)
        living = {one.guid for one in matched}
        if len(self._known) > 4 * len(living) + STRANGERS_MAX:
            self._known = {guid: said for guid, said in self._known.items() if guid in living}
        found = ((one, self._known[one.guid]) for one in matched if one.guid in self._known)
        return [(one, said) for one, said in found if said is not None and said.role == self._role]

    def whose(self, handle: int) -> Announcement | None:
        """Whose the writer with this handle is; None for one that is nobody's."""
        found = self._writers.get(handle)
        if found is not None or handle in self._strangers:
            return found
        # Its sample may be here before anybody has told us of it.
        try:
            self._reader._runtime.refresh(self._reader._topic.name)
        except DDSException:
            return None
        self.look_at_writers()
        found = self._writers.get(handle)
        if found is None and len(self._strangers) < STRANGERS_MAX:
            self._strangers.add(handle)
        return found

    def look_at_writers(self) -> None:
        with self._lock:
            self._writers = {one.handle: said for one, said in self._said_by(self._reader)}


def at_both_ends(writers: set[bytes], readers: set[bytes]) -> set[bytes]:
    """Who is there, of those who say that they have a writer, and a reader: whoever has both."""
    return writers & readers


__all__ = ["Peers", "at_both_ends"]
