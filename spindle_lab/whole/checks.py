"""What must hold in a run of the whole node; the names are those of docs/reliability.md.

    D1        what is taken was written
    D2 D6 D9  one order for all: who takes a message at a place of the order, takes the same there as everybody else
    D5        each writer's messages in its order
    D7 D8     between the first and the last message that a reader took, nothing is missing that anybody took
    D10       what was committed at a node that lives is delivered to everybody in the end, closed writers' messages
              too; of no writer one is missing between two of its messages that a reader took
    P1        a message counts as persisted when it is on the disk: at every pass of every node
    C1 to C4  readers get what belongs together whole or not at all, all at one place (`spindle_lab.whole.sets`)
    E1        no thread of a process ends with a defect, no task with an exception that nobody looks at
    L1        whatever was begun ends, with a result or with a reason, and everybody agrees in the end
    H5        of what a topic keeps, everybody knows the types that writers have said (`spindle_lab.whole.typed`)
    A1 to A3  nobody does what no rule allows him, nobody hears of a topic that he may neither write nor read, and no
              stranger is let in
    Q1        no queue grows beyond its bound
    R9        who has left leaves nothing behind: descriptors, sockets, threads

What the disks hold in the end is in `spindle_lab.whole.journals` (P1, P2, P4), what programs see of the group in
`spindle_lab.whole.watching`, what nodes must not have any more in `spindle_lab.whole.rest`.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from spindle.group.levels import Level
from spindle_lab.whole.lapses import Lapses
from spindle_lab.whole.sets import Sets
from spindle_lab.whole.tags import DEPARTURE, FAREWELL, LAPSE, PRESENT, PRESENT_RANKED, REVIVAL, TIME, TIMED, tag_of
from spindle_lab.whole.times import Times
from spindle_lab.whole.typed import Types
from spindle_lab.whole.violation import Violation

if TYPE_CHECKING:
    from spindle.group.topics import TopicSpec
    from spindle.group.view import View
    from spindle_lab.whole.engines import SimEngine
    from spindle_lab.whole.programs import Reading, Writing
    from spindle_lab.whole.system import Process

Order = tuple[int, int]  # view id, sequence
Line = tuple[int, str]  # group id, topic


@dataclasses.dataclass
class Deletions:
    """How often somebody has asked that a topic be deleted, and how often that was answered."""

    begun: int = 0
    ended: int = 0


@dataclasses.dataclass(frozen=True)
class Deleted:
    """A deletion that was carried out: between which times, and the view of the node that did it afterwards."""

    begun_ns: int
    done_ns: int
    view: View | None


class Checks:
    """Hears of everything that is taken, written and synced."""

    def __init__(self) -> None:
        self.orders: dict[Line, dict[Order, tuple[int, bytes]]] = {}  # sender, payload
        self.sorted: dict[Line, list[Order]] = {}
        self.placed: dict[tuple[str, bytes], tuple[Line, Order]] = {}  # by topic and payload
        self.written_ns: dict[tuple[str, bytes], int] = {}  # by topic and payload
        self.readings: list[Reading] = []
        self.writings: list[Writing] = []
        self.lapses = Lapses(self.writings)
        self.times = Times()
        self.sets = Sets()
        self.types = Types()
        self.deletions: defaultdict[str, Deletions] = defaultdict(Deletions)  # by topic
        self.declared: dict[tuple[int, str], int] = {}  # by group and topic: how many deletions had begun before
        self.declared_in: dict[tuple[int, str], View] = {}  # the same: the view of the node that declared it
        self.declarations: list[TopicSpec] = []  # topics in the order in which they became known
        self.deleted: dict[str, Deleted] = {}  # by topic: the last time
        self.deliveries = 0
        self.on_taken: Callable[[Reading, Any, int], None] = lambda reading, info, size: None
        self._unsettled: Callable[[], str] | None = None  # what was lacking last: it is looked at first
        self.lied_to: set[str] = set()  # topics that a liar may write to
        # Writers without a node send again what they don't know to be delivered, or persisted. A message comes twice
        # only if no member of the topic lives that was one when it came first (`known(line, order)`: one does). In a
        # logged topic, what was delivered and not persisted is lost when those who have it die; then no later reader
        # finds it twice.
        self.relayed: set[bytes] = set()
        self.known: Callable[..., bool] = lambda line, order, whole=False: True
        self.doubled_ns: dict[tuple[str, bytes], int] = {}  # by topic and payload: since when it may have come twice
        # Of logged topics, what some node was told to be persisted at every member: by the view since which that node
        # has had the topic whole, the last message that it was told of; and the last one that any was told of.
        self.told_safe: dict[Line, dict[int, Order]] = {}
        self.safe: dict[Line, Order] = {}
        self.whole_since: dict[tuple[int, str], int] = {}  # by pid and topic: view
        self.views: dict[int, View] = {}  # by pid: the one that its node has installed
        self.departures: dict[Line, set[tuple[int, int]]] = {}  # view, and a sender that lived no longer than it
        self.synced: dict[tuple[int, str], Order] = {}  # by pid and topic: the last message that is on the disk

    # --- while it runs

    def took(self, reading: Reading, payload: bytes, info: Any) -> None:
        """A reader has taken a message."""
        self.deliveries += 1
        self.on_taken(reading, info, len(payload))
        if reading.logged:
            reading.program.world.renewals.took(reading, info.view_id)
        in_table = reading.behind is not None and (info.view_id, info.sequence) < reading.behind
        if info.tag == FAREWELL and not payload:
            self._took_farewell(reading, info)
            return
        if info.tag == DEPARTURE and not info.writer:
            self._took_departure(reading, info)
            return
        if info.tag in (LAPSE, REVIVAL) and not payload:
            if reading.ordered:
                self._same_place(reading, info, b"")
            if reading.topic not in self.lied_to and not in_table and not reading.compact:
                self.lapses.took(reading, info)
            return
        if info.tag == TIME and not info.writer:
            if reading.ordered:
                self._same_place(reading, info, b"")
            self.times.told(reading, info, anybody=reading.topic in self.lied_to)
            return
        if info.tag == TIMED and reading.handle.topic.spec.timing:
            self.times.took(reading, payload, info)
        if (reading.topic, payload) not in self.written_ns:
            self._took_noise(reading, payload, info)
            return
        deleted = self.deleted.get(reading.topic)
        name, _, number = payload.partition(b" ")[0].partition(b":")
        # A program on its way to another node keeps no topic from being deleted, and sends again to the one there then.
        if name not in self.relayed and deleted is not None and deleted.done_ns <= reading.opened_ns and (
                self.written_ns[reading.topic, payload] < deleted.begun_ns) and not reading.left_behind(deleted.view):
            raise Violation("N1", f"{reading} takes {payload!r}, which was written to a topic that was deleted since")
        present = bool(reading.handle.topic.spec.ranks) and info.tag in (PRESENT, PRESENT_RANKED)  # from some table
        if info.tag != tag_of(payload) and not present:
            raise Violation("D6", f"{reading} takes {payload!r} with tag {info.tag}, it was written with "
                                  f"{tag_of(payload)}")
        self.types.took(reading, name)
        if name in reading.ended and name not in self.relayed:
            raise Violation("D5", f"{reading} takes {payload!r} after its writer was said to have ended")
        reading.names[info.sender, info.relay, info.writer] = name
        reading.lapsed.discard(name)
        self.sets.took(reading, name, payload, info)
        if not reading.ordered:
            self._in_writer_order(reading, name, int(number), payload)
            return
        at = (info.view_id, info.sequence)
        if (reading.taken and at <= reading.taken[-1]) or at <= reading.floor:
            raise Violation("D2", f"{reading} takes {at} after {max([*reading.taken[-1:], reading.floor])}: "
                                  f"{payload!r}")
        line = (reading.group_id, reading.topic)
        order = self.orders.setdefault(line, {})
        known = order.get(at)
        if known is None:
            order[at] = (info.sender, payload)
            bisect.insort(self.sorted.setdefault(line, []), at)
            before = self.placed.setdefault((reading.topic, payload), (line, at))
            if before[1] != at and not self._may_come_again(reading, name, payload, before):
                raise Violation("D2", f"{reading} takes {payload!r} at {at}, and somebody took it at {before}")
        elif known != (info.sender, payload):
            raise Violation("D6", f"{reading} takes {payload!r} at {at}, and others {known[1]!r}")
        self._in_writer_order(reading, name, int(number), payload)
        if not in_table and not reading.compact:
            self._without_hole(reading, name, int(number))
        reading.taken.append(at)

    def _took_farewell(self, reading: Reading, info: Any) -> None:
        """A node says that a writer has ended: nothing more of it may come, and all are told in the same place."""
        identity = info.sender, info.relay, info.writer
        name = reading.names.pop(identity, None)
        self.sets.ended(reading, name, info)
        if name is not None:
            reading.ended.add(name)
            reading.program.world.met("a reader is told that a writer has ended")
        if reading.ordered:
            self._same_place(reading, info, b"")

    def _took_departure(self, reading: Reading, info: Any) -> None:
        """The members say that a node has gone, and its writers with it: behind all that they had written, and all in
        the same place."""
        reading.departed.add((info.view_id, info.sender))
        gone = [reading.names.pop(one) for one in list(reading.names) if one[0] == info.sender and not one[1]]
        reading.ended.update(gone)
        self.sets.departed(reading, gone, info)
        reading.program.world.met("a reader is told that a node has gone")
        if reading.ordered:
            self._same_place(reading, info, b"")

    def _same_place(self, reading: Reading, info: Any, what: bytes) -> None:
        at, line = (info.view_id, info.sequence), (reading.group_id, reading.topic)
        if reading.taken and at <= reading.taken[-1]:
            raise Violation("D2", f"{reading} takes {at} after {reading.taken[-1]}: {what[:100]!r}")
        known = self.orders.setdefault(line, {}).setdefault(at, (info.sender, what))
        if known != (info.sender, what):
            raise Violation("D6", f"{reading} takes {what[:100]!r} at {at}, and others {known[1][:100]!r}")
        if at not in self.sorted.setdefault(line, []):
            bisect.insort(self.sorted[line], at)
        reading.taken.append(at)

    def _took_noise(self, reading: Reading, payload: bytes, info: Any) -> None:
        """What no honest program has written: only its place must be everybody's."""
        if reading.topic not in self.lied_to:
            raise Violation("D1", f"{reading} takes {payload[:100]!r}, which nobody has written")
        if reading.ordered:
            self._same_place(reading, info, payload)

    def _may_come_again(self, reading: Reading, name: bytes, payload: bytes, before: tuple[Line, Order]) -> bool:
        if name in self.relayed and (reading.logged or not self.known(*before)):
            self.doubled_ns.setdefault((reading.topic, payload), reading.program.world.system.now_ns)
            return True
        return reading.logged

    def _in_writer_order(self, reading: Reading, name: bytes, number: int, payload: bytes) -> None:
        if number > reading.last_of.get(name, -1):
            reading.last_of[name] = number
        elif self.doubled_ns.get((reading.topic, payload), -1) < reading.opened_ns:
            raise Violation("D5", f"{reading} takes message {number} of {name!r} after {reading.last_of[name]}")

    def _without_hole(self, reading: Reading, name: bytes, number: int) -> None:
        if not reading.keep_all or reading.lost():
            return
        last = reading.came_of.get(name, number - 1)
        if number > last + 1:
            raise Violation("D10", f"{reading} takes message {number} of {name!r} after {last}: of a writer's messages "
                                   "none is missing")
        reading.came_of[name] = max(last, number)

    def _installed(self, pid: int, view: View) -> None:
        """A node has installed another view: which senders its readers must be told to have gone."""
        before = self.views.get(pid)
        self.views[pid] = view
        if before is None or view.view_id != before.view_id + 1:
            return  # the same; or one came in between, within a pass, and it is that one which somebody left
        alive = {one.life for one in view.members}
        gone = [one.node_id for one in before.members if one.life not in alive]
        for topic in before.topics if gone else ():
            after = view.topic(topic.spec.name)
            if topic.spec.departure and after is not None and after.born == topic.born and (
                    set(topic.members) & set(after.members) - set(after.fresh)):
                self.departures.setdefault((view.group_id, topic.spec.name), set()).update(
                    (before.view_id, one) for one in gone if one in topic.senders)

    def on_pass(self, engine: SimEngine) -> None:
        """P1 after a pass of an engine."""
        epoch = engine.epoch
        node = engine.node
        if epoch is None or node is None or node._error is not None:  # one that fails may be between two views
            return
        if self.views.get(engine.process.pid) is not node._view and node._view is not None:
            self._installed(engine.process.pid, node._view)
        for name, local in node._changes.topics.local.items():
            if local.spec.level is not Level.LOGGED:
                continue
            here = (engine.process.pid, name)
            if local.whole:
                self.whole_since.setdefault(here, epoch.epoch)
            else:
                self.whole_since.pop(here, None)
            if not local.member or not epoch.has_topic(local.topic_id):
                continue
            stability = epoch.stability(local.topic_id)
            place = stability["members"].index(node.node_id)
            persisted = stability["persisted"][place]
            line = (node._view.group_id, name)
            known = self.sorted.get(line)
            if persisted <= 0 or not known:
                continue
            least = min(stability["persisted"])  # at 0, earlier views may not even be persisted at every member
            at = bisect.bisect_right(known, (epoch.epoch, least - 1)) - 1
            whole_since = self.whole_since.get(here)
            if least > 0 and at >= 0 and whole_since is not None and known[at][0] >= whole_since:
                told = self.told_safe.setdefault(line, {})
                told[whole_since] = max(told.get(whole_since, known[at]), known[at])
                self.safe[line] = max(self.safe.get(line, known[at]), known[at])
            at = bisect.bisect_right(known, (epoch.epoch, persisted - 1)) - 1
            if at >= 0:
                last = self.synced.get(here, (-1, -1))
                if known[at] > last and known[at][0] >= local.first_order[0]:
                    raise Violation("P1", f"{engine.process} says that {known[at]} of topic {name!r} is persisted, "
                                          f"and on its disk is {last}")

    # --- at the end

    def was_safe(self, line: Line, at: Order) -> bool:
        """Somebody was told that this message of a logged topic is persisted at every member."""
        return any(first <= at[0] and at <= last for first, last in self.told_safe.get(line, {}).items())

    def gaps(self) -> None:
        """D7, D8."""
        for reading in self.readings:
            taken = reading.taken
            if reading.behind is not None:  # of what came before, it got what was kept
                taken = taken[bisect.bisect_left(taken, reading.behind) :]
            if len(taken) < 2 or reading.lost() or not reading.ordered or reading.compact:
                continue
            self._departures_of(reading, taken)
            known = self.sorted[reading.group_id, reading.topic]
            first = bisect.bisect_left(known, taken[0])
            last = bisect.bisect_right(known, taken[-1])
            missing = sorted(set(known[first:last]) - set(taken)) if last - first != len(taken) else []
            if reading.logged:  # what was delivered and not persisted may be lost when all who have it die
                missing = [one for one in missing if self.was_safe((reading.group_id, reading.topic), one)]
            if missing:
                raise Violation("D8", f"{reading} took no {missing[:5]} ({len(missing)} in all) between "
                                      f"{taken[0]} and {taken[-1]}; others did")

    def _departures_of(self, reading: Reading, taken: list[Order]) -> None:
        """D8 of the nodes that have gone: who had a message of their last view and one of a later view was told."""
        first, last = taken[0][0], taken[-1][0]
        for view, node_id in self.departures.get((reading.group_id, reading.topic), set()) - reading.departed:
            safe = not reading.logged or self.was_safe((reading.group_id, reading.topic), (view + 1, 0))
            if first <= view < last and reading.keep_all and safe:
                raise Violation("D8", f"{reading} took messages of the views {first} to {last}, and wasn't told that "
                                      f"node {node_id} went with view {view}")

    def _incomplete(self, reading: Reading) -> str:
        """D10: what a reader that was there before a writer has not got of it, if anything."""
        if not reading.open or not reading.keep_all or not reading.ordered or reading.lost():
            return ""
        for writing in self.writings:
            if (writing.topic == reading.topic and writing.opened_ns > reading.opened_ns
                    and writing.group_id == reading.group_id
                    and not reading.program.world.renewals.is_before(writing.topic, writing.opened_ns)):
                got = reading.last_of.get(writing.name.encode(), -1) + 1
                due = writing.due()
                if got < due:
                    return f"{reading} got {got} of the {due} messages of {writing}"
        return ""

    def settled(self) -> str:
        """What still has to come, if anything."""
        if self._unsettled is not None and (text := self._unsettled()):
            return text
        for lacking in (*(partial(self._reader_lacks, one) for one in self.readings),
                        *(partial(self._writer_lacks, one) for one in self.writings),
                        *(partial(self._incomplete, one) for one in self.readings)):
            if text := lacking():
                self._unsettled = lacking
                return text
        self._unsettled = None
        return ""

    def _reader_lacks(self, reading: Reading) -> str:
        if text := self.times.lacking(reading):
            return text
        if reading.open and reading.keep_all and reading.ordered and not reading.lost():
            last = self._last(reading)
            plain = reading.behind is None and not reading.compact
            if reading.topic not in self.lied_to and plain and (text := self.lapses.lacking(reading)):
                return text
            if reading.behind is not None and last < reading.behind:
                return ""
            if reading.compact and not self._after_it_opened(reading, last):
                return ""
            if (reading.taken and reading.taken[-1] < last) or (
                    not reading.taken and last >= reading.start and self._after_it_opened(reading, last)):
                return f"{reading} has not got {last}"
        return ""

    def _writer_lacks(self, writing: Writing) -> str:
        waiting = writing.waiting() if writing.open else 0
        return f"{writing} waits for {waiting} messages to be delivered" if waiting else ""

    def _after_it_opened(self, reading: Reading, last: Order) -> bool:
        """True if this message was written after the reader opened: of earlier ones it may get none."""
        _, payload = self.orders.get((reading.group_id, reading.topic), {}).get(last, (0, b""))
        return self.written_ns.get((reading.topic, payload), -1) > reading.opened_ns

    def _last(self, reading: Reading) -> Order:
        """The last message that this reader must get."""
        line = (reading.group_id, reading.topic)
        if not reading.logged:
            return self.sorted.get(line, [(-1, -1)])[-1]
        # A program on a host without a node may have taken the last ones at nodes that have all died since, and had
        # them on no disk.
        taken = [one.taken[-1] for one in self.readings if one.open and one.taken and one.topic == reading.topic
                 and (not one.program.outside or self.known(line, one.taken[-1], whole=True))]
        return max([*taken, self.safe.get(line, (-1, -1))])

    def process_ended(self, process: Process) -> None:
        """E1 and R9, of a process that has ended in order."""
        for thread, error in process.failures:
            raise Violation("E1", f"{thread}: {type(error).__name__}: {error}") from error
        if process.threads:
            raise Violation("R9", f"{process} has ended, but {process.threads} run")
