"""The persist predicate: a writer hears "on disk" exactly when every member's journal has said so."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.engine import Engine, Switches
from tests.spindle_core.cluster import Cluster

MARKS = 1024  # deliveries that a node remembers one by one


def test_more_deliveries_than_marks() -> None:
    """Goal: a journal that lags by more deliveries than are remembered one by one makes persisted coarser, never early,
    and in the end complete.

    Method: 2,500 deliveries of one message each before the journals say anything; then they advance in odd steps.
    """
    cluster = Cluster(2, level=3, window=64, senders=[0], switches=Switches(batch_delivery=False))
    reader = cluster.reader(0)
    cluster.reader(1)
    writer = cluster.writer(0, slots=64)
    n = 2500
    for k in range(0, n, 50):
        writer.write_many([b"%d" % (k + i) for i in range(50)], timeout_s=0)
        cluster.settle()
    assert reader.pending == n and (writer.acknowledged, writer.persisted) == (n, 0)
    seen = []
    for durable in [*range(0, n, 77), n]:
        for engine in cluster.engines:
            engine.set_durable(1, durable)
        cluster.settle()
        assert writer.persisted <= durable
        seen.append(writer.persisted)
        assert all(p <= durable for p in cluster.epochs[0].stability(1)["persisted"])
    assert seen == sorted(seen) and writer.persisted == n
    assert cluster.epochs[0].stability(1)["persisted"] == [n, n]


@settings(max_examples=80, deadline=None)
@given(
    n=st.integers(1, 3),
    steps=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 2)),
            st.tuples(st.just("step"), st.integers(0, 2)),
            st.tuples(st.just("sync"), st.integers(0, 2)),
        ),
        max_size=80,
    ),
)
def test_persisted_is_never_early_and_never_stuck(n: int, steps: list[tuple[str, int]]) -> None:
    """Goal: persisted(writer) <= what the slowest journal has of its messages, with nulls between them; when all have
    everything, all writers know.

    Method: random writes, steps and syncs, each sync reporting all that its node has delivered so far; nulls of idle
    senders have no place in a journal but one in the order.
    """
    cluster = Cluster(n, level=3, window=4)
    readers = [cluster.reader(i) for i in range(n)]
    writers = [cluster.writer(i) for i in range(n)]
    logs: list[list[int]] = [[] for _ in range(n)]
    synced = [0] * n

    def deliver(node: int) -> None:
        logs[node] += [int(m) for m in readers[node].take(999)]

    def check() -> None:
        for who, writer in enumerate(writers):
            safe = min(logs[node][: synced[node]].count(who) for node in range(n))
            assert writer.persisted <= safe
            assert writer.persisted <= writer.acknowledged or safe == writer.persisted

    for what, who in steps:
        who %= n
        if what == "write" and writers[who].committed - writers[who].consumed < 16:
            writers[who].write(b"%d" % who)
        elif what == "step":
            cluster.engines[who].step_once()
        elif what == "sync":
            deliver(who)
            synced[who] = len(logs[who])
            cluster.engines[who].set_durable(1, synced[who])
        for node in range(n):
            deliver(node)
        check()
    cluster.settle()
    for node in range(n):
        deliver(node)
        synced[node] = len(logs[node])
        cluster.engines[node].set_durable(1, synced[node])
    cluster.settle()
    check()
    assert [w.persisted for w in writers] == [w.committed for w in writers]


def test_durable_never_goes_back() -> None:
    """Goal: a journal's older report doesn't undo a newer one. Method: report 3, then 1."""
    cluster = Cluster(1, level=3)
    cluster.reader(0)
    writer = cluster.writer(0)
    writer.write_many([b"1", b"2", b"3"], timeout_s=0)
    cluster.settle()
    cluster.engines[0].set_durable(1, 3)
    cluster.engines[0].set_durable(1, 1)
    cluster.settle()
    assert writer.persisted == 3
    cluster.engines[0].set_durable(1, 1 << 60)
    cluster.settle()
    assert writer.persisted == 3


def owed(engine: Engine, trim: list[int]) -> list[tuple[bytes, int, int, int, int, int, int, int]]:
    """Ends the epoch at a node, as a driver does: what its log has no room for is taken out, and delivery is held."""
    if engine.deliver_to_trim(1, trim):
        return []
    engine.hold_delivery(1)
    return list(engine.take_undelivered(1, trim))


@pytest.mark.parametrize("changes", [1, 2])
def test_what_waits_for_room_in_the_log_is_not_on_disk(changes: int) -> None:
    """Goal (P1): a writer isn't told that a message is on disk while that message still waits, on some member, for room
    in its delivery log, where the journal takes it from; and is told when it is there.

    Method: a reader that keeps all takes nothing on node 1, so that the trim finds its log full; the journals report
    all that is in the logs, in every pass; the view changes (twice), then the reader takes.
    """
    cluster = Cluster(2, level=3, window=8, size_max=64, senders=[0])
    cluster.reader(0)
    slow = cluster.reader(1, capacity=4096, hot=0)
    writer = cluster.writer(0, slots=64)

    def sync() -> None:
        for node, engine in enumerate(cluster.engines):
            engine.set_durable(1, cluster.logs[node, 1].delivered)
        cluster.settle()
        held = cluster.logs[1, 1].delivered
        assert writer.persisted <= held, f"{writer.persisted} are persisted, node 1's log has {held}"

    n = 0
    while writer.committed - writer.consumed < 8:
        writer.write(b"%d" % n, timeout_s=0)
        n += 1
        cluster.settle()
    sync()
    backlog: list[tuple[bytes, int, int, int, int, int, int, int]] = []
    for change in range(changes):
        for engine in cluster.engines:
            engine.wedge()
        trim = [min(epoch.frozen_counts(i, 1)[0] for i, epoch in enumerate(cluster.epochs))]
        assert not owed(cluster.engines[0], trim)
        backlog += owed(cluster.engines[1], trim)
        assert backlog
        cluster.install(2 + change, cluster.specs)
        sync()
    taken = [bytes(payload) for payload in slow.take(1000)]
    log = cluster.logs[1, 1]
    for payload, sender, sequence, source_ns, writer_id, *_ in backlog:
        sync()
        assert log.append(payload, sender, sequence, 1, source_ns, writer_id)
    cluster.engines[1].release_delivery(1)
    cluster.settle()
    assert writer.persisted < log.delivered  # the journal has not said so yet
    for _ in range(4):
        taken += [bytes(payload) for payload in slow.take(1000)]
        sync()
    assert taken == [b"%d" % k for k in range(n)]
    assert writer.persisted == n


def test_a_late_report_says_nothing_about_the_next_membership() -> None:
    """Goal (P1): a journal whose log was given up says nothing about the log that comes after it, however late it
    reports: its thread may be about to do so while the node leaves the topic.
    Method: five messages on disk; the topic is forgotten, then the report comes; another log, which two go to."""
    cluster = Cluster(1, level=3)
    cluster.reader(0)
    engine, first = cluster.engines[0], cluster.logs.pop((0, 1))
    writer = cluster.writer(0)
    writer.write_many([b"x"] * 5, timeout_s=0)
    cluster.settle()
    specs = cluster.specs
    cluster.install(2, [])
    engine.forget_topic(1)
    engine.set_durable(1, 5, log=first)
    cluster.reader(0)
    cluster.install(3, specs)
    writer = cluster.writer(0)
    engine.set_durable(1, 5, log=first)
    writer.write_many([b"y"] * 2, timeout_s=0)
    cluster.settle()
    assert writer.persisted == 0
    engine.set_durable(1, 2, log=cluster.logs[0, 1])
    cluster.settle()
    assert writer.persisted == 2
