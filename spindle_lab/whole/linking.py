"""Programs that use links: regions that they offer and reach, ports at which they listen, messages and calls.

Each listens on a thread of its own, as the documents have it, so who calls while it is called is answered.
"""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, Any

from spindle.errors import ConfigError, ConnectionEnded, LinkError, SpindleError
from spindle.links import Links
from spindle.links.port import StraightMessage
from spindle_lab.whole.memories import REGION_BYTES, TEXT, WORD, Life, Listener, Memories, answer_to
from spindle_lab.whole.programs import Program
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle.links import Link, OfferedRegion, Port, Region
    from spindle_lab.whole.world import World

LINKS_MAX = 4
OFFERED_MAX = 3
PATIENCE_S = (0.02, 0.3, 4.0)
LONG_S = 4.0
NAMES = 3  # of regions of each kind, at a node
PORTS = 3
NOT_DONE = ("ended", "after", "nobody", "refused", "wrong", "range")  # what was asked for has not happened


class Opened:
    """A link of a program. `sent`: messages and calls so far."""

    def __init__(self, link: Link, serial: int, patience_s: float) -> None:
        self.link, self.serial, self.patience_s = link, serial, patience_s
        self.sent = 0
        self.regions: dict[tuple[str, bool], Region] = {}

    @property
    def node_id(self) -> int:
        """Where it leads to."""
        return self.link.node_id


