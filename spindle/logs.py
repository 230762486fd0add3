"""The log of a daemon: lines for people, the same with fields for machines, and numbers for the events that matter.

Why events with numbers: whoever watches over a group wants to find "a member was lost" in the journals of all hosts, in
whatever words their releases say it. `journalctl MESSAGE_ID=...` does that.

Rules:
- What is logged is `logging`, loggers below "spindle"; a library that an embedding program uses configures nothing.
- A line that is an event, or has figures that somebody may filter by, says so in `extra=about(EVENT, member=2)`. Text
  never depends on it.
- A number of an event is never changed and never used for another one. docs/operations.md lists them.
- Where the log goes must not stop a node: a line that journald, or whatever reads standard error, does not take within
  SEND_TIMEOUT_S is dropped and counted, and so is what follows until one is taken, without waiting. That one says how
  many were dropped.
- This module is on the path of every start: it imports nothing that is slow.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import select
import socket
import stat
import sys
import time
from collections import deque
from collections.abc import Mapping
from typing import IO, Any

from spindle.errors import CastOut, JournalError, NoMajority

SEND_TIMEOUT_S = 0.2  # for a line to be taken: journald's queue is long, and so is a pipe
PIECE_BYTES = 4096  # that fit into a pipe or terminal of which the kernel says that it has room (PIPE_BUF)
FACILITY_DAEMON = 3
IDENTIFIER = "spindle"
RECENT_MAX = 500  # events and warnings that a process remembers
RECENT_TEXT_MAX = 500  # characters of each
SAY_AGAIN_S, SAID_MAX = 60.0, 1000  # until the log says again what may come for ever; of so many such things
SAID_AT_ONCE = 50  # different ones that are said within that time
PRIORITIES = ((logging.CRITICAL, 2), (logging.ERROR, 3), (logging.WARNING, 4), (logging.INFO, 6), (logging.DEBUG, 7))
TEXT = logging.Formatter("%(asctime)s.%(msecs)03d %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%S")


@dataclasses.dataclass(frozen=True)
class Event:
    """Something that is looked for by its number, journald's MESSAGE_ID, rather than by its words."""

    name: str
    message_id: str  # 32 hexadecimal digits
    meaning: str  # for docs/operations.md


NODE_STARTS = Event("node-starts", "141914b2713a4996b5951a2aae6ea921", "a daemon starts a node")
VIEW_INSTALLED = Event("view-installed", "a7bcb383ffc04e2fb3557b47e752ab92", "a view is installed: who is in the group")
MEMBER_LOST = Event("member-lost", "ec21b484a7c243a2bec7241a829ddba6", "the group goes on without a member")
MEMBER_SILENT = Event("member-silent", "266bac0156c649839d081a32d68a7f07",
                      "a member hangs, and too few would remain to go on without it: this node waits")
TOPIC_HELD_UP = Event("topic-held-up", "8354059b100f42bd84d92b7b42a26993",
                      "writers of a topic wait for a member or its readers: SPINDLE_TOPIC, SPINDLE_MEMBERS")
TOPIC_GOES_ON = Event("topic-goes-on", "32e700bde20c4f1b9ebcb67080f9f9ca", "... and do so no more")
CAST_OUT = Event("cast-out", "e8044385acef40da99e563b00965412e", "the others have gone on without this node")
NO_MAJORITY = Event("no-majority", "89504aec8416481ea4daea37bbe09812", "too few members are left to go on")
JOURNAL_FAILED = Event("journal-failed", "24ed7603b9f34308ab6328023feb1855",
                       "a journal can't be written any more: nothing is acknowledged as persisted, the node stops")
JOURNAL_HALTED = Event("journal-halted", "5b6c0f0b6f7b4c2f9a1e64d1a7c0f5d2",
                       "a journal's disk has less room than [journal] free_min, or doesn't answer: it writes nothing, "
                       "its topic's writers are held up")
JOURNAL_GOES_ON = Event("journal-goes-on", "c1f3c0b8e0d64a1fb7a89b0e6d1a2f47",
                        "there is room again, or the disk answers")
