"""Goal: a logged topic goes on after all nodes were killed at once: nothing that was acknowledged as persisted is lost,
one order on all disks, readers get the history back; minorities wait and say for whom; forks are moved beside.
Method: real daemons on one journal directory, killed with -9, started again in other orders and numbers."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spindle.client import Session, attach
from spindle.errors import SpindleError, TopicMismatch
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.journal.tools import read, verify
from spindle.restart.ledger import Ledger
from tests.spindle.daemons import Daemon
from tests.support import wait_until

TOPIC = "orders"
SPEC = TopicSpec(TOPIC, level=Level.LOGGED, size_max=256)
WAIT_S = 20.0


class Site:
    """Nodes with one journal directory."""

    def __init__(self, tmp_path: Path) -> None:
        self.run, self.journal = tmp_path / "run", tmp_path / "journal"
        self.daemons: dict[int, Daemon] = {}
        self.sessions: list[Session] = []

    def start(self, *node_ids: int, **options: str) -> None:
        arguments = ["--journal-dir", str(self.journal)]
        if options:
            config = self.run.parent / f"{'-'.join(map(str, node_ids))}.toml"
            config.write_text("\n".join(f"{key.replace('__', '.')} = {value}" for key, value in options.items()))
            arguments += ["--config", str(config)]
        for node_id in node_ids:
            self.daemons[node_id] = Daemon(node_id, *arguments, runtime_dir=self.run).wait_ready()

    def open(self, node_id: int) -> Session:
        session = attach(0, runtime_dir=self.run, node_id=node_id)
        self.sessions.append(session)
        session.declare_topic(SPEC)
        return session

    def kill(self, *node_ids: int) -> None:
        for node_id in node_ids:
            self.daemons[node_id].process.kill()
        for node_id in node_ids:
            self.daemons.pop(node_id).wait()

    def close(self) -> None:
        for session in self.sessions:
            with contextlib.suppress(SpindleError):
                session.close()
        for daemon in self.daemons.values():
            daemon.stop()

    def disk(self, node_id: int) -> list[tuple[int, int, bytes]]:
        return [(one.view_id, one.sequence, one.payload)
                for one in read(self.journal, topic=TOPIC, node_id=node_id)]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    try:
        yield site
    finally:
        site.close()


def take(port: object, count: int) -> list[bytes]:
    """The next `count` messages of a reader."""
    found: list[bytes] = []
    while len(found) < count:
        assert port.log.wait(WAIT_S), found  # type: ignore[attr-defined]
        found += [payload for payload, _ in port.log.take_pairs(count - len(found))]  # type: ignore[attr-defined]
    return found


def write(site: Site, node_id: int, payloads: list[bytes]) -> None:
    session = site.open(node_id)
    writer = session.open_writer(TOPIC).inbox
    for payload in payloads:
        writer.write(payload)
    assert writer.wait_acknowledged(WAIT_S, persisted=True)


def numbered(first: int, last: int) -> list[bytes]:
    return [b"%d" % number for number in range(first, last)]


def test_all_are_killed_and_start_again(site: Site) -> None:
    site.start(1, 2, 3)
    for node_id in (1, 2, 3):
        site.open(node_id).open_reader(TOPIC, keep_all=True, from_history=True)
    write(site, 2, numbered(0, 500))
    site.kill(1, 2, 3)
    held = {node_id: site.disk(node_id) for node_id in (1, 2, 3)}
    assert all(len(order) >= 500 for order in held.values())
    site.start(3)
    site.start(1)
    # Two of the three are enough; their reader gets the history back from the journal.
    reader = site.open(1).open_reader(TOPIC, keep_all=True, from_history=True)
    longest = max((held[1], held[3]), key=len)
    assert take(reader, len(longest)) == [payload for _, _, payload in longest]
    write(site, 3, numbered(500, 700))
    assert take(reader, 200) == numbered(500, 700)
    site.start(2)
    site.open(2).open_reader(TOPIC, keep_all=True, from_history=True)
    write(site, 2, numbered(700, 800))
    orders = [wait_until(lambda node_id=node_id: len(found := site.disk(node_id)) == len(longest) + 300 and found,
                         what=f"all messages at node {node_id}") for node_id in (1, 2, 3)]
    assert orders[0] == orders[1] == orders[2]
    assert [payload for _, _, payload in orders[0]] == numbered(0, 800)
    # P4: the order goes on rising over the restart.
    assert [order[:2] for order in orders[0]] == sorted({order[:2] for order in orders[0]})
    assert not list(site.journal.glob("*.forked*"))
    assert verify(site.journal).ok


def test_s40_what_waits_for_a_slow_reader_at_the_end_of_a_view_is_not_persisted(site: Site) -> None:
    """Setup: the log of node 2 is full, as an application there reads nothing and keeps all; node 1 writes on until
    nothing has room. Script: the view changes, several times, so that the last messages of a view wait at node 2 for
    room in its log, in memory only; then all die. Expect (P1): what the writer was told to be persisted is on both
    disks; the next lives go on with at least that."""
    small = {"topics__log_capacity": '"64 KiB"', "topics__log_hot": '"4 KiB"', "topics__size_max": '"1 KiB"'}
    site.start(1, 2, 3, **small)
    site.open(1).open_reader(TOPIC, keep_all=False, from_history=False)
    site.open(2).open_reader(TOPIC, keep_all=True, from_history=True)
    writer = site.open(1).open_writer(TOPIC).inbox
    payloads = [b"%04d" % number + bytes(200) for number in range(5000)]
    written = 0
    with contextlib.suppress(TimeoutError):
        for payload in payloads:
            writer.write(payload, timeout_s=1.0)
            written += 1
    assert 16 < written < len(payloads)
    held = wait_until(lambda: len(found := site.disk(2)) > 8 and found, what="what node 2's log holds is on its disk")
    other = site.open(3)
    for number in range(3):
        other.declare_topic(TopicSpec(f"another{number}", size_max=64))
        other.open_reader(f"another{number}", keep_all=False, from_history=False)
    # The predicates of the new view run in the meantime: the opening is answered when it is installed everywhere.
    told = [writer.persisted]
    wait_until(lambda: told.append(writer.persisted) or len(told) > 200, what="some looks at what the writer is told")
    site.kill(1, 2, 3)
    orders = [[payload for _, _, payload in site.disk(node_id)] for node_id in (1, 2)]
    assert [payload for _, _, payload in held] == payloads[:len(held)]
    for order in orders:
        assert order == payloads[:len(order)] and len(order) >= max(told), (len(order), max(told))
    site.start(1, 2, **small)
    site.open(2).open_reader(TOPIC, keep_all=True, from_history=True)
    assert len(site.disk(2)) >= max(told)


def test_a_minority_waits_and_says_for_whom(site: Site) -> None:
    site.start(1, 2, 3)
    for node_id in (1, 2, 3):
        site.open(node_id).open_reader(TOPIC, keep_all=True, from_history=True)
    write(site, 1, numbered(0, 20))
    site.kill(1, 2, 3)
    site.start(2, limits__open_timeout_s="1.0")
    session = site.open(2)
    with pytest.raises(TimeoutError, match=r"it waits for a majority .*\(nodes 1, 2, 3 .*; nodes 1, 3 are missing"):
        session.open_reader(TOPIC, keep_all=True, from_history=True)
    site.start(1)
    reader = session.open_reader(TOPIC, keep_all=True, from_history=True)
    assert take(reader, 20) == numbered(0, 20)


def test_any_goes_on_and_a_fork_is_moved_beside(site: Site) -> None:
    site.start(1, 2)
    for node_id in (1, 2):
        site.open(node_id).open_reader(TOPIC, keep_all=True, from_history=True)
    write(site, 1, numbered(0, 20))
    site.kill(2)
    write(site, 1, numbered(20, 30))
    site.kill(1)
    site.start(2, journal__restart='"any"')
    reader = site.open(2).open_reader(TOPIC, keep_all=True, from_history=True)
    assert take(reader, 20) == numbered(0, 20)
    write(site, 2, numbered(100, 110))
    site.start(1)
    late = site.open(1).open_reader(TOPIC, keep_all=True, from_history=True)
    assert take(late, 30) == [*numbered(0, 20), *numbered(100, 110)]
    write(site, 1, numbered(110, 120))
    assert site.disk(1) == site.disk(2)
    (kept,) = site.journal.glob("*.forked")
    assert b"29" in kept.read_bytes() and "-1-" in kept.name
    assert verify(site.journal).ok


@pytest.mark.slow
def test_a_clean_stop_of_all_in_turn(site: Site) -> None:
    """The last to leave holds everything; whoever left before waits for it."""
    site.start(1, 2)
    for node_id in (1, 2):
        site.open(node_id).open_reader(TOPIC, keep_all=True, from_history=True)
    write(site, 1, numbered(0, 20))
    site.daemons.pop(1).terminate()
    write(site, 2, numbered(20, 30))
    site.daemons.pop(2).terminate()
    site.start(1, limits__open_timeout_s="1.0")
    session = site.open(1)
    with pytest.raises(TimeoutError, match="node 2 is missing"):
        session.open_reader(TOPIC, keep_all=True, from_history=True)
    site.start(2)
    reader = session.open_reader(TOPIC, keep_all=True, from_history=True)
    assert take(reader, 30) == numbered(0, 30)


@pytest.mark.slow
def test_the_topic_survives_its_members_in_a_living_group(site: Site) -> None:
    """Nodes 1 and 2 leave the topic but not the group; node 3, which never had it, gets it from their journals."""
    site.start(1, 2, 3)
    for node_id in (1, 2):
        site.open(node_id).open_reader(TOPIC, keep_all=True, from_history=True)
    write(site, 1, numbered(0, 20))
    for session in site.sessions:
        session.close()
    site.sessions.clear()
    reader = site.open(3).open_reader(TOPIC, keep_all=True, from_history=True)
    assert take(reader, 20) == numbered(0, 20)
    write(site, 3, numbered(20, 30))
    site.kill(1, 2, 3)
    site.start(1, limits__open_timeout_s="1.0")
    with pytest.raises(TimeoutError, match="node 3 is missing"):
        site.open(1).open_reader(TOPIC, keep_all=True, from_history=True)


@pytest.mark.slow
def test_who_looks_on_writes_down_who_holds_the_topic(site: Site) -> None:
    """Goal: the memory of a topic's holders outlives them. Method: node 3 takes no part in it; its standing must name
    those members that were whole when the members changed, and after the death of the first the other; nothing else is
    on its disk."""
    site.start(1, 2, 3)
    sessions = [site.open(1), site.open(2)]
    readers = [one.open_reader(TOPIC, keep_all=True, from_history=True) for one in sessions]

    def told() -> tuple[int, ...]:
        successor = Ledger(site.journal, TOPIC, 3).read().successor
        return successor.holders.members if successor is not None else ()

    wait_until(lambda: 1 in told(), WAIT_S)
    site.kill(1)
    wait_until(lambda: told() == (2,), WAIT_S)
    assert Ledger(site.journal, TOPIC, 3).read().holders is None
    assert not list(site.journal.glob(f"{TOPIC}-3-*.mcap"))
    readers[1].close()


def test_a_damaged_journal_is_repaired_from_the_others(site: Site) -> None:
    site.start(1, 2)
    for node_id in (1, 2):
        site.open(node_id).open_reader(TOPIC, keep_all=True, from_history=True)
    session = site.open(1)
    writer = session.open_writer(TOPIC).inbox
    for payload in numbered(0, 50):
        writer.write(payload)
        assert writer.wait_acknowledged(WAIT_S, persisted=True)  # many commits, so that damage has good data behind it
    site.kill(2)
    (path,) = site.journal.glob("*-2-*.mcap")
    data = bytearray(path.read_bytes())
    data[data.index(b"spindle.commit") + 2000] ^= 1
    path.write_bytes(data)
    site.start(2)
    with pytest.raises(OSError, match="spindle journal repair") as caught:
        site.open(2).open_reader(TOPIC, keep_all=True, from_history=True)
    command = re.search(r"`spindle (journal repair [^`]+)`", str(caught.value))
    assert command is not None
    done = subprocess.run([sys.executable, "-m", "spindle.cli", *command[1].split()], capture_output=True, text=True,
                          timeout=60, check=True)
    assert "repaired" in done.stdout and f"topic {TOPIC!r} of node 2" in done.stdout
    reader = site.open(2).open_reader(TOPIC, keep_all=True, from_history=True)
    assert take(reader, 50) == numbered(0, 50)
    write(site, 1, numbered(50, 60))
    assert site.disk(2) == site.disk(1)
    assert list(site.journal.glob("*-2-*.mcap.damaged"))


@pytest.mark.slow
def test_another_type_after_a_new_beginning(site: Site) -> None:
    """As docs/operations.md says under "Journals": all nodes are stopped, what they have of the topic is put aside."""
    site.start(1, 2)
    write(site, 1, numbered(0, 5))
    session = site.open(2)
    session.open_reader(TOPIC, keep_all=True, from_history=True)
    other = TopicSpec(TOPIC, "another", level=Level.LOGGED, size_max=256)
    with pytest.raises(TopicMismatch, match=rf"It is logged.*topics {TOPIC} --redefine`, which puts its journals"):
        session.declare_topic(other)
    aside = site.run.parent / "aside"
    command = [sys.executable, "-m", "spindle.cli", "journal", "set-aside", site.journal, "-t", TOPIC, "-o", aside]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 10 and "stop node" in done.stderr, done.stderr  # it is open
    for one in site.sessions:
        one.close()
    for daemon in site.daemons.values():
        assert daemon.terminate() == 0
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert "of node 1" in done.stdout and "of node 2" in done.stdout
    assert not list(site.journal.glob(f"{TOPIC}-*"))
    site.start(1, 2)
    with attach(0, runtime_dir=site.run, node_id=1) as one:
        one.declare_topic(other)
        with one.open_writer(TOPIC) as writer:
            writer.inbox.write(b"new")
            assert writer.inbox.wait_acknowledged(WAIT_S, persisted=True)
        assert take(one.open_reader(TOPIC, keep_all=True, from_history=True), 1) == [b"new"]
    assert [one.payload for one in read(aside, topic=TOPIC, node_id=1)] == numbered(0, 5)


@pytest.mark.slow
def test_messages_of_another_type_are_no_samples(site: Site) -> None:
    """All nodes were down, and the topic is declared anew with another type: where it is on disk it is refused, at its
    declaration and, where that was at a node that has nothing of it, when it is opened. With other settings it goes
    on."""
    site.start(1, 2, 3)
    write(site, 1, numbered(0, 5))
    for session in site.sessions:
        session.close()
    site.kill(1, 2, 3)
    site.start(1, 3)
    other = TopicSpec(TOPIC, "another", level=Level.LOGGED, size_max=256)
    wrong = r"node 1 has messages of another type of it on disk: bytes{}, and you want another.*topics {} --redefine`"
    with attach(0, runtime_dir=site.run, node_id=1) as session:
        with pytest.raises(TopicMismatch, match=wrong.format(f" in .*{TOPIC}-1-.*", TOPIC)):
            session.declare_topic(other)
        assert session.declare_topic(TopicSpec(TOPIC, level=Level.LOGGED, size_max=4096)).spec.size_max == 4096
        assert take(session.open_reader(TOPIC, keep_all=True, from_history=True), 5) == numbered(0, 5)
    site.kill(1, 3)
    site.start(1, 3)
    with attach(0, runtime_dir=site.run, node_id=3) as session, attach(0, runtime_dir=site.run, node_id=1) as one:
        session.declare_topic(other)
        for at in (one, session):  # also a node that has nothing of it would go on with what another has
            with pytest.raises(TopicMismatch, match=wrong.format("", TOPIC)):
                at.open_reader(TOPIC, keep_all=True, from_history=True)
            with pytest.raises(TopicMismatch, match=wrong.format("", TOPIC)):
                at.open_writer(TOPIC)
    site.kill(1, 3)
    site.start(1)
    with attach(0, runtime_dir=site.run, node_id=1) as session:
        session.declare_topic(SPEC)
        assert take(session.open_reader(TOPIC, keep_all=True, from_history=True), 5) == numbered(0, 5)
