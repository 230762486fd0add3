"""Engines across views: wedge, ragged trim, install, re-send; bindings; errors at the edge."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.delivery import Cursor, DeliveryLog
from spindle_core.direct import DirectClaim
from spindle_core.engine import Engine, SubgroupSpec, Switches
from spindle_core.errors import CoreError, MessageTooLarge, NodeGone, Wedged, WriteTimeout
from tests.spindle_core.cluster import Cluster, asleep
from tests.spindle_core.predicates.test_order import SCRIPT, run_script
from tests.support import wait_until


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
            owed += [(payload, sender, sequence, view, ns, writer_id, 0, relay)
                     for payload, sender, sequence, ns, writer_id, relay in kept]
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


def test_a_cut_member_is_not_rung_any_more():
    """After cut() no doorbell of that member is touched, the others' are; ranks that don't exist are nobody's error.

    Method: both peers say that they sleep; node 0 publishes, and only the one that isn't cut is rung.
    """
    cluster = Cluster(3)
    writer = cluster.writer(0)
    cluster.settle()
    for engine in cluster.engines[1:]:
        engine.epoch.fabric.prepare_wait()
    for rank in (1, 1, 0, 3, -1):
        cluster.engines[0].cut(rank)
    writer.write(b"x")
    cluster.engines[0].step_once()
    assert [engine.epoch.fabric.wait(0) for engine in cluster.engines[1:]] == [False, True]
    Engine(9).cut(0)


def test_a_control_push_carries_what_changed():
    """A push of control columns posts the header, and of the areas only the used bytes of those that changed."""
    cluster = Cluster(2)
    cluster.settle()
    engine, epoch = cluster.engines[0], cluster.epochs[0]

    def pushed() -> int:
        before = engine.counters.snapshot()["posted_bytes"]
        epoch.push()
        engine.step_once()
        return engine.counters.snapshot()["posted_bytes"] - before

    header = pushed()
    assert header < 256
    epoch.write_area("proposal", bytes(100))
    assert pushed() == header + 116
    assert pushed() == header
    epoch.write_area("trim", b"")
    epoch.write_area("proposal", bytes(10))
    assert pushed() == header + 26 + 16


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


def test_a_slow_keep_all_reader_holds_the_writer_and_loses_nothing():
    """Bounded memory everywhere: log full, then slots, then inbox, then the writer's timeout; taking frees it all."""
    cluster = Cluster(2, window=4, size_max=512)
    reader = cluster.reader(0, capacity=4096)
    writer = cluster.writer(1, slots=4, size_max=512)
    sent = 0
    with pytest.raises(WriteTimeout, match="keeps all"):
        for _ in range(1000):
            writer.write(sent.to_bytes(4, "little") * 128, timeout_s=0)
            cluster.settle()
            sent += 1
    assert 4 < sent < 40
    assert cluster.engines[0].counters.snapshot()["delivery_blocked"] > 0
    got = []
    for _ in range(100):
        got += reader.take(1)
        cluster.settle()
    assert [int.from_bytes(m[:4], "little") for m in got] == list(range(sent))
    writer.write(b"again", timeout_s=0)


def test_a_slow_keep_last_reader_holds_nobody_and_knows_what_it_lost():
    """A reader that doesn't keep all is overtaken; lost + taken is everything that was delivered."""
    cluster = Cluster(2, window=4, size_max=512)
    reader = cluster.reader(0, capacity=8192, keep_all=False)
    writer = cluster.writer(1, slots=4, size_max=512)
    for k in range(200):
        writer.write(k.to_bytes(4, "little") * 128, timeout_s=0)
        cluster.settle()
    got = [int.from_bytes(m[:4], "little") for m in reader.take(1000)]
    assert got == list(range(200 - len(got), 200)) and len(got) >= 4
    assert reader.lost + len(got) == 200


def test_held_delivery_waits_for_history():
    """A joiner's topic is held until its history is in the log: history first, then live data, no gap."""
    cluster = Cluster(2, level=2)
    reader = cluster.reader(1, from_history=True, keep_history=True)
    cluster.engines[1].hold_delivery(1)
    writer = cluster.writer(0)
    writer.write(b"live")
    cluster.settle()
    assert reader.take(9) == []
    log = cluster.logs[1, 1]
    assert log.append(b"old", 1, 0, 0, 0)
    cluster.engines[1].release_delivery(1)
    cluster.settle()
    assert reader.take(9) == [b"old", b"live"]


