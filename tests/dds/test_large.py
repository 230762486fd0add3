"""Samples that are larger than their topic's slots: of all types, by all ways, at each end.

Goal: nobody says in advance how large samples get; what is read is what was written; a loan is sent from where it was
filled, and what a reader gets in place stays as it is for as long as the program has it; limits are named.
Method: embedded nodes, two of them where the second must get the bytes of the first, and daemons. Memory that two have
in common shows by what is written through an old view, or by where an array lies.
"""

import asyncio
import contextlib
import gc
import os
import threading
from dataclasses import dataclass

import numpy as np
import pytest

import dds
from dds import (
    ContentFilteredTopic,
    DataReader,
    DataWriter,
    DDSException,
    DDSSampleTooLarge,
    DDSTimeout,
    DomainParticipant,
    InstanceState,
    Policy,
    Publisher,
    Qos,
    Subscriber,
    Topic,
    duration,
)
from dds.idl import IdlStruct
from dds.idl.annotations import key
from dds.idl.types import float32, sequence, uint8
from spindle.large import memory
from tests.dds.test_sub import LONG
from tests.spindle.daemons import daemons
from tests.spindle.edge.edges import edge_of
from tests.spindle.hosts import hosts
from tests.support import wait_until

IMAGE = np.dtype([("camera", "u4"), ("pixels", "u1", (400, 1000, 3))])
KEPT = Qos(Policy.Durability.TransientLocal, Policy.History.KeepLast(1))


@dataclass
class Cloud(IdlStruct):
    number: int
    key("number")
    points: sequence[float32]
    colours: sequence[uint8]


def image(camera: int, value: int | None = None):
    return np.array((camera, camera if value is None else value), IMAGE)


def take(reader, count: int = 1):
    found = []
    for sample in reader.take_iter(timeout=LONG):
        found.append(sample)
        if len(found) == count:
            return found
    raise AssertionError(f"{len(found)} of {count} samples came")


@pytest.fixture(params=["beside", "elsewhere", pytest.param("at an edge", marks=pytest.mark.slow)])
def two_nodes(request):
    """Two participants with a node each: in their own process, or on hosts of their own, to which they connect, or an
    edge of the host where they are."""
    if request.param == "beside":
        with DomainParticipant.embedded(node_id=1) as one, DomainParticipant.embedded(node_id=2) as two:
            yield one, two
        return
    directory = request.getfixturevalue("runtime_dir")
    if request.param == "at an edge":
        with hosts(directory, 2) as running, edge_of(directory / "1", running[:1]) as near, \
                edge_of(directory / "2", running[1:]) as far, \
                DomainParticipant(runtime_dir=near.directory) as one, \
                DomainParticipant(runtime_dir=far.directory) as two:
            yield one, two
        return
    with hosts(directory, 2) as running, \
            DomainParticipant.remote([running[0].address]) as one, \
            DomainParticipant.remote([running[1].address]) as two:
        yield one, two


@pytest.fixture
def images(two_nodes):
    """A writer at one node, and a reader at each."""
    one, two = two_nodes
    writer = DataWriter(one, Topic(one, "images", IMAGE))
    return writer, DataReader(one, Topic(one, "images", IMAGE)), DataReader(two, Topic(two, "images", IMAGE))


# --- of all types


@pytest.mark.slow
@pytest.mark.parametrize("size", [16384, 16385, 1 << 20, (8 << 20) + 3])
def test_bytes_of_any_size(two_nodes, size) -> None:
    one = two_nodes[0]
    readers = [DataReader(at, Topic(at, "t", bytes)) for at in two_nodes]
    writer = DataWriter(one, Topic(one, "t", bytes))
    data = np.random.default_rng(size).bytes(size)
    writer.write(data)
    writer.write(bytearray(data))
    writer.write(b"small")
    writer.write_many([data, memoryview(data), b"x"])
    for reader in readers:
        got = take(reader, 6)
        assert got == [data, data, b"small", data, data, b"x"]
        assert [one.sample_info.large for one in got] == [len(one) > 16384 for one in got]
        assert [one.sample_info.index for one in got] == list(range(6))


