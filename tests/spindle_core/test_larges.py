"""Large samples in the core: they are received where their bytes are, delivered as one message like any other, and
given back when nobody names them any more.

Method: a group in one process, stepped by hand; the test is the control thread that brings the bytes.
"""

from __future__ import annotations

import errno
import fcntl
import os
import random

import pytest

from spindle_core.engine import SubgroupSpec
from spindle_core.errors import WriteTimeout
from spindle_core.inbox_writer import InboxWriter
from spindle_core.larges import OF_INBOX, entry_of, make_entry
from spindle_core.memory import Mapping
from spindle_core.reader import LogReader
from tests.spindle_core.cluster import Cluster

SIZE = 5000


def sealed(data: bytes) -> int:
    fd = os.memfd_create("large", os.MFD_ALLOW_SEALING)
    os.write(fd, data)
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE)
    return fd


class Beside:
    """What the node is to a writer: it takes the bytes under a number, and has them in the core's table at once."""

    def __init__(self, cluster: Cluster, place: int) -> None:
        self.cluster, self.place, self.number = cluster, place, 0
        self.samples: dict[int, bytes] = {}  # by id
        self.handed: dict[int, int] = {}  # id by number

    def make(self, size: int, timeout_s: float) -> Mapping:
        return Mapping.create("large", size)

    def hand_over(self, memory: Mapping) -> int:
        self.number += 1
        large_id = self.cluster.engines[self.place].node_id << 32 | self.number
        data = bytes(memory.view())[:SIZE]
        memory.close()
        self.samples[large_id] = data
        self.handed[self.number] = large_id
        inbox = self.inbox
        entry = make_entry(large_id, len(data), data[:8], data[-16:])
        assert self.cluster.engines[self.place].hand_over_large(inbox, self.number, large_id, entry)
        return self.number

    def drop(self, memory: Mapping) -> None:
        memory.close()

    def bytes_of(self, number: int) -> bytes | None:
        return self.samples.get(self.handed.get(number, 0))


class Group:
    """A cluster whose writers and readers have large samples; `here[i]` are the ids that node i has been brought."""

    def __init__(self, n: int = 2, **how: object) -> None:
        self.cluster = Cluster(n, size_max=64, **how)  # type: ignore[arg-type]
        self.beside: list[Beside] = []

    def writer(self, place: int, topic: int = 1, **how: int):  # type: ignore[no-untyped-def]
        cluster = self.cluster
        writer = cluster.writer(place, **how)
        beside = Beside(cluster, place)
        beside.inbox = cluster.kept[-1]  # type: ignore[attr-defined]
        writer.beside = beside
        self.beside.append(beside)
        return writer

    def bytes_of(self, large_id: int) -> bytes | None:
        return next((one.samples[large_id] for one in self.beside if large_id in one.samples), None)

    def opener(self, place: int):  # type: ignore[no-untyped-def]
        def opened(large_id: int) -> int:
            data = self.bytes_of(large_id) if self.cluster.engines[place].larges.has(large_id) else None
            return -1 if data is None else sealed(data)

        return opened

    def reader(self, place: int, **how: object) -> LogReader:
        reader = self.cluster.reader(place, **how)  # type: ignore[arg-type]
        reader.opener = self.opener(place)
        return reader

    def bring(self, place: int) -> int:
        """What node `place` waits for comes; how many."""
        wants = self.cluster.engines[place].larges.wants()
        for _, large_id, *_ in wants:
            assert self.cluster.engines[place].add_large(large_id)
        return len(wants)

    def settle(self) -> None:
        """Until nobody has anything to do, and everything that is missing has come."""
        self.cluster.settle()
        while sum(self.bring(place) for place in range(self.cluster.n)):
            self.cluster.settle()


