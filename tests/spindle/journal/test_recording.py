"""Goal: a recording is a whole MCAP file at every moment, and comes back in its order, also when it was cut off.
Method: recordings in memory and on disk; other tools' view is the `mcap` library's. Files are cut at every length, and
bytes of them changed."""

from __future__ import annotations

import errno
import os
import random
from io import BytesIO
from pathlib import Path

import pytest
from mcap.opcode import Opcode
from mcap.reader import NonSeekingReader, make_reader
from mcap.records import Header
from mcap.writer import CompressionType, IndexType, Writer

from spindle.errors import JournalError
from spindle.group.schemas import MessageSchema
from spindle.journal.exporting import check_out
from spindle.journal.files import OsFiles
from spindle.journal.format import MAGIC, RECORD, encode
from spindle.journal.names import file_name, lock_name
from spindle.journal.playing import OTHER, RECORDING, NotPlayable, PlayedFile, merged, open_all
from spindle.journal.recording import CHUNK_BYTES, COMPRESSIONS, RecordingExists, RecordingWriter

SCHEMA = MessageSchema("numpy/Record_1", "ros1msg", b"int32 x\n", "ros1")


def recorded(path: Path, count: int = 300, compression: str = "zstd", close: bool = True) -> RecordingWriter:
    """A recording of two topics, flushed now and then; at log time n is message n."""
    writer = RecordingWriter(path, {"created": "1"}, compression)
    channels = [writer.channel("a", SCHEMA, {"level": "atomic"}), writer.channel("b", None, {})]
    for number in range(count):
        writer.add(channels[number % 2], number, 1000 + number, 1000 + number, b"%04d" % number * (number % 7))
        if number % 50 == 49:
            writer.flush()
    if close:
        writer.close({"lost": "0"})
    return writer


def expected(count: int = 300) -> list[bytes]:
    return [b"%04d" % number * (number % 7) for number in range(count)]


def played(path: Path, **options: object) -> list[bytes]:
    file = PlayedFile(path)
    try:
        return [one.payload for one in file.messages(**options)]  # type: ignore[arg-type]
    finally:
        file.close()


@pytest.mark.parametrize("compression", COMPRESSIONS)
def test_a_closed_one_is_read_by_everybody(tmp_path: Path, compression: str) -> None:
    path = tmp_path / "r.mcap"
    recorded(path, compression=compression)
    with path.open("rb") as stream:
        reader = make_reader(stream, validate_crcs=True)
        found = list(reader.iter_messages())
        assert [message.data for _, _, message in found] == expected()
        assert [schema and schema.data for schema, _, _ in found][:2] == [SCHEMA.data, None]
        summary = reader.get_summary()
        assert summary is not None and summary.statistics is not None and summary.statistics.message_count == 300
        assert [one.name for one in reader.iter_metadata()] == ["spindle.recording", "spindle.end"]
    file = PlayedFile(path)
    assert (file.kind, file.problem, file.times, file.about["created"]) == (RECORDING, "", (1000, 1299), "1")
    assert {one.topic: file.counts[number] for number, one in file.channels.items()} == {"a": 150, "b": 150}
    file.close()
    assert played(path) == expected() and played(path, since=1100, until=1103) == expected()[100:103]


def test_one_that_is_being_written_or_was_killed_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "r.mcap"
    writer = recorded(path, count=310, close=False)
    writer.abandon()
    assert [message.data for _, _, message in NonSeekingReader(BytesIO(path.read_bytes())).iter_messages()] == (
        expected())
    file = PlayedFile(path)
    assert not file.problem and sum(file.counts.values()) == 300
    assert [one.payload for one in file.messages()] == expected()
    file.close()


def test_one_that_is_cut_off_has_what_is_whole(tmp_path: Path) -> None:
    """Whatever byte it is cut at: a prefix of the chunks, and it says that the end is missing."""
    path, cut = tmp_path / "r.mcap", tmp_path / "cut.mcap"
    recorded(path, count=200)
    data = path.read_bytes()
    for size in [*range(8, 400, 7), *random.Random(7).sample(range(400, len(data)), 60)]:
        cut.write_bytes(data[:size])
        try:
            file = PlayedFile(cut)
        except NotPlayable:
            assert size < 100
            continue
        found = [one.payload for one in file.messages()]
        assert found == expected()[:len(found)] and len(found) % 50 == 0
        assert file.problem or len(found) == 200
        file.close()


def test_damage_within_is_found_or_skipped(tmp_path: Path) -> None:
    path = tmp_path / "r.mcap"
    recorded(path, count=200, compression="none")
    data = bytearray(path.read_bytes())
    data[data.index(b"0051")] ^= 0xFF  # in the second chunk
    path.write_bytes(data)
    with pytest.raises(JournalError, match=r"the chunk at byte .* is damaged: its checksum does not match"):
        played(path)
    assert played(path, skip_damaged=True) == expected()[:50] + expected()[100:200]


