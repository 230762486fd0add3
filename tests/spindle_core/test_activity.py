"""Goal: a pass visits only the topics in which something may have changed, and misses none, whatever the interleaving.

Method: groups with several topics, driven step by step. Whenever a pass says that nothing is left to do, parking the
node, which notes every topic, and one more pass show what a look at all topics would have found: nothing.
"""

from __future__ import annotations

import contextlib
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.digest import topics_to_visit
from spindle_core.engine import SubgroupSpec, Switches
from spindle_core.errors import WriteTimeout
from spindle_core.fabric.sim import SimNetwork
from spindle_core.inbox import Inbox
from tests.spindle_core.cluster import Cluster

ACTIVITY_OFFSET, MARKS = 256, 64
PLACE_BITS = 8
SWITCHES = st.builds(Switches, st.booleans(), st.booleans(), st.booleans(), st.booleans(), st.booleans())
PLACES = [0, 1, 63, 64, 127, 200]  # in a view of 201 topics: ends and begins of the words of a set
ACTS = ["write", "write", "claim", "silence", "read", "hold", "release", "durable", "land", *["step"] * 4]
SIZE = 700  # bytes: a log of 4096 holds five


def specs(n: int, levels: list[int], window: int, idle: int = 0) -> list[SubgroupSpec]:
    """One topic of each level, number i at place i, with idle ones behind them."""
    everybody = tuple(range(n))
    return [SubgroupSpec(i, everybody, everybody if i % 2 == 0 else everybody[:-1] or everybody, window, SIZE,
                         levels[i] if i < len(levels) else 1) for i in range(len(levels) + idle)]  # fmt: skip


def told(cluster: Cluster, node: int) -> list[object]:
    """What a node has said to its peers, its writers and its readers."""
    return [cluster.engines[node].counters.snapshot()["pushes"],
            *(cluster.epochs[node].stability(spec.topic_id) for spec in cluster.specs),
            *((box.consumed, box.acknowledged, box.persisted) for box in getattr(cluster, "kept", [])
              if isinstance(box, Inbox))]  # fmt: skip


def step_to_the_end(cluster: Cluster, node: int) -> None:
    """One pass; if that was the last, a look at all topics finds nothing either."""
    engine = cluster.engines[node]
    if engine.step_once():
        return
    before = told(cluster, node)
    with engine.parked():
        pass
    assert engine.step_once() == 0, "a topic had something to do, and the pass before did not visit it"
    assert before == told(cluster, node)


@pytest.mark.slow
@pytest.mark.parametrize("copies", [None, False, True])
@settings(max_examples=120, deadline=None)
@given(n=st.integers(1, 4), window=st.sampled_from([1, 2, 8]), switches=SWITCHES,
       levels=st.lists(st.integers(0, 3), min_size=2, max_size=5),
       script=st.lists(st.tuples(st.sampled_from(ACTS), st.integers(0, 3), st.integers(0, 4), st.integers(1, 6)),
                       max_size=90))  # fmt: skip
def test_a_pass_that_finds_nothing_has_missed_nothing(copies, n, window, levels, switches, script):
    """All that makes work for a topic is announced: by peers whose rows are mapped or copied, by inboxes, claims,
    silences, readers that held delivery back, held deliveries that are let go, journals, and by what a visit leaves."""
    network = SimNetwork(copies=copies) if copies is not None else None
    cluster = Cluster(n, specs(n, levels, window), switches=switches, network=network)
    topics = range(len(levels))
    readers = {(i, t): cluster.reader(i, t, capacity=4096) for i in range(n) for t in topics}
    writers = {(i, t): cluster.writer(i, t, size_max=SIZE)
               for i in range(n) for t in topics if i in cluster.specs[t].senders}
    for act, node, topic, count in script:
        node, topic = node % n, topic % len(levels)
        engine, epoch = cluster.engines[node], cluster.epochs[node]
        if act == "step":
            step_to_the_end(cluster, node)
        elif act == "land" and network is not None and network.copies:
            for source in range(n):
                if source != node:
                    network.land(source + 1, node + 1, count)
        elif act == "read":
            readers[node, topic].take_pairs(count)
        elif act == "hold":
            engine.hold_delivery(topic)
        elif act == "release":
            engine.release_delivery(topic)
        elif act == "durable":
            engine.set_durable(topic, cluster.logs[node, topic].delivered)
        elif (node, topic) in writers:
            writer = writers[node, topic]
            with contextlib.suppress(WriteTimeout):
                if act == "claim":
                    engine.write(topic, b"c%d" % node, timeout_s=0)
                elif act == "silence" and levels[topic] and switches.null_sends:
                    engine.declare_silence(topic, count)
                elif act == "write" and writer.committed - writer.consumed < writer.slots_count:
                    writer.write(bytes(SIZE))
        assert set(topics_to_visit(epoch)) <= set(topics)
    for topic in topics:
        for engine in cluster.engines:
            engine.release_delivery(topic)
    for _ in range(400):
        landed = network.land_all() if network is not None else 0
        taken = sum(len(reader.take_pairs(1000)) for reader in readers.values())
        done = [engine.step_once() for engine in cluster.engines]
        if not landed and not taken and not any(done):
            break
    for node in range(n):
        step_to_the_end(cluster, node)
        if switches.null_sends:  # else messages wait for a silent sender, some of them in their inboxes
            assert topics_to_visit(cluster.epochs[node]) == []


