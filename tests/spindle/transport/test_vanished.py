"""A machine that vanished while its node joined and is back soon gets its node id again at once, and not when TCP's
keepalive finds out, seconds later. A program that waits for the answer of such a machine hears by keepalive.

Method: a connection over loopback that ends without a word to the other end, as the kernel does it for who saves and
moves connections (TCP_REPAIR, since Linux 3.5; it wants the right to administer the network).
"""

from __future__ import annotations

import asyncio
import contextlib
import socket

import pytest

from spindle.client.nodes import connect
from spindle.errors import ConnectionEnded
from spindle.proto import node_pb2 as pb
from spindle.proto.opening_pb2 import PEER, Opening, OpeningReply
from spindle.security.identity import PLAIN as PLAIN_MODE
from spindle.security.trust import Trust
from spindle.transport.names import HostNames
from spindle.transport.network import PLAIN
from spindle.transport.opening import MAGIC, PROTOCOL
from spindle.transport.wire import Connection
from tests.spindle.transport.test_network import Site, with_site

TCP_REPAIR = 19
KEEPALIVE_S = 5  # of a connection that is idle


def vanish(sock: socket.socket) -> None:
    """Skips where that can't be done."""
    try:
        sock.setsockopt(socket.IPPROTO_TCP, TCP_REPAIR, 1)
    except OSError as error:
        pytest.skip(f"a connection can't end without a word here: {error}")


@with_site(1, form="alone")
async def test_who_vanished_and_is_back_gets_its_node_id_at_once(site: Site) -> None:
    [node] = await site.start(0)

    async def attempt(incarnation: int) -> tuple[socket.socket, str]:
        sock = socket.create_connection(("127.0.0.1", int(site.addresses[0].rsplit(":")[1])))
        kept = sock.dup()
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_sendall(sock, PLAIN)
        conn = Connection(sock)
        conn.send(Opening(magic=MAGIC, role=PEER, protocol=PROTOCOL, domain_id=0, node_id=9, incarnation=incarnation,
                          settings=node.config.agreed_settings).SerializeToString())
        reply = OpeningReply.FromString((await conn.receive(5)).body)
        if not reply.kind:
            vanish(kept)
        conn.close()
        return kept, reply.kind

    first, refused = await attempt(5)
    assert not refused
    first.close()
    assert node._peers.connected[9].incarnation == 5
    kept, refused = await attempt(6)
    kept.close()
    assert refused == "NodeIdTaken"  # it may live

    async def again() -> None:
        while (await attempt(7))[1]:  # what it was just asked is answered by a host that knows nothing of it
            await asyncio.sleep(0.01)

    await asyncio.wait_for(again(), KEEPALIVE_S - 1)
    assert node.view().node_ids == (1,)


@with_site(1, form="alone")
async def test_what_is_of_no_kind_is_minded_by_nobody(site: Site) -> None:
    """Of a newer release, perhaps, or only to find out whether anybody is there."""
    [node] = await site.start(0)
    assert pb.PeerMessage().SerializeToString() == b""
    sock = socket.create_connection(("127.0.0.1", int(site.addresses[0].rsplit(":")[1])))
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_sendall(sock, PLAIN)
    conn = Connection(sock)
    conn.send(Opening(magic=MAGIC, role=PEER, protocol=PROTOCOL, domain_id=0, node_id=9, incarnation=5,
                      settings=node.config.agreed_settings).SerializeToString())
    assert not OpeningReply.FromString((await conn.receive(5)).body).kind
    conn.send(b"")
    conn.send(pb.PeerMessage(farewell=pb.Farewell(kind="NodeStopped", text="it has heard enough")).SerializeToString())
    while node._peers.connected[9].farewell is None:
        await asyncio.sleep(0.002)
    conn.close()


@pytest.mark.slow
def test_a_program_does_not_wait_long_for_a_node_that_vanished() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        conn = connect(address, HostNames([address]), Trust(PLAIN_MODE), 5)
        gone, _ = listener.accept()
        vanish(gone)
        gone.close()
        with contextlib.closing(conn), pytest.raises(ConnectionEnded):  # and no TimeoutError
            conn.receive(KEEPALIVE_S + 10)
