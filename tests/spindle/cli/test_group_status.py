"""Goal: `spindle status --group` says in a word of each member what it does, and what is the matter with the group.

Method: what members say of themselves, as they say it; a stand-in that names a member whom nobody reaches; daemons, one
of which is stopped.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from spindle.cli.group_status import matters, state_of_node, stuck_topics
from spindle.group.endpoints import HALTED, TOPIC, Endpoint
from tests.spindle.cli.support import Cli
from tests.spindle.daemons import daemons
from tests.spindle.stand_in import StandInNode
from tests.support import halt


def test_the_state_of_a_node() -> None:
    assert state_of_node({"phase": "stable", "view_id": 4}, 4) == "serves"
    assert state_of_node({"phase": "wedged", "awaiting": "node 2"}, 4) == "changes its view, waits for node 2"
    assert state_of_node({"phase": "stable", "view_id": 3}, 4) == "is in view 3 still"
    assert state_of_node({"error": "node 3 has gone"}, 4) == "doesn't answer"


def test_what_is_the_matter() -> None:
    whole = {"node_id": 1, "state": "serves", "release": "0.1.0", "members": [{"node_id": 1, "live": True}]}
    assert list(matters([whole], [])) == []
    other = {"node_id": 2, "state": "is in view 3 still", "release": "0.2.0",
             "members": [{"node_id": 1, "live": False}], "topics": [{"name": "a", "waits_for": "histories of node 1"}]}
    assert list(matters([whole, other], [{"name": "t", "held_up_by": [{"text": "node 3"}]}])) == [
        "node 2 is in view 3 still", "node 2 is about to leave node 1 out",
        "the nodes run different releases: 0.1.0, 0.2.0", "topic t waits for node 3",
        "topic a waits at node 2 for histories of node 1"]


def test_a_topic_whose_journal_has_halted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: it is named at once, not when all rings are full. Method: a session that says so of a topic that is not
    behind."""
    monkeypatch.setattr("spindle.cli.group_status.SECOND_LOOK_S", 0.0)
    numbers = {"members": [1, 2], "senders": [1], "received": [7, 7], "delivered": [7, 7]}
    nodes = [{"node_id": 1, "topics": [{"name": "t", "level": "logged", "window": 32, "stability": numbers}]}]
    listed = [Endpoint(b"j", 2, False, "t", json.dumps({HALTED: "no room"}).encode(), "journal", kind=TOPIC)]
    session: Any = SimpleNamespace(group_status=lambda figures: nodes)
    found = stuck_topics(session, nodes, listed)
    assert {name: list(map(str, held)) for name, held in found.items()} == {"t": ["the journal of node 2: no room"]}


def test_a_member_that_nobody_reaches(cli: Cli, stand_in: StandInNode) -> None:
    result = cli("status", "--group")
    assert result.code == 1 and "node 5 is not connected" in result.out and "no topics yet" in result.out
    found = cli("status", "--group", "--json").json
    assert [(one["node_id"], one["state"]) for one in found["nodes"]] == [(5, "doesn't answer"), (7, "serves")]


@pytest.mark.slow
def test_from_any_node(cli: Cli, runtime_dir: Path) -> None:
    with daemons(runtime_dir, 3) as running:
        for node in (1, 2, 3):
            result = cli("status", "--group", "--node", node)
            assert result.code == 0 and "all members answer, in one view" in result.out, result
            assert all(str(daemon.pid) in result.out for daemon in running)
        halt(running[2].pid)
        result = cli("status", "--group", "--node", 1)
        running[2].process.send_signal(signal.SIGCONT)
        assert result.code == 1 and "node 3 did not say anything of itself" in result.out
        assert str(running[2].pid) in result.out, "others know its process"
