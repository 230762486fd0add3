"""Goal: a status of the whole group can be had at any node, and shows nobody what the access rules hide from him.

Method: three daemons, one of which is stopped for a while; nodes in this process with access rules.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from spindle.applications.attachment import _seen
from spindle.client import attach
from spindle.config.settings import AccessRule, NodeConfig
from spindle.group.figures import Latencies
from spindle.group.topics import TopicSpec
from spindle.security.access import PeerCredentials, Permissions
from spindle_core.errors import WriteTimeout
from tests.spindle.daemons import daemons
from tests.support import halt, wait_until

READER = b"r" * 16


@pytest.mark.slow
def test_every_node_tells_of_all(runtime_dir: Path) -> None:
    """Topic "a" is written at node 1 and read at node 2; node 3 has nothing of it, and is asked."""
    with daemons(runtime_dir, 3) as running, attach(runtime_dir=runtime_dir, node_id=1) as one, \
            attach(runtime_dir=runtime_dir, node_id=2) as two, attach(runtime_dir=runtime_dir, node_id=3) as three:
        one.declare_topic(TopicSpec("a"))
        reader = two.open_reader("a", keep_all=True, from_history=False, guid=READER)
        writer = one.open_writer("a")
        for _ in range(25):
            writer.inbox.write(b"hello")
        got: list[bytes] = []

        def take() -> bool:
            got.extend(reader.log.take(25))
            return len(got) == 25

        wait_until(take)
        nodes = three.group_status()
        assert [node["node_id"] for node in nodes] == [1, 2, 3]
        assert [node["pid"] for node in nodes] == [one.node_pid, two.node_pid, three.node_pid]
        assert all(node["counters"]["view_id"] == nodes[0]["view_id"] and node["release"] for node in nodes)
        [topic] = nodes[1]["topics"]
        assert topic["figures"]["messages"] == 25 and topic["figures"]["bytes"] == 125
        latencies = Latencies.of(topic["figures"])
        assert latencies.count == 25 and 0 < (latencies.within_s(0.5) or 0) < 60
        brief = three.group_status(figures=True)
        assert brief[1]["topics"][0]["figures"]["messages"] == 25 and brief[2]["topics"] == []
        assert "applications" not in brief[0] and brief[0]["cpu_s"] > 0

        halt(running[1].pid)
        silent = three.group_status(figures=True)[1]
        assert silent == {"node_id": 2, "error": "node 2 did not say anything of itself within 1 s"}
        running[1].process.send_signal(signal.SIGCONT)
        wait_until(lambda: "error" not in three.group_status(figures=True)[1])


@pytest.mark.slow
def test_who_holds_a_topic_up_is_known_elsewhere(runtime_dir: Path) -> None:
    """At a node that is no member of it, too."""
    with daemons(runtime_dir, 3), attach(runtime_dir=runtime_dir, node_id=1) as one, \
            attach(runtime_dir=runtime_dir, node_id=2) as two, attach(runtime_dir=runtime_dir, node_id=3) as three:
        one.declare_topic(TopicSpec("a", size_max=65536, window=8))
        two.open_reader("a", keep_all=True, from_history=False, guid=READER)
        writer = one.open_writer("a")
        assert three.held_up_by("a") == []

        with pytest.raises(WriteTimeout):
            while True:
                writer.inbox.write(bytes(65536), timeout_s=0.5)
        [holder] = three.held_up_by("a")
        assert (holder.node_id, holder.receives, [pid for _, pid in holder.readers]) == (
            2, True, [os.getpid()])


def test_what_may_not_be_seen_is_left_out() -> None:
    """What a node has said is cut to the viewer's topics at the node that the viewer asks."""
    said = {"node_id": 7, "topics": [{"name": "open"}, {"name": "secret"}], "applications": [
        {"name": "a", "writers": ["secret"], "readers": ["open"]}, {"name": "b", "writers": ["secret"], "readers": []}]}
    rule = AccessRule(uid=54321, subscribe=("open",))
    viewer = Permissions(NodeConfig(allow_uids=(54321,), access_rules=(rule,)),
                         PeerCredentials(1, 54321, 54321, frozenset({54321})))
    found = _seen(viewer, said)
    assert found == {"node_id": 7, "topics": [{"name": "open"}],
                     "applications": [{"name": "a", "writers": [], "readers": ["open"]}]}
    assert said["topics"][1]["name"] == "secret"
