"""The deliver predicate: held and resumed delivery, unordered topics, slots that can't be right."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.engine import Switches
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.predicates.test_order import SCRIPT, SWITCHES, run_script

SLOT_HEADER = 32


@settings(max_examples=80, deadline=None)
@given(n=st.integers(1, 4), window=st.sampled_from([1, 2, 8]), script=SCRIPT, switches=SWITCHES)
def test_unordered_topics_are_complete_and_fifo(
    n: int, window: int, script: list[tuple[str, int]], switches: Switches
) -> None:
    """Goal: D1, D2, D5 without the order: every member gets every message once, each sender's in its order, and no null
    is ever sent; writers learn of it.

    Method: random writes and steps; all switches.
    """
    cluster = Cluster(n, window=window, level=0, switches=switches)
    readers = [cluster.reader(i) for i in range(n)]
    writers = {i: cluster.writer(i) for i in range(n)}
    written = run_script(cluster, script, writers)
    cluster.settle()
    for reader in readers:
        log = reader.take(10_000)
        assert len(log) == sum(map(len, written.values()))
        for node, messages in written.items():
            assert [m for m in log if m.startswith(b"%d:" % node)] == messages
    assert all(writers[i].acknowledged == len(written[i]) for i in writers)
    assert sum(e.counters.snapshot()["nulls"] for e in cluster.engines) == 0


@settings(max_examples=60, deadline=None)
@given(
    level=st.sampled_from([0, 1]),
    batch=st.booleans(),
    steps=st.lists(st.one_of(st.tuples(st.integers(0, 2), st.integers(0, 900)), st.integers(0, 5)), max_size=80),
)
def test_delivery_goes_on_where_a_slow_reader_stopped_it(
    level: int, batch: bool, steps: list[tuple[int, int] | int]
) -> None:
    """Goal: nothing is lost, doubled or reordered however often a keep-all reader holds delivery back in the middle of
    a batch, with several senders and other readers on the same log.

    Method: logs of 4096 bytes, messages up to 900; the slow reader takes a few from time to time, a keep-last reader
    is beside it, and a node without readers agrees on the order.
    """
    cluster = Cluster(3, window=8, size_max=900, level=level, switches=Switches(batch_delivery=batch))
    slow, beside = cluster.reader(0, capacity=4096), cluster.reader(0, keep_all=False)
    fast = cluster.reader(1, capacity=1 << 20)
    writers = [cluster.writer(i, slots=4, size_max=900) for i in range(3)]
    got: list[bytes] = []
    seen: list[bytes] = []
    sent = 0
    for step in steps:
        if isinstance(step, int):
            got += slow.take(step)
            for engine in cluster.engines:
                engine.step_once()
            seen += fast.take(999)
        else:
            writer = writers[step[0]]
            if writer.committed - writer.consumed < 4:
                writer.write(b"%d:%d " % (step[0], sent) + bytes(max(0, step[1] - 20)))
                sent += 1
    for _ in range(1000):
        cluster.settle()
        more = slow.take(1)
        if not more:
            break
        got += more
    seen += fast.take(999)
    assert len(got) == sent
    if level:
        assert got == seen
    for who in range(3):
        mine = [m for m in got if m.startswith(b"%d:" % who)]
        assert mine == [m for m in seen if m.startswith(b"%d:" % who)]
        assert [int(m[2:].split(b" ")[0]) for m in mine] == sorted(int(m[2:].split(b" ")[0]) for m in mine)
    newest = beside.take(999)
    assert newest == got[sent - len(newest) :] and beside.lost + len(newest) == sent


@pytest.mark.parametrize(
    ("offset", "value", "length"),
    [
        (0, 5, 8),
        (0, (1 << 64) - 1, 8),  # stamp of another message
        (0, 0, 8),  # of an earlier one, which was in this slot before
        (8, 65, 4),
        (8, (1 << 32) - 1, 4),  # more than size_max
        (12, 0, 2),
        (12, 4, 2),
        (12, 65535, 2),  # a kind that doesn't exist
    ],
)
def test_an_impossible_slot_stops_its_topic_only(offset: int, value: int, length: int) -> None:
    """Goal: a slot that can't be right is never delivered, nor anything behind it: no hole in the order; it is counted.

    Method: damage the second of three slots in the sender's row; only the first is delivered by the member that
    hadn't read it yet.
    """
    cluster = Cluster(2, senders=[0])
    reader, writer = cluster.reader(1), cluster.writer(0)
    writer.write_many([b"one", b"two", b"three"], timeout_s=0)
    cluster.engines[0].step_once()
    row = cluster.epochs[0].row.view()
    at = bytes(row).index(b"two") - SLOT_HEADER + offset
    row[at : at + length] = value.to_bytes(length, "little")
    for _ in range(10):
        for engine in cluster.engines:
            engine.step_once()
    assert reader.take(9) == [b"one"]
    assert cluster.engines[1].counters.snapshot()["corrupt_slots"] > 0


@pytest.mark.parametrize("run", [0, (1 << 62) + 1, (1 << 64) - 1])
def test_an_impossible_run_of_nulls_is_damage(run: int) -> None:
    """Goal: a run of no nulls, or of more than there can be, is damage and not an endless loop or a jump of indices.

    Method: turn a slot into such a null.
    """
    cluster = Cluster(2, senders=[0])
    reader, writer = cluster.reader(1), cluster.writer(0)
    writer.write_many([b"one", b"two"], timeout_s=0)
    cluster.engines[0].step_once()
    row = cluster.epochs[0].row.view()
    at = bytes(row).index(b"one") - SLOT_HEADER
    row[at + 12 : at + 14] = (2).to_bytes(2, "little")
    row[at + 16 : at + 24] = run.to_bytes(8, "little")
    for _ in range(10):
        for engine in cluster.engines:
            engine.step_once()
    assert reader.take(9) == [] and cluster.engines[1].counters.snapshot()["corrupt_slots"] > 0
