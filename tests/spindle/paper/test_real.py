"""Goal: real runs and their predictions stand side by side, of the same case.

Method: small real runs. Not how near they are: that is for a machine that has nothing else to do.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spindle.paper import measure
from spindle.paper.experiments import real


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ROUNDS", 30)


@pytest.mark.parametrize("fabric", measure.FABRICS)
def test_a_case_is_run_and_predicted(fabric: str) -> None:
    said: list[str] = []
    [row] = real.predict([real.Case(2, 1024, fabric)], 1, scale=0.02, progress=said.append)
    assert row["fabric"] == fabric
    assert row["real"] > 0 and row["model"] > 0
    assert row["ratio"] == pytest.approx(row["model"] / row["real"], abs=0.01)
    assert 0 <= row["busy"] <= 1
    assert row["steady"] in (0, 1)
    assert said == ["round 1 of 1"]


def test_switches_are_held_against_the_baseline_of_their_round() -> None:
    rows = real.switches((2,), (1024,), ("shm",), 1, sets=("baseline", "spindle"), scale=0.02)
    assert [row["switches"] for row in rows] == ["baseline", "spindle"]
    assert rows[0]["gain"] == 1.0
    assert rows[1]["gain"] == pytest.approx(rows[1]["messages_per_s"] / rows[0]["messages_per_s"], abs=0.01)


def test_a_study_becomes_a_section(tmp_path: Path) -> None:
    """Method: a kept study of one case each; without one the section says how to get it."""
    assert "--keep" in real.section(tmp_path / "none.json")
    case = {"nodes": 2, "size": 1024, "fabric": "shm"}
    kept = {
        "machine": {"cpu": "Z80", "cores": 1, "kernel": "6"},
        "rounds": 3,
        "predictions": [{**case, "real": 1000, "model": 1100, "ratio": 1.1, "steady": 2, "busy": 0.5}],
        "switches": [
            {**case, "switches": name, "gain": gain} for name, gain in zip(real.STEPS, (1, 2, 3, 4), strict=True)
        ],
    }
    (tmp_path / "real.json").write_text(json.dumps(kept))
    text = real.section(tmp_path / "real.json")
    assert "| 2 | 1024 | shm | 1,000 | 1,100 | 1.10 | 2 of 3 | 50% |" in text
    assert "| shm | 2 | 1024 | 2.00 | 3.00 | 4.00 |" in text
