"""The last messages of each key: what is kept, what is forgotten, what is given up.

Goal: the table follows from the order alone, keeps what docs/protocol.md says, within its memory; a reader gets it
whole and then the log, without a gap or a message twice. Method: a model written a second time
(spindle_lab/whole/lasts.py) and messages drawn at random, with few keys and writers and little memory, so that
everything meets; then each rule alone.
"""

from __future__ import annotations

import os
import random

import pytest

from spindle.group.levels import Level
from spindle.group.topics import (
    RANK_COUNTS,
    RANK_COUNTS_RANKED,
    RANK_PRESENT,
    RANK_PRESENT_RANKED,
    RANK_YIELDS,
    TIMING_STAMPED,
    TIMING_WORD,
    TopicSpec,
)
from spindle_core.delivery import Cursor, DeliveryLog
from spindle_core.memory import Mapping
from spindle_core.reader import LogReader
from spindle_core.table_copy import table_messages, table_place
from spindle_core.timing import Timing
from spindle_lab.whole.lasts import Lasts
from spindle_lab.whole.said import Said
from tests.support import seeds

SAMPLE, LEAVES, ENDS, OF_WRITER, OF_NODE, ALONE, CARRIED, BOUND = 1, 2, 4, 8, 16, 32, 128, 16
# Tags are the effects themselves, but for 0, which is a sample; those with 64 in them have none.
EFFECTS = bytes([SAMPLE, *(0 if one & 64 else one for one in range(1, 256))])
UNCARRIED = bytes(0 if one & CARRIED else one for one in EFFECTS)
VIEW = 7


STAMPED = bytes(TIMING_WORD if tag == 65 else TIMING_STAMPED for tag in range(256))


# Where of each key only one writer counts: three tags without effects, and most others say a rank.
YIELDS, PRESENT, PRESENT_RANKED, RANK_AT = 66, 68, 72, 14
RANKS = bytes({YIELDS: RANK_YIELDS, PRESENT: RANK_PRESENT, PRESENT_RANKED: RANK_PRESENT_RANKED}.get(
    tag, 0 if tag & 64 or tag == SAMPLE else RANK_AT) for tag in range(256))
# Where all count, and it is known who there is.
SHARED = bytes({PRESENT: RANK_PRESENT, PRESENT_RANKED: RANK_PRESENT_RANKED}.get(
    tag, RANK_COUNTS if RANKS[tag] == 0 else RANK_COUNTS_RANKED) for tag in range(256))


def spec_of(depth: int, room: int, size_max: int = 16, by_source: bool = False, ranks: bytes = b"") -> TopicSpec:
    return TopicSpec("t", level=Level.VOLATILE, size_max=size_max, history_depth=depth, history_bytes=room,
                     effects=UNCARRIED if ranks == RANKS else EFFECTS, timing=STAMPED if by_source else b"",
                     ranks=ranks)


def log_of(spec: TopicSpec, capacity: int = 1 << 16) -> DeliveryLog:
    return DeliveryLog(capacity, keep_history=True, history_depth=spec.history_depth, effects=spec.effects,
                       table_bytes=spec.table_bytes, timing=Timing(spec.timing) if spec.timing else None,
                       ranks=spec.ranks)


def said(
    sequence: int, key: int, tag: int = 0, writer: int = 1, sender: int = 1, relay: int = 0, size: int = 8,
    last: int = 0, source_ns: int = 11, rank: int = 0,
) -> Said:
    return Said((VIEW, sequence), key, tag, sender, writer, relay, size, source_ns=source_ns, last=last,
                rank=rank if has_rank(tag, size) else 0)


def has_rank(tag: int, size: int) -> bool:
    return RANKS[tag] in (RANK_AT, RANK_PRESENT_RANKED) and size >= RANK_AT


