"""Goal: programs on hosts without a node, and edges, go on at the next node though no name server answers any more; and
one that is asked hangs nobody.

Method: a resolver in place of the library's that answers, fails or hangs as a test wants it; and daemons, each on a
host of its own, which a program knows by name.
"""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from spindle.client.remote import attach_remote
from spindle.config.settings import NodeConfig
from spindle.edge.uplink import Uplink
from spindle.errors import ConnectionEnded, NoDaemon
from spindle.security.identity import PLAIN
from spindle.security.trust import Trust
from spindle.transport.names import HostNames
from tests.spindle.client.remote_site import LONG_S, declare
from tests.spindle.hosts import hosts
from tests.support import wait_until

REAL = socket.getaddrinfo


class Resolver:
    """Of names that begin with "node": all of them are this host. Others, and addresses, are the library's."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.problem: OSError | None = None
        self.answers = threading.Event()
        self.answers.set()

    def __call__(self, host: Any, *args: Any, **more: Any) -> Any:
        if not str(host).startswith("node"):
            return REAL(host, *args, **more)
        self.asked.append(host)
        self.answers.wait()
        if self.problem is not None:
            raise self.problem
        return REAL("127.0.0.1", *args, **more)


@pytest.fixture
def resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Resolver]:
    one = Resolver()
    monkeypatch.setattr(socket, "getaddrinfo", one)
    yield one
    one.answers.set()


def asking() -> int:
    return sum(thread.name == "spindle names" for thread in threading.enumerate())


def test_the_last_answer_counts_where_none_comes(resolver: Resolver) -> None:
    names = HostNames(["node1:7400", "node2:7400"])
    names.begin()
    first = names.found("node1:7400", LONG_S)
    assert first[0][4] == ("127.0.0.1", 7400)
    wait_until(lambda: not asking(), LONG_S)
    resolver.answers.clear()
    begun = time.monotonic()
    assert names.found("node1:7400", 1000.0) == names.found("node2:7400", 1000.0) == first
    assert time.monotonic() - begun < LONG_S
    assert names.found("node1:7400", 1000.0) == first and asking() == 2, "who hangs is asked once"
    resolver.answers.set()
    wait_until(lambda: not asking(), LONG_S)
    resolver.problem = socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")
    assert names.found("node1:7400", 1000.0) == first


def test_a_name_that_nobody_has_explained_fails_in_time(resolver: Resolver) -> None:
    names = HostNames(["node1:7400"])
    resolver.answers.clear()
    with pytest.raises(ConnectionEnded, match=r"node1:7400 cannot be reached: no name server says within 0\.05 s"):
        names.found("node1:7400", 0.05)
    resolver.problem = socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    resolver.answers.set()
    with pytest.raises(ConnectionEnded, match="node1:7400 cannot be reached: Name or service not known"):
        names.found("node1:7400", LONG_S)
    resolver.problem = None
    assert names.found("node1:7400", LONG_S)


def test_addresses_are_no_names(resolver: Resolver) -> None:
    resolver.answers.clear()
    names = HostNames(["127.0.0.1:7400", "[::1]:7400"])
    names.begin()
    assert names.found("127.0.0.1:7400", 0.0)[0][4] == ("127.0.0.1", 7400)
    assert names.found("[::1]:7400", 0.0)[0][4][:2] == ("::1", 7400)
    assert not asking() and not resolver.asked
    with pytest.raises(ConnectionEnded, match="cannot be reached"):
        names.found("[fe80::1%nothing]:7400", 0.0)


def test_no_thread_is_left_to_ask(resolver: Resolver, monkeypatch: pytest.MonkeyPatch) -> None:
    names = HostNames(["node1:7400"])
    first = names.found("node1:7400", LONG_S)
    wait_until(lambda: not asking(), LONG_S)

    def start(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    assert names.found("node1:7400", LONG_S) == first
    with pytest.raises(ConnectionEnded, match="node2:7400 cannot be reached: can't start new thread"):
        names.found("node2:7400", LONG_S)


def by_name(addresses: list[str]) -> list[str]:
    return [f"node{n + 1}:{address.rpartition(':')[2]}" for n, address in enumerate(addresses)]


def test_a_program_goes_on_when_its_node_takes_the_name_server_with_it(runtime_dir: Path, resolver: Resolver) -> None:
    with hosts(runtime_dir, 3) as site:
        with attach_remote(by_name([host.address for host in site]), patience_s=None) as far:
            declare(far)
            reader, writer = far.open_reader("t", keep_all=True, from_history=False), far.open_writer("t")
            assert far.node_id == 1
            wait_until(lambda: not asking(), LONG_S)
            assert set(resolver.asked) == {"node1", "node2", "node3"}
            resolver.answers.clear()
            site[0].running.kill()
            wait_until(lambda: far.node_id == 2, LONG_S)
            writer.inbox.write(b"still there", 0, LONG_S)
            got: list[bytes] = []
            wait_until(lambda: got.extend(reader.log.take(10)) or got == [b"still there"], LONG_S)


def test_a_program_whose_name_server_hangs_is_told_so(resolver: Resolver) -> None:
    resolver.answers.clear()
    with pytest.raises(NoDaemon, match="no name server says within"):
        attach_remote(["node1:7400"], timeout_s=0.2)


def test_an_edge_goes_on_when_its_node_takes_the_name_server_with_it(runtime_dir: Path, resolver: Resolver) -> None:
    with hosts(runtime_dir, 3) as site:
        addresses = by_name([host.address for host in site])

        async def body() -> None:
            found: list[str] = []
            uplink = Uplink(NodeConfig(edge_nodes=tuple(addresses)), Trust(PLAIN), found.append)
            running = asyncio.create_task(uplink.run())
            try:
                await asyncio.wait_for(uplink.bundle(), LONG_S)
                assert found == addresses[:1]
                while asking():
                    await asyncio.sleep(0.01)
                resolver.answers.clear()
                site[0].running.kill()
                while found != addresses[:2]:
                    assert not running.done()
                    await asyncio.sleep(0.01)
            finally:
                running.cancel()
                await asyncio.wait({running})
                resolver.answers.set()

        asyncio.run(asyncio.wait_for(body(), 2 * LONG_S))
