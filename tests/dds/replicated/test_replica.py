"""Goal: a replicated object is one object: its commands return here what they did everywhere, whoever comes late has
all of it, and who isn't alike stops.

Method: replicas on nodes of this process; programs that are killed are in test_programs.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from dds import DataReader, DataWriter, DDSException, DDSNodeLost, DDSSampleTooLarge, DDSTimeout, Topic, duration
from dds.replicated import Object, Replica, ReplicaDiverged, StateLost, command, query
from dds.replicated.messages import NONE, Entry, Kind
from dds.rpc import CallTimeout, InvalidArguments, OutcomeUnknown
from tests.dds.replicated.objects import Ledger
from tests.support import wait_until


@pytest.fixture
def pair(two_nodes):
    one, two = two_nodes
    with Replica(one, "ledger", Ledger) as first, Replica(two, "ledger", Ledger) as second:
        yield first, second


def test_commands_return_their_results_and_errors(pair) -> None:
    first, second = pair
    assert first.append("a") == 1 and second.append("b") == 2 and first.append.within(duration(seconds=30))("c") == 3
    assert second.append.future("d").result(20) == 4 and asyncio.run(first.append.aio("e")) == 5
    for one in pair:
        with pytest.raises(ValueError, match=r"not in list"):
            one.remove("nothing")
    second.remove("a")
    first.synchronize()
    assert first.all() == second.all() == ["b", "c", "d", "e"] and first.typed.size() == 4
    assert first.replicas() == second.replicas() == [first.id, second.id] and first.phase == "is live"


class Gated(Object):
    """A command that takes as long as a test wants, and raises then."""

    tries: int
    gate = threading.Event()

    def __init__(self) -> None:
        self.tries = 0

    @command
    def refuse(self) -> None:
        self.gate.wait(30)
        raise ValueError("refused")


def test_what_a_command_raises_that_was_given_up_is_nobodys(participant) -> None:
    """Goal: a coroutine whose time is over hears no more of its command, nor does its loop."""
    told: list[object] = []

    async def give_up(replica: Replica[Gated]) -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))
        with pytest.raises(CallTimeout):
            await replica.refuse.within(duration(milliseconds=50)).aio()
        Gated.gate.set()
        await asyncio.to_thread(replica.synchronize)
        with pytest.raises(ValueError, match="refused"):
            await replica.refuse.aio()

    with Replica(participant, "gated", Gated) as replica:
        asyncio.run(give_up(replica))
        gc.collect()
    assert told == []


class Odd(Object):
    """What programs do that nobody expects."""

    name: str
    count: int

    def __init__(self) -> None:
        self.name, self.count = "", 0

    @command
    def add(self) -> int:
        self.count += 1
        return self.count

    @command
    def leave(self) -> None:
        sys.exit("a library wants the program to end")

    @command
    def call_it(self, name: str) -> None:
        self.name = name or None  # type: ignore[assignment]  what its annotation doesn't allow


def test_commands_that_go_wrong_end_no_replica(two_nodes) -> None:
    """Goal: what a command raises, whatever it is, is its caller's; a state that can't be compared is none the less
    one, and calls go on."""
    first, second = two_nodes
    with Replica(first, "odd", Odd, check_every=3) as one, Replica(second, "odd", Odd, check_every=3) as two:
        with pytest.raises(RuntimeError, match="raised SystemExit"):
            one.leave()
        one.call_it("")
        assert [each.add() for each in (one, two) * 5] == [*range(1, 11)]
        two.call_it("mended")
        assert [each.add() for each in (one, two) * 3] == [*range(11, 17)]


def test_one_reads_what_one_has_written(pair) -> None:
    for k, one in enumerate(pair * 50, 1):
        assert one.append(str(k)) == k and one.all()[-1] == str(k)


def test_random_numbers_and_time_are_agreed(pair) -> None:
    first, second = pair
    drawn = [one.draw() for one in (first, second, first)]
    assert len({number for number, _, _ in drawn}) == 3
    assert [index for _, _, index in drawn] == [1, 2, 3]
    assert sorted(timestamp for _, timestamp, _ in drawn) == [timestamp for _, timestamp, _ in drawn]
    assert abs(drawn[0][1] - time.time_ns()) < 60_000_000_000
    with pytest.raises(RuntimeError, match="only a command"):
        _ = Ledger().order


@pytest.mark.slow
def test_many_at_once_agree(pair) -> None:
    """Goal: one order for hundreds of commands in flight, from threads of two replicas."""
    first, second = pair
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda k: pair[k % 2].append(str(k)), range(400)))
    futures = [one.append.future("x") for _ in range(200) for one in pair]
    results += [one.result(30) for one in futures]
    assert sorted(results) == list(range(1, 801))
    first.synchronize()
    second.synchronize()
    assert first.all() == second.all()


def test_a_late_one_has_everything(two_nodes) -> None:
    one, two = two_nodes
    with Replica(one, "ledger", Ledger) as first:
        for k in range(300):
            first.append(str(k))
        with Replica(two, "ledger", Ledger) as late, Replica(one, "ledger", Ledger) as third:
            assert late.size() == third.size() == 300 and late.append("more") == 301
        wait_until(lambda: first.replicas() == [first.id])
        assert first.append("again") == 302


def test_a_late_one_gets_a_snapshot_in_pieces(two_nodes) -> None:
    """Goal: what the topic has forgotten comes as a snapshot, while others go on writing. Method: a state of 1 MB, and
    more commands than the topic's history has room for."""
    one, two = two_nodes
    with Replica(one, "ledger", Ledger, history_bytes=0, check_every=50) as first:
        first.load(1_000_000)
        fill(first)
        with ThreadPoolExecutor(1) as pool:
            going = pool.submit(lambda: [first.append("more") for _ in range(100)])
            with Replica(two, "ledger", Ledger, history_bytes=0, check_every=50) as late:
                assert going.result(30)[-1] == 100
                late.synchronize()
                assert late.weight() == 1_000_000 and late.all() == first.all()
                assert [late.append("end"), first.append("end")] == [101, 102]
        assert first._core.machine._snapshots == 1


