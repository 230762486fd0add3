"""Goal: `bench replicas` measures what it says: all commands are carried out by every process, of ours and, where it is
installed, of pysyncobj.

Method: a short run of three processes.
"""

from __future__ import annotations

import importlib.util

import pytest

from spindle_lab.bench import replicas

pytestmark = pytest.mark.slow


def test_a_short_run_of_ours() -> None:
    measured = replicas.run_once(replicas.SPINDLE, 3, 20, 100)
    assert measured["adds_per_s"] > 0 and measured["puts_per_s"] > 0 and measured["latency_us"] > 0


@pytest.mark.skipif(importlib.util.find_spec("pysyncobj") is None, reason="pysyncobj is not installed")
def test_beside_pysyncobj() -> None:
    result = replicas.run(3, 5, 50, 1)
    assert result["pysyncobj-tuned_ratio"]["adds"] > 0


def test_without_pysyncobj_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr(replicas, "run_once", lambda *_: {"adds_per_s": 1.0, "puts_per_s": 1.0, "latency_us": 1.0})
    assert "pip install pysyncobj" in replicas.run(3, 1, 1, 1)["pysyncobj"]
