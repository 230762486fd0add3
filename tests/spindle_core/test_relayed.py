"""What a node notes of writers on hosts without a node.

Goal: after whatever way a message has taken into the order (delivery, the next epoch, a log without room), every member
knows it, and its record says whose it is. Method: the table alone against a dict; two engines of one process.
"""

from __future__ import annotations

import os
import random
from types import SimpleNamespace

import pytest

from spindle_core.delivery import DeliveryLog
from spindle_core.engine import Engine
from spindle_core.errors import MessageTooLarge, WriteTimeout
from spindle_core.inbox import Inbox
from spindle_core.memory import Mapping
from spindle_core.relayed import RelayedTable
from spindle_core.remote import RelayWriter
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.logs import add_reader

RELAY, NUMBER = 5, 77
WRITER = RELAY << 15 | NUMBER


def message(payload: bytes, source_ns: int) -> SimpleNamespace:
    return SimpleNamespace(payload=payload, source_ns=source_ns, tag=0, key=0, large=0)


def relay_writer(cluster: Cluster, node: int, slots: int = 16) -> tuple[RelayWriter, Inbox]:
    engine, inbox = cluster.engines[node], Inbox(64, slots, 0x8000 | NUMBER, RELAY)
    engine.add_inbox(1, inbox)
    return RelayWriter(
        Mapping.attach(os.dup(inbox.ring.fd), True), Mapping.attach(os.dup(inbox.progress.fd)), os.dup(inbox.their_fd),
        Mapping.attach(os.dup(engine.bell.fd)), os.dup(engine.bell_fd)), inbox


def known(cluster: Cluster) -> list[int]:
    return [engine.relayed.until(WRITER) for engine in cluster.engines]


# ---- the table


def test_it_keeps_the_greatest_timestamp_of_each() -> None:
    table, pick = RelayedTable(), random.Random(1)
    model: dict[int, int] = {}
    writers = [pick.randrange(1 << 15, 1 << 47) for _ in range(500)]
    for _ in range(20_000):
        writer, source_ns = pick.choice(writers), pick.randrange(1, 1 << 63)
        table.note(writer, source_ns)
        model[writer] = max(model.get(writer, 0), source_ns)
    assert all(table.until(writer) == source_ns for writer, source_ns in model.items())
    assert table.until(1 << 46 | 3) == 0


def test_it_is_bounded_and_forgets_who_was_silent_longest() -> None:
    table = RelayedTable()
    for k in range(1, 100_000):
        table.note(k << 15, k)
    left = [k for k in range(1, 100_000) if table.until(k << 15)]
    assert 4096 < len(left) <= 8192 and min(left) > 20_000
    assert all(table.until(k << 15) == k for k in left)


def test_an_engine_begins_with_none() -> None:
    assert Engine(1).relayed.until(WRITER) == 0


# ---- what goes through the order


def test_a_record_says_whose_it_is() -> None:
    log = DeliveryLog(8192, 4096)
    reader, _ = add_reader(log)
    assert log.append(b"relayed", 1, 0, 0, 9, 0x8000 | NUMBER, 0, RELAY) and log.append(b"local", 1, 1, 0, 9, 3)
    assert [(info.relay, info.writer) for _, info in reader.take_pairs(5)] == [(RELAY, 0x8000 | NUMBER), (0, 3)]


@pytest.mark.parametrize("level", range(4))
def test_every_member_notes_what_it_delivers(level: int) -> None:
    """Of relayed writers only; a member that nobody reads at, too."""
    cluster = Cluster(2, level=level)
    reader = cluster.reader(0)
    writer, _ = relay_writer(cluster, 1)
    local = cluster.writer(1)
    for k in range(5):
        writer.relay([message(b"r%d" % k, 100 + k)])
        local.write(b"local", 900 + k)
        cluster.settle()
    assert known(cluster) == [104, 104]
    assert [engine.relayed.until(7) for engine in cluster.engines] == [0, 0]
    pairs = reader.take_pairs(20)
    assert [(bytes(payload), info.source_timestamp) for payload, info in pairs if info.relay == RELAY] == [
        (b"r%d" % k, 100 + k) for k in range(5)]
    assert sum(info.relay == 0 for _, info in pairs) == 5


def test_what_is_sent_again_in_the_next_view_is_still_relayed() -> None:
    """Method: published by node 0, not looked at by node 1 when all freeze, so that the trim is 0."""
    cluster = Cluster(2, window=4)
    reader = cluster.reader(1)
    writer, _ = relay_writer(cluster, 0)
    writer.relay([message(b"%d" % k, 100 + k) for k in range(3)])
    cluster.engines[1].wedge()
    cluster.engines[0].step_once()
    cluster.engines[0].wedge()
    for engine in cluster.engines:
        assert engine.deliver_to_trim(1, [0, 0])
    assert known(cluster) == [0, 0]
    cluster.install(2, cluster.specs)
    cluster.settle()
    assert known(cluster) == [102, 102]
    assert [info.relay for _, info in reader.take_pairs(9)] == [RELAY] * 3
    assert writer.arm() == (3, 3, 0)


def test_what_an_epoch_leaves_behind_counts_as_delivered() -> None:
    """Method: a reader that keeps all has no room for the last messages, which are taken out of the slots."""
    cluster = Cluster(2, window=64)
    reader = cluster.reader(1, capacity=4096, hot=4096)
    writer, _ = relay_writer(cluster, 0, slots=64)
    writer.relay([message(bytes(60), 100 + k) for k in range(50)])
    for _ in range(20):
        for engine in cluster.engines:
            engine.step_once()
    assert known(cluster)[1] < 149
    for engine in cluster.engines:
        engine.wedge()
    trim = [50, 0]
    assert cluster.engines[0].deliver_to_trim(1, trim)
    assert not cluster.engines[1].deliver_to_trim(1, trim)
    rest = cluster.engines[1].take_undelivered(1, trim)
    assert rest and {one[5] for one in rest} == {RELAY} and rest[-1][3] == 149
    assert known(cluster) == [149, 149] and reader.pending + len(rest) == 50


# ---- the relay's end of an inbox


def test_a_relay_refuses_what_does_not_fit() -> None:
    cluster = Cluster(1)
    writer, _ = relay_writer(cluster, 0, slots=4)
    writer.relay([message(b"a", 5)])
    for stamps in ((5,), (4,), (6, 6)):
        with pytest.raises(ValueError, match="comes after"):
            writer.relay([message(b"x", one) for one in stamps])
    with pytest.raises(MessageTooLarge):
        writer.relay([message(bytes(65), 9)])
    with pytest.raises(WriteTimeout):
        writer.relay([message(b"x", 10 + k) for k in range(9)])
    cluster.settle()
    assert known(cluster) == [11] and writer.arm() == (4, 4, 0)
