"""Applications of real daemons: samples across nodes, and the deaths and idleness of applications.

Goal: what one application does to its writers and readers never disturbs the group. Method: two or three daemons,
sessions in this process, and applications as subprocesses that are killed.
"""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from spindle.client import Session, attach
from spindle.client.session import ReaderHandle
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle_core.errors import MessageTooLarge, WriteTimeout
from tests.spindle.daemons import Daemon, daemons
from tests.support import wait_until


@pytest.fixture(scope="module")
def base_dir(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    import shutil
    import tempfile

    directory = Path(tempfile.mkdtemp(prefix="spindle-", dir="/tmp"))
    yield directory
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="module")
def group(base_dir: Path) -> Iterator[list[Daemon]]:
    with daemons(base_dir, 2) as running:
        yield running


@pytest.fixture
def one(group: list[Daemon], base_dir: Path) -> Iterator[Session]:
    with attach(runtime_dir=base_dir, node_id=1) as session:
        yield session


@pytest.fixture
def two(group: list[Daemon], base_dir: Path) -> Iterator[Session]:
    with attach(runtime_dir=base_dir, node_id=2) as session:
        yield session


def take(reader: ReaderHandle, count: int, timeout_s: float = 10.0) -> list[bytes]:
    """The next `count` payloads."""
    found: list[bytes] = []
    deadline = time.monotonic() + timeout_s
    while len(found) < count:
        assert reader.log.wait(max(0.0, deadline - time.monotonic())), f"{len(found)} of {count} came"
        found += reader.log.take(count - len(found))
    return found


def application(program: str, *arguments: str) -> subprocess.Popen[str]:
    """A Python program in a process of its own; returns once it has printed a line."""
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(program), *arguments], stdout=subprocess.PIPE,
                               text=True)  # fmt: skip
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


def test_samples_cross_nodes_in_one_order(one: Session, two: Session) -> None:
    """Goal: readers on both nodes get all messages of writers on both nodes in the same order.
    Method: two writers at once, 500 messages each."""
    spec = TopicSpec("order", size_max=64)
    assert one.declare_topic(spec).topic_id == two.declare_topic(spec).topic_id
    readers = [session.open_reader("order", keep_all=True, from_history=False) for session in (one, two)]
    writers = [session.open_writer("order") for session in (one, two)]
    threads = [
        threading.Thread(target=lambda number=number: [
            writers[number].inbox.write(b"%d %d" % (number, k), timeout_s=10) for k in range(500)
        ])
        for number in (0, 1)
    ]  # fmt: skip
    for thread in threads:
        thread.start()
    seen = [take(reader, 1000) for reader in readers]
    for thread in threads:
        thread.join(10)
    assert seen[0] == seen[1]
    for number in (b"0", b"1"):
        assert [x for x in seen[0] if x.startswith(number)] == [b"%s %d" % (number, k) for k in range(500)]
    for handle in (*readers, *writers):
        handle.close()


def test_an_application_killed_with_claim_and_loan_disturbs_nobody(one: Session, two: Session, base_dir: Path) -> None:
    """Goal: a dead writer's claim and a dead reader's loan hold nothing, its committed messages arrive, its ports are
    closed at once. Method: kill -9 a process that holds both, while another writer writes more than a log holds."""
    spec = TopicSpec("claimed", size_max=16384)
    one.declare_topic(spec)
    reader = two.open_reader("claimed", keep_all=True, from_history=False)
    writer = two.open_writer("claimed")
    process = application(
        """
        import sys, time
        from spindle.client import attach
        session = attach(runtime_dir=sys.argv[1], node_id=1, name="doomed")
        writer = session.open_writer("claimed", guid=b"doomed")
        reader = session.open_reader("claimed", keep_all=True, from_history=False)
        writer.inbox.write(b"committed")
        assert reader.log.wait(10)
        block = reader.log.take_block(1)
        view = writer.inbox.claim(32)
        view[:5] = b"never"
        print("ready", flush=True)
        time.sleep(60)
        """,
        str(base_dir),
    )
    assert take(reader, 1) == [b"committed"]
    wait_until(lambda: [e.guid for e in two.endpoints("claimed")] == [b"doomed"])
    process.kill()
    process.wait(10)
    assert process.stdout is not None
    process.stdout.close()
    wait_until(lambda: "doomed" not in [app["name"] for app in one.status()["applications"]], timeout_s=1.0)
    wait_until(lambda: not two.endpoints("claimed"))
    for number in range(1000):  # of 16 KB each, through logs of 8 MiB
        writer.inbox.write(b"%09d" % number + bytes(16000), timeout_s=5)
        assert take(reader, 1)[0][:9] == b"%09d" % number
    reader.close()
    writer.close()


