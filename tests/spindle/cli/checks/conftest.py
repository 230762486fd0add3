"""A machine that is made up below a temporary root."""

from __future__ import annotations

from pathlib import Path

import pytest

from spindle.cli.checks.base import Machine


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    (tmp_path / "dev/shm").mkdir(parents=True)
    (tmp_path / "run").mkdir()
    return Machine(tmp_path / "run/domain-0", root=tmp_path)
