"""What one application has of its node's links: links, and regions that it offers.

Rules:
- The memory of links and regions is the node's, and handed to the application: so its size is what was agreed, whoever
  has it mapped, and its end takes nothing away from others.
- What an application may reach follows the rules about topics ([access]), by the names of regions and ports: who offers
  a region or binds a port must be allowed to publish or subscribe to a topic of that name, who reads it or takes its
  messages to subscribe to it, who changes it or sends to it to publish it. The name of port 7 is `port/7`.
- All of it ends with the application: its links at once; its regions are found no more, and their memory goes after the
  longest lease that somebody may have.
"""

from __future__ import annotations

import contextlib
import errno
import os
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from spindle.errors import AccessDenied, ConfigError, ConnectionEnded, NoResources, SpindleError, shortage
from spindle.pool.lives import node_of
from spindle.proto import attach_pb2 as pb
from spindle_core.ends import Loose, end_of, heard_by, make_ends, make_pair
from spindle_core.errors import RdmaUnavailable

if TYPE_CHECKING:
    from spindle.applications.quotas import Quota
    from spindle.pool.pooling import Pooling
    from spindle.pool.service import NodeLinks
    from spindle.security.access import Permissions
    from spindle_core.links.link import Link
    from spindle_core.memory import Mapping

LINKS_MAX = 256  # of one application
REGIONS_MAX = 64
REACHED_MAX = 256  # regions that its links have opened, of the 4096 of a node
MEMORY_MAX = 1 << 30  # bytes of all its links and regions
LINK_BYTES = 320 << 10  # about what a link costs beside its memory
DUPLEXES_MAX = 64  # of one application, that it has asked for
DUPLEXES_OF_LINK_MAX = 4
UNTAKEN_MAX = 16  # duplexes that a program which listens has not come for
PORTS_MAX = 65535  # links.pxd
NO_PORT = 0xFFFFFFFF
ANY_PORT = "port/*"  # who may publish a topic of that name may send to all


def port_name(port: int) -> str:
    """The name by which access rules know a port."""
    return f"port/{port}"


class _OpenLink:
    """One link, with the descriptors that only the node needs."""

    def __init__(self, link: Link, node_life: int, size: int, ring_end: int, heard: int) -> None:
        self.link, self.life, self.bytes = link, node_life, size
        self.ring_end, self.heard = ring_end, heard
        self.port = 0  # the one that it is bound to, or the only one that it sends to; 0: any
        self.duplexes = 0  # that were made for it
        self.asking = 0  # of these, those that are being made
        # Of who listens, those that nobody has come for: life and link of the other one, descriptors, which go with it.
        self.untaken: list[tuple[int, int, Loose]] = []


