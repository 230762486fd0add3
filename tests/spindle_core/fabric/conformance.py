"""What every fabric must keep of fabric.pxd's promise. A fabric's test module derives from FabricConformance.

`make_peers(n)` gives n connected peers of one epoch; each has `fabric` (spindle_core.fabric.fabric.Fabric), `row`
(Mapping, its own row) and `peer_row(k)` (its view of peer k's row). `pump()` lets a fabric without hardware make
progress.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

import pytest

BOUND_S = 10.0
GUARD, AHEAD = 2, 4  # of fabric.pxd, as are the lanes
LANE_BEAT, LANE_SLOTS = 1 << 16, 2 << 16


class FabricConformance:
    make_peers: Callable[[int], list[Any]]
    shares_rows = False  # peers 0 and 1 see each other's stores without a post

    @staticmethod
    def pump(peers: list[Any]) -> None:
        """Nothing to do where writes need no help."""

    # ---- one-sided writes ----

    def test_a_write_arrives_at_its_place(self):
        """A posted range of my row is in the peer's copy of it, at the same offset; nothing else is promised."""
        a, b = self.make_peers(2)
        a.row.view()[100:108] = b"abcdefgh"
        a.fabric.post_writes([(1, 100, 8)])
        self.pump([a, b])
        assert bytes(b.peer_row(0)[100:108]) == b"abcdefgh"

    def test_a_later_write_is_never_seen_before_an_earlier_one(self):
        """FIFO per peer: whoever sees the guard sees the data, across 2,000 rounds with a concurrent reader."""
        a, b = self.make_peers(2)
        view, rounds, seen = a.row.view(), 2000, []

        def look() -> None:
            peer = b.peer_row(0)
            last = 0
            while last < rounds:
                guard = int.from_bytes(peer[0:8], "little")
                data = int.from_bytes(peer[4096:4104], "little")
                if guard != last:
                    seen.append((guard, data))
                    last = guard

        reader = threading.Thread(target=look, daemon=True)
        reader.start()
        for k in range(1, rounds + 1):
            view[4096:4104] = k.to_bytes(8, "little")
            view[0:8] = k.to_bytes(8, "little")
            a.fabric.post_writes([(1, 4096, 8), (1, 0, 8)])
            self.pump([a, b])
        reader.join(BOUND_S)
        assert not reader.is_alive()
        assert all(data >= guard for guard, data in seen)

    def test_what_goes_ahead_rises_while_the_rest_stays_in_line(self):
        """A count that needs not wait is never seen to fall, wherever it passes others, and its last value arrives;
        counts that guard data stay behind these."""
        a, b = self.make_peers(2)
        view, peer, rounds, last = a.row.view(), b.peer_row(0), 500, 0
        guarded, guard, ahead = LANE_SLOTS, LANE_SLOTS | GUARD, LANE_BEAT | GUARD | AHEAD
        for k in range(1, rounds + 1):
            for flags, place in ((guarded, 4096), (guard, 0), (ahead, 64)):
                view[place : place + 8] = k.to_bytes(8, "little")
                a.fabric.post_writes([(1, place, 8)], flags=flags)
            count = int.from_bytes(peer[0:8], "little")
            assert int.from_bytes(peer[4096:4104], "little") >= count
            assert last <= (last := int.from_bytes(peer[64:72], "little"))
        self.pump([a, b])
        assert [int.from_bytes(peer[place : place + 8], "little") for place in (0, 64, 4096)] == [rounds] * 3

    def test_a_list_reaches_every_peer(self):
        """One list of posts to several peers."""
        peers = self.make_peers(4)
        peers[2].row.view()[0:4] = b"ping"
        peers[2].fabric.post_writes([(k, 0, 4) for k in (0, 1, 3)])
        self.pump(peers)
        assert all(bytes(peers[k].peer_row(2)[0:4]) == b"ping" for k in (0, 1, 3))

    def test_ranks_are_checked(self):
        """The own rank and ranks beyond the view are refused with a clear error."""
        a, _ = self.make_peers(2)
        for peer in (0, 2, -1):
            with pytest.raises(ValueError, match="rank"):
                a.fabric.post_writes([(peer, 0, 8)])

    # ---- cut, doorbells ----

    def test_cut_ends_everything_with_one_peer(self):
        """After cut() nothing is posted to that peer any more and it is not rung; the others go on."""
        a, b, c = self.make_peers(3)
        a.fabric.cut(1)
        a.row.view()[0:8] = b"the rest"
        a.fabric.post_writes([(1, 0, 8), (2, 0, 8)])
        b.fabric.prepare_wait()
        assert a.fabric.ring(1) == 0
        b.fabric.finish_wait()
        self.pump([a, b, c])
        assert bytes(c.peer_row(0)[0:8]) == b"the rest"
        assert self.shares_rows or not any(b.peer_row(0))
        assert a.fabric.failures() == {}

    def test_no_ring_is_lost_around_going_to_sleep(self):
        """Dekker: work published before the sleeper's last look is found there; after it, it rings.

        Method: rounds of ping-pong where each side announces, looks, and only then blocks; a lost wake-up would run
        into the bound.
        """
        a, b = self.make_peers(2)
        rounds = int(os.environ.get("PING_PONGS", "300"))
        failures: list[str] = []

        def serve(me: Any, peer: int, first: bool) -> None:
            mine, theirs = me.row.view(), me.peer_row(peer)
            for k in range(1, rounds + 1):
                if not first:
                    self.await_count(me, theirs, k, failures)
                mine[0:8] = k.to_bytes(8, "little")
                me.fabric.post_writes([(peer, 0, 8)])
                if first:
                    self.await_count(me, theirs, k, failures)

        threads = [threading.Thread(target=serve, args=(a, 1, True), daemon=True),
                   threading.Thread(target=serve, args=(b, 0, False), daemon=True)]
        for t in threads:
            t.start()
        for t in threads:
            t.join(BOUND_S * 2 + rounds / 10)
        assert failures == [] and not any(t.is_alive() for t in threads)

    @staticmethod
    def await_count(me: Any, theirs: memoryview, k: int, failures: list[str]) -> None:
        while int.from_bytes(theirs[0:8], "little") < k:
            me.fabric.prepare_wait()
            if int.from_bytes(theirs[0:8], "little") < k and not me.fabric.wait(BOUND_S):
                failures.append(f"round {k}: not rung")
                me.fabric.finish_wait()
                return
            me.fabric.finish_wait()

    def test_nobody_asleep_costs_no_system_call(self):
        """ring() and post_writes() say how many doorbells they rang: none while the peer is awake."""
        a, b = self.make_peers(2)
        assert a.fabric.post_writes([(1, 0, 8)]) == 0 and a.fabric.ring(1) == 0
        b.fabric.prepare_wait()
        assert a.fabric.ring(1) == 1
        assert b.fabric.wait(BOUND_S)
        b.fabric.finish_wait()
        assert a.fabric.ring(1) == 0
