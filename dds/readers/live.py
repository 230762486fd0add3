"""The sample info of the fast path: made by the core for every message, its values boxed only when asked for.

Imported with the first reader, because it loads an extension module.
"""

from __future__ import annotations

import functools
from typing import Any

from dds.internal import SampleInfo, publication_handle
from dds.status import InstanceState, SampleState, ViewState
from spindle.client.samples import KeyedInfo, MessageInfo, message_type


class LiveSampleInfo(MessageInfo):
    """Info of a sample that was taken at its first sight. Attributes as `dds.internal.SampleInfo`."""

    __slots__ = ()

    topic = ""
    sample_state = SampleState.NotRead
    view_state = ViewState.Old
    instance_state = InstanceState.Alive
    valid_data = True
    instance_handle = 1
    disposed_generation_count = 0
    no_writers_generation_count = 0
    sample_rank = 0
    generation_rank = 0
    absolute_generation_rank = 0

    __repr__ = SampleInfo.__repr__

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduced(super().__reduce__())

    @property
    def node(self) -> int:
        return self.sender

    @property
    def publication_handle(self) -> int:
        return publication_handle(self.sender, self.writer, self.relay)


class FirstSampleInfo(LiveSampleInfo):
    """Of the samples that a reader gets with its first take: its instance is new to it."""

    __slots__ = ()

    view_state = ViewState.New


class LiveKeyedInfo(KeyedInfo, LiveSampleInfo):
    """The same of a topic with a key: what it says of the instance is as it was when the sample was given out.

    Samples that are given out this way follow no end of their instance in their collection: so all of one instance are
    of one generation, the instance's own.
    """

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return _reduced(super().__reduce__())

    @property
    def instance_handle(self) -> int:  # type: ignore[override]
        handle: int = self.given.handle
        return handle

    @property
    def view_state(self) -> int:  # type: ignore[override]
        return ViewState.New if self.given.new else ViewState.Old

    @property
    def disposed_generation_count(self) -> int:  # type: ignore[override]
        count: int = self.given.generation[0]
        return count

    @property
    def no_writers_generation_count(self) -> int:  # type: ignore[override]
        count: int = self.given.generation[1]
        return count

    @property
    def sample_rank(self) -> int:  # type: ignore[override]
        return self.following


LiveBytesSample = message_type(
    "BytesSample", __name__, "sample_info",
    "A sample of a topic of bytes as the log gave it: bytes with `sample_info`, which is made when asked for.")

SampleInfo.register(LiveSampleInfo)


@functools.lru_cache(maxsize=1024)
def _of_topic(base: type, topic: str) -> Any:
    """`base` for one topic: its name costs nothing with each sample."""
    return type(base.__name__, (base,), {"__slots__": (), "__module__": __name__, "topic": topic})


def info_types_of(topic: str) -> tuple[Any, Any, Any]:
    """FirstSampleInfo, LiveSampleInfo and LiveKeyedInfo of a topic."""
    return _of_topic(FirstSampleInfo, topic), _of_topic(LiveSampleInfo, topic), _of_topic(LiveKeyedInfo, topic)


# Samples are pickled and copied with their infos, whose classes can't be found by their names.

def _reduced(reduced: Any) -> tuple[Any, ...]:
    """What the core's info says of how it is made again, with its topic."""
    make, (kind, *arguments), *state = reduced
    base = kind.__base__ if kind.topic else kind
    return (_made, (make, base, kind.topic, *arguments), *state)


def _made(make: Any, base: type, topic: str, *arguments: Any) -> Any:
    return make(_of_topic(base, topic) if topic else base, *arguments)
