"""Goal: under one name lives one class at a time, in one version. A later version goes on with the state when nobody of
the earlier one is there, however those ended.

Method: the state machines alone, replicas on nodes of this process, and programs that are killed.
"""

from __future__ import annotations

import threading
import time

import pytest

from dds import DataReader, DDSException, DomainParticipant, Topic
from dds.matching.matching import Runtime
from dds.replicated import Object, Replica, ReplicaDiverged, command
from dds.replicated.agreed import Agreed
from dds.replicated.machine import Machine, Phase
from dds.replicated.messages import Entry, Kind
from dds.replicated.object import Carrier
from tests.dds.replicated.model import LaterTape, Tape, World
from tests.dds.replicated.objects import Ledger, programs
from tests.spindle.daemons import daemons


class Tally(Object):
    """Commands that Sum doesn't have; a state whose bytes it could take for its own."""

    count: int = 0

    @command
    def add(self, number: int) -> int:
        self.count += number
        return self.count

    @command
    def double(self) -> int:
        self.count *= 2
        return self.count


class Sum(Object):
    total: int = 0

    @command
    def add(self, number: int) -> int:
        self.total += number
        return self.total


class Words(Object):
    """A state of other bytes."""

    words: list[str]

    def __init__(self) -> None:
        self.words = []

    @command
    def add(self, number: int) -> int:
        self.words.append(str(number))
        return len(self.words)


class LaterSum(Sum):
    @command
    def half(self) -> int:
        self.total //= 2
        return self.total


LaterSum.__name__ = "Sum"


@pytest.mark.parametrize("other", [Sum, Words])
def test_two_classes_under_one_name(two_nodes, other) -> None:
    """Whichever is live stays; the other one says why it can't be used, and changes nothing."""
    one, two = two_nodes
    with Replica(one, "tally", Tally) as tally:
        assert tally.add(3) == 3
        with pytest.raises(ReplicaDiverged, match="of another class, or another version"), \
                Replica(two, "tally", other) as wrong:
            wrong.synchronize()
            wrong.add(100)
        assert tally.double() == 6 and tally.replicas() == [tally.id]
        with Replica(two, "tally", Tally) as second:
            assert second.add(1) == 7 == tally.add(0)


def test_who_is_refused_asks_its_node_until_that_answers(two_nodes, monkeypatch) -> None:
    """Method: the node can't say at first who is there."""
    one, two = two_nodes
    refresh, times = Runtime.refresh, []

    def refresh_late(self: Runtime, topic: str) -> None:
        if threading.current_thread().name == "dds replica of tally":
            times.append(topic)
            if len(times) < 3:
                raise DDSException(DDSException.DDS_RETCODE_ERROR, "not now")
        refresh(self, topic)

    with Replica(one, "tally", Tally) as tally:
        monkeypatch.setattr(Runtime, "refresh", refresh_late)
        with pytest.raises(ReplicaDiverged, match="another version"), Replica(two, "tally", Sum) as wrong:
            wrong.synchronize()
        assert len(times) >= 3 and tally.add(1) == 1


def test_a_later_version_goes_on_when_the_earlier_one_has_gone(participant) -> None:
    """Beside the earlier one it stops. The state outlives that: a reader keeps what the topic has."""
    with Replica(participant, "sum", Sum) as earlier:
        assert earlier.add(10) == 10
        with pytest.raises(ReplicaDiverged, match="another version"), Replica(participant, "sum", LaterSum) as early:
            early.synchronize()
            early.half()
        reader = DataReader(participant, Topic(participant, "sum_Replicated", Entry))
    with Replica(participant, "sum", LaterSum) as later:
        assert later.half() == 5
        with pytest.raises(ReplicaDiverged, match="another version"), Replica(participant, "sum", Sum) as late:
            late.synchronize()
            late.add(1)
    reader.close()


@pytest.mark.parametrize("same", [True, False])
def test_a_snapshot_that_does_not_fit(same: bool) -> None:
    """Of another class it says that there is nothing to wait for; of this one it is nonsense that anybody may have
    written, and the next one may fit."""
    carrier = Carrier(Tape, Tape)
    machine = Machine(b"m" * 16, carrier, 0, 0)
    donor, lineage = b"d" * 16, b"l" * 16
    signature = carrier.signature if same else bytes(16)
    machine.deliver(Entry(Kind.SNAPSHOT, donor, lineage, number=1, body=signature), 1, 10)
    machine.deliver(Entry(Kind.PIECE, donor, lineage, number=1, parts=1, body=Agreed(lineage).encode(b"\xff")), 2, 10)
    assert (machine.phase is Phase.STOPPED) == (not same)
    assert ("another class" in machine.why_stopped) == (not same)


