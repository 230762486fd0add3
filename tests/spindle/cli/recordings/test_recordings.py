"""Goal: what topics carried can be recorded from the shell, decoded by tools that don't know Spindle, and played again:
in its order, at its times, with its types, keys and ends. What can't be is said.
Method: a program with an embedded node that writes and reads; `spindle record` as a process beside it; `spindle replay`
in this process. Decoded with the mcap family and rosbags alone."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from google.protobuf.wrappers_pb2 import StringValue
from mcap.reader import NonSeekingReader, make_reader
from mcap.writer import Writer
from mcap_protobuf.decoder import DecoderFactory as Protobuf
from mcap_ros1.decoder import DecoderFactory as Ros1
from mcap_ros2.decoder import DecoderFactory as Ros2
from mcap_ros2.writer import Writer as Ros2Writer
from rosbags.typesys import Stores, get_types_from_idl, get_typestore

import dds
from dds.codecs.types import codec_for
from dds.messages.announced import type_of
from dds.nodes.ways import HostNode
from spindle.cli.recordings.lanes import BYTES, Form, conflict
from spindle.cli.recordings.rosmsg import class_of_message
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.journal.playing import PlayedFile
from tests.spindle.cli.recordings.programs import (
    FIX,
    GROWS,
    LONG,
    OTHER_STATE,
    RECORD,
    STATE,
    WIDER,
    Collecting,
    a_state,
    played,
    readers,
    recording,
    written,
)
from tests.spindle.cli.support import Cli, spawn
from tests.spindle.daemons import daemons
from tests.support import wait_until


@pytest.fixture
def node(runtime_dir: Path) -> Iterator[dds.DomainParticipant]:
    with dds.DomainParticipant.embedded() as participant:
        yield participant


@pytest.mark.slow
def test_everything_is_decoded_by_others(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    """A topic of each kind of type: IDL, NumPy, protobuf, bytes."""
    out = tmp_path / "all.mcap"
    states = dds.DataWriter(node, dds.Topic(node, "flight/state", STATE))
    records = dds.DataWriter(node, dds.Topic(node, "flight/record", RECORD))
    texts = dds.DataWriter(node, dds.Topic(node, "flight/text", StringValue))
    raw = dds.DataWriter(node, dds.Topic(node, "raw", bytes))
    other = dds.DataWriter(node, dds.Topic(node, "other", bytes))
    names = ["flight/state", "flight/record", "flight/text", "raw"]
    with recording(["flight/*", "raw"], out, node, names):
        for number in range(5):
            written(states, a_state(number))
            written(records, (number, 100 * number))
            written(texts, StringValue(value=str(number)))
            written(raw, b"%d" % number)
            written(other, b"not this")
    with out.open("rb") as file:
        found = list(make_reader(file, decoder_factories=[Protobuf(), Ros1()]).iter_messages())
        assert [channel.topic for _, channel, _ in found] == names * 5  # as they were delivered
        assert {channel.topic: (channel.message_encoding, schema and schema.encoding) for schema, channel, _ in found} \
            == {"flight/state": ("cdr", "omgidl"), "flight/record": ("ros1", "ros1msg"),
                "flight/text": ("protobuf", "protobuf"), "raw": ("application/octet-stream", "")}
        file.seek(0)
        decoded = list(make_reader(file, decoder_factories=[Protobuf(), Ros1()]).iter_decoded_messages(
            topics=["flight/record", "flight/text"]))
        assert [one.decoded_message.value for one in decoded[1::2]] == list("01234")
        assert [(one.decoded_message.time, one.decoded_message.feet) for one in decoded[::2]] == [
            (number, 100 * number) for number in range(5)]
        store = get_typestore(Stores.EMPTY)
        schema = next(schema for schema, channel, _ in found if channel.topic == "flight/state")
        store.register(get_types_from_idl(schema.data.decode()))
        got = [store.deserialize_cdr(message.data, schema.name.replace("::", "/"))
               for _, channel, message in found if channel.topic == "flight/state"]
        assert [(one.number, one.name, [(at.x, at.y) for at in one.track]) for one in got] == [
            (number, f"n{number}", [(number, -1.0)] * (number % 3)) for number in range(5)]
        assert [message.data for _, channel, message in found if channel.topic == "raw"] == [
            b"%d" % number for number in range(5)]
    listed = cli("replay", out, "--list")
    assert listed.code == 0 and "flight::State" in listed.out and "20 messages" in listed.out


@pytest.mark.slow
def test_played_again_it_is_the_same(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    """Samples, order, source timestamps; onto the same topics and renamed ones, whole or in part."""
    out = tmp_path / "r.mcap"
    topics = {name: dds.Topic(node, name, of) for name, of in (("a", STATE), ("b", RECORD), ("c", bytes))}
    writers = {name: dds.DataWriter(node, topic) for name, topic in topics.items()}
    with recording(["a", "b", "c"], out, node, ["a", "b", "c"]):
        for number in range(50):
            writers["a"].write(a_state(number), timestamp=1000 + number)
            writers["b"].write((number, 1), timestamp=2000 + number)
        written(writers["c"], *(b"%d" % number for number in range(50)))
    read = [dds.DataReader(node, topics[name]) for name in ("a", "b", "c")]
    renamed = dds.DataReader(node, dds.Topic(node, "d", STATE))
    with Collecting(*read, renamed) as collecting:
        played(cli, out, "--speed", 0)
        wait_until(lambda: len(collecting.got) >= 150)
        of = {name: [(one.sample_info.source_timestamp, one) for topic, one, _ in collecting.got if topic == name]
              for name in "abcd"}
        assert of["a"] == [(1000 + number, a_state(number)) for number in range(50)]
        assert [(at, one.time) for at, one in of["b"]] == [(2000 + number, number) for number in range(50)]
        assert [one for _, one in of["c"]] == [b"%d" % number for number in range(50)] and not of["d"]
        collecting.got.clear()
        result = played(cli, out, "--speed", 0, "--topics", "a", "--rename", "a=d", "--now", "--json")
        assert result.json["messages"] == 50 and result.json["delivered"]
        wait_until(lambda: len(collecting.got) >= 50)
        assert [(topic, one) for topic, one, _ in collecting.got] == [("d", a_state(number)) for number in range(50)]
        assert all(time.time_ns() - one.sample_info.source_timestamp < 60e9 for _, one, _ in collecting.got)


def test_the_order_of_a_group_is_kept(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    out = tmp_path / "g.mcap"
    one, two = (dds.Topic(node, name, of, order="group") for name, of in (("one", STATE), ("two", RECORD)))
    publisher = dds.Publisher(node)
    first, second = dds.DataWriter(publisher, one), dds.DataWriter(publisher, two)
    with recording(["group"], out, node, ["group"]):
        for number in range(60):
            if number % 3:
                first.write(a_state(number))
            else:
                second.write((number, 0))
        assert first.wait_for_acks(LONG) and second.wait_for_acks(LONG)
    with out.open("rb") as file:
        names = [channel.topic for _, channel, _ in make_reader(file).iter_messages()]
    assert names == ["one" if number % 3 else "two" for number in range(60)]
    with Collecting(dds.DataReader(node, one), dds.DataReader(node, two)) as collecting:
        played(cli, out, "--speed", 0)
        wait_until(lambda: len(collecting.got) >= 60)
    in_order = sorted((one.sample_info.view_id, one.sample_info.sequence, topic, one)
                      for topic, one, _ in collecting.got)
    assert [one.number if topic == "one" else one.time for _, _, topic, one in in_order] == list(range(60))


@pytest.mark.slow
def test_a_topic_alone_of_a_group(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    out = tmp_path / "g.mcap"
    writers = [dds.DataWriter(node, dds.Topic(node, name, STATE, order="group")) for name in ("one", "two")]
    with recording(["tw*"], out, node, ["group"]):
        for writer in writers:
            written(writer, a_state(1), a_state(2))
    with out.open("rb") as file:
        assert [channel.topic for _, channel, _ in make_reader(file).iter_messages()] == ["two", "two"]


@pytest.mark.slow
def test_instances_end_as_they_did(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    """Disposed by one writer, unregistered by another, left behind by a third that was closed."""
    out = tmp_path / "k.mcap"
    topic = dds.Topic(node, "fixes", FIX)
    keeping = dds.Qos(dds.Policy.WriterDataLifecycle(autodispose=False))
    writers = [dds.DataWriter(node, topic, keeping) for _ in range(3)]
    with recording(["fixes"], out, node, ["fixes"]):
        for number, writer in enumerate(writers):
            written(writer, FIX(f"a{number}", number), FIX("shared", number))
        writers[0].dispose(FIX("a0", 0))
        assert writers[0].wait_for_acks(LONG)  # else the node may take them in the other order
        writers[1].unregister_instance(FIX("a1", 0))
        assert writers[0].wait_for_acks(LONG) and writers[1].wait_for_acks(LONG)
        writers[2].close()
        written(writers[0], FIX("a0", 7))
    for writer in writers[:2]:
        writer.close()
    found = said(out)
    assert [what for what, *_ in found if what] == ["disposed", "unregistered", "closed"]
    assert all((what is None) != without for what, without, _ in found)
    again = tmp_path / "again.mcap"
    reader = dds.DataReader(node, dds.Topic(node, "again", FIX))
    with recording(["again"], again, node, ["again"]), Collecting(reader) as collecting:
        played(cli, out, "--speed", 0, "--rename", "fixes=again")
        wait_until(lambda: sum(hasattr(one, "altitude") for _, one, _ in collecting.got) >= 7)
    assert said(again)[:len(found)] == found
    assert {what for what, *_ in said(again)[len(found):]} <= {"closed"}  # the replay's own end
    ends = {state for _, one, state in collecting.got if not hasattr(one, "altitude")}
    assert dds.InstanceState.NotAliveNoWriters in ends


def said(path: Path) -> list[tuple[str | None, bool, bytes]]:
    """Of each message of a recording what it says if it is no sample, whether it is without a schema, and its bytes."""
    with path.open("rb") as file:
        return [(channel.metadata.get("what"), schema is None, message.data)
                for schema, channel, message in make_reader(file).iter_messages()]


@pytest.mark.slow
def test_types_that_changed_are_told_apart(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    out = tmp_path / "t.mcap"
    old, new = (dds.DataWriter(node, dds.Topic(node, "grows", of)) for of in (GROWS, WIDER))
    with recording(["grows"], out, node, ["grows"]):
        for number in range(4):
            written(*((old, GROWS(number)) if number % 2 else (new, WIDER(number, 9))))
    with out.open("rb") as file:
        texts = [schema.data.decode() for schema, *_ in make_reader(file).iter_messages() if schema]
    assert ["more" in text for text in texts] == [True, False, True, False]
    reader = dds.DataReader(node, dds.Topic(node, "grows", WIDER))
    with Collecting(reader) as collecting:
        played(cli, out, "--speed", 0)
        wait_until(lambda: len(collecting.got) >= 4)
        assert [one for _, one, _ in collecting.got] == [WIDER(0, 9), WIDER(1, 0), WIDER(2, 9), WIDER(3, 0)]


@pytest.mark.slow
def test_partitions_and_lifespans_are_kept(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    out = tmp_path / "p.mcap"
    topic = dds.Topic(node, "t", STATE)
    publisher = dds.Publisher(node, dds.Qos(dds.Policy.Partition(["blue"])))
    writer = dds.DataWriter(publisher, topic, dds.Qos(dds.Policy.Lifespan(dds.duration(seconds=3600))))
    with recording(["t"], out, node, ["t"]):
        written(writer, a_state(1), a_state(2))
    with out.open("rb") as file:  # the payload is the sample alone
        store = get_typestore(Stores.EMPTY)
        for schema, channel, message in make_reader(file).iter_messages():
            assert schema is not None and channel.metadata["partitions"] == "blue"
            if not store.types.get("flight/State"):
                store.register(get_types_from_idl(schema.data.decode()))
            assert bytes(store.serialize_cdr(store.deserialize_cdr(message.data, "flight/State"), "flight/State"))[4:] \
                == message.data[4:]
    blue, red = (dds.DataReader(dds.Subscriber(node, dds.Qos(dds.Policy.Partition([name]))), topic)
                 for name in ("blue", "red"))
    with Collecting(blue) as collecting:
        played(cli, out, "--speed", 0)
        wait_until(lambda: len(collecting.got) >= 2)
    assert [one for _, one, _ in collecting.got] == [a_state(1), a_state(2)] and not red.take(9)


@pytest.mark.slow
def test_times_are_kept_or_stretched(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    """Never faster than it was; a part of it begins and ends where it should. (Measures what can't be too short.)"""
    out = tmp_path / "t.mcap"
    with out.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        channel = writer.register_channel("t", "octets", 0)
        for number in range(10):
            writer.add_message(channel, 10**18 + number * 10**8, b"%d" % number, 10**18 + number * 10**8)
        writer.finish()
    reader = dds.DataReader(node, dds.Topic(node, "t", bytes))
    for options, numbers, seconds in (
            ((), range(10), 0.9), (("--speed", 3), range(10), 0.3),
            (("--start", 0.45, "--speed", 2), range(5, 10), 0.2),
            (("--start", "2001-09-09T01:46:40.300Z", "--duration", "0.25"), range(3, 6), 0.2)):
        with Collecting(reader) as collecting:
            begun = time.monotonic()
            played(cli, out, "--bytes", *options)
            assert time.monotonic() - begun >= seconds
            wait_until(lambda: len(collecting.got) >= len(numbers), what=str(options))  # noqa: B023
            assert [int(bytes(one)) for _, one, _ in collecting.got] == list(numbers)


@pytest.mark.slow
def test_played_in_a_loop_until_it_is_ended(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    out = tmp_path / "t.mcap"
    with recording(["t"], out, node, []):
        writer = dds.DataWriter(node, dds.Topic(node, "t", bytes))
        wait_until(lambda: readers(node._runtime.session, "t"))  # a topic that came later
        written(writer, b"1", b"2", b"3")
    reader = dds.DataReader(node, dds.Topic(node, "t", bytes))
    with Collecting(reader) as collecting, spawn("replay", out, "--loop", "--speed", 0, "--at", "+0.1") as command:
        wait_until(lambda: len(collecting.got) >= 12, 30)
        command.send_signal(15)
        _, err = command.communicate(timeout=30)
        assert command.returncode == 0 and b"messages" in err
    assert [bytes(one) for _, one, _ in collecting.got[:6]] == [b"1", b"2", b"3"] * 2


@pytest.mark.slow
def test_a_recorder_that_is_killed_leaves_what_it_had(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    out = tmp_path / "k.mcap"
    writer = dds.DataWriter(node, dds.Topic(node, "t", STATE))
    command = spawn("record", "t", "-o", out)
    try:
        wait_until(lambda: readers(node._runtime.session, "t"), 30)
        written(writer, *(a_state(number) for number in range(20)))
        wait_until(lambda: len(list(NonSeekingReader(out.open("rb")).iter_messages())) == 20, 15)
    finally:
        command.kill()
        command.communicate()
    reader = dds.DataReader(node, dds.Topic(node, "t", STATE))
    with Collecting(reader) as collecting:
        played(cli, out, "--speed", 0)
        wait_until(lambda: len(collecting.got) >= 20)


@pytest.mark.slow
def test_a_recording_that_is_cut_off_is_played_and_said(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    out = tmp_path / "c.mcap"
    with recording(["t"], out, node, []):
        writer = dds.DataWriter(node, dds.Topic(node, "t", bytes))
        wait_until(lambda: readers(node._runtime.session, "t"))
        written(writer, *(os.urandom(5000) for _ in range(500)))
    with out.open("r+b") as file:
        file.truncate(out.stat().st_size // 2)
    dds.DataReader(node, dds.Topic(node, "t", bytes))
    result = cli("replay", out, "--speed", 0, "--json")
    assert result.code == 1 and 0 < result.json["messages"] < 500
    assert "in the middle of a record" in result.err and "whole" in result.err
    assert cli("replay", out, "--list").code == 1


@pytest.mark.slow
def test_what_is_no_recording(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    (tmp_path / "x.mcap").write_bytes(b"a bag of another kind")
    result = cli("replay", tmp_path / "x.mcap")
    assert result.code == 10 and "is no MCAP file" in result.err
    assert cli("replay", tmp_path / "none.mcap").code == 10


@pytest.mark.slow
def test_a_topic_that_has_another_type_by_now(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    out = tmp_path / "o.mcap"
    with dds.DomainParticipant.embedded(1) as before:
        kept = dds.Qos(dds.Policy.Durability.TransientLocal)
        writers = [dds.DataWriter(before, dds.Topic(before, name, of, kept))
                   for name, of in (("a", STATE), ("b", RECORD))]
        with recording(["a", "b"], out, before, ["a", "b"], "--domain", 1):
            written(writers[0], a_state(1))
            written(writers[1], (1, 1))
    reader = dds.DataReader(node, dds.Topic(node, "a", OTHER_STATE))
    result = cli("replay", out, "--topics", "a")
    assert result.code == 1 and "topic 'a' has another type by now: flight::State" in result.err, result.err
    assert "--rename a=a_old" in result.err
    another = dds.DataReader(node, dds.Topic(node, "b", np.dtype([("time", "i8")])))
    result = cli("replay", out, "--topics", "b")
    assert result.code == 1 and "topic 'b' has another type by now" in result.err
    session = node._runtime.session
    session.declare_topic(TopicSpec("c", "numpy(time:i8)"))
    with session.open_writer("c"):  # by a program without the DDS API, which says no type
        result = cli("replay", out, "--topics", "b", "--rename", "b=c")
        assert result.code == 1 and "topic 'c' can't be played onto" in result.err and "--rename b=NEW" in result.err
    another.close()
    wait_until(lambda: not any(info.members for info in session.topics() if info.spec.name == "b"))
    played(cli, out, "--topics", "b")  # nobody has it open any more
    spec = next(info for info in session.topics() if info.spec.name == "b").spec
    assert (spec.type_name, spec.level) == ("numpy(time:f8,feet:f4)", Level.VOLATILE)  # as it was recorded
    played(cli, out, "--topics", "a", "--rename", "a=a_old")
    assert not reader.take(9)


@pytest.mark.slow
def test_types_that_do_not_go_together(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    """Programs may have a topic with such types. Who plays both can't, and is told why, before a topic is declared."""
    one, two, both = (tmp_path / f"{name}.mcap" for name in ("one", "two", "both"))
    with dds.DomainParticipant(node_id=1) as beside:
        writers = [dds.DataWriter(node, dds.Topic(node, "typed", STATE)),
                   dds.DataWriter(beside, dds.Topic(beside, "typed", OTHER_STATE)),
                   dds.DataWriter(node, dds.Topic(node, "other", RECORD))]
        with recording(["typed"], one, node, ["typed"]):
            written(writers[0], a_state(1))
        with recording(["typed"], two, node, ["typed"]):
            written(writers[1], OTHER_STATE("1", 1.0))
        with recording(["typed", "other"], both, node, ["typed", "other"]):
            written(writers[0], a_state(1))
            written(writers[1], OTHER_STATE("1", 1.0))
            written(writers[2], (1, 1))
    for files, advice in ((both,), "Play other topics with --topics"), ((one, two), "Play the files one at a time"):
        result = cli("replay", *files, "--rename", "typed=new")
        assert result.code == 1 and advice in result.err, result.err
        assert "typed can't be played" in result.err and "flight::State and flight::State (" in result.err
    result = cli("replay", one, both, "--topics", "other", "--topics", "typed", "--rename", "typed=new", "--rename",
                 "other=new")
    assert result.code == 1 and "can't be played onto new together" in result.err
    assert "new" not in [info.spec.name for info in node._runtime.session.topics()]
    played(cli, both, "--topics", "other", "--rename", "other=new")


def test_which_types_go_together() -> None:
    wide, narrow, text = (Form(codec.type_name, codec.data_type, type=type_of(codec)) for codec in (
        codec_for(RECORD), codec_for(np.dtype([("time", "f8")])), codec_for(StringValue)))
    for pair in ((wide, narrow), (wide, text), (text, BYTES)):
        assert conflict(pair, grouped=False).startswith(f"{pair[0].name} and {pair[1].name}")
    assert not conflict((wide, narrow), grouped=True)  # there the group agrees on no type
    assert not conflict((wide, wide, Form("foreign", None)), grouped=False)


def test_an_unknown_encoding(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    out = tmp_path / "u.mcap"
    with out.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        schema = writer.register_schema("S", "flatbuffer", b"abc")
        for topic, of in (("strange", "flatbuffer"), ("plain", "json")):
            channel = writer.register_channel(topic, of, schema)
            writer.add_message(channel, 5, topic.encode(), 5)
        writer.finish()
    result = cli("replay", out)
    assert result.code == 1 and "strange can't be played: the encoding is flatbuffer" in result.err
    assert "--bytes" in result.err and cli("replay", out, "--list").code == 0
    readers = [dds.DataReader(node, dds.Topic(node, name, bytes)) for name in ("strange", "plain")]
    with Collecting(*readers) as collecting:
        played(cli, out, "--bytes")
        wait_until(lambda: len(collecting.got) >= 2)
        assert sorted(bytes(one) for _, one, _ in collecting.got) == [b"plain", b"strange"]
    result = cli("replay", out, "--topics", "nothing")
    assert result.code == 1 and "they have the topics plain, strange" in result.err
    assert cli("replay", out, "--rename", "x=y").code == 2


NESTED = """std_msgs/Header header
float64[3] position  # metres
int32 KIND=5
string<=20 name "none"
Leg[<=4] legs
bool ok
================================================================================
MSG: std_msgs/Header
builtin_interfaces/Time stamp
string frame_id
================================================================================
MSG: builtin_interfaces/Time
int32 sec
uint32 nanosec
================================================================================
MSG: my_msgs/Leg
string to
uint16[] km
"""


@pytest.mark.slow
def test_a_bag_of_ros_2(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    bag = tmp_path / "bag.mcap"
    with bag.open("wb") as stream:
        writer = Ros2Writer(stream)
        schema = writer.register_msgdef("my_msgs/msg/Pose", NESTED)
        for number in range(3):
            writer.write_message("/pose", schema, {
                "header": {"stamp": {"sec": number, "nanosec": 7}, "frame_id": "map"}, "position": [1.0, 2.0, number],
                "name": f"n{number}", "legs": [{"to": "LSZH", "km": [number, 1]}], "ok": True}, log_time=number + 1,
                publish_time=number + 1)
        writer.finish()
    assert "my_msgs/msg/Pose" in cli("replay", bag, "--list").out
    cls = class_of_message("my_msgs/msg/Pose", NESTED.encode())
    reader = dds.DataReader(node, dds.Topic(node, "/pose", cls))
    assert reader.topic.typename == "my_msgs::msg::dds_::Pose_"
    out = tmp_path / "again.mcap"
    with Collecting(reader) as collecting, recording(["/pose"], out, node, ["/pose"]):
        played(cli, bag, "--speed", 0)
        wait_until(lambda: len(collecting.got) >= 3)
    (first, *_), last = collecting.got, collecting.got[-1][1]
    assert (first[1].header.frame_id, list(first[1].position)) == ("map", [1.0, 2.0, 0.0])
    assert (last.header.stamp.sec, last.name, last.legs[0].to, list(last.legs[0].km)) == (2, "n2", "LSZH", [2, 1])
    with bag.open("rb") as stream, out.open("rb") as again:  # byte for byte
        assert [one.data for *_, one in make_reader(stream).iter_messages()] == [
            one.data for *_, one in make_reader(again).iter_messages()]
        stream.seek(0)
        assert list(make_reader(stream, decoder_factories=[Ros2()]).iter_decoded_messages())


def test_protobuf_of_others(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    from mcap_protobuf.writer import Writer as ProtobufWriter

    out = tmp_path / "p.mcap"
    with out.open("wb") as stream, ProtobufWriter(stream) as writer:
        for number in range(3):
            writer.write_message("text", StringValue(value=str(number)), number, number)
    reader = dds.DataReader(node, dds.Topic(node, "text", StringValue))
    with Collecting(reader) as collecting:
        played(cli, out)
        wait_until(lambda: len(collecting.got) >= 3)
        assert [one.value for _, one, _ in collecting.got] == ["0", "1", "2"]


def test_history_and_count(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    out = tmp_path / "h.mcap"
    topic = dds.Topic(node, "kept", STATE, dds.Qos(dds.Policy.Durability.TransientLocal, dds.Policy.History.KeepAll))
    writer = dds.DataWriter(node, topic)
    written(writer, *(a_state(number) for number in range(9)))
    result = cli("record", "kept", "-o", out, "--history", "--count", 4, "--json")
    assert result.code == 0 and result.json["messages"] == 4, result.err
    result = cli("record", "kept", "-o", out, "--duration", 0.2)
    assert result.code == 10 and "exists already" in result.err
    result = cli("record", "kept", "-o", out, "--duration", 0.2, "--force", "--json")
    assert result.code == 0 and result.json["messages"] == 0
    file = PlayedFile(out)
    assert not file.problem and not file.channels
    file.close()
    assert cli("record", "kept").code == 2


@pytest.mark.slow
def test_a_full_disk_ends_a_recording_that_stays_whole(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    writer = dds.DataWriter(node, dds.Topic(node, "t", bytes))
    out = tmp_path / "f.mcap"
    import resource

    command = spawn("record", "t", "-o", out, "--compression", "none", preexec_fn=lambda: resource.setrlimit(
        resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)))
    with command:
        wait_until(lambda: readers(node._runtime.session, "t"), 30)

        def ended() -> bool:
            writer.write(os.urandom(16000))
            return command.poll() is not None

        wait_until(ended, 30)
        _, err = command.communicate()
    assert command.returncode == 10 and b"cannot write the recording" in err and b"is whole" in err, err
    file = PlayedFile(out)
    assert not file.problem and all(len(one.payload) == 16000 for one in file.messages())
    file.close()


@pytest.mark.slow
def test_a_recorder_goes_on_at_the_next_node(runtime_dir: Path, tmp_path: Path) -> None:
    """Where it stood: its node is killed while another one's writers go on; each message is there once, in order."""
    out = tmp_path / "n.mcap"
    with daemons(runtime_dir, 3) as running, dds.DomainParticipant(
            way=HostNode(2, runtime_dir)) as program:
        writer = dds.DataWriter(program, dds.Topic(program, "t", STATE, qos=dds.Qos(
            dds.Policy.Durability.TransientLocal, dds.Policy.History.KeepAll)))
        keeper = dds.DataReader(program, writer.topic)
        with spawn("record", "t", "late*", "-o", out, "--node", 1, "--keep-all") as command:
            session = program._runtime.session
            wait_until(lambda: any(one.app_name == "spindle record" for one in session.endpoints("t")), 30)
            written(writer, *(a_state(number) for number in range(50)))
            running[0].kill()
            for number in range(50, 100):
                writer.write(a_state(number))
            late = dds.DataWriter(program, dds.Topic(program, "late", bytes))
            wait_until(lambda: any(one.app_name == "spindle record" and one.node_id != 1
                                   for one in session.endpoints("late")), 40)
            written(writer, *(a_state(number) for number in range(100, 120)))
            written(late, b"late")
            command.send_signal(2)
            _, err = command.communicate(timeout=30)
            assert command.returncode == 0 and b"goes on at node" in err, err
        assert keeper
    with out.open("rb") as file:
        payloads = [message.data for _, channel, message in make_reader(file).iter_messages() if channel.topic == "t"]
        file.seek(0)
        names = {channel.topic for _, channel, _ in make_reader(file).iter_messages()}
    assert [codec_for(STATE).decode(one).number for one in payloads] == list(range(120)) and names == {"t", "late"}


@pytest.mark.slow
def test_large_samples(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    """Of several megabytes, alone and in an order group; between small ones, whose order they keep."""
    out = tmp_path / "l.mcap"
    whole = [b"small", os.urandom(3 << 20), b"another", os.urandom(2 << 20)]
    topics = [dds.Topic(node, name, bytes, size_max=4 << 20, order=order) for name, order in (("a", ""), ("b", "g"))]
    writers = [dds.DataWriter(node, topic) for topic in topics]
    with recording(["a", "g"], out, node, ["a", "g"], "--keep-all"):
        for one in whole:
            for writer in writers:
                written(writer, one)
    with out.open("rb") as file:
        assert [(channel.topic, message.data) for _, channel, message in make_reader(file).iter_messages()] == [
            (name, one) for one in whole for name in "ab"]
    with Collecting(*(dds.DataReader(node, topic) for topic in topics)) as collecting:
        played(cli, out, "--speed", 0)
        wait_until(lambda: len(collecting.got) >= 8, 20)
        for name in "ab":
            assert [bytes(one) for topic, one, _ in collecting.got if topic == name] == whole
