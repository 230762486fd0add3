"""Goal: a way finds a node though another one of the host hangs. Method: a socket that takes connections and says
nothing, as the kernel does for a process that was stopped, and a stand-in for a node."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

import dds
from dds.nodes.ways import FirstNode, HostNode
from tests.spindle.stand_in import StandInNode


@pytest.fixture
def domain_dir(runtime_dir: Path) -> Path:
    directory = runtime_dir / "domain-0"
    directory.mkdir()
    return directory


def test_a_first_node_that_hangs_leaves_time_for_another(domain_dir: Path) -> None:
    """And a program that wants that one alone is told of a timeout, and what to do."""
    with StandInNode(domain_dir / "node-2.sock") as node, socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(str(domain_dir / "node-1.sock"))
        hanging.listen()
        with FirstNode(1).attach(0, "finds", 2.0, None):
            assert [app.name for app in node.attachments.apps.values()] == ["finds"]
        with pytest.raises(dds.DDSTimeout, match=r"node 1 did not answer within 0\.2 s.*node_id"):
            dds.DomainParticipant(way=HostNode(1), timeout=dds.duration(milliseconds=200))
