"""`bench keyed`. Goal: each kind of reader is measured, and nothing is left of instances that have gone. Method: a
small run in this process."""

from __future__ import annotations

import pytest

from spindle_lab.bench import keyed


@pytest.mark.slow
def test_keys_are_measured(runtime_dir: object) -> None:
    found = keyed.run(rounds=5, keys=100, instances=2000)
    assert all(cost > 0 for cost in found["take_ns"].values()) and len(found["take_ns"]) == 7
    assert found["bytes_alive"] > 100 and found["bytes_gone"] < found["bytes_alive"]
