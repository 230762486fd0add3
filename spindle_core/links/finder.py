"""How a pool finds regions of other nodes by name, and keeps their leases.

A lookup is one read of the owner's directory, which the owner takes no part in (KRCore, section 4.2); of a node of this
host that is a look into memory. What was found is kept for the time of a lease: a link that is opened meanwhile costs
nothing but a look at it. When a lease has ended and somebody still uses the region, the entry is read once more; the
new lease counts from before that read, since the owner may have ended the region right behind it.

Sans-IO: whoever drives the pool calls advance() with the time. Nothing waits.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

from spindle_core.fabric.regions.regions import GRANT, Regions
from spindle_core.fabric.regions.requests import Asker, RequestList
from spindle_core.links.directory import WINDOW_SIZE, Entry, Torn, find, place_of
from spindle_core.links.exports import LEASE_NS
from spindle_core.links.link import Link
from spindle_core.links.pool import Pool
from spindle_core.memory import Mapping

READ, WRITE = 1, 2  # of the rights in a grant (regions.pxd)
READS_MAX = 64  # lookups on the way at a time; others wait
TRIES_MAX = 100  # of an entry that is always being written
FULL = -2  # in place of a handle: of the link or the pool no more are to be had
UNMAPPED = -3  # the same: the region is of this host, and not mapped here (any more)
CACHE_MAX = 4096  # regions that are remembered

Found = Callable[[Entry | None, str], None]


@dataclass
class _Lookup:
    node: int
    name: str
    place: int
    since_ns: int = 0
    tries: int = 0
    slot: int = -1
    waiting: list[Found] = field(default_factory=list)


def _nothing(node: int, name: str) -> str:
    return f"node {node} offers no region {name!r}"


class Finder:
    """Lookups of one pool. `own_id`: of this node, which may write what names it the writer. `mapping_of(node, key)`: a
    region of this host as it is mapped here, or None while it isn't. RdmaUnavailable where a device has no room for the
    memory into which it reads."""

    def __init__(self, pool: Pool, own_id: int, mapping_of: Callable[[int, int], Mapping | None] = lambda *_: None
                 ) -> None:
        self._pool = pool
        self._regions: Regions = pool.regions
        self._own_id = own_id
        self._mapping_of = mapping_of
        self._directories: dict[int, int] = {}  # node: number of its directory's region
        self._beside: dict[int, memoryview] = {}  # node of this host: its directory, which is mapped here
        self._cache: dict[tuple[int, str], tuple[Entry, int]] = {}  # until when
        self._lookups: dict[tuple[int, str], _Lookup] = {}
        self._queue: list[_Lookup] = []
        self._slots = list(range(READS_MAX))
        self._flying: dict[int, _Lookup] = {}
        self._asker = Asker()
        self._memory = Mapping.create("spindle-lookups", READS_MAX * WINDOW_SIZE)
        self._regions.know(self._memory)  # now: later a device may have no room for it
        self._links: dict[tuple[int, int], tuple[str, bytes]] = {}  # link and handle: its region
        self.reads = 0

    @property
    def asker(self) -> Asker:
        """Where lookups complete; advance() takes them."""
        return self._asker

    @property
    def waits(self) -> bool:
        """Lookups could not be sent yet."""
        return bool(self._queue)

    # ---- nodes ----

    def add_node(self, node: int, grant: bytes, memory: Mapping | None = None) -> None:
        """The directory of a node that the pool is connected with, as its owner grants it."""
        self._directories[node] = self._regions.reach(self._pool.connections(node)[0], grant, memory)
        if memory is not None:
            self._beside[node] = memory.view()

    def remove_node(self, node: int) -> None:
        """It has gone: what was known of it is forgotten, lookups of it find nothing."""
        self._directories.pop(node, None)
        self._beside.pop(node, None)
        self._cache = {place: entry for place, entry in self._cache.items() if place[0] != node}
        for key, lookup in list(self._lookups.items()):
            if key[0] == node:
                self._finish(lookup, None, f"node {node} has gone")

    def end(self) -> None:
        """Lets go of what is mapped for it."""
        self._beside.clear()

    # ---- lookups ----

    def look_up(self, node: int, name: str, now_ns: int, found: Found) -> None:
        """Calls `found` with the entry, or None and why: at once if it is known, else from advance(). ValueError for
        what can't be a name."""
        place = place_of(name)
        known = self._cache.get((node, name))
        if known is not None and now_ns < known[1]:
            found(known[0], "")
            return
        if len(window := bytes(self._beside.get(node, b"")[place : place + WINDOW_SIZE])) == WINDOW_SIZE:
            try:
                entry = find(window, name)
            except Torn:
                pass  # it is read again in a moment, as those of other hosts are
            else:
                self.reads += 1
                self._learn(node, name, entry, now_ns)
                found(entry, "" if entry else _nothing(node, name))
                return
        self._read(node, name, place, found)

    def _until(self, node: int, name: str) -> int:
        """When the lease of what was found ends; 0, so that it is renewed first, where that has gone since."""
        return self._cache.get((node, name), (None, 0))[1]

    def _learn(self, node: int, name: str, entry: Entry | None, since_ns: int) -> None:
        """What stood in the directory at that time, or later."""
        if entry is None:
            self._cache.pop((node, name), None)
            return
        if len(self._cache) >= CACHE_MAX:
            self._cache.pop(next(iter(self._cache)))
        self._cache[node, name] = entry, since_ns + LEASE_NS

    def _read(self, node: int, name: str, place: int, found: Found) -> None:
        if node not in self._directories:
            found(None, f"there is no connection to node {node}")
            return
        lookup = self._lookups.get((node, name))
        if lookup is not None and lookup.slot < 0:
            lookup.waiting.append(found)  # one read for all who ask before it
            return
        lookup = _Lookup(node, name, place, waiting=[found])
        self._lookups[node, name] = lookup
        self._queue.append(lookup)

    def _post(self, lookup: _Lookup, now_ns: int) -> bool:
        requests = RequestList()
        slot = self._slots[-1]
        requests.read(self._directories[lookup.node], lookup.place, WINDOW_SIZE, self._memory, slot * WINDOW_SIZE,
                      cookie=slot)
        try:
            self._regions.post(self._asker, requests)
        except BlockingIOError:
            return False
        except (ConnectionError, ValueError):
            self._finish(lookup, None, f"the connection to node {lookup.node} is over")
            return True
        lookup.slot, lookup.since_ns = self._slots.pop(), now_ns
        lookup.tries += 1
        self.reads += 1
        self._flying[slot] = lookup
        return True

    def _finish(self, lookup: _Lookup, entry: Entry | None, why: str) -> None:
        if self._lookups.get((lookup.node, lookup.name)) is lookup:
            del self._lookups[lookup.node, lookup.name]
        if lookup in self._queue:
            self._queue.remove(lookup)
        waiting, lookup.waiting = lookup.waiting, []
        for found in waiting:
            found(entry, why)

    def _landed(self, slot: int, status: str) -> None:
        lookup = self._flying.pop(slot)
        self._slots.append(slot)
        lookup.slot = -1
        if not lookup.waiting:
            return  # its node has gone
        if status != "done":
            self._finish(lookup, None, f"the connection to node {lookup.node} is over")
            return
        try:
            entry = find(bytes(self._memory.view()[slot * WINDOW_SIZE : (slot + 1) * WINDOW_SIZE]), lookup.name)
        except Torn:
            if lookup.tries < TRIES_MAX:
                self._queue.append(lookup)
            else:
                self._finish(lookup, None, f"the directory of node {lookup.node} is always being written")
            return
        self._learn(lookup.node, lookup.name, entry, lookup.since_ns)
        self._finish(lookup, entry, "" if entry else _nothing(lookup.node, lookup.name))

    # ---- regions of links ----

    def open(self, link: Link, name: str, now_ns: int, opened: Callable[[int, str], None], change: bool = True) -> None:
        """Lets a link use a region of its node; without `change` it can only read. Calls `opened` with the handle, or
        with -1, FULL or UNMAPPED and why not: at once if the region is known, else from advance(). ValueError for what
        can't be a name."""
        self.look_up(link.node, name, now_ns, partial(self._open_found, link, name, opened, change))

    def _open_found(self, link: Link, name: str, opened: Callable[[int, str], None], change: bool,
                    entry: Entry | None, why: str) -> None:
        if entry is None or not link.is_open:
            opened(-1, why or "this link is over")
            return
        key, size, rights, remote_key, remote = GRANT.unpack(entry.grant)
        if entry.writer != self._own_id:
            rights &= ~WRITE
        if not change:
            rights &= READ
        until_ns = self._until(link.node, name)  # of what was found: to map it may have others look it up anew
        memory = None
        if self._regions.part_of(link.peer) == "shm":
            memory = self._mapping_of(link.node, key)
            if memory is None:
                opened(UNMAPPED, f"region {name!r} of this host is not mapped here")
                return
        try:
            handle = link.open_region(GRANT.pack(key, size, rights, remote_key, remote), until_ns, memory)
        except (ConnectionError, ValueError) as error:
            opened(FULL if isinstance(error, ValueError) else -1, str(error))
            return
        self._links[link.id, handle] = name, entry.grant
        opened(handle, "")

    def close(self, link: Link, handle: int) -> None:
        """The link needs the region no more."""
        self._links.pop((link.id, handle), None)
        link.close_region(handle)

    def forget(self, link: Link) -> None:
        """The link has been closed."""
        for place in [place for place in self._links if place[0] == link.id]:
            del self._links[place]

    def _renewed(self, link: Link, handle: int, known: tuple[str, bytes], entry: Entry | None, _why: str) -> None:
        if not link.is_open:
            return
        if self._links.get((link.id, handle)) is not known:  # closed meanwhile; another one may have the handle
            link.look_again()
        elif entry is None or entry.grant != known[1]:
            link.end_region(handle)
        else:
            link.renew(handle, self._until(link.node, known[0]))

    def advance(self, now_ns: int) -> None:
        """Takes what lookups have read, sends those that wait, and renews leases that were used up."""
        for slot, status, _, _ in self._asker.take():
            self._landed(slot, status)
        for link, handle in self._pool.tidy():
            known = self._links.get((link.id, handle))
            if known is None:
                link.end_region(handle)
                continue
            self.look_up(link.node, known[0], now_ns, partial(self._renewed, link, handle, known))
        while self._queue and self._slots:
            lookup = self._queue.pop(0)
            if not self._post(lookup, now_ns):
                self._queue.insert(0, lookup)
                break
