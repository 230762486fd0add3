"""Goal: who waits for a region looks for it before it sleeps, but seldom where that was in vain.

Method: `Link._found` with waits that take as long as the test says.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from spindle.links import link as links
from spindle.links.link import FIND_SPIN_S, Link


def looks(took_s: list[float]) -> list[bool]:
    """Which of finds that take so long, one after the other over one link, look before they sleep."""
    now_s, looked = [0.0], []
    times = iter(took_s)

    def completed(_region: str, until_s: float, spin_s: float = 0.0) -> int:
        assert until_s == now_s[0] + 5.0 and spin_s in (0.0, FIND_SPIN_S)
        looked.append(spin_s > 0)
        now_s[0] += next(times)
        return len(looked)

    link: Any = SimpleNamespace(_end=SimpleNamespace(skipped=0, to_skip=0), timeout_s=5.0, _completed=completed)
    with patch.object(links, "time", SimpleNamespace(monotonic=lambda: now_s[0])):
        assert [Link._found(link, "x") for _ in took_s] == list(range(1, len(took_s) + 1))
    return looked


def test_who_finds_in_time_looks_each_time() -> None:
    assert looks([FIND_SPIN_S / 2] * 10) == [True] * 10


def test_who_looks_in_vain_does_so_seldom_and_again_once_it_is_not() -> None:
    late = looks([2 * FIND_SPIN_S] * 200)
    assert [at for at, one in enumerate(late) if one] == [0, 2, 6, 14, 30, 62, 126, 190]
    assert looks([2 * FIND_SPIN_S, *[FIND_SPIN_S / 2] * 5]) == [True, False, True, True, True, True]
