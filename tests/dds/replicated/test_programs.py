"""Goal: whoever is killed, the object goes on without a gap and with nothing twice; a logged one outlives everybody.

Method: programs with replicas on real daemons and on hosts without a node, killed with kill -9 in the middle.
"""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from dds import DDSException, DDSUnacknowledged, DomainParticipant, duration
from dds.replicated import Replica
from dds.replicated.machine import Phase
from dds.replicated.messages import NONE, Entry, Kind
from dds.rpc import OutcomeUnknown
from dds.waiting.wake import Deadline
from tests.dds.replicated.objects import Ledger, Program, programs
from tests.dds.replicated.test_replica import fill
from tests.spindle.daemons import daemons
from tests.support import halt, wait_until

LONG = duration(seconds=60)


def joined(participant: DomainParticipant) -> Replica[Ledger]:
    return Replica(participant, "ledger", Ledger, timeout=LONG, join_timeout=LONG, history_bytes=1 << 20)


def in_order(lines: list[str]) -> bool:
    """Each writer's lines are numbered from 0, each once and in its order."""
    for name in {line.split()[0] for line in lines}:
        numbers = [int(line.split()[1]) for line in lines if line.split()[0] == name]
        if numbers != list(range(len(numbers))):
            return False
    return True


@pytest.mark.slow
def test_a_replica_is_killed_while_it_writes(group, runtime_dir) -> None:
    with programs(str(runtime_dir), 1, 2, 2) as (first, second, third), \
            DomainParticipant(node_id=3) as participant, joined(participant) as mine:
        for one, name in ((first, "a"), (second, "b"), (third, "c")):
            one.tell(f"pump {name}")
        wait_until(lambda: mine.size() > 300)
        first.kill()
        second.kill()
        wait_until(lambda: len(mine.replicas()) == 2, 20)
        before = mine.size()
        wait_until(lambda: mine.size() > before + 100)
        third.kill()
        wait_until(lambda: mine.replicas() == [mine.id], 20)
        assert in_order(mine.all())
        with Replica(participant, "ledger", Ledger) as late:
            assert late.all() == mine.all()


def test_the_donor_is_killed_in_the_middle_of_a_snapshot(group, runtime_dir) -> None:
    """Goal: the next one gives another one. Method: a state of 30 MB at a donor that is killed as soon as the newcomer
    has had some pieces of it, while the third one goes on writing."""
    with programs(str(runtime_dir), 1) as (donor,), DomainParticipant(node_id=2) as participant, \
            DomainParticipant(node_id=3) as elsewhere, \
            joined(participant) as mine:
        assert mine.replicas()[0] != mine.id
        mine.load(30_000_000)
        fill(mine)
        mine.append("before 0")
        some = threading.Event()

        late: list[Replica[Ledger]] = []

        def join() -> None:
            late.append(joined(elsewhere))

        seen = count_pieces(mine, some)
        joining = threading.Thread(target=join)
        joining.start()
        assert some.wait(30)
        donor.kill()
        for k in range(50):
            mine.append(f"during {k}")
        joining.join(60)
        with late[0] as newcomer:
            newcomer.synchronize(LONG)
            assert newcomer.weight() == 30_000_000 and newcomer.all() == mine.all()
            assert newcomer.append("after 0") == 52
        assert len(seen) == 2, "one snapshot was begun by each"


def count_pieces(replica: Replica[Ledger], some: threading.Event) -> set[tuple[bytes, int]]:
    """The snapshots of which pieces come past a replica; `some` is set after ten."""
    machine = replica._core.machine
    deliver, seen = machine.deliver, set()
    count = 0

    def watched(entry, timestamp, size):
        nonlocal count
        if entry.kind == Kind.PIECE:
            seen.add((entry.origin, entry.number))
            count += 1
            if count == 10:
                some.set()
        return deliver(entry, timestamp, size)

    machine.deliver = watched  # type: ignore[method-assign]
    return seen


