"""Goal: no scenario is missing. Method: the names of the tests beside this file, which begin with its number."""

from __future__ import annotations

import re
from pathlib import Path

SCENARIOS = 35


def test_every_scenario_has_a_script() -> None:
    texts = [path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parent.glob("test_*.py"))]
    numbers = {int(number) for text in texts for number in re.findall(r"^def test_s(\d\d)_", text, re.MULTILINE)}
    assert sorted(numbers) == list(range(1, SCENARIOS + 1))
