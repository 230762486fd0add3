"""Goal: the network model does to writes what parameters.Network says: latency, pace, ports, order, turns.

Method: writes alone (flights.fly), with times that can be worked out by hand.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from spindle_lab.paper.flights import fly
from spindle_lab.paper.parameters import INFINIBAND_100, Network

# No latency by size, no overhead: a byte takes 0.1 ns.
PLAIN = Network(post_first_ns=0, post_next_ns=0, latency_ns=1000, small_ns_per_byte=0, bytes_s=10e9)


def latency_ns(network: Network, size: int) -> float:
    """As its fields define it."""
    packets = -(-size // network.packet_bytes)
    wire = (size + packets * network.packet_overhead_bytes) * 1e9 / network.bytes_s
    return network.latency_ns + min(size, network.small_bytes) * network.small_ns_per_byte + wire


@pytest.mark.parametrize("size", [1, 64, 4096, 10240, 1 << 20])
@pytest.mark.parametrize("network", [PLAIN, INFINIBAND_100], ids=["plain", "infiniband"])
def test_one_write_takes_its_latency(network: Network, size: int) -> None:
    [(at_ns, _)] = fly(network, [(500.0, 0, 1, size)])
    assert at_ns - 500.0 == pytest.approx(latency_ns(network, size), rel=0.002)


def test_latencies_of_the_paper() -> None:
    """Section 3.2: "from 1.73 us for 1-byte data to 2.46 us for 4KB data", of which a post takes 1 us."""
    assert fly(INFINIBAND_100, [(1000, 0, 1, 1)])[0][0] == pytest.approx(1730, rel=0.005)
    assert fly(INFINIBAND_100, [(1000, 0, 1, 4096)])[0][0] == pytest.approx(2460, rel=0.005)


def test_two_senders_share_the_port_of_their_receiver() -> None:
    """Goal: a receiver takes no more than its link carries. Method: 100 writes of 4 KB from each of two; the last one
    arrives after the time of 200."""
    found = fly(PLAIN, [(0, source, 2, 4096) for _ in range(100) for source in (0, 1)])
    assert found[-1][0] == pytest.approx(1000 + 200 * 409.6, rel=0.001)


def test_two_receivers_share_the_port_of_their_sender() -> None:
    found = fly(PLAIN, [(0, 0, target, 4096) for _ in range(100) for target in (1, 2)])
    assert found[-1][0] == pytest.approx(1000 + 200 * 409.6, rel=0.001)


def test_pairs_that_share_no_port_share_nothing() -> None:
    found = fly(PLAIN, [(0, source, target, 1 << 20) for source, target in ((0, 1), (1, 0), (2, 3))])
    assert [at_ns for at_ns, _ in found] == pytest.approx([1000 + (1 << 20) / 10] * 3, rel=0.001)


def test_writes_of_a_pair_arrive_in_order() -> None:
    """Goal: a count never overtakes what it guards. Method: short writes behind long ones, which would be there first
    by latency alone."""
    writes = [(k * 10.0, 0, 1, 8 if k % 2 else 40_000) for k in range(50)]
    found = fly(INFINIBAND_100, writes)
    assert [place for _, place in found] == list(range(50))
    times = [at_ns for at_ns, _ in found]
    assert times == sorted(times)


def test_peers_take_turns_packet_by_packet() -> None:
    """Goal: a long write to one peer doesn't hold up a short one to another. Method: 1 MB, then 64 bytes elsewhere:
    behind the packet that is leaving, and the next one, which was there before it."""
    (short_ns, first), (long_ns, _) = fly(PLAIN, [(0, 0, 1, 1 << 20), (0, 0, 2, 64)])
    assert first == 1
    assert short_ns == pytest.approx(1000 + 2 * 409.6 + 6.4, rel=0.001)
    assert long_ns == pytest.approx(1000 + ((1 << 20) + 64) / 10, rel=0.001)


def test_what_a_long_write_takes_longer_holds_up_nobody_at_the_port() -> None:
    """Goal: the port is taken for as long as bytes pass. Method: 4 KB take 1.46 us, but 0.33 us of the port; 64 bytes
    of somebody else that start 0.1 us later are there before them."""
    (short_ns, first), _ = fly(INFINIBAND_100, [(0, 0, 2, 4096), (100, 1, 2, 64)])
    assert first == 1
    assert short_ns < latency_ns(INFINIBAND_100, 4096)


def test_a_flood_runs_at_the_pace_of_the_link() -> None:
    """Method: 1,000 writes of 10 KB; headers of packets are all that is lost."""
    found = fly(INFINIBAND_100, [(0, 0, 1, 10240)] * 1000)
    rate = 999 * 10240 / ((found[-1][0] - found[0][0]) / 1e9)
    assert rate == pytest.approx(12.5e9 * 10240 / (10240 + 3 * 26), rel=0.001)


def test_a_faster_link_has_the_same_latency() -> None:
    fast = replace(PLAIN, bytes_s=100e9)
    assert fly(fast, [(0, 0, 1, 10_000)])[0][0] == pytest.approx(1100)


@pytest.mark.parametrize("bad", [(0, 0, 0, 1), (0, 64, 0, 1), (0, 0, 64, 1)])
def test_writes_that_nobody_can_post(bad: tuple[float, int, int, int]) -> None:
    with pytest.raises(ValueError, match="members"):
        fly(PLAIN, [(0, 0, 1, 8), bad])


@pytest.mark.parametrize("bad", [{"latency_ns": -1.0}, {"post_first_ns": 1e12}, {"take_ns_per_byte": float("nan")}])
def test_costs_that_are_none(bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="cost"):
        fly(replace(PLAIN, **bad), [])
