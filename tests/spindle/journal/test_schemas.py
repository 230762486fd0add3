"""Goal: journals say what other tools need to decode them: the schema of each message's type, whatever types a topic
has, and nothing false. Journals of earlier versions stay readable, one of a later version says so.
Method: journals in memory and on disk, types said by hand; what other tools see is read by the `mcap` library."""

from __future__ import annotations

import json
from base64 import b85encode
from pathlib import Path
from zlib import compress

import pytest
from mcap.reader import make_reader

from spindle.group.schemas import MessageSchema
from spindle.group.types import key_of
from spindle.journal import Journal, JournalCorrupt
from spindle.journal.format import HEAD_NAME
from spindle.journal.tools import info, read, verify
from spindle.journal.writer import SCHEMAS_BYTES_MAX
from tests.spindle.journal.fakes import SPEC, FakeInfo, MemorySource, Witness


def said(schema: MessageSchema) -> bytes:
    """As a writer says it."""
    about = {"name": schema.name, "is": schema.encoding, "of": schema.message_encoding, "mark": schema.mark.hex(),
             "text": b85encode(compress(schema.data)).decode()}
    return json.dumps({"of": {"kind": "idl", "schema": about}}).encode()


OLD = MessageSchema("T", "omgidl", b"struct T {long x;};", "cdr", b"\x11\x04")
NEW = MessageSchema("T", "omgidl", b"struct T {long x; long y;};", "cdr", b"\x22\x08")
RECORD = MessageSchema("numpy/Record_1", "ros1msg", b"int32 x\n", "ros1")


class Writing:
    def __init__(self, directory: Path, *types: bytes, group: str = "ab") -> None:
        self.types: dict[bytes, bytes] = {}
        self.know(*types)
        self.source, self.witness, self.index = MemorySource(), Witness(), 0
        self.journal = Journal(directory, SPEC, 1, self.source, self.witness.on_durable, self.witness.on_failure,
                               group_commit_ms=0.0, group=group, types=lambda: self.types)
        self.first = int(str(self.journal.status()["position"]))

    def know(self, *types: bytes) -> None:
        self.types = {**self.types, **{key_of(one): one for one in types}}

    def put(self, *payloads: bytes, writer: int = 1, tag: int = 0) -> None:
        pairs = []
        for payload in payloads:
            at = self.index
            pairs.append((payload, FakeInfo(0, at, 1, writer, self.first + at, 1, at, tag=tag)))
            self.index += 1
        self.source.put(pairs)
        assert self.journal.wait_durable(self.index, 10)


def by_mcap(directory: Path) -> list[tuple[str, bytes, str, bytes]]:
    """Of each message the schema's encoding and data, the message's encoding, and the payload."""
    found = []
    for path in sorted(directory.glob("*.mcap")):
        with path.open("rb") as file:
            for schema, channel, message in make_reader(file, validate_crcs=True).iter_messages():
                found.append(("", b"") if schema is None else (schema.encoding, schema.data))
                found[-1] += (channel.message_encoding, message.data)  # type: ignore[assignment]
    return found  # type: ignore[return-value]


def payload(mark: bytes, text: bytes) -> bytes:
    return b"\0\1" + mark + text


def test_one_type(tmp_path: Path) -> None:
    one = Writing(tmp_path, said(RECORD))
    one.put(b"1234", b"5678")
    one.journal.close()
    assert by_mcap(tmp_path) == [("ros1msg", RECORD.data, "ros1", data) for data in (b"1234", b"5678")]
    assert verify(tmp_path).ok and info(tmp_path)["journals"][0]["encoding"] == "ros1"


def test_two_types_of_one_writer_in_turn(tmp_path: Path) -> None:
    one = Writing(tmp_path, said(OLD), said(NEW))
    texts = [payload(mark, b"x" * n) for n, mark in enumerate([OLD.mark, NEW.mark, NEW.mark, OLD.mark] * 3)]
    one.put(*texts[:5])
    one.put(*texts[5:])
    one.put(payload(b"\x33\x00", b"of a type that nobody has said"), payload(b"\0\0", b"from elsewhere"))
    one.put(payload(OLD.mark, b"the end of an instance"), tag=1)
    live = by_mcap(tmp_path)
    one.journal.close()
    found = by_mcap(tmp_path)
    assert found == live
    assert [data for *_, data in found][:12] == texts
    assert [data for _, data, *_ in found][:12] == [
        {OLD.mark: OLD.data, NEW.mark: NEW.data}[text[2:4]] for text in texts]
    assert [one[:3] for one in found][12:] == [("", b"", ""), ("omgidl", OLD.data, "cdr"), ("", b"", "")]
    report = verify(tmp_path)
    assert report.ok, report.problems
    assert [message.payload for message in read(tmp_path)] == [data for *_, data in found]
    assert {(message.writer, message.tag) for message in read(tmp_path)} == {(1, 0), (1, 1)}
    assert info(tmp_path)["journals"][0]["writers"] == [{"sender": 1, "writer": 1, "messages": 15}]


