"""Goal: a cluster in virtual time runs the core as parameters say, and the same way each time.

Method: small clusters whose times follow from the parameters; where nothing else is said, costs don't vary.
"""

from __future__ import annotations

import resource
from dataclasses import replace
from typing import Any

import pytest

from spindle_core.engine import SubgroupSpec
from spindle_core.switches import Switches
from spindle_lab.paper.cluster import MEMBERS_LIMIT, Cluster, Outcome, Sender, Upcall
from spindle_lab.paper.parameters import PAPER, Network, Node, Parameters

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


def test_what_a_predicate_does_before_it_takes_the_lock_holds_nobody_up() -> None:
    """Goal: as in the core, receive and deliver hold the lock for their posts alone. Method: predicates that take 5 us
    and posts that take 0.1 us; of the time of those that fire under the lock the send predicate's is a third."""
    slow = replace(FREE, node=replace(NOTHING, trigger_ns=5000.0))
    found = play(2, 2000, 64, parameters=slow, window=500, senders=[Sender(0, 1, 2000, 64)],
                 switches=Switches(post_after_unlock=False))  # fmt: skip
    assert found.finished
    assert found.firing_s[0] > 0.8 * found.seconds
    sends = found.counters[0]["send_batches"] * 5e-6
    assert 0 < found.locked_s[0] < 1.2 * sends < 0.4 * found.firing_s[0]


# ---- fewer cores than threads --------------------------------------------------------------------------------------

WORKING = replace(NOTHING, lap_ns=100.0, yield_ns=100.0, switch_ns=200.0, ring_ns=1000.0, ring_busy_ns=500.0,
                  woken_ns=2000.0)  # fmt: skip
WORK = [Sender(rank, 1, 600, 1024, work_us=2.0) for rank in range(4)]


def rate_on(cores: int, **options: Any) -> float:
    """Four senders, and as many predicate threads with as much to do for each message."""
    parameters = replace(FREE, node=WORKING, cores=cores)
    found = play(4, senders=WORK, parameters=parameters, upcalls={1: Upcall(us=0.5)}, window=64, **options)
    assert found.finished
    assert all(counters["delivery_messages"] == 2400 for counters in found.counters)
    if cores:
        assert 0.5 * cores < found.cores_s / found.seconds <= 1.001 * cores
    return found.messages_s[0]


def test_half_the_cores_halve_the_rate() -> None:
    """Goal: what all threads do takes its time on few cores. Method: 4 us of work a message in all: 2 us to make it,
    0.5 at each of four; a core does a message in that time, less what yielding and waiting take (a little more between
    the marks, since what was made before the first one counts)."""
    one, two, four, free = (rate_on(cores) for cores in (1, 2, 4, 0))
    assert 0.7 * 250_000 < one < 1.1 * 250_000
    assert two == pytest.approx(2 * one, rel=0.2)
    assert 1.4 * two < four <= 1.1 * 1_000_000
    assert free == pytest.approx(2_000_000, rel=0.1)  # bound by the applications: four of 2 us


def test_few_cores_run_the_same_for_the_same_seed() -> None:
    assert rate_on(2, seed=3) == rate_on(2, seed=3)
    assert len({rate_on(2, seed=seed) for seed in range(4)}) > 1


def test_threads_that_have_slept_are_woken() -> None:
    """Goal: nobody sleeps through what is for him. Method: one sender that sends so rarely that all sleep in between,
    under every switch; and it costs what waking costs."""
    senders = [Sender(0, 1, 40, 64, delay_us=400.0)]
    for switches in (Switches(), replace_switches(post_after_unlock=False), replace_switches(batch_send=False)):
        found = play(3, size=64, senders=senders, parameters=replace(FREE, node=WORKING, cores=2), switches=switches)
        assert found.finished
        assert found.cores_s / found.seconds < 0.8  # of two
    swift = play(3, size=64, senders=senders, parameters=FREE).latency_s[0.5]
    assert found.latency_s[0.5] > swift + 2e-6


def replace_switches(**off: bool) -> Switches:
    return replace(Switches(), **off)


def test_a_lock_that_is_held_to_publish_holds_applications_up() -> None:
    node = replace(NOTHING, send_ns=2000.0)
    found = play(2, parameters=replace(FREE, node=node))
    assert sum(found.locked_s) > 0
    assert sum(play(2, parameters=FREE).locked_s) == 0


def test_lines_that_two_threads_share_cost_both() -> None:
    """Method: one application and its predicate thread, who looks all the time: each commit is after a pass, 0.7 us
    more for a message that takes 0.6, and some claims, 0.3 us more."""
    node = replace(NOTHING, claim_ns=200.0, commit_ns=200.0)
    senders = [Sender(0, 1, 200, 64, work_us=0.2)]
    plain, shared = (
        play(2, size=64, senders=senders, parameters=replace(FREE, node=one)).messages_s[0]
        for one in (node, replace(node, claim_shared_ns=300.0, commit_shared_ns=700.0))
    )
    assert plain == pytest.approx(1e9 / 600, rel=0.1)
    assert 1e9 / 1610 < shared < 1e9 / 1290


# ---- a fabric that copies ------------------------------------------------------------------------------------------


def test_posts_that_wait_for_the_end_of_a_pass_leave_together() -> None:
    """Goal: as over connections, a pass sends each peer what it has for it with one call, and what says the same again
    is said once. Method: acknowledgements of single messages; fewer writes than posts, and the posting thread pays for
    calls and bytes."""
    switches = replace(Switches(), batch_receive=False)
    network = replace(FREE.network, leave_ns=5000.0, leave_post_ns=10.0, take_ns=3000.0, post_ns_per_byte=0.1)
    found = play(3, parameters=replace(FREE, network=network), range_cost=512, switches=switches)
    plain = play(3, parameters=FREE, range_cost=512, switches=switches)
    assert found.finished
    assert found.writes < sum(counters["posts"] for counters in found.counters)
    assert plain.writes == sum(counters["posts"] for counters in plain.counters)
    assert min(found.posting_s) >= 0.1e-9 * 300 * 1024 * 2