@pytest.mark.slow
def test_types_of_all_kinds(two_nodes) -> None:
    from google.protobuf.wrappers_pb2 import BytesValue

    one, two = two_nodes
    cloud = Cloud(7, np.arange(100_000, dtype=np.float32), bytes(3) * 500_000)
    for name, kind, sample in (("cloud", Cloud, cloud), ("proto", BytesValue, BytesValue(value=bytes(2 << 20))),
                               ("image", IMAGE, image(3))):
        reader, writer = DataReader(two, Topic(two, name, kind)), DataWriter(one, Topic(one, name, kind))
        writer.write(sample)
        [got] = take(reader)
        if kind is Cloud:
            assert got.number == 7 and np.array_equal(got.points, cloud.points)
            assert bytes(got.colours) == cloud.colours
        elif kind is IMAGE:
            assert got.camera == 3 and got.pixels.shape == (400, 1000, 3) and (got.pixels == 3).all()
        else:
            assert got.value == sample.value


def test_a_type_of_fixed_size_gets_slots_of_its_size_up_to_a_limit(participant) -> None:
    for size, slot in ((1000, 1064), ((1 << 20) - 64, 1 << 20), ((1 << 20) - 63, 16384), (200 << 20, 16384)):
        topic = Topic(participant, f"of {size}", np.dtype(f"V{size}"), Qos(Policy.Durability.Volatile))
        assert topic.spec.size_max == slot
    for size, slot in ((100_000, 100_130), ((1 << 20) - 130, 1 << 20), ((1 << 20) - 129, 16384)):
        topic = Topic(participant, "t", np.dtype(f"V{size}"), order=f"group {size}")
        writer = DataWriter(participant, topic)
        assert topic.spec.size_max == slot
        writer.close()


# --- in place


@pytest.mark.slow
def test_a_loan_is_sent_from_where_it_was_filled(images) -> None:
    """Goal: no copy, though the program still has the array; what it writes later nobody gets.

    Method: the array that was filled is changed afterwards, before and after the readers have read.
    """
    writer, *readers = images
    with writer.loan() as frame:
        frame["camera"] = 1
        frame["pixels"] = 9
        pixels = frame["pixels"]
    pixels[...] = 77
    got = [take(reader)[0] for reader in readers]
    pixels[0] = 78
    assert all((one.pixels == 9).all() and one.camera == 1 for one in got)
    assert (pixels[1:] == 77).all() and (frame["pixels"][0] == 78).all()
    writer.close()
    del frame, writer
    gc.collect()
    pixels[...] = 79  # its memory is there as long as it is


@pytest.mark.slow
def test_a_loan_of_bytes(two_nodes) -> None:
    one, two = two_nodes
    reader, writer = DataReader(two, Topic(two, "t", bytes)), DataWriter(one, Topic(one, "t", bytes))
    loan = writer.loan(1 << 20)
    filled = loan.data
    filled[:5] = b"whole"
    loan.commit()
    loan = writer.loan(1 << 20)
    loan.data[:4] = b"part"
    with pytest.raises(DDSException, match="1048577 bytes: 1048576 were claimed"):
        loan.commit((1 << 20) + 1)
    for size in (500_000, 100, 0):
        loan = writer.loan(1 << 20)
        loan.data[:5] = b"part\0"
        loan.commit(size)
    loan = writer.loan(1 << 20)
    loan.discard()
    loan.discard()
    with pytest.raises(ZeroDivisionError), writer.loan(1 << 20):
        _ = 1 / 0
    writer.write(b"end")
    filled[:5] = b"later"
    got = take(reader, 5)
    assert [(len(one), bytes(one[:5])) for one in got] == [
        (1 << 20, b"whole"), (500_000, b"part\0"), (100, b"part\0"), (0, b""), (3, b"end")]


@pytest.mark.slow
def test_what_a_reader_gets_in_place_stays(images) -> None:
    """Goal: nobody's memory is used again under an array, whatever comes behind, and whoever closes."""
    writer, *readers = images
    kept = []
    for number in range(12):
        writer.write(image(number))
        kept.append([take(reader)[0].pixels for reader in readers])
    for reader in readers:
        reader.close()
    writer.close()
    gc.collect()
    for number, arrays in enumerate(kept):
        for pixels in arrays:
            assert not pixels.flags.writeable and not pixels.flags.owndata and (pixels == number).all()
            with pytest.raises(ValueError, match="read-only"):
                pixels[0] = 1


