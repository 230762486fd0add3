"""Goal: while the certificate of one member has expired, a newcomer says whom it can't reach and why, and gets in as
soon as that member has another one; it never takes that for a fault of its own keys.

Method: nodes with certificates, as hosts that reach each other over loopback; from some moment on a member shows
another certificate.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from spindle.errors import JoinFailed
from spindle.node.node import Node
from spindle.security.trust import Trust
from tests.spindle import site as keys
from tests.spindle.node.test_node import until
from tests.spindle.transport.test_network import Site, members, with_site


def shows(node: Node, trust: Trust) -> None:
    """What it will connect and be connected to with."""
    assert node._network is not None
    node._network._trust._contexts = trust._contexts


def has_expired(site: keys.Site, node_id: int) -> Trust:
    with keys.days_from_now(-900):
        return site.reckless(site.node(node_id))


def test_a_newcomer_waits_for_a_member_whose_certificate_has_expired(
        tmp_path: Path, runtime_dir: Path, caplog: pytest.LogCaptureFixture) -> None:
    issued = keys.Site(tmp_path)

    @with_site(3, contacts=2, join_timeout_s=30.0)
    async def body(site: Site) -> None:
        first, second = site.node(0, **issued.settings(1)), site.node(1, **issued.settings(2))
        await asyncio.gather(first.start(), second.start())
        shows(second, has_expired(issued, 2))
        newcomer = site.node(2, **issued.settings(3))
        starting = asyncio.ensure_future(newcomer.start())
        await until(lambda: starting.done() or "without which this node can't be let in" in caplog.text, "it says so")
        assert not starting.done()
        assert "its certificate has expired" in caplog.text
        await until(lambda: "to its mind it has expired" in caplog.text, "the member says so, too")
        shows(second, issued.reckless(issued.node(2)))
        await starting
        assert members(newcomer) == [1, 2, 3]

    body(runtime_dir)


@pytest.mark.slow
def test_a_newcomer_that_waited_long_enough_has_not_joined(tmp_path: Path, runtime_dir: Path) -> None:
    issued = keys.Site(tmp_path)

    @with_site(3, contacts=1)
    async def body(site: Site) -> None:
        await site.node(0, **issued.settings(1)).start()
        second = site.node(1, **issued.settings(2))
        await second.start()
        shows(second, has_expired(issued, 2))
        with pytest.raises(JoinFailed, match=r"a connection to node 2 .*its certificate has expired"):
            await site.node(2, **issued.settings(3), join_timeout_s=1.0).start()

    body(runtime_dir)
