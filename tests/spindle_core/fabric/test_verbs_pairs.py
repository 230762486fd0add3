"""A node keeps its connections over RDMA through view changes: none is made or destroyed for those that stay, and the
memory of a view ends with it, but not before the last write of each peer has landed.

All of it needs an RDMA device: `make rdma-test ARGS=fabric` runs it on a guest that has one in software. What is made
and destroyed is what the kernel says.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.fabric.verbs_address import Address
from tests.spindle_core.fabric import test_verbs
from tests.spindle_core.fabric.conformance import BOUND_S
from tests.spindle_core.fabric.test_verbs import HASTY, LANE, TIGHT
from tests.spindle_core.fabric.verbs_peers import (
    VerbsPeer,
    connect,
    failure,
    needs_verbs,
    pump,
)
from tests.support import wait_until

pytestmark = needs_verbs

TIMES = {name: HASTY[name] for name in ("ack_timeout", "retries")}


def in_kernel(what: str) -> int:
    """How many queue pairs ("qp") or registrations ("mr") the device has."""
    said = subprocess.run(["rdma", "-j", "resource", "show"], capture_output=True, text=True, check=True).stdout
    return sum(int(one[what]) for one in json.loads(said))


def numbers_in_kernel() -> set[int]:
    """Of all queue pairs."""
    said = subprocess.run(["rdma", "-j", "resource", "show", "qp"], capture_output=True, text=True, check=True).stdout
    return {one["lqpn"] for one in json.loads(said) if one.get("type") == "RC"}


class Node:
    """What a node has for ever, and its epochs, as the engine treats them: the last one, and one before it."""

    def __init__(self, name: str, **more: Any) -> None:
        from spindle_core.fabric.verbs_pairs import VerbsPairs

        self.name = name
        self.pairs = VerbsPairs(**more)
        self.peer: VerbsPeer | None = None
        self.past: VerbsPeer | None = None

    def prepare(self, view: list[Node], epoch: int, posts: int = 0, **more: Any) -> VerbsPeer:
        peer = VerbsPeer(view.index(self), len(view), pairs=self.pairs, names=[node.name for node in view],
                         epoch=epoch, **{**TIMES, **more})
        if posts:
            peer.fabric.reserve(posts, 8)
        return peer

    def install(self, peer: VerbsPeer) -> None:
        """What was left of the epoch before the last one goes, whatever has become of it."""
        if self.past is not None:
            self.past.fabric.close()
        peer.fabric.begin()
        if self.peer is not None:
            self.peer.fabric.goodbye(peer.fabric)
        self.past, self.peer = self.peer, peer

    def tidy(self) -> bool:
        if self.past is not None and self.past.fabric.drained:
            self.past.fabric.close()
            self.past = None
        return self.past is None and self.pairs.sweep()

    def write(self, rank: int, place: int, value: int, flags: int = 0) -> None:
        assert self.peer is not None
        self.peer.row.view()[place : place + 8] = value.to_bytes(8, "little")
        self.peer.fabric.post_writes([(rank, place, 8)], flags=flags)

    def read(self, rank: int, place: int) -> int:
        assert self.peer is not None
        return look(self.peer, rank, place)

    def end(self) -> None:
        for peer in (self.past, self.peer):
            if peer is not None:
                peer.fabric.close()
        self.pairs.close()


def look(peer: VerbsPeer, rank: int, place: int) -> int:
    return int.from_bytes(peer.peer_row(rank)[place : place + 8], "little")


def change(view: list[Node], epoch: int, **more: Any) -> list[VerbsPeer]:
    peers = connect([node.prepare(view, epoch, **more) for node in view])
    for node, peer in zip(view, peers, strict=True):
        node.install(peer)
    return peers


def settle(nodes: Iterable[Node]) -> None:
    """Until nothing moves, and nothing is kept of earlier views."""
    nodes = list(nodes)
    wait_until(lambda: ([node.peer.fabric.progress() for node in nodes if node.peer],
                        all([node.tidy() for node in nodes]))[1], BOUND_S)
    pump([node.peer for node in nodes if node.peer])


def exchange(view: list[Node], place: int, value: int) -> None:
    """All write to all, and it arrives."""
    for node in view:
        for rank in range(len(view)):
            if view[rank] is not node:
                node.write(rank, place, value)
    pump([node.peer for node in view])
    assert all(node.read(rank, place) == value for node in view for rank in range(len(view)) if view[rank] is not node)
    assert all(node.peer.fabric.failures() == {} for node in view)


@pytest.fixture
def make(request: pytest.FixtureRequest) -> Iterable[Callable[..., list[Node]]]:
    nodes: list[Node] = []

    def some(names: str, **more: Any) -> list[Node]:
        made = [Node(name, **more) for name in names]
        nodes.extend(made)
        return made

    yield some
    for node in nodes:
        node.end()


class TestKeptPairs(test_verbs.TestVerbs):
    """The fabric's promise in the second view of the same connections, with the first one's last posts before it."""

    @staticmethod
    def make_peers(n: int) -> list[Any]:  # type: ignore[override]
        nodes = [Node(str(rank)) for rank in range(n)]
        change(nodes, 1)
        for node in nodes:
            for rank in range(n):
                if rank != nodes.index(node):
                    node.write(rank, 0, 77)
        return change(nodes, 2)


def test_a_view_change_makes_no_queue_pair(make: Callable[..., list[Node]]) -> None:
    """Six views: the kernel has the same queue pairs after each, and no more registrations than in the first."""
    view = make("abc")
    change(view, 1)
    settle(view)
    numbers, registered = numbers_in_kernel(), in_kernel("mr")
    for epoch in range(2, 7):
        exchange(view, 64, epoch)
        peers = change(view, epoch)
        assert all(peer.fabric.statistics()["queue_pairs"] == 0 for peer in peers)
        exchange(view, 64, 100 + epoch)
        settle(view)
        assert numbers_in_kernel() == numbers and in_kernel("mr") == registered
    assert [node.pairs.made for node in view] == [4, 4, 4]


def test_what_is_posted_last_lands_in_its_own_view(make: Callable[..., list[Node]]) -> None:
    """One node has gone on and given its past back, while the other one's last posts still wait in the old view: they
    land in the old memory, in order, and break nothing. Only then does its key end."""
    a, b = make("ab", **TIGHT)
    _, old_b = change([a, b], 1)
    registered = in_kernel("mr")
    new_a, new_b = connect([node.prepare([a, b], 2) for node in (a, b)])
    b.install(new_b)
    for k in range(200):
        a.write(1, 4096 + 16 * k, k + 1)         # the device takes eight at a time
    a.write(1, 64, 7, flags=LANE | 4)
    b.peer.fabric.progress()
    assert not b.tidy() and old_b.fabric.drained and b.past is None
    assert in_kernel("mr") > registered
    a.install(new_a)
    a.write(1, 4096, 1000)                       # of the new view
    assert look(new_b, 0, 4096) == 0 or look(old_b, 0, 4096 + 16 * 199) == 200
    settle([a, b])
    assert [look(old_b, 0, 4096 + 16 * k) for k in range(200)] == list(range(1, 201)) and look(old_b, 0, 64) == 7
    assert b.read(0, 4096) == 1000 and b.read(0, 4096 + 16) == 0
    assert in_kernel("mr") == registered
    exchange([a, b], 128, 5)


@pytest.mark.parametrize("way", [0, 4], ids=["with the data", "ahead"])
def test_each_way_tells_for_itself_that_a_view_is_over(way: int, make: Callable[..., list[Node]]) -> None:
    """What goes ahead may be late all the same: the key lives until both ways are through."""
    a, b = make("ab", **TIGHT)
    change([a, b], 1)
    old_b = b.peer
    assert old_b is not None
    for k in range(200):
        a.write(1, 4096 + 16 * k, k + 1, flags=way)
    change([a, b], 2)
    while not a.past.fabric.drained:
        a.peer.fabric.progress()
        b.peer.fabric.progress()
        b.tidy()
    settle([a, b])
    assert [look(old_b, 0, 4096 + 16 * k) for k in range(200)] == list(range(1, 201))
    exchange([a, b], 128, 5)


def test_views_one_upon_the_other(make: Callable[..., list[Node]]) -> None:
    """Three views in which nobody is driven: all that was posted in each lands in its memory, before what comes in the
    next; the keys of all but the last one end."""
    a, b = make("ab", **TIGHT)
    seen = []
    for epoch in (1, 2, 3):
        change([a, b], epoch)
        seen.append(b.peer)
        for k in range(50):
            a.write(1, 4096 + 16 * k, 1000 * epoch + k)
        a.peer.row.view()[32768:36768] = bytes([epoch]) * 4000
        a.peer.fabric.post_writes([(1, 32768, 4000)])        # read from the row when it leaves
    registered = in_kernel("mr")
    settle([a, b])
    for epoch, peer in enumerate(seen, 1):
        assert [look(peer, 0, 4096 + 16 * k) for k in range(50)] == [1000 * epoch + k for k in range(50)]
        assert bytes(peer.peer_row(0)[32768:36768]) == bytes([epoch]) * 4000
    assert in_kernel("mr") < registered
    exchange([a, b], 128, 5)


def test_who_comes_goes_and_crashes(make: Callable[..., list[Node]]) -> None:
    """Pairs are made for newcomers and destroyed with those that go; those of the two that stay are the same. Who
    leaves in order is no failure; who crashes is cut, and nothing of it is left."""
    own = in_kernel("qp")        # the device's
    a, b, c, d = make("abcd")
    change([a, b], 1)
    settle([a, b])
    staying = {number for node, name in ((a, "b"), (b, "a")) for number in node.pairs.queue_pairs(name)}
    assert len(staying) == 4 and in_kernel("qp") == own + 4
    peers = change([a, b, c], 2)
    assert [peer.fabric.statistics()["queue_pairs"] for peer in peers] == [2, 2, 4]
    exchange([a, b, c], 64, 1)
    settle([a, b, c])
    assert in_kernel("qp") == own + 12
    peers = connect([node.prepare([a, b], 3) for node in (a, b)])
    c.peer.fabric.goodbye()                      # as a node that leaves
    for node, peer in zip((a, b), peers, strict=True):
        node.install(peer)
    wait_until(lambda: (c.peer.fabric.progress(), c.peer.fabric.drained)[1], BOUND_S)
    assert c.peer.fabric.failures() == {}
    c.end()
    exchange([a, b], 64, 2)
    settle([a, b])
    assert in_kernel("qp") == own + 4
    change([a, b, d], 4)
    exchange([a, b, d], 64, 3)
    d.pairs.close()                              # as a process that ends
    for node in (a, b):
        node.write(2, 64, 4)
        assert failure(node.peer, 2)
        node.peer.fabric.cut(2)
    change([a, b], 5)
    exchange([a, b], 64, 5)
    settle([a, b])
    assert in_kernel("qp") == own + 4 and staying <= numbers_in_kernel()
    assert a.pairs.made == b.pairs.made == 2 + 2 + 2


def test_a_suspect_says_nothing_and_writes_nothing(make: Callable[..., list[Node]]) -> None:
    """Its memory is kept as long as its connection, which it can't use any more; then both go. What it writes late
    lands in no memory of any view, and its new life gets another connection."""
    a, b, c = make("abc")
    change([a, b, c], 1)
    exchange([a, b, c], 64, 1)
    old = [node.peer for node in (a, b)]
    for node in (a, b):
        node.peer.fabric.cut(2)
    change([a, b], 2)
    c.write(0, 64, 666)
    c.write(1, 64, 666, flags=LANE | 4)
    assert failure(c.peer, 0) and failure(c.peer, 1)
    settle([a, b])
    assert all(look(peer, 2, 64) == 1 for peer in old)
    assert a.pairs.queue_pairs("c") == [] == b.pairs.queue_pairs("c")
    again, = make("C")
    change([a, b, again], 3)
    exchange([a, b, again], 64, 9)


def test_a_view_that_is_given_up_costs_nobody_a_connection(make: Callable[..., list[Node]]) -> None:
    """Prepared again and again, with a newcomer, and never installed: those that stay go on in their view, nothing of
    what was given up is left, and the next attempt works."""
    a, b, c = make("abc")
    change([a, b], 1)
    exchange([a, b], 64, 1)
    numbers, registered = numbers_in_kernel(), in_kernel("mr")
    for _ in range(3):
        for peer in connect([node.prepare([a, b, c], 2) for node in (a, b, c)]):
            peer.fabric.close()
            peer.fabric.close()
        exchange([a, b], 64, 2)
        settle([a, b])
        assert numbers_in_kernel() == numbers and in_kernel("mr") == registered
    half = [node.prepare([a, b, c], 2) for node in (a, b, c)]
    half[0].fabric.connect(2, half[2].fabric.local_address(0))   # the newcomer has not heard of it
    for peer in half:
        peer.fabric.close()
    change([a, b, c], 2)
    exchange([a, b, c], 64, 3)
    settle([a, b, c])
    assert numbers <= numbers_in_kernel() and a.pairs.made == 2 + 2 * 5


@pytest.mark.parametrize("broken", ["here", "there", "both"])
def test_a_pair_that_is_broken_is_made_anew(broken: str, make: Callable[..., list[Node]]) -> None:
    """Whichever end can't use it any more says another in its address; the other one finds out and says its own again.
    The other connections stay."""
    a, b, c = make("abc")
    change([a, b, c], 1)
    exchange([a, b, c], 64, 1)
    kept = a.pairs.queue_pairs("c"), b.pairs.queue_pairs("c")
    if broken in ("here", "both"):
        a.peer.fabric.cut(1)
    if broken in ("there", "both"):
        b.peer.fabric.cut(0)
    view = [a, b, c]
    peers = [node.prepare(view, 2) for node in view]
    said = {(i, k): peers[i].fabric.local_address(k) for i in range(3) for k in range(3) if i != k}
    waiting = list(said)
    for _ in range(10):
        for i, k in list(waiting):
            address = peers[i].fabric.local_address(k)
            if peers[k].fabric.connect(i, address) is not False:
                waiting.remove((i, k))
    assert waiting == []
    for node, peer in zip(view, peers, strict=True):
        node.install(peer)
    exchange(view, 64, 2)
    settle(view)
    assert kept == (a.pairs.queue_pairs("c"), b.pairs.queue_pairs("c"))
    assert [node.pairs.made for node in view] == [6, 6, 4]


def test_two_ends_that_both_mean_what_is_gone(make: Callable[..., list[Node]]) -> None:
    """Each is connected to an end that the other doesn't know: the lower rank begins anew. And what can't be is
    refused."""
    own = in_kernel("qp")
    a, b = make("ab")
    change([a, b], 1)
    one, other = (node.prepare([a, b], 2) for node in (a, b))
    mine, theirs = (Address.parse(peer.fabric.local_address(1 - rank)) for rank, peer in enumerate((one, other)))

    def elsewhere(address: Address, **more: int) -> bytes:
        return Address(**{**address.__dict__, **more}).pack()

    with pytest.raises(ValueError, match="can't be"):
        one.fabric.connect(1, elsewhere(theirs, there=mine.queue_pair + 1))
    with pytest.raises(ValueError, match="can't be"):
        one.fabric.connect(1, elsewhere(theirs, queue_pair=theirs.queue_pair + 1))
    stale = {"queue_pair": theirs.queue_pair + 1, "there": mine.queue_pair + 1}
    gone = elsewhere(mine, queue_pair=mine.queue_pair + 1, there=theirs.queue_pair + 1)
    assert other.fabric.connect(0, gone) is False
    assert one.fabric.connect(1, elsewhere(theirs, **stale)) is False
    anew = one.fabric.local_address(1)
    assert anew != mine.pack() and Address.parse(anew).there == 0
    assert other.fabric.connect(0, anew) is not False
    assert one.fabric.connect(1, other.fabric.local_address(0)) is not False
    for node, peer in ((a, one), (b, other)):
        node.install(peer)
    exchange([a, b], 64, 2)
    settle([a, b])
    assert a.pairs.made == b.pairs.made == 4 and in_kernel("qp") == own + 4


def test_another_timeout_is_another_pair(make: Callable[..., list[Node]]) -> None:
    """A device can't be told another time for a connection that stands, so the group's new timeout makes new ones; the
    view that has the old ones goes on with them until it ends."""
    own = in_kernel("qp")
    a, b = make("ab")
    change([a, b], 1)
    peers = connect([node.prepare([a, b], 2, ack_timeout=14) for node in (a, b)])
    exchange([a, b], 64, 1)
    for node, peer in zip((a, b), peers, strict=True):
        node.install(peer)
    exchange([a, b], 64, 2)
    settle([a, b])
    change([a, b], 3, ack_timeout=14)
    exchange([a, b], 64, 3)
    settle([a, b])
    assert a.pairs.made == b.pairs.made == 4 and in_kernel("qp") == own + 4


def test_a_later_view_may_post_more(make: Callable[..., list[Node]]) -> None:
    """The queue becomes as long as both views need it together, with what waits in it: nobody is given up, and all of
    it arrives in order."""
    a, b = make("ab", depth=8, queue=16, rings=2)
    change([a, b], 1, posts=10, ack_timeout=18)
    b.peer.fabric.progress()
    old = b.peer
    peers = connect([node.prepare([a, b], 2, posts=2000, ack_timeout=18) for node in (a, b)])
    for k in range(200):
        a.write(1, 4096 + 16 * k, k + 1)
    wait_until(lambda: (a.peer.fabric.progress(), look(old, 0, 4096 + 16 * 20))[1])  # some have gone, others wait still
    for node, peer in zip((a, b), peers, strict=True):
        node.install(peer)
    for k in range(2000):
        a.write(1, 4096 + 16 * k, 10000 + k)
    pump([a.peer, b.peer])
    assert [look(old, 0, 4096 + 16 * k) for k in range(200)] == list(range(1, 201))
    assert [b.read(0, 4096 + 16 * k) for k in range(2000)] == list(range(10000, 12000))
    assert a.peer.fabric.failures() == {}


def test_who_was_cut_before_is_a_failure_of_the_next_view(make: Callable[..., list[Node]]) -> None:
    """A view may be agreed upon before a suspicion is known: then its suspect can't be reached in it."""
    a, b = make("ab")
    change([a, b], 1)
    peers = connect([node.prepare([a, b], 2) for node in (a, b)])
    a.peer.fabric.cut(1)
    assert a.peer.fabric.failures() == {}
    for node, peer in zip((a, b), peers, strict=True):
        node.install(peer)
    assert a.peer.fabric.failures() == {1: "the connection was closed"}