def test_a_writer_gets_its_memory_back(participant, monkeypatch) -> None:
    """Goal: who sends one large sample after the other needs memory for those under way only; what a program keeps of
    them stays as it is, and what it keeps of loans and has filled is its own.

    Method: the new memory is counted, at a node that looks each time whether some has become free.
    """
    monkeypatch.setattr("spindle.topics.larges.SWEEP_AGAIN_S", 0.0)
    new = []
    make = memory.make_closable
    monkeypatch.setattr(memory, "make_closable", lambda size: new.append(size) or make(size))
    topic = Topic(participant, "images", IMAGE)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    for number in range(20):
        writer.write(image(number))
        assert (take(reader)[0].pixels == number).all()
    assert len(new) <= 3
    kept = []
    for number in range(20, 40):
        with writer.loan() as frame:
            frame["camera"], frame["pixels"] = number, number
        got = take(reader)[0].pixels
        if number % 4 == 0:
            kept.append((number, got, frame["pixels"]))
    assert len(new) <= 3 + 2 * len(kept)
    for number, got, filled in kept:
        assert (got == number).all() and (filled == number).all()
    del kept, got, filled, frame
    gc.collect()
    before = len(new)
    for number in range(10):
        writer.write(image(number))
        take(reader)
    assert len(new) == before


def test_children_fill_a_sample_together(participant) -> None:
    """Goal: a program divides the work on a loan among processes that it forks, and sends it when they have ended."""
    topic = Topic(participant, "images", IMAGE)
    reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
    for number in range(3):
        with writer.loan() as frame:
            frame["camera"] = number
            children = []
            for part in range(4):
                children.append(os.fork())
                if not children[-1]:
                    frame["pixels"][100 * part:100 * part + 100] = 10 * number + part
                    os._exit(0)
            for child in children:
                assert os.waitpid(child, 0)[1] == 0
        got = take(reader)[0]
        for part in range(4):
            assert (got.pixels[100 * part:100 * part + 100] == 10 * number + part).all()


@pytest.mark.parametrize("size", [100_000, 3_000_000])
@pytest.mark.parametrize("reattach", [False, True])
def test_a_child_that_lives_on_keeps_no_sample_back(size, reattach, runtime_dir) -> None:
    """Goal: a program forks while a sample is being filled, and the child runs on: the sample is sent, and what the
    child writes then nobody sees.

    Method: a child that writes into a loan once it has been sent; samples whose memory is sealed, and closed.
    """
    with DomainParticipant.embedded(reattach=reattach) as participant:
        topic = Topic(participant, "bytes", bytes)
        reader, writer = DataReader(participant, topic), DataWriter(participant, topic)
        for number in range(3):
            ended, goes_on = os.pipe()
            with writer.loan(size) as loan:
                loan[:] = bytes([number]) * size
                if (child := os.fork()) == 0:
                    os.close(goes_on)
                    os.read(ended, 1)
                    loan[:] = b"x" * size
                    os._exit(0)
                os.close(ended)
            os.close(goes_on)
            assert os.waitpid(child, 0)[1] == 0
            assert bytes(take(reader)[0]) == bytes([number]) * size
        assert writer.wait_for_acks(LONG)


@pytest.mark.slow
def test_memory_is_used_again_with_readers_at_other_nodes(images) -> None:
    """Goal: a writer gets memory back only when the other node and its programs have let go of it, too.

    Method: every fifth array is kept, at the other node or at both, while the rest is used again.
    """
    writer, *readers = images
    kept = []
    for number in range(60):
        writer.write(image(number))
        arrays = [take(reader)[0].pixels for reader in readers]
        for one in arrays:
            assert (one == number).all()
        if number % 5 == 0:
            kept.append((number, arrays[number % 2:]))
    for number, arrays in kept:
        assert all((one == number).all() for one in arrays)


