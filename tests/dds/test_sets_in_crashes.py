"""Coherent sets across crashes.

Goal: whatever dies, a reader gets each set whole and at one place, or nothing of it, and all readers get the same: when
the writer's program is killed, its node, or the reader's; when readers come in the middle of a set; when a program goes
on at another node with a set that is open, or has no node of its own. Whoever lives gets all that was acknowledged.
Method: real daemons that are killed, under writers of sets that are several messages long, of two topics. Each sample
says which set it is of, its place there, and how many the set has.
"""

import contextlib
import itertools
import os
import signal
import textwrap
import threading
import time

import pytest

from dds import (
    DataReader,
    DataWriter,
    DDSException,
    DDSUnacknowledged,
    DomainParticipant,
    Policy,
    Publisher,
    Qos,
    Subscriber,
    Topic,
)
from dds.writers.carrier import CarrierLink
from dds.writers.link import WriterLink
from tests.dds.test_daemons import Program
from tests.dds.test_remote import beside, remote
from tests.dds.test_sub import LONG
from tests.spindle.daemons import daemons
from tests.support import halt, wait_until

GROUP = Qos(Policy.PresentationAccessScope.Group(coherent_access=True, ordered_access=True))
KEPT = Qos(Policy.Reliability.Reliable(LONG), Policy.Durability.TransientLocal, Policy.History.KeepAll)
LOGGED = Qos(Policy.Reliability.Reliable(LONG), Policy.Durability.Persistent, Policy.History.KeepAll)
LEVELS = {"atomic": Qos(), "volatile": KEPT, "logged": LOGGED}


def topics(participant, qos=None):
    return [Topic(participant, name, bytes, qos=qos, order="o", size_max=400, history_bytes=4 << 20) for name in "ab"]


def readers_of(participant, qos=None):
    """A subscriber with a reader of each topic."""
    subscriber = Subscriber(participant, GROUP)
    return subscriber, [DataReader(subscriber, one, qos) for one in topics(participant, qos)]


def sets_in(samples):
    """The sets that these samples make up, as (who, number); AssertionError unless each is whole and in one piece."""
    found, at = [], 0
    while at < len(samples):
        who, number, _, size = samples[at].split()[:4]
        piece = samples[at:at + int(size)]
        assert [one.split()[:4] for one in piece] == [
            [who, number, b"%d" % k, size] for k in range(int(size))], f"{piece[:3]}... at {at} of {len(samples)}"
        assert len({(one.sample_info.view_id, one.sample_info.sequence) for one in piece}) == 1
        found.append((who, int(number)))
        at += int(size)
    return found


def take_all(subscriber, until, timeout_s=30.0):
    """Everything up to a set of which until(samples) is true."""
    taken, deadline = [], time.monotonic() + timeout_s
    while not until(taken):
        assert time.monotonic() < deadline, f"got {len(taken)} samples, the last {taken[-1:]}"
        more = subscriber.take(1000)
        taken += [one for _, one in more]
        if not more:
            time.sleep(0.001)
    return taken


def senders_of(participant, name):
    """The nodes that send in this topic, or order group."""
    return next(one.senders for one in participant.session.topics() if one.spec.name == name)


def write_set(publisher, writers, who, number, size=20):
    with publisher.coherent():
        for k in range(size):
            writers[k % 2].write(b"%s %d %d %d " % (who, number, k, size) + bytes(number * 37 % 150))


WRITER = """
    import itertools, os, sys, dds
    participant = dds.DomainParticipant(node_id=int(os.environ["NODE"]))
    group = dds.Qos(dds.Policy.PresentationAccessScope.Group(coherent_access=True, ordered_access=True))
    publisher = dds.Publisher(participant, group)
    writers = [dds.DataWriter(publisher, dds.Topic(participant, name, bytes, order="o", size_max=400)) for name in "ab"]
    print("ready", flush=True)
    sys.stdin.readline()
    name = os.environ["NAME"].encode()
    for number in itertools.count():
        with publisher.coherent():
            for k in range(20):
                writers[k % 2].write(b"%s %d %d 20 " % (name, number, k) + bytes(number * 37 % 150))
            if number == 50:
                print("flying", flush=True)
"""


