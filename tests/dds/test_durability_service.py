"""DurabilityService: its limits, and how long what was disposed of is kept.

Goal: late joiners at every node get the same, within the limits; what was disposed of, and has no writers, they get as
long as the cleanup delay says, never shorter, and not for ever. Method: embedded nodes for what programs see; daemons
of which one dies, and a restart of all, for a delay that goes on.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from dds import (
    DataWriter,
    DDSException,
    DomainParticipant,
    InstanceState,
    InvalidSample,
    Policy,
    Publisher,
    Qos,
    Topic,
)
from dds.internal import dds_infinity
from tests.dds.test_late_joiners import LOGGED, STAYS, VOLATILE, Track, everything, qos, seen
from tests.dds.test_sub import LONG
from tests.spindle.hosts import hosts
from tests.support import wait_until

MS = 1_000_000
KEEP_ALL, KEEP_ONE = Policy.History.KeepAll, Policy.History.KeepLast(1)


def service(delay: int = 0, history: Policy = KEEP_ONE, samples: int = -1, instances: int = -1, each: int = -1
            ) -> Policy:
    return Policy.DurabilityService(delay, history, samples, instances, each)


def topic_of(participant: DomainParticipant, kept: Policy, durability: Policy = VOLATILE, **more: Any) -> Topic:
    return Topic(participant, "tracks", Track, qos(durability) + Qos(kept), size_max=1000, **more)


def figures(participant: DomainParticipant) -> dict[str, int]:
    return participant.session.status()["topics"][0]


def write(writer: DataWriter, *tracks: tuple[int, int]) -> None:
    for number, height in tracks:
        writer.write(Track(number, height))
    assert writer.wait_for_acks(LONG)


def end(writer: DataWriter, *numbers: int) -> int:
    """Disposes of them and leaves them; returns the time before that, ns."""
    before_ns = time.time_ns()
    for number in numbers:
        writer.unregister_instance(Track(number))
    assert writer.wait_for_acks(LONG)
    return before_ns


# --- limits

def test_samples_of_all_instances_together(two_nodes: tuple[DomainParticipant, DomainParticipant]) -> None:
    topics = [topic_of(one, service(history=KEEP_ALL, samples=4)) for one in two_nodes]
    writer = DataWriter(two_nodes[0], topics[0])
    write(writer, *((number % 3, number) for number in range(10)))
    for participant, topic in zip(two_nodes, topics, strict=True):
        reader = everything(participant, topic)
        assert seen(reader, 4) == [(0, 6), (1, 7), (2, 8), (0, 9)]
        assert reader.get_sample_lost_status().total_count == 0
        assert (figures(participant)["limited"], figures(participant)["given_up"]) == (6, 0)


def test_with_a_depth(participant: DomainParticipant) -> None:
    topic = topic_of(participant, service(history=Policy.History.KeepLast(2), samples=4))
    writer = DataWriter(participant, topic)
    write(writer, (1, 1), (2, 2), (2, 3), (2, 4), (2, 5), (3, 6), (4, 7))
    assert seen(everything(participant, topic), 4) == [(2, 4), (2, 5), (3, 6), (4, 7)]


def test_instances(two_nodes: tuple[DomainParticipant, DomainParticipant]) -> None:
    """The one that was silent longest goes, with all its samples."""
    topics = [topic_of(one, service(history=KEEP_ALL, instances=2)) for one in two_nodes]
    writer = DataWriter(two_nodes[0], topics[0])
    write(writer, (1, 1), (1, 2), (2, 3), (1, 4), (3, 5))
    for participant, topic in zip(two_nodes, topics, strict=True):
        assert seen(everything(participant, topic), 4) == [(1, 1), (1, 2), (1, 4), (3, 5)]
        assert figures(participant)["limited"] == 1


def test_what_was_disposed_of_goes_before_what_lives(participant: DomainParticipant) -> None:
    topic = topic_of(participant, service(dds_infinity, instances=3))
    writer = DataWriter(participant, topic)
    write(writer, (1, 1), (2, 2), (3, 3))
    end(writer, 3)
    assert figures(participant)["keys_over"] == 1
    write(writer, (4, 4))
    assert seen(everything(participant, topic), 3) == [(1, 1), (2, 2), (4, 4)]


def test_samples_of_sets_count_and_their_instances_do_not(participant: DomainParticipant) -> None:
    topic = topic_of(participant, service(samples=3, instances=1))
    writer = DataWriter(participant, topic)
    coherent = Publisher(participant, Qos(Policy.PresentationAccessScope.Topic(True, True)))
    in_sets = DataWriter(coherent, topic)
    write(writer, (1, 1))
    write(in_sets, (1, 2), (1, 3))
    assert seen(everything(participant, topic), 3) == [(1, 1), (1, 2), (1, 3)]
    write(in_sets, (1, 4))
    assert seen(everything(participant, topic), 3) == [(1, 2), (1, 3), (1, 4)]


def test_order_groups_have_no_limits_of_their_own(participant: DomainParticipant) -> None:
    for kept in (service(samples=5), service(instances=1)):
        with pytest.raises(DDSException, match="order group"):
            Topic(participant, "tracks", Track, qos() + Qos(kept), order="all")


def test_types_without_a_key_have_nothing_to_clean_up(participant: DomainParticipant) -> None:
    topic = Topic(participant, "t", bytes, Qos(VOLATILE, service(1, KEEP_ALL, samples=3)))
    assert not topic.spec.effects and topic.spec.history_depth == 3


# --- the delay


@pytest.fixture(params=["", "flight"], ids=["alone", "in an order group"])
def order(request: pytest.FixtureRequest) -> str:
    """In which the topic is."""
    return str(request.param)


def test_what_was_disposed_of_is_kept_while_the_delay_lasts(
        two_nodes: tuple[DomainParticipant, DomainParticipant], order: str) -> None:
    """Also at a node that comes late."""
    topics = [topic_of(one, service(3_600_000 * MS), order=order) for one in two_nodes]
    writer = DataWriter(two_nodes[0], topics[0])
    write(writer, (1, 1), (2, 2))
    end(writer, 1)
    for participant, topic in zip(two_nodes, topics, strict=True):
        reader = everything(participant, topic)  # its node has the topic as long as it has the reader
        assert seen(reader, 3) == [(1, 1), (2, 2), (1, None)]
        assert (figures(participant)["keys"], figures(participant)["keys_over"]) == (2, 1)


def test_what_was_disposed_of_goes_after_the_delay(
        two_nodes: tuple[DomainParticipant, DomainParticipant], order: str) -> None:
    delay = 300 * MS
    topics = [topic_of(one, service(delay), order=order) for one in two_nodes]
    writer = DataWriter(two_nodes[0], topics[0])
    readers = [everything(one, topic) for one, topic in zip(two_nodes, topics, strict=True)]
    write(writer, (1, 1), (2, 2))
    before_ns = end(writer, 1)
    for participant, topic in zip(two_nodes, topics, strict=True):
        wait_until(lambda participant=participant: figures(participant)["keys"] == 1)
        assert time.time_ns() >= before_ns + delay
        assert figures(participant)["limited"] == figures(participant)["given_up"] == 0
        late = everything(participant, topic)
        assert seen(late, 1) == [(2, 2)] and late.get_sample_lost_status().total_count == 0
    assert seen(readers[1], 3) == [(1, 1), (2, 2), (1, None)]


def test_the_delay_begins_when_the_last_writer_has_left(
        two_nodes: tuple[DomainParticipant, DomainParticipant], order: str) -> None:
    delay = 200 * MS
    topics = [topic_of(one, service(delay, Policy.History.KeepLast(2)), order=order) for one in two_nodes]
    writer, other = (DataWriter(one, topic, Qos(STAYS)) for one, topic in zip(two_nodes, topics, strict=True))
    readers = [everything(one, topic) for one, topic in zip(two_nodes, topics, strict=True)]
    write(writer, (1, 1))
    write(other, (1, 2))
    writer.dispose(Track(1))
    writer.unregister_instance(Track(1))
    assert writer.wait_for_acks(LONG)
    assert figures(two_nodes[0])["keys_over"] == 0
    before_ns = time.time_ns()
    other.close()
    for participant in two_nodes:
        wait_until(lambda participant=participant: figures(participant)["keys"] == 0)
    assert time.time_ns() >= before_ns + delay
    assert all(reader.take(9) for reader in readers)


def test_a_sample_keeps_an_instance_from_going(participant: DomainParticipant, order: str) -> None:
    topic = topic_of(participant, service(50 * MS), order=order)
    writer = DataWriter(participant, topic)
    write(writer, (1, 1), (2, 2))
    end(writer, 1, 2)
    write(writer, (1, 3))
    wait_until(lambda: figures(participant)["keys"] == 1)
    late = everything(participant, topic)
    assert seen(late, 1) == [(1, 3)]


def test_an_infinite_delay(participant: DomainParticipant, order: str) -> None:
    topic = topic_of(participant, service(dds_infinity), order=order)
    kept, writer = everything(participant, topic), DataWriter(participant, topic, Qos(STAYS))
    write(writer, (1, 1))
    writer.dispose(Track(1))
    writer.close()
    wait_until(lambda: figures(participant)["keys_over"] == 1)
    late = everything(participant, topic)
    found = []
    wait_until(lambda: found.extend(late.take(9)) or len(found) >= 2)
    assert not isinstance(found[0], InvalidSample) and found[0].number == 1
    assert found[-1].sample_info.instance_state == InstanceState.NotAliveDisposed
    assert kept.take(9)


@pytest.mark.slow
@pytest.mark.parametrize("durability", [VOLATILE, LOGGED], ids=["volatile", "logged"])
def test_a_delay_outlives_the_nodes(
        runtime_dir: Path, tmp_path: Path, durability: Policy, order: str) -> None:
    """One dies and another comes late; of the logged topic then all."""
    delay = 3_000 * MS
    with hosts(runtime_dir, 3, f'journal.dir="{tmp_path}"') as site:
        participants = [DomainParticipant(runtime_dir=host.directory) for host in site[:2]]
        topics = [topic_of(one, service(delay), durability, order=order) for one in participants]
        readers = [everything(one, topic) for one, topic in zip(participants, topics, strict=True)]
        writer = DataWriter(participants[0], topics[0], Qos(STAYS))
        write(writer, (1, 1), (2, 2))
        writer.dispose(Track(1))
        before_ns = end(writer, 1)
        assert seen(readers[1], 3)[-1] == (1, None)
        os.kill(site[0].running.pid, signal.SIGKILL)
        third = DomainParticipant(runtime_dir=site[2].directory)
        late = topic_of(third, service(delay), durability, order=order)
        everything(third, late)
        assert figures(third)["keys"] == 2 or time.time_ns() >= before_ns + delay
        if durability is LOGGED:
            for host in site[1:]:
                os.kill(host.running.pid, signal.SIGKILL)
            for host in site:
                host.running.process.wait()
                host.start()
            for host in site:
                host.running.wait_ready()
            third = DomainParticipant(runtime_dir=site[2].directory)
            late = topic_of(third, service(delay), durability, order=order)
        kept = everything(third, late)
        wait_until(lambda: figures(third)["keys"] == 1, timeout_s=30)
        assert time.time_ns() >= before_ns + delay
        assert (2, 2) in seen(kept, 1)
        assert [one for one in seen(everything(third, late), 1) if one[1] is not None] == [(2, 2)]
        third.close()
        for participant in participants:
            participant.close()