@pytest.mark.slow
def test_batches_have_large_samples_one_by_one(images) -> None:
    writer, _, reader = images
    writer.write_many(np.array([(1, 1), (2, 2)], IMAGE))
    assert writer.wait_for_acks(LONG)
    arrays = []
    for _ in range(2):
        wait_until(lambda: reader._source.log.pending > 0)
        with reader.take_batch(10) as batch:
            assert len(batch) == 1 and batch.stays and batch.sample_info(0).large
            arrays.append(batch.array)
    assert [int(one["pixels"][0].max()) for one in arrays] == [1, 2] and not arrays[0].flags.writeable
    writer.write(image(3))
    wait_until(lambda: reader._source.log.pending > 0)
    mine = reader.take_array()
    mine["pixels"] = 4
    assert (mine["pixels"] == 4).all()


@pytest.mark.slow
def test_readers_that_look_at_each_get_arrays_in_place_too(two_nodes) -> None:
    """Goal: conditions, filters, KeepLast and inline Qos cost no copy of an array either."""
    one, two = two_nodes
    topic = Topic(two, "images", IMAGE)
    writer = DataWriter(one, Topic(one, "images", IMAGE), Qos(Policy.Lifespan(duration(seconds=100))))
    last = DataReader(two, topic, Qos(Policy.History.KeepLast(2)))
    some = DataReader(two, ContentFilteredTopic(two, "some", topic, "camera > 2"))
    waits = dds.WaitSet(two)
    waits.attach(dds.ReadCondition(some, dds.SampleState.NotRead))
    for number in range(5):
        writer.write(image(number))
    assert writer.wait_for_acks(LONG) and waits.wait(LONG)
    # All have it: that isn't to say that it has come to a program elsewhere.
    wait_until(lambda: all([int(one.camera) for one in reader.read(9)] == [3, 4] for reader in (last, some)))
    for got in (last.read(9), last.take(9), some.read(9), some.take(9)):
        assert [int(one.camera) for one in got] == [3, 4] and [int(one.pixels.max()) for one in got] == [3, 4]
        assert not any(one.pixels.flags.owndata for one in got)


# --- keys, histories, policies


@pytest.mark.slow
def test_instances_and_late_joiners(two_nodes) -> None:
    one, two = two_nodes
    writer = DataWriter(one, Topic(one, "images", IMAGE, KEPT, keys=["camera"]))
    reader = DataReader(two, Topic(two, "images", IMAGE, keys=["camera"]), KEPT)
    for camera, value in ((1, 10), (2, 20), (1, 11)):
        writer.write(image(camera, value))
    assert writer.wait_for_acks(LONG)
    for at in (one, two):
        late = DataReader(at, Topic(at, "images", IMAGE, keys=["camera"]), KEPT)
        assert late.wait_for_historical_data(LONG)
        assert sorted((int(got.camera), int(got.pixels[9, 9, 2])) for got in take(late, 2)) == [(1, 11), (2, 20)]
    assert reader._source.log.pending
    writer.dispose_instance_handle(writer.lookup_instance(image(2)))  # of which it keeps no payload
    writer.unregister_instance(image(1))
    assert writer.wait_for_acks(LONG)
    gone: set[int] = set()

    def all_gone() -> bool:
        gone.update(int(got.key_sample.camera) for got in reader.take(9) if isinstance(got, dds.InvalidSample)
                    and got.sample_info.instance_state == InstanceState.NotAliveDisposed)
        return gone == {1, 2}

    wait_until(all_gone)


@pytest.mark.slow
def test_sets_and_order_groups(two_nodes) -> None:
    one, two = two_nodes
    coherent = Qos(Policy.PresentationAccessScope.Group(coherent_access=True, ordered_access=True))
    publisher, subscriber = Publisher(one, coherent), Subscriber(two, coherent)
    writers = [DataWriter(publisher, Topic(one, name, kind, order="o"))
               for name, kind in (("raw", bytes), ("images", IMAGE))]
    readers = [DataReader(subscriber, Topic(two, name, kind, order="o"))
               for name, kind in (("raw", bytes), ("images", IMAGE))]
    with publisher.coherent():
        writers[0].write(b"first")
        writers[1].write(image(5))
        for _ in range(60):
            writers[0].write(bytes(100_000))  # more than packets take
    writers[1].write(image(6))
    publisher.suspend()
    writers[0].write(bytes(1 << 20))
    publisher.resume()
    assert publisher.wait_for_acks(LONG)
    found = []
    wait_until(lambda: found.extend(subscriber.take(100)) or len(found) >= 64)
    sizes = [(reader.topic.name, len(got) if reader is readers[0] else int(got.pixels.max())) for reader, got in found]
    assert sizes == [("raw", 5), ("images", 5), *[("raw", 100_000)] * 60, ("images", 6), ("raw", 1 << 20)]
    assert len({got.sample_info.sequence for _, got in found[:62]}) == 1