def test_interruptions_take_threads_their_time() -> None:
    """Goal: a thread that is interrupted for half of the time takes twice as long. Method: an application that does
    nothing but work, and a predicate thread that has much to do."""
    halved = replace(FREE, pauses={5_000: 50_000.0, 15_000: 16_666.0})
    work = [Sender(0, 1, 2000, 64, work_us=2.0)]
    plain, paused = (play(2, senders=work, parameters=table) for table in (FREE, halved))
    assert paused.finished and paused.seconds == pytest.approx(2 * plain.seconds, rel=0.15)
    upcalls = {1: Upcall(us=2.0)}
    plain, paused = (play(2, 2000, 64, parameters=table, upcalls=upcalls) for table in (FREE, halved))
    assert paused.seconds == pytest.approx(2 * plain.seconds, rel=0.15)
    assert play(parameters=replace(FREE, pauses={})) == play(parameters=FREE)


@pytest.mark.parametrize("switches", [Switches(), Switches.baseline()], ids=["all", "baseline"])
def test_predicates_may_hold_the_lock_through(switches: Switches) -> None:
    """Goal: as in the reference, an application finds the lock taken while its node delivers, upcalls included, and
    everything is delivered all the same. Method: upcalls that take longer than claims."""
    found = []
    for through in (False, True):
        parameters = replace(STEADY, lock_through=through)
        found.append(play(3, 300, 64, parameters=parameters, upcalls={1: Upcall(us=2.0)}, switches=switches))
    short, long = found
    assert short.finished and long.finished
    assert [counters["delivery_messages"] for counters in long.counters] == [900] * 3
    assert sum(long.locked_s) > 2 * sum(short.locked_s)


# ---- past the paper ------------------------------------------------------------------------------------------------


def test_acknowledgements_may_go_ahead_of_data() -> None:
    """Goal: on a connection of its own a count passes what waits at the port, and everything is delivered all the same.
    Method: a window of large messages waits there; an acknowledgement takes its latency, and no longer."""
    behind, ahead = (play(4, 1000, 10240, window=100, ahead=ahead) for ahead in (False, True))
    assert behind.finished and ahead.finished
    assert [counters["delivery_messages"] for counters in ahead.counters] == [4000] * 4
    assert behind.acknowledgement_s > 10 * ahead.acknowledgement_s
    assert ahead.acknowledgement_s >= STEADY.network.latency_ns * 1e-9
    assert sum(ahead.bytes_s) >= 0.98 * sum(behind.bytes_s)


@pytest.mark.parametrize("ahead", [False, True])
def test_what_a_pass_acknowledges_may_leave_once(ahead: bool) -> None:
    """Goal: received and delivered leave in one write, and those of several topics as one list of posts; everything is
    delivered all the same. Method: a topic that all send in, beside one without messages or with as many."""
    members = tuple(range(4))
    for topics in (1, 2):
        found = []
        for once in (False, True):
            specs = [SubgroupSpec(t + 1, members, members, 32, 1024) for t in range(topics)]
            senders = [Sender(rank, t + 1, 500, 1024) for t in range(topics) for rank in members]
            cluster = Cluster(STEADY, 4, specs, senders, ahead=ahead, once=once)
            try:
                found.append(cluster.run())
            finally:
                cluster.close()
        each, in_one = found
        assert each.finished and in_one.finished
        assert [counters["delivery_messages"] for counters in in_one.counters] == [2000 * topics] * 4
        assert in_one.writes < each.writes


def test_every_second_message_may_have_another_size() -> None:
    found = play(2, senders=[Sender(0, 1, 300, 1000, second_size=200)], size=1024)
    assert sum(counters["sent_bytes"] for counters in found.counters) == 150 * 1200
    only_used = play(2, senders=[Sender(0, 1, 300, 1000, second_size=200)], size=1024, range_cost=0)
    assert only_used.finished and only_used.bytes < 0.75 * found.bytes


def test_time_is_spent_on_something() -> None:
    """Goal: the parts of the predicate thread's time are its passes, those of the port's time what was posted. Method:
    without posts under a lock nothing waits for one."""
    found = play(4, 1000, 10240, parameters=PAPER)
    for rank in range(4):
        parts = [found.posting_s, found.looking_s, found.firing_s, found.delivering_s]
        assert all(part[rank] > 0 for part in parts)
        assert sum(part[rank] for part in parts) == pytest.approx(found.busy_s[rank], rel=0.05)
        assert 0 < found.port_counts_s[rank] < 0.1 * found.port_s[rank]
        assert found.port_s[rank] >= found.out_bytes[rank] / PAPER.network.bytes_s


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
    with pytest.raises(ValueError, match="all the time"):
        play(parameters=replace(STEADY, pauses={1_000_000: 1000.0}))
    with pytest.raises(ValueError, match="kinds"):
        play(parameters=replace(STEADY, pauses=dict.fromkeys(range(1, 1000), 1.0)))
    cluster = Cluster(STEADY, 2, [SubgroupSpec(1, (0, 1), (0, 1), 8, 64)], [Sender(0, 1, 1, 64)])
    cluster.run()
    with pytest.raises(RuntimeError, match="once"):
        cluster.run()
    cluster.close()
    cluster.close()


@pytest.mark.slow
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
