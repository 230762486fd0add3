"""Goal: info, verify, read and export say the truth about directories of several journals, and clearly what is missing
or in the way. Method: journals made by hand, then files removed, renamed, locked or made by somebody else."""

from __future__ import annotations

import csv
import dataclasses
import enum
import io
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from mcap.reader import make_reader
from mcap.writer import Writer

from spindle.errors import JournalError
from spindle.journal import Journal, JournalBusy, NotAJournal
from spindle.journal.files import OsFiles
from spindle.journal.recovery import recover
from spindle.journal.tools import JournalMessage, Status, export, info, read, verify
from tests.spindle.journal.fakes import SPEC, FakeInfo, MemorySource, Witness, messages


def write_journal(directory: Path, node_id: int = 1, topic: str = SPEC.name, count: int = 100,
                  max_file_size: int = 4000, group: str = "", tags: Sequence[int] = (0,)
                  ) -> list[tuple[bytes, FakeInfo]]:
    """A closed journal of several files; its messages have these tags in turn."""
    source, witness = MemorySource(), Witness()
    journal = Journal(directory, dataclasses.replace(SPEC, name=topic), node_id, source, witness.on_durable,
                      witness.on_failure, max_file_size=max_file_size, group_commit_ms=0.0, group=group)
    sent = [(payload, dataclasses.replace(info, tag=tags[place % len(tags)]))
            for place, (payload, info) in enumerate(messages(count))]
    for start in range(0, count, 10):
        source.put(sent[start : start + 10])
        assert journal.wait_durable(min(count, start + 10), 10)
    journal.close()
    assert not witness.failures
    return sent


def paths(directory: Path) -> list[Path]:
    return sorted(directory.glob("*.mcap"))


def test_info_adds_up_the_files_of_each_journal(tmp_path: Path) -> None:
    sent = write_journal(tmp_path, 1, group="life")
    write_journal(tmp_path, 2, count=30)
    write_journal(tmp_path, 2, topic="alerts", count=10)
    found = info(tmp_path)
    json.dumps(found)
    assert [(one["topic"], one["node"], one["messages"]) for one in found["journals"]] == [
        ("alerts", 2, 10), (SPEC.name, 1, 100), (SPEC.name, 2, 30)
    ]
    one = found["journals"][1]
    assert (one["type"], one["state"], one["groups"]) == ("AirData", "closed", ["life"])
    assert len(one["files"]) == len([path for path in paths(tmp_path) if "-1-" in path.name]) > 1
    assert one["bytes"] == sum(file["size"] for file in one["files"])
    assert (one["first"]["position"], one["last"]["position"]) == (0, 99)
    assert (one["start_time"], one["end_time"]) == (sent[0][1].reception_timestamp, sent[-1][1].reception_timestamp)
    assert sum(writer["messages"] for writer in one["writers"]) == 100
    assert {(w["sender"], w["writer"]) for w in one["writers"]} == {(i.sender, i.writer) for _, i in sent}
    assert len(info(tmp_path, topic=SPEC.name)["journals"]) == 2
    assert len(info(tmp_path, topic=SPEC.name, node_id=2)["journals"]) == 1


def test_info_tells_a_live_file_from_an_unfinished_one(tmp_path: Path) -> None:
    source, witness = MemorySource(), Witness()
    journal = Journal(tmp_path, SPEC, 1, source, witness.on_durable, witness.on_failure)
    source.put(messages(3))
    assert journal.wait_durable(3, 10)
    assert info(tmp_path)["journals"][0]["state"] == "live"
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / journal.path.name).write_bytes(journal.path.read_bytes())
    assert info(copy)["journals"][0]["state"] == "unfinished"
    journal.close()
    assert info(tmp_path)["journals"][0]["state"] == "closed"


def test_verify_of_good_journals_with_progress(tmp_path: Path) -> None:
    write_journal(tmp_path, 1)
    write_journal(tmp_path, 2)
    seen: list[tuple[int, int]] = []
    report = verify(tmp_path, progress=lambda done, total: seen.append((done, total)))
    assert report.ok and report.messages == 200 and not report.problems
    assert seen == sorted(seen) and seen[-1][0] <= seen[-1][1] == sum(path.stat().st_size for path in paths(tmp_path))
    json.dumps(report.to_dict())
    assert verify(paths(tmp_path)[1]).ok, "one file alone is verified for itself"


