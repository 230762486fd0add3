"""Readers that drive the predicates of their own node while they wait: no wake-up is lost, and nobody else starves.

Method: engines with their threads, readers that attend them, each message waited for; then everything that happens
beside a waiting reader: other readers, writers, parking, views, heartbeats, signals, fork(), closing, the end.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from spindle_core.engine import Engine, SubgroupSpec
from spindle_core.errors import ForkedChild, NodeGone
from spindle_core.inbox_writer import InboxWriter
from spindle_core.reader import LogReader
from tests.spindle_core.cluster import Cluster, asleep
from tests.support import wait_until


def attending(cluster: Cluster, node: int, topic_id: int = 1) -> LogReader:
    reader = cluster.reader(node, topic_id)
    cluster.engines[node].attended_by(reader)
    return reader


def publishing(cluster: Cluster, node: int, topic_id: int = 1) -> InboxWriter:
    writer = cluster.writer(node, topic_id)
    cluster.engines[node].publishes_by_itself(writer)
    return writer


def figure(engine: Engine, name: str) -> int:
    return engine.counters.snapshot()[name]


@contextmanager
def running(cluster: Cluster) -> Iterator[Cluster]:
    cluster.start()
    try:
        yield cluster
    finally:
        cluster.stop()


class Waiting(threading.Thread):
    """Takes what comes until it has `count` messages, or waiting fails."""

    def __init__(self, reader: LogReader, count: int) -> None:
        super().__init__(daemon=True)
        self.reader, self.count = reader, count
        self.taken: list[bytes] = []
        self.error: Exception | None = None
        self.start()

    def run(self) -> None:
        try:
            while len(self.taken) < self.count and self.reader.wait(30):
                self.taken += self.reader.take(self.count)
        except Exception as error:
            self.error = error

    def over(self) -> bool:
        self.join(60)
        return not self.is_alive()


@pytest.mark.parametrize("busy_poll_us", [0, 20, 1000])
@pytest.mark.parametrize("tcp", [False, True])
def test_no_wake_up_is_lost(busy_poll_us: int, tcp: bool) -> None:
    """Goal: however a message, the reader's falling asleep and the predicate thread's interleave, it is delivered.
    Method: two nodes whose readers attend; single messages from one to the other and back, each waited for."""
    cluster = Cluster(2, busy_poll_us=busy_poll_us, tcp=tcp)
    readers = [attending(cluster, node) for node in range(2)]
    writers = [publishing(cluster, node) for node in range(2)]
    with running(cluster):
        def answer() -> None:
            for k in range(600):
                for one in (b"%d" % k, b"%d!" % k):
                    assert readers[1].wait(30), f"message {one!r} got stuck"
                    assert readers[1].take(1) == [one]
                    if one == b"%d" % k:
                        writers[1].write(b"%d!" % k)

        other = threading.Thread(target=answer)
        other.start()
        for k in range(600):
            writers[0].write(b"%d" % k)
            for one in (b"%d" % k, b"%d!" % k):
                assert readers[0].wait(30), f"message {one!r} got stuck"
                assert readers[0].take(1) == [one]
        other.join(30)
        assert not other.is_alive()


@pytest.mark.slow
def test_a_message_wakes_up_the_reader_and_not_the_predicate_thread() -> None:
    """Goal: what a waiting reader is for: the predicate thread of its node sleeps on. Method: 300 messages, each sent
    when the node is asleep; the predicate thread of the receiving node goes to sleep far less often."""
    cluster = Cluster(2)
    reader, writer = attending(cluster, 1), publishing(cluster, 0)
    with running(cluster):
        engine = cluster.engines[1]
        waiting = Waiting(reader, 320)
        for k in range(320):
            if k == 20:  # by now the reader has met an idle predicate thread
                sleeps, passes = figure(engine, "sleeps"), figure(engine, "attended_laps")
            wait_until(lambda k=k: len(waiting.taken) == k and asleep(engine), interval_s=0.0002)
            writer.write(b"%d" % k)
        assert waiting.over() and len(waiting.taken) == 320
        assert figure(engine, "attended_laps") - passes >= 300
        assert figure(engine, "sleeps") - sleeps < 150


def test_an_idle_predicate_thread_goes_to_sleep_for_a_reader_that_waits() -> None:
    """Goal: once it was awake, a reader that waits has it asleep at once, however long it would look in vain else.
    Method: it would look for a second, and a message comes each few milliseconds."""
    cluster = Cluster(2, busy_poll_us=1_000_000)
    reader, writer = attending(cluster, 1), publishing(cluster, 0)
    with running(cluster):
        waiting, sent = Waiting(reader, 1 << 30), 0

        def passes() -> int:
            return figure(cluster.engines[1], "laps")

        def slept_through_a_message() -> bool:
            nonlocal sent
            before, sent = passes(), sent + 1
            writer.write(b"%d" % sent)
            wait_until(lambda: len(waiting.taken) == sent, interval_s=0.002)
            return passes() == before

        wait_until(slept_through_a_message, interval_s=0.002)
        reader.close()
        assert waiting.over()


def test_waiting_in_vain_costs_nothing() -> None:
    """Goal: a reader that waits for long sleeps, and comes back in time. Method: passes stand still meanwhile."""
    cluster = Cluster(2)
    reader = attending(cluster, 1)
    with running(cluster):
        engine = cluster.engines[1]
        assert not reader.wait(0.01) and not reader.wait(0)
        waiting = Waiting(reader, 1)

        def still() -> bool:
            before = figure(engine, "laps"), figure(engine, "attended_laps")
            until = time.monotonic() + 0.05
            wait_until(lambda: time.monotonic() > until)
            return (figure(engine, "laps"), figure(engine, "attended_laps")) == before and asleep(engine)

        wait_until(still, 30)
        reader.close()
        assert waiting.over() and isinstance(waiting.error, ValueError)
        other = attending(cluster, 1)
        began = time.monotonic()
        assert not other.wait(0.05) and time.monotonic() - began >= 0.05


def test_another_descriptor_ends_the_wait() -> None:
    """Goal: wait_or() hears the other descriptor, rung before or while it waits, and leaves it as it is."""
    cluster = Cluster(2)
    reader, writer = attending(cluster, 1), publishing(cluster, 0)
    bell = os.eventfd(0, os.EFD_NONBLOCK)
    try:
        with running(cluster):
            assert reader.wait_or(bell, 0.01) == 0
            os.eventfd_write(bell, 1)
            assert reader.wait_or(bell, 30) == 2 and reader.wait_or(bell) == 2
            os.eventfd_read(bell)
            timer = threading.Timer(0.05, os.eventfd_write, (bell, 1))
            timer.start()
            assert reader.wait_or(bell, 30) == 2
            timer.join()
            os.eventfd_read(bell)
            writer.write(b"x")
            wait_until(lambda: reader.wait_or(bell, 1) == 1)
            # One who has looked at that message waits for another one. Its own ring may still be on its way.
            reader.arm()
            assert reader.arrived == 1
            wait_until(lambda: reader.wait_or(bell, 0.01, 1) == 0)
            writer.write(b"y")
            wait_until(lambda: reader.wait_or(bell, 1, 1) == 1)
    finally:
        os.close(bell)


def test_several_wait_at_one_node() -> None:
    """Goal: one attends, the others are rung; who comes when it has gone attends; all get everything, in one order.
    Method: four readers of two topics at one node, some of which end early, and writers at both nodes."""
    specs = [SubgroupSpec(topic, (0, 1), (0, 1), 8, 64, 1) for topic in (1, 2)]
    cluster = Cluster(2, specs)
    readers = [attending(cluster, 1, 1 + k % 2) for k in range(4)]
    here, there = publishing(cluster, 1, 1), publishing(cluster, 0, 2)
    with running(cluster):
        waiting = [Waiting(reader, count) for reader, count in zip(readers, (100, 400, 400, 100), strict=True)]
        for k in range(400):
            here.write(b"%d" % k, timeout_s=30)
            there.write(b"%d" % k, timeout_s=30)
            if not figure(cluster.engines[1], "attended_laps"):
                time.sleep(0.002)  # on a busy machine all may be there before anybody has come to wait for it
        for one in waiting:
            assert one.over() and one.error is None
            assert one.taken[:one.count] == [b"%d" % k for k in range(one.count)]
        assert figure(cluster.engines[1], "attended_laps")


def test_what_another_thread_delivers_meanwhile_is_told() -> None:
    """Goal: who comes back from a wait has been told of what came before it, or its descriptor says so: whoever else
    waits for the same reader learns of it by that. Method: a reader is woken up by a message of another topic, and when
    it is about to sleep again, this thread delivers one of its own. At moments of all kinds, many times."""
    specs = [SubgroupSpec(1, (1,), (1,), 8, 64, 1), SubgroupSpec(2, (0, 1), (0,), 8, 64, 1)]
    cluster = Cluster(2, specs, busy_poll_us=0)
    reader, other = attending(cluster, 1, 1), cluster.reader(1, 2)
    here, there = publishing(cluster, 1, 1), publishing(cluster, 0, 2)
    rounds, untold, over = 4000, [], threading.Event()

    def wait() -> None:
        known = 0
        while not over.is_set():
            if reader.arm() and reader.arrived > known:
                known = reader.arrived
                reader.take(100)
                continue
            told = reader.wait_or(-1, 0.2, known) & 1
            if not told and reader.arrived > known and not select.select([reader], [], [], 0.05)[0]:
                untold.append(known)

    with running(cluster):
        waiting = threading.Thread(target=wait)
        waiting.start()
        try:
            for k in range(rounds):
                there.write(b"x", timeout_s=30)
                until = time.monotonic_ns() + k * 37 % 40_000
                while time.monotonic_ns() < until:
                    pass
                here.write(b"%d" % k, timeout_s=30)
                if k % 50 == 0:
                    other.take(100)
                while reader.pending and waiting.is_alive() and not untold:
                    os.sched_yield()
        finally:
            over.set()
            waiting.join(30)
        assert not untold


@pytest.mark.slow
def test_the_node_stands_still_for_who_parks_it() -> None:
    """Goal: a thread that attends makes no pass while the engine is parked, and doesn't keep it from being parked.
    Method: parked 300 times beside readers that wait and messages that come."""
    cluster = Cluster(2, busy_poll_us=200)
    engine, reader, writer = cluster.engines[1], attending(cluster, 1), publishing(cluster, 0)
    with running(cluster):
        waiting, over = Waiting(reader, 1 << 30), threading.Event()

        def write() -> None:
            while not over.is_set():
                writer.write(b"x", timeout_s=30)
                over.wait(0.0003)

        writing = threading.Thread(target=write)
        writing.start()
        try:
            for _ in range(300):
                before = len(waiting.taken)
                with engine.parked():
                    passes = figure(engine, "laps") + figure(engine, "attended_laps")
                    os.sched_yield()
                    assert figure(engine, "laps") + figure(engine, "attended_laps") == passes
                wait_until(lambda before=before: len(waiting.taken) > before, 30, interval_s=0.0005)
        finally:
            over.set()
            writing.join(30)
        assert figure(engine, "attended_laps")


def test_views_change_while_readers_wait() -> None:
    """Goal: a waiting reader goes on from view to view. Method: twenty views, a message in each, all waited for."""
    cluster = Cluster(2)
    readers = [attending(cluster, node) for node in range(2)]
    writer = publishing(cluster, 0)
    with running(cluster):
        waiting = [Waiting(reader, 40) for reader in readers]
        for k in range(20):
            writer.write(b"%d" % (2 * k), timeout_s=30)
            if k % 2:
                writer.wait_acknowledged(30)
            for engine in cluster.engines:
                engine.wedge(k + 1)
            frozen = [epoch.frozen_counts(rank, 1) for rank, epoch in enumerate(cluster.epochs)]
            trim = [min(column) for column in zip(*frozen, strict=True)]
            for engine in cluster.engines:
                assert engine.deliver_to_trim(1, trim)
            cluster.install(k + 2, cluster.specs)
            writer.write(b"%d" % (2 * k + 1), timeout_s=30)
        for one in waiting:
            assert one.over() and one.taken == [b"%d" % k for k in range(40)]


@pytest.mark.parametrize("node", [0, 1])
def test_the_end_of_a_node_reaches_who_attends_it(node: int) -> None:
    """Goal: stop() ends although a thread attends, asleep or not, and that learns of it. Method: many times."""
    for k in range(30):
        cluster = Cluster(2, busy_poll_us=500 * (k % 2))
        reader, other = attending(cluster, node), attending(cluster, node)
        writer = publishing(cluster, 0)
        with running(cluster):
            waiting = [Waiting(one, 1 << 30) for one in (reader, other)]
            writer.write(b"x")
            wait_until(lambda waiting=waiting: all(one.taken for one in waiting), interval_s=0.0002)
        for one in waiting:
            assert one.over() and isinstance(one.error, NodeGone)


def beats(cluster: Cluster, writer: InboxWriter, busy: bool) -> None:
    """Six heartbeats of node 1 come."""
    theirs = cluster.epochs[0]
    until = theirs.get(1, "heartbeat") + 6

    def beaten() -> bool:
        if busy:
            writer.write(b"x", timeout_s=30)
        return theirs.get(1, "heartbeat") >= until

    wait_until(beaten, 30, interval_s=0.001)


def test_heartbeats_go_on() -> None:
    """Goal: a node that is attended, by a reader that sleeps or one that has much to do, gives its heartbeats. Method:
    the control thread vouches for it, and its heartbeat grows."""
    cluster = Cluster(2)
    reader, writer = attending(cluster, 1), publishing(cluster, 0)
    with running(cluster):
        cluster.epochs[1].vouch(5_000_000, 1 << 20)
        waiting = Waiting(reader, 1 << 30)
        for busy in (False, True):
            beats(cluster, writer, busy)
        reader.close()
        assert waiting.over()


def test_heartbeats_begin_while_a_reader_attends() -> None:
    """Goal: the predicate thread, asleep for ever, hears that heartbeats are wanted, though the one that is rung is a
    reader that attends. Method: several times, as now and then it is the predicate thread."""
    for _ in range(5):
        cluster = Cluster(2)
        reader, writer = attending(cluster, 1), publishing(cluster, 0)
        engine = cluster.engines[1]
        with running(cluster):
            waiting = Waiting(reader, 1 << 30)

            def attended(engine: Engine = engine, writer: InboxWriter = writer) -> bool:
                writer.write(b"x", timeout_s=30)
                return figure(engine, "attended_laps") > 20

            wait_until(attended, 30, interval_s=0.001)
            wait_until(lambda engine=engine: asleep(engine), 30)
            time.sleep(0.01)  # not needed for the result: the reader sleeps, too, by now
            cluster.epochs[1].vouch(5_000_000, 1 << 20)
            beats(cluster, writer, False)
            reader.close()
            assert waiting.over()


def test_a_signal_gets_through() -> None:
    """Goal: Ctrl-C ends a wait, asleep or awake. Method: SIGINT for the waiting main thread, at several moments."""
    cluster = Cluster(2, busy_poll_us=300)
    reader = attending(cluster, 1)
    with running(cluster):
        for delay_s in (0.0, 0.0001, 0.0005, 0.02, 0.1):
            timer = threading.Timer(delay_s, os.kill, (os.getpid(), signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                timer.start()
                while True:
                    reader.wait(0.5)
            timer.join()
        assert not reader.wait(0.001)


def test_a_child_leaves_the_node_alone() -> None:
    """Goal: after fork() the child can't wait, drives nothing, and the parent goes on. Method: fork beside a wait."""
    cluster = Cluster(2)
    reader, other, writer = attending(cluster, 1), attending(cluster, 1), publishing(cluster, 0)
    with running(cluster):
        waiting = Waiting(reader, 50)
        for k in range(50):
            if k % 10 == 0:
                child = os.fork()
                if child == 0:
                    try:
                        other.wait(1)
                    except ForkedChild:
                        os._exit(0)
                    os._exit(1)
                assert os.waitpid(child, 0)[1] == 0
            writer.write(b"%d" % k, timeout_s=30)
        assert waiting.over() and waiting.taken == [b"%d" % k for k in range(50)]


def test_closing_while_waiting() -> None:
    """Goal: a reader that is closed while its thread attends wakes up, and the node goes on for the next one. Method:
    many readers, each closed at another moment, the last one gets what is sent."""
    cluster = Cluster(2, busy_poll_us=100)
    writer = publishing(cluster, 0)
    last = attending(cluster, 1)
    with running(cluster):
        for k in range(40):
            reader = attending(cluster, 1)
            waiting = Waiting(reader, 1 << 30)
            if k % 3 == 0:
                writer.write(b"%d" % k, timeout_s=30)
            if k % 2:
                wait_until(lambda: asleep(cluster.engines[1]), interval_s=0.0002)
            reader.close()
            assert waiting.over() and isinstance(waiting.error, ValueError)
        waiting = Waiting(last, 15)
        writer.write(b"last")
        assert waiting.over() and waiting.taken[-1] == b"last"
