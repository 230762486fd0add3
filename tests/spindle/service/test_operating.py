"""Goal: what operators ask of a daemon is done, and refused where it would hurt or they may not: that a member is cast
out or leaves; and a daemon tells what has happened.

Method: real daemons; who may is asked of the permissions alone, with users that needn't exist.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from spindle.client import attach
from spindle.config.settings import NodeConfig
from spindle.errors import AccessDenied, CastOut, SpindleError
from spindle.group.topics import TopicSpec
from spindle.logs import MEMBER_LOST, VIEW_INSTALLED
from spindle.security.access import NetworkPeer, PeerCredentials, Permissions
from spindle.security.identity import APPLICATION, NODE, Identity
from tests.spindle.daemons import daemons
from tests.support import wait_until

STRANGER = 54321


@pytest.mark.slow
def test_a_member_is_cast_out_and_another_leaves(runtime_dir: Path) -> None:
    with daemons(runtime_dir, 3) as nodes, attach(runtime_dir=runtime_dir, node_id=1, name="operator") as session:
        session.cast_out(3)
        assert nodes[2].wait() == CastOut.exit_code
        wait_until(lambda: session.view().node_ids == (1, 2), what="the others go on")
        session.make_leave(2)
        assert nodes[1].wait() == 0
        assert "leaves the group: application" in nodes[1].log and "'operator'" in nodes[1].log
        wait_until(lambda: session.view().node_ids == (1,), what="node 1 is alone")
        happened = session.happenings()
        lost = [one for one in happened if one["event"] == MEMBER_LOST.name]
        assert [one["member"] for one in lost] == [3] and "'operator'" in lost[0]["why"]
        assert [one["members"] for one in happened if one["event"] == VIEW_INSTALLED.name][-1] == "1"
        assert session.happenings(happened[-2]["number"]) == happened[-1:]
        session.make_leave(1)
        assert nodes[0].wait() == 0
        assert "leaves the group: application" in nodes[0].log


@pytest.mark.slow
def test_what_would_hurt_or_makes_no_sense_is_refused(runtime_dir: Path) -> None:
    with daemons(runtime_dir, 2), attach(runtime_dir=runtime_dir, node_id=1) as session:
        for ask in (session.cast_out, session.make_leave):
            with pytest.raises(SpindleError, match="node 9 is no member of the group: 1 2 are"):
                ask(9)
        with pytest.raises(SpindleError, match="can't cast itself out"):
            session.cast_out(1)
        assert session.view().node_ids == (1, 2)


@pytest.mark.slow
def test_who_could_not_go_on_without_a_member_may_not_cast_it_out(runtime_dir: Path) -> None:
    """Of two members the one with the higher id is no majority."""
    with daemons(runtime_dir, 2), attach(runtime_dir=runtime_dir, node_id=2) as session:
        with pytest.raises(SpindleError, match="no majority"):
            session.cast_out(1)
        assert session.view().node_ids == (1, 2)


def test_who_may() -> None:
    config = NodeConfig(allow_uids=(STRANGER,), node_users=(str(STRANGER + 1),))

    def user(uid: int) -> Permissions:
        return Permissions(NodeConfig(allow_uids=(uid,), node_users=config.node_users),
                           PeerCredentials(1, uid, uid, frozenset((uid,))))

    assert user(os.geteuid()).may_operate and user(0).may_operate and user(STRANGER + 1).may_operate
    with pytest.raises(AccessDenied, match="may not make a node leave"):
        user(STRANGER).check_operate("make a node leave the group")
    of_node = NetworkPeer("10.0.0.1:5", Identity("node 1", NODE))
    of_application = NetworkPeer("10.0.0.1:5", Identity("display", APPLICATION, frozenset()))
    assert Permissions(config, of_node).may_operate
    assert not Permissions(config, of_application).may_operate
    assert not Permissions(config, NetworkPeer("127.0.0.1:5")).may_operate


@pytest.mark.slow
def test_who_may_not_see_all_hears_of_nodes_only(runtime_dir: Path) -> None:
    rules = f"[{{ uid = {os.geteuid()}, publish = [], subscribe = ['seen*'] }}]"
    with daemons(runtime_dir, 2, ["--set", f"access.rules={rules}"]) as nodes, (
            attach(runtime_dir=runtime_dir, node_id=1)) as session:
        nodes[1].kill()
        wait_until(lambda: session.view().node_ids == (1,), what="the view without it")
        assert {one["event"] for one in session.happenings()} == {"node-starts", MEMBER_LOST.name, VIEW_INSTALLED.name}
        session.declare_topic(TopicSpec("seen/one"))
        with pytest.raises(AccessDenied):
            session.declare_topic(TopicSpec("hidden/one"))
