"""Goal: the command with which docs/cockpit.md says what a cockpit costs runs.
Method: it, with few nodes and topics, for a moment."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

pytest.importorskip("aiohttp")


@pytest.mark.slow
def test_what_a_cockpit_costs_can_be_measured() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.spindle.cockpit.load", "--nodes", "2", "--topics", "3",
                           "--seconds", "1"], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert re.search(r"cockpit: [0-9.]+% of a core\nits node: [0-9.]+% of a core\n[0-9.]+ looks a second, 3 topics",
                     done.stdout), done.stdout
