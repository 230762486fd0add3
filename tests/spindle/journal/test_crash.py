"""Goal: whatever instant the process or the machine dies at, nothing acknowledged is lost, nothing else is invented,
the journal can be taken up again; and after the death of the process alone the files are whole as they are.
Method: as ALICE (OSDI 2014) does: record all writes of a scripted life, build every disk image that a crash may leave
(each prefix of the writes, unsynced ones present or missing or torn at sectors), and recover each."""

from __future__ import annotations

import copy
import io
import itertools
from collections.abc import Callable, Iterator

import pytest
from mcap.reader import make_reader

from spindle.journal.format import LIVE_TRAILER, SECTOR
from spindle.journal.recovery import recover
from spindle.journal.tools import Status, verify
from tests.spindle.journal.fakes import SPEC, Change, MemoryFiles, apply
from tests.spindle.journal.scripted import DIRECTORY, Life, is_prefix, live_through, read_all

Image = dict[str, bytes]


def torn_prefixes(change: Change) -> Iterator[Change]:
    """A write that was interrupted at each sector it crosses."""
    kind, number, offset, data, name, other = change
    if kind == "write":
        first = SECTOR - offset % SECTOR
        for cut in range(first, len(data), SECTOR):
            yield (kind, number, offset, data[:cut], name, other)


def kill_images(trace: list[Change]) -> Iterator[tuple[int, Image]]:
    """(length of the trace, image) for the death of the process at every instant: all writes before are there."""
    files: dict[int, bytearray] = {}
    names: dict[str, int] = {}
    for length, change in enumerate(trace):
        for torn in (None, *torn_prefixes(change)):
            if torn is None:
                yield length, {name: bytes(files[number]) for name, number in names.items()}
            else:
                damaged = copy.deepcopy(files)
                apply(damaged, dict(names), torn)
                yield length, {name: bytes(damaged[number]) for name, number in names.items()}
        apply(files, names, change)
    yield len(trace), {name: bytes(files[number]) for name, number in names.items()}


