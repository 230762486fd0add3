"""Goal: over loopback, where nodes talk without keys, a user is who the kernel says, not who reaches the port.

Method: sockets of this process and of another user's; a node that listens on loopback, and programs that say that they
are nodes or applications.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from spindle.config.settings import NodeConfig
from spindle.group.codec import PROTOCOL_VERSION
from spindle.node.node import Node
from spindle.proto.opening_pb2 import APPLICATION, CONTACT, PEER, Opening, OpeningReply
from spindle.security.access import address_text
from spindle.security.loopback import user_at
from spindle.transport.opening import MAGIC, PROTOCOL
from spindle.transport.wire import HEADER, encode
from tests.spindle.users import STRANGER_UID, needs_root, run_as

SPEAK = """
    host, port = sys.argv[1].rsplit(":", 1)
    sock = socket.socket()
    sock.settimeout(20)
    sock.connect((socket.inet_ntoa(socket.inet_aton(host)), int(port)))
    sock.sendall(bytes.fromhex(sys.argv[2]))
    answer = b""
    while len(answer) < 8 or len(answer) < 8 + int.from_bytes(answer[:4], "little"):
        more = sock.recv(65536)
        if not more:
            break
        answer += more
    print(answer.hex())
"""


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_both_ends_are_told(host: str) -> None:
    """Goal: each end finds the other's user; of one that was closed nobody is told. Method: a pair in this process."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as listening:
        try:
            listening.bind((host, 0))
        except OSError:
            pytest.skip(f"this host has no {host}")
        listening.listen()
        one = socket.create_connection(listening.getsockname()[:2])
        other, _ = listening.accept()
        with other:
            there, here = address_text(other.getpeername()), address_text(other.getsockname())
            assert user_at(there, here) == os.getuid() == user_at(here, there)
            assert user_at(here, "127.0.0.1:1") is None
            one.close()
            assert user_at(there, here) is None, "the kernel's table has root for a socket without an owner"


def test_a_mapped_address_is_its_own() -> None:
    """Goal: one end may be a socket of IPv6 that takes connections of IPv4."""
    with socket.socket(socket.AF_INET6) as listening:
        with contextlib.suppress(OSError):
            listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        try:
            listening.bind(("::", 0))
        except OSError:
            pytest.skip("this host has no IPv6")
        listening.listen()
        with socket.create_connection(("127.0.0.1", listening.getsockname()[1])) as one, listening.accept()[0] as other:
            assert user_at(address_text(other.getpeername()), address_text(other.getsockname())) == os.getuid()
            assert user_at(address_text(one.getpeername()), address_text(one.getsockname())) == os.getuid()


def said(role: int, settings: dict[str, str]) -> str:
    protocol = PROTOCOL_VERSION if role == APPLICATION else PROTOCOL
    return (b"SPNC" + encode(Opening(magic=MAGIC, role=role, protocol=protocol, node_id=9, incarnation=5,
                                     settings=settings).SerializeToString())).hex()


@needs_root
@pytest.mark.parametrize("role", [PEER, CONTACT])
def test_a_stranger_on_loopback_is_no_node(runtime_dir: Path, role: int) -> None:
    """Goal: S42 over TCP: who may only attach, or not even that, doesn't get in by the port either; the node's own user
    does. Method: a node without keys; programs of both users."""

    async def body() -> None:
        node = Node(NodeConfig(runtime_dir=runtime_dir, listen="127.0.0.1:0", allow_uids=(STRANGER_UID,)))
        await node.start()
        try:
            assert node._network is not None
            opening = said(role, node.config.agreed_settings)
            own = [sys.executable, "-c", "import socket, sys\n" + textwrap.dedent(SPEAK)]
            theirs = run_as(STRANGER_UID, SPEAK, imports="import encodings.idna")
            for command, kind in ((theirs, "AccessDenied"), (own, "")):
                done = await asyncio.to_thread(
                    subprocess.run, [*command, node._network.endpoint, opening], capture_output=True, text=True,
                    timeout=30)
                answer = bytes.fromhex(done.stdout)  # who is let in may be told more at once
                reply = OpeningReply.FromString(answer[HEADER.size:HEADER.size + HEADER.unpack_from(answer)[0]])
                assert reply.kind == kind, (done.stderr, reply.message)
                assert kind == "" or f"user {STRANGER_UID}" in reply.message
        finally:
            await node.stop()

    asyncio.run(asyncio.wait_for(body(), 60))
