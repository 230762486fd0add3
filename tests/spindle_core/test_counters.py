"""Counters: one page, one writer, any readers."""

from __future__ import annotations

import gc
import os

import pytest

from spindle_core.counters import COUNTER_HELP, COUNTER_NAMES, Counters
from spindle_core.engine import Engine
from spindle_core.memory import Mapping
from tests.support import descriptors_before, open_descriptors


def test_a_reader_sees_what_the_node_counts() -> None:
    """Goal: the page carries every counter by name. Method: set all, read them over a second mapping."""
    mine = Counters.create()
    theirs = Counters.attach(os.dup(mine.mapping.fd))
    assert len(mine) == len(COUNTER_NAMES) == len(set(COUNTER_NAMES))
    for i, name in enumerate(COUNTER_NAMES):
        mine.set(name, i)
        mine.add(name, 1 << 63)
    assert theirs.snapshot() == {name: i + (1 << 63) for i, name in enumerate(COUNTER_NAMES)}
    assert all(COUNTER_HELP[name] for name in COUNTER_NAMES)
    mine.add("pushes", 1 << 63)
    assert theirs.snapshot()["pushes"] == 0


def test_only_the_node_writes() -> None:
    """Goal: a reader's mapping is read-only in every way. Method: set, add, and a writable mapping of the page."""
    mine = Counters.create()
    theirs = Counters.attach(os.dup(mine.mapping.fd))
    for change in (theirs.set, theirs.add):
        with pytest.raises(BufferError, match="belong to a node"):
            change("pushes", 1)
    with pytest.raises(OSError, match="read-write"):
        Mapping.attach(os.dup(mine.mapping.fd), True)


def test_mistakes_are_errors() -> None:
    """Goal: unknown names, negative values, closed counters and pages of something else are refused."""
    mine = Counters.create()
    with pytest.raises(ValueError):
        mine.set("no such counter", 1)
    with pytest.raises(OverflowError):
        mine.set("pushes", -1)
    mine.close()
    mine.close()
    for call in (mine.snapshot, lambda: mine.set("pushes", 1), lambda: mine.add("pushes", 1)):
        with pytest.raises(ValueError, match="closed"):
            call()
    with pytest.raises(TypeError, match="create"):
        Counters()
    with pytest.raises(ValueError):
        Counters.attach(os.memfd_create("small", os.MFD_ALLOW_SEALING))


@pytest.mark.slow
def test_descriptors_are_given_back() -> None:
    """Goal: engines and counters leave no descriptor behind. Method: count /proc/self/fd around many of both."""
    gc.collect()
    before = descriptors_before()
    for i in range(20):
        counters = Counters.create()
        Counters.attach(os.dup(counters.mapping.fd))
        engine = Engine(i, counters=counters)
        assert engine.counters is counters
        engine.stop()
    del engine, counters
    gc.collect()
    assert open_descriptors() == before
