"""Goal: wherever two replicas have a state, it is the same at the same place of the order: whoever comes late, dies in
the middle of a snapshot, loses its node, or has its commands written twice. Each command is carried out once, and its
caller gets the result that it had everywhere.

Method: the state machines alone over one order (`tests.dds.replicated.model`), step by step and in random runs.
"""

from __future__ import annotations

import dataclasses

import pytest

from dds.replicated.agreed import ORIGINS_MAX, Agreed, Check
from dds.replicated.machine import SPAN_MAX, Phase
from dds.replicated.messages import NONE, Entry, Kind
from tests.dds.replicated.model import Tape, World
from tests.support import seeds


def kinds(world: World) -> list[Kind]:
    return [Kind(entry.kind) for entry, _ in world.order]


def test_the_first_one_begins_the_object() -> None:
    world = World(1)
    one = world.come()
    world.settle()
    assert kinds(world) == [Kind.JOIN, Kind.GENESIS, Kind.LIVE] and one.machine.phase is Phase.LIVE
    assert one.machine.agreed.live == [one.machine.me]


def test_several_that_begin_at_once_begin_one_object() -> None:
    world = World(1)
    many = [world.come() for _ in range(4)]
    world.settle()
    assert kinds(world).count(Kind.GENESIS) > 1
    assert {one.machine.agreed.lineage for one in many} == {many[0].machine.agreed.lineage}
    assert all(one.machine.phase is Phase.LIVE for one in many)


def test_a_newcomer_that_finds_all_needs_no_snapshot() -> None:
    world = World(1)
    one = world.come()
    world.settle()
    one.command("a")
    two = world.come()
    world.settle()
    assert Kind.WANT not in kinds(world) and two.carrier.snapshot() == one.carrier.snapshot() != b""


def test_a_newcomer_that_finds_less_gets_a_snapshot_in_pieces() -> None:
    """Goal: no gap and nothing twice, with commands between the pieces."""
    world = World(1, keeps=3)
    one = world.come()
    world.settle()
    for k in range(20):
        one.command(f"before {k}")
    one.write(100)
    two = world.come()
    for k in range(200):
        two.write(1)
        two.read(2)
        one.read(2)
        one.write(1)
        if k < 30:
            one.command(f"during {k}")
    world.settle()
    assert kinds(world).count(Kind.SNAPSHOT) == 1 and kinds(world).count(Kind.PIECE) > 5
    assert two.machine.phase is Phase.LIVE and two.carrier.snapshot() == one.carrier.snapshot()
    assert [text for _, text, _ in two.carrier.object.marks] == world.commands()


def test_a_state_of_which_no_snapshot_can_be_made_ends_nobody(caplog) -> None:
    """Goal: who has the state goes on, and says why nobody can come; a newcomer comes as soon as a command has mended
    it. Method: an attribute that isn't of its type."""
    world = World(1, keeps=2)
    one, other = world.come(), world.come()
    world.settle()
    one.carrier.object.marks = other.carrier.object.marks = None
    list(map(one.command, map(str, range(12))))
    world.settle()
    assert len(one.results) == 12 and "no snapshot can be made of Tape" in caplog.text
    newcomer = world.come()
    world.settle()
    for k in range(100):
        one.command(f"still {k}")
        world.settle()
    assert newcomer.machine.phase is Phase.WAITING and 3 < kinds(world).count(Kind.SNAPSHOT) < 9  # ever more seldom
    one.carrier.object.marks, other.carrier.object.marks = [], []
    list(map(other.command, (f"mended {k}" for k in range(100))))
    world.settle()
    assert newcomer.machine.phase is Phase.LIVE and newcomer.carrier.snapshot() == one.carrier.snapshot()
    assert [text for _, text, _ in newcomer.carrier.object.marks] == [f"mended {k}" for k in range(100)]


def test_a_replica_that_can_not_restore_a_state_stops_and_says_why() -> None:
    """Goal: the others go on. Method: what restore() of the class raises is its own."""
    world = World(1, keeps=2)
    one = world.come()
    world.settle()
    for k in range(12):
        one.command(str(k))
    world.settle()
    newcomer = world.come()
    newcomer.carrier._make = lambda: Unwilling()
    world.settle()
    assert newcomer.machine.phase is Phase.STOPPED
    assert newcomer.machine.why_stopped == "restore() of Unwilling failed: RuntimeError('no')"
    one.command("more")
    world.settle()
    assert "more" in one.results


