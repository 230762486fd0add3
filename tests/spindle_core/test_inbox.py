"""Inboxes: what an application may rely on when it writes, and what a broken or hostile one can't do to others."""

from __future__ import annotations

import array
import gc
import os
import pickle
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spindle_core.engine import Engine
from spindle_core.errors import MessageTooLarge, NodeGone, WriteTimeout
from spindle_core.inbox import Inbox
from spindle_core.inbox_writer import InboxWriter
from spindle_core.memory import Mapping
from tests.spindle_core.cluster import Cluster
from tests.spindle_core.inboxes import PROGRESS_SIZE_MAX, PROGRESS_SLOTS, SPACE_WAITING, alone
from tests.spindle_core.logs import U64_MAX, peek, poke
from tests.support import descriptors_before, open_descriptors, wait_until

# ---- ways of writing ------------------------------------------------------------------------------------------------


def test_every_way_of_writing_arrives_in_order() -> None:
    """Goal: write, write_many, write_array and claim/commit interleave in the order of their commits, whatever kind of
    buffer they are given.

    Method: one of each through a group of one, timestamps and writer id included.
    """
    cluster = Cluster(1, window=64, size_max=64)
    reader, writer = cluster.reader(0), cluster.writer(0, slots=64)
    assert writer.writer_id == 7
    writer.write(b"bytes", 111)
    writer.write(bytearray(b"bytearray"), timestamp_ns=112)
    writer.write(memoryview(b"-memoryview")[1:])
    writer.write(np.arange(3, dtype="<u2"))
    writer.write(b"")
    assert (
        writer.write_many([b"a", bytearray(b"b"), memoryview(b"c"), np.array([1], "u1"), array.array("B", [2])], 113)
        == 5
    )
    assert writer.write_many(iter(())) == 0
    assert writer.write_many(b"%d" % k for k in range(3)) == 3
    assert writer.write_array(np.arange(4, dtype="<u4"), 4, 114) == 4
    assert writer.write_array(b"", 4) == 0
    view = writer.claim(10)
    view[:3] = b"abc"
    writer.commit(3, 115)
    writer.claim(2)[:] = b"xy"
    writer.commit()
    cluster.settle()
    pairs = reader.take_pairs(99)
    assert [p for p, _ in pairs] == [
        b"bytes",
        b"bytearray",
        b"memoryview",
        b"\0\0\1\0\2\0",
        b"",
        b"a",
        b"b",
        b"c",
        b"\1",
        b"\2",
        b"0",
        b"1",
        b"2",
        *(k.to_bytes(4, "little") for k in range(4)),
        b"abc",
        b"xy",
    ]
    assert [i.writer for _, i in pairs] == [7] * len(pairs)
    stamps = [i.source_timestamp for _, i in pairs]
    assert stamps[:2] == [111, 112] and stamps[5:10] == [113] * 5 and stamps[13:18] == [114] * 4 + [115]
    assert stamps[2] > 1 << 60 and stamps[18] > 1 << 60
    assert writer.committed == writer.consumed == writer.acknowledged == len(pairs)


@settings(max_examples=100, deadline=None)
@given(
    slots=st.sampled_from([1, 2, 3, 8]),
    window=st.sampled_from([1, 2, 5]),
    script=st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 100)),
            st.tuples(st.just("many"), st.lists(st.integers(0, 100), max_size=12)),
            st.tuples(st.just("claim"), st.tuples(st.integers(0, 100), st.integers(0, 100), st.booleans())),
            st.tuples(st.just("settle"), st.just(0)),
        ),
        max_size=40,
    ),
)
def test_what_was_written_is_what_arrives(slots: int, window: int, script: list[tuple[str, object]]) -> None:
    """Goal: D1, D2, D5 for one writer: exactly the messages whose write succeeded, in order, whatever failed between.

    Method: random calls that never wait, on rings of one to eight slots; too large, ring full and aborted claims too.
    """
    cluster = Cluster(2, window=window, size_max=90)
    readers, writer = [cluster.reader(i) for i in range(2)], cluster.writer(0, slots=slots, size_max=90)
    sent: list[bytes] = []

    def message(size: int, further: int = 0) -> bytes:
        return bytes([(len(sent) + further) % 251]) * size

    for what, how in script:
        if what == "settle":
            cluster.settle()
        elif what == "write":
            try:
                writer.write(message(how), timeout_s=0)  # type: ignore[arg-type]
                sent.append(message(how))  # type: ignore[arg-type]
            except (MessageTooLarge, WriteTimeout):
                pass
        elif what == "many":
            messages = [message(size, i) for i, size in enumerate(how)]  # type: ignore[arg-type,var-annotated]
            try:
                done = writer.write_many(messages, timeout_s=0)
                assert done == len(messages)
            except (MessageTooLarge, WriteTimeout) as e:
                done = e.written  # type: ignore[union-attr]
            sent += messages[:done]
        else:
            size, commit, keep = how  # type: ignore[misc]
            try:
                view = writer.claim(size, timeout_s=0)
            except (MessageTooLarge, WriteTimeout):
                continue
            assert len(view) == size
            view[:] = message(size)
            if keep and commit <= size:
                writer.commit(commit)
                sent.append(message(commit))
            else:
                writer.abort()
        assert writer.committed == len(sent)
    cluster.settle()
    assert [r.take(1000) for r in readers] == [sent, sent]
    assert writer.acknowledged == len(sent) and writer.refused == 0