def test_a_file_with_several_is_gone_on_with(tmp_path: Path) -> None:
    for _ in range(3):
        one = Writing(tmp_path, said(OLD), said(NEW))
        one.put(payload(OLD.mark, b"1"), payload(NEW.mark, b"2"))
        one.journal.close()
    assert len(list(tmp_path.glob("*.mcap"))) == 1 and verify(tmp_path).ok
    assert [data for _, data, *_ in by_mcap(tmp_path)] == [OLD.data, NEW.data] * 3


def test_a_type_that_comes_later_begins_a_file(tmp_path: Path) -> None:
    one = Writing(tmp_path, said(OLD))
    one.put(payload(OLD.mark, b"1"))
    one.know(said(NEW))
    one.put(payload(NEW.mark, b"2"))
    one.journal.close()
    assert [data for _, data, *_ in by_mcap(tmp_path)] == [OLD.data, NEW.data]
    assert len(list(tmp_path.glob("*.mcap"))) == 2 and verify(tmp_path).ok


def test_of_types_that_payloads_do_not_tell_apart_the_last(tmp_path: Path) -> None:
    newer = MessageSchema(RECORD.name, "ros1msg", b"int64 x\n", "ros1")
    one = Writing(tmp_path, said(RECORD), said(newer))
    one.put(b"12345678")
    one.journal.close()
    assert by_mcap(tmp_path)[0][1] == newer.data


def test_types_without_a_schema_as_before(tmp_path: Path) -> None:
    """What writers of earlier versions say has none."""
    one = Writing(tmp_path, b'{"of": {"kind": "numpy"}}', b"\xff nonsense")
    one.put(b"1234")
    one.journal.close()
    with next(iter(tmp_path.glob("*.mcap"))).open("rb") as file:
        reader = make_reader(file)
        (schema, channel, _), = reader.iter_messages()
        format_ = next(one for one in reader.iter_metadata() if one.name == HEAD_NAME).metadata["format"]
    assert (schema.name, schema.encoding, channel.message_encoding) == (  # type: ignore[union-attr]
        SPEC.type_name, "", "application/octet-stream")
    assert format_ == "1"  # which earlier versions read


def test_schemas_are_bounded(tmp_path: Path) -> None:
    """A hostile writer fills no heads: 16 KiB that unpack to a quarter of a megabyte each."""
    bombs = [said(MessageSchema("B", "omgidl", bytes([n]) * (250 << 10), "cdr", bytes([n, 4]))) for n in range(1, 9)]
    one = Writing(tmp_path, *bombs)
    one.put(b"1234")
    size = one.journal.path.stat().st_size
    one.journal.close()
    assert size < 2 * SCHEMAS_BYTES_MAX and verify(tmp_path).ok


def test_a_journal_of_a_later_version_says_so(tmp_path: Path) -> None:
    one = Writing(tmp_path, said(OLD))
    one.put(payload(OLD.mark, b"1"))
    one.journal.close()
    path = next(iter(tmp_path.glob("*.mcap")))
    data = path.read_bytes()
    changed = data.replace(b"format\x01\0\0\x001", b"format\x01\0\0\x007")
    assert changed != data
    from zlib import crc32

    start = changed.index(HEAD_NAME.encode()) - 13
    end = start + 9 + int.from_bytes(changed[start + 1:start + 9], "little")
    sealed = changed[:end - 8] + b"%08x" % crc32(changed[:end - 8]) + changed[end:]
    path.write_bytes(sealed)
    with pytest.raises(JournalCorrupt, match="format '7'; this Spindle reads '1' and '2'"):
        list(read(tmp_path))