class Unwilling(Tape):
    def restore(self, state: bytes) -> None:
        raise RuntimeError("no")


def with_two_and_a_newcomer() -> tuple[World, list]:
    world = World(1, keeps=2)
    donor, other = world.come(), world.come()
    world.settle()
    for k in range(20):
        donor.command(str(k))
    world.settle()
    fresh = world.come()
    fresh.write(9)
    while Kind.SNAPSHOT not in kinds(world):
        for one in (fresh, donor, other):
            one.read(1)
        donor.write(1)
        fresh.write(1)
    donor.read(1 << 30)
    donor.write(3)
    assert kinds(world)[-1] is Kind.PIECE
    return world, [donor, other, fresh]


def test_the_donor_dies_in_the_middle() -> None:
    """Goal: the next one gives a snapshot from a later place; nothing of the first one is mixed in."""
    world, (donor, other, fresh) = with_two_and_a_newcomer()
    donor.alive = False
    other.command("meanwhile")
    world.settle()
    assert kinds(world).count(Kind.SNAPSHOT) == 2 and Kind.GONE in kinds(world)
    assert fresh.machine.phase is Phase.LIVE and fresh.carrier.snapshot() == other.carrier.snapshot()
    assert donor.machine.me in fresh.carrier.object.gone


def test_the_node_of_the_donor_dies_in_the_middle() -> None:
    """Goal: a donor that comes back begins another snapshot. Method: its last piece is lost on the way."""
    world, (donor, other, fresh) = with_two_and_a_newcomer()
    world.order.pop()
    donor.lose_node()
    world.settle()
    assert fresh.machine.phase is donor.machine.phase is Phase.LIVE
    assert fresh.carrier.snapshot() == donor.carrier.snapshot() == other.carrier.snapshot()


def test_the_newcomer_dies_in_the_middle() -> None:
    world, (donor, other, fresh) = with_two_and_a_newcomer()
    fresh.alive = False
    world.settle()
    again = world.come()
    world.settle()
    assert again.machine.phase is Phase.LIVE and donor.machine.agreed.wants == []
    assert again.carrier.snapshot() == other.carrier.snapshot()


def test_a_command_that_is_written_again_is_carried_out_once() -> None:
    world = World(1)
    one, two = world.come(), world.come()
    world.settle()
    for k in range(5):
        one.command(str(k))
    one.write(3)  # of which it doesn't hear before its node dies
    one.lose_node()
    world.settle()
    assert [text for _, text, _ in two.carrier.object.marks] == [str(k) for k in range(5)]
    assert one.results == {str(k): k + 1 for k in range(5)} and not one.conduct.in_flight
    assert one.machine.phase is Phase.LIVE and one.machine.me in one.machine.agreed.live


def test_a_replica_that_has_lost_its_place_gets_the_state_anew() -> None:
    world = World(1)
    one, two = world.come(), world.come()
    world.settle()
    one.command("a")
    one.write(9)
    one.at = len(world.order)
    one.lose_place()
    assert one.machine.agreed is None
    world.settle()
    assert one.machine.phase is Phase.LIVE and one.carrier.snapshot() == two.carrier.snapshot()


@pytest.mark.parametrize("logged", [False, True])
def test_no_command_begins_before_there_is_the_state(logged: bool) -> None:
    """Goal: every command has a result. One that is in the snapshot already would have none, and one that is written
    before the object is known belongs to none."""
    world = World(1, snapshot_every=700 if logged else 0)
    one = world.come()
    assert one.conduct.holds_back and not one.conduct.has_state
    other = world.come()
    world.settle()
    assert not one.conduct.holds_back and one.conduct.has_state
    one.command("a")
    one.write(9)
    one.at = len(world.order)
    world.keeps = None if logged else 3  # what keeps a logged object keeps more
    one.lose_place()
    assert one.conduct.holds_back
    while not one.conduct.has_state:
        assert one.conduct.holds_back
        for reader in (one, other):
            reader.write(1)
            reader.read(1)
    assert not one.conduct.holds_back
    one.command("b")
    world.settle()
    assert one.results == {"b": 2} and not one.conduct.in_flight


