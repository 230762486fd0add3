"""Goal: a node whose disk has less room than [journal] free_min lives on; writers of its logged topics, at whatever
node, get an error that names it and its disk, new ones are refused, and nothing is lost when there is room again.
Method: two embedded nodes with a directory each, and a disk under one of them that says how much is free."""

from __future__ import annotations

import dataclasses
import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

import dds
from dds.nodes.ways import HostNode
from spindle.client import Session, embed
from spindle.config.settings import NodeConfig
from spindle.errors import JournalError
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from spindle.journal.files import OsFiles
from spindle.journal.tools import read, verify
from spindle_core.errors import WriteTimeout
from tests.spindle.cli.support import Cli
from tests.support import wait_until

TOPIC = "alerts"
SPEC = TopicSpec(TOPIC, level=Level.LOGGED, size_max=1024, window=16)
PAYLOAD = bytes(1000)


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Cli:
    return Cli(capfd)


@pytest.fixture
def free(tmp_path: Path) -> Iterator[dict[str, int]]:
    """Bytes that are free at each node."""
    found = {"1": 1 << 40, "2": 1 << 40}
    with patch.object(OsFiles, "free_bytes", lambda _, path: found[path.name]), \
            patch("spindle.journal.writer.HALT_PERIOD_S", 0.02):
        yield found


def node(directory: Path, runtime_dir: Path, node_id: int) -> Session:
    session = embed(0, node_id=node_id, config=dataclasses.replace(
        NodeConfig(), node_id=node_id, runtime_dir=runtime_dir, journal_dir=directory / str(node_id),
        log_capacity=1 << 16, log_hot=1 << 14, journal_free_min=1 << 20))
    session.declare_topic(SPEC)
    return session


def test_writers_hear_of_a_full_disk_and_go_on(
        tmp_path: Path, runtime_dir: Path, free: dict[str, int], cli: Cli) -> None:
    one, two = node(tmp_path, runtime_dir, 1), node(tmp_path, runtime_dir, 2)
    try:
        with two.open_reader(TOPIC, keep_all=False, from_history=False), one.open_writer(TOPIC) as writer:
            written = 0
            writer.inbox.write(PAYLOAD, timeout_s=10)
            assert writer.inbox.wait_acknowledged(10, persisted=True)
            free["2"] = 1000
            with pytest.raises(WriteTimeout):
                for _ in range(1000):
                    writer.inbox.write(PAYLOAD, timeout_s=0.5)
                    written += 1
            assert 10 < written < 1000 and not writer.inbox.wait_acknowledged(0.1, persisted=True)
            for session in (one, two):  # whoever asks
                (holder,) = wait_until(lambda: session.held_up_by(TOPIC))  # noqa: B023
                assert holder.node_id == 2 and "the journal of node 2: 1,000 bytes are free" in str(holder)
            shown = cli("status", "--node", 1)
            assert shown.code == 0 and "topic alerts waits for the journal of node 2" in " ".join(shown.out.split())
            with dds.DomainParticipant(0, way=HostNode(1, runtime_dir)) as program:
                topic = dds.Topic(program, TOPIC, bytes)
                late = dds.DataWriter(program, topic, dds.Qos(
                    dds.Policy.Reliability.Reliable(dds.duration(milliseconds=300))))
                with pytest.raises(dds.DDSTimeout, match=r"the journal of node 2: 1,000 bytes are free .*make room"):
                    for _ in range(1000):
                        late.write(PAYLOAD)
                        written += 1
            with pytest.raises(JournalError, match="free_min"):
                two.open_writer(TOPIC)
            free["2"] = 1 << 40
            writer.inbox.write(PAYLOAD, timeout_s=20)
            assert writer.inbox.wait_acknowledged(20, persisted=True)
            wait_until(lambda: not one.held_up_by(TOPIC))  # the other writer's messages are on their way
            assert not one.gone and not two.gone
            with two.open_writer(TOPIC) as another:
                another.inbox.write(b"last", timeout_s=10)
                assert another.inbox.wait_acknowledged(10, persisted=True)
    finally:
        two.close()
        one.close()
    found = [[(message.view_id, message.sequence, message.payload) for message in read(tmp_path / name)]
             for name in "12"]
    assert found[0] == found[1] and found[0][-1][2] == b"last" and len(found[0]) >= written + 2
    assert verify(tmp_path / "1").ok and verify(tmp_path / "2").ok


