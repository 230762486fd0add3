"""Goal: figures for people are short, right at the borders, and foreign text can't play with the terminal."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from spindle.cli.common import (
    AMOUNT_MAX,
    Amount,
    Target,
    bytes_text,
    count_text,
    duration_text,
    escaped,
    interrupts,
    is_like,
    json_default,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.25, "0.2"), (9.96, "10.0"), (950, "950"), (999.4, "999"), (1000, "1.00k"), (12_345, "12.3k"),
     (999_499, "999k"), (999_600, "1.00M"), (4_560_000, "4.56M"), (7e9, "7.00G"), (2e12, "2.00T"), (-1500, "-1.50k")],
)  # fmt: skip
def test_counts(value: float, text: str) -> None:
    assert count_text(value) == text
    assert len(text) <= 6


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.00 KB"), (1.2e9, "1.20 GB"), (3e12, "3.00 TB")]
)
def test_bytes(value: float, text: str) -> None:
    assert bytes_text(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 ns"), (8.5e-7, "850 ns"), (1.23e-5, "12.3 us"), (0.004, "4.0 ms"), (0.25, "250 ms"), (12, "12 s"),
     (200, "3 min 20 s"), (18_600, "5 h 10 min"), (200_000, "2 d 7 h")],
)  # fmt: skip
def test_durations(seconds: float, text: str) -> None:
    assert duration_text(seconds) == text


def test_foreign_text_is_tamed() -> None:
    assert escaped("[red]a[/]\x1b[2J\n") == r"\[red]a\[/]\x1b[2J\n"


def test_json_of_what_json_does_not_know() -> None:
    assert json_default(b"\x01\xff") == "01ff"
    assert json_default(Path("/a")) == "/a"
    assert json_default(frozenset([2, 1])) == [1, 2]
    with pytest.raises(TypeError):
        json_default(object())


def test_local_nodes(tmp_path: Path) -> None:
    target = Target(3, runtime_dir=tmp_path)
    assert target.local_nodes() == []
    (tmp_path / "domain-3").mkdir()
    for name in ("node-10.sock", "node-2.sock", "bootstrap.lock", "node-x.sock"):
        (tmp_path / "domain-3" / name).touch()
    assert target.local_nodes() == [2, 10]
    assert Target(3, 5, tmp_path).local_nodes() == [5]


def test_names_may_look_like_patterns() -> None:
    assert is_like("a[1]", ["b", "a[1]"]) and is_like("a1", ["a[1]"]) and is_like("x/y", ["x/*"])
    assert not is_like("a[1]", ["b*"]) and not is_like("a", [])


def test_amounts() -> None:
    amount = Amount()
    assert amount.convert("1.5", None, None) == 1.5 and amount.convert("inf", None, None) == AMOUNT_MAX
    for text in ("nan", "-1", "much"):
        with pytest.raises(click.BadParameter):
            amount.convert(text, None, None)


def test_a_signal_is_one_whatever_threading_makes_of_it() -> None:
    """Method: what Thread.start() raises if a handler does within it, and the same without a signal."""
    with pytest.raises(KeyboardInterrupt), interrupts():
        try:
            raise KeyboardInterrupt
        finally:
            raise RuntimeError("release unlocked lock")
    with pytest.raises(RuntimeError), interrupts():
        raise RuntimeError("odd")
