"""What the tests of all checks need: files of a made-up machine, and what a result must be."""

from __future__ import annotations

from spindle.cli.checks.base import OK, Check, Machine


def put(machine: Machine, path: str, text: str) -> None:
    file = machine.root / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text + "\n")


def expect(result: Check | None, verdict: str, *parts: str) -> None:
    assert result is not None
    assert result.verdict == verdict, result
    assert bool(result.advice) == (verdict != OK), "advice where it isn't ok, and only there"
    for part in parts:
        assert part in f"{result.detail} {result.advice}", result
