"""The core over the TCP fabric: what it promises over rows that are mapped, it promises over rows that are sent."""

from __future__ import annotations

import contextlib
import os
import threading
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.engine import SubgroupSpec
from spindle_core.epoch import CONTROL_PUSHES_MAX
from spindle_core.errors import Wedged, WriteTimeout
from spindle_core.fabric.tcp import TcpFabric
from tests.spindle_core.cluster import Cluster, asleep, connection
from tests.spindle_core.predicates.test_order import SWITCHES, run_script
from tests.support import descriptors_before, open_descriptors, wait_until

SCRIPT = st.lists(st.tuples(st.sampled_from("wwsss"), st.integers(0, 5)), max_size=60)


def change_view(cluster: Cluster, epoch: int) -> None:
    """As the membership machine drives it; nobody reads counts before they have arrived."""
    for engine in cluster.engines:
        engine.wedge()
    cluster.settle()
    for spec in cluster.specs:
        frozen = [cluster.epochs[0].frozen_counts(m, spec.topic_id) for m in spec.members]
        trim = [min(column) for column in zip(*frozen, strict=True)]
        for m in spec.members:
            assert cluster.engines[m].deliver_to_trim(spec.topic_id, trim)
    cluster.install(epoch, cluster.specs)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(n=st.integers(1, 4), window=st.sampled_from([1, 2, 5]), first=SCRIPT, second=SCRIPT,
       level=st.sampled_from([1, 2, 3]), switches=SWITCHES)
def test_one_order_and_nothing_lost_across_views(n, window, first, second, level, switches):
    """D2, D5, D6, D8, D9, D10: whatever was in flight at the wedge is delivered once, everywhere, in order."""
    cluster = Cluster(n, window=window, level=level, switches=switches, tcp=True)
    readers = [cluster.reader(i) for i in range(n)]
    writers = {i: cluster.writer(i) for i in range(n)}
    written = run_script(cluster, first, writers)
    change_view(cluster, 2)
    assert len({reader.pending for reader in readers}) == 1
    for node, messages in written.items():
        more = run_script(cluster, [s for s in second if s[0] == "s" or s[1] % n == node], {node: writers[node]})
        messages += list(more[node])
    cluster.settle()
    logs = [reader.take(10_000) for reader in readers]
    assert all(log == logs[0] for log in logs)
    for node, messages in written.items():
        assert [m for m in logs[0] if m.startswith(b"%d:" % node)] == messages
    assert all(writers[i].acknowledged == len(written[i]) for i in writers)


def undisturbed(cluster: Cluster, for_s: float) -> bool:
    """Nothing wakes a predicate thread meanwhile, and none looks at its connections.

    One look at who is asleep doesn't say so: a thread that says it falls asleep looks once more, and counts its sleep
    after that.
    """
    def counts() -> list[tuple[int, int]]:
        return [(engine.counters.snapshot()["sleeps"], engine.epoch.fabric.statistics()["receive_calls"])
                for engine in cluster.engines]

    before = counts()
    time.sleep(for_s)
    return counts() == before


@pytest.mark.parametrize("size", [8, 5000], ids=["short", "long"])
def test_threads_agree_sleep_and_stop(size: int) -> None:
    """With predicate threads: one order on three nodes, nobody spins when it is over, blocked readers wake up."""
    cluster = Cluster(3, window=16, size_max=size, tcp=True)
    readers = [cluster.reader(i, capacity=16 << 20) for i in range(3)]
    writers = [cluster.writer(i, size_max=size) for i in range(3)]
    cluster.start()
    try:
        for k in range(300):
            for rank, writer in enumerate(writers):
                writer.write((b"%d:%d;" % (rank, k)).ljust(size, b"."), timeout_s=30)
        assert all(writer.wait_acknowledged(30) for writer in writers)
        logs = []
        for reader in readers:
            got: list[bytes] = []
            while len(got) < 900:
                assert reader.wait(30)
                got += reader.take(1000)
            logs.append(got)
        assert logs[0] == logs[1] == logs[2]
        wait_until(lambda: all(map(asleep, cluster.engines)) and undisturbed(cluster, 0.2), 30)
        laps = [engine.counters.snapshot()["laps"] for engine in cluster.engines]
        writers[1].write(b"one more", timeout_s=30)
        assert writers[1].wait_acknowledged(30)
        assert all(reader.wait(30) and reader.take(2) for reader in readers)
        wait_until(lambda: all(engine.counters.snapshot()["laps"] > before  # counted behind what the lap has delivered
                               for engine, before in zip(cluster.engines, laps, strict=True)))
    finally:
        cluster.stop()