@pytest.mark.parametrize("left", ["nobody", "one", "one that says so late"])
def test_a_later_version_after_all_were_killed_at_once(left: str) -> None:
    """Goal: nobody was left to say that they have gone, so it looks who is there, and goes on with the state; if one of
    the earlier version is there, it stops, and changes nothing."""
    world = World(1, snapshot_every=1 << 16)
    earlier = [world.come() for _ in range(3)]
    world.settle()
    earlier[0].command("a")
    world.settle()
    for one in earlier:
        one.alive = left == "one" and one is earlier[1]
    later = [world.come(LaterTape) for _ in range(2)]
    if left == "one that says so late":
        for one in later:  # each reads that it isn't live before it looks around
            one.read(99)
            one.write(1)
            one.read(99)
            one.write(1)
            one.read(99)
            assert one.machine.must_look
        third = world.come()
        for _ in range(3):
            third.read(99)
            third.write(1)
        assert third.machine.phase is Phase.LIVE or third.outbox == []
    world.settle()
    if left == "nobody":
        assert [one.machine.phase for one in later] == [Phase.LIVE] * 2
        assert later[0].carrier.object.marks == earlier[0].carrier.object.marks != []
        assert later[0].machine.agreed.live == [one.machine.me for one in later]
        assert later[0].carrier.object.gone == [one.machine.me for one in earlier]
    else:
        assert [one.machine.phase for one in later] == [Phase.STOPPED] * 2
        assert all("another class" in one.machine.why_stopped for one in later)
        alive = [one for one in world.alive if one not in later]
        assert [one.machine.phase for one in alive] == [Phase.LIVE]
        assert alive[0].carrier.object.marks == earlier[0].carrier.object.marks


def test_two_versions_look_around_at_once() -> None:
    """Goal: after all were killed, an earlier and a later one come; one of them is live, the other one stops."""
    for seed in range(200):
        world = World(seed, snapshot_every=1 << 16)
        for one in [world.come() for _ in range(2)]:
            one.command("a")
        world.settle()
        for one in world.readers:
            one.alive = False
        for _ in range(world.random.randrange(2, 5)):
            world.come(world.random.choice((Tape, LaterTape)))
        for _ in range(world.random.randrange(60)):
            one = world.random.choice(world.alive)
            world.random.choice((one.look_around, lambda one=one: one.write(1), lambda one=one: one.read(2)))()
        world.settle()
        live = [one for one in world.alive if one.machine.phase is Phase.LIVE]
        assert len({one.carrier.signature for one in live}) == 1
        assert all(one.machine.phase in (Phase.LIVE, Phase.STOPPED) for one in world.alive)
        assert live[0].carrier.object.marks == world.readers[0].carrier.object.marks


@pytest.mark.slow
@pytest.mark.parametrize("nodes_too", [True, False])
def test_a_later_version_of_a_logged_object_whose_replicas_were_killed_at_once(runtime_dir, tmp_path, nodes_too
                                                                               ) -> None:
    """Goal: it goes on with the state. Method: kill -9 of all programs, and of all nodes; a reader keeps the topic."""
    journal = ["--journal-dir", str(tmp_path / "journal")]
    with daemons(runtime_dir, 2, journal) as nodes, programs(str(runtime_dir), 1, 2, logged=True) as (one, two), \
            DomainParticipant(runtime_dir=runtime_dir, node_id=1) as participant:
        assert one.ask("append early 0") == "1" and two.ask("append early 1") == "2"
        reader = DataReader(participant, Topic(participant, "ledger_Replicated", Entry))
        for program in (one, two):
            program.kill()
        if nodes_too:
            for node in nodes:
                node.kill()
        else:
            later_version_goes_on(participant)
        reader.close()
    if nodes_too:
        with daemons(runtime_dir, 2, journal), DomainParticipant(runtime_dir=runtime_dir) as participant:
            later_version_goes_on(participant)


def later_version_goes_on(participant) -> None:
    """Programs that were killed a moment ago may still count; that ends by itself."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with Replica(participant, "ledger", LaterLedger, logged=True) as ledger:
                assert ledger.all() == ["early 0", "early 1"] and ledger.pop() == "early 1"
                assert ledger.replicas() == [ledger.id]
            return
        except ReplicaDiverged:
            assert time.monotonic() < deadline


class LaterLedger(Ledger):
    @command
    def pop(self) -> str:
        return self.lines.pop()


LaterLedger.__name__ = "Ledger"