def test_verify_notices_a_missing_file(tmp_path: Path) -> None:
    write_journal(tmp_path)
    paths(tmp_path)[1].unlink()
    report = verify(tmp_path)
    assert report.status is Status.CORRUPT and "a file is missing" in report.problems[0]


def test_verify_notices_files_in_another_order(tmp_path: Path) -> None:
    write_journal(tmp_path)
    first, second = paths(tmp_path)[:2]
    first.rename(tmp_path / "x")
    second.rename(first)
    (tmp_path / "x").rename(second)
    assert verify(tmp_path).status is Status.CORRUPT


def test_verify_notices_a_file_under_the_name_of_another_journal(tmp_path: Path) -> None:
    """With such a one, the node would not open the topic; alone, it is as good as under its own name."""
    write_journal(tmp_path, 1)
    *_, last = paths(tmp_path)
    stem, _, number = last.name.rsplit("-", 2)
    for other in (f"{stem}-2-{number}", f"alerts-1-{number}"):
        wrong = last.rename(tmp_path / other)
        report = verify(tmp_path)
        assert report.status is Status.CORRUPT and report.problems
        assert all(text in " ".join(report.problems) for text in (other, "move it away", last.name)), report.problems
        assert verify(wrong).status is Status.OK
        with pytest.raises(NotAJournal, match="move it away"):
            recover(OsFiles(), tmp_path, "alerts" if "alerts" in other else SPEC.name, 1 if "alerts" in other else 2)
        wrong.rename(last)
    assert verify(tmp_path).status is Status.OK


def test_verify_notices_a_file_in_the_middle_that_was_cut(tmp_path: Path) -> None:
    write_journal(tmp_path)
    first = paths(tmp_path)[0]
    first.write_bytes(first.read_bytes()[:-3000])
    report = verify(tmp_path)
    assert not report.ok and "its end is missing" in " ".join(report.problems)


def test_a_journal_in_use_is_not_repaired(tmp_path: Path) -> None:
    source, witness = MemorySource(), Witness()
    journal = Journal(tmp_path, SPEC, 1, source, witness.on_durable, witness.on_failure)
    source.put(messages(3))
    assert journal.wait_durable(3, 10)
    other = tmp_path / journal.path.name.replace("000001", "000002")  # same journal, so under the same lock
    other.write_bytes(journal.path.read_bytes()[:500])
    with pytest.raises(JournalBusy, match="stop the node first"):
        verify(other, repair=True)
    other.unlink()
    journal.close()


def test_other_files(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match="there is no journal in"):
        verify(tmp_path)
    with pytest.raises(JournalError, match=r"cannot read journals in .*No such file"):
        info(tmp_path / "missing")
    with pytest.raises(JournalError, match="cannot read"):
        list(read(tmp_path / "a-1-000001.mcap"))
    foreign = tmp_path / "drive.mcap"
    with foreign.open("wb") as stream:
        writer = Writer(stream)
        writer.start()
        schema = writer.register_schema("T", "", b"")
        channel = writer.register_channel("t", "json", schema)
        writer.add_message(channel, 1, b"{}", 1)
        writer.finish()
    report = verify(foreign)
    assert report.status is Status.CORRUPT and "not a journal of Spindle" in report.problems[0]
    with pytest.raises(NotAJournal, match="not a journal of Spindle"):
        list(read(foreign))
    text = tmp_path / "readme-1-000001.mcap"
    text.write_text("hello")
    assert "does not begin as an MCAP file does. If it was one, put back" in verify(text).problems[0]
    folder = tmp_path / "folder-1-000001.mcap"
    folder.mkdir()
    for path in (text, folder):
        with pytest.raises(NotAJournal, match=f"^{re.escape(str(path))} is not a journal.*repair --topic TOPIC"):
            list(read(path))


