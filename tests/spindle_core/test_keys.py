"""Keys of messages: what the layer above says a message is about goes with it, in topics that have keys, and only
there.

Method: engines of one process, stepped by hand; every way that a message can take into a log.
"""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from spindle_core.engine import SubgroupSpec
from spindle_core.inbox_writer import InboxWriter
from spindle_core.memory import Mapping
from spindle_core.reader import LogReader
from spindle_core.remote import Outbox
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.test_tags import opened

KEYS = [1, 0, (1 << 64) - 1, 5]


def keyed(level: int = 1, tcp: bool = False, size_max: int = 64, window: int = 8) -> Cluster:
    return Cluster(2, [SubgroupSpec(1, (0, 1), (0, 1), window, size_max, level, True)], tcp=tcp)


def got(reader: LogReader) -> list[tuple[bytes, int]]:
    return [(bytes(payload), info.key) for payload, info in reader.take_pairs(1000)]


def test_slots_of_topics_without_keys_are_as_small_as_ever() -> None:
    plain = Cluster(2, [SubgroupSpec(1, (0, 1), (0, 1), 8, 32)])
    with_keys = Cluster(2, [SubgroupSpec(1, (0, 1), (0, 1), 8, 32, 1, True)])
    assert with_keys.epochs[0].row.size - plain.epochs[0].row.size in (0, 4096)
    assert plain.epochs[0].layout_hash() != with_keys.epochs[0].layout_hash()
    for size, grows in ((24, 0), (25, 4096), (32, 4096), (33, 0), (1024, 0)):
        without, there = (Cluster(2, [SubgroupSpec(1, (0, 1), (0, 1), 64, size, 1, one)]).epochs[0].row.size
                          for one in (False, True))
        assert there - without == grows, size


@pytest.mark.parametrize("tcp", [False, True])
@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("relay", [0, 3])
@pytest.mark.parametrize("size", [0, 1, 63, 64])
def test_every_member_sees_the_key(level: int, relay: int, tcp: bool, size: int) -> None:
    cluster = keyed(level, tcp)
    readers = [cluster.reader(0), cluster.reader(1)]
    _, writer = opened(cluster, relay=relay)
    for key in KEYS:
        writer.write(bytes([key & 255]) * size, key=key)
    writer.write_many([(bytes(size), key) for key in KEYS], keyed=True)
    memory = writer.claim(2)
    memory[:] = b"ab"
    writer.commit(timestamp_ns=5, key=77)
    for _ in range(2):
        cluster.settle()
    wanted = [(bytes([key & 255]) * size, key) for key in KEYS] + [(bytes(size), key) for key in KEYS] + [(b"ab", 77)]
    assert got(readers[0]) == got(readers[1]) == wanted


def test_arrays_have_a_key_for_each_record() -> None:
    cluster = keyed()
    reader = cluster.reader(1)
    _, writer = opened(cluster)
    rows = np.arange(4, dtype=np.uint32)
    assert writer.write_array(rows.view("u1"), 4, keys=np.array(KEYS, np.uint64)) == 4
    cluster.settle()
    assert got(reader) == [(row.tobytes(), key) for row, key in zip(rows, KEYS, strict=True)]
    with pytest.raises(ValueError, match="3 keys for 4 records"):
        writer.write_array(rows.view("u1"), 4, keys=np.zeros(3, np.uint64))
    assert writer.committed == 4


def test_a_topic_without_keys_carries_none() -> None:
    cluster = Cluster(2)
    reader = cluster.reader(1)
    _, writer = opened(cluster)
    writer.write(b"x", key=9)
    cluster.settle()
    assert got(reader) == [(b"x", 0)]


def test_a_key_stays_with_its_message_into_the_next_epoch() -> None:
    """What is sent again, and what waits for room in a log."""
    cluster = Cluster(2, [SubgroupSpec(1, (0, 1), (0,), 8, 64, 1, True)])
    slow, free = cluster.reader(1, capacity=4096, hot=0), cluster.reader(0)
    _, writer = opened(cluster, slots=64)
    for key in range(1, 60):
        writer.write(b"%d" % key, timeout_s=0, key=key)
        cluster.settle()
    for engine in cluster.engines:
        engine.wedge()
    frozen = [epoch.frozen_counts(i, 1)[0] for i, epoch in enumerate(cluster.epochs)]
    assert cluster.engines[0].deliver_to_trim(1, [min(frozen)])
    assert not cluster.engines[1].deliver_to_trim(1, [min(frozen)])
    taken = got(slow)
    for payload, sender, sequence, source_ns, writer_id, relay, tag, key, _ in cluster.engines[1].take_undelivered(
            1, [min(frozen)]):
        assert cluster.logs[1, 1].append(payload, sender, sequence, 1, source_ns, writer_id, 0, relay, tag, key)
        taken += got(slow)
    cluster.install(2, cluster.specs)
    for _ in range(20):
        cluster.settle()
        taken += got(slow)
    assert taken == got(free) == [(b"%d" % key, key) for key in range(1, 60)]


def test_a_key_stays_with_a_message_that_is_sent_again() -> None:
    """Method: node 0 publishes three messages that node 1 has not looked at when everybody freezes; the trim is 0."""
    cluster = Cluster(2, [SubgroupSpec(1, (0, 1), (0,), 8, 64, 1, True)])
    readers = [cluster.reader(0), cluster.reader(1)]
    _, writer = opened(cluster)
    for key in (7, 8, 9):
        writer.write(b"%d" % key, key=key)
    cluster.engines[1].wedge()
    cluster.engines[0].step_once()
    cluster.engines[0].wedge()
    for engine in cluster.engines:
        assert engine.deliver_to_trim(1, [0])
    cluster.install(2, cluster.specs)
    cluster.settle()
    assert cluster.engines[0].counters.snapshot()["resent_messages"] == 3
    for reader in readers:
        assert got(reader) == [(b"7", 7), (b"8", 8), (b"9", 9)]


def test_both_ends_of_a_network_pass_it_on() -> None:
    outbox, cluster = Outbox(64, 8, 7), keyed()
    bell = cluster.engines[0]
    writer = InboxWriter(Mapping.attach(os.dup(outbox.ring.fd), True), Mapping.attach(os.dup(outbox.progress.fd)),
                         os.dup(outbox.their_fd), Mapping.attach(os.dup(bell.bell.fd)), os.dup(bell.bell_fd))
    for key in KEYS:
        writer.write(b"x", key=key)
    reader = cluster.reader(1)
    _, relay = opened(cluster, relay=3)
    relay.relay([SimpleNamespace(payload=payload, source_ns=ns, tag=tag, key=key, large=large)
                 for payload, ns, tag, key, large in outbox.take(9, 1 << 20)])
    cluster.settle()
    assert got(reader) == [(b"x", key) for key in KEYS]
