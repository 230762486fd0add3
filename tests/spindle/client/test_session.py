"""Session: requests, events, and every way in which it can end.

Goal: calls get their own answers, listeners may use the session, and after the node, session or process has gone
every waiting and later call ends with a clear error.
Method: a stand-in for the node behind a real socket; its data path is the core's own inbox and delivery log.
"""

from __future__ import annotations

import errno
import gc
import os
import queue
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import patch

import pytest

from spindle.client import Position, Unacknowledged, channel
from spindle.client.session import Descriptor
from spindle.config.settings import NodeConfig
from spindle.errors import CastOut, NodeStopped, NoResources, SpindleError
from spindle.group.events import ENDPOINT_ADDED, ENDPOINT_REMOVED, GONE, MISSED, Event
from spindle.group.topics import TopicSpec
from spindle_core.delivery import DeliveryLog
from spindle_core.errors import ForkedChild, NodeGone, WriteTimeout
from tests.spindle.stand_in import StandInNode
from tests.support import descriptors_before, open_descriptors, product_threads, wait_until


@pytest.fixture
def node(runtime_dir: Path) -> Iterator[StandInNode]:
    with StandInNode(runtime_dir / "node.sock", NodeConfig()) as running:
        yield running


def test_answers_find_their_callers(node: StandInNode) -> None:
    """Goal: a session serves many threads. Method: eight threads declare topics of their own and ask for them."""
    with node.session() as session:

        def work(number: int) -> None:
            for round_number in range(20):
                name = f"topic {number} {round_number}"
                assert session.declare_topic(TopicSpec(name)).spec.name == name

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(work, range(8)))
        assert len(session.topics()) == 160


def test_attaching_says_who_is_there(node: StandInNode) -> None:
    """Goal: the session knows its node. Method: compare with the stand-in."""
    with node.session("pilot") as session:
        assert (session.node_id, session.domain_id, session.node_pid) == (7, 0, os.getpid())
        assert not session.embedded and not session.gone
        assert session.view().ranks == {5: 0, 7: 1}
        node.counters.set("pushes", 12)
        assert session.counters().snapshot()["pushes"] == 12
        assert "pilot" in repr(session)


def test_a_reader_gets_what_its_log_gets(node: StandInNode) -> None:
    """Goal: the descriptors of a reader are the right ones. Method: append to the log on the node's side."""
    with node.session() as session:
        session.declare_topic(TopicSpec("altitude"))
        with session.open_reader("altitude", keep_all=False, from_history=False) as reader:
            node.logs["altitude"].append(b"9750 m", 1, 0, 3, 0)
            assert reader.log.wait(5.0)
            assert reader.log.take(10) == [b"9750 m"]


def test_a_reader_goes_on_where_another_stood(node: StandInNode) -> None:
    """Goal: a position travels to the node and back, and says whether anything is missing. Method: two readers of one
    log, the second opened with the position of the first; a position that the log doesn't reach back to."""
    with node.session() as session:
        assert session.group_id == session.view().group_id == 99
        session.declare_topic(TopicSpec("altitude"))
        log = node.logs["altitude"] = DeliveryLog(1 << 20, keep_history=True)
        for sequence in (0, 2, 4):
            log.append(b"%d" % sequence, 1, sequence, 3, 0)
        with session.open_reader("altitude", keep_all=True, from_history=True) as reader:
            assert reader.start == reader.position == Position(99, 3, 0) and not reader.continued
            assert reader.log.take(2) == [b"0", b"2"]
            position = reader.position
            assert position == Position(99, 3, 3)
        with session.open_reader("altitude", keep_all=True, from_history=False, after=position) as reader:
            assert reader.continued and reader.log.take(5) == [b"4"]
        late = Position(99, 3, 0)
        with session.open_reader("altitude", keep_all=True, from_history=False, after=late) as reader:
            assert not reader.continued and reader.log.take(5) == [b"0", b"2", b"4"]


def test_after_the_death_of_its_node_a_session_says_where_everything_stood(node: StandInNode) -> None:
    """Goal: what a dead node delivered can be read to its end, not beyond, and its place is known; what it did not
    acknowledge is known with its payload; why it ended is known. Method: an abrupt end of a node that lives on."""
    with node.session() as session:
        session.declare_topic(TopicSpec("altitude"))
        reader = session.open_reader("altitude", keep_all=True, from_history=False)
        writer = session.open_writer("altitude", keep_unacknowledged=True)
        node.logs["altitude"].append(b"one", 1, 7, 3, 0)
        writer.inbox.write(b"in doubt", 5)
        assert session.end_error is None
        node.stop(abruptly=True)
        wait_until(lambda: session.gone)
        assert reader.freeze() == Position(99, 3, 8)
        node.logs["altitude"].append(b"two", 1, 9, 3, 0)
        assert reader.log.take(5) == [b"one"] and reader.position == Position(99, 3, 8)
        assert writer.unacknowledged() == [Unacknowledged(0, 5, b"in doubt")]
        assert isinstance(session.end_error, NodeStopped) and "node 7" in str(session.end_error)


