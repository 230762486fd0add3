"""The send predicate: one push for all there is, the smallest windows, fairness between writers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.engine import Switches
from spindle_core.fabric.sim import SimNetwork
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.predicates.test_order import SWITCHES


@settings(max_examples=80, deadline=None)
@given(n=st.integers(1, 3), slots=st.integers(1, 3), sizes=st.lists(st.integers(0, 64), max_size=40), switches=SWITCHES)
def test_a_window_of_one_carries_everything(n: int, slots: int, sizes: list[int], switches: Switches) -> None:
    """Goal: the smallest window, one slot, is slow but right, whatever is switched off. (The largest messages too.)

    Method: all nodes send in turn through windows of one; each message waits until the former is delivered everywhere.
    """
    cluster = Cluster(n, window=1, size_max=64, switches=switches)
    readers = [cluster.reader(i) for i in range(n)]
    writers = [cluster.writer(i, slots=slots) for i in range(n)]
    sent: list[list[bytes]] = [[] for _ in range(n)]
    for k, size in enumerate(sizes):
        who = k % n
        message = bytes([who + 1]) * size
        if writers[who].committed - writers[who].consumed == slots:
            cluster.settle()
        writers[who].write(message, timeout_s=0)
        sent[who].append(message)
    cluster.settle()
    logs = [r.take(1000) for r in readers]
    assert all(log == logs[0] for log in logs)
    assert sorted(logs[0]) == sorted(m for messages in sent for m in messages)
    for who in range(n):
        assert [m for m in logs[0] if m and m[0] == who + 1] == [m for m in sent[who] if m]


@pytest.mark.parametrize("window", [3, 8])
def test_batches_go_over_the_end_of_the_ring(window: int) -> None:
    """Goal: paper, section 3.2: a push carries all there is, at most two ranges of slots, wherever in the ring that is.

    Method: batches of every size from every place of the ring; pushes per batch (a second one where the sender had to
    look again how many slots are free), and what arrives.
    """
    cluster = Cluster(2, window=window, senders=[0])
    reader, writer = cluster.reader(1), cluster.writer(0)
    k = 0
    for n in [*range(1, window + 1), *range(window, 0, -1)] * 2:
        before = cluster.engines[0].counters.snapshot()
        messages = [b"%d" % (k + i) for i in range(n)]
        writer.write_many(messages, timeout_s=0)
        cluster.settle()
        after = cluster.engines[0].counters.snapshot()
        assert 1 <= after["send_batches"] - before["send_batches"] <= 2
        assert after["send_messages"] - before["send_messages"] == n
        assert after["sent_bytes"] - before["sent_bytes"] == sum(map(len, messages))
        assert reader.take(99) == messages
        k += n


def test_writers_of_one_node_share_its_slots() -> None:
    """Goal: with slots scarce, no writer of a node starves behind another that always has more.

    Method: three writers keep their inboxes full before a window of two; after many passes each has had its share.
    """
    cluster = Cluster(2, window=2, senders=[0])
    writers = [cluster.writer(0, slots=4) for _ in range(3)]
    for _ in range(200):
        for who, writer in enumerate(writers):
            while writer.committed - writer.consumed < 4:
                writer.write(b"%d" % who, timeout_s=0)
        cluster.engines[0].step_once()
        cluster.engines[1].step_once()
    shares = [writer.consumed for writer in writers]
    assert min(shares) > max(shares) / 2 > 10


def test_a_full_ring_is_a_stall_and_not_a_loss() -> None:
    """Goal: messages wait in their inbox while no slot is free; the stall is counted, and ends with delivery."""
    cluster = Cluster(2, window=2, senders=[0])
    reader, writer = cluster.reader(1), cluster.writer(0, slots=8)
    writer.write_many([b"%d" % k for k in range(8)], timeout_s=0)
    for _ in range(5):
        cluster.engines[0].step_once()
    assert writer.consumed == 2 and cluster.engines[0].counters.snapshot()["stalls"] > 0
    cluster.settle()
    assert reader.take(9) == [b"%d" % k for k in range(8)] and writer.acknowledged == 8


@pytest.mark.parametrize("window", [1, 2, 3, 5, 8, 9])
def test_a_window_is_exact_whatever_its_ring_holds(window: int) -> None:
    """Goal: a ring has the next power of two of slots; how many messages wait for a slow member is agreed all the same.

    Method: the other member doesn't run; over many times round the ring everything arrives as it was written.
    """
    cluster = Cluster(2, window=window, senders=[0])
    reader, writer = cluster.reader(1), cluster.writer(0, slots=64)
    for first in range(0, 60, 20):
        messages = [b"%d" % (first + k) for k in range(20)]
        taken = writer.consumed
        writer.write_many(messages, timeout_s=0)
        for _ in range(4):
            cluster.engines[0].step_once()
        assert writer.consumed - taken == window
        cluster.settle()
        assert reader.take(99) == messages


def test_a_removed_inbox_is_left_alone() -> None:
    """Goal: what was taken over from an inbox goes out, the rest stays, and goes out when it is added again."""
    cluster = Cluster(1, window=2)
    reader, writer = cluster.reader(0), cluster.writer(0, slots=8)
    inbox = cluster.kept[-1]
    writer.write_many([b"%d" % k for k in range(5)], timeout_s=0)
    cluster.engines[0].step_once()
    cluster.engines[0].remove_inbox(1, inbox)
    cluster.engines[0].remove_inbox(1, inbox)
    cluster.settle()
    assert writer.consumed < 5
    got = reader.take(9)
    assert got == [b"%d" % k for k in range(writer.consumed)]
    cluster.engines[0].add_inbox(1, inbox)
    cluster.settle()
    assert got + reader.take(9) == [b"%d" % k for k in range(5)]


@pytest.mark.parametrize("ahead", [False, True], ids=["", "acknowledgements first"])
@pytest.mark.parametrize("batch, pieces", [(True, 1 << 40), (True, 1100), (False, 1 << 40)],
                         ids=["batches", "pieces", "one by one"])
def test_the_count_is_on_its_way_behind_all_that_it_guards(batch: bool, pieces: int, ahead: bool) -> None:
    """R4 where rows are copied: whenever a member sees that a message was published, all of its bytes are there; also
    of a batch that goes over the end of the ring, and of one with counts in between.

    Method: what was posted lands line by line; before each line everything that is published is compared.
    """
    network = SimNetwork(late=False, push_bytes=pieces)
    cluster = Cluster(2, window=3, size_max=1000, senders=[0], switches=Switches(batch_send=batch), network=network)
    reader, sender = cluster.reader(1), cluster.engines[0]
    sent = [bytes([65 + k]) * 1000 for k in range(8)]
    for begin, end in ((0, 2), (2, 5), (5, 8)):
        for message in sent[begin:end]:
            sender.write(1, message)
        while sender.step_once():
            pass
        mine, theirs = bytes(cluster.epochs[0].row.view()), cluster.epochs[1].fabric.row_of(0)
        while network.land(1, 2, ahead=ahead):
            published = cluster.epochs[1].stability(1)["published"][0]
            for message in sent[begin:published]:
                place = mine.find(message)
                assert bytes(theirs[place : place + 1000]) == message
        cluster.settle()
    assert reader.take(9) == sent


def test_of_a_large_batch_members_see_the_begin_before_the_end() -> None:
    """Where a batch takes its time on the way, a count follows after each push_bytes of it, at the earliest after one
    message: with room for two, five messages of one push become visible 2, 2 and 1 at a time."""
    network = SimNetwork(late=False, joins=False, push_bytes=2 * (1000 + 32))
    cluster = Cluster(2, window=8, size_max=1000, senders=[0], network=network)
    sender, seen = cluster.engines[0], []
    for k in range(5):
        sender.write(1, bytes([65 + k]) * 1000)
    assert sender.step_once()
    while network.land(1, 2):
        seen += [n for n in cluster.epochs[1].stability(1)["published"] if n not in seen]
    assert seen == [0, 2, 4, 5]
    cluster.settle()
    assert cluster.reader(1).take(9) == []
    counters = cluster.engines[0].counters.snapshot()
    assert counters["send_batches"] == 1 and counters["send_messages"] == 5


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 600), st.integers(-9, -1)), max_size=40),
       st.sampled_from([0, 40, 300, 1 << 40]), st.booleans(), st.integers(1, 6))
def test_unused_bytes_are_posted_where_ranges_cost_more(turns, range_cost, joins, together):
    """Of slots that are half empty, and of runs of nulls, go over the network what is used, and gaps up to what a
    further post costs; what is delivered is the same. Nulls are a silence of so many rounds."""
    network = SimNetwork(late=False, joins=joins, range_cost=range_cost)
    cluster = Cluster(2, window=5, size_max=600, senders=[0], network=network)
    reader, sender = cluster.reader(1), cluster.engines[0]
    sent, used = [], 0
    before = network.counts()
    for k, turn in enumerate(turns):
        if turn >= 0:
            sent.append(bytes([k]) * turn)
            sender.write(1, sent[-1], 0, 0)
        else:
            sender.declare_silence(1, -turn)
        used += 32 + max(0, turn + 7 & ~7)
        if k % together == 0 or k % 5 == 4 or turn < 0:
            cluster.settle()
    cluster.settle()
    assert reader.take(1000) == sent
    after = network.counts()
    columns = 64 * (after["posts"] - before["posts"])      # at most: whatever isn't a range of slots is a line
    posted = after["bytes"] - before["bytes"]
    assert used <= posted
    if range_cost == 0:
        assert posted <= used + columns
