"""Goal: real runs and their predictions stand side by side, of the same case.

Method: small real runs. Not how near they are: that is for a machine that has nothing else to do.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from spindle_lab.paper import measure
from spindle_lab.paper.experiments import real


@pytest.fixture(autouse=True)
def few_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "ROUNDS", 30)
    monkeypatch.setattr(measure, "STREAM_TURNS", 1)
    monkeypatch.setattr(real, "TABLES", 1)


@pytest.mark.slow
@pytest.mark.parametrize("fabric", measure.FABRICS)
def test_a_case_is_run_and_predicted(fabric: str) -> None:
    said: list[str] = []
    [row] = real.predict([real.Case(2, 1024, fabric)], 1, scale=0.02, progress=said.append)
    assert row["fabric"] == fabric
    assert row["real"] > 0 and row["model"] > 0
    assert row["ratios"] == [row["ratio"]]
    assert 0 <= row["busy"] <= 1
    assert 0 < row["line_ns"][0] <= row["line_ns"][1]
    assert said == ["round 1 of 1"]


def test_a_row_has_the_medians_of_its_rounds() -> None:
    rounds = [real.Round(10, 20, 0.0, (50, 60)), real.Round(20, 22, 0.5, (40, 50)), real.Round(10, 9, 0.1, (50, 230))]
    row = real.row_of(real.Case(2), rounds)
    assert (row["real"], row["model"], row["ratio"], row["busy"]) == (10, 20, 1.1, 0.1)
    assert row["ratios"] == [0.9, 1.1, 2.0]
    assert row["line_ns"] == [40, 230]


@pytest.mark.slow
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
        "machine": {"architecture": "z80", "cores": 1},
        "rounds": 3,
        "switch_rounds": 2,
        "predictions": [{**case, "real": 1000, "model": 1100, "ratio": 1.1, "ratios": [0.9, 1.1, 1.2], "busy": 0.5,
                         "line_ns": [50, 230]}],
        "switches": [
            {**case, "switches": name, "gain": gain}
            for name, gain in {"baseline": 1, "null_sends": 2, "batching": 3, "spindle": 4}.items()
        ],
    }
    (tmp_path / "real.json").write_text(json.dumps(kept))
    text = real.section(tmp_path / "real.json")
    assert "| 2 | 1024 | shm | 1,000 | 1,100 | 1.10 | 0.90 to 1.20 | 50 to 230 ns | 50% |" in text
    assert "| shm | 2 | 1024 | 2.00 | 3.00 | 4.00 |" in text


def test_it_is_said_which_predictions_are_far_off() -> None:
    case = {"nodes": 2, "size": 1024, "fabric": "shm"}
    near, far = {**case, "ratio": 1.3, "ratios": [0.7, 1.3]}, {**case, "nodes": 3, "ratio": 0.76, "ratios": [0.7, 0.8]}
    assert real.agreement([near]) == "All 1 predictions are within 30% of the run, of single rounds 50%."
    assert "1 are within 30% of the run (not 3 nodes with 1024 bytes over shm)" in real.agreement([near, far])
