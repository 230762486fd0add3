"""What happened in one round, as the checker sees it: who wrote, who read what, which views there were, who ended how.

Why the applications record it themselves: what a node says of itself proves nothing. Each application appends lines
to a file of its own, by one write each, before it writes a message and after it got one, so that whatever is killed
leaves a record that is complete up to that moment.

Times are of the monotonic clock, in ns, which all processes of a host share.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

UNORDERED, ATOMIC, VOLATILE, LOGGED = "unordered", "atomic", "volatile", "logged"

FINISHED = "finished"  # a writer whose messages were all acknowledged at the end of the round
DRAINED = "drained"  # a reader that has got all that was still to come at the end of the round
CLOSED = "closed"  # closed by its application in the middle
LOST = "lost"  # its node has gone
KILLED = ""  # its application has ended without a word


@dataclasses.dataclass(frozen=True)
class TopicPlan:
    """One topic of the round. `number` is what its messages say."""

    name: str
    number: int
    kind: str

    @property
    def ordered(self) -> bool:
        return self.kind != UNORDERED

    @property
    def kept(self) -> bool:
        """True if late readers get what was before them."""
        return self.kind in (VOLATILE, LOGGED)


TOPICS = (
    TopicPlan("chaos/unordered", 1, UNORDERED),
    TopicPlan("chaos/atomic", 2, ATOMIC),
    TopicPlan("chaos/volatile", 3, VOLATILE),
    TopicPlan("chaos/logged", 4, LOGGED),
)


class Key(NamedTuple):
    """A message: life of its writer, and number in it."""

    epoch: int
    number: int

    def __str__(self) -> str:
        return f"{self.epoch}#{self.number}"


class Place(NamedTuple):
    """Where in the agreed order a message was delivered."""

    view: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.view}/{self.sequence}"


class Delivery(NamedTuple):
    """One message as a reader got it. `node` is the sender as the sample's info says."""

    place: Place
    key: Key
    node: int


@dataclasses.dataclass
class Session:
    """An application's attachment to a node: in which life of the node and of the group."""

    node: int
    pid: int  # of the daemon
    incarnation: int
    group: str


@dataclasses.dataclass
class Writer:
    """One life of one writer. An external one may go on at other nodes, in other groups; its session is the first."""

    epoch: int
    topic: str
    session: Session
    opened: int
    view: int = 0
    external: bool = False  # on a host without a node
    attempts: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # time, messages tried by then
    accepted: int = 0  # calls returned for so many messages
    acked: list[tuple[int, int]] = dataclasses.field(default_factory=list)  # time, messages acknowledged by then
    persisted: int = 0
    end: str = KILLED
    ended: int = 0

    @property
    def sightings(self) -> list[tuple[int, Session]]:
        """When it was where."""
        return [(self.opened, self.session)]

    @property
    def attempted(self) -> int:
        return max((count for _, count in self.attempts), default=0)

    def tried_at(self, number: int) -> int:
        """When message `number` was first written."""
        return next((at for at, count in self.attempts if count > number), 0)


class TopicLife(NamedTuple):
    """A life of a logged topic, begun by members when nobody alive had the topic: `after` is the last message that was
    on enough disks, views from `first_view` on are the new life's. What was between them is lost."""

    group: str
    first_view: int
    after: Place


class Move(NamedTuple):
    """A reader's node had gone, and it went on at the next one. This was noted with the first samples after that, some
    of which may still have been of the old node."""

    at: int
    session: Session | None  # None: the next one had gone, too, before it could be asked


@dataclasses.dataclass
class Reader:
    """One life of one reader that keeps all."""

    life: str
    topic: str
    first_session: Session
    opened: int
    view: int  # installed when it was open
    from_history: bool
    deliveries: list[Delivery] = dataclasses.field(default_factory=list)
    damaged: list[str] = dataclasses.field(default_factory=list)
    overtaken: int = 0  # samples that it counts as lost
    wanders: bool = False  # it goes on at another node when its node dies
    moves: list[Move] = dataclasses.field(default_factory=list)
    end: str = KILLED
    ended: int = 0

    def __str__(self) -> str:
        return f"reader {self.life} at node {self.session.node}"

    @property
    def sightings(self) -> list[tuple[int, Session]]:
        """When it was where, as far as known."""
        moves = [(one.at, one.session) for one in self.moves if one.session is not None]
        return [(self.opened, self.first_session), *moves]

    @property
    def session(self) -> Session:
        """The last one that is known."""
        return self.sightings[-1][1]

    @functools.cached_property
    def groups(self) -> frozenset[str]:
        """Where it has been. To be asked once everything is recorded."""
        return frozenset(session.group for _, session in self.sightings)

    @functools.cached_property
    def strayed(self) -> bool:
        """Nobody knows all groups where it has been."""
        return any(one.session is None for one in self.moves)

    @property
    def crossed(self) -> bool:
        """It went on in another group, whose order is another one unless the topic is logged."""
        return self.strayed or len(self.groups) > 1

    @functools.cached_property
    def keys(self) -> frozenset[Key]:
        """What it got. To be asked once everything is recorded."""
        return frozenset(one.key for one in self.deliveries)

    @functools.cached_property
    def counts(self) -> Counter[int]:
        """How much it got of each writer."""
        return Counter(one.key.epoch for one in self.deliveries)


