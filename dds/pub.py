"""Publishers and writers.

How a write goes (`dds.writers.writing`): the sample is encoded (nothing to do for bytes), copied once into the writer's
inbox, a ring of slots that it shares with its node, and that is all; the node sends what has come in batches of its
own. `loan()` saves the copy. A full ring means that the group can't keep up, or that a reader which keeps all doesn't
take: then write() waits, up to Reliability.max_blocking_time.

Rules: samples of one writer are delivered in the order in which they were written. Several threads may write with one
writer, except while a loan is open. What was written when the writer is closed is still sent. What the writer's node
had not acknowledged when it died is reported, with the samples, and never sent again by itself (`dds.writers.link`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dds.codecs.loan import Loan
from dds.entity import Entity, Participant, check_listener
from dds.exceptions import DDSException, unsupported
from dds.internal import publication_handle
from dds.listener import Listener
from dds.matching.announcing import encode_qos
from dds.matching.matching import Matches
from dds.messages.announced import type_of
from dds.messages.inline_qos import of_writer
from dds.messages.operations import ANNOUNCES_QOS, DISPOSES, WRITES, end_tag, farewell_tag, handle_of
from dds.messages.packets import ROOM
from dds.policy import policies
from dds.qos import DataWriterQos, Qos
from dds.status import (
    DeadlineMissedStatus,
    Unacknowledged,
)
from dds.topic import Topic
from dds.waiting import reaper
from dds.waiting.wake import Deadline
from dds.writers import stamps
from dds.writers.carrier import Carrier, Port
from dds.writers.limits import WriterLimits
from dds.writers.link import WriterLink
from dds.writers.outlet import through
from dds.writers.publisher import Publisher
from dds.writers.statuses import WriterStatuses
from dds.writers.suspension import Source, Suspension
from dds.writers.vigil import Vigil, lease_of
from dds.writers.writing import (
    bind_closed_write,
    bind_disabled_write,
    bind_told_write,
    bind_write,
    copied_loan,
    write_through,
)
from dds.writers.written import Written
from spindle.group.topics import choose_inbox_slots

if TYPE_CHECKING:
    from dds.builtin_types import DcpsEndpoint
    from dds.matching.matching import Runtime
    from spindle.client import WriterHandle

T = TypeVar("T")


class DataWriter(WriterStatuses, Generic[T]):
    """Writes samples of one topic.

    publisher_or_participant  where it belongs; in a participant it gets a publisher of its own
    slots  samples that may wait for the node; 0 = ResourceLimits.max_samples, or the node's choice
    Raises TypeError for wrong arguments, DDSException for a Qos that can't be honoured or fits the topic badly.
    """

    _kind = "DataWriter"
    _has_factory = True
    _limited_qos = DataWriterQos

    def __init__(self, publisher_or_participant: Publisher | Participant, topic: Topic[T], qos: Qos | None = None,
                 listener: Listener | None = None, *, slots: int = 0) -> None:
        if not isinstance(publisher_or_participant, (Publisher, Participant)):
            raise TypeError("a DataWriter is made in a Publisher or DomainParticipant, "
                            f"not in {publisher_or_participant!r}")
        if not isinstance(topic, Topic):
            raise TypeError(f"topic must be a Topic, not {topic!r}")
        if topic.is_builtin:
            raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER, f"nobody writes to {topic!r}")
        own = policies.check("DataWriter", qos, DataWriterQos)
        check_listener(listener)
        given = isinstance(publisher_or_participant, Publisher)
        self._given = given
        self._suspension = Suspension()
        publisher = publisher_or_participant if isinstance(publisher_or_participant, Publisher) else Publisher(
            publisher_or_participant)
        self._topic = topic
        self.data_type = topic.data_type
        self._own = own
        self._wanted_slots = slots
        self._shortcut = type(self).write is DataWriter.write  # unless a subclass has its own
        self._enter(publisher, own, listener)
        try:
            topic._check_exists()
            if given:
                policies.check_group("Publisher", own, publisher._qos)
            if self._enabled:
                self._start()
            else:
                self._write = bind_disabled_write(repr(self))
                if self._shortcut:
                    self.write = self._write  # type: ignore[method-assign]
                self._qos = policies.effective(own, topic._own_qos, policies.of_group(publisher._qos))
        except BaseException:
            self._abandon()
            if not given:
                publisher.close()
            raise

    def _start(self) -> None:
        topic, given, publisher = self._topic, self._given, self.get_publisher()
        info, self._qos = topic._settle(self._own, policies.of_group(publisher._qos), is_writer=True)
        policies.check_scope(self._qos, topic.name, topic.order, {
            one._topic.order for one in publisher._living_children() if isinstance(one, DataWriter)
            and one is not self})
        self._codec = topic._codec_of(policies.offered_representation(self._qos))
        slots = self._wanted_slots or policies.samples_max(self._qos, self._codec.key_of is not None)
        self._suspension = publisher._suspension
        self._source = Source(self._ref, topic.name, slots or choose_inbox_slots(info.spec.size_max))
        with self._runtime.asking(f"opening a writer of topic {topic.name!r}"):
            self._written = None if self._codec.key_of is None else Written(self._codec.key_of)
            self._inline = of_writer(self._qos).encoded()
            topic._check_room(len(self._inline), info.spec)
            self._timeout_s = policies.blocking_time_s(self._qos)
            self._limits = WriterLimits.of(self._qos, self._written, self._timeout_s, topic.name)
            self._coherence = coherence = publisher._coherence
            coherence.offered = coherence.offered or (not given and policies.presentation(self._qos)[1])
            is_shared = given and bool(topic.order)
            farewell = self._farewell(self._qos)
            self._link = WriterLink(
                self, self._runtime, info.spec, self._ref, 1 if is_shared else slots,
                self._announcement(self._qos), not policies.best_effort(self._qos), self._codec,
                0 if is_shared else farewell, lease_of(self._qos))
            self._port: Port | None = None
            if topic.order or coherence.offered:
                self._port = self._open_port(publisher, is_shared, slots, farewell)
        self._matches = Matches(self, info.spec.name, True, self._qos, type_of(self._codec), topic._channel)
        self._closer = functools.partial(
            _close_writer, self._ref, self._link, self._runtime, self._matches, self._port, self._suspension)
        self._missed = DeadlineMissedStatus()
        self._vigil: Vigil | None = None
        if Vigil.is_needed(self._qos):
            self._vigil = self._new_vigil(self._qos)
        self._by_source = policies.by_source(self._qos)
        self._rebind()
        self._enabled = True  # it is complete, and peers may be told of it, and listeners of peers
        with self._runtime.asking(f"opening a writer of topic {topic.name!r}"):
            self._runtime.attachment.add(self._link, self._link.handle.session)
        self._runtime.add(self._matches)
        if self._vigil is not None:
            self._vigil.start()

    def _open_port(self, publisher: Publisher, is_shared: bool, slots: int, farewell: int) -> Port:
        """The way of what it writes, into packets. Raises what the session raises."""
        spec = self._link.spec
        if is_shared:
            carrier = publisher._carriers.get(spec.name)
            if carrier is None or not carrier.ports:
                carrier = Carrier.shared(publisher._coherence, self._runtime, spec, self._ref, slots)
                publisher._carriers[spec.name] = carrier
            carrier.check_room(self._topic._channel)
        else:
            carrier = Carrier(publisher._coherence)
            carrier.link = self._link
        return Port(carrier, self._link, self._source, self._topic._channel, farewell, self._timeout_s)

    def _present_inbox(self) -> Callable[[], Any]:
        way = self._way  # not the writer itself
        return lambda: way.handle.inbox

    def _put(self) -> Callable[[bytes, int, int | None, int], None]:
        """What sends a message with a tag, a source timestamp and the handle of its instance, and knows nothing of the
        writer itself."""
        link, timeout_s = self._link, self._timeout_s
        put: Callable[[bytes, int, int | None, int], None] = self._port.put if self._port is not None else (
            lambda data, tag, timestamp, key: write_through(
                link, data, timestamp, Deadline.after(timeout_s), tag, key))
        if self._port is not None or not self._suspension.is_active:
            return put  # a port holds by itself: whole sets
        return self._suspension.holding(self._source, link.spec.size_max, put)

    def _sayer(self) -> Callable[[bytes, int], None]:
        """What sends a message that isn't a sample, if there is room at once."""
        if self._port is not None:
            return self._port.put_aside
        link = self._link
        return lambda data, tag: link.handle.inbox.write(data, 0, 0.0, tag)

    @property
    def _handle(self) -> WriterHandle:
        return self._link.handle

    def _instance_handle(self) -> int:
        """As its samples have it at readers (sample_info.publication_handle). After a reattachment to another node it
        has another one."""
        self._check_open()
        handle = self._handle
        return publication_handle(handle.session.node_id, handle.writer_id, handle.relay)

    @property
    def _use_version_2(self) -> bool:
        """Whether it writes XCDR2; the name by which programs for cyclonedds-python look."""
        return getattr(self._codec, "version", 1) == 2

    @property
    def _way(self) -> WriterLink:
        """What its messages go by: its own link, or that of the carrier which it shares."""
        return self._link if self._port is None else self._port.carrier.link

    @property
    def _inbox(self) -> Any:
        return self._way.handle.inbox

    def _rebind(self) -> None:
        """Make write() of this instance a function that has all it needs of the present inbox at hand: no detours."""
        if self._open:
            self._told = bool(self._inline) or self._port is not None or self._suspension.is_active or (
                self._limits is not None or (self._vigil is not None and self._vigil.hears_writes))
            if self._told:
                self._write = bind_told_write(
                    self._codec, self._put(), self._written, self._inline, self._vigil, self._limits,
                    self._present_inbox())
            else:
                self._write = bind_write(self._codec, self._link, self._timeout_s, self._written)
            if self._by_source:
                self._write = stamps.checked(self._write)
            if self._shortcut:
                self.write = self._write  # type: ignore[method-assign]

    # --- Qos

    def _announcement(self, qos: Qos) -> bytes:
        """What everybody is told of a writer that goes by this."""
        group = self._parent._qos if self._parent is not None else Qos()
        return encode_qos(policies.announced(qos, self._topic._own_qos, group), self._codec.type_name,
                          self._revision, self._topic._channel, self._codec)

    def _farewell(self, qos: Qos) -> int:
        """Tag of the message that follows the last one of a writer that goes by this; 0 = none."""
        keyed = self._written is not None
        if keyed or lease_of(qos) is not None or policies.is_exclusive(qos):
            return farewell_tag(keyed and policies.autodisposes(qos))
        # What it had begun doesn't go on.
        return farewell_tag(False) if self._coherence.offered or (self._given and self._topic.order) else 0

    def _new_vigil(self, qos: Qos) -> Vigil:
        return Vigil(self, self._runtime, self._link, self._written, qos, self._sayer(),
                     self._port is not None and self._port.is_shared)

    def _change_qos(self, following: Qos, said: Qos) -> None:
        if self._given:
            policies.check_group("Publisher", said, self._parent._qos if self._parent else Qos(), self._qos)
        self._own = self._own + said
        self._apply_qos(following)

    def _apply_qos(self, following: Qos) -> None:
        """Go by it, and say so. DDSException; then nothing has changed."""
        if not self._enabled:
            self._qos = following
            return
        inline = of_writer(following).encoded()
        self._topic._check_room(len(inline), self._link.spec)
        self._revision += 1
        farewell = self._farewell(following)
        is_shared = self._port is not None and self._port.is_shared
        self._link.change(self._announcement(following), 0 if is_shared else farewell)
        self._qos, self._inline = following, inline
        if self._port is not None:
            self._port.change(farewell)
        if self._vigil is not None:
            self._vigil.change(following)
        elif Vigil.is_needed(following):
            self._vigil = self._new_vigil(following)
            self._vigil.start()
        self._rebind()
        self._runtime.reconsider(self._matches, following)

    def _topic_changed(self, topic: Entity) -> None:
        if topic is self._topic:
            self._apply_qos(self._qos)

    def close(self) -> None:
        """Close the writer. What was written is still sent. Idempotent."""
        self._write = bind_closed_write(repr(self))
        if self._shortcut:
            self.write = self._write  # type: ignore[method-assign]
        super().close()

    # --- writing

    _shortcut = False

    def write(self, sample: T | Any, timestamp: int | None = None) -> None:
        """Write one sample; `timestamp` is its source timestamp, UTC ns, None = now.

        Raises DDSTimeout (nothing was written), DDSSampleTooLarge, TypeError for a sample of another type, DDSNodeLost;
        with DestinationOrder by source DDSException (BAD_PARAMETER) for a timestamp 30 s or more in the future;
        in a participant that reattaches DDSUnacknowledged, once after each loss that left something in doubt.
        """
        self._write(sample, timestamp)

    def write_many(self, samples: Iterable[T] | Any, timestamp: int | None = None) -> int:
        """Write many samples with few wake-ups of the node; for NumPy types an array, one sample per record.

        Returns how many. Raises as write(); the exception's `written` says how many samples went before it.
        """
        if not self._enabled:
            self._check_open()
        codec, kind, link = self._codec, self._codec.kind, self._link
        self._check_stamp(timestamp)
        if kind == "numpy":
            samples = codec.rows(samples).reshape(-1)  # type: ignore[attr-defined]
        elif self._runtime.attachment.hopeful and not isinstance(samples, (list, tuple)):
            samples = list(samples)  # the next node may have to go on where this one leaves off
        if self._told:
            return self._write_each(samples, timestamp)
        written = 0

        def write_rest(inbox: Any, left_s: float) -> None:
            nonlocal written
            rest: Any = samples[written:] if written else samples  # type: ignore[index]
            try:
                written += self._write_block(inbox, rest, timestamp or 0, left_s)
            except Exception as error:
                written += getattr(error, "written", 0)
                raise

        try:
            through(link, write_rest, Deadline.after(self._timeout_s))
        except Exception as error:
            error.written = written  # type: ignore[attr-defined]
            raise
        if kind == "numpy" and self._written is not None:
            self._written.add_rows(samples, codec)
        return written

    def _write_block(self, inbox: Any, samples: Any, timestamp: int, timeout_s: float) -> int:
        codec, kind, written = self._codec, self._codec.kind, self._written
        if kind == "numpy":
            keys = written.handles_of_rows(samples, codec) if written and self._link.spec.effects else None
            return int(inbox.write_array(samples.view("u1"), codec.size_max, timestamp, timeout_s, keys))
        if kind == "bytes":
            return int(inbox.write_many(samples, timestamp, timeout_s))
        keyed = written is not None
        encode = self._with_handle if keyed else codec.encode
        return int(inbox.write_many(map(encode, samples), timestamp, timeout_s, keyed))

    def _write_each(self, samples: Iterable[Any], timestamp: int | None) -> int:
        written = 0
        try:
            for sample in samples:
                self._write(sample, timestamp)
                written += 1
        except Exception as error:
            error.written = written  # type: ignore[attr-defined]
            raise
        return written

    def _with_handle(self, sample: Any) -> tuple[Any, int]:
        """The sample as bytes, and the handle of its instance."""
        assert self._written is not None
        data = self._codec.encode(sample)
        return data, self._written.add(sample, data)

    def loan(self, size: int | None = None, timestamp: int | None = None) -> Loan:
        """Memory for the next sample, in place: `with writer.loan() as data: ...` fills it and sends it.

        For bytes, `data` is a writable memoryview of `size` bytes (None = size_max); for NumPy types a record.
        Waits for room as write() does, and raises the same. DDSException for types that can't be built in place.
        """
        if not self._enabled:
            self._check_open()
        kind = self._codec.kind
        self._check_stamp(timestamp)
        if kind == "object":
            unsupported(f"a loan of {self._codec.type_name}", "only bytes and NumPy types can be built in place")
        if kind == "numpy":
            size = self._codec.size_max
        elif size is None:
            size = self._inbox.size_max - len(self._inline) - (0 if self._port is None else ROOM)
        if self._told and size is not None:
            self._check_open()
            return copied_loan(self._codec, size, timestamp or 0, self._write)
        link, timeout_s = self._link, self._timeout_s
        inbox, memory = through(
            link, lambda inbox, left_s: (inbox, inbox.claim(size, left_s)), Deadline.after(timeout_s))
        data = memory if kind == "bytes" else self._codec.view(memory)  # type: ignore[attr-defined]
        again = None
        if self._runtime.attachment.hopeful:
            def again(payload: bytes, timestamp: int, key: int) -> None:
                write_through(link, payload, timestamp, Deadline.after(timeout_s), 0, key)
        key_of = self._handle_of if self._written is not None and link.spec.effects else None
        return Loan(inbox, memory, data, timestamp or 0, again, key_of)

    def _handle_of(self, sample: Any) -> int:
        return self._keyed().key_and_handle(sample)[1]

    def wait_for_acks(self, timeout: int, *, persisted: bool = False) -> bool:
        """True once every subscribing node has delivered all that was written so far; `persisted`: has it on disk.

        False if that takes longer than `timeout` ns. Raises DDSNodeLost, or DDSUnacknowledged in a participant that
        reattaches, if the node goes away first.
        """
        self._check_open()
        return self._wait_for_acks(Deadline(timeout), persisted)

    def _check_doubts(self) -> None:
        self._look()
        self._link.check()

    def _wait_for_acks(self, deadline: Deadline, persisted: bool) -> bool:
        if not self._suspension.wait_until_sent(self._ref, deadline):
            return False
        if self._port is not None:
            if self._port.carrier.coherence.is_open:
                raise DDSException(DDSException.DDS_RETCODE_PRECONDITION_NOT_MET,
                                   "a coherent set is open, of which nothing is sent until it ends")
            self._link.check()
        return self._way.wait_acknowledged(deadline, persisted)

    def take_unacknowledged(self) -> list[Unacknowledged]:
        """The samples that their node had not acknowledged when it went away, so that none will; each is given once.

        Each was delivered to everybody or to nobody: write it again, if readers can bear it twice; or ask them.
        """
        if not self._enabled:
            self._check_open()
        self._look()
        return self._link.take_doubts()

    def _look(self) -> None:
        if self._port is not None:
            self._port.carrier.look()

    # --- relations

    @property
    def topic(self) -> Topic[T]:
        return self._topic

    def get_publisher(self) -> Publisher:
        self._check_exists()
        assert isinstance(self._parent, Publisher)
        return self._parent

    @property
    def publisher(self) -> Publisher:
        return self.get_publisher()

    def get_matched_subscriptions(self) -> list[int]:
        """Handles of the readers that this writer writes to, in the whole group."""
        self._check_open()
        reaper.flush()
        self._runtime.refresh(self._matches.topic)
        return [one.handle for one in list(self._matches.matched.values())]

    matched_sub = property(get_matched_subscriptions)

    def get_matched_subscription_data(self, handle: int) -> DcpsEndpoint | None:
        """What is known of a matched reader; None if there is none with this handle."""
        from dds.builtin_types import with_handle

        self._check_open()
        return with_handle(self._matches.matched.values(), handle)

    # --- liveliness

    def assert_liveliness(self) -> None:
        """Say that the writer lives, though it has nothing to write: for Liveliness.ManualByTopic and
        ManualByParticipant. DDS 1.4, 2.2.2.4.2.22."""
        self._check_open()
        if self._vigil is not None:
            self._vigil.assert_liveliness()

    # --- instances, of types with a key: DDSException (ILLEGAL_OPERATION) for others

    def register_instance(self, sample: T) -> int:
        """The handle of the sample's instance, which the writer remembers from now on. write() does that, too; what is
        written in place by a loan is not remembered."""
        if not self._enabled:
            self._check_open()
        if self._limits is not None:
            self._limits.check_known(sample)
        return self._keyed().add(sample, bytes(self._codec.encode(sample)))

    def lookup_instance(self, sample: T) -> int | None:
        """The handle of the sample's instance; None if the writer neither registered nor wrote it, or has unregistered
        it."""
        return self._keyed().find(sample)

    def dispose(self, sample: T, timestamp: int | None = None) -> None:
        """End the sample's instance: at every reader it isn't alive from here on in the order, until it is written
        again. Of `sample` only the key members matter. Raises as write()."""
        self._keyed()
        self._send(self._codec.encode(sample), timestamp, DISPOSES, self._handle_of(sample))
        self._ended(sample)

    def write_dispose(self, sample: T, timestamp: int | None = None) -> None:
        """write() and dispose() as one message."""
        written = self._keyed()
        data = self._codec.encode(sample)
        if self._limits is not None:
            self._limits.admit(sample, self._inbox)
        self._send(data, timestamp, WRITES | DISPOSES, self._handle_of(sample))
        handle = written.add(sample, bytes(data))
        if self._limits is not None:
            self._limits.written(handle, self._inbox)
        self._ended(sample)

    def unregister_instance(self, sample: T, timestamp: int | None = None) -> None:
        """This writer has no more to say about the sample's instance. With the last of its writers the instance isn't
        alive any more; with WriterDataLifecycle(autodispose=True), the default, it is disposed at once."""
        self._keyed()
        self._send(self._codec.encode(sample), timestamp, end_tag(policies.autodisposes(self._qos)),
                   self._handle_of(sample))
        self._ended(sample)
        self._forget(sample)

    def dispose_instance_handle(self, handle: int, timestamp: int | None = None) -> None:
        """As dispose(). DDSException (BAD_PARAMETER) for a handle that this writer doesn't remember."""
        self._send(self._payload_of(handle), timestamp, DISPOSES, handle)
        if self._vigil is not None:
            self._vigil.ended(handle)

    def unregister_instance_handle(self, handle: int, timestamp: int | None = None) -> None:
        """As unregister_instance(). DDSException (BAD_PARAMETER) for a handle that this writer doesn't remember."""
        payload = self._payload_of(handle)
        self._send(payload, timestamp, end_tag(policies.autodisposes(self._qos)), handle)
        self._ended(sample := self._codec.decode(payload))
        self._forget(sample)

    def _ended(self, sample: Any) -> None:
        """This writer need not write the sample's instance in time any more."""
        if self._vigil is not None:
            self._vigil.ended(handle_of(self._keyed().key_of(sample)))

    def _forget(self, sample: Any) -> None:
        written = self._keyed()
        handle = written.find(sample)
        if self._limits is not None and handle is not None:
            self._limits.ended(handle)
        written.discard(sample)

    def _keyed(self) -> Written:
        self._check_open()
        if self._written is None:
            raise DDSException(DDSException.DDS_RETCODE_ILLEGAL_OPERATION,
                               f"{self._codec.type_name} has no key, so it has no instances that could end")
        return self._written

    def _payload_of(self, handle: int) -> bytes:
        payload = self._keyed().payload(handle)
        if payload is None:
            raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER,
                               f"{self!r} has no instance {handle!r}: handles are those of register_instance()")
        return payload

    def _check_stamp(self, timestamp: int | None) -> None:
        if self._by_source:
            stamps.check(timestamp)

    def _send(self, data: Any, timestamp: int | None, tag: int, key: int) -> None:
        self._check_stamp(timestamp)
        if self._inline:
            data, tag = bytes(data) + self._inline, tag | ANNOUNCES_QOS
        self._put()(bytes(data), tag, timestamp, key)

    def begin_coherent(self) -> None:
        """As Publisher.begin_coherent() of its publisher."""
        self.get_publisher().begin_coherent()

    def end_coherent(self) -> None:
        """As Publisher.end_coherent() of its publisher."""
        self.get_publisher().end_coherent()


def _close_writer(ref: int, link: WriterLink, runtime: Runtime, matches: Matches, port: Port | None,
                  suspension: Suspension) -> None:
    def close() -> None:
        link.close()
        runtime.remove(matches, link.guid)

    suspension.discard(ref)
    if port is None:
        close()
    else:
        port.close(close)


__all__ = ["DataWriter", "Publisher"]
