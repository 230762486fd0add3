"""Goal: of each writer on a host without a node a journal knows the last message, whatever files of it are left, and
whether it was stopped or killed; also what it was told of messages before its first.
Method: journals of several files in memory; after each step a new one takes up what is there."""

from __future__ import annotations

from pathlib import Path

from spindle.journal import Journal
from spindle.journal.relays import RELAYED_MAX, Relays, identity_of, newest
from spindle.journal.retention import Retention
from spindle.journal.tools import verify
from spindle.restart.disk import Store, cut_after, relayed_before
from tests.spindle.journal.fakes import SPEC, FakeInfo, MemoryFiles, MemorySource, Witness

DIRECTORY = Path("/journal")
A, B, NONE = (7 << 15 | 3, 9 << 15 | 3, 5 << 15 | 1)
GROUPS = 6
PER_GROUP = 10


def sent(group: int) -> list[tuple[bytes, FakeInfo]]:
    """Ten messages of a view of its own: of A in the first groups, of B in turn with a local writer always."""
    made = []
    for place in range(PER_GROUP):
        index = group * PER_GROUP + place
        writer, relay = ((0x8003, 7) if place == 0 and group < 2 else (0x8003, 9) if place % 2 else (3, 0))
        made.append((bytes(200), FakeInfo(1000 + index, 2000 + index, 1, writer, place, group, index, relay)))
    return made


def last_of(identity: int, groups: int) -> int:
    """As it must be known after so many groups."""
    if identity == A:
        return 1000 + (min(groups, 2) - 1) * PER_GROUP if groups else 0
    return 1000 + groups * PER_GROUP - 1 if groups and identity == B else 0


def opened(files: MemoryFiles, **more: object) -> tuple[Journal, MemorySource]:
    source, witness = MemorySource(), Witness()
    more.setdefault("max_file_size", 3000)
    return Journal(DIRECTORY, SPEC, 1, source, witness.on_durable, witness.on_failure, group_commit_ms=0.0, group="ab",
                   files=files, **more), source  # type: ignore[arg-type]


def put(journal: Journal, source: MemorySource, group: int) -> None:
    source.put(sent(group))
    assert journal.wait_durable((group + 1) * PER_GROUP, 10)


def test_identities() -> None:
    assert identity_of(7 << 16 | 0x8003) == A and identity_of(0x8003) == 0 and identity_of(3) == 0


def test_what_earlier_files_had_is_known_when_they_are_gone() -> None:
    files = MemoryFiles()
    journal, source = opened(files, retention=Retention(keep_files=1))
    for group in range(GROUPS):
        put(journal, source, group)
        killed = MemoryFiles.of(files.content())
        again, _ = opened(killed)
        for one in (journal, again):
            assert [one.relayed_until(writer) for writer in (A, B, NONE)] == [
                last_of(A, group + 1), last_of(B, group + 1), 0]
        again.close()
    journal.close()
    assert sum(name.endswith(".mcap") for name in files.names(DIRECTORY)) == 2
    journal, _ = opened(files)
    assert journal.relayed_until(A) == last_of(A, GROUPS)
    journal.close()


def test_up_to_any_message() -> None:
    """Goal: who gets the rest of a journal is told what came before, not more."""
    files = MemoryFiles()
    journal, source = opened(files)
    for group in range(GROUPS):
        put(journal, source, group)
    journal.close()
    store = Store(DIRECTORY, SPEC.name, 1, files)
    everything = [info for group in range(GROUPS) for _, info in sent(group)]
    for place, first in enumerate(everything):
        wanted: dict[int, int] = {}
        for info in everything[:place]:
            if info.relay:
                wanted[info.relay << 15 | 3] = info.source_timestamp
        assert relayed_before(store, (first.view_id, first.sequence)) == wanted
    assert relayed_before(store, (GROUPS, -1)) == {A: last_of(A, GROUPS), B: last_of(B, GROUPS)}
    cut_after(store, (1, PER_GROUP - 1))
    journal, _ = opened(files)  # what is cut off was never had
    assert (journal.relayed_until(A), journal.relayed_until(B)) == (last_of(A, 2), last_of(B, 2))
    journal.close()


def test_what_a_node_says_in_its_name_says_nothing_of_how_far_it_is() -> None:
    """Such a message has no timestamp, and is delivered later than the writer's next ones may have been stamped."""
    files = MemoryFiles()
    journal, source = opened(files)
    put(journal, source, 0)
    said = FakeInfo(0, 9000, 1, 0x8003, 0, 1, PER_GROUP, 9)
    source.put([(b"", said)])
    assert journal.wait_durable(PER_GROUP + 1, 10)
    assert journal.relayed_until(B) == last_of(B, 1)
    journal.close()
    assert relayed_before(Store(DIRECTORY, SPEC.name, 1, files), (1, 1)) == {A: last_of(A, 1), B: last_of(B, 1)}
    journal, _ = opened(files)
    assert journal.relayed_until(B) == last_of(B, 1)
    journal.close()


def test_what_it_was_told_lasts() -> None:
    files = MemoryFiles()
    journal, source = opened(files, max_file_size=1 << 20)
    journal.learn({A: 900, NONE: 50})
    assert journal.relayed_until(A) == 900
    put(journal, source, 0)
    journal.learn({NONE: 60})
    put(journal, source, 1)
    journal.close()
    names = [name for name in files.names(DIRECTORY) if name.endswith(".mcap")]
    assert len(names) == 2  # an empty file was replaced
    journal, _ = opened(files)
    assert (journal.relayed_until(A), journal.relayed_until(NONE)) == (last_of(A, 2), 60)
    journal.close()


def test_a_head_is_a_head_for_every_reader(tmp_path: Path) -> None:
    source, witness = MemorySource(), Witness()
    journal = Journal(tmp_path, SPEC, 1, source, witness.on_durable, witness.on_failure, group_commit_ms=0.0)
    journal.learn({writer << 20: writer for writer in range(1, RELAYED_MAX + 1)})
    put(journal, source, 0)
    journal.close()
    assert verify(tmp_path).ok and not witness.failures


def test_those_silent_for_longest_are_forgotten() -> None:
    relays = Relays()
    for writer in range(1, 2 * RELAYED_MAX + 2):
        relays.note(writer, writer)
    assert len(relays.last) == RELAYED_MAX and 2 * RELAYED_MAX + 1 in relays.last
    assert newest({1: 5, 2: 6}) == {1: 5, 2: 6}
