"""Goal: frames and descriptors arrive whole and in order, and nothing an end can send harms the other.

Method: socket pairs; the decoder is also fed by hypothesis in arbitrary pieces and with arbitrary bytes.
"""

from __future__ import annotations

import array
import asyncio
import contextlib
import dataclasses
import itertools
import os
import select
import selectors
import socket
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle.errors import ConnectionEnded, SpindleError, WireError
from spindle.transport.frames import LOST, READ_BYTES
from spindle.transport.wire import HEADER, BlockingConnection, Connection, Frame, FrameDecoder, Limits, encode
from tests.support import open_descriptors

SMALL = Limits(frame_bytes_max=1000, fds_max=2, frame_time_s=0.1, queue_bytes_max=100_000, frames_waiting_max=4)


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(test(), 20)

    asyncio.run(bounded())


def open_fds() -> int:
    return open_descriptors()


@given(bodies=st.lists(st.binary(max_size=300), max_size=8), cuts=st.lists(st.integers(0, 2500), max_size=12))
def test_decoder_gives_the_same_frames_however_the_bytes_are_cut(bodies: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(encode(body) for body in bodies)
    decoder = FrameDecoder(SMALL)
    got: list[bytes] = []
    places = [0, *sorted(cut for cut in cuts if cut < len(stream)), len(stream)]
    for start, end in itertools.pairwise(places):
        got += [frame.body for frame in decoder.feed(stream[start:end])]
    assert got == bodies and not decoder.partial


@given(st.binary(max_size=4000))
def test_decoder_survives_any_bytes(data: bytes) -> None:
    decoder = FrameDecoder(SMALL)
    with contextlib.suppress(WireError):
        for frame in decoder.feed(data):
            assert len(frame.body) <= SMALL.frame_bytes_max


@pytest.mark.parametrize(("header", "word"), [
    (HEADER.pack(1001, 0, 0), "limit of 1000"), (HEADER.pack(0xFFFFFFFF, 0, 0), "limit of 1000"),
    (HEADER.pack(5, 3, 0), "limit of 2"), (HEADER.pack(5, 0, 1), "malformed"), (HEADER.pack(0, 1, 0), "announces 1"),
])
def test_decoder_refuses_with_the_limit(header: bytes, word: str) -> None:
    with pytest.raises(WireError, match=word):
        FrameDecoder(SMALL).feed(header)


def test_descriptors_travel_with_their_frames() -> None:
    async def body() -> None:
        a, b = pair()
        one, other = Connection(a), Connection(b)
        before = open_fds()
        read_end, write_end = os.pipe()
        one.send(b"x" * 300_000, [write_end])
        one.send(b"plain")
        one.send(b"both", [read_end, write_end])
        os.close(read_end)
        os.close(write_end)
        big, plain, both = [await other.receive(5) for _ in range(3)]
        assert (len(big.body), plain.fds, both.body) == (300_000, [], b"both")
        os.write(big.fds[0], b"through")
        assert os.read(both.fds[0], 10) == b"through"
        for frame in (big, plain, both):
            frame.close_fds()
        assert open_fds() == before
        one.close()
        with pytest.raises(ConnectionEnded):
            await other.receive(5)
        assert open_fds() < before

    run(body)


def test_more_descriptors_than_allowed_are_closed_and_refused() -> None:
    async def body() -> None:
        a, b = pair()
        other = Connection(b, limits=SMALL)
        before = open_fds()
        fds = array.array("i", [0] * 30)
        a.sendmsg([encode(b"x", 2)], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, fds)])
        with pytest.raises(WireError, match="descriptors"):
            await other.receive(5)
        assert open_fds() == before - 1
        a.close()

    run(body)


@pytest.mark.parametrize("sent", [b"\x05", encode(b"hello")[:-1]])
def test_end_in_the_middle_of_a_frame_is_told_from_a_clean_end(sent: bytes) -> None:
    async def body() -> None:
        a, b = pair()
        other = Connection(b)
        a.sendall(sent)
        a.close()
        with pytest.raises(ConnectionEnded, match="middle of a frame") as caught:
            await other.receive(5)
        assert not caught.value.clean

    run(body)


def test_slow_drip_is_cut_off_though_bytes_keep_coming() -> None:
    async def body() -> None:
        a, b = pair()
        other = Connection(b, limits=SMALL, label="dripper")
        waiting = asyncio.ensure_future(other.receive(10))
        with contextlib.suppress(BrokenPipeError):
            for byte in encode(b"never whole, this one" * 10):
                a.send(bytes([byte]))
                await asyncio.sleep(0.005)
                if waiting.done():
                    break
        with pytest.raises(WireError, match=r"dripper: a frame took longer than 0\.1 s"):
            await waiting
        a.close()

    run(body)


