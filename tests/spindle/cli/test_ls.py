"""Goal: `spindle ls` shows each participant once, with all that it writes and reads, also those that announce nothing
of themselves, in 80 columns; for people and as JSON.

Method: one program with an embedded node that has several participants, the command beside it; announcements of others,
as a node would list them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import dds
from spindle.cli.ls import participants
from spindle.group.endpoints import PARTICIPANT, TOPIC, Endpoint
from spindle.group.topics import TopicSpec
from tests.dds.idl.evolving import struct
from tests.spindle.cli.support import Cli
from tests.spindle.stand_in import StandInNode

FIX = struct(altitude=float)


@pytest.fixture
def program(runtime_dir: Path) -> Iterator[list[dds.DomainParticipant]]:
    """A participant with a name, and one without, which has an order group; each has what it has open."""
    named = dds.DomainParticipant.embedded(qos=dds.Qos(dds.Policy.EntityName("tower")))
    other = dds.DomainParticipant.embedded()
    fixes = dds.Topic(named, "flight/fixes", FIX)
    speeds = dds.Topic(other, "speeds", bytes, order="flight")
    ends = [dds.DataWriter(named, fixes), dds.DataWriter(named, fixes), dds.DataReader(named, fixes),
            dds.DataReader(other, speeds)]
    yield [named, other]
    for one in ends:
        one.close()
    named.close()
    other.close()


def test_who_has_what(cli: Cli, program: list[dds.DomainParticipant]) -> None:
    found = {one["name"]: one for one in cli("ls", "--json").json}
    assert sorted(found) == ["", "tower"]
    writes, reads = found["tower"]["endpoints"]
    assert (writes["kind"], writes["count"], writes["topic"]) == ("writer", 2, "flight/fixes")
    assert (reads["kind"], reads["count"], reads["type"]) == ("reader", 1, writes["type"])
    (speeds,) = found[""]["endpoints"]
    assert speeds == {"kind": "reader", "topic": "speeds", "type": "bytes", "order": "flight", "count": 1}
    shown = cli("ls")
    assert shown.code == 0
    for part in ("tower", "flight/fixes", "writes", "2 times", "speeds in flight", "pid "):
        assert part in shown.out
    assert max(map(len, shown.out.splitlines())) <= 80
    assert max(map(len, cli("ls", "--help").out.splitlines())) <= 80


def test_only_who_has_a_topic(cli: Cli, program: list[dds.DomainParticipant]) -> None:
    assert [one["name"] for one in cli("ls", "flight/*", "--json").json] == ["tower"]
    assert [one["name"] for one in cli("ls", "speeds", "--json").json] == [""]
    assert [one["name"] for one in cli("ls", "flight", "--json").json] == [""]  # by the name of its group, too
    assert [one["name"] for one in cli("ls", "fl*", "nothing", "--json").json] == ["", "tower"]
    assert cli("ls", "nothing", "more").out == "nobody has 'nothing' or 'more' open\n"
    program[0].close()
    (left,) = cli("ls", "--json").json
    assert left["name"] == ""


def test_nobody(cli: Cli, stand_in: StandInNode) -> None:
    assert cli("ls").out.startswith("nobody is here") and cli("ls", "--json").json == []


def test_those_that_announce_nothing_of_themselves(cli: Cli, stand_in: StandInNode) -> None:
    """Sessions without the DDS layer: each application is one; a name is not markup."""
    with stand_in.session("[b]air[/]") as session:
        stand_in.call(lambda: stand_in.declare_topic(TopicSpec("t")))
        writers = [session.open_writer("t", guid=guid * 16) for guid in (b"1", b"2")]
        (found,) = cli("ls", "--json").json
        assert (found["application"], found["name"]) == ("[b]air[/]", "")
        assert found["endpoints"] == [{"kind": "writer", "topic": "t", "type": "", "count": 2}]
        assert "[b]air[/]" in cli("ls").out
        for one in writers:
            one.close()


@pytest.mark.parametrize("endpoint", [b"", b"[]", b"\xff", b'{"qos":3,"type":4}', b'{"qos":{"EntityName":[]}}'])
def test_what_others_announce_is_not_trusted(endpoint: bytes) -> None:
    guid = b"p" * 12
    (found,) = participants([
        Endpoint(guid + b"0000", 2, False, "", endpoint, "one", kind=PARTICIPANT),
        Endpoint(guid + b"0001", 2, False, "t", endpoint, "one"), Endpoint(guid + b"0002", 2, False, "t", b"", "one"),
        Endpoint(guid + b"0003", 2, False, "t", endpoint, "one", kind=TOPIC)])
    assert (found.name, found.application, [count for _, count in found.sorted()]) == ("", "one", [2])