NODE_FAILED = Event("node-failed", "ff655e665c0c4a17975f1384825d84cf", "the node stops because of any other error")
NODE_STARTS_ANEW = Event("node-starts-anew", "5352a12680274820b0288185814b0a31",
                         "[membership] rejoin: another life of the node begins")
NODE_LEAVES = Event("node-leaves", "38fa76f9d1d0412aa4736947fc1dcebc", "the daemon was told to stop")
NODE_LEFT = Event("node-left", "b411c9f9050d48388161f50b46eed8fa", "the node has left its group in order")
DAEMON_ENDS = Event("daemon-ends", "d1977b08ee6f480ab32f623341091cd6",
                    "the daemon ends for another reason than being told to; SPINDLE_EXIT_CODE says which")

EVENTS = (NODE_STARTS, VIEW_INSTALLED, MEMBER_LOST, MEMBER_SILENT, TOPIC_HELD_UP, TOPIC_GOES_ON, CAST_OUT, NO_MAJORITY,
          JOURNAL_FAILED, JOURNAL_HALTED, JOURNAL_GOES_ON, NODE_FAILED, NODE_STARTS_ANEW, NODE_LEAVES, NODE_LEFT,
          DAEMON_ENDS)

_OF_ERRORS = ((CastOut, CAST_OUT), (NoMajority, NO_MAJORITY), (JournalError, JOURNAL_FAILED))


class Sparing:
    """Warnings of what somebody outside may cause for ever: each is said at once, and the same of it once a minute; of
    them all, SAID_AT_ONCE in a minute."""

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._said: dict[object, tuple[float, int]] = {}  # what was said when, and how often it was since
        self._began_s = 0.0  # of the present minute
        self._lines = 0  # said in it

    def __len__(self) -> int:
        return len(self._said)

    def warn(self, what: object, text: str, *values: object) -> None:
        """`what` (hashable) says what is the same."""
        now = time.monotonic()
        said_s, more = self._said.get(what, (-SAY_AGAIN_S, 0))
        if now - said_s < SAY_AGAIN_S:
            self._said[what] = said_s, more + 1
            self._log.debug(text, *values)
            return
        if now - self._began_s >= SAY_AGAIN_S:
            self._began_s, self._lines = now, 0
        self._lines += 1
        if self._lines > SAID_AT_ONCE:
            self._log.debug(text, *values)
            if self._lines == SAID_AT_ONCE + 1:
                self._log.warning("others like it are not said for %g s", self._began_s + SAY_AGAIN_S - now)
            return
        self._said.pop(what, None)
        if len(self._said) >= SAID_MAX:
            del self._said[next(iter(self._said))]  # said longest ago
        self._said[what] = now, 0
        also = f" ({more} more like it since this was said last)" if more else ""
        self._log.warning(text + also.replace("%", "%%"), *values)


def about(event: Event | None = None, **fields: Any) -> dict[str, Any]:
    """`extra=` of a log call: which event the line is, and figures. A field `member` is SPINDLE_MEMBER in the journal;
    `node`, `domain` and `view` are known without being given."""
    return {"spindle": (event, fields)}


def about_failure(error: BaseException, **fields: Any) -> dict[str, Any]:
    """As about(): the event that is the end of a node because of `error`."""
    event = next((event for kind, event in _OF_ERRORS if isinstance(error, kind)), NODE_FAILED)
    return about(event, error=type(error).__name__, **fields)


def start_log(level: str, form: str, context: Mapping[str, Any]) -> None:
    """Sends the log of this process where `form` ("auto", "text", "json", "journal") says. `context`: fields of every
    line; it may be changed at any time."""
    handler: logging.Handler | None = None
    trouble = ""
    if form == "journal" or (form == "auto" and stderr_is_journal()):
        try:
            handler = JournalHandler(context)
        except OSError as error:
            trouble = f"journald can't be reached ({error}): this log goes to stderr"
    if handler is None:
        outlet = Outlet.of(sys.stderr)
        handler = logging.StreamHandler(sys.stderr) if outlet is None else OutletHandler(outlet)
        handler.setFormatter(JsonLines(context) if form == "json" else TEXT)
    root = logging.getLogger("spindle")
    root.handlers[:] = [handler, RECENT]
    root.propagate = False
    root.setLevel(level.upper())
    if trouble:
        root.warning("%s", trouble)