@pytest.mark.parametrize("size_max", [1, 31, 32, 33, 96, 4096])
def test_sizes_at_the_limit(size_max: int) -> None:
    """Goal: exactly size_max bytes pass in every way of writing, one more is refused with the limit in the message.

    Method: neighbours of the alignment; the slot behind must stay intact, so fill all slots.
    """
    cluster = Cluster(1, size_max=size_max)
    reader, writer = cluster.reader(0, capacity=1 << 17), cluster.writer(0, slots=5, size_max=size_max)
    assert (writer.size_max, writer.slots_count) == (size_max, 5)
    full = [bytes([k + 1]) * size_max for k in range(5)]
    writer.write(full[0])
    assert writer.write_many(full[1:3]) == 2
    assert writer.write_array(full[3], size_max) == 1
    writer.claim(size_max)[:] = full[4]
    writer.commit()
    cluster.settle()
    assert reader.take(9) == full
    calls: list[Callable[[], object]] = [
        lambda: writer.write(bytes(size_max + 1)),
        lambda: writer.write_many([b"", bytes(size_max + 1)]),
        lambda: writer.write_array(bytes(size_max + 1), size_max + 1),
        lambda: writer.claim(size_max + 1),
    ]
    for call in calls:
        with pytest.raises(MessageTooLarge, match=f"size_max is {size_max} bytes"):
            call()
    assert writer.committed == 6


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_a_full_ring_times_out_and_says_why() -> None:
    """Goal: bounded memory: no slot, no write; the error names the limit, nothing is half written.

    Method: a node that takes nothing; every way of writing; how many got in is in `written`.
    """
    writer, _, _ = alone(slots=4)
    with pytest.raises(WriteTimeout, match="all 4 are waiting") as caught:
        writer.write_many([b"x"] * 9, timeout_s=0)
    assert caught.value.written == 4 and writer.committed == 4  # type: ignore[attr-defined]
    for timeout_s in (0, 0.01):
        with pytest.raises(WriteTimeout, match=f"within {timeout_s:g} s"):
            writer.write(b"x", timeout_s=timeout_s)
        with pytest.raises(WriteTimeout):
            writer.claim(1, timeout_s)
        with pytest.raises(WriteTimeout) as caught:
            writer.write_array(b"xy", 1, timeout_s=timeout_s)
        assert caught.value.written == 0  # type: ignore[attr-defined]
    assert writer.committed == 4 and writer.wait_acknowledged(0) is False and writer.wait_acknowledged(0.01) is False


def test_the_messages_before_an_error_are_written() -> None:
    """Goal: `written` is exact for whatever goes wrong in the middle, an interrupt included.

    Method: items that aren't buffers, too large, and an iterator that raises.
    """

    def broken(error: BaseException) -> object:
        yield b"1"
        yield b"2"
        raise error

    cluster = Cluster(1)
    reader, writer = cluster.reader(0), cluster.writer(0)
    for buffers, error in (
        ([b"1", b"2", "text"], TypeError),
        ([b"1", b"2", bytes(65)], MessageTooLarge),
        ([b"1", b"2", memoryview(bytes(8))[::2]], BufferError),
        (broken(KeyError("no")), KeyError),
        (broken(KeyboardInterrupt()), KeyboardInterrupt),
    ):
        with pytest.raises(error) as caught:
            writer.write_many(buffers)
        assert caught.value.written == 2  # type: ignore[attr-defined]
        cluster.settle()
        assert reader.take(9) == [b"1", b"2"]
    with pytest.raises(ValueError, match="whole records of 3 bytes") as caught:
        writer.write_array(bytes(7), 3)
    assert caught.value.written == 0  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="records of 0 bytes"):
        writer.write_array(bytes(7), 0)


