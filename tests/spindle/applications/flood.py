"""A program that asks a node for more than there is time: so many connections, each with requests of `size` bytes, one
behind the other, all of them well-formed and full of work. Connections that are cut are made anew.

Called with the socket's path, the number of connections and the size; prints, now and then, how many answers have come
and how many connections were cut, and ends with its input.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from spindle.group.codec import PROTOCOL_VERSION
from spindle.proto import attach_pb2 as pb
from spindle.proto import opening_pb2
from spindle.transport.opening import MAGIC
from spindle.transport.wire import HEADER, encode


def requests(size: int) -> bytes:
    """Some requests, to be sent again and again: a reader that goes on from thousands of places."""
    wanted = pb.Request(number=1, open_reader=pb.OpenReader(topic="none"))
    one = pb.Position(group_id=1 << 63, view_id=1 << 40, sequence=1 << 40)
    each = pb.OpenReader(after=[one]).ByteSize()
    wanted.open_reader.after.extend([one] * ((size - 100) // each))
    return encode(wanted.SerializeToString())


def main(path: str, count: int, size: int) -> None:
    opening = encode(opening_pb2.Opening(
        magic=MAGIC, role=opening_pb2.APPLICATION, protocol=PROTOCOL_VERSION, name="flood").SerializeToString())
    request = requests(size)
    ready = selectors.DefaultSelector()
    ready.register(sys.stdin, selectors.EVENT_READ)
    answers = cut = 0
    told = time.monotonic()

    def connect() -> None:
        sock = socket.socket(socket.AF_UNIX)
        sock.connect(path)
        sock.sendall(opening)
        sock.setblocking(False)
        ready.register(sock, selectors.EVENT_READ, None)  # before it is admitted a large frame isn't taken

    for _ in range(count):
        connect()
    while True:
        for key, events in ready.select(0.1):
            sock = key.fileobj
            if not isinstance(sock, socket.socket):
                return
            try:
                if events & selectors.EVENT_READ:
                    got, fds, _, _ = socket.recv_fds(sock, 1 << 16, 8)
                    for fd in fds:
                        os.close(fd)
                    if not got:
                        raise ConnectionError
                    answers += len(got) >= HEADER.size
                    if key.data is None:
                        ready.modify(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, memoryview(request))
                if events & selectors.EVENT_WRITE:
                    rest = key.data[sock.send(key.data):] or memoryview(request)
                    ready.modify(sock, selectors.EVENT_READ | selectors.EVENT_WRITE, rest)
            except BlockingIOError:
                pass
            except OSError:
                cut += 1
                ready.unregister(sock)
                sock.close()
                with contextlib.suppress(OSError):
                    connect()
        if time.monotonic() - told > 0.1:
            told = time.monotonic()
            print(answers, cut, flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
