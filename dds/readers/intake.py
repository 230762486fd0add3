"""How samples come from the delivery log to what a reader keeps (`dds.readers.kept`), one by one.

Why a second place: the log is only ever consumed forwards, and shared by all readers of the host. Taking everything in
order needs no more than the log (`DataReader.take`, the fast way). Reading without taking, conditions, instances,
filters, and policies that choose need the samples to stay, with their states: then they go through here.

Rules: everything that is kept is older than everything in the log. What is kept is bounded: History.KeepLast by its
depth (of each instance), KeepAll with ResourceLimits.max_samples by that, where the rest waits in the log and holds the
writers back. Otherwise at most KEPT_MAX: beyond it samples that were read already are given up, oldest first, and
unread ones wait in the log. Whether a sample counts follows from the messages before it, and from nothing that only
this reader knows: all readers with the same Qos decide alike (`dds.readers.standing`). So does the time at which a
lifespan is over: the order says it. Where time decides for one reader alone, it is the local clock: `pass_time`.
"""

from __future__ import annotations

import collections
import heapq
import time
from collections.abc import Callable
from typing import Any

from dds.codecs.types import Codec
from dds.filters.content import Content
from dds.internal import dds_infinity, publication_handle
from dds.messages.inline_qos import NOTHING, InlineQos, split
from dds.messages.operations import (
    ANNOUNCES_QOS,
    DEPARTS,
    FAREWELL,
    LAPSES,
    PACKET,
    REGISTERS,
    REVIVES,
    TIME,
    WRITES,
    is_packet,
)
from dds.messages.packets import ASIDE_MAX, Member, Message, Sets, carrier_of, is_of_set, opened
from dds.policy.policies import deadline_ns
from dds.qos import Qos
from dds.readers.ends import Ends
from dds.readers.instances import NEVER, Entry, Instance
from dds.readers.kept import NotOfType
from dds.readers.limits import ReaderLimits
from dds.readers.source import NEVER as NO_GAP
from dds.readers.source import LogSource, Losses
from dds.readers.standing import Standing
from dds.status import InstanceState, ViewState
from dds.waiting.deadlines import Deadlines, Delays
from spindle.errors import give_way

KEPT_MAX = 10_000  # samples
PULL = 256  # samples taken from the log at a time
TAKEN_BACK_NS = 30_000_000_000  # what is said so much earlier takes back what was said: see the core's timing.pxi


