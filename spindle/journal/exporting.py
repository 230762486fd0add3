"""A journal as text: JSON lines or CSV, for tools that don't know MCAP.

Rules: one line per message, in the order of delivery; what a payload means is the caller's to say (`decode`).
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import enum
import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from spindle.errors import JournalError
from spindle.journal.directory import reason_of
from spindle.journal.files import Files, OsFiles
from spindle.journal.names import is_of_journal
from spindle.journal.reading import JournalMessage, Progress, one_journal, read

Messages = Callable[[bool], Iterator[JournalMessage]]  # from the first on; True: with progress
COLUMNS = ("topic", "position", "view_id", "sequence", "sender", "writer", "index", "log_time", "publish_time",
           "tag")


def export(
    path: Path | str,
    out: Path | str | TextIO,
    format: str = "jsonl",
    decode: Callable[[JournalMessage], Any] | None = None,
    *,
    topic: str | None = None,
    node_id: int | None = None,
    skip_damaged: bool = False,
    progress: Progress | None = None,
    files: Files | None = None,
) -> int:
    """Write the messages of one journal as text; returns how many.

    out     a path, "-" for standard output, or a text stream
    format  "jsonl": one JSON object per line; "csv": a header line, then one line per message
    decode  turns a message into its value: anything JSON can hold, dataclasses and NumPy scalars too. A mapping becomes
            columns in CSV: those that any message has, and `value` for what is none. Without it the payload is written
            in base64

    Fields: topic, position, view_id, sequence, sender, writer, index, log_time, publish_time (ns), tag (see
    JournalMessage), then `value` or `payload`; a tagged message, which need not be a sample, has no value. Raises
    ValueError for an unknown format, JournalError as `read` does, and if `out` can't be written.
    """
    if format not in ("jsonl", "csv"):
        raise ValueError(f"export format {format!r} is unknown; use jsonl or csv")
    if isinstance(out, (str, Path)) and str(out) != "-":
        check_out(Path(out), one_journal(path, topic, node_id, files).paths)

    def messages(shown: bool) -> Iterator[JournalMessage]:
        return read(path, topic=topic, node_id=node_id, skip_damaged=skip_damaged,
                    progress=progress if shown else None, files=files)

    if isinstance(out, (str, Path)) and str(out) != "-":
        try:
            with open(out, "w", encoding="utf-8", newline="") as stream:
                return _write(messages, stream, format, decode)
        except (JournalError, BrokenPipeError):
            raise
        except OSError as error:  # of a write it names no file
            raise JournalError(f"cannot write {out}: {reason_of(error, Path(out), files or OsFiles())}") from error
    return _write(messages, sys.stdout if isinstance(out, (str, Path)) else out, format, decode)


def check_out(out: Path, paths: Iterable[Path]) -> None:
    """Raise JournalError if what is to be written would replace one of the files that are read, or another journal."""
    for path in paths:
        if out.exists() and path.exists() and out.samefile(path):
            raise JournalError(f"{out} is a file of the journal that is exported: name another one")
    if is_of_journal(out):
        raise JournalError(f"{out} is a file of a journal, and journals are never replaced: name another one")


def _write(messages: Messages, stream: TextIO, format: str, decode: Callable[[JournalMessage], Any] | None) -> int:
    if format == "csv":
        return _write_table(messages, stream, decode)
    count = 0
    for message in messages(True):
        count += 1
        fields = {name: getattr(message, name) for name in COLUMNS}
        if decode is None or message.tag:
            fields |= {} if decode else {"payload": _base64(message.payload)}
        else:
            fields["value"] = decode(message)
        stream.write(json.dumps(fields, default=_jsonable, ensure_ascii=False) + "\n")
    return count


def _write_table(messages: Messages, stream: TextIO, decode: Callable[[JournalMessage], Any] | None) -> int:
    """The journal is read once for the columns, and so far again for the rows: each may have members of its own."""
    columns: dict[str, None] = {}  # in the order in which they come
    count, has_others = 0, decode is None
    for message in messages(False):
        count += 1
        value = decode(message) if decode and not message.tag else None
        members = _members(value)
        columns.update(dict.fromkeys(members or ()))
        has_others |= not message.tag and members is None
    table = csv.writer(stream, lineterminator="\n")
    names = [*columns, *(["payload" if decode is None else "value"] if has_others or not columns else [])]
    if count:
        table.writerow([*COLUMNS, *names])
    for message in itertools.islice(messages(True), count):
        cells: list[Any] = []
        if decode is None:
            cells = [_base64(message.payload)]
        elif not message.tag:
            value = decode(message)
            members = _members(value)
            cells = [_cell(members.get(name)) for name in columns] if members is not None else [None] * len(columns)
            cells += [_cell(value) if members is None else None] * (len(names) - len(columns))
        table.writerow([*(getattr(message, name) for name in COLUMNS), *cells])
    return count


def _members(value: Any) -> Mapping[str, Any] | None:
    """What has columns of its own; None for other values."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    return value if isinstance(value, Mapping) else None


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


def _cell(value: Any) -> Any:
    """A value as it stands in one CSV cell."""
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _base64(bytes(value))
    return json.dumps(value, default=_jsonable, ensure_ascii=False)


def _jsonable(value: Any) -> Any:
    """What json doesn't know: bytes as base64, dataclasses as objects, NumPy scalars and arrays as numbers or lists."""
    if isinstance(value, (bytes, bytearray, memoryview)):
        return _base64(bytes(value))
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, (set, frozenset, tuple)):
        return list(value)
    return str(value)
