"""Goal: what links hold, and what the pool takes, is measured; in memory every link costs the same."""

from __future__ import annotations

import ctypes

import pytest

from spindle_lab.paper.krcore import costs, memory
from spindle_lab.paper.krcore.probe import measure


@pytest.fixture
def glibc() -> None:
    if not hasattr(ctypes.CDLL(None), "mallinfo2"):
        pytest.skip("no mallinfo2() here")


def test_links_hold_the_same_each(glibc: None) -> None:
    few, many = memory.links_bytes(100), memory.links_bytes(400)
    assert 4 * few == pytest.approx(many, rel=0.05)
    assert 8192 < few / 100 < 100_000


def test_a_connection_holds_its_requests(glibc: None) -> None:
    assert 256 * 1024 < memory.connection_bytes() < 1 << 20


def test_without_mallinfo_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: object())
    with pytest.raises(OSError, match=r"glibc 2\.33"):
        memory.heap_bytes()


def test_too_few_descriptors_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory.resource, "getrlimit", lambda _: (64, 128))
    with pytest.raises(OSError, match="400 descriptors"):
        memory.links_bytes(100)


def test_measured_costs_have_these_names() -> None:
    found = measure(rounds=3)
    assert set(found) == {one.name for one in costs.COSTS if one.kind == costs.MEASURED} - {"handover"}
