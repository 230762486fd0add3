"""Goal: topics and their endpoints are shown as they are, for people and as JSON, and a wrong name gets help."""

from __future__ import annotations

from pathlib import Path

import pytest

from spindle.cli.topics import as_object, kept_text, qos_texts, topic_in_group
from spindle.client import attach
from spindle.group.levels import Level
from spindle.group.topics import TIMING_WORD, TopicInfo, TopicSpec
from tests.spindle.cli.support import Cli
from tests.spindle.daemons import daemons
from tests.spindle.stand_in import StandInNode
from tests.support import halt


@pytest.fixture
def node(stand_in: StandInNode) -> StandInNode:
    for spec in (TopicSpec("flight/air", "Air", b"\x01\x02", Level.LOGGED, 1000), TopicSpec("[b]log[/]")):
        stand_in.call(lambda spec=spec: stand_in.declare_topic(spec))
    return stand_in


def test_none(cli: Cli, stand_in: StandInNode) -> None:
    assert cli("topics").out.startswith("no topics yet")
    assert cli("topics", "--json").json == []


def test_list(cli: Cli, node: StandInNode) -> None:
    first, second = cli("topics", "--json").json
    assert first["name"] == "[b]log[/]" and first["level"] == "atomic" and first["size_max"] == 16384
    assert second["name"] == "flight/air" and second["level"] == "logged" and second["type_hash"] == "0102"
    shown = cli("topics").out
    assert "[b]log[/]" in shown, "a name is not markup"
    assert "16 KiB" in shown and "1000 bytes" in shown


def test_one_with_endpoints(cli: Cli, node: StandInNode) -> None:
    with node.session("air data") as session:
        endpoint = b'{"qos":{"History":{"kind":"KeepLast","depth":5},"Durability":{"kind":"Persistent"}}}'
        writer = session.open_writer("flight/air", guid=b"g" * 16, endpoint=endpoint)
        reader = session.open_reader("flight/air", keep_all=False, from_history=False, guid=b"h" * 16)
        found = cli("topics", "flight/air", "--json").json
        assert (found["writers"], found["readers"]) == (1, 1)
        by_kind = {one["kind"]: one for one in found["endpoints"]}
        assert by_kind["writer"]["application"] == "air data"
        assert by_kind["writer"]["qos"] == ["History.KeepLast(depth=5)", "Durability.Persistent"]
        assert "qos" not in by_kind["reader"] and by_kind["reader"]["guid"] == "68" * 16
        shown = cli("topics", "flight/air").out
        for part in ("logged", "air data", "History.KeepLast(depth=5)", "1000 bytes", " node 7\n"):
            assert part in shown
        writer.close()
        reader.close()


def test_names_like_a_pattern(cli: Cli, node: StandInNode) -> None:
    """A topic whose name has such characters is still shown by itself."""
    assert [one["name"] for one in cli("topics", "fl*t/?ir", "--json").json] == ["flight/air"]
    assert len(cli("topics", "*", "--json").json) == 2
    assert cli("topics", "[b]log[/]", "--json").json["name"] == "[b]log[/]"
    nothing = cli("topics", "*/x")
    assert nothing.code == 1 and "no topic like '*/x'" in nothing.err


def test_wrong_name(cli: Cli, node: StandInNode) -> None:
    result = cli("topics", "flight/aie")
    assert result.code == 1 and "did you mean 'flight/air'?" in result.err
    assert "lists them" in cli("topics", "zzz").err


def test_several_are_deleted_but_those_in_use(cli: Cli, node: StandInNode) -> None:
    for name in ("a/1", "a/2", "a/3", "b", "c", "d*"):
        node.call(lambda name=name: node.declare_topic(TopicSpec(name)))

    def left() -> list[str]:
        return [one["name"] for one in cli("topics", "--json").json]

    with node.session("holder") as session, session.open_writer("a/2", guid=b"g" * 16):
        found = cli("topics", "--delete", "a/*", "b", "a/1", "nosuch", "x/*")
        assert (found.code, found.out) == (1, "deleted a/1\ndeleted a/3\ndeleted b\n")
        for part in ("topic 'a/2' cannot be deleted", "no topic 'nosuch'", "no topic like 'x/*'", "3 deleted, 3 not"):
            assert part in found.err
        assert left() == ["[b]log[/]", "a/2", "c", "d*", "flight/air"]
        assert "cannot be deleted" in cli("topics", "a/2", "--delete").err
    again = cli("topics", "--json", "--delete", "a/*", "c")
    assert (again.code, again.json) == (0, {"deleted": ["a/2", "c"], "kept": []})
    assert cli("topics", "d*", "--delete").out == "deleted d*\n", "a topic of that name"
    assert left() == ["[b]log[/]", "flight/air"]
    assert cli("topics", "nosuch", "--delete").code == 1
    assert cli("topics", "--delete").code == cli("topics", "a", "b").code == 2


