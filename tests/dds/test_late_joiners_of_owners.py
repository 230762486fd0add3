"""Late joiners of topics with exclusive ownership, or ordered by source: they begin with what counts.

Goal: who comes late thinks of each instance what those think that have been there all the while: its last sample, its
state, who owns it, and who else is there to write it. Method: a reader from the beginning beside late ones, at the
writers' node, at another one, without a node, and after a restart of all; scripts, and what writers do drawn at random.
"""

from __future__ import annotations

import os
import random
import signal
from pathlib import Path
from typing import Any

import pytest

from dds import DataReader, DataWriter, DomainParticipant, InstanceState, Policy, Qos, Topic
from dds.util import duration
from tests.dds.test_late_joiners import LOGGED, STAYS, VOLATILE, Track, qos
from tests.dds.test_ownership import strong
from tests.dds.test_remote import beside, remote
from tests.dds.test_sub import LONG
from tests.spindle.hosts import Host, hosts
from tests.support import seeds, wait_until

EXCLUSIVE = Policy.Ownership.Exclusive
BY_SOURCE = Policy.DestinationOrder.BySourceTimestamp
ALL = Qos(Policy.History.KeepAll)


def topic_of(participant: DomainParticipant, *more: Policy, kind: type = Track, durability: Policy = VOLATILE,
             depth: int = 1) -> Topic:
    return Topic(participant, "topic", kind, qos(durability, depth, *(more or (EXCLUSIVE,))))


def settled(writer: DataWriter, *samples: Any, **more: int) -> None:
    for sample in samples:
        writer.write(sample, **more)
    assert writer.wait_for_acks(LONG)


def known(reader: DataReader) -> dict[int, tuple[int, InstanceState]]:
    """What it thinks of each instance: the height in its last sample, and its state."""
    return {one.number: (one.height, one.sample_info.instance_state) for one in reader.read(9999)
            if one.sample_info.valid_data}


def heights(reader: DataReader) -> list[Any]:
    return [getattr(one, "height", one) for one in reader.take(999) if one.sample_info.valid_data]


def test_they_begin_with_the_owners_sample(two_nodes: tuple[DomainParticipant, DomainParticipant]) -> None:
    """Though a weaker writer has written later, of one instance often."""
    one, two = two_nodes
    topics = [topic_of(each) for each in two_nodes]
    owner, weak = DataWriter(one, topics[0], strong(2)), DataWriter(two, topics[1], strong(1))
    settled(owner, Track(1, 10), Track(2, 20))
    settled(weak, *(Track(1, 11) for _ in range(300)), Track(2, 21), Track(3, 31))
    settled(owner, Track(2, 22))
    for each, topic in zip(two_nodes, topics, strict=True):
        reader = DataReader(each, topic, ALL)
        wait_until(lambda reader=reader: len(reader.read(9)) == 3)
        assert sorted(heights(reader)) == [10, 22, 31]
        settled(weak, Track(1, 12))
        settled(owner, Track(1, 13))
        wait_until(lambda reader=reader: heights(reader) == [13])
        settled(owner, Track(1, 10), Track(2, 22))


def test_the_next_owner_is_known_to_them(participant: DomainParticipant) -> None:
    """A standby that has never counted is registered with the instance: when its owner ends, the instance lives on, and
    when it does, too, nobody is left."""
    topic = topic_of(participant)
    early = DataReader(participant, topic)
    stays = Policy.WriterDataLifecycle(False)
    owner, standby = (DataWriter(participant, topic, strong(rank, stays)) for rank in (2, 1))
    settled(owner, Track(1, 10))
    settled(standby, Track(1, 11))
    late = DataReader(participant, topic)
    owner.close()
    settled(standby)
    for reader in (early, late):
        wait_until(lambda reader=reader: known(reader) == {1: (10, InstanceState.Alive)})
    later = DataReader(participant, topic)
    standby.close()
    for reader in (early, late, later):
        wait_until(lambda reader=reader: reader.read(9)[-1].sample_info.instance_state
                   == InstanceState.NotAliveNoWriters)


