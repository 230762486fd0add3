"""Topics whose messages have keys: what nodes keep of them, and what late readers get of that.

    H3  at the same place in the order all members have the same table, of which the same is over, and it is the
        model's (`spindle_lab.whole.lasts`); in the end nothing is left whose delay is over
    H4  a late reader's first messages are that table, as of the place in the order behind which its live messages
        begin

The truth are the messages in the nodes' logs, read here record by record. Where a topic begins anew because all that
had it have gone, or is taken up from journals, the model begins with what the first node has.
"""

from __future__ import annotations

import dataclasses
import random
import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from spindle.group.levels import Level
from spindle.group.topics import (
    CLEANUP_NEVER,
    EFFECT_ALONE,
    EFFECT_BOUND,
    EFFECT_CARRIED,
    EFFECT_ENDS,
    EFFECT_LEAVES,
    EFFECT_OF_NODE,
    EFFECT_OF_WRITER,
    EFFECT_SAMPLE,
    RANK_COUNTS,
    RANK_PLACE_MAX,
    RANK_PRESENT,
    RANK_PRESENT_RANKED,
)
from spindle.restart.pieces import Message
from spindle_core.table_copy import table_messages, table_place
from spindle_lab.whole.lasts import Lasts
from spindle_lab.whole.said import Said, rank_in, said_of
from spindle_lab.whole.tags import DEPARTURE, ENDS, FAREWELL, LAPSE, PRESENT, PRESENT_RANKED, REVIVAL, TIMED, tag_of
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle.topics.local_topic import LocalTopic
    from spindle_core.delivery import DeliveryLog
    from spindle_lab.whole.engines import SimEngine
    from spindle_lab.whole.programs import Reading
    from spindle_lab.whole.world import World

Order = tuple[int, int]
RECORD = struct.Struct("<QIBBHQQQQIIQ")  # struct log_record, up to its end
RING, TAIL, OLDEST = 4096, 64, (136, 144)  # where they are in a log's mapping: position and offset of the oldest
JUMP, LARGE = 2, 3
KEYS = 5
AUTHOR = struct.Struct("<Q")


def _effects() -> bytes:
    found = bytearray([0] * 256)
    found[0], found[255] = EFFECT_SAMPLE, EFFECT_SAMPLE
    found[ENDS] = EFFECT_ENDS | EFFECT_LEAVES
    found[FAREWELL] = found[LAPSE] = EFFECT_OF_WRITER | EFFECT_LEAVES
    found[REVIVAL] = EFFECT_OF_WRITER
    found[DEPARTURE] = EFFECT_OF_NODE | EFFECT_LEAVES
    return bytes(found)


def _effects_grouped() -> bytes:
    found = bytearray(EFFECTS)
    found[0] |= EFFECT_CARRIED | EFFECT_BOUND
    found[ENDS] |= EFFECT_CARRIED
    found[TIMED] |= EFFECT_ALONE
    return bytes(found)


def _ranks() -> bytes:
    """Digits of a message's number are its writer's rank, or what else stands there: it changes with each message."""
    found = bytearray([0] * 256)
    found[0] = found[ENDS] = 6
    found[TIMED] = 14  # before its span
    found[PRESENT], found[PRESENT_RANKED] = RANK_PRESENT, RANK_PRESENT_RANKED
    return bytes(found)


def _presences() -> bytes:
    """All writers count, and it is known who there is."""
    found = bytearray([RANK_COUNTS] * 256)
    found[PRESENT], found[PRESENT_RANKED] = RANK_PRESENT, RANK_PRESENT_RANKED
    return bytes(found)


RANKS = _ranks()
PRESENCES = _presences()
EFFECTS = _effects()
EFFECTS_GROUPED = _effects_grouped()


def with_author(data: bytes, rng: random.Random) -> bytes:
    """A message with one of the writers of its host at its end, for which it is said, and how many of its key are kept;
    if it has room for that."""
    if len(data.partition(b" ")[2]) < AUTHOR.size or tag_of(data) == TIMED:
        return data
    return data[:-AUTHOR.size] + AUTHOR.pack(rng.choice((0, 1, 2, 3, 4)) | rng.choice((0, 0, 1, 2)) << 48)


