"""Groups across hosts: nodes find each other through contacts, form one group and never two, and refuse who is not of
it, in words, at both ends.

Method: a host here is a runtime directory of its own, so nodes share no socket and no memory, and reach each other over
loopback only. Nodes run on the test's loop; what has to be broken off is broken off at their sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import secrets
import socket
import warnings
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from spindle.config.settings import NodeConfig
from spindle.errors import (
    CastOut,
    ConfigError,
    ConnectionEnded,
    JoinFailed,
    ListenError,
    ProtocolMismatch,
    SpindleError,
)
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.joining.contacts import Answer, Answers, Contacts
from spindle.node.node import Node
from spindle.transport.network import DataHello, Network
from tests.spindle.node.test_node import take, until, write
from tests.spindle.ports import reader_of, writer_of
from tests.support import free_ports


class Site:
    """Some hosts; the first `contacts` of them are what everybody asks."""

    def __init__(self, directory: Path, count: int, contacts: int = -1, **config: Any) -> None:
        self.directory = directory
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(count)]
        self.config = {"join_timeout_s": 10.0, "contacts": tuple(self.addresses[: count if contacts < 0 else contacts]),
                       **config}
        self.nodes: list[Node] = []

    def node(self, host: int, **config: Any) -> Node:
        directory = self.directory / f"host-{host}"
        directory.mkdir(exist_ok=True)
        node = Node(NodeConfig(**{"runtime_dir": directory, "listen": self.addresses[host], "node_id": host + 1,
                                  **self.config, **config}))
        self.nodes.append(node)
        return node

    async def start(self, *hosts: int, **config: Any) -> list[Node]:
        nodes = [self.node(host, **config) for host in hosts]
        await asyncio.gather(*(node.start() for node in nodes))
        return nodes


def with_site(count: int, contacts: int = -1, **config: Any) -> Callable[..., Callable[[Path], None]]:
    def decorate(test: Callable[[Site], Awaitable[None]]) -> Callable[[Path], None]:
        @functools.wraps(test)
        def run(runtime_dir: Path) -> None:
            async def body() -> None:
                site = Site(runtime_dir, count, contacts, **config)
                try:
                    await asyncio.wait_for(test(site), 60)
                finally:
                    await asyncio.gather(*(node.stop() for node in site.nodes), return_exceptions=True)

            asyncio.run(body())

        del run.__wrapped__  # type: ignore[attr-defined]  # or pytest would look for a fixture `site`
        return run

    return decorate


def members(node: Node) -> list[int]:
    return sorted(node.view().node_ids)


# ---- one group


@with_site(3)
async def test_three_that_start_at_once_form_one_group(site: Site) -> None:
    nodes = await site.start(2, 1, 0)
    await until(lambda: all(members(node) == [1, 2, 3] for node in nodes), "all in one view")
    assert len({node.view().group_id for node in nodes}) == 1


@pytest.mark.parametrize("level", list(Level), ids=lambda level: level.name.lower())
def test_messages_pass_in_one_order(runtime_dir: Path, tmp_path: Path, level: Level) -> None:
    @with_site(3)
    async def body(site: Site) -> None:
        nodes = await site.start(0, 1, 2, journal_dir=tmp_path)
        await nodes[0].declare_topic(TopicSpec("t", level=level, size_max=5000))
        readers = [reader_of(node, await node.open_reader("t", keep_all=True, from_history=False)) for node in nodes]
        writers = [writer_of(node, await node.open_writer("t")) for node in nodes]
        for k in range(100):
            for number, writer in enumerate(writers):
                await write(writer, (b"%d %d;" % (number, k)).ljust(50 * (k % 90 + 1), b"."))
        sequences = [await take(reader, 300) for reader in readers]
        if level.ordered:
            assert sequences[0] == sequences[1] == sequences[2]
        for number in range(3):
            assert [one.split(b";")[0] for one in sequences[0] if one.startswith(b"%d " % number)] == [
                b"%d %d" % (number, k) for k in range(100)]

    body(runtime_dir)


@with_site(4, contacts=2)
async def test_who_is_no_contact_joins_through_one_that_is(site: Site) -> None:
    await site.start(0, 1)
    (third,) = await site.start(2)
    await site.nodes[0].stop()
    (fourth,) = await site.start(3)  # the other contact suffices
    await until(lambda: members(third) == members(fourth) == [2, 3, 4], "the rest in one view")


@with_site(3)
async def test_nodes_of_one_host_share_memory_beside_others(site: Site) -> None:
    """Two on the first host, one on the second: rows are mapped between the two, and sent to the third."""
    await site.start(0, 1)
    beside = site.node(0, node_id=9, listen="127.0.0.1:0")
    await beside.start()
    await until(lambda: members(site.nodes[1]) == [1, 2, 9], "three in the view")
    fabric = beside.engine.epoch.fabric
    ranks = {node_id: beside.view().node_ids.index(node_id) for node_id in (1, 2)}
    assert fabric.part_of(ranks[1]) == "shm" and fabric.part_of(ranks[2]) == "tcp"
    await beside.declare_topic(TopicSpec("t", size_max=100))
    readers = [reader_of(n, await n.open_reader("t", keep_all=True, from_history=False)) for n in site.nodes]
    writers = [writer_of(n, await n.open_writer("t")) for n in site.nodes]
    for k in range(50):
        for number, writer in enumerate(writers):
            await write(writer, b"%d %d" % (number, k))
    sequences = [await take(reader, 150) for reader in readers]
    assert sequences[0] == sequences[1] == sequences[2]


@with_site(3)
async def test_a_member_that_dies_is_gone_on_without(site: Site) -> None:
    nodes = await site.start(0, 1, 2)
    await until(lambda: all(len(members(node)) == 3 for node in nodes), "all in one view")
    await nodes[0].abandon(SpindleError("as if it had crashed"))
    await until(lambda: members(nodes[1]) == members(nodes[2]) == [2, 3], "the others go on")
    (again,) = await site.start(0)
    await until(lambda: members(again) == members(nodes[1]) == [1, 2, 3], "it comes back")


@with_site(2, fabric="tcp")
async def test_one_host_can_be_made_to_use_tcp(site: Site) -> None:
    """For measuring: nodes of one runtime directory, found there, and no contact set."""
    site.config["contacts"] = ()
    shared = site.directory / "host-0"
    for host in (0, 1):
        await site.start(host, runtime_dir=shared, listen=None)
    fabric = site.nodes[0].engine.epoch.fabric
    assert fabric.part_of(1) == "tcp"


# ---- when a group may begin


@pytest.mark.slow
@with_site(3, join_timeout_s=1.0)
async def test_one_of_three_contacts_forms_no_group(site: Site) -> None:
    with pytest.raises(JoinFailed, match=r"1 of 3 contacts are there, 2 are needed.*cannot be reached"):
        await site.start(0)


@with_site(3, join_timeout_s=30.0)
async def test_who_began_a_group_beside_one_that_serves_doesn_t_wait_for_it_to_serve(site: Site) -> None:
    """The first contact finds the third one and forms a group; then only the two others find each other, and theirs
    serves, which the first one sees when it reaches them again."""
    apart, look = True, Contacts.look

    async def in_part(contacts: Contacts) -> Any:
        seen = await look(contacts)
        hidden = {0: {1, 2}, 1: {0}, 2: {0}}[contacts.own_place or 0] if apart else set()
        answers = tuple(one for one in seen.answers if one.place not in hidden)
        if apart and contacts.own_place == 0:
            answers = (Answer(2, 3, 1),)
        return Answers(answers, seen.silent)

    with mock.patch.object(Contacts, "look", in_part):
        first = asyncio.ensure_future(site.node(0).start())
        await site.start(1, 2)
        await until(lambda: site.nodes[0]._view is not None, "the first one forms a group")
        apart = False
        with pytest.raises(JoinFailed, match=r"node [23] serves in a group that this node could not reach"):
            await first
    assert sorted(members(site.nodes[1])) == [2, 3]


@with_site(4)
async def test_newcomers_of_one_host_may_be_needed_both(site: Site) -> None:
    """Two nodes on each of two hosts, all contacts: three are a majority, so one host's second node must be there while
    its first one waits for it."""
    first, second = (site.directory / f"host-{host}" for host in (0, 1))
    for directory in (first, second):
        directory.mkdir()
    nodes = [site.node(host, runtime_dir=directory) for host, directory in enumerate((first, first, second, second))]
    await asyncio.gather(*(node.start() for node in nodes))
    await until(lambda: all(sorted(members(node)) == [1, 2, 3, 4] for node in nodes), "all in one view")
    fabric = nodes[0].engine.epoch.fabric
    ranks = {node_id: nodes[0].view().node_ids.index(node_id) for node_id in (2, 3)}
    assert fabric.part_of(ranks[2]) == "shm" and fabric.part_of(ranks[3]) == "tcp"


@with_site(3, contacts=1)
async def test_who_is_no_contact_doesn_t_keep_the_contact_of_its_host_from_starting(site: Site) -> None:
    directory = site.directory / "host-0"
    directory.mkdir()
    waiting = asyncio.ensure_future(site.node(1, runtime_dir=directory).start())
    await until(lambda: (directory / "domain-0" / "bootstrap.lock").exists(), "the first one begins")
    (contact,) = await site.start(0)
    await waiting
    await until(lambda: sorted(members(contact)) == [1, 2], "both in one view")


@with_site(3)
async def test_two_of_three_do_and_the_third_joins(site: Site) -> None:
    nodes = await site.start(1, 2)
    assert members(nodes[0]) == [2, 3]
    (first,) = await site.start(0)
    assert members(first) == [1, 2, 3]


@with_site(3)
async def test_nodes_that_start_at_the_same_moment_form_one_group(site: Site) -> None:
    """The second contact has looked before the first one listened, and was slow to draw its conclusion: that it is to
    form the group, as the first one concludes by then."""
    looked, go_on = asyncio.Event(), asyncio.Event()
    look = Contacts.look

    async def slow(contacts: Contacts) -> Any:
        seen = await look(contacts)
        if contacts.own_place == 1 and len(seen.answers) == 1 and not go_on.is_set():
            looked.set()
            await go_on.wait()
        return seen

    with mock.patch.object(Contacts, "look", slow):
        late = [asyncio.ensure_future(node.start()) for node in (site.node(1), site.node(2))]
        await looked.wait()
        await site.start(0)
        go_on.set()
        await asyncio.gather(*late)
    await until(lambda: all(sorted(members(node)) == [1, 2, 3] for node in site.nodes), "all in one view")


@pytest.mark.slow
@with_site(3, form="all", join_timeout_s=1.0)
async def test_all_are_waited_for_where_it_says_so(site: Site) -> None:
    results = await asyncio.gather(*(site.node(host).start() for host in (0, 1)), return_exceptions=True)
    assert [type(one) for one in results] == [JoinFailed] * 2


@with_site(3, form="alone")
async def test_one_alone_forms_a_group_where_it_says_so(site: Site) -> None:
    (node,) = await site.start(1)
    assert members(node) == [2]


@pytest.mark.slow
@with_site(2, contacts=1, join_timeout_s=1.0)
async def test_who_is_no_contact_forms_none(site: Site) -> None:
    with pytest.raises(JoinFailed, match=r"none of \[network\] contacts"):
        await site.start(1)


# ---- who is refused


@with_site(2)
async def test_a_newcomer_learns_the_timeouts_of_its_group_and_another_domain_is_none_of_it(site: Site) -> None:
    site.config["contacts"] = (site.addresses[0],)
    await site.start(0)
    with pytest.raises(ProtocolMismatch, match="domain 0"):
        await site.start(1, domain_id=5)
    (newcomer,) = await site.start(1, suspect_timeout_s=1.0)
    assert newcomer.view().node_ids == (1, 2)


@with_site(3)
async def test_a_taken_node_id_is_refused_with_its_place(site: Site) -> None:
    """Where it listens, not the end of some connection of it; that of another member, too."""
    site.config["contacts"] = (site.addresses[0],)
    await site.start(0)
    with pytest.raises(SpindleError, match=f"node id 1 is taken by pid {os.getpid()} at {site.addresses[0]}"):
        await site.start(1, node_id=1)
    await site.start(1)
    with pytest.raises(SpindleError, match=rf"node id 2 is taken by the node at {site.addresses[1]};.*\[node\] id$"):
        await site.start(2, node_id=2)  # and it isn't told to take 0, which [network] contacts don't admit


def test_without_keys_only_loopback_is_served(runtime_dir: Path) -> None:
    with pytest.raises(ConfigError, match=r"not on this host, and \[network\] has neither"):
        network(NodeConfig(runtime_dir=runtime_dir, listen="0.0.0.0:0")).bind()


def test_a_kernel_that_cannot_encrypt_is_found_at_the_start(runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("spindle.security.ktls.available", lambda: "the kernel can't encrypt connections: modprobe tls")
    with pytest.raises(ConfigError, match="modprobe tls"):
        network(NodeConfig(runtime_dir=runtime_dir, listen="127.0.0.1:0", encrypt=True)).bind()


def with_secret(directory: Path, name: str = "secret") -> dict[str, Any]:
    """Settings of a site with a secret of its own."""
    path = directory / name
    if not path.exists():
        path.write_text(secrets.token_hex(32))
        path.chmod(0o600)
    return {"secret": path}


def test_a_site_with_a_secret(runtime_dir: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Messages pass; who has another secret, or none, is told so, and the group goes on."""

    @with_site(3, **with_secret(tmp_path))
    async def body(site: Site) -> None:
        nodes = await site.start(0, 1)
        for settings, ours, theirs in (
                (with_secret(tmp_path, "another"), "secret", "secret"),
                ({"secret": None}, "secret", "without keys")):
            caplog.clear()
            with pytest.raises(SpindleError, match=ours):
                await site.start(2, **settings)
            assert theirs in caplog.text
        (third,) = await site.start(2)
        await third.declare_topic(TopicSpec("t", size_max=100))
        reader = reader_of(nodes[0], await nodes[0].open_reader("t", keep_all=True, from_history=False))
        await write(writer_of(third, await third.open_writer("t")), b"hello")
        assert await take(reader, 1) == [b"hello"]

    body(runtime_dir)


