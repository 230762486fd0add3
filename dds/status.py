"""Statuses: the constants of masks and states, and what each status tells. DDS 1.4, 2.2.4.1.

Rules: `..._change` counts since the status was last read; reading it sets them to 0.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Callable
from typing import Any, TypeVar

from dds.exceptions import DDSException

S = TypeVar("S")


class SampleState:
    """State of one sample in one reader."""

    Read: int = 1
    NotRead: int = 2
    Any: int = 3


class ViewState:
    """State of an instance in one reader: New until the first of its samples was read or taken."""

    New: int = 4
    Old: int = 8
    Any: int = 12


class InstanceState:
    """State of an instance in one reader, see `dds.readers.instances`. Those of types without a key stay alive."""

    Alive: int = 16
    NotAliveDisposed: int = 32
    NotAliveNoWriters: int = 64
    Any: int = 112


class DDSStatus:
    """Bits of status masks."""

    InconsistentTopic = 1 << 0
    OfferedDeadlineMissed = 1 << 1
    RequestedDeadlineMissed = 1 << 2
    OfferedIncompatibleQos = 1 << 3
    RequestedIncompatibleQos = 1 << 4
    SampleLost = 1 << 5
    SampleRejected = 1 << 6
    DataOnReaders = 1 << 7
    DataAvailable = 1 << 8
    LivelinessLost = 1 << 9
    LivelinessChanged = 1 << 10
    PublicationMatched = 1 << 11
    SubscriptionMatched = 1 << 12
    NodeChanged = 1 << 13  # beyond DDS
    All: int = (1 << 14) - 1


_OF = {
    "DomainParticipant": DDSStatus.NodeChanged,
    "Topic": DDSStatus.InconsistentTopic,
    "Subscriber": DDSStatus.DataOnReaders,
    "DataWriter": (DDSStatus.OfferedDeadlineMissed | DDSStatus.OfferedIncompatibleQos | DDSStatus.LivelinessLost
                   | DDSStatus.PublicationMatched),
    "DataReader": (DDSStatus.RequestedDeadlineMissed | DDSStatus.RequestedIncompatibleQos | DDSStatus.SampleLost
                   | DDSStatus.SampleRejected | DDSStatus.DataAvailable | DDSStatus.LivelinessChanged
                   | DDSStatus.SubscriptionMatched),
}


def check_mask(kind: str, mask: int) -> int:
    """`mask`, if an entity of this kind can change in it. One mask may serve readers and writers; who waits for what
    an entity hasn't would wait for ever. TypeError, DDSException (BAD_PARAMETER)."""
    if not isinstance(mask, int):
        raise TypeError(f"a mask is an int of bits of DDSStatus, not {mask!r}")
    if not 0 <= mask <= DDSStatus.All:
        raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER, f"{mask} has bits outside DDSStatus.All")
    if mask and mask != DDSStatus.All and not mask & _OF.get(kind, 0):
        named = [name for name, bit in vars(DDSStatus).items() if isinstance(bit, int) and mask & bit == bit]
        raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER,
                           f"a {kind} has no status {' or '.join(named)}, so nobody would ever hear of it")
    return mask


# SampleRejectedStatus.last_reason, SampleRejectedStatusKind of DDS 1.4, 2.3.3; 0 = none was
REJECTED_BY_INSTANCES_LIMIT = 1
REJECTED_BY_SAMPLES_LIMIT = 2
REJECTED_BY_SAMPLES_PER_INSTANCE_LIMIT = 3


@dataclasses.dataclass
class Status:
    """Base: a total, and its change since the last look."""

    total_count: int = 0
    total_count_change: int = 0

    def count(self, n: int = 1) -> None:
        self.total_count += n
        self.total_count_change += n

    def read(self) -> Status:
        """A copy as it is now; the changes start anew."""
        copy = dataclasses.replace(self)
        for field in dataclasses.fields(self):
            if field.name.endswith("_change"):
                setattr(self, field.name, 0)
        return copy


