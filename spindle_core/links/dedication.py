"""Who gets a connection of its own: links that talk much leave the one that all share (KRCore, sections 4.2 and 4.3:
background creation of connections for who communicates frequently, the least recently used reclaimed).

Why: on the shared connection a request waits behind those of everybody else, large ones too; and a connection costs
memory and its making, so there are few. A link notices nothing of all this but its speed, since it moves with its order
kept.

Sans-IO: advance() looks at what links have done since the last look, and says what to make and what to give up. Making
a connection takes its time somewhere else; `made` or `not_made` says how that went.
"""

from __future__ import annotations

from dataclasses import dataclass

from spindle_core.links.link import Link
from spindle_core.links.pool import Pool

LOOK_NS = 100_000_000  # between two looks
KEEPS = 0.5  # of a link's use each look, when the new one is added: what was long ago counts little
REQUEST_BYTES = 4096  # what a request counts for, beside its bytes
MUCH = 8 << 20  # bytes in a look: more gives a link a connection of its own
UNUSED = 1  # a link that had MUCH has less after 2 s and a half without a request, and gives its connection up
TIMES_MORE = 2  # so many times more than the least used one, to take its place


@dataclass(frozen=True)
class Wish:
    """`make`: a connection to this node is wanted (0: none); `give_up`: that connection has no links any more and can
    be closed (-1: none)."""

    make: int = 0
    give_up: int = -1


class Dedication:
    """Of the links of one pool. `most`: connections besides the shared ones at a time; 0: none are made."""

    def __init__(self, pool: Pool, most: int = 8) -> None:
        if not 0 <= most <= 64:
            raise ValueError(f"{most} dedicated connections: must be between 0 and 64")
        self._pool = pool
        self._most = most
        self._use: dict[int, float] = {}  # of links, by id
        self._owner: dict[int, Link] = {}  # connection: the link that it was made for
        self._wanted: dict[int, Link] = {}  # node: for whom a connection is being made
        self._leaving: set[int] = set()
        self._next_ns = 0
        self._much = False

    @property
    def connections(self) -> dict[int, int]:
        """{connection: id of its link}, of all that are in use."""
        return {peer: link.id for peer, link in self._owner.items() if peer not in self._leaving}

    @property
    def is_busy(self) -> bool:
        """Somebody has one, or may soon want one: advance() should be called after LOOK_NS."""
        return bool(self._owner) or self._much

    def made(self, node: int, peer: int) -> bool:
        """The connection to a node is there; whether anybody still wants it. If not, it is the caller's to close."""
        link = self._wanted.pop(node, None)
        if link is None or not link.is_open:
            return False
        self._pool.add_connection(node, peer)
        self._owner[peer] = link
        self._pool.move(link, peer)
        return True

    def not_made(self, node: int) -> None:
        """There is no connection to be had now: the link stays where it is, and may ask again."""
        self._wanted.pop(node, None)

    def lost(self, peer: int) -> None:
        """A connection has ended by itself, and its link with it."""
        self._owner.pop(peer, None)
        self._leaving.discard(peer)

    def _look(self, links: list[Link]) -> None:
        use = {}
        for link in links:
            requests, size = link.use
            use[link.id] = KEEPS * self._use.get(link.id, 0.0) + requests * REQUEST_BYTES + size
        self._use = use
        self._much = any(one >= MUCH / 2 for one in use.values())

    def _retire(self, peer: int) -> None:
        """Its link goes back to the shared connection."""
        self._leaving.add(peer)
        link = self._owner[peer]
        if link.is_open and link.peer == peer:
            self._pool.move(link, self._pool.connections(link.node)[0])

    def _given_up(self) -> list[Wish]:
        """Connections that nobody is on any more."""
        found = []
        for peer in sorted(self._leaving):
            link = self._owner[peer]
            if link.is_open and link.peer == peer:
                self._retire(peer)  # it could not go before
            else:
                self._leaving.discard(peer)
                del self._owner[peer]
                found.append(Wish(give_up=peer))
        return found

    def advance(self, now_ns: int, links: list[Link]) -> list[Wish]:
        """What to do now. `links`: all that are open. A connection to be given up is to be taken from the pool by
        remove_connection(), and closed."""
        wishes = self._given_up()
        if now_ns < self._next_ns:
            return wishes
        self._next_ns = now_ns + LOOK_NS
        self._look(links)
        for peer, link in self._owner.items():
            if peer not in self._leaving and (not link.is_open or self._use.get(link.id, 0.0) < UNUSED):
                self._retire(peer)
        own = {link.id for link in self._owner.values()} | {link.id for link in self._wanted.values()}
        eager = sorted((link for link in links if link.is_open and link.peer is not None and link.id not in own
                        and self._use[link.id] >= MUCH), key=lambda link: -self._use[link.id])
        for link in eager:
            if link.node in self._wanted:
                continue  # one at a time for each node
            in_use = [peer for peer in self._owner if peer not in self._leaving]
            if len(self._owner) + len(self._wanted) < self._most:
                self._wanted[link.node] = link
                wishes.append(Wish(make=link.node))
            elif in_use and not self._leaving:
                least = min(in_use, key=lambda peer: self._use.get(self._owner[peer].id, 0.0))
                if self._use[link.id] >= TIMES_MORE * max(self._use.get(self._owner[least].id, 0.0), 1.0):
                    self._retire(least)  # its place is free at a later look
        return wishes
