"""Streams that end at sockets: bytes go both ways, whole and in order; who is slow stops nobody; ends come last.

Method: two bundles on one loop with a connection between them, over a pair of sockets; what is at their lines' other
ends is a plain socket, which this test reads and writes.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from spindle.edge import bundle as bundle_module
from spindle.edge.bundle import QUEUED_BYTES, Bundle, Line
from spindle.edge.edge import Frames, ProgramLine
from spindle.errors import NodeStopped
from spindle.proto import attach_pb2 as pb
from spindle.proto import edge_pb2 as eb
from spindle.proto import opening_pb2
from spindle.proto import relay_pb2 as rb
from spindle.transport.frames import encode
from spindle.transport.opening import STREAM_BYTES
from spindle.transport.wire import Connection, Frame
from tests.spindle.large.group import pattern

LONG_S = 20.0


class Ends:
    """An edge's bundle and a node's; `open` makes a stream, with a socket for each of its two ends."""

    def __init__(self, edge: Bundle, node: Bundle) -> None:
        self.edge, self.node = edge, node
        self.lines: list[tuple[Line, Line]] = []
        self.left = 0
        self.opened: asyncio.Queue[int] = asyncio.Queue()

    async def open(self) -> tuple[socket.socket, socket.socket]:
        program, at_edge = socket.socketpair()
        at_node, node = socket.socketpair()
        lines = ProgramLine(at_edge, self._leave), Line(at_node, self._leave)
        self.lines.append(lines)
        self.edge.join(self.edge.streams.open(), lines[0])
        self.node.join(await self.opened.get(), lines[1])
        for one in (program, node):
            one.setblocking(False)
        return program, node

    def _leave(self, _: Line) -> None:
        self.left += 1


@contextlib.asynccontextmanager
async def ends() -> AsyncIterator[Ends]:
    one, other = socket.socketpair()
    made: list[Ends] = []
    edge = Bundle(Connection(one, label="the node at a"), opens=True)
    node = Bundle(Connection(other), opens=False, allowed=9, on_open=lambda number: made[0].opened.put_nowait(number))
    made.append(Ends(edge, node))
    node.streams.allow()
    running = [asyncio.ensure_future(each.run()) for each in (edge, node)]
    await edge.allowed.wait()
    try:
        yield made[0]
    finally:
        edge.conn.close()
        await asyncio.gather(*running)
        for pair in made[0].lines:
            for line in pair:
                line._close()


def run(body: Callable[[], Awaitable[None]]) -> None:
    asyncio.run(asyncio.wait_for(body(), 3 * LONG_S))


async def exactly(sock: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        some = await asyncio.get_running_loop().sock_recv(sock, count - len(data))
        assert some, f"{len(data)} of {count} bytes came"
        data += some
    return bytes(data)


async def rest(sock: socket.socket) -> bytes:
    data = bytearray()
    with contextlib.suppress(ConnectionResetError), contextlib.closing(sock):
        while some := await asyncio.get_running_loop().sock_recv(sock, 1 << 16):
            data += some
    return bytes(data)


async def until(condition: Callable[[], object]) -> None:
    while not condition():
        await asyncio.sleep(0.001)


def test_bytes_go_both_ways_and_what_was_said_comes_before_the_end() -> None:
    async def body() -> None:
        async with ends() as both:
            loop = asyncio.get_running_loop()
            program, node = await both.open()
            there, back = pattern(3 << 20, 1), pattern(5 << 20, 2)
            sending = [loop.create_task(loop.sock_sendall(program, there)),
                       loop.create_task(loop.sock_sendall(node, back))]
            assert list(await asyncio.gather(exactly(node, len(there)), exactly(program, len(back)))) == [there, back]
            await asyncio.gather(*sending)
            await loop.sock_sendall(program, b"last")
            program.close()
            assert await rest(node) == b"last"
            await until(lambda: both.left == 2 and not len(both.edge.streams) and not len(both.node.streams))

    run(body)


@pytest.mark.slow
@pytest.mark.parametrize("deaf", ["program", "node"])
def test_who_does_not_read_stops_nobody_and_costs_a_window(deaf: str) -> None:
    async def body() -> None:
        async with ends() as both:
            loop = asyncio.get_running_loop()
            stuck, live = await both.open(), await both.open()
            talker = stuck[deaf == "program"]
            flood = loop.create_task(loop.sock_sendall(talker, bytes(4 * STREAM_BYTES)))
            from_, to = live[deaf == "program"], live[deaf != "program"]
            content = pattern(3 * STREAM_BYTES)
            sending = loop.create_task(loop.sock_sendall(from_, content))
            assert await exactly(to, len(content)) == content
            await sending
            line = both.lines[0][deaf == "node"]
            await until(lambda: not both.lines[0][deaf == "program"]._early and sum(map(len, line._out)))
            assert sum(map(len, line._out)) <= STREAM_BYTES and not flood.done()
            other = stuck[deaf != "program"]
            assert await exactly(other, 4 * STREAM_BYTES) == bytes(4 * STREAM_BYTES)
            await flood

    run(body)


def test_streams_take_turns() -> None:
    """One that has much to send is not sent before others that have little, and not ahead of what the connection takes.
    Method: both have everything from the start; the pieces are looked at as they come."""
    async def body() -> None:
        async with ends() as both:
            order: list[int] = []
            waiting: list[int] = []
            take = both.node._take

            def look(frame: Frame) -> None:
                stream = eb.StreamFrame.FromString(frame.body).data.stream
                if stream:
                    order.append(stream)
                    waiting.append(both.edge.conn._out_bytes)
                take(frame)

            both.node.conn._on_frame = look
            greedy, small = await both.open(), await both.open()
            for content, (line, _) in zip((bytes(STREAM_BYTES), b"x"), both.lines, strict=True):
                line._early = content
                both.edge.ready(line)
            assert await exactly(small[1], 1) == b"x"
            assert await exactly(greedy[1], STREAM_BYTES) == bytes(STREAM_BYTES)
            assert order.index(2) <= 1 and max(waiting) <= QUEUED_BYTES + bundle_module.FRAME_BYTES_MAX

    run(body)


def test_a_program_whose_socket_is_dead_keeps_no_credit() -> None:
    """What can't be written any more counts as passed on: the node sees the stream's end, not a full window."""
    async def body() -> None:
        async with ends() as both:
            loop = asyncio.get_running_loop()
            program, node = await both.open()
            flood = loop.create_task(loop.sock_sendall(node, bytes(4 * STREAM_BYTES)))
            await until(lambda: both.lines[0][0]._out)
            await loop.sock_sendall(program, b"bye")
            program.close()
            assert await exactly(node, 3) == b"bye"
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                await flood
            await until(lambda: both.left == 2)
            node.close()

    run(body)


def test_who_takes_nothing_at_the_end_is_waited_for_not_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bundle_module, "LINGER_S", 0.05)

    async def body() -> None:
        async with ends() as both:
            loop = asyncio.get_running_loop()
            program, node = await both.open()
            flood = loop.create_task(loop.sock_sendall(node, bytes(STREAM_BYTES // 2)))
            await flood
            node.close()
            await until(lambda: both.left == 2)
            assert both.lines[0][0].closed
            program.close()

    run(body)


@pytest.mark.parametrize("told", ["nothing", "all", "half"])
def test_a_program_is_told_why_its_node_is_gone(told: str) -> None:
    """With an OpeningReply if it knows nothing yet, as its node's last word between two frames; never in the middle of
    one, which would make it read nonsense."""
    async def body() -> None:
        async with ends() as both:
            loop = asyncio.get_running_loop()
            program, node = await both.open()
            frame = encode(b"a frame") + encode(b"")
            sent = {"nothing": b"", "all": frame, "half": frame[:-3]}[told]
            if sent:
                await loop.sock_sendall(node, sent)
                assert await exactly(program, len(sent)) == sent
            both.node.end(NodeStopped("node 1 was stopped"))
            last = await rest(program)
            node.close()
            if told == "half":
                assert last == b""
            elif told == "nothing":
                reply = opening_pb2.OpeningReply.FromString(last[8:])
                assert (reply.kind, reply.message) == (
                    "NodeStopped", "the node at a is gone: node 1 was stopped")
            else:
                word = pb.NodeFrame.FromString(rb.NodeSide.FromString(last[8:]).node)
                assert word.refusal.text == "the node at a is gone: node 1 was stopped"

    run(body)


def test_a_lie_ends_the_connection_and_is_told() -> None:
    async def body() -> None:
        async with ends() as both:
            program, node = await both.open()
            said: list[bytes] = []
            take = both.edge._take

            def look(frame: Frame) -> None:
                said.append(frame.body)
                take(frame)

            both.edge.conn._on_frame = look
            both.edge.conn.send(eb.StreamFrame(data=eb.Data(stream=7, content=b"x")).SerializeToString())
            assert await rest(node) == b""
            assert b"no such stream" in await rest(program)
            assert "stream 7" in eb.StreamFrame.FromString(said[-1]).close.text

    run(body)


def test_frames_are_counted_whatever_the_pieces() -> None:
    frames = encode(b"one") + encode(b"") + encode(bytes(300)) + encode(b"x")
    boundaries = {0, 11, 19, 327, 336}
    for step in (1, 2, 7, 8, 9, 100, 400):
        counted, at = Frames(), 0
        while at < len(frames):
            counted.feed(frames[at : at + step])
            at = min(len(frames), at + step)
            assert counted.between == (at in boundaries)
