"""Goal: what can't be meant is said at once, and names are names. Method: a recording of a few messages, played in this
process onto an embedded node."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import dds
from dds.idl import make_idl_struct
from spindle.cli.common import Target
from spindle.cli.recordings.recorder import Recorder
from spindle.client import Session
from spindle.errors import AccessDenied, NoResources
from spindle.journal.recording import RecordingWriter
from tests.spindle.cli.recordings.programs import played, recording, written
from tests.spindle.cli.support import ROOT, Cli

BRACKETS = "raw[1]"


@pytest.fixture
def node(runtime_dir: Path) -> Iterator[dds.DomainParticipant]:
    with dds.DomainParticipant.embedded() as participant:
        yield participant


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Ten messages in a second, as of a program that counts its time from 0."""
    writer = RecordingWriter(tmp_path / "r.mcap", {})
    channel = writer.channel(BRACKETS, None, {})
    for number in range(10):
        writer.add(channel, number, number * 10**8, number * 10**8, b"%d" % number)
    writer.close()
    return writer.path


@pytest.mark.parametrize("more", [["--loop"], [], ["--loop", "--duration", "3"]])
def test_a_part_in_which_nothing_is(cli: Cli, node: dds.DomainParticipant, file: Path, more: list[str]) -> None:
    """It is said; and not played again and again, with a processor of its own."""
    with dds.DataReader(node, dds.Topic(node, BRACKETS, bytes)):
        result = cli("replay", file, "--bytes", "--start", "5", *more)
    assert result.code == 1 and "nothing to play in this part: the files last 900 ms" in result.err


@pytest.mark.slow
def test_names_that_look_like_patterns(cli: Cli, node: dds.DomainParticipant, file: Path, tmp_path: Path) -> None:
    with dds.DataReader(node, dds.Topic(node, BRACKETS, bytes)):
        result = played(cli, file, "--bytes", "--speed", "0", "--topics", BRACKETS, "--json")
    assert result.json["messages"] == 10
    out = tmp_path / "again.mcap"
    with recording([BRACKETS], out, node, [BRACKETS]):
        written(dds.DataWriter(node, dds.Topic(node, BRACKETS, bytes)), b"1", b"2")
    assert cli("replay", out, "--list", "--json").json["topics"][0]["messages"] == 2


def test_two_files_of_which_one_begins_at_zero(cli: Cli, node: dds.DomainParticipant, file: Path, tmp_path: Path
                                               ) -> None:
    """The time 0 is a time."""
    writer = RecordingWriter(tmp_path / "later.mcap", {})
    writer.add(writer.channel("later", None, {}), 0, 5 * 10**8, 5 * 10**8, b"x")
    writer.close()
    with dds.DataReader(node, dds.Topic(node, BRACKETS, bytes)), dds.DataReader(node, dds.Topic(node, "later", bytes)):
        result = played(cli, file, writer.path, "--bytes", "--speed", "0", "--json")
    assert result.json["messages"] == 11