@pytest.mark.parametrize("node", ["its program", "its node"])
def test_when_a_writer_is_killed_its_last_set_comes_to_all_or_to_nobody(runtime_dir, node):
    with daemons(runtime_dir, 3) as group:
        participants = [DomainParticipant(node_id=n) for n in (1, 2)]
        ends = [readers_of(one) for one in participants]
        publisher = Publisher(participants[0], GROUP)
        writers = [DataWriter(publisher, one) for one in topics(participants[0])]
        with Program(textwrap.dedent(WRITER), NODE="3", NAME="dies") as program:
            assert program.line() == "ready"
            program.go()
            assert program.line() == "flying"
            if node == "its node":
                group[2].kill()
            else:
                program.process.send_signal(signal.SIGKILL)
            program.process.wait() if node == "its program" else None
            wait_until(lambda: all(len(reader.matched_pub) == 1 for _, readers in ends for reader in readers))
            # What endpoints say is not in the order: the node may still have sets of the dead program to send.
            wait_until(lambda: all(senders_of(one, "o") == (1,) for one in participants))
            write_set(publisher, writers, b"lives", 0)
            assert publisher.wait_for_acks(LONG)
            taken = [take_all(subscriber, lambda samples: samples and samples[-1].startswith(b"lives"))
                     for subscriber, _ in ends]
        found = [sets_in(samples) for samples in taken]
        assert found[0] == found[1] and len(found[0]) > 10
        assert [number for who, number in found[0] if who == b"dies"] == list(range(len(found[0]) - 1))
        assert [[one.sample_info.sequence for one in samples] for samples in taken[:1]] == [
            [one.sample_info.sequence for one in samples] for samples in taken[1:]]
        assert all(reader._intake.sets.kept_aside == 0 for _, readers in ends for reader in readers)
        for one in participants:
            one.close()


@pytest.mark.slow
def test_a_program_that_is_killed_in_an_open_set_has_written_nothing_of_it(runtime_dir):
    with daemons(runtime_dir, 2):
        with DomainParticipant(node_id=1) as participant:
            subscriber, readers = readers_of(participant)
            with Program(textwrap.dedent(WRITER).replace("if number == 50:", "if number == 1 and k == 19:").replace(
                    'print("flying", flush=True)', 'print("open", flush=True); sys.stdin.readline()'),
                    NODE="2", NAME="dies") as program:
                assert program.line() == "ready"
                program.go()
                assert program.line() == "open"
                program.process.send_signal(signal.SIGKILL)
                program.process.wait()
                wait_until(lambda: all(len(reader.matched_pub) == 0 for reader in readers))
            publisher = Publisher(participant, GROUP)
            writers = [DataWriter(publisher, one) for one in topics(participant)]
            write_set(publisher, writers, b"lives", 0)
            assert publisher.wait_for_acks(LONG)
            taken = take_all(subscriber, lambda samples: samples and samples[-1].startswith(b"lives"))
            assert sets_in(taken) == [(b"dies", 0), (b"lives", 0)]


class Source:
    """Writes sets all the time, from a thread, until stop()."""

    def __init__(self, participant, who, qos=None, pause_s=0.0005):
        self.publisher = Publisher(participant, GROUP)
        self.writers = [DataWriter(self.publisher, one) for one in topics(participant, qos)]
        self.who, self.count, self.pause_s = who, 0, pause_s
        self.failure = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            while not self._stop.wait(self.pause_s):
                write_set(self.publisher, self.writers, self.who, self.count)
                self.count += 1
        except Exception as error:
            self.failure = error

    def __enter__(self):
        self._thread.start()
        return self

    def stop(self):
        self._stop.set()
        self._thread.join(30)
        assert self.failure is None, self.failure
        return self.count

    def __exit__(self, *_):
        self._stop.set()
        self._thread.join(30)


