"""A program that may have no more descriptors, threads or memory: what it is told, and that nothing stays open of it.

Method: the limit is set to what the program has, and a few more, one more in each try, until it suffices. Whatever
fails before must be a DDSException that says which limit it was, and leave neither descriptor nor thread behind.
"""

from __future__ import annotations

import gc
import os
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

import numpy as np
import pytest

import dds
from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DomainParticipant,
    Listener,
    Policy,
    Qos,
    ReadCondition,
    Topic,
    WaitSet,
    rpc,
)
from dds.idl import IdlStruct
from dds.readers.fast_way import ANY
from dds.replicated import Replica
from dds.replicated.batteries import Counter
from tests.spindle.hosts import hosts
from tests.support import descriptors_before, wait_until

TRIES = 100
LONG = dds.duration(seconds=20)
ALL = Qos(Policy.Reliability.Reliable(LONG), Policy.History.KeepAll)
IMAGE = np.dtype([("pixels", "u1", (1 << 20,))])
Make = Callable[[], DomainParticipant]


@dataclass
class Note(IdlStruct):
    number: int


@rpc.service
class Adder:
    def add(self, a: int, b: int) -> int:
        return a + b

    def length(self, text: bytes) -> int:
        return len(text)


class Heard(Listener):
    def __init__(self) -> None:
        self.event = threading.Event()

    def on_data_available(self, reader) -> None:
        self.event.set()


def ends(participant, name, data_type=Note, listener=None):
    topic = Topic(participant, name, data_type, qos=ALL)
    return DataReader(participant, topic, qos=ALL, listener=listener), DataWriter(participant, topic, qos=ALL)


def iterated(participant) -> None:
    reader, writer = ends(participant, "notes")
    writer.write(Note(1))
    assert next(reader.take_iter(timeout=LONG)).number == 1


def listened(participant) -> None:
    heard = Heard()
    _, writer = ends(participant, "notes", listener=heard)
    writer.write(Note(1))
    assert heard.event.wait(20)


def waited(participant) -> None:
    reader, writer = ends(participant, "notes")
    waitset = WaitSet(participant)
    waitset.attach(ReadCondition(reader, ANY))
    writer.write(Note(1))
    assert waitset.wait(LONG)


def large(participant) -> None:
    reader, writer = ends(participant, "images", IMAGE)
    with writer.loan() as image:
        image["pixels"] = 3
    assert next(reader.take_iter(timeout=LONG)).pixels[-1] == 3


def called(participant) -> None:
    with rpc.Server(participant, Adder()), rpc.Client(participant, Adder) as adder:
        assert adder.add(1, 2) == 3


def replicated(participant) -> None:
    with Replica(participant, "counter", Counter) as counter:
        counter.add(1)


DOINGS = (iterated, large, pytest.param(listened, marks=pytest.mark.slow), pytest.param(waited, marks=pytest.mark.slow),
          called, pytest.param(replicated, marks=pytest.mark.slow))


@contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open so many more."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []
    top = max(map(int, os.listdir("/proc/self/fd"))) + 1
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (top + count + 1, limits[1]))
        with pytest.raises(OSError):
            while True:
                taken.append(os.dup(0))
        for _ in range(count):
            os.close(taken.pop())
        yield
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def threads_left(count: int) -> Iterator[None]:
    """This process can start so many more."""
    start, left = threading.Thread.start, [count]

    def start_one(thread: threading.Thread) -> None:
        if left[0] <= 0:
            raise RuntimeError("can't start new thread")  # as Python says it
        left[0] -= 1
        start(thread)

    with patch.object(threading.Thread, "start", start_one):
        yield


@pytest.fixture
def host(runtime_dir):
    with hosts(runtime_dir, 1) as running:
        yield running[0]


@pytest.fixture(params=["beside", "remote"])
def make(request, host) -> Make:
    """Makes a participant beside a node, or one on a host without a node."""
    if request.param == "beside":
        return lambda: DomainParticipant(runtime_dir=host.directory)
    return lambda: DomainParticipant.remote([host.address])


def done(make: Make, doing: Callable[[DomainParticipant], None]) -> None:
    """Afterwards nobody has the participant, and what it keeps until then."""
    with make() as participant:
        doing(participant)