def test_a_writer_fills_its_inbox(node: StandInNode) -> None:
    """Goal: the descriptors of a writer are the right ones, and its number is its inbox's. Method: write more than fits
    into the ring of a node that consumes nothing."""
    with node.session() as session:
        session.declare_topic(TopicSpec("altitude", size_max=16))
        with session.open_writer("altitude", slots=4) as writer:
            (port,) = node.open_ports
            for _ in range(4):
                writer.inbox.write(b"9750 m", timeout_s=0)
            assert port.inbox.committed == 4  # type: ignore[union-attr]
            assert port.inbox.writer_id == writer.writer_id  # type: ignore[union-attr]
            with pytest.raises(WriteTimeout):
                writer.inbox.write(b"9750 m", timeout_s=0)


def test_listeners_hear_of_endpoints_and_may_use_the_session(node: StandInNode) -> None:
    """Goal: events come in order, on another thread, where the session can be used. Method: another session opens and
    closes a writer; the listener asks for the endpoints each time."""
    heard: queue.SimpleQueue[tuple[str, bytes, int]] = queue.SimpleQueue()
    with node.session("listening") as session, node.session("writing") as other:

        def listener(event: Event) -> None:
            assert event.endpoint is not None
            heard.put((event.kind, event.endpoint.guid, len(session.endpoints())))

        session.add_listener(listener)
        other.declare_topic(TopicSpec("altitude"))
        writer = other.open_writer("altitude", guid=b"w")
        assert heard.get(timeout=5) == (ENDPOINT_ADDED, b"w", 1)
        writer.close()
        assert heard.get(timeout=5) == (ENDPOINT_REMOVED, b"w", 0)


def test_a_failing_listener_silences_nobody(node: StandInNode, caplog: pytest.LogCaptureFixture) -> None:
    """Goal: errors of listeners are logged, others still hear. Method: one that raises before one that doesn't."""
    heard: queue.SimpleQueue[str] = queue.SimpleQueue()
    with node.session() as session:
        session.add_listener(lambda event: {}[event.kind])  # type: ignore[index]
        session.add_listener(lambda event: heard.put(event.kind))
        session.declare_topic(TopicSpec("altitude"))
        session.open_writer("altitude", guid=b"w")
        assert heard.get(timeout=5) == ENDPOINT_ADDED
    assert "a listener failed" in caplog.text