def fill(ledger: Replica[Ledger]) -> None:
    """With more commands than a log of 8 MiB has room for."""
    for future in [ledger.touch.future(bytes(15_000)) for _ in range(700)]:
        future.result(30)


def test_wrong_arguments_and_limits(participant) -> None:
    with Replica(participant, "ledger", Ledger, commands_max=3) as ledger:
        with pytest.raises(InvalidArguments, match="line is 7, which is no string"):
            ledger.append(7)
        with pytest.raises(TypeError, match="append"):
            ledger.append()
        with pytest.raises(AttributeError, match="nothing"):
            ledger.nothing()
        assert ledger.append("a") == 1
        with ledger._core._lock:  # its thread can't go on
            futures = [ledger.append.future("b") for _ in range(3)]
            with pytest.raises(DDSException, match="commands_max"):
                ledger.append.future("c")
            with pytest.raises(CallTimeout, match="may be yet"):
                raise ledger.append._late()
        assert [one.result(20) for one in futures] == [2, 3, 4]
    for wrong in (int, object):
        with pytest.raises(TypeError, match="derive it"):
            Replica(participant, "other", wrong)
    with pytest.raises(ValueError, match="timeout"):
        Replica(participant, "other", Ledger, timeout=0)
    for name in ("timeout", "join_timeout"):
        with pytest.raises(TypeError, match=f"{name} is a whole number of nanoseconds, not 0.5"):
            Replica(participant, "other", Ledger, **{name: 0.5})
    with pytest.raises(ValueError, match="name of an object"):
        Replica(participant, "", Ledger)


def test_commands_may_be_large(limited, two_nodes) -> None:
    one, two = two_nodes
    with Replica(one, "ledger", Ledger) as first, Replica(two, "ledger", Ledger) as second:
        assert first.append("x" * 1_000_000) == 1 and second.append("y") == 2
        assert [len(line) for line in second.all()] == [1_000_000, 1]
        with Replica(one, "ledger", Ledger) as late:  # its state comes in pieces
            assert late.all() == second.all()
    with Replica(limited, "ledger", Ledger) as ledger:
        with pytest.raises(DDSSampleTooLarge, match="large_sample_max"):
            ledger.append("x" * 100_000)
        assert ledger.append("a") == 1


@pytest.mark.slow
def test_a_command_that_waits_for_a_command_says_so(participant) -> None:
    class Bad(Object):
        count: int = 0

        @command
        def twice(self) -> int:
            return bad.twice()

    with Replica(participant, "bad", Bad) as bad:
        with pytest.raises(DDSException, match="would wait for ever"):
            bad.twice()


