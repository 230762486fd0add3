"""Goal: names in place of addresses are looked up when a node joins; a group that runs needs no name server, one that
starts waits for it, and a slow one keeps nobody from what needs no name.

Method: nodes on the test's loop, each on a host of its own on loopback, and a resolver that answers as a test wants it.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import socket
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from spindle.config.settings import NodeConfig
from spindle.errors import ConnectionEnded
from spindle.group.topics import TopicSpec
from spindle.node.node import Node
from spindle.transport.network import DataHello, endpoint_of, looked_up
from tests.spindle.node.test_node import until
from tests.spindle.transport.test_network import Site, members, network, with_site
from tests.support import free_ports


@contextlib.contextmanager
def resolver(answer: Callable[[str], Awaitable[None]]) -> Iterator[list[str]]:
    """Which names are looked up meanwhile. `answer` may take its time, or raise OSError."""
    asked: list[str] = []

    async def answered(host: str, port: int, kind: int) -> Any:
        asked.append(host)
        await answer(host)
        return await looked_up(host, port, kind)

    with mock.patch("spindle.transport.network.looked_up", answered):
        yield asked


async def fails(host: str) -> None:
    raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")


async def hangs(host: str) -> None:
    await asyncio.Event().wait()


def by_name(site: Site) -> list[str]:
    """The addresses of the site's hosts with names, which are its contacts from now on."""
    named = [address.replace("127.0.0.1", "localhost") for address in site.addresses]
    site.config["contacts"] = tuple(named)
    return named


def addresses(node: Node) -> list[str]:
    """By which the members of its view are known."""
    assert node._changes.view is not None
    return [member.endpoint for member in node._changes.view.members]


def test_a_group_that_runs_needs_no_name_server(runtime_dir: Path) -> None:
    """Goal: views change while no name can be looked up; nobody is left out. Method: three nodes that know each other
    by name, and topics that are opened at each."""

    @with_site(3)
    async def body(site: Site) -> None:
        named = by_name(site)
        await asyncio.gather(*(site.node(host, advertise=named[host]).start() for host in range(3)))
        await until(lambda: all(members(node) == [1, 2, 3] for node in site.nodes), "all in one view")
        with resolver(fails) as asked:
            for number, node in enumerate(site.nodes):
                before = node.view().view_id
                await node.declare_topic(TopicSpec(f"t{number}"))
                await asyncio.wait_for(node.open_writer(f"t{number}"), 10)
                assert node.view().view_id > before, "a view has changed"
            assert not asked
        assert all(members(node) == [1, 2, 3] for node in site.nodes)

    body(runtime_dir)


def test_nodes_that_start_before_the_name_server_form_a_group_once_it_answers(
        runtime_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    """After a power failure, say: nobody can find out which of the contacts it is, until it answers itself there."""

    @with_site(3)
    async def body(site: Site) -> None:
        named = by_name(site)
        with resolver(fails), caplog.at_level("INFO", "spindle.node"):
            starting = [asyncio.ensure_future(site.node(host).start()) for host in range(3)]
            for host in range(3):
                await until(lambda host=host: f"({site.addresses[host]}) is none of" in caplog.text, "they have asked")
        await asyncio.gather(*starting)
        await until(lambda: all(members(node) == [1, 2, 3] for node in site.nodes), "all in one view")
        assert sorted(addresses(site.nodes[0])) == sorted(named)

    body(runtime_dir)


@with_site(2)
async def test_who_says_by_which_address_it_is_known_is_known_by_that(site: Site) -> None:
    by_name(site)
    (first,) = await site.start(0, form="alone", advertise=site.addresses[0])
    (second,) = await site.start(1, advertise=site.addresses[1])
    assert addresses(first) == addresses(second) == site.addresses


@pytest.mark.parametrize("answer", [fails, hangs])
def test_a_name_that_nobody_knows_keeps_nobody_from_finding_itself(
        runtime_dir: Path, answer: Callable[[str], Awaitable[None]]) -> None:
    async def some(host: str) -> None:
        if host.endswith(".example"):
            await answer(host)

    async def body() -> None:
        (port,) = free_ports(1)
        with resolver(some):
            for mine, timeout_s, found in (("localhost", 60.0, "localhost"), ("me.example", 0.01, "127.0.0.1")):
                node = network(NodeConfig(runtime_dir=runtime_dir, node_id=1, listen=f"127.0.0.1:{port}", contacts=(
                    f"slow.example:{port}", f"{mine}:{port}")))
                node.bind()
                await asyncio.wait_for(node.locate(timeout_s), 10)
                assert node.endpoint == f"{found}:{port}"
                node.close()

    asyncio.run(body())


def test_another_life_of_a_node_is_looked_for_where_its_name_leads_by_then(runtime_dir: Path) -> None:
    hello, token = DataHello(0, 2, 77, 1, 5, 6, 7), bytes(range(32))

    async def body() -> None:
        config = NodeConfig(runtime_dir=runtime_dir, listen="127.0.0.1:0")
        at: list[int] = []

        def came(place: int, fd: int) -> None:
            at.append(place)
            os.close(fd)

        hosts = [network(config, token_for=lambda said: token, on_data=lambda said, fd, place=place: came(place, fd))
                 for place in range(2)]
        for host in hosts:
            host.bind()
            await host.locate(5.0)
            host.serve()
        client = network(config)
        for host, life in ((0, 1), (1, 1), (1, 2), (1, 2)):
            os.close(await client.data(hosts[host].endpoint, hello, life, token, 5.0))
        assert at == [0, 0, 1, 1], "a life stays where it is"
        hosts[1].close()
        with pytest.raises(ConnectionEnded, match="cannot be reached"):
            await client.data(hosts[0].endpoint, hello, 2, token, 5.0)
        with resolver(fails) as asked, pytest.raises(ConnectionEnded, match="name resolution"):
            await client.data(hosts[0].endpoint, hello, 2, token, 5.0)
        assert asked, "it may have another address"
        with resolver(fails) as asked, pytest.raises(ConnectionEnded, match="cannot be reached"):
            await client.data(hosts[0].endpoint, hello, 2, token, 5.0)
        assert not asked, "or be there again"
        os.close(await client.data(hosts[0].endpoint, hello, 2, token, 5.0))
        assert at[4:] == [0]
        for host_network in hosts:
            host_network.close()

    asyncio.run(body())


def test_where_a_node_is_reached(runtime_dir: Path) -> None:
    config = NodeConfig(runtime_dir=runtime_dir, listen="0.0.0.0:7402", node_id=1)
    name = socket.gethostname()
    assert endpoint_of(config, ("0.0.0.0", 7402)) == f"{name}:7402"
    assert endpoint_of(config, ("192.0.2.1", 7402)) == "192.0.2.1:7402"
    assert endpoint_of(config, ("2001:db8::1", 7402, 0, 0)) == "[2001:db8::1]:7402"
    ours = dataclasses.replace(config, contacts=("192.0.2.1", "localhost:7", "localhost"))
    assert endpoint_of(ours, ("0.0.0.0", 7402)) == "localhost:7402"
    several = dataclasses.replace(config, contacts=("127.77.0.1", "127.77.0.2"))
    assert endpoint_of(several, ("127.77.0.2", 7402)) == "127.77.0.2:7402"
    assert endpoint_of(dataclasses.replace(ours, advertise="me:1"), ("0.0.0.0", 7402)) == "me:1"