@pytest.mark.parametrize("endpoint", [b"", b"{}", b"[]", b"\xff", b'{"qos":3}', b'{"qos":{"A":1}}'])
def test_foreign_endpoints_have_no_qos(endpoint: bytes) -> None:
    assert qos_texts(endpoint) == []


@pytest.mark.parametrize(("endpoint", "topic"), [
    (b'{"qos":{},"topic":"speeds","type":"Speed","hash":""}', "speeds"), (b'{"qos":{}}', ""), (b"x", ""), (b"[]", ""),
])
def test_the_topic_of_an_endpoint_of_an_order_group(endpoint: bytes, topic: str) -> None:
    """Goal: `spindle topics NAME` tells the topics of a group apart. Method: announcements, also of others."""
    assert topic_in_group(endpoint) == topic


@pytest.mark.parametrize(("limits", "kept"), [
    ({}, "all messages that fit 8 MiB"),
    ({"history_depth": 3}, "3 messages of each key that fit 8 MiB"),
    ({"samples_max": 50, "keys_max": 7}, "all messages of each key that fit 8 MiB, 50 in all, of 7 keys"),
    ({"history_depth": 1, "cleanup_ns": 90_500_000_000},
     "1 message of each key that fit 8 MiB, a key that has ended for 90.5 s"),
    ({"cleanup_ns": (1 << 63) - 1}, "all messages of each key that fit 8 MiB, a key that has ended for ever")])
def test_what_a_topic_keeps(limits: dict[str, int], kept: str) -> None:
    spec = TopicSpec("t", level=Level.VOLATILE, history_bytes=8 << 20, timing=bytes([0, TIMING_WORD, *[0] * 254]),
                     effects=bytes([1, *[0] * 255]) if limits else b"", **limits)
    assert kept_text(as_object(TopicInfo(spec, 1), [])) == kept


@pytest.mark.slow
def test_one_topic_is_shown_beside_a_member_that_hangs(cli: Cli, runtime_dir: Path) -> None:
    """The node asked has nobody who has it open, so it asks the others, and waits a second for the one that hangs:
    longer than the command waited for the node, which it then said to be silent."""
    with daemons(runtime_dir, 2) as nodes:
        with attach(runtime_dir=runtime_dir, node_id=1) as session:
            session.declare_topic(TopicSpec("t"))
        halt(nodes[1].pid)
        shown = cli("topics", "t", "--node", 1)
        nodes[1].kill()
        assert (shown.code, shown.err) == (0, "") and "no readers and writers announced" in shown.out


@pytest.mark.slow
def test_a_recording_says_which_topics_it_could_not_open_by_its_end(cli: Cli, runtime_dir: Path,
                                                                    tmp_path: Path) -> None:
    """Two nodes, of which one hangs, agree on nothing. It ended with 0 and a file without messages."""
    path = tmp_path / "t.mcap"
    with daemons(runtime_dir, 2) as nodes:
        with attach(runtime_dir=runtime_dir, node_id=1) as session:
            session.declare_topic(TopicSpec("t"))
        halt(nodes[1].pid)
        told = cli("record", "t", "-o", path, "--duration", "0.1", "--node", 1)
        listed = cli("record", "*", "-o", path, "--duration", "0.1", "--node", 1, "--force", "--json")
        nodes[1].kill()
        assert told.code == 1 and "t is not recorded: the group has not agreed to open it by the end" in told.err
        assert listed.code == 1 and list(listed.json["left_out"]) == ["t"]