def test_what_cannot_be_replicated_is_refused() -> None:
    from dds.replicated.object import interface_of

    class Stateless(Object):
        @command
        def go(self) -> None: ...

    class Coroutine(Object):
        count: int = 0

        @command
        async def go(self) -> None: ...

    class Untyped(Object):
        count: object

        @query
        def get(self) -> int: ...

    class Taken(Object):
        count: int

        @query
        def close(self) -> int: ...

    for cls, text in ((Stateless, "nothing of its state"), (Coroutine, "coroutines"), (Untyped, "count"),
                      (Taken, "method of that name")):
        with pytest.raises(TypeError, match=text):
            interface_of(cls)


def test_one_that_differs_stops_loudly_and_the_others_go_on(two_nodes, caplog) -> None:
    """Goal: a command that isn't the same everywhere is found. Method: one of three does something else."""
    one, two = two_nodes

    with Replica(one, "ledger", Ledger, check_every=10) as first, \
            Replica(two, "ledger", Ledger, check_every=10) as second, \
            Replica(two, "ledger", Ledger, check_every=10) as odd:
        odd._core._carrier.object.lines.append("out of order")
        for k in range(10):
            first.append(str(k))
        with pytest.raises(ReplicaDiverged, match="after command 10 its state differs"):
            while True:
                odd.size()
        assert any("its state differs" in record.message for record in caplog.records)
        assert first.append("on") == second.append("on") - 1
        wait_until(lambda: first.replicas() == [first.id, second.id])
        with pytest.raises(ReplicaDiverged):
            odd.append("x")


@pytest.mark.slow
def test_nobody_has_the_state(participant) -> None:
    """Method: a reader keeps the topic when its last replica goes; what it has kept doesn't reach back far enough."""
    with Replica(participant, "ledger", Ledger, history_bytes=0) as last:
        last.append("a")
        fill(last)
        reader = DataReader(participant, Topic(participant, "ledger_Replicated", Entry))
    with pytest.raises(StateLost, match="nobody who has its state is left"):
        Replica(participant, "ledger", Ledger, history_bytes=0)
    reader.close()


def test_who_may_have_missed_something_reads_anew(participant) -> None:
    """Goal: it finds the object in what the topic has kept, though nobody else has it."""
    with Replica(participant, "ledger", Ledger) as only:
        for k in range(20):
            only.append(f"a {k}")
        before = only._core._reader
        before._switched(continued=False)  # as when its node has gone and the next one has less
        wait_until(lambda: only._core._reader is not before and not only._core._reads_anew
                   and only.phase == "is live")
        assert only.append("a 20") == 21 and only.all() == [f"a {k}" for k in range(21)]
        with Replica(participant, "ledger", Ledger) as other:
            assert other.all() == only.all()
            wait_until(lambda: set(only.replicas()) == {only.id, other.id})


def test_who_has_carried_out_what_the_order_doesn_t_have_reads_anew(participant) -> None:
    """Method: the reader's link says so, as when it is opened at the next node; no sample was lost."""
    with Replica(participant, "ledger", Ledger) as only:
        only.append("a 0")
        before = only._core._reader
        before._source.breaks += 1
        with contextlib.suppress(OutcomeUnknown):
            only.append("a 1")
        wait_until(lambda: only._core._reader is not before and not only._core._reads_anew
                   and only.phase == "is live")
        assert only.all() == ["a 0", "a 1"]


def test_closing_in_the_middle(participant) -> None:
    ledger = Replica(participant, "ledger", Ledger)
    with ledger._core._lock:
        future = ledger.append.future("a")
    ledger.close()
    assert future.done() and (future.exception() is None or isinstance(future.exception(), OutcomeUnknown))
    with pytest.raises(DDSException, match="closed"):
        ledger.append("b")
    with pytest.raises(DDSException, match="closed"):
        ledger.size()
    ledger.close()
    other = Replica(participant, "ledger", Ledger)
    participant.close()
    with pytest.raises(DDSException):
        other.append("b")


