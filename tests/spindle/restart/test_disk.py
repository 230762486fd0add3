"""Goal: what a restart does with files: journals end where they are told to, whatever instant the process dies at there
is a prefix and nothing is lost; ends and rests are read right; damage is cut where it begins; ledgers survive crashes.
Method: journals of several files on a disk in memory that records what is done; cut at every place, stopped at every
change; bytes flipped; ledgers with arbitrary content."""

from __future__ import annotations

import copy
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spindle.errors import JournalError
from spindle.journal import Journal, JournalBusy, JournalCorrupt
from spindle.journal.names import lock_name
from spindle.journal.reading import JournalMessage, read
from spindle.restart.chain import (
    NOTHING,
    Decision,
    Holders,
    Life,
    Missing,
    Order,
    Standing,
    Successor,
    agreed_end,
    decide,
)
from spindle.restart.disk import (
    Store,
    begin_of_end,
    cut_after,
    cut_damage,
    messages_after,
    messages_from,
    take_up,
)
from spindle.restart.ledger import Ledger, decode, encode, view_floor
from spindle.restart.pieces import ENTRY_SIZE
from spindle.restart.repairing import repair_journals
from tests.spindle.journal.fakes import SPEC, MemoryFiles, MemorySource, Witness, apply, messages
from tests.spindle.journal.test_crash import power_images

DIRECTORY = Path("/journal")
COUNT = 60


def journal_of(files: MemoryFiles, count: int = COUNT) -> list[tuple[bytes, Order]]:
    """A journal of several files, ten messages a commit; what was written, with orders."""
    source, witness = MemorySource(), Witness()
    journal = Journal(DIRECTORY, SPEC, 1, source, witness.on_durable, witness.on_failure, max_file_size=3000,
                      group_commit_ms=0.0, group="ab", files=files)
    sent = messages(count)
    for start in range(0, count, 10):
        source.put(sent[start : start + 10])
        assert journal.wait_durable(start + 10, 10)
    journal.close()
    assert not witness.failures
    return [(payload, (info.view_id, info.sequence)) for payload, info in sent]


def store_of(files: MemoryFiles) -> Store:
    return Store(DIRECTORY, SPEC.name, 1, files)


def held(store: Store) -> list[tuple[bytes, Order]]:
    return [plain(one) for one in messages_after(store, NOTHING, (1 << 40, 0))]


def plain(one: JournalMessage) -> tuple[bytes, Order]:
    return one.payload, (one.view_id, one.sequence)


