"""Journals as recordings: for tools that don't know Spindle.

Why: a journal has messages as its topic's log had them. Most are samples, and decode by its schemas as they stand; but
those of an order group or a coherent set are packets of several, and some have Qos behind them. A recording has each
sample by itself, on a channel of its topic.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from dds.codecs.schemas import schema_of
from dds.messages import announced
from dds.messages.contents import SAMPLE
from dds.messages.inline_qos import NOTHING
from spindle.cli.recordings.lanes import Form, Lanes, Played
from spindle.cli.recordings.tracks import TYPE_BYTES_MAX
from spindle.errors import JournalError
from spindle.group.schemas import MessageSchema
from spindle.journal.playing import JOURNAL, PlayedFile, merged
from spindle.journal.recording import RecordingWriter, places_in_set


def convert(opened: Sequence[Sequence[PlayedFile]], out: Path, replace: bool = False, skip_damaged: bool = False,
            progress: Callable[[int], None] | None = None) -> int:
    """Write the journals as a recording; how many messages. Raises JournalError."""
    files = [file for one in opened for file in one]
    for file in files:
        if file.kind != JOURNAL:
            raise JournalError(f"{file.path} is no journal, but a {file.kind}: other tools read it as it is")
    lanes, count = Lanes(files), 0
    writer = RecordingWriter(out, {"of": "\n".join(str(file.path.name) for file in files)}, replace=replace)
    channels: dict[tuple[Any, ...], int] = {}
    try:
        for message in merged(opened, skip_damaged=skip_damaged):
            for one, place in ((one, place) for unit in lanes.take(message)
                               for one, place in zip(unit, places_in_set(len(unit)), strict=True)):
                keyed = one.kind != SAMPLE or _is_keyed(one.form)
                key = (one.lane.topic, one.form, one.kind, one.inline, one.writer if keyed else 0, place)
                if key not in channels:
                    channels[key] = writer.channel(one.lane.topic, _schema(one), _metadata(one, keyed, place))
                writer.add(channels[key], message.sequence, one.log_time, one.source_ns or one.log_time, one.payload)
                count += 1
                if progress is not None and count % 1000 == 0:
                    progress(writer.size)
        writer.close()
    finally:
        writer.abandon()
    return count


def _is_keyed(form: Form) -> bool:
    return form.data_type is not None and form.codec().key_of is not None


def _schema(one: Played) -> MessageSchema | None:
    if one.kind != SAMPLE or one.form.data_type is None:
        return None
    try:
        return schema_of(one.form.data_type)
    except ValueError:
        return None


def _metadata(one: Played, keyed: bool, place: str) -> dict[str, str]:
    found = {"level": one.lane.level, "size_max": str(one.lane.size_max)}
    if one.lane.order:
        found["order"] = one.lane.order
    if one.form.type.kind and one.form.data_type is not None:
        found["type"] = announced.encode({"qos": {}}, one.form.codec(), TYPE_BYTES_MAX).decode()
    if one.kind != SAMPLE:
        found["what"] = one.kind
    if keyed:
        found["writer"] = f"{one.writer:x}"
    if place:
        found["set"] = place
    if one.inline != NOTHING:
        found["lifespan"], found["strength"] = str(one.inline.lifespan), str(one.inline.strength)
        found["partitions"] = "\n".join(one.inline.partitions)
    return found


__all__ = ["convert"]