def test_claims_are_one_at_a_time_and_end() -> None:
    """Goal: claim, fill, commit or abort; the memory can't be used by mistake afterwards, and never crashes.

    Method: every wrong order; the view after commit and abort.
    """
    cluster = Cluster(1)
    reader, writer = cluster.reader(0), cluster.writer(0)
    with pytest.raises(ValueError, match="no claim"):
        writer.commit()
    writer.abort()
    view = writer.claim(8)
    view[:] = b"12345678"
    others: list[Callable[[], object]] = [
        lambda: writer.write(b"x"),
        lambda: writer.claim(1),
        lambda: writer.write_many([b"x"]),
        lambda: writer.write_array(b"x", 1),
    ]
    for call in others:
        with pytest.raises(ValueError, match="a claim is open"):
            call()
    for size in (-1, 9):
        with pytest.raises(ValueError, match="8 were claimed"):
            writer.commit(size)
    assert writer.wait_acknowledged(0) is True
    writer.commit(5)
    with pytest.raises(ValueError, match="released"):
        view[0] = 1
    aborted = writer.claim(8)
    writer.abort()
    with pytest.raises(ValueError, match="released"):
        aborted[0] = 1
    writer.write(b"next")
    assert writer.claim(0).nbytes == 0
    writer.commit()
    cluster.settle()
    assert reader.take(9) == [b"12345", b"next", b""]
    with pytest.raises(ValueError, match="negative"):
        writer.claim(-1)


@pytest.mark.slow
def test_memory_of_a_claim_stays_mapped_for_whoever_still_has_it() -> None:
    """Goal: who breaks the rule and keeps a buffer of a claim writes nonsense into its own ring, and crashes nothing.

    Method: a buffer and a part of two claims, used after the writer is closed and gone.
    """
    writer, _, _ = alone()
    kept = pickle.PickleBuffer(writer.claim(8))
    writer.commit()
    part = writer.claim(8)[2:4]
    writer.close()
    del writer
    gc.collect()
    memoryview(kept)[0] = 1
    part[0] = 1


def test_waiting_for_acknowledgements_minds_no_open_claim() -> None:
    """Goal: a writer that builds its next message can still wait for those before it."""
    cluster = Cluster(1)
    writer = cluster.writer(0)
    writer.write(b"x")
    writer.claim(3)
    assert writer.wait_acknowledged(0) is False
    cluster.settle()
    assert writer.wait_acknowledged(0) is True


@pytest.mark.parametrize("within", [False, True])
def test_a_node_that_has_gone_is_an_error_everywhere(within: bool) -> None:
    """Goal: nothing waits for a dead node. Method: mark_gone() wakes a full ring's writer and one that waits for
    acknowledgements; later calls fail at once; a stopped node is noticed by its bell page.
    """
    for wait in (
        lambda w: w.write(b"x"),
        lambda w: w.wait_acknowledged(-1),
        lambda w: w.claim(1),
        lambda w: w.write_many([b"x"]),
    ):
        writer, inbox, _ = alone(slots=1, within=within)
        writer.write(b"fills it")
        caught: list[BaseException] = []

        def blocked(
            wait: Callable[[InboxWriter], object] = wait,
            writer: InboxWriter = writer,
            caught: list[BaseException] = caught,
        ) -> None:
            try:
                wait(writer)
            except NodeGone as e:
                caught.append(e)

        thread = threading.Thread(target=blocked)
        thread.start()
        wait_until(lambda inbox=inbox: peek(inbox.ring, SPACE_WAITING) > 0)
        writer.mark_gone()
        thread.join(30)
        assert len(caught) == 1 and "attach again" in str(caught[0])
        for call in (
            lambda w: w.write(b"x"),
            lambda w: w.claim(1),
            lambda w: w.write_array(b"x", 1),
            lambda w: w.wait_acknowledged(1),
        ):
            with pytest.raises(NodeGone):
                call(writer)
        with pytest.raises(NodeGone) as gone:
            writer.write_many([b"x"])
        assert gone.value.written == 0  # type: ignore[attr-defined]
    writer, _, engine = alone()
    writer.claim(1)
    engine.stop()
    with pytest.raises(NodeGone):
        writer.commit()
    with pytest.raises(ValueError, match="no claim"):
        writer.commit()