def test_an_end_that_stood_still_itself_accuses_nobody() -> None:
    """What had come while this process was stopped counts, though the time is over: a first frame, the rest of one, and
    the end of the connection (found by chaos).

    Method: waiting for input is interrupted once after each stop, as epoll_wait is by SIGCONT, so timers come first.
    """
    selector, interrupted = selectors.DefaultSelector(), []
    select = selector.select
    selector.select = lambda timeout=None: interrupted.pop() if interrupted else select(timeout)  # type: ignore
    ours, theirs = pair()

    def stand_still(seconds: float) -> None:
        time.sleep(seconds)
        interrupted.append([])

    async def test() -> None:
        conn = Connection(ours, limits=SMALL)
        waiting = asyncio.ensure_future(conn.receive(0.02))
        await asyncio.sleep(0)
        theirs.send(encode(b"late"))
        stand_still(0.05)
        assert (await waiting).body == b"late"
        waiting = asyncio.ensure_future(conn.receive())
        theirs.send(encode(b"later")[:-1])
        while not conn._decoder.partial:
            await asyncio.sleep(0)
        theirs.send(encode(b"later")[-1:])
        stand_still(SMALL.frame_time_s * 1.5)
        assert (await waiting).body == b"later"
        waiting = asyncio.ensure_future(conn.receive(0.02))
        await asyncio.sleep(0)
        theirs.close()
        stand_still(0.05)
        with pytest.raises(ConnectionEnded):
            await waiting
        conn.close()

    with contextlib.closing(asyncio.SelectorEventLoop(selector)) as loop:
        loop.run_until_complete(asyncio.wait_for(test(), 20))


def test_an_end_that_does_not_read_is_cut_off() -> None:
    async def body() -> None:
        a, b = pair()
        one = Connection(a, limits=SMALL)
        with pytest.raises(WireError, match="does not read"):
            for _ in range(10_000):
                one.send(bytes(900))
        assert one.closed
        b.close()

    run(body)


def test_an_end_that_reads_nothing_for_long_is_cut_off() -> None:
    async def body() -> None:
        a, b = pair()
        one = Connection(a)
        while not one._out:
            one.send(bytes(900))
        one.set_limits(dataclasses.replace(SMALL, unread_time_s=0.05))
        while not one.closed:
            await asyncio.sleep(0.005)
        with pytest.raises(WireError, match=r"does not read: .* limit 0\.05 s"):
            one.send(b"")
        b.close()

    run(body)


def test_who_reads_slowly_is_not_cut_off() -> None:
    """Nor is who reads while this process stands still. Method: what was taken last is made longer ago."""
    async def body() -> None:
        a, b = pair()
        one = Connection(a, limits=dataclasses.replace(SMALL, queue_bytes_max=64 << 20, unread_time_s=1000.0))
        for _ in range(3000):
            one.send(bytes(900))
        for _ in range(3):
            one._taken_at -= 1200
            b.recv(1 << 20)
            one._look_whether_read()
            assert one._out and not one.closed
        one._taken_at -= 600
        one._look_whether_read()
        assert not one.closed
        one._taken_at -= 600
        one._look_whether_read()
        assert one.closed
        b.close()

    run(body)


def test_a_flood_of_frames_pauses_reading_until_they_are_taken() -> None:
    async def body() -> None:
        a, b = pair()
        one, other = Connection(a), Connection(b, limits=SMALL)
        for number in range(2000):
            one.send(b"%d" % number + bytes(500))
        await asyncio.sleep(0.05)
        assert len(other._frames) < 2000
        for number in range(2000):
            assert (await other.receive(5)).body.startswith(b"%d" % number)
        one.close()
        other.close()

    run(body)


@pytest.mark.slow
def test_small_frames_of_one_look_are_taken_before_the_next_look() -> None:
    """Goal: what waits is bounded for frames of any size. Method: thousands of empty ones; taking one of those that
    wait brings no further look."""

    async def body() -> None:
        a, b = pair()
        one, other = Connection(a), Connection(b, limits=SMALL)
        for _ in range(30_000):
            one.send(b"")
        taken = waiting = 0
        while taken < 30_000:
            await other.receive(5)
            taken += 1
            waiting = max(waiting, len(other._frames))
            if taken % 100 == 0:
                await asyncio.sleep(0)
        assert waiting <= READ_BYTES // HEADER.size + SMALL.frames_waiting_max
        one.close()
        other.close()

    run(body)


