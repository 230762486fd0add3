"""An application that does what it can to harm: `hostile.py RUNTIME_DIR SEED ROUNDS`, for test_hostile.py.

In each round it attaches like any other, opens what it may, and then lies: bytes of its choice in everything that it
may write (rings of its writers, cursors of its readers), on the connection to the node, or it just ends in the middle.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys

import spindle_core.counters  # what is compiled against Mapping, before something else takes its place
import spindle_core.inbox_writer
import spindle_core.memory
import spindle_core.reader
from spindle.client import attach
from spindle.client.session import Session
from spindle.errors import SpindleError
from spindle.group.topics import TopicSpec

OWN, COMMON = "theirs", "common"
writable: list[spindle_core.memory.Mapping] = []
Mapping = spindle_core.memory.Mapping


class Keeping:
    """In place of Mapping where a session attaches: remembers what may be written."""

    @staticmethod
    def attach(fd: int, writable: bool = False) -> spindle_core.memory.Mapping:
        made = Mapping.attach(fd, writable=writable)
        if writable:
            globals()["writable"].append(made)
        return made


def scribble(rng: random.Random) -> None:
    """Noise, all ones, or numbers near those that are there, in the header or anywhere."""
    for mapping in writable:
        with memoryview(mapping).cast("B") as memory:
            for _ in range(rng.randrange(1, 20)):
                size = rng.choice((4, 8, 8, 64, 500))
                at = rng.choice((rng.randrange(64) * 8, rng.randrange(len(memory)))) % max(1, len(memory) - size)
                kind = rng.randrange(3)
                if kind == 0:
                    memory[at : at + size] = rng.randbytes(size)
                elif kind == 1:
                    memory[at : at + size] = b"\xff" * size
                else:
                    old = int.from_bytes(memory[at : at + 8], "little")
                    new = (old + rng.choice((-1, 1, 7, 1 << 20, 1 << 40))) % (1 << 64)
                    memory[at : at + 8] = new.to_bytes(8, "little")


def noise(session: Session, rng: random.Random) -> None:
    """On the connection, below its framing."""
    with contextlib.suppress(OSError):
        session._channel._sock.send(rng.randbytes(rng.randrange(1, 300)))


def play(runtime_dir: str, rng: random.Random) -> None:
    writable.clear()
    session = attach(runtime_dir=runtime_dir, node_id=1)
    try:
        for name in (OWN, COMMON):
            session.declare_topic(TopicSpec(name, size_max=64, window=16))
            if rng.random() < 0.7:
                writer = session.open_writer(name)
                for n in range(rng.randrange(4)):
                    writer.inbox.write(b"hostile %d" % n, timeout_s=1.0)
            if rng.random() < 0.7:
                session.open_reader(name, keep_all=rng.random() < 0.5, from_history=False)
        for _ in range(rng.randrange(1, 6)):
            rng.choice((lambda: scribble(rng), lambda: scribble(rng), lambda: noise(session, rng),
                        lambda: os.eventfd_write(session_bell(), 1)))()
    except (SpindleError, OSError, ValueError, TimeoutError):
        pass  # it was shown the door
    if rng.random() < 0.2:
        os._exit(3)  # with everything open; who runs us starts the next life
    session.close()


def session_bell() -> int:
    """The first eventfd that it was handed."""
    for fd in sorted(map(int, os.listdir("/proc/self/fd"))):
        with contextlib.suppress(OSError):
            if "eventfd" in os.readlink(f"/proc/self/fd/{fd}"):
                return fd
    raise OSError("none")


if __name__ == "__main__":
    spindle_core.memory.Mapping = Keeping  # type: ignore[misc, assignment]
    chance = random.Random(int(sys.argv[2]))
    for _ in range(int(sys.argv[3])):
        play(sys.argv[1], chance)
