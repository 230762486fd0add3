"""Applications across the death of nodes: of others, of their own, and going on at the next.

Goal: whatever dies, an attached application either notices nothing, or is told at once, and can go on without losing
or repeating a message that is still there. Method: real daemons that are killed, sessions in this process.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from spindle.client import Session, attach
from spindle.client.session import ReaderHandle
from spindle.errors import NodeStopped, SpindleError
from spindle.group.events import GONE, VIEW, Event
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle_core.errors import NodeGone
from tests.spindle.daemons import Daemon, daemons
from tests.support import wait_until


@pytest.fixture
def group(runtime_dir: Path) -> Iterator[list[Daemon]]:
    with daemons(runtime_dir, 3) as running:
        yield running


def take(reader: ReaderHandle, count: int, timeout_s: float = 10.0) -> list[bytes]:
    """The next `count` payloads."""
    found: list[bytes] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count:
        assert reader.log.wait(max(0.0, deadline - time.monotonic())), f"{len(found)} of {count} came"
        found += reader.log.take(count - len(found))
    return found


@pytest.mark.parametrize("victims", [[2], [1], [1, 2]], ids=["member", "leader", "two"])
def test_applications_live_through_the_death_of_other_nodes(group: list[Daemon], victims: list[int]) -> None:
    """Goal: an application does nothing, and its readers and writers go on when other nodes are killed, the leader too.

    Method: it writes and reads at node 3 while the others are killed; every message comes once and in order, and those
    that were written after the view without the dead.
    """
    with attach(node_id=3) as session, attach(node_id=1) as other, attach(node_id=2) as second:
        for one in (session, other, second):
            one.declare_topic(TopicSpec("topic", size_max=64))
        theirs = [one.open_reader("topic", keep_all=False, from_history=False) for one in (other, second)]
        reader = session.open_reader("topic", keep_all=True, from_history=False)
        writer = session.open_writer("topic")
        written, stop = [0], threading.Event()

        def write() -> None:
            while not stop.is_set():
                writer.inbox.write(b"%d" % written[0], 0, 10.0)
                written[0] += 1

        thread = threading.Thread(target=write)
        thread.start()
        got = take(reader, 500)
        for number in victims:
            group[number - 1].kill()
        left = tuple(number for number in (1, 2, 3) if number not in victims)
        wait_until(lambda: got.extend(reader.log.take(10_000)) or session.view().node_ids == left)
        before = written[0]
        wait_until(lambda: got.extend(reader.log.take(10_000)) or written[0] > before + 500)
        stop.set()
        thread.join(10)
        got += take(reader, written[0] - len(got))
        assert got == [b"%d" % i for i in range(written[0])]
        assert writer.inbox.wait_acknowledged(10.0) and not session.gone
        assert len(theirs) == 2


def test_everything_that_waits_hears_of_a_dead_daemon_within_a_second(group: list[Daemon]) -> None:
    """Goal: no call of an application outlives its node by more than a second. Method: a thread in each call that can
    wait, then kill -9; then each call again."""
    with attach(node_id=1) as session, attach(node_id=2) as other:
        for one in (session, other):
            one.declare_topic(TopicSpec("topic", size_max=64, window=4))
        reader = session.open_reader("topic", keep_all=True, from_history=False)
        blocker = other.open_reader("topic", keep_all=True, from_history=False)
        writer, full = session.open_writer("topic", slots=4), session.open_writer("topic", slots=1)
        session.declare_topic(TopicSpec("quiet"))
        quiet = session.open_reader("quiet", keep_all=True, from_history=False)
        with pytest.raises(SpindleError):
            while True:
                full.inbox.write(b"x" * 64, 0, 0.3)  # the log of node 2 is full, and so is everything before it
        events: list[Event] = []
        gone = threading.Event()
        session.add_listener(lambda event: (events.append(event), gone.set() if event.kind == GONE else None))  # type: ignore[func-returns-value]
        calls: list[Callable[[], object]] = [
            lambda: quiet.log.wait(30.0), lambda: full.inbox.write(b"y", 0, 30.0), lambda: full.inbox.claim(1, 30.0),
            lambda: full.inbox.wait_acknowledged(30.0), lambda: writer.inbox.write_many([b"z"] * 1000, 0, 30.0)]
        errors: list[BaseException | None] = [None] * len(calls)
        ended: list[float] = [0.0] * len(calls)

        def run(i: int) -> None:
            try:
                calls[i]()
            except Exception as error:
                errors[i] = error
            ended[i] = time.monotonic()

        threads = [threading.Thread(target=run, args=(i,)) for i in range(len(calls))]
        for thread in threads:
            thread.start()
        wait_until(lambda: writer.inbox.committed > 0)
        killed = time.monotonic()
        group[0].kill()
        for thread in threads:
            thread.join(10)
        assert gone.wait(1) and "died" in events[-1].text
        assert max(ended) - killed < 1.0
        assert [type(one) for one in errors] == [NodeGone] * len(calls)
        for call in (session.view, session.topics, lambda: session.open_writer("topic")):
            with pytest.raises(NodeStopped, match=r"node 1.*died"):
                call()
        assert isinstance(session.end_error, NodeStopped)
        assert full.unacknowledged() and writer.unacknowledged()
        assert reader.log.is_gone and blocker.log.pending


@pytest.mark.parametrize("level", [Level.ATOMIC, Level.VOLATILE])
@pytest.mark.parametrize("keep_all", [True, False], ids=["keep all", "keep last"])
def test_a_reader_goes_on_at_another_node(group: list[Daemon], level: Level, keep_all: bool) -> None:
    """Goal: the messages of the dead node's log, then those of the next node's log, are the order itself, nothing
    missing, nothing twice. Method: a writer at node 3 that never stops; the reader's node is killed, twice."""
    with attach(node_id=3) as source:
        source.declare_topic(TopicSpec("topic", level=level, size_max=64, history_bytes=1 << 20))
        mirror = source.open_reader("topic", keep_all=False, from_history=False)
        writer = source.open_writer("topic")
        others = [attach(node_id=2), attach(node_id=1)]
        anchors = [one.open_reader("topic", keep_all=False, from_history=False) for one in others]
        written, stop = [0], threading.Event()

        def write() -> None:
            while not stop.is_set():
                writer.inbox.write(b"%d" % written[0], 0, 10.0)
                written[0] += 1
                time.sleep(0.0002)

        thread = threading.Thread(target=write)
        thread.start()
        try:
            reader = others[1].open_reader("topic", keep_all=keep_all, from_history=False)
            assert reader.continued is False
            got = take(reader, 100)
            first = int(got[0])
            group[0].kill()
            wait_until(lambda: others[1].gone)
            place = reader.freeze()
            got += reader.log.take(100_000)
            assert reader.position == place
            for node_id, victim in ((2, 1), (3, None)):
                session = attach(node_id=node_id)
                again = session.open_reader("topic", keep_all=keep_all, from_history=False, after=place)
                assert again.continued and again.start == place
                got += take(again, 200)
                if victim is not None:
                    group[victim].kill()
                    wait_until(lambda s=session: s.gone)  # type: ignore[misc]
                    place = again.freeze()
                    got += again.log.take(100_000)
        finally:
            stop.set()
            thread.join(10)
        got += take(again, written[0] - first - len(got))
        assert got == [b"%d" % i for i in range(first, written[0])]
        assert not mirror.log.is_gone and len(anchors) == 2
        session.close()


