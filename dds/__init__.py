"""Publish and subscribe with the API of OMG DDS, and one agreed order of every message on every node.

The modules, names and arguments are those of cyclonedds-python, so that its programs run here with the first word of
their imports changed, as far as they use what Spindle has; the rest fails with an error that says so. The usual names
can also be had from here:

    from dds import DataWriter, DomainParticipant, Topic

    participant = DomainParticipant()
    writer = DataWriter(participant, Topic(participant, "altitude", bytes))
    writer.write(b"9750 m")

What is behind a topic is decided by its Qos: see `dds.policy.policies` for the levels of delivery.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from dds.codecs.loan import Loan
from dds.conditions import GuardCondition, QueryCondition, ReadCondition, StatusCondition, WaitSet
from dds.domain import Domain, DomainParticipant
from dds.entity import Entity
from dds.exceptions import (
    DDSException,
    DDSNodeLost,
    DDSSampleTooLarge,
    DDSTimeout,
    DDSUnacknowledged,
    DDSUnsupported,
)
from dds.filters.filtered_topic import ContentFilteredTopic
from dds.internal import InvalidSample, SampleInfo
from dds.listener import Listener
from dds.pub import DataWriter, Publisher
from dds.qos import Policy, Qos
from dds.readers.batch import Batch
from dds.status import DDSStatus, InstanceState, NodeState, SampleState, ViewState
from dds.sub import DataReader, Subscriber
from dds.topic import Topic
from dds.util import duration, isgoodentity, timestamp

if TYPE_CHECKING:
    from dds import builtin, core, dynamic, idl

# Imported when asked for: they are seldom used, or bring a library along.
_MODULES = ("builtin", "builtin_types", "core", "dynamic", "idl", "qos_provider", "replicated", "rpc", "types")


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"dds.{name}")
    if name.startswith("BuiltinTopicDcps") or name == "BuiltinDataReader":
        return getattr(importlib.import_module("dds.builtin"), name)
    raise AttributeError(f"module 'dds' has no attribute {name!r}")


__all__ = [
    "Batch", "ContentFilteredTopic", "DDSException", "DDSNodeLost", "DDSSampleTooLarge", "DDSStatus", "DDSTimeout",
    "DDSUnacknowledged", "DDSUnsupported", "DataReader", "DataWriter", "Domain", "DomainParticipant", "Entity",
    "GuardCondition", "InstanceState", "InvalidSample", "Listener", "Loan", "NodeState", "Policy", "Publisher",
    "Qos", "QueryCondition", "ReadCondition", "SampleInfo", "SampleState", "StatusCondition", "Subscriber", "Topic",
    "ViewState", "WaitSet", "builtin", "core", "duration", "dynamic", "idl", "isgoodentity", "timestamp",
]