@pytest.mark.slow
@pytest.mark.parametrize("kept", [False, True], ids=["new samples only", "with history"])
def test_who_joins_in_the_middle_of_a_set_gets_the_following_ones(runtime_dir, kept):
    qos = KEPT if kept else None
    with daemons(runtime_dir, 2):
        with DomainParticipant(node_id=1) as here, DomainParticipant(node_id=2) as there:
            with Source(here, b"w", qos) as source:
                wait_until(lambda: source.count > 3)
                ends = []
                for participant in (there, here) * 6:  # the first one brings its node into the topic
                    at = source.count
                    ends.append(readers_of(participant, qos))
                    wait_until(lambda at=at: source.count > at + 2)
                last = source.stop() - 1
            for subscriber, readers in ends:
                taken = take_all(subscriber, lambda samples: samples and samples[-1].startswith(b"w %d 19 " % last))
                while taken[0].split()[2] != b"0":  # of the set that came when only its first reader was there
                    del taken[0]
                while taken[1].split()[2] == b"2":
                    del taken[:10]
                numbers = [number for _, number in sets_in(taken)]
                assert numbers == list(range(numbers[0], last + 1))
                assert not kept or numbers[0] == 0
                assert all(reader._intake.sets.kept_aside == 0 for reader in readers)


@pytest.mark.slow
def test_readers_go_on_in_sets_over_the_death_of_their_node(group):
    """Nothing missing, nothing twice, each set whole, in the group's order, also where one log ends and the next begins
    in the middle of a set."""
    far, mine = DomainParticipant(node_id=3), DomainParticipant(reattach=True)
    with far, mine, Source(far, b"w", KEPT) as source:
        subscriber, readers = readers_of(mine, KEPT)
        taken, lives = [], itertools.count(1)
        while (life := next(lives)) < 3:
            taken += take_all(subscriber, lambda samples: len(samples) > 2000)
            group[mine.session.node_id - 1].kill()
            wait_until(lambda n=life: mine.get_node_status().reattached_count == n, 20)
        count = source.stop()
        taken += take_all(subscriber, lambda samples: samples and samples[-1].startswith(b"w %d 19 " % (count - 1)))
        assert sets_in(taken) == [(b"w", n) for n in range(count)]
        assert all(one.get_reattached_status().gap_count == 0 for one in readers)


@contextlib.contextmanager
def moving_publisher():
    """A publisher that goes on at the next node, and has sent a set by its writers of each topic; readers elsewhere."""
    with DomainParticipant(node_id=2) as other, DomainParticipant(reattach=True) as mine:
        subscriber, readers = readers_of(other)
        publisher = Publisher(mine, GROUP)
        writers = [DataWriter(publisher, one) for one in topics(mine)]
        write_set(publisher, writers, b"w", 0)
        assert publisher.wait_for_acks(LONG)
        yield mine, publisher, writers, subscriber, readers


@pytest.mark.slow
def test_a_set_that_is_open_goes_to_the_next_node_as_a_whole(group):
    """Method: the node is killed between two writes of the set; nothing had been sent, so nothing is in doubt."""
    with moving_publisher() as (mine, publisher, writers, subscriber, readers):
        with publisher.coherent():
            for k in range(20):
                writers[k % 2].write(b"w 1 %d 20" % k)
                if k == 10:
                    group[mine.session.node_id - 1].kill()
                    wait_until(lambda: mine.get_node_status().lost_count == 1)
        write_set(publisher, writers, b"w", 2)
        assert publisher.wait_for_acks(LONG)
        taken = take_all(subscriber, lambda samples: len(samples) >= 60)
        assert sets_in(taken) == [(b"w", n) for n in range(3)]
        assert all(one.get_unacknowledged_status().total_count == 0 for one in writers)
        assert {one.sample_info.publication_handle for one in taken[-20:]} == {
            one._instance_handle() for one in writers} <= set(readers[0].matched_pub + readers[1].matched_pub)


