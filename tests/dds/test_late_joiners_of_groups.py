"""Late joiners of order groups: with History.KeepLast, nodes keep the last samples of each instance of each topic.

Goal: whoever comes late, at whatever node, or without one, gets the same, in the order of the group: of each instance
as many samples as its topic says, and how it ended; never what was true once and isn't any more. Method: embedded nodes
for what programs see, and what programs do drawn at random, where who was there all the time says what is right;
daemons, hosts without a node and a restart of all for the ways that a table takes.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from dds import (
    DataReader,
    DataWriter,
    DomainParticipant,
    InstanceState,
    InvalidSample,
    Policy,
    Publisher,
    Qos,
    Subscriber,
    Topic,
    duration,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.internal import dds_infinity
from dds.messages import packets
from dds.messages.operations import DISPOSES, SINGLE, UNREGISTERS, WRITES, single_tag
from tests.dds.test_late_joiners import LOGGED, LONG, STAYS, VOLATILE, Track, everything, qos, seen
from tests.spindle.daemons import daemons
from tests.spindle.hosts import Host, hosts
from tests.support import wait_until


@dataclass
class Image(IdlStruct):
    number: int
    key("number")
    pixels: str = ""


NO_WRITERS = InstanceState.NotAliveNoWriters
COHERENT = Qos(Policy.PresentationAccessScope.Group(coherent_access=True, ordered_access=True))


def topic_of(participant: DomainParticipant, name: str, depth: int = 1, durability: Policy = VOLATILE,
             **more: int) -> Topic:
    return Topic(participant, name, Track, qos(durability, depth), order="flight", **{"size_max": 200, **more})


def acknowledged(*writers: DataWriter) -> None:
    assert all(one.wait_for_acks(LONG) for one in writers)


def figures(participant: DomainParticipant) -> dict[str, Any]:
    [found] = participant.session.status()["topics"]
    return found


def test_as_many_samples_of_each_instance_as_its_topic_says(two_nodes: tuple[DomainParticipant, DomainParticipant]
                                                            ) -> None:
    """In the order of the group; a topic that says nothing goes by the one that has declared the group, and one without
    a key has one instance."""
    texts_qos = Qos(Policy.Reliability.Reliable(LONG), VOLATILE)
    every = [(topic_of(one, "tracks", 2), topic_of(one, "planes", 3), topic_of(one, "gears", 1),
              Topic(one, "texts", bytes, texts_qos, order="flight")) for one in two_nodes]
    publisher = Publisher(two_nodes[0], COHERENT)
    writers = [DataWriter(publisher, topic) for topic in every[0]]
    tracks, planes, gears, texts = writers
    tracks.write(Track(9, 1))
    for number in range(3000):
        tracks.write(Track(number % 2, number))
        planes.write(Track(number % 2, number))
        gears.write(Track(number % 2, number))
        texts.write(b"%d" % number)
    acknowledged(*writers)
    for participant, topics in zip((*two_nodes, two_nodes[1]), (*every, every[1]), strict=True):
        subscriber = Subscriber(participant, COHERENT)
        readers = [DataReader(subscriber, topic, Qos(Policy.History.KeepAll)) for topic in topics]
        assert all(one.get_sample_lost_status().total_count == 0 for one in readers)
        found: list[tuple[str, Any]] = []
        wait_until(lambda subscriber=subscriber, found=found: found.extend(
            (reader.topic.name, one if isinstance(one, bytes) else (one.number, one.height))
            for reader, one in subscriber.take(100)) or len(found) >= 15)
        assert found == [
            ("tracks", (9, 1)), ("planes", (0, 2994)), ("planes", (1, 2995)),
            *((name, (number % 2, number)) for number in (2996, 2997) for name in ("tracks", "planes")),
            *((name, value) for number in (2998, 2999) for name, value in (
                ("tracks", (number % 2, number)), ("planes", (number % 2, number)), ("gears", (number % 2, number)),
                ("texts", b"%d" % number)))]
        subscriber.close()
    assert figures(two_nodes[0])["keys"] == 8


def test_a_group_that_a_topic_without_keep_last_declares_keeps_what_fits(participant: DomainParticipant) -> None:
    first = Topic(participant, "first", bytes, Qos(Policy.Reliability.Reliable(LONG), VOLATILE), order="flight")
    assert first.spec is not None and not first.spec.effects
    topic = topic_of(participant, "tracks", size_max=0)
    writer = DataWriter(participant, topic)
    for number in range(10):
        writer.write(Track(1, number))
    acknowledged(writer)
    assert len(seen(everything(participant, topic), 10)) == 10


def test_what_readers_and_writers_keep_says_nothing_for_the_group(participant: DomainParticipant) -> None:
    topic = Topic(participant, "tracks", Track, order="flight")
    reader = DataReader(participant, topic, qos())
    assert topic.spec is not None and not topic.spec.effects
    reader.close()


def test_the_durability_service_says_how_many(participant: DomainParticipant) -> None:
    def service(*limits: Any) -> Qos:
        return qos() + Qos(Policy.DurabilityService(0, *limits))

    tracks = Topic(participant, "tracks", Track, service(Policy.History.KeepLast(2), -1, -1, -1), order="flight")
    planes = Topic(participant, "planes", Track, service(Policy.History.KeepAll, -1, -1, 3), order="flight")
    writers = [DataWriter(participant, topic) for topic in (tracks, planes)]
    for writer in writers:
        for number in range(10):
            writer.write(Track(1, number))
        acknowledged(writer)
    assert seen(everything(participant, tracks), 2) == [(1, 8), (1, 9)]
    assert seen(everything(participant, planes), 3) == [(1, 7), (1, 8), (1, 9)]


# --- ends

def test_each_writer_of_a_publisher_leaves_for_itself(two_nodes: tuple[DomainParticipant, DomainParticipant]) -> None:
    topics = [topic_of(one, "tracks", 4) for one in two_nodes]
    publisher = Publisher(two_nodes[0])
    one, two = (DataWriter(publisher, topics[0], Qos(STAYS)) for _ in range(2))
    one.write(Track(1, 1))
    two.write(Track(1, 2))
    one.unregister_instance(Track(1))
    acknowledged(one, two)

    def states() -> list[tuple[int | None, InstanceState]]:
        found = []
        for participant, topic in zip(two_nodes, topics, strict=True):
            reader = everything(participant, topic)
            wait_until(lambda reader=reader: len(reader.read(10)) >= 2)
            found.append([(None if isinstance(one, InvalidSample) else one.height, one.sample_info.instance_state)
                          for one in reader.take(10)])
        assert found[0] == found[1]
        return found[0]

    assert states() == [(1, InstanceState.Alive), (2, InstanceState.Alive)]
    two.unregister_instance(Track(1))
    acknowledged(two)
    assert {state for _, state in states()} == {NO_WRITERS}
    two.write(Track(1, 3))
    two.dispose(Track(1))
    acknowledged(two)
    assert {state for _, state in states()} == {InstanceState.NotAliveDisposed}
    assert figures(two_nodes[0])["keys"] == 1
    two.unregister_instance(Track(1))
    acknowledged(two)
    wait_until(lambda: figures(two_nodes[0])["keys"] == 0)
    assert everything(two_nodes[1], topics[1]).take(10) == []


def test_one_topic_of_a_group_is_nothing_to_the_other(participant: DomainParticipant) -> None:
    tracks, planes = topic_of(participant, "tracks"), topic_of(participant, "planes")
    publisher = Publisher(participant)
    of_tracks, of_planes = DataWriter(publisher, tracks), DataWriter(publisher, planes)
    of_tracks.write(Track(1, 1))
    of_planes.write(Track(1, 2))
    of_tracks.unregister_instance(Track(1))
    acknowledged(of_tracks, of_planes)
    assert seen(everything(participant, planes), 1) == [(1, 2)]
    assert everything(participant, tracks).take(10) == []
    of_planes.close()
    wait_until(lambda: figures(participant)["keys"] == 0)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["writer", "publisher", "program", "killed"])
def test_what_a_writer_disposes_of_by_its_end_is_forgotten(runtime_dir: Path, how: str) -> None:
    """One by one, or all those of a carrier at once, by the word of its node; what is to outlive its writer does."""
    with daemons(runtime_dir, 1):
        if how in ("program", "killed"):
            code = ("import sys; from dds import *; from tests.dds.test_late_joiners_of_groups import *\n"
                    "participant = DomainParticipant()\n"
                    "publisher, topic = Publisher(participant), topic_of(participant, 'tracks')\n"
                    "writers = [DataWriter(publisher, topic), DataWriter(publisher, topic, Qos(STAYS))]\n"
                    "for number, writer in enumerate(writers):\n"
                    "    writer.write(Track(number, number))\n"
                    "acknowledged(*writers); print('done', flush=True); sys.stdin.read()\n")
            with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                  text=True) as program:
                assert program.stdout is not None and program.stdout.readline() == "done\n"
                observer = DomainParticipant()
                held = everything(observer, topic_of(observer, "tracks"))
                wait_until(lambda: len(held.read(10)) == 2)
                if how == "killed":
                    program.kill()
                else:
                    program.communicate("")
        else:
            observer = DomainParticipant()
            publisher, topic = Publisher(observer), topic_of(observer, "tracks")
            held = everything(observer, topic)
            writers = [DataWriter(publisher, topic), DataWriter(publisher, topic, Qos(STAYS))]
            for number, writer in enumerate(writers):
                writer.write(Track(number, number))
            acknowledged(*writers)
            if how == "publisher":
                publisher.close()
            for writer in writers:
                writer.close()
        wait_until(lambda: figures(observer)["keys"] == 1)
        reader = everything(observer, topic_of(observer, "tracks"))
        assert seen(reader, 1)[0] == (1, 1)
        [left] = {one.sample_info.instance_state for one in held.read(10) if not isinstance(one, InvalidSample)
                  and one.number == 1}
        assert left == NO_WRITERS
        observer.close()


def test_that_a_writer_gives_no_sign_of_life_is_known_to_who_comes_late(participant: DomainParticipant) -> None:
    lease = Policy.Liveliness.ManualByTopic(duration(milliseconds=100))
    topic = topic_of(participant, "tracks")
    publisher = Publisher(participant)
    writer = DataWriter(publisher, topic, Qos(lease))
    writer.write(Track(1, 1))
    held = everything(participant, topic)
    wait_until(lambda: [one.sample_info.instance_state for one in held.read(10)][:1]
               == [NO_WRITERS])
    late = everything(participant, topic)
    assert late.take(10)[0].sample_info.instance_state == NO_WRITERS


# --- sets

def test_of_sets_that_say_the_same_the_last_ones_are_kept(participant: DomainParticipant) -> None:
    tracks, planes = topic_of(participant, "tracks", 2), topic_of(participant, "planes", 2)
    publisher = Publisher(participant, COHERENT)
    of_tracks, of_planes = DataWriter(publisher, tracks), DataWriter(publisher, planes)
    with publisher.coherent():
        of_tracks.write(Track(9, 9))
        of_planes.write(Track(9, 9))
    for number in range(50_000 // 16):
        with publisher.coherent():
            of_tracks.write(Track(1, number))
            of_planes.write(Track(1, number))
    acknowledged(of_tracks)
    for topic in (tracks, planes):
        reader = everything(participant, topic)
        assert seen(reader, 3) == [(9, 9), (1, number - 1), (1, number)]
        reader.close()
    assert figures(participant)["given_up"] == 0


def test_sets_of_a_topic_that_keeps_more_than_its_group_are_kept_one_by_one(participant: DomainParticipant) -> None:
    tracks, planes = topic_of(participant, "tracks", 1), topic_of(participant, "planes", 4)
    publisher = Publisher(participant, COHERENT)
    writers = [DataWriter(publisher, topic) for topic in (tracks, planes)]
    for number in range(6):
        with publisher.coherent():
            for writer in writers:
                writer.write(Track(1, number))
    acknowledged(*writers)
    assert [height for _, height in seen(everything(participant, planes), 4)][-4:] == [2, 3, 4, 5]
    late = DataReader(participant, tracks)
    wait_until(lambda: late.read(10))
    assert [one.height for one in late.take(10)] == [5], "it goes by its topic's History"


def test_an_end_outside_of_a_set_is_kept_as_long_as_the_set(participant: DomainParticipant) -> None:
    """Nodes don't know what is in a set: what is disposed of alone, by whomever, must not live again."""
    topic = topic_of(participant, "tracks")
    publisher = Publisher(participant, COHERENT)
    writer, other = DataWriter(publisher, topic), DataWriter(Publisher(participant), topic)
    with publisher.coherent():
        writer.write(Track(1, 1))
        writer.write(Track(2, 2))
    acknowledged(writer)
    other.dispose(Track(1))
    acknowledged(writer, other)
    late = everything(participant, topic)
    wait_until(lambda: len(late.read(10)) >= 3)
    states = {one.sample_info.instance_handle: one.sample_info.instance_state for one in late.take(10)}
    assert sorted(states.values(), key=str) == sorted([InstanceState.Alive, InstanceState.NotAliveDisposed], key=str)


