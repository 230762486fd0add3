"""External clients whose nodes die, hang and leave at random, with real daemons.

Goal: whatever happens, every reader has what each writer wrote, once and in its order; all of it, unless nobody kept it
and a gap was told. Method: three clients that write and read one topic and never give up; of three nodes that they use,
one at a time is killed, stopped for a while, or asked to leave, and started anew. A fourth node is always a member: a
topic whose members all die is another matter. The seed is in the test's name.
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from spindle.client import ReaderHandle, WriterHandle, attach
from spindle.client.remote import attach_remote
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec
from tests.spindle.edge.edges import edge_of
from tests.spindle.hosts import Host, hosts
from tests.support import wait_until

CLIENTS = 3
FAULTS = 5
WAIT_S = 60.0


class Writing(threading.Thread):
    """Writes "number of the client, number of the message" until told to stop."""

    def __init__(self, number: int, writer: WriterHandle) -> None:
        super().__init__()
        self.number, self.writer = number, writer
        self.count = 0
        self.error: Exception | None = None
        self.stopping = threading.Event()

    def run(self) -> None:
        try:
            while not self.stopping.is_set():
                self.writer.inbox.write(b"%d %d" % (self.number, self.count), 0, WAIT_S)
                self.count += 1
                if self.count % 10 == 0:
                    time.sleep(0.002)
        except Exception as error:
            self.error = error


class Reading(threading.Thread):
    def __init__(self, reader: ReaderHandle) -> None:
        super().__init__()
        self.reader = reader
        self.got: list[bytes] = []
        self.stopping = threading.Event()

    def run(self) -> None:
        while not self.stopping.is_set():
            taken = self.reader.log.take(1000)
            self.got += taken
            if not taken:
                time.sleep(0.002)

    def of(self, number: int) -> list[int]:
        mine = b"%d " % number
        return [int(one[len(mine):]) for one in self.got if one.startswith(mine)]


def fault(host: Host, pick: random.Random) -> None:
    """One, and the host's node is back when this returns."""
    how = pick.choice(("kill", "leave", "stop"))
    if how == "kill":
        host.running.kill()
    elif how == "leave":
        host.running.terminate()
    else:
        os.kill(host.running.pid, signal.SIGSTOP)
        time.sleep(pick.uniform(0.2, 3.5))
        os.kill(host.running.pid, signal.SIGCONT)
        try:
            host.running.process.wait(1)  # it was cast out
        except subprocess.TimeoutExpired:
            return
        host.running.wait()
    host.start().wait_ready()


@pytest.mark.slow
def test_what_a_node_counts_of_them(runtime_dir: Path) -> None:
    """Goal: figures for metrics. Method: one client turns to the node, writes and reads."""
    with hosts(runtime_dir, 3) as site, attach(runtime_dir=site[1].directory) as beside:
        def relayed() -> dict[str, int]:
            found: dict[str, int] = beside.status()["relayed"]
            return found

        assert set(relayed().values()) == {0}
        with attach_remote([host.address for host in site], patience_s=None) as session:
            session.declare_topic(TopicSpec("t", size_max=64))
            writer = session.open_writer("t")
            reader = session.open_reader("t", keep_all=True, from_history=False)
            site[0].running.kill()
            wait_until(lambda: session.node_id == 2)
            before = relayed()
            assert (before["applications"], before["turned"], before["refused"]) == (1, 1, 0)
            for _ in range(3):
                writer.inbox.write(b"twelve bytes", 0, WAIT_S)
            assert writer.inbox.wait_acknowledged(WAIT_S)
            wait_until(lambda: reader.log.pending == 3)
            after = relayed()
            assert (after["taken"], after["taken_bytes"]) == (3, 36)
            assert (after["given"], after["given_bytes"]) == (3, 36)
        wait_until(lambda: relayed()["applications"] == 0)
        assert relayed()["refused"] == 0