def test_persisted_follows_the_journal():
    """A logged topic's writer learns that a message is on disk only after every member's journal has said so."""
    cluster = Cluster(2, level=3)
    readers = [cluster.reader(i) for i in range(2)]
    writer = cluster.writer(0)
    writer.write(b"one")
    writer.write(b"two")
    cluster.settle()
    assert (writer.acknowledged, writer.persisted) == (2, 0)
    cluster.engines[0].set_durable(1, 2)
    cluster.settle()
    assert writer.persisted == 0
    cluster.engines[1].set_durable(1, 1)
    cluster.settle()
    assert writer.persisted == 0
    cluster.engines[1].set_durable(1, 2)
    cluster.settle()
    assert writer.persisted == 2 and writer.wait_acknowledged(0, persisted=True)
    assert [r.pending for r in readers] == [2, 2]


class Delivery(ctypes.Structure):
    """delivery_t of spindle_core/state.pxd."""

    _fields_ = [("payload", ctypes.c_void_p), ("size", ctypes.c_uint64), ("sequence", ctypes.c_uint64),
                ("source_ns", ctypes.c_uint64), ("sender_rank", ctypes.c_uint32), ("sender", ctypes.c_uint32),
                ("writer_id", ctypes.c_uint16)]


UPCALL = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.POINTER(Delivery), ctypes.c_uint32)


@pytest.mark.parametrize("batches", [True, False])
def test_upcalls_one_by_one_and_in_batches(batches):
    """Paper, section 3.5: an embedded receiver gets messages in place, one by one or a batch at a time."""
    cluster = Cluster(2, senders=[0])
    calls: list[list[tuple[int, bytes]]] = []

    @UPCALL
    def upcall(_context, messages, n):
        calls.append([(messages[i].sender, ctypes.string_at(messages[i].payload, messages[i].size)) for i in range(n)])

    address = ctypes.cast(upcall, ctypes.c_void_p).value
    cluster.engines[1].set_upcall(1, address, batches=batches, keep=upcall)
    for k in range(4):
        cluster.engines[0].write(1, b"%d" % k)
    cluster.settle()
    assert [m for call in calls for m in call] == [(1, b"%d" % k) for k in range(4)]
    assert len(calls) == (1 if batches else 4)


def test_a_hostile_row_is_never_delivered():
    """A slot whose stamp or size is impossible stops delivery of that topic and is counted; nothing crashes.

    Method: node 0 publishes, then its own row is overwritten with nonsense before node 1 looks.
    """
    cluster = Cluster(2, senders=[0])
    reader = cluster.reader(1)
    writer = cluster.writer(0)
    writer.write(b"honest")
    cluster.engines[0].step_once()
    row = cluster.epochs[0].row.view()
    at = bytes(row).index(b"honest") - 32
    row[at : at + 32] = b"\xff" * 32
    for _ in range(20):
        for engine in cluster.engines:
            engine.step_once()
    assert reader.take(9) == []
    assert cluster.engines[1].counters.snapshot()["corrupt_slots"] > 0


def test_threads_deliver_and_stop_cleanly():
    """With predicate threads: blocked readers wake up with data, and with NodeGone when the node stops."""
    cluster = Cluster(3, window=32)
    readers = [cluster.reader(i) for i in range(3)]
    writers = [cluster.writer(i) for i in range(3)]
    cluster.start()
    try:
        for k in range(200):
            for w in writers:
                w.write(b"%d" % k, timeout_s=30)
        assert all(w.wait_acknowledged(30) for w in writers)
        logs = []
        for r in readers:
            got: list[bytes] = []
            while len(got) < 600:
                assert r.wait(30)
                got += r.take(600)
            logs.append(got)
        assert logs[0] == logs[1] == logs[2]
        wait_until(lambda: all(asleep(e) for e in cluster.engines), 30)
    finally:
        cluster.stop()
    with pytest.raises(NodeGone):
        readers[0].wait(30)
    with pytest.raises(NodeGone):
        writers[0].write(b"x")


