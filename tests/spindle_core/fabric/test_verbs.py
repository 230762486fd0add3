"""The verbs fabric keeps the fabric's promise on a real kernel RDMA stack, never overflows a queue, and gives up who
does not answer or breaks the rules.

All of it needs an RDMA device: `make rdma-test` runs it on a guest that has one in software.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.spindle_core.fabric.conformance import BOUND_S, FabricConformance
from tests.spindle_core.fabric.verbs_peers import make_peers, needs_verbs, pump

pytestmark = needs_verbs


class TestVerbs(FabricConformance):
    make_peers: Callable[[int], list[Any]] = staticmethod(make_peers)  # type: ignore[assignment]
    pump = staticmethod(pump)

    def test_nobody_asleep_costs_no_system_call(self) -> None:
        """A post rings by itself; ring() wakes who waits, and its completion is taken with the rest by who doesn't."""
        a, b = self.make_peers(2)
        assert a.fabric.post_writes([(1, 0, 8)]) == 0
        self.pump([a, b])
        b.fabric.prepare_wait()
        assert not b.fabric.wait(0.0)
        assert a.fabric.ring(1) == 1
        assert b.fabric.wait(BOUND_S) and not b.fabric.wait(0.0)