class Linking(Program):
    """See the module. `lacks`: what it has still to reach in the end."""

    def __init__(self, world: World, number: int, host: str) -> None:
        assert world.memories is not None
        self.memories: Memories = world.memories
        self.links: Links | None = None
        self.opened: list[Opened] = []
        self.offered: list[tuple[Life, OfferedRegion]] = []
        self.bound: Listener | None = None
        self.lacks = "what there is"
        self.reached: list[Life | Listener] = []  # what there was when it last looked
        self.node_id = 0
        super().__init__(world, number, host, "k")

    # --- its session

    def _attached(self) -> None:
        self.doing = "attaching"
        self.session = self._attach()
        self.node_id = self.session.node_id
        self.links = Links(self.session)
        self._act()

    def _forget(self) -> None:
        for life, _ in self.offered:
            life.open = False
        if self.bound is not None:
            self.bound.open = False
        self.offered, self.bound, self.opened, self.links = [], None, [], None
        super()._forget()

    def died(self) -> None:
        """Its process was killed."""
        super().died()
        for life, _ in self.offered:
            life.open = False
        if self.bound is not None:
            self.bound.open = False

    def _act(self) -> None:
        """One thing after the other until its session ends, or the run is over."""
        acts = (self._open_link,) * 3 + (self._offer,) * 2 + (self._listen,) * 2 + (self._add,) * 8 + (
            self._read,) * 8 + (self._write,) * 6 + (self._send,) * 6 + (self._call,) * 4 + (
            self._go_wrong, self._close_link, self._end_region, self._close_port, self._rest, self._rest)
        while not self.world.finishing and self._goes_on():
            self._try(self.rng.choice(acts))
            self._slow_down()
        while not self.world.over and self._goes_on():
            self.doing = "reaching all that there is"
            self._reach_all()
            if self.world.settled and self.sees:
                self.doing = "looking at the group"
                self.sees = self._difference()
            time.sleep(0.03 if self.world.settled else 0.01)
        if self._goes_on():
            self._end()

    def _try(self, act: Any) -> None:
        """What goes wrong with one link is no reason to end the session."""
        try:
            act()
        except (LinkError, ConnectionEnded, TimeoutError, ConfigError) as error:
            if self.session is None or self.session.gone:
                raise
            self._failed(error)

    def _may_be_told(self, kind: str, text: str) -> bool:
        if kind in ("LinkError", "TimeoutError") or (
                kind == "ConnectionEnded" and self.session is not None and not self.session.gone):
            return self.memories.excuse
        return super()._may_be_told(kind, text)

    def _end(self) -> None:
        """What it has offered is as it should be; it ends with its session, or before."""
        for life, region in self.offered:
            self.memories.last(life, WORD.unpack_from(region.view, 8)[0])
        if self.rng.random() < 0.5:
            self.doing = "ending what it has"
            with contextlib.suppress(SpindleError, TimeoutError):
                while self.offered:
                    self._end_region()
                while self.opened:
                    self._close_link()
                self._close_port()

    # --- what it offers

    def _offer(self) -> None:
        if len(self.offered) >= OFFERED_MAX:
            return
        assert self.links is not None
        writer = self.rng.choice((0, self._some_node()))
        name = f"{'table' if writer else 'words'}{self.rng.randrange(NAMES)}"
        if any(one.open and one.process.alive for one in self.memories.lives_of(self.node_id, name)):
            return
        self.doing = f"offering {name!r}"
        life = self.memories.offered(self.node_id, name, writer, self.process)
        try:
            region = self.links.offer(name, REGION_BYTES, writer=writer, atomics=not writer)
        except ConfigError as error:
            life.open = False
            if "already" not in str(error) or len(self.memories.lives_of(self.node_id, name)) == 1:
                raise
            return  # its node has not heard yet that the earlier one has ended
        except BaseException:
            life.open = False
            raise
        life.there = True
        region.view[:8] = WORD.pack(life.serial)
        self.offered.append((life, region))

    def _end_region(self) -> None:
        if self.offered:
            life, region = self.offered.pop(self.rng.randrange(len(self.offered)))
            self.doing = f"ending {life}"
            life.open = False
            region.end()

    def _listen(self) -> None:
        if self.bound is not None:
            return
        assert self.links is not None
        number = self.rng.randrange(1, PORTS + 1)
        if self.memories.at(self.node_id, number) is not None:
            return
        self.doing = f"listening at port {number}"
        try:
            port = self.links.listen(number)
        except ConfigError as error:
            if "bound by another link" not in str(error):  # it has not heard yet that this one is closed
                raise
            return
        self.bound = self.memories.bound(self.node_id, number, self.process)
        self.process.spawn(self._serve, port, self.bound, name=f"port {number}")

    def _serve(self, port: Port, bound: Listener) -> None:
        """Until the port is to be closed, or the node goes."""
        try:
            with port:
                while bound.open:
                    message = port.receive(self.rng.choice((0.0, 0.002, 0.02)))
                    if message is None:
                        self.world.system.pause()
                        continue
                    self.memories.came(bound, message.data, bool(message.call))
                    if isinstance(message, StraightMessage):
                        self.world.met("a message goes straight")
                    if message.call:
                        with contextlib.suppress(LinkError, ConnectionEnded, TimeoutError):
                            port.answer(message, answer_to(message.data))
        except (SpindleError, OSError) as error:
            if bound.open and not self.memories.excuse:
                raise Violation("K5", f"{self.process} listens at {bound}, and is told {error}") from error
        finally:
            bound.open = False

    def _close_port(self) -> None:
        if self.bound is not None:
            self.bound.open = False
            self.bound = None

    # --- what it reaches

    def _some_node(self) -> int:
        node = self.world.node_of(self.session)
        view = None if node is None else node._view
        return self.rng.choice([member.node_id for member in view.members]) if view is not None else self.node_id

    def _open_link(self) -> None:
        if len(self.opened) >= LINKS_MAX:
            return
        assert self.links is not None
        node_id, patience_s = self._some_node(), self.rng.choice(PATIENCE_S)
        self.doing = f"opening a link to node {node_id}"
        link = self.links.open(node_id, timeout_s=patience_s, memory=self.rng.choice((64, 4096)))
        self.opened.append(Opened(link, self.memories.next_serial(), patience_s))

    def _close_link(self) -> None:
        if self.opened:
            self.doing = "closing a link"
            self.opened.pop(self.rng.randrange(len(self.opened))).link.close()

    def _a_region(self, kind: str, change: bool) -> tuple[Opened, str, Region] | None:
        """A region that there is, or was, and a link to it."""
        if not self.opened:
            return None
        opened = self.rng.choice(self.opened)
        lives = [one for one in self.memories.lives if one.node_id == opened.node_id and one.name.startswith(kind)
                 and (not change or one.writer in (0, self.node_id))][-NAMES:]
        if not lives:
            return None
        name = self.rng.choice(lives).name
        region = self._region(opened, name, change)
        return None if region is None else (opened, name, region)

    def _region(self, opened: Opened, name: str, change: bool) -> Region | None:
        region = opened.regions.get((name, change))
        if region is None:
            self.doing = f"looking for {name!r} of node {opened.node_id}"
            there = [one for one in self._lives(opened, name) if one.open and one.there]
            try:
                region = opened.regions[name, change] = opened.link.region(name, change=change)
            except ConnectionEnded:
                if not self.memories.excuse and any(one.open for one in there):
                    raise
                return None
            except TimeoutError:
                if opened.patience_s >= LONG_S and not self.memories.excuse:
                    raise
                return None
            except ConfigError:
                if all(self.memories.may_change(self.node_id, one) for one in self._lives(opened, name)):
                    raise
                return None
        return region

    def _lives(self, opened: Opened, name: str) -> list[Life]:
        return self.memories.lives_of(opened.node_id, name)

    def _gone_wrong(self, opened: Opened, name: str, change: bool, error: Exception) -> None:
        """A request has failed. Raises what nothing explains."""
        opened.regions.pop((name, change), None)
        if isinstance(error, TimeoutError):
            if not self.memories.excuse and opened.patience_s >= LONG_S:
                raise Violation("K5", f"{self.process}: {error} ({self.doing})") from error
        elif isinstance(error, LinkError) and error.status in ("ended", "after") and (
                not all(one.open for one in self._lives(opened, name)) or self.memories.excuse):
            with contextlib.suppress(LinkError, TimeoutError, ConnectionEnded, ConfigError):
                opened.link.region(name, change=change).close()  # what is known of it is of an earlier life
        elif isinstance(error, ConfigError | ConnectionEnded) and not all(
                one.open for one in self._lives(opened, name)):
            pass  # it was looked for anew
        else:
            self._end_link(opened)
            raise error

    def _end_link(self, opened: Opened) -> None:
        if opened in self.opened:
            self.opened.remove(opened)
        with contextlib.suppress(SpindleError, TimeoutError):
            opened.link.close()

    def _add(self) -> None:
        """One more, in a list behind a read that says to which life of the region."""
        found = self._a_region("words", change=True)
        if found is None:
            return
        opened, name, region = found
        link, lives = opened.link, self._lives(opened, name)
        self.doing = f"adding to {name!r} of node {opened.node_id}"
        begun = False
        try:
            cookie = link.begin(region, 0, 16)
            for one in lives:
                one.begun += 1
            begun = True
            link.user.read(region.handle, 0, 8, link.buffer, 0)
            link.user.fetch_add(region.handle, 8, 1, cookie=cookie)
            value = link.carry_out(region)
        except (LinkError, TimeoutError) as error:
            if begun and isinstance(error, LinkError) and error.status in NOT_DONE:
                for one in lives:
                    one.begun -= 1
            self._gone_wrong(opened, name, True, error)
            return
        self.memories.added(lives, WORD.unpack_from(link.view)[0], value)
        self.world.met("a link adds")

    def _read(self) -> None:
        found = self._a_region(self.rng.choice(("words", "table")), change=False)
        if found is not None:
            self._read_from(*found)

    def _read_from(self, opened: Opened, name: str, region: Region) -> bool:
        self.doing = f"reading {name!r} of node {opened.node_id}"
        before = {one.serial: one.done for one in self._lives(opened, name)}
        try:
            data = region.read(0, 16)
        except (LinkError, TimeoutError, ConnectionEnded, ConfigError) as error:
            self._gone_wrong(opened, name, False, error)
            return False
        lives = self._lives(opened, name)
        before.update({one.serial: 0 for one in lives if one.serial not in before})
        self.memories.read(lives, before, *TEXT.unpack(data))
        self.world.met("a link reads")
        pooling = None if (node := self.world.node_of(self.session)) is None else node.links._pooling
        if pooling is not None and any(mine for mine, _, _ in pooling._more):
            self.world.met("a link has a connection of its own")
        return True

    def _write(self) -> None:
        found = self._a_region("table", change=True)
        if found is None:
            return
        opened, name, region = found
        self.doing = f"writing {name!r} of node {opened.node_id}"
        value = self.rng.getrandbits(62) + 1
        for one in self._lives(opened, name):
            one.written.add(value)
        self.memories.writing[value] = opened.node_id, name  # if that life has ended, the next one may get it
        try:
            region.write(8, WORD.pack(value))
            del self.memories.writing[value]
        except (LinkError, TimeoutError, ConnectionEnded, ConfigError) as error:
            self._gone_wrong(opened, name, True, error)

    def _go_wrong(self) -> None:
        """What no rule allows: it is told so, and nothing else happens."""
        found = self._a_region("words", change=True)
        if found is None:
            return
        opened, name, region = found
        link = opened.link
        self.doing = "asking for what no rule allows"
        try:
            cookie = link.begin(region, 0, 8)
            kind = self.rng.randrange(3)
            if kind == 0:
                link.user.fetch_add(region.handle, 8 + self.rng.randrange(1, 8), 1, cookie=cookie)
            elif kind == 1:
                link.user.write(region.handle, 8, 8, link.buffer, cookie=cookie)
            else:
                link.user.fetch_add(63, 8, 1, cookie=cookie)
            link.carry_out(region)
        except LinkError as error:
            if error.status in ("wrong", "range"):
                return
            self._gone_wrong(opened, name, True, error)
        except TimeoutError as error:
            self._gone_wrong(opened, name, True, error)
        else:
            raise Violation("K2", f"{self.process}: a request that no rule allows is carried out")

    def _text(self, opened: Opened) -> bytes:
        opened.sent += 1
        return TEXT.pack(opened.serial, opened.sent)

    def _send(self) -> None:
        if self.opened:
            opened = self.rng.choice(self.opened)
            port = self.rng.randrange(1, PORTS + 1)
            self.doing = f"sending to port {port} of node {opened.node_id}"
            listener = self.memories.at(opened.node_id, port)
            text = self._text(opened)
            try:
                opened.link.send(text, port)
            except (LinkError, TimeoutError) as error:
                self._not_taken(opened, listener, error)
            else:
                self.world.met("a message lies at a port")
                self.memories.sent(listener, opened.serial, opened.sent)

    def _call(self) -> None:
        if self.opened:
            opened = self.rng.choice(self.opened)
            self._call_port(opened, self.rng.randrange(1, PORTS + 1))

    def _call_port(self, opened: Opened, port: int) -> bool:
        self.doing = f"calling port {port} of node {opened.node_id}"
        listener = self.memories.at(opened.node_id, port)
        text = self._text(opened)
        try:
            answer = opened.link.call(port, text)
        except (LinkError, TimeoutError) as error:
            self._not_taken(opened, listener, error)
            return False
        self.memories.answered(opened.serial, opened.sent, answer)
        self.world.met("a call is answered")
        return True

    def _not_taken(self, opened: Opened, listener: Listener | None, error: Exception) -> None:
        status = error.status if isinstance(error, LinkError) else ""
        explained = self.memories.excuse or listener is None or not listener.open or (
            isinstance(error, TimeoutError) and opened.patience_s < LONG_S)
        if status == "cut":
            self._end_link(opened)
        if not explained:
            raise Violation("K5", f"{self.process}: {self.doing}: {error}") from error

    # --- in the end

    def _reach_all(self) -> None:
        """K5: every region and every port that there is can be reached now, from here."""
        there: list[Life | Listener] = [*self.memories.living(), *self.memories.listening()]
        if not self.lacks and there == self.reached:
            return
        lacks, self.reached = "", there
        for life in self.memories.living():
            lacks = lacks or self._lacks(life.node_id, lambda opened, life=life: self._reads(opened, life), str(life))
        for one in self.memories.listening():
            lacks = lacks or self._lacks(
                one.node_id, lambda opened, one=one: self._call_port(opened, one.port), str(one))
        self.lacks = lacks

    def _reads(self, opened: Opened, life: Life) -> bool:
        region = self._region(opened, life.name, False)
        return region is not None and self._read_from(opened, life.name, region)

    def _lacks(self, node_id: int, reach: Any, what: str) -> str:
        opened = next((one for one in self.opened if one.node_id == node_id and one.patience_s >= LONG_S), None)
        try:
            if opened is None:
                assert self.links is not None
                opened = Opened(self.links.open(node_id, timeout_s=LONG_S), self.memories.next_serial(), LONG_S)
                self.opened.append(opened)
            return "" if reach(opened) else what
        except (LinkError, ConnectionEnded, TimeoutError, ConfigError) as error:
            if self.session is None or self.session.gone:
                raise
            if opened is not None and isinstance(error, LinkError):
                self._end_link(opened)
            return f"{what}: {error}"
