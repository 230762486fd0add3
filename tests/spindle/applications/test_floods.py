"""Goal: applications that ask for more than there is time cost the others time, and nobody the group.

Method: real daemons, a program that floods one of them (flood.py), and honest applications beside it.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path

import pytest

from spindle.client import attach
from spindle.group.topics import TopicSpec
from tests.spindle.applications import flood
from tests.spindle.daemons import Daemon, daemons


@pytest.mark.slow
@pytest.mark.parametrize(("size", "size_max", "answers", "cut"), [
    (60_000, "64 KiB", 500, 0), (1_000_000, "64 KiB", 0, 100), (1_000_000, "1 MiB", 100, 0)])
def test_requests_of_many_connections_cost_no_membership(
    runtime_dir: Path, size: int, size_max: str, answers: int, cut: int
) -> None:
    """Goal: S46: 60 connections with requests as large as may be, or larger, keep a node from nothing that the group
    needs. Method: under them an application of the same node opens, writes and reads; another node joins and leaves;
    the view has changed for that alone, and nobody has missed the node."""
    settings = ["--set", "membership.suspect_timeout_s=0.5", "--set", f"limits.frame_max={size_max}"]
    with daemons(runtime_dir, 3, settings) as (_, *others), attach(node_id=2) as other:
        other.declare_topic(TopicSpec("t"))
        before = other.view().view_id
        path = str(runtime_dir / "domain-0" / "node-1.sock")
        flooding = subprocess.Popen([sys.executable, flood.__file__, path, "60", str(size)],
                                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        try:
            assert flooding.stdout is not None
            assert flooding.stdout.readline()
            with attach(node_id=1, timeout_s=30) as session:
                with contextlib.closing(session.open_writer("t")) as writer:
                    writer.inbox.write(b"in spite of it")
                    assert writer.inbox.wait_acknowledged(30)
                fourth = Daemon(4, *settings, runtime_dir=runtime_dir)
                try:
                    fourth.wait_ready()
                finally:
                    fourth.stop()
                for line in flooding.stdout:
                    got, lost = map(int, line.split())
                    if got >= answers and lost >= cut:
                        break
                else:
                    raise AssertionError(f"the flood ended with {flooding.wait()}")
                assert session.view().node_ids == (1, 2, 3)
                assert other.view().view_id == session.view().view_id
            assert other.view().view_id <= before + 8, "writer and node, coming and going, each in a view or two"
            assert not any("no sign of life from node 1" in one.log for one in others)
        finally:
            flooding.kill()
            flooding.communicate()