@pytest.mark.parametrize("copies", [None, True])
def test_only_what_has_changed_is_visited(copies):
    """Of 201 topics: who writes to one makes work there, at the writer's node first and then at its peers, and in the
    end nothing is left to visit. Method: ask what the next pass would visit."""
    network = SimNetwork(copies=True) if copies else None
    cluster = Cluster(3, specs(3, [1], 8, 200), network=network)
    writers = {topic: cluster.writer(0, topic) for topic in PLACES}
    assert topics_to_visit(cluster.epochs[0]) == list(range(201))
    cluster.settle()
    assert [topics_to_visit(epoch) for epoch in cluster.epochs] == [[], [], []]
    for topic, writer in writers.items():
        writer.write(b"to one of many")
        assert [topics_to_visit(epoch) for epoch in cluster.epochs] == [[topic], [], []]
        assert cluster.engines[0].step_once() > 0
        if network is not None:
            network.land_all()
        assert [topics_to_visit(epoch) for epoch in cluster.epochs] == [[topic]] * 3
        cluster.settle()
        assert writer.acknowledged == 1
        assert [topics_to_visit(epoch) for epoch in cluster.epochs] == [[], [], []]


@pytest.mark.parametrize("level", [0, 1])
def test_a_slot_that_comes_free_at_another_host_is_seen(level):
    """Where rows are copied, the last thing that comes of a message is its delivery elsewhere. Method: what the
    receiver posts lands one post at a time, and the sender makes passes in between until none does anything."""
    network = SimNetwork(copies=True)
    cluster = Cluster(2, specs(2, [level, level], 8), network=network)
    writer = cluster.writer(0, 1)
    cluster.settle()
    writer.write(b"message")
    while writer.acknowledged == 0:
        while cluster.engines[0].step_once():
            pass
        network.land(1, 2, 1 << 20)
        while cluster.engines[1].step_once():
            pass
        if not network.land(2, 1, 1):
            break
    cluster.engines[0].step_once()
    assert writer.acknowledged == 1


@pytest.mark.parametrize("level", [0, 1])
def test_an_acknowledgement_alone_is_seen(level):
    """A member that receives and delivers nothing, or delivers and sends nothing, has marked that: the writer hears of
    it, and where delivery is held at one member the others deliver."""
    cluster = Cluster(3, specs(3, [level] * 2, 8))
    reader, writer = cluster.reader(0, 0), cluster.writer(0, 0)
    cluster.engines[2].hold_delivery(0)
    cluster.settle()
    writer.write(b"message")
    for engine in cluster.engines:     # each to its end: the last has nobody behind it who would say something, too
        while engine.step_once():
            pass
    cluster.settle()
    assert [bytes(payload) for payload, _ in reader.take_pairs(8)] == [b"message"] and writer.acknowledged == 0
    cluster.engines[2].release_delivery(0)
    cluster.settle()
    assert writer.acknowledged == 1


def test_what_threads_of_the_process_do_is_seen():
    """Slots that are filled in place and silences that are declared make the next pass visit their topic alone."""
    cluster = Cluster(2, specs(2, [1] * 5, 8))
    cluster.settle()
    for topic, act in ((2, lambda: cluster.engines[0].write(2, b"in place")),
                       (4, lambda: cluster.engines[0].declare_silence(4, 3)),
                       (0, lambda: cluster.engines[0].claim(0).abort())):  # fmt: skip
        act()
        assert topics_to_visit(cluster.epochs[0]) == [topic]
        assert cluster.engines[0].step_once() > 0
        cluster.settle()
        assert topics_to_visit(cluster.epochs[0]) == []


