"""The pool of a node, and the thread that drives it.

Why a thread of its own, beside the predicate thread: what programs ask of other nodes' memory must not wait for a
topic's messages, nor the messages for it; and regions belong to one thread.

Rules: regions, pool, finder and exports are touched on the thread alone. Others hand it work by `do()`; what it has to
say to the event loop it says by call_soon_threadsafe.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from spindle.errors import ConnectionEnded, NodeStopped
from spindle.pool.beside import attach_as_sealed, open_file_of
from spindle.pool.lives import OwnConnection, node_of
from spindle_core.fabric.regions.regions import GRANT, Regions
from spindle_core.fabric.regions.shm import ShmPart
from spindle_core.fabric.regions.tcp import TcpPart
from spindle_core.links.dedication import LOOK_NS, Dedication
from spindle_core.links.driver import Driver
from spindle_core.links.exports import Exports
from spindle_core.links.finder import FULL, UNMAPPED, Finder
from spindle_core.links.pool import Pool
from spindle_core.memory import Mapping
from spindle_core.slices import be_prompt

if TYPE_CHECKING:
    from spindle_core.fabric.regions.verbs import VerbsPart
    from spindle_core.links.directory import Entry
    from spindle_core.links.link import Link

T = TypeVar("T")

MAPPED_MAX = 256  # regions of other nodes of this host that stay mapped though no link may use them
MAPPED_S = 5.0  # since somebody last opened one: as long as it is mapped here its owner's end frees no memory
AGAIN_S = 0.001  # when something could not be done at once
RIGHT_WRITE = 2  # rights of regions.pxd
RIGHT_CHANGE = 2 | 4  # to write, to change words
LOOK_S = 1.0  # at the latest
ANSWERED_SPIN_S = 100e-6  # who has found a region has a request for it next
LOG = logging.getLogger("spindle.links")


class Pooling:
    """The pool of one node. `start()` once, `stop()` from the loop.

    on_lost(whose, why)  a connection has ended by itself; on the loop. `whose` as connected() was told
    on_lacking(life, key)  memory of a node of this host is wanted that is not mapped here; on the loop
    on_wanted(life)  a link to that node talks so much that it should have a connection of its own; on the loop
    on_given_up(whose)  such a connection is over; on the loop
    on_settle(lives, then)  has `then` done on the thread when these nodes have nothing on the way any more of what they
        had posted to this one; on the loop
    make_rdma(regions)  the way over this node's RDMA device; None: it has none
    """

    def __init__(self, life: int, loop: asyncio.AbstractEventLoop, spin_s: float,
                 on_lost: Callable[[object, str], None], on_lacking: Callable[[int, int], None],
                 on_wanted: Callable[[int], None], on_given_up: Callable[[OwnConnection], None],
                 on_settle: Callable[[list[int], Callable[[], None]], None],
                 make_rdma: Callable[[Regions], VerbsPart] | None = None) -> None:
        self.life = life
        self._loop, self._spin_s = loop, spin_s
        self._on_lost, self._on_lacking = on_lost, on_lacking
        self._on_wanted, self._on_given_up, self._on_settle = on_wanted, on_given_up, on_settle
        self._work: deque[Callable[[], None]] = deque()
        self._mapped: OrderedDict[tuple[int, int], tuple[Mapping, float]] = OrderedDict()  # and when it was asked for
        self._connected: set[int] = set()
        self._guards: dict[int, Callable[[str, bool], int]] = {}  # by link: what it may find
        self._awaiting: dict[tuple[int, int], list[Callable[[bool], None]]] = {}  # by life and key of memory
        self._here: set[int] = set()  # lives of nodes of this host
        self._pids: dict[int, int] = {}  # of those whose memory this node may open itself, as far as is known
        self._lives: dict[int, int] = {}  # of connections by their number
        self._numbers: dict[object, list[int]] = {}  # of connections by who has them: numbers are used again
        self._prepared: dict[object, int] = {}  # ends of connections over RDMA, by who will have them
        self._futures: set[asyncio.Future[Any]] = set()
        self._stopping = self._closed = False
        try:
            self._make_parts(make_rdma)
        except OSError as error:
            if make_rdma is None:
                raise
            LOG.warning("links go over TCP alone: %s", error)
            self.regions.close()
            self._make_parts(None)
        self._thread = threading.Thread(target=self._run, name="spindle links", daemon=True)

    def _make_parts(self, make_rdma: Callable[[Regions], VerbsPart] | None) -> None:
        """Raises OSError, also where the device takes not even the memory that the pool itself needs there."""
        self.regions = Regions()
        self.shm = ShmPart(self.regions)
        self.tcp = TcpPart(self.regions)
        self.rdma: VerbsPart | None = None
        if make_rdma is not None:
            self.rdma = make_rdma(self.regions)
            # Programs of this host change words by the processor: the device's atomics are not atomic against that.
            self.regions.keep_atomics_from(self.rdma)
        self.pool = Pool(self.regions, self._mapping_for_peer)
        self.dedication = Dedication(self.pool)
        self._more: dict[OwnConnection, int] = {}  # connections of single links, of this node and of others
        self._look_at_use_ns = 0
        self._settling: list[tuple[int, dict[int, int], Callable[[], None]]] = []  # life, requests by connection, then
        self.exports = Exports(self.pool, self._settle_all)
        self.exports.directory.memory.seal_writes()
        self._grant = self.regions.whole_grant(self.exports.key)
        self._memory_device = os.fstat(self.shm.keys.fd).st_dev  # all shared memory of a host is of one
        self.finder = Finder(self.pool, self.life, self.mapping_of)
        self.driver = Driver(self.pool, self.shm.bell, self.finder.asker)

    @property
    def grant(self) -> bytes:
        """Of the directory, for other nodes."""
        return self._grant

    def start(self) -> None:
        """Raises OSError where no memory or descriptor is left."""
        self._connect_to_itself()
        self._thread.start()

    def _connect_to_itself(self) -> None:
        """Programs of this node reach its regions and ports like those of others."""
        post = ShmPart.make_post()
        peer = self.shm.connect(post, self.shm.keys, post, self.shm.bell, os.dup(self.shm.bell_fd))
        self._add(self.life, peer, self.exports.directory.memory)

    def _add(self, life: int, peer: int, directory: Mapping | None, grant: bytes | None = None) -> None:
        self.pool.add_connection(life, peer)
        self._lives[peer] = life
        self._connected.add(life)
        if directory is not None:
            self._here.add(life)
        self.finder.add_node(life, self._grant if grant is None else grant, directory)

    # --- from the loop

    async def do(self, work: Callable[[], T]) -> T:
        """Runs this on the thread; returns or raises what it does. NodeStopped once the node ends."""
        found: T = await self._answer_to(lambda answer: answer(work()))
        return found

    async def ask(self, begin: Callable[[Callable[[Any, str], None]], None]) -> tuple[Any, str]:
        """Runs `begin(answer)` on the thread; returns what `answer` is called with, then or later."""
        found: tuple[Any, str] = await self._answer_to(lambda answer: begin(lambda found, why: answer((found, why))))
        return found

    async def _answer_to(self, begin: Callable[[Callable[[Any], None]], None]) -> Any:
        future = self._future()
        self._hand_over(partial(self._begin, begin, future))
        try:
            return await future
        finally:
            del future  # its error refers to this frame: what that is about goes now, not with the garbage

    def _begin(self, begin: Callable[[Callable[[Any], None]], None], future: asyncio.Future[Any]) -> None:
        """On the thread."""
        try:
            begin(partial(self._tell, future))
        except (ValueError, OSError) as error:  # what was wrong with a request: whence is of no interest, see above
            self._tell(future, None, error.with_traceback(None))
        except BaseException as error:
            self._tell(future, None, error)

    def _future(self) -> asyncio.Future[Any]:
        """One that somebody waits for, and that stop() ends. Raises NodeStopped."""
        if self._stopping:
            raise NodeStopped("the node stops: it opens no links any more")
        future: asyncio.Future[Any] = self._loop.create_future()
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)
        return future

    def _hand_over(self, work: Callable[[], None]) -> None:
        self._work.append(work)
        self.driver.call()

    def _tell(self, future: asyncio.Future[Any], result: Any, error: BaseException | None = None) -> None:
        def tell() -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(tell)

    def stop(self) -> None:
        """Ends all connections and the thread. Idempotent; blocks for a moment."""
        if self._closed:
            return
        self._stopping = self._closed = True
        self.driver.call()
        self._end_futures()
        if self._thread.is_alive():
            self._thread.join()
        self.finder.end()
        self.regions.close()
        self.driver.close()

    def _end_futures(self) -> None:
        for future in list(self._futures):
            if not future.done():
                future.set_exception(NodeStopped("the node stops, and its links with it"))

    # --- on the thread

    def connected(self, whose: object, life: int, peer: int, grant: bytes, directory: Mapping | None, pid: int = 0
                  ) -> None:
        """A connection to a node is there; `grant` and `directory` as it has told them, `pid` its process if that is
        known here. An earlier one to the same life of it ends. If `whose` has one over RDMA, that is what links share,
        and `peer` for atomics."""
        for known in [known for known, numbers in self._numbers.items() if self._lives[numbers[0]] == life]:
            self.disconnect(known)
        rdma = self._prepared.pop(whose, None)
        if rdma is None:
            self._numbers[whose] = [peer]
            self._add(life, peer, directory, grant)
            if pid:
                self._pids[life] = pid
            return
        self._numbers[whose] = [rdma, peer]
        self.pool.add_connection(life, peer, atomics=True)
        self._add(life, rdma, directory, grant)

    def prepare_rdma(self, whose: object, theirs: bytes) -> bytes:
        """Makes this node's end of a connection over RDMA, connected with the other one's if its address is known.
        Returns its own address; empty: this node has no RDMA. OSError, ValueError."""
        if self.rdma is None:
            return b""
        peer, address = self.rdma.prepare()
        self._prepared[whose] = peer
        if theirs:
            self.connect_rdma(whose, theirs)
        return address

    def connect_rdma(self, whose: object, theirs: bytes) -> None:
        """Connects the end that was prepared with the other one's. OSError, ValueError."""
        assert self.rdma is not None
        self.rdma.connect(self._prepared[whose], theirs)

    def drop_rdma(self, whose: object) -> None:
        """The end that was prepared is not needed. Idempotent."""
        peer = self._prepared.pop(whose, None)
        if peer is not None:
            self.regions.forget_peer(peer)

    def add_more(self, whose: OwnConnection, fd: int = -1) -> bool:
        """A connection for a single link is there: over RDMA, as prepared, or by this data connection, which is taken
        over. False where nobody wants it any more. ConnectionEnded where its node is not connected; OSError."""
        mine, life, _ = whose
        try:
            if life not in self._connected or whose in self._more:
                raise ConnectionEnded(f"node {node_of(life)} has gone")
            if fd < 0:
                peer = self._prepared.pop(whose)
            else:
                peer, fd = self.tcp.connect(fd), -1
        finally:
            if fd >= 0:
                os.close(fd)
        if mine and not self.dedication.made(life, peer):
            self.regions.forget_peer(peer)
            return False
        if not mine:
            self.pool.add_connection(life, peer)
        self._more[whose] = peer
        self._lives[peer] = life
        return True

    def drop_more(self, whose: OwnConnection) -> None:
        """It is over. Idempotent."""
        self.drop_rdma(whose)
        peer = self._more.pop(whose, None)
        if peer is not None:
            self.dedication.lost(peer)
            del self._lives[peer]
            self.pool.remove_connection(peer)

    def _look_at_use(self, now_ns: int) -> None:
        """Links that talk much get a connection of their own, others give it up."""
        if now_ns < self._look_at_use_ns:
            return
        self._look_at_use_ns = now_ns + LOOK_NS
        links = [link for link in self.pool.open_links() if link.node is not None and link.node not in self._here]
        for wish in self.dedication.advance(now_ns, links):
            if wish.make:
                self._say(self._on_wanted, wish.make)
            for whose in [whose for whose, peer in self._more.items() if peer == wish.give_up]:
                self.drop_more(whose)
                self._say(self._on_given_up, whose)

    def _settle_all(self, then: Callable[[], None]) -> None:
        """Does this once nobody has anything on the way over RDMA that was posted before."""
        lives = [self._lives[numbers[0]] for numbers in self._numbers.values() if len(numbers) > 1]
        if lives:
            self._say(self._on_settle, lives, then)
        else:
            then()

    def settle(self, life: int, then: Callable[[], None]) -> None:
        """Does this once all has completed that was posted to that node until now."""
        posted = {peer: self.regions.on_the_way(peer)[0] for peer, of in self._lives.items() if of == life}
        self._settling.append((life, posted, then))
        self._look_what_settled()

    def _look_what_settled(self) -> None:
        for one in list(self._settling):
            life, posted, then = one
            if all(self._lives.get(peer) != life or self.regions.on_the_way(peer)[1] >= until
                   for peer, until in posted.items()):
                self._settling.remove(one)
                then()

    def disconnect(self, whose: object) -> None:
        """That connection is over. Idempotent."""
        self.drop_rdma(whose)
        numbers = self._numbers.pop(whose, None)
        if numbers is None:
            return
        life = self._lives.pop(numbers[0])
        for one in [one for one in self._more if one[1] == life]:
            self.drop_more(one)
        self.dedication.not_made(life)
        for peer in numbers:
            self.pool.remove_connection(peer)
        self.finder.remove_node(life)
        self._here.discard(life)
        self._pids.pop(life, None)
        self._connected.discard(life)
        for place in [place for place in self._awaiting if place[0] == life]:
            self.not_mapped(*place)
        for place in [place for place in self._mapped if place[0] == life]:
            del self._mapped[place]

    def guard(self, link: Link, may: Callable[[str, bool], int]) -> None:
        """Asks `may(name, to be changed, too)` before a region is opened for this link, on the thread: an errno where
        it may not, else 0."""
        self._guards[link.id] = may

    def forget(self, link: Link) -> None:
        """Its user has gone."""
        self._guards.pop(link.id, None)
        self.finder.forget(link)
        self.pool.close_link(link)

    def mapped(self, life: int, key: int, memory: Mapping) -> None:
        """A region of a node of this host is mapped."""
        self._mapped[life, key] = memory, time.monotonic()
        for go_on in self._awaiting.pop((life, key), ()):
            go_on(True)
        while len(self._mapped) > MAPPED_MAX:
            self._mapped.popitem(last=False)

    def not_mapped(self, life: int, key: int) -> None:
        """It can't be."""
        for go_on in self._awaiting.pop((life, key), ()):
            go_on(False)

    def _unmap_unused(self) -> None:
        until_s = time.monotonic() - MAPPED_S
        while self._mapped:
            place = next(iter(self._mapped))
            if self._mapped[place][1] > until_s:
                return
            del self._mapped[place]

    def mapping_of(self, life: int, key: int) -> Mapping | None:
        """A region of a node of this host, as it is mapped here, or can be at once; None while it isn't."""
        if life == self.life:
            return self.regions.memory_of(key)
        memory, _ = self._mapped.pop((life, key), (None, 0.0))
        if memory is not None:
            self._mapped[life, key] = memory, time.monotonic()
        elif (memory := self._open_beside(life, key)) is not None:
            self.mapped(life, key, memory)
        return memory

    def _open_beside(self, life: int, key: int) -> Mapping | None:
        """The same without asking its owner, where the kernel lets this node do that."""
        pid = self._pids.get(life)
        if pid is None:
            return None
        peer = self.pool.connections(life)[0]
        at = self.shm.memory_at(peer, key)
        if at is None or at[0] < 0:
            return None
        try:
            opened = open_file_of(pid, at[0], at[1], self._memory_device)
        except PermissionError:
            del self._pids[life]  # it will not be allowed the next time
            return None
        except OSError:
            return None  # what is wrong its owner's answer tells
        try:
            memory = attach_as_sealed(opened)
        except (OSError, ValueError):
            return None
        return memory if self.shm.memory_at(peer, key) == at else None  # if not, it was of another key

    def _mapping_for_peer(self, peer: int, key: int) -> Mapping | None:
        life = self._lives.get(peer, 0)
        memory = self.mapping_of(life, key)
        if memory is None and life and life != self.life:
            self._say(self._on_lacking, life, key)
        return memory

    # --- what users ask for

    def _answer(self, link: Link, now_ns: int) -> None:
        """A user wants a region found, or forgotten."""
        what, value, change = link.wish
        if what == "forget":
            try:
                self.finder.close(link, value)
            except ValueError:
                link.answer("wrong", errno.ENOENT)
            else:
                link.answer("done")
            return
        try:
            name = value.decode()
            guard = self._guards.get(link.id)
            if guard is not None and (wrong := guard(name, change)):
                link.answer("wrong", wrong)
                return
            self.finder.look_up(link.node, name, now_ns, partial(self._found, link, name, change))
        except (UnicodeDecodeError, ValueError):
            link.answer("wrong", errno.EINVAL)

    def _found(self, link: Link, name: str, change: bool, entry: Entry | None, why: str) -> None:
        life = link.node
        if entry is None:
            link.answer("nobody" if life in self._connected else "cut")
            return
        key, size, rights, _, _ = GRANT.unpack(entry.grant)
        if entry.writer != self.life:
            rights &= ~RIGHT_WRITE
        if change and not rights & RIGHT_CHANGE:
            link.answer("refused")
            return
        if not change:
            rights &= ~RIGHT_CHANGE
        if life in self._here and self.mapping_of(life, key) is None:
            waiting = self._awaiting.setdefault((life, key), [])
            waiting.append(partial(self._open, link, name, change, size, rights))
            if len(waiting) == 1:
                self._say(self._on_lacking, life, key)
            return
        self._open(link, name, change, size, rights, True)

    def _open(self, link: Link, name: str, change: bool, size: int, rights: int, mapped: bool) -> None:
        if not mapped:
            link.answer("cut")
            return

        def opened(handle: int, _why: str) -> None:
            if handle >= 0:
                link.answer("done", handle, size, rights)
            elif handle == UNMAPPED:  # not any more: others were mapped meanwhile
                self.finder.look_up(link.node, name, time.monotonic_ns(), partial(self._found, link, name, change))
            elif handle == FULL:
                link.answer("wrong", errno.ENOSPC)
            else:  # it was looked up once more, and has ended meanwhile; or its node has
                link.answer("nobody" if link.node in self._connected else "cut")

        self.finder.open(link, name, time.monotonic_ns(), opened, change)

    def _say(self, callback: Callable[..., None], *arguments: Any) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(callback, *arguments)

    def _run(self) -> None:
        be_prompt(realtime=0, nice=0)
        try:
            while not self._stopping:
                while self._work:
                    self._work.popleft()()
                now_ns = time.monotonic_ns()
                self.exports.advance(now_ns)
                self.finder.advance(now_ns)
                spin_s = self._spin_s
                if asked := self.pool.asked():
                    spin_s = max(spin_s, ANSWERED_SPIN_S)
                    for link in asked:
                        self._answer(link, now_ns)
                    self.finder.advance(now_ns)  # sends their lookups
                self._look_for_failures()
                self._look_at_use(now_ns)
                self._look_what_settled()
                self._unmap_unused()
                if not self._work and not self._stopping:
                    self.driver.drive(self._pause_s(now_ns), spin_s)
        except Exception:
            LOG.exception("the thread of links has ended by a defect; links of this node are over")
            self._stopping = True
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._end_futures)

    def _pause_s(self, now_ns: int) -> float:
        if self.finder.waits or self.pool.waits or self._settling:
            return AGAIN_S
        look_s = LOOK_NS / 1e9 if self.dedication.is_busy else LOOK_S
        return min(look_s, max(AGAIN_S, (self.exports.next_ns - now_ns) / 1e9))

    def _look_for_failures(self) -> None:
        if not self.pool.has_failed:
            return
        failures = self.regions.failures()
        for one in [one for one, peer in self._more.items() if peer in failures]:
            self.drop_more(one)
            self._say(self._on_given_up, one)
        for whose, numbers in list(self._numbers.items()):
            failed = [failures[peer] for peer in numbers if peer in failures]
            if failed:
                self.disconnect(whose)
                self._say(self._on_lost, whose, failed[0])