def frozen_at(cluster: Cluster, node: int) -> list[list[int]]:
    """What everybody has received, as far as this node has been told."""
    return [cluster.epochs[node].frozen_counts(rank, 1) for rank in range(cluster.n)]


def test_view_changes_under_load() -> None:
    """Direct writes from three threads across five views: each sender's messages in order, once, on all nodes; and what
    the last epoch still had to send arrives though the next one is installed."""
    cluster = Cluster(3, window=8, tcp=True)
    readers = [cluster.reader(i, capacity=8 << 20) for i in range(3)]
    cluster.start()
    over, counts = threading.Event(), [0, 0, 0]

    def write(rank: int) -> None:
        while not over.is_set():
            try:
                cluster.engines[rank].write(1, b"%d:%d" % (rank, counts[rank]), 0, 30)
            except Wedged:
                continue
            counts[rank] += 1

    threads = [threading.Thread(target=write, args=(rank,)) for rank in range(3)]
    try:
        for thread in threads:
            thread.start()
        for epoch in range(2, 7):
            before = list(counts)
            wait_until(lambda before=before: all(now > then for now, then in zip(counts, before, strict=True)), 30)
            for engine in cluster.engines:
                engine.wedge()
            wait_until(lambda: all(frozen_at(cluster, at) == [cluster.epochs[m].frozen_counts(m, 1) for m in range(3)]
                                   for at in range(3)), 30)
            trim = [min(column) for column in zip(*frozen_at(cluster, 0), strict=True)]
            for engine in cluster.engines:
                wait_until(lambda engine=engine, trim=trim: engine.deliver_to_trim(1, trim), 30)
            cluster.install(epoch, cluster.specs)
        over.set()
        for thread in threads:
            thread.join(30)
        logs = []
        for reader in readers:
            got: list[bytes] = []
            while len(got) < sum(counts):
                assert reader.wait(30)
                got += reader.take(1000)
            logs.append(got)
        wait_until(lambda: all(engine.tidy() for engine in cluster.engines), 30)
    finally:
        over.set()
        cluster.stop()
    assert logs[0] == logs[1] == logs[2]
    for rank in range(3):
        own = [m for m in logs[0] if m.startswith(b"%d:" % rank)]
        assert own == [b"%d:%d" % (rank, k) for k in range(counts[rank])]


