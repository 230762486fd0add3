"""Goal: a data connection for large samples belongs to two nodes that know each other, and is made anew when it broke.

Method: real nodes on two hosts, and strangers at their port; once with everything encrypted.
"""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from spindle.errors import ConnectionEnded, SampleMissing
from spindle.large import ways
from spindle.large.pieces import BALLOT, PIECE_MAX
from spindle.node.node import Node
from spindle.proto import node_pb2 as pb
from spindle.security import ktls
from spindle.transport.network import DataHello
from tests.spindle.large.group import TOPIC, bring, crash, pattern, run_on_hosts, sealed, until
from tests.spindle.large.test_relaying import CONTENT, reached, source_at

HOSTS = [[1], [2]]
SIZE = 3 * PIECE_MAX + 11


def hello_of(node: Node, to: int) -> DataHello:
    return DataHello(0, node.node_id, node._peers.me.incarnation, to, 0, 0, BALLOT)


@pytest.mark.skipif(bool(ktls.available()), reason="this kernel can't encrypt connections")
def test_the_bytes_are_encrypted_where_connections_are(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        one.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        assert await bring(two, 7, SIZE, [1]) == pattern(SIZE)
        sock = next(iter(two.large.ways._readers.values()))._sock
        assert sock.getsockopt(socket.IPPROTO_TCP, 31, 16).rstrip(b"\0") == b"tls"  # TCP_ULP

    secret = runtime_dir / "secret"
    secret.write_text("of this group alone, and long enough\n")
    secret.chmod(0o600)
    run_on_hosts(runtime_dir, HOSTS, body, encrypt=True, secret=secret)


@pytest.mark.slow
def test_one_connection_is_enough_until_it_breaks(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        for large_id in (1, 2, 3, 4):
            one.large.store.put(large_id, sealed(pattern(SIZE)), SIZE, TOPIC)
        readers = two.large.ways._readers
        await asyncio.gather(*(bring(two, large_id, SIZE, [1]) for large_id in (1, 2)))
        first = next(iter(readers.values()))
        assert await bring(two, 3, SIZE, [1]) == pattern(SIZE)
        assert list(readers.values()) == [first]
        first._sock.shutdown(socket.SHUT_RDWR)
        await until(lambda: first.ended)
        assert await bring(two, 4, SIZE, [1]) == pattern(SIZE)
        assert first not in readers.values()
        assert len(one.large.ways._givers) == 1

    run_on_hosts(runtime_dir, HOSTS, body)


@pytest.mark.slow
def test_a_token_is_for_one_connection_of_one_node(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node) -> None:
        hello = hello_of(two, 1)
        assert one.large.token_for(hello) is None
        two._peers.send(1, pb.PeerMessage(large_reach=pb.LargeReach(number=99)))
        await until(lambda: one.large.token_for(hello))
        token = one.large.token_for(hello)
        assert one.large.token_for(DataHello(0, 2, hello.incarnation + 1, 1, 0, 0, BALLOT)) is None
        assert one.large.token_for(DataHello(0, 2, hello.incarnation, 3, 0, 0, BALLOT)) is None
        address = one._network.endpoint
        with pytest.raises(ConnectionEnded, match="does not expect"):
            await two._network.data(address, hello, one._peers.me.incarnation, os.urandom(32), 5)
        assert one.large.token_for(hello) == token, "a stranger uses up no token"
        os.close(await two._network.data(address, hello, one._peers.me.incarnation, token, 5))
        await until(lambda: one.large.token_for(hello) is None)
        with pytest.raises(ConnectionEnded, match="does not expect"):
            await two._network.data(address, hello, one._peers.me.incarnation, token, 5)
        one.large.store.put(7, sealed(pattern(SIZE)), SIZE, TOPIC)
        assert await bring(two, 7, SIZE, [1]) == pattern(SIZE)

    run_on_hosts(runtime_dir, HOSTS, body)


@pytest.mark.slow
def test_an_answer_that_is_no_token_is_an_error(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def body(one: Node, two: Node) -> None:
        def answers(token: bytes) -> None:
            one.large.ways.heard_reach = lambda peer, reach: one._peers.send(2, pb.PeerMessage(
                large_token=pb.LargeToken(number=reach.number, token=token)))

        answers(b"")
        with pytest.raises(SampleMissing, match="node 1 accepts no data connection"):
            await two.large.bring(7, SIZE, TOPIC, [1])
        answers(bytes(32))
        with pytest.raises(SampleMissing, match="does not expect this data connection"):
            await two.large.bring(7, SIZE, TOPIC, [1])
        one.large.ways.heard_reach = lambda peer, reach: None
        monkeypatch.setattr(ways, "REACH_TIMEOUT_S", 0.05)
        with pytest.raises(SampleMissing, match=r"node 1 has not answered for 0\.05 s"):
            await two.large.bring(7, SIZE, TOPIC, [1])

    run_on_hosts(runtime_dir, HOSTS, body)


@pytest.mark.slow
def test_a_node_that_dies_while_it_is_reached(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node, _three: Node) -> None:
        one.large.ways.heard_reach = lambda peer, reach: None
        wants = [asyncio.ensure_future(two.large.bring(large_id, SIZE, TOPIC, [1])) for large_id in (1, 2)]
        await until(lambda: two.large.ways._answers)
        await crash(one)
        for want in wants:
            with pytest.raises(SampleMissing, match="node 1 has gone"):
                await want
        assert not two.large.ways._answers and not two.large.ways._opening

    run_on_hosts(runtime_dir, [[1], [2], [3]], body)


@pytest.mark.slow
def test_a_node_that_stops_in_the_middle_leaves_nothing(runtime_dir: Path) -> None:
    """Reader and giver both; the other one is told."""
    async def body(one: Node, two: Node, three: Node) -> None:
        with source_at(one, 7) as source, source_at(two, 8) as other:
            three.large.store.put(7, sealed(CONTENT), len(CONTENT), TOPIC)
            wants = [asyncio.ensure_future(bring(node, large_id, len(CONTENT), sources))
                     for node, large_id, sources in ((two, 7, [1, 3]), (one, 8, [2]))]
            source.comes(1000)
            other.comes(1000)
            await until(lambda: (reached(two, 7), reached(one, 8)) == (1000, 1000))
            await crash(one)
            with pytest.raises(ConnectionError):
                await wants[1]
            assert await wants[0] == CONTENT

    run_on_hosts(runtime_dir, [[1], [2], [3]], body)


@pytest.mark.slow
def test_what_is_dropped_in_the_middle_is_had_from_the_next(runtime_dir: Path) -> None:
    async def body(one: Node, two: Node, three: Node) -> None:
        size = 128 * PIECE_MAX
        for node in (one, three):
            node.large.store.put(7, sealed(pattern(size)), size, TOPIC)
        want = asyncio.ensure_future(bring(two, 7, size, [1, 3]))
        await until(lambda: want.done() or reached(two))
        one.large.store.drop(7)
        assert await want == pattern(size)

    run_on_hosts(runtime_dir, [[1], [2], [3]], body)