def test_who_has_missed_its_deadline_owns_nothing_for_them_either(participant: DomainParticipant) -> None:
    topic = topic_of(participant, EXCLUSIVE, Policy.Deadline(duration(milliseconds=200)), depth=2)
    early = DataReader(participant, topic, ALL)
    owner, standby = (DataWriter(participant, topic, strong(rank)) for rank in (2, 1))
    settled(owner, Track(1, 10))

    def taken_over() -> bool:
        settled(standby, Track(1, 11))
        return any(one.height == 11 for one in early.read(99))

    wait_until(taken_over)
    standby.write(Track(1, 12))
    late = DataReader(participant, topic, ALL)
    wait_until(lambda: any(one.height == 12 for one in early.read(99)))
    wait_until(lambda: [one.height for one in late.read(99)][-1:] == [12])


def test_what_the_weaker_ends_goes_on(participant: DomainParticipant) -> None:
    topic = topic_of(participant)
    owner, weak = (DataWriter(participant, topic, strong(rank)) for rank in (2, 1))
    settled(owner, Track(1, 10), Track(2, 20))
    weak.dispose(Track(1))
    settled(weak, Track(2, 21))
    weak.unregister_instance(Track(2))
    weak.close()
    owner.dispose(Track(2))
    settled(owner)
    late = DataReader(participant, topic)
    wait_until(lambda: known(late) == {1: (10, InstanceState.Alive), 2: (20, InstanceState.NotAliveDisposed)})


@pytest.mark.parametrize("larger", [b"", bytes(200_000)], ids=["small", "large"])
def test_types_without_a_key(participant: DomainParticipant, larger: bytes) -> None:
    """Also samples that lie beside the order, whose strength stands in it."""
    topic = topic_of(participant, kind=bytes)
    owner, weak = (DataWriter(participant, topic, strong(rank)) for rank in (1 << 16, 1))
    settled(weak, b"first" + larger)
    settled(owner, b"owner" + larger)
    settled(weak, b"other" + larger)
    late = DataReader(participant, topic, ALL)
    assert [one[:5] for one in late.take(9)] == [b"owner"]
    owner.close()
    later = DataReader(participant, topic, ALL)
    settled(weak, b"again" + larger)
    for reader, wanted in ((late, [b"again"]), (later, [b"owner", b"again"])):
        assert [one[:5] for one in reader.take(9)] == wanted


def test_types_without_a_key_by_source(participant: DomainParticipant) -> None:
    topic = topic_of(participant, BY_SOURCE, kind=bytes)
    early = DataReader(participant, topic)
    writer = DataWriter(participant, topic)
    settled(writer, b"late", timestamp=2000)
    settled(writer, b"early", timestamp=1000)
    assert DataReader(participant, topic).read(9) == early.read(9) == [b"late"]


def test_after_the_death_of_all(runtime_dir: Path, tmp_path: Path) -> None:
    """Nodes find in their journals what counted."""
    with hosts(runtime_dir, 2, f'journal.dir="{tmp_path}"') as site:
        with DomainParticipant(runtime_dir=site[0].directory) as one:
            topic = topic_of(one, durability=LOGGED)
            keeper = DataReader(one, topic)
            owner, weak = (DataWriter(one, topic, Qos(STAYS) + strong(rank)) for rank in (2, 1))
            settled(owner, Track(1, 10))
            settled(weak, *(Track(1, 11) for _ in range(50)))
            assert weak.wait_for_acks(LONG, persisted=True)
            wait_until(lambda: keeper.read(9))
            for host in site:
                os.kill(host.running.pid, signal.SIGKILL)
        for host in site:
            host.running.process.wait()
            host.start()
        for host in site:
            host.running.wait_ready()
        with DomainParticipant(runtime_dir=site[1].directory) as two:
            reader = DataReader(two, topic_of(two, durability=LOGGED), ALL)
            wait_until(lambda: [one.height for one in reader.read(9) if one.sample_info.valid_data] == [10])


