"""Goal: `spindle bench topics` measures what it says. Method: a small run with real daemons and programs."""

from __future__ import annotations

import pytest

from spindle_lab.bench.topics import run


@pytest.mark.slow
def test_every_topic_is_opened_at_every_node_both_ways() -> None:
    result = run(nodes=2, topics=3)
    assert (result["nodes"], result["topics"]) == (2, 3)
    for way in ("together", "sequence"):
        assert result[way]["seconds"] > 0 and result[way]["daemons_cpu_s"] > 0
        assert 3 <= result[way]["views"] <= 3 * (2 * 2 + 1)