def test_read_wants_one_journal(tmp_path: Path) -> None:
    write_journal(tmp_path, 1, count=10)
    write_journal(tmp_path, 2, count=20)
    with pytest.raises(JournalError, match=r"holds 2 journals .*choose one by topic and node"):
        list(read(tmp_path))
    assert len(list(read(tmp_path, node_id=2))) == 20
    with pytest.raises(JournalError, match="no journal of topic 'other' of node 2"):
        list(read(tmp_path, topic="other", node_id=2))


class Phase(enum.Enum):
    CRUISE = "cruise"


@dataclasses.dataclass
class Air:
    mach: float
    phase: Phase
    raw: bytes


def test_export_lines_and_tables(tmp_path: Path) -> None:
    import numpy

    write_journal(tmp_path / "j", count=12)
    out = tmp_path / "out"
    assert export(tmp_path / "j", out) == 12
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    assert [one["position"] for one in lines] == list(range(12)) and "payload" in lines[0]

    def decode(message: JournalMessage) -> Any:
        return Air(0.5, Phase.CRUISE, b"\x00") if message.position else {"mach": numpy.float32(0.25), "more": {1, 2}}

    stream = io.StringIO()
    export(tmp_path / "j", stream, decode=decode)
    values = [json.loads(line)["value"] for line in stream.getvalue().splitlines()]
    assert values[0] == {"mach": 0.25, "more": [1, 2]}
    assert values[1] == {"mach": 0.5, "phase": "cruise", "raw": "AA=="}

    table = io.StringIO()
    export(tmp_path / "j", table, "csv", decode)
    rows = list(csv.DictReader(io.StringIO(table.getvalue())))
    assert len(rows) == 12 and rows[0]["more"] == "[1, 2]"
    assert rows[1]["mach"] == "0.5" and rows[1]["topic"] == SPEC.name
    table = io.StringIO()
    export(tmp_path / "j", table, "csv", lambda message: message.position * 2)
    assert [row["value"] for row in csv.DictReader(io.StringIO(table.getvalue()))] == [str(2 * i) for i in range(12)]
    with pytest.raises(ValueError, match="use jsonl or csv"):
        export(tmp_path / "j", table, "xml")


def test_tagged_messages_are_told_from_samples(tmp_path: Path) -> None:
    """Each comes back with its tag; other tools find them on channels without a schema, and need not decode them."""
    sent = write_journal(tmp_path / "j", count=60, tags=(7, 0, 0, 255))
    found = list(read(tmp_path / "j"))
    assert [(one.payload, one.tag, one.sender, one.writer) for one in found] == [
        (payload, info.tag, info.sender, info.writer) for payload, info in sent]
    seen = []
    for path in paths(tmp_path / "j"):
        with path.open("rb") as file:
            for schema, channel, message in make_reader(file, validate_crcs=True).iter_messages():
                tag = int(channel.metadata.get("tag", 0))
                assert (schema is None) == (channel.message_encoding == "") == (tag != 0)
                assert channel.topic == SPEC.name
                seen.append((message.data, tag))
    assert seen == [(payload, info.tag) for payload, info in sent]
    assert verify(tmp_path / "j").ok

    out = io.StringIO()
    export(tmp_path / "j", out, decode=lambda message: {"size": len(message.payload)})
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [one["tag"] for one in lines] == [info.tag for _, info in sent]
    assert ["value" in one for one in lines] == [info.tag == 0 for _, info in sent]
    table = io.StringIO()
    export(tmp_path / "j", table, "csv", lambda message: {"size": len(message.payload)})
    rows = list(csv.DictReader(io.StringIO(table.getvalue())))
    assert [row["tag"] for row in rows] == [str(info.tag) for _, info in sent]
    assert [row["size"] for row in rows][:3] == [None, str(len(sent[1][0])), str(len(sent[2][0]))]
    write_journal(tmp_path / "k", count=3, tags=(7,))
    table = io.StringIO()
    assert export(tmp_path / "k", table, "csv", lambda message: {"size": 1}) == 3
    assert [row["tag"] for row in csv.DictReader(io.StringIO(table.getvalue()))] == ["7"] * 3
