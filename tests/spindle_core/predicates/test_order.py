"""The order that the predicates make, whatever the interleaving: the heart of the promise, in one process.

Every test drives real engines step by step over real shared rows; hypothesis chooses who writes, who steps, and
which switches are on. Properties are named as in docs/reliability.md.
"""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.engine import SubgroupSpec, Switches
from spindle_core.fabric.sim import SimNetwork
from tests.spindle_core.cluster import Cluster

SWITCHES = st.builds(Switches, st.booleans(), st.booleans(), st.booleans(), st.just(True), st.booleans())


def run_script(cluster: Cluster, script: list[tuple[str, int]], writers: dict[int, object]) -> dict[int, list[bytes]]:
    """Plays writes ("w", sender) and single steps ("s", node); returns what each sender wrote, in order."""
    written: dict[int, list[bytes]] = {node: [] for node in writers}
    for what, node in script:
        if what == "s":
            cluster.engines[node % cluster.n].step_once()
        elif node % cluster.n in writers:
            node %= cluster.n
            message = b"%d:%d" % (node, len(written[node]))
            writer = writers[node]
            if writer.committed - writer.consumed < writer.slots_count:
                writer.write(message)
                written[node].append(message)
    return written


SCRIPT = st.lists(st.tuples(st.sampled_from("wwsss"), st.integers(0, 4)), max_size=120)


@settings(max_examples=150, deadline=None)
@given(n=st.integers(1, 5), window=st.sampled_from([1, 2, 3, 8]), senders=st.sets(st.integers(0, 4), min_size=1),
       script=SCRIPT, switches=SWITCHES)
def test_total_order_and_completeness(n, window, senders, script, switches):
    """D1, D2, D5, D6, D7: all members deliver the same sequence: every sender's messages, each once, in its order.

    Method: random writes and steps, then settle; compare all logs with each other and with what was written. With
    null-sends on this must hold for every set of senders, however unequal their traffic.
    """
    senders = sorted(s for s in senders if s < n) or [0]
    cluster = Cluster(n, window=window, senders=senders, switches=switches)
    readers = [cluster.reader(i) for i in range(n)]
    writers = {i: cluster.writer(i) for i in senders}
    written = run_script(cluster, script, writers)
    cluster.settle()
    logs = [[bytes(p) for p, _ in r.take_pairs(10_000)] for r in readers]
    assert all(log == logs[0] for log in logs)
    for node, messages in written.items():
        assert [m for m in logs[0] if m.startswith(b"%d:" % node)] == messages
    assert len(logs[0]) == sum(map(len, written.values()))
    assert all(writers[i].acknowledged == len(written[i]) for i in senders)


@settings(max_examples=100, deadline=None)
@given(n=st.integers(2, 5), script=SCRIPT)
def test_nulls_end(n, script):
    """N2, quiescence: when applications stop, pushes stop; nulls stay below (K + 1) * (n - 1).

    Method: settle() itself bounds the passes; K is the highest index of an application's message.
    """
    cluster = Cluster(n, window=8)
    writers = {i: cluster.writer(i) for i in range(n)}
    written = run_script(cluster, script, writers)
    cluster.settle()
    pushes = [e.counters.snapshot()["pushes"] for e in cluster.engines]
    assert cluster.settle() == 0
    assert [e.counters.snapshot()["pushes"] for e in cluster.engines] == pushes
    published = cluster.epochs[0].stability(1)["published"]
    nulls = sum(e.counters.snapshot()["nulls"] for e in cluster.engines)
    highest = max(published)
    assert nulls <= (highest + 1) * (n - 1)
    assert nulls + sum(map(len, written.values())) == sum(published)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 4), script=SCRIPT)
def test_delivered_only_when_stable(n, script):
    """D11, R1: nothing is delivered that some member has not received; counts only grow.

    Method: after every single step compare all members' numbers.
    """
    cluster = Cluster(n, window=4)
    writers = {i: cluster.writer(i) for i in range(n)}
    before = None
    for what, node in script:
        run_script(cluster, [(what, node)], writers)
        now = cluster.epochs[0].stability(1)
        assert max(now["delivered"]) <= min(now["received"])
        if before is not None:
            for key in ("published", "received", "delivered"):
                assert all(a <= b for a, b in zip(before[key], now[key], strict=True))
        before = now


def test_without_nulls_a_silent_sender_holds_everybody_up():
    """The switch null_sends really changes the behaviour: off, nothing behind a silent sender's turn is delivered."""
    cluster = Cluster(3, switches=Switches(null_sends=False))
    reader = cluster.reader(0)
    writer = cluster.writer(1)
    for k in range(3):
        writer.write(b"%d" % k)
    cluster.settle()
    assert reader.take(10) == []
    assert cluster.epochs[0].stability(1)["received"] == [0, 0, 0]


