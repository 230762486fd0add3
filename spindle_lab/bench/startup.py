"""`bench startup`: how long a program waits before it can work, and how much memory a node takes.

Rules: every time is that of a new process; a node's is from the start of its process to the line that says that
applications can attach, the interpreter's own start included.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from spindle_lab.bench.app_run import Daemons
from spindle_lab.bench.channel import Channel
from spindle_lab.bench.crew import BenchFailed, Crew, worker_environment

TOPICS = 10
ATTACHES = 20
IMPORT = "import time; t = time.perf_counter(); import dds; print(time.perf_counter() - t)"


def import_dds_s() -> float:
    """Seconds of `import dds` in a new interpreter. Raises BenchFailed."""
    ran = subprocess.run(
        [sys.executable, "-c", IMPORT],
        capture_output=True,
        text=True,
        timeout=30.0,
        env=worker_environment(),
        check=False,
    )
    if ran.returncode != 0:
        raise BenchFailed(f"import dds failed:\n{ran.stderr}")
    return float(ran.stdout)


def run(repeat: int = 5) -> dict[str, Any]:
    """Medians of `repeat`; resident memory of one daemon with ten topics, each with a reader and a writer."""
    imports = [import_dds_s() for _ in range(repeat)]
    ready, joined = [], []
    found: dict[str, Any] = {}
    for _ in range(repeat):
        with tempfile.TemporaryDirectory(prefix="spindle-bench-") as directory:
            with Daemons(Path(directory), 1) as first:
                ready.append(first.members[0].ready_s)
                with Daemons(Path(directory), 1, first_id=2) as second:
                    joined.append(second.members[0].ready_s)
                if not found:
                    found = with_applications(first, directory)
    return {
        "import_dds_ms": milliseconds(imports),
        "node_ready_ms": milliseconds(ready),
        "second_node_ready_ms": milliseconds(joined),
        **found,
    }


def with_applications(daemons: Daemons, directory: str) -> dict[str, Any]:
    before = daemons.members[0].resident_bytes()
    with Crew("startup", [{"runtime_dir": directory}]) as crew:
        [result] = crew.gather("done")
        time.sleep(0.2)
        resident = daemons.members[0].resident_bytes()
        crew.broadcast({"event": "stop"})
        crew.gather("stopped")
    return {
        "attach_ms": milliseconds(result["attach_s"]),
        "first_attach_ms": round(result["first_attach_s"] * 1000, 2),
        "topics": TOPICS,
        "resident_mb_without_topics": round(before / 1e6, 1),
        "resident_mb": round(resident / 1e6, 1),
    }


def milliseconds(values: list[float]) -> float:
    return round(statistics.median(values) * 1000, 2)


def work(channel: Channel, config: dict[str, Any]) -> None:
    """The application: attaches often, then opens ten topics and writes a little on each."""
    from spindle.client import attach
    from spindle.group.topics import TopicSpec

    attach_s = []
    for _ in range(ATTACHES + 1):
        before = time.perf_counter()
        session = attach(runtime_dir=config["runtime_dir"], node_id=1)
        attach_s.append(time.perf_counter() - before)
        session.close()
    session = attach(runtime_dir=config["runtime_dir"], node_id=1)
    handles = []
    for number in range(TOPICS):
        name = f"topic-{number}"
        session.declare_topic(TopicSpec(name))
        handles.append((session.open_reader(name, keep_all=True, from_history=False), session.open_writer(name)))
    for reader, writer in handles:
        for _ in range(200):
            writer.inbox.write(bytes(1000))
        while reader.log.wait(2.0) and reader.log.take(1000):
            if reader.log.pending == 0:
                break
    # The first attach imports what attaching needs; the others are what an application's second session takes.
    channel.send({"event": "done", "first_attach_s": attach_s[0], "attach_s": attach_s[1:]})
    channel.receive(60.0)
    for reader, writer in handles:
        reader.close()
        writer.close()
    session.close()
    channel.send({"event": "stopped"})