@pytest.mark.parametrize("data, says", [
    (b"", "no MCAP file"), (b"bag file" * 10, "no MCAP file"),
    (MAGIC[:5] + b"9" + MAGIC[6:] + bytes(50), "version '9'"),
])
def test_what_is_no_mcap_file(tmp_path: Path, data: bytes, says: str) -> None:
    (tmp_path / "x.mcap").write_bytes(data)
    with pytest.raises(NotPlayable, match=says):
        PlayedFile(tmp_path / "x.mcap")


def test_a_recording_of_another_version(tmp_path: Path) -> None:
    path = tmp_path / "r.mcap"
    recorded(path)
    path.write_bytes(path.read_bytes().replace(b"format\x01\0\0\x002", b"format\x01\0\0\x009"))
    with pytest.raises(NotPlayable, match="recording of format '9'; this Spindle reads '1' and '2'"):
        PlayedFile(path)


@pytest.mark.parametrize("compression", [CompressionType.NONE, CompressionType.LZ4, CompressionType.ZSTD])
@pytest.mark.parametrize("chunks", [True, False])
def test_files_of_others(tmp_path: Path, compression: CompressionType, chunks: bool) -> None:
    """Out of order within the file, with chunks and without, with an index and without: by time."""
    path = tmp_path / "o.mcap"
    times = list(range(500))
    random.Random(3).shuffle(times)
    for index in (IndexType.ALL, IndexType.NONE):
        with path.open("wb") as stream:
            writer = Writer(stream, compression=compression, use_chunking=chunks, chunk_size=400, index_types=index)
            writer.start("other")
            schema = writer.register_schema("S", "jsonschema", b"{}")
            channel = writer.register_channel("t", "json", schema)
            for time in times:
                writer.add_message(channel, time, b"%d" % time, time)
            writer.finish()
        file = PlayedFile(path)
        assert file.kind == OTHER and not file.problem
        assert [one.payload for one in file.messages()] == [b"%d" % time for time in range(500)]
        assert [one.log_time for one in file.messages(since=100, until=110)] == list(range(100, 110))
        file.close()


def test_several_files_by_time(tmp_path: Path) -> None:
    for name in "ab":
        writer = RecordingWriter(tmp_path / f"{name}.mcap", {})
        channel = writer.channel(name, None, {})
        for time in range(ord(name), 400, 2):
            writer.add(channel, 0, time, time, name.encode())
        writer.close()
    opened = open_all([tmp_path])
    assert [one.log_time for one in merged(opened)] == sorted([*range(97, 400, 2), *range(98, 400, 2)])
    (tmp_path / "nothing").mkdir()
    with pytest.raises(JournalError, match="no MCAP file in"):
        open_all([tmp_path / "nothing"])


