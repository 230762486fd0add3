"""A journal as text: JSON lines or CSV, for tools that don't know MCAP.

Rules: one line per message, in the order of delivery; what a payload means is the caller's to say (`decode`).
"""

from __future__ import annotations

import base64
import csv
import dataclasses
import enum
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
            columns in CSV (those of the first message). Without it the payload is written in base64

    Fields: topic, position, view_id, sequence, sender, writer, index, log_time, publish_time (ns), tag (see
    JournalMessage), then `value` or `payload`; a tagged message, which need not be a sample, has no value. Raises
    ValueError for an unknown format, JournalError as `read` does, and if `out` can't be written.
    """
    if format not in ("jsonl", "csv"):
        raise ValueError(f"export format {format!r} is unknown; use jsonl or csv")
    if isinstance(out, (str, Path)) and str(out) != "-":
        check_out(Path(out), one_journal(path, topic, node_id, files).paths)
    messages = read(path, topic=topic, node_id=node_id, skip_damaged=skip_damaged, progress=progress, files=files)
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


def _write(messages: Iterator[JournalMessage], stream: TextIO, format: str,
           decode: Callable[[JournalMessage], Any] | None) -> int:
    count = 0
    columns: list[str] | None = None
    held: list[list[Any]] = []  # rows before the first one that says what the columns are
    table = csv.writer(stream, lineterminator="\n")
    for message in messages:
        count += 1
        fields = {name: getattr(message, name) for name in COLUMNS}
        value = decode(message) if decode and not message.tag else None
        if format == "jsonl":
            fields |= {"value": value} if decode and not message.tag else {"payload": _base64(message.payload)}
            stream.write(json.dumps(fields, default=_jsonable, ensure_ascii=False) + "\n")
        else:
            if dataclasses.is_dataclass(value) and not isinstance(value, type):
                value = dataclasses.asdict(value)
            if columns is None and decode and message.tag:
                held.append([*fields.values()])
                continue
            if columns is None:
                columns = list(value) if isinstance(value, Mapping) else []
                table.writerow([*COLUMNS, *columns] if columns else [*COLUMNS, "value" if decode else "payload"])
                table.writerows(held)
            if columns:
                cells = [_cell(value.get(name)) for name in columns] if isinstance(value, Mapping) else []
            else:
                cells = [_cell(value) if decode else _base64(message.payload)]
            table.writerow([*fields.values(), *cells])
    if held and columns is None:
        table.writerow([*COLUMNS, "value"])
        table.writerows(held)
    return count


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
