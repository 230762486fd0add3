"""ResourceLimits where instances count, at readers: what is refused for want of room. DDS 1.4, 2.2.3.19.

Why apart: `max_samples` alone is a matter of counting, which the fast ways of readers do. Here each sample is looked at
for its instance.

Rules: a reader that has no room for a sample leaves it where it is, and all that comes behind it: it was rejected, not
lost, and comes when the program has taken something. So that there always is something to take, a reader that knows
`max_instances` forgets the one that it has had nothing of for longest, in favour of a new one; only if something is
kept of each, the new one is rejected.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from dds.codecs.types import Codec
from dds.internal import handle_of_writer
from dds.messages.inline_qos import NOTHING, split
from dds.messages.operations import ANNOUNCES_QOS, WRITES, handle_of, is_packet
from dds.messages.packets import Message, Sets, is_of_set, members, opened
from dds.policy.policies import at_most
from dds.qos import Policy, Qos
from dds.status import (
    REJECTED_BY_INSTANCES_LIMIT,
    REJECTED_BY_SAMPLES_LIMIT,
    REJECTED_BY_SAMPLES_PER_INSTANCE_LIMIT,
)
from spindle.errors import give_way

if TYPE_CHECKING:
    from dds.filters.content import Content
    from dds.readers.instances import Instance, Instances
    from dds.readers.standing import Standing


class Admission(Protocol):
    """What decides whether a sample is for the reader: `dds.readers.intake.Intake`."""

    codec: Codec
    instances: Instances | None
    standing: Standing
    content: Content | None
    blocked: set[int]
    ignored: Callable[[int], bool] | None
    sets: Sets

    def __len__(self) -> int: ...

    def displace(self) -> bool:
        """Forget an instance in favour of another one; False if none can be."""


class _Head:
    """The message that comes next. It may have to wait for room, and be asked for again and again: it is unpacked and
    decoded once, and the intake takes its sample from here.

    payload    of its sample
    is_sample  it is one of the reader's topic, for itself, and not the end of anything
    sample     None = not decoded yet
    writer     its publication handle
    source_ns  its source timestamp
    """

    __slots__ = ("index", "inline", "is_sample", "payload", "sample", "source_ns", "writer")

    def __init__(self, index: int, payload: bytes, live: Message, sets: Sets) -> None:
        """Raises ValueError for nonsense."""
        self.index, self.sample, self.inline = index, None, NOTHING
        self.writer, self.source_ns = handle_of_writer(live), live.source_timestamp
        tag, is_own = live.tag, not sets.channel
        body = opened(tag, payload) if is_packet(tag) else b""
        if body and not is_of_set(body):  # in order groups, and where nodes keep the last samples, each is in a packet
            for channel, mark, one in members(body, self.writer):
                payload, tag, is_own = one.payload, one.tag, sets.is_own(channel, mark)
                self.writer, self.source_ns = one.handle, one.source_timestamp
        self.is_sample = is_own and tag in (0, WRITES | ANNOUNCES_QOS)
        if self.is_sample and tag:
            payload, self.inline = split(payload)
        self.payload = payload

    def decoded(self, codec: Codec) -> Any:
        """Raises what decoding raises."""
        if self.sample is None:
            self.sample = codec.decode_lasting(self.payload)
        return self.sample


class ReaderLimits:
    """Of a reader of a type with a key, that keeps the last `depth` samples of each instance (0 = all)."""

    def __init__(self, samples: int, instances: int, per_instance: int, depth: int) -> None:
        self._samples, self._instances = at_most(samples), at_most(instances)
        self._per_instance = at_most(per_instance)
        self._depth = depth
        self._head: _Head | None = None  # what is known of the message that was asked for last
        self._refused = -1  # index of the last that had no room
        self.rejected = 0  # samples that had none
        self.reason, self.instance = REJECTED_BY_SAMPLES_LIMIT, 0  # of the last

    @classmethod
    def of(cls, qos: Qos, depth: int) -> ReaderLimits | None:
        """None if counting samples is enough."""
        limits = qos[Policy.ResourceLimits]
        if limits is None or ((limits.max_instances, limits.max_samples_per_instance) == (-1, -1) and (
                not depth or limits.max_samples == -1)):
            return None
        return cls(limits.max_samples, limits.max_instances, limits.max_samples_per_instance, depth)

    def refuses(self, intake: Admission, index: int, payload: bytes, live: Message) -> bool:
        """True if there is no room for the message with this index. A coherent set is let in whole."""
        instances = intake.instances
        if live is None or instances is None:
            return False
        try:
            if self._head is None or self._head.index != index:
                self._head = _Head(index, payload, live, intake.sets)
            head = self._head
            if not head.is_sample or not intake.standing.reaches(head.inline.partitions) or (
                    head.writer in intake.blocked) or (
                    intake.ignored is not None and intake.ignored(head.writer)):
                return False
            sample = head.decoded(intake.codec)
            if intake.content is not None and not intake.content.of_sample(sample):
                return False
            key = instances.key_of(sample)
        except Exception as error:
            give_way(error)
            return False  # what is wrong with it is told when it is let in
        found = instances.find(key)
        if found is not None and not intake.standing.would_count(found, head.writer, head.inline, head.source_ns):
            return False
        reason = self._obstacle(found, intake)
        if reason and self._refused != index:
            self._refused, self.reason = index, reason
            self.instance = 0 if reason == REJECTED_BY_INSTANCES_LIMIT else handle_of(key)
            self.rejected += 1
        return bool(reason)

    def sample_of(self, payload: bytes) -> Any:
        """The sample of the message that was asked for last, once, if this is its payload; None if it isn't."""
        head, self._head = self._head, None
        return None if head is None or head.payload != payload else head.sample

    def _obstacle(self, found: Instance | None, intake: Admission) -> int:
        """Why there is no room for a sample of an instance (None: of a new one); a reason as in SampleRejectedStatus,
        0 if there is room."""
        assert intake.instances is not None
        held, kept = 0 if found is None else found.kept - (found.ending is not None), len(intake)
        if found is None and len(intake.instances) >= self._instances and not intake.displace():
            return REJECTED_BY_INSTANCES_LIMIT
        if self._depth:
            # What replaces another one needs no room.
            return REJECTED_BY_SAMPLES_LIMIT if held < self._depth and kept >= self._samples else 0
        return REJECTED_BY_SAMPLES_PER_INSTANCE_LIMIT if held >= self._per_instance else 0


__all__ = ["ReaderLimits"]
