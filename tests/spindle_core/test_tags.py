"""Tags of messages, and farewells: what the layer above says of a message reaches every reader, and the word that
follows a writer's last message always comes, once, behind it.

Method: engines of one process, stepped by hand; every way that a message can take into a log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from spindle_core.delivery import DeliveryLog
from spindle_core.inbox import Inbox, InboxWriter
from spindle_core.memory import Mapping
from spindle_core.reader import LogReader
from spindle_core.remote import Outbox, RelayWriter
from spindle_core.switches import Switches
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.logs import add_reader

TAGS = [0, 1, 255, 7]


def opened(cluster: Cluster, node: int = 0, slots: int = 16, relay: int = 0) -> tuple[Inbox, RelayWriter]:
    engine, inbox = cluster.engines[node], Inbox(64, slots, 0x8007 if relay else 7, relay)
    engine.add_inbox(1, inbox)
    return inbox, RelayWriter(
        Mapping.attach(os.dup(inbox.ring.fd), True), Mapping.attach(os.dup(inbox.progress.fd)), os.dup(inbox.their_fd),
        Mapping.attach(os.dup(engine.bell.fd)), os.dup(engine.bell_fd))


def write(writer: InboxWriter, tags: Sequence[int] = TAGS) -> None:
    for tag in tags:
        writer.write(b"%d" % tag, tag=tag)


def got(reader: LogReader) -> list[tuple[bytes, int]]:
    return [(payload, info.tag) for payload, info in reader.take_pairs(1000)]


def expected(tags: Sequence[int] = TAGS) -> list[tuple[bytes, int]]:
    return [(b"%d" % tag, tag) for tag in tags]


def finish(cluster: Cluster, inbox: Inbox, tag: int, node: int = 0) -> None:
    with cluster.engines[node].parked():
        inbox.finish(tag)


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("relay", [0, 3])
def test_every_member_sees_the_tag(level: int, relay: int) -> None:
    cluster = Cluster(2, level=level)
    readers = [cluster.reader(0), cluster.reader(1)]
    _, writer = opened(cluster, relay=relay)
    write(writer)
    writer.write_many([b"0", b"0"])
    writer.claim(1)[:] = b"0"
    writer.commit()
    cluster.settle()
    for reader in readers:
        assert got(reader) == expected([*TAGS, 0, 0, 0])


def test_a_slot_that_is_used_again_has_no_old_tag() -> None:
    cluster = Cluster(1, window=2)
    reader = cluster.reader(0)
    _, writer = opened(cluster, slots=2)
    for _ in range(5):
        write(writer, [9, 9])
        cluster.settle()
        writer.write_many([b"0"])
        writer.claim(1)[:] = b"0"
        writer.commit()
        cluster.settle()
    assert got(reader) == expected([9, 9, 0, 0] * 5)


def test_it_goes_along_to_the_next_view() -> None:
    """Method: published by node 0, not looked at by node 1 when all freeze, so that all of it is sent again."""
    cluster = Cluster(2)
    reader = cluster.reader(1)
    _, writer = opened(cluster)
    write(writer)
    cluster.engines[1].wedge()
    cluster.engines[0].step_once()
    cluster.engines[0].wedge()
    for engine in cluster.engines:
        assert engine.deliver_to_trim(1, [0, 0])
    cluster.install(2, cluster.specs)
    cluster.settle()
    assert got(reader) == expected()


def test_it_waits_with_its_message_for_room_in_the_log() -> None:
    cluster = Cluster(2, window=64, senders=[0])
    free = cluster.reader(0)
    slow = cluster.reader(1, capacity=4096, hot=256)
    _, writer = opened(cluster, slots=64)
    tags = [i * 3 % 256 for i in range(60)]
    write(writer, tags)
    cluster.settle()
    for engine in cluster.engines:
        engine.wedge()
    assert cluster.engines[0].deliver_to_trim(1, [60]) and not cluster.engines[1].deliver_to_trim(1, [60])
    rest = cluster.engines[1].take_undelivered(1, [60])
    taken = got(slow)
    for payload, sender, sequence, source_ns, writer_id, relay, tag in rest:
        assert cluster.logs[1, 1].append(payload, sender, sequence, 1, source_ns, writer_id, 0, relay, tag)
        taken += got(slow)
    assert rest and taken == got(free) == expected(tags)


def test_a_log_that_goes_round_has_no_old_tags() -> None:
    log = DeliveryLog(4096, 256)
    reader, _ = add_reader(log)
    for i in range(300):
        assert log.append(bytes(i % 90), 1, i, 1, 5, 7, 0, 0, i % 3)
        assert [(len(payload), info.tag) for payload, info in reader.take_pairs(9)] == [(i % 90, i % 3)]
    assert log.append(b"", 1, 300, 1, 5) and [info.tag for _, info in reader.take_pairs(9)] == [0]


def test_both_ends_of_a_network_pass_it_on() -> None:
    outbox = Outbox(64, 8, 7)
    cluster = Cluster(1)
    bell = cluster.engines[0]
    writer = InboxWriter(Mapping.attach(os.dup(outbox.ring.fd), True), Mapping.attach(os.dup(outbox.progress.fd)),
                         os.dup(outbox.their_fd), Mapping.attach(os.dup(bell.bell.fd)), os.dup(bell.bell_fd))
    write(writer)
    batch = outbox.take(9, 1 << 20)
    assert [(payload, tag) for payload, _, tag in batch] == expected()
    assert [(payload, tag) for _, _, payload, tag in writer.unacknowledged()] == expected()
    reader = cluster.reader(0)
    _, relay = opened(cluster, relay=3)
    relay.relay([SimpleNamespace(payload=payload, source_ns=ns, tag=tag) for payload, ns, tag in batch])
    cluster.settle()
    assert got(reader) == expected()
    with pytest.raises(ValueError, match="255 is the largest"):
        relay.relay([SimpleNamespace(payload=b"", source_ns=1 << 62, tag=256)])


@pytest.mark.parametrize("tag", [-1, 256])
def test_a_tag_has_eight_bits(tag: int) -> None:
    _, writer = opened(Cluster(1))
    with pytest.raises(OverflowError):
        writer.write(b"", tag=tag)
    assert writer.committed == 0


# --- farewells

@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("relay", [0, 3])
@pytest.mark.parametrize("batch", [True, False])
def test_a_farewell_follows_the_last_message(level: int, relay: int, batch: bool) -> None:
    cluster = Cluster(2, level=level, switches=Switches(batch_send=batch))
    readers = [cluster.reader(0), cluster.reader(1)]
    inbox, writer = opened(cluster, relay=relay)
    write(writer)
    assert not inbox.is_finished
    finish(cluster, inbox, 99)
    assert not inbox.is_finished
    writer.write(b"later")  # of an application that writes on: nobody takes it
    cluster.settle()
    for reader in readers:
        assert got(reader) == [*expected(), (b"", 99)]
    assert inbox.is_finished
    cluster.settle()
    assert got(readers[0]) == []


@pytest.mark.parametrize("written", [0, 1, 4])
def test_when_all_it_wrote_has_come_already(written: int) -> None:
    cluster = Cluster(2, window=4)
    reader = cluster.reader(1)
    inbox, writer = opened(cluster, slots=4)
    write(writer, [1] * written)
    cluster.settle()
    finish(cluster, inbox, 99)
    assert not inbox.is_finished
    cluster.settle()
    assert got(reader) == [*expected([1] * written), (b"", 99)] and inbox.is_finished


def test_without_a_farewell_it_ends_as_before() -> None:
    cluster = Cluster(2)
    reader = cluster.reader(1)
    inbox, writer = opened(cluster)
    write(writer)
    finish(cluster, inbox, 0)
    assert not inbox.is_finished
    cluster.settle()
    assert got(reader) == expected() and inbox.is_finished


def test_it_needs_a_slot_like_any_other() -> None:
    """Method: a window of two, full of messages that a reader keeps all of and doesn't take."""
    cluster = Cluster(1, window=2, size_max=400)
    reader = cluster.reader(0, capacity=4096, hot=256)
    inbox = Inbox(400, 16, 7)
    cluster.engines[0].add_inbox(1, inbox)
    engine = cluster.engines[0]
    writer = InboxWriter(Mapping.attach(os.dup(inbox.ring.fd), True), Mapping.attach(os.dup(inbox.progress.fd)),
                         os.dup(inbox.their_fd), Mapping.attach(os.dup(engine.bell.fd)), os.dup(engine.bell_fd))
    for _ in range(12):
        writer.write(bytes(400), tag=1)
    finish(cluster, inbox, 99)
    cluster.settle()
    assert not inbox.is_finished
    taken = []
    while not inbox.is_finished:
        taken += [tag for _, tag in got(reader)]
        cluster.settle()
    taken += [tag for _, tag in got(reader)]
    assert taken == [1] * 12 + [99]


@pytest.mark.parametrize("trim", [0, 5])
def test_a_view_change_in_the_middle(trim: int) -> None:
    """Sent again with what came before it, or delivered by the trim: once in either case, and then it is finished."""
    cluster = Cluster(2, senders=[0])
    readers = [cluster.reader(0), cluster.reader(1)]
    inbox, writer = opened(cluster)
    write(writer)
    finish(cluster, inbox, 99)
    if not trim:
        cluster.engines[1].wedge()
    cluster.engines[0].step_once()
    if trim:
        cluster.engines[1].step_once()
        cluster.engines[1].wedge()
    cluster.engines[0].wedge()
    frozen = [epoch.frozen_counts(rank, 1)[0] for rank, epoch in enumerate(cluster.epochs)]
    assert min(frozen) == trim
    for engine in cluster.engines:
        assert engine.deliver_to_trim(1, [trim])
    assert not inbox.is_finished
    cluster.install(2, cluster.specs)
    cluster.settle()
    for reader in readers:
        assert got(reader) == [*expected(), (b"", 99)]
    assert inbox.is_finished
