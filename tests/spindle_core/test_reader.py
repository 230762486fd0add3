"""The readers' side of a delivery log: ways of taking, waiting and waking, the end of the node, damaged memory."""

from __future__ import annotations

import gc
import os
import pickle
import select
import threading
import time
from collections.abc import Callable

import pytest

from spindle_core.delivery import Cursor, DeliveryLog
from spindle_core.errors import NodeGone
from spindle_core.memory import Mapping
from spindle_core.message import MessageInfo, message_info, message_type
from spindle_core.reader import Block, LogReader
from tests.spindle_core.logs import (
    RING,
    add_reader,
    append,
    attach,
    fill,
    payload,
    peek,
)
from tests.support import descriptors_before, open_descriptors, wait_until


class Info(MessageInfo):
    """An info type of a layer above."""

    def __init__(self, needed: int) -> None:
        raise AssertionError("readers don't call it")


class Holder:
    """What decode() may make: something that takes an attribute."""

    def __init__(self, content: bytes) -> None:
        self.content = content


Typed = message_type("Typed", __name__, "info", "bytes with an info")


# ---- ways of taking -------------------------------------------------------------------------------------------------


def test_every_way_of_taking_gives_the_same_messages() -> None:
    """Goal: take, take_pairs, take_with and take_block are four views of one log.

    Method: four readers of messages of every size from 0 to 300; infos compared field by field.
    """
    log = DeliveryLog(1 << 20)
    readers = [add_reader(log)[0] for _ in range(4)]
    messages = [payload(k, k) for k in range(300)]
    for k, m in enumerate(messages):
        assert log.append(m, 7, 10 + k, 3, 1_000 + k, 9, 2_000 + k)
    typed = readers[0].take(400, Typed, Info)
    pairs = readers[1].take_pairs(400, Info)
    held = readers[2].take_with(400, lambda view: Holder(bytes(view)), Info, "about")
    blocks = []
    while (block := readers[3].take_block(400)) is not None:
        with block:
            start = block.offset
            blocks += [
                (bytes(block.buffer[start + i * block.stride :][: block.payload_size]), block.info(i, Info))
                for i in range(block.count)
            ]
    infos = [[message_info(p) for p in typed], [i for _, i in pairs], [h.about for h in held], [i for _, i in blocks]]  # type: ignore[attr-defined]
    assert (
        [bytes(p) for p in typed]
        == [p for p, _ in pairs]
        == [h.content for h in held]
        == [p for p, _ in blocks]
        == messages
    )
    for kind in infos:
        assert all(type(i) is Info for i in kind)
        assert [
            (i.sender, i.sequence, i.view_id, i.source_timestamp, i.reception_timestamp, i.writer, i.index)
            for i in kind
        ] == [(7, 10 + k, 3, 1_000 + k, 2_000 + k, 9, k) for k in range(300)]
    assert "sequence=10 " in repr(infos[0][0]) and "Info" in repr(infos[0][0])


def test_a_block_is_a_run_of_equal_sizes() -> None:
    """Goal: a block never mixes sizes, never goes over the end of the ring, and holds its memory until released.

    Method: runs of known lengths; a ring that the log fills while the block is open.
    """
    log = DeliveryLog(4096, keep_history=True)
    reader, _ = add_reader(log)
    for size in (8, 8, 8, 16, 100, 100):
        assert append(log, bytes(size))
    runs = []
    for _ in range(3):
        with reader.take_block(99) as block:
            runs.append((block.count, block.payload_size, block.stride))
    assert runs == [(3, 8, 128), (1, 16, 128), (2, 100, 192)]
    assert reader.take_block(9) is None and reader.take_block(0) is None
    while append(log, bytes(64)):
        pass
    with pytest.raises(TypeError, match="take_block"):
        Block()
    block = reader.take_block(1)
    with pytest.raises(ValueError, match="release it first"):
        reader.take(1)
    with pytest.raises(IndexError):
        block.info(1)
    assert not append(log, b"") and block.intact
    block.release()
    assert append(log, b"") and not block.intact
    whole = []
    while (block := reader.take_block(99)) is not None:
        whole.append(block.count)
        assert block.offset + (block.count - 1) * block.stride + block.payload_size <= RING + log.capacity
        block.release()
    assert sum(whole) == log.delivered - 7 and reader.pending == 0


