"""What becomes of messages in flight from one view to the next: wedge, ragged trim, install, re-send."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.engine import SubgroupSpec
from spindle_core.errors import Wedged
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.predicates.test_order import SCRIPT, run_script


def change_view(cluster: Cluster, epoch: int, specs: list[SubgroupSpec]) -> None:
    """A clean view change as the membership machine drives it: wedge all, trim to the minimum, deliver, install."""
    for engine in cluster.engines:
        engine.wedge()
    for spec in cluster.specs:
        frozen = [cluster.epochs[m].frozen_counts(m, spec.topic_id) for m in spec.members]
        trim = [min(column) for column in zip(*frozen, strict=True)]
        for m in spec.members:
            assert cluster.engines[m].deliver_to_trim(spec.topic_id, trim)
    cluster.install(epoch, specs)


@settings(max_examples=120, deadline=None)
@given(n=st.integers(1, 4), window=st.sampled_from([1, 2, 5]), first=SCRIPT, second=SCRIPT,
       level=st.sampled_from([1, 2, 3]))
def test_nothing_is_lost_or_doubled_across_views(n, window, first, second, level):
    """D2, D8, D9, D10 in the clean case: whatever was in flight at the wedge is delivered once, everywhere, in order.

    Method: random writes and steps, a view change at an arbitrary moment, more of them, settle, compare.
    """
    cluster = Cluster(n, window=window, level=level)
    readers = [cluster.reader(i) for i in range(n)]
    writers = {i: cluster.writer(i) for i in range(n)}
    written = run_script(cluster, first, writers)
    change_view(cluster, 2, cluster.specs)
    logs_at_install = [r.pending for r in readers]
    assert len(set(logs_at_install)) == 1
    for node, messages in written.items():
        more = run_script(cluster, [s for s in second if s[0] == "s" or s[1] % n == node], {node: writers[node]})
        messages += [m for m in more[node]]
    cluster.settle()
    logs = [[bytes(p) for p, _ in r.take_pairs(10_000)] for r in readers]
    assert all(log == logs[0] for log in logs)
    for node, messages in written.items():
        assert [m for m in logs[0] if m.startswith(b"%d:" % node)] == messages
    assert all(writers[i].acknowledged == len(written[i]) for i in writers)


def test_many_topics_are_delivered_to_their_trims_at_once():
    """deliver_trims() does what deliver_to_trim() does for each: it names those whose reader has no room, and refuses a
    trim that is not one of the subgroup."""
    specs = [SubgroupSpec(topic_id, (0, 1), (0,), 8, 64) for topic_id in (1, 2, 3)]
    cluster = Cluster(2, specs)
    readers = {topic_id: cluster.reader(1, topic_id, capacity=4096) for topic_id in (1, 2)}
    writers = {topic_id: cluster.writer(0, topic_id) for topic_id in (1, 2)}
    cluster.engines[1].hold_delivery(2)
    for topic_id, writer in writers.items():
        writer.write(b"%d" % topic_id)
    cluster.settle()
    with pytest.raises(ValueError, match="wedge first"):
        cluster.engines[1].deliver_trims({1: [1]})
    for engine in cluster.engines:
        engine.wedge()
    with pytest.raises(ValueError, match="a trim of 2 counts for 1 senders"):
        cluster.engines[1].deliver_trims({1: [1, 0]})
    assert cluster.engines[1].deliver_trims({1: [1], 2: [1], 3: [0]}) == [2]
    assert [one[0] for one in cluster.engines[1].take_undelivered(2, [1])] == [b"2"]
    assert readers[1].take(9) == [b"1"] and readers[2].take(9) == []


def test_what_the_trim_cuts_off_is_sent_again_first():
    """Membership 7: messages beyond the trim are the first of the next view, in their old order.

    Method: node 0 publishes three messages that node 1 has not looked at when everybody freezes, so the trim is 0.
    """
    cluster = Cluster(2, window=4)
    readers = [cluster.reader(i) for i in range(2)]
    writer = cluster.writer(0)
    for k in range(3):
        writer.write(b"%d" % k)
    cluster.engines[1].wedge()
    cluster.engines[0].step_once()
    cluster.engines[0].wedge()
    assert cluster.epochs[0].frozen_counts(0, 1) == [3, 0] and cluster.epochs[1].frozen_counts(1, 1) == [0, 0]
    for engine in cluster.engines:
        assert engine.deliver_to_trim(1, [0, 0])
    writer.write(b"3")
    cluster.install(2, cluster.specs)
    cluster.settle()
    assert [r.take(10) for r in readers] == [[b"0", b"1", b"2", b"3"]] * 2
    assert cluster.engines[0].counters.snapshot()["resent_messages"] == 3
    assert writer.acknowledged == 4


@pytest.mark.parametrize("level", [1, 2, 3])
def test_who_owes_its_readers_something_takes_no_more(level):
    """Q1: a reader that stands still costs its node one window of each sender, however many views come and go; and it
    gets everything once it takes.

    Method: the node of a reader whose log is full keeps what trims deliver, as a node does, over twenty views in which
    the writer fills its window.
    """
    cluster = Cluster(2, window=4, level=level)
    free, slow = cluster.reader(0), cluster.reader(1, capacity=4096)
    log, writer = cluster.logs[1, 1], cluster.writer(0)
    got: list[list[bytes]] = [[], []]
    owed: list[tuple[object, ...]] = []
    written = most = 0
    for view in range(2, 22):
        for _ in range(200):
            if writer.committed - writer.consumed < writer.slots_count:
                writer.write(b"%04d" % written + bytes(28))
                written += 1
            cluster.settle()
            got[0] += free.take(1000)
        for engine in cluster.engines:
            engine.wedge()
        frozen = [cluster.epochs[m].frozen_counts(m, 1) for m in (0, 1)]
        trim = [min(column) for column in zip(*frozen, strict=True)]
        assert cluster.engines[0].deliver_to_trim(1, trim)
        if not cluster.engines[1].deliver_to_trim(1, trim):
            kept = cluster.engines[1].take_undelivered(1, trim)
            owed += [(payload, sender, sequence, view, ns, writer_id, 0, relay, tag, key, large)
                     for payload, sender, sequence, ns, writer_id, relay, tag, key, large in kept]
            cluster.engines[1].hold_delivery(1, receipt=bool(kept))
        most = max(most, len(owed))
        cluster.install(view, cluster.specs)
    assert 0 < most <= 4
    while owed or len(got[1]) < written:
        before = len(got[1]) - len(owed)
        got[1] += slow.take(1000)
        while owed and log.append(*owed[0]):
            owed.pop(0)
        if not owed:
            cluster.engines[1].release_delivery(1)
        cluster.settle()
        got[0] += free.take(1000)
        assert len(got[1]) - len(owed) > before or len(got[1]) == written
    assert got[0] == got[1] and [int(one[:4]) for one in got[1]] == list(range(written))


def test_a_wedged_epoch_carries_nothing():
    """After the wedge nothing is sent, received or delivered, and the received counts stay frozen."""
    cluster = Cluster(2)
    reader = cluster.reader(1)
    writer = cluster.writer(0)
    for engine in cluster.engines:
        engine.wedge()
    writer.write(b"later")
    cluster.settle()
    assert reader.take(1) == [] and writer.consumed == 0
    assert cluster.epochs[0].get(0, "wedged") == 1 and cluster.epochs[1].get(0, "wedged") == 1


def test_the_wedge_says_for_which_decision_and_stands():
    """The column "wedged" is the ballot of the decision now; a later call changes nothing."""
    cluster = Cluster(2)
    with pytest.raises(ValueError, match="ballot 0"):
        cluster.engines[0].wedge(0)
    cluster.engines[0].wedge(7, open_claim_timeout_s=0)
    cluster.engines[0].wedge(9)
    assert cluster.epochs[1].get(0, "wedged") == 7


def test_a_claim_that_is_open_at_the_end_of_a_view_becomes_a_null():
    """R4: what was committed behind it is delivered in the old view; its owner is told, then and ever after."""
    cluster = Cluster(2)
    readers = [cluster.reader(i) for i in range(2)]
    first, claim = cluster.engines[0].claim(1), cluster.engines[0].claim(1)
    cluster.engines[0].write(1, b"behind")
    first.commit(b"before")
    cluster.settle()
    assert [r.take(9) for r in readers] == [[b"before"]] * 2
    for engine in cluster.engines:
        engine.wedge(open_claim_timeout_s=0)
    with pytest.raises(Wedged, match="try again"):
        claim.commit(b"late")
    change_view(cluster, 2, cluster.specs)
    assert [r.take(9) for r in readers] == [[b"behind"]] * 2
    with pytest.raises(ValueError, match="is over"):
        claim.commit(b"again")


@pytest.mark.parametrize("silent", [False, True], ids=["asked for", "declared"])
def test_nulls_behind_a_claim_that_is_open_at_the_end_of_a_view(silent: bool):
    """R4, N4: a run of nulls longer than the ring, in the one slot that is left, stays what it is when the open claim
    before it becomes a null (seed 223 of a run)."""
    cluster = Cluster(2, window=3)
    readers = [cluster.reader(i) for i in range(2)]
    first, claim = cluster.engines[0].claim(1), cluster.engines[0].claim(1)
    if silent:
        cluster.engines[0].declare_silence(1, 7)
    for k in range(3):
        cluster.engines[1].write(1, b"%d" % k)
    cluster.settle()
    first.commit(b"first")
    cluster.settle()
    for engine in cluster.engines:
        engine.wedge(open_claim_timeout_s=0)
    change_view(cluster, 2, cluster.specs)
    with pytest.raises(Wedged):
        claim.commit(b"late")
    cluster.settle()
    assert [r.take(9) for r in readers] == [[b"first", b"0", b"1", b"2"]] * 2
    assert all(e.counters.snapshot()["corrupt_slots"] == 0 for e in cluster.engines)


def test_a_trim_beyond_what_was_received_is_refused():
    """T3: a trim that this member could not follow is an error, not a guess."""
    cluster = Cluster(2)
    cluster.engines[0].wedge()
    with pytest.raises(ValueError, match="beyond what was received"):
        cluster.engines[0].deliver_to_trim(1, [5, 0])


def test_messages_of_a_node_that_is_no_sender_any_more_are_reported():
    """Never lost without being told: install says how many messages could not go on."""
    cluster = Cluster(2)
    writer = cluster.writer(0)
    cluster.engines[1].wedge()
    writer.write(b"stranded")
    cluster.engines[0].step_once()
    cluster.engines[0].wedge()
    for engine in cluster.engines:
        engine.deliver_to_trim(1, [0, 0])
    unsent = cluster.install(2, [SubgroupSpec(1, (0, 1), (1,), 8, 64, 1)])
    assert unsent == [{1: 1}, {}]
