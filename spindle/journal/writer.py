"""The journal of one logged topic on one node: a thread that puts on disk what was delivered, and says so.

Why a thread: a disk answers when it likes, and the predicate thread waits for nobody. The journal is one more reader of
the topic's delivery log, one that keeps all; if it can't follow, the log fills and writers wait, so nothing is lost.

Why group commits: a sync costs the same for one message as for ten thousand. A message that comes after a pause is
written at once; under load what came within `group_commit_ms` of the last commit is written together.

Rules: `on_durable` is called only for what is on the disk (fsync "group"), or with the kernel (fsync "never", which
survives the death of the process, not of the machine). After the first error nothing is acknowledged, written or
synced any more: a failed sync must not be repeated, because the kernel may have dropped the pages it couldn't write
and would report success (Rebello et al., USENIX ATC 2020). The delivery log is then no longer read, so its writers
block; the owner decides in `on_failure` what becomes of the node.
"""

from __future__ import annotations

import dataclasses
import errno
import functools
import logging
import os
import secrets
import select
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from spindle.errors import JournalError, shortage
from spindle.group.schemas import MessageSchema, schema_in
from spindle.group.topics import TopicSpec
from spindle.journal.directory import directory_error, reason_of, way_out
from spindle.journal.errors import JournalBusy, JournalWriteFailed
from spindle.journal.files import Files, OsFiles
from spindle.journal.format import CHANNELS_MAX, Head
from spindle.journal.growing import NoRoom
from spindle.journal.live import JournalFile, Pair, runs
from spindle.journal.names import lock_name
from spindle.journal.recovery import Known, Recovery, journal_numbers, recover
from spindle.journal.relays import Relayed, newest
from spindle.journal.retention import ALWAYS, Keeper, Retention
from spindle.logs import JOURNAL_GOES_ON, JOURNAL_HALTED, about

R = TypeVar("R")

FSYNC_MODES = ("group", "never")
KEEP_ALL = Retention()
NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
HALT_PERIOD_S = 0.5  # between two looks whether there is room again
RETAIN_PERIOD_S = 30.0  # between two looks which files have become too old
COMMIT_BYTES = 4 << 20  # payload bytes that end the gathering of a commit
TAKE_BYTES = 1 << 20  # payload bytes that one take may bring at most, as far as size_max allows
SCHEMAS_BYTES_MAX = 1 << 20  # of the schemas in a file's head
TAKE_MAX = 1024  # messages of one take
COMMITS_MAX = 65_536  # of one file: bounds the summary (35 to 45 bytes each) that is kept in memory until it is closed

_log = logging.getLogger(__name__)


class Source(Protocol):
    """What the journal reads from: `spindle_core.reader.LogReader` with a keep-all cursor."""

    def take_pairs(self, n: int) -> list[tuple[bytes, Any]]: ...
    def arm(self) -> bool: ...
    def wait(self, timeout_s: float = -1.0) -> bool: ...
    def fileno(self) -> int: ...
    def clear(self) -> None: ...


