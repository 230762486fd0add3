"""What programs import from `core`: errors, states, statuses, entities, listeners, conditions, wait sets, and Qos."""

from __future__ import annotations

from typing import NoReturn

from dds.conditions import GuardCondition, QueryCondition, ReadCondition, StatusCondition, WaitSet
from dds.entity import Entity
from dds.exceptions import (
    DDSException,
    DDSNodeLost,
    DDSSampleTooLarge,
    DDSTimeout,
    DDSUnacknowledged,
    DDSUnsupported,
)
from dds.listener import Listener
from dds.qos import Policy, Qos
from dds.statistics import Statistics
from dds.status import DDSStatus, InstanceState, NodeState, SampleState, ViewState


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        raise AttributeError(name)
    raise AttributeError(f"dds.core has no {name!r}. It has {', '.join(__all__)}")


__all__ = [
    "DDSException", "DDSNodeLost", "DDSSampleTooLarge", "DDSStatus", "DDSTimeout", "DDSUnacknowledged",
    "DDSUnsupported", "Entity", "GuardCondition", "InstanceState", "Listener", "NodeState", "Policy", "Qos",
    "QueryCondition", "ReadCondition", "SampleState", "Statistics", "StatusCondition", "ViewState", "WaitSet",
]