def test_a_time_of_writing_that_no_sample_can_have(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    """As other tools write one that they don't know: the sample is of now, and all others are played as they were."""
    writer = RecordingWriter(tmp_path / "t.mcap", {})
    channel, times = writer.channel("t", None, {}), (7, 2**63 - 1, 2**64 - 1, 9)
    for number, at in enumerate(times):
        writer.add(channel, number, 1, at, b"%d" % number)
    writer.close()
    with dds.DataReader(node, dds.Topic(node, "t", bytes), qos=dds.Qos(dds.Policy.History.KeepAll)) as reader:
        assert played(cli, writer.path, "--bytes", "--speed", "0", "--json").json["messages"] == 4
        stamps = [one.sample_info.source_timestamp for one in reader.take(10)]
    assert (stamps[0], stamps[3]) == (7, 9) and all(1 << 60 < one < (1 << 63) - 1 for one in stamps[1:3])


@pytest.mark.parametrize("option, value", [
    ("--speed", "nan"), ("--timeout", "nan"), ("--start", "9" * 400), ("--duration", "9" * 400),
    ("--start", "0001-01-01"), ("--at", "0001-01-01")])
def test_numbers_that_are_none(cli: Cli, file: Path, option: str, value: str) -> None:
    result = cli("replay", file, option, value)
    assert result.code == 2 and option in result.err


def test_as_long_as_it_takes(cli: Cli, node: dds.DomainParticipant, file: Path) -> None:
    with dds.DataReader(node, dds.Topic(node, BRACKETS, bytes)):
        assert played(cli, file, "--bytes", "--timeout", "inf", "--speed", "inf", "--json").json["messages"] == 10


def test_what_means_nothing_is_said(cli: Cli, node: dds.DomainParticipant, file: Path, tmp_path: Path) -> None:
    """A file called "-", a topic that is played onto two, a pattern that nothing is like."""
    result = cli("record", BRACKETS, "-o", "-")
    assert result.code == 2 and "spindle sub" in result.err and not Path("-").exists()
    renames = "--rename", f"{BRACKETS}=one", "--rename", f"{BRACKETS}=two"
    result = cli("replay", file, "--bytes", *renames)
    assert result.code == 2 and f"{BRACKETS}=one already" in result.err
    with dds.DataReader(node, dds.Topic(node, BRACKETS, bytes)):
        result = played(cli, file, "--bytes", "--speed", "0", "--topics", BRACKETS, "--topics", "more/*", "--json")
    assert result.json["messages"] == 10 and "--topics more/*: no topic" in result.err


def test_what_is_left_out_because_it_is_damaged_is_said(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    writer = RecordingWriter(tmp_path / "d.mcap", {}, "none")
    channel = writer.channel(BRACKETS, None, {})
    for number in range(30):
        writer.add(channel, number, number * 10**6, number * 10**6, b"%04d" % number)
        if number % 10 == 9:
            writer.flush()
    writer.close()
    data = bytearray(writer.path.read_bytes())
    data[data.index(b"0015")] ^= 0xFF
    writer.path.write_bytes(data)
    with dds.DataReader(node, dds.Topic(node, BRACKETS, bytes)):
        assert cli("replay", writer.path, "--bytes").code == 10
        result = cli("replay", writer.path, "--bytes", "--skip-damaged")
    assert result.code == 0 and "20 messages" in result.err
    assert "1 chunk is damaged, the first at byte" in result.err and "left out" in result.err


def test_a_type_that_no_schema_can_say(cli: Cli, node: dds.DomainParticipant, tmp_path: Path) -> None:
    """It is recorded as the bytes that it is, and whoever records it hears so, and why, before he needs the file."""
    listed = make_idl_struct("Listed", "flight.Listed", {"values": list[int]})
    topic = dds.Topic(node, "listed", listed, qos=dds.Qos(dds.Policy.Durability.TransientLocal))
    writer = dds.DataWriter(node, topic)
    written(writer, listed([1, 2]))
    result = cli("record", "listed", "-o", tmp_path / "listed.mcap", "--history", "--count", 1)
    assert writer and result.code == 0 and "1 messages of 1 topics" in result.err
    assert "listed is recorded without a schema" in result.err and "`sequence[...]` has one" in result.err
    result = cli("typeof", "listed")
    assert result.code == 1 and "`sequence[...]` has one" in result.err


LONG_S = 15.0
# `spindle` where the soft limit of descriptors is low, as it is in shells for hundreds of topics.
FEW = ("import resource, runpy; limit = resource.RLIMIT_NOFILE; "
       "resource.setrlimit(limit, (64, resource.getrlimit(limit)[1])); "
       "runpy.run_module('spindle.cli', run_name='__main__')")


@pytest.mark.slow
def test_more_topics_than_the_soft_limit_of_descriptors_allows(node: dds.DomainParticipant, tmp_path: Path) -> None:
    """Recorded, printed and played."""
    count, out = 30, tmp_path / "many.mcap"
    kept = dds.Qos(dds.Policy.Durability.TransientLocal)
    writers = [dds.DataWriter(node, dds.Topic(node, f"many{number}", bytes, kept)) for number in range(count)]
    for writer in writers:
        writer.write(b"one")
    for arguments in (["record", "many*", "-o", out, "--history", "--count", count, "--duration", 60],
                      ["sub", "many*", "--history", "--count", count, "--timeout", 60], ["replay", out, "--speed", 0]):
        done = subprocess.run([sys.executable, "-c", FEW, *map(str, arguments)], cwd=ROOT, capture_output=True,
                              timeout=90)
        assert done.returncode == 0, done.stderr
        if arguments[0] == "record":
            assert b"30 messages of 30 topics" in done.stderr


def test_a_topic_that_can_t_be_opened_is_tried_again(node: dds.DomainParticipant, tmp_path: Path,
                                                     monkeypatch: pytest.MonkeyPatch,
                                                     capsys: pytest.CaptureFixture[str]) -> None:
    """When something has happened since, unless the rules forbid it; it is said once, and that it is recorded now."""
    opened, errors = Recorder._reader, {"late": [NoResources("no descriptor is left")] * 2, "secret": [
        AccessDenied("no rule lets you")]}

    def reader(self: Recorder, session: Any, info: Any, **more: Any) -> Any:
        asked.append(info.spec.name)
        if left := errors[info.spec.name]:
            raise left.pop()
        return opened(self, session, info, **more)

    asked: list[str] = []
    monkeypatch.setattr(Recorder, "_reader", reader)
    written = [dds.DataWriter(node, dds.Topic(node, name, bytes)) for name in errors]
    writer = RecordingWriter(tmp_path / "r.mcap", {})
    with Recorder(Target(), node._runtime.session, ["*"], writer, False, False, False) as recorder:
        for _ in range(4):
            recorder.look()
            recorder._opening.settle((), LONG_S)
            recorder.take_up()
        assert set(recorder.tracks) == {"late"} and sorted(asked) == ["late"] * 3 + ["secret"] and written
        assert not recorder.lacking, "what may not be read is no lack"
    writer.close()
    said = capsys.readouterr().err
    assert said.count("late is not recorded: no descriptor is left") == 1 and said.count("secret is not recorded") == 1
    assert said.count("late is recorded from now on") == 1


def test_a_recording_that_lacks_topics_to_the_end_says_so(
        cli: Cli, node: dds.DomainParticipant, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: nobody takes it for whole. Method: one of two topics can't be opened, for lack of descriptors."""
    opened = Recorder._reader

    def reader(self: Recorder, session: Any, info: Any, **more: Any) -> Any:
        if info.spec.name == "short":
            raise NoResources("no descriptor is left")
        return opened(self, session, info, **more)

    monkeypatch.setattr(Recorder, "_reader", reader)
    written = [dds.DataWriter(node, dds.Topic(node, name, bytes)) for name in ("short", "other")]
    result = cli("record", "*", "-o", tmp_path / "r.mcap", "--duration", "1")
    assert result.code == 1 and written and "nothing of short is recorded: no descriptor is left" in result.err


def test_a_replay_that_lacks_descriptors_has_the_exit_code_of_that(
        cli: Cli, node: dds.DomainParticipant, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: object, **__: object) -> None:
        raise NoResources("no descriptor is left (ulimit -n)")

    monkeypatch.setattr(Session, "open_writer", short)
    result = cli("replay", file, "--bytes")
    assert result.code == 15 and "no descriptor is left" in result.err and "DDS_RETCODE" not in result.err