def test_who_has_lost_its_place_needs_nobody_if_the_topic_has_kept_all() -> None:
    """Goal: after the death of all nodes, replicas that outlive them find a logged object in its topic."""
    world = World(1)
    both = [world.come() for _ in range(2)]
    world.settle()
    for k in range(9):
        both[k % 2].command(str(k))
    world.settle()
    before = list(both[0].carrier.object.marks)
    for one in both:
        one.lose_place()
    world.settle()
    assert Kind.SNAPSHOT not in kinds(world)
    assert len(before) == 9
    assert all(one.machine.phase is Phase.LIVE and one.carrier.object.marks == before for one in both)


def test_who_has_lost_its_place_begins_no_other_object() -> None:
    """Method: the topic has forgotten everything."""
    world = World(1)
    one = world.come()
    world.settle()
    one.command("a")
    world.settle()
    world.keeps = 0
    one.lose_place()
    world.settle()
    assert one.machine.phase is Phase.WAITING and kinds(world).count(Kind.GENESIS) == 1


@pytest.mark.parametrize("hear", ["late", "later"])
def test_an_object_of_which_nothing_was_on_disk_begins_anew(hear: str) -> None:
    """Goal: what replicas say of the lost object until they hear of its loss keeps nobody from the new one. Method: all
    nodes die when only the first entry is on disk. What its replicas had to write then comes before or behind the
    beginning of the new object."""
    world = World(1, snapshot_every=4000)
    slow, one = world.come(), world.come()
    slow.write(1)
    one.write(1)
    one.read(9)
    one.write(1)
    one.read(9)
    one.write(1)
    one.read(9)
    slow.read(9)
    assert [Kind(entry.kind) for entry in slow.outbox] == [Kind.GENESIS, Kind.LIVE] and one.machine.phase is Phase.LIVE
    one.command("lost")
    world.lose_all_nodes(1)
    if hear == "late":
        one.lose_node()
        one.write(9)
    one.lose_place()
    slow.lose_place()
    world.settle()
    assert [both.machine.phase for both in (one, slow)] == [Phase.LIVE, Phase.LIVE]
    assert one.machine.agreed == slow.machine.agreed and one.machine.agreed.index == 0
    one.command("anew")
    late = world.come()
    world.settle()
    assert late.machine.phase is Phase.LIVE and late.carrier.object.marks == one.carrier.object.marks
    assert [text for _, text, _ in one.carrier.object.marks] == ["anew"]


def test_what_is_kept_until_it_is_known_whether_that_is_all_has_a_bound() -> None:
    world = World(1, snapshot_every=700)
    one = world.come()
    kept = []
    for k in range(100):
        entry = Entry(Kind.CHECK, b"s" * 16, NONE, k)  # of somebody else, who came before what is kept
        one.conduct.came(entry, 1)
        kept.append(one.machine._all_bytes if one.machine._all is not None else 0)
    assert max(kept) <= SPAN_MAX * 700 and kept[-1] == 0


@pytest.mark.parametrize("left", ["it lives", "its node has gone", "it is dead"])
def test_a_small_part_of_an_object_is_not_taken_for_all_of_it(left: str) -> None:
    """Goal: where journals have kept less than they should, nobody begins another object beside the one that there is,
    nor in the place of one that is lost. Method: a newcomer that finds a few entries of a replica, which lives, joins
    anew with its state, or is dead."""
    world = World(1, snapshot_every=1 << 16, keeps=3 if left == "its node has gone" else 2)
    one = world.come()
    world.settle()
    for k in range(3):
        one.command(str(k))
    world.settle()
    if left == "its node has gone":
        one.lose_node()
        one.write(9)
    one.alive = left != "it is dead"
    late = world.come()
    assert late.at > 2
    world.settle()
    assert kinds(world).count(Kind.GENESIS) == 1
    if one.alive:
        assert late.machine.phase is Phase.LIVE and late.carrier.object.marks == one.carrier.object.marks
    else:
        assert late.machine.phase is Phase.WAITING


