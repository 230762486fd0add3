"""Goal: a cluster in virtual time runs the core as parameters say, and the same way each time.

Method: small clusters whose times follow from the parameters; where nothing else is said, costs don't vary.
"""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any

import pytest

from spindle.paper.cluster import MEMBERS_LIMIT, Cluster, Outcome, Sender, Upcall
from spindle.paper.parameters import PAPER, Network, Node, Parameters
from spindle_core.engine import SubgroupSpec
from spindle_core.switches import Switches

STEADY = replace(PAPER, jitter=0.0)
NOTHING = Node(
    lap_ns=10, subgroup_ns=0, line_ns=0, changed_line_ns=0, trigger_ns=0, deliver_ns=0, claim_ns=0, commit_ns=0,
    retry_ns=10, handover_ns=0,
)  # fmt: skip
FREE = Parameters("free", Network(100, 100, 1000, 0, 100e9), NOTHING, jitter=0.0)


def play(
    n: int = 3, messages: int = 300, size: int = 1024, *, parameters: Parameters = STEADY, window: int = 32,
    senders: list[Sender] | None = None, run: dict[str, Any] | None = None, **options: Any,
) -> Outcome:  # fmt: skip
    """All members of one topic send, if `senders` are not given."""
    members = tuple(range(n))
    senders = senders if senders is not None else [Sender(rank, 1, messages, size) for rank in members]
    cluster = Cluster(parameters, n, [SubgroupSpec(1, members, members, window, size)], senders, **options)
    try:
        return cluster.run(**(run or {}))
    finally:
        cluster.close()


def test_everybody_delivers_everything() -> None:
    found = play()
    assert found.finished
    assert found.sent == [300] * 3
    for counters in found.counters:
        assert counters["delivery_messages"] == 900
        assert counters["corrupt_slots"] == 0


@pytest.mark.parametrize("switches", [Switches(), Switches.baseline()], ids=["all", "baseline"])
def test_a_seed_decides_everything(switches: Switches) -> None:
    """Goal: the same arguments give the same run to the last digit, other seeds another one."""
    one, same, other = (play(parameters=PAPER, switches=switches, seed=seed) for seed in (1, 1, 2))
    assert one == same
    assert one != other
    assert one.seconds == pytest.approx(other.seconds, rel=0.2)


def test_a_message_alone_takes_what_its_parts_take() -> None:
    """Goal: latency is the sum of costs. Method: one message to one other member. Delivered there when slot and count
    have arrived: after both posts of a list; and the sender has the acknowledgement a post and a flight later."""
    found = play(2, senders=[Sender(0, 1, 2, 64)], parameters=FREE, window=1, run={"warm_up": 0.0}, size=64,
                 switches=Switches(null_sends=True))  # fmt: skip
    assert found.finished
    # Posts of slot and count, flight, and a post of the receiver's columns and a flight for the sender's own delivery;
    # nulls of the other sender ride along.
    assert 1.2e-6 <= found.latency_mean_s <= 3.0e-6


@pytest.mark.parametrize("n", [4, 8, 16])
def test_a_flood_comes_near_to_the_link(n: int) -> None:
    """Goal: large messages of all members are bounded by each port: it takes those of the n - 1 others."""
    found = play(n, 2000, 10240, window=100)
    link = STEADY.network.bytes_s * n / (n - 1)
    for rate in found.bytes_s:
        assert 0.75 * link < rate < 1.02 * link


def test_a_port_never_carries_more_than_it_can() -> None:
    found = play(4, 500, 10240, window=100)
    for sent in found.out_bytes:
        assert sent / found.seconds <= STEADY.network.bytes_s


def test_a_silent_sender_without_nulls_brings_all_to_a_stand() -> None:
    """Section 3.3. Method: the last of three senders has nothing to say."""
    senders = [Sender(rank, 1, 200, 1024) for rank in (0, 1)]
    without = play(senders=senders, switches=Switches(null_sends=False), run={"limit_s": 1.0})
    assert not without.finished
    # Its first turn never comes: what stands before that in the order is all that is delivered.
    assert [counters["delivery_messages"] for counters in without.counters] == [2] * 3
    assert play(senders=senders).finished