def test_a_writer_publishes_itself_while_the_predicate_thread_sleeps():
    """Direct writes find the predicate thread asleep or awake, from two threads of one node at once; nothing is lost.

    Method: bursts of writes, then wait until everybody sleeps again; order and completeness on all nodes at the end.
    """
    cluster = Cluster(3, window=4)
    readers = [cluster.reader(i) for i in range(3)]
    cluster.start()
    rounds, burst = 40, 3

    def write(engine: Engine, t: int, k: int) -> None:
        for i in range(burst):
            engine.write(1, b"%d:%d:%d" % (t, k, i), 0, 30)

    try:
        for k in range(rounds):
            wait_until(lambda: all(asleep(e) for e in cluster.engines), 30)
            threads = [threading.Thread(target=write, args=(cluster.engines[k % 3], t, k)) for t in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(30)
        logs = []
        for r in readers:
            got: list[bytes] = []
            while len(got) < rounds * burst * 2:
                assert r.wait(30)
                got += r.take(1000)
            logs.append(got)
    finally:
        cluster.stop()
    assert logs[0] == logs[1] == logs[2]
    # The order of what one node was given is kept; who is rung and has not woken up yet may be overtaken by another.
    for t in range(2):
        for node in range(3):
            own = [b"%d:%d:%d" % (t, k, i) for k in range(node, rounds, 3) for i in range(burst)]
            assert [m for m in logs[0] if m in own] == own


def test_view_changes_under_threads_and_load():
    """The same across ten view changes while three threads' worth of traffic flows."""
    cluster = Cluster(3, window=16)
    readers = [cluster.reader(i, capacity=1 << 20) for i in range(3)]
    writers = [cluster.writer(i, slots=64) for i in range(3)]
    cluster.start()
    sent = [0, 0, 0]
    try:
        for epoch in range(2, 12):
            for _ in range(30):
                for i, w in enumerate(writers):
                    w.write(b"%d:%d" % (i, sent[i]), timeout_s=30)
                    sent[i] += 1
            change_view(cluster, epoch, cluster.specs)
        assert all(w.wait_acknowledged(30) for w in writers)
        logs = [[m for _ in range(20) for m in r.take(100)] for r in readers]
    finally:
        cluster.stop()
    assert logs[0] == logs[1] == logs[2]
    for i in range(3):
        assert [m for m in logs[0] if m.startswith(b"%d:" % i)] == [b"%d:%d" % (i, k) for k in range(300)]


# ---- at the edge ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window": 0}, "window 0"),
        ({"size_max": 0}, "size_max 0"),
        ({"size_max": 1 << 40}, "size_max"),
        ({"level": 7}, "level 7"),
        ({"topic_id": 256}, "8 bits"),
        ({"members": (1, 0)}, "ascending"),
        ({"members": (0, 5)}, "ranks below 2"),
        ({"senders": (0, 1), "members": (0,)}, "among the members"),
    ],
)
def test_impossible_geometry_is_refused_with_the_limit(change, words):
    """Limits are checked at the edge, with the limit in the message."""
    spec = {"topic_id": 1, "members": (0, 1), "senders": (0,), "window": 8, "size_max": 64, "level": 1} | change
    with pytest.raises(ValueError, match=words):
        Engine(1).new_epoch(1, 0, [1, 2], [SubgroupSpec(**spec)])


def test_a_row_of_another_view_is_refused():
    """A peer's row must be of the same version, epoch, node and layout; descriptors are not leaked on refusal."""
    spec = SubgroupSpec(1, (0, 1), (0, 1), 8, 64, 1)
    one, two = Engine(1), Engine(2)
    mine = one.new_epoch(5, 0, [1, 2], [spec])
    before = len(os.listdir("/proc/self/fd"))
    other = SubgroupSpec(1, (0, 1), (0, 1), 16, 64, 1)
    for theirs, words in (
        (two.new_epoch(6, 1, [1, 2], [spec]), "epoch 6"),
        (two.new_epoch(5, 1, [1, 2], [other]), "another idea"),
    ):
        with pytest.raises(ValueError, match=words):
            mine.attach_peer(1, os.dup(theirs.row.fd), os.dup(theirs.bell.fd), os.dup(theirs.bell_fd))
    del theirs
    assert len(os.listdir("/proc/self/fd")) <= before + 4
    with pytest.raises(ValueError, match="attach_peer"):
        one.install(mine)