def test_who_begins_an_object_too_late_waits_for_the_one_that_there_is() -> None:
    """Goal: it doesn't wait for ever for the object that it began in vain. Method: somebody speaks of another object
    between its joining and its beginning."""
    world = World(1)
    one = world.come()
    join = one.machine.join()
    assert [Kind(entry.kind) for entry in one.machine.deliver(join, 1, 10).send] == [Kind.GENESIS]
    command = Entry(Kind.COMMAND, b"o" * 16, b"l" * 16, number=1, name="a")
    one.machine.deliver(command, 2, 10)
    genesis = Entry(Kind.GENESIS, one.machine.me, NONE)
    assert [Kind(entry.kind) for entry in one.machine.deliver(genesis, 3, 10).send] == [Kind.WANT]
    assert one.machine.phase is Phase.WAITING


def test_nobody_is_left_who_has_the_state() -> None:
    world = World(1, keeps=1)
    one = world.come()
    world.settle()
    one.command("a")
    world.settle()
    one.alive = False
    two = world.come()
    two.write(9)
    world.settle()
    assert two.machine.phase is Phase.WAITING and two.machine.agreed is None


def test_snapshots_in_time_outlive_everybody() -> None:
    """Goal: of a logged object the end of the topic is enough. Method: everybody dies; one comes that finds less than
    half of what was written."""
    world = World(1, snapshot_every=2000)
    one = world.come()
    world.settle()
    for k in range(200):
        one.command(str(k))
        if k % 10 == 0:
            world.settle()
    world.settle()
    assert kinds(world).count(Kind.SNAPSHOT) > 5
    one.alive = False
    world.keeps = len(world.order) // 2
    two = world.come()
    world.settle()
    assert two.machine.phase is Phase.LIVE and two.machine.agreed.live == [two.machine.me]
    assert [text for _, text, _ in two.carrier.object.marks] == [str(k) for k in range(200)]


def test_commands_wait_for_a_snapshot_that_is_late() -> None:
    """Goal: a whole snapshot is in the last eighths of what a topic keeps, however fast others write. Method: the one
    that gives it stands still, twice; the other one writes as long as it may."""
    world = World(1, check_every=0, snapshot_every=4000, piece=2000)
    donor, other = world.come(), world.come()
    world.settle()
    assert donor.machine.agreed.live[0] == donor.machine.me
    for turn in range(2):
        count = 0
        while not other.conduct.holds_back:
            count += 1
            other.command(f"text {turn} {count}")
            other.write(1)
            other.read(1 << 30)
            donor.read(1 << 30)
            assert count < 1000
        agreed = other.machine.agreed
        assert 16_000 <= agreed.total - agreed.kept_from < 18_000 and donor.conduct.holds_back
        world.settle()
        assert not other.conduct.holds_back and not donor.conduct.holds_back
        assert agreed.total - agreed.kept_from < 16_000 and agreed.kept_from < agreed.completed <= agreed.total


def test_all_replicas_together_have_a_bounded_part_of_the_topic_in_flight() -> None:
    world = World(1, snapshot_every=40_000)
    many = [world.come() for _ in range(4)]
    world.settle()
    for one in many:
        for k in range(1000):
            if one.conduct.holds_back:
                break
            one.command(f"text {k}")
    in_flight = sum(one.conduct.in_flight for one in many)
    assert 40 < in_flight < 140  # of some 200 bytes each
    world.settle()
    assert not any(one.conduct.holds_back for one in many)


@pytest.mark.parametrize("odd", [0, 1, 2])
def test_the_one_that_differs_stops(odd: int) -> None:
    """Method: the state of one is changed without a command."""
    world = World(1, check_every=5)
    three = [world.come() for _ in range(3)]
    world.settle()
    three[odd].carrier.object.gone.append(b"x")
    for k in range(5):
        three[0].command(str(k))
    world.states.clear()
    world.compare = lambda reader: None  # type: ignore[method-assign]
    world.settle()
    for one in three:
        assert (one.machine.phase is Phase.STOPPED) == (one is three[odd])
    assert "after command 5 its state differs" in three[odd].machine.why_stopped
    rest = [one for one in three if one is not three[odd]]
    assert rest[0].machine.agreed.live == [one.machine.me for one in rest] and not rest[0].machine.agreed.checks


