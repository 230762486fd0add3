"""Goal: whoever holds many places for introductions gives way to those who hold few, and to nodes always.

Method: Places alone, with credentials as the kernel would give them; and a node whose places an application's user has
taken, all of them.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from spindle.config.settings import NodeConfig
from spindle.node.node import Node
from spindle.proto.opening_pb2 import CONTACT, OpeningReply
from spindle.security.access import Credentials, NetworkPeer, PeerCredentials
from spindle.transport.places import Places
from spindle.transport.wire import encode
from tests.spindle.transport.test_peers import opening
from tests.spindle.users import STRANGER_UID, needs_root, run_as

OWN = 0


def user(uid: int) -> PeerCredentials:
    return PeerCredentials(pid=1, uid=uid, gid=uid, groups=frozenset())


def places() -> Places[int]:
    return Places(lambda who: who.local and who.uid == OWN, places_max=8, reserved=3)


def test_strangers_never_have_all_places() -> None:
    """Goal: the reserved places stay. Method: one user takes what it can; then the node's own user comes thrice."""
    some = places()
    assert [some.take(one, user(7)) for one in range(7)] == [None] * 5 + [5, 6]
    assert [some.take(one, user(OWN)) for one in (10, 11, 12)] == [None] * 3


def test_nodes_come_before_strangers_when_all_is_full() -> None:
    """Goal: with more nodes than reserved places strangers give way, and only when there are none a node waits."""
    some = places()
    for one in range(5):
        some.take(one, user(7))
    assert [some.take(10 + one, user(OWN)) for one in range(8)] == [None] * 3 + [0, 1, 2, 3, 4]
    assert some.take(20, user(OWN)) == 20 and some.take(21, user(7)) == 21


def test_who_holds_most_gives_way() -> None:
    """Goal: a user with few places gets one from the user with most: the oldest, and only while that one has more."""
    some = places()
    for one in range(5):
        some.take(one, user(7))
    assert [some.take(10 + one, user(8)) for one in range(4)] == [0, 1, 2, 13]
    some.leave(11)
    assert some.take(14, user(9)) is None


def test_a_place_that_is_free_can_be_taken() -> None:
    some = places()
    for one in range(5):
        some.take(one, user(7))
    some.leave(3)
    some.leave(3)
    assert some.take(5, user(7)) is None and some.take(6, user(7)) == 6


def test_hosts_share_by_address() -> None:
    """Goal: of another host the address counts, whatever its port."""
    some = places()
    first: list[Credentials] = [NetworkPeer(f"192.0.2.1:{port}") for port in range(5)]
    for one, who in enumerate(first):
        some.take(one, who)
    assert some.take(5, NetworkPeer("192.0.2.1:9")) == 5
    assert some.take(6, NetworkPeer("[2001:db8::1]:9")) == 0


@pytest.mark.parametrize("seed", range(5))
def test_no_place_is_lost(seed: int) -> None:
    """Goal: after any run all places can be taken again. Method: random users come and go."""
    chance, some, held = random.Random(seed), places(), set[int]()
    for one in range(500):
        if held and chance.random() < 0.4:
            gone = chance.choice(sorted(held))
            some.leave(gone)
            held.remove(gone)
            continue
        gives_way = some.take(one, user(chance.randrange(4)))
        held = held - {gives_way} | ({one} if gives_way != one else set())
        assert len(held) <= 8
    for one in held:
        some.leave(one)
    assert [some.take(1000 + one, user(7)) for one in range(5)] == [None] * 5
    assert [some.take(2000 + one, user(OWN)) for one in range(3)] == [None] * 3


@needs_root
def test_a_user_that_opens_hundreds_of_connections_keeps_nobody_out(runtime_dir: Path) -> None:
    """Goal: S45: with one user's silent connections in all places that it can get, the node's own user and a third one
    are answered. Method: a program of another user opens 300 connections and says nothing; others introduce
    themselves, and a second node joins."""

    runtime_dir.parent.chmod(0o755)

    async def body() -> None:
        node = Node(NodeConfig(runtime_dir=runtime_dir, allow_uids=(STRANGER_UID, STRANGER_UID + 1),
                               handshake_timeout_s=60))
        await node.start()
        path = str(node.config.domain_dir / "node-1.sock")
        flood = await asyncio.create_subprocess_exec(
            *run_as(STRANGER_UID, """
                held = []
                for _ in range(300):
                    held.append(socket.socket(socket.AF_UNIX))
                    held[-1].connect(sys.argv[1])
                print("all", flush=True)
                sys.stdin.read()
            """, path), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
        try:
            assert flood.stdout is not None
            assert await asyncio.wait_for(flood.stdout.readline(), 20) == b"all\n"
            asked = await asyncio.create_subprocess_exec(
                *run_as(STRANGER_UID + 1, """
                    sock = socket.socket(socket.AF_UNIX)
                    sock.connect(sys.argv[1])
                    sock.sendall(bytes.fromhex(sys.argv[2]))
                    sys.stdout.buffer.write(sock.recv(4096))
                """, path, encode(opening(role=CONTACT)).hex()), stdout=asyncio.subprocess.PIPE)
            said, _ = await asyncio.wait_for(asked.communicate(), 20)
            assert OpeningReply.FromString(said[8:]).kind == "AccessDenied"
            later = Node(node.config)
            await later.start()
            assert later.view().node_ids == (1, 2)
            await later.stop()
        finally:
            if flood.returncode is None:
                flood.kill()
            await flood.wait()
            await node.stop()

    asyncio.run(asyncio.wait_for(body(), 60))