@pytest.mark.slow
def test_a_writer_that_is_closed_in_an_open_set_goes_to_the_next_node_with_it(group):
    """Its part comes with the set, and it has ended behind that; what it had said at the dead node is over anyway."""
    with moving_publisher() as (mine, publisher, writers, subscriber, readers):
        with publisher.coherent():
            for k in range(4):
                writers[k % 2].write(b"w 1 %d 4" % k)
            writers[1].close()
            group[mine.session.node_id - 1].kill()
            wait_until(lambda: mine.get_node_status().reattached_count == 1, 20)
        writers[0].write(b"w 2 0 1")
        assert publisher.wait_for_acks(LONG)
        taken = take_all(subscriber, lambda samples: samples and samples[-1].startswith(b"w 2"))
        assert sets_in(taken) == [(b"w", n) for n in range(3)]
        assert not any(one.get_sample_lost_status().total_count for one in readers)
        wait_until(lambda: not readers[1].matched_pub)


@pytest.mark.slow
@pytest.mark.parametrize("comes_along", [True, False])
def test_a_carrier_waits_for_its_writers_at_the_next_node(group, monkeypatch, comes_along):
    """Method: the carrier follows only when somebody writes meanwhile; or a writer can't be opened at the next node,
    then its writes say why, and nothing of it comes in a name that nobody has there."""
    followed = WriterLink.switch
    waiting = threading.Event()

    def switch_late(link, session):
        assert waiting.wait(20)
        followed(link, session)

    def open_nowhere(link, session):
        if link is writers[0]._link:
            raise ValueError("no writer more")
        followed(link, session)

    with moving_publisher() as (mine, publisher, writers, subscriber, readers):
        if comes_along:
            monkeypatch.setattr(CarrierLink, "switch", switch_late)
        else:
            monkeypatch.setattr(WriterLink, "switch", open_nowhere)
        group[mine.session.node_id - 1].kill()
        if comes_along:
            here = mine.session
            wait_until(lambda: writers[1]._link.handle.session is not here, 20)
            threading.Timer(0.05, waiting.set).start()
        else:
            wait_until(lambda: mine.get_node_status().reattached_count == 1, 20)
            with pytest.raises(DDSException, match="no writer more"):
                writers[0].write(b"never")
        writers[1].write(b"w 1 0 1")
        assert publisher.wait_for_acks(LONG) or not comes_along
        taken = take_all(subscriber, lambda samples: samples and samples[-1].startswith(b"w 1"))
        assert sets_in(taken) == [(b"w", 0), (b"w", 1)]
        assert not any(one.get_sample_lost_status().total_count for one in readers)


@pytest.mark.slow
def test_sets_in_doubt_are_reported_with_all_their_samples_each_to_its_writer(runtime_dir):
    """Method: another member is stopped, so that nothing is delivered, then the writer's node is killed."""
    with daemons(runtime_dir, 3) as group:
        participant, other = DomainParticipant(node_id=1, reattach=True), DomainParticipant(node_id=2)
        held = readers_of(other)
        publisher = Publisher(participant, GROUP)
        writers = [DataWriter(publisher, one) for one in topics(participant)]
        write_set(publisher, writers, b"w", 0)
        assert publisher.wait_for_acks(LONG)
        halt(group[1].pid)
        write_set(publisher, writers, b"w", 1, size=4)
        group[0].kill()
        os.kill(group[1].pid, signal.SIGCONT)
        wait_until(lambda: participant.get_node_status().lost_count == 1)
        try:
            doubts = [[one.sample.split()[:3] for one in writer.take_unacknowledged()] for writer in writers]
            assert doubts == [[[b"w", b"1", b"0"], [b"w", b"1", b"2"]], [[b"w", b"1", b"1"], [b"w", b"1", b"3"]]]
            assert [one.get_unacknowledged_status().total_count for one in writers] == [2, 2]
        finally:
            participant.close()
            held[0].close()
            other.close()