def test_a_port_that_is_taken_may_be_free_later(runtime_dir: Path) -> None:
    """It is no error of the configuration, after which systemd would not start the daemon again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = NodeConfig(runtime_dir=runtime_dir, listen=f"127.0.0.1:{taken.getsockname()[1]}")
        with pytest.raises(ListenError, match="another process has that port"):
            network(config).bind()


def network(config: NodeConfig, **callbacks: Any) -> Network:
    nothing: dict[str, Any] = {"on_connection": lambda conn: conn.close(), "token_for": lambda hello: None,
                               "on_data": lambda hello, fd: os.close(fd)}
    return Network(config, **{**nothing, **callbacks})


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x00", b"SPND" + bytes(200), b"SP", b""],
                         ids=["another protocol", "tls without keys", "no data connection", "half", "nothing"])
def test_what_is_no_connection_of_ours_is_closed(runtime_dir: Path, first: bytes) -> None:
    async def body() -> None:
        server = network(NodeConfig(runtime_dir=runtime_dir, listen="127.0.0.1:0", handshake_timeout_s=0.3))
        server.bind()
        await server.locate(5.0)
        server.serve()
        host, port = server.endpoint.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(first)
        with contextlib.suppress(ConnectionResetError):  # what it had not read is lost with it
            assert b"SPNA" not in await asyncio.wait_for(reader.read(), 10)
        writer.close()
        server.close()

    asyncio.run(body())


def test_who_comes_again_and_again_is_told_of_once(
        runtime_dir: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    """A balancer that looks whether the port is open fills no log; another reason, or a minute later, is a line."""
    def lines() -> list[str]:
        return [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]

    async def body() -> None:
        server = network(NodeConfig(runtime_dir=runtime_dir, listen="127.0.0.1:0"))
        server.bind()
        await server.locate(5.0)
        server.serve()

        async def come(first: bytes) -> None:
            reader, writer = await asyncio.open_connection(*server.endpoint.rsplit(":", 1))
            writer.write(first)
            writer.write_eof()
            with contextlib.suppress(ConnectionResetError):
                await asyncio.wait_for(reader.read(), 10)
            writer.close()

        for _ in range(5):
            await come(b"")
        assert len(lines()) == 1 and "before it had introduced itself" in lines()[0]
        await come(b"GET / HTTP/1.1")
        assert len(lines()) == 2 and "what no node of this version sends" in lines()[1]
        monkeypatch.setattr("spindle.logs.SAY_AGAIN_S", 0.0)
        await come(b"")
        assert len(lines()) == 3 and "(4 more like it since this was said last)" in lines()[2]
        monkeypatch.setattr("spindle.logs.SAID_MAX", 1)
        await come(b"GET / HTTP/1.1")
        assert len(server._closed) == 1
        server.close()

    asyncio.run(body())


def test_a_data_connection_is_for_who_was_told(runtime_dir: Path) -> None:
    """The opener proves that it was told the token, the acceptor, too; nothing else that is said differs unnoticed."""
    hello = DataHello(0, 2, 77, 1, 5, 6, 7)
    token = bytes(range(32))

    async def body() -> None:
        came: list[tuple[DataHello, int]] = []
        config = NodeConfig(runtime_dir=runtime_dir, listen="127.0.0.1:0", handshake_timeout_s=5.0)
        server = network(config, token_for=lambda said: token if said == hello else None,
                         on_data=lambda said, fd: came.append((said, fd)))
        server.bind()
        await server.locate(5.0)
        server.serve()
        client = network(config)
        fd = await client.data(server.endpoint, hello, 1, token, 5.0)
        assert came[0][0] == hello
        ours, theirs = socket.socket(fileno=fd), socket.socket(fileno=came[0][1])
        for end in (ours, theirs):
            end.setblocking(True)
        ours.sendall(b"x")
        assert theirs.recv(10) == b"x"
        ours.close()
        theirs.close()
        for field in dataclasses.fields(hello):
            other = dataclasses.replace(hello, **{field.name: getattr(hello, field.name) + 1})
            with pytest.raises(ConnectionEnded, match="does not expect"):
                await client.data(server.endpoint, other, 1, token, 5.0)
        with pytest.raises(ConnectionEnded, match="does not expect"):
            await client.data(server.endpoint, hello, 1, bytes(32), 5.0)
        server.close()
        with pytest.raises(ConnectionEnded, match="cannot be reached"):
            await client.data(server.endpoint, hello, 1, token, 5.0)

    asyncio.run(body())


# ---- members that live and can't connect (S39, S48)


class Wall:
    """A firewall that drops new connections between some hosts and lets old ones live. It stands where sockets are
    opened; whom it keeps apart is a set of pairs of node ids."""

    def __init__(self, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
        self.pairs: set[frozenset[int]] = set()
        ids = {address: number + 1 for number, address in enumerate(site.addresses)}
        connect = Network._connect
        monkeypatch.setattr("spindle.membership.preparation.PREPARE_TIMEOUT_S", 0.5)
        monkeypatch.setattr("spindle.membership.preparation.LACKS_WAIT_S", 0.2)

        async def between(network: Network, address: str, timeout_s: float, *place: Any) -> socket.socket:
            if frozenset((ids[network.endpoint], ids.get(address, 0))) in self.pairs:
                await asyncio.sleep(0.1)
                raise ConnectionEnded(f"{address} cannot be reached: no answer")
            return await connect(network, address, timeout_s, *place)

        monkeypatch.setattr(Network, "_connect", between)


@pytest.mark.slow
@pytest.mark.parametrize(("wall", "stops"), [((2, 3), 3), ((1, 3), 3), ((1, 2), 2)], ids=str)
def test_members_that_cannot_connect_anew_hold_up_no_view(
        runtime_dir: Path, monkeypatch: pytest.MonkeyPatch, wall: tuple[int, int], stops: int) -> None:
    """Goal: S39: old connections between two members live, new ones are dropped. The next view comes without one of
    the two, which ends with the reason; nobody is suspected. Method: three nodes, a topic declared behind the wall."""

    @with_site(3, contacts=1)
    async def body(site: Site) -> None:
        await site.start(0)
        await site.start(1)
        await site.start(2)
        nodes = {node.node_id: node for node in site.nodes}
        behind = Wall(site, monkeypatch)
        behind.pairs.add(frozenset(wall))
        stay = [node for node_id, node in nodes.items() if node_id != stops]
        await stay[0].declare_topic(TopicSpec("t"))
        opening = asyncio.ensure_future(stay[0].open_writer("t"))  # a view, which a declaration alone is not
        await until(lambda: all(members(node) == sorted(set(nodes) - {stops}) for node in stay), "two go on")
        with pytest.raises(CastOut, match=r"left out of view .*cannot be reached: no answer.*firewall"):
            await asyncio.wait_for(nodes[stops].wait_stopped(), 10)
        await asyncio.wait_for(opening, 10)
        behind.pairs.clear()
        (again,) = await site.start(stops - 1)
        await until(lambda: members(again) == [1, 2, 3], "it comes back when the wall is gone")

    body(runtime_dir)


@pytest.mark.slow
def test_a_newcomer_behind_a_wall_is_told_whom_it_lacks_and_holds_up_nobody(
        runtime_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @with_site(3, contacts=1, join_timeout_s=2.0)
    async def body(site: Site) -> None:
        await site.start(0)
        await site.start(1)
        Wall(site, monkeypatch).pairs.add(frozenset((2, 3)))
        newcomer = site.node(2)
        joining = asyncio.ensure_future(newcomer.start())
        for k in range(3):
            await asyncio.wait_for(site.nodes[0].declare_topic(TopicSpec(f"t{k}")), 1)
        with pytest.raises(JoinFailed, match=r"waited 2 s for a connection to node 2 .*no answer"):
            await joining
        assert members(site.nodes[0]) == [1, 2]

    body(runtime_dir)


@with_site(3, contacts=1)
async def test_a_newcomer_that_nobody_reaches_where_it_says_is_not_let_in(site: Site) -> None:
    """Goal: S48: its address is wrong, which is told to it and not to who comes next. Method: it advertises a port
    where nobody listens, then one of another node."""
    await site.start(0)
    await site.start(1)
    nobody = f"127.0.0.1:{free_ports(1)[0]}"
    for advertise, why in ((nobody, "cannot be reached"), (site.addresses[1], "node 2 is there")):
        with pytest.raises(JoinFailed, match=rf"does not reach node 3 .*{why}.*advertise"):
            await site.node(2, advertise=advertise).start()
        await asyncio.wait_for(site.nodes[0].declare_topic(TopicSpec(why)), 1)
    (third,) = await site.start(2)
    await until(lambda: members(third) == [1, 2, 3], "it comes in by its own address")


@with_site(1, form="alone")
async def test_a_connection_that_comes_while_the_node_ends_is_closed(site: Site) -> None:
    """In the very turn of the loop in which it ends, before anything is read of it (seed 320827)."""
    [node] = await site.start(0)
    network = node._network
    assert network is not None
    with socket.create_connection(("127.0.0.1", int(site.addresses[0].rsplit(":")[1]))) as conn:
        assert network._sock is not None
        network._sock.setblocking(True)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always", ResourceWarning)
            network._acceptable()
            assert network._introducing
            network.close()
            await network.ended()
            await asyncio.sleep(0)
        assert not [one for one in told if issubclass(one.category, ResourceWarning)]
        assert conn.recv(1) == b""