def test_a_check_waits_for_nobody_who_is_gone() -> None:
    world = World(1, check_every=2)
    one, two = world.come(), world.come()
    world.settle()
    one.command("a")
    one.command("b")
    one.write(9)
    one.read(99)
    assert len(one.machine.agreed.checks) == 1
    two.alive = False
    world.settle()
    assert one.machine.agreed.checks == [] and one.machine.phase is Phase.LIVE


def test_nobody_is_asked_for_a_digest_where_nobody_is_live() -> None:
    """Method: the only replica is taken for gone, and its command comes before it says that it is live."""
    world = World(1, check_every=1)
    one = world.come()
    world.settle()
    world.order.append((Entry(Kind.GONE, b"\xff" * 16, one.machine.agreed.lineage, body=one.machine.me), 1))
    one.command("a")
    one.write(9)
    world.settle()
    assert "a" in one.results and one.machine.phase is Phase.LIVE
    assert one.machine.agreed.checks == []


def test_most_win_and_of_equally_many_the_first() -> None:
    check = Check(1, [b"a", b"b", b"c"], [(b"a", b"1"), (b"b", b"2")])
    assert check.verdict() is None
    check.said.append((b"c", b"2"))
    assert check.verdict() == b"2"
    assert Check(1, [b"a", b"b"], [(b"b", b"2"), (b"a", b"1")]).verdict() == b"2"


def test_agreed_time_never_goes_back() -> None:
    world = World(1)
    ahead, behind = world.come(), world.come()
    world.settle()
    ahead.clock, behind.clock = 1_000_000, 5
    ahead.command("a")
    ahead.write(9)
    behind.command("b")
    world.settle()
    assert behind.machine.agreed.timestamp >= 1_000_000


def test_what_all_agree_on_goes_through_its_bytes() -> None:
    one = Agreed(b"l" * 16, 7, 8, [b"a", b"b"], {b"a": 3}, [b"c"], {b"a": (2, [b"d"], 77)}, 99, 60, 70,
                 [Check(5, [b"a"], [(b"b", b"x")])])
    assert Agreed.decode(one.encode(b"state")) == (one, b"state")


def test_the_memory_of_commands_is_bounded_alike() -> None:
    one = Agreed(NONE, live=[b"kept"])
    one.note_done(b"kept", 1)
    for k in range(2 * ORIGINS_MAX):
        one.note_done(k.to_bytes(4, "big"), 1)
    assert len(one.done) == ORIGINS_MAX + 1 and not one.is_new(b"kept", 1) and one.is_new(b"kept", 2)


@pytest.mark.parametrize("kind", [0, 3, 4, 5, 6, 7, 8, 9, 10, -1])
def test_entries_of_others_change_nothing(kind: int) -> None:
    """Goal: what no replica writes changes no state. Method: entries with wrong lineages, numbers, parts and ids."""
    world = World(1)
    one, two = world.come(), world.come()
    world.settle()
    before = one.carrier.snapshot()
    stranger = b"s" * 16
    for entry in (Entry(kind, stranger, b"x" * 16, 1, 0, 1, "mark", b"?" * 5),
                  Entry(kind, stranger, one.machine.agreed.lineage, -1, -1, -1, "mark", b"x"),
                  Entry(kind, stranger, NONE, 1, 5, 2, "", b"")):
        world.order.append((entry, 1))
    world.settle()
    third = world.come()
    world.settle()
    assert one.carrier.snapshot() == before == third.carrier.snapshot()
    assert {one.machine.phase, two.machine.phase, third.machine.phase} == {Phase.LIVE}


def test_commands_of_others_fail_alike() -> None:
    world = World(1)
    one, two = world.come(), world.come()
    world.settle()
    for name, body in (("mark", b"?"), ("nothing", b""), ("snapshot", b""), ("__init__", b"")):
        entry = Entry(Kind.COMMAND, one.machine.me, one.machine.agreed.lineage, 100, 0, 0, name, body)
        world.order.append((dataclasses.replace(entry, origin=b"s" * 16, number=len(world.order)), 1))
    world.settle()
    assert one.carrier.snapshot() == two.carrier.snapshot() and one.machine.agreed.index == 4


