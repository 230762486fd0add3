"""Goal: journals are recordings, too: other tools decode them, and they can be played and exported.
Method: as test_recordings, with logged topics."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.wrappers_pb2 import StringValue
from mcap.reader import NonSeekingReader, make_reader
from mcap_protobuf.decoder import DecoderFactory as Protobuf
from mcap_ros1.decoder import DecoderFactory as Ros1
from rosbags.typesys import Stores, get_types_from_idl, get_typestore

import dds
from tests.spindle.cli.recordings.programs import (
    FIX,
    LONG,
    RECORD,
    STATE,
    Collecting,
    a_state,
    played,
    written,
)
from tests.spindle.cli.support import Cli
from tests.spindle.daemons import daemons
from tests.support import wait_until


def logged(name: str, of: object, node: dds.DomainParticipant, **more: Any) -> dds.Topic[Any]:
    return dds.Topic(node, name, of, dds.Qos(dds.Policy.Durability.Persistent), **more)


@pytest.fixture
def logging_node(runtime_dir: Path, tmp_path: Path) -> Iterator[dds.DomainParticipant]:
    """A program at a daemon that keeps journals in tmp_path / "journals"."""
    with daemons(runtime_dir, 1, ["--journal-dir", str(tmp_path / "journals")]), dds.DomainParticipant() as participant:
        yield participant


@pytest.mark.slow
def test_journals_are_decoded_by_others(cli: Cli, logging_node: dds.DomainParticipant, tmp_path: Path) -> None:
    """As they stand: each topic's file has its schema."""
    writers = [dds.DataWriter(logging_node, logged(name, of, logging_node))
               for name, of in (("state", STATE), ("record", RECORD), ("text", StringValue), ("raw", bytes))]
    for number in range(5):
        for writer, sample in zip(writers, (a_state(number), (number, 7), StringValue(value=str(number)), b"x"),
                                  strict=True):
            written(writer, sample)
    assert all(writer.wait_for_acks(LONG, persisted=True) for writer in writers)
    found: dict[str, list[Any]] = {}
    for path in sorted((tmp_path / "journals").glob("*.mcap")):
        with path.open("rb") as file:  # while the node writes them
            for schema, channel, message in NonSeekingReader(file).iter_messages():
                assert schema is not None
                found.setdefault(channel.topic, []).append((schema, channel.message_encoding, message.data))
        with path.open("rb") as file:
            if "record" in path.name or "text" in path.name:
                decoded = [one.decoded_message for one in NonSeekingReader(
                    file, decoder_factories=[Protobuf(), Ros1()]).iter_decoded_messages()]
                assert [getattr(one, "time", None) or getattr(one, "value", 0) for one in decoded] in (
                    [0, 1.0, 2.0, 3.0, 4.0], list("01234"))
    assert {topic: (of[0][0].encoding, of[0][1]) for topic, of in found.items()} == {
        "state": ("omgidl", "cdr"), "record": ("ros1msg", "ros1"), "text": ("protobuf", "protobuf"),
        "raw": ("", "application/octet-stream")}
    store = get_typestore(Stores.EMPTY)
    schema = found["state"][0][0]
    store.register(get_types_from_idl(schema.data.decode()))
    assert [store.deserialize_cdr(data, "flight/State").name for *_, data in found["state"]] == [
        f"n{number}" for number in range(5)]


@pytest.mark.slow
def test_journals_are_played_and_exported(cli: Cli, logging_node: dds.DomainParticipant, tmp_path: Path) -> None:
    """Also of an order group, whose messages are packets; from a live node's directory."""
    publisher = dds.Publisher(logging_node)
    one = dds.DataWriter(publisher, logged("one", STATE, logging_node, order="group"))
    two = dds.DataWriter(publisher, logged("two", RECORD, logging_node, order="group"))
    alone = dds.DataWriter(logging_node, logged("alone", FIX, logging_node))
    for number in range(20):
        one.write(a_state(number))
        two.write((number, 0))
        written(alone, FIX(f"a{number % 3}", number))
    alone.dispose(FIX("a1", 0))
    assert all(writer.wait_for_acks(LONG, persisted=True) for writer in (one, two, alone))
    journals, out = tmp_path / "journals", tmp_path / "out.mcap"
    result = cli("journal", "export", journals, "--format", "mcap", "-o", out)
    assert result.code == 0, result.err
    for source in (out, journals):
        listed = {one["topic"]: one for one in cli("replay", source, "--list", "--json").json["topics"]}
        assert {name: (of["types"], of["order"], of["level"]) for name, of in listed.items()} == {
            "one": (["flight::State"], "group", "logged"), "two": (["numpy(time:f8,feet:f4)"], "group", "logged"),
            "alone": (["flight::Fix"], "", "logged")}
        read = [dds.DataReader(logging_node, dds.Topic(logging_node, name, of, order=order)) for name, of, order in (
            ("x_one", STATE, "x_group"), ("x_two", RECORD, "x_group"), ("x_alone", FIX, ""))]
        with Collecting(*read) as collecting:
            played(cli, source, "--speed", 0, "--level", "atomic", "--rename", "one=x_one", "--rename", "two=x_two",
                   "--rename", "group=x_group", "--rename", "alone=x_alone")
            wait_until(lambda: len([one for one in collecting.got if hasattr(one[1], "number")
                                    or getattr(one[1], "dtype", None) is not None]) >= 40)
            in_order = sorted((one.sample_info.view_id, one.sample_info.sequence, topic, one)
                              for topic, one, _ in collecting.got if topic != "x_alone")
            assert [one.number if topic == "x_one" else one.time for *_, topic, one in in_order] == [
                number for number in range(20) for _ in range(2)]
            wait_until(lambda: sum(topic == "x_alone" for topic, *_ in collecting.got) > 20)
            ends = [state for topic, sample, state in collecting.got
                    if topic == "x_alone" and not hasattr(sample, "altitude")]
            assert dds.InstanceState.NotAliveDisposed in ends
        for reader in read:
            reader.close()
    with out.open("rb") as file:
        names = [channel.topic for schema, channel, _ in make_reader(file).iter_messages() if schema is not None]
    assert names.count("one") == names.count("two") == names.count("alone") == 20
