"""Nodes for tests of regions: what their ways to each other have in common."""

from __future__ import annotations

from typing import Any

from spindle_core.fabric.regions.regions import Regions
from spindle_core.memory import Mapping


class Node:
    """A node whose ways are made by a subclass, or by `connect_*` below."""

    def __init__(self) -> None:
        self.regions = Regions()
        self.numbers: dict[Node, int] = {}
        self.opened: dict[int, Mapping] = {}

    def number(self, other: Node) -> int:
        return self.numbers[other]

    def open(self, memory: Mapping, to: Node, *, writer: bool = False, **rights: Any) -> tuple[int, int]:
        """Registers memory; (its key, its number at the node `to`)."""
        key = self.regions.register(memory, writer=self.number(to) if writer else None, **rights)
        self.opened[key] = memory
        return key, to.reach(self, key)

    def reach(self, owner: Node, key: int) -> int:
        """Makes another node's region reachable here, as its owner's grant says."""
        grant = owner.regions.grant(key, owner.number(self))
        return self.regions.reach(self.number(owner), grant, self.mapped(owner, owner.opened[key]))

    def mapped(self, owner: Node, memory: Mapping) -> Mapping | None:
        """A region's memory as this node has it mapped, where the way there needs that."""
        return None
