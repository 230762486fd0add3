"""Follows every topic on one node and hashes what is delivered there: `python -m spindle.demo.verifier TOPIC...`.

Why below the DDS layer: it needs no types, and what it hashes are the very bytes and numbers that the node delivered.

Rules: a message counts with its sender, writer, view, sequence number and payload, so equal hashes mean the same
messages in the same order in the same views. Nothing is skipped: the readers are keep-all; what nodes say without a
payload, the end of a writer, is hashed and not counted. Requests come on stdin,
one a line: `report` prints counts, hashes and latencies as JSON; `dump PATH` also writes four bytes of each message's
hash, by which the first difference between two nodes is found. The end of stdin ends it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import select
import struct
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from spindle.client import ReaderHandle, Session

BATCH = 256
MARK_BYTES = 4
PREFIX = struct.Struct("<QQQQQ")  # sender, writer, view id, sequence number, payload size


class PayloadOrder:
    """Hash over payloads in their order, which the journals' content is compared with."""

    def __init__(self) -> None:
        self.count = 0
        self._hash = hashlib.blake2b(digest_size=16)

    def add(self, payload: bytes) -> None:
        self.count += 1
        self._hash.update(len(payload).to_bytes(8, "little"))
        self._hash.update(payload)

    def hexdigest(self) -> str:
        return self._hash.copy().hexdigest()


class TopicOrder:
    """The delivery order of one topic on this node."""

    def __init__(self, name: str, reader: ReaderHandle) -> None:
        self.name = name
        self.reader = reader
        self.payloads = PayloadOrder()
        self.delivery_us: list[float] = []  # from write to delivery at this node
        self.take_us: list[float] = []  # from write to take() here
        self.marks = bytearray()
        self._hash = hashlib.blake2b(digest_size=16)

    def take(self) -> int:
        """Takes what is there, at most a batch; returns how many."""
        pairs = self.reader.log.take_pairs(BATCH)
        now_ns = time.time_ns()
        for payload, info in pairs:
            part = hashlib.blake2b(
                PREFIX.pack(info.sender, info.writer, info.view_id, info.sequence, len(payload)), digest_size=16
            )
            part.update(payload)
            digest = part.digest()
            self._hash.update(digest)
            if payload:
                self.payloads.add(payload)
            self.marks += digest[:MARK_BYTES]
            if info.source_timestamp:
                self.delivery_us.append((info.reception_timestamp - info.source_timestamp) / 1000)
                self.take_us.append((now_ns - info.source_timestamp) / 1000)
        return len(pairs)

    def report(self) -> dict[str, Any]:
        return {
            "count": self.payloads.count,
            "payload_hash": self.payloads.hexdigest(),
            "hash": self._hash.copy().hexdigest(),
            "lost": self.reader.log.lost,
        }


def quantiles(values: list[float]) -> dict[str, float]:
    """p50, p99 and the largest; empty without values."""
    if not values:
        return {}
    ordered = sorted(values)
    last = len(ordered) - 1
    return {"p50": ordered[last // 2], "p99": ordered[round(last * 0.99)], "max": ordered[-1]}


def open_topics(session: Session, names: list[str], timeout_s: float) -> list[TopicOrder]:
    """A reader of every topic, from now on; waits until all exist. Raises TimeoutError."""
    end = time.monotonic() + timeout_s
    while missing := set(names) - {info.spec.name for info in session.topics()}:
        if time.monotonic() > end:
            raise TimeoutError(f"nobody declared {', '.join(sorted(missing))} within {timeout_s:g} s")
        time.sleep(0.02)
    return [TopicOrder(name, session.open_reader(name, keep_all=True, from_history=False)) for name in names]


def follow(topics: list[TopicOrder]) -> None:
    """Takes from all topics and answers requests until stdin ends."""
    by_fd = {topic.reader.log.fileno(): topic for topic in topics}
    poll = select.poll()
    for fd in (0, *by_fd):
        poll.register(fd, select.POLLIN)
    requests = b""
    while True:
        # A reader that isn't drained yet may not sleep: then poll only looks.
        busy = [topic.take() == BATCH for topic in topics]
        more = any(busy) or any([topic.reader.log.arm() for topic in topics])
        for fd, _ in poll.poll(0 if more else 1000):
            if fd:
                by_fd[fd].reader.log.clear()
                continue
            chunk = os.read(0, 4096)
            if not chunk:
                return
            *lines, requests = (requests + chunk).split(b"\n")
            for line in lines:
                answer(line.decode(), topics)


def answer(request: str, topics: list[TopicOrder]) -> None:
    """Answers one request with one line of JSON."""
    command, _, path = request.partition(" ")
    found = {"event": "report", "topics": {topic.name: topic.report() for topic in topics}}
    found["latency_us"] = {
        "write to delivery": quantiles([value for topic in topics for value in topic.delivery_us]),
        "write to take": quantiles([value for topic in topics for value in topic.take_us]),
    }
    if command == "dump":
        Path(path).write_text(json.dumps({topic.name: topic.marks.hex() for topic in topics}))
        found["event"] = "dump"
    say(found)


def say(found: dict[str, Any]) -> None:
    print(json.dumps(found), flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description="Hashes the delivery order of topics on one node.")
    parser.add_argument("topics", nargs="+", metavar="TOPIC")
    parser.add_argument("--timeout", type=float, default=20.0, metavar="S", help="wait so long for the topics to exist")
    arguments = parser.parse_args()
    from spindle.client import attach

    with attach(name="demo verifier") as session:
        topics = open_topics(session, arguments.topics, arguments.timeout)
        say({"event": "ready", "node": session.node_id})
        follow(topics)
    return 0


if __name__ == "__main__":
    sys.exit(main())
