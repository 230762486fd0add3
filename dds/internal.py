"""Names that programs import from `internal`: what comes with a sample, and two constants.

Why two forms of sample info: on the fast path the core makes the info in C, for every message; a sample that is read
several times gets a new `SampleInfo` each time, because its state differs. Both have the same attributes, and
isinstance(info, SampleInfo) is true for both.
"""

from __future__ import annotations

import abc
import dataclasses
from typing import Any, NoReturn

dds_infinity: int = (1 << 63) - 1  # ns; the duration that never ends
dds_domain_default: int = 0
uint32_max: int = (1 << 32) - 1


def publication_handle(node_id: int, writer: int, relay: int) -> int:
    """Of the writer with this number on a node; of a writer on a host without a node (`relay` isn't 0), the same
    whatever node it goes on at."""
    return 1 << 62 | relay << 16 | writer if relay else node_id << 16 | writer


class SampleInfo(abc.ABC):  # noqa: B024  abstract only to let the core's own info register as one
    """What came with a sample. DDS 1.4, 2.2.2.5.5.

    sample_state, view_state, instance_state  see dds.core
    valid_data           always True: instances are not disposed
    source_timestamp     when it was written, UTC ns
    reception_timestamp  when it was delivered on this node, UTC ns
    instance_handle      of its instance, for types with a key; else 1
    publication_handle   of its writer: its instance_handle, and as in DataReader.get_matched_publications()
    sequence             its place in the delivery order of its view; with view_id the same on every node
    view_id              the view in which it was delivered
    node                 id of the node that sent it
    index                samples delivered before it on this node
    The counts and ranks of DDS are always 0.
    """

    __slots__ = (
        "index", "instance_handle", "node", "publication_handle", "reception_timestamp", "sample_state", "sequence",
        "source_timestamp", "view_id", "view_state")

    instance_state: int = 16
    valid_data: bool = True
    disposed_generation_count: int = 0
    no_writers_generation_count: int = 0
    sample_rank: int = 0
    generation_rank: int = 0
    absolute_generation_rank: int = 0

    def __init__(self, live: Any, sample_state: int, view_state: int, instance_handle: int) -> None:
        """The info of a sample as it is at this moment, from what the core says (`live`) and the three states."""
        self.sample_state = sample_state
        self.view_state = view_state
        self.instance_handle = instance_handle
        self.source_timestamp: int = live.source_timestamp
        self.reception_timestamp: int = live.reception_timestamp
        self.publication_handle: int = publication_handle(live.sender, live.writer, live.relay)
        self.sequence: int = live.sequence
        self.view_id: int = live.view_id
        self.node: int = live.sender
        self.index: int = live.index

    def __repr__(self) -> str:
        return (f"SampleInfo(node={self.node}, view_id={self.view_id}, sequence={self.sequence}, "
                f"source_timestamp={self.source_timestamp}, sample_state={self.sample_state})")


@dataclasses.dataclass
class InvalidSample:
    """In DDS: a change of an instance's state without data. Spindle never returns one; the name is there for
    isinstance() in programs that handle it."""

    key_sample: object
    sample_info: SampleInfo


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"dds.internal has no {name!r}: there is no C library below it. It has SampleInfo, "
                         "InvalidSample, dds_infinity, dds_domain_default and uint32_max")