def test_a_reader_is_told_when_something_may_be_missing(group: list[Daemon], runtime_dir: Path) -> None:
    """Goal: a gap is never hidden. Method: the next node has no history of the topic (atomic), or one that is shorter
    than what was missed (volatile); and an order that ended with its group, to which no reader can come back."""
    with attach(node_id=3) as source:
        source.declare_topic(TopicSpec("atomic", size_max=64))
        source.declare_topic(TopicSpec("volatile", level=Level.VOLATILE, size_max=4096, history_bytes=1 << 16))
        session = attach(node_id=1)
        places = {}
        for name in ("atomic", "volatile"):
            writer = source.open_writer(name)
            reader = session.open_reader(name, keep_all=True, from_history=False)
            writer.inbox.write(b"first")
            assert take(reader, 1) == [b"first"]
            places[name] = reader.position
        other = attach(node_id=2)
        reader = other.open_reader("atomic", keep_all=True, from_history=False, after=places["atomic"])
        assert not reader.continued
        kept = other.open_reader("volatile", keep_all=True, from_history=False, after=places["volatile"])
        assert kept.continued and not kept.log.pending
        group[0].kill()
        wait_until(lambda: session.gone)
        for number in range(10_000):
            writer.inbox.write(b"%d" % number + b"-" * 4000, 0, 10.0)
            kept.log.take(1000)
        assert writer.inbox.wait_acknowledged(10.0)
        late = other.open_reader("volatile", keep_all=True, from_history=False, after=places["volatile"])
        assert not late.continued and int(late.log.take(1)[0].split(b"-")[0]) > 0
        assert int(late.log.take(100_000)[-1].split(b"-")[0]) == 9_999
        other.close()
    for daemon in group[1:]:
        daemon.kill()
    again = Daemon(2, runtime_dir=runtime_dir).wait_ready()
    try:
        with attach(node_id=2) as session:
            session.declare_topic(TopicSpec("volatile", level=Level.VOLATILE, size_max=4096, history_bytes=1 << 16))
            writer = session.open_writer("volatile")
            writer.inbox.write(b"a new order")
            assert writer.inbox.wait_acknowledged(10.0)
            reader = session.open_reader("volatile", keep_all=True, from_history=False, after=places["volatile"])
            assert not reader.continued and take(reader, 1) == [b"a new order"]
            place = reader.position
            writer.inbox.write(b"more of it")
            back = session.open_reader("volatile", keep_all=True, from_history=False, after=places["atomic"],
                                       earlier=[places["volatile"], place])
            assert back.continued and take(back, 1) == [b"more of it"]
    finally:
        again.stop()