def test_a_node_that_ends_takes_its_connections_along(make: Callable[..., list[Node]]) -> None:
    """Also where the next view is prepared already: its peers notice."""
    a, b = make("ab")
    change([a, b], 1)
    connect([node.prepare([a, b], 2) for node in (a, b)])
    b.peer.fabric.close()
    a.write(1, 64, 1)
    assert failure(a.peer)


def test_a_place_is_used_again(make: Callable[..., list[Node]]) -> None:
    """What completes late of a connection that is destroyed is taken for nothing of the one in its place: newcomers
    come and crash in one place, with posts and receives under way, and the next one's counts are right."""
    a, b = make("ab", pairs=2, **TIGHT)
    change([a, b], 1)
    epoch = 1
    for turn in range(5):
        c, = make("c")
        c.name = f"c{turn}"
        epoch += 1
        change([a, b, c], epoch)
        for k in range(30):
            a.write(2, 4096 + 16 * k, k)
            c.write(0, 4096 + 16 * k, k)
        a.peer.fabric.cut(2)
        b.peer.fabric.cut(2)
        epoch += 1
        change([a, b], epoch)
        settle([a, b])
        exchange([a, b], 64, epoch)
    assert a.pairs.made == 2 + 2 * 5
    c, d = make("cd")
    crowded = connect([node.prepare([a, b, c], epoch + 1) for node in (a, b, c)])
    with pytest.raises(OSError, match="the limit"):
        connect([node.prepare([a, b, d], epoch + 1) for node in (a, b, d)])
    for peer in crowded:
        peer.fabric.close()


