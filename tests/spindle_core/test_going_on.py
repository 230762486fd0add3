"""Going on in another node's log after one's own node has died, and what a dead node left unacknowledged.

Goal: a reader that goes on gets every message once, or is told that some may be missing; a writer knows what is in
doubt. Method: two logs of one agreed order, one of which ends anywhere; writers of a node that takes nothing.
"""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle_core.delivery import KEPT_BEFORE, KEPT_LATER, KEPT_WHOLE, Cursor, DeliveryLog
from spindle_core.engine import Engine
from spindle_core.errors import NodeGone
from spindle_core.inbox import Inbox
from spindle_core.inbox_writer import InboxWriter
from spindle_core.memory import Mapping
from spindle_core.message import MessageInfo
from spindle_core.reader import LogReader
from tests.spindle_core.logs import attach, payload, poke

ORDER = [(view_id, sequence) for view_id in range(3) for sequence in range(0, 60, 3)]  # sequence numbers have gaps

PROGRESS_CONSUMED, PROGRESS_ACKNOWLEDGED = 8, 16  # struct inbox_progress


def append(log: DeliveryLog, place: tuple[int, int], size: int = 40) -> None:
    view_id, sequence = place
    assert log.append(payload(ORDER.index(place), size), 1, sequence, view_id, 1)


def places(reader: LogReader, n: int = 1000) -> list[tuple[int, int]]:
    return [(info.view_id, info.sequence) for _, info in reader.take_pairs(n, MessageInfo)]


def go_on(log: DeliveryLog, place: tuple[int, int], keep_all: bool) -> tuple[LogReader, Cursor]:
    """A reader of `log` that has had everything before `place`."""
    cursor = Cursor(keep_all, after=place)
    log.add_reader(cursor)
    return LogReader(
        Mapping.attach(os.dup(log.mapping.fd)), Mapping.attach(os.dup(cursor.mapping.fd), True),
        os.dup(cursor.their_fd),
        place=place, skips=True), cursor


@given(end=st.integers(0, 60), taken=st.integers(0, 60), delivered=st.integers(0, 60), first=st.integers(0, 60),
       keep_all=st.booleans(), way=st.sampled_from(["take", "pairs", "with", "block", "skip"]))
def test_a_reader_that_goes_on_gets_everything_once(
        end: int, taken: int, delivered: int, first: int, keep_all: bool, way: str) -> None:
    """Goal: what a reader had of a dead node's log, then of another's, is the order itself, from the first place that
    the second still had; and `kept` says truly whether any may be missing.

    Method: the first log ends at `end`, of which `taken` were taken in any of the ways there are; the second begins at
    `first`, and has `delivered` when the reader comes, so that it may be behind the first.
    """
    dead, alive = DeliveryLog(65536, keep_history=True), DeliveryLog(65536, keep_history=True)
    cursor = Cursor(keep_all)
    dead.add_reader(cursor)
    reader = attach(dead, cursor)
    assert cursor.next is None
    for place in ORDER[:end]:
        append(dead, place)
    had: list[tuple[int, int]] = []
    taken = min(taken, end)
    if way == "take":
        had = ORDER[:len(reader.take(taken))]
    elif way == "pairs":
        had = places(reader, taken)
    elif way == "with":
        had = ORDER[:len(reader.take_with(taken, bytes, info_attribute=None))]
    elif way == "block" and taken and end:
        with reader.take_block(taken) as block:
            had = [(one.view_id, one.sequence) for one in (block.info(i) for i in range(len(block)))]
    elif way == "skip":
        had = ORDER[:reader.skip_to_last(end - taken)]
    assert had == ORDER[:len(had)]
    place = reader.freeze()
    assert place == ((ORDER[end - 1][0], ORDER[end - 1][1] + 1) if end else (0, 0))
    if end < len(ORDER):
        append(dead, ORDER[end])  # a node that lives on for a moment
    assert reader.pending == end - len(had)
    had += places(reader)
    assert had == ORDER[:end] and reader.pending == 0 and not places(reader)

    first = min(first, delivered)
    for one in ORDER[first:delivered]:
        append(alive, one)
    second, at = go_on(alive, place, keep_all)
    for one in ORDER[max(first, delivered):]:
        append(alive, one)
    had += places(second)
    if end >= first:
        assert had == ORDER
    else:
        assert had == ORDER[:end] + ORDER[first:]
    if first < min(end, delivered):
        assert at.kept == KEPT_BEFORE
    else:
        assert at.kept == KEPT_WHOLE  # of this log: whether it had begun by then is for the node to know


def test_a_log_that_has_given_up_older_messages_says_so() -> None:
    """Goal: a gap is never hidden, and nothing is called a gap that the log can prove to be none.
    Method: a log that holds few messages; readers that go on from every place."""
    log = DeliveryLog(4096, hot=0, keep_history=True)
    for place in ORDER:
        append(log, place)
    assert log.oldest_index > 0
    for i, place in enumerate(ORDER):
        reader, cursor = go_on(log, place, keep_all=False)
        assert cursor.kept == (KEPT_BEFORE if i > log.oldest_index else KEPT_LATER), i
        assert places(reader) == ORDER[max(i, log.oldest_index):]
        log.remove_reader(cursor)


