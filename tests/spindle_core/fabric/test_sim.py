"""The simulated fabric keeps the fabric's promise, and lets the world do to it what a real one may suffer."""

from __future__ import annotations

import gc
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.engine import Engine
from spindle_core.fabric.sim import SimFabric, SimNetwork
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.fabric.conformance import FabricConformance
from tests.support import descriptors_before, open_descriptors

ROW_SIZE = 8192


class SimPeer:
    """One peer: a fabric of its own, with the doorbell of a real engine so that it can wait."""

    def __init__(self, network: SimNetwork, rank: int, n: int, epoch: int = 1) -> None:
        self.engine = Engine(rank + 1)
        self.network = network
        self.fabric = SimFabric(network, epoch, rank, list(range(n)), self.engine.bell, self.engine.bell_fd)
        self.row = self.fabric.make_row(f"row-{rank}", ROW_SIZE)

    def peer_row(self, rank: int) -> memoryview:
        return self.fabric.row_of(rank)


def make_peers(n: int, network: SimNetwork | None = None, epoch: int = 1) -> list[SimPeer]:
    network = network if network is not None else SimNetwork()
    peers = [SimPeer(network, i, n, epoch) for i in range(n)]
    for i, a in enumerate(peers):
        for k, b in enumerate(peers):
            if i != k:
                a.fabric.connect(k, b.fabric, b.row)
    return peers


def peers_of(**modes: bool) -> Callable[[int], list[SimPeer]]:
    return staticmethod(lambda n: make_peers(n, SimNetwork(**modes)))  # type: ignore[return-value]


class SimConformance(FabricConformance):
    @staticmethod
    def pump(peers: list[SimPeer]) -> None:
        peers[0].network.land_all()


class TestCopied(SimConformance):
    make_peers = peers_of(late=False)


class TestCopiedLate(SimConformance):
    make_peers = peers_of(late=True)


class TestImmediate(SimConformance):
    make_peers = peers_of(immediate=True)


class TestShared(SimConformance):
    make_peers = peers_of(copies=False)
    shares_rows = True


# ---- what the world may do -----------------------------------------------------------------------------------------


def test_a_write_lands_line_by_line():
    """A write of three lines can be seen after each of them, and rings when the last has landed."""
    a, b = make_peers(2)
    a.row.view()[60:200] = b"x" * 140
    a.fabric.post_writes([(1, 60, 140)])
    assert a.network.pending(0, 1) == 4
    seen = []
    for _ in range(4):
        assert a.network.rung(1) == 0
        assert a.network.land(0, 1) == 1
        seen.append(bytes(b.peer_row(0)[60:200]).count(b"x"))
    assert seen == [4, 68, 132, 140] and a.network.rung(1) == 1
    assert a.network.land(0, 1) == 0 and a.network.pairs_with_pending() == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1000), st.integers(1, 700)), max_size=6), st.lists(st.integers(1, 9)))
def test_what_has_landed_is_what_was_posted(ranges, steps):
    """Against a model: with `late` off, the copy is the row as it was at each post, whatever the order of landing."""
    a, b = make_peers(2, SimNetwork(late=False))
    view, model = a.row.view(), bytearray(ROW_SIZE)
    for k, (offset, length) in enumerate(ranges):
        view[offset : offset + length] = bytes([k + 1]) * length
        a.fabric.post_writes([(1, offset, length)])
        model[offset : offset + length] = bytes([k + 1]) * length
    for n in steps:
        a.network.land(0, 1, n)
    a.network.land_all()
    assert bytes(b.peer_row(0)) == bytes(model)


