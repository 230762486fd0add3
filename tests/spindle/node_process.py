"""A node as a process of its own that does what it is told: JSON commands in, JSON answers out, a line each.

Commands: start, publish (a thread that writes until told to stop), subscribe (a thread that notes what is delivered),
stop_publishing, deliveries, status, hang, leave. The first word of an answer is "ok" or the name of an error class.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import json
import struct
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

PAYLOAD = struct.Struct("<IQ")  # node id, count


class NodeProcess:
    """The test's side."""

    def __init__(self, runtime_dir: Path, node_id: int, **config: Any) -> None:
        self.node_id = node_id
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.send("start", runtime_dir=str(runtime_dir), node_id=node_id, **config)

    def send(self, command: str, **arguments: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"command": command, **arguments}) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """The answer to the oldest unanswered command."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, f"node {self.node_id} ended with {self.process.wait()}"
        kind, value = json.loads(line)
        assert kind == "ok", f"node {self.node_id}: {kind}: {value}"
        return value

    def do(self, command: str, **arguments: Any) -> Any:
        self.send(command, **arguments)
        return self.answer()

    def last_words(self) -> tuple[str, str, int]:
        """Class and text of the error it ended with, and its exit code."""
        assert self.process.stdout is not None
        kind, text = "", ""
        for line in self.process.stdout:
            kind, text = json.loads(line)
        return kind, text, self.process.wait(10)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):  # a command that it didn't live to read
                stream.close()


class Doer:
    """The process's side."""

    def __init__(self) -> None:
        self.publishing = False
        self.written = 0
        self.deliveries: list[tuple[int, bytes]] = []
        self.gap_ms_max = 0.0
        self.threads: list[threading.Thread] = []

    async def run(self) -> None:
        from spindle.config.settings import NodeConfig
        from spindle.errors import SpindleError
        from spindle.node.node import Node

        loop = asyncio.get_running_loop()
        commands: asyncio.Queue[dict[str, Any]] = asyncio.Queue()

        def listen() -> None:
            for line in sys.stdin:
                loop.call_soon_threadsafe(commands.put_nowait, json.loads(line))

        threading.Thread(target=listen, daemon=True).start()
        try:
            arguments = await commands.get()
            del arguments["command"]
            arguments["runtime_dir"] = Path(arguments["runtime_dir"])
            self.node = Node(NodeConfig(**arguments))
            await self.node.start()
            self.say("ok", self.node.node_id)
            ended = asyncio.ensure_future(self.node.wait_stopped())
            while not ended.done():
                get = asyncio.ensure_future(commands.get())
                await asyncio.wait({get, ended}, return_when=asyncio.FIRST_COMPLETED)
                if get.done():
                    command = get.result()
                    self.say("ok", await getattr(self, command.pop("command"))(**command))
                else:
                    get.cancel()
            ended.result()
        except SpindleError as error:
            self.say(type(error).__name__, str(error))
            sys.stdout.flush()
            raise SystemExit(error.exit_code) from None

    @staticmethod
    def say(kind: str, value: Any) -> None:
        print(json.dumps([kind, value]), flush=True)

    async def declare(self, topic: str, level: int, size_max: int, window: int = 0) -> None:
        from spindle.group.levels import Level
        from spindle.group.topics import TopicSpec

        await self.node.declare_topic(TopicSpec(topic, level=Level(level), size_max=size_max, window=window))

    async def subscribe(self, topic: str, from_history: bool = False) -> None:
        from tests.spindle.ports import reader_of

        port = await self.node.open_reader(topic, keep_all=True, from_history=from_history)
        reader = reader_of(self.node, port)
        self.deliveries.clear()
        self.reading = True

        def read() -> None:
            from spindle_core.errors import NodeGone

            last = time.monotonic()
            try:
                while self.reading:
                    if reader.wait(0.2):
                        now = time.monotonic()
                        self.gap_ms_max = max(self.gap_ms_max, (now - last) * 1000)
                        last = now
                        self.deliveries.extend((info.view_id, payload) for payload, info in reader.take_pairs(1000))
            except NodeGone:
                self.deliveries.extend((info.view_id, payload) for payload, info in reader.take_pairs(1000))

        self.threads.append(threading.Thread(target=read, daemon=True))
        self.threads[-1].start()

    async def publish(self, topic: str, pause_s: float = 0.0, size: int = 12) -> None:
        from tests.spindle.ports import writer_of

        port = self.writer_port = await self.node.open_writer(topic)
        writer = writer_of(self.node, port)
        self.publishing = True

        def write() -> None:
            from spindle_core.errors import NodeGone

            filler = bytes(size - PAYLOAD.size)
            try:
                while self.publishing:
                    writer.write(PAYLOAD.pack(self.node.node_id, self.written) + filler, timeout_s=5)
                    self.written += 1
                    if pause_s:
                        time.sleep(pause_s)
            except NodeGone:
                pass

        self.writing = threading.Thread(target=write, daemon=True)
        self.writing.start()

    async def stop_publishing(self) -> int:
        """How many messages were written; all of them are delivered when this returns."""
        self.publishing = False
        await asyncio.get_running_loop().run_in_executor(None, self.writing.join)
        await self.node.close_writer(self.writer_port)
        return self.written

    async def gap(self) -> float:
        """Longest time without a delivery since the last call, ms."""
        longest, self.gap_ms_max = self.gap_ms_max, 0.0
        return longest

    async def count(self) -> int:
        return len(self.deliveries)

    async def deliver(self) -> list[tuple[int, str]]:
        """Everything delivered: view id and payload's hex."""
        return [(view_id, payload[:PAYLOAD.size].hex()) for view_id, payload in self.deliveries]

    async def status(self) -> dict[str, Any]:
        return self.node.status()

    async def hang(self, for_s: float, interpreter: bool = False) -> None:
        """The control loop does nothing; with `interpreter` no other thread runs Python meanwhile either."""
        if interpreter:
            ctypes.PyDLL(None).usleep(int(for_s * 1e6))
        else:
            time.sleep(for_s)

    async def leave(self) -> int:
        """How many messages were written before it began."""
        written, self.publishing = self.written, False
        await self.node.stop()
        return written

    async def committed(self) -> int:
        """How many messages were written so far."""
        return self.written


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import uvloop

    uvloop.run(Doer().run()) if hasattr(uvloop, "run") else asyncio.run(Doer().run())