def test_callbacks_get_what_came_before_and_one_end() -> None:
    async def body() -> None:
        a, b = pair()
        one, other = Connection(a), Connection(b)
        one.send(b"early")
        await asyncio.sleep(0.01)
        got: list[bytes] = []
        ends: list[SpindleError | None] = []
        other.start(lambda frame: got.append(frame.body), ends.append)
        one.send(b"late")
        await one.drain(0)
        one.close()
        while not ends:
            await asyncio.sleep(0.001)
        assert got == [b"early", b"late"]
        assert len(ends) == 1 and isinstance(ends[0], ConnectionEnded)
        other.close()

    run(body)


def test_an_error_in_a_handler_ends_the_connection_only() -> None:
    async def body() -> None:
        a, b = pair()
        one, other = Connection(a), Connection(b)
        ends: list[SpindleError | None] = []

        def refuse(frame: Frame) -> None:
            raise WireError("not this")

        other.start(refuse, ends.append)
        one.send(b"x")
        while not ends:
            await asyncio.sleep(0.001)
        assert "not this" in str(ends[0]) and other.closed
        one.close()

    run(body)


def test_finish_takes_what_had_been_sent() -> None:
    """As when a process died whose child holds the socket open: nobody closes it."""

    async def body() -> None:
        a, b = pair()
        other = Connection(b)
        a.sendall(encode(b"last words"))
        other.finish()
        assert (await other.receive(1)).body == b"last words"
        with pytest.raises(ConnectionEnded):
            await other.receive(1)
        a.close()

    run(body)


def test_a_frame_may_take_longer_than_its_receiver_may_take_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a slow line doesn't end a connection, whatever a frame's size; one that takes nothing does. Method: with
    each wait of 4 s the other end takes some; at last it takes none."""
    a, b = pair()
    now = [0.0]
    conn = BlockingConnection(a)
    takes = True

    def waits(event: int, deadline: float | None) -> bool:
        now[0] += 4
        if takes:
            b.recv(100_000)
        return deadline is None or now[0] <= deadline

    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr(conn, "_poll", waits)
    conn.send(bytes(3_000_000), timeout_s=5.0)
    assert now[0] > 20
    takes = False
    with pytest.raises(TimeoutError, match="took no data for 5 s"):
        conn.send(bytes(3_000_000), timeout_s=5.0)
    assert conn.closed
    b.close()


def test_blocking_end_talks_to_the_other_kind() -> None:
    """A thread's connection: large frames both ways, timeout, and close() from another thread."""
    a, b = pair()
    one, other = BlockingConnection(a), BlockingConnection(b)
    sender = threading.Thread(target=lambda: [one.send(bytes(100_000)) for _ in range(20)])
    sender.start()
    assert [len(other.receive(5).body) for _ in range(20)] == [100_000] * 20
    sender.join()
    with pytest.raises(TimeoutError, match="sent nothing"):
        other.receive(0.01)
    errors: list[Exception] = []

    def receive() -> None:
        try:
            other.receive()
        except ConnectionEnded as error:
            errors.append(error)

    receiver = threading.Thread(target=receive)
    receiver.start()
    other.close()
    receiver.join(5)
    assert not receiver.is_alive() and errors
    one.close()


def test_all_who_wait_for_a_full_connection_go_on_alike() -> None:
    """Twenty tasks queue a hundred frames each, the first of them twice as large ones: nobody is left behind, and what
    waits is bounded however many they are."""

    async def body() -> None:
        a, b = pair()
        one = Connection(a)
        sent = [0] * 20
        queued_max = 0

        async def feed(number: int) -> None:
            nonlocal queued_max
            for _ in range(100):
                await one.drain(50_000)
                one.send(bytes([number]) * (20_000 if number == 0 else 10_000))
                queued_max = max(queued_max, one._out_bytes)
                sent[number] += 1
                if min(sent):
                    assert max(sent) - min(sent) <= 2, sent

        tasks = [asyncio.ensure_future(feed(number)) for number in range(20)]
        while one._out_bytes <= 50_000:  # nobody reads yet
            await asyncio.sleep(0)
        other = Connection(b)
        got = [(await other.receive(5)).body[0] for _ in range(2000)]
        await asyncio.gather(*tasks)
        assert all(got.count(number) == 100 for number in range(20))
        assert 50_000 < queued_max <= 50_000 + 20_008
        one.close()
        other.close()

    run(body)