@pytest.mark.slow
def test_the_last_word_of_an_epoch_arrives_though_the_next_one_is_installed() -> None:
    """What waits behind a full socket when a node goes on to the next view is sent as the other one takes it; until
    then the epoch is kept, and afterwards given back."""
    cluster = Cluster(2, window=64, size_max=60_000, tcp=True)
    ahead, behind = cluster.engines
    old = cluster.epochs
    size = old[0].row.size
    k = 0
    while old[0].fabric.drained or k < 50:
        old[0].fabric.post_writes([(1, size // 2 * (k % 2) + 8192, size // 2 - 8192)])
        k += 1
    old[0].set("installed", 7)
    old[0].push()
    ahead.step_once()
    new = cluster.prepare(2, cluster.specs)
    ahead.install(new[0])
    assert ahead.past is old[0] and not ahead.tidy() and old[1].get(0, "installed") == 0

    def arrived() -> bool:
        ahead.step_once()
        behind.step_once()
        return old[1].get(0, "installed") == 7

    wait_until(arrived, 30)
    wait_until(lambda: (ahead.step_once(), ahead.tidy())[1], 30)
    assert ahead.past is None


def test_a_row_of_another_view_is_refused() -> None:
    """What a peer says of its row is checked before anything of it is believed."""
    cluster = Cluster(2, tcp=True)
    epoch = cluster.engines[0].new_epoch(9, 0, [1, 2], cluster.specs, TcpFabric(0, 2))
    for layout_hash, size in ((1, epoch.row.size), (epoch.layout_hash(), epoch.row.size + 4096)):
        one, _other = connection()
        with pytest.raises(ValueError, match="another idea of the topics"):
            epoch.attach_stream(1, one.detach(), 1, layout_hash, size)
    with pytest.raises(ValueError, match="peer 0"):
        epoch.attach_stream(0, connection()[0].detach(), 1, epoch.layout_hash(), epoch.row.size)


def test_a_heartbeat_arrives_alone() -> None:
    """It is no news that the control thread has to look at, and brings no other column that isn't complete yet."""
    cluster = Cluster(2, tcp=True)
    cluster.settle()
    for engine in cluster.engines:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(engine.control_fd)
    mine, theirs = cluster.epochs
    mine.set("proposed", 7)
    mine.vouch(1, 1)
    cluster.settle()
    assert theirs.get(0, "heartbeat") == 1 and theirs.get(0, "proposed") == 0
    with pytest.raises(BlockingIOError):
        os.eventfd_read(cluster.engines[1].control_fd)
    mine.push()
    cluster.settle()
    assert theirs.get(0, "proposed") == 7 and os.eventfd_read(cluster.engines[1].control_fd)


# ---- a peer that is slow -------------------------------------------------------------------------------------------

TOPICS = [SubgroupSpec(1, (0, 1, 2), (0, 1, 2), 16, 3000, 1), SubgroupSpec(2, (0, 1, 2), (0, 1), 16, 3000, 0)]


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 1), st.integers(1, 2), st.integers(0, 3000)), min_size=50, max_size=400),
       st.integers(20, 200), SWITCHES)
def test_what_waits_for_a_slow_peer_is_bounded(writes, every, switches):
    """Node 2 looks at its sockets now and then only; the others write as much as they may, acknowledge each other, and
    post heartbeats all the time. It is never given up, the queue never holds more than the epoch said, and in the end
    all have everything."""
    cluster = Cluster(3, TOPICS, tcp=True, tcp_buffer=4096, switches=switches)
    readers = {(node, topic): cluster.reader(node, topic, capacity=4 << 20) for node in range(3) for topic in (1, 2)}
    written: dict[int, list[bytes]] = {1: [], 2: []}
    for k, (node, topic, size) in enumerate(writes):
        message = (b"%d:%d;" % (node, k)).ljust(size, b".")[:3000]
        with contextlib.suppress(WriteTimeout):
            cluster.engines[node].write(topic, message, 0, 0)
            written[topic].append(message)
        for who in (0, 1) if k % every else (0, 1, 2):
            cluster.epochs[who].vouch(1, 1)
            cluster.engines[who].step_once()
    for epoch in cluster.epochs:
        assert epoch.fabric.failures() == {}
        assert epoch.fabric.statistics()["waiting_max"] <= epoch.posts_waiting_max() - 4 * CONTROL_PUSHES_MAX
    cluster.settle()
    for topic in (1, 2):
        logs = [readers[node, topic].take(10_000) for node in range(3)]
        assert logs[0] == logs[1] == logs[2] or topic == 2
        assert all(sorted(log) == sorted(written[topic]) for log in logs)


def test_beats_and_acknowledgements_for_a_peer_that_hangs_wait_once() -> None:
    """However long it hangs: of 2,000 posts that are said again and again a few wait. Here: a window of slots, in four
    writes of at most 256 KiB, each with its count."""
    cluster = Cluster(2, tcp=True, tcp_buffer=64 << 10, window=16, size_max=60_000)
    ahead, behind = cluster.engines
    for _ in range(16):
        ahead.write(1, bytes(60_000), 0, 0)
    ahead.step_once()
    before = cluster.epochs[0].fabric.statistics()
    for _ in range(2000):
        cluster.epochs[0].vouch(1, 1)
        ahead.step_once()
    after = cluster.epochs[0].fabric.statistics()
    assert after["frames_sent"] == before["frames_sent"] and after["waiting_max"] <= 8
    cluster.settle()
    assert cluster.epochs[1].get(0, "heartbeat") == 2000
    assert behind.epoch.stability(1)["delivered"] == [31, 31]