@pytest.mark.parametrize(
    ("switch", "counter"),
    [("batch_send", "send_batches"), ("batch_receive", "receive_batches"), ("batch_delivery", "delivery_batches")],
)
def test_each_batching_switch_makes_one_push_of_many(switch, counter):
    """Each switch changes its own stage: on, six messages take one batch; off, six (paper, section 3.2)."""
    seen = {}
    for on in (True, False):
        cluster = Cluster(2, senders=[0], switches=Switches(**{switch: on}))
        writer = cluster.writer(0)
        for k in range(6):
            writer.write(b"%d" % k)
        cluster.settle()
        seen[on] = cluster.engines[0].counters.snapshot()[counter]
    assert seen == {True: 1, False: 6}


def test_unordered_is_fifo_per_sender_without_waiting_for_the_group():
    """An unordered topic delivers what has arrived although another member has not even looked."""
    cluster = Cluster(3, level=0)
    reader = cluster.reader(1)
    writer = cluster.writer(0)
    for k in range(5):
        writer.write(b"%d" % k)
    cluster.engines[0].step_once()
    cluster.engines[1].step_once()
    assert reader.take(10) == [b"0", b"1", b"2", b"3", b"4"]
    cluster.settle()
    assert sum(e.counters.snapshot()["nulls"] for e in cluster.engines) == 0
    for k in range(20):
        writer.write(b"%d" % k, timeout_s=0)
        cluster.settle()
    assert reader.take(100) == [b"%d" % k for k in range(20)]


def test_declared_silence_costs_one_number_and_wakes_nobody():
    """A sender that declares 1000 silent rounds sends them as one run; the others go on and answer with no nulls.

    Method: node 1 declares; node 2 sends 30 messages through a window of 8; nulls of the others stay at what the
    messages ask for, and node 1 sends no further ones.
    """
    cluster = Cluster(3, window=8)
    readers = [cluster.reader(i) for i in range(3)]
    assert cluster.engines[0].declare_silence(1, 1000) == 1000
    cluster.settle()
    assert cluster.engines[0].counters.snapshot()["nulls"] == 1000
    assert [e.counters.snapshot()["nulls"] for e in cluster.engines[1:]] == [0, 0]
    writer = cluster.writer(1)
    for k in range(30):
        writer.write(b"%d" % k, timeout_s=0)
        cluster.settle()
    assert all(r.take(100) == [b"%d" % k for k in range(30)] for r in readers)
    assert cluster.engines[0].counters.snapshot()["nulls"] == 1000
    late = cluster.writer(0)
    late.write(b"late")
    for _ in range(1000):
        writer.write(b"more", timeout_s=0)
        cluster.settle()
    assert readers[2].take(2000).count(b"late") == 1


def test_an_open_claim_is_never_taken_by_a_null():
    """N4: peer traffic asks for nulls while this node holds a claim: they go behind it, not over it."""
    cluster = Cluster(2, window=4)
    readers = [cluster.reader(i) for i in range(2)]
    other = cluster.writer(1)
    claim = cluster.engines[0].claim(1)
    for k in range(3):
        other.write(b"%d" % k)
    cluster.settle()
    assert readers[0].take(10) == readers[1].take(10) == []
    claim.commit(b"mine")
    cluster.settle()
    assert readers[0].take(10) == readers[1].take(10) == [b"mine", b"0", b"1", b"2"]


@pytest.mark.parametrize("shared", [True, False], ids=["shared rows", "copied rows"])
def test_nothing_is_published_over_a_claim_that_is_open(shared: bool):
    """R4: claims may be committed in any order, and are delivered in the order of the claims.

    Method: a ring that went round before, so that an open slot still has an old message in it; three claims, committed
    last first, with everything sent and landed in between.
    """
    cluster = Cluster(2, window=4, senders=[0], network=None if shared else SimNetwork())
    readers = [cluster.reader(i) for i in range(2)]
    for k in range(6):
        cluster.engines[0].write(1, b"%d" % k)
        cluster.settle()
    assert [r.take(9) for r in readers] == [[b"%d" % k for k in range(6)]] * 2
    claims = [cluster.engines[0].claim(1) for _ in range(3)]
    for k in (2, 1):
        claims[k].commit(b"claim %d" % k)
        cluster.settle()
        assert [r.take(9) for r in readers] == [[], []]
    claims[0].commit(b"claim 0")
    cluster.settle()
    assert [r.take(9) for r in readers] == [[b"claim 0", b"claim 1", b"claim 2"]] * 2
    assert all(e.counters.snapshot()["corrupt_slots"] == 0 for e in cluster.engines)


def test_two_topics_do_not_touch_each_other():
    """Independent subgroups over overlapping members keep their own order, windows and counts."""
    specs = [SubgroupSpec(1, (0, 1, 2), (0, 1), 4, 32, 1), SubgroupSpec(9, (1, 2), (2,), 2, 128, 1)]
    cluster = Cluster(3, specs)
    one = [cluster.reader(i, 1) for i in range(3)]
    nine = [cluster.reader(i, 9) for i in (1, 2)]
    a, b = cluster.writer(0, 1, size_max=32), cluster.writer(2, 9, size_max=128)
    for k in range(10):
        a.write(b"a%d" % k, timeout_s=0)
        b.write(b"b%d" % k, timeout_s=0)
        cluster.settle()
    assert all(r.take(99) == [b"a%d" % k for k in range(10)] for r in one)
    assert all(r.take(99) == [b"b%d" % k for k in range(10)] for r in nine)