@dataclasses.dataclass
class ViewSeen:
    """A view, as an application heard of it."""

    at: int
    session: Session
    view: int
    members: tuple[int, ...]
    source: str = ""  # which application


@dataclasses.dataclass
class DaemonLife:
    """One process of a daemon."""

    node: int
    pid: int
    started: int
    ended: int = 0  # 0: it still ran when the round was over
    code: int | None = None
    asked: str = ""  # how it was ended: "kill", "leave", "" if it ended by itself
    excused: set[int] = dataclasses.field(default_factory=set)  # exit codes that the faults of the round explain
    log: Path | None = None

    def __str__(self) -> str:
        return f"daemon {self.node} (process {self.pid})"


@dataclasses.dataclass
class History:
    """Everything of one round."""

    topics: dict[str, TopicPlan] = dataclasses.field(default_factory=lambda: {one.name: one for one in TOPICS})
    writers: dict[int, Writer] = dataclasses.field(default_factory=dict)
    readers: dict[str, Reader] = dataclasses.field(default_factory=dict)
    views: list[ViewSeen] = dataclasses.field(default_factory=list)
    daemons: list[DaemonLife] = dataclasses.field(default_factory=list)
    journals: dict[int, list[Delivery]] = dataclasses.field(default_factory=dict)  # by node: of the logged topic
    topic_lives: dict[str, list[TopicLife]] = dataclasses.field(default_factory=dict)  # of logged topics, as on disk
    trouble: list[str] = dataclasses.field(default_factory=list)  # what an application met that it must not meet
    said: list[str] = dataclasses.field(default_factory=list)  # refusals and timeouts that applications lived with

    def is_external(self, key: Key) -> bool:
        """True for a message of a writer on a host without a node."""
        writer = self.writers.get(key.epoch)
        return writer is not None and writer.external


class Recorder:
    """An application's own file of lines. One line, one write: nothing is lost with the process."""

    def __init__(self, path: Path) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)

    def say(self, kind: str, **what: Any) -> None:
        line = json.dumps({"k": kind, "t": time.monotonic_ns(), **what}, separators=(",", ":"))
        os.write(self._fd, line.encode() + b"\n")


def load(paths: Iterable[Path], history: History) -> None:
    """Add what the applications recorded in `paths` to the history."""
    for path in sorted(paths):
        lines = path.read_bytes().split(b"\n")
        for line in lines[:-1]:  # what follows the last newline was cut off with its process
            record = json.loads(line)
            record["source"] = path.name
            _TAKE[record["k"]](history, record)


def _session(record: dict[str, Any]) -> Session:
    return Session(*record["session"])


def _writer(history: History, record: dict[str, Any]) -> None:
    history.writers[record["epoch"]] = Writer(
        record["epoch"], record["topic"], _session(record), record["t"], record["view"], record["external"]
    )


def _write(history: History, record: dict[str, Any]) -> None:
    history.writers[record["epoch"]].attempts.append((record["t"], record["to"]))


def _wrote(history: History, record: dict[str, Any]) -> None:
    history.writers[record["epoch"]].accepted = record["to"]


def _acked(history: History, record: dict[str, Any]) -> None:
    writer = history.writers[record["epoch"]]
    writer.acked.append((record["t"], record["to"]))
    if record["persisted"]:
        writer.persisted = record["to"]


def _writer_end(history: History, record: dict[str, Any]) -> None:
    writer = history.writers[record["epoch"]]
    writer.end, writer.ended = record["why"], record["t"]


def _reader(history: History, record: dict[str, Any]) -> None:
    history.readers[record["life"]] = Reader(
        record["life"], record["topic"], _session(record), record["t"], record["view"], record["history"],
        wanders=record["wanders"],
    )


def _got(history: History, record: dict[str, Any]) -> None:
    history.readers[record["life"]].deliveries += [
        Delivery(Place(view, sequence), Key(epoch, number), node) for view, sequence, node, epoch, number in record["m"]
    ]


def _moved(history: History, record: dict[str, Any]) -> None:
    reader = history.readers[record["life"]]
    reader.overtaken = record["lost"]
    reader.moves.append(Move(record["t"], _session(record) if record["session"] is not None else None))


def _damaged(history: History, record: dict[str, Any]) -> None:
    history.readers[record["life"]].damaged.append(record["text"])


def _reader_end(history: History, record: dict[str, Any]) -> None:
    reader = history.readers[record["life"]]
    reader.end, reader.ended, reader.overtaken = record["why"], record["t"], max(record["lost"], reader.overtaken)


def _view(history: History, record: dict[str, Any]) -> None:
    history.views.append(
        ViewSeen(record["t"], _session(record), record["view"], tuple(record["members"]), record["source"])
    )


def _trouble(history: History, record: dict[str, Any]) -> None:
    history.trouble.append(f"{record['source']}: {record['text']}")


def _said(history: History, record: dict[str, Any]) -> None:
    history.said.append(f"{record['source']}: {record['text']}")


_TAKE = {
    "writer": _writer,
    "write": _write,
    "wrote": _wrote,
    "acked": _acked,
    "writer-end": _writer_end,
    "reader": _reader,
    "got": _got,
    "moved": _moved,
    "damaged": _damaged,
    "reader-end": _reader_end,
    "view": _view,
    "trouble": _trouble,
    "said": _said,
}
