"""Goal: coherent sets are recorded and played as sets: each comes whole, at one place of its order, or not at all.
Other tools see messages as ever.
Method: programs that write sets, `spindle record` and `spindle replay` beside them. What came together in one set has
one sequence number. Files that lack a part of a set are made by the writer of recordings."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcap.reader import make_reader

import dds
from spindle.journal.recording import SET_FIRST, SET_LAST, SET_MORE, RecordingWriter
from tests.spindle.cli.recordings.programs import FIX, LONG, STATE, Collecting, a_state, played, recording, written
from tests.spindle.cli.support import Cli
from tests.spindle.daemons import daemons
from tests.support import halt, wait_until

OF_TOPIC = dds.Qos(dds.Policy.PresentationAccessScope.Topic(coherent_access=True, ordered_access=True))
OF_GROUP = dds.Qos(dds.Policy.PresentationAccessScope.Group(coherent_access=True, ordered_access=True))


@pytest.fixture
def node(runtime_dir: Path) -> Iterator[dds.DomainParticipant]:
    with dds.DomainParticipant.embedded() as participant:
        yield participant


def together(collected: Collecting, *topics: str) -> list[list[tuple[str, int]]]:
    """(topic, number) of what came of topics in one order, by its places in that."""
    places: dict[tuple[int, int], list[tuple[str, int]]] = {}
    for topic, one, _ in collected.got:
        if (not topics or topic in topics) and (hasattr(one, "number") or hasattr(one, "altitude")):
            info = one.sample_info
            places.setdefault((info.view_id, info.sequence), []).append(
                (topic, one.number if hasattr(one, "number") else one.altitude))
    return [places[place] for place in sorted(places)]


def places_in(path: Path) -> list[tuple[str, str]]:
    """(topic, what its channel says of a set) of the messages of a file, as any tool reads them."""
    with path.open("rb") as file:
        return [(channel.topic, channel.metadata.get("set", "")) for _, channel, _ in make_reader(file).iter_messages()]


@pytest.mark.parametrize("size_max", [0, 256])
def test_sets_of_a_topic(cli: Cli, node: dds.DomainParticipant, tmp_path: Path, size_max: int) -> None:
    """Of one packet and of several; single samples between them stay single. Readers that want sets get them."""
    out = tmp_path / "sets.mcap"
    topic = dds.Topic(node, "t", STATE, size_max=size_max)
    publisher = dds.Publisher(node, OF_TOPIC)
    writer = dds.DataWriter(publisher, topic)
    with recording(["t"], out, node, ["t"]):
        for first in range(0, 40, 8):
            written(writer, a_state(first))
            with publisher.coherent():
                for number in range(first + 1, first + 8):
                    writer.write(a_state(number))
        assert writer.wait_for_acks(LONG)
    assert places_in(out) == [("t", place) for place in ["", SET_FIRST, *[SET_MORE] * 5, SET_LAST]] * 5
    reader = dds.DataReader(dds.Subscriber(node, OF_TOPIC), topic)
    with Collecting(reader) as collecting:
        result = played(cli, out, "--speed", 0, "--json")
        wait_until(lambda: len(collecting.got) >= 40)
    assert result.json["messages"] == 40 and not result.json["torn_sets"]
    assert together(collecting) == [
        one for first in range(0, 40, 8) for one in ([("t", first)], [("t", n) for n in range(first + 1, first + 8)])]


def test_sets_over_topics_of_an_order_group(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    """With ends of instances in them; and of one of the topics alone, which gets its part as a set."""
    out = tmp_path / "group.mcap"
    states, fixes = (dds.Topic(node, name, of, order="group") for name, of in (("states", STATE), ("fixes", FIX)))
    publisher = dds.Publisher(node, OF_GROUP)
    first, second = dds.DataWriter(publisher, states), dds.DataWriter(publisher, fixes)
    with recording(["group"], out, node, ["group"]):
        for number in range(0, 30, 3):
            with publisher.coherent():
                first.write(a_state(number))
                second.write(FIX(f"a{number}", number + 1))
                second.dispose(FIX(f"a{number}", 0))
                first.write(a_state(number + 2))
            written(second, FIX("alone", 1000 + number))
        assert first.wait_for_acks(LONG)
    with Collecting(*(dds.DataReader(node, topic) for topic in (states, fixes))) as collecting:
        played(cli, out, "--speed", 0)
        wait_until(lambda: sum(map(len, together(collecting))) >= 40)
        found = [sorted(one) for one in together(collecting)]
        assert found == [one for n in range(0, 30, 3) for one in (
            [("fixes", n + 1), ("states", n), ("states", n + 2)], [("fixes", 1000 + n)])]
        assert sum(state == dds.InstanceState.NotAliveDisposed for *_, state in collecting.got) >= 10
        collecting.got.clear()
        played(cli, out, "--speed", 0, "--topics", "states")
        wait_until(lambda: len(collecting.got) >= 20)
        assert together(collecting) == [[("states", n), ("states", n + 2)] for n in range(0, 30, 3)]


def test_a_count_ends_behind_a_set(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    out = tmp_path / "c.mcap"
    topic = dds.Topic(node, "t", STATE, dds.Qos(dds.Policy.Durability.TransientLocal, dds.Policy.History.KeepAll))
    publisher = dds.Publisher(node, OF_TOPIC)
    writer = dds.DataWriter(publisher, topic)
    for _ in range(3):
        with publisher.coherent():
            written_now = [writer.write(a_state(number)) for number in range(3)]
        assert len(written_now) == 3 and writer.wait_for_acks(LONG)
    result = cli("record", "t", "-o", out, "--history", "--count", 4, "--json")
    assert result.code == 0 and result.json["messages"] == 6, result.err
    assert [place for _, place in places_in(out)] == [SET_FIRST, SET_MORE, SET_LAST] * 2


def test_a_set_of_which_a_part_is_missing_is_left_out(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    """The file was cut off within one, or lacks its beginning."""
    out = tmp_path / "torn.mcap"
    writer = RecordingWriter(out, {})
    channels = {place: writer.channel("t", None, {"level": "atomic", "size_max": "0", "what": "sample", **(
        {"set": place} if place else {})}) for place in ("", SET_FIRST, SET_MORE, SET_LAST)}
    for at, (place, payload) in enumerate(
            [(SET_MORE, b"no"), (SET_LAST, b"no"), ("", b"1"), (SET_FIRST, b"2"), (SET_MORE, b"3"), (SET_LAST, b"4"),
             (SET_FIRST, b"no"), (SET_FIRST, b"5"), (SET_LAST, b"6"), (SET_FIRST, b"no"), (SET_MORE, b"no")]):
        writer.add(channels[place], at, 1000, 1000, payload)
    writer.close()
    reader = dds.DataReader(node, dds.Topic(node, "t", bytes))
    with Collecting(reader) as collecting:
        result = cli("replay", out, "--bytes", "--json")
        assert result.code == 0 and result.json["torn_sets"] == 3, result.err
        assert "3 coherent sets were left out" in result.err
        wait_until(lambda: len(collecting.got) >= 6)
    assert [bytes(one) for _, one, _ in collecting.got] == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert len({one.sample_info.sequence for _, one, _ in collecting.got}) == 3


def test_a_file_that_says_nonsense_of_a_set(cli: Cli, tmp_path: Path) -> None:
    out = tmp_path / "n.mcap"
    writer = RecordingWriter(out, {})
    writer.add(writer.channel("t", None, {"set": "whatever"}), 1, 1, 1, b"x")
    writer.close()
    result = cli("replay", out, "--list")
    assert result.code == 10 and "the 'whatever' of a set" in result.err


@pytest.mark.slow
def test_sets_in_journals(cli: Cli, runtime_dir: Path, tmp_path: Path) -> None:
    """Played from journals, and from what is exported of them."""
    journals, out = tmp_path / "journals", tmp_path / "out.mcap"
    persistent = dds.Qos(dds.Policy.Durability.Persistent)
    with daemons(runtime_dir, 1, ["--journal-dir", str(journals)]), dds.DomainParticipant() as program:
        of_topic, of_group = dds.Publisher(program, OF_TOPIC), dds.Publisher(program, OF_GROUP)
        alone = dds.DataWriter(of_topic, dds.Topic(program, "alone", STATE, persistent, size_max=256))
        grouped = [dds.DataWriter(of_group, dds.Topic(program, name, STATE, persistent, order="g")) for name in "ab"]
        for number in range(0, 24, 6):
            with of_topic.coherent():
                for one in range(6):
                    alone.write(a_state(number + one))
            with of_group.coherent():
                for writer in grouped:
                    writer.write(a_state(number))
        assert all(one.wait_for_acks(LONG, persisted=True) for one in (alone, *grouped))
        assert cli("journal", "export", journals, "--format", "mcap", "-o", out).code == 0
        again: list[dds.DataReader[Any]] = [dds.DataReader(dds.Subscriber(program, OF_TOPIC),
                                                           dds.Topic(program, "x", STATE, size_max=256))]
        again += [dds.DataReader(program, dds.Topic(program, f"x{name}", STATE, order="xg")) for name in "ab"]
        for source in (journals, out):
            with Collecting(*again) as collecting:
                played(cli, source, "--speed", 0, "--level", "atomic", "--rename", "alone=x", "--rename", "g=xg",
                       "--rename", "a=xa", "--rename", "b=xb")
                wait_until(lambda collecting=collecting: len(collecting.got) >= 32)
            assert together(collecting, "x") == [
                [("x", number + one) for one in range(6)] for number in range(0, 24, 6)]
            assert [sorted(one) for one in together(collecting, "xa", "xb")] == [
                [("xa", number), ("xb", number)] for number in range(0, 24, 6)]


@pytest.mark.slow
def test_all_that_was_delivered_before_the_end_is_recorded(cli: Cli, node: dds.DomainParticipant, tmp_path: Path
                                                           ) -> None:
    """More than is taken at once."""
    out = tmp_path / "all.mcap"
    writer = dds.DataWriter(node, dds.Topic(node, "t", bytes))
    with recording(["t"], out, node, ["t"], "--keep-all") as command:
        halt(command.pid)
        written(writer, *(b"%d" % number for number in range(2000)))
        command.send_signal(2)
        command.send_signal(18)  # SIGCONT
    assert len(places_in(out)) == 2000