@pytest.mark.slow
def test_a_reader_is_told_when_the_order_has_less_than_it_has_had(runtime_dir: Path, tmp_path: Path) -> None:
    """Goal: who has taken messages that were on no disk when all nodes died knows it. Method: a reader that claims to
    have had more than the journal holds; one that has had just that is told nothing of the kind."""
    spec, arguments = TopicSpec("logged", level=Level.LOGGED, size_max=64), ("--journal-dir", str(tmp_path))
    daemon = Daemon(1, *arguments, runtime_dir=runtime_dir).wait_ready()
    try:
        with attach(node_id=1) as session:
            session.declare_topic(spec)
            writer = session.open_writer("logged")
            reader = session.open_reader("logged", keep_all=True, from_history=True)
            writer.inbox.write(b"on disk")
            assert writer.inbox.wait_acknowledged(10.0, persisted=True) and take(reader, 1) == [b"on disk"]
            place = reader.position
        daemon.kill()
        daemon = Daemon(1, *arguments, runtime_dir=runtime_dir).wait_ready()
        with attach(node_id=1) as session:
            session.declare_topic(spec)
            beyond = dataclasses.replace(place, sequence=place.sequence + 3)
            same, more = (session.open_reader("logged", keep_all=True, from_history=True, after=one)
                          for one in (place, beyond))
            assert (same.continued, same.rewound) == (True, False)
            assert (more.continued, more.rewound) == (True, True)
            session.open_writer("logged").inbox.write(b"later")
            assert take(same, 1) == take(more, 1) == [b"later"]
    finally:
        daemon.stop()


def test_a_writer_knows_what_its_dead_node_had_not_acknowledged(group: list[Daemon]) -> None:
    """Goal: each message is either acknowledged, then every survivor has it, or reported with its payload. Method: a
    writer in full flow; kill -9 of its node; what survivors got and what is reported must cover what was written."""
    with attach(node_id=2) as other:
        other.declare_topic(TopicSpec("topic", size_max=64))
        reader = other.open_reader("topic", keep_all=True, from_history=False)
        session = attach(node_id=1)
        writer = session.open_writer("topic", keep_unacknowledged=True)
        threading.Timer(0.3, group[0].kill).start()
        count = 0
        with pytest.raises(NodeGone):
            while True:
                writer.inbox.write(b"%d" % count, 0, 10.0)
                count += 1
                if count % 64 == 0:
                    reader.log.take(100)
        wait_until(lambda: other.view().node_ids == (2, 3))
        doubts = writer.unacknowledged()
        got = reader.log.take(1_000_000)
        last = int(got[-1]) if got else count - 1
        assert [one.payload for one in doubts] == [b"%d" % one.index for one in doubts]
        assert doubts == [] or doubts[-1].index == count - 1
        assert (doubts[0].index if doubts else count) <= last + 1


@pytest.mark.slow
def test_views_are_events_for_applications(group: list[Daemon]) -> None:
    """Goal: who watches sees the view without the dead node. Method: kill one, wait for the event."""
    events: list[Event] = []
    with attach(node_id=2) as session:
        session.add_listener(events.append)
        group[0].kill()
        wait_until(lambda: any(one.kind == VIEW and one.view and one.view.node_ids == (2, 3) for one in events))
        assert isinstance(session, Session)
