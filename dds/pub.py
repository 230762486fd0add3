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

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from dds.codecs.loan import Loan
from dds.entity import Participant, check_listener
from dds.exceptions import DDSException, of_topic, unsupported
from dds.listener import Listener
from dds.messages.operations import DISPOSES, WRITES, end_tag, handle_of
from dds.messages.packets import ROOM
from dds.policy import policies
from dds.qos import DataWriterQos, Qos
from dds.status import (
    Unacknowledged,
)
from dds.topic import Topic
from dds.waiting import reaper
from dds.waiting.wake import Deadline
from dds.writers.outlet import through
from dds.writers.publisher import Publisher
from dds.writers.writer import WriterCore
from dds.writers.writing import (
    bind_closed_write,
    copied_loan,
    write_through,
)
from dds.writers.written import Written

if TYPE_CHECKING:
    from dds.builtin_types import DcpsEndpoint

T = TypeVar("T")


class DataWriter(WriterCore, Generic[T]):
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
        publisher = publisher_or_participant if isinstance(publisher_or_participant, Publisher) else Publisher(
            publisher_or_participant)
        self.data_type = topic.data_type
        self._shortcut = type(self).write is DataWriter.write  # unless a subclass has its own
        self._begin(publisher, topic, own, listener, given, slots)

    @property
    def _use_version_2(self) -> bool:
        """Whether it writes XCDR2; the name by which programs for cyclonedds-python look."""
        return getattr(self._codec, "version", 1) == 2

    def close(self) -> None:
        """Close the writer. What was written is still sent. Idempotent."""
        self._use(bind_closed_write(repr(self)))
        super().close()

    # --- writing

    _shortcut = False

    def write(self, sample: T | Any, timestamp: int | None = None) -> None:
        """Write one sample; `timestamp` is its source timestamp, UTC ns, None = now; 0 becomes 1.

        Raises DDSTimeout (nothing was written), DDSSampleTooLarge, TypeError for a sample of another type or a
        timestamp that is no int, DDSNodeLost; DDSException (BAD_PARAMETER) for a timestamp below 0 or beyond 64 bits
        with a sign, and with DestinationOrder by source for one 30 s or more in the future;
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
        at = self._stamp(timestamp)
        if kind == "numpy":
            try:
                samples = codec.rows(samples).reshape(-1)
            except Exception as error:
                raise of_topic(error, self._topic.name) from error
        elif self._runtime.attachment.hopeful and not isinstance(samples, (list, tuple)):
            samples = list(samples)  # the next node may have to go on where this one leaves off
        if self._told:
            return self._write_each(samples, timestamp)
        written = 0

        def write_rest(inbox: Any, left_s: float) -> None:
            nonlocal written
            rest: Any = samples[written:] if written else samples  # type: ignore[index]
            try:
                written += self._write_block(inbox, rest, at, left_s)
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

        For bytes, `data` is a writable memoryview of `size` bytes (None = size_max); for NumPy types a record. What is
        in it at first is anything, as of `numpy.empty`: often an earlier sample of this writer.
        Waits for room as write() does, and raises the same. DDSException for types that can't be built in place.
        """
        if not self._enabled:
            self._check_open()
        kind = self._codec.kind
        at = self._stamp(timestamp)
        if kind == "object":
            unsupported(f"a loan of {self._codec.type_name}", "only bytes and NumPy types can be built in place")
        if kind == "numpy":
            size = self._codec.size_max
        elif size is None:
            size = self._inbox.size_max - len(self._inline) - (0 if self._port is None else ROOM)
        if self._told and size is not None:
            self._check_open()
            return copied_loan(self._codec, size, at, self._write)
        link, timeout_s = self._link, self._timeout_s
        inbox, memory = through(
            link, lambda inbox, left_s: (inbox, inbox.claim(size, left_s)), Deadline.after(timeout_s))
        data = memory if kind == "bytes" else self._codec.view(memory)
        again = None
        if self._runtime.attachment.hopeful:
            def again(payload: bytes, timestamp: int, key: int) -> None:
                write_through(link, payload, timestamp, Deadline.after(timeout_s), 0, key)
        key_of = self._handle_of if self._written is not None and link.spec.effects else None
        return Loan(inbox, memory, data, at, again, key_of)

    def _handle_of(self, sample: Any) -> int:
        return self._keyed().key_and_handle(sample)[1]

    def wait_for_acks(self, timeout: int, *, persisted: bool = False) -> bool:
        """True once every subscribing node has delivered all that was written so far; `persisted`: has it on disk.

        False if that takes longer than `timeout` ns. Raises DDSNodeLost, or DDSUnacknowledged in a participant that
        reattaches, if the node goes away first.
        """
        self._check_open()
        return self._wait_for_acks(Deadline(timeout), persisted)

    def take_unacknowledged(self) -> list[Unacknowledged]:
        """The samples that their node had not acknowledged when it went away, so that none will; each is given once.

        Each was delivered to everybody or to nobody: write it again, if readers can bear it twice; or ask them.
        """
        if not self._enabled:
            self._check_open()
        self._look()
        return self._link.take_doubts()

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
        return self._keyed().add(sample, bytes(self._encoded_key(sample)))

    def lookup_instance(self, sample: T) -> int | None:
        """The handle of the sample's instance; None if the writer neither registered nor wrote it, or has unregistered
        it."""
        return self._keyed().find(sample)

    def dispose(self, sample: T, timestamp: int | None = None) -> None:
        """End the sample's instance: at every reader it isn't alive from here on in the order, until it is written
        again. Of `sample` only the key members matter. Raises as write()."""
        self._keyed()
        self._send(self._encoded_key(sample), timestamp, DISPOSES, self._handle_of(sample))
        self._ended(sample)

    def write_dispose(self, sample: T, timestamp: int | None = None) -> None:
        """write() and dispose() as one message."""
        written = self._keyed()
        data = self._encoded(sample)
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
        self._send(self._encoded_key(sample), timestamp, end_tag(policies.autodisposes(self._qos)),
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

    def _encoded(self, sample: Any) -> Any:
        try:
            return self._codec.encode(sample)
        except Exception as error:
            raise of_topic(error, self._topic.name) from error

    def _encoded_key(self, sample: Any) -> Any:
        """A payload that has the sample's key: whether its other members can be encoded doesn't matter, as in what is
        called key_sample."""
        codec = self._codec
        try:
            return codec.encode(sample)
        except Exception as error:
            if isinstance(error, ValueError) and codec.key_of is not None and codec.encode_key is not None:
                try:
                    return codec.encode_key(codec.key_of(sample))
                except Exception as wrong_key:
                    error = wrong_key
            raise of_topic(error, self._topic.name) from error

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

    def begin_coherent(self) -> None:
        """As Publisher.begin_coherent() of its publisher."""
        self.get_publisher().begin_coherent()

    def end_coherent(self) -> None:
        """As Publisher.end_coherent() of its publisher."""
        self.get_publisher().end_coherent()


__all__ = ["DataWriter", "Publisher"]
