"""Goal: links do the same wherever nodes are: embedded in programs, several in one process, many of them, with keys and
encryption; and nothing of them is left when a node stops, or in a forked child.
"""

from __future__ import annotations

import gc
import itertools
import os
import threading
import time
from pathlib import Path

import pytest

from spindle.client.embedding import embed
from spindle.config.settings import NodeConfig
from spindle.errors import LinkError, NodeStopped, SpindleError
from spindle.links import Links
from spindle.node.node import Node
from spindle.security import ktls
from spindle.transport.network import DataHello
from tests.spindle.links.group import KINDS, descriptors_of, group_of


@pytest.mark.slow
def test_embedded_nodes_stop_with_links_in_use_and_leave_nothing(runtime_dir: Path) -> None:
    """Two nodes of one process; programs read, listen and offer when they stop: they hear of it, it takes no time, and
    no thread or descriptor stays."""
    def life() -> None:
        config = NodeConfig(runtime_dir=runtime_dir)
        one, two = embed(config=config), embed(config=config)
        near, far = Links(one), Links(two)
        table, port = far.offer("table", 4096, writer=one.node_id), far.listen(7)
        link = near.open(two.node_id)
        region = link.region("table", change=True)
        region.write(0, b"embedded")
        assert bytes(table.view[:8]) == b"embedded"
        errors: list[Exception] = []

        def use() -> None:
            try:
                while True:
                    region.read(0, 8)
            except (SpindleError, OSError) as error:
                errors.append(error)

        def listen() -> None:
            try:
                port.receive(60)
            except SpindleError as error:
                errors.append(error)

        threads = [threading.Thread(target=work) for work in (use, listen)]
        for thread in threads:
            thread.start()
        begun = time.monotonic()
        two.close()
        one.close()
        for thread in threads:
            thread.join(10)
            assert not thread.is_alive()
        assert time.monotonic() - begun < 8
        assert len(errors) == 2 and all(isinstance(error, (LinkError, NodeStopped)) for error in errors), errors
        link.close()
        port.close()

    life()
    gc.collect()
    before = descriptors_of(os.getpid())
    life()
    gc.collect()
    assert descriptors_of(os.getpid()) == before
    assert not any(thread.name == "spindle links" for thread in threading.enumerate())


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_all_of_a_group_have_links_to_all(runtime_dir: Path, kind: str) -> None:
    """Also to themselves; one leaves, and the others go on."""
    numbers = range(1, 6)
    with group_of(kind, runtime_dir, 5) as group:
        links = {number: Links(group.session(number)) for number in numbers}
        for number in numbers:
            links[number].offer("mine", 64).view[:1] = b"%d" % number
        opened = {(one, two): links[one].open(two) for one, two in itertools.product(numbers, numbers)}
        regions = {way: link.region("mine") for way, link in opened.items()}
        for (_, two), region in regions.items():
            assert region.read(0, 1) == b"%d" % two
        group.daemon(3).terminate()
        for (one, two), region in regions.items():
            if one != 3 and two != 3:
                assert region.read(0, 1) == b"%d" % two
        with pytest.raises(LinkError):
            regions[1, 3].read(0, 1)


@pytest.mark.skipif(bool(ktls.available()), reason="this kernel can't encrypt connections")
def test_links_between_hosts_are_encrypted_where_connections_are(runtime_dir: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32).hex().encode() + b"\n")
    secret.chmod(0o600)
    with group_of("hosts", runtime_dir, 2, "network.encrypt=true", f'network.secret="{secret}"') as group:
        with Links(group.session(2)).offer("table", 1 << 20, writer=1) as table, \
                Links(group.session(1)).open(2, memory=1 << 20) as link:
            data = os.urandom(1 << 18)
            region = link.region("table", change=True)
            region.write(8, data)
            assert region.read(8, len(data)) == data == bytes(table.view[8 : 8 + len(data)])


@pytest.mark.slow
def test_links_between_hosts_with_keys(runtime_dir: Path, tmp_path: Path) -> None:
    """Data connections of links are authenticated by a token that came over the control connection."""
    secret = tmp_path / "secret"
    secret.write_bytes(os.urandom(32).hex().encode() + b"\n")
    secret.chmod(0o600)
    with group_of("hosts", runtime_dir, 2, f'network.secret="{secret}"') as group:
        with Links(group.session(1)).offer("table", 64), Links(group.session(2)).open(1) as link:
            assert link.region("table").read(0, 8) == bytes(8)


def test_who_comes_before_a_node_has_started_is_expected_by_nobody(runtime_dir: Path) -> None:
    """The port for other hosts is open before."""
    assert Node(NodeConfig(runtime_dir=runtime_dir))._token_for(DataHello(0, 1, 1, 2, 0, 0, 0)) is None


@pytest.mark.slow
def test_a_forked_child_uses_nothing_of_its_parents_links(runtime_dir: Path) -> None:
    """Every call says why; what is the parent's stays as it is, when the child ends as well."""
    with group_of("one host", runtime_dir, 1) as group:
        links = Links(group.session(1))
        with links.offer("table", 64, writer=1) as table, links.listen(7) as port, links.open(1) as link:
            region = link.region("table", change=True)
            link.send(b"for the parent", 7)
            pid = os.fork()
            if pid == 0:
                said = []
                for call in (lambda: region.read(0, 8), lambda: region.write(0, b"child"), lambda: link.send(b"x", 7),
                             lambda: link.call(7, b"x"), lambda: port.receive(1), lambda: links.open(1),
                             lambda: region.close()):
                    try:
                        call()
                        said.append("nothing")
                    except SpindleError as error:
                        said.append("fork" if "fork" in str(error) else str(error))
                for one in (link, port, table):
                    try:
                        one.close() if one is not table else table.end()
                    except Exception as error:
                        said.append(str(error))
                os._exit(0 if said == ["fork"] * 7 else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
            region.write(0, b"parent")
            assert bytes(table.view[:6]) == b"parent"
            message = port.receive()
            assert message is not None and message.data == b"for the parent"
            with pytest.raises(LinkError, match="nobody"):
                link.send(b"x", 9)