def key_of(payload: bytes) -> int:
    """Of a message that a program writes, in a topic with keys."""
    return 1 + sum(payload[:20]) % KEYS


class Table(NamedTuple):
    """What a node has of a topic at some place in its order."""

    kept: tuple[Said, ...]
    over: tuple[tuple[int, int, bool], ...]
    given_up: int
    limited: int

    def __str__(self) -> str:
        return f"{_show(self.kept)}, over {self.over}, {self.given_up} given up, {self.limited} limited"


def _life(local: LocalTopic) -> object:
    """Of a topic on its node: as long as it is the same, the table is carried on."""
    return local._entered, local.lives


def _table_of(log: DeliveryLog, ranks: bytes) -> tuple[Order, Table]:
    """Of a node's log, and the place that it stands for."""
    copy, figures = log.copy_table(shared=False), log.table_figures()
    kept = tuple(said_of(one, ranks=ranks) for one in map(Message._make, table_messages(copy)))
    return table_place(copy), Table(kept, tuple(log.table_over()), figures["given_up"], figures["limited"])


@dataclasses.dataclass(eq=False)
class _Read:
    """How far a node's log has been read: without a gap from `first` to `last`."""

    log: object
    position: int = 0
    offset: int = 0
    first: Order | None = None
    last: Order = (-1, -1)
    new: list[Said] = dataclasses.field(default_factory=list)  # what was read just now
    lacks: tuple[Order, Order] | None = None  # behind which message and before which some were overwritten, just now

    def covers(self, other: _Read) -> bool:
        """It has had what the other one lacks."""
        assert other.lacks is not None
        return self.first is not None and self.first <= other.lacks[0] and self.last >= other.lacks[1]


class _Line:
    """One topic, as long as somebody has it."""

    def __init__(self, local: LocalTopic, place: Order, table: Table) -> None:
        self._spec = local.spec
        self.said: dict[Order, Said] = {}  # messages from where the model is
        self.begin(local, place, table)

    def begin(self, local: LocalTopic, place: Order, table: Table) -> None:
        """The model has this."""
        self.model = Lasts(self._spec)
        assert local.log is not None
        self.model.restore(table.kept, table.over, local.log.said_ns, table.given_up, table.limited)
        self.place = place  # up to where the model is
        # A member that was left behind alone may go on delivering to itself what its topic has forgotten with it.
        self.first = max(place, (local._entered, 0))
        self.said = {order: said for order, said in self.said.items() if order >= self.first}
        self.tables: dict[Order, Table] = {place: self._table()}
        self.missing = False  # messages that no log has any more

    def _table(self) -> Table:
        model = self.model
        return Table(tuple(model.kept), tuple(model.over), model.given_up, model.limited)

    def table_at(self, place: Order) -> Table | None:
        """What the model had there; None if it never stood there."""
        for order in sorted(one for one in self.said if self.place <= one < place):
            self.model.note(self.said.pop(order))
            self.place = order[0], order[1] + 1
            self.tables[self.place] = self._table()
        return self.tables.get(place)


