"""Goal: the state of a node is complete as JSON and readable as text, whatever the node leaves out.

Method: a stand-in node that tells almost nothing, and made-up states; real nodes are in test_daemons.py.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from spindle.cli import status as module
from spindle.cli.status import frontiers, print_counters, print_head, print_members, print_topics
from spindle.group.topics import TopicSpec
from spindle_core.counters import COUNTER_NAMES
from tests.spindle.cli.support import Cli
from tests.spindle.stand_in import StandInNode


def text_of(show: Any, state: dict[str, Any]) -> str:
    out = Console(file=io.StringIO(), width=160, highlight=False)
    show(out, state)
    assert isinstance(out.file, io.StringIO)
    return out.file.getvalue()


def test_json_has_what_is_promised(cli: Cli, stand_in: StandInNode) -> None:
    stand_in.call(lambda: stand_in.declare_topic(TopicSpec("b")))
    stand_in.call(lambda: stand_in.declare_topic(TopicSpec("a")))
    with stand_in.session("an application"):
        state = cli("status", "--json").json
    assert {"node_id", "domain_id", "pid", "embedded", "view_id", "rank", "members", "topics", "applications",
            "counters"} <= set(state)  # fmt: skip
    assert (state["node_id"], state["view_id"], state["rank"]) == (7, 3, 1)
    assert [one["node_id"] for one in state["members"]] == [5, 7]
    assert [one["name"] for one in state["topics"]] == ["a", "b"]
    assert set(state["counters"]) == set(COUNTER_NAMES)


def test_text(cli: Cli, stand_in: StandInNode) -> None:
    stand_in.call(lambda: stand_in.declare_topic(TopicSpec("flight/air")))
    shown = cli("status")
    assert shown.code == 0
    for part in ("node 7", "view 3, rank 1 of 2", "Members", "this node", "flight/air", "Counters since the start"):
        assert part in shown.out


def test_a_node_by_its_id(cli: Cli, stand_in: StandInNode) -> None:
    assert cli("status", "--node", 7).code == 0
    assert cli("status", "--node", 8).code == 3


def test_frontiers() -> None:
    topic = {
        "members": [1, 4, 6],
        "stability": {"received": [10, 12, 7], "delivered": [7, 6, 5], "persisted": [1, 2, 3]},
    }
    assert frontiers(topic, 4) == (12, 6, 2, [1, 6])
    assert frontiers(topic, 6) == (7, 5, 3, [])
    assert frontiers(topic, 9) == (None, None, None, []), "not a member"
    assert frontiers({"members": [1]}, 1) == (None, None, None, [])
    assert frontiers({"members": [1, 2], "stability": {"received": [3]}}, 1)[0] is None


def test_numbers_go_on_over_views() -> None:
    """Goal: a view change doesn't make a topic look new. What the node delivered before it counts, too."""
    view = {"received": [10], "delivered": [8], "persisted": [5]}
    assert frontiers({"members": [4], "stability": view, "delivered": 1008}, 4) == (1010, 1008, 1005, [])


def test_who_holds_a_topic_up_is_named() -> None:
    topic = {"name": "t", "level": "atomic", "size_max": 1, "window": 10, "writers": 1, "readers": 1, "members": [1, 2],
             "stability": {"received": [20, 20], "delivered": [20, 10]},
             "held_up_by": [{"node": 2, "text": "a reader of [slow] at node 2"}]}
    text = text_of(print_topics, {"topics": [topic], "node_id": 1})
    assert "node 2" in text and "topic t waits for a reader of [slow] at node 2" in text


@pytest.mark.parametrize(("phase", "shown"), [("stable", False), ("wedged", True)])
def test_a_view_change_under_way_is_seen(phase: str, shown: bool) -> None:
    state = {"node_id": 1, "domain_id": 0, "pid": 5, "embedded": True, "view_id": 2, "rank": 0, "members": [{}],
             "phase": phase, "awaiting": "row of node 4", "uptime_s": 90}  # fmt: skip
    text = text_of(print_head, state)
    assert ("wedged" in text) == shown and ("row of node 4" in text) == shown
    assert "(embedded)" in text and "up 1 min 30 s" in text


def test_members_that_hang_or_are_lost_are_seen() -> None:
    """Goal: who looks finds the member that everything waits for. Method: a silent, a lost and a lively one."""
    lively = {"pid": 1, "name": "", "live": True, "silent_s": 0.05}
    state = {"node_id": 1, "members": [{"node_id": 1, **lively}, {"node_id": 2, **lively, "silent_s": 1.5},
                                       {"node_id": 3, **lively, "live": False}, {"node_id": 4, **lively}]}
    lines = text_of(print_members, state).splitlines()
    notes = {node: next(line for line in lines if f" {node} " in line) for node in (2, 3)}
    assert "no sign of life for 1.5 s" in notes[2] and "lost" in notes[3]
    assert "\n".join(lines).count("no sign") == "\n".join(lines).count("lost") == 1


def test_troubles_are_shown_only_if_there_are(cli: Cli) -> None:
    quiet = dict.fromkeys(COUNTER_NAMES, 0)
    assert "stalls" not in text_of(print_counters, {"counters": quiet})
    loud = text_of(print_counters, {"counters": {**quiet, "stalls": 1234, "corrupt_slots": 1}})
    assert "1,234" in loud and "please report" in loud
    assert set(module.TROUBLES) <= set(COUNTER_NAMES)


def test_hostile_names_stay_text() -> None:
    topic = {"name": "[red]x[/]\x1b[2J", "level": "atomic", "size_max": 1, "window": 1, "writers": 0, "readers": 0}
    text = text_of(print_topics, {"topics": [topic], "node_id": 1})
    assert r"[red]x[/]\x1b[2J" in text
