"""`make tsan`: threads on the core, without Python, under ThreadSanitizer, agree on every message and race nowhere."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_threads_on_the_core_race_nowhere() -> None:
    done = subprocess.run(["make", f"VENV={sys.prefix}", "tsan", "ARGS=5000"], cwd=ROOT, capture_output=True,
                          text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    assert "30000 messages on each of 3 nodes in the same order" in done.stdout