def test_a_set_with_an_end_is_not_like_one_without(participant: DomainParticipant) -> None:
    topic = topic_of(participant, "tracks")
    publisher = Publisher(participant, COHERENT)
    writer = DataWriter(publisher, topic, Qos(STAYS))
    for say in (writer.write, writer.dispose, writer.unregister_instance):
        with publisher.coherent():
            say(Track(1, 1))
            writer.write(Track(2, 2))
    acknowledged(writer)
    late = everything(participant, topic)
    wait_until(lambda: len(late.read(10)) >= 4)
    states = {one.number: one.sample_info.instance_state for one in late.take(10) if not isinstance(one, InvalidSample)}
    assert states == {1: InstanceState.NotAliveDisposed, 2: InstanceState.Alive}


STEPS = 120


@pytest.mark.parametrize("delay", [0, dds_infinity], ids=["forgotten at once", "never forgotten"])
@pytest.mark.parametrize("seed", [*range(7), 3023, 3023, 3023, 3023])
def test_who_comes_late_thinks_of_instances_what_others_think(
        participant: DomainParticipant, seed: int, delay: int) -> None:
    """Whatever writers do, alone and in sets: of each instance that lives, and of each that is known, the late one has
    the same last samples and the same state; what it has never heard of doesn't live, or found no room. What is over is
    kept as long as the DurabilityService says."""
    rng = random.Random(seed)
    depths = {"tracks": rng.randrange(1, 4), "planes": rng.randrange(1, 4)}
    room = 4096 if seed % 2 else 1 << 20
    topics = {name: Topic(participant, name, Track, order="flight", size_max=200, history_bytes=room, qos=qos() + Qos(
        Policy.DurabilityService(delay, Policy.History.KeepLast(depth), -1, -1, -1))) for name, depth in depths.items()}
    held = {name: everything(participant, topic) for name, topic in topics.items()}
    publishers = [Publisher(participant, COHERENT) for _ in range(2)]
    writers: list[DataWriter] = []
    own: dict[DataWriter, int] = {}  # instances that have one writer, whose end disposes of them
    sets = seed % 4 > 1

    def act(writer: DataWriter, number: int) -> None:
        track = Track(own[writer] if writer in own else rng.randrange(5), number)
        doing = rng.choice(("write",) * 5 + ("dispose", "unregister", "both" if sets else "write"))
        if doing == "write":
            writer.write(track)
        elif doing == "dispose":
            writer.dispose(track)
        elif doing == "both":
            writer.write_dispose(track)
        else:
            writer.write(track)
            writer.unregister_instance(track)

    for number in range(STEPS):
        publisher = rng.choice(publishers)
        if len(writers) < 2 or rng.random() < 0.08:
            alone = rng.random() < 0.5
            writers.append(DataWriter(publisher, rng.choice(list(topics.values())),
                                      Qos(Policy.WriterDataLifecycle(autodispose=alone))))
            if alone:
                own[writers[-1]] = 10 + number
            act(writers[-1], number)
        elif rng.random() < 0.05:
            writers.pop(rng.randrange(len(writers))).close()
        elif sets and rng.random() < 0.3 and (those := [one for one in writers if one.publisher is publisher]):
            with publisher.coherent():
                for _ in range(rng.randrange(1, 4)):
                    act(rng.choice(those), number)
        else:
            act(rng.choice(writers), number)
        if number % 20 == 19:
            for writer in writers:
                acknowledged(writer)
    acknowledged(*writers)
    for name, depth in depths.items():
        right, late = known(held[name]), known(everything(participant, topics[name]))
        for handle, (samples, state) in right.items():
            if handle not in late:
                is_over = state != InstanceState.Alive and not (delay and samples)  # who never wrote it says nothing
                assert is_over or figures(participant)["given_up"]
                continue
            heights = late[handle][0]
            # It doesn't know of writers of which nothing is kept, nor who has left in a set that found no room.
            assert late[handle][1] == state or ({late[handle][1], state} == {NO_WRITERS, InstanceState.Alive} and (
                state == InstanceState.Alive or figures(participant)["given_up"]))
            if not sets:
                assert 0 < len(heights) <= depth and heights == samples[-len(heights):]
            elif state == InstanceState.Alive:  # of one that is over a set may be left, and not what came behind it
                assert heights[-1:] == samples[-1:]


