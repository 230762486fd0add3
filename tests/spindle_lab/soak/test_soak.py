"""Goal: a short soak comes to its end and finds nothing; and what grows, fails or hangs is found."""

from __future__ import annotations

import random
import time
from collections import Counter

import pytest

from spindle_lab.soak import program, run
from spindle_lab.soak.gauge import Growth, Note, growth
from spindle_lab.soak.run import Soaked, soak, wave


def notes(memory: list[int], descriptors: list[int] | None = None) -> list[Note]:
    return [Note(float(k), value, (descriptors or [20] * len(memory))[k], 100) for k, value in enumerate(memory)]


@pytest.mark.slow
def test_a_short_soak_finds_nothing_that_stays():
    """Programs of all fates come and go at two daemons; none fails or hangs, and no descriptor stays of them.

    Method: some waves. Memory is still warming up then, so it is not judged here.
    """
    result = soak(0.0, waves=15, warm_s=0.0, seed=1, every_s=0.0)
    assert result.programs >= 15
    assert not result.ends["failed"] and not result.ends["hung"]
    assert {one.what: one.too_much for grown in result.grown.values() for one in grown}["descriptors"] is False


def test_growth_is_found():
    """Medians of the first and the last fifth, of what came after the first minutes."""
    steady = growth(notes([90, 95, *[100] * 20, 101, 102, 500, 101, 100]), 2.0)
    assert not any(one.too_much for one in steady)
    rising = growth(notes([100 + k for k in range(20)], [20] * 15 + [21] * 5), 0.0)
    assert [one.too_much for one in rising] == [True, True, False]
    with pytest.raises(ValueError, match="too few"):
        growth(notes([1] * 9), 0.0)


def test_the_verdict_names_what_is_wrong():
    result = Soaked(ends=Counter({"hung": 1, "ended": 4}), grown={2: [Growth("memory_bytes", 1e6, 2e6)]})
    assert result.wrong == ["1 programs hung", "node 2: memory (MB) 1 -> 2"]


def test_a_program_that_hangs_or_fails_is_told(monkeypatch, tmp_path, capfd):
    """Method: lives that do nothing but that."""
    for life, end, hung_s in ((lambda *_: time.sleep(60), "hung", 0.2), (lambda *_: 1 / 0, "failed", 60.0)):
        monkeypatch.setattr(run, "HUNG_S", hung_s)
        monkeypatch.setattr(program, "live", life)
        result = Soaked()
        wave(tmp_path, 1, random.Random(3), result)
        assert result.ends == {end: result.programs}
    assert "ZeroDivisionError" in capfd.readouterr().err
