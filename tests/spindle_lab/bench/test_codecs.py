"""`bench types`. Goal: every way is measured, on samples that all ways write alike. Method: one short round."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from spindle_lab.bench import codecs
from spindle_lab.bench.cli import bench


@pytest.mark.slow
def test_types_are_measured_beside_the_library() -> None:
    ran = CliRunner().invoke(bench, ["types", "--rounds", "1", "--json"])
    assert ran.exit_code == 0, ran.output
    found = json.loads(ran.output)
    assert found["compared_with"] in ("library", "cyclonedds")
    for name in ("small", "track", "image"):
        assert all(found[name][way][what] > 0 for way in ("compiled", "library") for what in ("encode_ns", "decode_ns"))
        assert found[name]["times_as_fast"]["decode"] > 0


def test_calls_take_turns() -> None:
    made: list[int] = []
    figures = codecs.timed([lambda: made.append(1), lambda: made.append(2)], 3)
    assert len(figures) == 2 and all(one > 0 for one in figures)
    assert made.index(2) < len(made) - 1 - made[::-1].index(1)