@pytest.mark.slow
def test_a_new_disk_knows_how_far_a_silent_writer_has_got(runtime_dir: Path, tmp_path: Path) -> None:
    """Goal: a member that gets the retained end of a history only could answer the claim of a writer whose messages are
    no more in that. Method: what is in the journals when all are killed; node 3 has never had the writer's messages."""
    from spindle.journal.files import OsFiles
    from spindle.journal.recovery import recover

    with hosts(runtime_dir, 3, f'journal.dir="{tmp_path}"') as site:
        with attach_remote([site[0].address]) as far, attach(runtime_dir=site[1].directory) as near:
            far.declare_topic(TopicSpec("t", level=Level.LOGGED, size_max=64, history_depth=5))
            writer = far.open_writer("t")
            identity = writer._writer.identity  # type: ignore[attr-defined]
            for n in range(20):
                writer.inbox.write(b"%d" % n, 1000 + n, WAIT_S)
            other = near.open_writer("t")
            for _ in range(20):
                assert writer.inbox.wait_acknowledged(WAIT_S, True)
                other.inbox.write(b"later", 0, WAIT_S)
            assert other.inbox.wait_acknowledged(WAIT_S, True)
            with attach(runtime_dir=site[2].directory) as new:
                late = new.open_reader("t", keep_all=True, from_history=True)
                wait_until(lambda: late.log.pending == 5)
                other.inbox.write(b"last", 0, WAIT_S)
                assert other.inbox.wait_acknowledged(WAIT_S, True)
                for host in site:
                    host.running.kill()
        for node in (1, 2, 3):
            found = recover(OsFiles(), tmp_path, "t", node)
            assert found.relayed == {identity: 1019} and (found.position == 6) == (node == 3)


@pytest.mark.slow
@pytest.mark.parametrize("level", [Level.ATOMIC, Level.VOLATILE, Level.LOGGED], ids=lambda level: level.name.lower())
@pytest.mark.parametrize("through", ["connections of their own", "an edge"])
@pytest.mark.parametrize("seed", [7])
def test_once_and_in_order_over_many_faults(runtime_dir: Path, tmp_path: Path, level: Level, seed: int, through: str
                                            ) -> None:
    pick = random.Random(seed)
    with (hosts(runtime_dir, 4, f'journal.dir="{tmp_path}"') as (*site, steady),
          attach(runtime_dir=steady.directory) as beside, contextlib.ExitStack() as stack):
        edge = stack.enter_context(edge_of(runtime_dir, site)) if through == "an edge" else None
        sessions = []
        for k in range(CLIENTS):
            addresses = [host.address for host in site]
            pick.shuffle(addresses)
            if edge is not None:
                addresses = [str(edge.path)]
            sessions.append(attach_remote(addresses, name=f"client {k}", patience_s=None))
        sessions[0].declare_topic(TopicSpec("t", level=level, size_max=64,
                                            history_bytes=8 << 20 if level.keeps_history else 0))
        beside.open_reader("t", keep_all=False, from_history=False)
        readers = [Reading(one.open_reader("t", keep_all=True, from_history=False)) for one in sessions]
        writers = [Writing(k, one.open_writer("t")) for k, one in enumerate(sessions)]
        for thread in (*readers, *writers):
            thread.start()
        try:
            for _ in range(FAULTS):
                time.sleep(pick.uniform(0.3, 1.0))
                fault(pick.choice(site), pick)
        finally:
            for writer in writers:
                writer.stopping.set()
            for writer in writers:
                writer.join(WAIT_S)
        acknowledged = [one.writer.inbox.wait_acknowledged(WAIT_S) for one in writers]
        total = sum(one.count for one in writers)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline and any(
                len(one.got) < total and not one.reader.gap_count for one in readers):
            time.sleep(0.05)
        for reader in readers:
            reader.stopping.set()
            reader.join(WAIT_S)
        assert all(acknowledged) and [one.error for one in writers] == [None] * CLIENTS
        for reader in readers:
            for writer in writers:
                got = reader.of(writer.number)
                assert got == sorted(set(got))
                assert got == list(range(writer.count)) or (level is Level.ATOMIC and reader.reader.gap_count)
        for session in sessions:
            session.close()