def known(reader: DataReader) -> dict[int, tuple[list[int], InstanceState]]:
    """Of each instance, its heights and its state, when nothing more comes."""
    found: dict[int, tuple[list[int], InstanceState]] = {}
    count = -1
    while count < (count := len(reader.read(1000))):
        pass
    for one in reader.take(1000):
        info = one.sample_info
        heights, _ = found.setdefault(info.instance_handle, ([], info.instance_state))
        if not isinstance(one, InvalidSample):
            heights.append(one.height)
        found[info.instance_handle] = heights, info.instance_state
    return found


# --- what is larger than a slot, and who lies

def test_of_large_samples_the_last_ones_are_kept(two_nodes: tuple[DomainParticipant, DomainParticipant]) -> None:
    """Nodes know of them what their entries say."""
    def made(participant: DomainParticipant) -> tuple[Topic, Topic]:
        return (topic_of(participant, "tracks", size_max=100),
                Topic(participant, "images", Image, qos(), order="flight"))

    every = [made(one) for one in two_nodes]
    publisher = Publisher(two_nodes[0])
    one, two = (DataWriter(publisher, every[0][1]) for _ in range(2))
    for number in range(5):
        one.write(Image(1, "x" * (5000 + number)))
        two.write(Image(2, "y" * (5000 + number)))
    acknowledged(one, two)
    readers = [everything(participant, images) for participant, (_, images) in zip(two_nodes, every, strict=True)]
    for late in readers:
        wait_until(lambda late=late: len(late.read(10)) == 2)
        assert [(one.number, len(one.pixels)) for one in late.read(10)] == [(1, 5004), (2, 5004)]
    one.close()
    for participant, (_, images) in zip(two_nodes, every, strict=True):
        wait_until(lambda participant=participant: figures(participant)["keys"] == 1)
        late = everything(participant, images)
        wait_until(lambda late=late: late.read(10))
        assert [one.number for one in late.take(10)] == [2]