def large(number: int, size: int = SIZE) -> bytes:
    return (b"%d " % number).ljust(size, b".")


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_large_sample_is_a_message_like_any_other(level: int) -> None:
    """Goal: order, contents and counts are those of one message. Method: small and large ones in turn, from two."""
    group = Group(level=level)
    readers = [group.reader(place) for place in (0, 1)]
    writers = [group.writer(place) for place in (0, 1)]
    written: list[list[bytes]] = [[], []]
    for number in range(6):
        for place, writer in enumerate(writers):
            data = large(number) if (number + place) % 2 else b"%d" % number
            writer.write(data)
            written[place].append(data)
        group.settle()
    taken = [reader.take_pairs(100) for reader in readers]
    for pairs in taken:
        for place in (0, 1):
            assert [data for data, info in pairs if info.sender == place + 1] == written[place]
        assert [info.large for _, info in pairs] == [len(data) > 64 for data, _ in pairs]
        assert [info.index for _, info in pairs] == list(range(12))
    if level:
        assert [data for data, _ in taken[0]] == [data for data, _ in taken[1]]


@pytest.mark.parametrize("batched", [True, False])
def test_nobody_delivers_what_one_member_lacks(batched: bool) -> None:
    """Goal: what is delivered anywhere is whole at every member; what comes before it isn't held. Method: one member
    is not brought the bytes for a while."""
    from spindle_core.engine import Switches

    group = Group(3, switches=Switches(batch_receive=batched))
    readers = [group.reader(place) for place in range(3)]
    writer = group.writer(0)
    writer.write(b"before")
    writer.write(large(1))
    writer.write(b"behind")
    group.cluster.settle()
    assert [reader.take(9) for reader in readers] == [[b"before"]] * 3
    assert group.bring(1) == 1
    group.cluster.settle()
    assert [reader.take(9) for reader in readers] == [[]] * 3
    [(topic, large_id, size, sender, _)] = group.cluster.engines[2].larges.wants()
    assert (topic, size, sender) == (1, SIZE, 1) and group.bytes_of(large_id) == large(1)
    assert group.bring(2) == 1
    group.cluster.settle()
    assert [reader.take(9) for reader in readers] == [[large(1), b"behind"]] * 3
    assert not any(engine.larges.wants() for engine in group.cluster.engines)


def test_a_want_stays_until_it_comes_or_is_forgotten() -> None:
    """Goal: the control thread is told once, and again when it asks for that. Method: as its text."""
    group = Group()
    group.reader(1)
    group.writer(0).write(large(1))
    group.cluster.settle()
    larges = group.cluster.engines[1].larges
    [want] = larges.wants()
    group.cluster.settle()
    assert larges.wants() == [want]
    larges.forget_want(want[1])
    assert larges.wants() == []
    with group.cluster.engines[1].parked():
        pass
    group.cluster.settle()
    assert larges.wants() == [want]


def wedge(group: Group) -> list[int]:
    """Every member wedges; the trim."""
    cluster = group.cluster
    for engine in cluster.engines:
        engine.wedge()
    frozen = [cluster.epochs[place].frozen_counts(place, 1) for place in range(cluster.n)]
    return [min(column) for column in zip(*frozen, strict=True)]


def test_a_view_that_ends_before_all_have_it_leaves_it_to_its_sender() -> None:
    """Goal: all or none: a trim keeps no sample that one member lacks; its sender sends it again, once. Method: the
    view changes while one member lacks the bytes."""
    group = Group()
    readers = [group.reader(place) for place in (0, 1)]
    writer = group.writer(0)
    writer.write(b"small")
    writer.write(large(1))
    writer.write(b"behind")
    group.cluster.settle()
    trim = wedge(group)
    assert all(engine.deliver_to_trim(1, trim) for engine in group.cluster.engines)
    assert [reader.take(9) for reader in readers] == [[b"small"]] * 2
    group.cluster.install(2, group.cluster.specs)
    assert not group.cluster.engines[1].larges.wants()     # of the view that is over
    group.settle()
    assert [reader.take(9) for reader in readers] == [[large(1), b"behind"]] * 2


