"""Goal: writers that come and go take no more channels of a recording than live at the same time, and are told apart as
ever.

Method: what writers say, as contents have it; a program whose writers of instances end one after the other, and the
recording played.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from mcap.reader import make_reader

import dds
from dds.messages.contents import CLOSED, CLOSED_DISPOSED, GONE, Said, node_of
from dds.messages.inline_qos import NOTHING
from spindle.cli.recordings.tracks import Writers
from tests.spindle.cli.recordings.programs import FIX, LONG, Collecting, played, recording, written
from tests.spindle.cli.support import Cli
from tests.support import wait_until


@pytest.fixture
def node(runtime_dir: Path) -> Iterator[dds.DomainParticipant]:
    with dds.DomainParticipant.embedded() as participant:
        yield participant


def handle(node_id: int, number: int, relay: int = 0) -> int:
    return relay << 32 | node_id << 16 | number


def said(kind: str, writer: int) -> Said:
    return Said(kind, b"", writer, 0, 0, 0, NOTHING)


def test_a_name_is_of_one_writer_at_a_time_and_says_its_node() -> None:
    writers = Writers()
    first, second, relayed, other = handle(1, 7), handle(1, 900), handle(1, 5, relay=3), handle(2, 7)
    names = [writers.name(one) for one in (first, second, relayed, other)]
    assert len(set(names)) == 4 and [node_of(name) for name in names] == [1, 1, 1, 2]
    assert names == [writers.name(one) for one in (first, second, relayed, other)]
    writers.end(said(CLOSED, second))
    assert writers.name(handle(2, 8)) not in names and writers.name(handle(1, 901)) == names[1]
    assert writers.name(second) not in names, "it has come again"
    writers.end(said(GONE, handle(1, 0)))
    assert writers.name(other) == names[3] and writers.name(handle(1, 902)) in names[:3]
    writers.end(said(CLOSED_DISPOSED, handle(3, 3)))  # of which nothing was recorded


def test_a_thousand_lives_of_a_writer_take_one_name() -> None:
    writers = Writers()
    for number in range(1000):
        assert writers.name(handle(1, number)) == handle(1, 1)
        writers.end(said(CLOSED, handle(1, number)))


@pytest.mark.slow
def test_writers_that_come_and_go_are_played(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    """Each is of instances of its own, which end with it; one stays."""
    out = tmp_path / "lives.mcap"
    topic = dds.Topic(node, "fixes", FIX)
    stays = dds.DataWriter(node, topic)
    with recording(["fixes"], out, node, ["fixes"]):
        written(stays, FIX("stays", 0))
        for number in range(8):
            writer = dds.DataWriter(node, topic)
            written(writer, FIX(f"a{number}", number))
            writer.close()
        written(stays, FIX("stays", 1))
        assert stays.wait_for_acks(LONG)
    with out.open("rb") as file:
        channels = {channel.id for _, channel, _ in make_reader(file).iter_messages()}
    assert len(channels) == 3, "of two writers, and of their ends"
    reader = dds.DataReader(node, dds.Topic(node, "again", FIX))
    with Collecting(reader) as collecting:
        played(cli, out, "--speed", 0, "--rename", "fixes=again")
        wait_until(lambda: len(collecting.got) >= 10 + 9, 20, "samples and ends")
    samples = [one for _, one, _ in collecting.got if hasattr(one, "altitude")]
    assert samples == [FIX("stays", 0), *(FIX(f"a{number}", number) for number in range(8)), FIX("stays", 1)]
