"""The protocol over verbs: rows are copies, written by an RDMA device, so nothing is visible before it has arrived.

In one process on one device; `make rdma-test` runs it on a guest, and groups of several guests besides. Properties are
named as in docs/reliability.md.
"""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.engine import Switches
from tests.spindle_core.cluster import Cluster, asleep
from tests.spindle_core.fabric.verbs_peers import needs_verbs
from tests.spindle_core.predicates.test_order import SWITCHES, run_script
from tests.spindle_core.test_over_tcp import change_view
from tests.support import wait_until

pytestmark = needs_verbs

SCRIPT = st.lists(st.tuples(st.sampled_from("wwsss"), st.integers(0, 5)), max_size=40)


@settings(max_examples=10, deadline=None)
@given(n=st.integers(1, 3), window=st.sampled_from([1, 2, 5]), first=SCRIPT, second=SCRIPT,
       level=st.sampled_from([1, 2, 3]), switches=SWITCHES)
def test_one_order_and_nothing_lost_across_views(n, window, first, second, level, switches):
    """D2, D5, D6, D8, D9, D10: whatever was in flight at the wedge is delivered once, everywhere, in order."""
    cluster = Cluster(n, window=window, level=level, switches=switches, verbs=True)
    readers = [cluster.reader(i) for i in range(n)]
    writers = {i: cluster.writer(i) for i in range(n)}
    written = run_script(cluster, first, writers)
    change_view(cluster, 2)
    for node, messages in written.items():
        more = run_script(cluster, [s for s in second if s[0] == "s" or s[1] % n == node], {node: writers[node]})
        messages += list(more[node])
    cluster.settle()
    logs = [reader.take(10_000) for reader in readers]
    assert all(log == logs[0] for log in logs)
    for node, messages in written.items():
        assert [m for m in logs[0] if m.startswith(b"%d:" % node)] == messages
    assert all(writers[i].acknowledged == len(written[i]) for i in writers)


def all_asleep(cluster: Cluster) -> bool:
    return all(map(asleep, cluster.engines))


def statistics(cluster: Cluster) -> list[dict[str, int]]:
    return [engine.epoch.fabric.statistics() for engine in cluster.engines]


@pytest.mark.parametrize("size", [8, 5000], ids=["short", "long"])
def test_threads_agree_sleep_and_wake_up(size: int) -> None:
    """With predicate threads: one order on three nodes, nobody is woken when it is over, and who sleeps wakes up."""
    cluster = Cluster(3, window=16, size_max=size, verbs=True)
    readers = [cluster.reader(i, capacity=16 << 20) for i in range(3)]
    writers = [cluster.writer(i, size_max=size) for i in range(3)]
    cluster.start()
    try:
        for k in range(100):
            for rank, writer in enumerate(writers):
                writer.write((b"%d:%d;" % (rank, k)).ljust(size, b"."), timeout_s=30)
        assert all(writer.wait_acknowledged(30) for writer in writers)
        logs = []
        for reader in readers:
            got: list[bytes] = []
            while len(got) < 300:
                assert reader.wait(30)
                got += reader.take(1000)
            logs.append(got)
        assert logs[0] == logs[1] == logs[2]
        wait_until(lambda: all_asleep(cluster), 30)
        time.sleep(0.2)
        before = statistics(cluster), [engine.counters.snapshot()["sleeps"] for engine in cluster.engines]
        time.sleep(0.3)
        assert before == (statistics(cluster), [engine.counters.snapshot()["sleeps"] for engine in cluster.engines])
        for turn in range(20):
            wait_until(lambda: all_asleep(cluster), 30)
            writers[turn % 3].write(b"one more", timeout_s=30)
            assert writers[turn % 3].wait_acknowledged(30)
            assert all(reader.wait(30) and reader.take(2) for reader in readers)
    finally:
        cluster.stop()


def test_an_epoch_is_given_back_once_its_last_words_have_arrived() -> None:
    """Three views of a running group; each one's connections and pinned memory go when all has arrived."""
    cluster = Cluster(2, window=8, verbs=True)
    readers = [cluster.reader(i) for i in range(2)]
    writers = [cluster.writer(i) for i in range(2)]
    for epoch in (2, 3, 4):
        for writer in writers:
            writer.write(b"of view %d" % epoch)
        change_view(cluster, epoch)
        wait_until(lambda: ([engine.step_once() for engine in cluster.engines],
                            all([engine.tidy() for engine in cluster.engines]))[1], 30)
        assert all(engine.past is None for engine in cluster.engines)
    cluster.settle()
    assert readers[0].take(100) == readers[1].take(100)


def flood(switches: Switches, messages: int) -> dict[str, float]:
    """Messages from three senders as fast as they go; what the fabric did for each that was delivered at a node."""
    cluster = Cluster(3, window=64, size_max=64, switches=switches, verbs=True)
    readers = [cluster.reader(i, capacity=16 << 20) for i in range(3)]
    writers = [cluster.writer(i, slots=256, size_max=64) for i in range(3)]
    cluster.start()
    try:
        before = statistics(cluster)
        for k in range(messages):
            for writer in writers:
                writer.write(b"%060d" % k, timeout_s=60)
        assert all(writer.wait_acknowledged(60) for writer in writers)
        for reader in readers:
            taken = 0
            while taken < 3 * messages:
                assert reader.wait(60)
                taken += len(reader.take(1000))
        grown = {name: sum(now[name] - then[name] for now, then in zip(statistics(cluster), before, strict=True))
                 for name in before[0]}
    finally:
        cluster.stop()
    delivered = 3 * 3 * messages
    return {"posts": grown["posts"] / delivered, "work requests": grown["work_requests"] / delivered,
            "doorbells": grown["doorbells"] / delivered, "per doorbell": grown["work_requests"] / grown["doorbells"],
            "signalled": grown["signalled"] / grown["work_requests"]}


def test_batches_save_posts(capsys: pytest.CaptureFixture[str]) -> None:
    """The paper's point, on a device where each post costs: at least five times fewer with everything on."""
    off, on = flood(Switches.baseline(), 150), flood(Switches(), 1500)
    with capsys.disabled():
        for name, figures in (("all off", off), ("all on", on)):
            print(f"\n{name}: per message delivered at a node {figures['posts']:.3f} posts,"
                  f" {figures['work requests']:.3f} work requests, {figures['doorbells']:.3f} doorbells;"
                  f" {figures['per doorbell']:.2f} work requests per doorbell, {figures['signalled']:.1%} signalled")
    assert on["work requests"] * 5 <= off["work requests"] and on["posts"] * 5 <= off["posts"]