@pytest.mark.slow
def test_a_newcomer_is_killed_in_the_middle_of_a_snapshot(group, runtime_dir) -> None:
    with DomainParticipant(node_id=2) as participant, joined(participant) as mine:
        mine.load(30_000_000)
        fill(mine)
        some = threading.Event()
        count_pieces(mine, some)
        newcomer = Program(1, str(runtime_dir))
        try:
            assert some.wait(30)
        finally:
            newcomer.kill()
            newcomer.process.stdin.close()
            newcomer.process.stdout.close()
        assert mine.append("on 0") == 1
        with programs(str(runtime_dir), 3) as (again,):
            assert again.ask("size") == "1"
        wait_until(lambda: mine._core.machine.agreed.wants == [])


def test_a_node_dies_and_its_replica_goes_on_at_another(group, runtime_dir) -> None:
    """Goal: commands in flight when the node dies are carried out once, and their callers hear of it."""
    with DomainParticipant(runtime_dir=runtime_dir, reattach=True) as hopeful, \
            DomainParticipant(node_id=2) as other, \
            joined(other) as mine, joined(hopeful) as moving:
        assert hopeful.get_node_status().node_id == 1
        futures = []
        for k in range(1500):
            if k == 700:
                group[0].kill()
            futures.append(moving.append.future(f"m {k}"))
            if k % 100 == 0:
                futures[-1].result(30)
        results = [one.result(30) for one in futures]
        mine.synchronize(LONG)
        assert results == sorted(results) and in_order(mine.all()) and mine.size() == 1500
        wait_until(lambda: moving._core.machine.phase is Phase.LIVE)
        assert moving.all() == mine.all() and set(moving.replicas()) == {mine.id, moving.id}


DISK = "who waits for the disk"


@pytest.mark.slow
@pytest.mark.parametrize("who_hears", ["the thread that writes for the replica", DISK])
def test_no_command_overtakes_those_that_its_dead_node_had(group, runtime_dir, who_hears) -> None:
    """Goal: whoever hears of the death first, what was on its way comes before what is written from then on: a command
    that is passed over has no result, ever. Method: the node stands still, gets commands, and dies; not the caller of
    commands hears of it but another thread of the replica, which waits until the caller had the time to go ahead."""
    with DomainParticipant(runtime_dir=runtime_dir, reattach=True) as hopeful, \
            DomainParticipant(node_id=2) as other, \
            joined(other) as mine, joined(hopeful) as moving:
        assert moving.append("m 0") == 1
        core = moving._core
        heard, begun = threading.Event(), threading.Event()
        link = core._writer._link
        check = link.check

        def watched(*arguments):
            try:
                check(*arguments)
            except DDSUnacknowledged:
                if threading.current_thread() is not threading.main_thread():
                    heard.set()
                    begun.wait(1)
                raise

        def wait_for_disk():
            with pytest.raises(OutcomeUnknown):
                core.persisted(Deadline(10_000_000_000))

        link.check = watched  # in which everybody hears of it
        halt(group[0].process.pid)
        futures = [moving.append.future(f"m {k}") for k in range(1, 30)]
        with core._writing:  # the caller of commands does not hear of it yet
            if who_hears == DISK:
                threading.Thread(target=wait_for_disk).start()
            core._have_written([Entry(Kind.GENESIS, moving.id, NONE)] * 500)  # which changes nothing
            group[0].kill()
            wait_until(lambda: heard.is_set() or (who_hears != DISK and link.doubtful), 20)
        assert heard.wait(20)
        futures.append(moving.append.future("m 30"))
        begun.set()
        assert [one.result(30) for one in futures] == list(range(2, 32))
        mine.synchronize(LONG)
        assert in_order(mine.all()) and mine.size() == 31


