"""The life of one program: attach, open, write, read, end in some way. In a process forked for it."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
import traceback
from pathlib import Path

from spindle.client import attach
from spindle.errors import SpindleError
from spindle.group.levels import Level
from spindle.group.topics import TopicSpec

FATES = ("close", "leave", "exit", "kill")
TOPICS = {f"{level.name.lower()}-{number}": level for level in Level for number in range(3)}
SIZE_MAX = 2048  # bytes
WRITE_TIMEOUT_S = 5.0
FAILED, REFUSED = 3, 4  # exit codes


def fork_program(runtime_dir: Path, node_id: int, seed: int, fate: str) -> int:
    """Starts it; the process id. Its exit code: 0, REFUSED (and why on stderr) or FAILED; or it was killed."""
    pid = os.fork()
    if pid:
        return pid
    code = FAILED
    try:
        live(runtime_dir, node_id, random.Random(seed), fate)
        code = 0
    except SpindleError as error:
        print(f"soak: {type(error).__name__}: {error}", file=sys.stderr)
        code = REFUSED
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def live(runtime_dir: Path, node_id: int, rng: random.Random, fate: str) -> None:
    """One whole life; it does not return where its fate is `exit` or `kill`."""
    session = attach(runtime_dir=runtime_dir, node_id=node_id)
    readers, writers = [], []
    for name in rng.sample(sorted(TOPICS), rng.randint(1, 4)):
        session.declare_topic(TopicSpec(name, level=TOPICS[name], size_max=SIZE_MAX, window=16))
        if rng.random() < 0.7:
            readers.append(session.open_reader(name, keep_all=rng.random() < 0.3, from_history=rng.random() < 0.5))
        if rng.random() < 0.7:
            writers.append(session.open_writer(name))
    rounds = rng.randint(5, 40)
    ends_in = rng.randrange(rounds) if fate in ("exit", "kill") else rounds
    for number in range(rounds):
        for writer in writers:
            writer.inbox.write(rng.randbytes(rng.randint(1, SIZE_MAX)), timeout_s=WRITE_TIMEOUT_S)
            if number == ends_in and fate == "kill":
                writer.inbox.claim(SIZE_MAX, WRITE_TIMEOUT_S)
        for reader in readers:
            reader.log.take(100)
        if number == ends_in:
            os.kill(os.getpid(), signal.SIGKILL) if fate == "kill" else os._exit(0)
        time.sleep(rng.random() * 0.004)
    if fate == "close":
        for reader in readers:
            reader.close()
        for writer in writers:
            writer.close()
    session.close()