def stderr_is_journal(stream: IO[str] | None = None) -> bool:
    """True if systemd has connected this process's stderr to the journal, and nobody has turned it elsewhere since."""
    device, _, inode = os.environ.get("JOURNAL_STREAM", "").partition(":")
    if not (device.isdigit() and inode.isdigit()):
        return False
    try:
        found = os.fstat((stream or sys.stderr).fileno())
    except (OSError, ValueError, AttributeError):
        return False
    return (found.st_dev, found.st_ino) == (int(device), int(inode))


def fields_of(record: logging.LogRecord, context: Mapping[str, Any]) -> tuple[Event | None, dict[str, Any]]:
    """The event that a line is, and its fields with those of the process; what isn't known is left out."""
    event, own = getattr(record, "spindle", (None, {}))
    return event, {name: value for name, value in {**context, **own}.items() if value is not None}


def _text_of(record: logging.LogRecord) -> str:
    """The message, and the traceback below it."""
    return _PLAIN.format(record)


_PLAIN = logging.Formatter("%(message)s")


class RecentLines(logging.Handler):
    """The last events and warnings of this process, for who asks what has happened: a page or a command."""

    def __init__(self) -> None:
        super().__init__()
        self._kept: deque[dict[str, Any]] = deque(maxlen=RECENT_MAX)
        self._number = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the line if it is an event, or at least a warning."""
        event, fields = getattr(record, "spindle", (None, {}))
        if event is None and record.levelno < logging.WARNING:
            return
        self._number += 1
        figures = {name: value for name, value in fields.items() if isinstance(value, (int, float, str))}
        self._kept.append({**figures, "number": self._number, "time": record.created,
                           "level": record.levelname.lower(), "event": event.name if event is not None else "",
                           "text": record.getMessage()[:RECENT_TEXT_MAX]})

    def after(self, number: int) -> list[dict[str, Any]]:
        """What came behind this number, the oldest first: number, time (UTC, s), level, event ("" for none), text, and
        the event's figures."""
        with self.lock or contextlib.nullcontext():
            return [one for one in self._kept if one["number"] > number]


RECENT = RecentLines()  # of this process, once start_log() has been called
ABOUT_NODES = (NODE_STARTS, VIEW_INSTALLED, MEMBER_LOST, MEMBER_SILENT, NODE_LEAVES, NODE_LEFT)  # no topic is in these


class JsonLines(logging.Formatter):
    """One JSON object a line, for whoever collects the output of containers."""

    def __init__(self, context: Mapping[str, Any]) -> None:
        super().__init__()
        self._context = context

    def format(self, record: logging.LogRecord) -> str:
        import json

        event, fields = fields_of(record, self._context)
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {"time": f"{at}.{int(record.msecs):03d}Z", "level": record.levelname.lower(),
                                "logger": record.name, "message": record.getMessage()}
        if event is not None:
            line["event"] = event.name
        line.update((name, value) for name, value in fields.items() if name not in line)
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False, default=str)


