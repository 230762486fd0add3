"""Goal: journals are shown, verified, repaired and exported from the shell, with exit codes that scripts can trust.

Method: journals written by the real writer from a source in memory; damage by cutting and overwriting.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import io
import json
import os
import pty
from pathlib import Path

import pytest

from spindle.cli.journal import DECODERS, when
from spindle.journal import Journal
from spindle.restart.ledger import Ledger
from tests.spindle.cli.support import Cli, spawn
from tests.spindle.journal.fakes import SPEC, MemorySource, Witness, messages


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """One closed journal of 50 messages, of node 1, and its standing."""
    source, witness = MemorySource(), Witness()
    journal = Journal(tmp_path / "j", SPEC, 1, source, lambda index: None, witness.on_failure)
    source.put(messages(50))
    assert journal.wait_durable(49, 10.0)
    journal.close()
    Ledger(tmp_path / "j", SPEC.name, 1).update(whole=True)
    return tmp_path / "j"


def file_of(directory: Path) -> Path:
    (found,) = directory.glob("*.mcap")
    return found


def test_info(cli: Cli, directory: Path) -> None:
    (one,) = cli("journal", "info", directory, "--json").json["journals"]
    assert (one["topic"], one["node"], one["messages"], one["state"]) == (SPEC.name, 1, 50, "closed")
    shown = cli("journal", "info", directory).out
    assert SPEC.name in shown and "50" in shown and SPEC.type_name in shown
    assert cli("journal", "info", file_of(directory)).code == 0, "one file will do"


def test_verify(cli: Cli, directory: Path) -> None:
    assert cli("journal", "verify", directory).out.endswith("50 messages in 1 files: ok\n")
    result = cli("journal", "verify", directory, "--json")
    assert result.code == 0 and result.json["ok"] and result.json["messages"] == 50


def test_a_torn_tail_is_told_and_repaired(cli: Cli, directory: Path) -> None:
    file = file_of(directory)
    whole = file.read_bytes()
    end = cli("journal", "verify", file, "--json").json["files"][0]["data_end"]
    file.write_bytes(whole[: end - 20])
    torn = cli("journal", "verify", directory)
    assert torn.code == 1 and "torn" in torn.out and "--repair" in torn.out
    repaired = cli("journal", "verify", directory, "--repair")
    assert repaired.code == 0 and "repaired" in repaired.out and ".torn" in repaired.out
    assert cli("journal", "verify", directory).code == 0


def test_damage_is_told_and_not_touched(cli: Cli, directory: Path) -> None:
    file = file_of(directory)
    damaged = bytearray(file.read_bytes())
    end = cli("journal", "verify", file, "--json").json["files"][0]["data_end"]
    damaged[end - 300] ^= 0xFF
    file.write_bytes(damaged)
    result = cli("journal", "verify", directory, "--repair")
    assert result.code == 1 and "corrupt" in result.out
    assert file.read_bytes() == bytes(damaged)


def test_a_file_that_lost_all_its_bytes(cli: Cli, directory: Path) -> None:
    """The error says what to do, and that helps."""
    newest = max(directory.glob("*.mcap"))
    newest.write_bytes(b"")
    refused = cli("journal", "verify", directory)
    assert refused.code == 1 and f"`spindle journal repair --topic TOPIC {directory}`" in refused.out
    assert cli("journal", "repair", "--topic", SPEC.name, directory).code == 0
    assert newest.with_name(newest.name + ".damaged").exists() and not newest.exists()


def test_nothing_there(cli: Cli, tmp_path: Path) -> None:
    for command in ("info", "verify", "export"):
        result = cli("journal", command, tmp_path)
        assert result.code == 10 and "no journal" in result.err and str(tmp_path) in result.err


def test_export_lines(cli: Cli, directory: Path, tmp_path: Path) -> None:
    lines = [json.loads(line) for line in cli("journal", "export", directory).out.splitlines()]
    payloads = [payload for payload, _ in messages(50)]
    assert [base64.b64decode(line["payload"]) for line in lines] == payloads
    assert lines[0]["topic"] == SPEC.name and lines[0]["position"] == 0
    result = cli("journal", "export", directory, "-o", tmp_path / "out.jsonl", "--payload", "hex")
    assert result.code == 0 and "50 messages written" in result.err and result.out == ""
    first = json.loads((tmp_path / "out.jsonl").read_text().splitlines()[0])
    assert bytes.fromhex(first["value"]) == payloads[0]
    for style in ("jsonl", "csv"):  # the system names no file of a write that fails
        result = cli("journal", "export", directory, "-f", style, "-o", "/dev/full")
        assert result.code == 10 and result.err.startswith("spindle: cannot write /dev/full: No space left on device")


@pytest.mark.slow
def test_export_into_a_file_from_a_terminal(directory: Path, tmp_path: Path) -> None:
    """Goal: the bar goes to the terminal, the messages to the file. Method: stdin and stderr are a terminal, stdout is
    what a shell's `>` makes of it."""
    main, terminal = pty.openpty()
    shown = bytearray()
    with (tmp_path / "out.jsonl").open("wb") as out:
        with spawn("journal", "export", directory, "-t", SPEC.name, stdin=terminal, stdout=out, stderr=terminal,
                   env={**os.environ, "TERM": "xterm"}) as process:
            os.close(terminal)
            with contextlib.suppress(OSError):  # EIO: the last one who had the terminal open has ended
                while some := os.read(main, 65536):
                    shown += some
            assert process.wait(20) == 0
    os.close(main)
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [base64.b64decode(line["payload"]) for line in lines] == [payload for payload, _ in messages(50)]
    assert b"exporting" in shown and b"payload" not in shown