def test_a_packet_that_tells_nodes_and_readers_different_things_is_refused(participant: DomainParticipant) -> None:
    topic = topic_of(participant, "tracks")
    writer = DataWriter(participant, topic)
    channel = topic._channel
    assert channel is not None
    liar = participant.session.open_writer("flight")
    reader = everything(participant, topic)

    def said(tag: int = 0) -> bytes:
        return packets.member(topic._codec.encode(Track(1, 1)), tag, 0, channel.mark, 1, channel.number, 0)

    honest, tag = packets.single(1, said(), 1, 1000)
    assert tag == SINGLE == single_tag(0, False)
    both, _ = packets.single(1, said() + said(), 1, 1000)
    for payload, number in ((honest, single_tag(UNREGISTERS, False)), (honest, single_tag(0, True)), (both, tag),
                            (honest[:-8] + (5).to_bytes(8, "little"), tag), (honest[:-8], tag), (honest[:20], tag),
                            (b"", tag), packets.single(2, said(WRITES | DISPOSES), 1, 1000)):
        liar.inbox.write(payload, 0, 5.0, number, 77)
    assert liar.inbox.wait_acknowledged(5.0)
    writer.write(Track(2, 2))
    acknowledged(writer)
    assert seen(reader, 1) == [(2, 2)]
    liar.inbox.write(honest, 0, 5.0, tag, 77)
    assert seen(reader, 1) == [(1, 1)]
    liar.close()


