"""Goal: a signal that interrupts a call, or a command, hurts that one alone: all others go on.

Method: each is interrupted at every place where Python runs signal handlers, and others are made behind it.
"""

import threading

import dds
from dds import rpc
from dds.replicated import Replica
from dds.replicated.batteries import Counter
from tests.interrupts import Interrupt, interrupted_everywhere

TIMEOUT = dds.duration(seconds=20)


@rpc.service
class Echo:
    def length(self, data: bytes) -> int:
        return len(data)


def in_another_thread(act):
    got = []
    thread = threading.Thread(target=lambda: got.append(act()), daemon=True)
    thread.start()
    thread.join(30)
    return got


def test_a_call(participant):
    with rpc.Server(participant, Echo()), rpc.Client(participant, Echo, timeout=TIMEOUT) as client:
        assert client.length(b"") == 0

        def check(error):
            assert isinstance(error, Interrupt)
            assert in_another_thread(lambda: client.length(b"four")) == [4]

        assert interrupted_everywhere(lambda: client.length(b"one"), check) > 50
        assert client.length(b"the last") == 8


def test_waiting_for_servers_and_futures(participant):
    with rpc.Server(participant, Echo()), rpc.Client(participant, Echo, timeout=TIMEOUT) as client:
        def act():
            client.wait_for_servers(1)
            client.length.future(b"four").result()

        interrupted_everywhere(act, lambda error: None)
        assert in_another_thread(lambda: client.length(b"four")) == [4]


def test_a_command(participant):
    with Replica(participant, "count", Counter, timeout=TIMEOUT) as one:
        with Replica(participant, "count", Counter, timeout=TIMEOUT) as other:
            def act():
                one.add(1)
                one.synchronize()

            one.add(1)

            def check(error):
                assert isinstance(error, Interrupt)
                assert in_another_thread(lambda: one.add(0) > 0) == [True]

            assert interrupted_everywhere(act, check) > 50
            other.synchronize()
            one.synchronize()
            assert one.value() == other.value()
