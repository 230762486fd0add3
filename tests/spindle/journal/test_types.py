"""Goal: a journal's file says the types of its own samples, whenever they become known, to every MCAP reader; files of
earlier versions, which say none, are read as before.
Method: journals in memory and on disk; types are said between commits."""

from __future__ import annotations

import dataclasses
from base64 import b64decode
from pathlib import Path

import pytest
from mcap.reader import make_reader

from spindle.group.schemas import MessageSchema
from spindle.group.types import TYPE_BYTES_MAX, TYPES_BYTES_MAX, key_of
from spindle.journal import Journal
from spindle.journal.format import HEAD_NAME, Damage, Head, encode_head, parse_head, parse_metadata
from spindle.journal.recovery import journal_numbers, open_scan
from spindle.journal.tools import verify
from spindle.restart.disk import Store, types_from
from tests.spindle.journal.fakes import SPEC, MemoryFiles, MemorySource, Witness, messages

DIRECTORY = Path("/journal")
PER_TURN = 10
LARGE = [bytes([number]) * TYPE_BYTES_MAX for number in range(TYPES_BYTES_MAX // TYPE_BYTES_MAX)]


class Writing:
    """A journal of one node, which is told types."""

    def __init__(self, files: MemoryFiles, *types: bytes, turn: int = 0) -> None:
        self.types: dict[bytes, bytes] = {}
        self.know(*types)
        self._source, self._turn = MemorySource(), turn
        witness = Witness()
        self._first = turn * PER_TURN
        self.journal = Journal(DIRECTORY, SPEC, 1, self._source, witness.on_durable, witness.on_failure,
                               group_commit_ms=0.0, group="ab", files=files, types=lambda: self.types)

    def know(self, *types: bytes) -> None:
        self.types = {**self.types, **{key_of(said): said for said in types}}

    def put(self) -> None:
        """A commit, in a view of its own."""
        index = self._turn * PER_TURN - self._first
        self._source.put(messages(PER_TURN, index, view_id=3 + self._turn))
        self._turn += 1
        assert self.journal.wait_durable(index + PER_TURN, 10)


def heads(files: MemoryFiles) -> list[tuple[int, set[bytes]]]:
    """Of each file: view of its first message, and the types that it says."""
    found = []
    for _, path in journal_numbers(files, DIRECTORY, SPEC.name, 1):
        handle = files.open(path)
        scan = open_scan(files, handle, path).run()
        files.close(handle)
        found.append((scan.first.record.view_id if scan.first else -1, set(scan.head.types)))
    return found


def test_a_type_is_in_the_file_before_the_first_of_its_samples() -> None:
    files = MemoryFiles()
    one = Writing(files)
    one.put()
    one.know(b"A")
    one.put()
    one.put()
    one.know(b"B")
    one.put()
    one.journal.close()
    assert heads(files) == [(3, set()), (4, {b"A"}), (6, {b"A", b"B"})]


def test_one_that_is_known_before_the_first_message_needs_no_second_file() -> None:
    files = MemoryFiles()
    one = Writing(files)
    one.know(b"A")
    one.put()
    one.types = {}  # forgotten: what the file says it says
    one.put()
    one.journal.close()
    assert heads(files) == [(3, {b"A"})]


def test_a_file_is_gone_on_with_if_it_says_what_is_known() -> None:
    files = MemoryFiles()
    for turn, types in enumerate([(b"A",), (b"A",), (), (b"B",)]):
        one = Writing(files, *types, turn=turn)
        one.put()
        one.journal.close()
    assert heads(files) == [(3, {b"A"}), (6, {b"B"})]


def test_types_of_the_messages_from_a_place_on() -> None:
    files = MemoryFiles()
    one = Writing(files, b"A")
    one.put()
    one.types = {}
    one.know(b"B")
    one.put()
    one.journal.close()
    store = Store(DIRECTORY, SPEC.name, 1, files)
    assert types_from(store, (-1, -1)) == [b"A", b"B"] == types_from(store, (3, 5))
    assert types_from(store, (4, 5)) == [b"B"]


def test_other_tools_read_the_file_and_find_the_types(tmp_path: Path) -> None:
    source, witness = MemorySource(), Witness()
    said = {key_of(one): one for one in [b"\x00\xff opaque", *LARGE[:-1]]}
    journal = Journal(tmp_path, SPEC, 1, source, witness.on_durable, witness.on_failure, group_commit_ms=0.0,
                      types=lambda: said)
    sent = messages(PER_TURN)
    source.put(sent)
    assert journal.wait_durable(PER_TURN, 10)
    live = journal.path
    for state in ("live", "closed"):
        if state == "closed":
            journal.close()
        with open(live, "rb") as stream:
            reader = make_reader(stream)
            if state == "closed":
                assert [message.data for _, _, message in reader.iter_messages()] == [payload for payload, _ in sent]
            values = next(one for one in reader.iter_metadata() if one.name == HEAD_NAME).metadata
        found = {bytes.fromhex(name[5:]): b64decode(text) for name, text in values.items() if name.startswith("type.")}
        assert found == said
    assert verify(tmp_path).ok and not witness.failures


HEAD = Head("t", "T", "00", 1, 1, "0" * 16, 0, "", -1, -1, 0, (MessageSchema("T"),))


def parsed(data: bytes) -> Head:
    schema = data.index(b"\x03", 8)
    start = data.index(b"\x0c", schema)
    return parse_head(parse_metadata(data[start:], HEAD_NAME, start), [data[schema:start]], start)


def test_a_head_of_an_earlier_version_says_no_types() -> None:
    """Nothing but values with names of their own are new, so earlier versions read what this one writes, too."""
    assert parsed(encode_head(HEAD)) == HEAD and b"type." not in encode_head(HEAD)
    said = dataclasses.replace(HEAD, types=(b"A", b"B"))
    assert parsed(encode_head(said)) == said


def test_a_type_that_is_no_base64_is_damage() -> None:
    with pytest.raises(Damage, match="head is malformed"):
        data = encode_head(dataclasses.replace(HEAD, types=(b"AAAA",)))
        parsed(data.replace(b"QUFBQQ==", b"QUF!QQ=="))