def test_what_was_written_before_the_exit_arrives(one: Session, two: Session, base_dir: Path) -> None:
    """Goal: a program may write and end at once. Method: 200 messages and the end of the program, without close()."""
    one.declare_topic(TopicSpec("last words", size_max=64))
    reader = two.open_reader("last words", keep_all=True, from_history=False)
    process = application(
        """
        import sys
        from spindle.client import attach
        session = attach(runtime_dir=sys.argv[1], node_id=1)
        writer = session.open_writer("last words")
        for number in range(200):
            writer.inbox.write(b"%d" % number)
        print("ready", flush=True)
        """,
        str(base_dir),
    )
    assert process.wait(10) == 0
    assert process.stdout is not None
    process.stdout.close()
    assert take(reader, 200) == [b"%d" % number for number in range(200)]
    reader.close()


def test_a_message_over_the_topics_limit_is_refused(one: Session) -> None:
    """Goal: the error names size and limit, and nothing is sent. Method: 17 bytes where 16 fit, in a topic that is too
    small for the entry of a large sample."""
    one.declare_topic(TopicSpec("small", size_max=16))
    reader = one.open_reader("small", keep_all=True, from_history=False)
    writer = one.open_writer("small")
    with pytest.raises(MessageTooLarge, match=r"17 bytes.*16"):
        writer.inbox.write(b"x" * 17)
    writer.inbox.write(b"x" * 16)
    assert take(reader, 1) == [b"x" * 16]
    reader.close()
    writer.close()


@pytest.mark.slow
def test_a_keep_all_reader_that_never_takes_holds_its_writers(one: Session, two: Session) -> None:
    """Goal: bounded memory and no silent loss: the writer's time runs out; when the reader takes again all goes on.
    Method: write until the time is over, then take everything."""
    one.declare_topic(TopicSpec("held", size_max=16384))
    reader = two.open_reader("held", keep_all=True, from_history=False)
    writer = one.open_writer("held")
    written = 0
    with pytest.raises(WriteTimeout, match="keeps all"):
        while written < 100_000:
            writer.inbox.write(b"%09d" % written + bytes(16000), timeout_s=0.5)
            written += 1
    assert written > 100
    seen = [payload[:9] for payload in take(reader, written)]
    assert seen == [b"%09d" % number for number in range(written)]
    writer.inbox.write(b"goes on", timeout_s=5)
    assert take(reader, 1) == [b"goes on"]
    reader.close()
    writer.close()


def test_a_keep_last_reader_that_never_takes_holds_nobody(one: Session, two: Session) -> None:
    """Goal: such a reader is overtaken and knows how much it lost. Method: write three times what the log holds."""
    one.declare_topic(TopicSpec("overtaken", size_max=16384))
    reader = two.open_reader("overtaken", keep_all=False, from_history=False)
    writer = one.open_writer("overtaken")
    count = 1500  # of 16 KB: 24 MB through a log of 8 MiB
    for number in range(count):
        writer.inbox.write(b"%09d" % number + bytes(16000), timeout_s=5)
    seen = [b""]

    def last_one_seen() -> bool:
        seen.extend(payload[:9] for payload in reader.log.take(100))
        return seen[-1] == b"%09d" % (count - 1)

    wait_until(last_one_seen)
    assert reader.log.lost > 0 and reader.log.lost + len(seen) - 1 == count
    reader.close()
    writer.close()


@pytest.mark.slow
def test_applications_that_come_and_go_quickly(one: Session, two: Session, base_dir: Path) -> None:
    """Goal: what one application closes never takes away what the next one opens meanwhile, and nothing is left
    open. Method: sixty short sessions by turns on both nodes, each with the only reader and writer of its node."""
    one.declare_topic(TopicSpec("brief", size_max=64))
    for number in range(60):
        with attach(runtime_dir=base_dir, node_id=1 + number % 2) as session:
            writer = session.open_writer("brief", guid=b"%d" % number)
            reader = session.open_reader("brief", keep_all=True, from_history=False)
            writer.inbox.write(b"%d" % number, timeout_s=5)
            assert take(reader, 1) == [b"%d" % number]
    wait_until(lambda: not two.endpoints("brief"))
    wait_until(lambda: [info.members for info in two.topics() if info.spec.name == "brief"] == [()])


@pytest.mark.slow
def test_topics_last_as_agreed(one: Session, two: Session) -> None:
    """Goal: topics declared on one node are known on the other, with their members. Method: declare, open, look."""
    one.declare_topic(TopicSpec("known", size_max=64, level=Level.ATOMIC))
    writer = one.open_writer("known")
    reader = two.open_reader("known", keep_all=False, from_history=False)
    (info,) = [info for info in two.topics() if info.spec.name == "known"]
    assert info.members == (1, 2) and info.senders == (1,)
    writer.close()
    reader.close()
    wait_until(lambda: [info.members for info in two.topics() if info.spec.name == "known"] == [()])