class Journal:
    """Writes what is delivered on a logged topic to MCAP files.

    directory        where the files are; made if missing
    spec, node_id    topic, and the node whose deliveries these are
    reader           keep-all reader of the topic's delivery log; used by the journal's thread alone until `close`
    on_durable       called on the journal's thread with n when all messages with index < n are on the disk
    on_failure       called once, on the journal's thread, with the error after which nothing more is written
    fsync            "group" or "never", see the module's text
    group_commit_ms  least time between two commits; 0 commits whatever is there as soon as the last one is done
    max_file_size    bytes after which a file is closed and the next begun
    retention        which closed files are dropped, and how much of the disk is to stay free
    on_halt          called on the journal's thread with the reason when it stops writing because the disk has too
                     little room, and with "" when it goes on
    group            identity of this life of the group, if known. A message of the same group that the journal already
                     holds (by view and sequence number) is then not written again, as when history is transferred to a
                     node that comes back
    held             view and sequence number up to which the journal holds everything, whatever the group: of a topic
                     whose order goes on over restarts (`spindle.restart`). None: only `group` tells
    before_commit    called on the journal's thread with the view id of the last message before each commit is written;
                     what it raises ends the journal
    files            the disk
    known            what this process knows of journals that it has closed; the last file need not be read again then
    types            asked on the journal's thread before each commit: what is known of the types of its messages, by
                     key; all of that is in the file then
    Raises JournalError (JournalBusy, JournalCorrupt, NotAJournal) if the journal can't be taken up; nothing runs then.
    Reads the journal's last file whole unless it is known, so it may take a second per gigabyte: not for an event
    loop.
    """

    def __init__(
        self,
        directory: Path | str,
        spec: TopicSpec,
        node_id: int,
        reader: Source,
        on_durable: Callable[[int], None],
        on_failure: Callable[[Exception], None],
        *,
        fsync: str = "group",
        group_commit_ms: float = 2.0,
        max_file_size: int = 1 << 30,
        retention: Retention = KEEP_ALL,
        on_halt: Callable[[str], object] = lambda _: None,
        group: str = "",
        held: tuple[int, int] | None = None,
        before_commit: Callable[[int], object] | None = None,
        files: Files | None = None,
        known: Known | None = None,
        types: Callable[[], Mapping[bytes, bytes]] = dict,
    ) -> None:
        if fsync not in FSYNC_MODES:
            raise ValueError(f"fsync {fsync!r} is unknown; use one of {', '.join(FSYNC_MODES)}")
        self.directory = Path(directory)
        self.spec = spec
        self.node_id = node_id
        self.failure: Exception | None = None
        self._reader = reader
        self._on_durable = on_durable
        self._on_failure = on_failure
        self._sync = fsync == "group"
        self._group_s = group_commit_ms / 1000
        self._max_file_size = max_file_size
        self._keeper = Keeper(files or OsFiles(), self.directory, retention)
        self._on_halt = on_halt
        self.halted = ""  # why nothing is written for lack of room; empty: it is
        self._dropped = 0
        self._unbegun = False  # the last file is closed, and for the next there was no room
        self._retained_s = 0.0
        self._group = group
        self._before_commit = before_commit
        self._files = files or OsFiles()
        self._known = known
        self._types = types
        self._types_seen: Mapping[bytes, bytes] = {}
        self._types_lacking = False
        self._take_count = max(1, min(TAKE_MAX, TAKE_BYTES // spec.size_max))
        self._stopping = False
        self._durable = 0
        self._earlier_messages = 0  # of this life in closed files, minus those of earlier lives in the present file
        self._commits = 0
        self._skipped = 0
        self._commit_ns_max = 0
        self._begun_ns = 0  # monotonic: when the commit that is under way began, or went on; 0: none is
        self._changed = threading.Condition()
        self._learned: dict[int, int] = {}

        self._next_index = -1  # of the next message in the delivery log; -1 = any

        self._lock = self._take_lock()
        try:
            self.recovery: Recovery = recover(self._files, self.directory, spec.name, node_id, known)
            last = (self.recovery.last_view, self.recovery.last_sequence)
            if held is None and not self.recovery.group == group != "":
                last = (-1, -1)  # order numbers of another life of the group mean nothing in this one
            if held is not None and last != held:
                raise JournalError(f"the journal of topic {spec.name!r} of node {node_id} in {self.directory} ends "
                                   f"with view {last[0]}, sequence {last[1]}, and a moment ago it ended with {held}: "
                                   "another process changes it. Give each node its own id or journal directory")
            self._held = last  # everything up to this the journal holds already
            again = self._go_on()
            self._file = again or self._begin_file(self.recovery.number, self.recovery.position, last,
                                                   self.recovery.relayed)
            self._earlier_messages = -self._file.messages
            self._wake = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            self._thread = threading.Thread(target=self._run, name=f"journal {spec.name}", daemon=True)
            self._thread.start()
        except BaseException as error:
            if isinstance(error, RuntimeError) and hasattr(self, "_thread"):
                self._file.abandon()
                os.close(self._wake)
            self._files.close(self._lock)
            if isinstance(error, OSError) and not isinstance(error, JournalError):
                raise directory_error(self.directory, error, self._files) from error
            raise shortage(error, f"the journal of topic {spec.name!r}") or error from error

    # What others ask.

    @property
    def path(self) -> Path:
        """The file being written."""
        return self._file.path

    def status(self) -> dict[str, object]:
        """Figures for status displays, JSON-able. `position` counts the messages of the whole journal, earlier lives
        included; `messages` and `commits` those of this one; `size` is that of the live file, in bytes."""
        file = self._file
        return {
            "topic": self.spec.name,
            "path": str(file.path),
            "size": file.end,
            "position": file.position,
            "messages": self._earlier_messages + file.messages,
            "commits": self._commits,
            "durable_index": self._durable,
            "commit_ms_max": self._commit_ns_max / 1e6,
            "already_held": self._skipped,
            "torn_bytes": self.recovery.torn_bytes,
            "dropped_files": self._dropped,
            "halted": self.halted,
            "failure": str(self.failure) if self.failure else None,
        }

    @property
    def silent_s(self) -> float:
        """For how long the disk has not answered, s; 0 if it need not, as nothing is being written, or does."""
        begun_ns = 0 if self.halted or self.failure is not None else self._begun_ns
        return (time.monotonic_ns() - begun_ns) / 1e9 if begun_ns else 0.0

    @property
    def last(self) -> tuple[int, int]:
        """View and sequence number of the last message that is in the journal, synced or just about to be."""
        return self._file.last

    @property
    def durable(self) -> int:
        """All messages of the delivery log with a smaller index are on the disk."""
        return self._durable

    def relayed_until(self, writer: int) -> int:
        """Source timestamp of the last message of a writer on a host without a node, by its identity; 0: none. What is
        about to be synced counts, and what other nodes have told (`learn`)."""
        with self._changed:
            return max(self._file.relays.last.get(writer, 0), self._learned.get(writer, 0))

    def learn(self, relayed: Relayed) -> None:
        """Takes in what came before the next message and isn't in this journal: for each writer on a host without a
        node, its identity and last source timestamp. On the disk with the next commit."""
        with self._changed:
            self._learned = {**self._learned, **relayed}

    def wait_durable(self, index: int, timeout_s: float) -> bool:
        """True when all messages with a smaller index are on the disk; False on timeout. Raises the failure, if any."""
        with self._changed:
            self._changed.wait_for(lambda: self.failure is not None or self._durable >= index, timeout_s)
            if self._durable < index and self.failure is not None:
                raise self.failure
            return self._durable >= index

    def close(self, timeout_s: float = 30.0) -> None:
        """Write and sync what was delivered so far, close the file with its summary, end the thread. Idempotent.

        Raises JournalError if the thread does not end in time, because the disk does not answer; a failure that
        `on_failure` already reported is not raised again.
        """
        if self._wake < 0:
            return
        self._stopping = True
        os.eventfd_write(self._wake, 1)
        if threading.current_thread() is self._thread:
            return  # called by a callback; the thread ends and cleans up by itself after it
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise JournalError(f"journal of topic {self.spec.name!r} could not be closed within {timeout_s:g} s: the "
                               f"disk of {self.path} does not answer. The file is whole without its summary")
        os.close(self._wake)
        self._wake = -1

    # The thread.

    def _run(self) -> None:
        try:
            for batch in self._batches():
                self._begun_ns = time.monotonic_ns()
                self._commit(batch)
                self._begun_ns = 0
            try:
                if not self._unbegun:
                    self._file.close()
                self._note_closed()
            except NoRoom:
                self._file.abandon()  # whole all the same; the next start gives it its summary
            self._files.close(self._lock)
        except Exception as error:
            if self._stopping and self._is_lack(error):
                self._end_early(error)
            else:
                self._fail(error)

    def _note_closed(self) -> None:
        file = self._file
        if self._known is not None and file.whole is not None:
            self._known.note(self._files, file.path, Recovery(
                number=file.head.number + 1, position=file.position, last_view=file.last[0],
                last_sequence=file.last[1], group=file.head.group, relayed=file.relays.last, whole=file.whole))

    def _batches(self) -> Iterator[list[Pair]]:
        """What to commit next, again and again, until the journal is closed or no more can come."""
        last_commit_s = 0.0
        while True:
            batch = self._reader.take_pairs(self._take_count)
            if self._drops_by_age and time.monotonic() - self._retained_s >= RETAIN_PERIOD_S:
                self._drop()
            if not batch:
                if self._stopping or not self._wait_for_data():
                    return
                continue
            pause = last_commit_s + self._group_s - time.monotonic()
            if pause > 0 and not self._stopping:
                self._rest(pause)  # not woken by data: that would be once per message
            size = sum(len(payload) for payload, _ in batch)
            while size < COMMIT_BYTES and (more := self._reader.take_pairs(self._take_count)):
                batch += more
                size += sum(len(payload) for payload, _ in more)
            last_commit_s = time.monotonic()
            yield batch

    def _rest(self, pause_s: float) -> None:
        """Sleep for `pause_s`, or until somebody calls close()."""
        poll = select.poll()  # select() takes no descriptor above 1023, and a node may well have more
        poll.register(self._wake, select.POLLIN)
        poll.poll(pause_s * 1000)

    def _wait_for_data(self) -> bool:
        """Sleep until there may be data or somebody calls close(); False if no data can come any more."""
        from spindle_core.errors import NodeGone

        try:
            if not self._reader.arm():
                ring = self._reader.fileno()
                poll = select.poll()
                poll.register(ring, select.POLLIN)
                poll.register(self._wake, select.POLLIN)
                timeout_ms = RETAIN_PERIOD_S * 1000 if self._drops_by_age else None
                if any(handle == ring for handle, _ in poll.poll(timeout_ms)):
                    self._reader.clear()
            self._reader.wait(0.0)
        except NodeGone:
            return False
        return True

    def _commit(self, batch: list[Pair]) -> None:
        """Write, sync, acknowledge."""
        first, index = batch[0][1].index, batch[-1][1].index + 1
        if self._next_index not in (-1, first):
            raise JournalError(f"journal of topic {self.spec.name!r}: message {self._next_index} of the delivery log "
                               f"should follow, but {first} did; nothing more is written, so that it holds no gap. "
                               "This is a defect of Spindle, please report it")
        self._next_index = index
        if self._held != (-1, -1):
            batch = self._without_held(batch)
        before_commit = self._before_commit
        if batch and before_commit is not None:
            self._in_room(lambda: before_commit(batch[-1][1].view_id), anew=True)
        started_ns = time.monotonic_ns()
        if batch and (self._learned or self._lacks_types()):
            self._take_learned()
        for run in runs(batch):
            if self._unbegun:
                self._begin_next()
            size = sum(len(payload) for payload, _ in run)
            self._in_room(functools.partial(self._file.append, run), size)
            # One commit, one sync: else the disk could hold the second of two without the first, which looks like
            # damage to a recovery.
            if self._sync:
                self._file.sync()
            self._commits += 1
        self._commit_ns_max = max(self._commit_ns_max, time.monotonic_ns() - started_ns)
        with self._changed:
            self._durable = index
            self._changed.notify_all()
        self._on_durable(index)
        file = self._file
        if self._unbegun:
            return
        if file.end >= self._max_file_size or file.commits >= COMMITS_MAX or file.channels >= CHANNELS_MAX:
            self._rotate()

    def _without_held(self, batch: list[Pair]) -> list[Pair]:
        """`batch` without the messages at its beginning that the journal holds since its last life."""
        for place, (_, info) in enumerate(batch):
            if (info.view_id, info.sequence) > self._held:
                self._held = (-1, -1)
                self._skipped += place
                return batch[place:]
        self._skipped += len(batch)
        return []

    def _go_on(self) -> JournalFile | None:
        """The last file, if it is one that this life may go on with, and small: then reopening is cheap however often
        it is done, and what a restart reads whole stays small."""
        whole = self.recovery.whole
        if whole is None or not self._group or not whole.small or whole.end >= self._max_file_size:
            return None
        head = whole.head
        mine = self._head(head.number, head.position, (head.last_view, head.last_sequence), {})
        same = dataclasses.replace(mine, file_id=head.file_id, created_ns=head.created_ns, relayed=head.relayed,
                                   types=head.types, schemas=head.schemas) == head
        if not same:
            return None
        if self._known is not None:
            self._known.forget(whole.path)
        return JournalFile.go_on(self._files, whole)

    def _begin_file(self, number: int, position: int, last: tuple[int, int], relayed: Relayed) -> JournalFile:
        return JournalFile.create(self._files, self.directory, self._head(number, position, last, relayed))

    def _head(self, number: int, position: int, last: tuple[int, int], relayed: Relayed) -> Head:
        types = tuple(self._types().values())
        return Head(
            topic=self.spec.name,
            type_name=self.spec.type_name,
            type_hash=self.spec.type_hash.hex(),
            node_id=self.node_id,
            number=number,
            file_id=secrets.token_hex(8),
            position=position,
            group=self._group,
            last_view=last[0],
            last_sequence=last[1],
            created_ns=time.time_ns(),
            schemas=self._schemas(types),
            relayed=tuple(newest(relayed).items()),
            types=types,
        )

    def _schemas(self, types: Sequence[bytes]) -> tuple[MessageSchema, ...]:
        """Those that writers have said with their types; only the type's name if they have said none. Of several that
        payloads don't tell apart, the one that was said last: a tool would decode all of them by one."""
        found = [one for one in map(schema_in, types) if one is not None]
        marked = {one.mark: one for one in found if one.mark}
        plain = [one for one in found if not one.mark][-1:]
        kept: list[MessageSchema] = []
        for one in (*marked.values(), *plain):
            if sum(len(other.data) for other in kept) + len(one.data) <= SCHEMAS_BYTES_MAX:
                kept.append(one)
        return tuple(kept) or (MessageSchema(self.spec.type_name),)

    def _rotate(self) -> None:
        """Close the file, begin the next, drop files that retention lets go."""
        file = self._file
        self._in_room(file.close)
        self._earlier_messages += file.messages
        self._unbegun = True
        self._begin_next()
        if self._keeper.keep.drop == ALWAYS:
            self._drop()

    def _begin_next(self) -> None:
        """Begin the file behind the one that was closed. A journal that is being closed needs none unless more comes.
        """
        file = self._file
        try:
            self._file = self._in_room(lambda: self._begin_file(file.head.number + 1, file.position, file.last,
                                                                file.relays.last), anew=True)
            self._unbegun = False
        except OSError:
            if not self._stopping:
                raise

    @property
    def _drops_by_age(self) -> bool:
        return bool(self._keeper.keep.keep_s) and self._keeper.keep.drop == ALWAYS

    def _drop(self) -> int:
        """Drop files that retention lets go; how many."""
        self._retained_s = time.monotonic()
        if not self._keeper.keep.lets_go:
            return 0
        numbers = journal_numbers(self._files, self.directory, self.spec.name, self.node_id)
        dropped = self._keeper.drop([path for _, path in numbers])
        self._dropped += dropped
        return dropped

    def _in_room(self, step: Callable[[], R], size: int = 0, anew: bool = False) -> R:
        """What step() returns, once the disk has room for so many bytes: meanwhile nothing is written, and so nothing
        acknowledged. It is tried again only where it has left everything as it was: a file that didn't grow, or one
        that was being made (`anew`). A journal that is closed tries without waiting; the mark has kept some room for
        that. Without a mark a full disk is an error like any other."""
        while True:
            lack = "" if self._stopping else self._keeper.lacks_room(size)
            if lack and self._drop():
                continue
            if not lack:
                try:
                    found = step()
                    if self.halted:
                        self._halt("")
                    return found
                except OSError as error:
                    if self._stopping or not self._is_lack(error) or not (anew or isinstance(error, NoRoom)):
                        raise
                    if self._drop():
                        continue
                    lack = f"the disk of {self.directory} is full: make room"
            if lack != self.halted:
                self._halt(lack)
            self._rest(HALT_PERIOD_S)

    def _halt(self, reason: str) -> None:
        begins = bool(reason) and not self.halted
        self.halted, self._begun_ns = reason, time.monotonic_ns()
        if begins:
            _log.warning("the journal of topic %r writes nothing for now, and holds its writers up: %s",
                         self.spec.name, reason, extra=about(JOURNAL_HALTED, topic=self.spec.name))
        elif not reason:
            _log.warning("the journal of topic %r goes on", self.spec.name,
                         extra=about(JOURNAL_GOES_ON, topic=self.spec.name))
        self._on_halt(reason)

    def _lacks_types(self) -> bool:
        """True if the file doesn't say all that is known of types."""
        types = self._types()
        if types is not self._types_seen:
            self._types_lacking = not set(types.values()) <= set(self._file.head.types)
            self._types_seen = types
        return self._types_lacking

    def _take_learned(self) -> None:
        """Has a file's head say what `learn` was told, and all types, before anything is written behind it."""
        with self._changed:
            self._file.relays.learn(self._learned)
            self._learned = {}
        file = self._file
        if file.commits:
            self._rotate()
        else:
            file.abandon()
            self._file = self._in_room(lambda: self._begin_file(file.head.number, file.position, file.last,
                                                                file.relays.last), anew=True)
        self._types_lacking = False  # unless there are others by now, which the next look finds

    def _is_lack(self, error: Exception) -> bool:
        """True for a full disk that has a mark: the node lives on."""
        return isinstance(error, OSError) and error.errno in NO_ROOM and bool(self._keeper.keep.free_min)

    def _end_early(self, error: Exception) -> None:
        """Nobody has the topic open here any more, and for its last messages there is no room, however long one waits:
        no reason to end a node whose other topics go on."""
        self._let_go(self._explain(error))
        _log.warning("%s", self.failure, extra=about(JOURNAL_HALTED, topic=self.spec.name))
        if self.halted:
            self.halted = ""
            self._on_halt("")

    def _fail(self, error: Exception) -> None:
        """Stop for good: keep what is on the disk, let go of the files, tell the owner."""
        failure = self._explain(error)
        self._let_go(failure)
        self._on_failure(failure)

    def _let_go(self, failure: Exception) -> None:
        for handle in (self._file.abandon, lambda: self._files.close(self._lock)):
            try:
                handle()
            except OSError as also:
                _log.debug("while giving up the journal of %s: %s", self.spec.name, also)
        with self._changed:
            self.failure = failure
            self._changed.notify_all()

    def _explain(self, error: Exception) -> Exception:
        if isinstance(error, JournalError):
            return error
        safe = f"Messages with index below {self._durable} are safe, later ones are not acknowledged"
        if isinstance(error, OSError):
            reason = reason_of(error, self.path, self._files)
            anew = "open the topic" if self._stopping and self._is_lack(error) else "start the node"
            failure = JournalWriteFailed(f"journal of topic {self.spec.name!r}: cannot write {self.path}: {reason}. "
                                         f"{safe}. {way_out(error)} and {anew} again")
        else:
            failure = JournalWriteFailed(f"journal of topic {self.spec.name!r} ({self.path}) stopped by a defect: "
                                         f"{type(error).__name__}: {error}. {safe}")
        failure.__cause__ = error
        return failure

    def _take_lock(self) -> int:
        path = self.directory / lock_name(self.spec.name, self.node_id)
        try:
            self._files.make_directory(self.directory)
            lock = self._files.lock(path)
        except OSError as error:
            raise directory_error(self.directory, error, self._files) from error
        if lock is None:
            raise JournalBusy(f"the journal of topic {self.spec.name!r} of node {self.node_id} in {self.directory} is "
                              f"being written by another process (which locks {path.name}); give each node its own id "
                              "or journal directory")
        return lock
