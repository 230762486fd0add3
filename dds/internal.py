"""Names that programs import from `internal`: what comes with a sample, and two constants.

Why two forms of sample info: on the fast path the core makes the info in C, for every message; a sample that is read
several times gets a new `SampleInfo` each time, because its state differs. Both have the same attributes, and
isinstance(info, SampleInfo) is true for both.
"""

from __future__ import annotations

import abc
import dataclasses
import operator
from typing import Any, NoReturn, Protocol

from dds.exceptions import DDSException
from dds.status import InstanceState, SampleState, ViewState

dds_infinity: int = (1 << 63) - 1  # ns; the duration that never ends
dds_domain_default: int = 0
uint32_max: int = (1 << 32) - 1
feature_topic_discovery = True  # dds.builtin.BuiltinTopicDcpsTopic is there
feature_type_discovery = True  # so is dds.dynamic


def publication_handle(node_id: int, writer: int, relay: int) -> int:
    """Of the writer with this number on a node; of a writer on a host without a node (`relay` isn't 0), the same
    whatever node it goes on at."""
    return 1 << 62 | relay << 16 | writer if relay else node_id << 16 | writer


def is_relayed(handle: int) -> bool:
    """True for the publication handle of a writer on a host without a node."""
    return bool(handle >> 62)


def handle_of_writer(live: Any) -> int:
    """The publication handle of the writer of a message."""
    return publication_handle(live.sender, live.writer, live.relay)


def source_stamp(timestamp: Any) -> int:
    """A source timestamp, UTC ns, that a program has given, as it is sent: 0 there stands for now, so that of 1970
    itself is one of a nanosecond later. TypeError, DDSException (BAD_PARAMETER)."""
    try:
        at = operator.index(timestamp)
    except TypeError:
        raise TypeError(f"a timestamp is a whole number of nanoseconds since 1970, not {timestamp!r}") from None
    if not 0 <= at < dds_infinity:
        raise DDSException(DDSException.DDS_RETCODE_BAD_PARAMETER,
                           f"a timestamp is nanoseconds since 1970, from 0 to 2**63 - 2, not {at}")
    return at or 1


class KeptInstance(Protocol):
    """What a sample info tells of an instance: see `dds.readers.instances.Instance`."""

    new: bool
    handle: int
    state: int


class KeptEntry(Protocol):
    """What a sample info tells of a kept sample: see `dds.readers.instances.Entry`."""

    live: Any
    read: bool
    ends: bool
    generation: tuple[int, int]

    @property
    def instance(self) -> KeptInstance: ...


class SampleInfo(abc.ABC):  # noqa: B024  abstract only to let the core's own info register as one
    """What came with a sample. DDS 1.4, 2.2.2.5.5.

    topic                the name of the topic that it was read from
    sample_state, view_state, instance_state  see dds.core
    valid_data           False of an InvalidSample
    source_timestamp     when it was written, UTC ns
    reception_timestamp  when it was delivered on this node, UTC ns
    instance_handle      of its instance, for types with a key; else 1
    publication_handle   of its writer: its instance_handle, and as in DataReader.get_matched_publications()
    sequence             its place in the delivery order of its view; with view_id the same on every node
    view_id              the view in which it was delivered
    node                 id of the node that sent it
    index                samples delivered before it on this node
    disposed_generation_count, no_writers_generation_count, sample_rank, generation_rank, absolute_generation_rank
                         as DDS has them, for types with a key; else 0
    """

    __slots__ = (
        "_live", "absolute_generation_rank", "disposed_generation_count", "generation_rank", "instance_handle",
        "instance_state", "no_writers_generation_count", "sample_rank", "sample_state", "topic", "valid_data",
        "view_state")

    def __init__(self, entry: KeptEntry, topic: str) -> None:
        """The info of an entry as it is at this moment; its ranks are 0 until dds.readers.kept.rank()."""
        instance = entry.instance
        self.topic = topic
        self._live = entry.live
        self.sample_state = SampleState.Read if entry.read else SampleState.NotRead
        self.view_state = ViewState.New if instance.new else ViewState.Old
        self.instance_state = instance.state
        self.instance_handle = instance.handle
        self.valid_data = not entry.ends
        self.disposed_generation_count, self.no_writers_generation_count = entry.generation
        self.sample_rank = self.generation_rank = self.absolute_generation_rank = 0

    # What never changes is asked of the core's info when somebody wants it.

    @property
    def source_timestamp(self) -> int:
        when: int = self._live.source_timestamp
        return when

    @property
    def reception_timestamp(self) -> int:
        when: int = self._live.reception_timestamp
        return when

    @property
    def publication_handle(self) -> int:
        return publication_handle(self._live.sender, self._live.writer, self._live.relay)

    @property
    def sequence(self) -> int:
        place: int = self._live.sequence
        return place

    @property
    def view_id(self) -> int:
        view: int = self._live.view_id
        return view

    @property
    def node(self) -> int:
        sender: int = self._live.sender
        return sender

    @property
    def index(self) -> int:
        place: int = self._live.index
        return place

    def __repr__(self) -> str:
        said = [f"{name}={getattr(self, name)!r}" for name in _ALWAYS_SAID]
        said += [f"{name}={_state_text(kind, getattr(self, name))}" for name, kind in _STATES.items()]
        said += [f"{name}={value}" for name in _COUNTS if (value := getattr(self, name))]
        return f"SampleInfo({', '.join(said)})"


_ALWAYS_SAID = ("topic", "valid_data", "node", "publication_handle", "view_id", "sequence", "index", "source_timestamp",
                "reception_timestamp", "instance_handle")
_STATES = {"sample_state": SampleState, "view_state": ViewState, "instance_state": InstanceState}
_COUNTS = ("disposed_generation_count", "no_writers_generation_count", "sample_rank", "generation_rank",
           "absolute_generation_rank")


def _state_text(kind: type, state: int) -> str:
    """As programs write it: "ViewState.New"."""
    return next((f"{kind.__name__}.{name}" for name, value in vars(kind).items() if value == state), str(state))


@dataclasses.dataclass
class InvalidSample:
    """What take() and read() give in place of a sample when an instance has ended: disposed, or left by all writers.

    Which of these is in sample_info.instance_state. In `key_sample` the key members are set; the others have the
    defaults of their types.
    """

    key_sample: Any
    sample_info: SampleInfo


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"dds.internal has no {name!r}: there is no C library below it. It has SampleInfo, "
                         "InvalidSample, dds_infinity, dds_domain_default and uint32_max")
