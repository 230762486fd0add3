"""Tags of messages, and farewells: what the layer above says of a message reaches every reader, and the word that
follows a writer's last message always comes, once, behind it.

Method: engines of one process, stepped by hand; every way that a message can take into a log.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import SimpleNamespace

import pytest

from spindle_core.delivery import Cursor, DeliveryLog
from spindle_core.inbox import Inbox
from spindle_core.inbox_writer import InboxWriter
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
    for payload, sender, sequence, source_ns, writer_id, relay, tag, *_ in rest:
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
    assert [(payload, tag) for payload, _, tag, *_ in batch] == expected()
    assert [(payload, tag) for _, _, payload, tag in writer.unacknowledged()] == expected()
    reader = cluster.reader(0)
    _, relay = opened(cluster, relay=3)
    relay.relay([SimpleNamespace(payload=payload, source_ns=ns, tag=tag, key=0, large=0)
                 for payload, ns, tag, *_ in batch])
    cluster.settle()
    assert got(reader) == expected()
    with pytest.raises(ValueError, match="255 is the largest"):
        relay.relay([SimpleNamespace(payload=b"", source_ns=1 << 62, tag=256, key=0, large=0)])


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


# --- asides

def say(cluster: Cluster, inbox: Inbox, tag: int, node: int = 0) -> None:
    with cluster.engines[node].parked():
        inbox.say(tag)


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("relay", [0, 3])
@pytest.mark.parametrize("batch", [True, False])
def test_an_aside_goes_before_what_comes_next(level: int, relay: int, batch: bool) -> None:
    cluster = Cluster(2, level=level, switches=Switches(batch_send=batch))
    readers = [cluster.reader(0), cluster.reader(1)]
    inbox, writer = opened(cluster, relay=relay)
    write(writer)
    cluster.settle()
    say(cluster, inbox, 98)
    cluster.settle()
    write(writer, [5])
    cluster.settle()
    say(cluster, inbox, 96)
    say(cluster, inbox, 97)  # what has not gone yet need not
    write(writer, [6])
    cluster.settle()
    for reader in readers:
        assert got(reader) == [*expected(), (b"", 98), *expected([5]), (b"", 97), *expected([6])]
    assert inbox.acknowledged == inbox.committed == 6


def test_an_aside_goes_behind_what_waits() -> None:
    cluster = Cluster(2)
    reader = cluster.reader(1)
    inbox, writer = opened(cluster)
    write(writer, [1, 2])
    say(cluster, inbox, 98)
    write(writer, [3])
    cluster.settle()
    assert got(reader) == [*expected([1, 2]), (b"", 98), *expected([3])]


def test_who_takes_back_what_it_has_committed_gets_no_more_taken() -> None:
    """An application writes into its inbox's header: nothing behind what it says now may be read, whatever was said
    before."""
    cluster = Cluster(1)
    reader = cluster.reader(0)
    inbox, writer = opened(cluster)
    write(writer, [1, 2, 3])
    say(cluster, inbox, 98)
    memoryview(writer.ring)[8:16] = (1).to_bytes(8, "little")
    cluster.settle()
    assert got(reader) == expected([1])
    memoryview(writer.ring)[8:16] = (3).to_bytes(8, "little")
    cluster.settle()
    assert got(reader) == [*expected([2, 3]), (b"", 98)]


def test_who_has_ended_says_nothing_more() -> None:
    cluster = Cluster(1)
    reader = cluster.reader(0)
    inbox, writer = opened(cluster)
    write(writer, [1])
    say(cluster, inbox, 98)
    finish(cluster, inbox, 99)
    say(cluster, inbox, 97)
    cluster.settle()
    assert got(reader) == [*expected([1]), (b"", 99)] and inbox.is_finished


def test_an_aside_is_sent_again_after_a_view_change() -> None:
    cluster = Cluster(2, senders=[0])
    readers = [cluster.reader(0), cluster.reader(1)]
    inbox, writer = opened(cluster)
    write(writer, [1])
    say(cluster, inbox, 98)
    cluster.engines[1].wedge()
    cluster.engines[0].step_once()
    cluster.engines[0].wedge()
    for engine in cluster.engines:
        assert engine.deliver_to_trim(1, [0])
    cluster.install(2, cluster.specs)
    cluster.settle()
    for reader in readers:
        assert got(reader) == [*expected([1]), (b"", 98)]


def test_signs_of_life() -> None:
    cluster = Cluster(1)
    inbox, writer = opened(cluster)
    seen = [inbox.signs_of_life]
    writer.give_sign_of_life()
    seen.append(inbox.signs_of_life)
    write(writer, [1])
    seen.append(inbox.signs_of_life)
    assert len(set(seen)) == 3 and seen[1][0] == seen[0][0]
    writer.close()
    writer.give_sign_of_life()
    assert inbox.signs_of_life == seen[-1]


# --- readers that look before they go past a tag

def mixed(tags: Sequence[int], **log_like: int) -> tuple[DeliveryLog, LogReader]:
    log = DeliveryLog(1 << 16)
    reader, _ = add_reader(log, **log_like)
    reader.only_plain = True
    put(log, tags)
    return log, reader


def put(log: DeliveryLog, tags: Sequence[int]) -> None:
    for tag in tags:
        assert log.append(b"%d" % tag, 1, log.delivered, 1, 5, tag=tag)


def taken_with(reader: LogReader) -> list[bytes]:
    return [bytes(one) for one in reader.take_with(99, bytes, info_attribute=None)]


def taken_as_block(reader: LogReader) -> list[bytes]:
    block = reader.take_block(99)
    if block is None:
        return []
    with block:
        return [bytes(block.buffer[block.offset + i * block.stride:][:block.payload_size]) for i in range(block.count)]


@pytest.mark.parametrize("take", [lambda reader: reader.take(99), taken_with, taken_as_block])
def test_what_gives_no_info_ends_before_a_tag(take: object) -> None:
    _, reader = mixed([0, 0, 7, 0])
    assert not reader.meets_tagged and reader.tagged_ahead
    assert take(reader) == [b"0", b"0"]  # type: ignore[operator]
    assert take(reader) == [] and reader.pending == 2 and reader.meets_tagged  # type: ignore[operator]
    assert got_one(reader) == (b"7", 7) and not reader.meets_tagged and not reader.tagged_ahead
    assert take(reader) == [b"0"] and reader.pending == 0  # type: ignore[operator]


def got_one(reader: LogReader) -> tuple[bytes, int]:
    ((payload, info),) = reader.take_pairs(1)
    return payload, info.tag


def test_nothing_is_skipped_while_there_is_a_tag() -> None:
    log, reader = mixed([0, 0, 0])
    assert reader.skip_to_last(1) == 2
    put(log, [9])
    assert reader.skip_to_last(1) == 0 and reader.take(9) == [b"0"]
    assert got_one(reader) == (b"9", 9)
    put(log, [0, 0])
    assert reader.skip_to_last(1) == 1 and reader.take(9) == [b"0"]


def test_each_message_is_looked_at_where_it_lies() -> None:
    """Method: a reader that is overtaken, and one whose log returns to its hot part, ask before and after."""
    log = DeliveryLog(4096)
    reader, _ = add_reader(log, False)
    put(log, [0, 3, 0])
    assert reader.tagged_ahead
    put(log, [0] * 200)
    assert reader.tagged_ahead and reader.lost == 0  # it was there; that it was overwritten is found when it is taken
    put(log, [4])
    taken = reader.take(999)  # it doesn't mind tags
    assert taken[-1] == b"4" and len(taken) + reader.lost == 204 and not reader.tagged_ahead
    for _ in range(100):
        put(log, [0, 5])
        assert reader.tagged_ahead and not reader.meets_tagged
        assert reader.take(9) == [b"0", b"5"] and not reader.tagged_ahead


def test_who_looks_ahead_reads_on_where_the_log_went_back_to_its_start() -> None:
    """What a look finds of the log counts for the look alone: the reader sees for itself that the log has gone back."""
    log = DeliveryLog(1 << 14, 1 << 10)
    reader, _ = add_reader(log, True)
    for number in range(200):
        put(log, [0])
        assert not reader.tagged_ahead
        put(log, [number % 2])
        assert reader.tagged_ahead == bool(number % 2)
        assert reader.take(9) == [b"0", b"%d" % (number % 2)]


def test_who_looks_ahead_still_skips_what_it_has_had() -> None:
    """A reader that goes on at another node looks over messages which it has had, and then over one that is new."""
    log = DeliveryLog(1 << 14)
    put(log, [0, 0, 0])
    cursor = Cursor(True, True)
    log.add_reader(cursor)
    reader = LogReader(Mapping.attach(os.dup(log.mapping.fd)), Mapping.attach(os.dup(cursor.mapping.fd), True),
                       os.dup(cursor.their_fd), place=(1, 2), skips=True)
    assert not reader.tagged_ahead
    put(log, [5])
    assert reader.tagged_ahead
    assert [info.sequence for _, info in reader.take_pairs(9)] == [2, 3]
