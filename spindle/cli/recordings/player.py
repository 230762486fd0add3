"""Writes the messages of files to topics again: in their order, at their times, as they are.

How the order is kept: of each order (a topic, or an order group) the next message is handed over behind the last. Where
the next one is another writer's, the player waits until the node has taken the last writer's messages, for a node takes
from its writers in turn. Samples of types without keys are sent as the bytes that the file has; those with keys are
decoded, because their writers must know their instances. A coherent set is written as one again.

When the node goes away, the writers go on at the next one of the host (the participant sees to that), and what is in
doubt is said again first, in its order; see `underway`.

Rules: a writer of the file whose samples have keys has a writer of its own, so that instances end as they did. All
others of a topic share one. Writers are opened before the first message.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

import click

import dds
from dds.matching.consistency import LENIENT, inconsistency
from dds.messages.contents import CLOSED_DISPOSED, DISPOSED, ENDS, GONE, SAMPLE, node_of
from dds.messages.inline_qos import NOTHING, InlineQos
from dds.messages.operations import WRITES
from dds.messages.order_groups import ROOM
from spindle.cli.common import is_like, note
from spindle.cli.ports import LEVELS
from spindle.cli.recordings.lanes import Form, Lane, Played, Unit
from spindle.cli.recordings.underway import Underway, samples_in
from spindle.errors import NodeStopped, TopicMismatch
from spindle.locks import Latch

if TYPE_CHECKING:
    from dds import DataWriter, DomainParticipant, Publisher, Topic
    from spindle.client import Session, WriterHandle

R = TypeVar("R")
POLL_S = 0.0002
PERIOD_S = 0.25  # between two looks whether the player is to stop
LEVEL_QOS: dict[str, tuple[Any, ...]] = {
    "unordered": (dds.Policy.Reliability.BestEffort,),
    "atomic": (dds.Policy.Durability.Volatile,),
    "volatile": (dds.Policy.Durability.TransientLocal,),
    "logged": (dds.Policy.Durability.Persistent,)}


class Writing:
    """A writer in the group that speaks for one, or several, in the file."""

    def __init__(self, writer: DataWriter[Any], codec: Any) -> None:
        self.writer, self.codec = writer, codec
        self.keyed = codec.key_of is not None
        self.live: dict[Any, Any] = {}  # instances by key, as samples

    def say(self, one: Played, source_ns: int | None, again: bool = False) -> None:
        """`again`: it was said before, and may not have come."""
        if not self.keyed:
            if one.kind == SAMPLE:
                self.writer._send(one.payload, source_ns, WRITES if self.writer._inline else 0, 0)
            return
        sample = self.codec.decode(one.payload)
        key = self.codec.key_of(sample)
        if one.kind == SAMPLE:
            self.writer.write(sample, source_ns)
            self.live[key] = sample
        elif key in self.live or again:  # else its beginning is not in what is played
            if one.kind == DISPOSED:
                self.writer.dispose(sample, source_ns)
                self.live[key] = sample  # until its writer unregisters it
            else:
                self.writer.unregister_instance(sample, source_ns)
                self.live.pop(key, None)

    def end(self, disposes: bool) -> None:
        if disposes:
            for sample in self.live.values():
                self.writer.dispose(sample)
        self.writer.close()

    def forget_doubts(self) -> None:
        self.writer._look()
        self.writer._link.forget_doubts()

    @property
    def handle(self) -> WriterHandle:
        """Of the present node."""
        return self.writer._way.handle

    @property
    def inbox(self) -> Any:
        return self.handle.inbox


class Player:
    """See the module. A context manager.

    timeout_s   how long slow readers may hold a message back
    stamps      the samples have their source timestamps again, instead of the present time
    rename      the topic that a lane is played onto
    resent      samples that were played again, as their node went away with them
    stop()      ends play() soon; may be called from a signal handler
    """

    def __init__(self, session: Session, within: DomainParticipant, lanes: Iterable[Lane], rename: Callable[[str], str],
                 level: str | None, size_max: int, timeout_s: float, stamps: bool) -> None:
        self._within, self._rename, self._level = within, rename, level
        self._size_max, self._timeout_s, self._stamps = size_max, timeout_s, stamps
        self._lanes = list(lanes)
        self._topics: dict[tuple[str, Form], Topic[Any]] = {}
        self._publishers: dict[tuple[str, tuple[str, ...]], Publisher] = {}
        self._writings: dict[tuple[Any, ...], Writing] = {}
        self._last: dict[str, Writing] = {}  # of each order
        self._underway = Underway()
        self._doubts: collections.deque[Unit] = collections.deque()  # that are to be said again
        self._attachment = within._runtime.attachment
        self._losses = self._attachment.status.lost_count  # that were dealt with
        self._node_id = session.node_id
        self._stopping = Latch()
        self.count = self.bytes = self.skipped = self.resent = 0
        self.behind_s = 0.0  # how late the last message was

    def stop(self) -> None:
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

    @property
    def _session(self) -> Session:
        return self._attachment.session

    # --- opening

    def open(self, largest: Callable[[Lane], int]) -> None:
        """Open the writers of lanes whose samples have no keys, and the topics of all. largest(lane): bytes of its
        largest message. Raises TopicMismatch, ClickException."""
        for lane in self._lanes:
            for form in lane.forms:
                self._check_type(lane, form)
        for lane in self._lanes:
            for form in lane.forms:
                topic = self._topic(lane, form, largest)
                if not form.keys and topic._codec.key_of is None:
                    self._writing(lane, form, 0, NOTHING)

    def _check_type(self, lane: Lane, form: Form) -> None:
        """Raise TopicMismatch if the readers of the topic have another type by now."""
        from spindle.cli.typed import types

        name = self._rename(lane.topic)
        if form.type.kind == "":
            return
        for one in types(self._session, name, look_inside=False)[0]:
            why = inconsistency(one.announced, form.type, LENIENT) if one.endpoints else ""
            if why:
                raise TopicMismatch(f"topic {name!r} has another type by now: {one.name}, and the file has {form.name} "
                                    f"({why}). Play it onto a topic of another name: --rename {lane.topic}={name}_old")

    def _topic(self, lane: Lane, form: Form, largest: Callable[[Lane], int] = lambda _: 0) -> Topic[Any]:
        name = self._rename(lane.topic)
        topic = self._topics.get((name, form))
        if topic is None:
            order = self._rename(lane.order) if lane.order else ""
            known = next((one for one in self._session.topics() if one.spec.name == (order or name)), None)
            if known is not None and self._level not in (None, LEVELS[int(known.spec.level)]):
                raise TopicMismatch(f"topic {name!r} is {known.spec.level.name.lower()} in the group, not "
                                    f"{self._level}: leave --level out to play onto it as it is")
            try:
                topic = self._made(lane, form, name, order, 0, ()) if known is not None else None
                if topic is None or topic.spec is None:  # or one of another type, which nobody has open any more
                    size_max = self._size_max or lane.size_max or max(largest(lane), 1)
                    level = self._level or lane.level or "atomic"
                    topic = self._made(lane, form, name, order, size_max, LEVEL_QOS[level])
            except dds.DDSException as error:
                raise TopicMismatch(f"topic {name!r} can't be played onto: {error.msg}. Play onto one of another name "
                                    f"with --rename {lane.topic}=NEW") from error
            self._topics[name, form] = topic
        return topic

    def _made(self, lane: Lane, form: Form, name: str, order: str, size_max: int, policies: tuple[Any, ...]
              ) -> Topic[Any]:
        return dds.Topic(self._within, name, form.data_type, dds.Qos(*policies), keys=form.keys, order=order,
                         size_max=max(size_max - ROOM, 0) if lane.order else size_max)

    def _writing(self, lane: Lane, form: Form, writer: int, inline: InlineQos) -> Writing:
        key = (lane, form, writer, inline)
        found = self._writings.get(key)
        if found is None:
            topic = self._topic(lane, form)
            spec = topic.spec
            unordered = spec is not None and int(spec.level) == 0
            policies: list[Any] = [dds.Policy.WriterDataLifecycle(autodispose=False)]
            if not unordered:
                policies.append(dds.Policy.Reliability.Reliable(int(self._timeout_s * 1e9)))
            if inline.lifespan:
                policies.append(dds.Policy.Lifespan(inline.lifespan))
            if inline.strength:
                policies += [dds.Policy.Ownership.Exclusive, dds.Policy.OwnershipStrength(inline.strength)]
            found = self._writings[key] = Writing(
                dds.DataWriter(self._publisher(lane, inline), topic, qos=dds.Qos(*policies)), topic._codec)
        return found

    def _publisher(self, lane: Lane, inline: InlineQos) -> Any:
        """Those of one order group share one: it has one way into the order."""
        if not lane.order and not inline.partitions and not lane.has_sets:
            return self._within
        key = (lane.order or lane.topic, inline.partitions)
        if key not in self._publishers:
            policies: list[Any] = [dds.Policy.Partition(list(inline.partitions))] if inline.partitions else []
            access = dds.Policy.PresentationAccessScope
            if lane.order:
                policies.append(access.Group(coherent_access=True, ordered_access=True))
            elif lane.has_sets:
                policies.append(access.Topic(coherent_access=True, ordered_access=True))
            self._publishers[key] = dds.Publisher(self._within, qos=dds.Qos(*policies))
        return self._publishers[key]

    # --- playing

    def play(self, units: Iterable[Unit], speed: float, begin_ns: int, shown: Callable[[int], None]) -> bool:
        """Write everything; `begin_ns`: the log time that is now. speed 0: as fast as readers take it. shown(log time)
        is called now and then. False if there was nothing. Raises ClickException; NodeStopped where the node goes away
        and there is no other."""
        found = False
        begun = time.monotonic()
        looked = begun
        for unit in units:
            found = True
            if self.stopping:
                break
            at = unit[0].log_time
            if speed:
                due = begun + (at - begin_ns) / 1e9 / speed
                while (left := due - time.monotonic()) > 0:
                    shown(at - int(left * 1e9 * speed))
                    if self._stopping.wait(min(left, PERIOD_S)):
                        return found
                self.behind_s = time.monotonic() - due
            self._say(unit)
            if time.monotonic() - looked >= PERIOD_S:
                looked = time.monotonic()
                shown(at)
        return found

    def _say(self, unit: Unit) -> None:
        said = [one for one in unit if one.kind not in ENDS]
        attempts = itertools.count()
        if said:
            is_written = self._surely(lambda: self._write(said, again=next(attempts) > 0))
            self.count += samples_in(said) if is_written else 0
            self.bytes += sum(len(one.payload) for one in said if one.kind == SAMPLE) if is_written else 0
        for one in unit:
            if one.kind in ENDS:
                self._end(one)

    def _write(self, unit: Unit, again: bool = False) -> bool:
        """True unless it is left out. Raises DDSUnacknowledged if something is in doubt: then it has
        written nothing."""
        writings = [self._writing_of(one) for one in unit]
        first, lane = writings[0], unit[0].lane
        order = lane.order or lane.topic
        self._take_turn(order, first)
        self._last[order] = writings[-1]
        way = self._underway.before(first.handle)
        try:
            with first.writer.publisher.coherent() if len(unit) > 1 else contextlib.nullcontext():
                for one, writing in zip(unit, writings, strict=True):
                    writing.say(one, one.source_ns or None if self._stamps else None, again)
        except dds.DDSTimeout as error:
            self._check_node()
            raise click.ClickException(f"message {self.count + 1} was held back: {error.msg}") from None
        except dds.DDSSampleTooLarge as error:
            raise click.ClickException(f"message {self.count + 1}: {error.msg}; play onto a topic of another name "
                                       "with --rename, and a larger --size-max") from None
        except ValueError as error:
            if self._has_lost:
                raise dds.DDSUnacknowledged(f"the node of topic {order} has gone away", []) from error
            self.skipped += samples_in(unit)
            if self.skipped == samples_in(unit):
                what = f"a coherent set of {len(unit)} messages" if len(unit) > 1 else "a message"
                note(f"{what} of {lane.topic} is left out, it is none of its type: {error}")
            return False
        if int(first.writer._link.spec.level):
            self._underway.written(way, first.handle, unit)
        return True

    def _writing_of(self, one: Played) -> Writing:
        keyed = one.form.keys or self._topic(one.lane, one.form)._codec.key_of is not None
        return self._writing(one.lane, one.form, one.writer if keyed else 0, one.inline)

    # --- the next node

    def _surely(self, step: Callable[[], R]) -> R:
        """What step() returns, at this node or a later one: what is in doubt is said again before it. Raises
        NodeStopped."""
        while True:
            try:
                self._recover()
                return step()
            except dds.DDSUnacknowledged:
                self._notice()  # it has done nothing
            except dds.DDSNodeLost:
                raise self._stopped() from None

    @property
    def _has_lost(self) -> bool:
        """A node has gone, and we haven't turned to the next one."""
        return self._attachment.status.lost_count != self._losses or self._session.gone

    def _notice(self) -> None:
        """A writer may know of the end of its node before anybody else does."""
        for one in self._last.values():
            if one.inbox.is_gone and one.writer._way.error is None:
                self._attachment.lost(one.handle.session)

    def _recover(self) -> None:
        """Say again what is in doubt, if anything is. Raises as _surely()."""
        while self._has_lost or self._doubts:
            if self._has_lost:
                self._turn()
            try:
                while self._doubts:
                    self._write(self._doubts[0], again=True)
                    self._doubts.popleft()
            except dds.DDSUnacknowledged:
                self._notice()

    def _turn(self) -> None:
        """To the next node. Raises NodeStopped."""
        if self._session.gone:
            self._attachment.lost(self._session)
        if self._attachment.reattaches:
            note(f"node {self._node_id} has gone away; this goes on at the next node of the host")
        self._wait_for_node()
        self._losses = self._attachment.status.lost_count
        doubts = self._underway.take_doubts(self._session)
        for writing in self._writings.values():
            writing.forget_doubts()
        self._doubts.extendleft(reversed(doubts))  # of the last node; what was left of earlier ones comes behind
        self._node_id = self._session.node_id
        count = sum(map(samples_in, doubts))
        topics = ", ".join(sorted({self._rename(one.lane.topic) for unit in doubts for one in unit}))
        note(f"goes on at node {self._node_id}" + (
            f"; {count:,} messages of {topics} that may have been delivered are played again" if count else ""))
        self.resent += count

    def _wait_for_node(self) -> None:
        """Until the next node serves; NodeStopped if there is none within the time that a message may wait."""
        deadline = time.monotonic() + self._timeout_s
        while self._attachment.status.state is not dds.status.NodeState.ATTACHED:
            if time.monotonic() >= deadline or not self._attachment.hopeful or self.stopping:
                raise self._stopped()
            with self._attachment.changed:
                self._attachment.changed.wait(PERIOD_S)

    def _check_node(self) -> None:
        """NodeStopped if nothing is held back but for want of a node."""
        if self._attachment.status.state is not dds.status.NodeState.ATTACHED:
            raise self._stopped()

    def _stopped(self) -> NodeStopped:
        count = self._underway.count + sum(map(samples_in, self._doubts))
        none = f", and no other one was there within {self._timeout_s:g} s" if self._attachment.reattaches else ""
        return NodeStopped(f"node {self._node_id} has gone away{none}; {self.count:,} messages were played" + (
            f", of which {count:,} may not have been delivered" if count else ""))

    def _take_turn(self, order: str, writing: Writing) -> None:
        """Wait until what was written before in this order, by another writer, is in the node's hands. Raises
        DDSUnacknowledged if that goes away meanwhile."""
        before = self._last.get(order)
        self._last[order] = writing
        if before is None or before is writing or before.inbox is writing.inbox:
            return
        deadline = time.monotonic() + self._timeout_s
        inbox = before.inbox
        while inbox.consumed < inbox.committed:
            if self._has_lost or inbox.is_gone:
                raise dds.DDSUnacknowledged(f"the node of topic {order} has gone away", [])
            if time.monotonic() >= deadline:
                raise click.ClickException(f"message {self.count + 1} of {order} was held back for "
                                           f"{self._timeout_s:g} s: a reader that keeps all doesn't take")
            time.sleep(POLL_S)

    def _end(self, one: Played) -> None:
        """A writer of the file has ended, or a node with all of its own."""
        order = one.lane.order or one.lane.topic
        for key in list(self._writings):
            lane, _, writer, _ = key
            if not writer or (lane.order or lane.topic) != order:
                continue
            if node_of(writer) == node_of(one.writer) if one.kind == GONE else (lane is one.lane
                                                                                and writer == one.writer):
                self._surely(functools.partial(self._close, key, order, one.kind == CLOSED_DISPOSED))

    def _close(self, key: tuple[Any, ...], order: str, disposes: bool) -> None:
        """Once nothing of it is in doubt any more: a writer that has ended can't say it again."""
        ending = self._writings[key]
        self._take_turn(order, ending)
        ending.writer.wait_for_acks(int(self._timeout_s * 1e9))
        with contextlib.suppress(dds.DDSTimeout):
            ending.end(disposes)
        del self._writings[key]
        self._last.pop(order, None)

    def finish(self) -> bool:
        """True when all that was written has been delivered everywhere."""
        while True:
            if self._has_lost and not self._underway.count and not self._doubts:
                return True  # all of it was, before the node went away
            timeout = int(self._timeout_s * 1e9)
            delivered = [self._surely(functools.partial(one.writer.wait_for_acks, timeout))
                         for one in list(self._writings.values())]
            if not self._has_lost:
                return all(delivered)


def wanted(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a topic is to be played."""
    return not patterns or is_like(name, patterns)


__all__ = ["Player", "wanted"]