class Intake(Ends):
    """The way in. For one thread at a time: the reader holds its lock.

    source      where they come from
    codec       of the reader's topic
    depth       of KeepLast, 0 = keep all
    limit       most samples to keep; 0 = KEPT_MAX, giving up read ones
    blocked     publication handles of writers whose samples this reader must not see
    ignored     publication handle -> whether samples of that writer are not for this reader; None = all are
    content     which samples this reader is about, by their content; None = all
    standing    what the reader's Qos says about writers and instances
    losses      told when what KeepLast replaces has been skipped in the log
    deadlines   of the instances, in monotonic ns; None = there are none
    same_clock  the node that stamps what is received has the clock of this host
    sets        coherent sets, and which samples of an order group are of this reader's topic; None: no group

    filtered    counts the samples that `content` or `standing` kept out
    rejected    counts the samples that found no room when they came, see look_for_rejected()
    let_pass    counts those that TimeBasedFilter held back, and gave out after all
    too_late    counts those that were older at their source than what had come before
    """

    def __init__(self, source: LogSource, codec: Codec, depth: int, limit: int, blocked: set[int],
                 content: Content | None, losses: Losses, standing: Standing, deadlines: Deadlines | None = None,
                 same_clock: bool = True, sets: Sets | None = None) -> None:
        super().__init__(codec, content, standing, deadlines, sets or Sets(), same_clock)
        self.source = source
        self.depth = depth
        self.limit = limit
        self.blocked = blocked
        self.losses = losses
        self.filtered = 0
        self.rejected = 0
        self.let_pass = 0
        self.too_late = 0
        self.ignored: Callable[[int], bool] | None = None
        self._arrived: collections.deque[tuple[bytes, Any]] = collections.deque()  # taken from the log, not let in yet
        self.before: list[bool] = []  # not empty if something may be here that was in the log: is_ahead()
        self._begun: Any = None  # what is being let in, or was when that was interrupted
        self._members: collections.deque[Member] = collections.deque()  # of the packet that is being let in
        self._step = 0  # see let_in_next()
        self._waiting_until = 0  # samples before this index found no room, unless they were in before
        self._counted_until = 0  # those from here on are counted when they are let in
        self.limits: ReaderLimits | None = None  # on instances
        self._said_ns = source.said_ns  # what the order has said of time at the place of what is let in, UTC

    def change(self, requested: Qos) -> None:
        """The reader goes by this Qos from now on. What has come before, and was let in, stays as it is."""
        separation = self.standing.separation
        self.standing.change(requested)
        if self.standing.separation != separation:
            for instance in [self.single] if self.instances is None else list(self.instances.by_handle.values()):
                if instance.withheld is not None:
                    self._let_pass_in_time(instance)
            self.pass_time()
        period = deadline_ns(requested)
        if self.deadlines is None or not period:
            self.deadlines = deadlines = Deadlines(period) if period else None
            self.arrivals.begin_at(now_ns := time.monotonic_ns())
            if deadlines is not None:
                for instance in self._known_alive():
                    deadlines.written(instance.handle, now_ns)
        else:
            self.deadlines.change(period)
        self._purges.clear()
        for state in (InstanceState.NotAliveDisposed, InstanceState.NotAliveNoWriters):
            if (delay := self.standing.purge_delay(state)) < dds_infinity:
                self._purges[state] = Delays(delay)
        for instance in list(self.instances.by_handle.values()) if self.instances is not None else ():
            if instance.state != InstanceState.Alive:
                self._purge_later(instance)

    def _known_alive(self) -> list[Instance]:
        """Those of which something has come, and nothing says that they have ended."""
        if self.instances is None:
            return [self.single] if self.source.index else []
        return [one for one in list(self.instances.by_handle.values()) if one.state == InstanceState.Alive]

    # --- coming in

    @property
    def is_selective(self) -> bool:
        """True if samples may come that aren't for this reader."""
        return self.chooses or bool(self.blocked)

    @property
    def chooses(self) -> bool:
        """The same, whoever writes."""
        return (self.content is not None or self.ignored is not None or self.deadlines is not None
                or bool(self._lapsed) or bool(self._ends) or self.standing.chooses or bool(self.sets.channel))

    def look_for_rejected(self) -> None:
        """Bring `rejected` up to date: samples in the log that `limit` leaves no room for.

        Those of a selective reader are counted when they are let in, because only then it is known whether they are for
        this reader; call pull() first.
        """
        if not self.limit or self.depth:
            return
        pending = self.source.log.pending
        end = self.source.index + pending
        without_room = min(pending, len(self) + len(self._arrived) + pending - self.limit)
        if without_room <= 0:
            return
        if not self.is_selective:
            self.rejected += max(0, end - max(end - without_room, self._waiting_until))
            self._counted_until = end
        self._waiting_until = max(self._waiting_until, end)

    def pull(self, wanted: int) -> None:
        """Take samples from the source until `wanted` are kept, or all that is there now is, or there is no room.

        Raises DDSException if the reader is closed, or has a batch open.
        """
        begun_ns = time.monotonic_ns()
        self._pull(wanted)
        while self.source.turn():
            self._pull(wanted)
        if self.deadlines is not None and not self.ahead:
            self.arrivals.begin_at(begun_ns)
        if self._later or self._purges or self._next_expiry != NEVER:
            self.pass_time()

    def _pull(self, wanted: int) -> None:
        """From the log that is being read."""
        source = self.source
        if self.depth:
            wanted = 1 << 62  # which samples are the last is known only when all were seen
            if self.instances is None and not self.chooses:
                source.skip_to_last(self.depth)
                self.losses.look()
        self._let_in()
        left = source.log.pending  # what comes meanwhile is for the next call, or this one might never end
        while left > 0 and len(self) < wanted and not self._arrived:
            room = self._room()
            if room <= 0:
                return
            self.before[:] = (True,)
            pairs = source.take_pairs(min(PULL, room, left, wanted - len(self)), self._arrived)
            if not pairs:
                return
            left -= len(pairs)
            self._let_in()

    def _let_in(self) -> None:
        """Let in what was taken from the log, as far as there is room. Interrupted by a signal, say, it goes on where
        it was the next time."""
        while self._arrived and (self.limits is None or not self.is_full):  # which most need not be asked
            self.let_in_next()

    @property
    def is_full(self) -> bool:
        """True if there is no room for the first message that was taken from the log: limits on instances say so."""
        if self.limits is None or not self._arrived or not self._is_refused(self.limits):
            return False
        self.pass_time()  # what is over makes room, and perhaps nobody looks for that again
        return self._is_refused(self.limits)

    def _is_refused(self, limits: ReaderLimits) -> bool:
        return limits.refuses(self, self._index, *self._arrived[0])

    @property
    def _index(self) -> int:
        """Of the first message that was taken from the log and not let in."""
        return self.source.index - len(self._arrived)

    def is_ahead(self) -> bool:
        """True if samples are here, which came before those in the log. Under the reader's lock.

        Who takes from the log without that lock gives it `before`, which has something in it before anything is taken
        from the log in another way."""
        if len(self) or self._arrived:
            return True
        self.before.clear()
        return False

    def put_back(self, samples: list[Any]) -> None:
        """What was taken and not kept comes first again, as if nobody had got it: who took it was interrupted."""
        samples = [one for one in samples if one.sample_info.valid_data]  # ends are looked at one by one
        for sample in reversed(samples):
            live, instance = sample.sample_info, self.single
            if self.instances is not None:
                instance = self.instances.of(self.instances.key_of(sample))
            instance.new = instance.new or live.view_state == ViewState.New
            entry = Entry(bytes(self.codec.encode(sample)), getattr(live, "_live", live), instance)
            self.before[:] = (True,)
            self.entries.appendleft(entry)
            self.unread += 1
            instance.kept += 1
            if self.depth:
                instance.entries = instance.entries or collections.deque()
                instance.entries.appendleft(entry)
        if self.depth:
            for sample in samples:
                instance = self.single if self.instances is None else self.instances.of(self.instances.key_of(sample))
                while instance.entries is not None and len(instance.entries) > self.depth:
                    self.drop(instance.entries.popleft())

    def collect(self) -> None:
        """Take from the source what is there and has room, and let none of it in. Raises as pull()."""
        self._collect()
        while self.source.turn():
            self._collect()

    @property
    def ahead(self) -> int:
        """How many messages are there that were not let in."""
        return self.source.log.pending + len(self._arrived)

    def _collect(self) -> None:
        while (room := min(self._room() - len(self._arrived), PULL)) > 0 and self.source.log.pending:
            self.before[:] = (True,)
            if not self.source.take_pairs(room, self._arrived):
                return

    @property
    def head(self) -> Any:
        """What is known of the first message that was taken from the log and not let in; None if there is none."""
        if self._members or (self._arrived and self._arrived[0][1] is None):
            self.let_in_next(self._step)  # that was interrupted
        return self._arrived[0][1] if self._arrived else None

    def give_up_set(self) -> bool:
        """Forget the first message that was taken from the log if it is of a set, of which others that belong to it
        have lost something; counts as one lost sample. False if it stands for itself."""
        payload, live = self._arrived[0]
        if live.tag != PACKET or not is_of_set(payload):
            return False
        self._arrived.popleft()
        self.too_late += 1
        return True

    def let_in_next(self, step: int = 0) -> None:
        """Let in the first of what was taken from the log; `step`: its place among all messages of an order group."""
        self._step = step
        payload, live = self._arrived[0]
        if live is not None and self.source.gap_at != NO_GAP and self._index >= self.source.gap_at:
            self._go_on_behind_gap(live, self.source.pass_gap())
            self._said_ns = self.source.said_ns
        if live is not None and self._ends and (live.view_id, live.sequence) >= self._ends[0]:
            self._begin_group(live)
        if live is not None and is_packet(live.tag) and not self._members:
            try:
                before = self.sets.crowded_out
                self._members.extend(self.sets.take(carrier_of(live), opened(live.tag, payload), live))
                self._arrived[0] = b"", None
                for _ in range(self.sets.crowded_out - before):
                    self.refuse(ValueError(f"sets that are not complete have more than {ASIDE_MAX} bytes together, "
                                           "and the oldest of them is given up"))
            except ValueError as error:
                self.refuse(error)
        elif live is not None and (live is not self._begun or not self._is_kept(live)):
            self._begun = live
            self._admit(payload, live)
        one = None
        while self._members:
            one = self._members[0]
            if one is not self._begun or not self._is_kept(one):
                self._begun = one
                self._hear(one.payload, one, one.handle)
            self._members.popleft()
        while one is not None and (forgotten := self.sets.surplus()) is not None:
            self._ended_with_carrier(one, *forgotten)
        self._arrived.popleft()
        self._begun = None  # a sample of a packet may keep the memory of a large one

    def _is_kept(self, live: Message) -> bool:
        """Letting this in was interrupted. True if it was kept by then."""
        last = self.entries[-1] if self.entries else None
        return last is not None and last.live is live and not last.ends

    def _room(self) -> int:
        if self.depth:
            return PULL  # KeepLast makes its own room
        if self.limit:
            return self.limit - len(self)
        if len(self) >= KEPT_MAX:
            self._give_up_read(len(self) - KEPT_MAX + PULL)
        return KEPT_MAX - len(self)

    def _give_up_read(self, count: int) -> None:
        for entry in self.entries:
            if entry.read and not entry.gone and count > 0:
                count -= 1
                self.drop(entry)
        self.sweep_all()

    def _admit(self, payload: bytes, live: Message) -> None:
        """A message comes in that is no packet."""
        tag = live.tag
        if tag & DEPARTS:
            if not live.writer:
                self._departed(live.sender, live, tag)
            return
        if tag == TIME and not live.writer:
            self._hear_time(live.source_timestamp)
            return
        writer = carrier_of(live)
        if tag & FAREWELL:
            for carried, does in self.sets.ended(writer).items():
                self._ended_with_carrier(live, carried, does)
        elif not tag & LAPSES:
            if self.sets.channel:
                return  # not of any topic of the group
            self.sets.interrupted(writer)
        self._hear(payload, live, writer)

    def _ended_with_carrier(self, live: Message, writer: int, tag: int) -> None:
        """A writer has ended that others have spoken for."""
        self.forget_lapse(writer)
        self._farewell(live, writer, tag)

    def _hear(self, payload: bytes, live: Message, writer: int) -> None:
        """What one writer says."""
        tag, inline = live.tag, NOTHING
        if self.ignored is not None and self.ignored(writer):
            return
        if tag & LAPSES and tag != REVIVES:
            self._lapse(live, writer)
            return
        if writer in self._lapsed:  # whatever it says, and to whom
            self._lapsed.discard(writer)
            self.on_lapse(writer, None if tag & FAREWELL else False)
        if writer in self.blocked and not tag & FAREWELL:
            return  # what it has written before it was blocked ends with it all the same
        if tag & ANNOUNCES_QOS:
            try:
                payload, inline = split(payload)
            except ValueError as error:
                self.refuse(error)
                return
        if tag == REVIVES:
            return
        if not (tag & FAREWELL or self.standing.reaches(inline.partitions)):
            self.standing.gone(writer)  # it writes to others now
            return
        if tag & ~ANNOUNCES_QOS == REGISTERS:
            self._register(payload, writer)
        elif tag and not tag & WRITES:
            self._end(payload, live, writer, inline)
        else:
            self._sample(payload, live, writer, inline)

    def _sample(self, payload: bytes, live: Message, writer: int, inline: InlineQos) -> None:
        instances, standing = self.instances, self.standing
        try:
            if self.content is not None and standing.exclusive and not self._is_owners(payload, writer, inline):
                self.filtered += 1
                return
            instance, sample = self._instance_of(payload)
        except NotOfType as error:
            self.refuse(error)
            return
        except Exception as error:  # from what the program gave as a filter
            give_way(error)
            self._keep_unreadable(payload, live, error)
            return
        if instance is None:
            self.filtered += 1
            return
        if standing.exclusive and not standing.owns(instance, writer, inline):
            self.filtered += 1
            if instances is not None:
                instances.register(instance, writer)
            return
        if standing.by_source and not instance.has_news(live.source_timestamp):
            self.too_late += 1
            if instances is not None:
                instances.register(instance, writer)
            return
        if instances is not None:
            instances.write(instance, writer)
            if live.tag and instances.end(instance, writer, live.tag):
                self._purge_later(instance)
        if self.deadlines is not None:
            self._written(instance, live)
        entry = Entry(payload, live, instance, sample=sample)
        if inline.lifespan:
            entry.expires = live.source_timestamp + inline.lifespan
        if standing.separation and not self._is_apart(entry):
            return
        self._keep(entry)

    def _is_owners(self, payload: bytes, writer: int, inline: InlineQos) -> bool:
        """Of a reader with a filter, which has no say about who is heard: True if this writer is, of the instance of a
        sample that the filter is yet to see. Raises NotOfType."""
        sample, instances, standing = self._of_type(payload), self.instances, self.standing
        if instances is None:
            return standing.owns(self.single, writer, inline)
        key = instances.key_of(sample)
        known = instances.find(key)
        if known is None or known.is_over:
            return standing.owns_unseen(key, writer, inline)
        instances.register(known, writer)
        return standing.owns(known, writer, inline)

    def _register(self, payload: bytes, writer: int) -> None:
        """This writer has to do with the instance of a sample that has not counted."""
        if self.instances is None:
            return
        try:
            found = self._instance_of(payload)[0]
        except Exception as error:
            give_way(error)
            self.refuse(error)
            return
        if found is not None and not found.is_over:
            self.instances.register(found, writer)

    def _written(self, instance: Instance, live: Message) -> None:
        assert self.deadlines is not None
        came_ns = self.arrivals.came_at(live.reception_timestamp)
        if instance.state != InstanceState.Alive:
            self.deadlines.ended(instance.handle, came_ns)
        else:
            self.deadlines.written(instance.handle, came_ns or time.monotonic_ns(), came_ns is not None)

    def _keep(self, entry: Entry) -> None:
        if self._waiting_until and self._counted_until <= self._index < self._waiting_until:
            self.rejected += 1
        entry.step = self._step
        super()._keep(entry)
        if self.depth and not entry.ends:
            self._keep_last(entry, self.depth)

    # --- instances

    def learn(self, payload: bytes | None, live: Message, sample: Any) -> Instance:
        """An ordinary sample has come the fast way, and its instance may be new to us, or to its writer. Decoded, or
        to be decoded from its payload. Returns the instance. Raises what decoding raises."""
        instances = self.instances
        assert instances is not None
        instance: Instance | None = None
        if payload is not None:
            instance = instances.table.find(payload)
            if instance is None:
                instance = instances.of_payload(payload, self.codec.decode_lasting(payload))
        else:
            instance = instances.of(instances.key_of(sample))
        instances.write(instance, publication_handle(live.sender, live.writer, live.relay))
        return instance

    def _instance_of(self, payload: bytes) -> tuple[Instance | None, Any]:
        """The instance of a sample, None if `content` keeps the sample out; and the sample, None if it wasn't decoded.

        Its key alone says which instance it is: whether the rest can be decoded shows when somebody takes it. Unless it
        has a say about the samples that follow: no garbage owns an instance, or is its latest news.
        """
        sample = None if self.limits is None else self.limits.sample_of(payload)
        if self.content is not None:
            passes = self.content.of_payload(payload)
            if passes is None:
                if sample is None:
                    sample = self._of_type(payload)
                passes = self.content.of_sample(sample)
            if not passes:
                return None, None
        if sample is None and (self.standing.exclusive or self.standing.by_source):
            sample = self._of_type(payload)
        if self.instances is None:
            return self.single, sample
        found: Instance | None = self.instances.table.find(payload)
        if found is None:
            if sample is None:
                sample = self._of_type(payload)
            found = self.instances.of_payload(payload, sample)
        if self.content is not None:
            self.standing.seen(found)
        return found, sample

    # --- time

    def _is_apart(self, entry: Entry) -> bool:
        """False if the sample follows the last one of its instance too closely: it waits whether another follows it."""
        instance, separation = entry.instance, self.standing.separation
        source_ns = entry.live.source_timestamp
        withheld = instance.withheld
        if instance.passed is None or not 0 <= source_ns - instance.passed < separation:
            instance.withheld = None
            self.filtered += withheld is not None
            self._has_passed(entry)
            return True
        instance.withheld = entry
        self.filtered += withheld is not None
        if withheld is None:
            self._let_pass_in_time(instance)
        return False

    def _has_passed(self, entry: Entry) -> None:
        entry.instance.passed = entry.live.source_timestamp
        entry.instance.passed_at = time.monotonic_ns()

    def _let_pass_in_time(self, instance: Instance) -> None:
        """Something of it is held back, until the time is over that the filter has at present."""
        passed = instance.passed
        self._at(instance.passed_at + self.standing.separation, lambda: self._let_pass(instance, passed))

    def _let_pass(self, instance: Instance, passed: int | None) -> None:
        """Nothing came that took the place of the sample that was held back. Or the filter has another time since."""
        entry, due_ns = instance.withheld, instance.passed_at + self.standing.separation
        if entry is not None and instance.passed == passed and due_ns <= time.monotonic_ns():
            instance.withheld = None
            self.let_pass += 1
            self._has_passed(entry)
            self._keep(entry)

    def pass_time(self) -> None:
        """Do what was to be done by now, by the clock of this host; but a lifespan is over for all readers when the
        topic's order says so."""
        now_ns = time.monotonic_ns()
        while self._later and self._later[0][0] <= now_ns:
            heapq.heappop(self._later)[2]()
        purged = {one for plan in self._purges.values() for one in plan.over(now_ns)
                  if one.state != InstanceState.Alive}
        if purged:
            self.purge(purged)
        said_ns = self.source.said_ns
        if not self.ahead:
            self._said_ns = said_ns  # whatever was missed
        self.expire(max(said_ns, self._said_ns), time.time_ns())

    def _hear_time(self, said_ns: int) -> None:
        """The order says here what time it is. As a rule that is known by then, from the log; but what has come until
        here is over by it, and what comes next when it comes, also if it is taken back further on."""
        now_ns = time.time_ns()
        self.expire(self._said_ns, now_ns)
        if not 0 <= self._said_ns - said_ns <= TAKEN_BACK_NS:
            self._said_ns = said_ns
        self.expire(self._said_ns, now_ns)

    @property
    def next_ns(self) -> int | None:
        """When something comes by itself, or goes, or is missed, monotonic ns; None if nothing does."""
        times = [self._later[0][0]] if self._later else []
        times += [one for plan in self._purges.values() if (one := plan.next_ns) is not None]
        if self.deadlines is not None and self.deadlines.next_ns is not None:
            times.append(self.deadlines.next_ns)
        return min(times, default=None)


__all__ = ["Intake"]