def test_a_closed_writer_says_so() -> None:
    """Goal: close() is idempotent, drops an open claim, leaves what was committed; later calls are ValueErrors."""
    cluster = Cluster(1)
    reader, writer = cluster.reader(0), cluster.writer(0)
    writer.write(b"stays")
    writer.claim(3)
    writer.close()
    writer.close()
    calls: list[Callable[[], object]] = [
        lambda: writer.write(b"x"),
        lambda: writer.write_many([b"x"]),
        lambda: writer.write_array(b"x", 1),
        lambda: writer.claim(1),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()
    with pytest.raises(ValueError, match="closed"):
        writer.wait_acknowledged(1)
    cluster.settle()
    assert reader.take(9) == [b"stays"] and writer.acknowledged == 1


@pytest.mark.slow
def test_what_is_no_inbox_is_refused() -> None:
    """Goal: closed, read-only, foreign or lying mappings are errors, not crashes; descriptors are given back."""
    inbox, engine = Inbox(64, 4, 1), Engine(1)

    def make(**change: Mapping) -> InboxWriter:
        ring = change.get("ring") or Mapping.attach(os.dup(inbox.ring.fd), True)
        progress = change.get("progress") or Mapping.attach(os.dup(inbox.progress.fd))
        bell = change.get("bell") or Mapping.attach(os.dup(engine.bell.fd))
        return InboxWriter(ring, progress, os.dup(inbox.their_fd), bell, os.dup(engine.bell_fd))

    gc.collect()
    before = descriptors_before()
    make().close()
    closed = Mapping.create("closed", 4096)
    closed.close()
    for change in (
        {"ring": closed},
        {"progress": closed},
        {"bell": closed},
        {"ring": Mapping.attach(os.dup(inbox.ring.fd))},
    ):
        with pytest.raises(ValueError, match="writable"):
            make(**change)
    other = Mapping.create("other", 4096)
    for change in ({"ring": other}, {"progress": other}, {"bell": other}):
        with pytest.raises(ValueError, match="not an inbox"):
            make(**change)
    for size_max, slots in ((64, 5000), (1 << 40, 1 << 40), (U64_MAX, 1), (0, 4), (64, 0), (1 << 63, 2)):
        poke(inbox.progress, PROGRESS_SIZE_MAX, size_max)
        poke(inbox.progress, PROGRESS_SLOTS, slots)
        with pytest.raises(ValueError, match="geometry"):
            make()
    poke(inbox.progress, PROGRESS_SIZE_MAX, 64)
    poke(inbox.progress, PROGRESS_SLOTS, 4)
    make().write(b"x")
    del closed, other, change
    gc.collect()
    assert open_descriptors() == before


@pytest.mark.parametrize(
    ("size_max", "slots", "writer_id", "words"),
    [
        (0, 1, 1, "between 1 and 67108864"),
        (1 << 27, 1, 1, "size_max"),
        (1, 0, 1, "between 1 and 65536"),
        (1, 1 << 17, 1, "slots"),
        (1, 1, -1, "between 0 and 65535"),
        (1, 1, 65536, "writer_id"),
    ],
)
def test_impossible_inboxes_are_refused(size_max: int, slots: int, writer_id: int, words: str) -> None:
    """Goal: limits are checked where the inbox is made, and are in the message."""
    with pytest.raises(ValueError, match=words):
        Inbox(size_max, slots, writer_id)


# ---- several threads ------------------------------------------------------------------------------------------------


def test_two_threads_share_a_writer_under_a_lock() -> None:
    """Goal: with a lock around it a writer serves several threads: each one's messages once and in its order.

    Method: two threads write at once through a ring of four slots to two running engines.
    """
    cluster = Cluster(2, window=8)
    readers, writer, lock = [cluster.reader(i) for i in range(2)], cluster.writer(0, slots=4), threading.Lock()

    def write(who: int) -> None:
        for k in range(300):
            with lock:
                if k % 3:
                    writer.write(b"%d:%d" % (who, k), timeout_s=30)
                else:
                    text = b"%d:%d" % (who, k)
                    writer.claim(len(text), 30)[:] = text
                    writer.commit()

    cluster.start()
    try:
        threads = [threading.Thread(target=write, args=(who,)) for who in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert writer.wait_acknowledged(30)
        logs = [[m for _ in range(10) for m in r.take(100)] for r in readers]
    finally:
        cluster.stop()
    assert logs[0] == logs[1]
    for who in range(2):
        assert [m for m in logs[0] if m.startswith(b"%d:" % who)] == [b"%d:%d" % (who, k) for k in range(300)]


@pytest.mark.parametrize("ending", ["gone", "progress"])
def test_one_ring_wakes_all_threads_that_wait(ending: str) -> None:
    """Goal: threads that wait at one writer, for a slot and for acknowledgements, all hear of what one ring says; none
    waits for its second look a second later. Method: four of them; the node dies, or takes the message."""
    cluster = Cluster(1)
    writer = cluster.writer(0, slots=1)
    writer.write(b"fills it")
    ended: list[float] = []

    def blocked(wait: Callable[[], object]) -> None:
        try:
            wait()
        except NodeGone:
            assert ending == "gone"
        ended.append(time.monotonic())

    calls: list[Callable[[], object]] = [lambda: writer.wait_acknowledged(30)] * 3
    calls.append(lambda: writer.write(b"next", timeout_s=30))
    threads = [threading.Thread(target=blocked, args=(call,)) for call in calls]
    for number, thread in enumerate(threads, 1):
        thread.start()
        wait_until(lambda number=number: peek(writer.ring, SPACE_WAITING) >= number)
    time.sleep(0.02)  # said so; now they sleep
    begun = time.monotonic()
    if ending == "gone":
        writer.mark_gone()
    else:
        cluster.settle()
    for thread in threads:
        thread.join(30)
    assert len(ended) == len(calls)
    assert max(ended) - begun < 0.8


def test_what_the_node_has_taken_over_is_in_doubt_until_all_have_it() -> None:
    """Goal: taken is not delivered. Method: only the sender's node steps, so that nobody else has the messages."""
    cluster = Cluster(2)
    writer = cluster.writer(0)
    writer.write_many([b"one", b"two"], timeout_s=0)
    cluster.engines[0].step_once()
    assert writer.consumed == 2 and [payload for _, _, payload, _ in writer.unacknowledged()] == [b"one", b"two"]
    cluster.settle()
    cluster.engines[0].step_once()
    assert writer.unacknowledged() == []


def test_who_keeps_what_is_in_doubt_waits_until_all_have_it() -> None:
    """Goal: no slot is used again whose message may have to be sent once more. Method: the node takes all over that the
    inbox has room for, and nobody else has it yet."""
    cluster = Cluster(2, window=64)
    writer = cluster.writer(0, slots=8, keep=True)
    written = [b"%d" % k for k in range(8)]
    writer.write_many(written, timeout_s=0)
    cluster.engines[0].step_once()
    assert writer.consumed == 8
    with pytest.raises(WriteTimeout):
        writer.write(b"8", timeout_s=0)
    assert [payload for _, _, payload, _ in writer.unacknowledged()] == written
    cluster.settle()
    cluster.engines[0].step_once()
    writer.write(b"8", timeout_s=0)


def test_what_a_claim_is_written_over_is_told_as_gone() -> None:
    """Goal: payloads in doubt are those that were written. An inbox of five messages has a ring of eight slots: the
    ninth message is written where the first one was, and not earlier.

    Method: the node takes everything over, and nobody else has it; at the end a claim is open on a slot.
    """
    cluster = Cluster(2, window=64)
    writer = cluster.writer(0, slots=5)
    for messages in ([b"0", b"1", b"2", b"3", b"4"], [b"5", b"6", b"7"], [b"8", b"9", b"10", b"11", b"12"]):
        writer.write_many(messages, timeout_s=0)
        cluster.engines[0].step_once()
    there = [b"%d" % k for k in range(5, 13)]
    assert [payload for _, _, payload, _ in writer.unacknowledged()] == [None] * 5 + there
    writer.claim(4, 0)
    assert [payload for _, _, payload, _ in writer.unacknowledged()] == [None] * 6 + there[1:]
    writer.abort()
