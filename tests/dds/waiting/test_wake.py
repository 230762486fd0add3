"""Goal: errors say times as people read them, and what runs out. Method: texts of many times; calls that fail."""

from __future__ import annotations

import errno
import os
import warnings

import pytest

import dds
from dds.exceptions import translate
from dds.internal import dds_infinity
from dds.waiting.wake import Deadline, span_text, time_text
from spindle.errors import NO_THREAD, NoResources


@pytest.mark.parametrize(("ns", "text"), [
    (-5, "0 s"), (0, "0 s"), (999, "999 ns"), (71_100, "71.1 us"), (250_000, "250 us"), (1_000_000, "0.001 s"),
    (500_000_000, "0.5 s"), (12 * 10**9, "12 s"), (3600 * 10**9, "3600 s"), (10**16, "10000000 s"),
])
def test_times_for_people(ns: int, text: str) -> None:
    assert span_text(ns) == text
    if not 0 < ns < 1000:
        assert time_text(ns) == text


def test_a_timeout_that_was_hardly_meant_says_what_it_counts() -> None:
    assert time_text(5).startswith("5 ns (times are in nanoseconds")


def test_less_than_no_time_is_none() -> None:
    assert Deadline(-5).left_s() == 0


def test_a_time_that_was_computed_may_be_short() -> None:
    """Goal: no warning, nor an error where programs make these of warnings, of a time that nobody has given."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for left_ns in (-1, 0, 1, 999, 1000, dds_infinity):
            left_s = Deadline.in_ns(left_ns).left_s()
            assert left_s is None if left_ns == dds_infinity else left_s is not None and left_s < 0.001
        with pytest.raises(UserWarning):
            Deadline(999)
        with pytest.raises(TypeError):
            Deadline.in_ns(0.5)  # type: ignore[arg-type]


def test_without_descriptors_a_wait_says_what_to_do(participant: dds.DomainParticipant,
                                                    monkeypatch: pytest.MonkeyPatch) -> None:
    """It raised OSError(24) and no more."""
    def eventfd(*_: int) -> int:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    reader = dds.DataReader(participant, dds.Topic(participant, "t", bytes))
    with monkeypatch.context() as patched:
        patched.setattr(os, "eventfd", eventfd)
        for wait in (lambda: reader.take_one(timeout=dds.duration(seconds=1)), lambda: dds.WaitSet(participant)):
            with pytest.raises(dds.DDSException, match=r"a wait needs descriptors.*ulimit -n") as caught:
                wait()
            assert caught.value.code == dds.DDSException.DDS_RETCODE_OUT_OF_RESOURCES
    with pytest.raises(dds.DDSTimeout):
        reader.take_one(timeout=dds.duration(milliseconds=1))


@pytest.mark.parametrize("error", [OSError(errno.ENFILE, "too many"), NoResources("the node has no memory"),
                                   MemoryError(), RuntimeError(NO_THREAD)])
def test_what_runs_out_is_out_of_resources(error: Exception) -> None:
    assert translate(error, "opening").code == dds.DDSException.DDS_RETCODE_OUT_OF_RESOURCES
