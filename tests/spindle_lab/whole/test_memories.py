"""Goal: what the simulator expects of regions and ports is what is promised of them (docs/links.md).

Method: what programs would tell it, without any.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from spindle_lab.whole.memories import Memories
from spindle_lab.whole.system import System
from spindle_lab.whole.world import World


def test_a_node_that_was_started_anew_is_another_writer() -> None:
    slots = [SimpleNamespace(served=1), SimpleNamespace(served=1)]
    memories = Memories(cast(World, SimpleNamespace(nodes=slots)))
    process = System(1).process("p", "h1", 0)
    words, table = memories.offered(1, "words0", 0, process), memories.offered(1, "table0", 2, process)
    assert memories.may_change(2, table) and not memories.may_change(1, table)
    slots[1].served += 1
    assert not memories.may_change(2, table)
    assert memories.may_change(2, memories.offered(1, "table0", 2, process))
    assert memories.may_change(1, words) and memories.may_change(2, words)
