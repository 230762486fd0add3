"""ResourceLimits where instances count, at readers: what is refused for want of room. DDS 1.4, 2.2.3.19.

Why apart: `max_samples` alone is a matter of counting, which the fast ways of readers do. Here each sample is looked at
for its instance.

Rules: a reader that has no room for a sample leaves it where it is, and all that comes behind it: it was rejected, not
lost, and comes when the program has taken something. So that there always is something to take, a reader that knows
`max_instances` forgets the one that it has had nothing of for longest, in favour of a new one; only if something is
kept of each, the new one is rejected.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from dds.internal import handle_of_writer
from dds.messages.inline_qos import NOTHING, split
from dds.messages.operations import ANNOUNCES_QOS, PACKET, WRITES, handle_of
from dds.messages.packets import is_of_set, members
from dds.policy.policies import at_most
from dds.qos import Policy, Qos
from dds.status import (
    REJECTED_BY_INSTANCES_LIMIT,
    REJECTED_BY_SAMPLES_LIMIT,
    REJECTED_BY_SAMPLES_PER_INSTANCE_LIMIT,
)

if TYPE_CHECKING:
    from dds.filters.content import Content
    from dds.readers.instances import Instance, Instances
    from dds.readers.standing import Standing


class Admission(Protocol):
    """What decides whether a sample is for the reader: `dds.readers.intake.Intake`."""

    codec: Any
    instances: Instances | None
    standing: Standing
    content: Content | None
    blocked: set[int]

    def __len__(self) -> int: ...


class ReaderLimits:
    """Of a reader of a type with a key, that keeps the last `depth` samples of each instance (0 = all)."""

    def __init__(self, samples: int, instances: int, per_instance: int, depth: int) -> None:
        self._samples, self._instances = at_most(samples), at_most(instances)
        self._per_instance = at_most(per_instance)
        self._depth = depth
        self._refused = -1  # index in the log of the last that had no room
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

    def refuses(self, intake: Admission, index: int, payload: bytes, live: Any) -> bool:
        """True if there is no room for the message with this index in the log. A coherent set is let in whole."""
        instances = intake.instances
        if live is None or instances is None:
            return False
        tag = live.tag
        try:
            if tag == PACKET and not is_of_set(payload):  # where nodes keep the last samples, each is in a packet
                for _, _, one in members(payload, handle_of_writer(live)):
                    payload, tag = one.payload, one.tag
            if tag not in (0, WRITES | ANNOUNCES_QOS):
                return False
            payload, inline = split(payload) if tag else (payload, NOTHING)
            sample = intake.codec.decode(payload)
            if not intake.standing.reaches(inline.partitions) or handle_of_writer(live) in intake.blocked or (
                    intake.content is not None and not intake.content.of_sample(sample)):
                return False
            key = instances.key_of(sample)
        except Exception:
            return False  # what is wrong with it is told when it is let in
        reason = self._obstacle(instances.find(key), instances, len(intake))
        if reason and self._refused != index:
            self._refused, self.reason = index, reason
            self.instance = 0 if reason == REJECTED_BY_INSTANCES_LIMIT else handle_of(key)
            self.rejected += 1
        return bool(reason)

    def _obstacle(self, found: Instance | None, instances: Instances, kept: int) -> int:
        """Why there is no room for a sample of an instance (None: of a new one), while the reader keeps so many; a
        reason as in SampleRejectedStatus, 0 if there is room."""
        held = 0 if found is None else found.kept - (found.ending is not None)
        if found is None and len(instances) >= self._instances and not instances.displace():
            return REJECTED_BY_INSTANCES_LIMIT
        if self._depth:
            # What replaces another one needs no room.
            return REJECTED_BY_SAMPLES_LIMIT if held < self._depth and kept >= self._samples else 0
        return REJECTED_BY_SAMPLES_PER_INSTANCE_LIMIT if held >= self._per_instance else 0


__all__ = ["ReaderLimits"]