def test_who_gives_up_waiting_keeps_nobody_from_going_on() -> None:
    async def body() -> None:
        a, b = pair()
        one, other = Connection(a), Connection(b)
        one.send(bytes(1_000_000))
        waiting = [asyncio.ensure_future(one.drain(0)) for _ in range(4)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        waiting[2].cancel()
        await other.receive(5)
        await asyncio.gather(waiting[1], waiting[3])
        assert waiting[0].cancelled() and waiting[2].cancelled() and not one._turns
        # One that is given up just when its turn has come.
        one.send(bytes(1_000_000))
        first, second = (asyncio.ensure_future(one.drain(0)) for _ in range(2))
        await asyncio.sleep(0)
        give_turn = one._give_turn

        def give_and_give_up() -> None:
            give_turn()
            if one._turns and one._turns[0][1] is not turns[0]:
                first.cancel()

        turns = [turn for _, turn in one._turns]
        one._give_turn = give_and_give_up  # type: ignore[method-assign]
        await other.receive(5)
        await second
        assert first.cancelled()
        one.close()
        other.close()

    run(body)


def test_the_end_tells_all_who_wait_for_the_connection() -> None:
    async def body() -> None:
        a, b = pair()
        one = Connection(a)
        one.send(bytes(1_000_000))
        waiting = [asyncio.ensure_future(one.drain(0)) for _ in range(5)]
        await asyncio.sleep(0)
        b.close()
        ends = await asyncio.gather(*waiting, return_exceptions=True)
        assert all(isinstance(end, ConnectionEnded) for end in ends)
        with pytest.raises(ConnectionEnded):
            await one.drain()

    run(body)


def test_descriptors_that_were_lost_are_those_of_their_frame() -> None:
    """And of no other: the next frame has its own."""
    decoder = FrameDecoder(SMALL)
    assert decoder.feed(encode(b"first", 2)[:9], [LOST]) == []
    ours = os.dup(0)
    rest = encode(b"first", 2)[9:] + encode(b"no descriptors") + encode(b"second", 1)
    first, plain, second = decoder.feed(rest, [ours])
    assert (first.body, first.fds, first.lacks_fds) == (b"first", [], True)
    assert (plain.fds, plain.lacks_fds) == ([], False)
    assert (second.body, second.fds, second.lacks_fds) == (b"second", [ours], False)
    second.close_fds()


def test_descriptors_that_no_frame_announces_are_refused() -> None:
    decoder = FrameDecoder(SMALL)
    fd = os.dup(0)
    with pytest.raises(WireError, match="no frame announces"):
        decoder.feed(encode(b"x"), [fd])
    decoder.close()
    with pytest.raises(OSError):
        os.fstat(fd)


def test_a_closed_thread_s_connection_keeps_no_descriptor_of_what_nobody_took() -> None:
    a, b = pair()
    one, other = BlockingConnection(a), BlockingConnection(b)
    one.send(b"taken")
    one.send(b"not taken", [0])  # comes with the first
    assert other.receive(5).body == b"taken" and other._frames
    before = open_fds()
    other.close()
    assert open_fds() == before - 2  # the socket and that descriptor
    one.close()


def test_closing_takes_no_descriptor_from_who_is_about_to_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: a receiver whose connection is closed just before it waits doesn't wait for another file that got its
    descriptor's number. Method: hold it there until close() has returned and a pipe could have had that number."""
    a, b = pair()
    other = BlockingConnection(b)
    about_to_wait, closed = threading.Event(), threading.Event()

    class Poller:
        def __init__(self) -> None:
            self._poller = poll()

        def register(self, sock: socket.socket, event: int) -> None:
            self._poller.register(sock, event)

        def poll(self, wait_ms: float | None) -> list[tuple[int, int]]:
            about_to_wait.set()
            assert closed.wait(10)
            return self._poller.poll(wait_ms)

    poll = select.poll
    monkeypatch.setattr(select, "poll", Poller)
    errors: list[Exception] = []

    def receive() -> None:
        try:
            other.receive()
        except ConnectionEnded as error:
            errors.append(error)

    receiver = threading.Thread(target=receive, daemon=True)
    receiver.start()
    assert about_to_wait.wait(10)
    other.close()
    pipes = [os.pipe() for _ in range(2)]
    closed.set()
    receiver.join(10)
    assert not receiver.is_alive() and errors
    for pipe in pipes:
        for fd in pipe:
            os.close(fd)
    with pytest.raises(ConnectionEnded, match="is closed"):
        other.receive()
    assert b.fileno() == -1
    a.close()