def test_a_backlog_keeps_the_bytes() -> None:
    """Goal: what a trim delivers and a full log has no room for is not given back. Method: a log with room for the
    bytes of one; the reader takes when the next view is there."""
    group = Group(level=1)
    free, slow = group.reader(0), group.reader(1, large_max=SIZE)
    writer, engine = group.writer(0), group.cluster.engines[1]
    for number in range(3):
        writer.write(large(number))
    group.settle()
    trim = wedge(group)
    assert group.cluster.engines[0].deliver_to_trim(1, trim) and not engine.deliver_to_trim(1, trim)
    kept = engine.take_undelivered(1, trim)
    assert [one[-1] for one in kept] == [True, True] and engine.larges.count == 3
    engine.hold_delivery(1)
    group.cluster.install(2, group.cluster.specs)
    taken, log = slow.take(9), group.cluster.logs[1, 1]
    assert taken == [large(0)]
    for payload, sender, sequence, source_ns, writer_id, relay, tag, key, is_large in kept:
        assert log.append(payload, sender, sequence, 1, source_ns, writer_id, 0, relay, tag, key, is_large)
        engine.larges.unuse(entry_of(payload)[0])
        taken += slow.take(9)
    assert taken == free.take(9) == [large(number) for number in range(3)]
    engine.sweep_larges()
    assert sorted(engine.larges.take_released()) == sorted(group.beside[0].samples) and engine.larges.count == 0


def test_a_keep_all_reader_holds_its_writers_by_their_bytes() -> None:
    """Goal: a log has so many bytes of large samples and no more, and nothing is lost. Method: a log for two samples, a
    reader that takes one at a time."""
    group = Group(1)
    reader, writer = group.reader(0, large_max=2 * SIZE), group.writer(0)
    for number in range(6):
        writer.write(large(number))
    taken = []
    for _ in range(6):
        group.settle()
        assert group.cluster.logs[0, 1].large_bytes <= 2 * SIZE
        taken += reader.take(1)
    assert taken == [large(number) for number in range(6)] and reader.lost == 0