def test_a_slow_listener_is_told_that_it_missed_events(monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: memory for waiting events is bounded and the loss is said. Method: a bound of 3, a listener that waits."""
    monkeypatch.setattr(channel, "EVENTS_WAITING_MAX", 3)
    dispatcher = channel.Dispatcher("test")
    go_on = threading.Event()
    kinds = []
    dispatcher.add(lambda event: (go_on.wait(5), kinds.append(event.kind)))
    for number in range(10):
        dispatcher.put(Event(f"event {number}"))
    go_on.set()
    dispatcher.finish()
    dispatcher.join(5)
    assert MISSED in kinds and kinds[-1] == "event 9"


# --- the end


def test_when_the_node_dies_everything_wakes_up(node: StandInNode) -> None:
    """Goal: a dead node means NodeGone within a second for blocked and later calls, and one event.
    Method: a writer blocked on a full inbox and a reader that waits, while all connections end without a word."""
    session = node.session()
    session.declare_topic(TopicSpec("altitude", size_max=16))
    heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
    session.add_listener(heard.put)
    writer = session.open_writer("altitude", slots=1)
    reader = session.open_reader("altitude", keep_all=True, from_history=False)
    writer.inbox.write(b"fills the inbox")
    ended: queue.SimpleQueue[tuple[BaseException, float]] = queue.SimpleQueue()

    def blocked(call: object) -> None:
        try:
            call()  # type: ignore[operator]
        except BaseException as error:
            ended.put((error, time.monotonic()))

    calls = (lambda: writer.inbox.write(b"blocked"), lambda: reader.log.wait())
    threads = [threading.Thread(target=blocked, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    died = time.monotonic()
    node.stop(abruptly=True)
    for thread in threads:
        error, when = ended.get(timeout=5)
        assert isinstance(error, NodeGone)
        assert when - died < 1.0
        thread.join(5)
    event = heard.get(timeout=5)
    assert event.kind == GONE and "attach again" in event.text
    with pytest.raises(NodeGone):
        writer.inbox.write(b"later", timeout_s=0)
    with pytest.raises(NodeStopped, match="has stopped or died"):
        session.view()
    writer.close()  # nothing more to give back, and no error for it
    assert session.gone
    session.close()


def test_the_last_word_of_the_node_is_what_calls_raise(node: StandInNode) -> None:
    """Goal: applications learn why their node stopped. Method: it stops because of a lost peer."""
    session = node.session()
    node.call(lambda: node.attachments.close(CastOut("node 3 suspects")))
    wait_until(lambda: session.gone)
    with pytest.raises(CastOut, match="node 3 suspects"):
        session.topics()


def test_closing_is_final_and_can_be_repeated(node: StandInNode) -> None:
    """Goal: close() gives everything back, twice is fine, later calls say so. Method: close, then use."""
    session = node.session()
    session.declare_topic(TopicSpec("altitude"))
    writer = session.open_writer("altitude")
    session.close()
    session.close()
    wait_until(lambda: not node.open_ports)
    with pytest.raises(NodeStopped, match="was closed"):
        session.view()
    with pytest.raises(NodeGone):
        writer.inbox.write(b"x")
    writer.close()


@pytest.mark.slow
def test_a_forgotten_session_is_closed(node: StandInNode) -> None:
    """Goal: no thread and no connection outlives its session. Method: drop the last reference and count."""
    before = product_threads()
    node.session()
    gc.collect()
    wait_until(lambda: not node.attachments.apps)
    wait_until(lambda: product_threads() <= before)


def test_an_answer_that_comes_too_late_leaves_nothing_open(node: StandInNode) -> None:
    """Goal: giving up on a request doesn't leak what it opens. Method: hold an opening back beyond its timeout."""
    from spindle.proto import attach_pb2 as pb

    with node.session() as session:
        session.declare_topic(TopicSpec("altitude"))
        node.do(lambda: node.hold.clear())
        with pytest.raises(TimeoutError, match=r"did not answer open_writer within 0\.05 s"):
            session._channel.request(0.05, open_writer=pb.OpenWriter(topic="altitude"))
        node.do(lambda: node.hold.set())
        session.view()
        wait_until(lambda: not node.open_ports)


@pytest.mark.slow
def test_what_this_program_has_no_descriptor_for_is_given_back(node: StandInNode) -> None:
    """Goal: an opening that fails here leaves nothing open, here or at the node, and says what ran out.
    Method: the copy that each port needs can't be made."""
    with node.session() as session:
        session.declare_topic(TopicSpec("altitude"))
        session.open_writer("altitude").close()
        wait_until(lambda: not node.open_ports)
        before = descriptors_before()
        with patch.object(Descriptor, "copy", side_effect=OSError(errno.EMFILE, os.strerror(errno.EMFILE))):
            with pytest.raises(NoResources, match="a writer of topic 'altitude' needs descriptors"):
                session.open_writer("altitude")
            with pytest.raises(NoResources, match="a reader of topic 'altitude' needs descriptors"):
                session.open_reader("altitude", keep_all=True, from_history=False)
        gc.collect()
        wait_until(lambda: not node.open_ports)  # which nobody waits for
        wait_until(lambda: open_descriptors() <= before)
        session.open_writer("altitude").close()


def test_a_child_after_fork_is_told_so_and_harms_nobody(node: StandInNode) -> None:
    """Goal: a session used in a forked child raises clearly, the parent's goes on, and the child doesn't keep the
    connection open. Method: fork; the child reports what it saw by its exit code."""
    session = node.session()
    session.declare_topic(TopicSpec("altitude"))
    writer = session.open_writer("altitude")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            session.view()
        except SpindleError as error:
            code = 0 if "after fork()" in str(error) else 2
        try:
            writer.inbox.write(b"x", timeout_s=0)
            code += 4
        except ForkedChild:
            pass
        session.close()
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert session.view().view_id == 3
    writer.inbox.write(b"x", timeout_s=0)
    session.close()


@pytest.mark.slow
def test_a_program_ends_without_closing(node: StandInNode) -> None:
    """Goal: no hanging exit with an open session, a listener and a thread that waits for data.
    Method: a program that just ends, and one that ends with an error."""
    program = textwrap.dedent(f"""
        import socket, threading
        from spindle.client.attaching import open_session
        from spindle.group.topics import TopicSpec
        sock = socket.socket(socket.AF_UNIX)
        sock.connect({str(node.path)!r})
        session = open_session(sock, 0, "ends", 5.0, label="node 7")
        session.declare_topic(TopicSpec("altitude"))
        session.add_listener(print)
        reader = session.open_reader("altitude", keep_all=True, from_history=False)
        def wait():
            try:
                reader.log.wait()
            except ConnectionError:
                pass
        threading.Thread(target=wait, daemon=True).start()
        print("opened")
    """)
    for ending, code in (("", 0), ("raise SystemExit(3)", 3)):
        done = subprocess.run([sys.executable, "-c", program + ending], capture_output=True, text=True, timeout=20)
        assert (done.returncode, done.stdout, done.stderr) == (code, "opened\n", "")
    wait_until(lambda: not node.open_ports)


def test_the_client_stays_light() -> None:
    """Goal: importing the client brings nothing slow, attaching no event loop. Method: a fresh interpreter."""
    program = textwrap.dedent("""
        import sys
        import spindle.client
        slow = {"asyncio", "uvloop", "numpy", "google.protobuf", "mcap", "rich", "click", "logging"}
        print(sorted(slow & set(sys.modules)))
        import spindle.group.codec, spindle.client.session, spindle_core.inbox_writer, spindle_core.reader
        print("asyncio" in sys.modules, "numpy" in sys.modules)
    """)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=20)
    assert done.stdout == "[]\nFalse False\n", done.stdout + done.stderr
