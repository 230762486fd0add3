"""Goal: descriptors on their way to an owner are closed if they don't get there; only ends that never leave the process
are one open file.

Method: the kernel's own limit of descriptors, and their count.
"""

from __future__ import annotations

import os
import resource

import pytest

from spindle_core.ends import EVENT_END, Loose, end_of, make_ends
from tests.support import open_descriptors


def count() -> int:
    return open_descriptors()


def test_what_was_not_taken_is_closed() -> None:
    before = count()
    with Loose(os.pipe()) as fds:
        taken = fds.take()
    assert count() == before + 1
    os.close(taken)


def test_copies_are_all_made_or_none() -> None:
    free = os.dup(0)
    os.close(free)
    before, limits = count(), resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))  # room for one
    try:
        with pytest.raises(OSError, match="Too many open files"):
            Loose.copies(0, 1, 2)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert count() == before


@pytest.mark.parametrize("within", [False, True])
def test_ends_that_leave_the_process_share_nothing(within: bool) -> None:
    before = count()
    ringing, rung = make_ends(within)
    try:
        os.set_blocking(rung, True)
        assert os.get_blocking(ringing) is within
        assert end_of(rung) == (rung | EVENT_END if within else rung) and end_of(-1) == -1
    finally:
        os.close(ringing)
        os.close(rung)
    free = os.dup(0)
    os.close(free)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free + 1, limits[1]))  # room for one
    try:
        with pytest.raises(OSError, match="Too many open files"):
            make_ends(within)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert count() == before
