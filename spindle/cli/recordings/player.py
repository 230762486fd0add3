"""Writes the messages of files to topics again: in their order, at their times, as they are.

How the order is kept: of each order (a topic, or an order group) the next message is handed over behind the last. Where
the next one is another writer's, the player waits until the node has taken the last writer's messages, for a node takes
from its writers in turn. Samples of types without keys are sent as the bytes that the file has; those with keys are
decoded, because their writers must know their instances.

Rules: a writer of the file whose samples have keys has a writer of its own, so that instances end as they did. All
others of a topic share one. Writers are opened before the first message.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

import click

import dds
from dds.matching.consistency import LENIENT, inconsistency
from dds.messages.contents import CLOSED, CLOSED_DISPOSED, DISPOSED, GONE, SAMPLE, node_of
from dds.messages.inline_qos import NOTHING, InlineQos
from dds.messages.operations import WRITES
from dds.messages.order_groups import ROOM
from spindle.cli.common import note
from spindle.cli.ports import LEVELS
from spindle.cli.recordings.lanes import Form, Lane, Played
from spindle.errors import TopicMismatch

if TYPE_CHECKING:
    from dds import DataWriter, DomainParticipant, Publisher, Topic
    from spindle.client import Session

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

    def say(self, one: Played, source_ns: int | None) -> None:
        if not self.keyed:
            if one.kind == SAMPLE:
                self.writer._send(one.payload, source_ns, WRITES if self.writer._inline else 0, 0)
            return
        sample = self.codec.decode(one.payload)
        key = self.codec.key_of(sample)
        if one.kind == SAMPLE:
            self.writer.write(sample, source_ns)
            self.live[key] = sample
        elif key in self.live:  # else its beginning is not in what is played
            self.live.pop(key)
            if one.kind == DISPOSED:
                self.writer.dispose(sample, source_ns)
                self.live[key] = sample  # until its writer unregisters it
            else:
                self.writer.unregister_instance(sample, source_ns)

    def end(self, disposes: bool) -> None:
        if disposes:
            for sample in self.live.values():
                self.writer.dispose(sample)
        self.writer.close()

    @property
    def inbox(self) -> Any:
        return self.writer._inbox


class Player:
    """See the module. A context manager.

    timeout_s   how long slow readers may hold a message back
    stamps      the samples have their source timestamps again, instead of the present time
    rename      the topic that a lane is played onto
    stop()      ends play() soon; may be called from a signal handler
    """

    def __init__(self, session: Session, within: DomainParticipant, lanes: Iterable[Lane], rename: Callable[[str], str],
                 level: str | None, size_max: int, timeout_s: float, stamps: bool) -> None:
        self._session, self._within, self._rename, self._level = session, within, rename, level
        self._size_max, self._timeout_s, self._stamps = size_max, timeout_s, stamps
        self._lanes = list(lanes)
        self._topics: dict[tuple[str, Form], Topic[Any]] = {}
        self._publishers: dict[tuple[str, tuple[str, ...]], Publisher] = {}
        self._writings: dict[tuple[Any, ...], Writing] = {}
        self._last: dict[str, Writing] = {}  # of each order
        self._stopping = threading.Event()
        self.count = self.bytes = self.skipped = 0
        self.behind_s = 0.0  # how late the last message was

    def stop(self) -> None:
        self._stopping.set()

    @property
    def stopping(self) -> bool:
        return self._stopping.is_set()

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
            size_max, policies = 0, ()
            if known is None:
                size_max = self._size_max or lane.size_max or max(largest(lane), 1)
                policies = LEVEL_QOS[self._level or lane.level or "atomic"]
            elif self._level is not None and self._level != LEVELS[int(known.spec.level)]:
                raise TopicMismatch(f"topic {name!r} is {known.spec.level.name.lower()} in the group, not "
                                    f"{self._level}: leave --level out to play onto it as it is")
            try:
                topic = dds.Topic(self._within, name, form.data_type, dds.Qos(*policies), keys=form.keys, order=order,
                                  size_max=max(size_max - ROOM, 0) if lane.order else size_max)
            except dds.DDSException as error:
                raise TopicMismatch(f"topic {name!r} can't be played onto: {error.msg}. Play onto one of another name "
                                    f"with --rename {lane.topic}=NEW") from error
            self._topics[name, form] = topic
        return topic

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
        if not lane.order and not inline.partitions:
            return self._within
        key = (lane.order or lane.topic, inline.partitions)
        if key not in self._publishers:
            qos = dds.Qos(dds.Policy.Partition(list(inline.partitions))) if inline.partitions else None
            self._publishers[key] = dds.Publisher(self._within, qos=qos)
        return self._publishers[key]

    # --- playing

    def play(self, messages: Iterable[Played], speed: float, begin_ns: int, shown: Callable[[int], None]) -> None:
        """Write everything; `begin_ns`: the log time that is now. speed 0: as fast as readers take it. shown(log time)
        is called now and then. Raises ClickException."""
        begun = time.monotonic()
        looked = begun
        for one in messages:
            if self.stopping:
                return
            if speed:
                due = begun + (one.log_time - begin_ns) / 1e9 / speed
                while (left := due - time.monotonic()) > 0:
                    shown(one.log_time - int(left * 1e9 * speed))
                    if self._stopping.wait(min(left, PERIOD_S)):
                        return
                self.behind_s = time.monotonic() - due
            self._say(one)
            if time.monotonic() - looked >= PERIOD_S:
                looked = time.monotonic()
                shown(one.log_time)

    def _say(self, one: Played) -> None:
        if one.kind in (CLOSED, CLOSED_DISPOSED, GONE):
            self._end(one)
            return
        keyed = one.form.keys or self._topic(one.lane, one.form)._codec.key_of is not None
        writing = self._writing(one.lane, one.form, one.writer if keyed else 0, one.inline)
        order = one.lane.order or one.lane.topic
        self._take_turn(order, writing)
        try:
            writing.say(one, one.source_ns or None if self._stamps else None)
        except dds.DDSTimeout as error:
            raise click.ClickException(f"message {self.count + 1} was held back: {error.msg}") from None
        except dds.DDSSampleTooLarge as error:
            raise click.ClickException(f"message {self.count + 1}: {error.msg}; play onto a topic of another name "
                                       "with --rename, and a larger --size-max") from None
        except ValueError as error:
            self.skipped += 1
            if self.skipped == 1:
                note(f"a message of {one.lane.topic} is left out, it is none of its type: {error}")
            return
        if one.kind == SAMPLE:
            self.count += 1
            self.bytes += len(one.payload)

    def _take_turn(self, order: str, writing: Writing) -> None:
        """Wait until what was written before in this order, by another writer, is in the node's hands."""
        before = self._last.get(order)
        self._last[order] = writing
        if before is None or before is writing or before.inbox is writing.inbox:
            return
        deadline = time.monotonic() + self._timeout_s
        inbox = before.inbox
        while inbox.consumed < inbox.committed:
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
                ended = self._writings.pop(key)
                self._take_turn(order, ended)
                with contextlib.suppress(dds.DDSTimeout):
                    ended.end(one.kind == CLOSED_DISPOSED)
                self._last.pop(order, None)

    def finish(self) -> bool:
        """True when all that was written has been delivered everywhere."""
        return all(one.writer.wait_for_acks(int(self._timeout_s * 1e9)) for one in self._writings.values())


def wanted(name: str, patterns: tuple[str, ...]) -> bool:
    """Whether a topic is to be played."""
    return not patterns or any(fnmatchcase(name, like) for like in patterns)


__all__ = ["Player", "wanted"]