def test_a_block_that_was_overtaken_says_so() -> None:
    """Goal: a reader that doesn't keep all can tell that its block changed under it, and goes on with what there is.

    Method: go round the ring while the block is open; the block itself counts as read, what followed it as lost.
    """
    log = DeliveryLog(4096)
    reader, _ = add_reader(log, False)
    fill(log, 4, 64)
    block = reader.take_block(2)
    assert block.count == 2 and block.intact
    fill(log, 100, 64)
    assert not block.intact
    block.release()
    rest = reader.take(200)
    assert rest == [payload(k, 64) for k in range(104 - len(rest), 104)] and rest
    assert 2 + reader.lost + len(rest) == 104 == reader.position_index


def test_errors_of_decode_lose_only_their_own_message() -> None:
    """Goal: an error in decode() reaches the caller, with the messages before it; the one it failed on is skipped.

    Method: decode that raises, that keeps a part of the view, and whose result takes no attribute.
    """
    for keep_all in (True, False):
        log = DeliveryLog(1 << 16)
        reader, _ = add_reader(log, keep_all)
        kept: list[pickle.PickleBuffer] = []

        def decode(view: memoryview, kept: list[pickle.PickleBuffer] = kept) -> object:
            if view[0] == ord("r"):
                raise KeyError("no")
            if view[0] == ord("k"):
                kept.append(pickle.PickleBuffer(view))
            return 5 if view[0] == ord("i") else Holder(bytes(view))

        for text in (b"1", b"2", b"raise", b"3", b"keep", b"int", b"4"):
            assert append(log, text)
        for error, before in ((KeyError, [b"1", b"2"]), (BufferError, [b"3"]), (AttributeError, [])):
            with pytest.raises(error) as caught:
                reader.take_with(99, decode)
            assert [h.content for h in caught.value.taken] == before  # type: ignore[attr-defined]
        assert [h.content for h in reader.take_with(99, decode)] == [b"4"]
        assert reader.pending == 0 and reader.position_index == 7
        kept.clear()


@pytest.mark.slow
def test_a_view_is_dead_after_decode() -> None:
    """Goal: nobody reads memory that the log may reuse, and who does all the same doesn't crash.

    Method: keep the view, and a part of it, and use them after the call and after the reader is gone.
    """
    for keep_all in (True, False):
        log = DeliveryLog(4096)
        reader, _ = add_reader(log, keep_all)
        assert append(log, b"once")
        views: list[memoryview] = []
        reader.take_with(1, lambda view, views=views: views.extend((view, view[1:])), info_attribute=None)
        with pytest.raises(ValueError, match="released"):
            bytes(views[0])
        assert views[1].readonly
        reader.close()
        del reader, log
        gc.collect()
        assert bytes(views[1]) == b"nce"


def test_taking_while_taking_gives_every_message_once() -> None:
    """Goal: a reader survives that its own decode (or a finaliser) takes from it too.

    Method: decode takes one message itself; together they get each message exactly once.
    """
    log = DeliveryLog(1 << 16)
    reader, _ = add_reader(log)
    fill(log, 20, 50)
    inner: list[bytes] = []

    def decode(view: memoryview) -> bytes:
        if len(inner) < 5:
            inner.extend(reader.take(1))
        return bytes(view)

    outer = reader.take_with(99, decode, info_attribute=None)
    assert sorted(inner + outer) == sorted(payload(k, 50) for k in range(20))


@pytest.mark.parametrize("way", ["take", "take_pairs", "take_with", "info"])
def test_only_info_types_are_accepted(way: str) -> None:
    """Goal: a wrong type is a TypeError, never a write into somebody else's object.

    Method: a type that isn't a MessageInfo, and one whose __new__ returns something else.
    """

    class Liar(MessageInfo):
        def __new__(cls) -> object:  # type: ignore[misc]
            return {}

    log = DeliveryLog(4096)
    reader, _ = add_reader(log)
    fill(log, 3, 8)
    calls: dict[str, Callable[[type], object]] = {
        "take": lambda t: message_info(reader.take(1, Typed, t)[0]),
        "take_pairs": lambda t: reader.take_pairs(1, t),
        "take_with": lambda t: reader.take_with(1, Holder, t),
        "info": lambda t: reader.take_block(1).info(0, t),
    }
    for wrong in (dict, Liar):
        with pytest.raises(TypeError):
            calls[way](wrong)
        reader.close()
        reader, _ = add_reader(log, from_history=True)
    with pytest.raises(TypeError, match="payload_type"):
        reader.take(1, bytearray)