@settings(max_examples=12, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("ppppaagtv"), st.integers(1, 40)), max_size=50))
def test_any_script_of_posts_and_views(script: list[tuple[int, str, int]]) -> None:
    """Posts (p), posts that go ahead (a), passes (g), tidying (t), and views (v) that each node installs when its turn
    comes: in every view, all has arrived in its memory in the end, and only there; the connections are the first ones,
    and no key is left."""
    names = "abc"
    nodes = [Node(name, **TIGHT) for name in names]
    change(nodes, 1, ack_timeout=18)
    epochs: list[list[VerbsPeer]] = [[node.peer for node in nodes]]
    at = [0, 0, 0]               # which of the epochs each node is in
    wrote: dict[tuple[int, int, int], int] = {}
    count = 0
    for who, what, n in script:
        node = nodes[who]
        if what == "v":
            if at[who] + 1 == len(epochs):
                if min(at) < at[who]:            # nobody prepares a view before all are in the last one
                    continue
                epochs.append(connect([one.prepare(nodes, len(epochs) + 1, ack_timeout=18) for one in nodes]))
            at[who] += 1
            node.install(epochs[at[who]][who])
        for _ in range(n if what in "pag" else 0):
            count += 1
            if what == "g":
                node.peer.fabric.progress()
                continue
            for rank in {0, 1, 2} - {who}:
                place = 64 if what == "p" else 128
                wrote[at[who], who, place] = count
                node.write(rank, place, count, flags=LANE | 4 if what == "a" else 0)
        if what == "t":
            node.tidy()
    while min(at) + 1 < len(epochs):
        who = at.index(min(at))
        at[who] += 1
        nodes[who].install(epochs[at[who]][who])
    settle(nodes)
    for number, peers in enumerate(epochs):
        for who in range(3):
            for place in (64, 128):
                for rank in {0, 1, 2} - {who}:
                    assert look(peers[rank], who, place) == wrote.get((number, who, place), 0)
    assert all(node.peer.fabric.failures() == {} and node.pairs.made == 4 for node in nodes)
    for node in nodes:
        node.end()
