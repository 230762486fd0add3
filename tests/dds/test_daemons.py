"""DDS programs on real daemons.

Goal: programs in their own processes, attached to different daemons, see one order; what happens to them stays with
them; nothing leaks.
Method: `spindle daemon` processes, programs as processes that print what they saw.
"""

import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSNodeLost,
    DomainParticipant,
    InstanceState,
    InvalidSample,
    Listener,
    Policy,
    Qos,
    Topic,
)
from tests.dds.test_sub import LONG
from tests.spindle.daemons import Daemon, daemons
from tests.support import open_descriptors, wait_until


@pytest.fixture
def two_daemons(runtime_dir):
    with daemons(runtime_dir, 2) as both:
        yield both


class Program:
    """A Python program as a process; lines of its output as they come."""

    def __init__(self, text, **environment):
        self.process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(text)], stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True,
            env={**os.environ, **environment})

    def line(self):
        line = self.process.stdout.readline().rstrip("\n")
        assert line, f"the program ended with {self.process.wait(10)}"
        return line

    def go(self):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stdin.close()


BOTH_WAYS = """
    import hashlib, sys, threading, os
    from dataclasses import dataclass
    import dds
    from dds.idl import IdlStruct

    @dataclass
    class Item(IdlStruct):
        source: str
        n: int

    participant = dds.DomainParticipant()
    topic = dds.Topic(participant, "items", Item)
    reader, writer = dds.DataReader(participant, topic), dds.DataWriter(participant, topic)
    print("ready", flush=True)
    sys.stdin.readline()

    def write():
        for n in range(300):
            writer.write(Item(os.environ["NAME"], n))

    threading.Thread(target=write).start()
    digest, seen = hashlib.sha256(), {}
    for item in reader.take_iter(timeout=dds.duration(seconds=20)):
        digest.update(repr(item).encode())
        assert item.n == seen.get(item.source, 0)
        seen[item.source] = item.n + 1
        if sum(seen.values()) == 900:
            break
    print(digest.hexdigest(), flush=True)
"""


@pytest.mark.slow
def test_programs_on_two_daemons_see_one_order(two_daemons):
    with (Program(BOTH_WAYS, NAME="a", SPINDLE_NODE_ID="1") as a,
          Program(BOTH_WAYS, NAME="b", SPINDLE_NODE_ID="2") as b,
          Program(BOTH_WAYS, NAME="c", SPINDLE_NODE_ID="2") as c):
        programs = (a, b, c)
        assert [one.line() for one in programs] == ["ready"] * 3
        for one in programs:
            one.go()
        assert len({one.line() for one in programs}) == 1
        assert [one.process.wait(20) for one in programs] == [0, 0, 0]


@pytest.mark.slow
def test_a_program_killed_with_an_open_loan_costs_the_others_nothing(two_daemons):
    with DomainParticipant(node_id=1) as participant:
        topic = Topic(participant, "topic", bytes)
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        with Program("""
            import dds, time
            participant = dds.DomainParticipant(node_id=2)
            writer = dds.DataWriter(participant, dds.Topic(participant, "topic", bytes))
            writer.write(b"before")
            loan = writer.loan(100)
            loan.data[:5] = b"never"
            print("holding", flush=True)
            time.sleep(1000)
        """) as program:
            assert program.line() == "holding"
            assert reader.take_one(timeout=LONG) == b"before"
            assert len(wait_until(lambda: len(reader.matched_pub) == 2 and reader.matched_pub)) == 2
            program.process.send_signal(signal.SIGKILL)
            program.process.wait()
            wait_until(lambda: len(reader.matched_pub) == 1)
            writer.write(b"after")
            assert reader.take_one(timeout=LONG) == b"after"
            assert writer.wait_for_acks(LONG)


TRACK = """
    from dataclasses import dataclass
    from dds.idl import IdlStruct
    from dds.idl.annotations import key

    @dataclass
    class Track(IdlStruct):
        number: int
        key("number")
        height: int = 0
"""