def test_large_messages_and_many_chunks(tmp_path: Path) -> None:
    path = tmp_path / "r.mcap"
    writer = RecordingWriter(path, {}, "none")
    channel = writer.channel("t", None, {})
    for number in range(20):
        writer.add(channel, number, number, number, bytes([number]) * (CHUNK_BYTES // 3))
    writer.close()
    assert [one[0] for one in played(path)] == list(range(20))


def test_a_file_that_is_there_is_not_replaced_unless_asked(tmp_path: Path) -> None:
    path = tmp_path / "r.mcap"
    recorded(path)
    before = path.read_bytes()
    with pytest.raises(RecordingExists, match="--force"):
        RecordingWriter(path, {})
    assert path.read_bytes() == before
    RecordingWriter(path, {}, replace=True).close()
    assert played(path) == []


def test_a_directory_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(JournalError, match=r"cannot write the recording .*: No such file or directory$"):
        RecordingWriter(tmp_path / "none" / "r.mcap", {})


def others(path: Path, **options: bool) -> None:
    """A file of another program: three messages in chunks of one."""
    with path.open("wb") as stream:
        writer = Writer(stream, chunk_size=1, compression=CompressionType.NONE, **options)
        writer.start("other")
        schema = writer.register_schema("S", "jsonschema", b"{}")
        for number in range(3):
            writer.add_message(writer.register_channel(f"t{number}", "json", schema), number, b"%d" % number, number)
        writer.finish()


@pytest.mark.parametrize("left_out", ["repeat_channels", "repeat_schemas", "use_statistics", "use_summary_offsets"])
def test_files_whose_summary_says_less(tmp_path: Path, left_out: str) -> None:
    """Channels and schemas needn't be repeated there: then they are where the messages are."""
    path = tmp_path / "o.mcap"
    others(path, **{left_out: False})
    file = PlayedFile(path)
    assert [(one.channel.topic, one.channel.schema and one.channel.schema.name) for one in file.messages()] == [
        (f"t{number}", "S") for number in range(3)]
    assert {one.topic for one in file.channels.values()} == {"t0", "t1", "t2"} and sum(file.counts.values()) == 3
    file.close()


def test_damage_within_one_without_an_index(tmp_path: Path) -> None:
    """It ends nothing: what is whole follows. At the end it is what a crash leaves."""
    path = tmp_path / "r.mcap"
    recorded(path, count=200, compression="none", close=False).abandon()
    whole = path.read_bytes()
    data = bytearray(whole)
    data[data.index(b"0051")] ^= 0xFF  # in the second chunk
    path.write_bytes(data)
    file = PlayedFile(path)
    assert not file.problem and file.times == (1000, 1199)
    file.close()
    with pytest.raises(JournalError, match=r"the chunk at byte [\d,]+ is damaged: its checksum does not match"):
        played(path)
    assert played(path, skip_damaged=True) == expected()[:50] + expected()[100:200]
    data = bytearray(whole)
    data[data.index(b"0151")] ^= 0xFF  # in the last one
    path.write_bytes(data)
    file = PlayedFile(path)
    assert "makes no sense from byte" in file.problem and "checksum" in file.problem
    file.close()
    assert played(path) == expected()[:150]


@pytest.mark.parametrize("opcode, content", [(Opcode.CHUNK, 3), (Opcode.MESSAGE, 7), (Opcode.CHANNEL, 1)])
def test_records_that_are_too_short(tmp_path: Path, opcode: int, content: int) -> None:
    path = tmp_path / "x.mcap"
    path.write_bytes(MAGIC + encode(Header(profile="", library="")) + RECORD.pack(opcode, content) + bytes(content))
    file = PlayedFile(path)
    assert "makes no sense from byte 25 on" in file.problem and "()" not in file.problem
    assert list(file.messages()) == []
    file.close()


def test_what_is_no_file_to_be_read_anywhere(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mcap")
    for given in (tmp_path / "pipe.mcap", tmp_path):
        with pytest.raises(JournalError, match=r"pipe.mcap is no regular file: .* into a file first"):
            open_all([given])
    (tmp_path / "pipe.mcap").unlink()
    (tmp_path / "d.mcap").mkdir()
    with pytest.raises(JournalError, match="no MCAP file in"):
        open_all([tmp_path])


def test_a_disk_that_can_not_be_read(tmp_path: Path) -> None:
    class Broken(OsFiles):
        def read(self, handle: int, size: int, offset: int) -> bytes:
            if offset + size > 300:
                raise OSError(errno.EIO, "Input/output error")
            return super().read(handle, size, offset)

    recorded(tmp_path / "r.mcap")
    with pytest.raises(JournalError, match=r"cannot read .*r\.mcap at byte [\d,]+: Input/output error"):
        PlayedFile(tmp_path / "r.mcap", Broken())


def test_a_disk_without_room_for_a_beginning(tmp_path: Path) -> None:
    """Nothing is left: not a file of zeros that holds what room there is and that nobody can read."""

    class Full(OsFiles):
        def allocate(self, handle: int, offset: int, size: int) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(JournalError, match=r"cannot write the recording .*r\.mcap: No space left on device"):
        RecordingWriter(tmp_path / "r.mcap", {}, files=Full())
    assert list(tmp_path.iterdir()) == []
    recorded(tmp_path / "r.mcap")
    assert played(tmp_path / "r.mcap") == expected()


def test_a_file_is_written_by_one_at_a_time(tmp_path: Path) -> None:
    """The second would destroy what the first has recorded, --force or not."""
    path = tmp_path / "r.mcap"
    first = recorded(path, close=False)
    with pytest.raises(JournalError, match=r"r\.mcap is being written by another recorder"):
        RecordingWriter(path, {}, replace=True)
    first.close()
    assert played(path) == expected()
    RecordingWriter(path, {}, replace=True).close()
    assert played(path) == []
    RecordingWriter(path, {}, replace=True).abandon()
    RecordingWriter(path, {}, replace=True).close()


def test_a_file_of_a_journal_is_never_replaced(tmp_path: Path) -> None:
    """Whoever gives the wrong name and --force would lose what a topic has logged."""
    path = tmp_path / file_name("flight/state", 1, 1)
    (tmp_path / lock_name("flight/state", 1)).touch()
    path.write_bytes(b"logged")
    with pytest.raises(JournalError, match="is a file of a journal, and journals are never replaced"):
        RecordingWriter(path, {}, replace=True)
    recorded(tmp_path / "r.mcap")
    with pytest.raises(JournalError, match="is a file of a journal, and journals are never replaced"):
        check_out(path, [tmp_path / "r.mcap"])
    assert path.read_bytes() == b"logged"
    other = tmp_path / "elsewhere" / path.name  # named like one, but no node's
    other.parent.mkdir()
    recorded(other)
    RecordingWriter(other, {}, replace=True).close()


def test_times_before_1970_are_none(tmp_path: Path) -> None:
    path = tmp_path / "r.mcap"
    writer = RecordingWriter(path, {})
    writer.add(writer.channel("t", None, {}), 0, 7, -1, b"x")
    writer.close()
    file = PlayedFile(path)
    assert [(one.log_time, one.publish_time) for one in file.messages()] == [(7, 7)]
    file.close()


def test_a_file_that_is_named_twice_is_played_once(tmp_path: Path) -> None:
    recorded(tmp_path / "r.mcap", count=10)
    assert [len(one) for one in open_all([tmp_path / "r.mcap", tmp_path / "r.mcap", tmp_path])] == [1]