# --- limits


def test_the_nodes_limit_is_named(limited) -> None:
    writer = DataWriter(limited, Topic(limited, "t", bytes))
    reader = DataReader(limited, Topic(limited, "t", bytes))
    writer.write(bytes(65536))
    for call in (writer.write, lambda data: writer.loan(len(data)), lambda data: writer.write_many([b"", data])):
        with pytest.raises(DDSSampleTooLarge, match=r"topic 't': a sample of 65537 bytes; 65536 are the most, "
                                                    r"\[topics\] large_sample_max") as error:
            call(bytes(65537))
        assert error.value.code == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
    assert [len(one) for one in take(reader, 2)] == [65536, 0]


def test_who_waits_for_the_memory_of_a_loan_hears_of_that() -> None:
    from spindle.config.settings import NodeConfig

    with dds.Domain(66, NodeConfig(large_capacity=1 << 20)), DomainParticipant.embedded(66) as one:
        qos = Qos(Policy.Reliability.Reliable(duration(milliseconds=50)))
        topic = Topic(one, "t", bytes, qos)
        slow, writer = DataWriter(one, topic), DataWriter(one, topic)
        with slow.loan(1 << 20) as data:
            with pytest.raises(DDSTimeout, match="has yet to fill a loan that takes it"):
                writer.write(bytes(600_000))
            data[:] = bytes(1 << 20)


@contextlib.contextmanager
def served(config):
    """A node as of a daemon, in this process."""
    from spindle.service.daemon import serve

    ready, ended = threading.Event(), []

    async def body():
        stopping, loop = asyncio.Event(), asyncio.get_running_loop()
        ended.append(lambda: loop.call_soon_threadsafe(stopping.set))
        await serve(config, stopping, lambda _: ready.set())

    thread = threading.Thread(target=lambda: asyncio.run(body()))
    thread.start()
    assert ready.wait(20)
    try:
        yield
    finally:
        ended[0]()
        thread.join()


def test_a_program_that_does_not_fill_its_loan_keeps_others_waiting_for_a_while(monkeypatch) -> None:
    """It hears of it when it wants another one; what it writes after all counts, as there is room again."""
    from spindle.config.settings import NodeConfig
    from spindle.topics import large_room

    monkeypatch.setattr(large_room, "FILL_S", 0.2)
    with served(NodeConfig(large_capacity=1 << 20, domain_id=67)), DomainParticipant(67) as one, \
            DomainParticipant(67) as other:
        qos = Qos(Policy.Reliability.Reliable(LONG), Policy.History.KeepAll)
        slow, its_other, writer = (DataWriter(each, Topic(each, "t", bytes, qos)) for each in (one, one, other))
        reader = DataReader(other, Topic(other, "t", bytes, qos))
        with slow.loan(1 << 20) as data:
            writer.write(bytes(600_000))
            writer.write(bytes(400_000))
            with pytest.raises(DDSException, match="write it, or give it back, before the next one"):
                its_other.write(bytes(100_000))
            data[:] = bytes(1 << 20)
            assert [len(one) for one in take(reader, 2)] == [600_000, 400_000]
        its_other.write(bytes(100_000))
        assert [len(one) for one in take(reader, 2)] == [1 << 20, 100_000]