class Tables:
    """Of one run."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lines: dict[tuple[int, str], _Line | None] = {}  # None: nobody knows what it should be
        self._of: dict[LocalTopic, tuple[_Line | None, object]] = {}  # and its life when it was looked at
        self._looked: dict[LocalTopic, tuple[object, int]] = {}  # at which log, and how much had been delivered
        self._read: dict[LocalTopic, _Read] = {}

    def look(self, engine: SimEngine) -> None:
        """H3, after a pass of an engine."""
        node = engine.node
        if node is None or node._view is None or node._error is not None:
            return
        for name, local in node._changes.topics.local.items():
            if local.spec.effects and local.log is not None and local.whole and not local.busy:
                self._look_at(engine, node._view.group_id, name, local)

    def _look_at(self, engine: SimEngine, group_id: int, name: str, local: LocalTopic) -> None:
        log = local.log
        assert log is not None
        state = log, log.delivered
        if self._looked.get(local) == state and self._of[local][1] == _life(local):
            return
        self._looked[local] = state
        self._collect(group_id, name)
        place, table = _table_of(log, local.spec.ranks)
        line = self._line(group_id, name, local, place, table)
        if line is None:
            return
        if line.missing:
            if place < line.place:
                return  # one that is as far as the model begins it anew
            line.begin(local, place, table)
        expected = line.table_at(place)
        if expected is not None and expected != table:
            if self._are_lost(engine, local, expected, table):
                line.begin(local, place, table)
                self._world.met("a large sample of a table is lost with all who had it")
                return
            raise Violation("H3", f"{engine.process} keeps {table} of topic {name!r} at {place}, and should {expected}")
        if expected is not None:
            self._meet(line.model, expected)

    def _are_lost(self, engine: SimEngine, local: LocalTopic, expected: Table, table: Table) -> bool:
        """What lacks is large, and of who is in the view nobody has it any more: its bytes went with who gave them."""
        lacking = [one for one in expected.kept if one not in table.kept]
        if expected._replace(kept=tuple(one for one in expected.kept if one in table.kept)) != table:
            return False
        for slot in self._world.nodes:
            node = slot.attachments.node if slot.serving and slot.attachments is not None else None
            other = node._changes.topics.local.get(local.spec.name) if node is not None else None
            if node is not None and node._view == engine.node._view and other is not None and other is not local and (
                    other.whole and other.log is not None) and set(_table_of(other.log, b"")[1].kept) & set(lacking):
                return False
        return all(one.size > local.spec.size_max for one in lacking)

    def _meet(self, model: Lasts, table: Table) -> None:
        present = any(said.tag in (PRESENT, PRESENT_RANKED) for said in table.kept)
        for what, happened in (("a table of keys is what it should be", table.kept),
                               ("a table knows of a writer that doesn't count", present),
                               ("a key that is over is kept for a while", table.over),
                               ("a key goes whose delay is over", model.cleaned),
                               ("a sample goes because of a limit", model.limited)):
            if happened:
                self._world.met(what)

    def lacking(self) -> str:
        """A key that some node still keeps, though its delay must be over by now."""
        for slot in self._world.nodes:
            node = slot.attachments.node if slot.serving and slot.attachments is not None else None
            for name, local in node._changes.topics.local.items() if node is not None else ():
                if (local.log is not None and local.log.keeps_table and local.spec.cleanup_ns < CLEANUP_NEVER
                        and local.whole and local.log.table_figures()["over"]):
                    return f"{slot.process} keeps {local.log.table_over()} of topic {name!r}, which is over"
        return ""

    def _line(self, group_id: int, name: str, local: LocalTopic, place: Order, table: Table) -> _Line | None:
        life = _life(local)
        known = self._of.get(local)
        if known is not None and known[1] == life:
            return known[0]
        line = self._lines.get((group_id, name))
        # One that has begun anew since it was looked at has nothing of what it had: it is no witness of the line.
        others = [other for other, (one, then) in self._of.items()
                  if other is not local and one is line and line is not None and other.member
                  and (then == _life(other) or not other.began_anew) and other.log is not None and self._runs(other)]
        if local.spec.level is Level.LOGGED:
            begins = line is None or not others or any(other.lives != local.lives for other in others)
        else:
            begins = line is None or local.began_anew
            if begins and any(other._entered != local._entered for other in others):
                line = self._lines[group_id, name] = None  # it was refused the history; they have it
                begins = False
            elif begins and others:
                begins = False  # they became members together
        if begins:
            line = self._lines[group_id, name] = _Line(local, place, table)
        self._of[local] = line, life
        return line

    def _runs(self, local: LocalTopic) -> bool:
        return any(slot.serving and slot.attachments is not None
                   and slot.attachments.node._changes.topics.local.get(local.spec.name) is local
                   for slot in self._world.nodes)

    def _collect(self, group_id: int, name: str) -> None:
        """What has come into the logs of this topic since the last time."""
        read: list[_Read] = []
        line = self._lines.get((group_id, name))
        for slot in self._world.nodes:
            node = slot.attachments.node if slot.attachments is not None else None
            if node is None or node._view is None or node._view.group_id != group_id:
                continue
            local = node._changes.topics.local.get(name)
            if local is not None and local.log is not None and local.spec.effects:
                read.append(self._records(local))
                for said in read[-1].new:
                    if line is not None and said.order >= max(line.place, line.first):
                        line.said.setdefault(said.order, said)
        for one in read:
            if line is not None and one.lacks is not None and one.lacks[1] > line.place:
                line.missing = line.missing or not any(other.covers(one) for other in read)

    def _records(self, local: LocalTopic) -> _Read:
        log: Any = local.log
        read = self._read.get(local)
        if read is None or read.log is not log:
            read = self._read[local] = _Read(log)
        view, position, offset = log.mapping.view(), read.position, read.offset
        tail = int.from_bytes(view[TAIL : TAIL + 8], "little")
        read.new, read.lacks, gap = [], None, False
        while position < tail:
            at = RING + (offset if offset < log.capacity else 0)
            (where, size, kind, tag, writer, key, sequence, source_ns, _, sender, relay,
             view_id) = RECORD.unpack_from(view, at)
            if where != position:  # a whole history came between two passes; others may have what is lost here
                gap = True
                position, offset = (int.from_bytes(view[one : one + 8], "little") for one in OLDEST)
                continue
            if kind == JUMP:
                offset = 0
                continue
            stride = (RECORD.size + size + 63) // 64 * 64
            position, offset = position + stride, at - RING + stride
            end = at + RECORD.size + size
            last = int.from_bytes(view[end - 8 : end], "little") if size >= 8 else 0
            ranked = local.spec.ranks[tag] if local.spec.ranks else 0
            rank = rank_in(bytes(view[max(end - RANK_PLACE_MAX, end - size) : end]), ranked)
            if kind == LARGE:  # its bytes lie beside
                size = int.from_bytes(view[at + RECORD.size + 8 : at + RECORD.size + 16], "little")
            order = view_id, sequence
            if gap:
                read.lacks, gap = (read.last, order), False
            if read.first is None or (read.lacks is not None and read.lacks[1] == order):
                read.first = order
            read.last = order
            read.new.append(Said(order, key, tag, sender, writer, relay, size, None, source_ns, last, rank))
        read.position, read.offset = position, offset
        return read

    # --- late readers

    def took(self, reading: Reading, info: Any, size: int) -> None:
        """H4: a message that a reader has taken, in a topic with keys."""
        behind = reading.behind
        if behind is None or reading.table_seen:
            return
        if (info.view_id, info.sequence) < behind:
            reading.table.append(Said((info.view_id, info.sequence), info.key, info.tag, info.sender, info.writer,
                                      info.relay, size, None, info.source_timestamp))
        elif self._world.setup.large and reading.lost():
            reading.table_seen = True  # bytes of a large sample have gone with its node, and it says so
        else:
            self.seen(reading)

    def end(self, readings: list[Reading]) -> None:
        """When everybody has everything."""
        for reading in readings:
            if reading.open and not reading.lost() and not reading.handle.log.pending:
                self.seen(reading)

    def seen(self, reading: Reading) -> None:
        """The reader has taken all of its table."""
        if reading.behind is None or reading.table_seen:
            return
        reading.table_seen = True
        line = self._lines.get((reading.group_id, reading.topic))
        expected = line.tables.get(reading.behind) if line is not None else None
        if expected is not None and list(expected.kept) != reading.table:
            raise Violation("H4", f"{reading} got {_show(reading.table)} first, as of {reading.behind}, and should "
                                  f"have got {_show(expected.kept)}")
        if expected is not None and expected.kept:
            self._world.met("a late reader gets the last messages of each key")


def _show(table: Any) -> str:
    return "[" + ", ".join(f"{one.order}: key {one.key}, tag {one.tag}, {one.source_ns}" for one in table) + "]"
