"""Goal: the preloaded library fails what it shall and nothing else; files are damaged as the property says.

Method: a child process with the library writes into the directory and beside it; journals that a stand-in source
filled are damaged and scanned.
"""

from __future__ import annotations

import errno
import os
import random
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from spindle.journal import Journal
from spindle.journal.tools import Status, verify
from spindle_lab.chaos.disk import Disk, Mode, build, damage_middle, lose_tail, tear
from tests.spindle.journal.fakes import SPEC, MemorySource, Witness, messages

CHILD = textwrap.dedent("""
    import os, sys
    def attempt(name, call):
        try:
            print(name, call())
        except OSError as error:
            print(name, -error.errno)
    inside = os.open(sys.argv[1] + "/file", os.O_RDWR | os.O_CREAT)
    outside = os.open(sys.argv[2] + "/file", os.O_RDWR | os.O_CREAT)
    attempt("write", lambda: os.write(inside, bytes(100)))
    attempt("pwrite", lambda: os.pwrite(inside, bytes(100), 0))
    attempt("pwritev", lambda: os.pwritev(inside, [bytes(60), bytes(40)], 0))
    attempt("fallocate", lambda: os.posix_fallocate(inside, 0, 4096) or 0)
    attempt("fdatasync", lambda: os.fdatasync(inside) or 0)
    attempt("fsync", lambda: os.fsync(inside) or 0)
    attempt("outside", lambda: os.pwritev(outside, [bytes(60), bytes(40)], 0) + os.write(outside, bytes(1)))
""")

WHOLE = {"write": 100, "pwrite": 100, "pwritev": 100, "fallocate": 0, "fdatasync": 0, "fsync": 0, "outside": 101}
EXPECTED = {
    Mode.PASS: {},
    Mode.FULL: dict.fromkeys(("write", "pwrite", "pwritev", "fallocate"), -errno.ENOSPC),
    Mode.WRITE_EIO: dict.fromkeys(("write", "pwrite", "pwritev"), -errno.EIO),
    Mode.SYNC_EIO: dict.fromkeys(("fdatasync", "fsync"), -errno.EIO),
    Mode.SHORT: dict.fromkeys(("write", "pwrite", "pwritev"), 50),
    Mode.TORN_FULL: {"write": 50, "pwrite": -errno.ENOSPC, "pwritev": 50, "fallocate": -errno.ENOSPC},
    Mode.SLOW: {},
}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = build(tmp_path_factory.mktemp("library"))
    if found is None:
        pytest.skip("no C compiler")
    return found


@pytest.mark.parametrize("mode", list(Mode))
def test_a_disk_fails_as_told_and_only_there(library: Path, tmp_path: Path, mode: Mode) -> None:
    inside, outside = tmp_path / "inside", tmp_path / "inside-not"
    inside.mkdir()
    outside.mkdir()
    disk = Disk(tmp_path / "control", inside)
    disk.mode = mode
    child = subprocess.run([sys.executable, "-c", CHILD, str(inside), str(outside)], capture_output=True, text=True,
                           check=True, env={**os.environ, **disk.environment(library)})
    found = {name: int(value) for name, value in map(str.split, child.stdout.splitlines())}
    assert found == WHOLE | EXPECTED[mode]
    assert (disk.spoiled > 0) == (mode is not Mode.PASS)
    disk.close()


def test_a_clock_that_is_wrong(tmp_path: Path) -> None:
    """The wall clock, by whichever call; no other one."""
    library = build(tmp_path)
    if library is None:
        pytest.skip("no C compiler")
    program = "import time; print(time.time(), time.clock_gettime(time.CLOCK_REALTIME), time.monotonic())"
    before = time.time(), time.time(), time.monotonic()
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True,
                          env={**os.environ, "LD_PRELOAD": str(library), "SPINDLE_CHAOS_CLOCK_S": "-100000"}).stdout
    differences = [float(told) - here for told, here in zip(said.split(), before, strict=True)]
    assert differences[0] == pytest.approx(-100000, abs=100) and differences[1] == pytest.approx(-100000, abs=100)
    assert 0 <= differences[2] < 100


def fill(directory: Path, commits: int) -> None:
    """A journal of so many commits, left as a killed node leaves it."""
    source, witness = MemorySource(), Witness()
    journal = Journal(directory, SPEC, 1, source, witness.on_durable, witness.on_failure, group_commit_ms=0.0)
    sequence = 0
    for number in range(commits):
        more = messages(5, start=5 * number, sequence=sequence, size=100)
        sequence = more[-1][1].sequence
        source.put(more)
        journal.wait_durable(5 * (number + 1), 10.0)
    image = next(directory.glob("*.mcap")).read_bytes()
    journal.close()
    next(directory.glob("*.mcap")).write_bytes(image)


@pytest.mark.parametrize("seed", range(12))
def test_a_torn_tail_costs_nothing(tmp_path: Path, seed: int) -> None:
    fill(tmp_path, 8)
    assert tear(tmp_path, random.Random(seed))
    report = verify(tmp_path)
    assert report.status in (Status.TORN, Status.OK) and report.messages == 40


@pytest.mark.parametrize("seed", range(6))
def test_a_lost_tail_costs_the_last_commit(tmp_path: Path, seed: int) -> None:
    fill(tmp_path, 8)
    assert lose_tail(tmp_path, random.Random(seed))
    report = verify(tmp_path)
    assert report.status is Status.TORN and report.messages == 35


@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_middle_is_no_tail(tmp_path: Path, seed: int) -> None:
    fill(tmp_path, 8)
    assert damage_middle(tmp_path, random.Random(seed))
    assert verify(tmp_path).status is Status.CORRUPT


def test_what_has_no_commits_is_left_alone(tmp_path: Path) -> None:
    """An empty directory, and a journal that was only begun."""
    for way in (tear, lose_tail, damage_middle):
        assert way(tmp_path, random.Random(1)) == ""
    fill(tmp_path, 0)
    for way in (tear, lose_tail, damage_middle):
        assert way(tmp_path, random.Random(1)) == ""