@pytest.mark.slow
def test_a_program_that_is_killed_ends_what_it_alone_wrote(two_daemons):
    """Behind its last sample, and at the same place for readers of both nodes."""
    names = {"__name__": __name__}
    exec(textwrap.dedent(TRACK), names)
    with DomainParticipant(node_id=1) as here, DomainParticipant(node_id=2) as there:
        topics = [Topic(one, "tracks", names["Track"]) for one in (here, there)]
        readers = [DataReader(one, topic) for one, topic in zip((here, there), topics, strict=True)]
        with Program(textwrap.dedent(TRACK) + textwrap.dedent("""
            import dds, time
            participant = dds.DomainParticipant(node_id=2)
            writer = dds.DataWriter(participant, dds.Topic(participant, "tracks", Track))
            for number in range(100):
                writer.write(Track(number % 3, number))
            print("written", flush=True)
            time.sleep(1000)
        """)) as program:
            assert program.line() == "written"
            other = DataWriter(here, topics[0])
            other.write(names["Track"](2, 1000))
            assert other.wait_for_acks(LONG)
            program.process.send_signal(signal.SIGKILL)
            program.process.wait()
            for reader in readers:
                wait_until(lambda reader=reader: len(reader.read(200)) == 104)
            other.write(names["Track"](2, 2000))
            assert other.wait_for_acks(LONG)
            taken = [reader.take(200) for reader in readers]
        for samples in taken:
            ends = [one for one in samples if isinstance(one, InvalidSample)]
            assert [one.key_sample.number for one in ends] == [0, 1, 2] and samples[-4:-1] == ends
            assert [one.sample_info.instance_state for one in ends] == [
                InstanceState.NotAliveDisposed, InstanceState.NotAliveDisposed, InstanceState.Alive]
        assert len({tuple((one.sample_info.view_id, one.sample_info.sequence) for one in samples)
                    for samples in taken}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("durability", [Policy.Durability.Volatile, Policy.Durability.TransientLocal], ids=str)
def test_what_only_a_dead_node_wrote_has_no_writers_at_the_views_cut(runtime_dir, durability):
    """Behind its last sample, before any of the next view, in the same place for all and in late joiners' history."""
    names = {"__name__": __name__}
    exec(textwrap.dedent(TRACK), names)
    track, qos = names["Track"], Qos(durability, Policy.Reliability.Reliable(LONG), Policy.History.KeepAll)
    with daemons(runtime_dir, 3) as group:
        participants = [DomainParticipant(node_id=n) for n in (1, 2, 3)]
        topics = [Topic(one, "tracks", track, qos) for one in participants]
        readers = [DataReader(one, topic, qos=qos) for one, topic in zip(participants[:2], topics, strict=False)]
        lost, stays = DataWriter(participants[2], topics[2]), DataWriter(participants[0], topics[0])
        for number in range(100):
            lost.write(track(number % 3, number))
        assert lost.wait_for_acks(LONG)
        stays.write(track(2, 1000))
        assert stays.wait_for_acks(LONG)
        group[2].kill()
        for reader in readers:
            wait_until(lambda reader=reader: len(reader.read(200)) == 103)
        stays.write(track(0, 2000))
        if durability == Policy.Durability.TransientLocal:
            readers.append(DataReader(participants[1], topics[1], qos=qos))
        assert stays.wait_for_acks(LONG)
        taken = [reader.take(200) for reader in readers]
        for samples in taken:
            ends = [one for one in samples if isinstance(one, InvalidSample)]
            assert [one.key_sample.number for one in ends] == [0, 1] and samples[-3:-1] == ends
            assert [one.sample_info.instance_state for one in ends] == [
                InstanceState.Alive, InstanceState.NotAliveNoWriters]
            assert {one.sample_info.publication_handle >> 16 for one in ends} == {3}
            assert samples[-1].sample_info.no_writers_generation_count == 1
        assert len({tuple((one.sample_info.view_id, one.sample_info.sequence) for one in samples)
                    for samples in taken}) == 1
        for one in participants:
            one.close()


@pytest.mark.slow
def test_when_its_daemon_dies_a_program_is_told_and_can_come_back(runtime_dir):
    with daemons(runtime_dir, 1) as (daemon,):
        participant = DomainParticipant()
        topic = Topic(participant, "topic", bytes)
        heard = threading.Event()
        reader = DataReader(participant, topic, listener=Listener(on_data_available=lambda _: heard.set()))
        writer = DataWriter(participant, topic)
        writer.write(b"kept")
        assert writer.wait_for_acks(LONG)
        assert heard.wait(10)
        daemon.kill()
        assert reader.take(5) == [b"kept"]
        for call in (
            lambda: reader.take_one(timeout=LONG), lambda: writer.write(b"x"), reader.get_matched_publications):
            with pytest.raises(DDSNodeLost):
                call()
        participant.close()
        second = Daemon(1, runtime_dir=runtime_dir).wait_ready()
        try:
            with DomainParticipant() as again:
                topic = Topic(again, "topic", bytes)
                reader, writer = DataReader(again, topic), DataWriter(again, topic)
                writer.write(b"back")
                assert reader.take_one(timeout=LONG) == b"back"
        finally:
            second.stop()


@pytest.mark.slow
def test_a_late_program_gets_the_history(two_daemons):
    qos = Qos(Policy.Durability.TransientLocal)
    with DomainParticipant(node_id=1) as participant:
        topic = Topic(participant, "kept", bytes, qos=qos)
        keeper, writer = DataReader(participant, topic), DataWriter(participant, topic)
        for i in range(100):
            writer.write(b"%d" % i)
        assert writer.wait_for_acks(LONG)
        with DomainParticipant(node_id=2) as late:
            reader = DataReader(late, Topic(late, "kept", bytes))
            writer.write(b"100")
            got = [reader.take_one(timeout=LONG) for _ in range(101)]
            assert got == [b"%d" % i for i in range(101)]
        assert len(keeper.take(200)) == 101


@pytest.mark.slow
def test_coming_and_going_leaks_nothing(two_daemons):
    def round_trip():
        with DomainParticipant() as participant:
            topic = Topic(participant, "topic", bytes)
            reader = DataReader(participant, topic, listener=Listener(on_data_available=lambda _: None))
            writer = DataWriter(participant, topic)
            writer.write(b"x")
            assert reader.take_one(timeout=LONG) == b"x"

    def held():
        return open_descriptors(), threading.active_count()

    round_trip()
    before = held()
    for _ in range(10):
        round_trip()
    wait_until(lambda: held() <= before, what=f"descriptors and threads back to {before}")