@pytest.mark.slow
def test_on_hosts_without_a_node(site) -> None:
    everywhere = ",".join(host.address for host in site)
    with programs(everywhere, -1) as (far,), DomainParticipant(runtime_dir=site[1].directory) as near, \
            joined(near) as mine:
        assert far.ask("append far 0") == "1" and mine.append("near 0") == 2
        far.tell("pump p")
        wait_until(lambda: mine.size() > 50)
        site[0].running.kill()  # the far program's session turns to the next node
        before = mine.size()
        wait_until(lambda: mine.size() > before + 50, 30)
        far.kill()
        wait_until(lambda: mine.replicas() == [mine.id], 30)
        assert in_order([line for line in mine.all() if line.startswith("p")])


@pytest.mark.slow
def test_a_logged_object_outlives_all(runtime_dir, tmp_path) -> None:
    """Goal: after the death of all programs and nodes, the object is as it was. Method: kill -9 of all in the middle,
    twice; then compare with what the programs had been told."""
    journal = ["--journal-dir", str(tmp_path / "journal")]
    told = 0
    for life in range(3):
        with daemons(runtime_dir, 2, journal) as nodes, programs(str(runtime_dir), 1, 2, logged=True) as (one, two):
            size = int(one.ask("size"))
            assert size >= told and int(two.ask("size")) == size
            if life:
                assert one.ask("last") == two.ask("last")
            for k in range(20):
                told = int((one, two)[k % 2].ask(f"append life{life} {k}"))
            assert told == size + 20
            one.tell(f"pump one{life}")
            two.tell(f"pump two{life}")
            wait_until(lambda one=one: one.process.poll() is None)
            for program in (one, two):
                program.kill()
            for node in nodes:
                node.kill()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["called", "awaited"])
def test_a_command_that_dies_with_the_node_is_not_said_to_be_carried_out(runtime_dir, tmp_path, how) -> None:
    """Method: the node of a logged object stands still, gets a command, and dies; there is no other one."""
    journal = ["--journal-dir", str(tmp_path / "journal")]
    with daemons(runtime_dir, 1, journal) as nodes, DomainParticipant(runtime_dir=runtime_dir) as participant, \
            Replica(participant, "ledger", Ledger, logged=True, timeout=LONG) as ledger:
        assert ledger.append("first 0") == 1
        halt(nodes[0].process.pid)
        append = ledger.append if how == "called" else lambda line: asyncio.run(ledger.append.aio(line))
        with ThreadPoolExecutor(1) as pool:
            caller = pool.submit(append, "more 0")
            wait_until(lambda: ledger._core._conduct.in_flight == 1)
            nodes[0].kill()
            with pytest.raises(OutcomeUnknown, match=r"ledger: .*node.*") as raised:
                caller.result(20)
        assert "carried out" not in str(raised.value)


@pytest.mark.slow
def test_a_logged_object_whose_topic_has_forgotten_its_beginning(runtime_dir, tmp_path) -> None:
    """Goal: snapshots in the topic take the place of what it forgets. Method: more commands than it has room for; then
    everybody dies."""
    journal = ["--journal-dir", str(tmp_path / "journal")]
    with daemons(runtime_dir, 1, journal) as nodes, DomainParticipant(runtime_dir=runtime_dir) as participant:
        ledger = Replica(participant, "ledger", Ledger, logged=True, history_bytes=2 << 20, timeout=LONG)
        ledger.append("first 0")
        for _ in range(3):
            fill(ledger)
        ledger.append("last 0")
        assert ledger._core.machine._snapshots > 5
        nodes[0].kill()
        with pytest.raises(DDSException, match=r"node|gone|died"):
            ledger.append("never")
    with daemons(runtime_dir, 1, journal), DomainParticipant(runtime_dir=runtime_dir) as participant, \
            Replica(participant, "ledger", Ledger, logged=True, history_bytes=2 << 20, timeout=LONG) as ledger:
        assert ledger.all() == ["first 0", "last 0"]
        wait_until(lambda: ledger.replicas() == [ledger.id])