@pytest.mark.parametrize("seed", seeds(60, quick=15))
def test_whatever_happens_all_replicas_agree(seed: int) -> None:
    """Method: random runs; `World.compare` looks after every entry. At the end the living have the same state, which
    has every command that is in the order once, and every caller its own result."""
    world = World(seed, check_every=seed % 4 * 3, snapshot_every=seed % 3 * 700, keeps=None if seed % 5 == 0 else 60)
    chance = world.random
    for _ in range(2):
        world.come()
    texts = 0
    for _ in range(900):
        alive = world.alive
        one = chance.choice(alive)
        step = chance.random()
        if step < 0.35:
            one.read(chance.randrange(1, 8))
        elif step < 0.65:
            one.write(chance.randrange(1, 6))
        elif step < 0.85:
            if one.conduct.has_state:
                texts += 1
                one.command(f"text {texts}")
        elif step < 0.92:
            one.look_around()
        elif step < 0.95 and len(alive) < 5:
            world.come()
        elif step < 0.97 and sum(other.machine.phase is Phase.LIVE for other in alive if other is not one) > 0:
            one.alive = False  # with whatever is in its outbox
        elif step < 0.985:
            one.lose_node()
        elif step < 0.99 and sum(other.machine.phase is Phase.LIVE for other in alive if other is not one) > 1:
            one.lose_place()
    world.settle()
    living = [one for one in world.alive if one.machine.phase is Phase.LIVE]
    assert living == world.alive, [one.machine.phase for one in world.alive]
    assert len({one.carrier.snapshot() for one in living}) == 1
    marks = living[0].carrier.object.marks
    assert [text for _, text, _ in marks] == world.commands() and len(marks) == living[0].machine.agreed.index
    results = {text: (text if k % 7 == 0 else k) for k, (_, text, _) in enumerate(marks, 1)}
    for reader in world.readers:
        assert all(results[text] == value for text, value in reader.results.items())
    assert not any(one.conduct.in_flight for one in living)


@pytest.mark.parametrize("seed", [*range(40), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(40, 300))])
def test_whatever_of_a_logged_object_was_on_disk(seed: int) -> None:
    """Goal: after the death of all nodes, replicas that live on have one object again: the one on disk, or a new one.
    Method: the order goes on after any part of it; replicas hear of that one after the other, and write before it."""
    world = World(seed, check_every=seed % 2 * 3, snapshot_every=1 << 16)
    chance = world.random
    for _ in range(3):
        world.come()
    for round_ in range(3):
        for step in range(chance.choice((5, 20, 100))):
            one = chance.choice(world.alive)
            kind = chance.random()
            if kind < 0.45:
                one.read(chance.randrange(1, 8))
            elif kind < 0.9:
                one.write(chance.randrange(1, 6))
            elif kind < 0.97:
                if one.machine.phase is Phase.LIVE:
                    one.command(f"text {round_} {step}")
            elif len(world.alive) < 5:
                world.come()
        world.lose_all_nodes(chance.randrange(len(world.order) + 1) // chance.choice((1, 2, 10, 100)))
        for one in chance.sample(world.alive, len(world.alive)):
            one.at = len(world.order)
            if chance.random() < 0.5:
                one.lose_node()
            one.write(chance.choice((0, 1, 9)))
            one.lose_place()
            one.write(chance.choice((0, 1, 9)))
            one.read(chance.choice((0, 3, 99)))
    world.settle()
    assert [one.machine.phase for one in world.alive] == [Phase.LIVE] * len(world.alive)
    assert len({one.carrier.snapshot() for one in world.alive}) == 1
    agreed = world.alive[0].machine.agreed
    assert agreed is not None and all(one.machine.agreed == agreed for one in world.alive)
    begin = kinds(world).index(Kind.GENESIS)  # a replica that begins an object twice gives both the same lineage
    said = {(entry.origin, entry.number) for entry, _ in world.order[begin:]
            if entry.kind == Kind.COMMAND and entry.lineage == agreed.lineage}
    assert len(said) == agreed.index