def test_export_csv(cli: Cli, directory: Path) -> None:
    rows = list(csv.DictReader(io.StringIO(cli("journal", "export", directory, "-f", "csv", "-p", "text").out)))
    assert len(rows) == 50 and {"topic", "sequence", "sender", "value"} <= set(rows[0])


def test_export_csv_of_messages_that_differ(cli: Cli, tmp_path: Path) -> None:
    """Each value is in the table: members that only later messages have, and what is no object."""
    values: list[object] = [{"a": 1}, {"b": [2], "a": 3}, 5, [6, 7], None, {"c": "x"}]
    source, witness = MemorySource(), Witness()
    journal = Journal(tmp_path / "j", SPEC, 1, source, lambda index: None, witness.on_failure)
    source.put([(json.dumps(one).encode(), info) for one, (_, info) in zip(values, messages(6), strict=True)])
    assert journal.wait_durable(5, 10.0)
    journal.close()
    rows = list(csv.DictReader(io.StringIO(cli("journal", "export", tmp_path / "j", "-f", "csv", "-p", "json").out)))
    assert [[row[name] for name in ("a", "b", "c", "value")] for row in rows] == [
        ["1", "", "", ""], ["3", "[2]", "", ""], ["", "", "", "5"], ["", "", "", "[6, 7]"], [""] * 4, ["", "", "x", ""]]


def test_export_of_what_is_no_json(cli: Cli, directory: Path) -> None:
    result = cli("journal", "export", directory, "-p", "json")
    assert result.code == 1 and "message 0" in result.err and "another --payload" in result.err


def test_decoders() -> None:
    class Message:
        payload = b'{"a": "\xc3\xbc"}'

    text, as_json = DECODERS["text"], DECODERS["json"]
    assert text is not None and as_json is not None
    assert text(Message) == '{"a": "ü"}'  # type: ignore[arg-type]
    assert as_json(Message) == {"a": "ü"}  # type: ignore[arg-type]
    Message.payload = b"\xff"
    assert text(Message) == r"\xff"  # type: ignore[arg-type]


def test_times() -> None:
    assert when(0) == "-"
    assert when(1_700_000_000_999_999_999) == "2023-11-14 22:13:20Z"


def test_an_export_that_is_there(cli: Cli, directory: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.mcap"
    export = ("journal", "export", directory, "--format", "mcap", "-o", out)
    assert cli(*export).code == 0
    again = cli(*export)
    assert again.code == 10 and "--force" in again.err
    assert "50 messages of 1 journals" in cli(*export, "--force").err


@pytest.mark.parametrize("style", ["jsonl", "csv", "mcap"])
def test_an_export_onto_what_it_reads(cli: Cli, directory: Path, style: str) -> None:
    before = file_of(directory).read_bytes()
    result = cli("journal", "export", directory, "--format", style, "-o", file_of(directory), "--force")
    assert result.code == 10 and "is a file of the journal that is exported" in result.err
    assert file_of(directory).read_bytes() == before


@pytest.mark.parametrize("style", ["jsonl", "mcap"])
def test_an_export_of_what_is_damaged(cli: Cli, directory: Path, tmp_path: Path, style: str) -> None:
    """Of a journal without a summary, as a node leaves it that was killed: nothing is left out in silence."""
    file = file_of(directory)
    end = cli("journal", "verify", file, "--json").json["files"][0]["data_end"]
    whole = file.read_bytes()[:end]
    export = ("journal", "export", directory, "--format", style, "-o", tmp_path / "x", "--force")
    file.write_bytes(whole + bytes(3))
    torn = cli(*export)
    assert torn.code == 0 and "50 messages" in torn.err
    assert style != "mcap" or f"it ends at byte {end:,}" in torn.err
    damaged = bytearray(whole)
    damaged[whole.index(messages(50)[1][0])] ^= 0xFF
    file.write_bytes(damaged + whole)
    result = cli(*export)
    assert result.code == 10 and "damaged before its end" in result.err