def test_a_log_without_history_knows_its_newest_message() -> None:
    """Goal: a reader that had everything goes on without doubt also where nothing is retained. Method: a log that went
    back to its start because everybody had read it."""
    log = DeliveryLog(65536, hot=128)
    cursor = Cursor(True)
    log.add_reader(cursor)
    reader = attach(log, cursor)
    for place in ORDER[:10]:
        append(log, place)
        assert places(reader) == [place]
    assert log.oldest_index > 0
    at = (ORDER[9][0], ORDER[9][1] + 1)
    second, placed = go_on(log, at, True)
    assert placed.kept == KEPT_BEFORE and placed.next == at
    assert go_on(log, ORDER[3], True)[1].kept == KEPT_LATER
    append(log, ORDER[10])
    assert places(second) == [ORDER[10]]


def test_an_open_batch_is_part_of_what_was_had() -> None:
    """Goal: freezing doesn't disturb a batch in place. Method: freeze while one is open, then read on."""
    log = DeliveryLog(65536)
    cursor = Cursor(True)
    log.add_reader(cursor)
    reader = attach(log, cursor)
    for place in ORDER[:6]:
        append(log, place)
    with reader.take_block(4) as block:
        assert reader.freeze() == (ORDER[5][0], ORDER[5][1] + 1)
        assert len(block) == 4 and block.intact
    assert places(reader) == ORDER[4:6]
    assert (reader.next_view, reader.next_sequence) == (ORDER[5][0], ORDER[5][1] + 1)


def test_a_keep_all_reader_of_a_gone_node_is_not_fooled_by_what_overwrites_its_log() -> None:
    """Goal: a node that has given the reader up may go on; then the reader loses messages and counts them, and never
    returns another's bytes for its own. Method: the cursor is forgotten, and the log filled over."""
    log = DeliveryLog(4096)
    cursor = Cursor(True)
    log.add_reader(cursor)
    reader = attach(log, cursor)
    for place in ORDER[:3]:
        append(log, place)
    reader.freeze()
    log.remove_reader(cursor)
    for place in ORDER[3:]:
        append(log, place)
    assert reader.take(10) == [] and reader.pending == 0 and reader.lost > 0


def kept_writer(slots: int, keep: bool) -> tuple[InboxWriter, Inbox]:
    inbox, engine = Inbox(64, slots, 7), Engine(1)
    return InboxWriter(
        Mapping.attach(os.dup(inbox.ring.fd), True), Mapping.attach(os.dup(inbox.progress.fd)), os.dup(inbox.their_fd),
        Mapping.attach(os.dup(engine.bell.fd)), os.dup(engine.bell_fd), keep), inbox


def test_what_is_in_doubt_is_known_by_index_time_and_payload() -> None:
    """Goal: a writer tells what its dead node had not acknowledged. Method: a node that takes nothing; one message of
    each way to write, and an open claim, which was never written."""
    writer, _ = kept_writer(16, True)
    writer.write(b"one", 11)
    writer.write_many([b"two", b"three"], 12)
    claim = writer.claim(10)
    claim[:4] = b"four"
    writer.commit(4, 13)
    writer.claim(5)
    writer.mark_gone()
    assert writer.is_gone
    assert writer.unacknowledged() == [(0, 11, b"one", 0), (1, 12, b"two", 0),
                                       (2, 12, b"three", 0), (3, 13, b"four", 0)]
    for call in (lambda: writer.write(b"x"), lambda: writer.write_many([b"x"]), lambda: writer.wait_acknowledged(0)):
        with pytest.raises(NodeGone):
            call()
    assert len(writer.unacknowledged()) == 4


def test_slots_are_kept_until_every_member_has_the_message() -> None:
    """Goal: nothing that is in doubt was overwritten, if the writer wants that; else it is counted all the same.
    Method: a progress page on which the node has consumed everything and acknowledged little."""
    for keep in (True, False):
        writer, inbox = kept_writer(4, keep)
        for i in range(4):
            writer.write(b"%d" % i, 1)
        poke(inbox.progress, PROGRESS_CONSUMED, 4)
        poke(inbox.progress, PROGRESS_ACKNOWLEDGED, 1)
        writer.write(b"4", 1)
        assert writer.unacknowledged() == [(i, 1, b"%d" % i, 0) for i in range(1, 5)]
        if keep:
            with pytest.raises(Exception, match="no free slot"):
                writer.write(b"5", 1, 0.01)
        else:
            writer.write(b"5", 1)
            assert [one[2] for one in writer.unacknowledged()] == [None, b"2", b"3", b"4", b"5"]
        assert [one[0] for one in writer.unacknowledged()][-1] == writer.committed - 1


def test_writing_many_stops_where_the_node_died() -> None:
    """Goal: no message is taken for written after the node was known to be gone. Method: the node goes while the caller
    makes the messages."""
    writer, _ = kept_writer(16, True)

    def messages():  # type: ignore[no-untyped-def]
        for i in range(10):
            if i == 4:
                writer.mark_gone()
            yield b"%d" % i

    with pytest.raises(NodeGone) as raised:
        writer.write_many(messages())
    assert raised.value.written == 4 == writer.committed  # type: ignore[attr-defined]
    assert len(writer.unacknowledged()) == 4