def test_memory_that_is_not_free_in_time_says_so() -> None:
    """Goal: who waits for memory learns that, and whom it waits for; and goes on when there is some."""
    from spindle.config.settings import NodeConfig

    with dds.Domain(65, NodeConfig(large_capacity=1 << 20)), DomainParticipant.embedded(65) as one:
        qos = Qos(Policy.Reliability.Reliable(duration(milliseconds=50)), Policy.History.KeepAll)
        topic = Topic(one, "t", bytes, qos)
        reader, writer = DataReader(one, topic), DataWriter(one, topic)
        with pytest.raises(DDSTimeout, match=r"no memory for a sample of 600000 bytes.*large_capacity.*waits for"):
            for _ in range(9):
                writer.write(bytes(600_000))
        for _ in range(5):
            take(reader)
            wait_until(lambda: _written(writer))


def _written(writer) -> bool:
    try:
        writer.write(bytes(600_000))
    except DDSTimeout:
        return False
    return True


@pytest.mark.slow
def test_between_daemons(group, runtime_dir) -> None:
    """Programs with nodes of their own beside them: nothing in one process."""
    participants = [DomainParticipant(node_id=node) for node in (1, 2, 3)]
    try:
        readers = [DataReader(one, Topic(one, "images", IMAGE)) for one in participants]
        writer = DataWriter(participants[0], Topic(participants[0], "images", IMAGE))
        for number in range(4):
            with writer.loan() as frame:
                frame["camera"], frame["pixels"] = number, number
        for reader in readers:
            got = take(reader, 4)
            assert [(int(one.camera), int(one.pixels.min()), int(one.pixels.max())) for one in got] == [
                (number,) * 3 for number in range(4)]
    finally:
        for one in participants:
            one.close()


@pytest.mark.slow
def test_what_was_in_doubt_is_given_back(group) -> None:
    """Goal: large samples that a node took and didn't deliver before it died are known to their writer.

    Method: a reader that keeps all and doesn't take holds them back; then the writer's daemon is killed.
    """
    with DomainParticipant(node_id=2) as there, DomainParticipant(node_id=1, reattach=True) as here:
        qos = Qos(Policy.Reliability.Reliable(duration(milliseconds=100)), Policy.History.KeepAll)
        reader = DataReader(there, Topic(there, "t", bytes, qos))
        writer = DataWriter(here, Topic(here, "t", bytes, qos))
        sizes = []
        with pytest.raises(DDSTimeout):
            for number in range(400):
                writer.write(bytes([number % 251]) * (2_000_000 + number))
                sizes.append(2_000_000 + number)
        group[0].process.kill()
        doubts = []
        wait_until(lambda: doubts.extend(writer.take_unacknowledged()) or doubts)
        found = [one.sample for one in doubts]
        assert found and all(one is not None for one in found)
        assert [len(one) for one in found] == sizes[-len(found):]
        assert all(one == one[:1] * len(one) for one in found)
        assert len(take(reader)[0]) == sizes[0]


def test_a_node_says_once_that_a_history_lacks_large_samples(runtime_dir) -> None:
    """Goal: the log of a node that comes late has one line for all that the others have let go of, not one for each.

    Method: a node whose topics keep two megabytes of large samples gives its history to another one.
    """
    qos = Qos(Policy.Reliability.Reliable(LONG), Policy.Durability.TransientLocal, Policy.History.KeepAll)
    with (daemons(runtime_dir, 2, ("--set", 'topics.large_capacity="2 MB"')) as nodes,
          DomainParticipant(node_id=1) as here, DomainParticipant(node_id=2) as there):
        topic = Topic(here, "t", bytes, qos)
        reader, writer = DataReader(here, topic, qos), DataWriter(here, topic, qos)
        for number in range(9):
            writer.write(bytes([number]) * 600_000)
            assert reader.take_one(timeout=LONG)[0] == number
        late = DataReader(there, Topic(there, "t", bytes, qos), qos)
        writer.write(b"end")
        got = [late.take_one(timeout=LONG)]
        while got[-1] != b"end":
            got.append(late.take_one(timeout=LONG))
        lost = late.get_sample_lost_status().total_count
        assert 0 < lost == 10 - len(got)
        said = wait_until(lambda: [one for one in nodes[1].log.splitlines() if "of its history" in one])
        assert len(said) == 1 and f"nobody gives {lost} large samples" in said[0] and "large_capacity" in said[0]