def test_one_that_is_larger_than_all_the_room_has_it_alone() -> None:
    """Method: as its name."""
    group = Group(1)
    reader, writer = group.reader(0, large_max=SIZE // 2), group.writer(0)
    for number in range(3):
        writer.write(large(number))
    taken = []
    for _ in range(3):
        group.settle()
        assert group.cluster.logs[0, 1].large_bytes == SIZE
        taken += reader.take(9)
    assert taken == [large(number) for number in range(3)]


def test_a_reader_that_keeps_the_last_loses_bytes_and_counts_them() -> None:
    """Goal: whoever doesn't keep all holds nobody up. Method: it takes after many more than its log has bytes of."""
    group = Group(1)
    reader, writer = group.reader(0, keep_all=False, large_max=2 * SIZE), group.writer(0)
    for number in range(7):
        writer.write(large(number))
        group.settle()
    assert reader.take(9) == [large(5), large(6)] and reader.lost == 5


def test_what_every_reader_has_taken_is_given_back() -> None:
    """Method: a reader takes one of two; the sweep gives that back, and the other one when it is taken, too."""
    group = Group(1)
    reader, writer = group.reader(0), group.writer(0)
    for number in range(2):
        writer.write(large(number))
    group.settle()
    engine = group.cluster.engines[0]
    first, second = group.beside[0].samples
    for taken, given in ((0, []), (1, [first]), (1, [second])):
        assert len(reader.take(taken)) == taken
        engine.sweep_larges()
        assert engine.larges.take_released() == given
    assert engine.larges.count == 0 and group.cluster.logs[0, 1].large_bytes == 0


def test_where_nobody_reads_it_is_given_back_at_once() -> None:
    """Method: two members, one without a log."""
    group = Group()
    group.reader(0)
    group.writer(0).write(large(1))
    group.settle()
    assert group.cluster.engines[1].larges.take_released() == list(group.beside[0].samples)
    assert group.cluster.engines[0].larges.take_released() == []


@pytest.mark.parametrize("held", [False, True])
def test_one_that_is_refused_is_given_back(held: bool) -> None:
    """Goal: a writer that names a sample in a slot that its node refuses keeps no memory there. Method: a topic whose
    slots are smaller than an entry; the node may hold the sample for others meanwhile."""
    group = Group(1, specs=[SubgroupSpec(1, (0,), (0,), 8, 16, 1)])
    reader, writer = group.reader(0), group.writer(0)
    writer.write(large(1))
    [large_id] = group.beside[0].samples
    larges = group.cluster.engines[0].larges
    if held:
        assert larges.hold(large_id)
    group.settle()
    assert writer.refused == 1 and reader.take(9) == [] and larges.undelivered([large_id]) == set()
    if held:
        larges.unuse(large_id)
    assert larges.take_released() == [large_id] and larges.count == 0
    writer.write(b"goes on")
    group.settle()
    assert reader.take(9) == [b"goes on"]


def test_a_log_that_ends_gives_everything_back() -> None:
    """Method: a log with three samples that nobody has taken is closed."""
    group = Group(1)
    group.reader(0)
    writer = group.writer(0)
    for number in range(3):
        writer.write(large(number))
    group.settle()
    engine = group.cluster.engines[0]
    engine.bind_log(1, None)
    group.cluster.logs[0, 1].close()
    assert sorted(engine.larges.take_released()) == sorted(group.beside[0].samples)


def test_a_loan_becomes_a_sample_in_place() -> None:
    """Goal: a claim of any size. Method: fill one in place; give one back; commit one of which a view is in use."""
    group = Group(1)
    reader, writer = group.reader(0), group.writer(0)
    view = writer.claim(SIZE)
    view[:] = large(1)
    writer.commit()
    writer.claim(SIZE)
    writer.abort()
    view = writer.claim(SIZE)
    view[:] = large(2)
    kept = memoryview(view)
    writer.commit()
    group.settle()
    assert reader.take(9) == [large(1), large(2)]
    assert bytes(kept) == large(2)


class Counting(Beside):
    """It counts what it has made and has not back."""

    def __init__(self, cluster: Cluster, place: int) -> None:
        super().__init__(cluster, place)
        self.open: set[int] = set()
        self.error: OSError | None = None
        self.meanwhile = lambda: None

    def make(self, size: int, timeout_s: float) -> Mapping:
        self.meanwhile()
        memory = super().make(size, timeout_s)
        self.open.add(id(memory))
        return memory

    def hand_over(self, memory: Mapping) -> int:
        if self.error is not None:
            raise self.error
        self.open.remove(id(memory))
        return super().hand_over(memory)

    def drop(self, memory: Mapping) -> None:
        self.open.discard(id(memory))
        super().drop(memory)


def counting(group: Group) -> tuple[Counting, InboxWriter]:
    writer = group.writer(0)
    beside = Counting(group.cluster, 0)
    beside.inbox = group.cluster.kept[-1]  # type: ignore[attr-defined]
    writer.beside = group.beside[0] = beside
    return beside, writer


@pytest.mark.parametrize("loan", [False, True])
def test_what_can_not_be_handed_over_is_dropped(loan: bool) -> None:
    """Goal: its memory counts no more. Method: handing over fails, for want of descriptors."""
    group = Group(1)
    reader, (beside, writer) = group.reader(0), counting(group)
    beside.error = OSError(errno.EMFILE, "too many")
    with pytest.raises(OSError, match="too many"):
        if loan:
            writer.claim(SIZE)[:] = large(1)
            writer.commit()
        else:
            writer.write(large(1))
    assert not beside.open
    beside.error = None
    writer.write(large(2))
    group.settle()
    assert reader.take(9) == [large(2)] and not beside.open


def test_nothing_is_handed_over_without_a_slot() -> None:
    """Goal: what is handed over can't be taken back, so its slot is sure by then. Method: another thread fills the ring
    while a writer waits for memory."""
    group = Group(1)
    reader, (beside, writer) = group.reader(0), counting(group)

    def fill_up() -> None:
        beside.meanwhile = lambda: None
        for _ in range(writer.slots_count):
            writer.write(b"other", timeout_s=0)

    beside.meanwhile = fill_up
    with pytest.raises(WriteTimeout):
        writer.write(large(1), timeout_s=0)
    assert not beside.handed and not beside.open
    group.settle()
    writer.write(large(1))
    group.settle()
    assert reader.take(99) == [b"other"] * writer.slots_count + [large(1)]


def test_a_large_sample_is_a_block_of_one_that_stays() -> None:
    """Goal: reading in place; the memory outlives the block, and what the log does. Method: as its text."""
    group = Group(1)
    reader, writer = group.reader(0), group.writer(0)
    for number in range(2):
        writer.write(large(number))
    writer.write(b"small")
    group.settle()
    with reader.take_block(10) as block:
        assert len(block) == 1 and block.payload_size == SIZE and block.intact
        held = block.buffer[block.offset:block.offset + SIZE]
        assert block.info(0).large and held.readonly
    assert not block.intact
    assert reader.take_with(1, bytes, info_attribute=None) == [large(1)]
    assert reader.take(1) == [b"small"] and bytes(held) == large(0)


def test_a_writer_that_lies_about_what_it_handed_over_is_refused() -> None:
    """Goal: a slot can name only what its node has taken charge of, once. Method: slots that name nothing, something
    of another writer, and the same thing twice."""
    group = Group(1)
    reader, honest, liar = group.reader(0), group.writer(0), group.writer(0)
    honest.beside.hand_over(honest.beside.make(SIZE, 0))
    ring = liar.ring.view()
    number = liar.beside.hand_over(liar.beside.make(SIZE, 0))
    for place, token in enumerate((number + 7, 0, number, number)):
        at = 4096 + place * 128
        ring[at + 8:at + 16] = (32).to_bytes(4, "little") + bytes([5, 0, 0, 0])
        ring[at + 24:at + 32] = (place + 1).to_bytes(8, "little")  # its source timestamp
        ring[at + 32:at + 40] = token.to_bytes(8, "little")
    ring[8:16] = (4).to_bytes(8, "little")
    group.settle()
    assert [info.source_timestamp for _, info in reader.take_pairs(9)] == [3]
    assert liar.refused == 3 and honest.refused == 0


def test_what_waits_in_an_inbox_is_bounded() -> None:
    """Method: samples are handed over and never named in a slot."""
    group = Group(1)
    beside = group.writer(0).beside
    for _ in range(OF_INBOX):
        beside.hand_over(beside.make(SIZE, 0))
    engine, entry = group.cluster.engines[0], make_entry(99, SIZE, bytes(8), bytes(16))
    assert not engine.hand_over_large(beside.inbox, 1000, 99, entry)
    assert len(beside.inbox.larges_waiting) == OF_INBOX


@pytest.mark.parametrize("loan", [False, True])
def test_a_writer_waits_for_a_place_in_its_inbox(loan: bool) -> None:
    """Goal: whoever writes faster than its node takes waits, however many slots there are. Method: an inbox with more
    slots than places for large samples; then its node takes some."""
    group = Group(1)
    reader, writer = group.reader(0, large_max=1 << 30), group.writer(0, slots=4 * OF_INBOX)

    def write(number: int) -> None:
        if loan:
            writer.claim(SIZE, 0)[:] = large(number)
            writer.commit()
        else:
            writer.write(large(number), timeout_s=0)

    written = 0
    for _ in range(3):
        with pytest.raises(WriteTimeout, match="64 of this writer are waiting for the group"):
            while True:
                write(written)
                written += 1
        writer.write(b"small", timeout_s=0)
        group.settle()
    assert written == 3 * OF_INBOX
    assert [len(one) for one in reader.take(999)] == ([SIZE] * OF_INBOX + [5]) * 3


def test_a_reader_whose_node_is_gone_stops_before_what_it_cannot_open() -> None:
    """Goal: another node's log gives the rest, so nothing is lost. Method: freeze a log with a small, a large and a
    small message that nobody has taken."""
    group = Group(1)
    reader, writer = group.reader(0), group.writer(0)
    for data in (b"first", large(1), b"last"):
        writer.write(data)
    group.settle()
    assert reader.freeze() == (1, 1)
    assert reader.take(9) == [b"first"] and reader.lost == 0


WENT = -2  # see LogReader, `opener`


def test_what_had_been_seen_behind_a_large_sample_is_left_to_the_next_log_too() -> None:
    """Method: as above, but the reader has taken one message, and so seen how far the log went."""
    group = Group(1)
    reader, writer = group.reader(0), group.writer(0)
    for data in (b"first", b"second", large(1), b"last"):
        writer.write(data)
    group.settle()
    assert reader.take(1) == [b"first"]
    assert reader.freeze() == (1, 2)
    assert reader.take(9) == [b"second"] and reader.take(9) == [] and (reader.lost, reader.pending) == (0, 0)


def test_a_large_sample_that_went_with_its_node_is_left_to_the_next_log() -> None:
    """Goal: also before anybody has frozen the log. If there is no other node, what is behind it comes all the same."""
    for goes_on in (True, False):
        group = Group(1)
        reader, writer = group.reader(0), group.writer(0)
        reader.goes_on, reader.opener = goes_on, lambda large_id: WENT
        for data in (b"first", large(1), b"last", large(2)):
            writer.write(data)
        group.settle()
        if goes_on:
            assert reader.take(9) == [b"first"] and reader.take(9) == [] and (reader.lost, reader.pending) == (0, 0)
            assert reader.is_gone and reader.freeze() == (1, 1)
            assert reader.read_on()
            assert reader.pending == 3
        else:
            assert reader.take(1) == [b"first"]
        assert reader.take(9) == [b"last"] and reader.lost == 2 and not reader.read_on()


def test_a_large_sample_that_is_opened_as_the_log_is_frozen_comes_once() -> None:
    """Goal: whoever froze it has said that the next log goes on with this sample. Method: the opener freezes it."""
    group = Group(1)
    reader, writer = group.reader(0), group.writer(0)
    opened, places = group.opener(0), []

    def late(large_id: int) -> int:
        places.append(reader.freeze())
        return opened(large_id)

    reader.opener = late
    for data in (b"first", large(1)):
        writer.write(data)
    group.settle()
    assert reader.take(9) == [b"first"] and reader.take(9) == []
    assert places == [(1, 1)] and reader.freeze() == (1, 1) and reader.lost == 0


def test_many_ids_are_found_whatever_goes_between() -> None:
    """Goal: the table of samples loses none and invents none. Method: adds and drops as a seed says, beside a set."""
    rng = random.Random(7)
    larges, there = Group(1).cluster.engines[0].larges, set()
    ids = [rng.getrandbits(64) | 1 for _ in range(6000)]
    for _ in range(30_000):
        one = rng.choice(ids)
        if rng.random() < 0.55:
            room = larges.add(one)
            assert room == (one in there or len(there) < 4096)
            there |= {one} if room else set()
        else:
            assert larges.drop(one)
            there.discard(one)
    assert larges.count == len(there)
    assert all(larges.has(one) == (one in there) for one in ids)


def test_what_is_no_entry_is_refused() -> None:
    """Method: bytes of another length."""
    with pytest.raises(ValueError, match="40 bytes, not 5"):
        entry_of(b"short")
