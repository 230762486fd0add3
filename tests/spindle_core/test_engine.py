"""Engines: bindings, readers and writers, threads, errors at the edge; test_changeover.py goes across views."""

from __future__ import annotations

import ctypes
import os
import threading

import pytest

from spindle_core.delivery import Cursor, DeliveryLog
from spindle_core.direct import DirectClaim
from spindle_core.engine import Engine, SubgroupSpec, Switches
from spindle_core.errors import CoreError, MessageTooLarge, NodeGone, Wedged, WriteTimeout
from tests.spindle_core.cluster import Cluster, asleep
from tests.spindle_core.test_changeover import change_view
from tests.support import descriptors_before, open_descriptors, wait_until


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
    before = descriptors_before()
    other = SubgroupSpec(1, (0, 1), (0, 1), 16, 64, 1)
    for theirs, words in (
        (two.new_epoch(6, 1, [1, 2], [spec]), "epoch 6"),
        (two.new_epoch(5, 1, [1, 2], [other]), "another idea"),
    ):
        with pytest.raises(ValueError, match=words):
            mine.attach_peer(1, os.dup(theirs.row.fd), os.dup(theirs.bell.fd), os.dup(theirs.bell_fd))
    descriptors = descriptors_before()
    with pytest.raises(ValueError, match="other than the own one"):
        mine.attach_peer(0, os.dup(theirs.row.fd), os.dup(theirs.bell.fd), os.dup(theirs.bell_fd))
    assert open_descriptors() == descriptors
    del theirs
    assert open_descriptors() <= before + 4
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
