"""Programs written for cyclonedds.

Goal: they run here with only the first word of their imports changed, as far as they use what Spindle has; what it
doesn't have fails with an error that names it.
Method: programs as users of cyclonedds-python write them are kept as they would run there; each has the first word of
its imports changed and runs as a process of its own, with an embedded node. (cyclonedds itself is not needed.)
"""

import os
import re
import subprocess
import sys
import textwrap

import pytest

PROGRAMS = {
    "one process writes and reads": """
        from dataclasses import dataclass
        from cyclonedds.domain import DomainParticipant
        from cyclonedds.idl import IdlStruct
        from cyclonedds.pub import DataWriter
        from cyclonedds.sub import DataReader
        from cyclonedds.topic import Topic

        @dataclass
        class Greeting(IdlStruct, typename="demo.Greeting"):
            text: str

        participant = DomainParticipant()
        topic = Topic(participant, "Greetings", Greeting)
        writer = DataWriter(participant, topic)
        reader = DataReader(participant, topic)
        writer.write(Greeting(text="hello"))
        sample = reader.read()[0]
        assert sample == Greeting("hello")
        assert topic.typename == "demo::Greeting"
        print(sample.text)
        print(reader.take()[0].text)
        assert reader.take() == []
    """,
    "a publisher and a subscriber with qos": """
        import time
        from dataclasses import dataclass
        from cyclonedds.core import Listener, Qos, Policy
        from cyclonedds.domain import DomainParticipant
        from cyclonedds.pub import Publisher, DataWriter
        from cyclonedds.sub import Subscriber, DataReader
        from cyclonedds.topic import Topic
        from cyclonedds.util import duration
        import cyclonedds.idl as idl
        import cyclonedds.idl.annotations as annotate
        import cyclonedds.idl.types as types

        @dataclass
        @annotate.final
        @annotate.autoid("sequential")
        class Car(idl.IdlStruct, typename="cars.Car"):
            name: str
            annotate.key("name")
            x: types.int64
            y: types.int64

        class Counter(Listener):
            matched = 0
            def on_subscription_matched(self, reader, status):
                Counter.matched = status.current_count
            def on_liveliness_changed(self, reader, status):
                Counter.alive = status.alive_count

        qos = Qos(
            Policy.Reliability.Reliable(duration(seconds=2)),
            Policy.Durability.TransientLocal,
            Policy.History.KeepLast(10),
        )
        participant = DomainParticipant()
        topic = Topic(participant, "Car", Car, qos=qos)
        writer = DataWriter(Publisher(participant), topic)
        for i in range(20):
            writer.write(Car("one", i, -i))
            writer.write(Car("two", 2 * i, i))
        reader = DataReader(Subscriber(participant), topic, listener=Counter())
        last = {}
        count = 0
        for sample in reader.take_iter(timeout=duration(milliseconds=200)):
            last[sample.name] = sample
            count += 1
            assert sample.sample_info.valid_data and sample.sample_info.source_timestamp > 0
        assert last == {"one": Car("one", 19, -19), "two": Car("two", 38, 19)}
        assert count == 20, count
        assert Policy.Durability in reader.get_qos() and reader.get_qos()[Policy.History].depth == 10
        assert len(writer.get_matched_subscriptions()) == 1
        assert (Counter.matched, Counter.alive) == (1, 1)
    """,
    "listeners, conditions and wait sets": """
        import threading
        from dataclasses import dataclass
        from cyclonedds.core import (Listener, WaitSet, ReadCondition, QueryCondition, GuardCondition, ViewState,
                                     SampleState, InstanceState, DDSStatus)
        from cyclonedds.domain import DomainParticipant
        from cyclonedds.idl import IdlStruct
        from cyclonedds.idl.types import sequence, uint8, float32
        from cyclonedds.pub import DataWriter
        from cyclonedds.sub import DataReader
        from cyclonedds.topic import Topic
        from cyclonedds.util import duration, isgoodentity

        @dataclass
        class Reading(IdlStruct):
            sensor: uint8
            values: sequence[float32, 8]

        participant = DomainParticipant(0)
        topic = Topic(participant, "Readings", Reading)
        hit = threading.Event()
        class Hit(Listener):
            def on_data_available(self, reader):
                hit.set()
        heard = DataReader(participant, topic, listener=Hit())
        reader = DataReader(participant, topic)
        writer = DataWriter(participant, topic)
        condition = ReadCondition(reader, ViewState.Any | InstanceState.Alive | SampleState.NotRead)
        query = QueryCondition(reader, SampleState.Any | ViewState.Any | InstanceState.Any, lambda one: one.sensor == 2)
        guard = GuardCondition(participant)
        waitset = WaitSet(participant)
        for one in (condition, query, guard):
            waitset.attach(one)
            assert isgoodentity(one)
        assert waitset.wait(duration(milliseconds=5)) == 0
        writer.write(Reading(1, [0.5, 1.5]))
        assert waitset.wait(duration(seconds=5)) == 1
        writer.write(Reading(sensor=2, values=[]))
        writer.wait_for_acks(duration(seconds=5))
        guard.set(True)
        assert waitset.wait(duration(seconds=5)) == 3
        assert reader.take(N=10, condition=query) == [Reading(2, [])]
        assert reader.take(N=10, condition=condition) == [Reading(1, [0.5, 1.5])]
        assert hit.wait(5)
        assert reader.get_status_changes() & DDSStatus.SubscriptionMatched
    """,
    "async iteration": """
        import asyncio
        from dataclasses import dataclass
        from cyclonedds.domain import DomainParticipant
        from cyclonedds.idl import IdlStruct
        from cyclonedds.pub import DataWriter
        from cyclonedds.sub import DataReader
        from cyclonedds.topic import Topic
        from cyclonedds.util import duration

        @dataclass
        class Tick(IdlStruct):
            n: int

        participant = DomainParticipant()
        topic = Topic(participant, "Ticks", Tick)
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)

        async def produce():
            for n in range(5):
                writer.write(Tick(n))
                await asyncio.sleep(0.001)

        async def main():
            task = asyncio.create_task(produce())
            found = [tick.n async for tick in reader.take_aiter(timeout=duration(milliseconds=300))]
            await task
            assert found == [0, 1, 2, 3, 4], found

        asyncio.run(main())
    """,
    "iterators over what is alive": """
        from dataclasses import dataclass
        from cyclonedds.core import InstanceState, ReadCondition, SampleState, ViewState
        from cyclonedds.domain import DomainParticipant
        from cyclonedds.idl import IdlStruct
        from cyclonedds.idl.annotations import key
        from cyclonedds.pub import DataWriter
        from cyclonedds.qos import Policy, Qos
        from cyclonedds.sub import DataReader
        from cyclonedds.topic import Topic
        from cyclonedds.util import duration

        @dataclass
        class Car(IdlStruct):
            name: str
            key("name")
            x: int

        participant = DomainParticipant()
        qos = Qos(Policy.Reliability.Reliable(duration(seconds=1)), Policy.History.KeepAll)
        topic = Topic(participant, "Cars", Car, qos=qos)
        reader, writer = DataReader(participant, topic, qos=qos), DataWriter(participant, topic, qos=qos)
        writer.write(Car("a", 1))
        writer.write(Car("b", 2))
        writer.dispose(Car("a", 0))
        assert writer.wait_for_acks(duration(seconds=5))
        alive = ReadCondition(reader, SampleState.NotRead | ViewState.Any | InstanceState.Alive)
        found = [car.x for car in reader.take_iter(condition=alive, timeout=duration(milliseconds=50))]
        assert found == [2], found  # in cyclonedds without the condition, too
        rest = reader.take(9)
        assert rest[0] == Car("a", 1) and rest[0].sample_info.instance_state == InstanceState.NotAliveDisposed, rest
    """,
    "qos handling": """
        from cyclonedds.qos import Qos, Policy
        from cyclonedds.core import DDSException
        from cyclonedds.domain import DomainParticipant
        from cyclonedds.sub import DataReader
        from cyclonedds.util import duration

        base = Qos(Policy.Reliability.Reliable(max_blocking_time=duration(seconds=1)), Policy.History.KeepLast(depth=4))
        more = base + Qos(Policy.Durability.TransientLocal, Policy.Property("team", "red"))
        assert Policy.History in more and more[Policy.History].depth == 4
        assert Qos.fromdict(more.asdict()) == more
        assert (more - base)[Policy.Durability] == Policy.Durability.TransientLocal
        assert DDSException.DDS_RETCODE_TIMEOUT == -10
        participant = DomainParticipant(qos=Qos(Policy.EntityName("tower")).domain_participant())
        assert participant.get_qos()[Policy.EntityName].name == "tower"
    """,
}

MISSING = {
    "a policy": ("""
        from cyclonedds.core import Qos, Policy
        from cyclonedds.domain import DomainParticipant
        from cyclonedds.topic import Topic
        Topic(DomainParticipant(), "t", bytes, qos=Qos(Policy.IgnoreLocal.Process))
    """, "DDS_RETCODE_UNSUPPORTED"),
    "an XML configuration": ("""
        from cyclonedds.domain import Domain
        Domain(1, "<Discovery><Tag>x</Tag></Discovery>")
    """, "an XML configuration is not part of Spindle"),
}


def run(program):
    text = re.sub(r"\b(from|import) cyclonedds\b", r"\1 dds", textwrap.dedent(program))
    return subprocess.run([sys.executable, "-c", text], env={**os.environ, "SPINDLE_EMBED": "1"}, timeout=60,
                          capture_output=True, text=True, check=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_run(name):
    done = run(PROGRAMS[name])
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
@pytest.mark.parametrize("name", MISSING)
def test_what_is_missing_is_named(name):
    program, text = MISSING[name]
    done = run(program)
    assert done.returncode == 1
    assert text in done.stderr.splitlines()[-1]