def payload_of(one: Said) -> bytes:
    payload = (one.order[1].to_bytes(8, "little") * (one.size // 8 + 1))[:one.size]
    if has_rank(one.tag, one.size):
        payload = payload[:-RANK_AT] + one.rank.to_bytes(4, "little", signed=True) + payload[4 - RANK_AT :]
    return payload[:-8] + one.last.to_bytes(8, "little") if one.tag & CARRIED and one.size >= 8 else payload


def arguments(one: Said) -> tuple[object, ...]:
    """Of DeliveryLog.append and note."""
    return (payload_of(one), one.sender, one.order[1], one.order[0], one.source_ns, one.writer, 22, one.relay, one.tag,
            one.key)


def kept(log: DeliveryLog) -> list[Said]:
    found = []
    copy = log.copy_table(shared=False)
    for payload, sender, sequence, view_id, source_ns, writer, _, relay, tag, key, _ in table_messages(copy):
        last = int.from_bytes(payload[-8:], "little") if tag & CARRIED and len(payload) >= 8 else 0
        rank = 0
        if has_rank(tag, len(payload)):
            rank = int.from_bytes(payload[-RANK_AT:][:4], "little", signed=True)
        found.append(Said((view_id, sequence), key, tag, sender, writer, relay, len(payload), source_ns=source_ns,
                          last=last, rank=rank))
        assert payload == payload_of(found[-1])
    return found


def random_messages(rng: random.Random, count: int, keys: int, large: int, groups: bool = False,
                    by_source: bool = False, ranked: bool = False) -> list[Said]:
    """`groups`: some writers speak for others, and some messages are about several keys. `by_source`: each has a time
    of its own."""
    found = []
    tags = [0, 0, 0, 0, LEAVES, ENDS, LEAVES | ENDS, SAMPLE | ENDS, SAMPLE | ENDS | LEAVES, SAMPLE | LEAVES,
            OF_WRITER | LEAVES, OF_WRITER | LEAVES | ENDS, OF_WRITER, OF_NODE | LEAVES, 64]
    if ranked:
        tags += [0, 0, 0, 0, SAMPLE, YIELDS, YIELDS, PRESENT, PRESENT_RANKED]
    if groups:
        tags += [CARRIED | SAMPLE, CARRIED | SAMPLE | BOUND, CARRIED | SAMPLE | BOUND, CARRIED | LEAVES,
                 CARRIED | LEAVES | ENDS | BOUND, CARRIED | ENDS, CARRIED | OF_WRITER | LEAVES | ENDS | BOUND, CARRIED,
                 CARRIED | SAMPLE | ENDS, SAMPLE | ALONE, SAMPLE | ALONE]
    for sequence in range(0, 3 * count, 3):
        tag = rng.choice(tags)
        of_node = tag & OF_NODE and not tag & CARRIED
        whole = tag & OF_WRITER or of_node
        relay = 0 if of_node else rng.choice((0, 0, 5))
        size = 0 if whole else rng.choice((0, 1, 64, 65, large))
        key = 0 if whole else rng.randrange(keys)
        last = 0
        if tag & CARRIED:
            last = rng.choice((0, 1, 2, 11, 12)) | (rng.choice((relay, relay, relay, 0, 5, 6)) << 16)
            last |= rng.choice((0, 0, 1, 2, 6)) << 48
            size = size if size >= 8 else 8
        if tag & ALONE:
            key += 1000 * rng.randrange(1, 4)
        found.append(said(sequence, key, tag, 0 if of_node else rng.randrange(1, 4), rng.randrange(1, 4), relay, size,
                          last, sequence + rng.randrange(30) if by_source else 11,
                          rng.choice((-1, 0, 5, 5)) if ranked else 0))
    return found


KINDS = pytest.mark.parametrize(("groups", "by_source", "ranks"), [
    (False, False, b""), (True, False, b""), (False, True, b""), (True, True, b""), (False, False, RANKS),
    (False, True, RANKS), (False, False, SHARED), (False, True, SHARED), (True, False, SHARED), (True, True, SHARED)],
    ids=["plain", "groups", "by source", "groups by source", "ranked", "ranked by source", "shared",
         "shared by source", "shared groups", "shared groups by source"])


@KINDS
@pytest.mark.parametrize("seed", seeds(40, quick=10))
def test_the_table_is_what_the_model_says(seed: int, groups: bool, by_source: bool, ranks: bytes) -> None:
    rng = random.Random(seed)
    large = rng.choice((8, 200, 900))
    spec = spec_of(rng.randrange(1, 5), rng.choice((4096, 4096, 8192, 1 << 20)), 16, by_source, ranks)
    log, model = log_of(spec), Lasts(spec)
    for one in random_messages(rng, 400, rng.choice((1, 3, 30)), large, groups, by_source, bool(ranks)):
        log.append(*arguments(one))
        model.note(one)
        assert kept(log) == model.kept
    assert log.table_figures()["given_up"] == model.given_up
    assert log.table_figures()["bytes"] <= spec.table_bytes


@KINDS
@pytest.mark.parametrize("seed", seeds(20, quick=5))
def test_a_table_that_is_given_goes_on_as_the_one_that_it_was(seed: int, groups: bool, by_source: bool,
                                                              ranks: bytes) -> None:
    """Whoever gets the table at some place, and the messages of the log from some earlier place on, has from there on
    what everybody has: also of what leaves for want of room."""
    rng = random.Random(seed)
    spec = spec_of(rng.randrange(1, 4), rng.choice((4096, 8192)), 16, by_source, ranks)
    log, joiner = log_of(spec), log_of(spec)
    messages = random_messages(rng, 600, rng.choice((3, 40)), 300, groups, by_source, bool(ranks))
    entered, cut = sorted(rng.sample(range(len(messages)), 2))
    for one in messages[:cut]:
        log.append(*arguments(one))
    copy = log.copy_table(shared=False)
    joiner.restore_table()
    for one in table_messages(copy):
        joiner.note(*one)
    figures = log.table_figures()
    joiner.table_stands_for(*table_place(copy), figures["given_up"], figures["given_up_keys"])
    assert kept(joiner) == kept(log)
    for one in messages[entered:cut]:
        joiner.append(*arguments(one))  # had been on their way to it all the while
        assert kept(joiner) == kept(log)
    for one in messages[cut:]:
        log.append(*arguments(one))
        joiner.append(*arguments(one))
        assert kept(joiner) == kept(log)
    assert joiner.table_figures() == log.table_figures()


def test_a_key_that_falls_silent_is_kept_however_much_others_say() -> None:
    log = log_of(spec_of(1, 1 << 16), 1 << 16)
    log.append(*arguments(said(0, 1)))
    for sequence in range(1, 20_000):
        log.append(*arguments(said(sequence, 2)))
    assert [one.order[1] for one in kept(log)] == [0, 19_999]
    assert log.oldest_index > 0, "the log itself has lost it"
    assert log.table_figures()["given_up"] == 0


def test_of_a_topic_by_source_the_last_is_what_was_written_last() -> None:
    """What came late takes no place, ends nothing, and a key that has ended stays so; a writer's end by its node counts
    whenever the source has written."""
    log = log_of(spec_of(1, 1 << 16, by_source=True))
    for one in (said(1, 7, source_ns=50, writer=1), said(2, 7, source_ns=40, writer=2), said(3, 8, source_ns=10),
                said(4, 7, ENDS, source_ns=45, writer=2)):
        log.append(*arguments(one))
    assert [one.order[1] for one in kept(log)] == [1, 3]
    log.append(*arguments(said(5, 7, ENDS, source_ns=60, writer=2)))
    log.append(*arguments(said(6, 7, source_ns=55, writer=2)))
    assert [one.order[1] for one in kept(log)] == [1, 3, 5]
    log.append(*arguments(said(7, 7, source_ns=60, writer=2)))
    assert [one.order[1] for one in kept(log)] == [3, 7]
    log.append(*arguments(said(8, 0, OF_WRITER | LEAVES | ENDS, writer=2, source_ns=99, size=0)))
    log.append(*arguments(said(9, 7, source_ns=70, writer=1)))
    assert [one.order[1] for one in kept(log)] == [3, 9]


def test_where_one_counts_others_are_known_to_be_there() -> None:
    """What the weaker say takes no place and ends nothing, but for that they are there; when the key is nobody's, they
    count."""
    log = log_of(spec_of(1, 1 << 16, ranks=RANKS))
    for one in (said(1, 7, writer=1, rank=5, size=64), said(2, 7, writer=2, rank=-1, size=64),
                said(3, 7, ENDS, writer=2, rank=-1, size=64), said(4, 7, writer=3, size=64)):
        log.append(*arguments(one))
    assert [(one.order[1], one.tag) for one in kept(log)] == [(1, 0), (3, PRESENT_RANKED), (4, PRESENT_RANKED)]
    log.append(*arguments(said(5, 7, YIELDS, writer=3, size=64)))
    log.append(*arguments(said(6, 7, YIELDS, writer=1, size=64)))
    assert [one.order[1] for one in kept(log)] == [1, 3, 4, 6], "it was the first one's to yield"
    log.append(*arguments(said(7, 7, writer=2, rank=-1, size=64)))
    assert [(one.order[1], one.tag) for one in kept(log)] == [(1, PRESENT_RANKED), (4, PRESENT_RANKED), (7, 0)]
    for writer in (1, 3):
        log.append(*arguments(said(8 + writer, 0, OF_WRITER | LEAVES | ENDS, writer=writer, size=0)))
    assert [(one.order[1], one.tag) for one in kept(log)] == [(7, 0)], "who leaves ends nothing of another's"


def test_who_is_only_there_pushes_nothing_out() -> None:
    log = log_of(spec_of(1, 4096, ranks=RANKS))
    for one in (said(1, 7, writer=1, rank=5, size=64), said(2, 7, writer=2, size=64),
                said(3, 0, OF_WRITER | LEAVES | ENDS, writer=1, size=0)):
        log.append(*arguments(one))
    assert [one.order[1] for one in kept(log)] == [1, 2, 3]
    log.append(*arguments(said(4, 7, PRESENT, writer=2, size=4096)))
    assert kept(log) == [], "of who has found no room nothing is kept: the key has ended, and nobody is there"


def test_where_all_count_it_is_known_who_there_is() -> None:
    """One message of each other writer, until it leaves; what it says as it ends, it says of that key, too."""
    log = log_of(spec_of(1, 1 << 16, ranks=SHARED))
    for one in (said(1, 7, writer=1, size=64), said(2, 7, writer=2, size=64),
                said(3, 7, SAMPLE, writer=1, size=64), said(4, 7, writer=3, size=64)):
        log.append(*arguments(one))
    assert [(one.order[1], one.tag) for one in kept(log)] == [(2, PRESENT_RANKED), (3, PRESENT), (4, 0)]
    log.append(*arguments(said(5, 7, LEAVES, writer=2)))
    assert [one.order[1] for one in kept(log)] == [3, 4]
    log.append(*arguments(said(6, 0, OF_WRITER | LEAVES, writer=3, size=0)))
    assert [one.order[1] for one in kept(log)] == [3, 4, 6], "it isn't over: the first one is there"
    log.append(*arguments(said(7, 0, OF_WRITER | LEAVES | ENDS, writer=1, size=0)))
    assert kept(log) == [], "it has ended it, and nobody is left"


def test_who_has_written_too_early_is_there() -> None:
    log = log_of(spec_of(1, 1 << 16, by_source=True, ranks=SHARED))
    for one in (said(1, 7, source_ns=50, writer=1), said(2, 7, source_ns=40, writer=2)):
        log.append(*arguments(one))
    assert [(one.order[1], one.tag) for one in kept(log)] == [(1, 0), (2, PRESENT_RANKED)]


def test_of_who_is_carried_only_samples_are_kept() -> None:
    log = log_of(spec_of(1, 1 << 16, ranks=SHARED))
    for one in (said(1, 7, CARRIED | SAMPLE, writer=1, last=2), said(2, 7, writer=3)):
        log.append(*arguments(one))
    assert [one.order[1] for one in kept(log)] == [2]


def test_who_carries_others_leaves_what_it_has_written_itself() -> None:
    log = log_of(spec_of(1, 1 << 16, ranks=SHARED))
    for one in (said(1, 7, writer=1), said(2, 7, writer=2), said(3, 8, CARRIED | SAMPLE, writer=1, last=3),
                said(4, 0, OF_WRITER | LEAVES, writer=1, size=0)):
        log.append(*arguments(one))
    assert [one.order[1] for one in kept(log)] == [2, 3, 4]


def test_an_end_is_kept_as_long_as_it_matters() -> None:
    log = log_of(spec_of(2, 1 << 16))
    for one in (said(0, 1), said(1, 1, writer=2), said(2, 1, ENDS)):
        log.append(*arguments(one))
    assert [one.order[1] for one in kept(log)] == [0, 1, 2]
    log.append(*arguments(said(3, 1, LEAVES)))
    log.append(*arguments(said(4, 1, writer=2)))
    assert [one.order[1] for one in kept(log)] == [1, 4], "the first writer's sample has gone, and that it left with it"
    log.append(*arguments(said(5, 1, LEAVES | ENDS, writer=2)))
    assert [one.order[1] for one in kept(log)] == [], "it has ended, and nobody is left who wrote what is kept"


def test_a_key_that_has_ended_stays_while_a_writer_of_it_does() -> None:
    log = log_of(spec_of(2, 1 << 16))
    for one in (said(0, 1), said(1, 1, writer=2), said(2, 0, OF_WRITER | LEAVES | ENDS, writer=1, size=0)):
        log.append(*arguments(one))
    assert [one.order[1] for one in kept(log)] == [0, 1, 2]
    log.append(*arguments(said(3, 0, OF_WRITER | LEAVES, writer=2, size=0)))
    assert kept(log) == []


def test_what_a_writer_has_said_outlives_it_unless_it_ends_it() -> None:
    log = log_of(spec_of(1, 1 << 16))
    for one in (said(0, 1), said(1, 2, writer=2), said(2, 3, writer=9, relay=5),
                said(3, 0, OF_NODE | LEAVES, writer=0, size=0)):
        log.append(*arguments(one))
    assert [one.order[1] for one in kept(log)] == [0, 1, 2, 3]


def test_a_word_about_a_writer_is_kept_until_it_says_something_itself() -> None:
    log = log_of(spec_of(1, 1 << 16))
    for one in (said(0, 1), said(1, 0, OF_WRITER | LEAVES, size=0), said(2, 0, OF_WRITER, size=0)):
        log.append(*arguments(one))
    assert [one.order[1] for one in kept(log)] == [0, 1, 2], "it has left its key, and was said to be back"
    log.append(*arguments(said(3, 2)))
    assert [one.order[1] for one in kept(log)] == [0, 1, 3]
    log.append(*arguments(said(4, 0, OF_WRITER, writer=2, size=0)))
    assert [one.order[1] for one in kept(log)] == [0, 1, 3], "nothing is kept of the other writer"


def test_the_key_that_was_silent_longest_goes_when_memory_runs_out_and_is_counted() -> None:
    spec = spec_of(2, 4096)
    log = log_of(spec)
    for sequence in range(40):
        log.append(*arguments(said(sequence, sequence // 2)))
    figures = log.table_figures()
    assert [one.key for one in kept(log)] == [key for key in range(20 - figures["keys"], 20) for _ in (1, 2)]
    assert figures["given_up"] == 2 * (20 - figures["keys"]) and figures["given_up_keys"] == 20 - figures["keys"]
    assert figures["bytes"] <= figures["bytes_max"] == spec.table_bytes


def test_a_sample_larger_than_the_table_is_given_up_with_its_key() -> None:
    log = log_of(spec_of(2, 4096))
    log.append(*arguments(said(0, 1)))
    log.append(*arguments(said(1, 2)))
    log.append(*arguments(said(2, 1, size=5000)))
    assert [one.order[1] for one in kept(log)] == [1]
    assert log.table_figures()["given_up"] == 2


def late(log: DeliveryLog, keep_all: bool = True, after: tuple[int, int] | None = None, since: int = VIEW
         ) -> tuple[LogReader, Cursor]:
    cursor = Cursor(keep_all, from_history=True, after=after, with_table=True, since=since)
    log.add_reader(cursor)
    table = cursor.table and Mapping.attach(os.dup(cursor.table.fd))
    return LogReader(Mapping.attach(os.dup(log.mapping.fd)), Mapping.attach(os.dup(cursor.mapping.fd), True),
                     os.dup(cursor.their_fd), place=after or (0, 0), skips=after is not None, table=table), cursor


def sequences(reader: LogReader, n: int = 1000) -> list[int]:
    return [info.sequence for _, info in reader.take_pairs(n)]


def filled() -> DeliveryLog:
    log = log_of(spec_of(1, 1 << 16), 8192)
    for sequence in range(200):
        log.append(*arguments(said(sequence, sequence % 2 if sequence > 2 else 100 + sequence)))
    return log  # keys 100 to 102 said 0 to 2; keys 0 and 1 said 198 and 199


class TestReader:
    def test_it_reads_the_table_then_the_log_as_one(self) -> None:
        log = filled()
        reader, _ = late(log)
        log.append(*arguments(said(200, 0)))
        assert reader.pending == 6 and reader.arm()
        pairs = reader.take_pairs(100)
        assert [info.sequence for _, info in pairs] == [0, 1, 2, 198, 199, 200]
        indexes = [info.index for _, info in pairs]
        assert indexes == list(range(indexes[0], indexes[0] + 6)) and reader.position_index == indexes[-1] + 1
        assert [info.key for _, info in pairs] == [100, 101, 102, 0, 1, 0]
        assert reader.pending == 0 and not reader.arm()
        log.append(*arguments(said(201, 0)))
        assert sequences(reader) == [201]
        assert reader.behind == (VIEW, 200)

    def test_one_by_one_and_in_place(self) -> None:
        log = filled()
        reader, _ = late(log)
        got = []
        while (block := reader.take_block(100)) is not None:
            with block:
                assert block.intact
                got += [block.info(i).sequence for i in range(len(block))]
                start = block.offset
                assert bytes(block.buffer[start : start + 8]) == got[-len(block)].to_bytes(8, "little")
        assert got == [0, 1, 2, 198, 199]
        log.append(*arguments(said(200, 0)))
        assert [int.from_bytes(one, "little") for one in reader.take_with(9, bytes, info_attribute=None)] == [200]

    def test_decoding_reads_in_the_copy(self) -> None:
        log = filled()
        reader, _ = late(log)
        assert [int.from_bytes(one, "little") for one in reader.take_with(9, bytes, info_attribute=None)] == [
            0, 1, 2, 198, 199]

    def test_the_newest_of_all(self) -> None:
        log = filled()
        reader, _ = late(log)
        log.append(*arguments(said(200, 0)))
        assert reader.skip_to_last(2) == 4
        assert sequences(reader) == [199, 200]

    def test_it_holds_the_log_while_it_reads_the_table(self) -> None:
        log = filled()
        reader, _ = late(log)
        added = 0
        while log.append(*arguments(said(200 + added, 0))):
            added += 1
        assert 0 < added < 200
        assert sequences(reader, 5) == [0, 1, 2, 198, 199]
        assert sequences(reader) == list(range(200, 200 + added))
        assert log.append(*arguments(said(200 + added, 0))) and reader.lost == 0

    def test_one_that_keeps_the_newest_is_overtaken_behind_the_table(self) -> None:
        log = filled()
        reader, _ = late(log, keep_all=False)
        for sequence in range(200, 600):
            assert log.append(*arguments(said(sequence, 0)))
        assert sequences(reader, 5) == [0, 1, 2, 198, 199]
        rest = sequences(reader)
        assert rest[-1] == 599 and rest == list(range(rest[0], 600)) and reader.lost == rest[0] - 200 > 0

    def test_where_it_stands_when_its_node_goes(self) -> None:
        log = filled()
        reader, _ = late(log)
        log.append(*arguments(said(200, 0)))
        assert reader.freeze() == (VIEW, 201)
        log.append(*arguments(said(201, 0)))
        assert reader.pending == 6 and sequences(reader) == [0, 1, 2, 198, 199, 200] and reader.is_gone

    def test_an_empty_table(self) -> None:
        log = log_of(spec_of(1, 1 << 16))
        reader, _ = late(log)
        assert reader.pending == 0 and not reader.arm() and sequences(reader) == []
        log.append(*arguments(said(0, 1)))
        assert sequences(reader) == [0]

    def test_what_was_given_up_counts_as_lost(self) -> None:
        log = log_of(spec_of(1, 4096))
        for sequence in range(100):
            log.append(*arguments(said(sequence, sequence)))
        reader, _ = late(log)
        got = sequences(reader)
        assert reader.lost == log.table_figures()["given_up"] == 100 - len(got) > 0

    def test_readers_that_come_together_share_a_copy(self) -> None:
        log = filled()
        (_, one), (_, other) = late(log), late(log)
        assert one.table is other.table
        log.append(*arguments(said(200, 0)))
        _, third = late(log)
        assert third.table is not one.table

    def test_messages_that_the_table_stands_for_do_not_come_again(self) -> None:
        """At a member that was given a table, live messages from before its place are still to come."""
        log, joiner = filled(), log_of(spec_of(1, 1 << 16), 8192)
        copy = log.copy_table(shared=False)
        joiner.restore_table()
        for one in table_messages(copy):
            joiner.note(*one)
        joiner.table_stands_for(*table_place(copy), 0, 0)
        reader, _ = late(joiner)
        for sequence in range(150, 210):
            joiner.append(*arguments(said(sequence, sequence % 2)))
        assert sequences(reader) == [0, 1, 2, 198, 199, *range(200, 210)]

    def test_who_is_in_a_table_that_is_longer_than_the_log_holds_all_of_that(self) -> None:
        """How far a reader is in its table says nothing of the log: none of it may go."""
        log, joiner = log_of(spec_of(1, 1 << 16)), log_of(spec_of(1, 1 << 16), 4096)
        for sequence in range(100):
            log.append(*arguments(said(sequence, 100 + sequence)))
        copy = log.copy_table(shared=False)
        joiner.restore_table()
        for one in table_messages(copy):
            joiner.note(*one)
        joiner.table_stands_for(*table_place(copy), 0, 0)
        reader, _ = late(joiner)
        assert sequences(reader, 90) == list(range(90))
        added = 0
        while joiner.append(*arguments(said(100 + added, 0))):
            added += 1
            assert added < 200
        assert sequences(reader) == list(range(90, 100 + added)) and reader.lost == 0

    def test_one_that_goes_on_reads_the_log_if_that_has_no_gap(self) -> None:
        log = filled()
        oldest = 200 - (log.delivered - log.oldest_index)
        reader, cursor = late(log, after=(VIEW, oldest + 5))
        assert cursor.table is None and sequences(reader) == list(range(oldest + 5, 200))

    def test_one_that_goes_on_from_what_the_log_has_lost_gets_what_is_kept_since(self) -> None:
        log = filled()
        reader, cursor = late(log, after=(VIEW, 2))
        assert cursor.table is not None and sequences(reader) == [2, 198, 199] and reader.lost == 0

    def test_a_log_that_begins_later_proves_nothing_about_what_was_before(self) -> None:
        log = log_of(spec_of(1, 1 << 16))
        log.note(*arguments(said(3, 1)))
        log.append(*arguments(said(9, 2)))
        reader, cursor = late(log, after=(VIEW, 1), since=VIEW + 1)
        assert cursor.table is not None and sequences(reader) == [3, 9]
        reader, cursor = late(log, after=(VIEW, 9), since=VIEW)
        assert cursor.table is None and sequences(reader) == [9]


def test_a_table_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match="4096"):
        DeliveryLog(4096, history_depth=1, effects=EFFECTS, table_bytes=100)
    with pytest.raises(ValueError, match="no table"):
        DeliveryLog(4096).note(b"", 1, 1, 1, 1)


def test_what_the_end_of_a_carrier_does_follows_from_what_is_kept() -> None:
    """Also when the author said later, of a key that is kept no more, that its end does something else."""
    log, joiner = log_of(spec_of(1, 1 << 16)), log_of(spec_of(1, 1 << 16))
    for one in (said(0, 1, CARRIED | SAMPLE | BOUND, last=2), said(1, 2, CARRIED | SAMPLE, last=2),
                said(2, 3, CARRIED | SAMPLE, last=3), said(3, 0, OF_WRITER | LEAVES, size=0), said(4, 2, writer=9)):
        log.append(*arguments(one))
    assert [one.order[1] for one in kept(log)] == [2, 3, 4]
    copy = log.copy_table(shared=False)
    joiner.restore_table()
    for message in table_messages(copy):
        joiner.note(*message)
    joiner.table_stands_for(*table_place(copy))
    assert kept(joiner) == kept(log)
