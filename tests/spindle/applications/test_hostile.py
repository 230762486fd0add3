"""Goal: a hostile application hurts only itself: not its node, not the group, no topic and no program beside it.

Method: three daemons; an honest program writes at the node that the hostile one is attached to, others read at all
three, on a topic that the hostile one uses as well. The hostile program (hostile.py) is a process, and lies in every
place that it may write, for many rounds and lives.
"""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from spindle.client import attach
from spindle.group.topics import TopicSpec
from tests.spindle.daemons import daemons
from tests.support import wait_until

LIVES, ROUNDS = 6, 10
PROGRAM = Path(__file__).with_name("hostile.py")


class Honest:
    """Writes numbers to a topic, without a pause, until `stop`; `count` is how many."""

    def __init__(self, runtime_dir: Path, topic: str) -> None:
        self.session = attach(runtime_dir=runtime_dir, node_id=1)
        self.session.declare_topic(TopicSpec(topic, size_max=64, window=16))
        self.writer = self.session.open_writer(topic)
        self.count = 0
        self.error: Exception | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.0005):
                self.writer.inbox.write(b"honest %d" % self.count, timeout_s=20.0)
                self.count += 1
        except Exception as error:
            self.error = error

    def __enter__(self) -> Honest:
        self._thread.start()
        return self

    def stop(self) -> None:
        self._stop.set()
        self._thread.join(30)
        assert self.error is None and not self._thread.is_alive(), self.error

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        self.session.close()


def test_a_hostile_application_hurts_nobody_else_on_real_nodes(runtime_dir: Path) -> None:
    with daemons(runtime_dir, 3) as group:
        sessions = [attach(runtime_dir=runtime_dir, node_id=node) for node in (1, 2, 3)]
        sessions[0].declare_topic(TopicSpec("common", size_max=64, window=16))
        readers = [session.open_reader("common", keep_all=True, from_history=False) for session in sessions]
        got: list[list[bytes]] = [[], [], []]

        def read(count: int) -> bool:
            for reader, mine in zip(readers, got, strict=True):
                mine.extend(bytes(one) for one in reader.log.take(10_000) if bytes(one).startswith(b"honest "))
            return min(map(len, got)) >= count

        view = sessions[1].view()
        with Honest(runtime_dir, "common") as honest:
            for seed in range(LIVES):
                before = honest.count
                command = [sys.executable, str(PROGRAM), str(runtime_dir), str(seed), str(ROUNDS)]
                done = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
                wait_until(lambda done=done: read(0) and done.poll() is not None, 60, what="its end")
                assert done.stderr is not None
                said = done.stderr.read().decode()
                done.stderr.close()
                assert done.returncode in (0, 3), said
                wait_until(lambda before=before: read(before + 100), 20, what="honest messages at all nodes")
            honest.stop()
            wait_until(lambda: read(honest.count), 20, what="all honest messages")
        assert got[0] == got[1] == got[2] == [b"honest %d" % n for n in range(honest.count)]
        for daemon in group:
            assert daemon.process.poll() is None and "Traceback" not in daemon.log, daemon.log
        after = sessions[1].view()
        assert after.node_ids == view.node_ids == (1, 2, 3)
        with sessions[0].open_writer("theirs") as writer, sessions[2].open_reader(
                "theirs", keep_all=True, from_history=False) as reader:  # what was its own is anybody's now
            writer.inbox.write(b"free again", timeout_s=10.0)
            found: list[bytes] = []
            wait_until(lambda: found.extend(bytes(one) for one in reader.log.take(10)) or b"free again" in found)
        for session in sessions:
            session.close()