class ApplicationLinks:
    """See the module's text."""

    def __init__(self, links: NodeLinks, permissions: Permissions, quota: Quota | None, within: bool,
                 send: Callable[[bytes, list[int]], None]) -> None:
        self._links, self._permissions, self._quota, self._within = links, permissions, quota, within
        self._send = send
        self._open: dict[int, _OpenLink] = {}
        self._regions: dict[str, tuple[int, Mapping]] = {}  # size and memory
        self._opening = self._offering = 0  # links and regions that are being made
        self._reserved = 0  # bytes of these
        self.ended = False

    # --- links

    async def asked_to_open(self, request: pb.Request) -> None:
        """A request of the application, as the others below; raises SpindleError."""
        opened = await self.open(request.open_link)
        if opened is None:
            return
        reply, fds = opened
        with fds:
            try:
                self._answer(request, reply, fds)
            except SpindleError:  # no descriptors for what waits to be sent: nobody has this link
                await self.close(reply.link.link)
                raise

    def _answer(self, request: pb.Request, reply: pb.Reply, fds: Loose) -> None:
        reply.number = request.number
        self._send(pb.NodeFrame(reply=reply).SerializeToString(), fds.all())

    async def asked_to_close(self, request: pb.Request) -> tuple[pb.Reply, list[int]]:
        await self.close(request.close_link.link)
        return pb.Reply(done=pb.Done()), []

    async def asked_to_offer(self, request: pb.Request) -> tuple[pb.Reply, list[int]] | None:
        return await self.offer(request.offer_region)

    async def asked_to_end(self, request: pb.Request) -> tuple[pb.Reply, list[int]]:
        await self.end_region(request.end_region.name)
        return pb.Reply(done=pb.Done()), []

    async def asked_for_duplex(self, request: pb.Request) -> None:
        wanted = request.open_duplex
        reply, fds = await self.open_duplex(wanted.link, wanted.port, wanted.over)
        with fds:
            self._answer(request, reply, fds)

    async def asked_to_take(self, request: pb.Request) -> None:
        wanted = request.take_duplex
        reply, fds = self.take_duplex(wanted.link, wanted.over)
        with fds:
            self._answer(request, reply, fds)

    async def open(self, wanted: pb.OpenLink) -> tuple[pb.Reply, Loose] | None:
        """The reply, and descriptors that go with it; None: the application has ended meanwhile. Raises
        SpindleError."""
        from spindle_core.memory import Mapping

        self._check_host()
        if wanted.port > PORTS_MAX or not (wanted.node_id or wanted.port):
            raise ConfigError(f"port {wanted.port}: must be between 1 and {PORTS_MAX}")
        if wanted.port:
            name = port_name(wanted.port)
            (self._permissions.check_publish if wanted.node_id else self._permissions.check_subscribe)(name)
        if len(self._open) + self._opening >= LINKS_MAX:
            raise ConfigError(f"{LINKS_MAX} links of one program are the limit: close one first")
        size = LINK_BYTES + wanted.memory
        self._check_room(size, f"a link with {wanted.memory} bytes of memory")
        if self._quota is not None:
            self._quota.take_link(size)
        self._opening += 1
        self._reserved += size
        kept = False
        try:
            pooling = self._links.pooling()
            life = await self._links.neighbours.reach(wanted.node_id) if wanted.node_id else 0
            with Loose() as made:
                try:
                    memory = Mapping.create("spindle-link-memory", max(1, wanted.memory))
                    opened, fds = await self._make(pooling, life, wanted, memory, made)
                except RdmaUnavailable as error:  # the device takes no more memory
                    raise NoResources(str(error)) from error
                except OSError as error:
                    if isinstance(error, SpindleError):
                        raise
                    if isinstance(error, ConnectionError):  # of the pool: it went while this was on its way
                        raise ConnectionEnded(f"node {wanted.node_id} has gone") from error
                    raise shortage(error, "another link") or NoResources(f"no link: {error}") from error
            kept = True
            if self.ended:
                fds.close()
                await self._close(opened)
                return None
            self._open[opened.link.id] = opened
            return pb.Reply(link=pb.LinkOpened(link=opened.link.id, buffer=0)), fds
        finally:
            self._opening -= 1
            self._reserved -= size
            if self._quota is not None and not kept:
                self._quota.give_link(size)

    async def _make(self, pooling: Pooling, life: int, wanted: pb.OpenLink, memory: Mapping, made: Loose
                    ) -> tuple[_OpenLink, Loose]:
        ours, theirs = make_ends(self._within)
        made.add(ours, theirs)
        ring = Loose.events(1).take()
        made.add(ring)
        heard = heard_by(ring)
        made.add(heard)

        def open_link() -> Link:
            link = pooling.pool.open_link(life or None)
            try:
                link.add_buffer(memory)
                link.rung_at(end_of(ours))
                pooling.guard(link, self._may)
                if not life:
                    pooling.pool.bind(link, wanted.port)
                elif wanted.port or not self._permissions.may_publish(ANY_PORT):
                    link.sends_to(wanted.port or NO_PORT)
            except BaseException:
                pooling.forget(link)
                raise
            return link

        try:
            link = await pooling.do(open_link)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        fds = Loose()
        try:
            fds = Loose.copies(link.user_page.fd, link.pool_page.fd, pooling.shm.bell.fd, ring, theirs, memory.fd)
            pooling.driver.hear(heard)
        except OSError:  # no descriptor is left: its place, and its port, are for others
            fds.close()
            await pooling.do(lambda: pooling.forget(link))
            raise
        made.keep(ours, heard)
        opened = _OpenLink(link, life, LINK_BYTES + wanted.memory, ours, heard)
        opened.port = wanted.port
        if not life:
            self._links.duplexes.listen(wanted.port, partial(self._offer_duplex, opened))
        return opened, fds

    async def close(self, number: int) -> None:
        """Raises ConfigError where it isn't open."""
        await self._close(self._take(number))

    def _take(self, number: int) -> _OpenLink:
        opened = self._open.pop(number, None)
        if opened is None:
            raise ConfigError(f"link {number:#x} is not open")
        return opened

    async def _close(self, opened: _OpenLink) -> None:
        if not opened.life:
            self._links.duplexes.listens_no_more(opened.port)
        try:
            pooling = self._links.pooling()
            await pooling.do(lambda: pooling.forget(opened.link))
            with contextlib.suppress(OSError, ValueError):  # the pool has ended meanwhile
                pooling.driver.unhear(opened.heard)
        finally:  # also where the node has stopped
            os.close(opened.heard)
            os.close(opened.ring_end)
            if self._quota is not None:
                self._quota.give_link(opened.bytes)

    # --- duplexes

    async def open_duplex(self, number: int, port: int, over: int) -> tuple[pb.Reply, Loose]:
        """The reply, and the descriptors of one side, where there is a duplex to be had between that link and whoever
        listens at the port of its node. `over`: so many that it had have ended. Raises ConfigError, AccessDenied,
        NoResources."""
        from spindle_core.links.duplex import PAGE_SIZE

        opened = self._open.get(number)
        if opened is None or not opened.life:
            raise ConfigError(f"link {number:#x} is not open, or leads to no node")
        if not 1 <= port <= PORTS_MAX:
            raise ConfigError(f"port {port}: must be between 1 and {PORTS_MAX}")
        if opened.port != port and (opened.port or not self._permissions.may_publish(ANY_PORT)):
            raise AccessDenied(f"link {number:#x} may not send to port {port}: name the port when it is opened")
        self._give_duplexes(opened, min(over, opened.duplexes - opened.asking))
        node_id = node_of(opened.life)
        if self._links.duplexes.is_elsewhere(node_id):
            return pb.Reply(duplex=pb.DuplexOpened(elsewhere=True)), Loose()
        if opened.duplexes >= DUPLEXES_OF_LINK_MAX or (
                sum(one.duplexes for one in self._open.values()) >= DUPLEXES_MAX):
            return pb.Reply(duplex=pb.DuplexOpened()), Loose()
        self._check_room(PAGE_SIZE, "a duplex")
        if self._quota is not None:
            self._quota.take_region(PAGE_SIZE)
        opened.duplexes += 1
        opened.asking += 1
        opened.bytes += PAGE_SIZE
        fds = Loose()
        try:
            fds = await self._links.duplexes.open(node_id, port, number)
        finally:
            opened.asking -= 1
            if self._open.get(number) is not opened:  # closed meanwhile, with all that it had
                fds.close()
            elif not fds.all():
                self._give_duplexes(opened, 1)
        return pb.Reply(duplex=pb.DuplexOpened()), fds

    def _give_duplexes(self, opened: _OpenLink, count: int) -> None:
        from spindle_core.links.duplex import PAGE_SIZE

        opened.duplexes -= count
        opened.bytes -= count * PAGE_SIZE
        if self._quota is not None:
            self._quota.give_region(count * PAGE_SIZE)

    async def _offer_duplex(self, opened: _OpenLink, life: int, link: int) -> Loose:
        """One for that link, with the program that listens: none where that has not come for earlier ones, or has as
        many as it takes. Raises SpindleError."""
        from spindle_core.links.duplex import DUPLEXES, make_page

        if opened.duplexes >= DUPLEXES or len(opened.untaken) >= UNTAKEN_MAX:
            return Loose()
        try:
            page = make_page()
            with Loose(make_pair()) as ends, Loose.copies(page.fd, page.fd) as memory:
                mine, other = Loose([memory.take(), ends.take()]), Loose([memory.take(), ends.take()])
        except OSError as error:
            raise shortage(error, "a duplex") or NoResources(f"no duplex: {error}") from error
        opened.duplexes += 1
        opened.untaken.append((life, link, mine))
        pooling = self._links.pooling()
        try:
            await pooling.do(opened.link.tell_of_duplex)
        except BaseException:
            other.close()
            raise
        return other

    def take_duplex(self, number: int, over: int) -> tuple[pb.Reply, Loose]:
        """The reply, and the descriptors of one that was made for that link and not taken yet, if there is one. `over`:
        so many that it had have ended. Raises ConfigError."""
        opened = self._open.get(number)
        if opened is None or opened.life:
            raise ConfigError(f"link {number:#x} is not open, or not bound to a port")
        opened.duplexes -= min(over, opened.duplexes - len(opened.untaken))
        if not opened.untaken:
            return pb.Reply(duplex_taken=pb.DuplexTaken()), Loose()
        life, link, fds = opened.untaken.pop(0)
        return pb.Reply(duplex_taken=pb.DuplexTaken(life=life, link=link)), fds

    def _may(self, name: str, change: bool) -> int:
        """An errno where it may not read a region of that name, or change it, or open one more; else 0. Called on the
        thread of links."""
        if not self._permissions.may_subscribe(name) or (change and not self._permissions.may_publish(name)):
            return errno.EPERM
        return errno.ENOSPC if sum(one.link.reaches for one in list(self._open.values())) >= REACHED_MAX else 0

    # --- regions that it offers

    async def offer(self, wanted: pb.OfferRegion) -> tuple[pb.Reply, list[int]] | None:
        """Raises ConfigError, ConnectionEnded, AccessDenied, NoResources."""
        self._check_host()
        self._permissions.check_declare(wanted.name)
        if not wanted.size:
            raise ConfigError(f"region {wanted.name!r} must have at least a byte")
        if len(self._regions) + self._offering >= REGIONS_MAX:
            raise ConfigError(f"{REGIONS_MAX} regions of one program are the limit: end one first")
        if wanted.writer and wanted.atomics:
            raise ConfigError(f"region {wanted.name!r} is open to the writes of one node, or to atomics of all: not "
                              "to both")
        self._check_room(wanted.size, f"region {wanted.name!r} of {wanted.size} bytes")
        if self._quota is not None:
            self._quota.take_region(wanted.size)
        self._offering += 1
        self._reserved += wanted.size
        reply = None
        try:
            reply = await self._offer(wanted)
            return reply
        finally:
            self._offering -= 1
            self._reserved -= wanted.size
            if self._quota is not None and reply is None:
                self._quota.give_region(wanted.size)

    async def _offer(self, wanted: pb.OfferRegion) -> tuple[pb.Reply, list[int]] | None:
        from spindle_core.memory import Mapping

        pooling = self._links.pooling()
        life = await self._links.neighbours.reach(wanted.writer) if wanted.writer else 0
        try:
            memory = Mapping.create("spindle-region", wanted.size, exact=True)
        except OSError as error:
            raise shortage(error, f"region {wanted.name!r}") or NoResources(str(error)) from error
        try:
            key = await pooling.do(lambda: pooling.exports.offer(
                wanted.name, memory, writer=life, atomics=wanted.atomics))
        except ValueError as error:
            raise ConfigError(str(error)) from error
        except ConnectionError as error:
            if isinstance(error, SpindleError):
                raise
            raise ConnectionEnded(f"node {wanted.writer}, which was to write, has gone") from error
        except OSError as error:  # the RDMA device takes no more memory
            raise shortage(error, f"region {wanted.name!r}") or NoResources(str(error)) from error
        if self.ended:
            await pooling.do(lambda: pooling.exports.end(wanted.name, time.monotonic_ns()))
            return None
        self._regions[wanted.name] = wanted.size, memory
        return pb.Reply(offered=pb.RegionOffered(key=key, name=wanted.name)), [memory.fd]

    async def end_region(self, name: str) -> None:
        """Raises ConfigError where it isn't this application's."""
        offered = self._regions.pop(name, None)
        if offered is None:
            raise ConfigError(f"this program offers no region {name!r}")
        if self._quota is not None:
            self._quota.give_region(offered[0])
        pooling = self._links.pooling()
        await pooling.do(lambda: pooling.exports.end(name, time.monotonic_ns()))

    # --- all of it

    def _check_host(self) -> None:
        if not self._permissions.peer.local:
            raise ConfigError("links need a node on the program's own host: run `spindle daemon` there")

    def _check_room(self, size: int, what: str) -> None:
        used = self._reserved + sum(one.bytes for one in self._open.values()) + sum(
            size for size, _ in self._regions.values())
        if used + size > MEMORY_MAX:
            raise ConfigError(f"{what}: {MEMORY_MAX >> 20} MiB for all links and regions of one program are the limit, "
                              f"and {used} bytes are in use: close or end some first")

    async def end(self) -> None:
        """The application has gone. Idempotent."""
        self.ended = True
        for number in list(self._open):
            with contextlib.suppress(SpindleError):  # the node ends as well
                await self.close(number)
        for name in list(self._regions):
            with contextlib.suppress(SpindleError):
                await self.end_region(name)
