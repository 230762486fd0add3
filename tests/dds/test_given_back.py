"""Goal: what a program has closed, or what its node took with it, gives back its descriptors at once, and not when the
garbage collector comes: programs for real time switch that off, and in others it may come late.

Method: a program that does all that once and again on a daemon, without the collector.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from dds import DataReader, DataWriter, DDSException, DomainParticipant, Policy, Publisher, Qos, Subscriber, Topic
from dds.replicated import Object, Replica, command
from dds.rpc import Client, Server, service
from spindle.client import attach
from spindle.client.session import Session
from spindle.group.topics import TopicSpec
from spindle.links import Links
from tests.spindle.daemons import Daemon, daemons
from tests.support import descriptors_before, open_descriptors, wait_until

COHERENT = Qos(Policy.PresentationAccessScope.Topic(coherent_access=True, ordered_access=True))


@service
class Calculator:
    def add(self, one: int, other: int) -> int:
        return one + other


class Counter(Object):
    count: int = 0

    @command
    def add(self, number: int) -> int:
        self.count += number
        return self.count


@pytest.fixture
def daemon(runtime_dir: Path) -> Iterator[Daemon]:
    with daemons(runtime_dir, 1) as [one]:
        yield one


@pytest.fixture(autouse=True)
def no_collector() -> Iterator[None]:
    yield
    gc.enable()


def check_given_back(use: Callable[[], None]) -> None:
    use()  # what stays with the process comes with the first time
    before = descriptors_before()
    gc.disable()
    for _ in range(3):
        use()
    wait_until(lambda: open_descriptors() <= before)  # threads that close may be about to end
    gc.enable()


# --- sessions

def open_all(session: Session) -> None:
    session.declare_topic(TopicSpec("track", size_max=64))
    writer = session.open_writer("track")
    reader = session.open_reader("track", keep_all=True, from_history=False)
    writer.inbox.write(b"one", timeout_s=5)
    wait_until(lambda: reader.log.take(1))


def test_a_session_that_is_closed_with_all_that_it_has_open(daemon: Daemon, runtime_dir: Path) -> None:
    def use() -> None:
        with attach(runtime_dir=runtime_dir) as session:
            open_all(session)

    check_given_back(use)


@pytest.mark.parametrize("end", [Daemon.kill, Daemon.terminate])
def test_a_session_whose_node_has_gone(runtime_dir: Path, end: Callable[[Daemon], object]) -> None:
    def use() -> None:
        with daemons(runtime_dir, 1) as [node]:
            session = attach(runtime_dir=runtime_dir)
            open_all(session)
            end(node)
            wait_until(lambda: session.gone)
            session.close()

    check_given_back(use)


def test_links_that_are_kept_for_the_next_one(daemon: Daemon, runtime_dir: Path) -> None:
    def use() -> None:
        with attach(runtime_dir=runtime_dir) as session:
            Links(session).open(session.node_id).close()

    check_given_back(use)


# --- participants

def call(participant: DomainParticipant) -> None:
    with Server(participant, Calculator()), Client(participant, Calculator) as client:
        assert client.add(1, 2) == 3


def replicate(participant: DomainParticipant) -> None:
    with Replica(participant, "visitors", Counter) as replica:
        assert replica.add(1) == 1


def write_sets(participant: DomainParticipant) -> None:
    """The reader takes nothing, so the last word of the first writer finds no room."""
    topics = [Topic(participant, name, bytes, order="flight", size_max=1000, window=8) for name in ("track", "plane")]
    publisher, subscriber = Publisher(participant, COHERENT), Subscriber(participant, COHERENT)
    reader = DataReader(subscriber, topics[0], Qos(Policy.History.KeepAll, Policy.Reliability.Reliable(0)))
    writers = [DataWriter(publisher, topic, Qos(Policy.Reliability.Reliable(0))) for topic in topics]
    with suppress(DDSException):
        while True:
            writers[0].write(bytes(900))
    writers[0].close()
    reader.close()


def write_and_take(participant: DomainParticipant) -> None:
    topic = Topic(participant, "track", bytes)
    writer, reader = DataWriter(participant, topic), DataReader(participant, topic)
    writer.write(bytes(10))
    writer.write(bytes(3 << 20))
    taken: list[bytes] = []
    wait_until(lambda: taken.extend(reader.take()) or len(taken) == 2)


@pytest.mark.parametrize("what", [call, replicate, write_and_take, write_sets])
def test_a_participant_that_is_closed(daemon: Daemon, what: Callable[[DomainParticipant], None]) -> None:
    def use() -> None:
        with DomainParticipant() as participant:
            what(participant)

    check_given_back(use)
