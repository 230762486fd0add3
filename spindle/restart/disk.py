"""What a restart does with journal files: look at them, cut off what conflicts, read their end or the rest.

Why apart from `spindle.journal.recovery`: there one node puts its own files in order, whatever others have; here it
makes them equal to somebody else's. Nothing is ever deleted: what is cut off is kept beside, under the file's name with
`.forked` (it conflicts), `.aside` (the topic was declared anew) or `.damaged`.

Rules: everything here blocks and runs on a thread of its own. Nobody writes the journal meanwhile (it is taken up after
this), except where a function that reads says otherwise. Raises JournalError, OSError.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import secrets
import sys
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from spindle.errors import JournalError
from spindle.journal.errors import JournalBusy, JournalCorrupt, NotAJournal
from spindle.journal.files import Files, OsFiles
from spindle.journal.fitting import newest_type
from spindle.journal.format import MESSAGE, CommitLayout, Damage
from spindle.journal.names import lock_name
from spindle.journal.reading import Channels, JournalMessage, add_channels, messages_of
from spindle.journal.recovery import Known, Recovery, corrupt_error, journal_numbers, open_scan, recover, repair
from spindle.journal.relays import Relays
from spindle.journal.scan import State
from spindle.restart.chain import NOTHING, Holders, Life, Order, Standing, Summary, is_outdated
from spindle.restart.ledger import Ledger
from spindle.restart.pieces import ENTRY_SIZE

FORKED_SUFFIX = ".forked"
ASIDE_SUFFIX = ".aside"
DAMAGED_SUFFIX = ".damaged"
COPY_BYTES = 1 << 20
LOG = logging.getLogger("spindle.node")


class Store(NamedTuple):
    """Where one node keeps its journal of one topic."""

    directory: Path
    topic: str
    node_id: int
    files: Files = OsFiles()
    known: Known | None = None


class TakenUp(NamedTuple):
    """A journal that is in order: where it ends for whoever goes on writing it, and what it says of itself."""

    recovery: Recovery
    begin: Order
    standing: Standing
    type: tuple[str, bytes] = ("", b"")  # of the newest messages; an empty name: unknown

    @property
    def end(self) -> Order:
        return self.recovery.last_view, self.recovery.last_sequence

    @property
    def summary(self) -> Summary:
        return Summary(self.standing, self.begin, self.end, self.recovery.position, type=self.type)


def take_up(store: Store, ledger: Ledger) -> TakenUp:
    """Puts the journal in order (a torn tail is cut and kept, and so is all that is older than the ledger's lives) and
    says what there is. Raises JournalCorrupt, JournalBusy.

    A journal without a ledger, from before there were any, counts as one whose only holder was this node.
    """
    files = store.files
    files.make_directory(store.directory)
    lock = _lock(store)
    try:
        return _found(store, ledger, whole=True)
    finally:
        files.close(lock)


def _lock(store: Store) -> int:
    lock = store.files.lock(store.directory / lock_name(store.topic, store.node_id))
    if lock is None:
        raise JournalBusy(f"the journal of topic {store.topic!r} of node {store.node_id} in {store.directory} is being "
                          "written by another process; stop that, or give each node its own id or journal directory")
    return lock


def _found(store: Store, ledger: Ledger, whole: bool) -> TakenUp:
    """Hold the lock. If there is no ledger, one is made that says `whole`."""
    standing, begin = ledger.read(), NOTHING
    try:
        recovery = recover(store.files, store.directory, store.topic, store.node_id, store.known)
        begin = first_message(store)
        outdated = is_outdated(standing.lives, begin if begin != NOTHING else (
            recovery.last_view, recovery.last_sequence))  # that of files which were dropped
    except JournalCorrupt:
        with contextlib.suppress(JournalError):
            begin = first_message(store)
        outdated = is_outdated(standing.lives, begin)
        if not outdated:
            raise
    if outdated:
        count, kept = cut_after(store, NOTHING, ASIDE_SUFFIX)
        LOG.warning("topic %r was declared anew: what this node had of it (%d messages) is kept in %s", store.topic,
                    count, ", ".join(map(str, kept)))
        recovery = recover(store.files, store.directory, store.topic, store.node_id)
        begin = first_message(store)
    if not ledger.exists and begin != NOTHING:
        standing = ledger.update(
            lives=(Life(recovery.group, begin[0]),), whole=whole, seen_view=recovery.last_view,
            holders=Holders(recovery.last_view, (store.node_id,)))
    newest = newest_type(store.directory, store.topic, store.node_id, store.files) if begin != NOTHING else None
    return TakenUp(recovery, begin, standing, newest[1:] if newest is not None else ("", b""))


def first_message(store: Store) -> Order:
    """The first message of the journal; NOTHING if there is none."""
    for _, path in journal_numbers(store.files, store.directory, store.topic, store.node_id):
        handle = store.files.open(path)
        try:
            for layout, _ in open_scan(store.files, handle, path).commits():
                return layout.record.view_id, layout.record.sequence
        finally:
            store.files.close(handle)
    return NOTHING


def cut_after(store: Store, end: Order, suffix: str = FORKED_SUFFIX) -> tuple[int, list[Path]]:
    """Ends the journal with the last commit that holds nothing beyond `end`. Returns how many messages that took off,
    and the files that keep them. Whoever calls this has said in the ledger that the journal isn't whole.

    Newest file first, each copied before it is touched: whenever the process dies, what is left is a prefix. If all of
    it goes, it doesn't matter what is damaged.
    """
    files = store.files
    kept: list[Path] = []
    count = 0
    for _, path in reversed(journal_numbers(files, store.directory, store.topic, store.node_id)):
        handle = files.open(path, writable=True)
        try:
            good, beyond = 0, 0
            try:
                scan = open_scan(files, handle, path)
                for layout, _ in scan.commits():
                    if (layout.record.view_id, layout.record.last_sequence) <= end:
                        good = layout.end
                    else:
                        beyond += layout.record.count
                if scan.state is State.CORRUPT:
                    raise corrupt_error(scan)
                if not beyond and (good or (scan.head.last_view, scan.head.last_sequence) <= end):
                    break
            except (JournalError, Damage):
                if end != NOTHING:
                    raise
            count += beyond
            aside = free_name(store.files, path, suffix)
            kept.append(aside)
            if not good:
                files.rename(path, aside)
                files.sync_directory(store.directory)
                continue
            _copy(files, handle, aside, scan.size)
            files.truncate(handle, good)
            files.sync(handle)
            repair(files, handle, open_scan(files, handle, path).run())
        finally:
            files.close(handle)
    return count, kept


def free_name(files: Files, path: Path, suffix: str) -> Path:
    """What `path` may be called with this suffix, beside what there is already."""
    taken = set(files.names(path.parent))
    name, attempt = path.name + suffix, 1
    while name in taken:
        attempt += 1
        name = f"{path.name}{suffix}{attempt}"
    return path.with_name(name)


def _copy(files: Files, handle: int, target: Path, size: int) -> None:
    copy = files.create(target)
    try:
        for offset in range(0, size, COPY_BYTES):
            files.write(copy, [files.read(handle, min(COPY_BYTES, size - offset), offset)], offset)
        files.sync(copy)
    finally:
        files.close(copy)
    files.sync_directory(target.parent)


def cut_damage(store: Store) -> list[Path]:
    """Ends the journal before its first damage, so that the node gets the rest from the others; returns the files that
    keep what was there, none if there is no damage. JournalBusy if a node has the journal."""
    files, ledger = store.files, Ledger(store.directory, store.topic, store.node_id, store.files)
    lock = _lock(store)
    try:
        numbers = [path for _, path in journal_numbers(files, store.directory, store.topic, store.node_id)]
        try:
            ledger.read()
            readable = True
        except JournalCorrupt:
            readable = False
        place, good = _first_damage(files, numbers)
        if place == len(numbers) and readable:
            return []
        if readable and ledger.exists:
            ledger.update(whole=False)
        kept = _cut_file(store, numbers, place, good) if place < len(numbers) else []
        if readable:
            _found(store, ledger, whole=False)
        else:  # the last step: as long as it can't be read, nobody takes the journal up
            kept.append(_renew_ledger(store, ledger))
        return kept
    finally:
        files.close(lock)


def _cut_file(store: Store, paths: list[Path], place: int, good: int) -> list[Path]:
    """Puts aside what is behind the first `good` bytes of the file at `place`, and all files after it."""
    files = store.files
    kept = [_put_aside(store, path) for path in reversed(paths[place + 1 :])]
    if good == 0:
        return [*kept, _put_aside(store, paths[place])]
    handle = files.open(paths[place], writable=True)
    try:
        kept.append(free_name(store.files, paths[place], DAMAGED_SUFFIX))
        _copy(files, handle, kept[-1], files.size(handle))
        files.truncate(handle, good)
        files.sync(handle)
        repair(files, handle, open_scan(files, handle, paths[place]).run())
    finally:
        files.close(handle)
    return kept


def _renew_ledger(store: Store, ledger: Ledger) -> Path:
    """Puts a standing in the place of one that can't be read, and keeps that: its node never was one of the holders,
    isn't whole, and has messages of a life that nobody else has.

    So whoever is whole gives it everything anew, and what it had is put aside (`.forked`). It counts for no majority,
    so nothing that holders acknowledged is given up for it; only `restart = "any"` goes on with its messages."""
    files = store.files
    recovery = recover(files, store.directory, store.topic, store.node_id)
    begin = first_message(store)
    lives = () if begin == NOTHING else (
        Life(f"{recovery.group}.{store.node_id}-{secrets.token_hex(8)}", begin[0]),)
    kept = free_name(store.files, ledger.path, DAMAGED_SUFFIX)
    handle = files.open(ledger.path)
    try:
        _copy(files, handle, kept, files.size(handle))
    finally:
        files.close(handle)
    ledger.replace(Standing(lives, seen_view=recovery.last_view))
    return kept


def _put_aside(store: Store, path: Path) -> Path:
    aside = free_name(store.files, path, DAMAGED_SUFFIX)
    store.files.rename(path, aside)
    store.files.sync_directory(store.directory)
    return aside


def _first_damage(files: Files, paths: list[Path]) -> tuple[int, int]:
    """Place of the first damaged file, and up to which byte it is good; the number of files if none is."""
    for place, path in enumerate(paths):
        handle = files.open(path)
        try:
            scan = open_scan(files, handle, path)
            good, channels = len(scan.head_bytes), Channels()
            for layout, body in scan.commits():
                add_channels(channels, layout)
                for _ in messages_of(scan.head.topic, layout, body, channels):
                    pass
                good = layout.end
            if scan.state is State.CORRUPT:
                return place, good
        except Damage:  # a commit that contradicts itself although its checksums are right
            return place, good
        except (JournalCorrupt, NotAJournal):
            return place, 0
        finally:
            files.close(handle)
    return len(paths), 0


def begin_of_end(store: Store, count_max: int, bytes_max: int, overhead: int, size_max: int, large_max: int) -> Order:
    """Where the end of the journal begins: at most `count_max` messages (0: any number) that take `bytes_max` with
    `overhead` bytes for each; what a late reader would still be given if the node had never stopped. Of those larger
    than `size_max` only their entries count there, and up to `large_max` bytes of their own are taken, or one that has
    more. NOTHING if there are none; `messages_from` reads them."""
    count, size, begin = count_max or sys.maxsize, bytes_max, NOTHING
    large, has_large = large_max, False
    for _, path in reversed(journal_numbers(store.files, store.directory, store.topic, store.node_id)):
        # A file may have tens of thousands of commits: four numbers of each are kept, and no object.
        counts, sizes, larges, views, sequences = (array("Q") for _ in range(5))
        for layout, body, channels in _commits(store, path):
            record = layout.record
            small, beside = _payload_bytes(layout, body), 0
            if small > size_max:  # perhaps
                costs = [_cost(one.payload, size_max) for one in messages_of(store.topic, layout, body, channels)]
                small, beside = (sum(column) for column in zip(*costs, strict=True))
            counts.append(record.count)
            sizes.append(small + record.count * overhead)
            larges.append(beside)
            views.append(record.view_id)
            sequences.append(record.sequence)
        for place in range(len(counts) - 1, -1, -1):
            count, size, large = count - counts[place], size - sizes[place], large - larges[place]
            if count < 0 or size < 0 or (large < 0 and (has_large or counts[place] > 1)):
                return _first_that_fits(store, path, place, (count, size, large), overhead, size_max, begin)
            has_large = has_large or larges[place] > 0
            begin = views[place], sequences[place]
    return begin


def _cost(payload: bytes, size_max: int) -> tuple[int, int]:
    """Bytes that a message takes in a log, and beside it."""
    return (len(payload), 0) if len(payload) <= size_max else (ENTRY_SIZE, len(payload))


def _first_that_fits(store: Store, path: Path, place: int, left: tuple[int, int, int], overhead: int, size_max: int,
                     begin: Order) -> Order:
    """Of a commit that is too much, by messages, bytes, or bytes of large ones, of which `left` says what is left when
    it is taken: its first message from which on all fit; `begin` if none does."""
    count, size, large = left
    layout, body, channels = next(itertools.islice(_commits(store, path), place, None))
    for message in messages_of(store.topic, layout, body, channels):
        if count >= 0 and size >= 0 and large >= 0:
            return message.view_id, message.sequence
        small, beside = _cost(message.payload, size_max)
        count, size, large = count + 1, size + small + overhead, large + beside
    return begin


def _payload_bytes(layout: CommitLayout, body: bytes) -> int:
    return len(body) - layout.record.count * MESSAGE.size - sum(map(len, layout.channel_records))


def _commits(store: Store, path: Path) -> Iterator[tuple[CommitLayout, bytes, Channels]]:
    """One commit of a file after the other, each with the writers known by then. JournalError where it is damaged."""
    handle = store.files.open(path)
    try:
        scan = open_scan(store.files, handle, path)
        channels: Channels = {}
        for layout, body in scan.commits():
            add_channels(channels, layout)
            yield layout, body, channels
        if scan.state is State.CORRUPT:
            raise corrupt_error(scan)
    except Damage as damage:
        raise JournalError(f"{path} is damaged: {damage}") from damage
    finally:
        store.files.close(handle)


def relayed_before(store: Store, place: Order) -> dict[int, int]:
    """Of each writer on a host without a node: source timestamp of its last message before `place`, in this journal or
    before it; see `spindle.journal.relays`."""
    for _, path in reversed(journal_numbers(store.files, store.directory, store.topic, store.node_id)):
        handle = store.files.open(path)
        try:
            scan = open_scan(store.files, handle, path)
            if (scan.head.last_view, scan.head.last_sequence) >= place:
                continue
            relays = Relays(scan.head.relayed)
            for layout, body in scan.commits():
                record = layout.record
                if (record.view_id, record.sequence) >= place:
                    break
                relays.add(layout, body, place[1] if record.view_id == place[0] else None)
            return relays.last
        finally:
            store.files.close(handle)
    return {}


def types_from(store: Store, begin: Order) -> list[bytes]:
    """What the files say of the types of messages from `begin` on, the oldest file's first."""
    paths = [path for _, path in journal_numbers(store.files, store.directory, store.topic, store.node_id)]
    found: dict[bytes, None] = {}
    for path in paths[_first_needed(store, paths, begin) :]:
        handle = store.files.open(path)
        try:
            found.update(dict.fromkeys(open_scan(store.files, handle, path).head.types))
        finally:
            store.files.close(handle)
    return list(found)


def messages_from(store: Store, begin: Order, until: Order) -> Iterator[JournalMessage]:
    """The messages from `begin` up to `until`, as messages_after."""
    return messages_after(store, (begin[0], begin[1] - 1), until) if begin != NOTHING else iter(())


def messages_after(store: Store, after: Order, until: Order) -> Iterator[JournalMessage]:
    """The messages beyond `after` up to `until`, oldest first; a running node may be writing the journal. If the
    journal begins later, from there."""
    paths = [path for _, path in journal_numbers(store.files, store.directory, store.topic, store.node_id)]
    for path in paths[_first_needed(store, paths, after) :]:
        for layout, body, channels in _commits(store, path):
            record = layout.record
            if (record.view_id, record.last_sequence) <= after:
                continue
            for message in messages_of(store.topic, layout, body, channels):
                order = (message.view_id, message.sequence)
                if order > until:
                    return
                if order > after:
                    yield message


def _first_needed(store: Store, paths: list[Path], after: Order) -> int:
    """Place of the last file that begins at or before `after`."""
    for place in range(len(paths) - 1, 0, -1):
        handle = store.files.open(paths[place])
        try:
            for layout, _ in open_scan(store.files, handle, paths[place]).commits():
                if (layout.record.view_id, layout.record.sequence) <= after:
                    return place
                break
        finally:
            store.files.close(handle)
    return 0
