"""Leases of writers at their node.

Goal: nothing is said of a writer that gives signs in time, however late the node looks; once it gives none, exactly one
lapse is said, and one revival where no message shows that it lives.
Method: a loop whose clock the test moves; random signs and pauses against a model.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle.errors import ConfigError
from spindle.group.codec import lease_from_wire, lease_to_wire
from spindle.group.leases import LEASE_NS_MIN, Lease
from spindle.topics.leases import LOOKS, Leases
from spindle.topics.ports import WriterPort

DURATION_S = 1.0
LEASE = Lease(int(DURATION_S * 1e9), 64, 65)


class Clock(asyncio.SelectorEventLoop):
    """A loop at a time of the test's choice."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        """Runs what is due meanwhile, each at its time; with one look at the end if the node was busy all the while."""
        end = self.now + seconds
        while self._scheduled and self._scheduled[0].when() <= end:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
            self.run_until_complete(asyncio.sleep(0))
        self.now = end


class Writer:
    """What a lease sees of a writer's inbox."""

    def __init__(self) -> None:
        self.signs_of_life = 0, 0
        self.said: list[int] = []

    def say(self, tag: int) -> None:
        self.said.append(tag)

    def commits(self) -> None:
        self.signs_of_life = self.signs_of_life[0] + 1, self.signs_of_life[1]

    def lives(self) -> None:
        self.signs_of_life = self.signs_of_life[0], self.signs_of_life[1] + 1


@contextlib.contextmanager
def watched(duration: Lease = LEASE, relayed: int = 0) -> Iterator[tuple[Clock, Writer, Leases, WriterPort]]:
    loop, writer = Clock(), Writer()
    engine: Any = SimpleNamespace(parked=contextlib.nullcontext)
    leases, port = Leases(engine), WriterPort("topic", 1, writer, relayed=relayed, lease=duration)  # type: ignore[arg-type]

    async def begin() -> None:
        leases.watch(port, duration)

    try:
        loop.run_until_complete(begin())
        yield loop, writer, leases, port
    finally:
        leases.stop()
        loop.close()


def test_it_runs_out_once_and_not_early() -> None:
    with watched() as (loop, writer, _, _):
        loop.pass_time(DURATION_S * 0.99)
        assert writer.said == []
        loop.pass_time(DURATION_S * (1 / LOOKS + 0.02))
        assert writer.said == [64]
        loop.pass_time(10 * DURATION_S)
        assert writer.said == [64]


@pytest.mark.parametrize("message", [True, False])
def test_it_begins_again(message: bool) -> None:
    with watched() as (loop, writer, _, _):
        loop.pass_time(2 * DURATION_S)
        if message:
            writer.commits()
        else:
            writer.lives()
        loop.pass_time(DURATION_S / 2)
        assert writer.said == ([64] if message else [64, 65])
        loop.pass_time(DURATION_S)
        assert writer.said == ([64, 64] if message else [64, 65, 64])


def test_a_node_that_was_busy_blames_nobody() -> None:
    with watched() as (loop, writer, _, _):
        for _ in range(5):
            loop.now += 3 * DURATION_S  # nothing ran meanwhile
            writer.lives()
            loop.pass_time(DURATION_S / LOOKS)
        assert writer.said == []


def test_a_node_that_was_stopped_with_its_writers_blames_nobody() -> None:
    """The writer's next sign was due just when both were stopped, and comes a moment after both go on."""
    with watched() as (loop, writer, _, _):
        for _ in range(5):
            loop.now += 30 * DURATION_S
            loop.pass_time(DURATION_S / 4)
            writer.lives()
            loop.pass_time(DURATION_S / LOOKS)
        assert writer.said == []
        loop.now += 30 * DURATION_S
        loop.pass_time(2 * DURATION_S)
        assert writer.said == [64]


def test_who_begins_to_read_is_told_who_is_not_alive() -> None:
    with watched() as (loop, writer, leases, port):
        leases.repeat("topic")
        loop.pass_time(2 * DURATION_S)
        assert writer.said == [64] and leases.has_lapsed(port)
        leases.repeat("another")
        loop.pass_time(DURATION_S)
        assert writer.said == [64]
        for _ in range(3):
            leases.repeat("topic")
        loop.pass_time(DURATION_S)
        assert writer.said == [64, 64]
        leases.repeat("topic")
        writer.lives()
        loop.pass_time(DURATION_S / 2)
        assert writer.said == [64, 64, 65] and not leases.has_lapsed(port)


@pytest.mark.parametrize("says", [True, False])
def test_who_comes_from_another_node_may_have_been_said_to_be_silent_there(says: bool) -> None:
    with watched(relayed=1 << 20) as (loop, writer, _, _):
        if says:
            writer.commits()
        else:
            writer.lives()
        loop.pass_time(DURATION_S / 2)
        writer.lives()
        loop.pass_time(DURATION_S / 2)
        assert writer.said == ([] if says else [65])
        loop.pass_time(2 * DURATION_S)
        assert writer.said[-1] == 64


def test_rounds_leave_time_for_other_work() -> None:
    """Looking takes as long as a round may: the next one is put off, and nobody's lease ends early for it."""
    with watched() as (loop, writer, _, _):
        looks = []

        class Slow(Writer):
            @property  # type: ignore[misc]
            def signs_of_life(self) -> tuple[int, int]:  # type: ignore[override]
                looks.append(loop.now)
                loop.now += DURATION_S / 5
                return 0, 0

            @signs_of_life.setter
            def signs_of_life(self, _: tuple[int, int]) -> None:
                pass

        writer.__class__ = Slow
        loop.pass_time(30 * DURATION_S)
        assert len(looks) <= 17 and writer.said == [64]


def test_who_is_forgotten_is_not_looked_at() -> None:
    with watched() as (loop, writer, leases, port):
        leases.forget(port)
        leases.forget(port)
        loop.pass_time(9 * DURATION_S)
        assert writer.said == []


@given(st.lists(st.tuples(st.sampled_from(["message", "sign", "pause"]), st.integers(1, 15)), max_size=40))
def test_random_signs(steps: list[tuple[str, int]]) -> None:
    """Pauses are tenths of the lease. A gap below the lease is never told of, one two looks above it always is."""
    with watched() as (loop, writer, _, _):
        last, lapsed = 0.0, False
        for what, tenths in steps:
            loop.pass_time(tenths * DURATION_S / 10)
            gap = loop.now - last
            if gap < DURATION_S - 1e-9:
                assert lapsed or 64 not in writer.said
            elif gap > DURATION_S * (1 + 2 / LOOKS) + 1e-9 and not lapsed:
                assert writer.said == [64]
            if what != "pause":
                (writer.commits if what == "message" else writer.lives)()
                last, lapsed = loop.now, False
                loop.pass_time(DURATION_S / LOOKS)
                assert writer.said in ([], [64], [64, 65])
                assert (writer.said == [64, 65]) <= (what == "sign")
                writer.said.clear()


@pytest.mark.parametrize(("values", "text"), [
    ((LEASE_NS_MIN - 1, 1, 2), "10 ms is the shortest"), ((LEASE_NS_MIN, 0, 2), "two tags of 1 to 255"),
    ((LEASE_NS_MIN, 1, 256), "two tags of 1 to 255")])
def test_what_can_not_be(values: tuple[int, int, int], text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        Lease(*values)


def test_over_the_wire() -> None:
    assert lease_to_wire(None) is None
    message = lease_to_wire(LEASE)
    assert message is not None and lease_from_wire(message) == LEASE