def test_a_journal_is_cut_anywhere_and_goes_on() -> None:
    made = MemoryFiles()
    sent = journal_of(made)
    for place in range(-1, COUNT):
        store = store_of(MemoryFiles.of(made.content()))
        end = sent[place][1] if place >= 0 else NOTHING
        count, kept = cut_after(store, end)
        left = held(store)
        # Whole commits: at most nine messages before the end are cut off, too, to be fetched again.
        assert left == sent[: (place + 1) // 10 * 10]
        assert count == COUNT - len(left) and bool(kept) == bool(count)
        found = take_up(store, Ledger(DIRECTORY, SPEC.name, 1, store.files))
        assert found.end == (left[-1][1] if left else NOTHING)
        assert found.type == ((SPEC.type_name, SPEC.type_hash) if left else ("", b""))
        assert cut_after(store, end) == (0, [])


def test_death_in_the_middle_of_a_cut_loses_nothing() -> None:
    made = MemoryFiles()
    sent = journal_of(made)
    cutting = MemoryFiles.of(made.content())
    before = copy.deepcopy(cutting.files), dict(cutting.names_to_files)
    cut_after(store_of(cutting), sent[24][1])
    for length in range(len(cutting.trace) + 1):
        files, names = copy.deepcopy(before)
        for change in cutting.trace[:length]:
            apply(files, names, change)
        disk = MemoryFiles.of({name: bytes(files[number]) for name, number in names.items()})
        store = store_of(disk)
        take_up(store, Ledger(DIRECTORY, SPEC.name, 1, disk))
        left = held(store)
        assert left == sent[: len(left)] and len(left) >= 20
        beside = b"".join(data for name, data in disk.content().items() if ".forked" in name)
        assert all(payload in beside for payload, _ in sent[len(left) :])
        cut_after(store, sent[24][1])
        assert held(store) == sent[:20]


def test_what_is_older_than_a_new_beginning_is_put_aside_by_whoever_looks_next() -> None:
    """The standing says so first; whatever dies in the middle, nothing is lost, and nothing counts any more."""
    made = MemoryFiles()
    sent = journal_of(made)
    store = store_of(made)
    Ledger(DIRECTORY, SPEC.name, 1, made).update(
        lives=(Life("ab.9", sent[-1][1][0] + 1),), holders=Holders(9, (1,)), whole=True)
    before = copy.deepcopy(made.files), dict(made.names_to_files)
    began = len(made.trace)
    found = take_up(store, Ledger(DIRECTORY, SPEC.name, 1, made))
    assert (found.begin, found.end, found.recovery.position, found.type) == (NOTHING, NOTHING, 0, ("", b""))
    assert found.standing.whole and not held(store)
    for length in range(len(made.trace) - began + 1):
        files, names = copy.deepcopy(before)
        for change in made.trace[began : began + length]:
            apply(files, names, change)
        disk = MemoryFiles.of({name: bytes(files[number]) for name, number in names.items()})
        store = store_of(disk)
        assert take_up(store, Ledger(DIRECTORY, SPEC.name, 1, disk)).end == NOTHING and not held(store)
        beside = b"".join(data for name, data in disk.content().items() if name.endswith(".aside"))
        assert all(payload in beside for payload, _ in sent)


def test_a_ledger_keeps_in_mind_that_what_the_node_has_was_given_up() -> None:
    files = MemoryFiles()
    Ledger(DIRECTORY, SPEC.name, 1, files).update(successor=Successor(Holders(9, (2,)), (1, 2), renews=True))
    assert Ledger(DIRECTORY, SPEC.name, 1, files).read().successor == Successor(Holders(9, (2,)), (1, 2), renews=True)


def test_what_is_older_than_a_new_beginning_may_be_damaged() -> None:
    files = MemoryFiles()
    sent = journal_of(files)
    store = store_of(files)
    ledger = Ledger(DIRECTORY, SPEC.name, 1, files)
    ledger.update(lives=(Life("ab.9", sent[-1][1][0]),), holders=Holders(9, (1,)), whole=True)
    path = sorted(name for name in files.content() if name.endswith(".mcap"))[-1]
    data = files.files[files.names_to_files[path]]
    data[data.index(b"spindle.commit") + 5] ^= 4
    before = files.content()
    with pytest.raises(JournalCorrupt):
        take_up(store, Ledger(DIRECTORY, SPEC.name, 2, files))  # as of one that knows of no beginning
    ledger.update(lives=(Life("ab.9", sent[-1][1][0] + 1),))
    assert take_up(store, ledger).end == NOTHING and not held(store)
    assert {name.removesuffix(".aside"): data for name, data in files.content().items() if "mcap" in name} == {
        name: data for name, data in before.items() if "mcap" in name}


def test_the_end_and_the_rest_of_a_journal() -> None:
    files = MemoryFiles()
    sent = journal_of(files)
    store = store_of(files)
    for place in (-1, 0, 9, 10, 33, COUNT - 1):
        after = sent[place][1] if place >= 0 else NOTHING
        assert [plain(one) for one in messages_after(store, after, sent[40][1])] == sent[place + 1 : 41]

    def end(count_max: int, bytes_max: int, overhead: int, size_max: int = 1 << 20, large_max: int = 0
            ) -> list[tuple[bytes, Order]]:
        begin = begin_of_end(store, count_max, bytes_max, overhead, size_max, large_max)
        return [plain(one) for one in messages_from(store, begin, sent[-1][1])]

    assert end(0, 1 << 20, 0) == sent
    for depth in range(1, COUNT + 2):
        assert end(depth, 1 << 20, 0) == sent[-depth:]
    for room in (0, 10, 100, 1000):
        found = end(0, room, 8)
        assert found == sent[COUNT - len(found) :] and sum(len(one) + 8 for one, _ in found) <= room
        if len(found) < COUNT:
            assert sum(len(one) + 8 for one, _ in sent[COUNT - len(found) - 1 :]) > room
    # All are large: their entries count, and their bytes apart; one that has more than there is room for comes alone.
    entry = ENTRY_SIZE + 8
    assert end(0, COUNT * entry, 8, 0, 1 << 20) == sent
    assert end(0, 3 * entry, 8, 0, 1 << 20) == sent[-3:]
    assert end(0, 1 << 20, 8, 0, sum(len(one) for one, _ in sent[-4:])) == sent[-4:]


def test_a_journal_without_a_ledger_was_this_node_s_alone() -> None:
    files = MemoryFiles()
    sent = journal_of(files)
    ledger = Ledger(DIRECTORY, SPEC.name, 1, files)
    found = take_up(store_of(files), ledger)
    assert found.standing.whole and found.standing.holders == Holders(sent[-1][1][0], (1,))
    assert found.standing.lives == (Life("ab", sent[0][1][0]),)
    assert (found.begin, found.end) == (sent[0][1], sent[-1][1])
    assert view_floor(DIRECTORY, 1, files) == sent[-1][1][0] + 1
    assert view_floor(DIRECTORY, 2, files) == 0


@pytest.mark.parametrize("share", [0.02, 0.3, 0.5, 0.7])
def test_damage_is_cut_where_it_begins(share: float) -> None:
    files = MemoryFiles()
    sent = journal_of(files)
    store = store_of(files)
    take_up(store, Ledger(DIRECTORY, SPEC.name, 1, files))
    assert cut_damage(store) == []
    path = sorted(name for name in files.content() if name.endswith(".mcap"))[1]
    data = files.files[files.names_to_files[path]]
    data[int(len(data) * share)] ^= 4
    kept = cut_damage(store)
    left = held(store)
    assert kept and left == sent[: len(left)] and 10 <= len(left) < COUNT
    beside = b"".join(data for name, data in files.content().items() if ".damaged" in name)
    assert all(payload in beside for payload, _ in sent[len(left) + 10 :])  # one payload may be the damage
    found = take_up(store, Ledger(DIRECTORY, SPEC.name, 1, files))
    assert not found.standing.whole and found.end == left[-1][1]
    assert cut_damage(store) == []


def test_a_journal_in_use_is_not_repaired_and_the_command_finds_topics(tmp_path: Path) -> None:
    made = MemoryFiles()
    journal_of(made)
    for name, data in made.content().items():
        (tmp_path / name).write_bytes(data)
    assert repair_journals(tmp_path) == []
    path = sorted(tmp_path.glob("*.mcap"))[-1]
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    store = Store(tmp_path, SPEC.name, 1)
    lock = store.files.lock(tmp_path / lock_name(SPEC.name, 1))
    assert lock is not None
    with pytest.raises(JournalBusy):
        repair_journals(tmp_path)
    store.files.close(lock)
    (done,) = repair_journals(tmp_path)
    assert (done.topic, done.node_id) == (SPEC.name, 1) and all(kept.exists() for kept in done.kept)
    assert list(read(tmp_path))


ORDERS = st.tuples(st.integers(-1, 1 << 60), st.integers(-1, 1 << 60))
HOLDERS = st.builds(Holders, st.integers(0, 1 << 60), st.lists(st.integers(1, 65535), max_size=5).map(tuple))
STANDINGS = st.builds(
    Standing, st.lists(st.builds(Life, st.text(), st.integers(0, 1 << 60), ORDERS), max_size=3).map(tuple),
    st.none() | HOLDERS, st.booleans(),
    st.none() | st.builds(Successor, HOLDERS, st.lists(st.integers(1, 9), max_size=3).map(tuple)),
    st.integers(-1, 1 << 60))


@given(STANDINGS, st.data())
def test_a_ledger_reads_back_what_it_was_and_knows_damage(standing: Standing, data: st.DataObject) -> None:
    encoded = encode(standing, "a topic", 7)
    assert decode(encoded, DIRECTORY) == standing
    place = data.draw(st.integers(0, len(encoded) - 1))
    damaged = bytearray(encoded)
    damaged[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(JournalCorrupt):
        decode(bytes(damaged), DIRECTORY)


@given(st.binary(max_size=200))
def test_arbitrary_bytes_are_no_ledger(data: bytes) -> None:
    with pytest.raises(JournalCorrupt, match="spindle journal repair"):
        decode(data, DIRECTORY)


def test_an_update_of_a_ledger_is_there_whole_or_not_at_all() -> None:
    """And it is there when update() has returned, even if the power goes: whatever isn't synced may be missing then."""
    files = MemoryFiles()
    ledger = Ledger(DIRECTORY, "t", 1, files)
    steps, returned = [Standing()], [0]
    for changes in ({"holders": Holders(1, (1, 2)), "whole": True, "seen_view": 4},
                    {"holders": Holders(5, (1,)), "seen_view": 2}):
        steps.append(ledger.update(**changes))
        returned.append(len(files.trace))
    assert steps[2].seen_view == 4
    assert ledger.update(seen_view=3) == steps[2] and len(files.trace) == returned[2]
    for length in range(len(files.trace) + 1):
        possible = steps[sum(length >= end for end in returned) - 1 :]
        contents: dict[int, bytearray] = {}
        names: dict[str, int] = {}
        for change in files.trace[:length]:
            apply(contents, names, change)
        killed = {name: bytes(contents[number]) for name, number in names.items()}
        for image in (killed, *power_images(files.trace, length)):
            assert Ledger(DIRECTORY, "t", 1, MemoryFiles.of(image)).read() in possible, length


def test_reading_a_ledger_waits_for_no_disk() -> None:
    """While an update hangs in a sync, readers get what is on the disk. The event loop is one of them."""
    syncing, go_on = threading.Event(), threading.Event()

    class SlowFiles(MemoryFiles):
        def sync(self, handle: int) -> None:
            syncing.set()
            assert go_on.wait(10)
            super().sync(handle)

    ledger = Ledger(DIRECTORY, "t", 1, SlowFiles())
    updating = threading.Thread(target=lambda: ledger.update(seen_view=7), daemon=True)
    updating.start()
    assert syncing.wait(10)
    before = ledger.read()
    go_on.set()
    updating.join(10)
    assert before.seen_view == -1 and ledger.read().seen_view == 7 and not updating.is_alive()


def with_damaged_ledger() -> tuple[MemoryFiles, list[tuple[bytes, Order]], str]:
    """A journal, what is in it, and the name of its ledger."""
    files = MemoryFiles()
    sent = journal_of(files)
    take_up(store_of(files), Ledger(DIRECTORY, SPEC.name, 1, files))
    name = next(name for name in files.content() if name.endswith(".standing"))
    files.files[files.names_to_files[name]][10] ^= 1
    return files, sent, name


def test_a_damaged_ledger_refuses_the_journal_until_it_is_repaired() -> None:
    """That keeps the messages. They count for no majority, and are those of nobody else."""
    files, sent, name = with_damaged_ledger()
    store = store_of(files)
    damaged = files.content()[name]
    with pytest.raises(JournalError, match="spindle journal repair"):
        take_up(store, Ledger(DIRECTORY, SPEC.name, 1, files))
    (kept,) = cut_damage(store)
    assert kept.name == f"{name}.damaged" and files.content()[kept.name] == damaged
    found = take_up(store, Ledger(DIRECTORY, SPEC.name, 1, files))
    assert held(store) == sent and found.end == sent[-1][1]
    assert found.standing.holders is None and not found.standing.whole and found.standing.lives[0].group_id == 0xAB
    view_id = view_floor(DIRECTORY, 1, files)
    refused = decide({1: found.summary}, "cd.9", view_id)
    assert isinstance(refused, Missing) and 'restart = "any"' in refused.reason
    chosen = decide({1: found.summary}, "cd.9", view_id, "any")
    assert isinstance(chosen, Decision) and chosen.source == 1 and chosen.end == sent[-1][1]
    assert cut_damage(store) == []
    again, _, _ = with_damaged_ledger()
    cut_damage(store_of(again))
    other = Ledger(DIRECTORY, SPEC.name, 1, again).read().lives
    assert agreed_end(found.standing.lives, found.end, other, found.end) == NOTHING  # who knows what those had before


def test_death_while_a_ledger_is_repaired_lets_nobody_take_the_journal_for_more() -> None:
    files, sent, _ = with_damaged_ledger()
    before, began = (copy.deepcopy(files.files), dict(files.names_to_files)), len(files.trace)
    cut_damage(store_of(files))
    refused = 0
    for length in range(len(files.trace) - began + 1):
        contents, names = copy.deepcopy(before)
        for change in files.trace[began : began + length]:
            apply(contents, names, change)
        disk = MemoryFiles.of({name: bytes(contents[number]) for name, number in names.items()})
        assert held(store_of(disk)) == sent
        try:
            assert take_up(store_of(disk), Ledger(DIRECTORY, SPEC.name, 1, disk)).standing.holders is None
        except JournalCorrupt:
            refused += 1
            cut_damage(store_of(disk))
            assert take_up(store_of(disk), Ledger(DIRECTORY, SPEC.name, 1, disk)).standing.holders is None
    assert refused


def test_a_journal_that_has_lost_its_ledger_says_which_view_it_knows() -> None:
    """Else its node, alone, forms a group whose views are no later than its messages, and waits for ever."""
    files = MemoryFiles()
    sent = journal_of(files)
    assert view_floor(DIRECTORY, 1, files) == sent[-1][1][0] + 1
    assert view_floor(DIRECTORY, 2, files) == 0
    newest = max(name for name in files.content() if name.endswith(".mcap"))
    files.files[files.names_to_files[newest]][:] = b"damaged"
    assert view_floor(DIRECTORY, 1, files) == 0