def test_a_topic_is_not_opened_where_there_is_no_room(tmp_path: Path, runtime_dir: Path, free: dict[str, int]) -> None:
    one = node(tmp_path, runtime_dir, 1)
    try:
        free["1"] = 5
        for _ in range(2):
            with pytest.raises(JournalError, match=r"5 bytes are free on the disk of .*\[journal\] free_min"):
                one.open_reader(TOPIC, keep_all=False, from_history=False)
        free["1"] = 1 << 40
        one.open_reader(TOPIC, keep_all=False, from_history=False).close()
    finally:
        one.close()


def test_a_node_that_leaves_while_its_journal_halts(tmp_path: Path, runtime_dir: Path, free: dict[str, int]) -> None:
    """It writes what it has into what was kept free, and is gone in time."""
    one = node(tmp_path, runtime_dir, 1)
    try:
        with one.open_writer(TOPIC) as writer:
            writer.inbox.write(b"1", timeout_s=10)
            assert writer.inbox.wait_acknowledged(10, persisted=True)
            free["1"] = 0
            writer.inbox.write(b"2", timeout_s=10)
            wait_until(lambda: one.held_up_by(TOPIC))
    finally:
        one.close()
    assert [message.payload for message in read(tmp_path / "1")] == [b"1", b"2"]


def test_a_topic_that_is_left_while_its_journal_halts(tmp_path: Path, runtime_dir: Path, free: dict[str, int]) -> None:
    """Goal: a disk that others have filled to the last byte ends no node, however much the journal still had to write.
    Method: more than the rest of the file takes, and the only writer closes."""
    def allocate(self: OsFiles, handle: int, offset: int, size: int) -> None:
        if not free["1"]:
            raise OSError(errno.ENOSPC, "No space left on device")

    with patch.object(OsFiles, "allocate", allocate), node(tmp_path, runtime_dir, 1) as one:
        one.declare_topic(TopicSpec("other"))
        with one.open_writer("other") as goes_on:
            with one.open_writer(TOPIC) as writer:
                for _ in range(40):
                    writer.inbox.write(PAYLOAD, timeout_s=10)
                assert writer.inbox.wait_acknowledged(10, persisted=True)
                free["1"] = 0
                for _ in range(40):
                    writer.inbox.write(PAYLOAD, timeout_s=10)
                wait_until(lambda: one.held_up_by(TOPIC))
            wait_until(lambda: verify(tmp_path / "1").files[0].in_use is False)
            goes_on.inbox.write(b"x", timeout_s=10)
            assert goes_on.inbox.wait_acknowledged(10)
            wait_until(lambda: not one.held_up_by(TOPIC))
            free["1"] = 1 << 40
            with one.open_writer(TOPIC) as writer:
                writer.inbox.write(b"later", timeout_s=10)
                assert writer.inbox.wait_acknowledged(10, persisted=True)
    found = [message.payload for message in read(tmp_path / "1")]
    assert verify(tmp_path / "1").ok and 40 <= len(found) < 81 and found[-1] == b"later"


def test_a_disk_that_does_not_answer_is_named_at_every_node(
        tmp_path: Path, runtime_dir: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goal: also where nobody is held up by it yet; and not any more when it answers. Method: syncs of one node's files
    that end when the test says so."""
    answers, sync, slow = threading.Event(), OsFiles.sync, str(tmp_path / "2")

    def hangs(self: OsFiles, handle: int) -> None:
        if os.readlink(f"/proc/self/fd/{handle}").startswith(slow):
            answers.wait()
        sync(self, handle)

    monkeypatch.setattr("spindle.topics.journals.SILENT_S", 0.1)
    monkeypatch.setattr("spindle.cli.group_status.SECOND_LOOK_S", 0.0)
    one, two = node(tmp_path, runtime_dir, 1), node(tmp_path, runtime_dir, 2)
    try:
        with two.open_reader(TOPIC, keep_all=False, from_history=False), one.open_writer(TOPIC) as writer:
            writer.inbox.write(b"1", timeout_s=10)
            assert writer.inbox.wait_acknowledged(10, persisted=True)
            with patch.object(OsFiles, "sync", hangs):
                writer.inbox.write(b"2", timeout_s=10)
                shown = wait_until(lambda: (found := cli("status", "--group", "--node", 1)).code and found)
                text = " ".join(shown.out.split())
                assert f"topic {TOPIC} waits for the journal of node 2: its disk, {slow}, does not answer" in text
                assert not writer.inbox.wait_acknowledged(0.0, persisted=True)
                answers.set()
                assert writer.inbox.wait_acknowledged(20, persisted=True)
            wait_until(lambda: not cli("status", "--group", "--node", 1).code)
    finally:
        answers.set()
        two.close()
        one.close()
    assert [message.payload for message in read(tmp_path / "2")] == [b"1", b"2"]
