"""Goal: what the stand-ins promise holds on a real disk and with real processes: kill -9 leaves files that the `mcap`
library and our own check accept as they are; a full disk ends acknowledgements with a clear error.
Method: child processes that are killed at random moments, a file size limit, a small file system where we may mount."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from mcap.reader import make_reader

from spindle.journal import Journal, JournalError
from spindle.journal.tools import read, verify
from tests.spindle.journal.fakes import SPEC, MemorySource, Witness, messages
from tests.support import descriptors_before, open_descriptors

ROOT = Path(__file__).parents[3]
ROUNDS = 6

WRITER = textwrap.dedent("""
    import sys
    from pathlib import Path
    from spindle.journal import Journal
    from tests.spindle.journal.fakes import SPEC, MemorySource, Witness, messages

    source, witness = MemorySource(), Witness()
    def on_durable(index):
        print(index, flush=True)
    journal = Journal(Path(sys.argv[1]), SPEC, 1, source, on_durable, witness.on_failure, max_file_size=300_000,
                      fsync=sys.argv[2], group_commit_ms=float(sys.argv[3]))
    index = sequence = 0
    ahead = int(sys.argv[4])
    while True:
        more = messages(100, start=index, sequence=sequence, size=200)
        index, sequence = index + 100, more[-1][1].sequence
        source.put(more)
        journal.wait_durable(index - ahead, 60.0)
""")


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True)


@pytest.mark.slow
@pytest.mark.parametrize("fsync", ["group", "never"])
def test_kill_9_leaves_whole_files(tmp_path: Path, fsync: str) -> None:
    draw = random.Random(fsync)
    acknowledged_in_all = 0
    for _ in range(ROUNDS):
        writer = run(WRITER, str(tmp_path), fsync, "1.0", "1000")
        assert writer.stdout is not None
        target = draw.randrange(200, 8000)
        acknowledged = 0
        while acknowledged < target:
            line = writer.stdout.readline()
            assert line, "the writer ended by itself"
            acknowledged = int(line)
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split("\n")
        acknowledged = max([acknowledged, *(int(one) for one in rest[:-1])])
        writer.wait(30)
        writer.stdout.close()
        acknowledged_in_all += acknowledged
        # As the process left them, before anybody repaired anything:
        in_files = 0
        for path in sorted(tmp_path.glob("*.mcap")):
            with path.open("rb") as stream:
                in_files += sum(1 for _ in make_reader(stream, validate_crcs=True).iter_messages())
        report = verify(tmp_path)
        assert report.ok, report.problems
        assert report.messages == in_files >= acknowledged_in_all
        acknowledged_in_all = in_files  # what is written counts from now on
    last = list(read(tmp_path))
    assert [one.position for one in last] == list(range(acknowledged_in_all))


def test_a_journal_can_be_read_while_it_is_written(tmp_path: Path) -> None:
    writer = run(WRITER, str(tmp_path), "never", "5.0", "0")
    try:
        assert writer.stdout is not None and writer.stdout.readline()
        before = 0
        for _ in range(20):
            report = verify(tmp_path)
            assert report.ok, report.problems
            assert report.messages >= before
            before = report.messages
            got = [one.position for one in read(tmp_path)]
            assert got == list(range(len(got))) and len(got) >= before
        assert verify(tmp_path).files[-1].in_use
    finally:
        writer.kill()
        writer.communicate()


FULL = textwrap.dedent("""
    import resource, signal, sys
    from pathlib import Path
    from spindle.journal import Journal
    from tests.spindle.journal.fakes import SPEC, MemorySource, Witness, messages

    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
    source, witness = MemorySource(), Witness()
    journal = Journal(Path(sys.argv[1]), SPEC, 1, source, witness.on_durable, witness.on_failure)
    index = sequence = 0
    while not witness.failed.is_set():
        more = messages(50, start=index, sequence=sequence, size=100)
        index, sequence = index + 50, more[-1][1].sequence
        source.put(more)
        try:
            journal.wait_durable(index, 30.0)
        except OSError:
            pass
    journal.close()
    print(witness.durable[-1])
    print(witness.failures[0])
""")


def test_a_file_size_limit(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, str(tmp_path)], cwd=ROOT, capture_output=True, text=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    acknowledged, text = done.stdout.split("\n", 1)
    assert "File too large" in text and "max_file_size" in text
    report = verify(tmp_path)
    assert report.ok and report.messages >= int(acknowledged) > 0


def test_a_full_disk(tmp_path: Path) -> None:
    """A file system of one megabyte fills up; with room again, the node starts and goes on."""
    mount = tmp_path / "small"
    mount.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(mount)]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"mounting a small file system is not allowed here: {made.stderr.strip()}")
    try:
        source, witness = MemorySource(), Witness()
        journal = Journal(mount, SPEC, 1, source, witness.on_durable, witness.on_failure)
        sent = messages(20_000, size=100)
        for start in range(0, len(sent), 100):
            source.put(sent[start : start + 100])
            if witness.failed.wait(0.001):
                break
        assert witness.failed.wait(30)
        journal.close()
        assert "No space left on device" in str(witness.failures[0]) and "bytes free" in str(witness.failures[0])
        report = verify(mount)
        assert report.ok and report.messages >= witness.durable[-1] > 1000
        with pytest.raises(OSError), (mount / "filler").open("wb", buffering=0) as filler:
            while True:
                filler.write(bytes(4096))
        with pytest.raises(JournalError, match=r"cannot keep a journal in .*No space left"):
            Journal(mount, SPEC, 1, source, witness.on_durable, witness.on_failure)
        assert verify(mount).messages == report.messages
        subprocess.run(["mount", "-o", "remount,size=4m", str(mount)], check=True)
        again = Journal(mount, SPEC, 1, MemorySource(), witness.on_durable, witness.on_failure)
        assert again.recovery.position == report.messages
        again.close()
        assert [one.payload for one in read(mount)] == [payload for payload, _ in sent[: report.messages]]
    finally:
        subprocess.run(["umount", str(mount)], check=True)


def test_no_descriptor_is_left_open(tmp_path: Path) -> None:
    source, witness = MemorySource(), Witness()
    before = descriptors_before()
    journal = Journal(tmp_path, SPEC, 1, source, witness.on_durable, witness.on_failure, max_file_size=1000)
    source.put(messages(100))
    assert journal.wait_durable(100, 10)
    journal.close()
    verify(tmp_path)
    list(read(tmp_path))
    assert open_descriptors() == before