def test_skipping_keeps_the_newest() -> None:
    """Goal: KEEP_LAST(depth) leaves the newest `depth`, counts the rest as skipped (returned) and not as lost."""
    log = DeliveryLog(1 << 16)
    reader, _ = add_reader(log)
    fill(log, 50, 10)
    assert reader.skip_to_last(60) == 0
    assert reader.skip_to_last(3) == 47
    assert reader.take(9) == [payload(k, 10) for k in (47, 48, 49)]
    fill(log, 5, 10)
    assert reader.skip_to_last(0) == 5 and reader.pending == 0 and reader.lost == 0


# ---- waiting --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("within", [False, True])
def test_waiting_is_bounded_and_needs_no_luck(within: bool) -> None:
    """Goal: wait() returns at once with data, False after its time without, and wakes for a message that comes.

    Method: a thread waits without a bound of its own; the message is appended only when it has armed and sleeps.
    """
    log = DeliveryLog(4096)
    reader, cursor = add_reader(log, within=within)
    assert reader.wait(0) is False and reader.wait(0.01) is False
    for k in range(20):
        woken: list[object] = []
        armed_before = peek(cursor.mapping, 24)
        thread = threading.Thread(target=lambda woken=woken: woken.append(reader.wait(30)))
        thread.start()
        if k % 2:
            wait_until(lambda before=armed_before: peek(cursor.mapping, 24) > before)
        assert append(log, b"x")
        thread.join(30)
        assert woken == [True]
        assert reader.wait(0) is True and reader.wait() is True
        assert reader.take(2) == [b"x"]


@pytest.mark.parametrize("within", [False, True])
def test_arming_asks_for_one_ring(within: bool) -> None:
    """Goal: the asyncio way: arm, poll the descriptor, clear, take; one ring per arming, none unasked."""
    log = DeliveryLog(4096)
    reader, _ = add_reader(log, within=within)

    def rung() -> bool:
        poll = select.poll()
        poll.register(reader.fileno(), select.POLLIN)
        return bool(poll.poll(0))

    assert append(log, b"unasked") and not rung()
    assert reader.arm() is True
    reader.clear()
    reader.take(9)
    assert reader.arm() is False
    assert append(log, b"1") and rung()
    assert append(log, b"2")
    reader.clear()
    assert not rung() and append(log, b"3") and not rung()
    assert reader.take(9) == [b"1", b"2", b"3"]
    reader.clear()


@pytest.mark.parametrize("within", [False, True])
def test_waiting_for_data_or_something_else(within: bool) -> None:
    """Goal: wait_or() says what woke it: 1 data, 2 the other descriptor (which stays readable), 3 both, 0 neither."""
    log = DeliveryLog(4096)
    reader, _ = add_reader(log, within=within)
    other = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        assert reader.wait_or(other, 0) == 0 and reader.wait_or(other, 0.01) == 0
        os.eventfd_write(other, 1)
        assert reader.wait_or(other) == 2 and reader.wait_or(other, 0) == 2
        woken: list[int] = []
        os.eventfd_read(other)
        thread = threading.Thread(target=lambda: woken.append(reader.wait_or(other, 30)))
        thread.start()
        assert append(log, b"x")
        thread.join(30)
        assert woken == [1] and reader.wait_or(other, 30) == 1
        assert reader.take(9) == [b"x"]
        assert reader.arm() is False and append(log, b"y")
        assert reader.wait_or(other, 30) == 1
    finally:
        os.close(other)
    reader.close()
    with pytest.raises(ValueError, match="closed"):
        reader.wait_or(-1, 0)