@pytest.mark.parametrize(
    ("sizes", "second", "size"),
    [([1, 4, 2, 7], [3], 60), ([30, 40, 30], [2], 700), ([2] * 25, [1], 30)],
    ids=["small", "growing", "many"],
)
@pytest.mark.parametrize("close_first", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("same_file", [False, True], ids=["next", "same"])
def test_a_killed_process_leaves_whole_files(
    sizes: list[int], second: list[int], size: int, close_first: bool, same_file: bool
) -> None:
    life = live_through(sizes, second, size, close_first, same_file=same_file)
    seen = set()
    for length, image in kill_images(life.files.trace):
        journal = {name: data for name, data in image.items() if name.endswith(".mcap")}
        key = tuple(sorted((name, hash(data)) for name, data in journal.items()))
        if key in seen:
            continue
        seen.add(key)
        got = []
        for _, data in sorted(journal.items()):
            got += [message.data for _, _, message in make_reader(io.BytesIO(data), validate_crcs=True).iter_messages()]
        acknowledged = life.acknowledged_at(length)
        assert acknowledged <= len(got) and got == [payload for payload, _ in life.sent[: len(got)]], length
        files = MemoryFiles.of(journal)
        if journal:
            report = verify(DIRECTORY, files=files)
            assert report.ok or "not closed although" in report.problems[0], (length, report.problems)
            assert report.messages == len(got)
        assert is_prefix(read_all(files), life.sent)
        recover(files, DIRECTORY, SPEC.name, 1)
        assert len(read_all(files)) == len(got)
    assert len(seen) > 20


def parts(change: Change) -> list[Change | None]:
    """What a crash of the machine may leave of one unsynced change: nothing, all, or some of its sectors."""
    kind, number, offset, data, name, other = change
    found: list[Change | None] = [None, change]
    if kind == "write" and offset // SECTOR != (offset + len(data) - 1) // SECTOR:
        cuts = list(range(SECTOR - offset % SECTOR, len(data), SECTOR))
        for cut in {cuts[0], cuts[len(cuts) // 2], cuts[-1]}:
            found.append((kind, number, offset, data[:cut], name, other))
            found.append((kind, number, offset + cut, data[cut:], name, other))
        # All but one sector; what the disk has there instead are zeros, because the file was never longer.
        for start, end in itertools.pairwise(cuts[:3]):
            found.append((kind, number, offset, data[:start] + bytes(end - start) + data[end:], name, other))
    return found


def power_images(trace: list[Change], length: int) -> Iterator[Image]:
    """Images for the death of the machine after `length` changes: what was synced is there, of the rest any part."""
    done = trace[:length]
    synced = {change[1]: place for place, change in enumerate(done) if change[0] == "sync"}
    names_synced = max((place for place, change in enumerate(done) if change[0] == "sync_directory"), default=-1)
    loose = [
        (place, change) for place, change in enumerate(done)
        if change[0] in ("write", "truncate") and place > synced.get(change[1], -1)
    ]
    # Changes of names reach the disk in their order.
    renames = [place for place, change in enumerate(done)
               if change[0] in ("create", "rename", "remove") and place > names_synced]
    for kept_names in range(len(renames) + 1):
        lost = set(renames[kept_names:])
        for choice in itertools.product(*(parts(change) for _, change in loose)):
            chosen = dict(zip((place for place, _ in loose), choice, strict=True))
            files: dict[int, bytearray] = {change[1]: bytearray() for change in done if change[0] == "create"}
            names: dict[str, int] = {}
            for place, change in enumerate(done):
                part = chosen.get(place, change)
                if part is not None and place not in lost:
                    apply(files, names, part)
            yield {name: bytes(files[number]) for name, number in names.items()}


def check_power_loss(life: Life, start: int = 0, also: Callable[[Image], None] = lambda content: None) -> int:
    """Recover every image from trace length `start` on; returns how many there were. `also` looks at the outcome."""
    checked = 0
    seen = set()
    for length in range(start, len(life.files.trace) + 1):
        acknowledged = life.acknowledged_at(length)
        for image in power_images(life.files.trace, length):
            key = (acknowledged, tuple(sorted((name, hash(data)) for name, data in image.items())))
            if key in seen:
                continue
            seen.add(key)
            checked += 1
            files = MemoryFiles.of(image)
            recovery = recover(files, DIRECTORY, SPEC.name, 1)
            also(files.content())
            got = read_all(files)
            assert is_prefix(got, life.sent), length
            assert acknowledged <= len(got), length
            assert recovery.position == len(got)
            if got:
                assert (recovery.last_view, recovery.last_sequence) == (got[-1].view_id, got[-1].sequence)
                report = verify(DIRECTORY, files=files)
                assert report.ok and all(one.closed for one in report.files), (length, report.problems)
    return checked


@pytest.mark.parametrize("close_first", [True, False], ids=["closed", "killed"])
@pytest.mark.parametrize("same_file", [False, True], ids=["next", "same"])
def test_a_dead_machine_leaves_what_was_acknowledged(close_first: bool, same_file: bool) -> None:
    assert check_power_loss(live_through([1, 4, 2, 30, 9], [3, 4], 200, close_first, same_file=same_file)) > 100


def test_a_process_dies_and_then_the_machine() -> None:
    """What the killed process had not synced may still be lost while the next life closes its file."""
    assert check_power_loss(live_through([3, 5, 8], [2], 200, close_first=False, sync_last=False)) > 100


def test_a_dead_machine_while_the_file_grows() -> None:
    assert check_power_loss(live_through([40, 60, 40, 100], [1], 700)) > 100


def test_a_dead_machine_while_a_torn_file_is_repaired() -> None:
    """Crash during the recovery from a crash: the torn tail is either still there or safe beside the file."""
    life = live_through([3, 5, 4], [1], 300)
    name = next(name for name in life.files.content() if name.endswith("-000001.mcap"))
    # The first life up to its last commit, which is left half written.
    shown = [place for place, change in enumerate(life.files.trace) if change[0] == "write" and len(change[3]) == 9]
    files: dict[int, bytearray] = {}
    names: dict[str, int] = {}
    for change in life.files.trace[: shown[2] + 1]:
        apply(files, names, change)
    image = {one: bytearray(files[number]) for one, number in names.items()}
    hidden = life.files.trace[shown[2] - 1]
    image[name][hidden[2] + 512 : hidden[2] + 1024] = bytes(512)
    torn = MemoryFiles.of({one: bytes(data) for one, data in image.items()})
    assert verify(DIRECTORY, files=torn).status is Status.TORN
    before = torn.content()
    recover(torn, DIRECTORY, SPEC.name, 1)
    assert len(read_all(torn)) == 8
    # Replay the recovery on the torn image and crash it everywhere.
    numbers = {one: 1000 + place for place, one in enumerate(before)}
    renumbered = {torn.names_to_files[one]: number for one, number in numbers.items()}
    trace: list[Change] = []
    for one, data in before.items():
        trace += [("create", numbers[one], 0, b"", one, ""), ("write", numbers[one], 0, data, "", ""),
                  ("sync", numbers[one], 0, b"", "", "")]
    trace.append(("sync_directory", -1, 0, b"", "", ""))
    start = len(trace)
    trace += [(kind, renumbered.get(number, number), *rest) for kind, number, *rest in torn.trace]  # type: ignore[misc]
    disk = MemoryFiles()
    disk.trace = trace
    tail = bytes(image[name][hidden[2] - 9 :]).removesuffix(LIVE_TRAILER).rstrip(b"\0")

    def tail_is_kept(content: Image) -> None:
        assert tail in [data for one, data in content.items() if ".torn" in one]

    assert check_power_loss(Life(disk, life.sent, [(0, 8)]), start, tail_is_kept) > 5