@pytest.mark.slow
def test_a_set_is_refused_once_while_something_is_in_doubt(runtime_dir):
    with daemons(runtime_dir, 2) as group:
        participant, other = DomainParticipant(node_id=1, reattach=True), DomainParticipant(node_id=2)
        subscriber, _ = readers_of(other)
        publisher = Publisher(participant, GROUP)
        writers = [DataWriter(publisher, one) for one in topics(participant)]
        write_set(publisher, writers, b"w", 0)
        assert publisher.wait_for_acks(LONG)
        halt(group[1].pid)
        writers[0].write(b"x 0 0 1")
        publisher.begin_coherent()
        writers[1].write(b"w 1 0 1")
        group[0].kill()
        os.kill(group[1].pid, signal.SIGCONT)
        try:
            with daemons(runtime_dir, 1):
                wait_until(lambda: participant.get_node_status().reattached_count == 1)
                with pytest.raises(DDSUnacknowledged) as raised:
                    writers[0].write(b"y")
                    publisher.end_coherent()
                assert [one.sample for one in raised.value.samples] == [b"x 0 0 1"]
                with pytest.raises(DDSException, match="no coherent set is open"):
                    publisher.end_coherent()
                write_set(publisher, writers, b"w", 2, size=3)
                assert publisher.wait_for_acks(LONG)
                taken = take_all(subscriber, lambda samples: any(one.startswith(b"w 2") for one in samples))
                assert [one for one in sets_in(taken) if one[0] == b"w"] == [(b"w", 0), (b"w", 2)]
        finally:
            participant.close()
            other.close()


@pytest.mark.slow
@pytest.mark.parametrize("level", LEVELS)
def test_programs_without_a_node_write_and_read_sets(site, level):
    """Their nodes are killed under them: each set comes once, whole, in one order for all."""
    qos = LEVELS[level]
    with remote(site, 0, 1, 2) as far, beside(site[2]) as near:
        ends = [readers_of(one, qos) for one in (far, near)]
        with Source(far, b"far", qos) as source, Source(near, b"near", qos) as other:
            wait_until(lambda: min(source.count, other.count) > 30, 30)
            os.kill(site[0].running.pid, signal.SIGKILL)
            at = source.count
            wait_until(lambda: source.count > at + 30, 30)
            counts = {b"far": source.stop(), b"near": other.stop()}
        assert source.publisher.wait_for_acks(LONG) and other.publisher.wait_for_acks(LONG)
        write_set(other.publisher, other.writers, b"end", 0)
        assert other.publisher.wait_for_acks(LONG)
        taken = [take_all(subscriber, lambda samples: samples and samples[-1].startswith(b"end"))
                 for subscriber, _ in ends]
        found = [sets_in(samples) for samples in taken]
        for who, count in counts.items():
            assert [number for name, number in found[1] if name == who] == list(range(count))
        if all(one.get_reattached_status().gap_count == 0 for one in ends[0][1]):
            assert found[0] == found[1]
        else:  # an atomic topic keeps nothing for a reader that changes its node
            assert level == "atomic" and [one for one in found[1] if one in found[0]] == found[0]


@pytest.mark.slow
def test_a_reader_elsewhere_stands_still_at_one_place(site):
    with remote(site, 0) as far, beside(site[1]) as near:
        subscriber, readers = readers_of(far)
        with Source(near, b"w") as source:
            for _ in range(50):
                with subscriber.access():
                    samples = sorted((one for reader in readers for one in reader.take(10_000)), key=lambda one: (
                        one.sample_info.sequence, int(one.split()[2])))
                sets_in(samples)
                time.sleep(0.001)
            source.stop()
