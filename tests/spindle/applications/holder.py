"""An application that has taken hold of its descriptors: `python -m tests.spindle.applications.holder NODE HOW`.

It opens a reader and a writer of "honest", and ports that it closes again, and keeps copies of all descriptors that it
was handed. It says "ready" when it has done HOW to them, and goes on until its standard input ends:

fill   makes all of them blocking and fills what can be filled, and asks to be rung again and again
steal  makes them blocking and reads whatever comes, with a thread for each
close  closes them under the library's feet
"""

from __future__ import annotations

import contextlib
import os
import struct
import sys
import threading
import time

from spindle.client import attach

FULL = struct.pack("<Q", 2**64 - 2)


def handed() -> list[int]:
    """The descriptors of doorbells: eventfds, sockets without a name, epolls."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}").startswith(("anon_inode:[event", "socket:")) and int(name) > 2:
                found.append(int(name))
    return found


def fill(fd: int) -> None:
    """Puts in what fits, and leaves it so that the next one who writes has to wait."""
    os.set_blocking(fd, False)
    with contextlib.suppress(OSError):
        while True:
            os.write(fd, FULL)
    with contextlib.suppress(OSError):
        os.write(fd, struct.pack("<Q", 1))
    os.set_blocking(fd, True)


def steal(fd: int) -> None:
    with contextlib.suppress(OSError):
        while os.read(fd, 8):
            pass


def main() -> None:
    session = attach(node_id=int(sys.argv[1]), name="holder")
    control = session._channel._sock.fileno()
    kept = []
    for _ in range(3):
        reader = session.open_reader("honest", keep_all=False, from_history=False)
        writer = session.open_writer("honest")
        kept += [os.dup(fd) for fd in handed() if fd != control]
        reader.log.arm()  # it would be rung by the next message
        reader.close()
        writer.close()
    reader = session.open_reader("honest", keep_all=False, from_history=False)
    writer = session.open_writer("honest")
    writer.inbox.write(b"")
    ours = [fd for fd in handed() if fd != control]
    for fd in ours:
        how = sys.argv[2]
        if how == "fill":
            fill(fd)
        elif how == "steal":
            os.set_blocking(fd, True)
            threading.Thread(target=steal, args=(fd,), daemon=True).start()
        else:
            os.close(fd)
    print("ready", flush=True)
    ended = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.read(), ended.set()), daemon=True).start()
    while not ended.is_set():
        with contextlib.suppress(Exception):
            reader.log.arm()
            # As a writer that waits for progress all the time.
            waiting = struct.unpack_from("<Q", writer.inbox.ring.view(), 16)[0]
            struct.pack_into("<Q", writer.inbox.ring.view(), 16, waiting + 1)
        time.sleep(0.001)
    os._exit(0)


if __name__ == "__main__":
    main()