def test_room_that_a_reader_makes_is_seen():
    """Delivery that waits for a reader goes on when it has taken something: the reader rings and names no topic."""
    cluster = Cluster(1, specs(1, [1] * 3, 8))
    reader, writer = cluster.reader(0, 1, capacity=4096), cluster.writer(0, 1, size_max=SIZE)
    for k in range(8):
        writer.write(bytes([k]) * SIZE)
    cluster.settle()
    taken = reader.take_pairs(2)
    assert len(taken) == 2 and topics_to_visit(cluster.epochs[0]) == [1]
    assert cluster.engines[0].step_once() > 0
    for _ in range(8):
        taken += reader.take_pairs(8)
        cluster.settle()
    assert [bytes(payload)[0] for payload, _ in taken] == list(range(8))
    assert topics_to_visit(cluster.epochs[0]) == []


def test_what_a_journal_has_synced_is_told():
    """A thread of the process that has synced messages of one topic makes the next pass visit it, and no other."""
    cluster = Cluster(2, specs(2, [3] * 3, 8))
    for node in range(2):
        for topic in range(3):
            cluster.reader(node, topic)
    writer = cluster.writer(0, 2)
    writer.write(b"message")
    cluster.settle()
    assert writer.acknowledged == 1 and writer.persisted == 0
    for engine, epoch in zip(cluster.engines, cluster.epochs, strict=True):
        engine.set_durable(2, 1)
        assert topics_to_visit(epoch) == [2]
        assert engine.step_once() > 0
    cluster.settle()
    assert writer.persisted == 1


def test_with_the_switch_off_every_pass_visits_all_topics():
    """skip_idle off is the paper's pass. Method: a column that changes without a word is found all the same."""
    for skip in (True, False):
        cluster = Cluster(2, specs(2, [1], 8, 5), switches=Switches(skip_idle=skip), network=SimNetwork(copies=False))
        cluster.settle()
        line = 4096 + (512 << 10) + 2 * 64
        memoryview(cluster.epochs[1].row)[line : line + 8] = struct.pack("<Q", 1)
        assert (cluster.engines[0].step_once() > 0) is not skip


@pytest.mark.parametrize("behind", [1, MARKS - 1, MARKS, MARKS + 1, 3 * MARKS + 5])
def test_who_is_overtaken_by_marks_visits_everything(behind):
    """A node that has not looked while its peer made more marks than there are words knows of none of them which topic
    it was, and visits all; who is less behind knows each. Method: many single steps of a sender, none of the others."""
    cluster = Cluster(2, specs(2, [1], 256, 9), switches=Switches(batch_send=False))
    writers = [cluster.writer(0, topic, slots=256) for topic in range(10)]
    cluster.settle()
    for k in range(behind):
        writers[0 if k + 1 < behind else 7].write(b"x")
        while writers[0].committed > writers[0].consumed or writers[7].committed > writers[7].consumed:
            cluster.engines[0].step_once()
    marked = struct.unpack("<Q", bytes(memoryview(cluster.epochs[0].row)[ACTIVITY_OFFSET : ACTIVITY_OFFSET + 8]))[0]
    visits = topics_to_visit(cluster.epochs[1])
    if marked >> PLACE_BITS > 1:
        assert visits == list(range(10))
    else:
        assert visits == sorted({0, 7} if behind > 1 else {7})
    cluster.settle()
    assert sum(writer.acknowledged for writer in writers) == behind


@pytest.mark.parametrize("word", [(1 << 64) - 1, 1 << 63, 255, 256, 0xFF00FF])
def test_nonsense_among_the_marks_hurts_nobody(word):
    """A broken peer's marks make its peers visit topics, of which there need not be as many, and nothing else: no pass
    goes on for ever. Method: all words of its row hold the same nonsense, another one at each step."""
    cluster = Cluster(3, specs(3, [1, 1], 8), network=SimNetwork(copies=False))
    reader, writer = cluster.reader(0, 0), cluster.writer(0, 0)
    row = memoryview(cluster.epochs[2].row)
    for k in range(50):
        row[ACTIVITY_OFFSET : ACTIVITY_OFFSET + 8 * MARKS] = struct.pack("<Q", word - (k << 20) & (1 << 64) - 1) * MARKS
        if k < 8:
            writer.write(b"%d" % k)
        for engine in cluster.engines:
            engine.step_once()
    cluster.settle()
    assert [bytes(payload) for payload, _ in reader.take_pairs(100)] == [b"%d" % k for k in range(8)]
