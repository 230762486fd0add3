"""Entities in a child after fork(): they are the parent's, and the child is told so, or ends, whatever locks threads of
its parent held in that moment.

Goal: no child waits for a thread that it hasn't got, and none ends what its parent goes on with. Method: fork while
another thread has the lock that would be needed, as it may; an alarm ends a child that hangs.
"""

import asyncio
import contextlib
import os
import signal
import threading

import pytest

import dds.entity
from dds import DataReader, DataWriter, DDSNodeLost, DomainParticipant, GuardCondition, Topic, WaitSet, duration
from dds.nodes import ways
from dds.replicated import Replica
from dds.rpc import Server
from dds.waiting.wake import wait_readable
from tests.dds.replicated.objects import Ledger
from tests.dds.rpc.test_rpc import Pumps
from tests.dds.test_sub import LONG


@contextlib.contextmanager
def held(*locks):
    """By another thread, for the time of a `with`."""
    ready, over = threading.Event(), threading.Event()

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            ready.set()
            over.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    ready.wait()
    try:
        yield
    finally:
        over.set()
        thread.join()


def in_child(work) -> None:
    """Fork, do `work` in the child, and fail if that raises or doesn't end."""
    if (child := os.fork()) == 0:
        code = 1
        try:
            signal.alarm(20)
            work()
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def test_closing_waits_for_no_thread_of_the_parent(participant) -> None:
    topic = Topic(participant, "topic", bytes)
    reader, writer, waits = DataReader(participant, topic), DataWriter(participant, topic), WaitSet(participant)
    waits.attach(reader)
    runtime = participant._runtime

    def close_all() -> None:
        for one in (waits, reader, writer, participant):
            one.close()

    with held(runtime._lock, runtime.attachment.changed, reader._hub._lock, writer._link._lock, waits._lock):
        in_child(close_all)
    writer.write(b"x")
    assert reader.take_one(timeout=LONG) == b"x"
    assert waits.is_attached(reader)


def test_what_a_child_forgets_keeps_no_thread_of_its_own_waiting(participant) -> None:
    """Goal: the child's own entities are closed behind its parent's that it has forgotten."""
    readers = [DataReader(participant, Topic(participant, "topic", bytes))]

    def forget() -> None:
        readers.clear()
        with DomainParticipant.embedded(node_id=60) as own:
            DataReader(own, Topic(own, "own", bytes))
            dds.entity.reaper.flush(10.0)
            assert dds.entity.reaper._idle

    with held(participant._runtime._lock):
        in_child(forget)


def test_locks_of_the_process_are_free_in_a_child(participant) -> None:
    """Goal: a child makes a participant of its own, though another thread was making one when it was forked."""
    def make() -> None:
        with DomainParticipant.embedded() as own:
            topic = Topic(own, "own", bytes)
            reader = DataReader(own, topic)
            DataWriter(own, topic).write(b"y")
            assert reader.take_one(timeout=LONG) == b"y"

    with held(ways._shared_lock, dds.entity._ties):
        in_child(make)


def test_a_replica_tells_a_child_at_once(participant) -> None:
    with Replica(participant, "ledger", Ledger) as replica:
        def call() -> None:
            for one in (lambda: replica.append("a"), replica.all, replica.replicas, replica.synchronize,
                        lambda: replica.wait_for(lambda ledger: False)):
                with pytest.raises(DDSNodeLost, match=r"replica of 'ledger' was made before fork\(\)"):
                    one()
            replica.close()

        with held(replica._core._writing, replica._core._lock):
            in_child(call)
        replica.synchronize()


def test_a_server_tells_a_child_at_once(participant) -> None:
    """Goal: a program that means to serve in a child hears why it doesn't."""
    with Server(participant, Pumps()) as server:
        def serve() -> None:
            with pytest.raises(DDSNodeLost, match=r"server of 'Pumps' was made before fork\(\)"):
                server.wait()
            server.close()

        with held(server._lock):
            in_child(serve)
        assert not server.wait(duration(milliseconds=1))


def test_a_wait_set_tells_a_child_at_once(participant) -> None:
    """Goal: a child doesn't wait for what nobody there rings, takes no ring of its parent's, and waits for no lock of
    its threads. It slept for the whole timeout, and the parent then for ever."""
    waits, guard = WaitSet(participant), GuardCondition(participant)
    waits.attach(guard)

    def wait() -> None:
        for one in (lambda: waits.wait(LONG), lambda: waits.wait_until(0), lambda: asyncio.run(waits.wait_async(LONG)),
                    lambda: waits.attach(participant), lambda: waits.detach(guard), lambda: waits.set_trigger(True),
                    lambda: guard.set(True)):
            with pytest.raises(DDSNodeLost, match=r"was made before fork\(\)"):
                one()

    waits._waker.ring()
    with held(waits._lock, waits._waits):
        in_child(wait)
    assert wait_readable([waits._waker.fd], 0)
    guard.set(True)
    assert waits.wait(LONG) == 1


@pytest.mark.parametrize("make", [WaitSet, GuardCondition, lambda p: Topic(p, "of a child", bytes), dds.Subscriber],
                         ids=["wait set", "guard", "topic", "subscriber"])
def test_nothing_is_made_in_what_is_the_parents(participant, make) -> None:
    """Goal: a child hears that at once, not when what it made does nothing."""
    def in_vain() -> None:
        with pytest.raises(DDSNodeLost, match=r"DomainParticipant.* was made before fork\(\)"):
            make(participant)

    in_child(in_vain)
