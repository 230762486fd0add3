"""Taking up a journal where the last life of the node left it.

Why the last file is read whole: that a journal can be continued means that everything before is there and undamaged,
so that what is recovered is a prefix of what was written. A torn tail, which a crash of the machine can leave, is cut
off; its bytes are kept beside the file. Damage with good data behind it is refused: only somebody who knows where
another copy is may decide to go on without it.

Rules: a file that was left live is closed with its summary. Then the journal begins a new file, or goes on with a small
one of the same group (`JournalFile.go_on`): so a topic that is often reopened leaves no trail of files, all of which
would be read the next time. Whoever calls `recover` holds the journal's lock.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path

from spindle.journal.errors import JournalCorrupt, NotAJournal
from spindle.journal.files import Files, OsFiles
from spindle.journal.format import LIVE_TRAILER, Damage, padding_header, parse_channel
from spindle.journal.growing import finish, round_up
from spindle.journal.live import Whole
from spindle.journal.names import TORN_SUFFIX, UNFINISHED_SUFFIX, file_name, file_safe, parse
from spindle.journal.relays import Relayed, Relays
from spindle.journal.scan import Scan, State

_log = logging.getLogger(__name__)


class Known:
    """What this process has found of the last files of journals, so that it need not read them whole again while nobody
    has touched them. A file that is written again is known again when it is closed. One thread a journal at a time.
    """

    def __init__(self) -> None:
        self._found: dict[Path, tuple[tuple[int, ...], Recovery]] = {}

    def note(self, files: Files, path: Path, recovery: Recovery) -> None:
        """The file is closed, and this is what there is to know."""
        if recovery.whole is not None and not recovery.whole.small:
            recovery = dataclasses.replace(recovery, whole=None)
        handle = files.open(path)
        try:
            self._found[path] = files.identity(handle), recovery
        finally:
            files.close(handle)

    def look(self, files: Files, handle: int, path: Path) -> Recovery | None:
        """What is known of an open file; None if it isn't known as it is."""
        identity, recovery = self._found.get(path, (None, None))
        return recovery if identity == files.identity(handle) else None

    def forget(self, path: Path) -> None:
        """It is about to change."""
        self._found.pop(path, None)


@dataclasses.dataclass(frozen=True)
class Recovery:
    """What was found of a journal, and from where it goes on.

    number                    of the file to make next, from 1
    position                  of the next message: messages in the whole journal so far
    last_view, last_sequence  of the last message; -1 if there is none
    group                     life of the group that those two numbers belong to; "" if unknown
    torn_path, torn_bytes     where a torn tail was put, and its size; None and 0 if there was none
    relayed                   how far the writers on hosts without a node have got, see `spindle.journal.relays`
    whole                     the last file, if it has commits and no tail of it was torn; of a known one only if it is
                              small
    """

    number: int = 1
    position: int = 0
    last_view: int = -1
    last_sequence: int = -1
    group: str = ""
    torn_path: Path | None = None
    torn_bytes: int = 0
    relayed: Relayed = dataclasses.field(default_factory=dict)
    whole: Whole | None = dataclasses.field(default=None, compare=False, repr=False)


def journal_numbers(files: Files, directory: Path, topic: str, node_id: int) -> list[tuple[int, Path]]:
    """Number and path of each file of the journal of `topic` on `node_id`, oldest first."""
    found = []
    for name in files.names(directory):
        parts = parse(name)
        if parts is not None and (parts.stem, parts.node_id) == (file_safe(topic), node_id):
            found.append((parts.number, directory / name))
    return sorted(found)


def misnamed(path: Path, scan: Scan) -> str:
    """Why a file with the name of a journal is none of that journal's, in words; empty if it is one."""
    parts, head = parse(path.name), scan.head
    if parts is None or (parts.stem, parts.node_id) == (file_safe(head.topic), head.node_id):
        return ""
    return (f"{path} has the name of a file of topic {parts.stem} and node {parts.node_id}, but holds topic "
            f"{head.topic!r} of node {head.node_id}: move it away, or give it its name back, "
            f"{file_name(head.topic, head.node_id, head.number)}")


