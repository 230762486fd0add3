"""Inboxes of broken and hostile applications: they hurt themselves, never their node or the group."""

from __future__ import annotations

import os
import threading

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.spindle_core.cluster import Cluster
from tests.spindle_core.inboxes import (
    COMMITTED,
    SLOT_INDEX,
    SLOT_KIND,
    SLOT_SIZE,
    SLOT_SOURCE,
    SLOTS,
    SPACE_WAITING,
    slot_stride,
)
from tests.spindle_core.logs import U64_MAX, poke
from tests.support import wait_until

WORDS = st.one_of(
    st.integers(0, U64_MAX), st.integers(0, 300), st.sampled_from([U64_MAX, 1 << 63, (1 << 32) - 1, 65, 64])
)
LIES = st.one_of(
    st.tuples(st.sampled_from([0, COMMITTED, SPACE_WAITING, 24]), WORDS, st.just(8)),
    st.builds(
        lambda slot, spot, value, length: (SLOTS + slot * 128 + spot, value, length),
        st.integers(0, 3),
        st.sampled_from([SLOT_INDEX, SLOT_SIZE, SLOT_KIND, 16, SLOT_SOURCE]),
        WORDS,
        st.sampled_from([2, 4, 8]),
    ),
)


@settings(max_examples=150, deadline=None)
@given(steps=st.lists(st.one_of(LIES, st.just("honest"), st.just("step")), min_size=1, max_size=60))
@example([(COMMITTED, U64_MAX, 8), "step", (COMMITTED, 4, 8), "step", "honest", "step"])
@example([(SLOTS + SLOT_SIZE, (1 << 32) - 1, 4), (COMMITTED, 1, 8), "step", "honest"])
@example([(SLOTS + SLOT_SIZE, 81, 4), (COMMITTED, 1, 8), "step", "honest"])
def test_a_hostile_inbox_hurts_only_itself(steps: list[object]) -> None:
    """Goal: whatever an application writes into its ring, its node and the group go on; other writers' messages arrive
    complete and in order; nothing but the liar's own bytes, of a possible size, comes from it; nonsense is counted.

    Method: random words in the header and in slots of one inbox, between steps; another writer on the same node.
    """
    cluster = Cluster(2, window=4, size_max=80)
    readers = [cluster.reader(i) for i in range(2)]
    cluster.writer(0, slots=4, size_max=80)
    liar = cluster.kept[-1]
    honest = cluster.writer(0, slots=4, size_max=80)
    sent: list[bytes] = []
    for step in steps:
        if step == "step":
            for engine in cluster.engines:
                engine.step_once()
        elif step == "honest":
            if honest.committed - honest.consumed < 4:
                sent.append(b"honest %d" % len(sent))
                honest.write(sent[-1])
        else:
            offset, value, length = step  # type: ignore[misc]
            poke(liar.ring, offset, value & ((1 << 8 * length) - 1), length)
    cluster.settle()
    logs = [r.take(10_000) for r in readers]
    assert logs[0] == logs[1]
    assert [m for m in logs[0] if m.startswith(b"honest")] == sent
    assert all(len(m) <= 80 for m in logs[0])
    assert len(logs[0]) == len(sent) + liar.consumed - liar.refused
    assert liar.committed - liar.consumed <= 4
    assert cluster.engines[0].counters.snapshot()["refused_messages"] == liar.refused
    honest.write(b"honest to the end")
    cluster.settle()
    assert honest.acknowledged == len(sent) + 1


@pytest.mark.slow
def test_sizes_that_change_after_the_look_are_not_believed() -> None:
    """Goal: each size is read once: a slot whose size grows between check and copy copies nothing foreign.

    Method: a thread flips the sizes of two slots as fast as it can while the node takes them; every message that
    arrives has one of the two possible sizes below the limit, the others are refused.
    """
    cluster = Cluster(1, window=8, size_max=64)
    reader = cluster.reader(0)
    cluster.writer(0, slots=2, size_max=64)
    liar = cluster.kept[-1]
    ring = liar.ring.view()
    places = [SLOTS + i * slot_stride(64) + SLOT_SIZE for i in range(2)]
    stop = threading.Event()

    def flip() -> None:
        small, large = (5).to_bytes(4, "little"), (1 << 31).to_bytes(4, "little")
        while not stop.is_set():
            for at in places:
                ring[at : at + 4] = large
                ring[at : at + 4] = small

    thread = threading.Thread(target=flip)
    cluster.start()
    thread.start()
    try:
        for k in range(1, 120):
            poke(liar.ring, COMMITTED, k)
            wait_until(lambda k=k: liar.consumed >= k or _ring(cluster), 30, interval_s=0)
    finally:
        stop.set()
        thread.join(30)
        cluster.stop()
    sizes = {len(m) for m in reader.take(5000)}
    assert sizes == {5} and liar.refused == cluster.engines[0].counters.snapshot()["refused_messages"]


def _ring(cluster: Cluster) -> None:
    os.eventfd_write(cluster.engines[0].bell_fd, 1)


def test_an_application_that_dies_holding_a_claim_costs_nothing() -> None:
    """Goal: an open claim lives in the application's ring only. Method: claim, never commit, remove the inbox."""
    cluster = Cluster(2, window=2)
    readers = [cluster.reader(i) for i in range(2)]
    dying = cluster.writer(0)
    inbox = cluster.kept[-1]
    dying.write(b"before")
    dying.claim(10)
    other = cluster.writer(0)
    for k in range(10):
        other.write(b"%d" % k, timeout_s=0)
        cluster.settle()
    cluster.engines[0].remove_inbox(1, inbox)
    inbox.close()
    inbox.close()
    other.write(b"after")
    cluster.settle()
    assert [r.take(99) for r in readers] == [[b"before", *(b"%d" % k for k in range(10)), b"after"]] * 2