def test_programs_without_a_node(site: list[Host]) -> None:
    """They write, come late, and go on at the next node."""
    with remote(site) as far, beside(site[1]) as near:
        topics = [topic_of(each) for each in (far, near)]
        owner, weak = DataWriter(near, topics[1], strong(2)), DataWriter(far, topics[0], strong(1, STAYS))
        settled(weak, Track(1, 9))
        settled(owner, Track(1, 10))
        settled(weak, *(Track(1, 11) for _ in range(50)))
        late = [DataReader(each, topic, ALL) for each, topic in zip((far, near), topics, strict=True)]
        for reader in late:
            wait_until(lambda reader=reader: [one.height for one in reader.read(9)] == [10])
        site[0].running.kill()
        wait_until(lambda: far.session.node_id == 2, 30)
        owner.close()
        settled(weak, Track(1, 12))
        for reader in late:
            wait_until(lambda reader=reader: [one.height for one in reader.read(9) if one.sample_info.valid_data]
                       == [10, 12])
            assert reader.read(9)[-1].sample_info.instance_state == InstanceState.Alive


class Script:
    """What three writers at two nodes do, drawn at random, and a reader that has been there all the while."""

    def __init__(self, rng: random.Random, participants: tuple[DomainParticipant, DomainParticipant],
                 depth: int) -> None:
        self.rng, self.participants, self.step = rng, participants, 0
        self.topics = [topic_of(each, depth=depth) for each in participants]
        self.depth = Qos(Policy.History.KeepLast(depth))
        self.early = DataReader(participants[1], self.topics[1], self.depth)
        self.strengths = [0] * 3
        self.writers = [self.writer(n) for n in range(3)]
        self.owners: dict[int, int] = {}

    def writer(self, n: int) -> DataWriter:
        at, self.strengths[n] = self.rng.randrange(2), self.rng.randrange(3)
        ends = Policy.WriterDataLifecycle(self.rng.random() < 0.3)
        return DataWriter(self.participants[at], self.topics[at], strong(self.strengths[n], ends))

    def rank(self, n: int) -> tuple[int, int]:
        return self.strengths[n], -self.writers[n].instance_handle

    def goes_on(self) -> None:
        n, number, what = self.rng.randrange(3), self.rng.randrange(3), self.rng.random()
        self.step += 1
        owner = self.owners.get(number)
        if what < 0.7:
            self.writers[n].write(Track(number, self.step))
            if owner is None or self.rank(n) >= self.rank(owner):
                self.owners[number] = n
        elif what < 0.8:
            self.writers[n].unregister_instance(Track(number))
            self.left(n, [number])
        elif what < 0.87 and owner is not None:  # who ends what it has not written is more than nodes go by
            self.writers[owner].dispose(Track(number))
        else:
            self.writers[n].close()
            self.left(n, list(self.owners))
            self.writers[n] = self.writer(n)
        assert all(one.wait_for_acks(LONG) for one in self.writers)

    def left(self, n: int, numbers: list[int]) -> None:
        for number in numbers:
            if self.owners.get(number) == n:
                del self.owners[number]

    def late(self) -> DataReader:
        at = self.rng.randrange(2)
        return DataReader(self.participants[at], self.topics[at], self.depth)


def alive(reader: DataReader) -> dict[int, list[int]]:
    """Of each instance that is alive the heights in its samples."""
    found: dict[int, list[int]] = {}
    for one in reader.read(9999):
        if one.sample_info.instance_state == InstanceState.Alive:
            known = found.setdefault(one.sample_info.instance_handle, [])
            if one.sample_info.valid_data:
                known.append(one.height)
    return found


def agree(early: DataReader, late: DataReader) -> bool:
    """They have the same instances, and of each the same last samples. (What one had of an instance before it was over,
    nodes have forgotten.)"""
    had, have = alive(early), alive(late)
    return had.keys() == have.keys() and all(one and had[number][-len(one):] == one for number, one in have.items())


@pytest.mark.parametrize("seed", seeds(12, quick=3))
def test_at_random_they_think_what_all_think(
    two_nodes: tuple[DomainParticipant, DomainParticipant], seed: int,
) -> None:
    """Of what lives, and of who owns it: what is written from then on counts for all or none. (What has ended, nodes
    may have forgotten.)"""
    rng = random.Random(seed)
    script = Script(rng, two_nodes, rng.choice((1, 1, 3)))
    readers = [script.early]
    for _ in range(6):
        for _ in range(rng.randrange(1, 25)):
            script.goes_on()
        readers.append(script.late())
        for _ in range(rng.randrange(3)):
            script.goes_on()
        for one in readers[1:]:
            wait_until(lambda one=one: agree(script.early, one), what=f"{alive(script.early)} and {alive(one)}")