@pytest.mark.parametrize("within", [False, True])
def test_the_end_of_the_node_wakes_and_leaves_what_was_delivered(within: bool) -> None:
    """Goal: after stop() or mark_gone() a reader gets what is there, then NodeGone; a sleeper wakes up.

    Method: both ends; a thread that waits without bound.
    """
    for end in ("stop", "mark_gone"):
        log = DeliveryLog(4096)
        reader, cursor = add_reader(log, within=within)
        caught: list[BaseException] = []

        def sleep(reader: LogReader = reader, caught: list[BaseException] = caught) -> None:
            try:
                reader.wait()
            except NodeGone as e:
                caught.append(e)

        thread = threading.Thread(target=sleep)
        thread.start()
        wait_until(lambda cursor=cursor: peek(cursor.mapping, 24) > 0)
        if end == "stop":
            log.stop()
        else:
            reader.mark_gone()
        thread.join(30)
        assert len(caught) == 1 and "attach again" in str(caught[0])
        assert append(log, b"left")
        assert reader.is_gone and reader.arm() and reader.wait(5) and reader.pending == 1
        assert reader.take(9) == [b"left"] and reader.take(9) == []
        for timeout_s in (0, 1, -1):
            with pytest.raises(NodeGone):
                reader.wait(timeout_s)


@pytest.mark.parametrize("within", [False, True])
def test_a_reader_whose_node_is_gone_stays_rung(within: bool) -> None:
    """Goal: whoever waits for its descriptor, with whatever, is told again and again. Method: rings are taken."""
    log = DeliveryLog(4096)
    reader, _ = add_reader(log, within=within)
    reader.mark_gone()
    for _ in range(3):
        poll = select.poll()
        poll.register(reader.fileno(), select.POLLIN)
        assert poll.poll(0) and reader.wait_or(-1, 30) == 1
        reader.clear()


@pytest.mark.parametrize("within", [False, True])
def test_a_closed_reader_says_so_and_wakes_its_sleeper(within: bool) -> None:
    """Goal: close() is idempotent, ends a wait of another thread, and makes later calls ValueErrors."""
    log = DeliveryLog(4096)
    reader, cursor = add_reader(log, within=within)
    errors: list[str] = []

    def sleep() -> None:
        try:
            reader.wait()
        except ValueError as e:
            errors.append(str(e))

    thread = threading.Thread(target=sleep)
    thread.start()
    wait_until(lambda: peek(cursor.mapping, 24) > 0)
    reader.close()
    reader.close()
    thread.join(30)
    assert errors == ["this reader is closed"]
    calls: list[Callable[[], object]] = [
        lambda: reader.take(1),
        lambda: reader.take_pairs(1),
        lambda: reader.take_with(1, bytes),
        lambda: reader.take_block(1),
        lambda: reader.skip_to_last(1),
        lambda: reader.wait(0),
        reader.arm,
    ]
    for call in calls:
        with pytest.raises(ValueError, match="closed"):
            call()
    assert reader.pending == 0


def test_closing_releases_an_open_block() -> None:
    """Goal: a reader that closes with a block open leaves no block behind that could be read or released wrongly."""
    log = DeliveryLog(4096)
    reader, _ = add_reader(log)
    fill(log, 3, 8)
    block = reader.take_block(2)
    reader.close()
    block.release()
    assert reader.position_index == 2
    with pytest.raises(ValueError, match="released"):
        block.info(0)


def test_descriptors_are_owned_and_given_back() -> None:
    """Goal: a reader owns what it is given, also when it refuses it. Method: count /proc/self/fd."""
    log = DeliveryLog(4096)
    cursor = Cursor(True)
    log.add_reader(cursor)
    gc.collect()
    before = descriptors_before()
    for _ in range(20):
        attach(log, cursor).close()
        with pytest.raises(ValueError, match="not a delivery log"):
            LogReader(
                Mapping.create("other", 1), Mapping.attach(os.dup(cursor.mapping.fd), True), os.dup(cursor.their_fd)
            )
    gc.collect()
    assert open_descriptors() == before


@pytest.mark.parametrize("blocking", [True, False])
def test_who_waits_for_ever_sleeps_whatever_it_made_of_its_descriptor(blocking: bool) -> None:
    """Goal: a program may make the descriptor non-blocking, as event loops do; a wait without a timeout still sleeps.

    Method: the processor time of a thread that waits for as long as it takes the log to be written.
    """
    log = DeliveryLog(1 << 16)
    reader, _ = add_reader(log)
    os.set_blocking(reader.fileno(), blocking)
    found: list[tuple[bool, float]] = []

    def wait() -> None:
        begun = time.thread_time()
        found.append((reader.wait(), time.thread_time() - begun))

    thread = threading.Thread(target=wait)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    log.append(b"here", 1, 0, 0, 0)
    thread.join(10)
    [(came, busy_s)] = found
    assert came and busy_s < 0.1 and reader.take(2) == [b"here"]
