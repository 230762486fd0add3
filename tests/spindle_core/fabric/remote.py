"""A member over verbs in a process of its own, for tests that talk to it as if it were in theirs.

`RemotePeer` starts one: what is called on its `fabric` is done there, while its row and its copies of other rows are
mapped here as well, so a test stores and looks directly. Run as a program, this file is that process: it takes
pickled calls from the socket whose descriptor it is given, in order, and answers each.
"""

from __future__ import annotations

import pickle
import socket
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from spindle_core.memory import Mapping

ROOT = Path(__file__).resolve().parents[3]
SIZE = struct.Struct("<Q")


def put(channel: socket.socket, what: Any, descriptors: list[int] | None = None) -> None:
    data = pickle.dumps(what)
    socket.send_fds(channel, [SIZE.pack(len(data))], descriptors or [])
    channel.sendall(data)


def get(channel: socket.socket) -> tuple[Any, list[int]]:
    head, descriptors, _, _ = socket.recv_fds(channel, SIZE.size, 16)
    if len(head) < SIZE.size:
        raise EOFError("the other process has ended")
    data = b""
    while len(data) < SIZE.unpack(head)[0]:
        data += channel.recv(SIZE.unpack(head)[0] - len(data))
    return pickle.loads(data), descriptors


class RemoteProcess:
    """The process; one member at a time lives in it."""

    def __init__(self) -> None:
        self.channel, theirs = socket.socketpair()
        self.lock = threading.Lock()
        self.process = subprocess.Popen([sys.executable, "-m", __name__, str(theirs.fileno())], cwd=ROOT,
                                        pass_fds=[theirs.fileno()])
        theirs.close()

    def call(self, name: str, *arguments: Any) -> tuple[Any, list[int]]:
        with self.lock:
            put(self.channel, (name, arguments))
            (good, answer), descriptors = get(self.channel)
        if not good:
            raise answer
        return answer, descriptors

    def end(self) -> None:
        self.channel.close()
        self.process.wait(10)


class RemoteFabric:
    def __init__(self, process: RemoteProcess) -> None:
        self._process = process

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self._process.call(name, *arguments)[0]

    @property
    def drained(self) -> bool:
        return self._process.call("is_drained")[0]


class RemotePeer:
    """As VerbsPeer, in another process."""

    def __init__(self, process: RemoteProcess, rank: int, n: int, more: dict[str, Any]) -> None:
        self.fabric = RemoteFabric(process)
        _, descriptors = process.call("begin", rank, n, more)
        others = [k for k in range(n) if k != rank]
        self.row, *copies = [Mapping.attach(fd, True) for fd in descriptors]
        self.copies = dict(zip(others, copies, strict=True))

    def peer_row(self, rank: int) -> memoryview:
        return self.copies[rank].view()

    def progress(self) -> int:
        return self.fabric.progress()

    def hush(self) -> None:
        self.fabric.hush()


class Member:
    """What runs in the process."""

    def __init__(self) -> None:
        self.peer: Any = None

    def begin(self, rank: int, n: int, more: dict[str, Any]) -> list[int]:
        from tests.spindle_core.fabric.verbs_peers import ROW_SIZE, VerbsPeer

        self.peer = VerbsPeer(rank, n, **more)
        copies = [Mapping.create(f"copy-{k}", ROW_SIZE) for k in range(n) if k != rank]
        for k, copy in zip((k for k in range(n) if k != rank), copies, strict=True):
            self.peer.fabric.local_address(k, copy)
        return [self.peer.row.fd, *[copy.fd for copy in copies]]

    def connect(self, peer: int, address: bytes) -> None:
        self.peer.fabric.connect(peer, address)

    def hush(self) -> None:
        self.peer.hush()

    def post_rounds(self, peer: int, rounds: int) -> None:
        """Data and then its guard in one list, `rounds` times, each one more than before."""
        view = self.peer.row.view()
        for k in range(1, rounds + 1):
            view[4096:4104] = k.to_bytes(8, "little")
            view[0:8] = k.to_bytes(8, "little")
            self.peer.fabric.post_writes([(peer, 4096, 8), (peer, 0, 8)])
            self.peer.progress()

    def is_drained(self) -> bool:
        return self.peer.fabric.drained

    def serve(self, channel: socket.socket) -> None:
        while True:
            try:
                (name, arguments), _ = get(channel)
            except EOFError:
                return
            descriptors: list[int] = []
            try:
                answer = getattr(self if hasattr(self, name) else self.peer.fabric, name)(*arguments)
                if name == "begin":
                    answer, descriptors = None, answer
                put(channel, (True, answer), descriptors)
            except Exception as error:
                put(channel, (False, error))


if __name__ == "__main__":
    Member().serve(socket.socket(fileno=int(sys.argv[1])))