def tell_until_it_suffices(make: Make, doing: Callable[[DomainParticipant], None], left, limit: str) -> None:
    done(make, doing)  # what is made once in a process is there
    descriptors, threads = descriptors_before(), threading.active_count()
    for count in range(TRIES):
        try:
            with left(count):
                done(make, doing)
        except DDSException as error:
            assert error.code == DDSException.DDS_RETCODE_OUT_OF_RESOURCES and limit in str(error), error
        else:
            break
        finally:
            gc.collect()
    else:
        raise AssertionError(f"not even {TRIES} suffice")
    assert count > 0
    wait_until(lambda: descriptors_before() <= descriptors, what="no descriptor stays")
    wait_until(lambda: threading.active_count() <= threads, what="no thread stays")


@pytest.mark.parametrize("doing", DOINGS, ids=lambda one: one.__name__)
def test_who_lacks_descriptors_is_told_so(make, doing) -> None:
    tell_until_it_suffices(make, doing, descriptors_left, "ulimit -n")


@pytest.mark.parametrize("doing", DOINGS, ids=lambda one: one.__name__)
def test_who_lacks_threads_is_told_so(make, doing) -> None:
    tell_until_it_suffices(make, doing, threads_left, "ulimit -u")


@pytest.mark.parametrize("take", ["take", "read", "take_batch"])
def test_a_large_sample_that_can_not_be_opened_now_is_taken_later(make, take) -> None:
    """Goal: neither it nor what was taken before it is lost. Method: a small sample and a large one; no descriptors."""
    with make() as participant:
        topic = Topic(participant, "topic", bytes, qos=ALL)
        reader, writer = DataReader(participant, topic, qos=ALL), DataWriter(participant, topic, qos=ALL)
        reader.read_own_writes = False
        for payload in (b"small", b"x" * (1 << 20)):
            writer.write(payload)
        assert writer.wait_for_acks(LONG)
        wait_until(lambda: reader._source.arrived == 2, what="both are there")
        if take == "take_batch":
            reader.take(1)
        with descriptors_left(0), pytest.raises(DDSException, match="ulimit -n") as raised:
            getattr(reader, take)(2)
        assert raised.value.code == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
        if take == "take_batch":
            with reader.take_batch(1) as batch:
                assert len(batch) == 1
        else:
            assert [len(one) for one in reader.take(2)] == [5, 1 << 20]
        assert reader.get_sample_lost_status().total_count == 0


def test_a_large_sample_for_which_there_is_no_memory_now_is_taken_later(make) -> None:
    """Method: the limit of addresses is what the process has, and the sample is too large for what is left in them."""
    with make() as participant:
        reader, writer = ends(participant, "images", np.dtype([("pixels", "u1", (64 << 20,))]))
        reader.read_own_writes = False
        with writer.loan() as image:
            image["pixels"] = 3
        assert writer.wait_for_acks(LONG)
        wait_until(lambda: reader._source.arrived == 1, what="it is there")
        limits = resource.getrlimit(resource.RLIMIT_AS)
        with open("/proc/self/statm", encoding="ascii") as file:
            size = int(file.read().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (size + (8 << 20), limits[1]))
        try:
            with pytest.raises(DDSException, match=r"a sample of topic 'images' needs memory .*ulimit -v") as raised:
                reader.take(1)
        finally:
            resource.setrlimit(resource.RLIMIT_AS, limits)
        assert raised.value.code == DDSException.DDS_RETCODE_OUT_OF_RESOURCES
        assert reader.take(1)[0].pixels[-1] == 3


def test_a_server_goes_on_when_there_are_descriptors_again(make, caplog) -> None:
    """Goal: a moment without descriptors ends no server. Method: a call that is a large sample comes in it."""
    with make() as near, rpc.Server(near, Adder(), workers=1) as server, rpc.Client(near, Adder) as adder:
        assert adder.length(b"abc") == 3
        wait_until(lambda: adder.servers() == [""])
        true_take, short = server._reader.take, threading.Event()

        def take(count: int):
            if short.is_set():
                with descriptors_left(0):
                    return true_take(count)
            return true_take(count)

        with patch.object(server._reader, "take", take):
            short.set()
            answer = adder.length.future(b"x" * (1 << 20))
            wait_until(lambda: "goes on later" in caplog.text, 20)
            short.clear()
            assert answer.result(20) == 1 << 20
        assert caplog.text.count("goes on later") == 1 and "ulimit -n" in caplog.text
        assert adder.add(1, 2) == 3