def recover(files: Files, directory: Path, topic: str, node_id: int, known: Known | None = None) -> Recovery:
    """Put the journal in order and say how it goes on. The last file is not read if it is `known` and untouched.

    Raises JournalCorrupt if the last file is damaged before its end, NotAJournal if another file has its name, OSError
    if the disk refuses.
    """
    prefix = f"{file_safe(topic)}-{node_id}-"
    for name in files.names(directory):
        if name.startswith(prefix) and name.endswith(UNFINISHED_SUFFIX):
            files.remove(directory / name)
    numbers = journal_numbers(files, directory, topic, node_id)
    if not numbers:
        return Recovery()
    number, path = numbers[-1]
    handle = files.open(path, writable=True)
    try:
        if known is not None and (recovery := known.look(files, handle, path)) is not None:
            return recovery
        scan = open_scan(files, handle, path)
        relays = Relays(scan.head.relayed)
        channels: dict[tuple[int, int], int] = {}
        for layout, body in scan.commits():
            relays.add(layout, body)
            for record in layout.channel_records:
                channel, sender, writer = parse_channel(record, layout.offset)
                channels[sender, writer] = channel
        if problem := misnamed(path, scan):
            raise NotAJournal(problem)
        if scan.state is State.CORRUPT:
            raise corrupt_error(scan)
        torn_path, torn_bytes = repair(files, handle, scan)
    finally:
        files.close(handle)
    last = scan.last.record if scan.last is not None else None
    whole = None
    if scan.last is not None and scan.state is not State.TORN:
        whole = Whole(path, scan.head, scan.head_bytes, scan.end, scan.last, scan.summary, relays, channels)
    recovery = Recovery(
        # A file with nothing in it is replaced by the next one, so that restarts don't leave a trail of empty files.
        number=number if last is None else number + 1,
        position=scan.next_position,
        last_view=last.view_id if last else scan.head.last_view,
        last_sequence=last.last_sequence if last else scan.head.last_sequence,
        group=scan.head.group,
        torn_path=torn_path,
        torn_bytes=torn_bytes,
        relayed=relays.last,
        whole=whole,
    )
    if known is not None and whole is not None:
        known.note(files, path, recovery)
    return recovery


def open_scan(files: Files, handle: int, path: Path) -> Scan:
    """Scan of a file whose head must be whole; JournalCorrupt if it isn't."""
    try:
        return Scan(files, handle, path)
    except Damage as damage:
        raise JournalCorrupt(
            f"{path} is damaged at its beginning: {damage}. Nothing of it can be trusted. Put back a copy, or have "
            f"`spindle journal repair {path}` move it away: the node then gets its messages from the others",
            path,
            damage.offset,
        ) from None


def corrupt_error(scan: Scan) -> JournalCorrupt:
    """The error for a scan that ended CORRUPT: where, how much is good, and the way out."""
    assert scan.damage is not None
    return JournalCorrupt(
        f"{scan.path} is damaged before its end: {scan.damage}; {scan.summary.messages:,} messages before it are "
        "whole, and there is good data behind it, so no crash did this and nothing is cut off. Put back a copy of the "
        f"file, or have `spindle journal repair {scan.path}` move what is behind the damage away: the node then "
        "gets it from the others. `spindle journal export --skip-damaged` still reads what is whole on both sides",
        scan.path,
        scan.damage.offset,
    )


def check_whole(path: Path, files: Files | None = None) -> None:
    """Read a file through. Raises JournalCorrupt for damage before its end; a torn tail is none."""
    files = files or OsFiles()
    handle = files.open(path)
    try:
        scan = open_scan(files, handle, path).run()
        if scan.state is State.CORRUPT:
            raise corrupt_error(scan)
    finally:
        files.close(handle)


def repair(files: Files, handle: int, scan: Scan) -> tuple[Path | None, int]:
    """Turn the LIVE or TORN file of `scan` into a closed one; a CLOSED one is left alone. The handle is writable.

    Returns where a torn tail was put and how many bytes it has. The tail is on the disk in its new place before it is
    cut off; a crash meanwhile leaves the file torn as it was.
    """
    torn_path, torn_bytes = None, 0
    closing = scan.summary.closing(scan.end)
    if scan.state is State.CLOSED:
        if scan.size > scan.body_end:
            files.truncate(handle, scan.body_end)
        files.sync(handle)
    elif scan.state is State.LIVE:
        needed = scan.end + len(closing)
        if needed > scan.size - len(LIVE_TRAILER):
            size = round_up(needed + len(LIVE_TRAILER))
            files.write(handle, [LIVE_TRAILER], size - len(LIVE_TRAILER))
            files.write(handle, [padding_header(scan.end, size)], scan.end)
        finish(files, handle, scan.end, closing)
    else:
        assert scan.state is State.TORN, scan.state
        torn_path, torn_bytes = _keep_tail(files, handle, scan)
        files.truncate(handle, scan.end)
        files.write(handle, [closing], scan.end)
        files.sync(handle)
        if torn_path is not None:
            _log.warning("%s: torn tail of %d bytes cut off at byte %d (%s), kept in %s", scan.path, torn_bytes,
                         scan.end, scan.damage, torn_path)
        else:
            _log.warning("%s: closed at byte %d, after its last whole commit (%s)", scan.path, scan.end, scan.damage)
    return torn_path, torn_bytes


def _keep_tail(files: Files, handle: int, scan: Scan) -> tuple[Path | None, int]:
    """Copy what is behind the last whole commit into a file of its own, without the unused rest."""
    tail = files.read(handle, scan.size - scan.end, scan.end).removesuffix(LIVE_TRAILER).rstrip(b"\0")
    if not tail:
        return None, 0
    taken = set(files.names(scan.path.parent))
    name, attempt = scan.path.name + TORN_SUFFIX, 1
    while name in taken:
        attempt += 1
        name = f"{scan.path.name}{TORN_SUFFIX}{attempt}"
    path = scan.path.with_name(name)
    copy = files.create(path)
    try:
        files.write(copy, [tail], 0)
        files.sync(copy)
    finally:
        files.close(copy)
    files.sync_directory(path.parent)
    return path, len(tail)