def test_hostile_bytes_change_nothing(pair, two_nodes) -> None:
    """Goal: whatever a stranger writes to the topic, all replicas stay alike and go on."""
    import random

    first, second = pair
    chance = random.Random(3)
    writer = DataWriter(two_nodes[0], Topic(two_nodes[0], "ledger_Replicated", Entry))
    first.append("before")
    lineage = first._core.machine.agreed.lineage
    for k in range(400):
        writer._inbox.write(chance.randbytes(chance.randrange(150)), 0, 5.0)
        kind = chance.choice([kind for kind in Kind if kind not in (Kind.COMMAND, Kind.GONE)])
        writer.write(Entry(kind, chance.randbytes(16), chance.choice([NONE, lineage, chance.randbytes(16)]),
                           chance.randrange(-3, 5), chance.randrange(-2, 3), chance.randrange(-2, 3), "append", b"x"))
        writer.write(Entry(Kind.COMMAND, chance.randbytes(16), lineage, 1, 0, 0, "append", chance.randbytes(k % 9)))
    assert first.append("after") >= 2
    second.synchronize()
    assert first.all() == second.all() and first.phase == second.phase == "is live"
    with Replica(two_nodes[1], "ledger", Ledger) as third:
        assert third.all() == first.all()


def test_who_counts_and_never_comes_is_gone_in_the_end(pair, two_nodes) -> None:
    """Goal: a replica that died before anybody was told that it is there doesn't stay in the order. Method: somebody
    says in the order that one is live which was never there; those that are there are not said to have gone."""
    first, second = pair
    machine = first._core.machine
    writer = DataWriter(two_nodes[0], Topic(two_nodes[0], "ledger_Replicated", Entry))
    ghost = bytes(16)
    writer.write(Entry(Kind.LIVE, ghost, machine.agreed.lineage, 0, 0, 0, "", machine.agreed.signature))
    wait_until(lambda: ghost in machine.agreed.live)
    wait_until(lambda: ghost not in machine.agreed.live)
    assert set(first.replicas()) == {first.id, second.id} and first.phase == second.phase == "is live"


def test_a_condition_is_waited_for(pair) -> None:
    first, second = pair
    assert not first.wait_for(lambda one: bool(one.lines), duration(milliseconds=10))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(first.wait_for, lambda one: "go" in one.lines, duration(seconds=20))
        second.append("go")
        assert waiting.result(20)


def test_a_command_waits_no_longer_than_it_may_for_others_that_write(pair) -> None:
    first, _ = pair
    begun, over = threading.Event(), threading.Event()

    def write() -> None:
        with first._core._writing:
            begun.set()
            over.wait(20)

    other = threading.Thread(target=write)
    other.start()
    assert begun.wait(20)
    with pytest.raises(DDSTimeout, match="others of this replica"):
        first.append.within(duration(milliseconds=50))("a")
    with pytest.raises(CallTimeout, match="others of this replica"):
        first.synchronize(duration(milliseconds=50))
    over.set()
    other.join()
    assert first.append("b") == 1


def test_what_is_owed_after_a_death_is_written_before_all_else_though_it_took_two_attempts(pair) -> None:
    """Method: there is no room for what a node's death has others write again; then there is."""
    first, second = pair
    core = first._core
    write, written = core._writer.write, []

    def full(entry: Entry) -> None:
        raise DDSTimeout("no room")

    def watched(entry: Entry) -> None:
        written.append(entry.kind)
        write(entry)

    core._writer.write = full
    with core._writing, pytest.raises(DDSTimeout):
        core._write_again()
    core._writer.write = watched
    assert first.append("a") == 1 and written[:3] == [Kind.GONE, Kind.JOIN, Kind.COMMAND]
    assert first.append("b") == 2 and written.count(Kind.JOIN) == 1
    second.synchronize()
    assert second.all() == ["a", "b"]


def test_synchronize_has_an_end(pair) -> None:
    first, _ = pair
    with first._core._lock, pytest.raises(CallTimeout):
        first.synchronize(1_000_000)


def test_who_writes_as_the_replica_ends_is_told_why_it_has(participant, monkeypatch) -> None:
    """And not that some writer is closed."""
    ledger = Replica(participant, "ledger", Ledger)
    ledger.append("first")
    driver = ledger._core
    write = driver._write_command

    def ends_first(entry):
        driver.pump_ended(DDSNodeLost("the node has gone"))
        write(entry)

    monkeypatch.setattr(driver, "_write_command", ends_first)
    with pytest.raises(DDSNodeLost, match="the node has gone"):
        ledger.append("second")