class Outlet:
    """A standard stream of this process that doesn't hold it up: the reader of a pipe may read nothing (a pager, a
    container's log driver), a terminal be halted by Ctrl-S, a disk be full."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._torn = False  # only a part of the last text has gone
        # Others may have the stream, too, who expect that writing waits: so one of this process's own, where that goes.
        if stat.S_ISFIFO(mode := os.fstat(fd).st_mode) or stat.S_ISCHR(mode):
            with contextlib.suppress(OSError):
                self._fd = os.open(f"/proc/self/fd/{fd}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
        self._own = self._fd != fd
        self._room = select.poll()
        self._room.register(self._fd, select.POLLOUT)

    @classmethod
    def of(cls, stream: IO[str] | None) -> Outlet | None:
        """None if there is no such stream, or it is none of the operating system's."""
        try:
            return cls(stream.fileno()) if stream is not None else None
        except (AttributeError, OSError, ValueError):
            return None

    def write(self, text: str, timeout_s: float = SEND_TIMEOUT_S) -> bool:
        """True if all of it was taken, within this time if need be. Raises OSError."""
        data = ("\n" * self._torn + text).encode(errors="backslashreplace")
        until = time.monotonic() + timeout_s
        left = memoryview(data)
        try:
            while left and self._room.poll(max(0.0, until - time.monotonic()) * 1000):
                with contextlib.suppress(BlockingIOError):
                    left = left[os.write(self._fd, left[:PIECE_BYTES]) :]
        finally:
            if len(left) < len(data):
                self._torn = bool(left)
        return not left

    def close(self) -> None:
        """The stream itself stays open."""
        if self._own:
            os.close(self._fd)


class OutletHandler(logging.Handler):
    """Lines to an outlet; see the module's rules for those that it doesn't take."""

    def __init__(self, outlet: Outlet) -> None:
        super().__init__()
        self._outlet = outlet
        self._lost = 0

    def emit(self, record: logging.LogRecord) -> None:
        """One line, and before it how many are missing."""
        try:
            text = self.format(record) + "\n"
            if self._lost:
                text = self._missing() + text
        except Exception:  # as every handler: who logs wrongly is told so on standard error
            self.handleError(record)
            return
        try:
            taken = self._outlet.write(text, 0 if self._lost else SEND_TIMEOUT_S)
        except OSError:
            taken = False
        self._lost = 0 if taken else self._lost + 1

    def _missing(self) -> str:
        record = logging.LogRecord("spindle", logging.WARNING, __file__, 0, "%d lines of this log are missing: what it "
                                   "goes to did not take them", (self._lost,), None)
        record.spindle = (None, {"lost_lines": self._lost})
        return self.format(record) + "\n"

    def close(self) -> None:
        self._outlet.close()
        super().close()


class JournalHandler(logging.Handler):
    """Lines to journald in its native protocol, with fields. Raises OSError if nobody is at the socket."""

    def __init__(self, context: Mapping[str, Any], socket_path: str | None = None) -> None:
        from logging_journald import JournaldTransport

        super().__init__()
        self._context = context
        # Not connected: journald's socket is another one after its restart, and a transport that failed to connect to
        # the new one in time would never try again.
        self._transport = JournaldTransport(socket_path, connected=False)
        self._lost = 0
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as trial:
            trial.connect(str(self._transport.socket_path))

    def emit(self, record: logging.LogRecord) -> None:
        """One line; see the module's rules for one that journald does not take."""
        pairs = self._pairs(record)
        if self._lost:
            pairs.append(("SPINDLE_LOST_LINES", self._lost))
        self._transport.socket.settimeout(0 if self._lost else SEND_TIMEOUT_S)
        try:
            self._transport.send(pairs)
            self._lost = 0
        except OSError:
            self._lost += 1

    def close(self) -> None:
        self._transport.socket.close()
        super().close()

    def _pairs(self, record: logging.LogRecord) -> list[tuple[str, Any]]:
        event, fields = fields_of(record, self._context)
        pairs: list[tuple[str, Any]] = [
            ("MESSAGE", _text_of(record)),
            ("PRIORITY", next((number for level, number in PRIORITIES if record.levelno >= level), 7)),
            ("SYSLOG_IDENTIFIER", IDENTIFIER), ("SYSLOG_FACILITY", FACILITY_DAEMON), ("SPINDLE_LOGGER", record.name),
            ("CODE_FILE", record.pathname), ("CODE_LINE", record.lineno), ("CODE_FUNC", record.funcName),
        ]
        if event is not None:
            pairs += [("MESSAGE_ID", event.message_id), ("SPINDLE_EVENT", event.name)]
        pairs += [(f"SPINDLE_{name.upper()}", str(value)) for name, value in fields.items()]
        return pairs