# --- all the ways that a table takes

WANTED = [("tracks", 99, 1), ("planes", 99, 1), *(
    (name, number % 50, number) for number in range(900, 1000) for name in ("tracks", "planes")
    if name == "tracks" or number >= 950)]


def filled(participant: DomainParticipant, durability: Policy = VOLATILE) -> list[DataWriter]:
    publisher = Publisher(participant, COHERENT)
    writers = [DataWriter(publisher, topic, Qos(STAYS)) for topic in both(participant, durability)]
    for number in range(-1, 1000):
        for writer in writers:
            writer.write(Track(99, 1) if number < 0 else Track(number % 50, number))
    return writers


def both(participant: DomainParticipant, durability: Policy = VOLATILE) -> tuple[Topic, Topic]:
    return topic_of(participant, "tracks", 2, durability), topic_of(participant, "planes", 1, durability)


def heard(participant: DomainParticipant, durability: Policy = VOLATILE) -> list[tuple[str, int, int]]:
    """All that a late joiner gets, in the order of the group."""
    subscriber = Subscriber(participant, Qos(Policy.PresentationAccessScope.Group(False, True)))
    readers = [DataReader(subscriber, topic, Qos(Policy.History.KeepAll)) for topic in both(participant, durability)]
    found: list[tuple[str, int, int]] = []
    wait_until(lambda: found.extend((reader.topic.name, one.number, one.height) for reader, one in subscriber.take(1000)
                                    if not isinstance(one, InvalidSample)) or len(found) >= len(WANTED))
    assert all(one.get_sample_lost_status().total_count == 0 for one in readers)
    subscriber.close()
    return found