def test_upcalls_take_the_predicate_threads_time() -> None:
    """Goal: with an upcall that is slower than all else, one message is delivered per delay."""
    found = play(2, 200, upcalls={1: Upcall(us=100.0)})
    assert found.finished
    for rate in found.messages_s:
        assert rate == pytest.approx(1e6 / 100.0, rel=0.1)


def test_a_log_that_is_slower_than_the_network_sets_the_pace() -> None:
    """Goal: delivery waits for the disk once that is too far behind, in bytes of payload."""
    slow = Upcall(disk_bytes_s=0.5e9, disk_ahead_bytes=1 << 16)
    found = play(2, 2000, 10240, upcalls={1: slow}, window=100)
    for rate in found.bytes_s:
        assert rate == pytest.approx(0.5e9, rel=0.05)


def test_a_delayed_sender_sends_at_its_own_pace() -> None:
    senders = [Sender(0, 1, 50, 1024, delay_us=20.0), Sender(1, 1, 50, 1024, delay_us=20.0)]
    found = play(2, senders=senders)
    for rate in found.messages_s:
        assert rate == pytest.approx(2 * 50_000, rel=0.1)


def test_work_and_copies_take_the_applications_time() -> None:
    """Goal: what a sender does for each message bounds its rate; the copy curve says how long a copy takes."""
    node = replace(NOTHING, copy_ns={1024: 5_000.0, 2048: 10_000.0})
    for sender in (Sender(0, 1, 100, 1536, work_us=7.5), Sender(0, 1, 100, 1536, copies_in=True)):
        [found] = {play(2, size=1536, senders=[sender], parameters=replace(FREE, node=node)).messages_s[0]}
        assert found == pytest.approx(1e6 / 7.5, rel=0.02)


def test_posts_under_the_lock_lock_applications_out() -> None:
    """Section 3.4. Goal: only where the lock is held over posts do applications lose time to it."""
    slow = replace(STEADY, network=replace(STEADY.network, post_first_ns=20_000.0))
    held = play(4, parameters=slow, switches=Switches(post_after_unlock=False))
    free = play(4, parameters=slow)
    assert sum(held.locked_s) > 10 * 20e-6
    assert sum(free.locked_s) == 0.0
    assert sum(play(4, parameters=slow, switches=Switches(post_after_unlock=False), lock_free=True).locked_s) == 0.0


def test_batches_are_counted_by_their_size() -> None:
    """Goal: the histograms hold every message once per kind, and without batching there are batches of one only."""
    for switches in (Switches(), Switches.baseline()):
        found = play(switches=switches)
        for name in ("send", "delivery"):
            batches = found.batches[name]
            assert sum(size * count for size, count in batches.items()) == 900 * (3 if name == "delivery" else 1)
            assert switches.batch_send or set(batches) == {1}


def test_a_run_stops_at_its_limit_in_virtual_time() -> None:
    found = play(messages=100_000, run={"limit_s": 1e-3})
    assert not found.finished
    assert found.seconds <= 1e-3


def test_what_it_cannot_do_is_said() -> None:
    with pytest.raises(ValueError, match="members"):
        play(MEMBERS_LIMIT + 1)
    with pytest.raises(ValueError, match="size_max"):
        play(2, size=64, senders=[Sender(0, 1, 1, 65)])
    with pytest.raises(ValueError, match="cores"):
        play(parameters=replace(STEADY, cores=1000))
    cluster = Cluster(STEADY, 2, [SubgroupSpec(1, (0, 1), (0, 1), 8, 64)], [Sender(0, 1, 1, 64)])
    cluster.run()
    with pytest.raises(RuntimeError, match="once"):
        cluster.run()
    cluster.close()
    cluster.close()


def test_clusters_leave_no_memory_behind() -> None:
    """Method: after as many as fill whatever is kept for the next one, further ones add nothing; some end in the middle
    of everything, with writes on their way."""

    def many(count: int) -> None:
        for k in range(count):
            play(4, 50, 4096, window=64, run={"limit_s": 1e-4} if k % 2 else None)

    many(40)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    many(160)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 8 << 10
