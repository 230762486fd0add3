"""A client of Foxglove's protocol for tests, `spindle foxglove` as a process, and what it shows."""

from __future__ import annotations

import contextlib
import json
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import dds
from dds.idl import IdlStruct
from dds.idl.types import float32, sequence
from tests.support import wait_until

PROTOCOL = "foxglove.sdk.v1"
WAIT_S = 20.0


@dataclass
class Fix(IdlStruct, typename="flight.Fix"):
    aircraft: str
    feet: float32
    legs: sequence[str] = field(default_factory=list)


def participant(runtime_dir: Path, **more: Any) -> dds.DomainParticipant:
    return dds.DomainParticipant(runtime_dir=runtime_dir, **more)


def read(within: dds.DomainParticipant, topic: str, readers: int) -> None:
    """Wait until so many readers have it open."""

    def found() -> bool:
        ends = within.session.endpoints(topic)
        return sum(not one.is_writer for one in ends) == readers

    wait_until(found, WAIT_S, f"{readers} readers of {topic}")


class Client:
    """A client of Foxglove's protocol. `channels` by topic; `messages` are pairs of topic and payload, in their
    order."""

    def __init__(self, url: str, **more: Any) -> None:
        from websockets.sync.client import connect

        self._open = contextlib.ExitStack()
        self.socket = self._open.enter_context(
            connect(url, subprotocols=[PROTOCOL], max_size=None, **more))  # type: ignore[list-item]
        assert self.socket.subprotocol == PROTOCOL
        self.info: dict[str, Any] = {}
        self.channels: dict[str, dict[str, Any]] = {}
        self.by_id: dict[int, dict[str, Any]] = {}
        self.messages: list[tuple[str, bytes]] = []
        self.statuses: list[str] = []
        self._subscribed: dict[int, str] = {}
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        from websockets.exceptions import ConnectionClosed

        with contextlib.suppress(ConnectionClosed):
            for message in self.socket:
                if isinstance(message, bytes):
                    kind, subscription, _ = struct.unpack_from("<BIQ", message)
                    if kind == 1:
                        self.messages.append((self._subscribed[subscription], message[13:]))
                else:
                    self._heard(json.loads(message))

    def _heard(self, said: dict[str, Any]) -> None:
        if said["op"] == "serverInfo":
            self.info = said
        elif said["op"] == "status":
            self.statuses.append(said["message"])
            # The SDK's server (0.30) tells of a channel a moment before it knows it as this client's: asked again.
            early = re.fullmatch(r"Unknown channel ID: (\d+)", said["message"])
            if early and 1000 + int(early.group(1)) in self._subscribed:
                self._subscribe(int(early.group(1)))
        elif said["op"] == "advertise":
            for one in said["channels"]:
                self.by_id[one["id"]] = self.channels[one["topic"]] = one
        elif said["op"] == "unadvertise":
            for number in said["channelIds"]:
                gone = self.by_id.pop(number)
                if self.channels.get(gone["topic"]) is gone:
                    del self.channels[gone["topic"]]

    def channel(self, topic: str) -> dict[str, Any]:
        """Waits for it."""
        return wait_until(lambda: self.channels.get(topic), WAIT_S, f"a channel of {topic}, of {list(self.channels)}")

    def subscribe(self, topic: str) -> dict[str, Any]:
        channel = self.channel(topic)
        self._subscribed[1000 + channel["id"]] = topic
        self._subscribe(channel["id"])
        return channel

    def _subscribe(self, channel: int) -> None:
        self.send(op="subscribe", subscriptions=[{"id": 1000 + channel, "channelId": channel}])

    def unsubscribe(self, topic: str) -> None:
        self.send(op="unsubscribe", subscriptionIds=[1000 + self.channels[topic]["id"]])

    def send(self, **said: Any) -> None:
        self.socket.send(json.dumps(said))

    def of(self, topic: str) -> list[bytes]:
        return [payload for one, payload in self.messages if one == topic]

    def until(self, topic: str, count: int) -> list[bytes]:
        wait_until(lambda: len(self.of(topic)) >= count, WAIT_S, f"{count} messages of {topic}, of {self.messages}")
        return self.of(topic)

    def close(self) -> None:
        self._open.close()
        self._thread.join(WAIT_S)


class Served:
    """`spindle foxglove` as a process."""

    def __init__(self, runtime_dir: Path, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "spindle.cli", "foxglove", "--runtime-dir", str(runtime_dir), "--listen", "0",
             *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        self.clients: list[Client] = []
        self._said = ""

    def until_said(self, words: str) -> None:
        """Wait until it has written that to stderr."""
        assert self.process.stderr is not None
        while words not in self._said:
            line = self.process.stderr.readline()
            assert line, f"it has ended, and not said {words!r}"
            self._said += line

    def client(self, **more: Any) -> Client:
        self.clients.append(Client(self.url, **more))
        return self.clients[-1]

    def close(self) -> tuple[int, str]:
        """Exit code, and what it wrote to stderr."""
        for one in self.clients:
            with contextlib.suppress(Exception):
                one.close()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            _, err = self.process.communicate(timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.communicate()
            raise
        err = self._said + err
        sys.stderr.write(err)  # shown with a test that fails
        return self.process.returncode, err


@contextlib.contextmanager
def served(runtime_dir: Path, *arguments: str) -> Iterator[Served]:
    one = Served(runtime_dir, *arguments)
    try:
        assert one.url.startswith("ws"), one.close()
        yield one
    finally:
        one.close()