@pytest.mark.slow
def test_daemons_one_of_which_came_late_and_one_of_which_dies(runtime_dir: Path) -> None:
    with daemons(runtime_dir, 3) as running:
        first = DomainParticipant(node_id=1)
        writers = filled(first)
        acknowledged(*writers)
        second = DomainParticipant(node_id=2)
        assert heard(second) == WANTED
        held = [everything(second, topic) for topic in both(second)]
        wait_until(lambda: all(len(one.read(1000)) >= 50 for one in held))
        os.kill(running[0].pid, signal.SIGKILL)
        third = DomainParticipant(node_id=3)
        assert heard(third) == WANTED == heard(second)
        for one in held:
            wait_until(lambda one=one: {sample.sample_info.instance_state for sample in one.read(1000)}
                       == {NO_WRITERS})
        late = everything(third, both(third)[0])
        wait_until(lambda: len(late.read(1000)) >= 100)
        assert {one.sample_info.instance_state for one in late.read(1000)} == {NO_WRITERS}
        for participant in (second, third):
            participant.close()


@pytest.mark.slow
@pytest.mark.parametrize("durability", [VOLATILE, LOGGED], ids=["volatile", "logged"])
def test_programs_without_a_node_write_and_read_the_same(site: list[Host], durability: Policy) -> None:
    """Over TCP; the writer turns to another node in between. Its writers are known as the same at both."""
    far = DomainParticipant.remote([host.address for host in site])
    near = DomainParticipant(runtime_dir=site[2].directory)
    kept = [everything(near, topic) for topic in both(near, durability)]
    writers = filled(far, durability)
    acknowledged(*writers)
    os.kill(site[0].running.pid, signal.SIGKILL)
    writers[1].write(Track(99, 5000))
    writers[0].unregister_instance(Track(99))
    acknowledged(*writers)
    after = [one for one in WANTED if one[:2] != ("planes", 99)] + [("planes", 99, 5000)]
    other = DomainParticipant.remote([site[1].address])
    for participant in (far, other, near):
        assert heard(participant, durability) == after
        late = everything(participant, both(participant, durability)[0])
        wait_until(lambda late=late: any(one.number == 99 and one.sample_info.instance_state
                                         == NO_WRITERS for one in late.read(1000)
                                         if not isinstance(one, InvalidSample)))
    assert kept
    for participant in (far, other, near):
        participant.close()


@pytest.mark.slow
def test_after_the_death_of_all_the_last_values_of_each_are_read_back(runtime_dir: Path, tmp_path: Path) -> None:
    with hosts(runtime_dir, 3, f'journal.dir="{tmp_path}"') as site:
        participants = [DomainParticipant(runtime_dir=host.directory) for host in site]
        held = [everything(one, both(one, LOGGED)[0]) for one in participants]
        writers = filled(participants[0], LOGGED)
        for writer in writers:
            assert writer.wait_for_acks(LONG, persisted=True)
        assert held
        for host in site:
            os.kill(host.running.pid, signal.SIGKILL)
        for host in site:
            host.running.process.wait()
            host.start()
        for host in site:
            host.running.wait_ready()
        for participant in participants:
            participant.close()
        participants = [DomainParticipant(runtime_dir=host.directory) for host in site]
        for participant in participants:
            assert heard(participant, LOGGED) == WANTED
        for participant in participants:
            participant.close()
