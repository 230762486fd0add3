"""The receive predicate: the received number is the design's formula, and only ever that."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.engine import Switches
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.predicates.test_order import SCRIPT, run_script


def received_count(counts: list[int]) -> int:
    """Design, Protocol: with n_r messages from rank r and m = min n_r: m * S + (first r with n_r = m)."""
    least = min(counts)
    return least * len(counts) + counts.index(least)


@settings(max_examples=100, deadline=None)
@given(
    n=st.integers(1, 5),
    window=st.sampled_from([1, 3, 8]),
    senders=st.sets(st.integers(0, 4), min_size=1),
    script=SCRIPT,
    nulls=st.booleans(),
    batch=st.booleans(),
)
def test_the_received_number_is_the_formula(
    n: int, window: int, senders: set[int], script: list[tuple[str, int]], nulls: bool, batch: bool
) -> None:
    """Goal: every member's received number is the first sequence number that it misses, never more, and in the end
    exactly that.

    Method: after every step compare with the formula over what is published (an upper bound, because a member may not
    have looked yet); after settling it is equal.
    """
    ranks = sorted(s for s in senders if s < n) or [0]
    cluster = Cluster(n, window=window, senders=ranks, switches=Switches(null_sends=nulls, batch_receive=batch))
    writers = {i: cluster.writer(i) for i in ranks}
    for step in script:
        run_script(cluster, [step], writers)
        state = cluster.epochs[0].stability(1)
        assert all(received <= received_count(state["published"]) for received in state["received"])
    cluster.settle()
    state = cluster.epochs[0].stability(1)
    assert state["received"] == [received_count(state["published"])] * n
    assert state["delivered"] == state["received"]


def test_one_push_acknowledges_all_senders() -> None:
    """Goal: paper, section 3.2: messages of many senders that are there at once cost one acknowledgement.

    Method: four senders publish three messages each before the fifth member looks.
    """
    cluster = Cluster(5, senders=[0, 1, 2, 3])
    writers = [cluster.writer(i) for i in range(4)]
    for w in writers:
        w.write_many([b"1", b"2", b"3"], timeout_s=0)
    for i in range(4):
        cluster.engines[i].step_once()
    before = cluster.engines[4].counters.snapshot()
    cluster.engines[4].step_once()
    after = cluster.engines[4].counters.snapshot()
    assert after["receive_batches"] - before["receive_batches"] == 1
    assert after["receive_messages"] - before["receive_messages"] == 12
    assert cluster.epochs[0].stability(1)["received"][4] == 12


def test_a_published_count_from_nowhere_is_not_delivered() -> None:
    """Goal: a row that claims messages which its slots don't hold gets nothing delivered, and crashes nobody.

    Method: overwrite the published count of one sender's row with huge values; the stamp of the slots tells.
    """
    for lie in (1, 9, 1 << 40, (1 << 63) - 1):
        cluster = Cluster(2, senders=[0])
        reader = cluster.reader(1)
        row = cluster.epochs[0].row.view()
        at = 4096 + 2 * (256 << 10)  # the first subgroup's columns, published first
        row[at : at + 8] = lie.to_bytes(8, "little")
        for _ in range(20):
            for engine in cluster.engines:
                engine.step_once()
        assert reader.take(9) == []
        assert cluster.engines[1].counters.snapshot()["corrupt_slots"] > 0