def test_control_columns_only_grow_and_areas_are_guarded():
    """R1 for control columns; an area is read whole or not at all; too long is refused."""
    cluster = Cluster(2)
    a, b = cluster.epochs
    a.set("proposed", 3)
    with pytest.raises(ValueError, match="only grows"):
        a.set("proposed", 2)
    a.write_area("proposal", b"next view")
    a.push()
    assert b.get(0, "proposed") == 3
    assert b.read_area(0, "proposal") == b"next view" and b.read_area(1, "proposal") == b""
    cluster.engines[1].step_once()
    assert os.eventfd_read(cluster.engines[1].control_fd) == 1
    a.row.view()[4096 + 16] ^= 1
    with pytest.raises(ValueError, match="torn"):
        b.read_area(0, "proposal")
    with pytest.raises(ValueError, match="at most"):
        a.write_area("proposal", bytes(1 << 20))


def test_claims_are_checked_at_the_edge():
    """Too large: said with the limit, and the claim stays open. A full ring: WriteTimeout. Its engine may be gone."""
    cluster = Cluster(2, window=2, size_max=8, senders=[0])
    reader = cluster.reader(1)
    with pytest.raises(ValueError, match="no sender"):
        cluster.engines[1].claim(1)
    claims = [cluster.engines[0].claim(1) for _ in range(2)]
    with pytest.raises(WriteTimeout):
        cluster.engines[0].claim(1, 0.0)
    with pytest.raises(ValueError, match="size_max is 8 bytes"):
        claims[0].commit(b"123456789")
    for claim in claims:
        claim.commit(b"12345678")
    with pytest.raises(ValueError, match="is over"):
        claims[0].commit(b"")
    cluster.settle()
    assert reader.take(9) == [b"12345678"] * 2
    kept = cluster.engines[0].claim(1)
    cluster.engines[0].wedge(open_claim_timeout_s=0)
    change_view(cluster, 2, cluster.specs)
    del cluster
    with pytest.raises(Wedged):
        kept.commit(b"nobody")


def test_a_claim_that_is_given_up_holds_nobody():
    """By name, by being dropped, and where what was to be written is of a wrong kind: what comes behind it goes out."""
    cluster = Cluster(2, senders=[0])
    reader, engine = cluster.reader(1), cluster.engines[0]
    given_up = engine.claim(1)
    dropped = engine.claim(1)
    engine.write(1, b"behind")
    cluster.settle()
    assert reader.take(9) == []
    given_up.abort()
    given_up.abort()
    with pytest.raises(ValueError, match="is over"):
        given_up.commit(b"")
    del dropped
    for data, timestamp_ns, error in ((["list"], 0, TypeError), ("text", 0, TypeError), (b"x", -1, OverflowError)):
        with pytest.raises(error):
            engine.write(1, data, timestamp_ns)
    kept = engine.claim(1)
    with pytest.raises(OverflowError):
        kept.commit(b"x", -1)
    kept.commit(b"last")
    cluster.settle()
    assert reader.take(9) == [b"behind", b"last"]
    with pytest.raises(ValueError, match="is over"):
        DirectClaim().commit(b"")


def test_writes_are_checked_at_the_edge():
    """Too large, not a sender, no view: each a clear error; nothing is half done."""
    cluster = Cluster(2, senders=[0])
    writer = cluster.writer(0)
    with pytest.raises(MessageTooLarge, match="size_max is 64"):
        writer.write(bytes(65))
    with pytest.raises(ValueError, match="no sender"):
        cluster.engines[1].write(1, b"x")
    with pytest.raises(ValueError, match="no view"):
        Engine(9).write(1, b"x")
    assert writer.committed == 0


def test_a_log_that_cannot_hold_two_messages_is_refused():
    """A log must hold two of the largest messages of its topic."""
    cluster = Cluster(1, size_max=8192)
    with pytest.raises((ValueError, CoreError), match="8192"):
        cluster.engines[0].bind_log(1, DeliveryLog(8192))


def test_readers_and_writers_have_limits():
    """The limit on readers of a topic is in the message."""
    log = DeliveryLog()
    cursors = [Cursor(False) for _ in range(257)]
    for cursor in cursors[:256]:
        log.add_reader(cursor)
    with pytest.raises(ValueError, match="256"):
        log.add_reader(cursors[256])


def test_switches_baseline_is_all_off():
    """The paper's baseline is every technique off."""
    assert Switches.baseline() == Switches(*[False] * 7) and Switches() == Switches(*[True] * 7)