def test_what_waits_takes_posts_of_its_lane_along():
    """As the fabric's promise allows: data that touch, counts that nothing of their lane waits behind."""
    a, b = make_peers(2, SimNetwork(late=False))
    view, slots, count, other = a.row.view(), 2 << 16, 2 << 16 | 2, 3 << 16 | 2
    posted = [(slots, 1024, 64), (count, 0, 8), (other, 64, 8), (slots, 1088, 64), (count, 0, 8), (slots, 4096, 64),
              (count, 0, 8), (other, 64, 8), (count, 0, 8)]
    for k, (flags, offset, length) in enumerate(posted, 1):
        view[offset : offset + length] = bytes([k]) * length
        a.fabric.post_writes([(1, offset, length)], flags=flags)
    seen = []
    while a.network.pending(0, 1):
        _, _, offset, length, _ = a.network.head(0, 1)
        a.network.land(0, 1, 1 + (length - 1) // 64)
        seen.append((offset, length, b.peer_row(0)[offset]))
    assert seen == [(1024, 128, 1), (0, 8, 5), (64, 8, 8), (4096, 64, 6), (0, 8, 9)]


def test_what_needs_not_wait_has_a_way_of_its_own():
    """Before or behind all others as the world has it, and in order for itself; without such a way as all others."""
    ahead = 3 << 16 | 2 | 4
    for own, first, expected in ((True, True, [64, 64, 0, 1024]), (True, False, [0, 1024, 64, 64]),
                                 (False, True, [0, 64, 1024, 64])):
        a, b = make_peers(2, SimNetwork(late=False, joins=False, ahead=own))
        view, seen = a.row.view(), []
        for k, (flags, offset) in enumerate([(0, 0), (ahead, 64), (0, 1024), (ahead, 64)], 1):
            view[offset] = k
            a.fabric.post_writes([(1, offset, 8)], flags=flags)
        assert a.network.pending(0, 1) == 4 and a.network.links_with_pending() == [(0, 1, 1)]
        before = bytes(b.peer_row(0))
        while a.network.land(0, 1, ahead=first):
            after = bytes(b.peer_row(0))
            seen += [i for i in range(len(after)) if after[i] != before[i]]
            before = after
        assert seen == expected and before[64] == 4
    a, b = make_peers(2, SimNetwork())
    a.fabric.post_writes([(1, 64, 8)], flags=ahead)
    a.network.drop(0, 1)
    assert a.network.pending(0, 1) == 0 and a.network.land_all() == 0


def test_a_long_post_may_carry_what_came_later_and_a_short_one_never():
    """The fabric's promise: up to 256 bytes are taken at the post, more may be read when they land."""
    a, b = make_peers(2)
    view = a.row.view()
    view[0:256] = b"1" * 256
    view[1024:1281] = b"1" * 257
    a.fabric.post_writes([(1, 0, 256), (1, 1024, 257)])
    view[0:256] = b"2" * 256
    view[1024:1281] = b"2" * 257
    a.network.land_all()
    assert bytes(b.peer_row(0)[0:256]) == b"1" * 256 and bytes(b.peer_row(0)[1024:1281]) == b"2" * 257


def test_a_dropped_link_loses_the_rest_and_all_that_follows():
    """Cut in the middle of a write: what landed stays, the rest and later posts vanish; other pairs go on."""
    a, b, c = make_peers(3)
    a.row.view()[0:640] = b"x" * 640
    a.fabric.post_writes([(1, 0, 640), (2, 0, 640)])
    a.network.land(0, 1, 3)
    a.network.drop(0, 1)
    a.fabric.post_writes([(1, 1024, 8)])
    a.network.land_all()
    assert bytes(b.peer_row(0)).count(b"x") == 192 and bytes(c.peer_row(0)).count(b"x") == 640
    assert a.network.counts()["dropped"] == 7 + 1


def test_a_held_link_lands_nothing():
    a, b = make_peers(2)
    a.fabric.post_writes([(1, 0, 64)])
    a.network.hold(0, 1)
    assert a.network.land(0, 1) == 0 and a.network.land_all() == 0 and a.network.pairs_with_pending() == []
    assert a.network.pending(0, 1) == 1
    a.network.release(0, 1)
    assert a.network.links_with_pending() == [(0, 1, 1)] and a.network.head(0, 1) == (1, "write", 0, 64, 0)
    assert a.network.land(0, 1) == 1 and b.network.rung(1) == 1


@pytest.mark.slow
def test_late_writes_land_in_their_own_epoch():
    """A write posted in epoch 1 that lands after epoch 2 began changes epoch 1's memory only, and once that is gone
    nothing; its sender's end may be gone before."""
    network = SimNetwork()
    old, new = make_peers(2, network, 1), make_peers(2, network, 2)
    old[0].row.view()[0:400] = b"o" * 400
    old[0].fabric.post_writes([(1, 0, 400), (1, 0, 8)])
    new[0].row.view()[0:8] = b"n" * 8
    new[0].fabric.post_writes([(1, 0, 8)])
    assert network.land(0, 1, 1, epoch=2) == 1      # not FIFO across epochs
    old_row = old[1].peer_row(0)
    old[0] = None  # type: ignore[call-overload]
    gc.collect()
    assert network.land(0, 1, 7) == 7
    assert bytes(old_row[0:400]) == b"o" * 400 and bytes(new[1].peer_row(0)[0:16]) == b"n" * 8 + bytes(8)
    del old_row
    old.clear()
    gc.collect()
    assert network.pending(0, 1) == 0 and network.land_all() == 0


def test_a_crashed_node_is_out_of_everybodys_reach():
    a, b, _ = peers = make_peers(3)
    a.fabric.post_writes([(1, 0, 8), (2, 0, 8)])
    b.fabric.post_writes([(0, 0, 8), (2, 0, 8)])
    a.network.crash(1)
    assert a.network.pairs_with_pending() == [(0, 2)]
    assert a.network.land_all() == 1 and a.network.nodes_rung() == [2]
    del peers


def test_cut_fences_what_comes_from_there():
    """Who cuts a peer is reached by nothing of it any more; without fences it still is."""
    for fences in (True, False):
        a, b = make_peers(2, SimNetwork(fences=fences))
        b.row.view()[0:8] = b"zombie!!"
        b.fabric.post_writes([(0, 0, 8)])
        a.fabric.cut(1)
        b.fabric.post_writes([(0, 0, 8)])
        a.network.land_all()
        assert (bytes(a.peer_row(1)[0:8]) == b"zombie!!") is not fences


def test_a_shared_row_costs_no_post():
    """Where rows are shared a post is a doorbell and nothing waits."""
    a, b = make_peers(2, SimNetwork(copies=False))
    a.row.view()[0:4] = b"seen"
    assert bytes(b.peer_row(0)[0:4]) == b"seen"
    a.fabric.post_writes([(1, 0, 4)], ring=False)
    assert a.network.nodes_rung() == []
    a.fabric.post_writes([(1, 0, 4)])
    assert a.network.nodes_rung() == [1] and a.network.pairs_with_pending() == []


def test_posts_to_who_is_not_there_yet_are_counted():
    """A post before the peer has attached the row goes nowhere."""
    network = SimNetwork()
    a, b = (SimPeer(network, i, 2) for i in range(2))
    a.fabric.post_writes([(1, 0, 8)])
    assert network.counts()["unconnected"] == 1
    b.fabric.connect(0, a.fabric, a.row)
    with pytest.raises(ValueError, match="connected already"):
        b.fabric.connect(0, a.fabric, a.row)
    with pytest.raises(ValueError, match="is not rank"):
        a.fabric.connect(1, SimPeer(network, 1, 2, epoch=9).fabric, a.row)


# ---- the core over it ----------------------------------------------------------------------------------------------

MODES = [{"copies": False}, {"late": False}, {"late": True}]


@pytest.mark.parametrize("modes", MODES)
@settings(max_examples=25, deadline=None)
@given(script=st.lists(st.tuples(st.integers(0, 8), st.integers(0, 2), st.integers(1, 3)), max_size=60),
       size=st.sampled_from([1, 40, 300]))
def test_the_core_keeps_its_order_however_lines_land(modes, script, size):
    """Three nodes, any mixture of writes, passes and landings: all deliver the same sequence, whole and without a gap,
    and a node that runs only when it is rung misses nothing.

    Messages of 40 and 300 bytes lie on more than one line of their slot, and the latter go in late posts.
    """
    network = SimNetwork(**modes)
    cluster = Cluster(3, window=2, size_max=320, network=network)
    readers, writers = [cluster.reader(i) for i in range(3)], [cluster.writer(i, size_max=320) for i in range(3)]
    sent: list[list[bytes]] = [[], [], []]
    got: list[list[bytes]] = [[], [], []]

    def run_rung() -> bool:
        ran = False
        for node_id in network.nodes_rung():
            network.clear_rung(node_id)
            while cluster.engines[node_id - 1].step_once():
                pass
            ran = True
        return ran

    def look() -> None:
        for i, reader in enumerate(readers):
            got[i] += reader.take(1000)

    for action, node, n in script:
        if action == 0 and len(sent[node]) - writers[node].consumed < 16:
            message = b"%d.%d|" % (node, len(sent[node]))
            sent[node].append(message.ljust(size, b"~"))
            writers[node].write(sent[node][-1])
            network.ring(node + 1)
        elif action < 4:
            run_rung()
        else:
            network.land(node + 1, (node + action % 2 + 1) % 3 + 1, n)
        look()
    while run_rung() or network.land_all():
        look()
    look()
    assert got[0] == got[1] == got[2]
    for node in range(3):
        assert [m for m in got[0] if m.startswith(b"%d." % node)] == sent[node]
    assert cluster.engines[0].counters.snapshot()["corrupt_slots"] == 0


def test_simulated_rows_take_no_descriptors():
    """A run makes hundreds of epochs: their rows are private memory."""
    before = descriptors_before()
    cluster = Cluster(3, network=SimNetwork())
    after_one = open_descriptors()
    for epoch in range(2, 6):
        cluster.install(epoch, cluster.specs)
    gc.collect()
    assert open_descriptors() == after_one > before