def while_disabled(unchanged: Callable[[], S]) -> Callable[[Callable[[Any], S]], Callable[[Any], S]]:
    """Of a method that reads a status: a disabled entity has `unchanged()`, for its status never changes (DDS 1.4,
    2.2.2.1.1.7)."""
    def decorate(read: Callable[[Any], S]) -> Callable[[Any], S]:
        @functools.wraps(read)
        def read_enabled(entity: Any) -> S:
            if entity._open and not entity._enabled:
                return unchanged()
            return read(entity)

        return read_enabled

    return decorate


class InconsistentTopicStatus(Status):
    """Readers and writers in the group whose types don't go with those of a Topic. DDS-XTypes 1.3, 7.6.3.4.2."""


class SampleLostStatus(Status):
    """Samples that came and could not be kept for this reader."""


class SampleFilteredStatus(Status):
    """Samples that a filter, a time-based one, or the ownership of their instance kept out. Beyond DDS."""


class LivelinessLostStatus(Status):
    """How often the writer's lease ran out without a sign of life, or its node went away."""


@dataclasses.dataclass
class SampleRejectedStatus(Status):
    """Samples for which ResourceLimits left no room when they came. None is lost: they wait at the node, and their
    writers with them, until the program takes some."""

    last_reason: int = 0
    last_instance_handle: int = 0


@dataclasses.dataclass
class DeadlineMissedStatus(Status):
    """Periods of the deadline in which an instance got no sample, and the last such instance."""

    last_instance_handle: int = 0


@dataclasses.dataclass
class IncompatibleQosStatus(Status):
    """Endpoints of the topic that can't be talked to, and the policy that the last of them failed on."""

    last_policy_id: int = 0


@dataclasses.dataclass
class PublicationMatchedStatus(Status):
    """Readers that a writer writes to."""

    current_count: int = 0
    current_count_change: int = 0
    last_subscription_handle: int = 0


@dataclasses.dataclass
class SubscriptionMatchedStatus(Status):
    """Writers that a reader reads from."""

    current_count: int = 0
    current_count_change: int = 0
    last_publication_handle: int = 0


@dataclasses.dataclass
class LivelinessChangedStatus:
    """Matched writers: alive as long as they exist; those whose process or node ended are gone, not `not_alive`."""

    alive_count: int = 0
    not_alive_count: int = 0
    alive_count_change: int = 0
    not_alive_count_change: int = 0
    last_publication_handle: int = 0

    def read(self) -> LivelinessChangedStatus:
        copy = dataclasses.replace(self)
        self.alive_count_change = self.not_alive_count_change = 0
        return copy


class NodeState(enum.Enum):
    """Whether a participant has a node."""

    ATTACHED = "attached"  # a node serves it
    REATTACHING = "reattaching"  # its node has gone, another one is being looked for
    LOST = "lost"  # its node has gone, and nobody looks for another


@dataclasses.dataclass
class NodeStatus:
    """The node of a participant. Beyond DDS.

    node_id  the present one's, or the last one's; while the participant moves, that of the one that it moves to
    text     why the last one went; empty as long as none has
    """

    state: NodeState
    node_id: int
    text: str = ""
    lost_count: int = 0
    lost_count_change: int = 0
    reattached_count: int = 0
    reattached_count_change: int = 0

    def read(self) -> NodeStatus:
        copy = dataclasses.replace(self)
        self.lost_count_change = self.reattached_count_change = 0
        return copy


@dataclasses.dataclass
class ReattachedStatus(Status):
    """Times that a reader went on at another node. Beyond DDS.

    gap_count  of these, how often it isn't certain that no sample is missing; each counts as one lost sample too
    continued  whether it was certain the last time
    """

    gap_count: int = 0
    gap_count_change: int = 0
    continued: bool = True


class UnacknowledgedStatus(Status):
    """Samples of a writer that its node had not acknowledged when it went away. Beyond DDS."""


@dataclasses.dataclass(frozen=True)
class Unacknowledged:
    """A sample in doubt. `sample` is None if its memory was used again (never in a participant that reattaches).

    operation  the method of the writer that sent it: "write", "write_dispose", "dispose" or "unregister_instance"
    """

    index: int  # of the samples that the writer wrote at that node, from 0
    timestamp: int  # its source timestamp, UTC ns
    sample: Any
    operation: str = "write"


__all__ = ["DDSStatus", "InstanceState", "SampleState", "ViewState"]