# ---- ends ----------------------------------------------------------------------------------------------------------


def test_who_goes_on_to_the_next_view_first_is_no_failure_to_the_others() -> None:
    """Its connections of the old view end as soon as what it had to say has arrived there."""
    cluster = Cluster(3, tcp=True)
    old = cluster.epochs
    for engine in cluster.engines:
        engine.wedge()
    cluster.settle()
    for engine in cluster.engines:
        assert engine.deliver_to_trim(1, [0, 0, 0])
    new = cluster.prepare(2, cluster.specs)
    cluster.engines[0].install(new[0])
    wait_until(lambda: (cluster.engines[0].step_once(), cluster.engines[0].tidy())[1], 30)
    for rank in (1, 2):
        wait_until(lambda rank=rank: (cluster.engines[rank].step_once(), old[rank].fabric.departed)[1] == {0}, 30)
        assert old[rank].fabric.failures() == {}
        cluster.engines[rank].install(new[rank])
    wait_until(lambda: all([(e.step_once(), e.tidy())[1] for e in cluster.engines]), 30)
    assert all(epoch.fabric.failures() == {} for epoch in (*old, *new))


def test_stop_waits_until_all_has_arrived() -> None:
    """The last words of a leaver, behind a full socket: they arrive though its engine stops, and then the end."""
    cluster = Cluster(2, tcp=True, tcp_buffer=256 << 10, window=64, size_max=60_000)
    leaver, other = cluster.engines
    for _ in range(64):
        leaver.write(1, bytes(60_000), 0, 0)
    leaver.step_once()
    leaver.wedge()
    assert not cluster.epochs[0].fabric.drained
    thread = threading.Thread(target=leaver.stop, kwargs={"drain_s": 30})
    thread.start()
    wait_until(lambda: (other.step_once(), not thread.is_alive())[1], 30, interval_s=0)
    wait_until(lambda: (other.step_once(), cluster.epochs[1].fabric.departed)[1], 30)
    assert cluster.epochs[1].get(0, "wedged") == 1 and cluster.epochs[1].frozen_counts(0, 1) == [64, 0]
    assert cluster.epochs[1].fabric.failures() == {}


def test_stop_does_not_wait_for_ever() -> None:
    """A peer takes nothing any more. And in a view that goes on, who stops has gone without a word: a failure."""
    cluster = Cluster(2, tcp=True, tcp_buffer=256 << 10, window=64, size_max=60_000)
    for _ in range(64):
        cluster.engines[0].write(1, bytes(60_000), 0, 0)
    cluster.engines[0].step_once()
    before = time.monotonic()
    cluster.engines[0].stop(drain_s=0.2)
    assert 0.2 <= time.monotonic() - before < 5
    wait_until(lambda: (cluster.engines[1].step_once(), cluster.epochs[1].fabric.failures())[1], 30)
    assert list(cluster.epochs[1].fabric.failures()) == [0] and not cluster.epochs[1].fabric.departed


def test_an_install_that_fails_leaves_the_old_view_as_it_was() -> None:
    """A log too small for the next view's messages: said before anything has changed; the old view goes on."""
    cluster = Cluster(2, tcp=True, size_max=64)
    readers = [cluster.reader(node, capacity=4096, hot=1024) for node in range(2)]
    writer = cluster.writer(0)
    cluster.engines[0].start()
    new = cluster.prepare(2, [SubgroupSpec(1, (0, 1), (0, 1), 8, 60_000)])
    descriptors = descriptors_before()
    for _ in range(3):
        with pytest.raises(ValueError, match="it must hold two of them"):
            cluster.engines[0].install(new[0])
    assert cluster.engines[0].epoch is cluster.epochs[0]
    assert open_descriptors() <= descriptors + 2      # what the thread waits at
    writer.write(b"goes on", timeout_s=10)
    wait_until(lambda: (cluster.engines[1].step_once(), writer.acknowledged)[1] == 1, 30)
    assert [reader.take(9) for reader in readers] == [[b"goes on"]] * 2
    cluster.engines[0].stop()
