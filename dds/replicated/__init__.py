"""Objects that are the same in every program: their methods are commands in one order, which every replica carries out.

    class Counter(Object):
        count: int = 0

        @command
        def add(self, n: int) -> int:
            self.count += n
            return self.count

        @query
        def value(self) -> int:
            return self.count

    counter = Replica(participant, "visitors", Counter)
    counter.add(1)

Ready-made ones are in `dds.replicated.batteries`.
"""

from __future__ import annotations

from dds.replicated.errors import ReplicaDiverged, ReplicaError, StateLost
from dds.replicated.object import Object, Order, command, query
from dds.replicated.replica import Replica, ReplicatedCommand

__all__ = [
    "Object", "Order", "Replica", "ReplicaDiverged", "ReplicaError", "ReplicatedCommand", "StateLost", "command",
    "query",
]
