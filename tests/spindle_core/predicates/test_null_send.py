"""Null messages: long runs, small windows, silences; what they cost and when they end."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.errors import WriteTimeout
from tests.spindle_core.cluster import Cluster


@settings(max_examples=120, deadline=None)
@given(
    n=st.integers(1, 4),
    window=st.sampled_from([1, 2, 3, 8]),
    script=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 3)),
            st.tuples(st.just("step"), st.integers(0, 3)),
            st.tuples(st.just("silence"), st.integers(0, 3)),
        ),
        max_size=60,
    ),
    rounds=st.integers(1, 40),
)
def test_runs_longer_than_the_window(n: int, window: int, script: list[tuple[str, int]], rounds: int) -> None:
    """Goal: D5, D6, D7, N3: with declared silences many times the window between messages, every member delivers the
    same messages, each once, every sender's in order, and no null reaches a reader.

    Method: random writes, steps and declarations, also several in a row. A message behind a silence longer than the
    window waits for the others' rounds, so in the end everybody sends as many as were declared.
    """
    cluster = Cluster(n, window=window)
    readers = [cluster.reader(i) for i in range(n)]
    writers = [cluster.writer(i) for i in range(n)]
    written: list[list[bytes]] = [[] for _ in range(n)]
    declared = [0] * n
    for what, who in script:
        who %= n
        if what == "step":
            cluster.engines[who].step_once()
        elif what == "silence":
            try:
                cluster.engines[who].declare_silence(1, rounds)
                declared[who] += rounds
            except WriteTimeout:
                pass
        elif writers[who].committed - writers[who].consumed < 16:
            written[who].append(b"%d:%d" % (who, len(written[who])))
            writers[who].write(written[who][-1])
    for _ in range(sum(declared) + 1):
        cluster.settle()
        if all(w.committed == w.acknowledged for w in writers):
            break
        for who in range(n):
            if writers[who].committed == writers[who].acknowledged:
                written[who].append(b"%d:more" % who)
                writers[who].write(written[who][-1])
    logs = [r.take(10_000) for r in readers]
    assert all(log == logs[0] for log in logs)
    for who in range(n):
        assert [m for m in logs[0] if m.startswith(b"%d:" % who)] == written[who]
    assert len(logs[0]) == sum(map(len, written))
    state = cluster.epochs[0].stability(1)
    nulls = [e.counters.snapshot()["nulls"] for e in cluster.engines]
    assert all(null >= silent for null, silent in zip(nulls, declared, strict=True))
    assert sum(nulls) + len(logs[0]) == sum(state["published"])


def test_a_run_of_nulls_is_one_slot_and_one_push() -> None:
    """Goal: a run, however long, costs one slot and one push (design: sent as one number).

    Method: node 2 has sent 20 messages before node 0 looks for the first time: what node 0 owes is one run.
    """
    cluster = Cluster(2, window=32)
    readers = [cluster.reader(i) for i in range(2)]
    writer = cluster.writer(1, slots=32)
    writer.write_many([b"%d" % k for k in range(20)], timeout_s=0)
    cluster.engines[1].step_once()
    cluster.engines[0].step_once()
    assert cluster.epochs[0].stability(1)["published"] == [0, 20]
    before = cluster.engines[0].counters.snapshot()
    cluster.engines[0].step_once()
    after = cluster.engines[0].counters.snapshot()
    assert cluster.epochs[0].stability(1)["published"] == [20, 20]
    assert (after["nulls"] - before["nulls"], after["send_messages"]) == (20, 0)
    # The slot, then the count with the received number that changed in the same pass.
    assert after["pushes"] - before["pushes"] <= 3
    cluster.settle()
    assert all(r.take(99) == [b"%d" % k for k in range(20)] for r in readers)


def test_the_rank_decides_how_many_are_owed() -> None:
    """Goal: N1: having message k of rank j, my count must reach k + 1 if my rank is lower than j, else k.

    Method: the middle one of three sends five messages; published counts and nulls of the other two.
    """
    cluster = Cluster(3)
    cluster.writer(1).write_many([b"x"] * 5, timeout_s=0)
    cluster.settle()
    assert cluster.epochs[0].stability(1)["published"] == [5, 5, 4]
    assert [e.counters.snapshot()["nulls"] for e in cluster.engines] == [5, 0, 4]


def test_a_busy_sender_is_never_held_up_by_idle_ones() -> None:
    """Goal: N5: one active sender of many goes on at its own pace: each message is delivered everywhere within two
    passes of all over the window of one that everybody has.
    """
    cluster = Cluster(5, window=1)
    readers = [cluster.reader(i) for i in range(5)]
    writer = cluster.writer(3)
    for k in range(50):
        writer.write(b"%d" % k, timeout_s=0)
        assert cluster.settle() < 12
        assert all(r.take(2) == [b"%d" % k] for r in readers)


@settings(max_examples=60, deadline=None)
@given(n=st.integers(2, 4), window=st.sampled_from([1, 2, 8]), rounds=st.integers(1, 100), messages=st.integers(1, 12))
def test_a_declared_silence_is_taken_back_when_there_is_something_to_say(
    n: int, window: int, rounds: int, messages: int
) -> None:
    """Goal: who declares a long silence and then writes is not held up by it, although nobody else has anything to say.

    Method: one node declares, then writes more than its window holds; everybody delivers all of it, and it ends.
    """
    cluster = Cluster(n, window=window)
    readers = [cluster.reader(i) for i in range(n)]
    writer = cluster.writer(0, slots=16)
    cluster.engines[0].declare_silence(1, rounds)
    cluster.settle()
    sent = [b"%d" % k for k in range(messages)]
    writer.write_many(sent, timeout_s=0)
    cluster.settle()
    assert [r.take(100) for r in readers] == [sent] * n
    assert writer.acknowledged == messages
    assert cluster.settle() == 0
